"""``spyre explain``."""

import json

import pytest

from torch_spyre import cli


def test_a_script_is_explained_as_it_is(tmp_path, capsys):
    script = tmp_path / "program.py"
    script.write_text("import torch\nx = torch.ones(64, 64).to('spyre')\nprint('sum', (x * 2).sum().item())\n")
    assert cli.main(["explain", str(script), "--json", str(tmp_path / "out.json")]) == 0
    shown = capsys.readouterr().out
    assert "sum 8192.0" in shown and "program.py" in shown
    rows = json.loads((tmp_path / "out.json").read_text())["eager"]
    assert {row["aten"] for row in rows} >= {"aten.mul.Tensor", "aten.sum.dim_IntList"}


def test_a_script_that_fails_has_a_report_and_a_sentence(tmp_path, capsys):
    script = tmp_path / "program.py"
    script.write_text("import torch\ntorch.ones(4).to('spyre') + 1\nraise KeyError('gone')\n")
    assert cli.main(["explain", str(script)]) == 2
    shown = capsys.readouterr()
    assert "failed: KeyError" in shown.out and "gone" in shown.err


@pytest.mark.parametrize(("code", "expected"), [(0, 0), (3, 2)])
def test_a_script_that_exits_has_a_report(code, expected, tmp_path, capsys):
    script = tmp_path / "program.py"
    script.write_text(f"import torch\ntorch.ones(4).to('spyre') + 1\nraise SystemExit({code})\n")
    assert cli.main(["explain", str(script)]) == expected
    assert "us modelled" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["no/such/script.py", "no-such-preset"])
def test_what_is_not_there_is_a_sentence(name, capsys):
    assert cli.main(["explain", name]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_model_is_explained(python, tmp_path):
    found = python(
        "from torch_spyre import cli; raise SystemExit(cli.main("
        f"['explain', 'granite-3.3-8b', '--layers', '2', '--prefill', '128', '--json', {str(tmp_path / 'o.json')!r}]))"
    )
    assert found.returncode == 0 and "matmul" in found.stdout, found.stderr
    data = json.loads((tmp_path / "o.json").read_text())
    steps = [step for kernel in data["kernels"] for step in kernel["steps"]]
    assert sum(step["us"] for step in steps) + data["totals"]["other_us"] == pytest.approx(data["totals"]["us"])
    assert all(data["texts"][step["source"]] for step in steps if step["op"] == "matmul")


def test_a_script_has_its_arguments_and_its_line_where_it_ends(tmp_path, capsys):
    script = tmp_path / "program.py"
    script.write_text(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('--n', type=int, required=True)\n"
        "p.add_argument('name')\nprint(p.parse_args())\n"
    )
    assert cli.main(["explain", str(script), "--", "--n", "64", "bob"]) == 0
    assert "Namespace(n=64, name='bob')" in capsys.readouterr().out
    assert cli.main(["explain", str(script)]) == 2
    assert "at program.py:5 print(p.parse_args())" in capsys.readouterr().out
    assert cli.main(["explain", "granite-3.3-8b", "more"]) == 2
    assert "takes no arguments: more" in capsys.readouterr().err


def test_ctrl_c_ends_a_script_and_not_its_report(tmp_path, capsys):
    script = tmp_path / "program.py"
    script.write_text("import torch\nx = torch.ones(64, 64).to('spyre')\nx = x + 1\nraise KeyboardInterrupt\n")
    assert cli.main(["explain", str(script)]) == 130
    shown = capsys.readouterr().out
    assert "was stopped with Ctrl-C" in shown and "aten.add.Tensor" in shown
