"""What ranks do in the tests of training. Data, weights and rates are such that no sum rounds: several ranks then have
the very bits of a process that sees the whole batch, in whatever order gradients are added."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed import pipelining
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

from .dtensor_programs import Block, fill, integers, mesh_of
from .reference import same

BATCH, STEPS = 16, 2


def network() -> nn.Module:
    """Sizes that no number of ranks divides."""
    return fill(nn.Sequential(nn.Linear(9, 67), nn.ReLU(), nn.Linear(67, 5))).to("spyre")


def batch(rank: int = 0, of: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """A rank's part."""
    x, y = (integers(BATCH, width, seed=7, dtype=torch.float32) for width in (9, 5))
    count = BATCH // of
    return x[rank * count : (rank + 1) * count], y[rank * count : (rank + 1) * count]


def loss(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    return (found * expected).sum() / 2 ** (found.shape[0].bit_length() - 1)  # the mean, by a power of two


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=2**-4, momentum=0.5)


def batch_norm_of_all(dims: int, affine: bool, dtype: torch.dtype) -> None:
    """Raises unless ranks with parts of different sizes have results, gradients and statistics of the whole batch."""
    rank, sizes = dist.get_rank(), (6,) + (5, 4, 3)[: dims - 2]
    x = torch.randn(12, *sizes, generator=torch.Generator().manual_seed(3))
    rows = x.split([5, 7])
    expected = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[dims - 2](6, affine=affine)
    found = nn.SyncBatchNorm(6, affine=affine)
    found.load_state_dict(fill(expected).state_dict())
    found = found.to("spyre")
    whole = x.to(dtype).float().clone().requires_grad_()
    mine = rows[rank].to(dtype).to("spyre").requires_grad_()
    weight = torch.arange(1, 13).view(12, *[1] * (dims - 1)) / 16  # of each row in the loss
    outputs = expected(whole)
    (outputs.square() * weight).sum().backward()
    output = found(mine)
    (output.float().square() * weight.split([5, 7])[rank].to("spyre")).sum().backward()
    assert output.dtype == dtype and mine.grad is not None and whole.grad is not None
    close = {} if dtype == torch.float32 else {"rtol": 2**-8, "atol": 2**-5}  # a rounding of the input, a few of halves
    for a, b in ((output, outputs), (mine.grad, whole.grad)):
        torch.testing.assert_close(a.cpu().float(), b.split([5, 7])[rank], **close)
    for name, buffer in expected.named_buffers():
        torch.testing.assert_close(found.get_buffer(name).cpu(), buffer, rtol=1e-3, atol=1e-3)
    for name, parameter in expected.named_parameters():
        total = found.get_parameter(name).grad
        assert total is not None
        dist.all_reduce(total)
        torch.testing.assert_close(total.cpu(), parameter.grad, rtol=2**-8, atol=2**-5)


def part() -> tuple[torch.Tensor, torch.Tensor]:
    return batch(dist.get_rank(), dist.get_world_size())


def alone(steps: int = STEPS) -> list[torch.Tensor]:
    """Weights after some steps of one process on the whole batch."""
    model = network()
    optimizer, (x, y) = optimizer_of(model), batch()
    for _ in range(steps):
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def whole(model: nn.Module) -> list[torch.Tensor]:
    values = (parameter.detach() for parameter in model.parameters())
    return [value.full_tensor() if hasattr(value, "full_tensor") else value for value in values]


def train(model: nn.Module, parts: int = 1, hold: Any = None, steps: int = STEPS) -> list[torch.Tensor]:
    """``hold`` keeps gradients from the other ranks until the last of ``parts``."""
    optimizer, (x, y) = optimizer_of(model), part()
    xs, ys = x.chunk(parts), y.chunk(parts)
    for _ in range(steps):
        optimizer.zero_grad()
        for i in range(parts):
            with hold() if i < parts - 1 else contextlib.nullcontext():
                (loss(model(xs[i]), ys[i]) / parts).backward()
        optimizer.step()
    return whole(model)


def equal(found: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return all(same(a, b) for a, b in zip(found, expected, strict=True))


def replicated(parts: int, compiled: bool = False) -> bool:
    model = DistributedDataParallel(network())
    if compiled:
        model.compile()
    return equal(train(model, parts, model.no_sync), alone())


def sharded(mesh_shape: tuple[int, ...] = (), **options: Any) -> nn.Module:
    model, mesh = network(), mesh_of(*mesh_shape)
    for layer in (model[0], model[2]):
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def fully_sharded(parts: int, mesh_shape: tuple[int, ...] = (), compiled: bool = False) -> bool:
    model = sharded(mesh_shape)
    if compiled:
        model.compile()

    @contextlib.contextmanager
    def hold() -> Iterator[None]:
        model.set_requires_gradient_sync(False)
        yield
        model.set_requires_gradient_sync(True)

    return equal(train(model, parts, hold), alone())


def holds_its_shard() -> bool:
    """Memory for parameters and gradients of a layer large enough to tell."""
    size = dist.get_world_size()
    before = torch.spyre.memory_allocated()  # type: ignore[attr-defined]
    layer = nn.Linear(1024, 512 * size, bias=False, device="spyre")
    fully_shard(layer, mesh=mesh_of())
    torch.spyre.synchronize()  # type: ignore[attr-defined]
    held = torch.spyre.memory_allocated() - before  # type: ignore[attr-defined]
    return held <= 1024 * 512 * 4 * 1.1


def mixed_precision() -> tuple[bool, str]:
    """Computed in half precision; gradients summed, and weights kept, in single. Nothing rounds in a first step."""
    seen = []
    model = sharded(mp_policy=MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=torch.float32))
    model[0].register_forward_pre_hook(lambda layer, args: seen.append(layer.weight.dtype))
    return equal(train(model, steps=1), alone(1)), str(seen[0])


