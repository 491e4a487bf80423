"""Passes over a kernel, in the order that `compiler` runs them; one file each."""
