"""Hints survive from the program to the nodes that the compiler sees."""

import pytest
import torch

from torch_spyre._inductor import config, spyre_hint
from torch_spyre._inductor.fx import partition
from torch_spyre._inductor.propagate_named_dims import declare_tensor_dim, name_tensor_dims

pytestmark = pytest.mark.filterwarnings("ignore::torch.spyre.FallbackWarning")


@pytest.fixture
def hints(fresh, monkeypatch) -> dict[str, list]:
    """Hints of the last graph by the name of the op."""
    found = {}
    original = partition.partition

    def note(gm):
        found.update(
            (str(node.target), node.meta.get("custom", {}).get("spyre_hint", {}).get("scopes", []))
            for node in gm.graph.nodes
        )
        original(gm)

    monkeypatch.setattr(partition, "partition", note)
    return found


def function(x):
    with spyre_hint(num_tiles_per_dim={"M": 8}):
        y = x.sin()
        with spyre_hint(work_div={"M": 2, "K": 4}, named_dims=["M", "K"]):
            y = y.cos()
    with spyre_hint(num_tiles_per_dim={"M": 8}):
        y = y.exp()
    return y.tanh()


def ones(**more) -> torch.Tensor:
    return torch.ones(16, 256, dtype=torch.float16, device="spyre", **more)


def test_scopes_nest_and_siblings_differ(hints):
    torch.compile(function, fullgraph=True)(ones())
    outer = {"scope": 0, "num_tiles_per_dim": {"M": 8}}
    assert hints["aten.sin.default"] == [outer]
    assert hints["aten.cos.default"] == [
        outer,
        {"scope": 1, "work_div": {"M": 2, "K": 4}, "named_dims": ["M", "K"]},
    ]
    assert hints["aten.exp.default"] == [{"scope": 2, "num_tiles_per_dim": {"M": 8}}]
    assert hints["aten.tanh.default"] == []


def test_gradients_have_the_hints_of_their_forward(hints):
    torch.compile(function)(ones(requires_grad=True)).sum().backward()
    assert [hint["scope"] for hint in hints["aten.neg.default"]] == [0, 1]  # the derivative of cos


def test_hints_are_part_of_cache_keys(fresh):
    def compiled(count):
        torch._dynamo.reset()

        def function(x):
            with spyre_hint(tiles={"M": count}, named_dims=["M", "N"]):
                return x + x

        torch.compile(function)(ones())

    compiled(2)
    compiled(4)
    assert fresh["inductor"]["fxgraph_cache_hit"] == 0
    compiled(2)
    assert fresh["inductor"]["fxgraph_cache_hit"] == 1


def test_hints_can_be_ignored(hints):
    with config.patch(ignore_hints=True):
        torch.compile(function)(ones())
    assert not any(hints.values())


def test_hints_do_nothing_in_eager():
    assert torch.equal(function(ones()).cpu(), ones().sin().cos().exp().tanh().cpu())


@pytest.mark.parametrize(
    ("hint", "message"),
    [
        ({}, "needs a hint: one of num_tiles_per_dim"),
        ({"tiles": 8}, r"tiles=8\): expected dimensions and counts"),
        ({"work_div": {"M": 0}}, "'M': 0 is not a name and a positive count"),
        ({"slices": {"M": True}}, "'M': True is not"),
        ({"named_dims": "MK"}, "expected a list of names"),
    ],
)
def test_wrong_hints_are_refused(hint, message):
    with pytest.raises(TypeError, match=message):
        spyre_hint(**hint)


@pytest.fixture
def named():
    for name, size in {"M": 96, "K": 128}.items():
        declare_tensor_dim(name, size)
    x, w = torch.randn(96, 128).half().to("spyre"), torch.randn(128, 256).half().to("spyre")
    name_tensor_dims(x, ["M", "K"])
    return x, w


def product(x, w):
    with spyre_hint(work_div={"M": 3, "K": 2}):
        return (x * 2) @ w


def slices_of(programs, op):
    return [step["slices"] for step in programs[-1] if step["op"] == op]


def test_inputs_have_names(named, programs, fresh):
    x, w = named
    torch.compile(product, fullgraph=True)(x, w)
    assert slices_of(programs, "matmul") == [[3, 1, 2]]


def test_names_follow_memory_through_views(named, programs, fresh):
    x, w = named
    turned = x.t()

    def of_turned(y, w):
        with spyre_hint(work_div={"M": 3}):
            return (y + 1).t() @ w

    torch.compile(of_turned, fullgraph=True)(turned, w)
    assert slices_of(programs, "matmul") == [[3, 1, 1]]
    assert sorted(slices_of(programs, "elementwise")[0]) == [1, 3]


def test_other_names_compile_anew(named, programs, fresh):
    x, w = named
    compiled = torch.compile(product, fullgraph=True)
    compiled(x, w)
    compiled(x, w)
    assert len(programs) == 1
    name_tensor_dims(x, [None, "K"])
    with pytest.raises(Exception, match="has no dimension M"):
        compiled(x, w)


def test_copies_have_no_names(named, fresh):
    x, w = named
    with pytest.raises(Exception, match="has no dimension M"):
        torch.compile(product, fullgraph=True)(x.clone(), w)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["M"], "1 names for 2 dimensions"),
        (["M", "Z"], r"there is no dimension 'Z' yet; declare_tensor_dim\('Z', 128\) makes it"),
        (["K", "M"], "'K' was declared with 128 points, the tensor has 96"),
        (["M", "M"], "a name stands for one dimension"),
    ],
)
def test_wrong_names_are_refused(named, names, message):
    with pytest.raises(ValueError, match=message):
        name_tensor_dims(named[0], names)


def test_wrong_dimensions_are_refused():
    with pytest.raises(TypeError, match="a size is a positive number"):
        declare_tensor_dim("M", 0)
    with pytest.raises(TypeError, match="a name is a text"):
        declare_tensor_dim("", 3)
