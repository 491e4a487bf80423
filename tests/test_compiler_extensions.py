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


def test_a_lowering_that_was_replaced_returns(registered):
    def doubled(b: compiler.Builder, x: compiler.Value) -> compiler.Value:
        return b.pointwise("mul", x, 2.0, dtype=b.meta.dtype)

    def negated(b: compiler.Builder, x: compiler.Value) -> compiler.Value:
        return b.pointwise("neg", x, dtype=b.meta.dtype)

    x = torch.full((3,), 4.0).to("spyre")
    registered += [compiler.register_lowering(torch.ops.aten.sqrt.default)(each) for each in (doubled, negated)]
    assert x.sqrt()[0].item() == -4
    compiler.unregister(doubled)  # is not the one that counts
    assert x.sqrt()[0].item() == -4
    compiler.unregister(negated)
    with torch.spyre.fallback("error"):
        assert x.sqrt()[0].item() == 2


def test_a_decomposition_that_was_replaced_returns(registered):
    def zeros(first, second, third, *_):
        return first.new_zeros(2, 4)

    x, y, weight = (torch.ones(size).to("spyre") for size in ((2, 3), (2, 5), (4, 3, 5)))
    registered.append(compiler.register_decomposition(torch.ops.aten._trilinear.default)(zeros))
    with torch.spyre.fallback("error"):
        assert torch.nn.functional.bilinear(x, y, weight)[0, 0].item() == 0
        compiler.unregister(zeros)
        assert torch.nn.functional.bilinear(x, y, weight)[0, 0].item() == 15


def test_a_lowering_for_loops_of_inductor_is_told_where_to_go(ops):
    from torch._inductor import config, lowering

    @lowering.register_lowering(ops.scaled_silu.default)
    def loops(x, factor):
        raise AssertionError("the card has no loops of Inductor")

    x = torch.randn(5, 70)
    try:
        with config.patch(force_disable_caches=True), pytest.warns(UserWarning) as warned:
            found = torch.compile(lambda x: ops.scaled_silu(x, 3.0))(x.to("spyre")).cpu()
    finally:
        del lowering.lowerings[ops.scaled_silu.default]
    torch.testing.assert_close(found, torch.nn.functional.silu(x) * 3)
    assert any("torch_spyre.compiler.register_lowering registers one for the card" in str(w.message) for w in warned)


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
