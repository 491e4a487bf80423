"""Descriptions that come from anywhere: a named error at once, or a result that follows from the description alone."""

import copy

import pytest
import torch

from torch_spyre import _C


def operand(argument, strides=(128, 512), stick=1, **more):
    return {"argument": argument, "strides": list(strides), "stick": stick, **more}


def plan(*steps, arguments=(1024, 1024), **more):
    program = {"type": "Compute", "program": {"steps": list(steps)}}
    return _C.prepare_kernel({"name": "k", "arguments": list(arguments), "steps": [program], **more})


def tensors():
    x = torch.randn(4, 100).half().to("spyre")
    return torch.zeros_like(x), x


COPY = {"op": "copy", "extents": [4, 100], "slices": [4, 1], "operands": [operand(0), operand(1)]}
FOLD = {
    "op": "reduce",
    "function": "add",
    "extents": [1, 1 << 40],
    "reduced": 1,
    "constants": [0],
    "operands": [{"argument": 0, "strides": [0, 0]}, {"argument": 1, "strides": [0, 0]}],
}
PRODUCT = {
    "op": "matmul",
    "extents": [1, 64, 1 << 40],
    "operands": [operand(0, (0, 512, 0)), operand(1, (0, 0, 0), 2), operand(1, (0, 512, 0))],
}
TOPK = {
    "op": "topk",
    "function": "topkvalue",
    "extents": [1, 1, 1 << 31],
    "constants": [1],
    "operands": [{"argument": 0, "strides": [0, 0, 0]}, {"argument": 1, "strides": [0, 0, 0]}],
}


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (FOLD, "points more than 1024 for each element"),
        (PRODUCT, "more than 1024 for each product of elements"),
        (TOPK, "elements to order"),
        (COPY | {"extents": [1] * 100_000, "slices": [1] * 100_000}, "extents: 100000, the limit is 64"),
        (COPY | {"staging": -128}, "staging: -128 is no address of LX"),
        (COPY | {"source": "x" * 100_000}, "the field 'source' has 100000 bytes"),
        (
            COPY
            | {"extents": [2, 2, 100], "slices": [2, 1, 1]}
            | {"operands": [operand(0, (128, 128, 512), 2), operand(1, (128, 128, 512), 2)]},
            "two points write into one element",
        ),
        (
            COPY | {"operands": [operand(0, offset=128), operand(0)], "extents": [3, 64], "slices": [1, 1]},
            "another point",
        ),
        (COPY | {"slices": [10**30, 1]}, "the field 'slices' has the wrong type"),
    ],
)
def test_refused_at_once(step, message):
    with pytest.raises(ValueError, match=message):
        plan(step)


def test_steps_do_not_pay_for_each_other_and_elements_far_apart_are_few():
    far = {"op": "fill", "extents": [32], "slices": [32], "operands": [{"argument": 2, "strides": [1 << 28]}]}
    with pytest.raises(ValueError, match="points more than 1024 for each element"):
        plan(far, FOLD | {"extents": [1, 1 << 38]}, allocate=[1 << 33])


def test_what_takes_long_to_show_is_refused_soon():
    strides = [7590692, 496, 4062788, 16709648, 1020, 3989264, 11607464, 1084184, 2290220, 1423572]
    others = [*strides[:5], 3406960, 11607464, 3069220, 2290220, 1423572]
    written, read = ({"argument": 0, "strides": each, "format": "IEEE_FP32"} for each in (strides, others))
    step = {"op": "copy", "extents": [13, 2, 2, 5, 5, 2, 2, 2, 5, 7], "operands": [written, read]}
    step["operands"][1]["offset"] = 139357640
    undecided = (
        "takes too long to find out whether two points write into one element.*use strides like those of a layout"
    )
    with pytest.raises(ValueError, match=undecided):  # all steps together
        plan(*[step] * 4000, arguments=[1 << 34])
    strides = [2101400, 1232804, 2601708, 828488, 618600, 2769896, 3960624, 844744, 2967820, 3642100, 2652452, 1715284]
    written = {"argument": 0, "strides": [*strides, 4001452, 3713584], "format": "IEEE_FP32"}
    alone = {"op": "fill", "extents": [8, 8, 2, 6, 9, 8, 6, 9, 7, 5, 4, 6, 4, 3], "operands": [written]}
    with pytest.raises(ValueError, match=undecided):
        plan(alone, arguments=[1 << 40])


