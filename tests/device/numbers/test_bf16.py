"""bf16 has a larger range than the card's 16-bit numbers: what is lost on the way is told once."""

import pytest

PROGRAM = """
    import warnings, torch
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        {body}
    for each in seen:
        if "bfloat16" in str(each.message):
            print(each.message)
"""


def told(python, body: str) -> list[str]:
    done = python(PROGRAM.format(body=body))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_what_saturates_is_told_once_with_count_and_largest(python):
    (line,) = told(
        python,
        "x = torch.ones(70, 60, dtype=torch.bfloat16); x[3, :5] = 1e12; x[4, 2] = -3e38;"
        "y = x.to('spyre'); x.to('spyre'); x[:, :9].to('spyre'); assert y.cpu().abs().max() < 1e10",
    )
    assert line.startswith("6 of the 4200 values of a torch.bfloat16 tensor of size [70, 60] lie outside")
    assert "6 became the largest one (the largest was 3" in line and "e+38)" in line
    assert "became 0" not in line and "torch.float32" in line


def test_what_vanishes_is_told(python):
    (line,) = told(
        python,
        "x = torch.zeros(200, dtype=torch.bfloat16); x[7], x[9] = 1e-12, -1e-38; y = x.to('spyre');"
        "assert y.cpu().count_nonzero() == 0",
    )
    assert line.startswith("2 of the 200 values") and "2 became 0 (the smallest was 1" in line and "e-38)" in line


@pytest.mark.parametrize(
    "body",
    [
        "torch.tensor([0.0, -0.0, float('inf'), float('nan'), 8.5e9, -8.5e9, 3e-10, 4.7e-10]).bfloat16().to('spyre')",
        "torch.full((99,), 1e30).to('spyre')",
        "torch.full((99,), 6e4).half().to('spyre')",
        "(torch.ones(64, device='spyre', dtype=torch.bfloat16) * 1e30).cpu()",
    ],
    ids=["in range or not finite", "fp32", "fp16", "computed"],
)
def test_nothing_else_is_told(python, body):
    assert told(python, body) == []


@pytest.mark.slow
def test_other_ways_to_the_card(python, tmp_path):
    file = tmp_path / "x.pt"
    ways = [
        "torch.zeros(2, 3, dtype=torch.bfloat16, device='spyre').t().copy_(torch.full((3, 2), 1e20))",
        "torch.full((2, 3), 1e20, dtype=torch.bfloat16).pin_memory().to('spyre', non_blocking=True);"
        "torch.spyre.synchronize(); torch.ones(1).to('spyre')",
        f"torch.save(torch.full((2, 3), 1e20, dtype=torch.bfloat16), r'{file}');"
        f"torch.load(r'{file}', map_location='spyre')",
        "torch.nn.utils.skip_init(torch.nn.Linear, 3, 2, bias=False).bfloat16().requires_grad_(False)"
        ".apply(lambda linear: linear.weight.fill_(1e20)).to('spyre')",
    ]
    for way in ways:
        (line,) = told(python, way)
        assert line.startswith("6 of the 6 values"), way
