"""What goes to the card comes back as the number formats say, for every shape, dtype, view and layout."""

import math
from random import Random

import numpy
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.spyre import SpyreTensorLayout

from tests.dtypes import STORED

BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def sen169(values: numpy.ndarray, largest: float) -> numpy.ndarray:
    """The facts' SEN169 in double precision: nearest, ties away from zero, finite values saturate at `largest`."""
    magnitude = numpy.abs(values)
    with numpy.errstate(invalid="ignore"):
        exponent = numpy.frexp(magnitude)[1] - 1  # magnitude = 1.f * 2^exponent
        exponent = numpy.maximum(exponent, -31)
        unit = numpy.ldexp(1.0, exponent - 9)
        rounded = numpy.floor(magnitude / unit + 0.5) * unit
    smallest = math.ldexp(1 + 1 / 512, -31)  # exponent 0, fraction 0 is the code of zero
    rounded = numpy.where(magnitude < smallest, smallest, rounded)
    rounded = numpy.where(magnitude < smallest / 2, 0.0, rounded)
    rounded = numpy.minimum(rounded, largest)
    rounded = numpy.where(numpy.isinf(magnitude), numpy.inf, rounded)
    rounded = numpy.where(numpy.isnan(magnitude), numpy.nan, rounded)
    return numpy.copysign(rounded, values)


def rounded(host: torch.Tensor) -> torch.Tensor:
    """What the card keeps of a host tensor, seen from the host."""
    if host.dtype not in (torch.float16, torch.bfloat16):
        return host
    # Codes 0x7fff and 0x7ffe are infinity and NaN.
    largest = 65472.0 if host.dtype == torch.float16 else math.ldexp(1 + 509 / 512, 32)
    return torch.as_tensor(sen169(host.double().numpy(), largest)).to(host.dtype)


def assert_same_bits(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
    bits = BITS[expected.element_size()]
    same = actual.contiguous().view(bits) == expected.contiguous().view(bits)
    if expected.is_floating_point():  # a NaN stays one, whatever its payload
        same |= actual.float().isnan() & expected.float().isnan()
    assert same.all(), f"{actual} is not {expected}"


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_every_sixteen_bit_code(dtype):
    host = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    once = host.to("spyre").cpu()
    assert_same_bits(once, rounded(host))
    assert_same_bits(once.to("spyre").cpu(), once)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8, torch.uint8])
def test_every_eight_bit_code(dtype):
    host = torch.arange(256, dtype=torch.int32).to(torch.uint8).view(dtype)
    assert_same_bits(host.to("spyre").cpu(), host)


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (65504.0, 65472.0),
        (-65504.0, -65472.0),
        (math.inf, math.inf),
        (-math.inf, -math.inf),
        (-0.0, -0.0),
        (1 + 2**-10, 1 + 2**-9),
        (-1 - 2**-10, -1 - 2**-9),
        (2**-24, 2**-24),
    ],
)
def test_known_half_values(value, kept):
    came_back = torch.tensor(value, dtype=torch.float16).to("spyre").item()
    assert (came_back, math.copysign(1, came_back)) == (kept, math.copysign(1, kept))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_filling_rounds_as_sending_does(dtype):
    for value in (0.1, 1 / 3, 65504.0, -65504.0, 1.00390625, 1e-7, 3.14159):
        filled = torch.full((3,), value, dtype=dtype, device="spyre")
        assert_same_bits(filled.cpu(), rounded(torch.full((3,), value, dtype=dtype)))


@st.composite
def hosts(draw) -> torch.Tensor:
    """A host tensor of rank 0 to 6 in any dtype, with any bits, seen through some views."""
    rank = draw(st.integers(0, 6))
    longest = [300, 300, 80, 20, 9, 6, 5][rank]
    size = draw(st.lists(st.integers(1, longest), min_size=rank, max_size=rank))
    if rank and draw(st.integers(0, 9)) == 9:
        size[draw(st.integers(0, rank - 1))] = 0
    dtype = draw(st.sampled_from(STORED))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    count = math.prod(size)
    if dtype == torch.bool:
        flat = torch.randint(0, 2, (count,), generator=generator).bool()
    elif dtype == torch.int64:
        flat = torch.randint(-(2**31), 2**31, (count,), generator=generator)
    else:
        itemsize = torch.empty(0, dtype=dtype).element_size()
        flat = torch.randint(0, 256, (count * itemsize,), generator=generator).to(torch.uint8).view(dtype)
    return viewed(flat.reshape(size), draw(VIEWS))


