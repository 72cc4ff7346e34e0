"""Real compilations as a user runs them, cold, restored on a fresh machine, and with one thing changed: the verdict
names it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import Python

ROOT = Path(__file__).resolve().parents[2]

# Both graphs have C++ kernels. The key of the second does not hold torch's thread count.
JOB = """
import os, sys
graphs, size, threads, late = sys.argv[1:]
os.environ.update(dict([late.split("=")]) if late else {})
import torch
torch.set_num_threads(int(threads))
x = torch.arange(int(size), dtype=torch.float32)
if "a" in graphs:
    print(torch.compile(lambda x: x.sin() + 1, dynamic=False)(x).sum().item())
if "b" in graphs:
    print(torch.compile(lambda x: x.cos() * 2, dynamic=False, options={"cpp.threads": 2})(x).sum().item())
"""


class Machines:
    """Homes that only a store connects."""

    def __init__(self, directory: Path, environ: dict[str, str]) -> None:
        self.directory = directory
        self.environ = environ
        self.home = directory / "home"
        self.said = ""
        (directory / "job.py").write_text(JOB)
        for name in ("store", "tmp"):
            (directory / name).mkdir(mode=0o700)

    def fresh(self, name: str = "home") -> None:
        """Another machine: nothing local but what the compiler keeps in TMPDIR, which only saves time here."""
        if self.home.exists():
            shutil.rmtree(self.home)
        self.home = self.directory / name
        self.home.mkdir()

    def start(
        self, graphs: str = "ab", size: int = 64, threads: int = 2, late: str = "", **environ: str
    ) -> dict[str, Any]:
        """`cachehome run -- python job.py ...`; what `cachehome report` says of it."""
        python = [sys.executable, "-W", "ignore"]
        job = [*python, str(self.directory / "job.py"), graphs, str(size), str(threads), late]
        done = self._cachehome("run", "--", *job, **environ)
        assert done.returncode == 0, done.stderr
        self.said = done.stdout + done.stderr
        told = self._cachehome("report", "--json")
        assert told.returncode == 0, told.stderr
        found: dict[str, Any] = json.loads(told.stdout)["runs"][-1]
        return found

    def _cachehome(self, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        here = {
            "HOME": str(self.home),
            "TMPDIR": str(self.directory / "tmp"),
            "CACHEHOME_STORE": str(self.directory / "store"),
            "CACHEHOME_PROFILE": "one",
            "CACHEHOME_DIAGNOSTICS": "1",
        }
        return subprocess.run(
            [sys.executable, "-m", "cachehome", *words],
            env=self.environ | here | environ, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip


@pytest.fixture
def machines(python: Python, tmp_path: Path) -> Machines:
    """*python* has made the hook."""
    pytest.importorskip("torch")
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    environ = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": f"{tmp_path / 'hook'}{os.pathsep}{ROOT}",
        "CACHEHOME_DEBUG": "1",
    }
    return Machines(tmp_path, environ)


def texts(run: dict[str, Any], kind: str = "") -> list[str]:
    verdict = run["verdict"]
    return [cause["text"] for cause in (*verdict["causes"], *verdict["notes"]) if kind in ("", cause["kind"])]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_start_with_one_thing_changed(machines: Machines) -> None:
    machines.fresh()
    cold = machines.start()
    assert (cold["verdict"]["state"], cold["counts"]["fx_misses"]) == ("cold", 2)
    assert cold["counts"]["cxx_kernels"]
    assert "publish: hit, published" in machines.said
    printed = machines.said.split("\n")[:2]

    machines.fresh()
    same = machines.start()
    assert (same["verdict"]["state"], texts(same)) == ("warm", [])
    assert same["verdict"]["saved_seconds"] > 0
    assert machines.said.split("\n")[:2] == printed
    assert "publish: hit, unchanged" in machines.said
    assert [same["counts"][name] for name in ("cxx_kernels", "cxx_headers", "cxx_probes")] == [0, 0, 0]
    assert same["counts"]["headers_skipped"] == 2

    assert next(machines.home.rglob("graph_parts/*.json")), "what their keys are made of came along"
    harmless = machines.start("b", threads=3, TORCHINDUCTOR_COMPILE_THREADS="3")
    assert (harmless["verdict"]["state"], texts(harmless)) == (
        "warm",
        [
            "thread count: 2 became 3; nothing had to be compiled for it",
            "TORCHINDUCTOR_COMPILE_THREADS: unset became 3; nothing had to be compiled for it",
        ],
    )
    assert "publish: hit, unchanged" in machines.said

    machines.fresh()
    threads = machines.start(threads=3)
    assert (threads["verdict"]["state"], threads["counts"]["fx_hits"]) == ("partly warm", 1)
    assert texts(threads, "graphs_missed") == ["1 graphs were compiled: thread count: 2 became 3"]
    assert texts(threads, "changed") == [], "that is said already"

    machines.fresh()
    shape = machines.start("a", size=65)
    assert shape["verdict"]["state"] == "inert"
    assert "input 0: float32[64] became float32[65]" in texts(shape, "graphs_missed")[0]

    machines.fresh()
    overwritten = machines.start("a", late="TORCHINDUCTOR_SIZE_ASSERTS=0")
    assert "Inductor setting size_asserts: True became False" in texts(overwritten, "graphs_missed")[0]
    assert texts(overwritten, "changed") == ["TORCHINDUCTOR_SIZE_ASSERTS: unset became 0"]

    machines.fresh("elsewhere")
    empty = machines.directory / "empty"
    empty.mkdir()
    path = machines.start(TMPDIR=str(empty))
    assert path["verdict"]["state"] == "warm"
    assert not list(empty.rglob("*.gch"))
    assert not (machines.directory / "home").exists()
    assert f"entries were made in {machines.directory / 'home'}{os.sep}" in texts(path, "relocated")[0]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_variable_that_makes_another_build(machines: Machines) -> None:
    """Nothing is restored then, and the restore says why."""
    machines.fresh()
    job = machines.directory / "job.py"
    job.write_text("import cachehome.observe.activity as a, os; a.log.add(fx_misses=1)\n"
                   "live = os.environ['TRITON_CACHE_DIR']; os.makedirs(live, exist_ok=True)\n"
                   "open(f'{live}/kernel_seconds.json', 'w').write('{\"K\": 1}')")  # fmt: skip
    machines.start()
    assert "publish: hit, published" in machines.said
    machines.fresh()
    other = machines.start(TORCHINDUCTOR_SIZE_ASSERTS="0")
    assert "TORCHINDUCTOR_SIZE_ASSERTS: unset became 0" in texts(other, "restore_miss")[0]
    assert "TORCHINDUCTOR_SIZE_ASSERTS: unset became 0" in machines.said
