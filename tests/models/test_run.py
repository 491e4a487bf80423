"""``spyre run``: what it prints, what it refuses, and the model in the box."""

import argparse
import copy
import json
import math
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._dynamo.utils import counters

import torch_spyre

transformers = pytest.importorskip("transformers")

from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

from torch_spyre import compile_time  # noqa: E402
from torch_spyre.cli import main  # noqa: E402
from torch_spyre.models import divergence, generation, host_memory, loading, presets, report, run  # noqa: E402
from torch_spyre.models.errors import ModelError  # noqa: E402


def rows(report: str) -> dict[str, str]:
    """The report after the text."""
    lines = report[report.rindex("\nmodel ") :].split("\n")[1:]
    return {line[:12].strip(): line[12:] for line in lines}


def test_tokens_and_report(tiny, capsys):
    assert main(["run", str(tiny), "--prompt", "abc", "--max-new-tokens", "5", "--compare", "cpu"]) == 0
    printed = capsys.readouterr().out
    found = rows(printed)
    assert found["tokens"] == "3 in the prompt, 5 written"
    assert found["sizes"] == "prompt padded to 4, cache of 8"
    assert found["fallbacks"] == "none"
    assert "per token" in found["on the card"] and "tokens/s" in found["here"]
    assert "between later ones" in found["compiling"]
    assert found["as CPU fp32"].startswith("5 of 5 tokens") or ", 0 beyond" in found["as CPU fp32"]
    tokens = [int(token) for token in printed.split("\n", 1)[0].split()]
    model = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    logits = model(torch.tensor([tokens])).logits[0].detach()
    for position in range(2, 7):  # the CPU's choice at each step, unless another is as good as that
        assert logits[position].max() - logits[position, tokens[position + 1]] < 0.01


def machine() -> report.Machine:
    return report.Machine("run", 0, 0, 0, {}, {"hits": 0, "misses": 0})


def test_the_report_keeps_compiling_apart_from_running():
    """A token every quarter of a second; a compile in the middle takes ten."""
    compiling = [30.0, 10.0, 0.0, 10.0, 0.0]
    steps = [generation.Step(1, 0.25 + each, 1.0, torch.empty(0), None, each) for each in compiling]
    found = rows("\n" + report.text("m", 2, generation.Generated([1], steps), machine(), None))
    assert found["here"] == "250 ms to the first token, then 4.0 tokens/s"
    assert found["compiling"] == "30 s before the first token, 20 s between later ones"


def test_the_compilers_time_is_counted_once(monkeypatch):
    clock = iter(range(100))
    monkeypatch.setattr(compile_time.time, "monotonic", lambda: next(clock))
    with compile_time.watched() as spent:
        with compile_time.compiling(), compile_time.compiling():  # as an op that Dynamo runs while it traces
            pass
        with compile_time.compiling():
            pass
    assert spent.seconds == 2
    with compile_time.compiling():
        pass
    assert spent.seconds == 2


def test_kernels_of_ops_and_graphs_are_the_compilers_time():
    x = torch.ones(3, 67, dtype=torch.float16).to("spyre")
    torch.spyre.synchronize()
    with compile_time.watched() as eager:
        torch.logaddexp2(x, x * 5)
    function = torch.compile(lambda x: torch.logaddexp2(x, x * 5), dynamic=False)
    with compile_time.watched() as compiled:
        function(x)
    with compile_time.watched() as again:
        torch.logaddexp2(x, x * 5)
        function(x)
    assert eager.seconds > 0 and compiled.seconds > 0 and again.seconds == 0


def test_sampling_follows_its_seed():
    logits = torch.tensor([0.0, 1.0, 2.0, 3.0])

    def draws(**sampling):
        choose = generation.chooser(generation.Sampling(**sampling))
        return [choose(logits) for _ in range(200)]

    assert draws(temperature=1.0, seed=1) == draws(temperature=1.0, seed=1) != draws(temperature=1.0, seed=2)
    assert set(draws()) == {3}
    assert set(draws(temperature=1.0, top_p=0.5)) == {3}  # alone it has 0.64
    assert set(draws(temperature=1.0, top_p=0.8)) == {2, 3}
    assert set(draws(temperature=5.0)) == {0, 1, 2, 3}


