"""SuperDSC: what the emitter writes, that it reads back byte for byte, and that broken files are refused by field."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.ir.specs import ADD, FETCH, GATHER
from torch_spyre._C import DataFormats
from torch_spyre.ir.op_spec import OpSpec, TensorArg, along_sticks, parse_op_spec, symbol, verify
from torch_spyre.ir.superdsc import InvalidSuperDSC, dumps, emit, loads, show
from torch_spyre.ir.superdsc import verify as verify_dsc

MEAN = """\
fold mean over c0: 5/5, c1: 200/1
  in  arg0 SEN169_FP16[4, 5, 64] at [floor(c1/64), c0, Mod(c1, 64)]
  out arg1 SEN169_FP16[5, 64] at [c0, 0]
  with {"reduced": ["c1"], "parameters": [0.005]}"""


def emitted(text: str) -> dict:
    spec = parse_op_spec(text)
    verify(spec)
    return loads(dumps(emit(spec, 0)))


def test_add_says_where_everything_is():
    assert show(emitted(ADD)) == (
        "0_add on sfp, 5 cores: mb 5/5, x 200/1\n"
        "  from model.py:7\n"
        "  INPUT    SEN169_FP16 in argument 0, 2560 bytes, from 0; bytes per step: mb 128, x 640, sticks along x\n"
        "  OUTPUT   SEN169_FP16 in pool at 1024, 2560 bytes, from 0; bytes per step: mb 128, x 640, sticks along x\n"
        "  constant0 = 2.5"
    )


def test_work_division_and_addresses_are_maps_by_core():
    top = emitted(ADD)["0_add"]
    op = top["dscs_"][0]["add"]
    assert top["coreIdToWkSlice_"]["3"] == {"mb": 3, "x": 0}
    assert op["dataStageParam_"]["0"]["ss_"] == {"name_": "core", "mb_": 1, "x_": 200}
    addresses = op["scheduleTree_"][0]["startAddressCoreCorelet_"]["data_"]
    assert addresses == {f"[{core}, 0, 0]": 128 * core for core in range(5)}
    assert op["scheduleTree_"][0]["backGapCore_"] == {"x": 56}


def test_a_fold_over_a_partial_stick_is_masked():
    op = emitted(MEAN)["0_mean"]["dscs_"][0]["mean"]
    assert op["coordinateMasking_"] == {"x": [[200, 56]]}
    assert op["constantInfo_"][str(op["maskingConstId_"])]["data_"]["data_"] == {"[0, 0, 0]": [0]}
    assert op["computeOp_"][0]["parameters_"] == [0.0, 0.005]


def test_a_matrix_product_calls_its_dimensions_mb_out_in():
    text = """\
