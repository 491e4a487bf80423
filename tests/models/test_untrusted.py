"""Model directories that come from anywhere: nothing of them is executed, and whatever they say is refused in time."""

import io
import json
import os
import shutil
import signal
import struct
import time
from pathlib import Path

import pytest
import torch

transformers = pytest.importorskip("transformers")

from transformers import AutoModelForCausalLM  # noqa: E402

from torch_spyre.cli import main  # noqa: E402
from torch_spyre.model_utils import load_model_to_spyre  # noqa: E402
from torch_spyre.models import host_memory, limits, loading  # noqa: E402
from torch_spyre.models.errors import ModelError  # noqa: E402


@pytest.fixture
def chatty(tmp_path: Path) -> Path:
    """The model in the box, which has a tokenizer."""
    return Path(shutil.copytree(loading.BOX, tmp_path / "model"))


def change(file: Path, **fields) -> None:
    content = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(content | fields))


def refused(capsys, *arguments: str | Path) -> str:
    """The one sentence that a command ends with."""
    assert main(["run", *map(str, arguments)]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("spyre: ")]
    assert len(said) == 1
    return said[0]


# --- code

CODE = """
from pathlib import Path
Path({mark!r}).touch()
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
class Config(LlamaConfig): pass
class Model(LlamaForCausalLM): config_class = Config
class Tokenizer(PreTrainedTokenizerFast): pass
def generate(*args, **kwargs): pass
"""


@pytest.fixture
def with_code(chatty: Path, monkeypatch, tmp_path) -> Path:
    """A model whose directory brings code along, wherever transformers looks for it; and somebody who says yes."""
    (chatty / "code.py").write_text(CODE.format(mark=str(tmp_path / "executed")))
    (chatty / "custom_generate").mkdir()
    shutil.copy(chatty / "code.py", chatty / "custom_generate" / "generate.py")
    (chatty / "custom_generate" / "requirements.txt").write_text("")
    references = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}
    change(chatty / "config.json", auto_map=references)
    change(chatty / "tokenizer_config.json", auto_map={"AutoTokenizer": [None, "code.Tokenizer"]})
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 20))
    monkeypatch.setenv("HF_MODULES_CACHE", str(tmp_path / "modules"))
    return chatty


def test_code_is_not_executed_where_it_is_not_needed(with_code, tmp_path, capsys):
    assert main(["run", str(with_code), "--prompt", "The", "--max-new-tokens", "1"]) == 0
    assert main(["run", str(with_code), "--chat", "--max-new-tokens", "1"]) == 0
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("command", [["--chat"], ["--prompt", "a"], ["--prompt", "a", "--mode", "run"]], ids=str)
def test_code_that_is_needed_is_not_executed_either(with_code, tmp_path, capsys, command):
    change(with_code / "config.json", model_type="unheard-of")
    assert "executed only with --trust-remote-code" in refused(capsys, with_code, *command)
    assert not (tmp_path / "executed").exists()


def test_code_of_a_tokenizer_is_not_executed(with_code, tmp_path, capsys):
    change(with_code / "tokenizer_config.json", tokenizer_class="Tokenizer")
    assert main(["run", str(with_code), "--prompt", "The", "--max-new-tokens", "1"]) in (0, 2)
    assert not (tmp_path / "executed").exists()


def test_code_is_not_executed_by_loading(with_code, tmp_path):
    load_model_to_spyre(with_code)
    change(with_code / "config.json", model_type="unheard-of")
    with pytest.raises(ValueError):
        load_model_to_spyre(with_code)
    assert not (tmp_path / "executed").exists()


def test_code_is_executed_when_that_is_asked_for(with_code, tmp_path, python):
    """In a process of its own: it stays registered."""
    change(with_code / "config.json", model_type="unheard-of")
    done = python(
        f"""
        from torch_spyre.cli import main
        print(main(["run", {str(with_code)!r}, "--trust-remote-code", "--prompt", "The", "--max-new-tokens", "1"]))
        """,
        HF_MODULES_CACHE=str(tmp_path / "modules"),
    )
    assert (tmp_path / "executed").exists(), done.stderr


