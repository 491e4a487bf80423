"""Card programs: data that is validated, then run on the cores; kernels as job plans."""

import pytest
import torch

from torch_spyre import _C

STICK = 128


def program(op="copy", extents=(4, 64), slices=(4, 1), operands=None, **more):
    """A step over [4, 64] fp16 elements: four sticks, one per core."""
    operands = operands or [{"argument": 0, "strides": [STICK, 2]}, {"argument": 1, "strides": [STICK, 2]}]
    return {"op": op, "extents": list(extents), "slices": list(slices), "operands": operands, **more}


def kernel(*steps, arguments=(512, 512), **more):
    code = {
        "name": "k",
        "arguments": list(arguments),
        "steps": [{"type": "Compute", "program": {"steps": list(steps)}}],
    }
    return {**code, **more}


def sticks(seed: int = 0) -> torch.Tensor:
    """Four sticks in row order: element [i, j] of a [4, 64] tensor is element j of stick i."""
    return torch.randn(4, 64, generator=torch.Generator().manual_seed(seed)).to(torch.float16).to("spyre")


def test_copy_runs_on_four_cores():
    source, target = sticks(), torch.zeros(4, 64, dtype=torch.float16, device="spyre")
    _C.launch_jobplan(_C.prepare_kernel(kernel(program())), [target, source])
    assert torch.equal(target.cpu(), source.cpu())


def test_fill_writes_the_encoded_constant():
    target = torch.zeros(4, 64, dtype=torch.float16, device="spyre")
    bits = _C.encode_constant(1.5, _C.DataFormats.SEN169_FP16)
    step = program("fill", operands=[{"argument": 0, "strides": [STICK, 2]}], constant=bits)
    _C.launch_jobplan(_C.prepare_kernel(kernel(step, arguments=[512])), [target])
    assert (target.cpu() == 1.5).all()


def scaled(number="%0", **more):
    operands = [{"argument": i, "strides": [STICK, 2]} for i in (0, 1)]
    return program("elementwise", function="mul", operands=[*operands, {"value": number, **more}])


def test_numbers_are_given_by_the_launch():
    source = sticks()
    targets = [torch.zeros(4, 64, dtype=torch.float16, device="spyre") for _ in range(3)]
    plan = _C.prepare_kernel(
        kernel(
            scaled("%1"),
            program(
                "elementwise",
                function="clamp",
                constants=["%0", "inf"],
                operands=[{"argument": 0, "strides": [STICK, 2]}] * 2,
            ),
        )
    )
    for number, target in zip((0.5, -2.0, 4.0), targets, strict=True):
        _C.launch_jobplan(plan, [target, source], [-1.0, number])
    for number, target in zip((0.5, -2.0, 4.0), targets, strict=True):
        assert torch.equal(target.cpu(), (source.cpu() * number).clamp(min=-1))


def test_numbers_that_do_not_fit_the_plan():
    plan = _C.prepare_kernel(kernel(scaled()))
    tensors = [sticks(), sticks()]
    with pytest.raises(ValueError, match="'k' takes 1 numbers, 0 were given"):
        _C.launch_jobplan(plan, tensors)
    with pytest.raises(ValueError, match="'k' takes 1 numbers, 2 were given"):
        _C.launch_jobplan(plan, tensors, [1.0, 2.0])
    for wrong in ("%", "%-1", "%x", "%70000"):
        with pytest.raises(ValueError, match=f"'{wrong}' is no runtime scalar"):
            _C.prepare_kernel(kernel(scaled(wrong)))
    words = [{"argument": i, "strides": [STICK, 4], "format": "IEEE_INT32"} for i in (0, 1)]
    step = program("elementwise", (4, 32), function="mul", operands=[*words, {"value": "%0", "format": "IEEE_INT32"}])
    whole = [torch.ones(4, 32, dtype=torch.int32, device="spyre") for _ in range(2)]
    _C.launch_jobplan(_C.prepare_kernel(kernel(step)), whole, [3])
    assert (whole[0].cpu() == 3).all()
    with pytest.raises(ValueError, match="'k' takes an integer, not 2.5"):
        _C.launch_jobplan(_C.prepare_kernel(kernel(step)), whole, [2.5])


