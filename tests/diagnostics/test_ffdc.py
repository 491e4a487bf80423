"""Reports of failures."""

import json
import os
import re
import stat
from pathlib import Path
from typing import Any

import pytest
import torch

from torch_spyre import _C
from torch_spyre._inductor import compiler, pipeline
from torch_spyre.diagnostics import captures, ffdc
from torch_spyre.diagnostics.replay import replay

SECTIONS = {"metadata", "failure", "artifacts", "environment", "runtime", "hardware_state", "collector"}
NAME = re.compile(r"ffdc_([a-z_]+)_\d{8}T\d{6}_\d{6}_\d+\.json")


@pytest.fixture
def folder(monkeypatch, tmp_path) -> Path:
    """Failures are collected here; kernels are compiled, whatever is in the caches."""
    monkeypatch.setenv("TORCH_SPYRE_FFDC_DIR", str(tmp_path / "ffdc"))
    monkeypatch.setenv("SPYRE_KERNEL_CACHE", "0")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # graphs of others have the lines of others
    torch._dynamo.reset()
    monkeypatch.setattr(ffdc, "_last", None)
    _C.forget_kernels()
    _C.reset_fallback_counts()  # an op that may not fall back is reported once
    ffdc.install()
    yield tmp_path / "ffdc"
    ffdc.uninstall()
    _C.forget_kernels()


def halves(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).half().to("spyre")


def the_report(folder: Path) -> dict[str, Any]:
    (file,) = folder.iterdir()
    found = json.loads(file.read_text())
    assert found.keys() == SECTIONS
    assert NAME.fullmatch(file.name)[1] == found["metadata"]["category"]
    return found


def fails(*_: Any) -> None:
    raise LookupError("no such thing")


def test_a_failure_of_a_pass_is_of_the_front_end(folder):
    with pipeline.replaced("divide_work", fails), pytest.raises(RuntimeError, match="LookupError: no such thing"):
        halves(4, 64) + 1
    found = the_report(folder)
    assert found["metadata"]["category"] == "compile_frontend"
    assert found["failure"]["message"].endswith("no such thing") and "divide_work" not in found["failure"]["message"]
    assert "fails" in found["failure"]["traceback"] and "aten.add" in found["failure"]["op"]
    assert any("test_ffdc.py" in line for line in found["failure"]["called_from"])
    assert "add(" in found["artifacts"]["loop_ir"]
    assert "artifacts.superdsc" in found["collector"]["missing"]
    assert 50 <= found["collector"]["completeness_pct"] < 100


def test_a_failure_of_the_back_end_has_what_was_emitted(folder, monkeypatch):
    monkeypatch.setattr(compiler, "compile_bundle", fails)
    with pytest.raises(LookupError, match="no such thing"):
        torch.compile(lambda x: torch.softmax(x, -1))(halves(4, 64))
    found = the_report(folder)
    assert found["metadata"]["category"] == "compile_backend"
    assert all(json.loads(text) for text in found["artifacts"]["superdsc"])
    assert len(found["artifacts"]["op_specs"]) == len(found["artifacts"]["superdsc"])
    assert any("torch.softmax(x, -1)" in line for line in found["artifacts"]["sources"].values())
    assert found["collector"]["completeness_pct"] == 100


def test_the_kernel_of_a_report_is_replayed(folder, monkeypatch):
    with monkeypatch.context() as patched:
        patched.setattr(compiler, "compile_bundle", fails)
        with pytest.raises(LookupError):
            torch.compile(lambda x: x * 2 + 1)(halves(4, 64))
    (file,) = folder.iterdir()
    found = replay(captures.load(file))
    assert found.steps == 2 and found.differences is None


def test_an_error_of_a_launch_is_of_the_runtime(folder):
    x, at = halves(9, 64), torch.tensor([3, 70], device="spyre")
    with pytest.raises(IndexError) as raised:
        x.index_select(0, at).cpu()
    found = the_report(folder)
    assert found["metadata"]["category"] == "runtime_launch"
    assert found["failure"]["type"] == "IndexError" and found["failure"]["message"] in str(raised.value)
    assert found["artifacts"]["kernel"]["kernel"]["name"] == "index_select"
    assert found["artifacts"]["kernel"]["code"]["steps"]


def test_what_the_card_cannot_do_is_unimplemented(folder):
    with torch.spyre.fallback("error"), pytest.raises(RuntimeError, match="linalg_inv|inverse"):
        torch.linalg.inv(torch.eye(3, device="spyre"))
    found = the_report(folder)
    assert found["metadata"]["category"] == "unimplemented"
    assert found["failure"]["op"] == "aten::linalg_inv_ex"
    assert any("test_ffdc.py" in line for line in found["failure"]["called_from"])


def test_an_op_that_may_not_fall_back_is_reported_once(folder):
    sparse = torch.eye(3).to_sparse().to("spyre")  # never reaches the compiler
    with torch.spyre.fallback("error"):
        for _ in range(3):
            with pytest.raises(NotImplementedError):
                sparse @ torch.ones(3, 3, device="spyre")
    found = the_report(folder)
    assert found["metadata"]["category"] == "unimplemented" and found["failure"]["type"] == "NotImplementedError"


