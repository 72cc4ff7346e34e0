"""The kernels: ordinary Triton code of the kind that models are made of, and how each is specialised.

Compiling them for sm_90 needs no GPU: Triton parses, lowers and assembles with what its wheel holds. The
demo compiles each once (`KERNELS`, as they stand); the benchmark's corpus compiles many variants of them
(`variants`). Importing this module imports Triton.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator"
# No annotations from __future__: Triton reads the annotation of a compile-time parameter as an object.
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TARGET = GPUTarget("cuda", 90, 32)


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = i < n
    tl.store(out + i, tl.load(x + i, mask=live) + tl.load(y + i, mask=live), mask=live)


@triton.jit
def gelu(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = i < n
    v = tl.load(x + i, mask=live).to(tl.float32)
    y = 0.5 * v * (1.0 + tl.erf(v * 0.7071067811865476))
    tl.store(out + i, y.to(out.dtype.element_ty), mask=live)


@triton.jit
def swiglu(gate, up, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = i < n
    g = tl.load(gate + i, mask=live).to(tl.float32)
    u = tl.load(up + i, mask=live).to(tl.float32)
    tl.store(out + i, (g * tl.sigmoid(g) * u).to(out.dtype.element_ty), mask=live)


@triton.jit
def dropout(x, out, n, p, seed, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = i < n
    v = tl.load(x + i, mask=live)
    keep = tl.rand(seed, i) > p
    tl.store(out + i, tl.where(keep, v / (1 - p), 0.0).to(out.dtype.element_ty), mask=live)


@triton.jit
def softmax(x, out, stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    v = tl.load(x + row * stride + i, mask=i < columns, other=-float("inf")).to(tl.float32)
    e = tl.exp(v - tl.max(v, axis=0))
    tl.store(out + row * stride + i, (e / tl.sum(e, axis=0)).to(out.dtype.element_ty), mask=i < columns)


@triton.jit
def rms_norm(x, weight, out, stride, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    live = i < columns
    v = tl.load(x + row * stride + i, mask=live, other=0.0).to(tl.float32)
    w = tl.load(weight + i, mask=live).to(tl.float32)
    scale = tl.rsqrt(tl.sum(v * v, axis=0) / columns + eps)
    tl.store(out + row * stride + i, (v * scale * w).to(out.dtype.element_ty), mask=live)


@triton.jit
def layer_norm(x, weight, bias, out, mean, rstd, stride, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    live = i < columns
    v = tl.load(x + row * stride + i, mask=live, other=0.0).to(tl.float32)
    m = tl.sum(v, axis=0) / columns
    d = tl.where(live, v - m, 0.0)
    r = tl.rsqrt(tl.sum(d * d, axis=0) / columns + eps)
    tl.store(mean + row, m)
    tl.store(rstd + row, r)
    y = d * r * tl.load(weight + i, mask=live).to(tl.float32) + tl.load(bias + i, mask=live).to(tl.float32)
    tl.store(out + row * stride + i, y.to(out.dtype.element_ty), mask=live)


@triton.jit
def layer_norm_backward(dy, x, weight, mean, rstd, dx, dw, stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    live = i < columns
    v = tl.load(x + row * stride + i, mask=live, other=0.0).to(tl.float32)
    g = tl.load(dy + row * stride + i, mask=live, other=0.0).to(tl.float32)
    w = tl.load(weight + i, mask=live).to(tl.float32)
    r = tl.load(rstd + row)
    h = tl.where(live, (v - tl.load(mean + row)) * r, 0.0)
    wg = tl.where(live, w * g, 0.0)
    a = tl.sum(h * wg, axis=0) / columns
    b = tl.sum(wg, axis=0) / columns
    tl.store(dx + row * stride + i, ((wg - (h * a + b)) * r).to(dx.dtype.element_ty), mask=live)
    tl.atomic_add(dw + i, g * h, mask=live)


@triton.jit
def cross_entropy(logits, target, loss, grad, stride, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    t = tl.load(target + row)
    top = -float("inf")
    total = 0.0
    for start in range(0, columns, BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(logits + row * stride + i, mask=i < columns, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(top, tl.max(v, axis=0))
        total = total * tl.exp(top - higher) + tl.sum(tl.exp(v - higher), axis=0)
        top = higher
    tl.store(loss + row, top + tl.log(total) - tl.load(logits + row * stride + t).to(tl.float32))
    for start in range(0, columns, BLOCK):
        i = start + tl.arange(0, BLOCK)
        v = tl.load(logits + row * stride + i, mask=i < columns).to(tl.float32)
        p = tl.exp(v - top) / total - tl.where(i == t, 1.0, 0.0)
        tl.store(grad + row * stride + i, p.to(grad.dtype.element_ty), mask=i < columns)


@triton.jit
def rope(q, cos, sin, stride, heads, HALF: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0)
    i = tl.arange(0, HALF)
    c = tl.load(cos + token * HALF + i)[None, :]
    s = tl.load(sin + token * HALF + i)[None, :]
    for start in range(0, heads, BLOCK):
        h = start + tl.arange(0, BLOCK)
        at = q + token * stride + h[:, None] * (2 * HALF) + i[None, :]
        live = h[:, None] < heads
        a = tl.load(at, mask=live).to(tl.float32)
        b = tl.load(at + HALF, mask=live).to(tl.float32)
        tl.store(at, (a * c - b * s).to(q.dtype.element_ty), mask=live)
        tl.store(at + HALF, (b * c + a * s).to(q.dtype.element_ty), mask=live)


@triton.jit
def adamw(p, g, m, v, n, lr, beta1, beta2, eps, decay, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    live = i < n
    grad = tl.load(g + i, mask=live).to(tl.float32)
    first = beta1 * tl.load(m + i, mask=live) + (1 - beta1) * grad
    second = beta2 * tl.load(v + i, mask=live) + (1 - beta2) * grad * grad
    w = tl.load(p + i, mask=live).to(tl.float32) * (1 - lr * decay)
    tl.store(p + i, (w - lr * first / (tl.sqrt(second) + eps)).to(p.dtype.element_ty), mask=live)
    tl.store(m + i, first, mask=live)
    tl.store(v + i, second, mask=live)


@triton.jit
def matmul(a, b, c, m, n, k, am, bk, cm, BLOCK_M: tl.constexpr, BLOCK: tl.constexpr, BLOCK_K: tl.constexpr):
    i = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    r = tl.arange(0, BLOCK_K)
    at = a + (i % m)[:, None] * am + r[None, :]
    bt = b + r[:, None] * bk + (j % n)[None, :]
    total = tl.zeros((BLOCK_M, BLOCK), dtype=tl.float32)
    for start in range(tl.cdiv(k, BLOCK_K)):
        left = k - start * BLOCK_K
        x = tl.load(at, mask=r[None, :] < left, other=0.0)
        y = tl.load(bt, mask=r[:, None] < left, other=0.0)
        total = tl.dot(x, y, total)
        at += BLOCK_K
        bt += BLOCK_K * bk
    live = (i[:, None] < m) & (j[None, :] < n)
    tl.store(c + i[:, None] * cm + j[None, :], total.to(c.dtype.element_ty), mask=live)


@triton.jit
def attention(
    q, k, v, out, tokens, scale, stride, BLOCK_M: tl.constexpr, BLOCK: tl.constexpr, HEAD: tl.constexpr
):
    base = tl.program_id(1) * stride
    i = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    d = tl.arange(0, HEAD)
    query = tl.load(q + base + i[:, None] * HEAD + d[None, :], mask=i[:, None] < tokens, other=0.0)
    top = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, HEAD), tl.float32)
    for start in range(0, tokens, BLOCK):
        j = start + tl.arange(0, BLOCK)
        key = tl.load(k + base + j[None, :] * HEAD + d[:, None], mask=j[None, :] < tokens, other=0.0)
        s = tl.dot(query, key) * scale
        s = tl.where((j[None, :] < tokens) & (j[None, :] <= i[:, None]), s, -1.0e6)
        higher = tl.maximum(top, tl.max(s, 1))
        p = tl.exp(s - higher[:, None])
        shrink = tl.exp(top - higher)
        total = total * shrink + tl.sum(p, 1)
        value = tl.load(v + base + j[:, None] * HEAD + d[None, :], mask=j[:, None] < tokens, other=0.0)
        acc = tl.dot(p.to(value.dtype), value, acc * shrink[:, None])
        top = higher
    y = (acc / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + base + i[:, None] * HEAD + d[None, :], y, mask=i[:, None] < tokens)


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel and one specialisation of it: what ``triton.compile`` turns into one entry of its cache."""

    function: Any
    arguments: str  # one word an argument: *T a pointer to the data type, *fp32, i32, fp32
    dtype: str = "bf16"
    constants: dict[str, int] = field(default_factory=lambda: {"BLOCK": 1024})
    warps: int = 4
    stages: int = 3
    multiples: bool = True  # the integers, sizes and strides, are multiples of 16, which a launch finds out
    loops: bool = False  # whether the number of pipeline stages makes a difference

    def source(self) -> Any:
        names = [p.name for p in self.function.params]
        kinds = [word.replace("T", self.dtype) for word in self.arguments.split()]
        signature = dict(zip(names, kinds + ["constexpr"] * len(self.constants), strict=True))
        # Torch's allocations are always aligned.
        known = [i for i, kind in enumerate(kinds) if kind[0] == "*" or (kind == "i32" and self.multiples)]
        attributes = {(i,): [["tt.divisibility", 16]] for i in known}
        return ASTSource(self.function, signature, constexprs=dict(self.constants), attrs=attributes)

    def compile(self) -> Any:
        options = {"num_warps": self.warps, "num_stages": self.stages}
        return triton.compile(self.source(), target=TARGET, options=options)


