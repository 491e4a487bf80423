"""Random numbers: made on the host, so a seed gives the CPU's numbers, and every card has its own generator."""

import threading

import pytest
import torch


def draw(**options) -> list[float]:
    return torch.rand(5, device="spyre", **options).tolist()


def test_a_seed_gives_the_same_numbers():
    torch.spyre.manual_seed(3)
    first = draw()
    assert draw() != first
    torch.spyre.manual_seed(3)
    assert draw() == first


def test_a_seed_gives_the_cpus_numbers():
    torch.manual_seed(11)
    numbers = torch.randn(100)
    torch.spyre.manual_seed(11)
    assert torch.equal(torch.randn(100, device="spyre").cpu(), numbers)


def test_drawing_leaves_the_cpus_generator_alone():
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    draw()
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize("seed_all", [torch.manual_seed, torch.spyre.manual_seed_all, torch.accelerator.manual_seed])
def test_what_seeds_the_card(seed_all):
    seed_all(21)
    assert torch.spyre.initial_seed() == 21
    first = draw()
    seed_all(21)
    assert draw() == first


def test_state_comes_back():
    torch.spyre.manual_seed(8)
    draw()
    state = torch.spyre.get_rng_state()
    expected = draw()
    torch.spyre.set_rng_state(state)
    assert draw() == expected
    assert state.device.type == "cpu" and state.dtype == torch.uint8


def test_states_of_all_cards():
    states = torch.spyre.get_rng_state_all()
    expected = draw()
    torch.spyre.set_rng_state_all(states)
    assert len(states) == torch.spyre.device_count() and draw() == expected


def test_a_state_of_the_wrong_size():
    with pytest.raises(RuntimeError, match="Expected a CPUGeneratorImplState of size"):
        torch.spyre.set_rng_state(torch.zeros(3, dtype=torch.uint8))


def test_fork_rng_restores():
    expected_state = torch.spyre.get_rng_state()
    with torch.random.fork_rng(device_type="spyre"):
        torch.spyre.manual_seed(1)
        draw()
    assert torch.equal(torch.spyre.get_rng_state(), expected_state)


def test_seed_is_random():
    assert torch.spyre.seed() != torch.spyre.seed()
    torch.spyre.seed_all()
    assert torch.spyre.initial_seed() != 0


def test_generator_of_the_device():
    generator = torch.Generator("spyre").manual_seed(4)
    first = draw(generator=generator)
    assert generator.device == torch.device("spyre:0") and generator.initial_seed() == 4
    assert draw(generator=generator.manual_seed(4)) == first


def test_cpu_generator_gives_cpu_numbers():
    expected = torch.rand(5, generator=torch.Generator().manual_seed(6)).tolist()
    assert draw(generator=torch.Generator().manual_seed(6)) == expected


def test_clone_goes_on_from_the_same_state():
    generator = torch.Generator("spyre").manual_seed(9)
    draw(generator=generator)
    copy = generator.clone_state()
    assert draw(generator=copy) == draw(generator=generator)


def test_generator_has_no_offset():
    with pytest.raises(NotImplementedError, match="a spyre generator has a state, not an offset"):
        torch.Generator("spyre").get_offset()


def test_generator_of_the_card_for_a_tensor_elsewhere():
    with pytest.raises(RuntimeError, match="a spyre generator cannot draw for a tensor on cpu"):
        torch.rand(3, generator=torch.Generator("spyre"))


def test_generator_of_a_card_that_is_not_there():
    for make in (lambda: torch.Generator("spyre:6"), lambda: torch.spyre.get_rng_state("spyre:6")):
        with pytest.raises(RuntimeError, match="invalid device index 6"):
            make()


@pytest.mark.parametrize("draw_in_place", ["normal_", "uniform_", "exponential_", "bernoulli_", "random_", "cauchy_"])
def test_in_place_draws_are_the_cpus(draw_in_place):
    x = torch.zeros(50)
    expected = getattr(x.clone(), draw_in_place)(generator=torch.Generator().manual_seed(2))
    drawn = getattr(x.to("spyre"), draw_in_place)(generator=torch.Generator("spyre").manual_seed(2))
    assert torch.equal(drawn.cpu(), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_draws_by_probabilities_are_the_cpus(dtype):
    p = torch.linspace(0, 1, 50).reshape(5, 10).half().to(dtype)
    expected = torch.bernoulli(p, generator=torch.Generator().manual_seed(2))
    with torch.spyre.fallback("error"):
        drawn = torch.bernoulli(p.to("spyre"), generator=torch.Generator("spyre").manual_seed(2))
        assert torch.equal(drawn.cpu(), expected)
        with pytest.raises(RuntimeError, match="p_in >= 0 && p_in <= 1"):
            torch.bernoulli(p.to("spyre") + 1)


def test_randperm_and_randint():
    torch.spyre.manual_seed(1)
    assert sorted(torch.randperm(20, device="spyre").tolist()) == list(range(20))
    assert set(torch.randint(3, 5, (50,), device="spyre").tolist()) == {3, 4}


def test_threads_draw_from_one_generator_without_repeating():
    torch.spyre.manual_seed(0)
    numbers = []
    threads = [threading.Thread(target=lambda: numbers.extend(draw())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.spyre.manual_seed(0)
    assert sorted(numbers) == sorted(x for _ in range(8) for x in draw())


def test_a_compiled_function_may_set_the_state():
    def drawn_apart(x):
        with torch.random.fork_rng([0], device_type="spyre"):
            torch.manual_seed(3)
            return x + torch.rand_like(x)

    x = torch.zeros(5, device="spyre")
    torch.spyre.manual_seed(7)
    state = torch.spyre.get_rng_state()
    assert torch.compile(drawn_apart)(x).tolist() == drawn_apart(x).tolist()
    assert torch.equal(torch.spyre.get_rng_state(), state)


def test_integers_without_bounds_are_as_wide_as_the_card_keeps_them():
    torch.manual_seed(3)
    drawn = torch.empty(1000, dtype=torch.int64, device="spyre").random_().cpu()
    wide = torch.empty(1000, dtype=torch.int64).random_(generator=torch.Generator().manual_seed(3))
    assert torch.equal(drawn, wide & (2**31 - 1))
    narrow = torch.empty(1000, dtype=torch.int32, device="spyre").random_(generator=torch.Generator().manual_seed(3))
    assert torch.equal(
        narrow.cpu(), torch.empty(1000, dtype=torch.int32).random_(generator=torch.Generator().manual_seed(3))
    )


def test_batches_are_shuffled_where_the_card_is_the_default_device(program):
    """DataLoader draws seeds as int64 tensors of the default device."""
    program(
        """
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        torch.set_default_device("spyre")
        batches = [x for (x,) in DataLoader(TensorDataset(torch.arange(12.0)), batch_size=5, shuffle=True)]
        assert sorted(torch.cat(batches).tolist()) == list(range(12))
        """
    )
