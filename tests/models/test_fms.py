"""IBM's Foundation Model Stack on the card: ``get_model(..., device_type="spyre")`` as it is."""

import pytest
import torch

pytest.importorskip("fms")

from fms.models import get_model  # noqa: E402
from fms.utils.generation import generate  # noqa: E402

from tests.models.architectures import error_of, relative_error  # noqa: E402

COMMON = {"src_vocab_size": 320, "emb_dim": 256, "nheads": 4, "kvheads": 2, "nlayers": 2, "max_expected_seq_len": 256}
MODELS = {
    "llama": ("micro", {}),
    "granite": ("8b", {**COMMON, "head_dim": 64, "hidden_grow_factor": 2.5, "pad_id": 0}),
    "mistral": ("7b", {**COMMON, "hidden_grow_factor": 2.5, "sliding_window": 32}),
    "gpt_oss": ("20b", {**COMMON, "head_dim": 64, "num_experts": 8, "top_k_experts": 2, "hidden_dim": 256}),
}
ROUNDINGS = 4 + 2 * 33  # those of gpt-oss, which has the most: see its descriptor
NEW = 12
QUICK = [pytest.param(name, marks=() if name == "llama" else pytest.mark.slow) for name in MODELS]


pytestmark = pytest.mark.usefixtures("no_fallback")


def pair(name):
    """The model on the card and, with the weights as the card rounded them, on the host in fp32."""
    variant, changes = MODELS[name]
    card = get_model(name, variant, device_type="spyre", data_type=torch.float16, **changes).eval()
    assert {p.device.type for p in card.parameters()} == {"spyre"}
    host = get_model(name, variant, device_type="cpu", data_type=torch.float32, **changes).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in host.parameters():  # not every model sets all of them
            parameter.normal_(float(parameter.dim() == 1), 0.05, generator=generator)
    card.load_state_dict(host.state_dict())
    host.load_state_dict({key: value.cpu() for key, value in card.state_dict().items()})
    return host, card


def logits(model, ids):
    with torch.no_grad():
        found = model(ids)
    return (found[0] if isinstance(found, tuple) else found).cpu()


def prompt():
    return torch.randint(3, 200, (1, 9), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", QUICK)
def test_logits(name):
    host, card = pair(name)
    ids = prompt()
    want, got = logits(host, ids), logits(card, ids.to("spyre"))
    assert relative_error(got, want) <= error_of(ROUNDINGS)


@pytest.mark.parametrize("name", QUICK)
def test_generate(name):
    """Its cache grows by cat: every token is a new shape. Each token is the host's best, or tied with it."""
    host, card = pair(name)
    with torch.no_grad():
        sequence = generate(
            card, prompt().to("spyre"), max_new_tokens=NEW, max_seq_len=64, use_cache=True, do_sample=False
        )
    sequence = sequence.cpu()
    assert sequence.shape == (1, 9 + NEW) and torch.equal(sequence[:, :9], prompt())
    steps = logits(host, sequence)[0, 8:-1]
    chosen = steps.gather(1, sequence[0, 9:, None])[:, 0]
    tie = 2 * 4 * error_of(ROUNDINGS) * steps.square().mean(-1).sqrt()
    assert (steps.amax(-1) - chosen <= tie).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_compiled(name):
    host, card = pair(name)
    ids = prompt()
    got = logits(torch.compile(card), ids.to("spyre"))
    assert relative_error(got, logits(host, ids)) <= error_of(ROUNDINGS)


@pytest.mark.slow
def test_hf_pretrained(tmp_path):
    pytest.importorskip("transformers")
    from tests.models.architectures import load

    architecture = load("llama")
    torch.manual_seed(0)
    model = architecture.build("tiny", torch.float16)
    model.save_pretrained(tmp_path)
    card = get_model("hf_pretrained", model_path=str(tmp_path), device_type="spyre", data_type=torch.float16).eval()
    ids = architecture.inputs(model.config, 9)["input_ids"]
    with torch.no_grad():
        want = model.to("spyre")(ids.to("spyre")).logits.cpu().float()
    assert relative_error(logits(card, ids.to("spyre")).float(), want) <= architecture.tolerance(2)
