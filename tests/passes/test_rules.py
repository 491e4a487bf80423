"""Every rule of the verifier refuses the IR that breaks it, in its own sentence."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from tests.passes.loop_text import read
from tests.passes.stages import passed, plan_before, plan_of
from torch_spyre._inductor import conditions
from torch_spyre._inductor.conditions import CONDITIONS
from torch_spyre._inductor.layout import verify as layout
from torch_spyre._inductor.layout.device_ir import LxPlacement, Plan, dense_layout
from torch_spyre._inductor.loop_ir import Constant, RuntimeScalar
from torch_spyre._inductor.loop_ir import verify as loop_ir
from torch_spyre._inductor.planning import verify as planning
from torch_spyre._inductor.verification import InvalidIR, Verified

LOOPS = """
    kernel loops
      input x: float16[8, 64] strides [64, 1]
      input rows: int64[8] strides [1]
      input w: float16[64, 64] strides [64, 1]
      output y: float16[M 8, N 64] strides [64, 1]
      output z: float16[8] strides [1]
      internal t: float16[8, 64] strides [64, 1]
      internal tile: float16[2, 64] strides [64, 1]
      t[64,1] = exp(x[64,1]) over [8, 64]
      z[1,0] = sum(t[64,1]) over [8, 64] fold 1
      t[64,1] = gather(x[0,1], rows[1,0]) over [8, 64] via 1:8*64
      tile[0,64,1] = clamp(t[128,64,1]) [0.0, 1.0] over [4, 2, 64] tiles 0:4
      y[128,64,1] = add(tile[0,64,1], 3) over [4, 2, 64] tiles 0:4
      y[64,1,0] = matmul(y[64,0,1], w[0,1,64]) over [8, 64, 64] fold 1
