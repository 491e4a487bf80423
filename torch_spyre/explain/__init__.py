"""What the backend did with a program, and why: collected, told and drawn."""

from .explain import explain
from .report import Report

__all__ = ["Report", "explain"]
