"""Complex numbers live on the card as pairs of float32; every op on them runs on the host, warned and counted."""

import copy
import io

import pytest
import torch

pytestmark = pytest.mark.filterwarnings("ignore::torch.spyre.FallbackWarning")


@pytest.fixture(autouse=True)
def fresh():
    torch.spyre.reset_fallback_counts()
    torch._dynamo.reset()
    with torch.spyre.fallback("warn"):
        yield


Z = torch.view_as_complex(torch.arange(24.0).reshape(3, 4, 2) - 7)


def test_round_trip():
    special = torch.tensor([complex("nan"), complex("inf"), -0.0, complex(1e-40, -3.5)])
    for z in (Z, Z.t(), Z[:, 1:3], Z[1, 2], Z[:0], Z.conj(), special):
        card = z.to("spyre")
        assert card.dtype == torch.complex64 and card.shape == z.shape
        assert torch.equal(torch.view_as_real(card.cpu()).isnan(), torch.view_as_real(z.resolve_conj()).isnan())
        assert torch.equal(card.cpu().nan_to_num(), z.nan_to_num())
    assert Z[1, 2].to("spyre").item() == Z[1, 2].item()


def test_memory_is_not_wasted():
    z = torch.zeros(16, 16, dtype=torch.complex64, device="spyre")
    assert z.untyped_storage().nbytes() == 16 * 16 * 8


def test_views_share_memory():
    z = Z.to("spyre")
    with torch.spyre.fallback("error"):
        pairs = torch.view_as_real(z)
        assert pairs.data_ptr() == z.data_ptr() and torch.equal(pairs.cpu(), torch.view_as_real(Z))
        z.real.mul_(2)
        z.imag.add_(1)
        z[1].t()[2:].fill_(5 - 6j)
        pairs[2, 3] = 0
    want = torch.complex(Z.real * 2, Z.imag + 1)
    want[1, 2:], want[2, 3] = 5 - 6j, 0
    assert torch.equal(z.cpu(), want)


def test_pairs_of_any_layout_are_complex():
    """What view_as_complex sees need not have been made as complex numbers: a padded row of two, for example."""
    pairs = torch.randn(3, 4, 2)
    card = pairs.to("spyre")
    z = torch.view_as_complex(card)
    assert torch.equal(z.cpu(), torch.view_as_complex(pairs))
    z[0] = 1j
    assert card[0].tolist() == [[0, 1]] * 4
    assert torch.equal(torch.view_as_complex(card[1:, 1::2]).cpu(), torch.view_as_complex(pairs[1:, 1::2]))
    assert torch.equal(card.view(torch.complex64).cpu(), card.cpu().view(torch.complex64))
    with pytest.raises(RuntimeError, match="Tensor must have a last dimension of size 2"):
        torch.view_as_complex(card[..., :1])
    with pytest.raises(TypeError, match="does not support dtype torch.complex32"):
        torch.view_as_complex(card.half())


def test_lazy_bits():
    z = Z.to("spyre")
    conjugate = z.conj()
    assert conjugate.is_conj() and conjugate.data_ptr() == z.data_ptr()
    assert torch.equal(conjugate.cpu(), Z.conj()) and torch.equal(conjugate.resolve_conj().cpu(), Z.conj())
    assert torch.equal(conjugate.imag.cpu(), Z.conj().imag) and conjugate.imag.is_neg()
    assert torch.equal((conjugate.imag + 1).cpu(), Z.conj().imag + 1)
    assert torch.equal(conjugate.clone().cpu(), Z.conj()) and conjugate[1, 2].item() == Z.conj()[1, 2].item()
    conjugate.copy_(Z)  # its memory then has the conjugate
    assert torch.equal(z.cpu(), Z.conj())
    z.copy_(z.clone().conj())
    assert torch.equal(z.cpu(), Z)
    conjugate[0] = 1 + 2j
    assert z[0].tolist() == [1 - 2j] * 4
    z.conj().imag.copy_(torch.full((3, 4), 9.0))
    assert z.imag.tolist() == [[-9.0] * 4] * 3


def test_casts():
    z, x = Z.to("spyre"), Z.real.to("spyre")
    assert torch.equal(x.to(torch.complex64).cpu(), Z.real.to(torch.complex64))
    assert torch.equal(torch.arange(3, device="spyre").to(torch.complex64).cpu(), torch.arange(3).to(torch.complex64))
    assert torch.equal(z.bool().cpu(), Z.bool())
    with pytest.warns(UserWarning, match="discards the imaginary part"):
        assert torch.equal(z.float().cpu(), Z.real)
    for dtype in (torch.complex128, torch.complex32):
        with pytest.raises(TypeError, match=f"does not support dtype {dtype}: the card has no such number format"):
            z.to(dtype)


