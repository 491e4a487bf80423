"""Text from a Llama on the card, with transformers as it is: weights from disk, generate, the CPU beside it."""

import tempfile
import warnings

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from torch_spyre.model_utils import load_model_to_spyre

warnings.filterwarnings("ignore", category=UserWarning)
torch.spyre.set_downcast_warning(False)  # token ids are int64, and fit
TINY = LlamaConfig(
    vocab_size=256,
    hidden_size=256,
    intermediate_size=640,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=256,
)


def save_a_model(directory: str) -> None:
    """Random weights; a vocabulary of bytes needs no tokenizer."""
    torch.manual_seed(0)
    LlamaForCausalLM(TINY).half().save_pretrained(directory)


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        save_a_model(directory)
        host = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
        card = load_model_to_spyre(directory)  # weights go to the card one by one, as its products want them
    prompt = torch.tensor([list(b"The card says: ")])
    options = {"max_new_tokens": 16, "do_sample": False, "cache_implementation": "static"}
    start, end = (torch.spyre.Event(enable_timing=True) for _ in range(2))
    with torch.no_grad(), torch.spyre.fallback("error"):
        card.generate(prompt.to("spyre"), **options)  # compiles what it needs
        start.record()
        found = card.generate(prompt.to("spyre"), **options).cpu()
        end.record()
        torch.spyre.synchronize()
        want = host(found).logits[0, prompt.shape[1] - 1 : -1]
    chosen = found[0, prompt.shape[1] :]
    lost = want.amax(-1) - want.gather(1, chosen[:, None])[:, 0]
    print("tokens:", chosen.tolist())
    print(
        f"the CPU in fp32 would choose {int((lost == 0).sum())} of {len(chosen)} so; the others cost {lost.max():.4f}"
    )
    print(f"modelled on the card: {start.elapsed_time(end) / len(chosen):.3f} ms a token")
    assert lost.max() < 0.02 * want.abs().max(), "a token should be the best one, or tied with it"


if __name__ == "__main__":
    main()