"""

# The rule, what is damaged, by what, and how the refusal begins.
DAMAGED_LOOPS = [
    (
        "a buffer has a stride per dimension",
        "t: float16[8, 64] strides [64, 1]",
        "t: float16[8, 64] strides [1]",
        "buffer t has 2",
    ),
    (
        "a buffer has a stride per dimension",
        "w: float16[64, 64] strides [64, 1]",
        "w: float16[64, 64] strides [64, 1] order [1, 1]",
        "buffer w asks",
    ),
    ("the card has a format", "w: float16", "w: float64", "buffer w is of torch.float64"),
    (
        "buffers inside a kernel are dense",
        "t: float16[8, 64] strides [64, 1]",
        "t: float16[8, 64] strides [65, 1]",
        "buffer t of size",
    ),
    ("ops are those of the op table", "exp(", "expo(", "expo over [8, 64] is no op"),
    ("every access is to a buffer", "exp(x[", "exp(v[", "exp over [8, 64] uses v"),
    ("every loop has points", "exp(x[64,1]) over [8, 64]", "exp(x[64,1]) over [8, 0]", "exp over [8, 0] has a loop"),
    ("every access has a stride per loop", "exp(x[64,1])", "exp(x[64])", "exp over [8, 64] has 1 strides for x"),
    ("every access has a stride per loop", "[8, 64, 64] fold", "[8, 64] fold", "matmul over [8, 64] has 3 strides"),
    (
        "an op has the inputs and parameters",
        "exp(x[64,1])",
        "exp(x[64,1], x[64,1])",
        "exp over [8, 64] has 2 inputs, not 1",
    ),
    ("an op has the inputs and parameters", "[0.0, 1.0]", "[0.0]", "clamp over [4, 2, 64] has 1 parameters, not 2"),
    ("an op folds as many", "[8, 64] fold 1", "[8, 64]", "sum over [8, 64] folds 0 loops"),
    (
        "an op folds as many",
        "exp(x[64,1]) over [8, 64]",
        "exp(x[64,1]) over [8, 64] fold 1",
        "exp over [8, 64] folds 1 loops",
    ),
    ("a result stands still", "z[1,0]", "z[0,1]", "sum over [8, 64] writes z along loops that it folds"),
    ("an op has the inputs and parameters", " via 1:8*64", "", "gather over [8, 64] has 2 inputs, not 1"),
    (
        "gathers and scatters",
        "gather(x[0,1], rows[1,0]) over [8, 64] via 1:8*64",
        "gather(x[64,1]) over [8, 64]",
        "gather over [8, 64] has 0 indices",
    ),
    ("gathers and scatters", "rows: int64", "rows: float16", "gather over [8, 64] has no integers as input 1"),
    ("gathers and scatters", "1:8*64", "1:0*64", "gather over [8, 64] has an index in [0, 0)"),
    ("only pointwise ops", "sum(t[64,1])", "sum(3)", "sum over [8, 64] has a number as input 0"),
    ("an op has a function", "w: float16", "w: int32", "matmul over [8, 64, 64] makes float16 of float16, int32"),
    ("an op has a function", "t: float16", "t: int32", "exp over [8, 64] makes int32 of float16"),
    ("what moves bytes", "x: float16", "x: float32", "gather over [8, 64] makes float16 of float32"),
    (
        "an access stays within its buffer",
        "t[64,1] = exp",
        "t[1+64,1] = exp",
        "exp over [8, 64] reaches from 1 to 512 in t",
    ),
    ("an access stays within its buffer", "sum(t[64,1])", "sum(t[64,-1])", "sum over [8, 64] reaches from -63"),
    (
        "what is read was written",
        "t[64,1] = exp(x[64,1])",
        "y[64,1] = exp(x[64,1])",
        "sum over [8, 64] reads t, which nothing",
    ),
    ("what is read was written", "z[1,0]", "t[1,0]", "nothing writes the output z"),
    (
        "tile loops come first",
        "y[128,64,1] = add(tile[0,64,1], 3) over [4, 2, 64] tiles 0:4",
        "y[128,64,1] = add(tile[0,64,1], 3) over [4, 2, 64] tiles 0:2",
        "add over [4, 2, 64] has tile loops of [2]",
    ),
    ("no two points", "z[1,0]", "z[0,0]", "sum over [8, 64] writes elements of z several times"),
    ("no two points", "t[64,1] = exp", "t[4,1] = exp", "exp over [8, 64] writes elements of t several times"),
    (
        "what a tile loop keeps",
        "add(tile[0,64,1], 3) over [4, 2, 64] tiles 0:4",
        "add(tile[0,64,1], 3) over [4, 2, 64]",
        "add over [4, 2, 64] uses tile",
    ),
]


def text_of(value: object) -> str:
    """The name of a case: its texts, or else those of all processes would differ."""
    return value[:24] if isinstance(value, str) else "damage"


def test_the_kernel_that_is_damaged_is_valid():
    loop_ir.verify(read(LOOPS), "k", Verified())


@pytest.mark.parametrize(("rule", "old", "new", "fault"), DAMAGED_LOOPS, ids=text_of)
def test_loop_ops_that_break_a_rule(rule, old, new, fault):
    assert old in LOOPS
    with pytest.raises(InvalidIR) as refusal:
        loop_ir.verify(read(LOOPS.replace(old, new, 1)), "k", Verified())
    assert str(refusal.value).startswith(f"k: {fault}")
    assert f"the rule: {rule}" in str(refusal.value)


def rename(kernel):
    kernel.buffers["t"] = replace(kernel.buffers["t"], name="u")


def make_a_constant(kernel):
    kernel.buffers["t"] = replace(kernel.buffers["t"], kind="constant")


def give_half(kernel):
    kernel.ops[4].ins = (kernel.ops[4].ins[0], Constant(0.5, torch.int64))


def ask_before_the_first(kernel):
    kernel.ops[4].ins = (kernel.ops[4].ins[0], Constant(RuntimeScalar(-1), torch.float16))


@pytest.mark.parametrize(
    ("damage", "fault"),
    [
        (rename, "buffer t says that it is u; the rule: a buffer is called by its name"),
        (make_a_constant, "buffer t is of the kind 'constant'; the rule: a buffer is an input, an output or internal"),
        (give_half, "add over [4, 2, 64] has 0.5 as input 1, an integer; the rule: only pointwise ops"),
        (ask_before_the_first, "add over [4, 2, 64] asks for number -1 of the launch; the rule: numbers of a launch"),
    ],
)
def test_loop_ops_that_no_text_has(damage, fault):
    kernel = read(LOOPS)
    damage(kernel)
    with pytest.raises(InvalidIR) as refusal:
        loop_ir.verify(kernel, "k", Verified())
    assert str(refusal.value).startswith(f"k: {fault}"), refusal.value


DEVICE = """
    kernel device
      input x: float16[64, 128] strides [128, 1]
      input rows: int64[64] strides [1]
      output y: float16[64, 128] strides [128, 1]
      output z: float16[64] strides [1]
      output v: float16[32] strides [1]
      internal s: float16[64, 128] strides [128, 1]
      internal t: float16[64, 128] strides [128, 1]
      internal u: float16[64, 128] strides [128, 1]
      s[128,1] = gather(x[0,1], rows[1,0]) over [64, 128] via 1:64*128
      t[128,1] = exp(s[128,1]) over [64, 128]
      u[128,1] = cumsum(t[128,1]) over [64, 128]
      y[128,1] = mul(t[128,1], u[128,1]) over [64, 128]
      z[1,0] = sum(t[128,1]) over [64, 64] fold 1
      v[1] = copy(x[32+1]) over [32]
