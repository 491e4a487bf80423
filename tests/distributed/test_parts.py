"""A model shared by cards: the values of the whole one, from parts that are as small as they should be."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from torch_spyre import model_utils
from torch_spyre.models import loading
from torch_spyre.models.errors import ModelError
from torch_spyre.models.tensor_parallel import Place, shard

from . import parts
from .ranks import Ranks

pytest.importorskip("transformers")


def on_meta(kind: str) -> torch.nn.Module:
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(parts.configuration(kind))


def layers_size(model: torch.nn.Module) -> int:
    return sum(each.numel() for name, each in model.named_parameters() if ".layers." in name and each.dim() > 1)


@pytest.mark.parametrize("kind", parts.SIZES)
def test_each_card_has_its_part(kind: str) -> None:
    whole, mine = on_meta(kind), on_meta(kind)
    shard(mine, Place(0, 2, "0"))
    shared = sum(  # routers, biases of experts, and what all heads of a Mamba layer share
        each.numel()
        for name, each in whole.named_parameters()
        if ".layers." in name and each.dim() > 1 and ("router" in name or "down_proj_bias" in name)
    )
    if kind == "granitemoehybrid":
        shared += 2 * 16 * (128 + 4)
    assert 2 * (layers_size(mine) - shared) == layers_size(whole) - shared
    assert mine.get_output_embeddings().weight.shape[0] == 502  # of 1003


@pytest.mark.parametrize(
    "kind, size, said",
    [("llama", 3, "num_attention_heads has 4"), ("llama", 4, "num_key_value_heads has 2"), ("bert", 2, "no plan")],
)
def test_what_does_not_divide_is_refused(kind: str, size: int, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        shard(on_meta(kind), Place(0, size, "0"))


class Counted:
    """A tensor of a file, or the file, which counts the bytes that are read."""

    def __init__(self, opened: Any, read: list[int]) -> None:
        self.opened, self.read = opened, read

    def keys(self) -> list[str]:
        return list(self.opened.keys())

    def get_slice(self, name: str) -> "Counted":
        return Counted(self.opened.get_slice(name), self.read)

    def get_tensor(self, name: str) -> torch.Tensor:
        return self.noted(self.opened.get_tensor(name))

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self.noted(self.opened[index])

    def noted(self, value: torch.Tensor) -> torch.Tensor:
        self.read.append(value.nbytes)
        return value


@pytest.mark.parametrize("kind", parts.SIZES)
def test_each_card_reads_its_part_of_the_files(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = parts.model(kind)
    whole.save_pretrained(tmp_path)
    source = loading.from_directory(tmp_path)
    assert loading.is_read_in_parts(source)
    read: list[int] = []
    opened = model_utils.opened_tensors

    @contextmanager
    def counted(file: Path) -> Iterator[Counted]:
        with opened(file) as tensors:
            yield Counted(tensors, read)

    monkeypatch.setattr(model_utils, "opened_tensors", counted)
    for rank in range(2):
        place, expected = Place(rank, 2, "0"), parts.model(kind)
        shard(expected, place)
        read.clear()
        found = loading.load_part(source, torch.float16, place, lambda done, of: None)
        for (name, mine), (_, theirs) in zip(found.named_parameters(), expected.named_parameters(), strict=True):
            assert torch.equal(mine.cpu(), theirs.to("spyre").cpu()), name
        kept = sum(each.nbytes for each in expected.parameters())
        assert sum(read) <= kept + 64, "more than its part was read"  # of a bias that is divided by the cards
        table = whole.get_input_embeddings().weight.nbytes  # which some plans leave whole
        assert kept <= 0.55 * sum(each.nbytes for each in whole.parameters()) + table / 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", parts.SIZES)
def test_the_logits_are_those_of_one_card(two: Ranks, kind: str) -> None:
    first, second = two.run(parts.logits, kind, seconds=300)
    assert torch.equal(first, second)
    whole = parts.whole_logits(kind)
    assert (first.argmax(-1) == whole.argmax(-1)).float().mean() > 0.9  # near ties aside
    torch.testing.assert_close(first, whole, atol=2e-2, rtol=0)
