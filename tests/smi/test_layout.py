"""Files of counters are data: what is wrong with one is said, and the others are shown."""

import contextlib
import os
import shutil
import subprocess
import sys
import time

import pytest

from torch_spyre import smi
from torch_spyre.smi import layout, processes

CODE = """
import sys, torch
torch.ones(64, device="spyre").cpu()
print("there", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The file of a real process, which lives on."""
    directory = tmp_path_factory.mktemp("written")
    program = subprocess.Popen(
        [sys.executable, "-c", CODE],
        env={**os.environ, "SPYRE_SMI": str(directory)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    program.stdout.readline()
    (file,) = directory.iterdir()
    yield file
    program.communicate()


def word(data: bytes, index: int, value: int) -> bytes:
    return data[: 8 * index] + value.to_bytes(8, "little") + data[8 * index + 8 :]


CARD = 8  # where the first card begins, in words

DAMAGE = {
    "empty": (lambda data: b"", "0 bytes"),
    "short": (lambda data: data[:-1], "bytes instead of"),
    "long": (lambda data: data + b"\0" * 2**20, "more than"),
    "other magic": (lambda data: word(data, 0, 7), "does not begin as one"),
    "other version": (lambda data: word(data, 1, 2), "version 2"),
    "other size": (lambda data: word(data, 2, 2), "version 1"),
    "other process": (lambda data: word(data, 3, 1), "another process"),
    "no mode": (lambda data: word(data, 6, 3), "mode 3"),
    "no cards": (lambda data: word(data, 7, 0), "0 cards"),
    "many cards": (lambda data: word(data, 7, 2**63), "cards"),
    "no such card": (lambda data: word(data, CARD, 8), "larger than any card's"),
    "huge memory": (lambda data: word(data, CARD + 8, 2**63), "larger than any card's"),
    "huge time": (lambda data: word(data, CARD + 17, 2**64 - 1), "larger than any card's"),
    "works for years": (lambda data: word(data, CARD + 16, 2**62), "longer than the machine"),
    "works since the future": (lambda data: word(data, CARD + 16, 2**63), "longer than the machine"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_files_are_skipped_with_a_sentence(damage, written, counters):
    change, said = DAMAGE[damage]
    (counters / written.name).write_bytes(change(written.read_bytes()))
    found = smi.sample()
    assert found.processes == ()
    assert len(found.notes) == 1 and written.name in found.notes[0] and said in found.notes[0]


def test_a_whole_file_is_read(written, counters):
    shutil.copy(written, counters)
    (process,) = smi.sample().processes
    assert process.counters.cards[0].peak == 256


def test_any_byte_may_be_anything(written):
    data, now = written.read_bytes(), time.monotonic_ns()
    for at in range(0, 64 + layout.CARD_BYTES, 5):
        for value in (0, 0x7F, 0xFF):
            with contextlib.suppress(layout.Damaged):
                layout.parse(data[:at] + bytes([value]) + data[at + 1 :], now)


def test_a_file_that_is_not_filled_yet_is_not_shown(written, counters):
    (counters / written.name).write_bytes(word(written.read_bytes(), 0, 0))
    found = smi.sample()
    assert (found.processes, found.notes) == ((), ())


def test_files_of_other_containers_are_left_alone(written, counters):
    pid, ticks, namespace = written.name.split("-")
    other = counters / f"{pid}-{ticks}-{int(namespace) + 1}"
    shutil.copy(written, other)
    assert smi.sample().processes == () and other.exists()


def test_a_process_that_has_the_number_of_another_is_not_taken_for_it(written, counters):
    pid, ticks, namespace = written.name.split("-")
    other = counters / f"{pid}-{int(ticks) - 1}-{namespace}"
    shutil.copy(written, other)
    assert smi.sample().processes == () and not other.exists()


def test_strange_files_are_named(written, counters):
    (counters / "notes\x1b[31m.txt").write_text("")
    os.mkfifo(counters / written.name)
    found = smi.sample()
    assert found.processes == ()
    assert any("notes [31m.txt is no file of counters" in note for note in found.notes)
    assert any("is not a regular file" in note for note in found.notes)


def test_more_files_than_can_be_are_not_all_read(counters):
    for number in range(processes.MOST_FILES + 1):
        (counters / f"x{number}").touch()
    notes = smi.sample().notes
    assert len(notes) == processes.MOST_FILES + 1 and "1025 files" in notes[0]


def test_a_directory_that_others_can_write_is_refused(counters):
    counters.chmod(0o777)
    with pytest.raises(PermissionError, match="others can write to"):
        smi.sample()


def test_a_link_in_its_place_is_refused(tmp_path, monkeypatch, counters):
    (tmp_path / "link").symlink_to(counters)
    monkeypatch.setenv("SPYRE_SMI", str(tmp_path / "link"))
    with pytest.raises(PermissionError, match="symbolic link"):
        smi.sample()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_a_directory_of_another_user_is_refused(counters):
    os.chown(counters, 12345, -1)
    with pytest.raises(PermissionError, match="another user"):
        smi.sample()


def test_without_a_directory_there_are_no_processes(tmp_path, monkeypatch):
    monkeypatch.setenv("SPYRE_SMI", str(tmp_path / "nowhere"))
    assert smi.sample().processes == ()
