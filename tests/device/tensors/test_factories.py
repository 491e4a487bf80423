"""Making tensors on the card."""

import numpy
import pytest
import torch

from tests.dtypes import COMPUTED

pytestmark = pytest.mark.usefixtures("no_fallback")


FACTORIES = {
    "zeros": lambda **k: torch.zeros(3, 70, **k),
    "ones": lambda **k: torch.ones(3, 70, **k),
    "full": lambda **k: torch.full((3, 70), 1, **k),
    "tensor": lambda **k: torch.tensor([[0, 1], [1, 1]], **k),
    "scalar tensor": lambda **k: torch.tensor(1, **k),
    "empty tensor": lambda **k: torch.tensor([], **k),
    "as_tensor": lambda **k: torch.as_tensor([0, 1, 1], **k),
    "asarray": lambda **k: torch.asarray([0, 1, 1], **k),
    "scalar_tensor": lambda **k: torch.scalar_tensor(1, **k),
    "zeros of rank 0": lambda **k: torch.zeros((), **k),
    "zeros of nothing": lambda **k: torch.zeros(3, 0, **k),
    "eye": lambda **k: torch.eye(3, 5, **k),
}


@pytest.mark.parametrize("dtype", COMPUTED)
@pytest.mark.parametrize("make", FACTORIES.values(), ids=FACTORIES)
def test_factory_equals_the_host(make, dtype):
    made, expected = make(device="spyre", dtype=dtype), make(dtype=dtype)
    assert (made.device, made.dtype, made.stride()) == (torch.device("spyre", 0), dtype, expected.stride())
    assert torch.equal(made.cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32, torch.int64])
@pytest.mark.parametrize(
    "make",
    [
        lambda **k: torch.arange(10, **k),
        lambda **k: torch.arange(3, 100, 7, **k),
        lambda **k: torch.linspace(0, 8, 5, **k),
        lambda **k: torch.logspace(0, 3, 4, base=2, **k),
    ],
    ids=["arange", "arange step", "linspace", "logspace"],
)
def test_ranges(make, dtype):
    assert torch.equal(make(device="spyre", dtype=dtype).cpu(), make(dtype=dtype))


def test_indices():
    assert torch.equal(torch.tril_indices(3, 4, device="spyre").cpu(), torch.tril_indices(3, 4))
    assert torch.equal(torch.triu_indices(3, 4, device="spyre").cpu(), torch.triu_indices(3, 4))


@pytest.mark.parametrize(
    "make",
    [
        torch.empty,
        lambda *s, **k: torch.empty_strided(s, torch.empty(s).stride(), **k),
        lambda *s, **k: torch.zeros(1, **k).new_empty(s),
        lambda *s, **k: torch.empty_like(torch.zeros(s, **k)),
        lambda *s, **k: torch.empty_permuted(s, (0, 1), **k),
    ],
)
def test_empty_has_shape_dtype_and_memory(make):
    x = make(3, 70, device="spyre", dtype=torch.float16)
    assert (x.shape, x.dtype, x.device.type, x.is_contiguous()) == ((3, 70), torch.float16, "spyre", True)
    assert torch.equal(x.fill_(2).cpu(), torch.full((3, 70), 2.0, dtype=torch.float16))


def test_empty_strided_keeps_strides_gaps_and_overlaps():
    for size, stride in [((3, 4), (1, 3)), ((3, 4), (10, 2)), ((3, 4), (0, 1)), ((2, 3, 4), (4, 8, 1))]:
        x = torch.empty_strided(size, stride, device="spyre")
        assert x.stride() == stride
        assert x.untyped_storage().nbytes() >= torch.empty_strided(size, stride).untyped_storage().nbytes()
        x.as_strided((1,), (1,), 3).fill_(7)
        assert x.as_strided((1,), (1,), 3).item() == 7


