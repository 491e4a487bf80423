"""Errors of the card say which op failed and where it was called, however late they surface."""

import pytest
import torch


def line_of(mark: str) -> str:
    with open(__file__) as file:
        return f"line {next(i for i, line in enumerate(file, 1) if line.rstrip().endswith('# ' + mark))}"


def out_of_range() -> torch.Tensor:
    return torch.tensor([0, 9], dtype=torch.int32, device="spyre")


def test_a_late_error_names_op_and_line():
    table, indices = torch.ones(4, 4, device="spyre"), out_of_range()
    table.index_select(0, indices)  # the call
    for _ in range(3):
        table = table + 1
    with pytest.raises(IndexError) as raised:
        torch.spyre.synchronize()
    text = str(raised.value)
    assert f"(aten::index_select, called in {__file__}, {line_of('the call')})" in text


def test_the_line_is_the_users_not_pytorchs():
    embedding = torch.nn.Embedding(4, 4).to("spyre")
    model = torch.nn.Sequential(embedding, torch.nn.ReLU())
    indices = out_of_range()
    model(indices)  # the model
    with pytest.raises(IndexError, match=f"aten::.*{line_of('the model')}"):
        torch.spyre.synchronize()


def test_products_and_divisions_name_their_op():
    big = torch.full((4,), 2**30, device="spyre")
    big * 4  # the product
    with pytest.raises(ValueError, match=f"aten::mul.Tensor, called in .*{line_of('the product')}"):
        torch.spyre.synchronize()
    ones = torch.ones(4, dtype=torch.int32, device="spyre")
    ones // (ones - 1)  # the division
    with pytest.raises(RuntimeError, match=f"by 0.*aten::floor_divide.*{line_of('the division')}"):
        torch.spyre.synchronize()


def test_a_compiled_kernel_names_the_function_that_was_compiled():
    compiled = torch.compile(lambda table, indices: table[indices] * 2)  # the compiled function
    table, good = torch.ones(4, 4, device="spyre"), torch.zeros(2, dtype=torch.int32, device="spyre")
    compiled(table, good)
    torch.spyre.synchronize()
    compiled(table, out_of_range())
    with pytest.raises(IndexError, match=f"compiled kernel '.*{line_of('the compiled function')}"):
        torch.spyre.synchronize()


def test_code_that_is_made_as_it_goes_is_told_apart():
    table, indices = torch.ones(4, 4, device="spyre"), out_of_range()
    for i in range(20):
        made = {}
        exec(compile("\n" * i + "def f(table, indices): table.index_select(0, indices)", "<made>", "exec"), made)
        made["f"](table, indices)
        del made
        with pytest.raises(IndexError, match=f"called in <made>, line {i + 1}\\)"):
            torch.spyre.synchronize()


def test_backward_ops_are_named():
    x = torch.ones(4, device="spyre", requires_grad=True)

    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x + 1

        @staticmethod
        def backward(ctx, gradient):
            return gradient.index_select(0, torch.tensor([0, 1, 2, 9], dtype=torch.int32, device="spyre"))

    with pytest.raises(IndexError, match="aten::index_select"):
        Fails.apply(x).sum().backward()
        torch.spyre.synchronize()


def test_a_backward_op_has_the_line_of_its_forward_op():
    table = torch.ones(4, 4, device="spyre", requires_grad=True)
    good = torch.zeros(2, dtype=torch.int32, device="spyre")
    (table * 2).sum().backward()
    rows = table.index_select(0, good)  # the forward op
    loss = (rows * 3).sum()
    good.data += 9
    with pytest.raises(IndexError, match=f"aten::index_add.*{line_of('the forward op')}"):
        loss.backward()
        torch.spyre.synchronize()


def test_launch_blocking_raises_in_place(program):
    printed = program(
        """
        import torch
        table = torch.ones(4, 4, device="spyre")
        indices = torch.tensor([0, 9], dtype=torch.int32, device="spyre")
        try:
            table.index_select(0, indices)
            print("launched")
        except IndexError:
            print("raised in place")
        seen = []
        torch.spyre.current_stream().add_callback(lambda: seen.append((table + 1).shape))
        print(seen, (table + 1).sum().item())
        """,
        SPYRE_LAUNCH_BLOCKING="1",
    )
    assert printed == "raised in place\n[torch.Size([4, 4])] 32.0\n"


def test_launch_blocking_takes_0_or_1(python):
    result = python("import torch; torch.ones(2, device='spyre')", SPYRE_LAUNCH_BLOCKING="yes")
    assert "SPYRE_LAUNCH_BLOCKING=yes: expected one of 0, 1" in result.stderr