def test_ends_after_a_stop_token(tiny):
    model = loading.to_card(AutoModelForCausalLM.from_pretrained(tiny), torch.float16, lambda *_: None)
    steps = list(generation.generate(model, [5, 6], 6, generation.Sampling(), frozenset()))
    again = list(generation.generate(model, [5, 6], 6, generation.Sampling(), frozenset([steps[2].token])))
    tokens = [step.token for step in steps]
    assert [step.token for step in again] == tokens[: tokens.index(tokens[2]) + 1]
    assert all(step.card_milliseconds > 0 for step in steps)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_compiled_prompts_of_one_size_share_programs(tiny):
    model = loading.to_card(AutoModelForCausalLM.from_pretrained(tiny), torch.float16, lambda *_: None)
    torch._dynamo.reset()
    counters.clear()
    compiled = []
    for length in (9, 10):
        steps = list(generation.generate(model, [5] * length, 5, generation.Sampling(), frozenset(), compiled=True))
        assert [step.slots for step in steps] == [12, 16, 16, 16, 16]
        compiled.append({**counters["spyre"], **counters["stats"]})
    assert compiled[0] == compiled[1]
    assert compiled[0]["unique_graphs"] == 2 and not counters["graph_break"]
    assert "specializations" not in compiled[0]  # sizes that are fixed take half as long to trace


@torch.no_grad()
def test_divergence_finds_the_layer_that_is_wrong(tiny):
    reference = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    damaged = copy.deepcopy(reference)
    damaged.model.layers[1].mlp.down_proj.weight.neg_()
    prompt, tokens = [7, 8, 9], [10, 11, 12]
    found = {}
    for name, model in (("whole", copy.deepcopy(reference)), ("damaged", damaged)):
        model = loading.to_card(model, torch.float16, lambda *_: None)
        logits = model(torch.tensor([[*prompt, *tokens]]).to("spyre")).logits[0, 2:-1].cpu().float()
        found[name] = divergence.compare(reference, model, prompt, tokens, logits)
    assert found["whole"].agreeing + found["whole"].ties == 3
    assert found["damaged"].layers[0] == found["whole"].layers[0] < 2**-7
    assert found["damaged"].worst_layer == 1 and found["damaged"].layers[1] > 10 * found["whole"].layers[1]
    assert found["damaged"].worst_kl > 10 * found["whole"].worst_kl


def test_ties_are_nearer_than_the_roundings_of_the_format():
    """One layer: sqrt((14 + 3) / 3) roundings of 2**-10, at 4 deviations, and the logits' own."""
    head = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    hidden = torch.tensor([[3.0, 4.0]])
    first, second = torch.tensor([1]), torch.tensor([0])
    bound = divergence.tie_bounds(hidden, head, hidden @ head.T, first, second, layers=1)
    assert bound.item() == pytest.approx(2**-10 * (4 * (17 / 3) ** 0.5 * 5 + 7))


def refused(capsys, *arguments: str) -> str:
    """The one sentence that a command ends with."""
    assert main(["run", *arguments]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("spyre: ")]
    assert len(said) == 1
    return said[0]


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("SPYRE_MEMORY_GB", "x", "SPYRE_MEMORY_GB=x: expected a number from 1e-06 to 1024"),
        ("SENCORES", "99", "SENCORES='99': expected a number from 1 to 32"),
        ("DXP_LX_FRAC_AVAIL", "2", "DXP_LX_FRAC_AVAIL='2': expected a share of LX, from 0 to 1"),
        ("SPYRE_HARDWARE", "/none.toml", "cannot read the hardware description /none.toml: No such file or directory"),
    ],
)
def test_refuses_settings_of_the_environment(name, value, said):
    process = spyre(env={**os.environ, name: value})
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 2
    assert [line for line in errors.splitlines() if line.startswith("spyre: ")] == [f"spyre: {said}"]


def test_refuses_directories_without_a_model(copied, tmp_path, capsys):
    assert "is not a directory" in refused(capsys, str(tmp_path / "none"), "--prompt", "a")
    (copied / "model.safetensors").unlink()
    assert "has no model.safetensors" in refused(capsys, str(copied), "--prompt", "a")
    (copied / "config.json").write_text("{")
    assert "is not a configuration" in refused(capsys, str(copied), "--prompt", "a")
    (copied / "config.json").unlink()
    assert "has no config.json" in refused(capsys, str(copied), "--prompt", "a")


@pytest.mark.parametrize("kept", [0, 5, 300, -1])
def test_refuses_truncated_weights(copied, capsys, kept):
    file = copied / "model.safetensors"
    file.write_bytes(file.read_bytes()[:kept])
    assert "is truncated" in refused(capsys, str(copied), "--prompt", "a")


def test_refuses_weights_that_are_something_else(copied, capsys):
    (copied / "model.safetensors").write_bytes((4).to_bytes(8, "little") + b"oops")
    assert "is not a safetensors file" in refused(capsys, str(copied), "--prompt", "a")


