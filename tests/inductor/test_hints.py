"""Hints survive from the program to the nodes that the compiler sees."""

import pytest
import torch

from torch_spyre._inductor import config, partition, spyre_hint

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
        ({}, "without a hint; there are num_tiles_per_dim"),
        ({"tiles": 8}, r"tiles=8\): expected dimensions and counts"),
        ({"work_div": {"M": 0}}, "'M': 0 is not a name and a positive count"),
        ({"slices": {"M": True}}, "'M': True is not"),
        ({"named_dims": "MK"}, "expected a list of names"),
    ],
)
def test_wrong_hints_are_refused(hint, message):
    with pytest.raises(TypeError, match=message):
        spyre_hint(**hint)
