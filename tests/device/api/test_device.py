"""The device itself: found by PyTorch, counted, chosen, described, configured by the environment."""

import sys

import pytest
import torch

NAMES = [
    "is_available",
    "is_initialized",
    "device_count",
    "current_device",
    "set_device",
    "device",
    "get_device_properties",
    "get_device_name",
    "manual_seed",
    "manual_seed_all",
    "initial_seed",
    "get_rng_state",
    "set_rng_state",
    "get_amp_supported_dtype",
    "Stream",
    "Event",
    "stream",
    "current_stream",
    "default_stream",
    "set_stream",
    "synchronize",
    "SpyreTensorLayout",
    "DataFormats",
    "get_device_dtype",
    "get_downcast_warning",
    "set_downcast_warning",
    "memory.memory_allocated",
    "memory.max_memory_allocated",
    "memory.memory_reserved",
    "memory.reset_peak_memory_stats",
    "memory.reset_accumulated_memory_stats",
    "memory.memory_stats",
    "memory.mem_get_info",
    "memory.empty_cache",
]


@pytest.mark.parametrize("name", NAMES)
def test_names_that_users_know(name):
    found = torch.spyre
    for part in name.split("."):
        found = getattr(found, part)
    assert callable(found)


def test_one_card_by_default():
    assert torch.spyre.is_available()
    assert torch.spyre.device_count() == 1
    assert torch.spyre.current_device() == 0


def test_tensors_know_their_device():
    x = torch.ones(2, device="spyre")
    assert x.device == torch.device("spyre:0")
    assert x.is_spyre and not torch.ones(2).is_spyre
    assert torch.ones(2).spyre().device == x.device


def test_modules_move_to_the_device():
    layer = torch.nn.Linear(3, 2).spyre()
    assert layer.weight.device == torch.device("spyre:0")


@pytest.mark.parametrize("index", [-1, 1, 300])
def test_set_device_raises_for_a_card_that_is_not_there(index):
    with pytest.raises(RuntimeError, match=rf"invalid device index {index}: this process sees 1 spyre card"):
        torch.spyre.set_device(index)
    assert torch.spyre.current_device() == 0


def test_set_device_raises_for_another_kind_of_device():
    with pytest.raises(ValueError, match="expected a spyre device, got cpu"):
        torch.spyre.set_device("cpu")


def test_device_context_restores_the_card():
    with pytest.raises(KeyError), torch.spyre.device("spyre:0"):
        assert torch.spyre.current_device() == 0
        raise KeyError
    assert torch.spyre.current_device() == 0


def test_device_of_ignores_tensors_elsewhere():
    with torch.spyre.device_of(torch.ones(1)):
        assert torch.spyre.current_device() == 0


@pytest.mark.parametrize("device", [None, 0, "spyre", "spyre:0", torch.device("spyre", 0)])
def test_properties(device):
    properties = torch.spyre.get_device_properties(device)
    assert properties.name == torch.spyre.get_device_name(device) == "Spyre software card"
    assert (properties.index, properties.physical_index) == (0, 0)
    assert properties.total_memory == 112 << 30
    assert (properties.multi_processor_count, properties.lx_bytes, properties.stick_bytes) == (32, 2 << 20, 128)
    assert (properties.mode, properties.flex_device) == ("run", "PF")


@pytest.mark.parametrize("ask", [torch.spyre.get_device_name, torch.spyre.get_device_properties])
def test_properties_of_a_card_that_is_not_there(ask):
    with pytest.raises(RuntimeError, match="invalid device index 5"):
        ask(5)


def test_amp_dtypes():
    assert torch.spyre.get_amp_supported_dtype() == [torch.float16, torch.bfloat16]


def test_dynamo_interface():
    from torch._dynamo.device_interface import get_interface_for_device

    from torch_spyre.device.interface import SpyreInterface

    interface = get_interface_for_device("spyre")
    assert interface is SpyreInterface
    assert interface.current_device() == interface.Worker.current_device() == 0
    assert interface.Worker.get_device_properties(0) == torch.spyre.get_device_properties(0)
    assert interface.exchange_device(0) == interface.maybe_exchange_device(-1) == 0
    assert interface.is_dtype_supported(torch.bfloat16) and not interface.is_dtype_supported(torch.float64)
    stream = interface.Stream()
    interface._set_stream_by_id(stream.stream_id, stream.device_index, stream.device_type)
    assert interface.get_raw_stream(0) == interface.current_stream().stream_id == stream.stream_id


def test_autoload_prints_nothing_and_starts_nothing(python):
    result = python("""
        import torch
        assert torch.spyre.is_available() and torch.spyre.device_count() == 1
        torch.manual_seed(0)
        torch.spyre.synchronize()
        torch.accelerator.empty_cache()
        assert not torch.spyre.is_initialized()
        torch.ones(1, device="spyre")
        assert torch.spyre.is_initialized()
    """)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_autoload_imports_little(program):
    list_modules = "import torch, sys; print(*sys.modules)"
    with_spyre = set(program(list_modules).split())
    without = set(program(list_modules, TORCH_DEVICE_BACKEND_AUTOLOAD="0").split())
    ours = {"torch.spyre"} | {name for name in with_spyre if name.split(".")[0] == "torch_spyre"}
    others = with_spyre - without - ours
    assert {name.split(".")[0] for name in others} <= {*sys.stdlib_module_names, "torch"}
    assert not [name for name in others if name.startswith(("torch._dynamo", "torch._inductor"))]


