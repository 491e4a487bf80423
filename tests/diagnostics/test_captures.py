"""Kernels in files, and their replay alone."""

import json
import os
import stat
from pathlib import Path

import pytest
import torch

from torch_spyre import cli
from torch_spyre.diagnostics import captures, container
from torch_spyre.diagnostics.errors import CaptureError
from torch_spyre.diagnostics.replay import Options, replay


def halves(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).half().to("spyre")


@pytest.fixture(scope="module")
def softmax(tmp_path_factory) -> Path:
    """A capture of a compiled kernel of several steps, with values."""
    path = tmp_path_factory.mktemp("captures") / "softmax.capture"
    x = halves(64, 300)
    with pytest.MonkeyPatch.context() as patched, torch.spyre.capture(path):
        patched.setenv("TORCHINDUCTOR_CACHE_DIR", str(path.parent))  # graphs of others have the lines of others
        torch.compile(lambda x: torch.softmax(x * 2, -1))(x)
    return path


@pytest.mark.parametrize("cores", [1, 5, 32])
def test_a_replay_gives_the_captured_bits_on_any_number_of_cores(softmax, cores):
    found = replay(captures.load(softmax), Options(cores=cores))
    assert found.differences == []
    assert all(max(row.slices) <= cores for row in found.rows)


def test_the_card_program_runs_as_it_was_captured(softmax):
    capture = captures.load(softmax)
    found = replay(capture, Options(as_captured=True))
    assert found.differences == []
    assert found.microseconds == replay(capture).microseconds


def test_results_are_those_of_the_program(softmax):
    x = halves(64, 300)
    capture = captures.load(softmax)
    assert torch.equal(capture.expected.outputs[0], torch.compile(lambda x: torch.softmax(x * 2, -1))(x).cpu())


def test_other_results_than_captured_are_told_with_their_distance(softmax):
    capture = captures.load(softmax)
    capture.expected.outputs[0][3, 7] += 0.5
    (difference,) = replay(capture).differences
    assert (difference.name, difference.different, difference.elements) == ("output 0", 1, 64 * 300)
    assert difference.most == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: x.mul_(0.3),
        lambda x: x[1:5, 3:40].add_(1),
        lambda x: x.t() + x.t(),
        lambda x: torch.add(x[:, :64], x[:, 36:]),
        lambda x: x[:1].expand(8, 100) * x,
        lambda x: x[torch.tensor([3, 1], device="spyre")],
        lambda x: x > 0,
        lambda x: x.float().sum(1),
        lambda x: x.to(torch.int32) // 3,
        lambda x: torch.where(x > 0, x, float("-inf")),
    ],
)
def test_eager_calls_are_captured_with_their_views_and_numbers(tmp_path, call):
    with torch.spyre.capture(tmp_path) as captured:
        call(halves(8, 100))
    assert captured.files
    for file in captured.files:
        found = replay(captures.load(file), Options(cores=3))
        assert found.differences == [], file


def test_the_kernel_that_is_named_is_captured(tmp_path):
    x = halves(4, 64)
    with torch.spyre.capture(tmp_path / "one", kernel="mul") as captured:
        (x + x) * 2
        x * x
    assert [name.split("_")[3] for name in captured.kernels] == ["add", "mul", "mul"]
    assert captures.load(tmp_path / "one").kernel.name == "mul"
    assert captures.load(tmp_path / "one").numbers == (2.0,)


def test_a_kernel_that_did_not_run_is_an_error(tmp_path):
    with (
        pytest.raises(
            CaptureError, match="no kernel whose name contains 'softmax' ran; those that did: spyre_kernel_v1_add_"
        ),
        torch.spyre.capture(tmp_path / "none", kernel="softmax"),
    ):
        halves(4, 64) + 1
    assert not (tmp_path / "none").exists()


def test_values_are_left_out_on_request(tmp_path):
    x, at = halves(9, 64), torch.tensor([3, 8], device="spyre")
    with torch.spyre.capture(tmp_path / "file", values=False):
        x[at]
    capture = captures.load(tmp_path / "file")
    assert not capture.contents and capture.expected is None
    first, second = (replay(capture, Options(seed=seed)).results.all()[0] for seed in (1, 2))
    assert not torch.equal(first, second)
    assert torch.equal(first, replay(capture, Options(seed=1, cores=2)).results.all()[0])


def test_a_capture_belongs_to_its_owner_alone(softmax):
    assert stat.S_IMODE(os.stat(softmax).st_mode) == 0o600


def test_a_capture_is_a_safetensors_file(softmax):
    safetensors = pytest.importorskip("safetensors.torch")
    assert set(safetensors.load_file(softmax)) == {"memory_0", "output_0"}


def test_the_command_reports(softmax, capsys):
    assert cli.main(["replay", str(softmax), "--cores", "8", "--repeat", "2", "--compare"]) == 0
    said = capsys.readouterr().out
    assert "compiled for 8 cores, planned together; run mode; captured inputs" in said
    assert "results equal the captured ones, bit for bit" in said and "2 runs gave the same bits" in said
    assert "test_captures.py:" in said and "torch.softmax(x * 2, -1)" in said  # the line of the program


