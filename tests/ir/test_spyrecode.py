"""SpyreCode: a compiled kernel on disk is what was written, or is refused."""

import json

import pytest

from torch_spyre.ir import spyrecode

DESCRIPTION = {
    "name": "k",
    "arguments": [512, 512],
    "allocate": [1024],
    "steps": [
        {"type": "H2D", "argument": 0, "offset": 128, "buffer": 0},
        {"type": "Compute", "program": {"steps": [{"op": "fill", "extents": [4]}]}},
    ],
    "outputs": [{"size": [4, 64], "dtype": "float16"}],
    "buffers": [b"\x01\x02"],
}


def test_a_description_is_read_back(tmp_path):
    spyrecode.write(tmp_path / "k", DESCRIPTION)
    assert spyrecode.read(tmp_path / "k") == DESCRIPTION
    spyrecode.write(tmp_path / "k", DESCRIPTION | {"name": "again"})
    assert spyrecode.read(tmp_path / "k")["name"] == "again"
    assert [path.name for path in tmp_path.iterdir()] == ["k"]


def test_the_manifest_prepares_and_executes(tmp_path):
    spyrecode.write(tmp_path / "k", DESCRIPTION)
    manifest = json.loads((tmp_path / "k" / "manifest.json").read_text())
    assert [each["command"] for each in manifest["preparation"]] == ["Allocate", "InitTransfer", "InitTransfer"]
    assert [each["command"] for each in manifest["execution"]] == ["DataTransfer", "ComputeOnDevice"]


def test_host_steps_of_the_package_are_stored_by_name(tmp_path):
    step = {"type": "HostCompute", "function": spyrecode.verify}
    spyrecode.write(tmp_path / "k", {"name": "k", "arguments": [], "steps": [step]})
    assert spyrecode.read(tmp_path / "k")["steps"] == [step]
    with pytest.raises(ValueError, match="a function of torch_spyre, not json:loads"):
        spyrecode.write(
            tmp_path / "k",
            {"name": "k", "arguments": [], "steps": [{"type": "HostCompute", "function": json.loads}]},
        )


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("program_1.bin", lambda data: data[:-1] + b"x", "program_1.bin: the checksum is not that of the manifest"),
        ("program_1.bin", None, "No such file"),
        ("manifest.json", None, "No such file"),
        ("manifest.json", lambda data: data[:40], "Unterminated|Expecting"),
        ("manifest.json", lambda data: data.replace(b'"version": 1', b'"version": 0'), "manifest: version: must be 1"),
        ("manifest.json", lambda data: data.replace(b'"job_bin_ptr": 1', b'"job_bin_ptr": 9'), "execution: a job_bin"),
        ("manifest.json", lambda data: data.replace(b"H2D", b"H2H"), "manifest: execution: must compute"),
        ("manifest.json", lambda data: data.replace(b"buffer_0.bin", b"../../secret"), "manifest: blobs"),
    ],
)
def test_what_has_changed_is_refused(tmp_path, file, change, message):
    spyrecode.write(tmp_path, DESCRIPTION)
    path = tmp_path / file
    path.unlink() if change is None else path.write_bytes(change(path.read_bytes()))
    with pytest.raises(spyrecode.CorruptSpyreCode, match=message):
        spyrecode.read(tmp_path)
