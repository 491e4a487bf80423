"""A file in PyTorch's style, run by a configuration in the public form: what is made, marked, counted, written."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from torch_spyre.testing import runner
from torch_spyre.testing.__main__ import main
from torch_spyre.testing.configuration import ConfigurationError

HERE = Path(__file__).parent
ROOT = HERE / "root"
CONFIGURATION = HERE / "small.yaml"


@pytest.fixture(scope="module")
def environment():
    with pytest.MonkeyPatch.context() as patch:
        for name in ("TORCH_ROOT", "TORCH_DEVICE_ROOT", "TORCH_SPYRE_ROOT", "TORCH_PACKAGE_ROOT"):
            patch.setenv(name, "")  # what the runner sets goes when the tests end
            patch.delenv(name)
        yield


@pytest.fixture(scope="module")
def result(environment) -> runner.FileResult:
    (found,) = runner.run(CONFIGURATION, runner.Options(ROOT), tell=lambda _: None)
    return found


@pytest.fixture(scope="module")
def outcomes(result) -> dict[str, str]:
    return {each.id.rpartition("::")[2]: each.outcome for each in result.outcomes}


def made(outcomes: dict[str, str], template: str) -> dict[str, str]:
    return {name.removeprefix(template): how for name, how in outcomes.items() if name.startswith(template)}


def test_variants_are_those_of_the_formula(outcomes):
    """(Global and op's and test's dtypes) and float16, without int64; ops likewise."""
    assert made(outcomes, "test_forward") == {
        "_abs_spyre_float16": "passed",
        "_abs_spyre_float32": "passed",
        "_add_spyre_float16": "xfailed",  # force_xfail, and 9 fraction bits
        "_add_spyre_float32": "xpassed",
        "_neg_spyre_float16": "passed",
        "_neg_spyre_float32": "passed",
    }
    assert made(outcomes, "test_dtypes") == {"_spyre_float32": "passed", "_spyre_int64": "passed"}
    assert made(outcomes, "test_module") == {"_nn_Linear_spyre_float32": "passed", "_nn_ReLU_spyre_float32": "passed"}


def test_inputs_take_the_place_of_samples(outcomes):
    assert made(outcomes, "test_given") == {"_mul_spyre_float32": "passed"}


def test_modes(outcomes):
    assert outcomes["test_left_out_spyre"] == "skipped"
    assert outcomes["test_other"] == "xfailed" and outcomes["test_surprise"] == "xpassed"  # not listed
    assert outcomes["test_host"] == "passed"
    assert made(outcomes, "test_is_one_n_") == {"1_spyre": "failed", "2_spyre": "failed", "3_spyre": "xfailed"}


def test_listed_tests_for_other_devices_run(outcomes):
    assert outcomes["test_only_cuda_spyre"] == outcomes["test_native_spyre"] == "passed"
    assert outcomes["test_only_cuda_unlisted_spyre"] == "skipped"


def test_a_test_that_ends_its_process_is_an_error_and_others_run(result, outcomes):
    assert outcomes["test_ends_the_process_spyre"] == "error"
    assert result.problem == "" and not result.ok


def test_summary(result):
    passed, wanted = result.mandatory()
    assert (passed, wanted) == (12, 14)  # not: one value of test_is_one, and the one that ends its process
    text = runner.text([result])
    assert "12 of 14 tests that have to pass did, 85.71 %" in text
    assert "ERROR small_suite.py::TestSmallSPYRE::test_ends_the_process_spyre" in text


def test_junit_and_json(result):
    suite = ElementTree.fromstring(runner.as_junit([result])).find("testsuite")
    assert suite is not None
    assert int(suite.get("tests", 0)) == len(result.outcomes) == len(suite.findall("testcase"))
    assert (suite.get("failures"), suite.get("errors")) == ("2", "1")
    case = next(each for each in suite if each.get("name") == "test_left_out_spyre")
    assert "it never works" in case[0].get("message", "")
    summary = json.loads(runner.as_json([result]))
    assert (summary["failed"], summary["files"][0]["must_pass"]) == (3, 14)


@pytest.mark.slow
def test_markers_choose(environment):
    options = runner.Options(ROOT, marked="first and op__neg and dtype__float16")
    (found,) = runner.run(CONFIGURATION, options, lambda _: None)
    assert [each.id.rpartition("::")[2] for each in found.outcomes] == ["test_forward_neg_spyre_float16"]


@pytest.mark.slow
def test_shards_are_disjoint_and_whole(environment, result):
    parts = []
    for part in ("1/2", "2/2"):
        (found,) = runner.run(CONFIGURATION, runner.Options(ROOT, part=part), lambda _: None)
        parts.append({each.id for each in found.outcomes})
    assert parts[0] and parts[1] and not parts[0] & parts[1]
    assert parts[0] | parts[1] == {each.id for each in result.outcomes}


def test_a_file_that_is_not_there_is_a_problem(environment, tmp_path):
    path = tmp_path / "missing.yaml"
    path.write_text("test_suite_config: {files: [{path: '${TORCH_ROOT}/test/none.py'}]}")
    (found,) = runner.run(path, runner.Options(ROOT), lambda _: None)
    assert not found.ok and "there is no" in found.problem


def test_a_root_that_is_none(tmp_path):
    with pytest.raises(ConfigurationError, match="has no folder test"):
        runner.run(CONFIGURATION, runner.Options(tmp_path))


def test_the_command(capsys, tmp_path):
    assert main(["check", str(CONFIGURATION)]) == 0
    assert capsys.readouterr().out == f"{CONFIGURATION}: 1 files\n"
    assert main(["schema"]) == 0
    assert json.loads(capsys.readouterr().out)["properties"]["test_suite_config"]
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("test_suite_config: {files: [{path: x, tests: [{names: [a], mode: sometimes}]}]}")
    assert main(["check", str(wrong)]) == 2
    assert "test_suite_config.files.0.tests.0.mode: Input should be" in capsys.readouterr().err
