"""What of PyTorch's tests is not for cards, or has to be read with other words, and why."""

# In the source of the tests, after ``cuda`` has become ``spyre``.
REPLACEMENTS: dict[str, str] = {
    "torch.double": "torch.float",  # the card has no float64
}

# Tests that are not run, by the reason.
EXCLUDED: dict[str, tuple[str, ...]] = {}
