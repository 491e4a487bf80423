"""Copies over the ring: every core gets just what it wants from the core that has it."""

from itertools import product
from math import prod
from random import Random

import pytest
import torch

from torch_spyre import _C
from torch_spyre._inductor.layout.device_ir import DeviceOp, Plan
from torch_spyre._inductor.layout.lift_ops import lift_ops
from torch_spyre._inductor.layout.propagate_layouts import follow_rules
from torch_spyre._inductor.loop_ir import Access, Buffer, Kernel, LoopOp, contiguous
from torch_spyre._inductor.passes.build_specs import build_specs
from torch_spyre._inductor.planning.core_tiles import core_tile, lx_placement, points_of
from torch_spyre._inductor.planning.liveness import takes_the_place_of
from torch_spyre._inductor.planning.lx_copies import LxCopy, with_copies
from torch_spyre._inductor.planning.relayout import relayout, relayout_us
from torch_spyre.backend import compile_bundle
from torch_spyre.card import description
from torch_spyre.execution.launches import Launch
from torch_spyre.ir import bundle
from torch_spyre.ir.core_split import core_slices
from torch_spyre.ir.op_spec import parse_op_spec, print_op_spec, to_json, verify_all
from torch_spyre.timing.attribution import attribute

SHAPES = [(16, 512), (24, 192), (10, 100), (7, 64), (4, 6, 256), (2, 3, 8, 128), (12, 1), (300,)]


def planned(kernel: Kernel) -> Plan:
    """Layouts and device coordinates; who shares what is left to the test."""
    layouts = {
        b.name: _C.SpyreTensorLayout(b.size, b.stride, b.dtype, list(range(len(b.size)))) for b in kernel.inputs()
    }
    plan = Plan(kernel, dict.fromkeys(layouts, 0), layouts, 32, 1 << 28)
    follow_rules(plan, by_default=True)
    lift_ops(plan)
    return plan


def two_negations(shape: tuple[int, ...], dtype=torch.float16) -> Plan:
    strides = contiguous(shape)
    buffers = [Buffer("x", dtype, shape, strides, "input"), Buffer("t", dtype, shape, strides)]
    buffers.append(Buffer("y", dtype, shape, strides, "output"))
    ops = [LoopOp("neg", shape, Access(b, strides), (Access(a, strides),)) for a, b in ("xt", "ty")]
    return planned(Kernel("k", {b.name: b for b in buffers}, ops))


def product_of(m: int, n: int, k: int, first: bool) -> Plan:
    """A negation, and a matrix product that reads it first or second."""
    sizes = {"x": (m, k) if first else (k, n), "w": (k, n) if first else (m, k), "y": (m, n)}
    sizes["t"] = sizes["x"]
    kinds = {"x": "input", "w": "input", "t": "internal", "y": "output"}
    buffers = {
        name: Buffer(name, torch.float16, size, contiguous(size), kinds[name]) for name, size in sorted(sizes.items())
    }
    rows, columns = Access("t" if first else "w", (k, 0, 1)), Access("w" if first else "t", (0, 1, n))
    strides = contiguous(sizes["x"])
    ops = [
        LoopOp("neg", sizes["x"], Access("t", strides), (Access("x", strides),)),
        LoopOp("matmul", (m, n, k), Access("y", (n, 1, 0)), (rows, columns), reduced=1),
    ]
    return planned(Kernel("k", buffers, ops))


