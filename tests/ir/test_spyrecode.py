"""SpyreCode: a compiled kernel on disk is what was written, or is refused."""

import json
import os
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from torch_spyre import directories
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


def test_host_steps_are_stored_by_name_and_only_declared_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(spyrecode, "HOST_STEPS", {})
    spyrecode.host_step(spyrecode.verify)
    step = {"type": "HostCompute", "function": spyrecode.verify}
    spyrecode.write(tmp_path / "k", {"name": "k", "arguments": [], "steps": [step]})
    assert spyrecode.read(tmp_path / "k")["steps"] == [step]
    manifest = tmp_path / "k" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("spyrecode:verify", "spyrecode:write"))
    with pytest.raises(spyrecode.CorruptSpyreCode, match="host steps are functions that torch_spyre declares"):
        spyrecode.read(tmp_path / "k")
    with pytest.raises(ValueError, match="when torch_spyre declares it as one, not json:loads"):
        spyrecode.write(
            tmp_path / "k",
            {"name": "k", "arguments": [], "steps": [{"type": "HostCompute", "function": json.loads}]},
        )
    with pytest.raises(ValueError, match="a function of torch_spyre, not json:loads"):
        spyrecode.host_step(json.loads)


OUTSIDE = {"command": "InitTransfer", "file": "/etc/passwd", "size": 1 << 20, "dev_ptr": 0}


def broken(**changes) -> bytes:
    """A manifest with other fields."""
    return json.dumps(json.loads(spyrecode.pack(DESCRIPTION)["manifest.json"]) | changes).encode()


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
        (
            "manifest.json",
            lambda data: data.replace(b"buffer_0.bin", b"../../secret"),
            "must transfer files of the directory",
        ),
        ("manifest.json", lambda data: broken(execution=[], blobs={}, preparation=[OUTSIDE]), "files of the directory"),
        ("manifest.json", lambda data: b"[" * 100_000, "recursion"),
        ("manifest.json", lambda data: b"[]", "manifest: format"),
        ("manifest.json", lambda data: broken(blobs=["buffer_0.bin", "program_1.bin"]), "manifest: blobs"),
        ("manifest.json", lambda data: broken(arguments={}), "manifest: arguments"),
        ("manifest.json", lambda data: broken(arguments=[2**64]), "manifest: arguments"),
        ("manifest.json", lambda data: broken(preparation=[], blobs={}), "execution: a job_bin_ptr"),
        ("manifest.json", lambda data: broken(more={"steps": []}), "manifest: more"),
        ("manifest.json", lambda data: data.replace(b'"size": 2,', b'"size": 1,'), "buffer_0.bin has 2 bytes"),
        ("manifest.json", lambda data: data.replace(b'"size": 2,', b'"size": 2000000000,'), "must transfer at most"),
    ],
)
def test_what_has_changed_is_refused(tmp_path, file, change, message):
    spyrecode.write(tmp_path, DESCRIPTION)
    path = tmp_path / file
    path.unlink() if change is None else path.write_bytes(change(path.read_bytes()))
    with pytest.raises(spyrecode.CorruptSpyreCode, match=message):
        spyrecode.read(tmp_path)


@pytest.mark.parametrize("name", ["manifest.json", "program_1.bin"])
def test_only_regular_files_are_read(tmp_path, name):
    """A pipe would keep its reader waiting, a device has no end."""
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        shutil.rmtree(tmp_path / "k", ignore_errors=True)
        spyrecode.write(tmp_path / "k", DESCRIPTION)
        (tmp_path / "k" / name).unlink()
        make(tmp_path / "k" / name)
        with pytest.raises(spyrecode.CorruptSpyreCode, match=f"{name}|symbolic links"):
            spyrecode.read(tmp_path / "k")


def make_directory(path: Path, *files: str, content: str = "mine") -> None:
    path.mkdir()
    for name in files:
        (path / name).write_text(content)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: make_directory(path, "thesis.tex"), "it has thesis.tex, which is no part of one"),
        (lambda path: make_directory(path, "manifest.json"), "missing, damaged or something else's"),
        (lambda path: make_directory(path, "manifest.json", content='{"format": "app"}'), "something else's"),
        (lambda path: make_directory(path, "program_1.bin"), "missing, damaged"),
        (lambda path: (path / "src").mkdir(parents=True), "it has src"),
        (lambda path: path.write_text("mine"), "it is no directory"),
        (lambda path: path.symlink_to(path.parent), "it is no directory"),
        (lambda path: path.symlink_to(path.parent / "nowhere"), "it is no directory"),
        (lambda path: (spyrecode.write(path, DESCRIPTION), (path / "notes").write_text("mine")), "it has notes"),
    ],
)
def test_what_is_no_spyrecode_is_not_replaced(tmp_path, make, said):
    path = tmp_path / "here"
    make(path)
    before = sorted((str(each), each.lstat().st_size, each.lstat().st_ino) for each in tmp_path.rglob("*"))
    with pytest.raises(FileExistsError, match=said):
        spyrecode.write(path, DESCRIPTION)
    assert sorted((str(each), each.lstat().st_size, each.lstat().st_ino) for each in tmp_path.rglob("*")) == before


def test_another_users_directory_is_not_replaced(tmp_path, monkeypatch):
    spyrecode.write(tmp_path / "k", DESCRIPTION)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(FileExistsError, match="belongs to another user"):
        spyrecode.write(tmp_path / "k", DESCRIPTION)


def test_who_reads_meanwhile_sees_the_old_directory_or_the_new(tmp_path):
    path = tmp_path / "k"
    spyrecode.write(path, DESCRIPTION | {"name": "0"})
    done = threading.Event()
    seen = []

    def watch():
        while not done.is_set():
            seen.append(path.exists())

    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        for turn in range(100):
            spyrecode.write(path, DESCRIPTION | {"name": str(turn)})
        done.set()
        watching.result()
    assert all(seen) and len(seen) > 10
    assert [each.name for each in tmp_path.iterdir()] == ["k"]


def test_replaced_where_names_cannot_change_places_in_one_step(tmp_path, monkeypatch):
    monkeypatch.setattr(directories.ctypes, "CDLL", lambda name: None)
    for turn in "01":
        spyrecode.write(tmp_path / "k", DESCRIPTION | {"name": turn})
    assert spyrecode.read(tmp_path / "k")["name"] == "1"
    assert [each.name for each in tmp_path.iterdir()] == ["k"]
