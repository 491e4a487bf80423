"""The sidecar: from a kernel's row in a profile back to the program."""

import json
import os
import subprocess
import sys

import pytest

from torch_spyre import provenance, provenance_viewer

PROGRAM = """
import sys, torch
from torch_spyre import timing

def block(x, w):
    return torch.nn.functional.gelu(x @ w)

x = torch.randn(64, 64).half().to("spyre")
with timing.record() as recording:
    torch.compile(block)(x, x)
print(recording.launches[0].plan.name)
x * 5  # the eager op
"""


DAMAGED = '{"version": 1, "kernelIdentities": {"K": 3}, "kernelOccurrences": [], "specHandleBinding": {}}'


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sidecar")
    (folder / "block.py").write_text(PROGRAM)
    environment = {**os.environ, "TORCH_SPYRE_PROVENANCE_PATH": str(folder / "sidecar.json")}
    command = [sys.executable, str(folder / "block.py")]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=120).stdout
    return folder, said.split()[-1]


def test_an_event_is_found_with_its_line(made, capsys):
    folder, name = made
    assert provenance.main([f"{name}#0", str(folder / "sidecar.json")]) == 0
    said = capsys.readouterr().out
    assert "block.py" in said and "gelu(x @ w)" in said and "aten.mm" in said and "matmul over" in said


def test_an_eager_kernel_has_the_line_of_its_first_call(made, capsys):
    folder, _ = made
    kernels = provenance.read(folder / "sidecar.json")["kernelIdentities"].values()
    (name,) = (kernel["name"] for kernel in kernels if "_mul_" in kernel["name"])
    assert provenance.main([f"{name}#0", str(folder / "sidecar.json")]) == 0
    assert "x * 5  # the eager op" in capsys.readouterr().out


def test_the_text_of_a_line_is_in_the_sidecar(made, tmp_path, capsys):
    folder, name = made
    data = provenance.read(folder / "sidecar.json")
    for binding in data["specHandleBinding"].values():
        if binding["aten"] != "aten.mul.Tensor":
            assert binding["sourceText"] == "return torch.nn.functional.gelu(x @ w)"
        binding["source"] = binding["source"].replace("block.py", "nowhere.py")
    (tmp_path / "moved.json").write_text(json.dumps(data))
    assert provenance.main([f"{name}#0", str(tmp_path / "moved.json")]) == 0
    assert "gelu(x @ w)" in capsys.readouterr().out
    assert "gelu(x @ w)" in provenance_viewer.page(data)


def test_a_sidecar_opens_no_file_and_commands_no_terminal(made, tmp_path, capsys):
    folder, name = made
    secret = tmp_path / "secret.txt"
    secret.write_text("hunter2")
    data = provenance.read(folder / "sidecar.json")
    for binding in data["specHandleBinding"].values():
        binding |= {
            "source": f'File "{secret}", line 1, in f',
            "sourceText": ["not", "text"],
            "aten": "\x1b[2J\x1b]0;mine\x07",
        }
    (tmp_path / "hostile.json").write_text(json.dumps(data))
    assert provenance.main([f"{name}#0", str(tmp_path / "hostile.json")]) == 0
    said = capsys.readouterr().out
    assert "hunter2" not in said + provenance_viewer.page(data) and "\x1b" not in said and "\x07" not in said
    for binding in data["specHandleBinding"].values():
        binding["sourceText"] = "x" * 10_000_000
    assert len(provenance_viewer.page(data)) < 100_000


def test_all_steps_are_on_the_page(made, tmp_path):
    folder, name = made
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": [{"name": f"{name}#0", "dur": 12.5}]}))
    page = tmp_path / "page.html"
    arguments = [str(folder / "sidecar.json"), "--kineto-trace", str(trace), "--output", str(page)]
    assert provenance_viewer.main(arguments) == 0
    text = page.read_text()
    assert f"{name}#0" in text and "12.500" in text and "matmul over" in text
    assert "default-src 'none'" in text and "://" not in text


def test_texts_of_a_sidecar_are_shown_as_texts(made):
    folder, name = made
    data = provenance.read(folder / "sidecar.json")
    for binding in data["specHandleBinding"].values():
        binding["aten"] = "<script>alert(1)</script>"
    assert "<script>alert" not in provenance_viewer.page(data)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"version": 2}', '{"version": 1, "kernelIdentities": []}', "[" * 100_000, DAMAGED]
)
def test_damaged_sidecars_are_refused_in_a_sentence(text, tmp_path, capsys):
    file = tmp_path / "sidecar.json"
    file.write_text(text)
    assert provenance.main(["spyre_kernel_v1_mm_AAAAAAAAAAAAAAAA#0", str(file)]) == 2
    assert provenance_viewer.main([str(file), "--output", str(tmp_path / "page.html")]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("event", ["triton_poi_0", "spyre_kernel_v1_mm_AAAAAAAAAAAAAAAA#0"])
def test_other_events_are_refused_in_a_sentence(event, made, capsys):
    folder, _ = made
    assert provenance.main([event, str(folder / "sidecar.json")]) == 2
    assert event.split("_")[-1].split("#")[0] in capsys.readouterr().err


@pytest.mark.parametrize("path", ["/dev/zero", "no such file", "a\0b"])
def test_only_lines_of_ordinary_files_are_read(path):
    assert provenance.line_of(f'File "{path}", line 1, in f') == ""
    assert provenance.line_of(f'File "{__file__}", line 1, in f').startswith('"""The sidecar')


def test_a_step_that_there_is_not_is_refused(made, capsys):
    folder, name = made
    assert provenance.main([f"{name}#9999", str(folder / "sidecar.json")]) == 2
    assert "no step 9999" in capsys.readouterr().err
