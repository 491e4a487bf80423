"""``spyre smi`` as it is typed."""

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from datetime import datetime

import pytest

from torch_spyre import cli
from torch_spyre.smi import MetricFile, columns, prometheus
from torch_spyre.smi.layout import Card, Counters, Stream, Work
from torch_spyre.smi.processes import Process
from torch_spyre.smi.sampling import Sample, rates, sample

PUBLIC = ["ID", "Date", "Time", "hostcpu", "hostmem", "pwr", "gtemp", "busy"]
PUBLIC += ["rdmem", "wrmem", "rxpci", "txpci", "rdrdma", "wrrdma"]

# A second of work: half of it with the matrix units, all of it with device memory, at 22 GiB/s.
SECOND = Work(
    working_ns=500_000_000,
    busy_ps=10**12,
    matrix_ps=10**12 // 2,
    memory_ps=10**12,
    kernels=7,
    bytes_read=22 * 2**30,
    bytes_written=2**30,
)


@pytest.fixture
def one_process(monkeypatch, counters):
    """A process that has done SECOND between any two samples."""
    done = Work()

    def next_sample() -> Sample:
        nonlocal done
        card = Card(0, 32, 112 * 2**30, 2**30, 2**31, 3 * 2**30, done, (Stream(0, 9, 2, done.busy_ps),))
        process = Process(42, "ann", 'python "train".py', Counters(42, 1, 1, "run", (card,)))
        at = done.kernels // 7
        now = Sample(datetime(2026, 11, 18, 10, 0, at), at * 10**9, (50 * at, 100 * at), 0.25, (process,))
        done += SECOND
        return now

    for module in ("command", "prometheus"):
        monkeypatch.setattr(f"torch_spyre.smi.{module}.sample", next_sample)
    return next_sample


def smi(*arguments: str) -> int:
    return cli.main(["smi", *arguments])


def test_without_processes_that_is_said(counters, capsys):
    assert smi() == 0
    assert "No process of this user has a card." in capsys.readouterr().out


def test_one_look_shows_cards_and_processes(one_process, capsys):
    assert smi() == 0
    text = capsys.readouterr().out
    assert re.search(r"^ *0 +50 %  \[#\.{15}\] +1\.0 GiB of 112\.0 GiB +48\.0 W +70 C +1 +2$", text, re.MULTILINE)
    assert re.search(r"^ *0 +50 % +0 % +100 % +0 % +0 % +22\.0 +1\.0$", text, re.MULTILINE)
    assert re.search(r'^ *0 +42  ann +run +50 % +1\.0 GiB +2\.0 GiB +1 s +7  python "train"\.py$', text, re.MULTILINE)


def test_lines_have_the_public_columns(one_process, capsys):
    assert smi("-d", "0.01", "-c", "2") == 0
    names, units, *lines = (line.split() for line in capsys.readouterr().out.splitlines())
    assert names == ["#", *PUBLIC]
    assert units[:3] == ["#", "%", "%"]
    assert len(lines) == 2 and lines[0][0] == "0"
    assert lines[0][5:] == ["48.0", "69.9", "50.0", "22.00", "1.00", "0.00", "0.00", "-", "-"]


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        ("M", ["rsvmem"]),
        ("U", ["actmem", "peakmem"]),
        ("P", ["pt_active"]),
        ("M,P", ["rsvmem", "pt_active"]),
        ("pu", ["actmem", "peakmem", "pt_active"]),
        ("DR", PUBLIC[3:]),
        ("A", [column.name for column in columns.COLUMNS]),
    ],
)
def test_groups_choose_columns(groups, expected):
    assert [column.name for column in columns.of_groups(groups)] == expected


@pytest.mark.parametrize("groups", ["Q", "", ","])
def test_unknown_groups_are_named(groups):
    with pytest.raises(ValueError, match="there is no group of columns"):
        columns.of_groups(groups)


def test_csv_goes_through_a_metric_file(one_process, tmp_path):
    path = tmp_path / "metrics.csv"
    assert smi("-s", "csv", "-g", "A", "-f", str(path), "-d", "0.01", "-c", "3") == 0
    file = MetricFile(path)
    samples = file.read_metrics()
    assert [sample["Date"].second for sample in samples] == [1, 2, 3]
    assert samples[0]["ID"] == 0 and samples[0]["rdmem"] == 22.0 and samples[0]["rdrdma"] is None
    assert samples[0]["actmem"] == 1024.0 and samples[0]["queued"] == 2 and samples[0]["pt_active"] == 50.0

    file.set_filters(columns=["pwr"], start=datetime(2026, 11, 18, 10, 0, 2))
    assert [sample["pwr"] for sample in file.read_metrics()] == [48.0, 48.0]
    assert set(file.read_metrics()[0]) == {"ID", "Date", "pwr"}
    file.set_filters(ids=[3])
    assert file.read_metrics() == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "does not begin with ID,Date,Time"),
        ("a,b\n", "does not begin with ID,Date,Time"),
        ("ID,Date,Time,pwr\n0,2026-11-18,10:00:00\n", "line 2"),
        ("ID,Date,Time,pwr\n0,2026-11-18,10:00:00,much\n", "line 2: .*much"),
        ("ID,Date,Time,pwr\n0,today,10:00:00,1\n", "line 2"),
        ("ID,Date,Time,pwr\n" + "9" * 100_000, "line 2"),
    ],
)
def test_other_files_are_refused_by_line(text, said, tmp_path):
    path = tmp_path / "other.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match=said):
        MetricFile(path).read_metrics()


def test_filters_name_columns_that_are_none(tmp_path):
    with pytest.raises(ValueError, match="there is no column watts"):
        MetricFile(tmp_path / "any").set_filters(columns=["watts"])


