"""Steps of card programs: their addresses are those of the device coordinates, at every point."""

import itertools

import pytest
import sympy
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_spyre._C import DataFormats
from torch_spyre.backend import compile_bundle
from torch_spyre.ir import bundle, superdsc
from torch_spyre.ir.op_spec import LoopSpec, OpSpec, TensorArg, along_sticks, parse_op_spec, symbol, verify

FP16, FP32 = DataFormats.SEN169_FP16, DataFormats.IEEE_FP32


def steps_of(*specs: OpSpec | LoopSpec, arguments: int = 4, pool: int = 0) -> list[dict]:
    text, files = bundle.emit("k", specs)
    description = compile_bundle("k", files, [1 << 20] * arguments, pool, bundle=text)
    return description["steps"][0]["program"]["steps"]


def step_of(text: str) -> dict:
    spec = parse_op_spec(text)
    verify(spec)
    return steps_of(spec)[0]


def address(operand: dict, elements: int, point: tuple[int, ...]) -> int:
    """As the card computes it."""
    total = operand["offset"]
    for i, (at, stride) in enumerate(zip(point, operand["strides"], strict=True)):
        if i == operand.get("stick", -1):
            total += at // elements * stride + at % elements * (128 // elements)
        else:
            total += at * stride
    return total


def brute_force(arg: TensorArg, loops: list[sympy.Symbol], point: tuple[int, ...]) -> int:
    """Coordinates evaluated by sympy, row-major over device_size."""
    flat = 0
    for expr, size in zip(arg.device_coordinates, arg.device_size, strict=True):
        flat = flat * size + int(sympy.sympify(expr).xreplace(dict(zip(loops, map(sympy.Integer, point), strict=True))))
    return flat * 128 // arg.device_size[-1]


