"""OpSpecs as text, and the rules that refuse broken ones."""

import pytest

from tests.ir.specs import ADD, FETCH, GATHER
from torch_spyre._inductor.op_spec import LoopSpec
from torch_spyre.ir.op_spec import InvalidOpSpec, along_sticks, parse_op_spec, print_op_spec, symbol, to_json, verify

SUM = """\
fold sum over c0: 5/5, c1: 200/1
  in  arg0 SEN169_FP16[4, 5, 64] at [floor(c1/64), c0, Mod(c1, 64)]
  out arg1 SEN169_FP16[5, 64] at [c0, 0]
  with {"reduced": ["c1"]}"""

MATMUL = """\
matmul over c0: 4/1, c1: 128/2, c2: 128/2
  in  arg0 SEN169_FP16[2, 4, 64] at [floor(c2/64), c0, Mod(c2, 64)]
  in  arg1 SEN169_FP16[2, 128, 64] at [floor(c1/64), c2, Mod(c1, 64)]
  out arg2 SEN169_FP16[2, 4, 64] at [floor(c1/64), c0, Mod(c1, 64)]"""

TEXTS = {"add": ADD, "sum": SUM, "matmul": MATMUL, "gather": GATHER, "copy": FETCH}
SPECS = pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)


@SPECS
def test_text_and_json_are_read_back(text):
    spec = parse_op_spec(text)
    verify(spec)
    assert print_op_spec(spec) == str(spec) == text
    assert parse_op_spec(to_json(spec)) == spec


def test_coordinates_are_read_with_signs_factors_and_constants():
    spec = parse_op_spec(ADD.replace("floor(c1/64), c0,", "2*floor(c1/64) - 1, 3*c0 + 4,", 1))
    c0, c1 = symbol("c0"), symbol("c1")
    assert spec.args[0].device_coordinates[:2] == [2 * along_sticks(c1, 64)[0] - 1, 3 * c0 + 4]


def test_a_loop_is_printed_around_its_body():
    text = str(LoopSpec(8, [parse_op_spec(SUM)], [symbol("t0")]))
    assert text.splitlines()[:2] == ["loop 8 over t0", "  fold sum over c0: 5/5, c1: 200/1"]