def test_a_warned_fallback_is_no_failure(folder):
    with torch.spyre.fallback("count"):
        torch.linalg.inv(torch.eye(3, device="spyre"))
    assert not folder.exists()


def test_programs_that_run_leave_nothing(folder):
    torch.compile(lambda x: torch.softmax(x, -1))(halves(4, 64)).cpu()
    assert not folder.exists()


def test_the_error_is_the_same_with_and_without(folder, monkeypatch):
    def raised() -> str:
        with pipeline.replaced("divide_work", fails), pytest.raises(RuntimeError) as error:
            halves(4, 64) + 1
        return f"{error.type} {error.value}"

    collected = raised()
    ffdc.uninstall()
    assert raised() == collected


def test_reports_are_the_owners_alone(folder):
    with pipeline.replaced("divide_work", fails), pytest.raises(RuntimeError):
        halves(4, 64) + 1
    (file,) = folder.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700 and stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_newest_fifty_are_kept_and_nothing_else_is_removed(tmp_path):
    tmp_path.chmod(0o700)
    (tmp_path / "notes.json").write_text("mine")
    first = torch.spyre.get_diagnostic_report(tmp_path)["collector"]["path"]
    for _ in range(ffdc.KEPT + 3):
        last = torch.spyre.get_diagnostic_report(tmp_path)["collector"]["path"]
    names = os.listdir(tmp_path)
    assert len(names) == ffdc.KEPT + 1 and "notes.json" in names
    assert Path(last).exists() and not Path(first).exists()


def test_a_directory_that_others_can_write_is_not_used(folder):
    folder.mkdir()
    folder.chmod(0o777)
    with (
        pipeline.replaced("divide_work", fails),
        pytest.warns(RuntimeWarning, match="was not written: others can write to"),
        pytest.raises(RuntimeError, match="no such thing"),
    ):
        halves(4, 64) + 1
    assert not list(folder.iterdir())


def test_secrets_of_the_environment_are_not_written(monkeypatch):
    shown = {"SPYRE_CARD": "run", "TORCH_LOGS": "x", "SENCORES": "8"}
    hidden = {
        "AWS_SECRET_ACCESS_KEY": "s3cret",
        "HF_TOKEN": "s3cret",
        "TORCH_HUB_TOKEN": "s3cret",
        "MY_SPYRE": "s3cret",
    }
    for name, value in {**shown, **hidden}.items():
        monkeypatch.setenv(name, value)
    found = torch.spyre.get_diagnostic_report()
    assert shown.items() <= found["environment"]["variables"].items()
    assert "s3cret" not in json.dumps(found, default=str)


def test_a_report_on_request_needs_no_failure(tmp_path):
    halves(2, 2)
    found = torch.spyre.get_diagnostic_report()
    assert found.keys() == SECTIONS and found["failure"] is None and found["collector"]["path"] is None
    assert found["hardware_state"]["cards"][0]["cores"] == 32
    assert found["runtime"]["mode"] == "run"
    written = torch.spyre.get_diagnostic_report(tmp_path / "new")["collector"]["path"]
    assert json.loads(Path(written).read_text())["metadata"]["pid"] == os.getpid()


def test_a_report_on_request_has_the_last_failure(folder):
    with pipeline.replaced("divide_work", fails), pytest.raises(RuntimeError):
        halves(4, 64) + 1
    assert "no such thing" in torch.spyre.get_diagnostic_report()["failure"]["message"]


def test_a_section_that_cannot_be_made_says_why(monkeypatch):
    monkeypatch.setattr(ffdc, "_hardware_state", fails)
    found = torch.spyre.get_diagnostic_report()
    assert found["hardware_state"] == {"error": "LookupError: no such thing"}
    assert found["collector"]["missing"] == ["hardware_state"] and found["collector"]["completeness_pct"] < 100


def test_the_variable_turns_it_on(python, tmp_path):
    code = """
        import torch
        x = torch.ones(4, 64, dtype=torch.float16, device="spyre")
        x[torch.tensor([9], device="spyre")].cpu()
    """
    result = python(code, TORCH_SPYRE_FFDC="1", TORCH_SPYRE_FFDC_DIR=str(tmp_path / "ffdc"))
    assert "IndexError" in result.stderr and "a diagnostic report is in" in result.stderr
    assert the_report(tmp_path / "ffdc")["failure"]["type"] == "IndexError"


def test_the_variable_captures_every_kernel(python, tmp_path):
    code = """
        import torch
        x = torch.ones(4, 64, dtype=torch.float16, device="spyre")
        (x + x).exp()
    """
    assert python(code, TORCH_SPYRE_CAPTURE=str(tmp_path / "all")).returncode == 0
    names = sorted(captures.load(file).kernel.name for file in (tmp_path / "all").iterdir())
    assert names == ["add", "exp"]
