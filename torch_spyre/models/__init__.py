"""Whole models: what Hugging Face and FMS need of the device, and what people run them with."""
