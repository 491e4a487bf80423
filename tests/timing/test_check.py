"""The clock against kernels that were measured on real cards: every row is compiled, and its program timed."""

import pytest
import torch

from torch_spyre import timing
from torch_spyre.timing import check, table


def timed(python, rows: str) -> str:
    """In a process of its own, since the card's mode is the process's."""
    code = f"""
from torch_spyre.timing import check, table
timed = check.time_rows(table.read(){rows})
print(check.report(timed))
print("missed:", check.failures(timed))
"""
    result = python(code, SPYRE_CARD="timing", SPYRE_KERNEL_CACHE="0")
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_a_part_of_the_table(python):
    """Every ninth row, of all families; their errors are those of the whole table within its scatter."""
    said = timed(python, "[::9]")
    assert said.endswith("missed: []\n"), said


@pytest.mark.slow
def test_the_table(python):
    said = timed(python, "")
    assert said.endswith("missed: []\n"), said


def test_every_row_has_a_program():
    rows = table.read()
    assert len(rows) == 472
    assert {row.family for row in rows} == set(check.BOUNDS)
    for row in rows:
        program = table.program_of(row)
        assert program.sizes and all(n > 0 for size in program.sizes for n in size)


def test_errors_are_counted():
    row = table.Row("pointwise", "neg", "64x64", 32, "", 100.0)
    found = [check.Timed(row, 110.0), check.Timed(row, 100.0)]
    assert check.scores(found) == {"pointwise": (pytest.approx(0.1 / 2**0.5), pytest.approx(0.05), 2)}
    assert check.failures(found) == ["pointwise: RMS error 7.1%, the bound is 5%"]


@pytest.mark.parametrize(
    "text",
    [
        "family,source,op,dims,cores,config,us,note\npointwise,x,neg,64xmany,32,,1.0,\n",
        "op,dims,cores,config,us\nneg,64x64,32,,1.0\n",
        "family,op,dims,cores,config,us\npointwise,neg,64x64,32\n",
    ],
    ids=["sizes", "no family", "short"],
)
def test_a_table_that_is_none_is_refused(tmp_path, text):
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(ValueError, match="this is no row of measured kernels"):
        table.read(path)


def test_softmax_without_tiles_is_one_tile():
    """As a table has it whose rows were measured without a tile loop."""
    whole, tiled = (
        table.program_of(table.Row("softmax", "softmax", "512x256", 32, c, 1.0)) for c in ("", "lx1_tiles4")
    )
    x = torch.randn(512, 256).half().to("spyre")
    rows = []
    for program in (whole, tiled):
        compiled = program.compiled(program.function)
        compiled(x)
        with timing.record() as recording:
            compiled(x)
        rows.append({step.extents[-2] for step in timing.steps_of(recording.launches[0]) if len(step.extents) > 1})
    assert rows == [{512}, {128}]