def divide(op: DeviceOp, random: Random, even: bool) -> None:
    """Some loops over some cores, not the folded ones."""
    op.slices = [1] * len(op.counts)
    for loop in random.sample(range(len(op.counts)), len(op.counts)):
        unit = max((operand.elements for operand in op.operands if operand.stick == loop), default=1)
        units, left = -(-op.counts[loop] // unit), 32 // prod(op.slices)
        fits = [
            shares
            for shares in range(1, min(units, left) + 1)
            if (-(-units // shares) * (shares - 1) < units) and (not even or op.counts[loop] % (shares * unit) == 0)
        ]
        if loop < len(op.counts) - op.reduced and fits:
            op.slices[loop] = random.choice(fits)


def walk(op: DeviceOp, operand):
    """Core, point, and the device coordinates of it; of each stick the first lane and the last."""
    points = points_of(op, op.slices)
    for core, shares in enumerate(core_slices(tuple(op.slices))):
        ranges = [range(s * p, min(n, (s + 1) * p)) for s, p, n in zip(shares, points, op.counts, strict=True)]
        ranges = [each if any(row) else each[:1] for each, row in zip(ranges, operand.steps, strict=True)]
        if operand.stick >= 0:
            ends = (0, operand.elements - 1)
            ranges[operand.stick] = [at for at in ranges[operand.stick] if at % operand.elements in ends]
        for point in product(*ranges):
            yield core, point, coordinates(operand, operand.steps, point)


def coordinates(operand, steps, point) -> tuple[int, ...]:
    found = list(operand.constant)
    for loop, (row, at) in enumerate(zip(steps, point, strict=True)):
        if loop == operand.stick:
            if operand.tile_dim >= 0:
                found[operand.tile_dim] += at // operand.elements
            found[-1] += at % operand.elements
        else:
            found = [n + at * step for n, step in zip(found, row, strict=True)]
    return tuple(found)


def minus(a, b) -> tuple[int, ...]:
    return tuple(x - y for x, y in zip(a, b, strict=True))


def places(plan: Plan, op: DeviceOp, operand, origin):
    """(core, place in its LX) and device coordinates of all that the cores have of an operand."""
    part = core_tile(op, operand, plan.elements("t"), op.slices)
    return [((core, minus(minus(at, origin), part.apart[core])), at) for core, _, at in walk(op, operand)]


def agrees(plan: Plan, writer: DeviceOp, reader: DeviceOp, position: int, copy: DeviceOp) -> None:
    source, local = copy.operands[0], copy.operands[0].inside(copy.across)
    has = {at: place for place, at in places(plan, writer, writer.operands[-1], source.constant)}
    wants = dict(places(plan, reader, reader.operands[position], source.constant))
    brought = {}
    targets = places(plan, copy, copy.operands[1], source.constant)
    for (_, point, _), (target, _) in zip(walk(copy, source), targets, strict=True):
        core = sum(n * at for n, at in zip(copy.across, point, strict=True))
        brought[target] = (core, minus(coordinates(source, local, point), source.constant))
    assert {place: brought[place] for place in wants} == {place: has[at] for place, at in wants.items()}


def copies_that_agree(plan: Plan, random: Random, attempts: int) -> int:
    """How many of some divisions of two ops had a copy between several cores; each copy brings what is wanted."""
    copies = 0
    writer, reader = plan.device_ops
    for attempt in range(attempts):
        divide(writer, random, even=True)
        divide(reader, random, even=attempt % 2 == 0)
        copy = relayout(plan, writer, reader, 0, "t", "t")
        if copy is not None:
            agrees(plan, writer, reader, 0, copy)
            copies += prod(writer.slices) > 1 and prod(reader.slices) > 1
    return copies


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_core_gets_what_it_wants(shape):
    copies = copies_that_agree(two_negations(shape), Random(0), 20)
    assert copies or shape == (300,)  # 300 elements are no whole number of sticks: their cores cannot be told apart


@pytest.mark.parametrize("first", [True, False])
def test_every_core_of_a_product_gets_what_it_wants(first):
    plan, random, shared = product_of(16, 128, 192, first), Random(1), 0
    writer, reader = plan.device_ops
    for _ in range(40):
        divide(writer, random, even=True)
        divide(reader, random, even=True)
        copy = relayout(plan, writer, reader, 0 if first else 1, "t", "t")
        if copy is not None:
            agrees(plan, writer, reader, 0 if first else 1, copy)
            shared += reader.slices[1 if first else 0] > 1
    assert shared  # cores that want the same


def halves(shape: tuple[int, ...], second: bool) -> Plan:
    """A negation, and another one of the first or second half of its last dimension."""
    plan = two_negations(shape)
    half, strides = (*shape[:-1], shape[-1] // 2), contiguous(shape)
    out = Buffer("y", torch.float16, half, contiguous(half), "output")
    read = Access("t", strides, half[-1] if second else 0)
    ops = [plan.kernel.ops[0], LoopOp("neg", half, Access("y", out.stride), (read,))]
    return planned(Kernel("k", plan.kernel.buffers | {"y": out}, ops))


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("shape", [(16, 4, 128), (16, 4, 256), (16, 256)], ids=str)
def test_every_core_gets_the_half_that_it_wants(shape, second):
    assert copies_that_agree(halves(shape, second), Random(2), 30)


def test_what_no_single_copy_does():
    plan = two_negations((12, 512))
    writer, reader = plan.device_ops
    for one, other in [([4, 1], [6, 1]), ([5, 1], [1, 1]), ([5, 1], [1, 2]), ([1, 3], [1, 8])]:
        writer.slices, reader.slices = one, other
        assert relayout(plan, writer, reader, 0, "t", "t") is None
    writer.slices = reader.slices = [4, 1]
    reader.operands[0].constant[-2] = 1  # rows that nobody wrote
    assert relayout(plan, writer, reader, 0, "t", "t") is None


def over_the_ring(plan: Plan, position: int) -> tuple[dict, list]:
    """The kernel with the copy between its two ops, both buffers in LX, and its specs."""
    writer, reader = plan.device_ops
    old = plan.kernel.buffers["t"]
    target = plan.kernel.internal(old.dtype, old.size, old.stride, prefix="relaid").name
    plan.layouts[target] = plan.layouts["t"]
    copy = relayout(plan, writer, reader, position, "t", target)
    assert copy is not None
    elements = plan.elements("t")
    source = lx_placement([core_tile(writer, writer.operands[-1], elements, writer.slices)], [])
    there = lx_placement([core_tile(copy, copy.operands[-1], elements, copy.slices)], [])
    plan.lx = {"t": (256, source), target: (256 + source.bytes, there)}
    plan.device_ops = with_copies([writer, reader], [LxCopy("t", copy, 1, (1,))])
    arguments = [*plan.kernel.inputs(), *plan.kernel.outputs()]
    plan.arguments = {buffer.name: i for i, buffer in enumerate(arguments)}
    build_specs(plan)
    specs = plan.specs
    verify_all(specs)
    chain, texts = bundle.emit("k", specs)
    return compile_bundle("k", texts, [plan.layouts[b.name].device_bytes() for b in arguments], 0, chain), specs


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize(
    ("shape", "writes", "reads"),
    [
        ((64, 512), (2, 8), (16, 1)),
        ((64, 512), (32, 1), (1, 4)),
        ((64, 512), (1, 1), (8, 4)),
        ((64, 512), (4, 4), (1, 1)),
        ((100, 130), (1, 1), (7, 2)),
        ((100, 100), (4, 1), (20, 1)),
        ((4, 6, 256), (4, 1, 2), (2, 6, 1)),
    ],
    ids=str,
)
def test_a_kernel_over_the_ring(shape, writes, reads, dtype):
    plan = two_negations(shape, dtype)
    plan.device_ops[0].slices, plan.device_ops[1].slices = list(writes), list(reads)
    code, _ = over_the_ring(plan, 0)
    assert [step["op"] for step in code["steps"][0]["program"]["steps"]] == ["elementwise", "copy", "elementwise"]
    x = torch.randn(shape).to(dtype).to("spyre")
    y = torch.empty_like(x)
    _C.launch_jobplan(_C.prepare_kernel(code), [x, y])
    assert torch.equal(y.cpu(), x.cpu())


@pytest.mark.parametrize("second", [False, True])
def test_a_half_over_the_ring(second):
    plan = halves((16, 4, 256), second)
    plan.device_ops[0].slices, plan.device_ops[1].slices = [4, 1, 4], [2, 4, 1]
    code, _ = over_the_ring(plan, 0)
    x = torch.randn(16, 4, 256).half().to("spyre")
    y = torch.empty(16, 4, 128, dtype=torch.float16, device="spyre")
    _C.launch_jobplan(_C.prepare_kernel(code), [x, y])
    assert torch.equal(y.cpu(), x.cpu().chunk(2, -1)[second])


def test_a_product_reads_what_came_over_the_ring():
    plan = product_of(32, 128, 256, True)
    plan.device_ops[0].slices, plan.device_ops[1].slices = [8, 4], [4, 2, 1]
    code, _ = over_the_ring(plan, 0)
    torch.manual_seed(0)
    x, w = torch.randint(-3, 4, (32, 256)).half().to("spyre"), torch.randint(-3, 4, (256, 128)).half().to("spyre")
    given = {"x": x, "w": w, "y": torch.empty(32, 128, dtype=torch.float16, device="spyre")}
    names = [buffer.name for buffer in (*plan.kernel.inputs(), *plan.kernel.outputs())]
    _C.launch_jobplan(_C.prepare_kernel(code), [given[name] for name in names])
    assert torch.equal(given["y"].cpu(), (-x.cpu().float() @ w.cpu().float()).half())


def test_specs_of_a_copy_over_the_ring_are_printed_and_read():
    plan = two_negations((64, 512))
    plan.device_ops[0].slices, plan.device_ops[1].slices = [2, 8], [16, 1]
    spec = over_the_ring(plan, 0)[1][1]
    assert print_op_spec(spec).splitlines()[1].endswith(" of core 8*c0 + c3")
    assert parse_op_spec(print_op_spec(spec)) == parse_op_spec(to_json(spec)) == spec


def test_the_time_of_a_copy_over_the_ring():
    plan = two_negations((512, 4096))
    plan.device_ops[0].slices, plan.device_ops[1].slices = [4, 8], [32, 1]
    copy = relayout(plan, *plan.device_ops, 0, "t", "t")
    assert (copy.counts, copy.slices, copy.across) == ([4, 8, 16, 8, 512], [4, 8, 1, 1, 1], (8, 0, 0, 1, 0))
    alone = relayout_us(plan, copy)
    code, _ = over_the_ring(plan, 0)
    step = _C.prepare_kernel(code).step_times()[1]
    assert alone == pytest.approx(step["us"]) and step["us"] == step["ring_us"]
    assert step["bytes_ring"] == 512 * 4096 * 2 and step["memory_us"] == step["begin_us"] == 0
    # 64 sticks of 16 rows each: contiguous pieces of 16 sticks, from 8 cores.
    card = description.constants()
    assert alone == pytest.approx(card["ring_fixed_us"] + (64 * (3 * 3.92 - 1.14) + 131072 / 547) / 1000, rel=1e-3)


def test_the_ring_is_what_its_time_is_for():
    plan = two_negations((512, 4096))
    plan.device_ops[0].slices, plan.device_ops[1].slices = [4, 8], [32, 1]
    code = over_the_ring(plan, 0)[0] | {"outputs": [{}]}
    rows = {row.op: row for row in attribute([Launch(_C.prepare_kernel(code), code)])}
    whole = 512 * 4096 * 2
    assert rows["copy"].bound_by == "ring" and rows["copy"].least_us == rows["neg"].ring_us == 0
    assert (rows["copy"].ring_bytes, rows["copy"].lx_bytes, rows["copy"].dram_bytes) == (whole, 2 * whole, 0)


def test_what_comes_from_other_cores_takes_no_place_of_theirs():
    """Other cores may still want to read it."""
    plan = two_negations((64, 512))
    plan.device_ops[0].slices, plan.device_ops[1].slices = [8, 1], [8, 1]
    copy = relayout(plan, *plan.device_ops, 0, "t", "t")
    assert not takes_the_place_of(plan, copy, "t")
