"""A Llama as people write it: RMSNorm in fp32, rotary embedding, grouped queries, SwiGLU."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class RMSNorm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.float32)
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.weight * wide.to(x.dtype)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, kv_heads: int, inner: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head = heads, kv_heads, width // heads
        self.before_attention, self.before_mlp = RMSNorm(width), RMSNorm(width)
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, kv_heads * self.head, bias=False)
        self.v = nn.Linear(width, kv_heads * self.head, bias=False)
        self.o = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, inner, bias=False)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, width = x.shape
        y = self.before_attention(x)
        q = self.q(y).view(batch, length, self.heads, self.head).transpose(1, 2)
        k = self.k(y).view(batch, length, self.kv_heads, self.head).transpose(1, 2)
        v = self.v(y).view(batch, length, self.kv_heads, self.head).transpose(1, 2)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(attended.transpose(1, 2).reshape(batch, length, width))
        y = self.before_mlp(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Llama(nn.Module):
    """Token ids to logits."""

    def __init__(
        self,
        layers: int = 2,
        width: int = 512,
        heads: int = 8,
        kv_heads: int = 2,
        inner: int = 1408,
        vocabulary: int = 4096,
    ) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Layer(width, heads, kv_heads, inner) for _ in range(layers))
        self.norm = RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head_width = width // heads

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        position = torch.arange(ids.shape[1], device=ids.device, dtype=torch.float32)
        frequency = 10000.0 ** (
            torch.arange(0, self.head_width, 2, device=ids.device, dtype=torch.float32) / -self.head_width
        )
        angle = torch.outer(position, frequency)
        angle = torch.cat((angle, angle), dim=-1)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        for layer in self.layers:
            x = layer(x, cos, sin)
        return self.head(self.norm(x))
