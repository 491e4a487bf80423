"""Random programs on the card, and whether the fuzzer would notice."""

from dataclasses import replace

import pytest
import torch

from tests.fuzz import bounds, driver, execute, reference
from tests.fuzz.bounds import Invalid, Ref
from tests.fuzz.driver import fuzz, shrunk
from tests.fuzz.execute import Failure
from tests.fuzz.generate import generate
from tests.fuzz.program import Input, Program, Settings, Step, from_json
from tests.fuzz.shrink import shrink
from tests.fuzz.worker import Worker, failure_of

EXIT = "__import__('os')._exit(3)"


@pytest.mark.timeout(900)
@pytest.mark.parametrize("count", [100, pytest.param(200, marks=pytest.mark.slow)])
def test_programs(count):
    """The same ones every time; ``make fuzz`` runs others."""
    summary = fuzz(range(count), jobs=2)
    report = [f"seed {f.seed}: {f.failure}\n{f.program.code()}" for f in map(shrunk, summary.found[:3])]
    assert not summary.found, "\n\n".join([str(summary), *report])
    assert summary.count == count and summary.compiled > 10


@pytest.mark.parametrize(
    ("count", "plans"),
    [
        (8, "few"),
        pytest.param(20, "few", marks=pytest.mark.slow),
        pytest.param(200, "all", marks=[pytest.mark.slow, pytest.mark.timeout(3600)]),
    ],
)
def test_plans_change_no_result(count, plans):
    """Cores, LX planning and hints: the same bits, in strict mode too."""
    summary = fuzz(range(count), jobs=2, plans=plans)
    report = [f"seed {f.seed}: {f.failure}\n{f.program.code()}" for f in map(shrunk, summary.found[:3])]
    assert not summary.found, "\n\n".join([str(summary), *report])
    assert summary.count == count
    assert summary.faster > 0.7 * count and summary.hinted > 0.25 * count  # there was something to plan


@pytest.mark.parametrize("seed", range(0, 300, 23))
def test_a_program_is_data(seed):
    program = generate(seed)
    assert from_json(program.to_json()) == program == generate(seed)
    compile(program.script(), "script", "exec")
    assert len(program.steps) >= 3


def add_one(dtype: str, *steps: Step) -> Program:
    """``a1`` has as many columns as ``a0``; the outputs are what the steps give."""
    given = (Input("a0", (5, 7), dtype, "real", 0), Input("a1", (7,), dtype, "real", 1, "strided"))
    return Program(Settings(), given, steps, 0, tuple(step.name for step in steps))


CHAIN = add_one(
    "float16",
    Step("v0", "transpose", ("a0",), {"a": 0, "b": -1}),
    Step("v1", "mul", ("a0", "a1"), {}),
    Step("v2", "slice", ("v0",), {"index": "2:4"}),
    Step("v3", "zero_", ("v2",), {}),
    Step("v4", "sum", ("v1",), {"dim": [0], "keepdim": False}),
)


def test_bounds_follow_views_and_writes():
    refs = reference.run(CHAIN).refs
    assert refs["a0"].value[:, 2:4].abs().sum() == 0 and refs["a0"].exact is False
    assert refs["v2"].exact and refs["v0"].value[2].abs().sum() == 0
    # A product of two inputs that were rounded, rounded again: three times a unit of SEN169, and a little more.
    off = refs["v1"].error / refs["v1"].value.abs()
    assert 3 * 2**-9 < off.max() < 3 * 2**-9 + 1e-4


def test_bounds_hold_on_the_host():
    """PyTorch's own fp16 is nearer than the card's: what it gives has to be inside."""
    for seed in range(40):
        program = generate(seed)
        found = reference.run(program)
        for name, ref in found.refs.items():
            if ref.dtype != torch.bfloat16:
                assert execute.compare(name, found.native[name], ref) is None, (seed, name)


def test_jumps_take_exact_operands_only():
    jump = add_one("float16", Step("v0", "floor", ("a0",), {}))
    with pytest.raises(Invalid, match="not exact"):
        reference.run(jump)
    whole = replace(jump, inputs=(replace(jump.inputs[0], kind="quarters"), jump.inputs[1]))
    assert reference.run(whole).refs["v0"].exact