matmul over c0: 4/1, c1: 64/1, c2: 64/1
  in  arg0 SEN169_FP16[1, 4, 64] at [0, c0, c2]
  in  arg1 SEN169_FP16[1, 64, 64] at [0, c2, c1]
  out arg2 SEN169_FP16[1, 4, 64] at [0, c0, c1]"""
    op = emitted(text)["0_matmul"]["dscs_"][0]["matmul"]
    assert op["dimOrder_"] == ["mb", "out", "in"]
    assert [node["stickDim_"] for node in op["scheduleTree_"]] == ["in", "out", "out"]


def test_what_comes_from_other_cores_says_from_which():
    dsc = emitted(FETCH)
    fetched, written = dsc["0_copy"]["dscs_"][0]["copy"]["scheduleTree_"]
    assert (fetched["coreStrides_"], written["coreStrides_"]) == (FETCHED, {})
    # Points count from the first of all: core 5 begins with the second of the four rows of cores 2 and 3.
    assert [each["startAddressCoreCorelet_"]["data_"]["[5, 0, 0]"] for each in (fetched, written)] == [128, 2048]
    assert "INPUT    SEN169_FP16 in lx of other cores, 1024 bytes" in show(dsc)


def test_indirection_names_its_index():
    op = emitted(GATHER)["0_gather"]["dscs_"][0]["gather"]
    table = op["scheduleTree_"][0]
    assert table["indirect_"] == [{"ldsIdx_": 1, "extent_": 10, "stride_": 128, "stick_": 0}]
    assert table["relatedIndirectAccessAlloc_"] == ["allocate-Tensor1_hbm"]
    assert [label["dsType_"] for label in op["labeledDs_"]] == ["INPUT", "KERNEL_IDX", "OUTPUT"]


def put(value):
    return lambda _: value


FETCHED = {"mb": 2, "x": 0, "y": 1, "out": 0}  # cores from one point to the next
BREAKAGES = [
    ("add", "numCoresUsed_", put(33), "numCoresUsed_"),
    ("add", "numCoresUsed_", put("5"), "numCoresUsed_"),
    ("add", "coreFoldProp_.factor_", put(4), "coreFoldProp_"),
    ("add", "sdscFoldProps_.0.factor_", put(2), "sdscFoldProps_"),
    ("add", "numWkSlicesPerDim_.mb", put(4), "numWkSlicesPerDim_"),
    ("add", "coreIdToWkSlice_.3.mb", put(2), "coreIdToWkSlice_"),
    ("add", "coreIdToDsc_.3", put(1), "coreIdToDsc_"),
    ("add", "dscs_.0.add.N_.mb_", put(0), "N_"),
    ("add", "dscs_.0.add.N_.mb_", put(6), "dataStageParam_"),
    ("add", "dscs_.0.add.dataStageParam_.0.el_.x_", put(8), "dataStageParam_"),
    ("add", "dscs_.0.add.dimOrder_", put(["mb", "mb"]), "dimOrder_"),
    ("add", "dscs_.0.add.foldedDims_", put(["x"]), "foldedDims_"),
    ("add", "dscs_.0.add.primaryDsInfo_.INPUT.stickSize_", put([32]), "primaryDsInfo_ of labeledDs_[0]"),
    ("add", "dscs_.0.add.labeledDs_.0.dataFormat_", put("FP99"), "labeledDs_[0].dataFormat_"),
    ("add", "dscs_.0.add.labeledDs_.1.wordLength", put(4), "labeledDs_[1].wordLength"),
    ("add", "dscs_.0.add.labeledDs_.1.argument_", put(1), "labeledDs_[1].argument_"),
    ("add", "dscs_.0.add.labeledDs_.0.sizeBytes_", put(2432), "scheduleTree_[0].startAddressCoreCorelet_"),
    ("add", "dscs_.0.add.scheduleTree_.0.component_", put("ddr"), "scheduleTree_[0].component_"),
    ("add", "dscs_.0.add.scheduleTree_.0.byteStrides_.mb", put(127), "scheduleTree_[0].byteStrides_"),
    ("add", "dscs_.0.add.scheduleTree_.1.stickDim_", put("in"), "scheduleTree_[1].stickDim_"),
    ("add", "dscs_.0.add.scheduleTree_.0.layoutDimOrder_", put(["mb", "x"]), "scheduleTree_[0].layoutDimOrder_"),
    (
        "add",
        "dscs_.0.add.scheduleTree_.0.startAddressCoreCorelet_.data_.[2, 0, 0]",
        put(0),
        "scheduleTree_[0].startAddressCoreCorelet_",
    ),
    ("add", "dscs_.0.add.scheduleTree_.0.coordinates_.coordInfo.mb.spatial", put(1), "scheduleTree_[0].coordinates_"),
    ("add", "dscs_.0.add.constantInfo_.0.dataFormat_", put("SENINT8"), "constantInfo_"),
    ("add", "dscs_.0.add.computeOp_.0.exUnit", put("pt"), "computeOp_[0].exUnit"),
    ("add", "dscs_.0.add.computeOp_.0.inputLabeledDs", put(["Tensor0-idx0"]), "computeOp_[0].inputLabeledDs"),
    ("add", "dscs_.0.add.computeOp_.0.parameters_", put([1.0]), "computeOp_[0].parameters_"),
    ("mean", "dscs_.0.mean.coordinateMasking_", put({"mb": [[5, 1]]}), "coordinateMasking_"),
    ("mean", "dscs_.0.mean.maskingConstId_", put(3), "maskingConstId_"),
    ("mean", "dscs_.0.mean.scheduleTree_.1.byteStrides_.x", put(128), "scheduleTree_[1].byteStrides_"),
    ("gather", "dscs_.0.gather.scheduleTree_.0.indirect_.0.extent_", put(11), "startAddressCoreCorelet_"),
    ("gather", "dscs_.0.gather.scheduleTree_.0.indirectAllocType_", put("none"), "indirectAllocType_"),
    ("gather", "dscs_.0.gather.indirectAccessIndexLabeledDs", put([]), "indirectAccessIndexLabeledDs"),
    ("add", "dscs_.0.add.scheduleTree_.0.coreStrides_", put({"mb": 1, "x": 0}), "scheduleTree_[0].coreStrides_"),
    ("copy", "dscs_.0.copy.scheduleTree_.0.coreStrides_", put({"mb": 2}), "scheduleTree_[0].coreStrides_"),
    ("copy", "dscs_.0.copy.scheduleTree_.0.coreStrides_.mb", put(31), "scheduleTree_[0].coreStrides_"),
    ("copy", "dscs_.0.copy.scheduleTree_.0.coreStrides_.mb", put(-1), "scheduleTree_[0].coreStrides_"),
    ("copy", "dscs_.0.copy.scheduleTree_.0.coreStrides_.mb", put(0.5), "scheduleTree_[0].coreStrides_"),
    ("copy", "dscs_.0.copy.scheduleTree_.0.coreStrides_.out", put(1), "scheduleTree_[0].coreStrides_"),
    ("copy", "dscs_.0.copy.scheduleTree_.1.coreStrides_", put(FETCHED), "scheduleTree_[1].coreStrides_"),
    ("copy", "dscs_.0.copy.scheduleTree_.0.coreStrides_", put({}), "scheduleTree_[0].startAddressCoreCorelet_"),
    ("copy", "dscs_.0.copy.labeledDs_.0.sizeBytes_", put(896), "scheduleTree_[0].startAddressCoreCorelet_"),
]


@pytest.mark.parametrize(("op", "path", "change", "field"), BREAKAGES, ids=[f"{b[1]}={b[2](0)}" for b in BREAKAGES])
def test_broken_files_are_refused_with_the_field(op, path, change, field):
    dsc = emitted({"add": ADD, "mean": MEAN, "gather": GATHER, "copy": FETCH}[op])
    verify_dsc(dsc)
    *way, last = path.split(".")
    at = dsc[f"0_{op}"]
    for key in way:
        at = at[int(key) if isinstance(at, list) else key]
    at[last] = change(at[last])
    with pytest.raises(InvalidSuperDSC) as refused:
        verify_dsc(dsc)
    assert f"0_{op}: " in str(refused.value) and field in str(refused.value)


def fields_of(value, path=()):
    """Every field that a file of one op has, by its way from the top."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield (*path, key)
            yield from fields_of(inner, (*path, key))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            yield from fields_of(inner, (*path, i))


