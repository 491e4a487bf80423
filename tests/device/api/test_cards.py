"""Several cards in one process: each has its memory, streams and generator; peer copies go between them."""

import pytest


@pytest.fixture
def four_cards(program):
    def run(code: str, **environment: str) -> list[str]:
        return program(code, AIU_WORLD_SIZE="4", TORCH_SPYRE_FALLBACK_WARN="0", **environment).splitlines()

    return run


def test_current_card(four_cards):
    assert four_cards("""
        import threading, torch
        print(torch.spyre.device_count(), torch.accelerator.device_count())
        torch.spyre.set_device("spyre:2")
        print(torch.spyre.current_device(), torch.empty(1, device="spyre").device)
        with torch.spyre.device(1):
            print(torch.spyre.current_device(), torch.accelerator.current_device_index())
        with torch.accelerator.device_index(3):
            print(torch.spyre.current_device(), torch.empty(1, device="spyre").device)
        with torch.spyre.device_of(torch.empty(1, device="spyre:1")):
            print(torch.spyre.current_device())
        print(torch.spyre.current_device())
        thread = threading.Thread(target=lambda: print(torch.spyre.current_device()))
        thread.start()
        thread.join()
        try:
            torch.spyre.set_device(4)
        except RuntimeError as error:
            print(error)
    """) == [
        "4 4",
        "2 spyre:2",
        "1 1",
        "3 spyre:3",
        "1",
        "2",
        "0",
        "invalid device index 4: this process sees 4 spyre card(s); AIU_WORLD_SIZE and SPYRE_DEVICES set which",
    ]


def test_memory_is_per_card(four_cards):
    assert four_cards(
        """
        import torch
        x = torch.empty(1000, device="spyre:1")
        print([torch.spyre.memory_allocated(i) for i in range(4)])
        torch.spyre.set_device(1)
        print(torch.spyre.memory_allocated(), torch.accelerator.memory_allocated("spyre:2"))
        del x
        print(torch.spyre.memory_allocated("spyre:1"), torch.spyre.max_memory_allocated(1))
        try:
            torch.empty(2 << 20, dtype=torch.int8, device="spyre:3")
        except torch.OutOfMemoryError as error:
            print(str(error)[:24], [torch.spyre.memory_stats(i)["num_ooms"] for i in range(4)])
    """,
        SPYRE_MEMORY_GB=str(1 / 1024),
    ) == ["[0, 4096, 0, 0]", "4096 0", "0 4096", "card 3 is out of memory: [0, 0, 0, 1]"]


def test_streams_are_per_card(four_cards):
    assert four_cards("""
        import torch
        mine = torch.spyre.Stream(device=2)
        print(mine.device(), mine.stream_id, torch.spyre.Stream(device="spyre:1").stream_id)
        with mine:
            print(torch.spyre.current_device(), torch.spyre.current_stream(), torch.spyre.current_stream(0).stream_id)
        print(torch.spyre.current_device(), torch.spyre.current_stream(2).stream_id)
        mine.add_callback(lambda: 1 / 0)
        torch.spyre.synchronize(0)
        torch.spyre.synchronize(1)
        try:
            torch.spyre.synchronize(2)
        except ZeroDivisionError:
            print("only there")
    """) == ["spyre:2 1 1", "2 <torch.spyre.Stream device=spyre:2 id=1 priority=0> 0", "0 0", "only there"]


def test_generators_are_per_card(four_cards):
    assert four_cards("""
        import torch
        torch.spyre.manual_seed_all(5)
        print(len({tuple(torch.rand(3, device=f"spyre:{i}").tolist()) for i in range(4)}))
        with torch.spyre.device(1):
            torch.spyre.manual_seed(6)
        print([g.initial_seed() for g in map(torch.spyre.random.default_generator, range(4))])
        print(torch.Generator("spyre:3").device, len(torch.spyre.get_rng_state_all()))
    """) == ["1", "[5, 6, 5, 5]", "spyre:3 4"]