"""
GATHER, EXP, CUMSUM, MUL, SUM, COPY = range(6)


def planned() -> Plan:
    return plan_before("build_specs", plan_of(DEVICE))


def operand(plan: Plan, op: int, position: int = -1):
    return plan.device_ops[op].operands[position]


def lies_as(**damage) -> Callable[[Plan], None]:
    """Another layout for a buffer."""

    def apply(plan: Plan) -> None:
        for name, size in damage.items():
            plan.layouts[name] = dense_layout(replace(plan.kernel.buffers[name], **size))

    return apply


def sets(op: int, **fields) -> Callable[[Plan], None]:
    """Other fields for a device op."""
    return lambda plan: [setattr(plan.device_ops[op], name, value) for name, value in fields.items()]


def moves(op: int, position: int = -1, **fields) -> Callable[[Plan], None]:
    """Other fields for an operand of a device op."""
    return lambda plan: [setattr(operand(plan, op, position), name, value) for name, value in fields.items()]


def in_lx(name: str, address: int | None = None, size: tuple[int, ...] | None = None) -> Callable[[Plan], None]:
    def apply(plan: Plan) -> None:
        old, there = plan.lx[name]
        there = LxPlacement(there.origin, there.size if size is None else size)
        plan.lx[name] = (old if address is None else address, there)

    return apply


def read_behind(plan: Plan) -> None:
    op = plan.kernel.ops[GATHER]
    plan.kernel.ops[GATHER] = replace(op, ins=(replace(op.ins[0], offset=128), op.ins[1]))


def exchange_arguments(plan: Plan) -> None:
    plan.arguments["x"], plan.arguments["y"] = plan.arguments["y"], plan.arguments["x"]


def put_in_the_pool(plan: Plan) -> None:
    """Values that live at the same time, in one place."""
    plan.lx.clear()
    plan.pool |= {"t": 0, "u": 0}
    plan.pool_bytes = 1 << 20


FLAT = {"size": (64,), "stride": (1,)}
DAMAGED_PLANS = [
    ("a layout has the format", lies_as(t={"dtype": torch.float32}), "t, of torch.float16, lies as"),
    ("a layout has room", lies_as(t=FLAT), "t, of size [64, 128], has no room in"),
    ("a layout has room", lambda plan: plan.offsets.update(x=1 << 20), "x, of size [64, 128], has no room"),
    ("an access stays within the layout", read_behind, "gather over [64, 128] reaches from 128 to 8319 of x"),
    (
        "all buffers of a device op",
        lambda plan: plan.layouts.pop("t"),
        "exp over [64, 128], as [64, 128] on the card, uses t, which",
    ),
    ("a device op has loops", sets(EXP, origins=[0]), "has 2 loops of 1 origins"),
    ("a device op has loops", sets(EXP, origins=[0, 2]), "has loops of [0, 2], and the op has 2"),
    ("a device op has loops", sets(SUM, reduced=0), "folds 0 loops"),
    ("a device op has loops", sets(EXP, parameters=(1.0,)), "has 1 parameters, not 0"),
    ("a device op has loops", lambda plan: plan.device_ops[EXP].operands.pop(), "has coordinates of 1 operands, not 2"),
    ("an operand has a step", moves(EXP, constant=[0, 0]), "does not have 3 coordinates of t"),
    ("an operand has a step", moves(EXP, steps=[[0, 1, 0]]), "has steps along 1 loops of t"),
    ("an operand has a step", moves(EXP, tile_steps=[[0, 0, 0]]), "has steps along 1 tile loops of t"),
    ("an operand has a step", moves(GATHER, 0, jumps=[]), "has 0 jumps, not 1, of x"),
    ("along its sticks", moves(EXP, stick=2), "has loop 2 along sticks"),
    ("along its sticks", moves(EXP, elements=32), "has sticks of 32 elements, not 64, of t"),
    ("along its sticks", moves(EXP, constant=[0, 0, 1]), "moves inside sticks with more than the loop along them of t"),
    ("device coordinates stay", moves(EXP, constant=[0, 1, 0]), "goes from 1 to 64 along dimension 1, of 64, of t"),
    ("device coordinates stay", moves(EXP, constant=[-1, 0, 0]), "goes from -1 to 0 along dimension 0, of 2, of t"),
    ("device coordinates stay", moves(GATHER, 0, jumps=[(1, 2, False)]), "goes from 0 to 126 along dimension 1"),
    ("a device op writes nothing", moves(SUM, steps=[[0, 0, 0], [0, 1, 0]]), "writes z along loops that it folds"),
    ("an op has a number of cores", sets(EXP, slices=[4]), "has the slices [4]"),
    ("an op has a number of cores", sets(EXP, slices=[8, 1]), "is divided over 8 of 4 cores"),
    ("every core has something", sets(EXP, slices=[1, 3]), "has 128 points for 3 cores that take 64 each"),
    ("cores share one folded loop", sets(CUMSUM, slices=[1, 2]), "is divided as [1, 2], along what it scans"),
    ("no two cores write into one stick", sets(COPY, slices=[2]), "is divided as [2]: two cores would"),
    ("no core reaches over more", lambda plan: setattr(plan, "span", 256), "reaches over more than 256 bytes"),
    ("the launch gives inputs", exchange_arguments, "the launch has"),
    ("what has a place inside", lambda plan: plan.pool.update(y=0), "y, an argument, has a place inside the kernel"),
    ("what has a place inside", lambda plan: plan.pool.update(q=0), "q has a place inside the kernel and no layout"),
    ("what is inside a kernel", in_lx("t", address=64), "t lies at 64 of LX"),
    ("what is inside a kernel", in_lx("t", address=1 << 21), "t lies at 2097152 of LX"),
    ("what is inside a kernel", lambda plan: setattr(plan, "pool_bytes", 0), "lies at 0 of the pool"),
    ("what is in LX is used by", sets(EXP, slices=[]), "is not divided, and uses what is in LX"),
    ("what is in LX is the tile", in_lx("t", size=(2, 8, 64)), "t is in LX as"),
    ("what is in LX at the same time", in_lx("u", address=0), "t and u lie in one place of LX while both are needed"),
    ("what is in the pool at the same time", put_in_the_pool, "s and t lie in one place of the pool while"),
    ("the ring goes from LX to LX", sets(MUL, across=(1, 0)), "mul to y goes over the ring, not from LX to LX"),
]


@pytest.mark.parametrize(("rule", "damage", "fault"), DAMAGED_PLANS, ids=text_of)
def test_plans_that_break_a_rule(rule, damage, fault):
    plan = planned()
    damage(plan)
    with pytest.raises(InvalidIR) as refusal:
        conditions.verify(plan, "after damage")
    assert f"{fault}" in str(refusal.value)
    assert f"the rule: {rule}" in str(refusal.value)


def share_a_storage(plan: Plan) -> None:
    plan.storages = {"x": "rows"}


def make_what_nobody_reads(plan: Plan) -> None:
    plan.kernel.ops.append(replace(plan.kernel.ops[EXP], out=replace(plan.kernel.ops[EXP].out, buffer="s")))


def read_the_next_row(plan: Plan) -> None:
    op = plan.kernel.ops[EXP]
    plan.kernel.ops[EXP] = replace(op, sizes=(63, 128), ins=(replace(op.out, offset=128),))


DAMAGED_CONDITIONS = [
    ("no aliases", share_a_storage, "gather over [64, 128] uses x, which lies in the storage of rows"),
    ("no dead ops", make_what_nobody_reads, "nothing reads s, which exp over [64, 128] writes"),
    ("no overlaps", read_the_next_row, "exp over [63, 128] reads t where other points write it"),
    ("layouts", lambda plan: plan.layouts.pop("t"), "t of exp over [64, 128] has no layout"),
    ("device ops", moves(EXP, steps=[[0, 0, 0], [0, 0, 1]]), "moves its operands along loop 0 otherwise than the op"),
    ("device ops", sets(EXP, counts=[32, 128]), "exp to t has 4096 points on the card, and 8192 in loop IR"),
    ("divided", sets(EXP, slices=[]), "exp over [64, 128] has the slices []"),
    ("placed", lambda plan: plan.lx.clear(), "t of exp has 0 places"),
    ("specs", lambda plan: plan.specs[1].args.reverse(), "exp: args: must be the inputs, then the one output"),
]


@pytest.mark.parametrize(("name", "damage", "fault"), DAMAGED_CONDITIONS, ids=text_of)
def test_plans_that_break_a_condition(name, damage, fault):
    plan = passed("build_specs", planned())
    conditions.check(plan, [name], "before")
    damage(plan)
    with pytest.raises(InvalidIR, match=f"^device, after damage: .*{re.escape(fault)}"):
        conditions.check(plan, [name], "after damage")


def test_every_rule_is_broken_by_a_test():
    tables = (loop_ir.BUFFER_RULES, loop_ir.OP_RULES, loop_ir.KERNEL_RULES)
    tables += (layout.LAYOUT_RULES, layout.ACCESS_RULES, layout.DEVICE_OP_RULES)
    tables += (planning.DEVICE_OP_RULES, planning.MEMORY_RULES)
    rules = {rule.text for table in tables for rule in table}
    damaged = [row[0] for row in (*DAMAGED_LOOPS, *DAMAGED_PLANS)]
    damaged += ["a buffer is called by its name", "a buffer is an input", "numbers of a launch"]
    assert [text for text in rules if not any(text.startswith(each) for each in damaged)] == []
    assert {row[0] for row in DAMAGED_CONDITIONS} == set(CONDITIONS)
