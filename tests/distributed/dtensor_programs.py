"""What ranks do in the tests of DTensor. Where results are compared bit for bit, values are small integers, which no
order of a sum rounds."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor import rand as distributed_rand
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)

from .reference import same


def mesh_of(*shape: int) -> Any:
    shape = shape or (dist.get_world_size(),)
    return init_device_mesh("spyre", shape, mesh_dim_names=("first", "second")[: len(shape)])


def integers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-2, 3, shape, generator=generator).to(dtype).to("spyre")


def redistributes(shape: tuple[int, ...], mesh_shape: tuple[int, ...] = ()) -> str:
    """From all placements to all others; empty if the tensor stays what it is."""
    mesh = mesh_of(*mesh_shape)
    whole = integers(*shape)
    kinds = [Replicate(), Partial(), *(Shard(dim) for dim in range(len(shape)))]
    ways = list(itertools.product(kinds, repeat=mesh.ndim))
    for before, after in itertools.product(ways, ways):
        if any(one.is_partial() for one in after):
            continue  # PyTorch makes none
        shards = [Replicate() if one.is_partial() else one for one in before]
        tensor = distribute_tensor(whole, mesh, shards)
        if any(one.is_partial() for one in before):
            local = tensor.to_local()
            for dim, one in enumerate(before):
                if one.is_partial() and mesh.get_local_rank(dim) > 0:
                    local = torch.zeros_like(local)
            tensor = DTensor.from_local(local, mesh, before, shape=whole.shape, stride=whole.stride())
        if not same(tensor.redistribute(placements=after).full_tensor(), whole):
            return f"{before} to {after}"
    return ""


def multiplies() -> str:
    mesh = mesh_of()
    a, b, c = integers(8, 66), integers(66, 12, seed=1), integers(12, seed=2)
    expected = torch.addmm(c, a, b)
    kinds = (Replicate(), Shard(0), Shard(1))
    for left, right in itertools.product(kinds, kinds):
        x, y = distribute_tensor(a, mesh, [left]).requires_grad_(), distribute_tensor(b, mesh, [right]).requires_grad_()
        found = torch.addmm(distribute_tensor(c, mesh, [Replicate()]), x, y)
        if not same(found.full_tensor().detach(), expected):
            return f"{left} times {right}"
        found.sum().backward()
        if x.grad is None or not same(x.grad.full_tensor(), b.sum(1).expand(8, 66)):
            return f"gradient of {left} times {right}"
    return ""


def random_numbers() -> dict[str, bool]:
    mesh, size = mesh_of(), dist.get_world_size()
    torch.spyre.manual_seed(3)  # type: ignore[attr-defined]
    sharded = distributed_rand(8 * size, 6, device_mesh=mesh, placements=[Shard(0)])
    replicated = distributed_rand(8, 6, device_mesh=mesh, placements=[Replicate()])
    dropped = torch.nn.functional.dropout(distribute_tensor(torch.ones(64 * size, 2, device="spyre"), mesh, [Shard(0)]))
    parts = sharded.full_tensor().cpu().split(8)
    locals_, masks = [None] * size, dropped.full_tensor().cpu().split(64)
    dist.all_gather_object(locals_, replicated.to_local().cpu())
    torch.spyre.manual_seed(3)  # type: ignore[attr-defined]
    again = distributed_rand(8 * size, 6, device_mesh=mesh, placements=[Shard(0)])
    after = torch.rand(3, device="spyre").cpu()  # of the ranks' own generators, which are in one state
    states = [None] * size
    dist.all_gather_object(states, after)
    generator = torch.Generator("spyre").manual_seed(5)
    drawn = [again.clone().uniform_(generator=generator).full_tensor().cpu() for _ in range(2)]
    return {
        "shards differ": not any(torch.equal(a, b) for a, b in itertools.combinations(parts, 2)),
        "dropout differs": not any(torch.equal(a, b) for a, b in itertools.combinations(masks, 2)),
        "replicas agree": all(torch.equal(locals_[0], one) for one in locals_),
        "a seed repeats them": torch.equal(sharded.to_local().cpu(), again.to_local().cpu()),
        "generators stay together": all(torch.equal(states[0], one) for one in states),
        "a generator moves on": not torch.equal(*drawn),
    }


class Feed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 132), nn.Linear(132, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))


def fill(module: nn.Module) -> nn.Module:
    with torch.no_grad():
        for i, parameter in enumerate(module.parameters()):
            parameter.copy_(integers(*parameter.shape, seed=i, dtype=torch.float32))
    return module


def columns_and_rows() -> bool:
    """The two halves of a feed-forward block, with gradients, bit for bit."""
    whole = fill(Feed().to("spyre"))
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    parts = parallelize_module(copy.deepcopy(whole), mesh_of(), plan)
    x = integers(4, 64, dtype=torch.float32)
    found, expected = parts(x), whole(x)
    found.sum().backward()
    expected.sum().backward()
    return same(found.detach(), expected.detach()) and all(
        same(a.grad.full_tensor(), b.grad) for a, b in zip(parts.parameters(), whole.parameters(), strict=True)
    )


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.feed = nn.LayerNorm(64), Feed()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.feed(self.norm(x))


def sequence_parallel() -> None:
    torch.manual_seed(0)
    whole = Block().to("spyre")
    plan = {
        "": PrepareModuleInput(input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),)),
        "norm": SequenceParallel(),
        "feed.up": ColwiseParallel(input_layouts=Shard(1)),
        "feed.down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    }
    parts = parallelize_module(copy.deepcopy(whole), mesh_of(), plan)
    gather = PrepareModuleOutput(output_layouts=Shard(1), desired_output_layouts=Replicate())
    parts = parallelize_module(parts, mesh_of(), gather)
    x = torch.randn(2, 16, 64).to("spyre")
    found, expected = parts(x), whole(x)
    torch.testing.assert_close(found, expected)
    found.square().mean().backward()
    expected.square().mean().backward()
    for a, b in zip(parts.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(a.grad.full_tensor(), b.grad)


def parallel_loss() -> None:
    torch.manual_seed(0)
    logits, targets = torch.randn(16, 50).to("spyre"), torch.randint(0, 50, (16,)).to("spyre")
    parts = distribute_tensor(logits, mesh_of(), [Shard(1)]).requires_grad_()
    whole = logits.clone().requires_grad_()
    with loss_parallel():
        found = torch.nn.functional.cross_entropy(parts, targets)
        found.backward()
    expected = torch.nn.functional.cross_entropy(whole, targets)
    expected.backward()
    torch.testing.assert_close(found.full_tensor(), expected)
    torch.testing.assert_close(parts.grad.full_tensor(), whole.grad)


def groups() -> bool:
    """Every pair of ranks has a group of its own, used in an order that differs between ranks."""
    rank, size = dist.get_rank(), dist.get_world_size()
    pairs = list(itertools.combinations(range(size), 2))
    made = {pair: dist.new_group(list(pair)) for pair in pairs}
    ok = True
    for pair in pairs:
        if rank in pair:
            tensor = torch.full((65,), float(rank), device="spyre")
            dist.all_reduce(tensor, group=made[pair])
            ok &= same(tensor, torch.full((65,), float(sum(pair))))
    for pair in pairs:
        if rank in pair:
            dist.destroy_process_group(made[pair])
    return ok


def card_of_rank() -> tuple[str, int]:
    """A tensor that a script puts on its card by number, as examples for torchrun do."""
    torch.spyre.set_device(dist.get_rank())  # type: ignore[attr-defined]
    tensor = torch.ones(3, device=torch.device(f"spyre:{dist.get_rank()}"))
    dist.all_reduce(tensor)
    return str(tensor.device), int(tensor.sum().item())
