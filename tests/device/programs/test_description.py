"""Another card is a file: what it says acts, and what it gets wrong is said."""

import pytest

from torch_spyre.card import description

REPORT = """
    import torch
    from torch_spyre import timing
    properties = torch.spyre.get_device_properties()
    x, w = (torch.empty(512, 512, dtype=torch.float16, device="spyre") for _ in range(2))
    compiled = torch.compile(lambda x, w: torch.softmax(x @ w, -1) @ w)
    compiled(x, w)
    with timing.record() as recording:
        compiled(x, w)
    rows = recording.rows()
    print(properties.multi_processor_count, properties.lx_bytes, properties.total_memory >> 30,
          max(max(row.slices) for row in rows), sum(row.lx_bytes for row in rows), recording.milliseconds)
"""


def card(python, path, text: str) -> tuple[float, ...]:
    """Cores, LX, GiB of memory; cores at work, bytes in LX and milliseconds of a small program."""
    path = path / "card.toml"
    path.write_text(text)
    done = python(REPORT, SPYRE_CARD="timing", SPYRE_KERNEL_CACHE="0", SPYRE_HARDWARE=str(path))
    assert done.returncode == 0, done.stderr
    return tuple(map(float, done.stdout.split()))


def test_a_description_says_what_differs(python, tmp_path):
    """Half the cores, next to no LX, half the bandwidth, an eighth of the memory: all of it acts."""
    usual = card(python, tmp_path, 'base = "spyre"\n')
    assert usual[:3] == (32, 2 << 20, 112)
    text = "cores = 16\nlx_bytes = 98304\ndram_gb_per_s = 76.75\nsegment_bytes = 2147483648\n"
    other = card(python, tmp_path, f'base = "spyre"\n{text}')
    assert other[:3] == (16, 98304, 14)
    assert other[3] <= 16 < usual[3] and other[4] < usual[4] and other[5] > usual[5]


@pytest.mark.slow
def test_more_cores_than_the_real_card(python, tmp_path):
    assert card(python, tmp_path, 'base = "spyre"\ncores = 64\n')[3] == 64


def test_a_base_may_be_another_file(tmp_path, monkeypatch):
    (tmp_path / "slow.toml").write_text('base = "spyre"\ndram_gb_per_s = 50\n')
    (tmp_path / "slow_and_small.toml").write_text('base = "slow.toml"\ncores = 4\n')
    monkeypatch.setenv("SPYRE_HARDWARE", str(tmp_path / "slow_and_small.toml"))
    found = description.constants()
    assert (found["dram_gb_per_s"], found["cores"], found["pt_rows"]) == (50, 4, 64)
    with open(description.file_for_card()) as written:
        assert "cores = 4\n" in written.read()


def test_a_base_without_proc(tmp_path, monkeypatch):
    path = tmp_path / "card.toml"
    path.write_text('base = "spyre"\ncores = 5\n')
    monkeypatch.setenv("SPYRE_HARDWARE", str(path))
    monkeypatch.setattr("os.path.exists", lambda path: False)
    written = description.file_for_card()
    assert not written.startswith("/proc")
    with open(written) as file:
        assert "cores = 5\n" in file.read()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('base = "spyre"\nlx_byte = 4194304\n', "has lx_byte, which is no constant of a card"),
        ("cores = 8\n", 'lacks corelets; base = "spyre" would bring the rest'),
        ('base = "spyre"\ncores = "many"\n', "cores = many is no number of a card"),
        ('base = "spyre"\ncores = -1\n', "cores = -1 is no number of a card"),
        ('base = "spyre"\nstick_bytes = 64\n', "sticks have 128 bytes on every card"),
        ('base = "card.toml"\n', "is its own base"),
        ('base = "nowhere.toml"\n', "cannot read the hardware description .*nowhere.toml"),
        ("cores =\n", "cannot read the hardware description .*card.toml: Invalid value"),
    ],
)
def test_what_is_no_description(tmp_path, monkeypatch, text, said):
    path = tmp_path / "card.toml"
    path.write_text(text)
    monkeypatch.setenv("SPYRE_HARDWARE", str(path))
    with pytest.raises(ValueError, match=said):
        description.constants()