@pytest.mark.parametrize("text", [ADD, MEAN, GATHER, FETCH])
def test_no_field_can_be_left_out(text):
    """Whichever field goes, the file is refused, and not with another exception."""
    whole = dumps(emitted(text))
    for path in list(fields_of(loads(whole)))[1:]:
        dsc = loads(whole)
        at = dsc
        for key in path[:-1]:
            at = at[key]
        del at[path[-1]]
        with pytest.raises(InvalidSuperDSC):
            verify_dsc(dsc)


def test_unknown_fields_are_refused():
    dsc = emitted(ADD)
    dsc["0_add"]["numCores_"] = 5
    with pytest.raises(InvalidSuperDSC, match="0_add: numCores_: is no field of a SuperDSC"):
        verify_dsc(dsc)


@pytest.mark.parametrize("text", ["", "[]", "{}", "nonsense", '{"a": 1, "b": 2}'])
def test_what_is_no_superdsc_is_said(text):
    with pytest.raises(InvalidSuperDSC):
        loads(text)


@st.composite
def pointwise_specs(draw) -> OpSpec:
    """An op of two inputs over up to three dimensions; every tensor has its own order of them and its own format."""
    sizes = draw(st.lists(st.integers(1, 4), max_size=2)) + [draw(st.integers(1, 150))]
    loops = [symbol(f"c{i}") for i in range(len(sizes))]
    args = []
    for position in range(3):
        fmt = draw(st.sampled_from([DataFormats.SEN169_FP16, DataFormats.IEEE_FP32]))
        elements = fmt.elems_per_stick()
        outer = draw(st.permutations(range(len(sizes) - 1)))
        tile, lane = along_sticks(loops[-1], elements)
        device_size = [sizes[i] + draw(st.integers(0, 2)) for i in outer]
        coordinates = [loops[i] + 0 for i in outer]
        at = draw(st.integers(0, len(outer)))
        shift = draw(st.integers(0, 2))
        device_size.insert(at, -(-sizes[-1] // elements) + shift)
        coordinates.insert(at, tile + shift)
        args.append(TensorArg(position < 2, position, fmt, [*device_size, elements], [*coordinates, lane]))
    cores = [draw(st.integers(1, min(size, 3))) for size in sizes]
    return OpSpec("mul", False, {c: (n, k) for c, n, k in zip(loops, sizes, cores, strict=True)}, args)


@settings(deadline=None, max_examples=60)
@given(pointwise_specs())
def test_emitted_files_pass_the_rules_and_read_back_byte_for_byte(spec):
    verify(spec)
    text = dumps(emit(spec, 7))
    dsc = loads(text)
    verify_dsc(dsc)
    assert dumps(dsc) == text
    assert json.loads(text) == emit(spec, 7)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"0_add":' * 100_000,
        '{"0_add": NaN}',
        '{"0_add": ' + "9" * 5000 + "}",
        "x" * (1 << 24 | 1),
        "",
        "null",
    ],
    ids=["deep list", "deep object", "nan", "digits", "long", "empty", "null"],
)
def test_texts_that_are_no_file_are_refused(text):
    with pytest.raises(InvalidSuperDSC):
        verify_dsc(loads(text))


