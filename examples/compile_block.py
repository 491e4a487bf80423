"""A transformer block compiled for the card: right, in one launch, and what it would take on the real one."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    """Grouped-query attention and SwiGLU, as Llama has them."""

    def __init__(self, width: int = 256, heads: int = 4, kv_heads: int = 2) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head = heads, kv_heads, width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, (heads + 2 * kv_heads) * self.head, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate_up = nn.Linear(width, 6 * width, bias=False)
        self.down = nn.Linear(3 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.qkv(self.norm1(x)).view(batch, length, -1, self.head).transpose(1, 2)
        q, k, v = heads.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


def main() -> None:
    torch.manual_seed(0)
    block, x = Block().to(torch.float16).eval(), torch.randn(2, 100, 256).to(torch.float16)
    on_card, y = Block().to(torch.float16).eval().to("spyre"), x.to("spyre")
    on_card.load_state_dict(block.state_dict())
    compiled = torch.compile(on_card, fullgraph=True)
    with torch.no_grad(), torch.spyre.fallback("error"):
        result = compiled(y)
        start, end = (torch.spyre.Event(enable_timing=True) for _ in range(2))
        start.record()
        compiled(y)
        end.record()
        torch.spyre.synchronize()
        want = block.float()(x.float())
    error = (result.cpu().float() - want).abs().max().item()
    print(f"block of {sum(p.numel() for p in block.parameters()):,} parameters on {tuple(x.shape)}")
    print(f"largest difference from fp32 on the CPU: {error:.4f} at values up to {want.abs().max():.2f}")
    print(f"modelled time on the card: {start.elapsed_time(end) * 1000:.0f} microseconds")
    assert error < 0.05, "the card's block should agree with the CPU's"


if __name__ == "__main__":
    main()
