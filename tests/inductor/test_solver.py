"""Plans by the constraint solver are the best there are, plans on disk are found again, and no result changes."""

import hashlib
import json
import sys
from collections import Counter
from dataclasses import dataclass
from itertools import chain, combinations, product

import pytest
import torch
import torch.nn.functional as F

from torch_spyre import timing
from torch_spyre._inductor import config
from torch_spyre._inductor.planning import divide_work, joint_search, plan_cache
from torch_spyre._inductor.planning.cp_sat import solve
from torch_spyre._inductor.planning.divisions import divisions
from torch_spyre._inductor.planning.optimality import Optimality
from torch_spyre._inductor.planning.search_space import SearchSpace, repeated
from torch_spyre.caching import store
from torch_spyre.ops.attention import written_out


@dataclass
class RuntimeScalar:
    """What the planner was given, and can be given again."""

    plan: object
    fixed: set
    costs: object
    start: list

    def space(self) -> SearchSpace:
        self.reset()
        return SearchSpace(self.plan, self.fixed, self.costs)

    def planned(self, **settings) -> list:
        self.reset()
        with config.patch(**settings):
            joint_search.joint_search(self.plan, self.fixed, self.costs)
        return [tuple(op.slices) for op in self.plan.device_ops]

    def reset(self) -> None:
        for op, slices in zip(self.plan.device_ops, self.start, strict=True):
            op.slices = list(slices)


@pytest.fixture
def given(monkeypatch):
    """``given(function, shapes)``: compiles it and tells what the planner saw."""

    def compiled(function, shapes, **settings) -> RuntimeScalar:
        found = []

        def capture(plan, fixed, costs):
            found.append(RuntimeScalar(plan, fixed, costs, [tuple(op.slices) for op in plan.device_ops]))
            raise _Seen

        with monkeypatch.context() as patch:
            patch.setenv("SPYRE_KERNEL_CACHE", "0")
            patch.setattr(divide_work, "joint_search", capture)
            torch._dynamo.reset()
            with config.patch(**settings), pytest.raises(_Seen):
                torch.compile(function, fullgraph=True)(*(half(*shape) for shape in shapes))
        return found[0]

    return compiled