def test_autoload_that_fails_leaves_torch_usable(python):
    result = python("""
        import sys
        sys.modules["torch_spyre._C"] = None
        import torch
        assert torch.ones(2).sum() == 2
    """)
    assert result.returncode == 0, result.stderr
    assert "torch_spyre could not register the device 'spyre'" in result.stderr


# One process per setting would load PyTorch anew each time; before the runtime starts, a fork may use the card.
IN_FORKS = """
import os, sys, torch
def in_fork(action, **environment):
    sys.stdout.flush()
    if os.fork():
        return os.wait()
    os.environ.update(environment)
    try:
        print(action())
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
    sys.stdout.flush()
    os._exit(0)
"""


def test_environment_sets_the_cards(program):
    lines = program(
        IN_FORKS
        + """
physical = lambda: [torch.spyre.get_device_properties(i).physical_index for i in range(torch.spyre.device_count())]
card = lambda *names: lambda: [getattr(torch.spyre.get_device_properties(), name) for name in names]
in_fork(physical, AIU_WORLD_SIZE="3")
in_fork(physical, SPYRE_DEVICES="5,2")
in_fork(physical, SPYRE_DEVICES="5,2,3", AIU_WORLD_SIZE="2")
in_fork(torch.spyre.current_device, AIU_WORLD_SIZE="4", LOCAL_RANK="3")
in_fork(torch.spyre.current_device, AIU_WORLD_SIZE="2", LOCAL_RANK="3")
in_fork(lambda: torch.ones(1, device="spyre").device, AIU_WORLD_SIZE="4", LOCAL_RANK="2")
in_fork(card("total_memory", "multi_processor_count"), SPYRE_MEMORY_GB="0.5", SENCORES="8")
in_fork(card("mode", "flex_device"), SPYRE_CARD="strict", FLEX_DEVICE="VF")
in_fork(card("mode", "flex_device"), SPYRE_CARD="timing", FLEX_DEVICE="MOCK")
"""
    ).splitlines()
    assert lines == [
        "[0, 1, 2]",
        "[5, 2]",
        "[5, 2]",
        "3",
        "1",
        "spyre:2",
        f"[{1 << 29}, 8]",
        "['strict', 'VF']",
        "['timing', 'MOCK']",
    ]


WRONG = [
    ("AIU_WORLD_SIZE", "0", "expected a number from 1 to 8"),
    ("AIU_WORLD_SIZE", "nine", "expected a number from 1 to 8"),
    ("SPYRE_DEVICES", "0,8", "expected card indices from 0 to 7 with commas between"),
    ("SPYRE_DEVICES", "0,,1", "expected card indices from 0 to 7 with commas between"),
    ("SPYRE_DEVICES", "1,1", "expected each card once; 1 is named twice"),
    ("LOCAL_RANK", "-1", "expected a rank, 0 or more"),
    ("LOCAL_RANK", "first", "expected a rank, 0 or more"),
    ("FLEX_DEVICE", "pf", "expected one of PF, VF, MOCK"),
    ("SPYRE_MEMORY_GB", "0", "expected a number from 1e-06 to 1024"),
    ("SPYRE_CARD", "fast", "expected one of run, timing, strict"),
    ("SENCORES", "33", "expected a number from 1 to 32"),
    ("SPYRE_THREADS", "many", "expected a number from 1 to 1024"),
]


def test_wrong_environment_is_an_error_that_names_the_variable(program):
    code = IN_FORKS + "use = lambda: torch.ones(1, device='spyre')\n"
    code += "".join(f"in_fork(use, {name}={value!r})\n" for name, value, _ in WRONG)
    expected = [f"RuntimeError: {name}={value}: {message}" for name, value, message in WRONG]
    assert program(code).splitlines() == expected


def test_wrong_environment_leaves_torch_usable(program):
    printed = program(
        "import torch; torch.manual_seed(0); print(torch.spyre.is_available(), torch.accelerator.is_available())",
        SPYRE_DEVICES="none",
    )
    assert printed == "False False\n"


def test_debug_logs_transfers_and_fills(python):
    result = python(
        "import torch; torch.arange(3, dtype=torch.float16).to('spyre').zero_().cpu()", TORCH_SPYRE_DEBUG="1"
    )
    layout = "SpyreTensorLayout(device_size=[1, 64], stride_map =[-1, 1], device_dtype=DataFormats.SEN169_FP16)"
    assert result.stderr.splitlines() == [
        f"[spyre] copy to spyre:0 [3] torch.float16 {layout} from cpu [3] torch.float16 on stream 0",
        f"[spyre] fill spyre:0 [3] torch.float16 {layout} on stream 0",
        f"[spyre] copy to cpu [3] torch.float16 from spyre:0 [3] torch.float16 {layout} on stream 0",
    ]


def test_debug_log_goes_to_a_file(program, tmp_path):
    log = tmp_path / "spyre.log"
    program("import torch; torch.ones(1, device='spyre')", TORCH_SPYRE_DEBUG="1", SPYRE_LOG_FILE=str(log))
    assert log.read_text().startswith("[spyre] fill spyre:0 [1] torch.float32")
