"""``torch.spyre.compare``: a program beside the CPU, op by op, and the first op that is wrong, with its line."""

from .api import compare
from .judge import Judgement
from .report import Output, Report, Row
from .source import Line

__all__ = ["Judgement", "Line", "Output", "Report", "Row", "compare"]
