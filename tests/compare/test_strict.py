"""Errors of strict mode name the op, the line of the program, the tensor and the element."""

import pytest

START = """
    import torch
    torch.spyre.set_downcast_warning(False)
    ones = torch.ones(4, 100, dtype=torch.float16, device="spyre")
    partly = torch.empty(4, 100, dtype=torch.float16, device="spyre")
    partly[:, :70] = 1
"""


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (
            "torch.add(ones, partly)",
            "(elementwise add): core 1 reads element [0, 70] of argument 1 (float16[4, 100]), which was never written; "
            "initialise the tensor first (SPYRE_CARD=strict) (aten::add.Tensor, called in <string>, line 7)",
        ),
        (
            "ones.t()[90:] * partly.t()[10:20]; ones[2:] * partly[2:, :]",
            "reads element [0, 70] of argument 1 (float16[2, 100]), which was never written",
        ),
        (
            "partly.cpu()",
            "a copy to the host read device memory that was never written: element [0, 70] of a tensor "
            "float16[4, 100] (SPYRE_CARD=strict); initialise the tensor first "
            "(aten::copy_, called in <string>, line 7)",
        ),
        ("partly[1:, 60:].clone()", "element [0, 10] of a tensor float16[3, 40] (SPYRE_CARD=strict)"),
        (
            "torch.empty(2, 64, device='spyre') @ torch.ones(64, 64, device='spyre')",
            "(matmul): core 0 reads element [0, 0] of argument 0 (float32[2, 64]), which was never written",
        ),
        (
            "result = torch.exp(partly); ones + ones; ones * ones",  # found later than where it happens
            "(elementwise exp): core 1 reads element [0, 70] of argument 0 (float16[4, 100])",
        ),
    ],
)
def test_a_read_of_memory_that_was_never_written_names_its_element(python, line, says):
    done = python(f"{START}    {line}\n    torch.spyre.synchronize()\n", SPYRE_CARD="strict")
    assert done.returncode == 1
    assert says in done.stderr, done.stderr[-1500:]


def test_compiled_code_names_the_line_of_the_op(python, tmp_path):
    program = tmp_path / "program.py"
    program.write_text(
        "import torch\n"
        "def function(x, y):\n"
        "    doubled = y * 2\n"
        "    return torch.exp(doubled) + x\n"
        "x = torch.empty(4, 100, dtype=torch.float16, device='spyre')\n"
        "torch.compile(function)(x, torch.ones_like(x))\n"
        "torch.spyre.synchronize()\n"
    )
    # Code from a cache names the lines of the program that it was compiled for.
    cache = str(tmp_path / "cache")
    done = python(f"import runpy; runpy.run_path({str(program)!r})", SPYRE_CARD="strict", TORCHINDUCTOR_CACHE_DIR=cache)
    assert f'(elementwise add, File "{program}", line 4, in function)' in done.stderr
    assert "element [0, 0] of argument 1 (float16[4, 100]), which was never written" in done.stderr


RACE = """
    from torch_spyre import _C
    import torch
    x, y = (torch.ones(4, 64, dtype=torch.float16, device="spyre") for _ in range(2))
    operands = [dict(argument=0, strides=[{}, 2]), dict(argument=1, strides=[128, 2])]
    step = dict(op="copy", extents=[4, 64], slices=[4, 1], operands=operands, source="here")
    compute = dict(type="Compute", program=dict(steps=[step]))
    plan = _C.prepare_kernel(dict(name="k", arguments=[512, 512], steps=[compute]))
    _C.launch_jobplan(plan, [x, y])
    torch.spyre.synchronize()
"""


def test_a_program_in_which_cores_race_names_the_step_and_its_line(python):
    done = python(RACE.format(0), SPYRE_CARD="strict")
    assert done.returncode == 1
    assert "program 'k', step 0 (copy, here)" in done.stderr
