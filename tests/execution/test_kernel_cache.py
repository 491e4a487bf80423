"""Compiled kernels on disk: found again, checked, bounded, shared."""

import hashlib
import os
import shutil
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from torch_spyre import _C, directories
from torch_spyre._inductor import config
from torch_spyre.caching import kernel_cache, location, store
from torch_spyre.ir.signature import Argument

SIGNATURE = (Argument(_C.SpyreTensorLayout([4, 64], torch.float16), 0, 0),)


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("SPYRE_KERNEL_CACHE", str(tmp_path / "kernels"))
    monkeypatch.setattr(kernel_cache.KERNELS, "counts", Counter())
    monkeypatch.setattr(kernel_cache.KERNELS, "bytes_used", {})
    monkeypatch.setattr(store, "_warned", set())
    return tmp_path / "kernels" / "spyre"


def description(name: str = "add", filler: int = 0) -> dict:
    return {"name": name, "arguments": [512], "allocate": [], "steps": [], "outputs": [], "filler": "x" * filler}


def unchanged(description: dict) -> dict:
    """Prepares nothing."""
    return description


def find(text: str = "kernel", built: dict | None = None) -> dict:
    return kernel_cache.find_or_build(text, SIGNATURE, lambda: description() if built is None else built, unchanged)


def never() -> dict:
    raise AssertionError("found on disk, not built")


def counts() -> tuple[int, ...]:
    return tuple(kernel_cache.stats().values())


def files(directory: Path) -> list[Path]:
    return sorted(file for file in directory.rglob("*") if file.is_file())


def test_built_once_then_found():
    assert find() == description()
    assert kernel_cache.find_or_build("kernel", SIGNATURE, never, unchanged) == description()
    assert kernel_cache.stats() == {"hits": 1, "misses": 1, "rebuilt": 0, "evicted": 0}


def test_keys_cover_text_signature_cores_hardware_and_settings(monkeypatch, tmp_path):
    layout = SIGNATURE[0].layout
    keys = [
        kernel_cache.key_of("kernel", SIGNATURE),
        kernel_cache.key_of("another", SIGNATURE),
        kernel_cache.key_of("kernel", (Argument(layout, 64, 0),)),
        kernel_cache.key_of("kernel", (Argument(layout, 0, 0), Argument(layout, 0, 0))),
        kernel_cache.key_of("kernel", (Argument(layout, 0, 0), Argument(layout, 0, 1))),
    ]
    with config.patch(sencores=3):
        keys.append(kernel_cache.key_of("kernel", SIGNATURE))
    with monkeypatch.context() as patch:
        patch.setattr(_C, "card_cores", lambda index: 7)
        keys.append(kernel_cache.key_of("kernel", SIGNATURE))
    hardware = tmp_path / "card.toml"
    hardware.write_text('base = "spyre"\ncores = 8\n')
    monkeypatch.setenv("SPYRE_HARDWARE", str(hardware))
    keys.append(kernel_cache.key_of("kernel", SIGNATURE))
    assert len(set(keys)) == len(keys)


def test_the_size_limit_is_no_part_of_keys():
    key = kernel_cache.key_of("kernel", SIGNATURE)
    with config.patch(kernel_cache_bytes=1):
        assert kernel_cache.key_of("kernel", SIGNATURE) == key