class _Seen(Exception):
    pass


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where plans lie."""
    monkeypatch.setenv("SPYRE_KERNEL_CACHE", str(tmp_path))
    monkeypatch.setattr(plan_cache.PLANS, "counts", Counter())
    monkeypatch.setattr(plan_cache.PLANS, "bytes_used", {})
    return tmp_path / "spyre" / "plans"


@pytest.fixture
def no_folder(monkeypatch):
    monkeypatch.setenv("SPYRE_KERNEL_CACHE", "0")


def half(*shape):
    return torch.randn(shape).half().to("spyre")


def run(function, args, **settings):
    torch._dynamo.reset()
    with config.patch(**settings):
        return torch.compile(function, fullgraph=True)(*args).cpu()


def softmax(x):
    return torch.softmax(x, -1)


def gated(x, w, v):
    return F.silu(x @ w) * (x @ v)


def turned(x, w):
    return torch.relu(x @ w).t() * 2 + 1


def across(x):
    """By columns, then by rows: what lies between is worth a way over the ring."""
    x = torch.relu(x)
    x = x * x.sum(0, keepdim=True)
    return x * x.sum(1, keepdim=True)


def in_turn(x):
    """By rows, by columns, by rows: two readers may share a copy, which then waits for the last of them."""
    x = torch.relu(x)
    return x.sum(1), x.sum(0), x.amax(1)


def both(x, w):
    x = torch.relu(x @ w)
    return x.sum(0, keepdim=True) * x, x.sum(1)


def attention(q, k, v):
    return written_out(q, k, v, None, True, 0.125, False)


def block(x, gate, up, down):
    y = F.rms_norm(x, x.shape[-1:])
    return x + (F.silu(y @ gate) * (y @ up)) @ down


def layers(x, *weights):
    x = x * 12
    for w in weights:
        x = x + F.silu(F.rms_norm(x, x.shape[-1:]) @ w) @ w
    return F.rms_norm(x, x.shape[-1:])


def of_layers(count):
    return [(256, 512), *[(512, 512)] * count]


BLOCK = [(256, 512), (512, 1280), (512, 1280), (1280, 512)]


# --- the solver


def brute_force(space, slices):
    """The least time over every division of every op and every set of buffers that fits, with copies over the ring."""
    options = [
        [mine] if at in space.fixed else list(divisions(space.plan, space.ops[at], any_number=True))
        for at, mine in enumerate(slices)
    ]
    return min(least(space, chosen) for chosen in product(*options))


def least(space, chosen):
    there = {name: space.stay(name, chosen.__getitem__) for name in space.uses}
    names = [name for name, place in there.items() if place]
    best = float("inf")
    for stay in chain.from_iterable(combinations(names, n) for n in range(len(names) + 1)):
        load = Counter()
        for span, size in chain.from_iterable(space.rooms(name, there[name]) for name in stay):
            load.update(dict.fromkeys(span, size))
        if max(load.values(), default=0) > space.budget:
            continue
        time = sum(space.copying_us(name, there[name], chosen.__getitem__) for name in stay)
        for at, slices in enumerate(chosen):
            held = {position for name, position in space.shared[at] if name in stay}
            operands = range(len(space.ops[at].operands))
            time += space.time(at, slices, tuple(position in held for position in operands))
        best = min(best, time)
    return best


TINY = [
    (softmax, [(96, 256)], 2, None),
    (softmax, [(1024, 1024)], 2, 600_000),  # room for some
    (gated, [(64, 128), (128, 256), (128, 256)], 2, None),
    (gated, [(512, 128), (128, 512), (128, 512)], 2, 300_000),
    (turned, [(70, 128), (128, 192)], 3, None),
    (across, [(1024, 1024)], 3, 800_000),
    (in_turn, [(1024, 1024)], 4, None),  # over the ring
    (in_turn, [(1024, 1024)], 4, 1_000_000),  # no room for a copy
    (both, [(768, 256), (256, 1024)], 3, 1_200_000),
]


@pytest.mark.parametrize(("function", "shapes", "cores", "budget"), TINY)
def test_nothing_is_better_by_brute_force(function, shapes, cores, budget, given, no_folder):
    pytest.importorskip("ortools")
    it = given(function, shapes, sencores=cores)
    space = it.space()
    space.budget = budget or space.budget
    expected = brute_force(space, it.start)
    found, optimality = solve(space, it.start, {})
    assert (optimality.status, optimality.scope) == ("optimal", "all")
    assert optimality.bound_us == pytest.approx(expected, abs=1e-4)
    assert least(space, found) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("function", "shapes", "cores"),
    [(attention, [(1, 8, 128, 64)] * 3, 32), (block, BLOCK, 8), (across, [(1024, 1024)], 4)],
    ids=["attention", "block", "across"],
)
def test_the_solver_is_never_slower_than_the_search_and_changes_no_result(function, shapes, cores, no_folder):
    pytest.importorskip("ortools")
    torch.manual_seed(0)
    args = [half(*shape) for shape in shapes]
    results, said, bounds = [], [], []
    for solver in ("search", "exact"):
        with timing.record() as found:
            results.append(run(function, args, solver=solver, plan_bound=True, sencores=cores))
        (launch,) = found.launches
        said.append(launch.code["planner"])
        bounds.append(launch.code["bound_us"])
    assert torch.equal(*results)
    searched, solved = said
    assert (searched["status"], solved["status"], solved["scope"]) == ("searched", "optimal", "all")
    assert solved["objective_us"] <= searched["objective_us"] + 1e-9
    assert bounds[0] <= bounds[1] <= solved["objective_us"] + 1e-6
    assert solved["best_bound_us"] >= bounds[1] == bounds[0] == searched["best_bound_us"]
    assert 0 <= solved["gap"] <= searched["gap"]


def test_few_divisions_are_enough_and_are_said_to_be(given, no_folder, monkeypatch):
    pytest.importorskip("ortools")
    it = given(block, BLOCK, sencores=4)
    everything = solve(it.space(), it.start, {})[1]
    monkeypatch.setattr("torch_spyre._inductor.planning.cp_sat.candidates.ALL", 0)
    found, optimality = solve(it.space(), it.start, {})
    assert (optimality.status, optimality.scope) == ("optimal", "candidates")
    assert optimality.bound_us >= everything.bound_us - 1e-6, "fewer choices, and better"
    assert least(it.space(), found) == pytest.approx(optimality.bound_us, abs=1e-4)


def test_the_best_plan_goes_over_the_ring(given, no_folder):
    pytest.importorskip("ortools")
    it = given(across, [(1024, 1024)], sencores=4)
    it.planned(solver="exact")
    assert it.plan.moves
    assert it.plan.planner["gap"] == pytest.approx(0, abs=1e-6)


def test_few_pairs_over_the_ring_are_said_to_be_few(given, no_folder, monkeypatch):
    """What the search moves is among them, so nothing gets slower."""
    pytest.importorskip("ortools")
    it = given(across, [(1024, 1024)], sencores=4)
    it.planned()
    assert it.plan.moves
    searched = it.plan.planner["objective_us"]
    it.planned(solver="exact")
    everything = it.plan.planner
    assert everything["scope"] == "all"
    monkeypatch.setattr("torch_spyre._inductor.planning.cp_sat.places.PAIRS", 1)
    it.planned(solver="exact")
    few = it.plan.planner
    assert (few["status"], few["scope"]) == ("optimal", "ring between candidates")
    assert everything["best_bound_us"] <= few["best_bound_us"] + 1e-6
    assert few["best_bound_us"] <= searched + 1e-6
    assert it.plan.moves


def test_equal_layers_are_divided_alike(given, no_folder):
    pytest.importorskip("ortools")
    it = given(layers, of_layers(6), sencores=4)
    searched = it.planned()
    total = it.plan.planner["objective_us"]
    solved = it.planned(solver="exact")
    assert it.plan.planner["scope"] == "layers alike"
    assert it.plan.planner["objective_us"] <= total + 1e-9
    assert len(searched) == len(solved)
    found, optimality = solve(it.space(), it.start, {})
    begin, period, end = repeated(it.space().keys)
    assert found[begin + period : end - 2 * period] == found[begin + 2 * period : end - period]
    assert it.space().bound(it.start) <= optimality.bound_us + 1e-6


def test_the_solver_ends_alike(given, no_folder):
    pytest.importorskip("ortools")
    it = given(block, BLOCK, sencores=8)
    with config.patch(solver_seconds=0.05):
        found = [solve(it.space(), it.start, {}) for _ in range(2)]
    assert found[0] == found[1]
    assert found[0][1].status != "optimal", "it was to end before it is ready"


def test_without_the_solver(given, no_folder, monkeypatch):
    it = given(softmax, [(96, 256)])
    monkeypatch.setitem(sys.modules, "ortools.sat.python", None)
    with pytest.raises(ImportError, match=r'SPYRE_SOLVER=exact needs OR-Tools: pip install "torch-spyre\[solver\]"'):
        it.planned(solver="exact")
    assert it.planned()


# --- plans on disk


def stats():
    return tuple(plan_cache.PLANS.stats().values())


def never(*_):
    raise AssertionError("found on disk, not searched")


def test_a_plan_is_found_again(given, folder, monkeypatch):
    it, again = given(block, BLOCK), given(block, BLOCK)
    searched = it.planned()
    assert searched != it.start
    monkeypatch.setattr(joint_search._Search, "improve", never)
    assert again.planned() == searched
    assert again.plan.planner["objective_us"] == it.plan.planner["objective_us"]
    assert stats() == (1, 1, 0, 0)


def test_what_was_proved_is_found_again(given, folder):
    pytest.importorskip("ortools")
    it = given(block, BLOCK, sencores=8)
    it.planned(solver="exact", plan_bound=True)
    said, bound = it.plan.planner, it.plan.bound_us
    it.planned(solver="exact", plan_bound=True)
    assert stats()[0] == 1
    assert (it.plan.planner | {"seconds": 0}, it.plan.bound_us) == (said | {"seconds": 0}, bound)
    it.planned()
    assert it.plan.planner["status"] == "searched", "another planner's plan is not taken"


@pytest.mark.parametrize("change", ["shape", "cores", "room", "compiler", "hardware"])
def test_another_problem_is_another_plan(change, given, folder, monkeypatch, tmp_path):
    it = given(block, BLOCK)
    it.planned()
    if change == "shape":
        it = given(block, [(512, 512), *BLOCK[1:]])
    elif change == "cores":
        it = given(block, BLOCK, sencores=31)
    elif change == "room":
        monkeypatch.setenv("DXP_LX_FRAC_AVAIL", "0.5")
    elif change == "compiler":
        monkeypatch.setattr(plan_cache, "compiler_version", lambda: "another")
    else:
        constants = plan_cache.description.constants()
        monkeypatch.setattr(plan_cache.description, "constants", lambda: {**constants, "dram_gb_per_s": 100.0})
    it.planned()
    assert stats() == (0, 2, 0, 0)


@pytest.mark.parametrize("damage", ["flip", "truncate", "remove"])
def test_a_damaged_plan_is_made_again(damage, given, folder):
    it = given(block, BLOCK)
    searched = it.planned()
    (file,) = folder.glob("??/*/manifest.json")
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.unlink() if damage == "remove" else file.write_bytes(content if damage == "flip" else content[:20])
    assert it.planned() == searched
    assert stats() == (0, 2, 1, 0)
    assert it.planned() == searched
    assert stats() == (1, 2, 1, 0)


@pytest.mark.parametrize("field", ["slices", "around", "optimality"])
@pytest.mark.parametrize("value", [[[[1]]], [{}], 1, {"x": [[]]}, {"status": {}}], ids=repr)
def test_a_plan_of_another_kind_is_made_again(field, value, given, folder):
    """Its checksum fits: somebody wrote it so."""
    it = given(block, BLOCK)
    searched = it.planned()
    (file,) = folder.glob("??/*/manifest.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {field: value}))
    (file.parent / "manifest.sha256").write_bytes(hashlib.sha256(file.read_bytes()).digest())
    assert it.planned() == searched
    assert stats() == (0, 2, 1, 0)


@pytest.mark.parametrize("wrong", ["shorter", "impossible", "fixed"])
def test_a_plan_that_does_not_fit_is_not_used(wrong, given, folder, monkeypatch):
    it = given(block, BLOCK)
    searched = it.planned()
    bad = list(searched)
    if wrong == "shorter":
        bad.pop()
    else:
        at = next(at for at in range(len(bad)) if bad[at] != it.start[at])
        if wrong == "fixed":
            it.fixed = it.fixed | {id(it.plan.device_ops[at])}
            bad[at] = searched[at]
        else:
            bad[at] = (7,) * len(bad[at])
    monkeypatch.setattr(plan_cache.PLANS, "find", lambda *_: plan_cache.Known(bad, {}, Optimality()))
    monkeypatch.setattr(plan_cache.PLANS, "keep", lambda *_: None)
    found = it.planned()
    if wrong == "fixed":
        assert found[at] == it.start[at]
    else:
        assert found == searched


def test_a_layer_serves_every_depth(given, folder, monkeypatch, tmp_path):
    shallow, deep = given(layers, of_layers(2)), given(layers, of_layers(7))
    shallow.planned()
    tried = []
    evaluate = joint_search._Search._evaluate
    monkeypatch.setattr(
        joint_search._Search, "_evaluate", lambda *args, **more: tried.append(0) or evaluate(*args, **more)
    )
    found = deep.planned()
    known, objective = len(tried), deep.plan.planner["objective_us"]
    assert stats()[0] == 1
    monkeypatch.setenv("SPYRE_KERNEL_CACHE", str(tmp_path / "another"))
    tried.clear()
    deep.planned()
    assert known < len(tried) / 4
    assert objective <= deep.plan.planner["objective_us"] + joint_search.GAIN
    begin, period, end = repeated(deep.space().keys)
    assert found[begin : end - period] == found[begin + period : end] != deep.start[begin + period : end]


def test_plans_are_off_with_the_kernels(given, tmp_path, no_folder, monkeypatch):
    monkeypatch.setattr(store, "aside", never)
    given(block, BLOCK).planned()
