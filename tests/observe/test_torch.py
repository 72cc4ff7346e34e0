"""The torch and the Triton that are installed: everything that is counted, and every repair, knows its inside."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Python

from cachehome.observe import history
from cachehome.observe.verdict import judge

pytestmark = pytest.mark.slow


def test_all_of_it_is_familiar(python: Python, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("triton")
    code = """
import torch, torch._inductor.compile_fx, torch._inductor.runtime.triton_heuristics, triton.compiler
from cachehome.observe.activity import log
log.add(fx_hits=0)
"""
    done = python(code, CACHEHOME_DIAGNOSTICS="1", CACHEHOME_REPORT_DIR=str(tmp_path / "reports"))
    assert done.returncode == 0, done.stderr
    [process] = history.logs(str(tmp_path / "reports"))
    assert process.unknown == {}
    repairs = {"relocation", "headers", "toolchain", "ir"}
    assert (
        process.watched >= {"fx", "aot", "bundles", "benchmarks", "tuning", "compilers", "triton"} | repairs
    )


def test_triton_is_counted(python: Python, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    code = "from cachehome.demo.kernels import KERNELS\nfor k in KERNELS[:2]: k.compile()"
    reports = tmp_path / "reports"
    for number in range(2):
        done = python(
            code,
            CACHEHOME_DIAGNOSTICS="1", CACHEHOME_REPORT_DIR=str(reports), TRITON_CACHE_DIR=str(tmp_path / "triton"),
            CACHEHOME_RUN=str(number),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
    cold, warm = history.runs(history.logs(str(reports)))
    assert [cold[name] for name in ("triton_hits", "triton_misses", "triton_puts", "ptxas")] == [0, 2, 2, 2]
    assert [warm[name] for name in ("triton_hits", "triton_misses", "triton_puts", "ptxas")] == [2, 0, 0, 0]
    assert sorted(cold.missed["triton"]) == ["add", "gelu"]
    assert set(warm.used["triton"]) == set(cold.made_seconds)
    assert warm.known_seconds == cold.made_seconds
    found = judge(warm)
    assert (found.saved_seconds, found.saved_partly) == (round(sum(cold.made_seconds.values()), 3), False)
    (tmp_path / "triton" / "kernel_seconds.json").unlink()
    done = python(
        code,
        CACHEHOME_DIAGNOSTICS="1", CACHEHOME_REPORT_DIR=str(reports), TRITON_CACHE_DIR=str(tmp_path / "triton"),
        CACHEHOME_RUN="2",
    )  # fmt: skip
    untold = judge(history.runs(history.logs(str(reports)))[-1])
    assert (untold.saved_seconds, untold.saved_partly) == (None, True)
    assert "time saved: unknown for 2 hits" in untold.notes[-1].text