@pytest.mark.parametrize("like", ["zeros_like", "ones_like", "empty_like", "rand_like", "randn_like"])
def test_likes_follow_their_tensor(like):
    x = torch.zeros(4, 6, dtype=torch.float16, device="spyre").t()
    y = getattr(torch, like)(x)
    assert (y.shape, y.stride(), y.dtype, y.device) == (x.shape, x.stride(), x.dtype, x.device)
    assert getattr(torch, like)(x, device="cpu", dtype=torch.float32).device.type == "cpu"
    assert getattr(torch, like)(x.cpu(), device="spyre").device.type == "spyre"


def test_like_values():
    x = torch.zeros(4, 6, dtype=torch.float16, device="spyre")
    assert torch.full_like(x, 3).tolist() == [[3.0] * 6] * 4
    assert torch.ones_like(x, dtype=torch.int32).dtype == torch.int32
    assert torch.randint_like(x, 5, 6).tolist() == [[5.0] * 6] * 4


def test_new_methods():
    x = torch.zeros(2, dtype=torch.float16, device="spyre")
    for y in (x.new_zeros(3), x.new_ones(3), x.new_full((3,), 2), x.new_tensor([1, 2, 3]), x.new_empty(3)):
        assert (y.device, y.dtype, y.shape) == (x.device, x.dtype, (3,))
    assert x.new_full((3,), 2).tolist() == [2, 2, 2]
    assert x.new_tensor([1, 2, 3]).tolist() == [1, 2, 3]
    assert x.new_zeros(2, device="cpu", dtype=torch.int8).device.type == "cpu"


RANDOM = {
    "rand": lambda **k: torch.rand(50, **k),
    "randn": lambda **k: torch.randn(50, **k),
    "randint": lambda **k: torch.randint(0, 100, (50,), **k),
    "randperm": lambda **k: torch.randperm(50, **k),
    "normal": lambda **k: torch.normal(1.0, 2.0, (50,), **k),
}


@pytest.mark.parametrize("make", RANDOM.values(), ids=RANDOM)
def test_a_cpu_generator_gives_cpu_numbers(make):
    made = make(device="spyre", generator=torch.Generator().manual_seed(5))
    assert torch.equal(made.cpu(), make(generator=torch.Generator().manual_seed(5)))


@pytest.mark.parametrize("make", RANDOM.values(), ids=RANDOM)
def test_the_seed_decides(make):
    torch.manual_seed(7)
    first, second = make(device="spyre"), make(device="spyre")
    torch.manual_seed(7)
    assert torch.equal(make(device="spyre").cpu(), first.cpu())
    assert not torch.equal(first.cpu(), second.cpu())


@pytest.mark.parametrize("fill", ["uniform_", "normal_", "exponential_", "cauchy_", "log_normal_"])
def test_random_fills_reach_every_element_of_a_view_only(fill):
    x = torch.full((4, 100), -7.5, device="spyre")
    getattr(x[1:3, 10:90], fill)()
    host = x.cpu()
    assert (host[1:3, 10:90] != -7.5).all()
    assert (host[0] == -7.5).all() and (host[1:3, 90:] == -7.5).all()


@pytest.mark.parametrize("default", [torch.float16, torch.bfloat16, torch.float32])
def test_default_dtype(default):
    torch.set_default_dtype(default)
    try:
        assert torch.zeros(2, device="spyre").dtype == default
        assert torch.empty(2, device="spyre").dtype == default
        assert torch.tensor([1.5], device="spyre").dtype == default
        assert torch.tensor([1], device="spyre").dtype == torch.int64
    finally:
        torch.set_default_dtype(torch.float32)


def everything() -> list[torch.Tensor]:
    return [
        torch.empty(2),
        torch.zeros(2),
        torch.ones(2),
        torch.full((2,), 1.0),
        torch.tensor([1.0, 2.0]),
        torch.as_tensor([1.0, 2.0]),
        torch.arange(2),
        torch.linspace(0, 1, 2),
        torch.eye(2),
        torch.rand(2),
        torch.randn(2),
        torch.randint(0, 2, (2,)),
        torch.randperm(2),
        torch.nn.Linear(2, 2).weight,
    ]


def test_device_context():
    with torch.device("spyre"):
        inside = everything()
    assert {x.device.type for x in inside} == {"spyre"}
    assert {x.device.type for x in everything()} == {"cpu"}


