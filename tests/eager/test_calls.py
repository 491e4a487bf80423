"""The graph that a call becomes: a functional op, and copies into the tensors that the call writes."""

import pytest
import torch

from torch_spyre import _C, eager

aten = torch.ops.aten


@pytest.fixture
def describe(monkeypatch):
    """``describe(op, *args, **kwargs)``: the description of a call, and the graph that would have been compiled."""

    def run(op, *args, **kwargs):
        graphs = []

        def stop(functional, graph, inputs):
            graphs.append(graph)
            values = [node.meta["val"] for node in graph.output_node().args[0]]
            outputs = [eager.descriptions.new_output(value) for value in values]
            return None, outputs

        monkeypatch.setattr(eager.calls, "compile_graph", stop)
        given = [arg.name for arg in op._schema.arguments if not arg.kwarg_only]
        defaults = [arg.default_value for arg in op._schema.arguments if arg.name in given[len(args) :]]
        named = {a.name: kwargs.get(a.name, a.default_value) for a in op._schema.arguments if a.kwarg_only}
        return eager.compile_call(op, (*args, *defaults), named, []), graphs[0] if graphs else None

    return run


def calls(graph: torch.fx.Graph) -> list:
    return [node.target for node in graph.nodes if node.op == "call_function"]


def inputs(graph: torch.fx.Graph) -> list:
    return list(graph.find_nodes(op="placeholder"))


def card(*shape: int, dtype=torch.float16) -> torch.Tensor:
    return torch.ones(shape, dtype=dtype, device="spyre")


def test_out(describe):
    found, graph = describe(aten.add.out, card(2, 3), card(3), out=card(2, 3))
    assert calls(graph) == [aten.add.Tensor, aten.copy_.default]
    assert graph.find_nodes(op="call_function", target=aten.copy_.default)[0].args[0] is inputs(graph)[2]
    assert found["arguments"] == [0, 1, 2] and found["returns"] == [("argument", 2)] and found["outputs"] == []


def test_in_place(describe):
    x = card(2, 3)
    found, graph = describe(aten.add.out, x, card(3), out=x)
    assert len(inputs(graph)) == 2 and found["arguments"] == [0, 1] and found["returns"] == [("argument", 0)]
    found, graph = describe(aten.masked_fill_.Scalar, x, card(2, 3, dtype=torch.bool), 0)
    assert calls(graph) == [aten.masked_fill.Scalar, aten.copy_.default] and found["returns"] == [("argument", 0)]


def test_functional(describe):
    found, graph = describe(aten.relu.default, card(2, 3))
    assert calls(graph) == [aten.relu.default] and found["returns"] == [("output", 0)]
    assert found["outputs"] == [{"size": [2, 3], "stride": [3, 1], "dtype": torch.float16, "layout": None}]


def test_several_results(describe):
    out = {"max": card(2), "max_values": card(2, dtype=torch.int64)}
    found, graph = describe(aten.max.dim_max, card(2, 3), 1, **out)
    assert calls(graph)[0] is aten.max.dim and calls(graph).count(aten.copy_.default) == 2
    assert found["returns"] == [("argument", 1), ("argument", 2)]


def test_one_view_is_one_input(describe):
    x = card(4, 6)
    found, graph = describe(aten.mul.out, x[:, ::2], x[:, ::2], out=card(4, 3))
    assert len(inputs(graph)) == 2 and found["arguments"] == [0, 2]


def test_results_wait_where_other_views_of_the_memory_are_read(describe):
    x = card(4, 6)
    found, graph = describe(aten.add.out, x[:2], x[2:], out=x[:2])
    assert calls(graph) == [aten.add.Tensor]
    assert found["copies"] == [(2, 0)] and found["returns"] == [("argument", 2)] and len(found["outputs"]) == 1


def test_numbers_go_into_the_graph(describe):
    for number in (2.0, torch.tensor(2.0)):
        _, graph = describe(aten.mul.out, card(2, 3), number, out=card(2, 3))
        assert graph.find_nodes(op="call_function", target=aten.mul.Tensor)[0].args == (inputs(graph)[0], 2.0)


def test_a_number_that_decides_the_dtype(describe):
    found, _ = describe(aten.mul.Tensor, card(), torch.tensor(2.0))
    assert found["outputs"][0]["dtype"] == torch.float32
    found, _ = describe(aten.xlogy.Tensor, card(), torch.tensor(2.0))  # is taken apart
    assert found["outputs"][0]["dtype"] == torch.float32


