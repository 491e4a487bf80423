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
