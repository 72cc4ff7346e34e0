"""Engines that move the caches below a root of their own: it is carried, and the next machine starts warm."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
ENGINE = Path(__file__).parent / "engine.py"


@pytest.fixture(autouse=True)
def compilers() -> None:
    for name in ("torch", "triton"):
        pytest.importorskip(name)
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler")


def serve(node, engine: str, ranks: int = 1) -> tuple[list[dict[str, object]], str]:
    """The ranks of one start below one `run`; what each saw, and what `run` said."""
    start = len(list(node.directory.glob("*.seen")))
    outs = [node.directory / f"{start + rank}.seen" for rank in range(ranks)]
    lines = [f"{sys.executable} -W ignore {ENGINE} {engine} {out} {n} & " for n, out in enumerate(outs)]
    ended = subprocess.run(
        [sys.executable, "-m", "cachehome", "run", "--", "sh", "-c", "".join(lines) + "wait"],
        env={**node.environ, "CACHEHOME_PUBLISH_INTERVAL_SECONDS": "600", "TORCHINDUCTOR_VEC_ISA_OK": "1"},
        cwd=node.directory, capture_output=True, text=True, timeout=1100, check=False,
    )  # fmt: skip
    assert all(out.exists() for out in outs), ended.stderr[-4000:]
    return [json.loads(out.read_text()) for out in outs], ended.stderr


def test_the_next_machine_misses_nothing(node):
    """SGLang: its index stays here, and what it names is found without it."""
    [cold], _ = serve(node, "sglang")
    assert (cold["fx"], cold["aot"], cold["triton"]) == ([0, 1], [0, 1], [0, 3])
    assert "/sglang/torch_compile_cache/" in str(cold["directory"])
    names = node.published()
    assert names
    assert all(name.startswith("torch_compile_cache/") and "/locks/" not in name for name in names)
    node.wipe()
    [warm], said = serve(node, "sglang")
    assert (warm["fx"], warm["aot"], warm["triton"]) == ([1, 0], [1, 0], [3, 0]), said
    assert (warm["total"], warm["loaded"]) == (cold["total"], False)


def test_ranks_side_by_side(node):
    """vLLM: two ranks, each with caches of its own, its graphs and the index that names them."""
    cold, _ = serve(node, "vllm", ranks=2)
    assert [one["fx"] for one in cold] == [[0, 1]] * 2
    assert not any("assets" in name for name in node.published())
    node.wipe()
    warm, said = serve(node, "vllm", ranks=2)
    for number, one in enumerate(warm):
        assert (one["fx"], one["aot"], one["triton"]) == ([1, 0], [1, 0], [3, 0]), said
        assert (one["total"], one["loaded"], one["model"]) == (cold[number]["total"], True, True)
    factors = list(node.home.rglob("cache_key_factors.json"))
    assert factors == [], "the environment of whoever compiled stays there"
