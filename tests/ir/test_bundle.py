"""bundle.mlir: the order of a kernel's files, with loops."""

import pytest

from torch_spyre.ir import bundle, superdsc
from torch_spyre.ir.op_spec import LoopSpec, parse_op_spec, symbol

NEG = """\
neg over c0: 2/1, c1: 64/1
  in  arg0 SEN169_FP16[8, 64] at [c0 + 2*t0, c1]
  out arg1 SEN169_FP16[8, 64] at [c0 + 2*t0, c1]"""
PLAIN = NEG.replace(" + 2*t0", "")

TEXT = """\
module {
  func.func @k() {
    %c0 = arith.constant 0 : index
    %c1 = arith.constant 1 : index
    %c4 = arith.constant 4 : index
    sdscbundle.sdsc_execute () {sdsc_filename = "sdsc_0.json", symbol_ids = []}
    scf.for %t0 = %c0 to %c4 step %c1 {
      %0 = affine.apply affine_map<(d0) -> (d0 * 256)>(%t0)
      %1 = affine.apply affine_map<(d0) -> (d0 * 256)>(%t0)
      sdscbundle.sdsc_execute (%0, %1) {sdsc_filename = "sdsc_1.json", symbol_ids = [0, 1]}
    }
    return
  }
}
"""


def emitted() -> tuple[str, list[str]]:
    return bundle.emit("k", [parse_op_spec(PLAIN), LoopSpec(4, [parse_op_spec(NEG)], [symbol("t0")])])


def test_the_text_of_a_loop_is_read_back():
    text, files = emitted()
    assert text == TEXT
    assert len(files) == 2
    assert bundle.to_text(bundle.parse(text)) == text


def test_a_chain_of_files_has_no_loops():
    text, _ = bundle.emit("k", [parse_op_spec(PLAIN)] * 3)
    assert bundle.parse(text) == bundle.Bundle("k", [bundle.Execute(f"sdsc_{i}.json") for i in range(3)])


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("sdsc_1.json", "sdsc_7.json", "sdsc_filename: there is no sdsc_7.json"),
        ("(d0 * 256)", "(d0 * 128)", "symbol_ids of sdsc_1.json: not the loopStrides_ of the file"),
        ("    return\n", "    jump\n", "cannot read: jump"),
        ("func.func @k() {", "", "there is no func.func"),
    ],
)
def test_broken_bundles_are_refused(old, new, message):
    text, files = emitted()
    with pytest.raises(bundle.InvalidBundle, match=message):
        chain = bundle.parse(text.replace(old, new, 1))
        moves = [bundle.moves_of(superdsc.loads(file)) for file in files]
        bundle.verify(chain, {bundle.file_name(i): each for i, each in enumerate(moves)})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("(%0, %1)", "(%0, %7)", "nothing says what %7 is"),
        ("[0, 1]", "[0]", "symbol_ids must be one number per value"),
        ("[0, 1]", "[0, x]", "symbol_ids must be one number per value"),
        ("(d0 * 256)", "(d0 / 256)", "affine_map must multiply"),
        ("(d0 * 256)", f"(d{'9' * 5000} * 256)", "affine_map must multiply"),
        ("(d0 * 256)", "(d0 * 9999999999999)", "a turn moves an address"),
        ("%c4 step", "%c1000000000 step", "a count of 1 to 65536"),
        ("%c4 step", "%c0 step", "a count of 1 to 65536"),
        ("%c4 step", f"%c{'9' * 5000} step", "cannot read"),
        ("  }\n}\n", "", "has no end"),
        ("    return\n", "    }\n    }\n    }\n    return\n", "no place here"),
    ],
)
def test_damaged_bundles_are_refused_by_name(old, new, message):
    text, files = emitted()
    with pytest.raises(bundle.InvalidBundle, match=message):
        chain = bundle.parse(text.replace(old, new, 1))
        bundle.verify(chain, {f"sdsc_{i}.json": bundle.moves_of(superdsc.loads(file)) for i, file in enumerate(files)})


def test_loops_are_neither_endless_nor_bottomless():
    loops = [f"scf.for %t{i} = %c0 to %c65536 step %c1 {{" for i in range(10_000)]
    deep = "\n".join(["module {", "func.func @k() {", *loops, *["}"] * 10_002])
    with pytest.raises(bundle.InvalidBundle, match="more than 16 loops inside each other"):
        bundle.parse(deep)
    run = 'sdscbundle.sdsc_execute () {sdsc_filename = "sdsc_0.json", symbol_ids = []}'
    wide = "\n".join(["module {", "func.func @k() {", *loops[:2], run, *["}"] * 4])
    with pytest.raises(bundle.InvalidBundle, match="4294967296 steps with loops written out"):
        bundle.verify(bundle.parse(wide), {"sdsc_0.json": ()})
