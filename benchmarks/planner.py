"""Modelled time of blocks of Granite 3.3 8B: planned together, op by op, and the bound that the search knows.

The bound leaves every op its best division and all that it could share in LX, without asking whether that fits; so no
plan of these ops in these layouts is faster, and the gap is an upper limit of what a better plan could gain.
"""

import os
import time

os.environ["SPYRE_CARD"] = "timing"
os.environ["SPYRE_KERNEL_CACHE"] = "0"

import torch
import torch.nn.functional as F
from torch import nn

from torch_spyre import timing
from torch_spyre._inductor import config
from torch_spyre._inductor.passes import divide_work
from torch_spyre.model_utils import load_model_to_spyre

HIDDEN, HEADS, KV_HEADS, HEAD, MLP = 4096, 32, 8, 128, 12800


class Softmax(nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)


class Projections(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(HIDDEN)
        self.q, self.k, self.v = (nn.Linear(HIDDEN, n * HEAD, bias=False) for n in (HEADS, KV_HEADS, KV_HEADS))

    def forward(self, x):
        x = self.norm(x)
        return self.q(x), self.k(x), self.v(x)


class Attention(nn.Module):
    def forward(self, q, k, v):
        q, k, v = (each.unflatten(-1, (-1, HEAD)).transpose(1, 2) for each in (q, k, v))
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2).flatten(2)


class SwiGLU(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.RMSNorm(HIDDEN)
        self.gate, self.up = (nn.Linear(HIDDEN, MLP, bias=False) for _ in range(2))
        self.down = nn.Linear(MLP, HIDDEN, bias=False)

    def forward(self, x):
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.projections, self.attention, self.mlp = Projections(), Attention(), SwiGLU()
        self.o = nn.Linear(HEADS * HEAD, HIDDEN, bias=False)

    def forward(self, x):
        return self.mlp(x + self.o(self.attention(*self.projections(x))))


CASES = [
    ("softmax 4096x4096", Softmax, [(4096, 4096)]),
    ("RMSNorm + QKV, 512", Projections, [(1, 512, HIDDEN)]),
    *(
        (f"attention, {n}", Attention, [(1, n, heads * HEAD) for heads in (HEADS, KV_HEADS, KV_HEADS)])
        for n in (512, 2048)
    ),
    ("SwiGLU, 512", SwiGLU, [(1, 512, HIDDEN)]),
    ("layer, 512", Layer, [(1, 512, HIDDEN)]),
    ("layer, decode", Layer, [(1, 1, HIDDEN)]),
]


def planned(module: nn.Module, args: list[torch.Tensor], planning: str) -> tuple[float, float, float]:
    """Modelled ms, the bound in ms, and the seconds that the search took."""
    seconds, search = 0.0, divide_work.plan_together

    def timed(*given: object) -> None:
        nonlocal seconds
        begin = time.perf_counter()
        search(*given)
        seconds += time.perf_counter() - begin

    torch._dynamo.reset()
    divide_work.plan_together = timed
    try:
        with torch.no_grad(), config.patch(planning=planning, plan_bound=True), timing.record() as found:
            torch.compile(module, fullgraph=True, dynamic=False)(*args)
    finally:
        divide_work.plan_together = search
    return found.milliseconds, sum(launch.code["bound_us"] for launch in found.launches) / 1000, seconds


def main() -> None:
    print(f"{'':20} {'together':>11} {'op by op':>11} {'ratio':>6} {'bound':>11} {'gap':>6} {'search':>8}")
    for name, make, shapes in CASES:
        with torch.device("meta"):
            module = make().half()
        module = load_model_to_spyre(module)
        args = [torch.empty(shape, dtype=torch.float16, device="spyre") for shape in shapes]
        plain, _, _ = planned(module, args, "op_by_op")
        together, bound, seconds = planned(module, args, "together")
        print(
            f"{name:20} {together:8.3f} ms {plain:8.3f} ms {together / plain:6.2f} {bound:8.3f} ms "
            f"{together / bound - 1:6.1%} {seconds:6.2f} s"
        )


if __name__ == "__main__":
    main()
