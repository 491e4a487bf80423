"""Names that the rest of the world knows this device by."""

DEVICE_NAME = "spyre"
DISTRIBUTED_BACKEND_NAME = "spyreccl"
PROVENANCE_FILE = "spyre_provenance.json"  # where nobody names another