def test_a_few_elements_far_apart_take_little_memory(program):
    printed = program(
        """
        import resource, torch
        from torch_spyre import _C
        far = {"argument": 1, "strides": [1 << 28]}
        step = {"op": "copy", "extents": [12], "slices": [12], "operands": [{"argument": 0, "strides": [128]}, far]}
        program = {"type": "Compute", "program": {"steps": [step]}}
        plan = _C.prepare_kernel({"name": "k", "arguments": [4096], "allocate": [3 << 30], "steps": [program]})
        out = torch.ones(2048, dtype=torch.float16, device="spyre")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        _C.launch_jobplan(plan, [out])
        print(out[::64][:13].tolist(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20)
        """
    )
    assert printed == f"{[0.0] * 12 + [1.0]} True\n"


def test_cores_write_elements_of_one_stick_and_none_of_them_twice():
    """Rows that begin inside a stick end inside the next one, which is another core's first."""
    written = {"argument": 0, "offset": 64, "strides": [128, 2]}
    step = {"op": "copy", "extents": [3, 64], "slices": [3, 1], "operands": [written, operand(1)]}
    x = torch.randn(8, 64).half().to("spyre")
    for _ in range(20):
        out = torch.zeros_like(x)
        _C.launch_jobplan(plan(step), [out, x])
        found = out.cpu().flatten()
        assert torch.equal(found[32 : 32 + 192], x.cpu()[:3].flatten())
        assert not found[:32].any() and not found[32 + 192 :].any()
    with pytest.raises(ValueError, match="two points write into one element"):
        plan(step | {"operands": [written | {"strides": [64, 2]}, operand(1)], "slices": [1, 1]})


def test_a_step_in_place_runs_and_one_onto_a_shifted_view_does_not():
    out, x = tensors()
    twice = plan(
        {
            "op": "elementwise",
            "function": "add",
            **{k: COPY[k] for k in ("extents", "slices")},
            "operands": [operand(0), operand(1), operand(1)],
        }
    )
    expected = (x.cpu() + x.cpu()).clone()
    _C.launch_jobplan(twice, [x, x])
    assert torch.equal(x.cpu(), expected)
    shifted = plan(COPY | {"extents": [3, 64], "slices": [1, 1], "operands": [operand(0, offset=128), operand(1)]})
    _C.launch_jobplan(shifted, [out, x])
    with pytest.raises(ValueError, match="the launch gave one memory for arguments 0 and 1"):
        _C.launch_jobplan(shifted, [x, x])


def holes(value):
    """Sticks 0 and 2 of LX are written, 0 to 2 are copied out: nothing says what stick 1 holds."""
    return [
        {
            "op": "fill",
            "extents": [2, 64],
            "constant": value,
            "operands": [{"lx": 0, "strides": [256, 128], "stick": 1}],
        },
        {"op": "copy", "extents": [3, 64], "operands": [operand(0), {"lx": 0, "strides": [128, 128], "stick": 1}]},
    ]


def test_lx_does_not_show_what_an_earlier_launch_left():
    out = torch.zeros(4, 100).half().to("spyre")
    full = {
        "op": "fill",
        "extents": [3, 64],
        "constant": 0x3C00,
        "operands": [{"lx": 0, "strides": [128, 128], "stick": 1}],
    }
    _C.launch_jobplan(plan(full, *holes(0x3C00)[1:], arguments=[1024]), [out])
    assert (out.cpu()[:3, :64] != 0).all()
    _C.launch_jobplan(plan(*holes(0x3C00), arguments=[1024]), [out])
    found = out.cpu()[:3, :64]
    assert (found[[0, 2]] != 0).all() and (found[1] == 0).all()


def test_cores_without_points_have_nothing_of_an_earlier_launch():
    """Core 1 of 2 has no points of 5 rows that go 5 to a core... of 3 by 2 it has one; all read two."""
    out = torch.zeros(4, 100).half().to("spyre")
    ours = {"lx": 0, "strides": [128, 128], "stick": 1}
    read = {"op": "copy", "extents": [4, 64], "slices": [2, 1], "operands": [operand(0), ours]}
    for rows in (4, 3):
        fill = {"op": "fill", "extents": [rows, 64], "slices": [2, 1], "constant": 0x3C00, "operands": [ours]}
        _C.launch_jobplan(plan(fill, read, arguments=[1024]), [out])
        assert (out.cpu()[:, :64] != 0).all(1).tolist() == [True] * rows + [False] * (4 - rows)


