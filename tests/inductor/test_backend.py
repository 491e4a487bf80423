"""Graphs with card tensors through torch.compile: what becomes a kernel, what runs eagerly, what Inductor keeps."""

import operator

import pytest
import torch
from torch._inductor.utils import run_and_get_code

from torch_spyre._inductor.fx import partition

pytestmark = pytest.mark.filterwarnings("ignore::torch.spyre.FallbackWarning")


def card(*size: int, seed: int = 0, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    """Small whole numbers: exact in every format."""
    return torch.randint(-8, 8, size, generator=torch.Generator().manual_seed(seed)).to(dtype).to("spyre")


def host(values: object) -> object:
    return torch.utils._pytree.tree_map(lambda v: v.cpu() if isinstance(v, torch.Tensor) else v, values)


def check(function, *args, **options) -> None:
    """Compiled and eager give the same results and leave the same in their arguments."""
    copies = [arg.clone() if isinstance(arg, torch.Tensor) else arg for arg in args]
    want = function(*copies)
    got = torch.compile(function, **options)(*args)
    torch.testing.assert_close(host((got, args)), host((want, tuple(copies))), rtol=2**-8, atol=2**-8)


def test_an_addition_is_one_kernel_call(fresh):
    x, y = card(4, 64), card(4, 64, seed=1)
    out, (code,) = run_and_get_code(torch.compile(operator.add, fullgraph=True), x, y)
    assert torch.equal(out.cpu(), x.cpu() + y.cpu())
    assert "buf0 = spyre_kernel_0(arg0_1, arg1_1)" in code


def test_kernels_that_do_the_same_are_defined_once(fresh):
    def function(x):
        for _ in range(3):
            x = (x + 1).cpu().to("spyre")
        return x

    _, (code,) = run_and_get_code(torch.compile(function), card(4, 64))
    assert code.count("= SpyreKernel(") == 1
    assert code.count("= spyre_kernel_0(") == 3


def test_shapes_of_inputs_are_compared_by_kernels_or_by_inductor(fresh):
    _, (code,) = run_and_get_code(torch.compile(lambda x, y: (x + 1, y.sort(0).values)), card(4, 64), card(64, 4))
    assert "assert_size_stride(arg0_1" not in code
    assert "assert_size_stride(arg1_1, (64, 4), (4, 1), 'input')" in code


@pytest.mark.parametrize("options", [{"backend": "spyre"}, {"backend": "spyre", "mode": "reduce-overhead"}, {}])
def test_both_backend_names_reach_the_compiler(fresh, options):
    out, (code,) = run_and_get_code(torch.compile(operator.add, **options), card(4, 64), card(4, 64))
    assert torch.equal(out.cpu(), 2 * card(4, 64).cpu())
    assert "spyre_kernel_0(" in code


def test_the_backend_is_listed():
    assert "spyre" in torch._dynamo.list_backends()


@pytest.mark.parametrize(
    "options",
    [
        {"mode": "reduce-overhead"},
        {"mode": "max-autotune"},
        {"dynamic": True},
        {"options": {"freezing": True, "cpp_wrapper": True, "triton.cudagraphs": True}},
    ],
)
def test_modes_and_options(fresh, options):
    with torch.no_grad():
        check(operator.add, card(4, 64), card(4, 64), **options)


def test_cpu_graphs_stay_with_inductor(fresh):
    check(lambda x: x.sin() + 1, torch.randn(8))
    assert "spyre" not in fresh


def test_cpu_and_card_in_one_graph(fresh):
    check(
        lambda x, c: ((x + x).cpu() + c, (c * 2).to("spyre") + x), card(4, 64), torch.ones(4, 64).half(), fullgraph=True
    )


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x,
        lambda x: None,
        lambda x: (),
        lambda x: (x, x.view(-1), None, 3, (x + x)[1:3], (x + x).t()),
        lambda x: (x + x)[:1].expand(4, 64),
        lambda x: (lambda y: (y, y))(x + x),
        lambda x: x.split(2),
        lambda x: x.topk(3),
        lambda x: (x + x, x.shape[0]),
    ],
)
def test_outputs_of_every_kind(fresh, function):
    check(function, card(4, 64), fullgraph=True)


@pytest.mark.parametrize("dynamic", [False, True], ids=["", "dynamic"])
def test_a_visit_to_the_card(fresh, dynamic):
    """Nothing that enters or leaves the program is on the card."""

    def visit(x, weight):
        return (torch.tanh(x.to("spyre") * 2) @ weight.to("spyre")).cpu() + 1

    weight = torch.randn(8, 3)
    compiled = torch.compile(visit, fullgraph=True, dynamic=dynamic)
    for rows in (4, 6):
        x = torch.randn(rows, 8, requires_grad=True)
        with torch.spyre.fallback("error"):
            got = compiled(x, weight)
            (gradient,) = torch.autograd.grad(got.sum(), x)
        want = torch.tanh(x * 2) @ weight + 1
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(gradient, torch.autograd.grad(want.sum(), x)[0], rtol=1e-4, atol=1e-4)


def test_a_graph_without_inputs(fresh):
    check(lambda: torch.full((4, 64), 2.0, dtype=torch.float16, device="spyre"), fullgraph=True)


def test_numbers_as_inputs(fresh):
    check(lambda x, n: x * n, card(4, 64), 3, dynamic=True)


def test_changing_sizes(fresh):
    function = torch.compile(operator.add)
    for rows in (4, 8, 12, 0, 1):
        x = card(rows, 64)
        assert torch.equal(function(x, x).cpu(), 2 * x.cpu())


