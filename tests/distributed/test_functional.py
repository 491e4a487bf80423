"""Functional collectives, compiled: no graph break, no host wait, and work beside them."""

import pytest
import torch
from torch import fx
from torch._subclasses import FakeTensorMode

from torch_spyre._inductor.fx.schedule_collectives import schedule_collectives

from . import functional
from .ranks import Ranks

c10d = torch.ops._c10d_functional
aten = torch.ops.aten


@pytest.mark.parametrize("name", functional.PROGRAMS)
def test_compiled_as_eager(two: Ranks, name: str) -> None:
    assert two.run(functional.compiled_as_eager, name) == [True, True]


@pytest.mark.parametrize("name", functional.SEQUENCES)
def test_kernels_and_collectives_are_one_launch(two: Ranks, name: str) -> None:
    _, starts = functional.SEQUENCES[name]
    assert two.run(functional.in_sequences, name) == [(True, starts, True)] * 2


def test_tools_hear_of_each_kernel_of_a_launch_sequence(two: Ranks) -> None:
    assert two.run(functional.heard_of_a_chain) == [(4, 4, True)] * 2


def test_values_inside_a_launch_sequence_are_freed_behind_their_last_use(two: Ranks) -> None:
    assert two.run(functional.memory_of_a_chain, 3) == two.run(functional.memory_of_a_chain, 9)


def test_sums_in_place_and_of_shared_addends(two: Ranks) -> None:
    assert all(right for shared in (False, True) for right in two.run(functional.in_place_of, shared))


@pytest.mark.parametrize("shared, target", [(False, c10d.all_reduce_.default), (True, c10d.all_reduce.default)])
def test_a_sum_whose_addend_nobody_else_uses_is_made_in_place(shared: bool, target: object) -> None:
    graph = fx.Graph()
    with FakeTensorMode():
        fake = torch.empty(4, device="spyre")
    x = graph.placeholder("x")
    addend = graph.call_function(aten.relu.default, (x,))
    addend.meta["val"] = fake
    start = graph.call_function(c10d.all_reduce.default, (addend, "sum", "0"))
    wait = graph.call_function(c10d.wait_tensor.default, (start,))
    graph.output((wait, addend) if shared else (wait,))
    schedule_collectives(graph)
    assert start.target is target


def test_work_that_a_collective_does_not_need_goes_on_beside_it(two: Ranks) -> None:
    found = two.run(functional.overlap)
    assert found[0] == found[1]
    both, total, rest = found[0]
    assert both < rest + 0.6 * total  # of which the cut into kernels costs some


def test_sizes_that_change(two: Ranks) -> None:
    assert two.run(functional.sizes_that_change) == [True, True]


def test_groups_in_threads(two: Ranks) -> None:
    assert two.run(functional.threads) == [True, True]


def test_threads_in_one_group(two: Ranks) -> None:
    assert two.run(functional.threads_in_one_group) == [[], []]


def order_of(build) -> list[str]:
    graph = fx.Graph()
    build(graph)
    schedule_collectives(graph)
    return [node.name for node in graph.nodes if node.op == "call_function"]


def test_starts_early_and_waits_late() -> None:
    def build(graph: fx.Graph) -> None:
        x = graph.placeholder("x")
        other = graph.create_node("call_function", aten.relu.default, (x,), name="other")
        needed = graph.create_node("call_function", aten.neg.default, (x,), name="needed")
        start = graph.create_node("call_function", c10d.all_reduce.default, (needed, "sum", "0"), name="start")
        wait = graph.create_node("call_function", c10d.wait_tensor.default, (start,), name="wait")
        beside = graph.create_node("call_function", aten.abs.default, (x,), name="beside")
        used = graph.create_node("call_function", aten.add.Tensor, (wait, other), name="used")
        later = graph.create_node("call_function", aten.sin.default, (beside,), name="later")
        graph.output((used, later))

    assert order_of(build) == ["needed", "start", "other", "beside", "later", "wait", "used"]


def test_collectives_keep_their_order_and_changes_of_memory_theirs() -> None:
    def build(graph: fx.Graph) -> None:
        x, y = graph.placeholder("x"), graph.placeholder("y")
        reads = graph.create_node("call_function", aten.relu.default, (x,), name="reads")
        writes = graph.create_node("call_function", aten.copy_.default, (x, y), name="writes")
        first = graph.create_node("call_function", c10d.all_reduce.default, (writes, "sum", "0"), name="first")
        second = graph.create_node("call_function", c10d.all_reduce.default, (y, "sum", "0"), name="second")
        late = graph.create_node("call_function", c10d.wait_tensor.default, (second,), name="late")
        early = graph.create_node("call_function", c10d.wait_tensor.default, (first,), name="early")
        graph.output((reads, late, early))

    assert order_of(build) == ["reads", "writes", "first", "second", "late", "early"]
