"""Single SuperDSC files on the card, against the op table's references, and the command that runs them."""

import numpy as np
import pytest
import torch

from torch_spyre.backend import single
from torch_spyre.cli import main
from torch_spyre.ir.op_spec import parse_op_spec, verify
from torch_spyre.ir.superdsc import dumps, emit
from torch_spyre.ops.table import OPS

ULP = 2**-9  # one unit in the last place of SEN169

ADD = """\
add over c0: 5/5, c1: 200/1
  in  arg0 SEN169_FP16[4, 5, 64] at [floor(c1/64), c0, Mod(c1, 64)]
  in  pool@1024 SEN169_FP16[5, 64] at [c0, 0]
  out arg1 SEN169_FP16[4, 5, 64] at [floor(c1/64), c0, Mod(c1, 64)]"""
TRANSPOSED = """\
restickify over c0: 70/2, c1: 200/1
  in  arg0 SEN169_FP16[4, 70, 64] at [floor(c1/64), c0, Mod(c1, 64)]
  out arg1 SEN169_FP16[2, 200, 64] at [floor(c0/64), c1, Mod(c0, 64)]"""
MEAN = """\
fold mean over c0: 5/5, c1: 200/1
  in  arg0 SEN169_FP16[4, 5, 64] at [floor(c1/64), c0, Mod(c1, 64)]
  out arg1 SEN169_FP16[5, 64] at [c0, 0]
  with {"reduced": ["c1"], "parameters": [0.005]}"""
MATMUL = """\
matmul over c0: 2/1, c1: 9/1, c2: 128/2, c3: 200/2
  in  arg0 SEN169_FP16[2, 4, 9, 64] at [c0, floor(c3/64), c1, Mod(c3, 64)]
  in  arg1 SEN169_FP16[2, 200, 64] at [floor(c2/64), c3, Mod(c2, 64)]
  out arg2 IEEE_FP32[2, 4, 9, 32] at [c0, floor(c2/32), c1, Mod(c2, 32)]"""
GATHER = """\
gather over c0: 40/1, c1: 100/1
  in  arg0 SEN169_FP16[2, 10, 64] at [floor(c1/64), IndirectAccess(arg1), Mod(c1, 64)]
  in  arg1 IEEE_INT32[2, 32] at [floor(c0/32), Mod(c0, 32)]
  out arg2 SEN169_FP16[2, 40, 64] at [floor(c1/64), c0, Mod(c1, 64)]
  with {"bounds": {"1": 10}}"""
SCATTER = """\
scatter_amax over c0: 40/1, c1: 100/1
  in  arg0 SEN169_FP16[2, 40, 64] at [floor(c1/64), c0, Mod(c1, 64)]
  in  arg1 IEEE_INT32[2, 32] at [floor(c0/32), Mod(c0, 32)]
  out arg2 SEN169_FP16[2, 10, 64] at [floor(c1/64), IndirectAccess(arg1), Mod(c1, 64)]
  with {"bounds": {"1": 10}}"""
CUMSUM = """\
cumsum over c0: 5/5, c1: 200/1
  in  arg0 IEEE_FP32[7, 5, 32] at [floor(c1/32), c0, Mod(c1, 32)]
  out arg1 IEEE_FP32[7, 5, 32] at [floor(c1/32), c0, Mod(c1, 32)]"""
ARGMAX = """\
fold argmax over c0: 5/5, c1: 200/1
  in  arg0 SEN169_FP16[4, 5, 64] at [floor(c1/64), c0, Mod(c1, 64)]
  out arg1 IEEE_INT32[5, 32] at [c0, 0]
  with {"reduced": ["c1"]}"""
TOPK = """\
topkvalue over c0: 5/5, c1: 3/1, c2: 200/1
  in  arg0 SEN169_FP16[4, 5, 64] at [floor(c2/64), c0, Mod(c2, 64)]
  out arg1 SEN169_FP16[1, 5, 64] at [0, c0, c1]
  with {"parameters": [1.0]}"""
IOTA = """\
iota over c0: 5/5, c1: 70/1
  out arg0 IEEE_INT32[3, 5, 32] at [floor(c1/32), c0, Mod(c1, 32)]
  with {"parameters": [3.0, 100.0, 1.0]}"""

CASES = {
    "broadcast along sticks, in the pool": (ADD, lambda f, x, y: f(x, y[:, None])),
    "restickify": (TRANSPOSED, lambda f, x: f(x)),
    "mean over partial sticks": (MEAN, lambda f, x: f(x, [1])),
    "matmul with shared k, into fp32": (MATMUL, lambda f, x, y: f(x, y.t())),
    "gather": (GATHER, lambda f, table, at: f(table, at)),
    "scatter": (SCATTER, lambda f, values, at, table: f(table, values, at)),
    "cumsum": (CUMSUM, lambda f, x: f(x, 1)),
    "argmax": (ARGMAX, lambda f, x: f(x, [1])),
    "topk": (TOPK, lambda f, x: f(x, 3, 1.0)),
    "iota": (IOTA, lambda f: f([5, 70], 3.0, 100.0, 1.0)),
}


def file_of(text: str) -> str:
    spec = parse_op_spec(text)
    verify(spec)
    return dumps(emit(spec, 0))