OPS = {
    "add": lambda z: z + z,
    "scaled": lambda z: z * 2j,
    "matmul": lambda z: z @ z.mH,
    "abs": lambda z: z.abs(),
    "angle": lambda z: z.angle(),
    "sum": lambda z: z.sum(1),
    "exp": lambda z: (z / 20).exp(),
    "sliced": lambda z: z[1:, ::2] * z[1:, 1::2],
    "joined": lambda z: torch.cat([z, z.conj()]),
    "indexed": lambda z: z[[2, 0]],
    "masked": lambda z: z[z.abs() > 3],
    "where": lambda z: torch.where(z.real > 0, z, z.conj()),
    "fft": lambda z: torch.fft.fft(z),
    "rfft": lambda z: torch.fft.irfft(torch.fft.rfft(z.real)),
    "fft2": lambda z: torch.fft.ifft2(torch.fft.fft2(z)),
    "stft": lambda z: torch.stft(z.real.reshape(-1), 4, window=torch.ones(4, device=z.device), return_complex=True),
    "polar": lambda z: torch.polar(z.abs(), z.angle()),
    "complex": lambda z: torch.complex(z.imag, z.real),
    "eigenvalues": lambda z: torch.linalg.eigvals(z.real[:, :3]).abs().sum(),
    "equal": lambda z: z == z,
    "numbers": lambda z: torch.full((2,), 1 + 2j, device=z.device) + torch.zeros_like(z[0, :2]),
}


@pytest.mark.parametrize("op", OPS)
def test_ops_run_on_the_host(op):
    result = OPS[op](Z.to("spyre"))
    assert result.device.type == "spyre" and torch.spyre.fallback_counts()
    torch.testing.assert_close(result.cpu(), OPS[op](Z))


@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex")
@pytest.mark.parametrize("op", ["add", "fft", "rfft", "polar", "complex", "abs", "sliced", "where"])
def test_compiled(op):
    def function(z):
        return OPS[op](z), z.real * 2 + 1

    got = torch.compile(function)(Z.to("spyre"))
    torch.testing.assert_close([x.cpu() for x in got], list(function(Z)))
    assert torch.spyre.fallback_counts()


@pytest.mark.filterwarnings("ignore:Torchinductor does not support code generation for complex")
def test_rotary_embedding():
    """As models write it: pairs turned by multiplication with complex numbers."""

    def rotate(x, turns):
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns).flatten(-2).type_as(x)

    x, angles = torch.randn(2, 5, 8), torch.arange(20.0).reshape(5, 4)
    turns = torch.polar(torch.ones(5, 4), angles)
    for way in (rotate, torch.compile(rotate)):
        got = way(x.to("spyre"), turns.to("spyre"))
        torch.testing.assert_close(got.cpu(), rotate(x, turns))


def test_in_place_and_out():
    z = Z.to("spyre")
    z[:, 1:3].mul_(1j)
    want = Z.clone()
    want[:, 1:3] *= 1j
    torch.testing.assert_close(z.cpu(), want)
    out = torch.empty(0, dtype=torch.complex64, device="spyre")
    assert torch.add(z, z, out=out) is out
    torch.testing.assert_close(out.cpu(), want * 2)
    out.resize_(2, 3).zero_()
    assert out.tolist() == [[0, 0, 0]] * 2


def test_gradients():
    def loss(x):
        return torch.view_as_real(torch.fft.fft(x) * (1 + 2j)).square().sum() + (x * x.conj()).real.sum()

    here, there = Z.clone().requires_grad_(), Z.to("spyre").requires_grad_()
    loss(here).backward()
    loss(there).backward()
    torch.testing.assert_close(there.grad.cpu(), here.grad)


def test_saving():
    z = Z.to("spyre")
    file = io.BytesIO()
    torch.save({"z": z, "part": z[1:, 2]}, file)
    file.seek(0)
    loaded = torch.load(file, map_location="spyre")
    assert torch.equal(loaded["z"].cpu(), Z) and torch.equal(loaded["part"].cpu(), Z[1:, 2])
    loaded["part"].zero_()
    assert not loaded["z"][1:, 2].cpu().any() and loaded["z"][0, 2].item() == Z[0, 2].item()
    file.seek(0)
    assert torch.equal(torch.load(file, map_location="cpu")["z"], Z)
    assert torch.equal(copy.deepcopy(z).cpu(), Z)


def test_printing():
    assert "24" not in repr(Z.to("spyre")) and "-7." in repr(Z.to("spyre"))


def test_an_outside_view_is_refused():
    with pytest.raises(RuntimeError, match="of a storage of 24 elements|out of bounds for storage"):
        Z.to("spyre").as_strided((13,), (1,))