def test_restickify_changes_the_stick_dimension():
    """[64, 64] sticked on columns becomes [64, 64] sticked on rows: the bytes are transposed."""
    source = torch.randn(64, 64, generator=torch.Generator().manual_seed(1)).to(torch.float16).to("spyre")
    rows = _C.SpyreTensorLayout([64, 64], [64, 1], torch.float16, [1, 0])
    target = torch.empty(64, 64, dtype=torch.float16, device_layout=rows)
    step = program(
        "restickify",
        extents=(64, 64),
        slices=(32, 1),
        operands=[{"argument": 0, "strides": [STICK, 2]}, {"argument": 1, "strides": [2, STICK]}],
    )
    plan = _C.prepare_kernel(kernel(step, arguments=[64 * STICK] * 2))
    _C.launch_jobplan(plan, [target, source])
    assert torch.equal(target.cpu(), source.cpu())


def test_uneven_slices_cover_everything():
    source = torch.randn(7, 64, generator=torch.Generator().manual_seed(2)).to(torch.float16).to("spyre")
    target = torch.zeros(7, 64, dtype=torch.float16, device="spyre")
    plan = _C.prepare_kernel(kernel(program(extents=(7, 64), slices=(3, 1)), arguments=[7 * STICK] * 2))
    _C.launch_jobplan(plan, [target, source])
    assert torch.equal(target.cpu(), source.cpu())


def test_plan_describes_itself():
    code = kernel(program(), allocate=[256], buffers=[b"1234"])
    code["steps"] += [
        {"type": "HostCompute", "function": lambda buffers: None},
        {"type": "H2D", "argument": 2, "buffer": 0},
        {"type": "D2H", "argument": 2, "buffer": 0},
    ]
    plan = _C.prepare_kernel(code)
    assert plan.num_steps() == 4
    assert plan.job_allocation_size() == 256
    assert [plan.get_step_type(i) for i in range(4)] == ["Compute", "HostCompute", "H2D", "D2H"]
    with pytest.raises(IndexError, match="step 4 of 4"):
        plan.get_step_type(4)


def test_host_steps_and_transfers_run_in_order():
    """A host step computes what an H2D step sends; D2H brings back what the program made of it."""
    seen = []

    def double(buffers):
        buffers[0][:] = bytes(2 * b for b in buffers[0])

    code = {
        "name": "host",
        "arguments": [],
        "allocate": [128, 128],
        "buffers": [bytes(range(64)), bytes(64)],
        "steps": [
            {"type": "HostCompute", "function": double},
            {"type": "H2D", "argument": 0, "buffer": 0},
            {
                "type": "Compute",
                "program": {
                    "steps": [
                        program(
                            extents=[64],
                            slices=[1],
                            operands=[
                                {"argument": 1, "strides": [1], "format": _C.DataFormats.SENINT8},
                                {"argument": 0, "strides": [1], "format": _C.DataFormats.SENINT8},
                            ],
                        )
                    ]
                },
            },
            {"type": "D2H", "argument": 1, "buffer": 1},
            {"type": "HostCompute", "function": lambda buffers: seen.append(bytes(buffers[1]))},
        ],
    }
    before = torch.spyre.memory_allocated()
    _C.launch_jobplan(_C.prepare_kernel(code), [])
    torch.spyre.synchronize()
    assert seen == [bytes(2 * b for b in range(64))]
    assert torch.spyre.memory_allocated() == before


