"""The workload: a small transformer trained for one step, and a dozen Triton kernels, in one process.

    python -m cachehome.demo.workload REPORT

What it saw goes to the file REPORT, one JSON object in the shape of the class `Report`. It knows of no phases
and no store: it activates cachehome as an engine would, and then compiles whatever its caches do not hold.
"""

from __future__ import annotations

import cachehome.activate  # isort: skip  # noqa: F401 - first: before torch reads a variable

import itertools
import json
import os
import sys
import time
from typing import Any, TypedDict

from cachehome.demo.compilers import Compilers

LAYERS, HEADS, DIM, TOKENS, BATCH, VOCABULARY = 4, 4, 128, 64, 2, 256


class Caches(TypedDict):
    fxgraph: dict[str, int]
    aotautograd: dict[str, int]
    triton: dict[str, int]


class Report(TypedDict):
    seconds: dict[str, float]  # imports, inductor, triton
    loss: str  # of the step, and the norm of its gradient, as hexadecimal floats: equal means to the last bit
    gradient: str
    compilers: dict[str, int]  # processes started, by purpose
    caches: Caches  # hits and misses
    missed: list[str]  # the Triton kernels that had to be compiled
    directories: dict[str, str]  # in effect at the end


def train() -> tuple[float, float]:
    """One step: forward, loss, backward. Nothing in it depends on the order in which threads finish."""
    import torch
    from torch import nn
    from torch.nn import functional

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.before, self.after = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
            self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
            self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            batch, tokens, dim = x.shape
            heads = self.qkv(self.before(x)).view(batch, tokens, 3, HEADS, dim // HEADS)
            q, k, v = heads.permute(2, 0, 3, 1, 4)
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(batch, tokens, dim))
            return x + self.down(functional.gelu(self.up(self.after(x))))

    class Transformer(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(VOCABULARY, DIM)
            self.position = nn.Parameter(torch.zeros(TOKENS, DIM))
            self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
            self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCABULARY)

        def forward(self, ids: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            x = self.embedding(ids) + self.position
            for block in self.blocks:
                x = block(x)
            return functional.cross_entropy(self.head(self.norm(x)).flatten(0, 1), target.flatten())

    torch.manual_seed(0)
    model = Transformer()
    # No token twice: the gradient of the embedding then adds nothing up, in whatever order.
    ids = torch.randperm(VOCABULARY)[: BATCH * (TOKENS + 1)].view(BATCH, TOKENS + 1)
    loss = torch.compile(model, dynamic=False)(ids[:, :-1], ids[:, 1:])
    loss.backward()
    norms = [parameter.grad.norm() for parameter in model.parameters() if parameter.grad is not None]
    return loss.item(), torch.stack(norms).norm().item()


def compile_kernels() -> list[tuple[str, bool]]:
    """Every kernel's name, and whether it came from the cache: what Triton itself tells its listener."""
    from triton import knobs

    from cachehome.demo.kernels import KERNELS

    seen: list[tuple[str, bool]] = []

    def listen(*, src: Any, cache_hit: bool, **_: Any) -> None:
        seen.append((src.name, cache_hit))

    knobs.compilation.listener = listen
    for kernel in KERNELS:
        kernel.compile()
    return seen


def caches(kernels: list[tuple[str, bool]]) -> Caches:
    """Hits and misses; what torch bypassed counts as missed, since it was compiled."""
    from torch._dynamo.utils import counters

    def read(group: str, name: str) -> dict[str, int]:
        found = counters[group]
        missed = found[f"{name}_miss"] + found[f"{name}_bypass"]
        return {"hits": int(found[f"{name}_hit"]), "misses": int(missed)}

    hits = sum(hit for _, hit in kernels)
    return {
        "fxgraph": read("inductor", "fxgraph_cache"),
        "aotautograd": read("aot_autograd", "autograd_cache"),
        "triton": {"hits": hits, "misses": len(kernels) - hits},
    }


def work() -> Report:
    compilers = Compilers()
    times = [time.monotonic()]
    import torch  # noqa: F401
    import triton  # noqa: F401

    times.append(time.monotonic())
    loss, gradient = train()
    times.append(time.monotonic())
    kernels = compile_kernels()
    times.append(time.monotonic())
    spans = (round(end - start, 3) for start, end in itertools.pairwise(times))
    variables = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    return {
        "seconds": dict(zip(("imports", "inductor", "triton"), spans, strict=True)),
        "loss": loss.hex(),
        "gradient": gradient.hex(),
        "compilers": dict(compilers.started),
        "caches": caches(kernels),
        "missed": [name for name, hit in kernels if not hit],
        "directories": {name: os.environ.get(name, "") for name in variables},
    }


if __name__ == "__main__":
    report = work()
    with open(sys.argv[1], "w", encoding="utf-8") as file:
        json.dump(report, file)