@pytest.mark.parametrize("field", ["attn_implementation", "_attn_implementation", "experts_implementation"])
def test_kernels_from_elsewhere_are_not_executed(copied, capsys, field):
    """Names with a slash are repositories, whose code transformers would fetch and run."""
    change(copied / "config.json", **{field: "somebody/attention"})
    assert "only --trust-remote-code executes it" in refused(capsys, copied, "--prompt", "a")
    with pytest.raises(ValueError, match="is code from elsewhere"):
        load_model_to_spyre(copied)


def test_pickles_are_not_read(copied, tmp_path, capsys):
    class Executed:
        def __reduce__(self):
            return (open, (str(tmp_path / "executed"), "w"))

    (copied / "model.safetensors").unlink()
    torch.save({"model.norm.weight": Executed()}, copied / "pytorch_model.bin")
    assert "has no model.safetensors" in refused(capsys, copied, "--prompt", "a")
    with pytest.raises(FileNotFoundError, match="no safetensors"):
        load_model_to_spyre(copied)
    assert not (tmp_path / "executed").exists()


def test_architectures_that_are_no_models(copied):
    for name in ("pipeline", "AutoConfig", "logging", ["x"], 7):
        change(copied / "config.json", architectures=[name])
        with pytest.raises(ValueError, match="no architecture that transformers has"):
            load_model_to_spyre(copied)


# --- files


@pytest.mark.parametrize("way", ["up", "absolute", "link", "folder", "inside"])
def test_an_index_stays_in_its_directory(tiny, copied, tmp_path, capsys, way):
    outside = tmp_path / "outside.safetensors"
    shutil.move(copied / "model.safetensors", outside)
    name = {"up": "../outside.safetensors", "absolute": str(outside)}.get(way, "part.safetensors")
    if way == "link":
        (copied / name).symlink_to(outside)
    elif way == "folder":
        (copied / "folder").symlink_to(tmp_path)
        name = "folder/outside.safetensors"
    elif way == "inside":
        shutil.move(outside, copied / "real.safetensors")
        (copied / name).symlink_to("real.safetensors")
    names = AutoModelForCausalLM.from_pretrained(tiny).state_dict()
    change(copied / "model.safetensors.index.json", metadata={}, weight_map=dict.fromkeys(names, name))
    if way == "inside":
        assert main(["run", str(copied), "--prompt", "a", "--max-new-tokens", "1"]) == 0
        return
    assert "leads out of the directory" in refused(capsys, copied, "--prompt", "a")
    with pytest.raises(ValueError, match="leads out of the directory"):
        load_model_to_spyre(copied)


@pytest.mark.parametrize("name", ["../model.bin", "model.bin", 7, ["x"], None, "\0.safetensors", "x" * 5000], ids=repr)
def test_an_index_names_files(copied, capsys, name):
    change(copied / "model.safetensors.index.json", weight_map={"model.norm.weight": name})
    refused(capsys, copied, "--prompt", "a")


def test_snapshots_of_hugging_faces_cache_are_links(tiny, tmp_path, capsys):
    (tmp_path / "blobs").mkdir()
    snapshot = tmp_path / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    for file in tiny.iterdir():
        shutil.copy(file, tmp_path / "blobs" / f"hash-{file.name}")
        (snapshot / file.name).symlink_to(f"../../blobs/hash-{file.name}")
    assert main(["run", str(snapshot), "--prompt", "a", "--max-new-tokens", "1"]) == 0
    (snapshot / "generation_config.json").unlink(missing_ok=True)
    (snapshot / "generation_config.json").symlink_to("/etc/passwd")
    assert "leads out of the directory" in refused(capsys, snapshot, "--prompt", "a")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json", "chat_template.jinja"])
