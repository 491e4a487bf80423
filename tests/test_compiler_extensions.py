"""What others add to the compiler: lowerings, decompositions, passes."""

import pytest
import torch

from torch_spyre import compiler
from torch_spyre._inductor import pipeline
from torch_spyre.caching import version


@pytest.fixture(scope="module")
def ops():
    """Ops of somebody else's library, with a kernel on the CPU."""
    with torch.library._scoped_library("another", "FRAGMENT") as library:
        library.define("scaled_silu(Tensor x, float factor) -> Tensor")
        library.impl("scaled_silu", lambda x, factor: torch.nn.functional.silu(x) * factor, "CPU")
        library.impl("scaled_silu", lambda x, factor: torch.empty_like(x), "Meta")
        yield torch.ops.another


@pytest.fixture
def registered():
    """Functions in this list are taken back when the test ends."""
    functions = []
    yield functions
    for function in functions:
        compiler.unregister(function)


def check(op, compiled=False):
    x = torch.randn(5, 70)
    call = torch.compile(lambda x: op(x, 3.0) + 1) if compiled else lambda x: op(x, 3.0) + 1
    with torch.spyre.fallback("error"):
        found = call(x.to("spyre")).cpu()
    torch.testing.assert_close(found, torch.nn.functional.silu(x) * 3 + 1)


def lowering(b: compiler.Builder, x: compiler.Value, factor: float) -> compiler.Value:
    return b.pointwise("mul", b.pointwise("silu", x, dtype=torch.float32), factor, dtype=b.meta.dtype)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_lowering(ops, registered, compiled):
    with pytest.raises(RuntimeError, match="scaled_silu"):  # there is none yet
        check(ops.scaled_silu)
    registered.append(compiler.register_lowering(ops.scaled_silu)(lowering))
    check(ops.scaled_silu, compiled)
    compiler.unregister(lowering)
    with pytest.raises(RuntimeError, match="scaled_silu"):
        check(ops.scaled_silu)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_decomposition(ops, registered, compiled):
    def decomposition(x, factor):
        return torch.nn.functional.silu(x) * factor

    registered.append(compiler.register_decomposition(ops.scaled_silu)(decomposition))
    check(ops.scaled_silu, compiled)


def test_a_pass_runs_where_it_was_put(registered, monkeypatch):
    monkeypatch.setenv("SPYRE_KERNEL_CACHE", "0")  # what an earlier run has left there needs no pass
    seen = []

    def count_ops(plan: compiler.Plan) -> None:
        seen.append(len(plan.device_ops))

    registered.append(compiler.register_pass(after="lift_ops")(count_ops))
    names = [stage.name for _, stage in pipeline.walk()]
    assert names.index("count_ops") == names.index("lift_ops") + 1
    x = torch.randn(3, 64).to("spyre")
    assert torch.equal((x + 1).cpu(), x.cpu() + 1)
    assert seen and seen[0] >= 1
    compiler.unregister(count_ops)
    assert "count_ops" not in [stage.name for _, stage in pipeline.walk()]


def test_registrations_are_part_of_the_keys_of_caches(registered):
    before = version.compiler_version()

    def nothing(plan: compiler.Plan) -> None: ...

    registered.append(compiler.register_pass(before="dead_code")(nothing))
    assert version.compiler_version() != before
    compiler.unregister(nothing)
    assert version.compiler_version() == before


def test_a_stage_that_does_not_exist():
    with pytest.raises(ValueError, match=r"no stage 'fusion'; it has resolve_aliases, dead_code"):
        compiler.register_pass(after="fusion")(lambda plan: None)
    with pytest.raises(ValueError, match="one of before= and after="):
        compiler.register_pass()
