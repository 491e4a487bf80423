"""What a compile tells, and the files it leaves."""

import logging

import pytest

from torch_spyre._inductor import config
from torch_spyre.logging import artifacts_in, log_pass, save_artifacts

SAY = """
    from torch_spyre.logging import log_pass
    log_pass("fused", "kernel before", "kernel after")
"""


def test_passes_are_silent_unless_asked(program):
    assert "fused" not in program(SAY)


def test_own_variables_turn_logging_on(program, tmp_path):
    program(SAY, SPYRE_INDUCTOR_LOG="1", SPYRE_INDUCTOR_LOG_LEVEL="DEBUG", SPYRE_LOG_FILE=str(tmp_path / "log"))
    assert (tmp_path / "log").read_text() == "DEBUG torch_spyre._inductor.passes: fused:\nkernel before\nkernel after\n"


def test_torch_logs_turns_logging_on(program):
    assert "fused:" in program(SAY, TORCH_LOGS="+torch_spyre._inductor")


def test_what_is_logged_is_not_made_when_off():
    class Heavy:
        def __str__(self):
            raise AssertionError

    assert not logging.getLogger("torch_spyre._inductor.passes").isEnabledFor(logging.DEBUG)
    log_pass("fused", Heavy())


def test_a_wrong_level_is_named(python):
    code = "from torch_spyre import logging"
    result = python(code, SPYRE_INDUCTOR_LOG="1", SPYRE_INDUCTOR_LOG_LEVEL="LOUD")
    assert "SPYRE_INDUCTOR_LOG_LEVEL='LOUD': expected DEBUG" in result.stderr


def test_artifacts_of_a_kernel(tmp_path):
    with artifacts_in(tmp_path):
        save_artifacts("add", "loops", ["spec 0", "spec 1"], ["{}", "[]"], "module")
    files = {file.name: file.read_text() for file in (tmp_path / "add").iterdir()}
    assert files == {
        "loop_ir.txt": "loops",
        "op_specs.txt": "spec 0\nspec 1",
        "sdsc_0.json": "{}",
        "sdsc_1.json": "[]",
        "bundle.mlir": "module",
    }


def test_nothing_is_saved_unless_asked(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_artifacts("add", "loops", [], [], "module")
    assert not list(tmp_path.iterdir())


def test_artifacts_lie_in_the_debug_directory_of_their_compile(program, tmp_path):
    """The kernel is compiled when it first runs, which is after its graph."""
    code = """
        torch.compile(lambda x: x + x)(x)
    """
    program(code, TORCH_COMPILE_DEBUG="1", TORCH_COMPILE_DEBUG_DIR=str(tmp_path / "first"))
    (file,) = (tmp_path / "first").rglob("spyre_add_*/loop_ir.txt")
    assert (file.parents[1] / "output_code.py").exists()
    # A graph from caches has no debug directory of its own, but its kernels are compiled for their files' sake.
    program(code, TORCH_COMPILE_DEBUG="1", TORCH_COMPILE_DEBUG_DIR=str(tmp_path / "second"))
    assert list((tmp_path / "second").rglob("spyre_add_*/loop_ir.txt"))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [("SENCORES", "33", "expected a number from 1 to 32"), ("SPYRE_INDUCTOR_IGNORE_HINTS", "yes", "expected 0 or 1")],
)
def test_wrong_settings_are_named(python, name, value, message):
    assert f"{name}={value!r}: {message}" in python("from torch_spyre._inductor import config", **{name: value}).stderr


def test_settings_can_be_patched():
    with config.patch(ignore_hints=True):
        assert config.ignore_hints
    assert not config.ignore_hints


def test_kernels_are_compiled_or_loaded_from_cache(python, tmp_path):
    code = "import torch; torch.ones(4, device='spyre').masked_fill(torch.ones(4, device='spyre') > 0, 2)"
    where = {"SPYRE_KERNEL_CACHE": str(tmp_path), "SPYRE_INDUCTOR_LOG": "1"}
    first, second = python(code, **where).stderr, python(code, **where).stderr
    assert "kernel masked_fill: compiled in " in first and "loaded" not in first
    assert "kernel masked_fill: loaded from cache in " in second and "compiled" not in second