def test_error_in_a_host_step_names_its_cause_and_leaves_other_streams_working():
    def fail(buffers):
        raise KeyError("missing scale")

    bad = _C.prepare_kernel({"name": "bad", "arguments": [], "steps": [{"type": "HostCompute", "function": fail}]})
    broken, healthy = torch.spyre.Stream(), torch.spyre.Stream()
    source, target = sticks(), torch.zeros(4, 64, dtype=torch.float16, device="spyre")
    torch.spyre.synchronize()
    with broken:
        _C.launch_jobplan(bad, [])
    with healthy:
        _C.launch_jobplan(_C.prepare_kernel(kernel(program())), [target, source])
    healthy.synchronize()
    assert torch.equal(target.cpu(), source.cpu())
    with pytest.raises(RuntimeError, match=r"plan 'bad', step 0 \(HostCompute\): KeyError: 'missing scale'"):
        broken.synchronize()
    broken.synchronize()  # raised once, then cleared


@pytest.mark.parametrize(
    ("step", "message"),
    [
        (program(op="transmogrify"), "unknown operation 'transmogrify'"),
        (program(extents=(0, 64)), "extents: every extent must be at least 1"),
        (program(slices=(4,)), "slices: needs one entry per extent"),
        (program(slices=(8, 1)), "slices: 8 slices for an extent of 4"),
        (program(extents=(64, 64), slices=(64, 1)), "more than the 32 cores"),
        (program(slices=(1, 4)), "two cores write into one stick"),
        (program(op="fill"), "operands: fill takes 1, has 2"),
        (
            program(operands=[{"argument": 0, "strides": [STICK, 2]}] + [{"argument": 7, "strides": [STICK, 2]}]),
            "argument 7, there are 2",
        ),
        (program(operands=[{"argument": 0, "strides": [STICK]}] * 2), "operand 0: needs one stride per extent"),
        (program(operands=[{"argument": 0, "strides": [STICK, 3]}] * 2), "not a multiple of the element"),
        (program(operands=[{"argument": 0, "offset": 2, "strides": [STICK, 2]}] * 2), r"reaches bytes \[2, 514\)"),
        (
            program(operands=[{"argument": 0, "offset": -2, "strides": [STICK, 2]}] * 2),
            "operand 0: offset -2 is no address",
        ),
        (program(operands=[{"argument": 0, "strides": [2**62, 2]}] * 2), "beyond the card's address space"),
        (
            program(
                operands=[
                    {"argument": 0, "strides": [STICK, 2]},
                    {"argument": 1, "strides": [STICK, 2], "format": _C.DataFormats.SENINT16},
                ]
            ),
            "does not convert",
        ),
        ({"op": "copy"}, "lacks the field 'extents'"),
        (program(extents="ab"), "the field 'extents' has the wrong type"),
    ],
)
def test_malformed_program_is_refused(step, message):
    with pytest.raises(ValueError, match=message):
        _C.prepare_kernel(kernel(step))


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([{"type": "Dance"}], "unknown step type 'Dance'"),
        ([{"type": "H2D", "argument": 5, "buffer": 0}], "argument: 5, there are 1"),
        ([{"type": "H2D", "argument": 0, "buffer": 3}], "buffer: 3, there are 1"),
        ([{"type": "D2H", "argument": 0, "offset": 127, "buffer": 0}], "127"),
    ],
)
def test_malformed_plan_is_refused(steps, message):
    with pytest.raises(ValueError, match=message):
        _C.prepare_kernel({"name": "k", "arguments": [128], "buffers": [b"12345678"], "steps": steps})


def test_launch_checks_its_arguments():
    plan = _C.prepare_kernel(kernel(program()))
    with pytest.raises(ValueError, match="takes 2 arguments, 1 were given"):
        _C.launch_jobplan(plan, [sticks()])
    small = torch.zeros(64, dtype=torch.float16, device="spyre")
    with pytest.raises(ValueError, match="argument 1 needs 512 bytes, the tensor has 128"):
        _C.launch_jobplan(plan, [sticks(), small])
    with pytest.raises(RuntimeError, match="takes tensors of one card"):
        _C.launch_jobplan(plan, [sticks(), torch.zeros(4, 64)])


def nanoseconds_of_a_copy(fresh: bool = False) -> float:
    """Of four sticks by as many cores; ``fresh``: the launch before wrote what is read."""
    # 512 bytes each way at 153.5 GB/s, turned around, in runs of one stick, with few cores; and the fixed cost
    nanoseconds = 1024 / 153.5 + 512 * 0.00105 + 1024 * 0.006638 / (1 + (128 / 510) ** 4)
    return (nanoseconds + 1024 * 0.001884 * fresh) * 1.162 + 973.6


