"""spyre ktir and spyre launch, called as functions."""

import json
from pathlib import Path

import numpy as np
import pytest

from torch_spyre import cli

PROGRAMS = Path(__file__).with_name("programs")


@pytest.fixture
def arrays(tmp_path):
    x = np.random.default_rng(0).standard_normal(4096).astype(np.float16)
    np.save(tmp_path / "x.npy", x)
    return x


def add(*more):
    return [str(PROGRAMS / "vector_add.mlir"), "--arg", "y=4096@f16", "--arg", "z=4096@f16", *more]


def test_run_writes_results_and_a_timeline(arrays, tmp_path, capsys):
    out, trace = tmp_path / "z.npy", tmp_path / "trace.json"
    given = add("--arg", f"x={tmp_path / 'x.npy'}", "--arg", f"y={tmp_path / 'x.npy'}", "--out", f"z={out}")
    assert cli.main(["ktir", "run", *given, "--trace", str(trace)]) == 0
    assert np.array_equal(np.load(out), arrays + arrays)
    assert "modelled time" in capsys.readouterr().out
    events = json.loads(trace.read_text())["traceEvents"]
    assert {event["tid"] for event in events} == {"memory", *(f"core {i}" for i in range(32))}


def test_cost_is_stable(capsys):
    command = ["ktir", "cost", *add("--arg", "x=4096@f16")]
    assert cli.main(command) == 0
    first = capsys.readouterr().out
    assert cli.main(command) == 0
    assert capsys.readouterr().out == first
    assert "x: read 8192, written 0, unique 8192, ratio 1 bytes" in first


def test_check_and_print(capsys):
    path = str(PROGRAMS / "softmax.mlir")
    assert cli.main(["ktir", "check", path]) == 0
    assert "ok, 1 functions" in capsys.readouterr().out
    assert cli.main(["ktir", "print", "--generic", path]) == 0
    assert '"linalg.reduce"' in capsys.readouterr().out


def test_what_is_wrong_is_one_line(tmp_path, capsys):
    path = tmp_path / "wrong.mlir"
    path.write_text("func.func @f() {\n  %x = arith.addi %y, %y : index\n  return\n}\n")
    assert cli.main(["ktir", "check", str(path)]) == 1
    assert capsys.readouterr().err == f"spyre: {path}:2:19: unknown value %y\n"


def test_what_is_no_text_is_one_line(tmp_path, capsys):
    path = tmp_path / "binary.mlir"
    path.write_bytes(b"module {\n  \xc3\x28 }\n")
    for command in ("check", "print"):
        assert cli.main(["ktir", command, str(path)]) == 1
        assert capsys.readouterr().err == f"spyre: {path}:2:3: this byte is no UTF-8: the file is no text\n"


def folder(tmp_path, **changes):
    (tmp_path / "add.mlir").write_text((PROGRAMS / "vector_add_dynamic.mlir").read_text())
    arguments = [
        {"name": name, "arg_index": i + 1, "role": role, "shape": ["s0"], "dtype": "f16", "layout": [1]}
        for i, (name, role) in enumerate([("x", "input"), ("y", "input"), ("z", "output")])
    ]
    spec = {
        "name": "add",
        "programs": ["add.mlir"],
        "arguments": arguments,
        "symbols": [{"name": "s0", "kind": "size", "arg_index": 0, "min": 1, "max": 5000}],
    }
    (tmp_path / "launch_spec.json").write_text(json.dumps(spec | changes))
    return str(tmp_path)


def test_launch_binds_symbols(arrays, tmp_path, capsys):
    np.save(tmp_path / "half.npy", arrays[:999])
    given = ["-i", f"x={tmp_path / 'half.npy'}", "-i", f"y={tmp_path / 'half.npy'}", "-o", f"z={tmp_path / 'z.npy'}"]
    assert cli.main(["launch", folder(tmp_path), "--bind", "s0=999", *given]) == 0
    assert np.array_equal(np.load(tmp_path / "z.npy"), arrays[:999] * np.float16(2))
    assert cli.main(["launch", folder(tmp_path), "--bind", "s0=10", "-i", "x=10@fp16", "-i", "y=10@fp16"]) == 0


@pytest.mark.parametrize(
    "more, message",
    [
        (["--bind", "s0=9000"], "symbol s0 = 9000 is not in [1, 5000]"),
        (["--bind", "s1=1"], "there is no symbol s1"),
        (["--bind", "s0=10"], "the input x is not given"),
        (["--bind", "s0=10", "-i", "x=11@fp16"], "x has the shape [11], wanted is [10]"),
        (["--bind", "s0=10", "-i", "x=10@f32"], "x has the type float32, wanted is f16"),
    ],
)
def test_a_wrong_launch_is_exit_2(tmp_path, capsys, more, message):
    assert cli.main(["launch", folder(tmp_path), *more]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("change", [{"arguments": 3}, {"symbols": [1]}, {"programs": ["../x.mlir"]}, {"pool_size": -1}])
def test_a_wrong_folder_is_exit_2(tmp_path, capsys, change):
    assert cli.main(["launch", folder(tmp_path, **change)]) == 2
    assert "launch_spec.json" in capsys.readouterr().err
