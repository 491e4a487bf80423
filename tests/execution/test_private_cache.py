"""Whose directories the cache uses, and what it leaves alone: everything that is not its own."""

import os
import shutil
import stat
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from torch_spyre._inductor import config
from torch_spyre.caching import kernel_cache, location, store

DESCRIPTION = {"name": "k", "arguments": [], "allocate": [], "steps": [], "outputs": [], "filler": "x" * 5000}


@pytest.fixture(autouse=True)
def base(tmp_path, monkeypatch) -> Path:
    """What SPYRE_KERNEL_CACHE names; the cache is a folder in it."""
    monkeypatch.setenv("SPYRE_KERNEL_CACHE", str(tmp_path / "base"))
    monkeypatch.setattr(kernel_cache.KERNELS, "counts", Counter())
    monkeypatch.setattr(kernel_cache.KERNELS, "bytes_used", {})
    monkeypatch.setattr(store, "_warned", set())
    return tmp_path / "base"


@pytest.fixture
def precious(tmp_path) -> Path:
    """A directory of the user's, in which nothing may change."""
    path = tmp_path / "precious"
    for name in ("ab/cd", "entry-0123456789abcdef", "aside/left", "ff/" + "f" * 64, "plans"):
        (path / name).mkdir(parents=True)
        (path / name / "file").write_text("mine")
    path.chmod(0o755)
    return path


def listing(path: Path) -> list[tuple[str, int]]:
    return sorted((str(each), each.lstat().st_mode) for each in [path, *path.rglob("*")])


def build(name: str = "kernel") -> dict:
    return kernel_cache.find_or_build(name, (), lambda: DESCRIPTION | {"name": name}, lambda found: found)


def hits_after(*names: str) -> int:
    """How many kernels are found again."""
    for name in names * 2:
        assert build(name)["name"] == name
    return kernel_cache.stats()["hits"]


def said(*names: str) -> str:
    """The one warning of several kernels, none of which is found again."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert hits_after(*names or ("a", "b", "c")) == 0
    assert len(seen) == 1, [str(each.message) for each in seen]
    assert "compile anew" in str(seen[0].message)
    return str(seen[0].message)


def test_directories_are_the_callers_alone(base):
    before = os.umask(0)
    try:
        assert hits_after("a", "b") == 2
    finally:
        os.umask(before)
    for path in [base, *base.rglob("*")]:
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


@pytest.mark.parametrize("place", ["base", "base/spyre", "base/spyre/aside"])
def test_links_are_not_followed(tmp_path, precious, place):
    link = tmp_path / place
    link.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    link.symlink_to(precious)
    before = listing(precious)
    assert f"{link.name} is a symbolic link" in said()
    assert listing(precious) == before


def test_shelves_that_are_links_are_not_followed(base, precious):
    build()
    (shelf,) = (path for path in (base / "spyre").iterdir() if path.name != "aside")
    shutil.rmtree(shelf)
    shelf.symlink_to(precious)
    before = listing(precious)
    assert "is a symbolic link" in said("kernel")
    assert listing(precious) == before


def test_a_directory_that_becomes_a_link_is_not_followed(base, precious):
    assert hits_after("a") == 1
    kernel_cache.KERNELS.counts.clear()
    shutil.move(base / "spyre", base / "was")
    (base / "spyre").symlink_to(precious)
    before = listing(precious)
    assert "is a symbolic link" in said()
    assert listing(precious) == before


def test_a_directory_of_the_users_gets_a_folder_and_is_left_alone(monkeypatch, precious):
    """As a home directory is: nothing in it is swept, evicted or closed to others."""
    monkeypatch.setenv("SPYRE_KERNEL_CACHE", str(precious))
    before = listing(precious)
    with config.patch(kernel_cache_bytes=12_000):
        for name in "abcdef":
            build(name)
    assert kernel_cache.stats()["evicted"] > 0
    shutil.rmtree(precious / "spyre")
    assert listing(precious) == before


def test_only_what_has_its_own_naming_is_swept_and_evicted(base, precious):
    shutil.copytree(precious, base / "spyre", symlinks=True)
    foreign = base / "spyre" / "aside" / "entry-of-mine"
    foreign.mkdir()
    (base / "spyre" / "aside" / "entry-aaaaaaaaaaaaaaaa").symlink_to(precious)
    before = listing(precious)
    with config.patch(kernel_cache_bytes=12_000):
        for name in "abcdef":
            build(name)
    assert listing(precious) == before
    for name in ("ab/cd/file", "aside/left/file", "entry-0123456789abcdef/file"):
        assert (base / "spyre" / name).read_text() == "mine"
    assert foreign.is_dir()


def test_a_folder_that_others_could_read_is_closed(base):
    (base / "spyre").mkdir(parents=True)
    (base / "spyre").chmod(0o755)
    assert hits_after("a") == 1
    assert stat.S_IMODE((base / "spyre").stat().st_mode) == 0o700


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o1777])
def test_a_folder_that_others_can_write_is_not_used(base, mode):
    (base / "spyre").mkdir(parents=True)
    (base / "spyre").chmod(mode)
    assert "others can write to" in said()
    assert stat.S_IMODE((base / "spyre").stat().st_mode) == mode
    assert list((base / "spyre").iterdir()) == []


def test_a_folder_where_everybody_can_rename_is_not_used(base):
    base.mkdir()
    base.chmod(0o777)
    assert "everybody can rename what is in" in said()
    assert list(base.iterdir()) == []
    base.chmod(0o1777)  # as /tmp is
    store._warned.clear()
    kernel_cache.KERNELS.counts.clear()
    assert hits_after("a") == 1


@pytest.mark.parametrize("place", ["base", "base/spyre", "base/spyre/aside"])
def test_a_directory_of_another_user_is_not_used(tmp_path, base, monkeypatch, place):
    (base / "spyre" / "aside").mkdir(parents=True)
    for path in (base, base / "spyre", base / "spyre" / "aside"):
        path.chmod(0o700)
    owner, fstat = (tmp_path / place).stat(), os.fstat

    def of_another(opened: int) -> os.stat_result:
        found = fstat(opened)
        if found.st_ino != owner.st_ino:
            return found
        return os.stat_result([*found[:4], 4711, *found[5:]])

    monkeypatch.setattr(os, "fstat", of_another)
    assert "belongs to another user (uid 4711)" in said()
    assert [path for path in base.rglob("*") if path.is_file()] == []


def test_a_file_in_the_place_of_the_cache(base):
    base.write_text("mine")
    assert "base is not a directory" in said()
    assert base.read_text() == "mine"


def test_entries_are_read_where_nothing_can_be_written(base, monkeypatch):
    build()

    def refuse(*_, **__):
        raise OSError(30, "Read-only file system")

    for name in ("mkdir", "rename", "utime", "unlink", "fchmod"):
        monkeypatch.setattr(os, name, refuse)
    assert hits_after("kernel") == 2


def test_files_are_never_written_over(base, tmp_path):
    """A hard link to a file of the user's, in the place of a damaged one."""
    build()
    mine = tmp_path / "mine"
    mine.write_text("mine")
    (manifest,) = base.rglob("manifest.json")
    manifest.unlink()
    os.link(mine, manifest)
    build()
    assert mine.read_text() == "mine"
    assert kernel_cache.stats()["rebuilt"] == 1