def test_views_enter_kernels_as_they_are(fresh):
    check(lambda x, y: x.view(-1)[64:320].view(4, 64) + y[2:6], card(6, 64), card(6, 64, seed=1))
    assert not torch.spyre.fallback_counts().get("aten::clone")


def test_an_input_that_begins_inside_its_storage(fresh):
    x = card(8, 64)
    assert torch.equal(torch.compile(operator.add)(x[2:6], x[4:8]).cpu(), x.cpu()[2:6] + x.cpu()[4:8])
    assert torch.equal(torch.compile(lambda t: t.as_strided((2, 64), (64, 1), 64))(x[2:6]).cpu(), x.cpu()[1:3])


def test_inputs_changed_in_place(fresh):
    def function(x, y):
        x[1:3].add_(y[1:3])
        z = x + y
        x.mul_(2)
        return z

    check(function, card(4, 64), card(4, 64, seed=1), fullgraph=True)


def test_constants_of_the_program(fresh):
    def function(x):
        rows = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float16, device="spyre")
        return x + rows[:, None].expand(4, 64).contiguous() * torch.tensor(2.0, dtype=torch.float16, device="spyre")

    check(function, card(4, 64))


@pytest.mark.parametrize("function", [torch.rand_like, torch.nn.functional.dropout])
def test_random_numbers_are_those_of_eager(fresh, function):
    x = card(4, 64, dtype=torch.float32)
    torch.manual_seed(0)
    want = function(x)
    torch.manual_seed(0)
    assert torch.equal(torch.compile(function)(x).cpu(), want.cpu())


def test_training(fresh):
    module = torch.nn.Linear(64, 64).half().to("spyre")
    grads = []
    for forward in (module, torch.compile(module)):
        x = card(4, 64).requires_grad_()
        (forward(x) + x).sum().backward()
        grads.append([x.grad.cpu(), *(p.grad.cpu() for p in module.parameters())])
        module.zero_grad()
    torch.testing.assert_close(*grads)


def test_branches(fresh):
    def function(x, y):
        return torch.cond(x.sum() > 0, lambda x, y: (x + y,), lambda x, y: (x + x,), (x, y))

    check(function, torch.ones(4, 64).half().to("spyre"), card(4, 64))
    check(function, -torch.ones(4, 64).half().to("spyre"), card(4, 64))


def test_a_kernel_may_write_its_inputs(fresh):
    """What was read from x before it is written, and after."""

    def function(x, y):
        before = (x + y).cpu()
        x.copy_(y + y)
        return before, x + y

    check(function, card(4, 64), card(4, 64, seed=1))


def test_what_is_left_to_inductors_loops_is_refused(fresh, monkeypatch):
    monkeypatch.setattr(partition, "partition", lambda gm: None)
    with pytest.raises(RuntimeError, match=r"\(aten.add.Tensor\) was left to Inductor's own loops"):
        torch.compile(operator.add)(card(4, 64), card(4, 64))


def test_a_second_process_finds_everything_in_caches(program):
    code = """
        def function(x, y):
            return (x + y).sin() + y
        a = x.clone().requires_grad_()
        torch.compile(function)(a, x).sum().backward()
        print("fx", counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"])
        print("aot", counters["aot_autograd"]["autograd_cache_hit"], counters["aot_autograd"]["autograd_cache_miss"])
        print("kernels", counters["spyre"]["kernel_cache_misses"] > 0, counters["spyre"]["kernel_cache_hits"] > 0)
        import time
        time.sleep(0.5)  # PyTorch aborts if the interpreter ends while an autograd thread still drops its graph
    """
    first, second = program(code), program(code)
    assert "fx 0 2\naot 0 1\nkernels True False" in first
    assert "fx 2 0\naot 1 0\nkernels False True" in second


ANOTHER_COMPILER = """
from torch_spyre.caching import version
version.ROOMS = ("ir",)
version._own_version.cache_clear()
"""


@pytest.mark.slow
def test_what_code_follows_from_is_in_the_keys(program, tmp_path):
    """A new process with something else of that compiles anew; what does not follow from it may still be found."""
    code = """
square = x.t() @ x
counters.clear()
torch.compile(lambda x: (x @ x).sin() + x)(square)
print("aot", counters["aot_autograd"]["autograd_cache_hit"] == 1)
print("kernels", counters["spyre"]["kernel_cache_hits"] > 0 and not counters["spyre"]["kernel_cache_misses"])
"""
    another_card = tmp_path / "another.toml"
    another_card.write_text('base = "spyre"\ndram_gb_per_s = 100\n')
    program(code)
    assert "aot False\nkernels False" in program(code, SPYRE_PLANNING="op_by_op")
    assert "aot False\nkernels False" in program(code, LX_PLANNING="0")
    assert "aot False\nkernels False" in program(ANOTHER_COMPILER + code)
    assert "aot True\nkernels False" in program(code, DXP_LX_FRAC_AVAIL="0.5")
    assert "aot True\nkernels False" in program(code, SPYRE_HARDWARE=str(another_card))
    assert "aot True\nkernels True" in program(code)


def test_nothing_is_imported_before_it_is_needed(python):
    names = ("torch._dynamo", "torch._inductor", "torch_spyre._inductor", "sympy")
    code = f"import torch, sys; print([name for name in sys.modules if name.startswith({names})])"
    assert python(code).stdout.strip() == "[]"
