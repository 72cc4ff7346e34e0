"""Eight processes that compile on one empty live directory at the same moment, and a ninth that finds it all."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("torch", "triton"))
        or not shutil.which("g++"),
        reason="needs torch, triton and g++",
    ),
]

WORKER = """
import cachehome.activate
import json, os, sys, time
import torch
from cachehome.demo.compilers import Compilers

name, directory = sys.argv[1:]
compilers = Compilers()

def f(x, w):
    return torch.nn.functional.gelu(x @ w).softmax(-1).sum()

torch.manual_seed(0)
x, w = torch.randn(32, 64), torch.randn(64, 64, requires_grad=True)
compiled = torch.compile(f, dynamic=False)
open(f"{directory}/{name}.ready", "w").close()
while not os.path.exists(f"{directory}/go"):
    time.sleep(0.01)
value = compiled(x, w)
value.backward()

from torch._dynamo.utils import counters
from cachehome.demo.kernels import KERNELS
from triton import knobs
hits = []
knobs.compilation.listener = lambda *, cache_hit, **_: hits.append(cache_hit)
for kernel in KERNELS[:3]:
    kernel.compile()
print(json.dumps({
    "value": value.item(), "gradient": w.grad.norm().item(), "compilers": compilers.started,
    "fxgraph": {k: v for k, v in counters["inductor"].items() if k.startswith("fxgraph_cache")},
    "aotautograd": {k: v for k, v in counters["aot_autograd"].items() if k.startswith("autograd_cache")},
    "triton": hits, "inductor_directory": os.environ["TORCHINDUCTOR_CACHE_DIR"],
}))
"""


def test_eight_that_compile_and_a_ninth_that_hits(tmp_path: Path) -> None:
    for name in ("home", "tmp", "meet"):
        (tmp_path / name).mkdir()
    dropped = ("CACHEHOME", "TORCHINDUCTOR_", "TRITON_", "XDG_")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    environ |= {
        "HOME": str(tmp_path / "home"),
        "TMPDIR": str(tmp_path / "tmp"),
        "CACHEHOME": str(tmp_path / "root"),
        "OMP_NUM_THREADS": "1",
        "PYTHONWARNINGS": "ignore",
    }

    def start(name: str) -> subprocess.Popen[bytes]:
        with open(tmp_path / f"{name}.err", "wb") as err:
            command = [sys.executable, "-c", WORKER, name, str(tmp_path / "meet")]
            return subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=err)

    workers = {str(number): start(str(number)) for number in range(8)}
    while len(list((tmp_path / "meet").glob("*.ready"))) < len(workers):
        assert all(worker.poll() is None for worker in workers.values()), errors(tmp_path)
        time.sleep(0.02)
    (tmp_path / "meet" / "go").touch()
    outputs = [worker.communicate()[0] for worker in workers.values()]
    assert [worker.returncode for worker in workers.values()] == [0] * 8, errors(tmp_path)
    reports = [json.loads(output) for output in outputs]
    assert len({(report["value"], report["gradient"]) for report in reports}) == 1

    live = Path(reports[0]["inductor_directory"])
    assert live.is_relative_to(tmp_path / "root")
    assert {report["inductor_directory"] for report in reports} == {str(live)}
    libraries = set(live.rglob("*.main.so"))
    # Nobody built what another was building: as many compilers as libraries, all eight together.
    assert sum(report["compilers"]["kernel"] for report in reports) == len(libraries) > 0

    before = {path: path.stat().st_mtime_ns for path in live.rglob("*.so")}
    ninth = start("ninth")
    report = json.loads(ninth.communicate()[0])
    assert ninth.returncode == 0, errors(tmp_path)
    assert (report["value"], report["gradient"]) == (reports[0]["value"], reports[0]["gradient"])
    assert report["fxgraph"].get("fxgraph_cache_miss", 0) == 0
    assert report["fxgraph"]["fxgraph_cache_hit"] > 0
    assert report["aotautograd"].get("autograd_cache_miss", 0) == 0
    assert report["aotautograd"]["autograd_cache_hit"] > 0
    assert report["triton"] == [True, True, True]
    assert report["compilers"]["kernel"] == 0
    assert {path: path.stat().st_mtime_ns for path in live.rglob("*.so")} == before


def errors(tmp_path: Path) -> str:
    return "\n".join(path.read_text(errors="replace")[-2000:] for path in tmp_path.glob("*.err"))