@pytest.mark.parametrize("damage", ["flip", "truncate", "empty", "remove", "garbage"])
def test_damaged_entries_are_built_again(directory, damage):
    find()
    for position in range(len(files(directory))):
        file = files(directory)[position]
        content = bytearray(file.read_bytes())
        if damage == "flip":
            content[len(content) // 2] ^= 1
        elif damage == "truncate":
            del content[len(content) // 2 :]
        elif damage == "garbage":
            content = os.urandom(100)
        else:
            content.clear()
        file.unlink() if damage == "remove" else file.write_bytes(content)
        before = kernel_cache.stats()["rebuilt"]
        assert find() == description()
        assert kernel_cache.stats()["rebuilt"] == before + 1
        assert kernel_cache.find_or_build("kernel", SIGNATURE, never, unchanged) == description()


def test_off(monkeypatch, directory):
    monkeypatch.setenv("SPYRE_KERNEL_CACHE", "0")
    find()
    find()
    assert counts() == (0, 0, 0, 0)
    assert not directory.exists()


def test_beside_inductors_cache_by_default(monkeypatch, tmp_path):
    monkeypatch.delenv("SPYRE_KERNEL_CACHE")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    assert location.directory() == tmp_path / "spyre"
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    assert location.directory() == Path(default_cache_dir(), "spyre")


def test_the_least_recently_used_goes_first(directory):
    with config.patch(kernel_cache_bytes=35_000):
        for name in "abc":
            find(name, description(name, filler=10_000))
        for entry in directory.glob("??/*"):
            os.utime(entry, (0, 0))
        find("a")  # now the latest
        find("d", description("d", filler=10_000))
        assert kernel_cache.stats()["evicted"] == 1
        assert kernel_cache.find_or_build("a", SIGNATURE, never, unchanged)["name"] == "a"
        assert kernel_cache.find_or_build("d", SIGNATURE, never, unchanged)["name"] == "d"
        assert sum(file.stat().st_size for file in files(directory)) <= 35_000


def test_nothing_is_left_aside(directory):
    for name in "abc":
        find(name)
    assert list((directory / "aside").iterdir()) == []


def test_what_a_killed_process_left_aside_is_swept_and_what_is_being_written_is_not(directory):
    directory.mkdir(parents=True, mode=0o700)
    left = directory / "aside" / "entry-0123456789abcdef"
    left.mkdir(parents=True)
    (left / "half").write_text("an entry")
    with directories.private(directory) as folder, store.aside(folder) as writing:
        find("a")
        (kept,) = (directory / "aside").iterdir()
        assert os.path.sameopenfile(writing, os.open(kept, os.O_RDONLY))
    assert list((directory / "aside").iterdir()) == []


def test_threads_write_evict_and_read_at_once(directory):
    """Few entries, more than fit: whatever happens between threads, everyone gets the right description."""
    with config.patch(kernel_cache_bytes=20_000):

        def work(number: int) -> None:
            for step in range(40):
                name = f"k{(number * 7 + step) % 6}"
                assert find(name, description(name, filler=5_000))["name"] == name

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(work, range(4)))


def test_processes_share_a_cache(python, directory):
    code = """
        from torch_spyre._inductor import config
        from torch_spyre.caching import kernel_cache
        config.kernel_cache_bytes = 20_000
        for step in range(60):
            name = f"k{step * 7 % 6}"
            built = {"name": name, "arguments": [], "allocate": [], "steps": [], "outputs": [], "filler": "x" * 5000}
            assert kernel_cache.find_or_build(name, (), lambda: built, lambda found: found) == built
        print("done")
    """
    results = []
    threads = [threading.Thread(target=lambda: results.append(python(code))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [result.stdout for result in results] == ["done\n"] * 2, results[0].stderr + results[1].stderr


def test_an_entry_that_vanishes_while_it_is_read_is_built_again(monkeypatch, directory):
    find()
    read = directories.read_file

    def vanish(*arguments):
        shutil.rmtree(directory)
        monkeypatch.setattr(directories, "read_file", read)
        return read(*arguments)

    monkeypatch.setattr(directories, "read_file", vanish)
    assert find() == description()
    assert kernel_cache.stats()["rebuilt"] == 1


def test_an_entry_whose_checksums_fit_and_that_cannot_be_prepared_is_built_again(directory):
    def prepare(found: dict) -> str:
        return "prepared " + found["outputs"]["name"]

    good = description() | {"outputs": {"name": "x"}}
    kernel_cache.find_or_build("kernel", SIGNATURE, lambda: good, prepare)
    (manifest,) = directory.rglob("manifest.json")
    manifest.write_bytes(manifest.read_bytes().replace(b'"name": "x"', b'"nobody": 1'))
    (manifest.parent / store.CHECKSUM).write_bytes(hashlib.sha256(manifest.read_bytes()).digest())
    assert kernel_cache.find_or_build("kernel", SIGNATURE, lambda: good, prepare) == "prepared x"
    assert kernel_cache.stats()["rebuilt"] == 1
    assert kernel_cache.find_or_build("kernel", SIGNATURE, never, prepare) == "prepared x"


@pytest.mark.parametrize("content", [b"[" * 100_000, b"[]", b"1e999", b'"x"', b"\xff\xfe", b""], ids=repr)
def test_manifests_that_are_something_else_are_built_again(directory, content):
    find()
    (manifest,) = directory.rglob("manifest.json")
    manifest.write_bytes(content)
    (manifest.parent / store.CHECKSUM).write_bytes(hashlib.sha256(content).digest())
    assert find() == description()
    assert kernel_cache.find_or_build("kernel", SIGNATURE, never, unchanged) == description()


@pytest.mark.parametrize("instead", ["file", "link", "pipe", "pipe of a file"])
def test_an_entry_that_is_none_is_built_again(directory, tmp_path, instead):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "manifest.json").write_text("mine")
    find()
    (manifest,) = directory.rglob("manifest.json")
    if instead == "pipe of a file":
        manifest.unlink()
        os.mkfifo(manifest)
    else:
        entry = manifest.parent
        shutil.rmtree(entry)
        {"file": entry.touch, "link": lambda: entry.symlink_to(precious), "pipe": lambda: os.mkfifo(entry)}[instead]()
    assert find() == description()
    assert kernel_cache.find_or_build("kernel", SIGNATURE, never, unchanged) == description()
    assert (precious / "manifest.json").read_text() == "mine"


def test_a_program_of_another_kind_in_an_entry_is_compiled_again(directory, python):
    """Through a real op: the entry's checksums fit, its outputs are nonsense."""
    code = """
        import torch
        from torch_spyre.caching import kernel_cache
        x = torch.ones(4, 64, dtype=torch.float16, device="spyre")
        print((x + x).cpu().sum().item(), kernel_cache.stats()["rebuilt"])
    """
    assert python(code).stdout == "512.0 0\n"
    for manifest in directory.rglob("manifest.json"):
        manifest.write_bytes(manifest.read_bytes().replace(b'"float16"', b'"Tensor"'))
        (manifest.parent / store.CHECKSUM).write_bytes(hashlib.sha256(manifest.read_bytes()).digest())
    done = python(code)
    assert done.stdout == "512.0 1\n", done.stderr
