"""View lifting against the layout's own identity: host_offset = dot(device_coordinates, stride_map)."""

import itertools
from math import prod

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_spyre._C import SpyreTensorLayout, canonical_layout
from torch_spyre._inductor.layout.coordinates import Coordinates
from torch_spyre._inductor.layout.device_ir import Plan
from torch_spyre._inductor.layout.lift_views import NotAligned, lift
from torch_spyre._inductor.loop_ir import Access, Buffer, Kernel, contiguous


def coordinates_at(operand: Coordinates, point: tuple[int, ...]) -> list[int]:
    """Device coordinates of one point of a piece, the stick pair taken apart."""
    found = list(operand.constant)
    for loop, (p, row) in enumerate(zip(point, operand.steps, strict=True)):
        for dim, step in enumerate(row):
            if loop == operand.stick and dim == len(row) - 1:
                found[dim] += p % operand.elements
                if operand.tile_dim >= 0:
                    found[operand.tile_dim] += p // operand.elements
            else:
                found[dim] += p * step
    return found


def places(layout: SpyreTensorLayout, offset: int) -> list[int]:
    """Where the layout puts a host element: units are taken greedily, the largest first."""
    units = sorted(((u, d) for d, u in enumerate(layout.stride_map) if u > 0), reverse=True)
    found = [0] * len(layout.device_size)
    for unit, dim in units:
        found[dim], offset = divmod(offset, unit)
    assert offset == 0
    return found


@st.composite
def views(draw):
    """A dense tensor with a random dimension order on the card, and a random strided view of it."""
    dtype = draw(st.sampled_from([torch.float16, torch.float32]))
    size = draw(st.lists(st.sampled_from([1, 2, 3, 5, 32, 63, 64, 65, 130]), min_size=1, max_size=4))
    while prod(size) > 20000:
        size.pop()
    order = draw(st.permutations(range(len(size))))
    sparse = draw(st.sampled_from([[], [], [-1]]))
    layout = canonical_layout(SpyreTensorLayout(size, contiguous(size), dtype, [*order, *sparse]))
    host = torch.empty(size, device="meta")
    for _ in range(draw(st.integers(0, 4))):
        dim = draw(st.integers(0, host.dim() - 1))
        kind = draw(st.sampled_from(["slice", "permute", "flatten", "split", "expand"]))
        if kind == "slice":
            begin = draw(st.integers(0, host.size(dim) - 1))
            host = host.narrow(dim, begin, draw(st.integers(1, host.size(dim) - begin)))
            host = host[(slice(None),) * dim + (slice(None, None, draw(st.sampled_from([1, 2, 3]))),)]
        elif kind == "permute":
            host = host.permute(draw(st.permutations(range(host.dim()))))
        elif kind == "flatten" and dim and host.is_contiguous():
            host = host.flatten(dim - 1, dim)
        elif kind == "split" and host.dim() < 6 and host.size(dim) % 2 == 0:
            host = host.unflatten(dim, (2, -1))
        elif kind == "expand" and host.dim() < 6:
            host = host.unsqueeze(dim).expand(*host.shape[:dim], 2, *host.shape[dim:])
    return dtype, size, layout, host


@settings(max_examples=400, deadline=None)
@given(views())
def test_every_point_of_a_view_lies_where_the_layout_says(case):
    dtype, size, layout, view = case
    plan = Plan(
        Kernel("k", {"x": Buffer("x", dtype, tuple(size), contiguous(size))}, []),
        {},
        {"x": layout},
        cores=32,
        span=2**28,
    )
    access = Access("x", tuple(view.stride()), view.storage_offset())
    sizes = tuple(view.shape)
    want = sorted(
        places(layout, access.offset + sum(p * s for p, s in zip(point, access.strides, strict=True)))
        for point in itertools.product(*map(range, sizes))
    )
    for stick_loop in {-1, plan.lane_loop(access, sizes)}:
        try:
            pieces = lift(sizes, [plan.operand(access, stick_loop)])
        except NotAligned:
            assert stick_loop >= 0
            continue
        got = sorted(
            coordinates_at(piece.operands[0], point)
            for piece in pieces
            for point in itertools.product(*map(range, piece.counts))
        )
        assert got == want


@settings(max_examples=200, deadline=None)
@given(views(), st.data())
def test_several_operands_keep_their_points_together(case, data):
    dtype, size, layout, view = case
    sizes = tuple(view.shape)
    out_order = data.draw(st.permutations(range(len(sizes))))
    out = Buffer("y", dtype, sizes, contiguous(sizes))
    buffers = {"x": Buffer("x", dtype, tuple(size), contiguous(size)), "y": out}
    layouts = {"x": layout, "y": canonical_layout(SpyreTensorLayout(sizes, out.stride, dtype, list(out_order)))}
    plan = Plan(Kernel("k", buffers, []), {}, layouts, cores=32, span=2**28)
    x, y = Access("x", tuple(view.stride()), view.storage_offset()), Access("y", out.stride)
    pieces = lift(sizes, [plan.operand(x, -1), plan.operand(y, -1)])
    seen = {}
    for piece in pieces:
        for point in itertools.product(*map(range, piece.counts)):
            seen[tuple(coordinates_at(piece.operands[1], point))] = coordinates_at(piece.operands[0], point)
    assert len(seen) == prod(sizes)
    for point in itertools.product(*map(range, sizes)):
        offsets = [a.offset + sum(p * s for p, s in zip(point, a.strides, strict=True)) for a in (x, y)]
        assert seen[tuple(places(layouts["y"], offsets[1]))] == places(layout, offsets[0])
