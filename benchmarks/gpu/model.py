"""A decoder in the shape of Qwen3-0.6B, with random weights, and three plain Triton kernels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional


@dataclass(frozen=True)
class Config:
    """Qwen3-0.6B, but for the number of layers, which a benchmark chooses."""

    layers: int = 28
    hidden: int = 1024
    heads: int = 16
    kv_heads: int = 8
    head: int = 128
    intermediate: int = 3072
    vocabulary: int = 151_936
    theta: float = 1e6
    epsilon: float = 1e-6


SMALL = {"hidden": 64, "heads": 4, "kv_heads": 2, "head": 16, "intermediate": 128, "vocabulary": 256}


class Norm(nn.Module):
    def __init__(self, size: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.epsilon = epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return self.weight * wide.to(x.dtype)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


class Attention(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.c = c
        self.q = nn.Linear(c.hidden, c.heads * c.head, bias=False)
        self.k = nn.Linear(c.hidden, c.kv_heads * c.head, bias=False)
        self.v = nn.Linear(c.hidden, c.kv_heads * c.head, bias=False)
        self.o = nn.Linear(c.heads * c.head, c.hidden, bias=False)
        self.q_norm, self.k_norm = Norm(c.head, c.epsilon), Norm(c.head, c.epsilon)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        batch, tokens, _ = x.shape
        c = self.c
        q = self.q_norm(self.q(x).view(batch, tokens, c.heads, c.head)).transpose(1, 2)
        k = self.k_norm(self.k(x).view(batch, tokens, c.kv_heads, c.head)).transpose(1, 2)
        v = self.v(x).view(batch, tokens, c.kv_heads, c.head).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k = k.repeat_interleave(c.heads // c.kv_heads, dim=1)
        v = v.repeat_interleave(c.heads // c.kv_heads, dim=1)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o(y.transpose(1, 2).reshape(batch, tokens, c.heads * c.head))


class Block(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.attention = Attention(c)
        self.before, self.after = Norm(c.hidden, c.epsilon), Norm(c.hidden, c.epsilon)
        self.gate = nn.Linear(c.hidden, c.intermediate, bias=False)
        self.up = nn.Linear(c.hidden, c.intermediate, bias=False)
        self.down = nn.Linear(c.intermediate, c.hidden, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x), cos, sin)
        y = self.after(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    def __init__(self, c: Config) -> None:
        super().__init__()
        self.c = c
        self.embedding = nn.Embedding(c.vocabulary, c.hidden)
        self.blocks = nn.ModuleList(Block(c) for _ in range(c.layers))
        self.norm = Norm(c.hidden, c.epsilon)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        c = self.c
        x = self.embedding(ids)
        frequencies = 1.0 / c.theta ** (torch.arange(0, c.head, 2, device=ids.device).float() / c.head)
        angles = torch.arange(ids.shape[1], device=ids.device).float()[:, None] * frequencies
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        for block in self.blocks:
            x = block(x, cos, sin)
        return functional.linear(self.norm(x), self.embedding.weight)


def kernels(device: str) -> torch.Tensor:
    """Launch three kernels that Inductor knows nothing of; what they computed."""
    import kernels as plain

    return plain.launch(device)
