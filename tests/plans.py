"""What tests need to compile the same program with several plans."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch_spyre import _C
from torch_spyre._inductor import config
from torch_spyre.execution.kernel import SpyreKernel


@contextmanager
def planned(**plan: Any) -> Iterator[None]:
    """Settings of the compiler (``lx_planning=False``) for programs that may have run before.

    These are not traced again: a kernel is compiled when it first runs, and again when it has forgotten that.
    """
    _forget()
    with config.patch(**plan):
        yield
    _forget()


def _forget() -> None:
    _C.forget_kernels()
    for kernel in [each for each in gc.get_objects() if type(each) is SpyreKernel]:
        kernel.forget_variants()