def test_refuses_missing_shards(copied, capsys):
    index = {"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}}
    (copied / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "has no model-00002-of-00002.safetensors" in refused(capsys, str(copied), "--prompt", "a")


def test_refuses_a_checkpoint_that_lacks_weights(copied, capsys):
    from safetensors.torch import load_file, save_file

    weights = load_file(copied / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, copied / "model.safetensors", metadata={"format": "pt"})
    assert "lacks 1 of its weights, among them model.layers.1.mlp.up_proj.weight" in refused(
        capsys, str(copied), "--prompt", "a"
    )


def test_refuses_a_checkpoint_that_has_other_weights(copied, capsys):
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    said = refused(capsys, str(copied), "--prompt", "a")
    assert "weights that its config.json has no place for, among them model.layers.1." in said
    (copied / "config.json").write_text(json.dumps(config | {"intermediate_size": 64}))
    said = refused(capsys, str(copied), "--prompt", "a")
    assert "down_proj.weight has the shape [128, 256], its config.json says [128, 64]" in said


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"architectures": ["BertForMaskedLM"]}, "holds a BertForMaskedLM, which is no causal language model"),
        ({"num_attention_heads": 0}, "cannot be run as a causal language model"),
        ({"hidden_size": "abc"}, "Validation error for field 'hidden_size'"),
        ({"hidden_act": "zorg"}, "zorg"),
    ],
    ids=str,
)
def test_refuses_configurations(copied, capsys, changes, said):
    config = json.loads((copied / "config.json").read_text())
    (copied / "config.json").write_text(json.dumps(config | changes))
    assert said in refused(capsys, str(copied), "--prompt", "a")


def byte_by_byte(data: list[int]) -> str:
    """As tokenizers with a token for every byte do it: what is no character yet is a mark for each of its bytes."""
    for end in range(len(data), -1, -1):
        try:
            return bytes(data[:end]).decode() + "\ufffd" * (len(data) - end)
        except UnicodeDecodeError:
            pass
    raise AssertionError


def test_characters_of_several_tokens_are_printed_whole(capsys):
    session = run._Session.__new__(run._Session)
    session.arguments = argparse.Namespace(compile=False)
    session.decode = byte_by_byte
    session._read_prompt = next
    data = [*"a\N{GRINNING FACE}b".encode(), 0xF0, 0x9F]
    steps = (generation.Step(byte, 0, 0, torch.empty(0), None) for byte in data)
    session._stream(steps, generation.Generated([]), echo=False)
    assert capsys.readouterr().out == "a\N{GRINNING FACE}b\ufffd\ufffd\n"


@pytest.mark.parametrize("architecture", ["perpetuum", "vit"])
def test_refuses_architectures(copied, capsys, architecture):
    (copied / "config.json").write_text(json.dumps({"model_type": architecture}))
    assert repr(architecture) in refused(capsys, str(copied), "--prompt", "a")


def test_refuses_prompts_beyond_the_context(tiny, capsys):
    assert "a context of 256" in refused(capsys, str(tiny), "--prompt", "a" * 256)


def test_refuses_models_larger_than_the_card(tiny, monkeypatch, capsys):
    monkeypatch.setattr("torch_spyre.device.mem_get_info", lambda: (1000, 2**20))
    assert "of weights and the card 1.0 MiB of memory" in refused(capsys, str(tiny), "--prompt", "a")


def test_refuses_models_larger_than_this_machine(tiny, monkeypatch, capsys):
    monkeypatch.setattr(host_memory, "available", lambda: 1000)
    assert "--mode timing needs none of it" in refused(capsys, str(tiny), "--prompt", "a")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--preset", "gpt-9"], "there is no preset 'gpt-9'; there are llama-3.1-8b, "),
        (["--preset", "bert-base"], "bert-base is no causal language model; there are llama-3.1-8b, "),
        (["--preset", "llama-3.1-8b", "--layers", "33"], "has 32 layers"),
        (["--layers", "2"], "--layers is for presets"),
        (["--preset", "llama-3.1-8b", "DIRECTORY"], "name one of them"),
        (["--max-new-tokens", "0"], "is no number of tokens"),
        (["--top-p", "0"], "--top-p between 0 and 1"),
        (["--temperature", "nan"], "--temperature is at least 0"),
        (["--seed", str(2**64)], "is no number of 63 bits"),
        (["DIRECTORY", "--prompt", "\udcff"], "the prompt is no text in UTF-8"),
        (["DIRECTORY"], "needs something to go on from"),
        (["DIRECTORY", "--prompt", ""], "the prompt is empty"),
    ],
)
def test_refuses_options(tiny, capsys, arguments, said):
    assert said in refused(capsys, *[str(tiny) if word == "DIRECTORY" else word for word in arguments])


def test_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"spyre {torch_spyre.__version__}, torch {torch.__version__}\n"


