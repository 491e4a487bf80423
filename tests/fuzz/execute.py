"""A program on the card, held against its reference."""

from __future__ import annotations

import hashlib
import os
import re
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from tests.fuzz.bounds import Ref
from tests.fuzz.program import Program, Settings
from tests.fuzz.reference import GLOBALS, Reference, run
from tests.plans import planned
from torch_spyre import _C
from torch_spyre._inductor import config
from torch_spyre.device.streams import current_stream

# Ways to compile a program, next to its own; its values depend on none of them.
PLANS: dict[str, tuple[dict[str, Any], ...]] = {
    "few": ({"lx_planning": False}, {"sencores": 3}),
    "all": (
        {"lx_planning": False},
        *({"sencores": cores} for cores in (1, 2, 3, 7, 8, 31)),
        {"sencores": 5, "lx_planning": False},
    ),
}


@dataclass(frozen=True)
class Failure:
    """``where``: the tensor; ``what``: why; ``kind``: values, form, plans (values that depend on one), modes (values
    that depend on one of run and strict), error, crash, hang, or pytorch: not the card's."""

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


@dataclass(frozen=True)
class Checked:
    """How a program fails, if it does. Of one that is compiled with several plans: whether they have a say in it."""

    failure: Failure | None
    hinted: bool = False  # it has hints, which are met
    faster: bool = False  # the modelled time is shorter with LX planning than without
    bits: str = ""  # a digest of the results


def check(program: Program) -> Checked:
    """Run it in this process, whose card must be in the program's mode."""
    expected = run(program)
    _apply(program.settings)
    failure = _checked_alone(program, expected)
    if failure is not None and "spyre_hint(" in failure.what:
        program = without_hints(program)
        failure = _checked_alone(program, expected)
    if failure is not None or not program.settings.plans:
        return Checked(failure)
    return _compare_plans(program)


def without_hints(program: Program) -> Program:
    return replace(program, steps=tuple(replace(step, hint="") for step in program.steps))


def _compare_plans(program: Program) -> Checked:
    """Whether the results are the same with every plan, bit for bit."""
    names = [*program.outputs, *program.given()]
    run_with = planned_run(program)
    first, time = run_with({})
    faster, unhinted = False, without_hints(program)
    for plan in PLANS[program.settings.plans]:
        try:
            found, other = run_with(plan)
        except Exception as error:
            if "spyre_hint(" in str(error):  # which asks for more cores than there are now
                continue
            return Checked(Failure("error", f"with {plan}: {type(error).__name__}: {error}"))
        if plan == {"lx_planning": False}:
            faster = time < other
        if failure := _differing_bits(names, found, first, str(plan)):
            return Checked(failure)
    if unhinted != program and (failure := _differing_bits(names, planned_run(unhinted)({})[0], first, "no hints")):
        return Checked(failure)
    return Checked(None, unhinted != program, faster, digest(first))


def digest(tensors: Iterable[Tensor]) -> str:
    """Of the bits of tensors on the host."""
    return hashlib.sha256(b"".join(_bits(tensor).numpy().tobytes() for tensor in tensors)).hexdigest()


def planned_run(program: Program) -> Callable[[dict[str, Any]], tuple[list[Tensor], float]]:
    """Runs the program with a plan: gives its results, on the host, and their modelled time."""
    compute, given = _functions(program, "inductor")

    def run_with(plan: dict[str, Any]) -> tuple[list[Tensor], float]:
        with warnings.catch_warnings(), planned(**plan):
            warnings.simplefilter("ignore")
            arguments = given("spyre")
            before = current_stream().modelled_time()
            outputs = compute(*arguments)
            time = current_stream().modelled_time() - before
            return [tensor.cpu() for tensor in (*outputs, *arguments)], time

    return run_with


def _differing_bits(names: list[str], found: list[Tensor], first: list[Tensor], plan: str) -> Failure | None:
    for name, one, other in zip(names, found, first, strict=True):
        if not torch.equal(_bits(one), _bits(other)):
            count = int((_bits(one) != _bits(other)).sum())
            return Failure("plans", f"{name}: {count} of {one.numel()} elements are others with {plan}", name)
    return None


def _bits(tensor: Tensor) -> Tensor:
    wide = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(wide[tensor.element_size()])


def _checked_alone(program: Program, expected: Reference) -> Failure | None:
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
    compute, given = _functions(program, backend)
    arguments = given(device)
    outputs = compute(*arguments)
    if device == "spyre":
        torch.spyre.synchronize()
    return [*outputs, *arguments]


def _functions(program: Program, backend: str) -> tuple[Callable[..., list[Tensor]], Callable[[str], list[Tensor]]]:
    space: dict[str, Any] = dict(GLOBALS)
    exec(program.code(), space)
    compute = space["compute"]
    if program.settings.compiled:
        torch._dynamo.reset()
        compute = torch.compile(compute, fullgraph=True, backend=backend)
    return compute, space["given"]


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