MATMUL = {"BLOCK_M": 64, "BLOCK": 64, "BLOCK_K": 32}
ATTENTION = {"BLOCK_M": 64, "BLOCK": 64, "HEAD": 64}
KERNELS = (
    Kernel(add, "*T *T *T i32"),
    Kernel(gelu, "*T *T i32"),
    Kernel(swiglu, "*T *T *T i32"),
    Kernel(dropout, "*T *T i32 fp32 i32"),
    Kernel(softmax, "*T *T i32 i32"),
    Kernel(rms_norm, "*T *T *T i32 i32 fp32"),
    Kernel(layer_norm, "*T *T *T *T *fp32 *fp32 i32 i32 fp32"),
    Kernel(layer_norm_backward, "*T *T *T *fp32 *fp32 *T *fp32 i32 i32"),
    Kernel(cross_entropy, "*T *i64 *fp32 *T i32 i32"),
    Kernel(rope, "*T *fp32 *fp32 i32 i32", constants={"HALF": 64, "BLOCK": 8}),
    Kernel(adamw, "*T *T *fp32 *fp32 i32 fp32 fp32 fp32 fp32 fp32"),
    Kernel(matmul, "*T *T *T i32 i32 i32 i32 i32 i32", constants=MATMUL, loops=True),
    Kernel(attention, "*T *T *T *T i32 fp32 i32", constants=ATTENTION, loops=True),
)


def variants(kernels: tuple[Kernel, ...] = KERNELS) -> Iterator[Kernel]:
    """1,440 specialisations, in one fixed order that mixes the kernels."""
    shapes = itertools.product((3, 2), (True, False), ("bf16", "fp16", "fp32"), (4, 8, 2, 16), (2, 4, 8, 1))
    for stages, multiples, dtype, warps, halves in shapes:
        for kernel in kernels:
            if stages == kernel.stages or kernel.loops:
                constants = {**kernel.constants, "BLOCK": kernel.constants["BLOCK"] * halves // 2}
                yield replace(
                    kernel, constants=constants, dtype=dtype, warps=warps, stages=stages, multiples=multiples
                )
