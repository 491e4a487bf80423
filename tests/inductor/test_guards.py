"""Another layout of an input compiles anew, once."""

import operator

import pytest
import torch

from torch_spyre import _C

ROWS = _C.SpyreTensorLayout([4, 1, 64], [64, -1, 1], _C.DataFormats.SEN169_FP16)  # the default is [1, 4, 64]


def ones(layout: _C.SpyreTensorLayout | None = None) -> torch.Tensor:
    x = torch.ones(4, 64, dtype=torch.float16, device="spyre")
    return x if layout is None else x.to(device_layout=layout)


def test_one_compile_per_layout(fresh):
    function = torch.compile(operator.add)
    for layout in (None, ROWS, None, ROWS):
        assert function(ones(layout), ones()).cpu().unique().tolist() == [2]
    assert fresh["stats"]["unique_graphs"] == 2
    assert fresh["inductor"]["fxgraph_cache_miss"] == 2


def test_the_reason_names_the_tensor_and_its_layout(fresh):
    with torch._dynamo.config.patch(error_on_recompile=True):
        function = torch.compile(operator.add)
        function(ones(), ones())
        with pytest.raises(torch._dynamo.exc.RecompileError, match=r"device_tensor_layout\(\) == SpyreTensorLayout\("):
            function(ones(ROWS), ones())


def test_parameters_too(fresh):
    class Shift(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.by = torch.nn.Parameter(ones())

        def forward(self, x):
            return x + self.by

    module = Shift()
    function = torch.compile(module)
    function(ones())
    module.by.data = ones(ROWS)
    assert function(ones()).cpu().unique().tolist() == [2]
    assert fresh["stats"]["unique_graphs"] == 2


def test_caches_of_inductor_know_layouts(fresh):
    """A program that is traced again: found for the same layout, not for another one."""
    hits = []
    for x in (ones(), ones(ROWS), ones()):
        torch._dynamo.reset()
        torch.compile(lambda x: x + x)(x)
        hits.append(fresh["inductor"]["fxgraph_cache_hit"])
    assert hits == [0, 0, 1]


def test_caches_of_inductor_know_lines(fresh):
    """The same graph from another line is another one: its kernels name their line in errors and profiles."""
    torch.compile(lambda x: x + x)(ones())
    torch._dynamo.reset()
    torch.compile(lambda x: x + x)(ones())
    assert fresh["inductor"]["fxgraph_cache_hit"] == 0