def test_memory_of_a_plan_begins_with_zeros_where_it_is_read_first():
    out = torch.ones(4, 100).half().to("spyre")
    fill = {"op": "fill", "extents": [4, 64], "constant": 0x3C00, "operands": [operand(1)]}
    read = COPY | {"slices": [1, 1]}
    _C.launch_jobplan(plan(fill, read, arguments=[1024], allocate=[1024]), [out])
    _C.launch_jobplan(plan(read, arguments=[1024], allocate=[1024]), [out])
    assert (out.cpu() == 0).all()


def test_a_transfer_of_an_empty_tensor_does_nothing():
    empty = torch.empty(0).half().to("spyre")
    for kind in ("H2D", "D2H"):
        step = {"type": kind, "argument": 0, "buffer": 0}
        _C.launch_jobplan(
            _C.prepare_kernel({"name": "k", "arguments": [0], "buffers": [b""], "steps": [step]}), [empty]
        )
        torch.spyre.synchronize()


@pytest.mark.parametrize("number", [float("nan"), 7.5, float("inf"), 2.0**70])
def test_numbers_of_a_launch_pass_the_same_checks(number):
    topk = TOPK | {"extents": [1, 2, 64], "constants": ["%0"]}
    topk["operands"] = [{"argument": 0, "strides": [0, 2, 0]}, {"argument": 1, "strides": [0, 0, 2]}]
    iota = {"op": "iota", "extents": [4, 32], "constants": ["%0", 1, 1], "operands": [operand(0, format="IEEE_INT32")]}
    add = {
        "op": "elementwise",
        "function": "add",
        "extents": [4, 32],
        "operands": [operand(0, format="IEEE_INT32")] * 2,
    }
    add["operands"] = [*add["operands"], {"value": "%0", "format": "IEEE_INT32"}]
    out, x = tensors()
    for step in (topk, iota, add):
        with pytest.raises(ValueError, match=r"0 or 1|1 takes the largest|integer"):
            _C.launch_jobplan(plan(step), [out, x], [number])


@pytest.mark.parametrize(
    ("change", "fresh"),
    [
        ({"slices": [1]}, []),
        ({"extents": []}, []),
        ({"extents": [0, 100]}, []),
        ({"operands": [operand(0, ()), operand(1)]}, []),
        ({"operands": [operand(0, stick=3), operand(1)]}, []),
        ({}, [65]),
        ({}, [1 << 30]),
        ({"extents": [1 << 40, 1 << 20]}, []),
    ],
)
def test_the_clock_is_asked_about_steps_that_exist(change, fresh):
    with pytest.raises(ValueError):
        _C.time_of_steps([copy.deepcopy(COPY) | change], fresh)
    assert _C.time_of_steps([COPY], [1])[0] > 0


def test_values_too_deep_to_be_shown_are_refused_all_the_same():
    deep: list = []
    for _ in range(5000):
        deep = [deep]
    for step in (COPY | {"extents": deep}, COPY | {"constants": [deep]}, COPY | {"operands": deep}):
        with pytest.raises(ValueError):
            plan(step)


def test_layouts_whose_bytes_cannot_be_counted_are_refused():
    for size, strides in (([1 << 62, 4], [4, 1]), ([1 << 32, 1 << 32], [1, 1]), ([2, 2], [1 << 62, 1 << 62])):
        with pytest.raises(ValueError):
            _C.SpyreTensorLayout(size, strides, torch.float16, [0, 1])
    with pytest.raises(ValueError):
        _C.SpyreTensorLayout([1 << 31, 1 << 31, 4], torch.float16)


def test_what_is_measured_has_threads_and_turns():
    for call in (
        lambda: _C.measure.multiply_add(0, 1),
        lambda: _C.measure.multiply_add(1, 0),
        lambda: _C.measure.stream(-1, 0, 1, 1),
        lambda: _C.measure.stream(1 << 62, 0, 1, 1),
    ):
        with pytest.raises(ValueError):
            call()
    with pytest.raises(TypeError):
        _C.launch_jobplan(None, [])