@pytest.mark.parametrize("command", ["run /nowhere", "run --preset nothing", "timing /nowhere", "--version"])
def test_answers_that_need_no_torch_come_without_it(command):
    code = "import sys; from torch_spyre.cli import main; sys.exit(main(sys.argv[1:]))"
    watch = "import sys, atexit; atexit.register(lambda: print('torch' in sys.modules)); "
    done = subprocess.run([sys.executable, "-c", watch + code, *command.split()], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "False"
    assert done.returncode == (0 if command == "--version" else 2), done.stderr


@pytest.mark.parametrize("page", sorted(Path(__file__).parents[2].glob("docs/*.md")), ids=lambda page: page.name)
def test_presets_of_the_documentation_exist(page):
    """Whatever is named as one: behind --preset, behind spyre timing, or in a column of presets."""
    text = page.read_text()
    named = re.findall(r"--preset (?!NAME)([\w.-]+)|spyre timing (?!check\b)([a-z][\w.-]*)", text)
    column = re.findall(r"^\|[^|\n]*\| `([\w.-]+)` \|", text, re.M) if "| preset |" in text else []
    assert {*column, *(name for pair in named for name in pair if name)} <= set(presets.causal())
    assert column or page.name != "models.md"


def test_traceback_when_asked(tmp_path):
    with pytest.raises(ModelError):
        main(["--traceback", "run", str(tmp_path / "none")])


@pytest.mark.parametrize("name", presets.table())
def test_presets_have_the_size_of_the_model(name):
    config = presets.configuration(name)
    with torch.device("meta"):
        model = getattr(transformers, config.architectures[0])(config)
    assert sum(parameter.numel() for parameter in model.parameters()) == presets.table()[name]["parameters"]
    if name in presets.causal():
        assert len(loading.decoder_layers(model)) == config.num_hidden_layers


def test_fewer_layers():
    assert presets.causal_configuration("gpt2", 3).n_layer == 3
    assert presets.causal_configuration("granite-4.0-h-small", 7).layer_types[4:] == [
        "linear_attention",
        "full_attention",
        "linear_attention",
    ]


def spyre(*arguments: str, **options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "torch_spyre.cli", "run", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )


STAGES = {
    "starting": signal.SIGINT,
    "loading": signal.SIGTERM,
    "to the card": signal.SIGKILL,
    "reading the prompt": signal.SIGTERM,
}


@pytest.mark.slow
def test_ended_at_any_point_it_leaves_nothing_and_starts_again(tiny, tmp_path):
    cache = tmp_path / "cache"
    environment = {**os.environ, "SPYRE_KERNEL_CACHE": str(cache)}
    arguments = str(tiny), "--prompt", "abc", "--max-new-tokens", "200"
    for stage, number in STAGES.items():  # the signal comes in what follows
        process = spyre(*arguments, env=environment)
        while not process.stderr.readline().startswith(stage):
            assert process.poll() is None, process.stderr.read()
        process.send_signal(number)
        process.communicate(timeout=60)
        ended = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGKILL: -signal.SIGKILL}[number]
        assert process.returncode == ended, stage
        assert number == signal.SIGKILL or not list(cache.glob("aside/*")), stage
    process = spyre(*arguments, env=environment)
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    assert rows(out)["tokens"] == "3 in the prompt, 200 written"
    assert not list(cache.glob("aside/*"))


def test_full_size_in_timing_mode():
    """8 billion parameters, and neither their memory nor their values."""
    process = spyre(
        "--preset", "granite-3.3-8b", "--mode", "timing", "--prompt-length", "64", "--max-new-tokens", "3"
    )  # fmt: skip
    out, err = process.communicate(timeout=250)
    assert process.returncode == 0, err
    report = rows(out)
    assert "8.17 billion" in report["model"] and report["tokens"] == "64 in the prompt, 3 written"
    card, host = report["memory"].split(";")
    assert float(card.split()[0]) >= round(8.17e9 * 2 / 2**30, 1)  # it is said to one digit
    assert host.endswith("MiB of this machine") and report["fallbacks"] == "none"


def test_the_box_has_learned_its_book(capsys):
    """It expects a sentence that anybody who has read it would, and on the card chooses as the CPU does."""
    model = AutoModelForCausalLM.from_pretrained(loading.BOX, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(loading.BOX)
    sentence = "The whale was seen from the mast-head, and the captain ordered the boats to be lowered."
    ids = tokenizer(sentence, return_tensors="pt").input_ids
    assert tokenizer.decode(ids[0]) == sentence
    assert model(ids, labels=ids).loss < 0.6 * math.log(len(tokenizer))

    assert main(["run", "--compare", "cpu", "--max-new-tokens", "40"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(run.BOX_PROMPT)
    agreement = rows(printed)["as CPU fp32"]
    assert agreement.startswith("40 of 40 tokens") or ", 0 beyond" in agreement
