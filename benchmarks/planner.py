"""Modelled time of blocks of Granite 3.3 8B: planned together, op by op, by the constraint solver, and what is proved.

The bound of the search leaves every op its best division and all that it could share in LX, each for itself; so no plan
of these ops in these layouts is faster, and the gap is an upper limit of what a better plan could gain. The solver, if
OR-Tools is installed, asks for what fits together: no plan of these ops in these layouts, within the limits at the end
of the line, is faster than ``proved``, as the planner times ops, each by itself, and its gap is that of its plan by the
same account. In the program a step that reads what the one before has just written takes somewhat longer, as the first
columns say.
"""

import os
from dataclasses import dataclass
from importlib.util import find_spec

os.environ["SPYRE_CARD"] = "timing"
os.environ["SPYRE_KERNEL_CACHE"] = "0"

import torch
import torch.nn.functional as F
from torch import nn

from torch_spyre import timing
from torch_spyre._inductor import config
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


@dataclass
class Planned:
    """In milliseconds; what the planner says by its own account, and the seconds that it took."""

    time: float
    bound: float
    objective: float
    proved: float
    seconds: float
    scopes: set[str]


def planned(module: nn.Module, args: list[torch.Tensor], **settings: str) -> Planned:
    torch._dynamo.reset()
    with torch.no_grad(), config.patch(plan_bound=True, **settings), timing.record() as found:
        torch.compile(module, fullgraph=True, dynamic=False)(*args)
    codes = [launch.code for launch in found.launches]
    said = [code["planner"] for code in codes if code["planner"]]
    return Planned(
        found.milliseconds,
        sum(code["bound_us"] for code in codes) / 1000,
        sum(each["objective_us"] for each in said) / 1000,
        sum(each["best_bound_us"] for each in said) / 1000,
        sum(each["seconds"] for each in said),
        {each["scope"] for each in said},
    )


def main() -> None:
    heads = f"{'':20} {'together':>11} {'op by op':>11} {'ratio':>6} {'bound':>11} {'gap':>6} {'search':>8}"
    exact = find_spec("ortools") is not None
    print(heads + (f" {'solver':>11} {'proved':>11} {'gap':>6} {'solver':>8}" if exact else ""))
    for name, make, shapes in CASES:
        with torch.device("meta"):
            module = make().half()
        module = load_model_to_spyre(module)
        args = [torch.empty(shape, dtype=torch.float16, device="spyre") for shape in shapes]
        plain = planned(module, args, planning="op_by_op")
        together = planned(module, args)
        line = (
            f"{name:20} {together.time:8.3f} ms {plain.time:8.3f} ms {together.time / plain.time:6.2f} "
            f"{together.bound:8.3f} ms {together.time / together.bound - 1:6.1%} {together.seconds:6.2f} s"
        )
        if exact:
            solved = planned(module, args, solver="exact")
            gap = solved.objective / solved.proved - 1
            line += f" {solved.time:8.3f} ms {solved.proved:8.3f} ms {gap:6.2%} {solved.seconds:6.2f} s"
            line += "" if solved.scopes == {"all"} else f" ({', '.join(sorted(solved.scopes))})"
        print(line, flush=True)


if __name__ == "__main__":
    main()