def clipped() -> None:
    """Norms of gradients that lie in shards, and AdamW, within rounding."""
    x, y = part()
    model = sharded()
    loss(model(x), y).backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    reference = network()
    loss(reference(batch()[0]), batch()[1]).backward()
    torch.testing.assert_close(norm.full_tensor(), nn.utils.clip_grad_norm_(reference.parameters(), 0.5))
    for each in (model, reference):
        torch.optim.AdamW(each.parameters(), lr=1e-2).step()
    torch.testing.assert_close(whole(model), whole(reference))


def transformer_block() -> None:
    """A block with a norm, random data: within rounding of one process."""
    torch.manual_seed(0)
    blocks = [Block().to("spyre") for _ in range(2)]
    blocks[1].load_state_dict(blocks[0].state_dict())
    x = torch.randn(BATCH, 8, 64).to("spyre")
    fully_shard(blocks[0], mesh=mesh_of())
    count = BATCH // dist.get_world_size()
    mine = x[dist.get_rank() * count :][:count]
    for model, data in zip(blocks, (mine, x), strict=True):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for _ in range(3):
            optimizer.zero_grad()
            model(data).square().mean().backward()
            optimizer.step()
    torch.testing.assert_close(whole(blocks[0]), whole(blocks[1]), rtol=1e-4, atol=1e-5)


def checkpoints(directory: str) -> dict[str, bool]:
    """Saved from shards; loaded into other shards, into a model that is whole, and into an optimizer that goes on."""
    model = sharded()
    optimizer, (x, y) = optimizer_of(model), part()

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        loss(model(x), y).backward()
        optimizer.step()

    step(model, optimizer)
    weights, states = get_state_dict(model, optimizer)
    checkpoint.save({"model": weights, "optimizer": states}, checkpoint_id=directory)
    saved = whole(model)

    single = network()
    single.load_state_dict({name: torch.zeros_like(value) for name, value in single.state_dict().items()})
    target = {"model": single.state_dict()}
    checkpoint.load(target, checkpoint_id=directory)
    single.load_state_dict(target["model"])

    others = {
        name: distribute_tensor(torch.zeros_like(value), mesh_of(), [Shard(value.dim() - 1)])
        for name, value in single.state_dict().items()
    }
    checkpoint.load({"model": others}, checkpoint_id=directory)

    again = sharded()
    its_optimizer = optimizer_of(again)
    step(again, its_optimizer)
    weights, states = get_state_dict(again, its_optimizer)
    found = {"model": weights, "optimizer": states}
    checkpoint.load(found, checkpoint_id=directory)
    set_state_dict(again, its_optimizer, model_state_dict=found["model"], optim_state_dict=found["optimizer"])
    same_weights = equal(whole(again), saved)
    step(again, its_optimizer)
    step(model, optimizer)
    return {
        "whole": equal(whole(single), saved),
        "other shards": equal([value.full_tensor() for value in others.values()], saved),
        "same shards": same_weights,
        "goes on": equal(whole(again), whole(model)),
    }


def stages(schedule: str) -> bool:
    """A stage for each rank; the gradients of all in one process, bit for bit."""
    rank, size = dist.get_rank(), dist.get_world_size()
    layers = [fill(nn.Sequential(nn.Linear(16, 16), nn.ReLU())).to("spyre") for _ in range(size)]
    stage = pipelining.PipelineStage(layers[rank], rank, size, torch.device("spyre", torch.spyre.current_device()))  # type: ignore[attr-defined]
    runner = getattr(pipelining, schedule)(stage, 4, loss_fn=loss, scale_grads=True)
    x, y = integers(BATCH, 16, dtype=torch.float32), integers(BATCH, 16, seed=3, dtype=torch.float32)
    losses: list[torch.Tensor] = []
    if rank == 0:
        runner.step(x)
    elif rank == size - 1:
        runner.step(target=y, losses=losses)
    else:
        runner.step()
    found = [parameter.grad for parameter in layers[rank].parameters()]
    alone = [fill(nn.Sequential(nn.Linear(16, 16), nn.ReLU())).to("spyre") for _ in range(size)]
    state = x
    for layer in alone:
        state = layer(state)
    loss(state, y).backward()
    return equal(found, [parameter.grad for parameter in alone[rank].parameters()])


def objects() -> list[Any]:
    """Python objects with tensors in them go round the ring."""
    rank, size = dist.get_rank(), dist.get_world_size()
    found: list[Any] = [None, None]
    sent = [{"rank": rank}, torch.full((3,), float(rank), device="spyre")]
    for turn in itertools.count():
        if turn == size:
            break
        if turn == rank:
            dist.send_object_list(sent, (rank + 1) % size)
        elif turn == (rank - 1) % size:
            dist.recv_object_list(found, turn)
    return [found[0]["rank"], found[1].sum().item() / 3]
