"""Names that the rest of the world knows this device by."""

DEVICE_NAME = "spyre"
DISTRIBUTED_BACKEND_NAME = "spyreccl"