def test_default_device():
    torch.set_default_device("spyre")
    try:
        assert {x.device.type for x in everything()} == {"spyre"}
        assert torch.empty(2, device="cpu").device.type == "cpu"
    finally:
        torch.set_default_device(None)
    assert torch.empty(2).device.type == "cpu"


def test_from_numpy_and_scalars():
    array = numpy.arange(6, dtype=numpy.float32).reshape(2, 3)
    assert torch.equal(torch.as_tensor(array, device="spyre").cpu(), torch.from_numpy(array))
    assert torch.equal(torch.tensor(array, device="spyre").cpu(), torch.from_numpy(array))
    x = torch.ones(2, device="spyre")
    assert torch.as_tensor(x) is x and torch.as_tensor(x, device="spyre") is x


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex128, torch.uint16, torch.uint64])
def test_dtypes_the_card_lacks_are_refused(dtype):
    with pytest.raises(TypeError, match=f"Spyre backend does not support dtype {dtype}"):
        torch.zeros(2, dtype=dtype, device="spyre")
    with pytest.raises(TypeError, match=f"does not support dtype {dtype}"):
        torch.zeros(2, dtype=dtype).to("spyre")


def test_pinned_memory_is_refused():
    with pytest.raises(RuntimeError, match="only host memory can be pinned|Only dense CPU tensors can be pinned"):
        torch.empty(2, device="spyre", pin_memory=True)


def test_impossible_sizes_are_refused():
    with pytest.raises(RuntimeError, match="negative dimension -1"):
        torch.empty(-1, 2, device="spyre")
    with pytest.raises(RuntimeError, match="Storage size calculation overflowed"):
        torch.empty(2**62, 4, device="spyre")
    with pytest.raises(RuntimeError, match="Storage size calculation overflowed"):
        torch.empty_strided((2, 2), (2**62, 1), device="spyre")
    with pytest.raises(torch.OutOfMemoryError, match="out of memory"):
        torch.empty(2**40, device="spyre")


@pytest.mark.parametrize(("dtype", "value"), [(torch.float16, 1e6), (torch.int8, 1000), (torch.int32, 2**40)])
def test_numbers_a_dtype_cannot_hold(dtype, value):
    with pytest.raises(RuntimeError, match="value cannot be converted to type"):
        torch.full((2,), value, dtype=dtype, device="spyre")


def test_an_int64_that_does_not_fit_the_card():
    with pytest.raises(ValueError, match="int64 value 1099511627776 does not fit the card"):
        torch.full((2,), 2**40, device="spyre")
    with pytest.raises(ValueError, match="int64 value 1099511627776 does not fit the card"):
        torch.tensor([1, 2**40], device="spyre")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_hosts_own_tools_still_know_torch_empty_and_to():
    def body(x: torch.Tensor) -> torch.Tensor:
        return torch.empty(2).zero_() + x.to(torch.float16)

    expected = body(torch.ones(2))
    assert torch.equal(torch.jit.script(body)(torch.ones(2)), expected)
    assert torch.equal(torch.jit.trace(body, torch.ones(2))(torch.ones(2)), expected)
    assert torch.equal(torch.compile(body, backend="eager", fullgraph=True)(torch.ones(2)), expected)
    assert torch.equal(torch.vmap(body)(torch.ones(1, 2)), expected[None])


@pytest.mark.parametrize(
    "dtype, near",
    [
        (torch.float64, "torch.float32"),
        (torch.complex128, "torch.complex64"),
        (torch.uint16, "torch.int32"),
        (torch.float8_e4m3fnuz, "torch.float8_e4m3fn"),
    ],
    ids=str,
)
def test_the_refusal_of_a_dtype_names_one_that_is_near(dtype, near):
    with pytest.raises(TypeError, match=rf"for example with \.to\({near}\)"):
        torch.zeros(2, dtype=dtype, device="spyre")
    torch.zeros(2, dtype=getattr(torch, near.removeprefix("torch.")), device="spyre")