def test_op_by_op_planning_changes_time_and_not_values(tmp_path):
    x, y = halves(512, 1024), halves(1024, 1024)
    with torch.spyre.capture(tmp_path / "file"):
        torch.compile(lambda x, y: torch.softmax(x @ y, -1) @ y)(x, y)
    capture = captures.load(tmp_path / "file")
    found = replay(capture, Options(planning="op_by_op"))
    assert found.differences == []
    assert found.microseconds > replay(capture).microseconds


def test_timing_mode_has_the_time_of_run_mode_and_no_values(softmax, python):
    code = f"from torch_spyre import cli; raise SystemExit(cli.main(['replay', {str(softmax)!r}, '--mode', 'timing']))"
    said = python(code).stdout
    assert f"modelled time {replay(captures.load(softmax)).microseconds:.3f} us" in said
    assert "timing mode; no values" in said and "no captured results to compare with" in said


def test_strict_mode_runs_a_capture(softmax, python):
    command = ["replay", str(softmax), "--mode", "strict", "--compare"]
    result = python(f"from torch_spyre import cli; raise SystemExit(cli.main({command!r}))")
    assert result.returncode == 0, result.stderr


def damaged(path: Path, tmp_path: Path, change) -> Path:
    """The same capture with another description."""
    description, tensors = container.read(path)
    change(description)
    container.write(tmp_path / "damaged", description, tensors)
    return tmp_path / "damaged"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.update(format="x"), "no capture of a kernel"),
        (lambda d: d.update(version=2), "another version than 1"),
        (lambda d: d["kernel"].update(name="../../x"), "kernel: name is '../../x'"),
        (lambda d: d["kernel"]["buffers"][0].update(dtype="load"), "buffer 0: dtype is 'load'"),
        (lambda d: d["kernel"]["buffers"][0].update(size=[2**50]), "buffer 0: size is"),
        (lambda d: d["kernel"]["ops"][0].update(name="system"), "op 0: name is 'system'"),
        (lambda d: d["kernel"]["ops"][0]["out"].update(offset=10**9), "goes over the elements"),
        (lambda d: d["kernel"]["ops"][0].update(hints={"scopes": 3}), "op 0: hints"),
        (lambda d: d["arguments"][0].update(storage=1), "argument 0: its storage"),
        (lambda d: d["arguments"][0].update(device_size=[2**39, 64, 64]), "argument 0: larger"),
        (lambda d: d.update(numbers=[1.0]), "numbers: the kernel takes 0"),
        (lambda d: d["settings"].update(planning="fast"), "settings: planning"),
        (lambda d: d["settings"].update(kernel_cache_bytes=1), "settings"),
        (lambda d: d["code"]["steps"].append({"type": "HostCompute"}), "code: its steps are not programs"),
        (lambda d: d.pop("arguments"), "arguments: a list"),
    ],
)
def test_a_damaged_description_is_refused_with_a_sentence(softmax, tmp_path, capsys, change, message):
    path = damaged(softmax, tmp_path, change)
    assert cli.main(["replay", str(path)]) == 2
    said = capsys.readouterr().err
    assert message in said and said.startswith(f"spyre: {path}: ") and said.count("\n") == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cut off"),
        (b"\0" * 8, "cannot be read"),
        (b"\xff" * 100, "cut off"),
        (b"{", "cannot be read"),
        (b"{}", "neither a capture nor a diagnostic report"),
        (b'{"artifacts": {"kernel": null}}', "has no kernel"),
        (b"{" + b'"a":[' * 100_000, "cannot be read"),
        ((2).to_bytes(8, "little") + b"{}", "no capture"),
    ],
)
def test_what_is_no_capture_is_refused_with_a_sentence(tmp_path, capsys, content, message):
    (tmp_path / "file").write_bytes(content)
    assert cli.main(["replay", str(tmp_path / "file")]) == 2
    assert message in capsys.readouterr().err


def test_a_capture_that_is_cut_off_is_refused(softmax, tmp_path, capsys):
    whole = softmax.read_bytes()
    for length in (100, len(whole) // 2, len(whole) - 1):
        (tmp_path / "file").write_bytes(whole[:length])
        assert cli.main(["replay", str(tmp_path / "file")]) == 2
        assert "cut off" in capsys.readouterr().err


def test_special_files_are_not_read(tmp_path, capsys):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        assert cli.main(["replay", str(path)]) == 2
        assert "no regular file" in capsys.readouterr().err
    assert cli.main(["replay", str(tmp_path / "none")]) == 2


def test_cores_that_the_card_does_not_have_are_refused(softmax, capsys):
    assert cli.main(["replay", str(softmax), "--cores", "33"]) == 2
    assert "this card has 1 to 32 cores, not 33" in capsys.readouterr().err
    assert cli.main(["replay", str(softmax), "--cores", "3", "--as-captured"]) == 2


def test_another_hardware_description_is_told(softmax):
    capture = captures.load(softmax)
    capture.hardware["sha256"] = "other"
    assert "captured for another hardware description, spyre" in replay(capture).report()


def test_a_description_is_json(softmax):
    description, _ = container.read(softmax)
    assert json.loads(json.dumps(description)) == description
