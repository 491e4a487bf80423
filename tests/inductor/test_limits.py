"""A card with less than a program needs: a plan that does with it, or a refusal that names op, dimension and limit."""

import re

import pytest
import torch

from torch_spyre._inductor import compiler
from torch_spyre._inductor.errors import Unsupported
from torch_spyre.card import description


@pytest.fixture
def span(monkeypatch):
    """Of 64 KiB: a thousandth of what a tensor of this size would have to be to go beyond the real one."""
    limits = {**description.constants(), "span_bytes": 65536}
    monkeypatch.setattr(compiler.description, "constants", lambda: limits)
    monkeypatch.setenv("SPYRE_KERNEL_CACHE", "0")
    torch._dynamo.reset()


def on_card(function, x, cores: int = 32):
    with compiler.config.patch(sencores=cores), torch.spyre.fallback("error"):
        return torch.compile(function, fullgraph=True)(x.to("spyre")).cpu()


WITHIN = {
    "copy": lambda x: x.t().contiguous(),
    "sum": lambda x: x.sum(-1),
    "softmax": lambda x: x.softmax(-1),
    "cumsum": lambda x: x.cumsum(0),
}


@pytest.mark.parametrize("name", WITHIN)
def test_ops_are_done_in_parts_that_stay_within_the_span(name, span):
    x = torch.randint(-2, 3, (256, 1024)).float()
    torch.testing.assert_close(on_card(WITHIN[name], x), WITHIN[name](x))


BEYOND = {
    "wide_sum": (lambda x: x.sum(), 1),
    "cumsum": (lambda x: x.cumsum(-1), 1),
    "topkvalue": (lambda x: x.topk(3).values, 2),
    "matmul": (lambda x: x @ x.t(), 2),
}


@pytest.mark.parametrize("name", BEYOND)
def test_a_span_that_cannot_be_met_is_named(name, span):
    function, dimension = BEYOND[name]
    said = (
        rf"^{name} over \[.*\] \(File .*test_limits.py.*\): one core would reach over \d+ bytes of "
        rf"SpyreTensorLayout\(.*\), most of them along dimension {dimension}, and the card allows 65536; use more "
        r"cores than 1 \(SENCORES\)"
    )
    with pytest.raises(Unsupported, match=said):
        on_card(function, torch.ones(256, 1024), cores=1)


def hardware(path, **changed: int) -> str:
    """Another description."""
    text = description.selected_file().read_text()
    for name, value in changed.items():
        text, count = re.subn(rf"(?m)^{name} = \d+", f"{name} = {value}", text)
        assert count == 1
    path.write_text(text)
    return str(path)


COMPUTE = """
    torch.manual_seed(0)
    x = (torch.rand(256, 1024) < 0.1).to(torch.float16)  # sums that the card's format has
    function = torch.compile(lambda x: torch.relu(x @ x.t()) + x.sum(-1), fullgraph=True)
    assert torch.equal(function(x.to("spyre")).cpu(), torch.relu(x.float() @ x.float().t()).half() + x.sum(-1))
"""


@pytest.mark.slow
@pytest.mark.parametrize("share", ["0", "1"])
def test_little_lx_is_enough(program, tmp_path, share):
    """For the smallest tiles, and nothing stays; or for all that stays and the smallest tiles."""
    path = hardware(tmp_path / "card.toml", lx_bytes=65536 + 65536)
    program(COMPUTE, SPYRE_CARD="strict", SPYRE_HARDWARE=path, DXP_LX_FRAC_AVAIL=share)


def test_too_little_lx_is_named(python, tmp_path):
    path = hardware(tmp_path / "card.toml", lx_bytes=65536 + 8192)
    code = f"import torch{COMPUTE}".replace("\n    ", "\n")
    said = python(code, SPYRE_HARDWARE=path, TORCHINDUCTOR_CACHE_DIR=str(tmp_path)).stderr
    assert (
        "TooLittleLX: matmul over [256, 256, 1024]: two tiles of every operand, in whole sticks no smaller than "
        "[1, 64, 64] points, take 16896 bytes; of LX 8192 are left to tiles: lx_bytes = 73728, of which the program "
        "has 65536"
    ) in said, said