@pytest.mark.parametrize(
    ("text", "old", "new", "message"),
    [
        (ADD, "add over", "frobnicate over", "frobnicate: op: the op table has no such op"),
        (ADD, "c0: 5/5", "c0: 0/1", "add: iteration_space: c0 has the range 0"),
        (ADD, "c0: 5/5", "c0: 5/6", "add: iteration_space: c0 of range 5 is divided over 6 cores"),
        (MATMUL, "c0: 4/1, c1: 128/2, c2: 128/2", "c0: 4/4, c1: 128/4, c2: 128/4", "uses 64 cores, the card has 32"),
        (ADD, '"1": 2.5', '"2": 2.5', "op_info.constants: add has no input 2"),
        (ADD, '"source"', '"formats": {"1": "IEEE_INT32"}, "source"', "input 1 is an integer, not 2.5"),
        (ADD, '"source"', '"formats": {"1": "FP99"}, "source"', "op_info.formats: FP99 of input 1 is no format"),
        (ADD, '"constants": {"1": 2.5}, ', "", "add: args: add takes 2 inputs and 0 indices, has 1"),
        (ADD, "  out pool", "  in  pool", "add: args: must be the inputs, then the one output"),
        (ADD, "pool@1024", "pool@100", "args[1].allocation: {'pool': 100} is not at a whole stick"),
        (ADD, "pool@1024", "arg1+pool@1024", "must name exactly one place"),
        (ADD, '"source"', '"parameters": [1.0], "source"', "op_info.parameters: add takes 0, has 1"),
        (ADD, "c0, Mod", "c7, Mod", "args[0].device_coordinates: the symbol c7 is not in the iteration space"),
        (ADD, "c0, Mod", "c0 + 1, Mod", "c0 + 1 runs over [1, 5], outside a dimension of 5"),
        (ADD, "Mod(c1, 64)", "Mod(c1, 32)", "args[0].device_coordinates: Mod(c1, 32) is not Mod(c, 64) alone"),
        (ADD, "floor(c1/64)", "0", "c1 passes the end of its stick, and no coordinate counts the sticks"),
        (ADD, "Mod(c1, 64)", "0", "c1 counts sticks but does not walk inside them"),
        (ADD, "c0, Mod", "c1, Mod", "c1 walks along sticks and along another dimension too"),
        (ADD, "[4, 5, 64]", "[4, 5, 32]", "does not end in one stick of 64 elements"),
        (SUM, "fold sum", "sum", "sum: is_reduction: sum is a reduction"),
        (SUM, '["c1"]', '["c0"]', "sum: op_info.reduced: ['c0'] must be the last of ['c0', 'c1']"),
        (SUM, "fold sum", "cumsum", "cumsum: op_info.reduced: the result of cumsum has every dimension"),
        (SUM, '["c1"]', "[]", "sum: op_info.reduced: sum folds nothing"),
        (SUM, "[5, 64] at [c0, 0]", "[4, 5, 64] at [floor(c1/64), c0, Mod(c1, 64)]", "moves along c1, which is folded"),
        (SUM, "[5, 64] at [c0, 0]", "[1, 64] at [0, c0]", "dividing c0 makes two cores write into one stick"),
        (MATMUL, "arg0 SEN169_FP16[2, 4, 64] at [floor(c2/64), c0, Mod(c2, 64)]",
         "arg0 SEN169_FP16[1, 128, 64] at [0, c2, c0]", "args[0].device_coordinates: a matrix product needs sticks"),
        (GATHER, '{"1": 10}', "{}", "args: gather takes 1 inputs and 0 indices, has 2"),
        (GATHER, '{"1": 10}', '{"0": 10}', "op_info.bounds: lacks the extent that args[1], an index of args[0]"),
        (GATHER, '{"1": 10}', '{"1": 11}', "IndirectAccess(arg1) runs over [0, 10], outside a dimension of 10"),
        (GATHER, "IEEE_INT32[1, 32]", "IEEE_FP32[1, 32]", "args[1].device_dtype: IEEE_FP32 is no index"),
        (FETCH, "of core 2*c0", "of core 31*c0", "args[0].core: 31*c0 + c2 runs over [0, 32], the card has 32 cores"),
        (FETCH, "of core 2*c0", "of core -2*c0", "args[0].core: -2*c0 + c2 runs over [-2, 1], the card has 32 cores"),
        (FETCH, "of core 2*c0", "of core c9", "args[0].core: c2 + c9 is no sum of loops"),
        (FETCH, "+ c2", "+ c3", "args[0].core: 2*c0 + c3 is no sum of loops, those along sticks left out"),
        (FETCH, "+ c2", "+ 1", "args[0].core: 2*c0 + 1 is no sum of loops"),
        (FETCH, "copy", "neg", "args[0].core: only what a copy reads in LX lies in that of other cores"),
        (FETCH, "in  lx@0", "in  pool@0", "args[0].core: only what a copy reads in LX lies in that of other cores"),
        (FETCH, "lx@0 SEN169_FP16[2, 4, 64] at [floor(c3/64), c1, Mod(c3, 64)]",
         "lx@0 IEEE_FP32[4, 4, 32] at [floor(c3/32), c1, Mod(c3, 32)]", "args[0].core: IEEE_FP32 comes over the ring"),
        (FETCH, "[2, 4, 64]", "[2, 3, 64]", "c1 runs over [0, 3], outside a dimension of 3"),
    ],
)  # fmt: skip
def test_broken_specs_are_refused_with_the_field(text, old, new, message):
    assert old in text
    with pytest.raises(InvalidOpSpec) as refused:
        verify(parse_op_spec(text.replace(old, new, 1)))
    assert message in str(refused.value)


@pytest.mark.parametrize(
    "text", ["", "nonsense", "{}", ADD.replace("  in ", "  at "), ADD.replace("floor(c1/64)", "c1**2")]
)
def test_what_cannot_be_read_is_said(text):
    with pytest.raises(InvalidOpSpec):
        parse_op_spec(text)
