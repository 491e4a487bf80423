"""A model shared by cards: the values of the whole one, from parts that are as small as they should be."""

import pytest
import torch

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


@pytest.mark.slow
@pytest.mark.parametrize("kind", parts.SIZES)
def test_the_logits_are_those_of_one_card(two: Ranks, kind: str) -> None:
    first, second = two.run(parts.logits, kind, seconds=300)
    assert torch.equal(first, second)
    whole = parts.whole_logits(kind)
    assert (first.argmax(-1) == whole.argmax(-1)).float().mean() > 0.9  # near ties aside
    torch.testing.assert_close(first, whole, atol=2e-2, rtol=0)
