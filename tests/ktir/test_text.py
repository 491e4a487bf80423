"""Text of KTIR: read, printed in both forms and read again; what is wrong with it, by line and column."""

from pathlib import Path

import pytest

from torch_spyre import ktir
from torch_spyre.ir.ktir.parser import parse
from torch_spyre.ir.ktir.printer import show
from torch_spyre.ir.ktir.source import KtirError
from torch_spyre.ir.ktir.verify import verify

PROGRAMS = sorted(Path(__file__).with_name("programs").glob("*.mlir"))


@pytest.mark.parametrize("generic", [False, True])
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_what_is_printed_is_read_back(path, generic):
    module = parse(path.read_text())
    printed = show(module, generic)
    again = parse(printed)
    verify(again)
    assert show(again, generic) == printed
    assert show(again) == show(module)


def test_the_generic_form_is_mlirs():
    text = """
    "builtin.module"() ({
      "func.func"() <{sym_name = "f", function_type = (index) -> ()}> ({
      ^bb0(%x: index):
        %c = "arith.constant"() <{value = 2 : index}> : () -> index
        %y = "arith.addi"(%x, %c) <{overflowFlags = #arith.overflow<none>}> : (index, index) -> index
        %b = "arith.cmpi"(%y, %c) <{predicate = 2 : i64}> : (index, index) -> i1
        "func.return"() : () -> ()
      }) {grid = [4]} : () -> ()
    }) : () -> ()
    """
    module = parse(text)
    verify(module)
    assert module.functions["f"].grid == [4]
    assert "arith.cmpi slt, %y, %c : index" in show(module)


FUNCTION = "func.func @f(%x: index) attributes {grid = [1]} {\n  BODY\n  return\n}"


@pytest.mark.parametrize(
    "body, message",
    [
        ("%y = arith.addi %x, %z : index", "2:23: unknown value %z"),
        ("%y = arith.addf %x, %x : index", "2:8: arith.addf: takes floats, not index"),
        ("%y = arith.frobnicate %x : index", "2:8: unknown operation arith.frobnicate"),
        ("%y = arith.addi %x, %x : i32", "2:8: arith.addi: the operands have the types index, index, not i32, i32"),
        ("%x = arith.constant 1 : index", "2:3: %x is defined twice"),
        ("%y = arith.constant 1.5 : f16 trailing", "2:33: unknown operation trailing"),
        ("%y = arith.constant ; : f16", "2:23: expected a type, not ';'"),
        ("%y = tensor.empty() : tensor<4x?xf16>", "2:8: tensor.empty: takes 1 indices"),
        ("%y = tensor.empty() : tensor<4xf12>", "2:25: tensor needs sizes and an element type"),
        ("%y, %z = arith.constant 1 : index", "2:12: arith.constant has 1 results, not 2"),
        ("%y = ktdp.load %x : index -> tensor<4xf16>", "2:8: ktdp.load: takes an access tile"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(body, message):
    with pytest.raises(KtirError) as error:
        verify(parse(FUNCTION.replace("BODY", body)))
    assert str(error.value).startswith(message)


def test_a_future_is_used_once():
    text = next(path for path in PROGRAMS if path.stem == "ring").read_text()
    begin = text.index("    %received")
    line = text[begin : text.index("\n", begin)]
    twice = text.replace(line, f"{line}\n{line.replace('%received', '%again')}")
    with pytest.raises(KtirError, match="ktdp.inter_tile_consume: a future has one use"):
        ktir.load(twice)
    lost = text.replace(line, line.replace("%received = ktdp.inter_tile_consume(%future)", "%received = XX"))
    lost = lost.replace(line.replace("%received = ktdp.inter_tile_consume(%future)", "%received = XX"), "").replace(
        "%received", "%passed"
    )
    with pytest.raises(KtirError, match="nobody consumes the future"):
        ktir.load(lost)
