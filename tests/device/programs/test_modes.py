"""The card's modes: run, timing (no values, no memory), strict (stricter than silicon)."""

import json

import pytest

PROGRAM = """
    import json, resource, torch
    start, end = (torch.spyre.Event(enable_timing=True) for _ in range(2))
    start.record()
    x = torch.empty({rows}, 4096, dtype=torch.float16, device="spyre")
    x.fill_(1.0)
    y = x.clone()
    z = y[:, 64:128].contiguous()
    host = z[:8].cpu()
    end.record()
    torch.spyre.synchronize()
    print(json.dumps(dict(
        time=start.elapsed_time(end),
        total=float(host.sum()),
        allocated=torch.spyre.memory_allocated(),
        resident=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    )))
"""


def measure(python, rows: int, mode: str) -> dict:
    done = python(PROGRAM.format(rows=rows), SPYRE_CARD=mode)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_timing_gives_the_times_of_run(python):
    run, timing = measure(python, 512, "run"), measure(python, 512, "timing")
    assert timing["time"] == run["time"] > 0
    assert timing["allocated"] == run["allocated"]
    assert run["total"] == 8 * 64
    assert timing["total"] == 0  # nothing was computed


def test_timing_commits_no_memory(python):
    """Two tensors of 8 GiB each: far more than the process may hold."""
    timing = measure(python, 1 << 20, "timing")
    assert timing["allocated"] > 16 * 2**30
    assert timing["resident"] * 1024 < 2 * 2**30


def test_timing_says_once_that_values_are_zeros(python):
    done = python(
        """
        import warnings, torch
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            x = torch.ones(3, device="spyre")
            x.cpu(), x.cpu(), x[0].item()
        print(sum("computes no values" in str(w.message) for w in seen))
        """,
        SPYRE_CARD="timing",
    )
    assert done.stdout.strip() == "1", done.stderr


def test_results_are_the_same_in_strict(python):
    assert measure(python, 64, "strict")["total"] == 8 * 64


@pytest.mark.parametrize(
    ("action", "what"),
    [
        ("torch.empty(10, device='spyre').cpu()", "a copy to the host read device memory that was never written"),
        ("torch.empty(10, device='spyre').clone(); torch.spyre.synchronize()", "a copy on the card read device memory"),
        ("x = torch.empty(10, device='spyre'); x[:9] = 1; x.cpu()", "never written"),
        (
            "_C.launch_jobplan(plan, [torch.empty(4, 64, device='spyre'), torch.empty(4, 64, device='spyre')]);"
            "torch.spyre.synchronize()",
            "program 'k', step 0",
        ),
    ],
)
def test_strict_finds_uninitialised_reads(python, action, what):
    done = python(
        f"""
        import torch
        from torch_spyre import _C
        operands = [dict(argument=i, strides=[128, 2]) for i in (0, 1)]
        step = dict(op="copy", extents=[4, 64], operands=operands)
        compute = dict(type="Compute", program=dict(steps=[step]))
        plan = _C.prepare_kernel(dict(name="k", arguments=[512, 512], steps=[compute]))
        {action}
        """,
        SPYRE_CARD="strict",
    )
    assert done.returncode == 1
    assert what in done.stderr


def test_run_mode_allows_what_strict_refuses(python):
    assert python("import torch; torch.empty(10, device='spyre').cpu()").returncode == 0


def test_strict_poisons_fresh_memory(python):
    """Reading around the check (raw bytes by D2H) shows NaNs, not what was there before."""
    done = python(
        """
        import torch
        from torch_spyre import _C
        seen = []
        look = dict(type="HostCompute", function=lambda buffers: seen.append(bytes(buffers[0])))
        steps = [dict(type="D2H", argument=0, buffer=0), look]
        plan = _C.prepare_kernel(dict(name="peek", arguments=[128], buffers=[bytes(4)], steps=steps))
        _C.launch_jobplan(plan, [torch.empty(64, dtype=torch.float16, device="spyre")])
        torch.spyre.synchronize()
        print(seen[0].hex())
        """,
        SPYRE_CARD="strict",
    )
    assert done.stdout.strip() == "fe7ffe7f", done.stderr


def test_unknown_mode_is_refused(python):
    done = python("import torch; torch.ones(1, device='spyre')", SPYRE_CARD="warp")
    assert done.returncode == 1
    assert "SPYRE_CARD=warp: expected one of run, timing, strict" in done.stderr


def test_another_hardware_description(python, tmp_path):
    """Half the bandwidth: a description is a file."""
    from torch_spyre.card import description

    text = description.selected_file().read_text()
    slow = tmp_path / "slow.toml"
    slow.write_text(text.replace("dram_gb_per_s = 153.5 ", "dram_gb_per_s = 76.75 "))
    code = """
        import torch
        first, second = (torch.spyre.Event(enable_timing=True) for _ in range(2))
        x = torch.empty(64 << 20, dtype=torch.float16, device="spyre")
        first.record(); x.fill_(0); second.record()
        torch.spyre.synchronize()
        print(first.elapsed_time(second))
    """
    usual = float(python(code, SPYRE_CARD="timing").stdout)
    halved = float(python(code, SPYRE_CARD="timing", SPYRE_HARDWARE=str(slow)).stdout)
    assert halved / usual == pytest.approx(2, rel=0.01)


def test_timing_refuses_shapes_that_depend_on_values(python):
    done = python("import torch; torch.nonzero(torch.ones(3, device='spyre'))", SPYRE_CARD="timing")
    assert done.returncode == 1
    assert "aten::nonzero gives a result whose shape depends on values" in done.stderr


def test_timing_materialises_no_weights_and_computes_no_fallback(python):
    """A linear layer of 7 GiB: made, initialised and applied on shapes alone, at the price of its transfers."""
    code = """
        import resource, torch
        torch.spyre.fallback("count")
        layer = torch.nn.Linear({size}, {size}, device="spyre")
        x = torch.rand(4, {size}, device="spyre")
        start, end = (torch.spyre.Event(enable_timing=True) for _ in range(2))
        start.record()
        y = torch.nn.functional.gelu(layer(x) + 1)
        end.record()
        torch.spyre.synchronize()
        print(tuple(y.shape), start.elapsed_time(end), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    """
    shape, time, resident = python(code.format(size=43000), SPYRE_CARD="timing").stdout.rsplit(maxsplit=2)
    assert shape == "(4, 43000)" and float(time) > 0
    assert int(resident) * 1024 < 2**30
    in_run = python(code.format(size=300)).stdout.rsplit(maxsplit=2)
    in_timing = python(code.format(size=300), SPYRE_CARD="timing").stdout.rsplit(maxsplit=2)
    assert in_run[:2] == in_timing[:2]
