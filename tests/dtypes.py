"""The dtypes that the card has a format for."""

import torch

REALS = [torch.float16, torch.bfloat16, torch.float32]
INTEGERS = [torch.int8, torch.int16, torch.uint8, torch.int32, torch.int64]
COMPUTED = [*REALS, *INTEGERS, torch.bool]
STORED = [*COMPUTED, torch.float8_e4m3fn, torch.float8_e5m2]  # computing with float8 is the host's