def test_peer_copies(four_cards):
    assert four_cards("""
        import torch
        torch.manual_seed(0)
        x = torch.randn(300, 70)
        on0 = x.to("spyre:0")
        on1 = on0.to("spyre:1")
        print(on1.device, torch.equal(on1.cpu(), x))
        print(torch.equal(on0.t().to("spyre:2").cpu(), x.t()))
        target = torch.zeros(70, 300, device="spyre:3")
        target[10:20].copy_(on1[:, 5:15].t())
        expected = torch.zeros(70, 300)
        expected[10:20] = x[:, 5:15].t()
        print(torch.equal(target.cpu(), expected))
        print(torch.equal(on0.to("spyre:1", torch.float16).cpu(), x.to("spyre").to(torch.float16).cpu()))
    """) == ["spyre:1 True", "True", "True", "True"]


def test_a_peer_copy_waits_for_the_other_cards_stream(four_cards):
    assert four_cards("""
        import threading, torch
        gate, x = threading.Event(), torch.zeros(100, device="spyre:0")
        torch.spyre.default_stream(0).add_callback(lambda: gate.wait(60))
        x.fill_(3)
        y = x.to("spyre:1")
        x.fill_(4)
        print(torch.spyre.default_stream(1).query())
        gate.set()
        print(y.cpu().unique().tolist(), x.cpu().unique().tolist())
    """) == ["False", "[3.0] [4.0]"]


def test_a_peer_copy_takes_its_time_on_both_cards(four_cards):
    assert four_cards("""
        import torch
        x = torch.zeros(1 << 20, device="spyre:0")
        before = torch.spyre.default_stream(0).modelled_time()
        x.to("spyre:1")
        times = [torch.spyre.default_stream(i).modelled_time() for i in (0, 1)]
        print(times[0] == times[1], round((times[0] - before) * 1e6) == round((4 << 20) / 32e9 * 1e9))
    """) == ["True True"]


def test_memory_that_another_cards_stream_still_reads_is_waited_for(four_cards):
    # The source's card has no other memory left, and only the other card's stream can free it.
    assert four_cards(
        """
        import threading, time, torch
        x = torch.full((3 << 20,), 5, dtype=torch.int8, device="spyre:0")
        torch.spyre.synchronize(0)
        stream = torch.spyre.Stream(device=1)
        stream.add_callback(lambda: time.sleep(0.5))
        with stream:
            y = x.to("spyre:1")
        del x
        z = torch.full((3 << 20,), 6, dtype=torch.int8, device="spyre:0")
        print(y.cpu().unique().tolist(), z.cpu().unique().tolist())
        """,
        SPYRE_MEMORY_GB=str(4 / 1024),
    ) == ["[5] [6]"]


def test_record_stream_of_another_card(four_cards):
    assert four_cards("""
        import threading, torch
        gate, x = threading.Event(), torch.zeros(1 << 20, device="spyre:0")
        torch.spyre.synchronize(0)
        stream, address = torch.spyre.Stream(device=1), x.data_ptr()
        stream.add_callback(lambda: gate.wait(60))
        x.record_stream(stream)
        del x
        print(torch.empty(1 << 20, device="spyre:0").data_ptr() == address)
        gate.set()
        stream.synchronize()
        print(torch.empty(1 << 20, device="spyre:0").data_ptr() == address)
    """) == ["False", "True"]


def test_kernels_take_tensors_of_one_card(four_cards):
    assert four_cards("""
        import torch, torch_spyre
        code = {"name": "k", "arguments": [128, 128], "steps": []}
        plan = torch_spyre._C.prepare_kernel(code)
        try:
            torch_spyre._C.launch_jobplan(plan, [torch.ones(1, device="spyre:0"), torch.ones(1, device="spyre:1")])
        except RuntimeError as error:
            print(str(error).splitlines()[0])
    """) == ["kernel 'k' takes tensors of one card, got one on spyre:1"]


def test_ops_on_tensors_of_two_cards_are_refused(four_cards):
    assert four_cards("""
        import torch
        try:
            torch.ones(2, device="spyre:0") + torch.ones(2, device="spyre:1")
        except RuntimeError as error:
            print(str(error).split(" (when")[0])
    """) == ["Expected all tensors to be on the same device, but found at least two devices, spyre:0 and spyre:1!"]


def test_local_rank_sets_the_default_card_of_every_thread(four_cards):
    assert four_cards(
        """
        import threading, torch
        print(torch.spyre.current_device(), torch.empty(1, device="spyre").device)
        thread = threading.Thread(target=lambda: print(torch.spyre.current_device()))
        thread.start()
        thread.join()
    """,
        LOCAL_RANK="2",
    ) == ["2 spyre:2", "2"]