def test_a_user_without_a_name(monkeypatch):
    monkeypatch.delenv("SPYRE_KERNEL_CACHE")
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)

    def nobody():
        raise KeyError("getpwuid(): uid not found: 4711")

    monkeypatch.setattr("getpass.getuser", nobody)
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    assert location.directory() == Path(default_cache_dir(), "spyre")
    assert location.directory().parent.name == f"torchinductor_uid_{os.getuid()}"


def test_a_temporary_directory_that_is_a_link_is_followed(monkeypatch, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "tmp").symlink_to(tmp_path / "real")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    for name, value in (("SPYRE_KERNEL_CACHE", ""), ("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "tmp" / "inductor"))):
        monkeypatch.setenv(name, value)
    assert location.directory() == tmp_path / "real" / "inductor" / "spyre"
    assert hits_after("a") == 1


OPS = """
import os, torch, warnings
{before}
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    x = torch.ones(4, 64, dtype=torch.float16, device="spyre")
    print((x + x).sum().item(), (x * 3).sum().item(), [str(each.message)[:31] for each in seen])
"""
OFF = "512.0 768.0 ['compiled kernels are not kept i']\n"


def test_a_full_disk(python, tmp_path):
    """No file can have a byte: there is no temporary directory either."""
    full = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))"
    done = python(OPS.format(before=full), SPYRE_KERNEL_CACHE=str(tmp_path / "full"))
    assert done.stdout == OFF, done.stderr
    done = python(OPS.format(before=full), SPYRE_KERNEL_CACHE="", TORCHINDUCTOR_CACHE_DIR="")
    assert done.stdout == OFF, done.stderr


def test_a_current_directory_that_is_gone(monkeypatch, tmp_path):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setenv("SPYRE_KERNEL_CACHE", "relative")
    assert "No such file or directory" in said()


ANOTHER_USER = """
(torch.ones(4, 64, device="spyre") - 1).cpu()  # imports what another user may not read
os.setgroups([]), os.setgid(54321), os.setuid(54321)
for name in ("SPYRE_KERNEL_CACHE", "TORCHINDUCTOR_CACHE_DIR", "HOME", "USER", "LOGNAME", "LNAME", "USERNAME"):
    os.environ.pop(name, None)
"""


@pytest.fixture
def shared_directory() -> Iterator[Path]:
    """As /tmp is, and in it: pytest closes its own directories to other users whenever another run of it begins."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        Path(name).chmod(0o1777)
        yield Path(name)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize("mode", [0o700, 0o1777])
def test_as_a_user_without_name_and_home_whose_directory_is_anothers(python, shared_directory, mode):
    anothers = shared_directory / "torchinductor_uid_54321"
    (anothers / "spyre").mkdir(parents=True)
    (anothers / "spyre").chmod(0o777)
    anothers.chmod(mode)
    os.chown(anothers, 4711, 4711)
    done = python(OPS.format(before=ANOTHER_USER), SPYRE_KERNEL_CACHE="0", TMPDIR=str(shared_directory))
    assert done.stdout == OFF, done.stderr
    assert list((anothers / "spyre").iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_as_a_user_without_name_and_home(python, shared_directory):
    done = python(OPS.format(before=ANOTHER_USER), SPYRE_KERNEL_CACHE="0", TMPDIR=str(shared_directory))
    assert done.stdout == "512.0 768.0 []\n", done.stderr
    kept = shared_directory / "torchinductor_uid_54321" / "spyre"
    assert kept.stat().st_uid == 54321 and len(list(kept.rglob("manifest.json"))) >= 2
