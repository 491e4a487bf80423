"""What is logged, and the files of a compile."""

import logging
from pathlib import Path

import pytest
import torch

from torch_spyre import logging as own
from torch_spyre import logging_config
from torch_spyre._inductor import pipeline

PROGRAM = """
    import torch
    x = torch.ones(4, 64, dtype=torch.float16, device="spyre")
    x + x
"""


@pytest.fixture(autouse=True)
def unchanged():
    """Levels, handlers and the choice of passes are what they were."""
    names = ["torch_spyre", "torch_spyre._inductor", "torch_spyre._inductor.passes", "torch_spyre.execution"]
    loggers = [logging.getLogger(name) for name in (*names, "torch_spyre.execution.kernel", "torch_spyre.caching")]
    before = [(logger, logger.level, list(logger.handlers)) for logger in loggers]
    yield
    own.select_passes(None)
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers = handlers


def compile_something(n: int) -> None:
    """A kernel that no other test has."""
    torch.ones(n, 64, dtype=torch.float16, device="spyre").exp()


def test_the_passes_are_those_of_the_pipeline():
    stages = [stage.name for _, stage in pipeline.walk() if isinstance(stage, pipeline.LoopPass)]
    assert ["lowered", *stages] == list(logging_config.PASSES)


def test_a_level_is_set_from_python(caplog):
    logging_config.set_log_level("info")
    compile_something(1001)
    assert any("kernel exp: " in record.message for record in caplog.records)
    caplog.clear()
    logging_config.set_log_level(logging.WARNING)
    compile_something(1002)
    assert not caplog.records


def test_a_part_has_a_level_of_its_own(caplog):
    logging_config.set_log_level("INFO", "spyre_kernels")
    compile_something(1003)
    assert {record.name for record in caplog.records} == {"torch_spyre.execution.kernel"}


@pytest.mark.parametrize(("level", "name"), [("LOUD", "torch_spyre"), ("INFO", "torch"), (True, "torch_spyre")])
def test_wrong_levels_and_names_are_refused(level, name):
    with pytest.raises(ValueError, match="expected DEBUG|no logger of torch_spyre"):
        logging_config.set_log_level(level, name)


def test_passes_are_chosen(caplog):
    logging_config.set_log_passes(["divide_work", "lowered"])
    compile_something(1004)
    assert [record.message.split(":")[0] for record in caplog.records] == ["lowered", "divide_work"]


def test_all_passes_and_none(caplog):
    logging_config.set_log_passes("all")
    compile_something(1005)
    titles = [record.message.split(":")[0] for record in caplog.records]
    assert set(logging_config.PASSES) == set(titles)
    caplog.clear()
    logging_config.set_log_passes(None)
    compile_something(1006)
    assert not caplog.records


def test_an_unknown_pass_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="no pass 'fuse'; it has .*divide_work"):
        logging_config.set_log_passes("fuse")


def test_torch_logs_prints_one_pass_even_of_a_cached_kernel(python, tmp_path):
    for _ in range(2):
        said = python(PROGRAM, TORCH_LOGS="spyre_divide_work", SPYRE_KERNEL_CACHE=str(tmp_path)).stderr
        assert "[__spyre_divide_work] divide_work:" in said and "lift_ops:" not in said


def test_torch_logs_knows_the_public_names(python):
    said = python(PROGRAM, TORCH_LOGS="+torch_spyre.inductor").stderr
    assert "kernel add: compiled" in said and "build_specs:" in said
    told = python("import torch", TORCH_LOGS="help").stderr
    assert "torch_spyre.inductor" in told and "spyre_kernels" in told and "spyre_passes" in told


def test_old_variables_work_and_are_deprecated_once(python, tmp_path):
    said = python(PROGRAM, SPYRE_INDUCTOR_LOG="1", SPYRE_KERNEL_CACHE=str(tmp_path)).stderr
    assert "INFO torch_spyre.execution.kernel: kernel add: compiled" in said
    assert said.count("SPYRE_INDUCTOR_LOG_LEVEL are deprecated") == 1


def test_nothing_is_said_of_what_is_not_used(python, tmp_path):
    assert python(PROGRAM, SPYRE_KERNEL_CACHE=str(tmp_path)).stderr == ""


DUMPED = """
    import torch
    from torch_spyre import logging_config
    {choose}
    x = torch.ones(4, 64, dtype=torch.float16, device="spyre")
    x + x
    x[:2] + x[:2]
    torch.compile(lambda x: torch.softmax(x, -1))(x)
"""


def folders(directory: Path) -> dict[str, Path]:
    return {path.parent.name: path.parent for path in directory.rglob("loop_ir.txt")}


@pytest.mark.parametrize("time", ["first", pytest.param("cached", marks=pytest.mark.slow)])
def test_every_kernel_has_a_folder_with_all_its_passes(python, tmp_path, time):
    where = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache"), "TORCH_COMPILE_DEBUG_DIR": str(tmp_path / "debug")}
    if time == "cached":
        python(DUMPED.format(choose=""), **where)
    result = python(DUMPED.format(choose=""), TORCH_COMPILE_DEBUG="1", **where)
    assert result.returncode == 0, result.stderr
    found = folders(tmp_path / "debug")
    assert {name.split("_")[0] for name in found} == {"add", "spyre"} and {"add", "add_1"} <= found.keys()
    for folder in found.values():
        titles = [file.stem[3:] for file in sorted((folder / "passes").iterdir())]
        assert titles[-3:] == ["plan_scratchpad", "plan_memory", "build_specs"]
        assert titles.count("dead_code") == 1
        assert "device op" in next((folder / "passes").glob("*_divide_work.txt")).read_text()


@pytest.mark.slow
def test_files_of_passes_are_chosen_too(python, tmp_path):
    choose = "logging_config.set_log_passes('lift_ops, divide_work')"
    where = {"TORCH_COMPILE_DEBUG": "1", "TORCH_COMPILE_DEBUG_DIR": str(tmp_path)}
    assert python(DUMPED.format(choose=choose), **where).returncode == 0
    titles = {file.stem[3:] for file in tmp_path.rglob("passes/*.txt")}
    assert titles == {"lift_ops", "divide_work"}


def test_the_front_end_alone_plans_and_does_not_launch(python, tmp_path):
    code = """
        import torch
        x = torch.ones(4, 64, dtype=torch.float16, device="spyre")
        for call in (lambda: x + x, lambda: torch.compile(lambda x: torch.softmax(x, -1))(x)):
            try:
                call()
            except RuntimeError as error:
                print(error)
    """
    result = python(code, TORCH_SPYRE_FRONTEND_ONLY="1", TORCH_COMPILE_DEBUG_DIR=str(tmp_path))
    assert result.returncode == 0, result.stderr
    eager, compiled = (line for line in result.stdout.splitlines() if "FRONTEND_ONLY" in line)
    assert eager.startswith(
        "kernel add is planned and was not launched, since TORCH_SPYRE_FRONTEND_ONLY=1: its 1 SuperDSC"
    )
    assert "kernel spyre_amax_sub" in compiled
    assert {file.name for file in Path(eager.split(" are in ")[1]).iterdir()} >= {"sdsc_0.json", "op_specs.txt"}