@st.composite
def accesses(draw, loops: list[sympy.Symbol], sizes: list[int], fmt: DataFormats) -> tuple[list[int], list[sympy.Expr]]:
    """Along sticks of the last loop, from inside a stick, or one element per stick; broadcast along some loops."""
    elements = fmt.elems_per_stick()
    moving = [i for i in range(len(sizes) - 1) if draw(st.booleans())]
    size, at = [sizes[i] * 2 for i in moving], [draw(st.integers(1, 2)) * loops[i] for i in moving]
    form = draw(st.sampled_from(["sticks", "inside", "sparse", "broadcast"]))
    if form == "sticks":
        tile, lane = along_sticks(loops[-1], elements)
        place, shift = draw(st.integers(0, len(moving))), draw(st.integers(0, 2))
        size.insert(place, -(-sizes[-1] // elements) + shift)
        at.insert(place, tile + shift)
    elif form == "inside":
        first = draw(st.integers(0, 3))
        lane = loops[-1] + first
        if sizes[-1] + first > elements:
            lane = sympy.S.Zero
    elif form == "sparse":
        size, at, lane = [*size, sizes[-1]], [*at, loops[-1]], sympy.S.Zero
    else:
        lane = sympy.Integer(draw(st.integers(0, elements - 1)))
    return [*size, elements], [*at, lane]


@st.composite
def specs(draw) -> OpSpec:
    sizes = draw(st.lists(st.integers(1, 3), max_size=2)) + [draw(st.integers(1, 130))]
    loops = [symbol(f"c{i}") for i in range(len(sizes))]
    args = []
    for position in range(3):
        fmt = draw(st.sampled_from([FP16, FP32]))
        args.append(TensorArg(position < 2, position, fmt, *draw(accesses(loops, sizes, fmt))))
    return OpSpec("mul", False, {c: (n, 1) for c, n in zip(loops, sizes, strict=True)}, args)


@settings(deadline=None, max_examples=40)
@given(specs())
def test_addresses_are_those_of_the_coordinates(spec):
    verify(spec)
    (step,) = steps_of(spec)
    loops = list(spec.iteration_space)
    for arg, operand in zip([spec.args[-1], *spec.args[:-1]], step["operands"], strict=True):
        for point in itertools.product(*(range(n) for n in step["extents"])):
            got = address(operand, arg.device_dtype.elems_per_stick(), point)
            assert got == brute_force(arg, loops, point), (operand, point)


ADD = """\
add over c0: 5/5, c1: 200/2
  in  arg0 SEN169_FP16[4, 5, 64] at [floor(c1/64), c0, Mod(c1, 64)]
  out pool@1024 SEN169_FP16[4, 5, 64] at [floor(c1/64), c0, Mod(c1, 64)]
  with {"constants": {"0": -Infinity}, "source": "model.py:7", "checked": true}"""


def test_an_elementwise_step():
    assert step_of(ADD) == {
        "op": "elementwise",
        "function": "add",
        "extents": [5, 200],
        "slices": [5, 2],
        "operands": [
            {"argument": 4, "offset": 1024, "strides": [128, 640], "format": "SEN169_FP16", "stick": 1},
            {"value": "-inf", "format": "IEEE_FP32"},
            {"argument": 0, "offset": 0, "strides": [128, 640], "format": "SEN169_FP16", "stick": 1},
        ],
        "checked": True,
        "source": "model.py:7",
        "tile": [1, 128],
    }


def test_a_divided_stick_dimension_is_rounded_up_to_whole_sticks():
    dsc = superdsc.emit(parse_op_spec(ADD), 0)["0_add"]["dscs_"][0]["add"]
    assert dsc["dataStageParam_"]["0"]["ss_"]["x_"] == 128 and dsc["dataStageParam_"]["0"]["el_"]["x_"] == 72
    assert dsc["scheduleTree_"][0]["startAddressCoreCorelet_"]["data_"]["[1, 0, 0]"] == 2 * 640


FOLD = """\
fold {op} over c0: 5/5, c1: 200/1
  in  arg0 {format}[7, 5, {elements}] at [floor(c1/{elements}), c0, Mod(c1, {elements})]
  out arg1 {format}[5, {elements}] at [c0, 0]
  with {{"reduced": ["c1"], "parameters": {parameters}}}"""


@pytest.mark.parametrize(
    ("op", "data_format", "function", "parameters", "constants"),
    [
        ("sum", "SEN169_FP16", "add", [], [0.0]),
        ("mean", "IEEE_FP32", "add", [0.005], [0.0, 0.005]),
        ("wide_mean", "IEEE_FP32", "wide_add", [0.005], [0.0, 0.005]),
        ("variance", "IEEE_FP32", "variance", [0.005], [0.0, 0.005]),
        ("amax", "SEN169_FP16", "maximum", [], ["-inf"]),
        ("amin", "IEEE_INT32", "minimum", [], [2.0**62]),
        ("all", "SEN169_FP16", "logical_and", [], [1.0]),
    ],
)
def test_reductions_start_from_their_neutral_value(op, data_format, function, parameters, constants):
    elements = 64 if data_format == "SEN169_FP16" else 32
    step = step_of(FOLD.format(op=op, format=data_format, elements=elements, parameters=parameters))
    assert (step["op"], step["function"], step["constants"], step["reduced"]) == ("reduce", function, constants, 1)


def test_a_matrix_product_that_shares_k_keeps_collaborators_together():
    text = """\
matmul over c0: 4/1, c1: 128/2, c2: 256/4
  in  arg0 SEN169_FP16[4, 4, 64] at [floor(c2/64), c0, Mod(c2, 64)]
  in  arg1 SEN169_FP16[2, 256, 64] at [floor(c1/64), c2, Mod(c1, 64)]
  out arg2 SEN169_FP16[2, 4, 64] at [floor(c1/64), c0, Mod(c1, 64)]"""
    step = step_of(text)
    assert (step["op"], step["slices"], [o["stick"] for o in step["operands"]]) == ("matmul", [1, 2, 4], [1, 2, 1])
    cores = superdsc.emit(parse_op_spec(text), 0)["0_matmul"]["coreIdToWkSlice_"]
    assert [cores[str(core)]["in"] for core in range(8)] == [0, 1, 2, 3, 0, 1, 2, 3]


def test_a_gather_leads_its_table_by_the_index():
    step = step_of("""\
gather over c0: 3/1, c1: 64/1
  in  arg0 SEN169_FP16[1, 10, 64] at [floor(c1/64), IndirectAccess(arg1), Mod(c1, 64)]
  in  arg1 IEEE_INT32[1, 32] at [0, c0]
  out arg2 SEN169_FP16[1, 3, 64] at [floor(c1/64), c0, Mod(c1, 64)]
  with {"bounds": {"1": 10}}""")
    assert step["indirect"] == [{"operand": 2, "extent": 10, "stride": 128, "stick": False}]
    assert [operand["strides"] for operand in step["operands"]] == [[128, 384], [0, 1280], [128, 0]]


def test_a_scatter_of_a_number_along_sticks():
    step = step_of("""\
scatter_add over c0: 3/1
  in  arg0 IEEE_INT32[1, 32] at [0, c0]
  out arg1 SEN169_FP16[2, 64] at [floor(IndirectAccess(arg0)/64), Mod(IndirectAccess(arg0), 64)]
  with {"bounds": {"0": 100}, "constants": {"0": 1.0}}""")
    assert (step["op"], step["function"]) == ("scatter", "add")
    assert step["operands"][1] == {"value": 1.0, "format": "IEEE_FP32"}
    assert step["indirect"] == [{"operand": 2, "extent": 100, "stride": 128, "stick": True}]


def test_loops_move_addresses():
    body = parse_op_spec("""\
neg over c0: 2/1, c1: 64/1
  in  arg0 SEN169_FP16[8, 64] at [c0 + 2*t0, c1]
  out pool@0 SEN169_FP16[2, 64] at [c0, c1]""")
    steps = steps_of(LoopSpec(4, [body], [symbol("t0")]), arguments=1, pool=256)
    assert [step["operands"][1]["offset"] for step in steps] == [0, 256, 512, 768]
    assert [step["operands"][0]["offset"] for step in steps] == [0, 0, 0, 0]


def test_in_lx_every_core_begins_at_the_same_address():
    step = step_of("""\
neg over c0: 8/4, c1: 128/1
  in  arg0 SEN169_FP16[2, 8, 64] at [floor(c1/64), c0, Mod(c1, 64)]
  out lx@256 SEN169_FP16[2, 2, 64] at [floor(c1/64), c0, Mod(c1, 64)]""")
    out, given = step["operands"]
    assert out == {"lx": 256, "strides": [128, 256], "format": "SEN169_FP16", "stick": 1}
    assert given["strides"] == [128, 1024]
    assert step["staging"] == 256 + 4 * 128