def test_files_are_regular(chatty, capsys, name):
    """A pipe keeps its reader waiting, a device has no end."""
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero"), lambda path: path.symlink_to(path)):
        (chatty / name).unlink(missing_ok=True)
        make(chatty / name)
        refused(capsys, chatty, "--chat")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize("content", [b"[" * 100_000, b"\xff\xfe\x00", b"{", b"[]", b"", b'{"a":' * 2000], ids=range(6))
def test_damaged_json(chatty, capsys, name, content):
    (chatty / name).write_bytes(content)
    refused(capsys, chatty, "--prompt", "The", "--max-new-tokens", "1")


@pytest.mark.parametrize("damage", ["a token of 2^32 - 1", "a merge of nothing"])
def test_a_tokenizer_that_ends_its_library_does_not_end_the_process(chatty, capsys, damage):
    fields = json.loads((chatty / "tokenizer.json").read_text())
    if damage == "a merge of nothing":  # a panic in Rust, which is no Exception
        fields["model"]["continuing_subword_prefix"] = "a prefix that no token has"
    else:  # no memory for the table of tokens
        fields["model"]["vocab"]["!"] = 2**32 - 1
    (chatty / "tokenizer.json").write_text(json.dumps(fields))
    refused(capsys, chatty, "--prompt", "The", "--max-new-tokens", "1")


def test_a_tokenizer_stays_in_its_directory(chatty, tmp_path, capsys):
    shutil.copy(chatty / "tokenizer.json", tmp_path / "tokenizer.9.json")
    change(chatty / "tokenizer_config.json", fast_tokenizer_files=["../tokenizer.9.json"])
    assert "leads out of the directory" in refused(capsys, chatty, "--prompt", "The")
    change(chatty / "tokenizer_config.json", fast_tokenizer_files=[], tokenizer_file="/nowhere/any more/tokenizer.json")
    assert main(["run", str(chatty), "--prompt", "The", "--max-new-tokens", "1"]) == 0


def header(file: Path) -> tuple[dict, bytes]:
    content = file.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    return json.loads(content[8 : 8 + length]), content[8 + length :]


@pytest.mark.parametrize(
    "damage",
    [
        {"shape": [-1, 128]},
        {"shape": [2**40, 2**40]},
        {"shape": "abc"},
        {"shape": [1]},
        {"dtype": "F99"},
        {"dtype": 7},
        {"dtype": "I64"},
        {"data_offsets": [0, 10**30]},
        {"data_offsets": [-256, 0]},
        {"data_offsets": [256, 512]},
        {"data_offsets": []},
        {"data_offsets": [0.5, 1e999]},
    ],
    ids=str,
)
def test_damaged_headers(copied, capsys, damage):
    file = copied / "model.safetensors"
    entries, data = header(file)
    entries["model.norm.weight"] |= damage
    text = json.dumps(entries).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + data)
    refused(capsys, copied, "--prompt", "a")