def places(part, path=()):
    yield path
    for key in part if isinstance(part, dict) else range(len(part)) if isinstance(part, list) else ():
        yield from places(part[key], (*path, key))


@pytest.mark.parametrize("text", [ADD, MEAN, GATHER, FETCH], ids=["add", "mean", "gather", "fetch"])
@pytest.mark.parametrize("value", [None, 2**62, -1, 1.5, "", "x" * 99, [], {}, [[]], True], ids=repr)
def test_any_field_may_hold_anything(text, value):
    """The rules refuse by name or let pass what means the same; nothing else happens."""
    good = emitted(text)
    for path in list(places(good))[1:]:
        damaged = json.loads(dumps(good))
        part = damaged
        for key in path[:-1]:
            part = part[key]
        part[path[-1]] = value
        try:
            verify_dsc(damaged)
        except InvalidSuperDSC as error:
            assert len(str(error)) < 1000
        else:
            show(damaged)


@pytest.mark.parametrize(
    "text",
    [
        ADD.replace("5/5", "9" * 5000 + "/5"),
        ADD.replace("floor(c1/64)", "floor(c1/0)"),
        ADD.replace("Mod(c1, 64)", "Mod(c1, 0)"),
        ADD.replace("c0, ", "+".join(["c0"] * 5000) + ", ", 1),
        ADD.replace("SEN169_FP16", "__class__"),
        ADD.replace('"1": 2.5', '"1": [2]'),
        ADD.replace('"1": 2.5', '"x": 2'),
        '{"op":' * 100_000,
        '{"op": 1}',
        "[]",
        "",
    ],
)
def test_texts_that_are_no_op_spec_are_refused(text):
    with pytest.raises(ValueError, match="OpSpec|read|neither|line"):
        verify(parse_op_spec(text))
