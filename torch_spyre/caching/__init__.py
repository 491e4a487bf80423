"""What was expensive to make, kept on disk by content: stores, version keys, compiled kernels."""
