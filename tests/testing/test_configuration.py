"""What a configuration says: entries by name, forms of its fields, inputs."""

import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch

from torch_spyre.testing.configuration import ConfigurationError, File, load
from torch_spyre.testing.inputs import argument, tensor


def file(*tests: dict) -> File:
    return File.model_validate({"path": "x.py", "tests": list(tests)})


def test_a_name_matches_in_full():
    given = file({"names": ["TestA::test_a.*b"], "mode": "skip"})
    assert given.test({"TestA", "TestASPYRE"}, {"test_a_and_b"}) is given.tests[0]
    assert given.test({"TestA"}, {"test_a_and_b_too"}) is None
    assert given.test({"TestAB"}, {"test_a_and_b"}) is None


def test_a_literal_name_goes_before_a_pattern():
    given = file({"names": ["TestA::.*"], "mode": "skip"}, {"names": ["TestA::test_b"], "mode": "xfail"})
    assert given.test({"TestA"}, {"test_b"}) is given.tests[1]
    assert given.test({"TestA"}, {"test_c"}) is given.tests[0]


def test_forms(tmp_path, monkeypatch):
    """Nothing, one item and several; a name alone and a name in a mapping; fields that are not known."""
    path = tmp_path / "forms.yaml"
    path.write_text(
        textwrap.dedent("""
            test_suite_config:
              files:
              - path: ${SOMEWHERE}/test_x.py
                owner: nobody
                tests:
                - names: TestA::test_a
                  tags:
                  edits: {dtypes: {include: float16}}
              global:
                supported_dtypes: [float32, {name: torch.int64}]
        """)
    )
    found = load(path)
    (only,) = found.test_suite_config.files
    assert only.unlisted_test_mode == "xfail" and only.tests[0].mode == "mandatory_success"
    assert only.tests[0].edits.dtypes.include[0].dtype == torch.float16
    assert [each.dtype for each in found.test_suite_config.everywhere.supported_dtypes] == [torch.float32, torch.int64]
    assert list(found.unknown()) == ["test_suite_config.files[0].owner"]
    with pytest.raises(ConfigurationError, match="SOMEWHERE is not set"):
        only.place()
    monkeypatch.setenv("SOMEWHERE", str(tmp_path))
    assert found.file_of(tmp_path / "test_x.py") is only


def test_nothing_is_empty_and_modes_may_be_in_capitals(tmp_path, monkeypatch):
    path = tmp_path / "empty.yaml"
    path.write_text(
        textwrap.dedent("""
            test_suite_config:
              files:
              - path: tests/test_x.py
                unlisted_test_mode: SKIP
                tests:
                - names: [TestA::test_a]
                  mode:  Mandatory_Success
                  tags:
                  edits: {ops: {include:, exclude: }, dtypes: , inputs: {args: , kwargs: }}
              - path: tests/test_y.py
                tests:
              global:
        """)
    )
    first, second = (found := load(path)).test_suite_config.files
    assert (first.unlisted_test_mode, first.tests[0].mode, second.tests) == ("skip", "mandatory_success", [])
    assert found.test_suite_config.everywhere.supported_ops == []
    monkeypatch.setenv("TORCH_DEVICE_ROOT", str(tmp_path))
    assert first.place() == tmp_path / "tests/test_x.py"  # wherever a process has its directory


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("test_suite_config: {}", "test_suite_config.files: Field required"),
        ("a: [", "while parsing"),
        ("test_suite_config: {files: [{path: 1}]}", "files.0.path: Input should be a valid string"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(tmp_path, text, said):
    path = tmp_path / "wrong.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=said):
        load(path)


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ({"shape": [2, 2], "init": "eye"}, torch.eye(2)),
        ({"shape": [4], "init": "arange", "dtype": "int64"}, torch.arange(4)),
        ({"shape": [3], "init": {"full": {"fill_value": 7}}}, torch.full((3,), 7.0)),
        ({"shape": [2, 2], "init": "arange", "stride": [1, 2], "storage_offset": 1}, torch.tensor([[1.0, 3], [2, 4]])),
        ({"shape": [2], "init": "ones", "dtype": "torch.bool"}, torch.tensor([True, True])),
    ],
)
def test_tensors(given, want):
    assert torch.equal(tensor(given, "cpu", torch.float32), want)


def test_other_inputs(tmp_path):
    np.save(tmp_path / "x.npy", np.array([1.5, 2.5]))
    read = tensor({"init": "file", "path": str(tmp_path / "x.npy")}, "cpu", torch.float16)
    assert read.tolist() == [1.5, 2.5] and read.dtype == torch.float16
    assert argument({"py": "torch.Size([2]) + (1,)"}, "cpu", torch.float32) == (2, 1)
    assert argument({"value": [1, 2]}, "cpu", torch.float32) == [1, 2] and argument(3, "cpu", torch.float32) == 3
    assert len(argument({"tensor_list": [{"shape": [1]}, {"tensor": {"shape": [2]}}]}, "cpu", torch.float32)) == 2
    drawn = tensor({"shape": [100], "init": "randint", "low": 3, "high": 5}, "spyre", torch.int32).cpu()
    assert set(drawn.tolist()) == {3, 4}
    with pytest.raises(ConfigurationError, match="'random' is none of rand, randn"):
        tensor({"shape": [2], "init": "random"}, "cpu", torch.float32)


@pytest.mark.parametrize("path", sorted(Path(__file__).parents[1].glob("pytorch/*.yaml")), ids=lambda path: path.stem)
def test_our_own_configurations_give_a_reason_for_what_need_not_pass(path):
    found = load(path)
    assert list(found.unknown()) == []
    for each in found.test_suite_config.files:
        assert each.unlisted_test_mode == "mandatory_success"
        assert all(test.reason for test in each.tests if test.mode != "mandatory_success")