def test_results_are_cast_where_pytorch_casts(describe):
    _, graph = describe(aten.add.out, card(3), card(3, dtype=torch.float32), out=card(3))
    assert calls(graph) == [aten.add.Tensor, aten._to_copy.default, aten.copy_.default]
    found, _ = describe(aten.add.out, card(3), card(3), out=card(3, dtype=torch.int32))
    assert "can't be cast" in found
    found, _ = describe(aten.mm.out, card(3, 3), card(3, 3), out=card(3, 3, dtype=torch.float32))
    assert "RuntimeError" in found


def test_outputs_of_another_size_are_resized_first(describe):
    found, graph = describe(aten.add.out, card(2, 3), card(3), out=card(4))
    assert graph is None and found["resize"] == [(2, [2, 3], [3, 1])] and found["plan"] is None


def test_nothing_is_computed_for_no_elements(describe):
    found, graph = describe(aten.relu.default, card(0, 3))
    assert graph is None and found["plan"] is None and found["returns"] == [("output", 0)]
    assert found["outputs"][0]["size"] == [0, 3]
    found, graph = describe(aten.sum.IntList_out, card(0, 3), [0], out=card(3))
    assert calls(graph)[0] is aten.sum.dim_IntList and found["arguments"] == [1]


def test_a_written_tensor_has_memory_for_each_element(describe):
    with pytest.raises(RuntimeError, match="more than one element of the written-to tensor refers to a single memory"):
        describe(aten.add.out, card(3), card(3), out=card(1).expand(3))


@pytest.mark.parametrize(
    "op, args",
    [
        (aten.native_dropout.default, (card(3), 0.5, True)),
        (aten.nonzero.default, (card(3),)),
        (aten.equal.default, (card(3), card(3))),
        (aten.bernoulli_.float, (card(3),)),
        (aten._foreach_neg_.default, ([card(3)],)),
        (aten.unbind.int, (card(3),)),
    ],
)
def test_ops_that_are_not_for_the_card(describe, op, args):
    found, graph = describe(op, *args)
    assert isinstance(found, str) and found and graph is None


def test_wrong_calls_are_left_to_the_host(describe):
    found, _ = describe(aten.mm.default, card(2, 3), card(2, 3))
    assert "must have same reduction dim" in found


def test_decompositions_leave_nothing_behind(describe):
    _, graph = describe(aten.mm.out, card(4, 64), card(64, 4), out=card(4, 4))
    assert calls(graph) == [aten.mm.default, aten.copy_.default]
    _, graph = describe(aten.sinc.default, card(4, 64))
    assert aten.sin.default in calls(graph) and aten.sinc.default not in calls(graph)


@pytest.mark.parametrize(
    "given, functional",
    [
        ("add.out", "add.Tensor"),
        ("add_.Scalar", "add.Scalar"),
        ("sum.IntList_out", "sum.dim_IntList"),
        ("sort.values_stable", "sort.stable"),
        ("masked_fill_.Tensor", "masked_fill.Tensor"),
        ("mm.out", "mm"),
        ("mm", "mm"),
    ],
)
def test_functional_overloads(given, functional):
    name, _, overload = f"aten::{given}".partition(".")
    assert ".".join(part for part in _C.functional_overload(name, overload) if part) == f"aten::{functional}"


def test_gradients_of_indexing_stay_on_the_card():
    x = torch.randn(5, 3).to("spyre").requires_grad_()
    with torch.spyre.fallback("error"):
        x[torch.tensor([0, 0, 1]).to("spyre")].sum().backward()
    assert x.grad.cpu()[:, 0].tolist() == [2, 1, 0, 0, 0]


@pytest.mark.parametrize("device", ["cpu", "spyre"])
def test_results_over_a_part_of_an_input_are_refused(device):
    x = torch.zeros(6, 9, device=device)
    with pytest.raises(RuntimeError, match="some elements of the input tensor and the written-to tensor refer to a"):
        torch.add(x[1:], 1, out=x[:-1])
    assert torch.add(x[1:3], 1, out=x[3:5]).sum() == 18


@pytest.mark.parametrize("device", ["cpu", "spyre"])
@pytest.mark.parametrize("moving", [torch.take, lambda x, at, out: torch.gather(x, 0, at, out=out)])
def test_results_over_what_is_moved_are_refused(device, moving):
    x, at = torch.zeros(6, device=device), torch.arange(6, device=device)
    with pytest.raises(RuntimeError, match="some elements of the input tensor and the written-to tensor refer to a"):
        moving(x, at, out=x)


def test_windows_of_the_host():
    assert torch.equal(torch.kaiser_window(5, device="spyre").cpu(), torch.kaiser_window(5))


def test_products_of_float8_fall_back():
    x = torch.eye(32).to(torch.float8_e4m3fn)
    assert torch.equal((x.to("spyre") @ x.to("spyre")).float().cpu(), (x @ x).float())