def held(array: np.ndarray, tensor: single.Tensor) -> torch.Tensor:
    """What the card keeps of an input."""
    values = torch.from_numpy(array).to(single.TORCH_TYPES[tensor.operand["format"]]).to("spyre").cpu()
    return values.float() if values.is_floating_point() else values.long()


@pytest.mark.parametrize("case", CASES)
def test_one_op_gives_what_its_reference_gives(case):
    text, reference = CASES[case]
    op = single.load(file_of(text))
    inputs = single.random_inputs(op, seed=1)
    got = torch.from_numpy(single.run(op, inputs).output)
    kept = map(held, inputs, single.inputs_of(op))
    want = reference(OPS[text.removeprefix("fold ").split()[0]].reference, *kept)
    torch.testing.assert_close(got.double(), want.double(), rtol=ULP, atol=1e-5)


def test_the_command_runs_a_file(tmp_path, capsys):
    (tmp_path / "sdsc_0.json").write_text(file_of(ADD))
    x, y = np.full((5, 200), 2, np.float32), np.arange(5, dtype=np.float32)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    given = ["--input", str(tmp_path / "x.npy"), str(tmp_path / "y.npy"), "--output", str(tmp_path / "out.npy")]
    assert main(["sdsc", "run", str(tmp_path / "sdsc_0.json"), *given]) == 0
    assert np.array_equal(np.load(tmp_path / "out.npy"), x + y[:, None])
    said = capsys.readouterr().out
    assert "0_add on sfp, 5 cores: mb 5/5, x 200/1" in said
    assert "output [5, 200]: min 2, max 6, mean 4" in said
    assert "modelled time" in said


def test_a_seed_gives_the_same_numbers(tmp_path, capsys):
    (tmp_path / "sdsc_0.json").write_text(file_of(MEAN))
    said = []
    for seed in ("0", "0", "1"):
        assert main(["sdsc", "run", str(tmp_path / "sdsc_0.json"), "--seed", seed]) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1] != said[2]


def test_check_and_show(tmp_path, capsys):
    path = tmp_path / "sdsc_0.json"
    path.write_text(file_of(ADD))
    assert main(["sdsc", "check", str(path)]) == 0
    assert capsys.readouterr().out == f"{path}: ok\n"
    assert main(["sdsc", "show", str(path)]) == 0
    assert "sticks along x" in capsys.readouterr().out


@pytest.mark.parametrize("action", ["run", "check", "show"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text.replace('"mb_":5', '"mb_":6', 1), "0_add: dataStageParam_: must be"),
        (lambda text: text[:100], "this is no JSON"),
    ],
)
def test_broken_files_are_one_sentence_and_exit_code_1(tmp_path, capsys, action, change, message):
    (tmp_path / "sdsc_0.json").write_text(change(file_of(ADD)))
    assert main(["sdsc", action, str(tmp_path / "sdsc_0.json")]) == 1
    said = capsys.readouterr().err
    assert said.startswith("spyre: ") and message in said and said.count("\n") == 1


def test_inputs_that_do_not_fit_are_refused(tmp_path, capsys):
    (tmp_path / "sdsc_0.json").write_text(file_of(MEAN))
    np.save(tmp_path / "x.npy", np.zeros((5, 199)))
    assert main(["sdsc", "run", str(tmp_path / "sdsc_0.json"), "--input", str(tmp_path / "x.npy")]) == 1
    assert capsys.readouterr().err == "spyre: 0_mean: input 0 has the shape [5, 199], wanted is [5, 200]\n"


@pytest.mark.parametrize("masked", [False, True])
def test_attention_alone(masked):
    """Two heads that share their keys, rows that see no key ahead of them; or a mask."""
    mask = "  in  arg4 IEEE_FP32[3, 5, 32] at [floor(c3/32), c1, Mod(c3, 32)]\n" if masked else ""
    info = '{"constants": {"3": 0.0}, ' if not masked else "{"
    spec = parse_op_spec(
        "fold attention over c0: 2/2, c1: 5/1, c2: 64/1, c3: 70/1, c4: 96/1\n"
        "  in  arg0 SEN169_FP16[2, 2, 5, 64] at [floor(c4/64), c0, c1, Mod(c4, 64)]\n"
        "  in  arg1 SEN169_FP16[2, 70, 64] at [floor(c4/64), c3, Mod(c4, 64)]\n"
        "  in  arg2 IEEE_FP32[2, 70, 32] at [floor(c2/32), c3, Mod(c2, 32)]\n"
        + mask
        + "  out arg3 IEEE_FP32[2, 2, 5, 32] at [floor(c2/32), c0, c1, Mod(c2, 32)]\n"
        "  with " + info + f'"parameters": [0.25, {float(not masked)}, 0.0]' + "}"
    )
    verify(spec)
    op = single.load(dumps(emit(spec, 0)))
    inputs = single.random_inputs(op, 0)
    inputs = [
        torch.from_numpy(each).half().to("spyre").cpu().float().numpy() for each in inputs
    ]  # as the card has them
    q, k, v, *given = map(torch.from_numpy, inputs)
    expected = OPS["attention"].reference(q, k, v.t(), *(given or [0.0]), 0.25, float(not masked), 0.0)
    assert single.run(op, inputs).output == pytest.approx(expected.numpy(), rel=1e-4, abs=1e-5)
