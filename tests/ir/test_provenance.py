"""Kernels have names that say what is in them, and that profiles can be traced back from."""

import pytest
import torch

from torch_spyre import timing
from torch_spyre.ir import provenance


def launched(function, *args):
    compiled = torch.compile(function)
    with timing.record() as recording:
        compiled(*args)
    return recording.launches


def two_ops(x):
    y = torch.softmax(x, -1)
    return y @ x


def test_a_kernel_is_named_by_its_ops_and_the_key_of_its_specs():
    (launch,) = launched(two_ops, torch.randn(64, 64).half().to("spyre"))
    key = launch.code["provenance"]["key"]
    assert launch.plan.name.startswith("spyre_kernel_v1_")
    assert provenance.parse_name(launch.plan.name + "#3") == (key, 3)
    assert "softmax" in launch.plan.name and "mm" in launch.plan.name


def test_every_step_names_its_line_its_op_and_its_spec():
    (launch,) = launched(two_ops, torch.randn(64, 64).half().to("spyre"))
    specs = launch.code["provenance"]["specs"]
    for step in launch.plan.step_times():
        assert step["aten"].startswith("aten.")
        assert step["source"].endswith("in two_ops") and __file__ in step["source"]
        assert specs[step["spec"]].splitlines()[-1].count(step["aten"]) == 1


def test_a_kernel_knows_the_nodes_that_it_comes_from():
    (launch,) = launched(two_ops, torch.randn(64, 64).half().to("spyre"))
    (nodes,) = launch.occurrences
    assert "matmul" in {each[-1] for each in nodes}  # in Dynamo's graph; "mm" in the one that was lowered
    assert "mm" in {each[0] for each in nodes}


def test_tiles_of_a_loop_share_their_spec():
    x = torch.empty(16384, 4096, dtype=torch.float16, device="spyre")
    (launch,) = launched(lambda x: torch.softmax(x, -1), x)
    steps = launch.plan.step_times()
    assert len(launch.code["provenance"]["specs"]) < len(steps)
    assert len({step["spec"] for step in steps}) == len(launch.code["provenance"]["specs"])


@pytest.mark.parametrize("count", [1, 10, 100])
def test_names_are_short(count):
    name = provenance.kernel_name((f"aten.operation_number_{i}.default" for i in range(count)), "A" * 16)
    assert len(name + "#65535") <= provenance.MOST_NAME
    assert provenance.parse_name(name) == ("A" * 16, -1)


@pytest.mark.parametrize("name", ["", "spyre_kernel_v1_", "spyre_kernel_v1_mm_AAAA#1", "triton_poi_fused_add_0"])
def test_other_names_have_no_key(name):
    assert provenance.parse_name(name) is None