def test_modelled_time_of_a_program_is_exact():
    plan = _C.prepare_kernel(kernel(program()))
    stream = torch.spyre.Stream()
    first, second = (torch.spyre.Event(enable_timing=True) for _ in range(2))
    source, target = sticks(), sticks()
    with stream:
        first.record()
        _C.launch_jobplan(plan, [target, source])
        second.record()
    stream.synchronize()
    assert first.elapsed_time(second) == pytest.approx(nanoseconds_of_a_copy() / 1e6, abs=1e-9)


def picoseconds_of(stream, plan, tensors) -> int:
    """Of one launch, by the clock of its stream."""
    before = stream.modelled_time()
    with stream:
        _C.launch_jobplan(plan, tensors)
    return round((stream.modelled_time() - before) * 1e9)


def test_a_launch_behind_the_writer_of_what_it_reads_takes_longer():
    plan, stream = _C.prepare_kernel(kernel(program())), torch.spyre.Stream()
    first, second, third = sticks(), sticks(), sticks()
    alone, behind = (round(nanoseconds_of_a_copy(fresh) * 1000) for fresh in (False, True))
    assert picoseconds_of(stream, plan, [first, second]) == alone
    assert picoseconds_of(stream, plan, [third, second]) == alone  # which nobody wrote
    assert picoseconds_of(stream, plan, [second, first]) == alone  # written, but not by the launch before
    assert picoseconds_of(stream, plan, [third, second]) == behind
    assert picoseconds_of(torch.spyre.Stream(), plan, [second, third]) == alone  # written on another stream


def test_memory_that_is_used_again_is_not_what_was_written():
    plan, stream = _C.prepare_kernel(kernel(program())), torch.spyre.Stream()
    source, written = sticks(), torch.zeros(4, 64, dtype=torch.float16, device="spyre")
    alone = picoseconds_of(stream, plan, [written, source])
    torch.spyre.synchronize()
    place = written.data_ptr()
    del written
    others = [torch.zeros(4, 64, dtype=torch.float16, device="spyre") for _ in range(100)]
    (again,) = (each for each in others if each.data_ptr() == place)
    assert picoseconds_of(stream, plan, [source, again]) == alone


def test_a_host_that_runs_ahead_waits_for_plan_memory_instead_of_running_out(python):
    done = python(
        """
        import time, torch
        from torch_spyre import _C
        plan = _C.prepare_kernel(dict(name="k", arguments=[], allocate=[4 << 20], steps=[]))
        torch.spyre.current_stream().add_callback(lambda: time.sleep(0.2))
        for _ in range(50):
            _C.launch_jobplan(plan, [])
        torch.spyre.synchronize()
        print(torch.spyre.memory_allocated())
        """,
        SPYRE_MEMORY_GB="0.02",
    )
    assert done.stdout.strip() == "0", done.stderr


def test_a_host_step_must_leave_bytearrays():
    def replace(buffers):
        buffers[0] = "abc"

    steps = [{"type": "HostCompute", "function": replace}, {"type": "H2D", "argument": 0, "buffer": 0}]
    plan = _C.prepare_kernel({"name": "k", "arguments": [128], "buffers": [b"abc"], "steps": steps})
    _C.launch_jobplan(plan, [torch.zeros(64, dtype=torch.int8, device="spyre")])
    with pytest.raises(RuntimeError, match="something else than a bytearray in place of buffer 0"):
        torch.spyre.synchronize()


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ({"buffers": [3]}, "a buffer is not bytes: 3"),
        ({"steps": [{"type": "HostCompute", "function": 3}]}, "cannot be called"),
    ],
)
def test_wrong_host_parts_are_refused(field, message):
    with pytest.raises(ValueError, match=message):
        _C.prepare_kernel({"name": "k", "arguments": [], "steps": []} | field)