def test_json_has_one_object_per_sample(one_process, capsys):
    assert smi("--json", "-d", "0.01", "-c", "2") == 0
    first, second = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert first["cards"][0]["active"]["matrix"] == 0.5 and first["cards"][0]["power_w"] == 48.0
    assert first["processes"][0]["pid"] == 42 and first["processes"][0]["total"]["kernels"] == 7
    assert second["processes"][0]["streams"] == [{"id": 0, "submitted": 9, "queued": 2, "modelled_s": 2.0}]


def test_the_environment_gives_options(one_process, capsys, monkeypatch):
    monkeypatch.setenv("AIUSMI_OPTS", "-g P -d 0.01 -c 3")
    assert smi("-c", "1", "-s", "csv") == 0
    assert capsys.readouterr().out.splitlines()[0] == "ID,Date,Time,pt_active"
    monkeypatch.setenv("AIUSMI_OPTS", "--colour")
    assert smi() == 1
    assert "AIUSMI_OPTS=--colour are no options" in capsys.readouterr().err


def test_only_cards_that_were_asked_for(one_process, capsys):
    assert smi("-i", "0,3", "-d", "0.01", "-c", "1", "-s", "csv", "-g", "PD") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines] == ["ID", "0", "3"]
    assert lines[2].endswith(",0.0") and ",20.0," in lines[2]  # idle


@pytest.mark.parametrize(
    "arguments", [["-d", "0.001"], ["-c", "0"], ["-i", "9"], ["-i", "x"], ["-s", "xml"], ["-d", "nan"]]
)
def test_wrong_options_end_with_usage(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        smi(*arguments)
    assert ended.value.code == 2 and "usage: spyre smi" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [["--json", "-s", "csv"], ["-w", "-g", "P"], ["--serve", "x"], ["--serve", "1", "-c1"]],
)
def test_options_that_do_not_go_together_are_said(arguments, capsys, counters):
    assert smi(*arguments) == 1
    assert capsys.readouterr().err.startswith("spyre: --")


def test_a_directory_that_others_can_write_is_said(counters, capsys):
    counters.chmod(0o777)
    assert smi() == 1
    assert "others can write to" in capsys.readouterr().err


def command(*arguments: str, **options) -> subprocess.Popen:
    return subprocess.Popen(
        [sys.executable, "-m", "torch_spyre.cli", "smi", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        **options,
    )


def test_ctrl_c_and_a_closed_pipe_end_it(counters):
    with command("-d", "0.02") as endless:
        endless.stdout.readline()
        endless.send_signal(signal.SIGINT)
        assert endless.wait() == 130 and "Traceback" not in endless.stderr.read()
    with command("-d", "0.02") as endless:
        endless.stdout.readline()
        endless.stdout.close()
        assert endless.wait() == 128 + signal.SIGPIPE and endless.stderr.read() == ""


def test_it_starts_without_torch(counters):
    code = "import sys; from torch_spyre import cli; cli.main(['smi']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "False"


HEAD = re.compile(r"# (HELP|TYPE) ([a-zA-Z_:][a-zA-Z0-9_:]*) (.+)")
SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\\\|\\"|\\n)*)"(?:,|$)')


def parsed(text: str) -> dict[tuple, float]:
    """Of Prometheus's text format, as strictly as its description has it."""
    assert text.endswith("\n")
    values, types, current = {}, {}, None
    for line in text[:-1].split("\n"):
        if line.startswith("#"):
            kind, name, rest = HEAD.fullmatch(line).groups()
            if kind == "HELP":
                assert name not in types, f"{name} comes twice"
                current = name
            else:
                assert name == current and rest in ("counter", "gauge")
                types[name] = rest
            continue
        name, labels, value = SAMPLE.fullmatch(line).groups()
        assert name == current and name in types, "samples of one metric are together, under its head"
        assert types[name] != "counter" or name.endswith("_total")
        found = LABEL.findall(labels or "")
        assert "".join(f'{key}="{text}",' for key, text in found).rstrip(",") == (labels or "")
        assert len({key for key, _ in found}) == len(found)
        assert (name, *found) not in values
        values[name, *found] = float(value)
    return values


def test_prometheus_gets_every_counter(one_process):
    before = one_process()
    values = parsed(prometheus.exposition(rates(before, one_process())))
    labels = (("card", "0"), ("pid", "42"))
    assert values["spyre_processes",] == 1
    assert values["spyre_kernels_total", *labels] == 7
    assert values["spyre_modelled_busy_seconds_total", *labels] == 1
    assert values["spyre_modelled_energy_joules_total", *labels] == 48
    assert values["spyre_modelled_unit_seconds_total", *labels, ("unit", "matrix")] == 0.5
    assert values["spyre_card_power_watts", ("card", "0")] == 48
    info = next(key for key in values if key[0] == "spyre_process_info")
    assert ("command", 'python \\"train\\".py') in info


def test_without_processes_prometheus_gets_a_zero(counters):
    now = sample()
    assert parsed(prometheus.exposition(rates(now, now))) == {("spyre_processes",): 0}


def test_the_server_answers(counters):
    with command("--serve", "0") as served:
        address = served.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:")
        for _ in range(2):
            with urllib.request.urlopen(address) as answer:
                assert answer.headers["Content-Type"] == prometheus.CONTENT_TYPE
                assert parsed(answer.read().decode()) == {("spyre_processes",): 0}
        with urllib.request.urlopen(address.removesuffix("metrics")) as answer:
            assert b"/metrics" in answer.read()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(address + "x")
        served.send_signal(signal.SIGINT)
        assert served.wait() == 130
