"""A real compilation on the CPU: cold, restored elsewhere, and with one thing changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from conftest import Python

from cachehome.observe import history
from cachehome.observe.history import Activity
from cachehome.observe.verdict import judge

CODE = """
import sys, torch
size = int(sys.argv[1])
print(torch.compile(lambda x: x.sin() + 1, dynamic=False)(torch.arange(size, dtype=torch.float32)).sum().item())
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_cold_restored_and_changed(python: Python, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    first, second = tmp_path / "a" / "torchinductor", tmp_path / "b" / "torchinductor"

    def start(name: str, live: Path, size: int) -> tuple[Activity, str]:
        tmp = tmp_path / f"tmp-{name}"
        tmp.mkdir()
        reports = tmp_path / f"reports-{name}"
        done = python(
            CODE, str(size),
            CACHEHOME_DIAGNOSTICS="1", CACHEHOME_REPORT_DIR=str(reports), TORCHINDUCTOR_CACHE_DIR=str(live),
            TMPDIR=str(tmp),
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return history.total(history.logs(str(reports))), done.stdout

    cold, printed = start("cold", first, 64)
    assert judge(cold).state == "cold"
    assert cold["cxx_kernels"]
    shutil.copytree(first, second)
    shutil.rmtree(first)
    hit = {"outcome": "hit", "reason": "restored", "details": {"relocated": [str(first)]}}

    warm, again = start("warm", second, 64)
    found = judge(warm, hit)
    assert found.state == "warm", found.line()
    assert again == printed
    assert found.saved_seconds
    assert found.saved_seconds > 0
    assert (warm["cxx_kernels"], warm["cxx_headers"], warm["cxx_probes"]) == (0, 0, 0)
    assert warm["headers_skipped"] == 1
    assert not list((tmp_path / "tmp-warm").rglob("*.gch"))
    assert not first.exists()

    changed, _ = start("changed", second, 65)
    found = judge(changed, hit)
    assert found.state == "inert"  # what was restored is for another shape
    assert "input 0: float32[64] became float32[65]" in found.line()
