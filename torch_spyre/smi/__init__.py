"""The cards of this machine as other processes see them: ``spyre smi``. Nothing here imports torch."""

from .metric_file import MetricFile
from .sampling import Sample, rates, sample

__all__ = ["MetricFile", "Sample", "rates", "sample"]
