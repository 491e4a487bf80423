"""A program on the card, held against its reference."""

from __future__ import annotations

import os
import re
import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tests.fuzz.bounds import Ref
from tests.fuzz.program import Program, Settings
from tests.fuzz.reference import GLOBALS, Reference, run
from torch_spyre import _C
from torch_spyre._inductor import config


@dataclass(frozen=True)
class Failure:
    """``kind``: values, form, error, crash, hang, or pytorch: not the card's. ``where``: the tensor; ``what``: why."""

    kind: str
    what: str
    where: str = ""

    def like(self, other: Failure | None) -> bool:
        """Whether it seems to be the same bug: numbers and names may differ."""
        if other is None or other.kind != self.kind:
            return False
        return self.kind != "error" or _words(self.what) == _words(other.what)


def _words(text: str) -> list[str]:
    return re.findall(r"[A-Za-z_:]{3,}", text.split("\n")[0])[:8]


_settings: list[Settings] = []  # of this process: kernels belong to a number of cores and a share of LX


def check(program: Program) -> Failure | None:
    """Run it in this process, whose card must be in the program's mode."""
    expected = run(program)
    _apply(program.settings)
    with config.patch(sencores=program.settings.cores):
        failure = _tried(program, expected, "spyre", "inductor")
    if failure is not None and program.settings.compiled:
        # What PyTorch's own tracing refuses, or gets wrong on every device, is not the card's.
        for backend in ("aot_eager", "inductor"):
            there = _tried(program, expected, "cpu", backend)
            if there is not None and there.kind == failure.kind:
                return Failure("pytorch", there.what, there.where)
    return failure


def _tried(program: Program, expected: Reference, device: str, backend: str) -> Failure | None:
    names = [*program.outputs, *program.given()]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = _results(program, device, backend)
            values = [tensor.cpu() for tensor in found]
    except Exception as error:
        return Failure("error", f"{type(error).__name__}: {error}")
    for name, tensor, host in zip(names, found, values, strict=True):
        failure = differing_form(name, tensor, expected.native[name]) or compare(name, host, expected.refs[name])
        if failure is not None:
            return failure
        if tensor.device.type != device:
            return Failure("form", f"{name}: on {tensor.device}, not {device}", name)
    return None


def _results(program: Program, device: str, backend: str) -> list[Tensor]:
    space: dict[str, Any] = dict(GLOBALS)
    exec(program.code(), space)
    compute = space["compute"]
    if program.settings.compiled:
        torch._dynamo.reset()
        compute = torch.compile(compute, fullgraph=True, backend=backend)
    given = space["given"](device)
    outputs = compute(*given)
    if device == "spyre":
        torch.spyre.synchronize()
    return [*outputs, *given]


def _apply(settings: Settings) -> None:
    if not _settings or (_settings[-1].cores, _settings[-1].lx) != (settings.cores, settings.lx):
        _C.forget_kernels()
    _settings[:] = [settings]
    os.environ["DXP_LX_FRAC_AVAIL"] = settings.environment()["DXP_LX_FRAC_AVAIL"]


def differing_form(name: str, found: Tensor, native: Tensor) -> Failure | None:
    form = (found.dtype, found.shape, _strides(found))
    wanted = (native.dtype, native.shape, _strides(native))
    if form == wanted:
        return None
    return Failure("form", f"{name}: {_shown(form)}, not {_shown(wanted)}", name)


def compare(name: str, found: Tensor, ref: Ref) -> Failure | None:
    """``found`` is a copy on the host."""
    got, value = found.to(ref.value.dtype), ref.value
    right = (got - value).abs() <= ref.error if ref.real else got == value  # false where there is a NaN
    if right.all():
        return None
    at = tuple(int(i) for i in (~right).nonzero()[0])
    what = f"{name}{list(at)}: {found[at].item()}, not {value[at].item()} ± {ref.error[at].item():.3g}"
    return Failure("values", f"{what}; {int((~right).sum())} of {right.numel()} differ", name)


def _strides(tensor: Tensor) -> list[int] | None:
    """Those that matter: of dimensions longer than one, unless there is nothing at all."""
    if not tensor.numel():
        return None
    return [stride for stride, size in zip(tensor.stride(), tensor.size(), strict=True) if size > 1]


def _shown(form: tuple) -> str:
    return f"{form[0]} {tuple(form[1])}, strides {form[2]}"
