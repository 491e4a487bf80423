"""The table of operations: which there are, how each is written, and how many operands it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ...ops.table import OPS

Form = Literal[
    "elementwise",  # %r = op %a, %b : T
    "cast",  # %r = op %a : T to U
    "compare",  # %r = op predicate, %a, %b : T
    "structured",  # %r = op ins(...) outs(...) -> T
    "own",  # a syntax that read_forms.py has a function for
]


@dataclass(frozen=True)
class Operation:
    name: str
    form: Form
    operands: int = -1  # -1: any number
    kind: Literal["", "float", "integer"] = ""  # what elements it takes


def _all(form: Form, operands: int, kind: Literal["", "float", "integer"], names: str) -> list[Operation]:
    return [Operation(name, form, operands, kind) for name in names.split()]


_ROWS = [
    *_all("elementwise", 2, "float", "arith.addf arith.subf arith.mulf arith.divf arith.remf"),
    *_all("elementwise", 2, "float", "arith.maximumf arith.minimumf arith.maxnumf arith.minnumf"),
    *_all("elementwise", 1, "float", "arith.negf"),
    *_all(
        "elementwise", 2, "integer", "arith.addi arith.subi arith.muli arith.divsi arith.divui arith.remsi arith.remui"
    ),
    *_all(
        "elementwise", 2, "integer", "arith.ceildivsi arith.floordivsi arith.ceildivui arith.andi arith.ori arith.xori"
    ),
    *_all(
        "elementwise",
        2,
        "integer",
        "arith.maxsi arith.minsi arith.maxui arith.minui arith.shli arith.shrsi arith.shrui",
    ),
    *_all("elementwise", 3, "", "arith.select"),
    *_all("compare", 2, "float", "arith.cmpf"),
    *_all("compare", 2, "integer", "arith.cmpi"),
    *_all("cast", 1, "", "arith.extf arith.truncf arith.extsi arith.extui arith.trunci arith.sitofp arith.uitofp"),
    *_all("cast", 1, "", "arith.fptosi arith.fptoui arith.bitcast arith.index_cast arith.index_castui"),
    *_all("own", 0, "", "arith.constant"),
    *_all("elementwise", 1, "float", "math.exp math.exp2 math.expm1 math.sqrt math.rsqrt math.tanh math.erf math.log"),
    *_all("elementwise", 1, "float", "math.log2 math.log10 math.log1p math.sin math.cos math.tan math.absf math.floor"),
    *_all("elementwise", 1, "float", "math.ceil math.roundeven math.trunc math.atan math.sinh math.cosh"),
    *_all("elementwise", 1, "integer", "math.absi"),
    *_all("elementwise", 2, "float", "math.powf math.copysign math.atan2"),
    *_all("elementwise", 3, "float", "math.fma"),
    *_all("elementwise", 1, "float", "spyreop.exp spyreop.gelu spyreop.silu spyreop.sigmoid spyreop.softplus"),
    *_all("elementwise", 1, "float", "spyreop.sqrt spyreop.rsqrt spyreop.reciprocal spyreop.layernormscale"),
    *_all("elementwise", 2, "float", "spyreop.realdiv"),
    *_all("structured", 2, "", "linalg.matmul linalg.matmul_transpose_a linalg.matmul_transpose_b linalg.batch_matmul"),
    *_all("structured", 2, "", "linalg.batch_matmul_transpose_a linalg.batch_matmul_transpose_b linalg.matvec"),
    *_all("structured", 2, "", "linalg.vecmat linalg.dot linalg.batch_matvec"),
    *_all("structured", 2, "", "linalg.add linalg.sub linalg.mul linalg.div linalg.max linalg.min linalg.powf"),
    *_all("structured", 1, "", "linalg.fill linalg.exp linalg.sqrt linalg.rsqrt linalg.tanh linalg.erf linalg.log"),
    *_all(
        "structured",
        1,
        "",
        "linalg.negf linalg.abs linalg.reciprocal linalg.square linalg.copy linalg.floor linalg.ceil",
    ),
    *_all("structured", -1, "", "linalg.generic linalg.reduce linalg.map"),
    *_all("structured", 1, "", "linalg.broadcast linalg.transpose"),
    *_all("structured", 3, "", "linalg.select"),
    *_all("own", 0, "", "linalg.index"),
    *_all("own", -1, "", "linalg.yield tensor.yield scf.yield ktdp.yield_partial ktdp.yield_reduced func.return"),
    *_all("own", -1, "", "tensor.empty tensor.splat tensor.extract tensor.extract_slice tensor.insert_slice"),
    *_all("own", -1, "", "tensor.expand_shape tensor.collapse_shape tensor.generate tensor.from_elements tensor.dim"),
    *_all("cast", 1, "", "tensor.cast tensor.bitcast"),
    *_all("own", -1, "", "scf.for scf.if func.call"),
    *_all("own", -1, "", "ktdp.get_compute_tile_id ktdp.construct_memory_view ktdp.construct_distributed_memory_view"),
    *_all("own", -1, "", "ktdp.construct_access_tile ktdp.construct_indirect_access_tile ktdp.load ktdp.store"),
    *_all("own", -1, "", "ktdp.runtime_arg_extract ktdp.inter_tile_produce ktdp.inter_tile_reduce"),
    *_all("own", -1, "", "ktdp.inter_tile_consume"),
]

# What the compiler emits beyond the dialect's own: every pointwise op of the card, by its name.
_CARD = [Operation(f"spyreop.{row.name}", "elementwise", row.arity) for row in OPS.values() if row.is_pointwise]

OPERATIONS: dict[str, Operation] = {row.name: row for row in (*_CARD, *_ROWS)}

SHORT_NAMES = {"return": "func.return", "call": "func.call"}  # as they may be written without a dialect

TERMINATORS = {
    "linalg.yield",
    "tensor.yield",
    "scf.yield",
    "ktdp.yield_partial",
    "ktdp.yield_reduced",
    "func.return",
}

INTEGER_PREDICATES = ["eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge"]
FLOAT_PREDICATES = [
    *("false", "oeq", "ogt", "oge", "olt", "ole", "one", "ord"),
    *("ueq", "ugt", "uge", "ult", "ule", "une", "uno", "true"),
]
