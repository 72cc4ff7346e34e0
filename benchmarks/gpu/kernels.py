"""Triton kernels that are launched without Inductor."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):  # noqa: N803
    row = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    value = tl.load(x + row * columns + at, at < columns, float("-inf")).to(tl.float32)
    value = tl.exp(value - tl.max(value, 0))
    tl.store(out + row * columns + at, value / tl.sum(value, 0), at < columns)


@triton.jit
def scale(x, out, n, factor, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) * factor, at < n)


def launch(device: str) -> torch.Tensor:
    """Each kernel for two types and two block sizes; the sum of what they computed."""
    found = []
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.arange(4096, device=device, dtype=torch.float32).remainder(7).to(dtype)
        y, out = x * 2, torch.empty_like(x)
        for block in (256, 1024):
            add[(4096 // block,)](x, y, out, 4096, BLOCK=block)
            found.append(out.float().sum())
            scale[(4096 // block,)](x, out, 4096, 0.5, BLOCK=block)
            found.append(out.float().sum())
        softmax[(64,)](x, out, 64, BLOCK=64)
        found.append(out.float().sum())
    return torch.stack(found)
