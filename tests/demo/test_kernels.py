"""The kernels of the demo and of the benchmark's corpus."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"

LIST = """
import json
from cachehome.demo.kernels import KERNELS, variants
def text(k): return [k.function.__name__, k.dtype, sorted(k.constants.items()), k.warps, k.stages, k.multiples]
print(json.dumps([[k.function.__name__ for k in KERNELS], [text(k) for k in variants()]]))
"""


def test_a_dozen_kernels_and_enough_variants_all_different() -> None:
    output = subprocess.check_output([sys.executable, "-W", "ignore", "-c", LIST], timeout=100)
    names, variants = json.loads(output)
    assert len(set(names)) == len(names) >= 12
    assert len({json.dumps(variant) for variant in variants}) == len(variants) >= 1400
    assert {variant[0] for variant in variants[: len(names)]} == set(names)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_benchmark_runs_on_a_corpus_that_it_makes(tmp_path: Path) -> None:
    pytest.importorskip("zstandard")
    (tmp_path / "target").mkdir()
    command = [
        sys.executable,
        BENCHMARKS / "sync.py",
        "--corpus",
        tmp_path / "corpus",
        "--target",
        tmp_path / "target",
    ]
    output = subprocess.check_output([*command, "--kernels", "6", "--rounds", "2", "--json"], timeout=280)
    found = json.loads(output)
    assert found["corpus"]["kernels"] == found["corpus"]["directories"] == 6
    assert found["corpus"]["files"] == 48
    assert len(found["runs"]["restore, slim, in process"]) == 2
    assert found["runs"]["publish, 2 % new"][0]["record"]["entries"] == 1
    assert found["runs"]["publish, no change"][0]["written"] == 0
    assert os.listdir(tmp_path / "target") == []