def test_a_wrong_element_is_found():
    value = torch.full((3, 2), 2.0, dtype=torch.float64)
    ref = Ref(value, torch.full((3, 2), 0.01, dtype=torch.float64), torch.float16)
    found = torch.full((3, 2), 2.005, dtype=torch.float16)
    assert execute.compare("x", found, ref) is None
    for wrong in (2.02, float("nan"), float("inf")):
        found[2, 1] = wrong
        failure = execute.compare("x", found, ref)
        assert failure is not None and failure.kind == "values" and "x[2, 1]" in failure.what


def test_other_strides_are_found():
    found = execute.differing_form("x", torch.zeros(4, 3), torch.zeros(3, 4).t())
    assert found is not None and "strides [3, 1], not torch.float32 (4, 3), strides [1, 4]" in found.what
    assert execute.differing_form("x", torch.zeros(4, 1), torch.zeros(1, 4).t()) is None


def test_other_bits_are_found(monkeypatch):
    """A card that rounds otherwise on three cores."""
    planned = execute.planned_run

    def off_by_a_bit(program: Program):
        def run(plan):
            found, time = planned(program)(plan)
            return [x.nextafter(x + 1) if plan == {"sencores": 3} else x for x in found], time

        return run

    program = add_one("float32", Step("v0", "mul", ("a0", "a1"), {}))
    few = replace(program, settings=Settings(compiled=True, plans="few"))
    assert execute.check(few).failure is None
    monkeypatch.setattr(execute, "planned_run", off_by_a_bit)
    found = execute.check(few).failure
    assert found is not None and found.kind == "plans"
    assert found.what == "v0: 35 of 35 elements are others with {'sencores': 3}"


def test_modes_that_differ_are_found():
    same, other = {"bits": "1"}, {"bits": "2"}
    assert failure_of(driver._compared(same, dict(same))) is None
    found = failure_of(driver._compared(same, other))
    assert found is not None and found.kind == "modes"
    failed = {"failure": {"kind": "error", "what": "no"}, "program": {}}
    assert failure_of(driver._compared(same, failed)) == Failure("error", "no")


def test_hints_are_written_around_their_steps():
    steps = tuple(replace(step, hint="tiles={'M': 2}" if step.op in ("mul", "slice") else "") for step in CHAIN.steps)
    lines = replace(CHAIN, steps=steps).code().splitlines()
    at = lines.index("    with spyre_hint(tiles={'M': 2}):")
    assert [line.split(" = ")[0] for line in lines[at + 1 : at + 4]] == ["        v1", "        v2", "    v3"]


def test_failures_become_small():
    """A card that cannot multiply: of five steps, two layouts and 5 x 7 elements one multiplication is left."""

    def run(program: Program) -> Failure | None:
        steps = [step for step in program.steps if step.op == "mul"]
        return Failure("values", "wrong") if steps else None

    program, _ = shrink(replace(CHAIN, settings=Settings("strict", 5, "off", True)), Failure("values", "wrong"), run)
    assert [step.op for step in program.steps] == ["mul"]
    assert program.settings == Settings()
    assert all(given.layout == "plain" and set(given.shape) == {1} for given in program.inputs)


def test_a_crash_is_a_failure_of_its_program():
    fatal = Program(Settings(), CHAIN.inputs, (Step("v0", "slice", ("a0",), {"index": EXIT}),), 0, ("v0",))
    worker = Worker("run")
    try:
        assert failure_of(worker.run(fatal)) == Failure("crash", "the process ended with code 3")
        assert failure_of(worker.run(CHAIN)) is None
    finally:
        worker.close()


def test_rounding_keeps_what_formats_have():
    value = torch.tensor([257.0, 1024.0, 0.1, 0.0], dtype=torch.float64)
    zero = torch.zeros_like(value)
    assert bounds.rounded(value, zero, torch.float16)[1].tolist()[:2] == [0, 0]
    assert bounds.rounded(value, zero, torch.bfloat16)[1][0] > 1  # eight bits
    assert bounds.rounded(value, zero, torch.float32)[1][2] > 0