@pytest.mark.parametrize("text", [b"[" * 100_000, b"[]", b"7", b'{"a": 1}', b"\xff" * 9], ids=range(5))
def test_headers_that_are_something_else(copied, capsys, text):
    (copied / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    refused(capsys, copied, "--prompt", "a")


def test_numbers_of_another_kind_are_no_weights(tmp_path):
    from safetensors.torch import save_file

    save_file({"weight": torch.zeros(3, 2, dtype=torch.int16), "bias": torch.zeros(3)}, tmp_path / "m.safetensors")
    with pytest.raises(ValueError, match="numbers of torch.int16, not of torch.float32"):
        load_model_to_spyre(torch.nn.Linear(2, 3), tmp_path / "m.safetensors")


# --- configurations


@pytest.mark.parametrize(
    "changes",
    [
        {"num_hidden_layers": 10**6},
        {"num_hidden_layers": 10**15},
        {"num_hidden_layers": -1},
        {"num_hidden_layers": "2"},
        {"num_hidden_layers": None},
        {"num_hidden_layers": 1e300},
        {"num_hidden_layers": True},
        {"hidden_size": 2**40},
        {"hidden_size": 2**20},
        {"hidden_size": -128},
        {"hidden_size": 0},
        {"hidden_size": 129},
        {"hidden_size": float("nan")},
        {"intermediate_size": 2**62},
        {"intermediate_size": 10**40},
        {"vocab_size": 2**50},
        {"vocab_size": 0},
        {"vocab_size": -1},
        {"vocab_size": [320]},
        {"max_position_embeddings": "many"},
        {"max_position_embeddings": -5},
        {"num_attention_heads": 10**12},
        {"num_labels": 10**9},
        {"num_attention_heads": 3},
        {"num_key_value_heads": 0},
        {"head_dim": -64},
        {"head_dim": 63},
        {"rms_norm_eps": "x"},
        {"rope_parameters": []},
        {"rope_parameters": {"rope_type": "none such", "rope_theta": 1.0}},
        {"rope_parameters": {"rope_type": "default", "rope_theta": "x"}},
        {"layer_types": ["x"] * 100_000},
        {"eos_token_id": "x"},
        {"eos_token_id": [[1]]},
        {"model_type": ["llama"]},
        {"model_type": None},
        {"architectures": 7},
        {"architectures": [7]},
        {"auto_map": 7},
        {"dtype": "float99"},
        {"quantization_config": 7},
    ],
    ids=lambda changes: str(changes)[:60],
)
def test_absurd_configurations(copied, capsys, changes):
    change(copied / "config.json", **changes)
    began = time.process_time()
    assert len(refused(capsys, copied, "--prompt", "a", "--max-new-tokens", "2")) < 2000
    assert time.process_time() - began < 2 * limits.SECONDS


@pytest.mark.parametrize("field", ["num_hidden_layers", "num_attention_heads", "vocab_size"])
def test_absurd_numbers_end_where_they_are_looped_over(copied, capsys, field, monkeypatch):
    """Whatever a field is called: here nothing is known of names."""
    monkeypatch.setattr(limits, "COUNTS", {})
    monkeypatch.setattr(limits, "SECONDS", 2.0)
    change(copied / "config.json", **{field: 10**11})
    refused(capsys, copied, "--prompt", "a")


def test_what_takes_too_long_is_ended_though_it_catches_everything():
    def stubborn():
        while True:
            try:
                while True:
                    pass
            except Exception:
                pass

    before = signal.getsignal(signal.SIGPROF)
    limits_before, limits.SECONDS = limits.SECONDS, 0.2
    try:
        with pytest.raises(ModelError, match="this takes more than 0 seconds"), limits.bounded("this"):
            stubborn()
    finally:
        limits.SECONDS = limits_before
    assert signal.getsignal(signal.SIGPROF) == before


def test_what_takes_too_much_memory_is_ended():
    with pytest.raises(ModelError, match="this takes more than 4 GiB of memory"), limits.bounded("this"):
        bytearray(2**46)


def test_without_proc_memory_has_no_limit(monkeypatch, tmp_path):
    monkeypatch.setattr(host_memory, "PROC", tmp_path)
    with limits.bounded("this"):
        torch.empty(5 << 30, dtype=torch.uint8)
    assert host_memory.available() is None and host_memory.peak() > 1 << 20


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{{ 'x' * 10**14 }}",
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{% for",
        "{{ messages[99].content }}",
        "{{ raise_exception('no') }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    ],
    ids=range(7),
)
def test_chat_templates_are_data(chatty, capsys, monkeypatch, template):
    monkeypatch.setattr(limits, "SECONDS", 2.0)
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\n"))
    (chatty / "chat_template.jinja").write_text(template)
    refused(capsys, chatty, "--chat", "--max-new-tokens", "1")