SEEDS = st.integers(0, 2**31)
VIEWS = st.lists(
    st.tuples(st.sampled_from(["permute", "slice", "select", "unsqueeze", "expand"]), SEEDS),
    max_size=3,
)


def viewed(tensor: torch.Tensor, views: list) -> torch.Tensor:
    """Views of views; the same list gives the same views of another tensor of this shape."""
    for kind, seed in views:
        random = Random(seed)
        if tensor.dim() == 0:
            return tensor
        dim = random.randrange(tensor.dim())
        if kind == "permute":
            tensor = tensor.permute(random.sample(range(tensor.dim()), tensor.dim()))
        elif kind == "slice":
            start = random.randint(0, tensor.size(dim))
            tensor = tensor.narrow(dim, start, tensor.size(dim) - start)
            tensor = tensor[(slice(None),) * dim + (slice(None, None, random.randint(1, 3)),)]
        elif kind == "select" and tensor.size(dim) > 0:
            tensor = tensor.select(dim, random.randrange(tensor.size(dim)))
        elif kind == "unsqueeze" and tensor.dim() < 6:
            tensor = tensor.unsqueeze(dim)
        elif kind == "expand" and tensor.size(dim) == 1:
            tensor = tensor.expand(*tensor.shape[:dim], random.randint(1, 3), *tensor.shape[dim + 1 :])
    return tensor


@st.composite
def layouts(draw, host: torch.Tensor) -> SpyreTensorLayout | None:
    """None for the default layout, or one with another order, sparse, padded, or with a replica."""
    if host.dim() == 0 or host.numel() == 0 or draw(st.booleans()):
        return None
    order = list(draw(st.permutations(range(host.dim()))))
    if draw(st.booleans()) and host.numel() < 4096:
        order.append(-1)
    strides = list(torch.empty(host.shape, device="meta").stride())
    layout = SpyreTensorLayout(list(host.shape), strides, host.dtype, order)
    size, step = layout.device_size, layout.stride_map
    if draw(st.booleans()):  # padding is legal where no other dimension's coordinates carry into it: the outermost
        several = [i for i in range(len(step) - 1) if size[i] > 1]  # a single tile's stride may lie within a row
        outermost = max(several, key=lambda i: step[i], default=0)
        size[outermost] += draw(st.integers(0, 2)) if several and step[outermost] > 0 else 0
    if draw(st.booleans()):
        size, step = [2, *size], [0, *step]
    return SpyreTensorLayout(size, step, layout.device_dtype)


@st.composite
def trips(draw):
    host = draw(hosts())
    return host, draw(layouts(host)), draw(SEEDS)


def check_trip(trip) -> None:
    host, layout, seed = trip
    random = Random(seed)
    expected = rounded(host)

    whole = host.to("spyre", device_layout=layout)
    once = whole.cpu()
    assert_same_bits(once, expected)
    assert_same_bits(once.to("spyre", device_layout=layout).cpu(), once)
    assert_same_bits(whole.clone().cpu(), expected)

    if host.dim() > 0:
        pieces = torch.zeros_like(host, memory_format=torch.contiguous_format).to("spyre", device_layout=layout)
        dim = random.randrange(host.dim())
        order = list(range(host.size(dim)))
        random.shuffle(order)
        half = len(order) // 2
        for i in order[:half]:
            pieces.select(dim, i).copy_(host.select(dim, i))
        written = torch.zeros_like(expected, memory_format=torch.contiguous_format)
        for i in order[:half]:
            written.select(dim, i).copy_(expected.select(dim, i))
        assert_same_bits(pieces.cpu(), written)
        for i in order[half:]:
            pieces.select(dim, i).copy_(whole.select(dim, i))
        assert_same_bits(pieces.cpu(), expected)
        for i in order[:3]:
            assert_same_bits(pieces.select(dim, i).cpu(), expected.select(dim, i))


QUIET = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large]}


@settings(max_examples=400, **QUIET)
@given(trips())
def test_any_tensor_comes_back_rounded(trip):
    check_trip(trip)


@pytest.mark.slow
@settings(max_examples=4000, **QUIET)
@given(trips())
def test_many_tensors_come_back_rounded(trip):
    check_trip(trip)


@settings(max_examples=300, **QUIET)
@given(hosts(), VIEWS)
def test_views_on_the_card_equal_views_on_the_host(host, views):
    host = rounded(host)
    assert_same_bits(viewed(host.to("spyre"), views).cpu(), viewed(host, views))
