"""Decisions about time: work division, LX placement, tile loops, and layouts chosen by the clock."""
