"""The table of variables is evidence: each claim about the compilers' own keys, proved with the compilers themselves.

The claims are the third column of `variables.txt`. Inductor hashes its configuration, so for most variables it is
enough to load that module anew under the variable; Triton tells which variables it hashes; and for a handful of each,
real compiles show the hit or the miss.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cachehome.probes import environment

ROOT = Path(__file__).resolve().parents[2]
ROWS = [line for line in environment.rows() if line.exact and line.evidence != "-"]


def _python(code: str, *arguments: str, **environ: str) -> object:
    clean = {
        name: text
        for name, text in os.environ.items()
        if not environment.row(name) or name in ("CUDA_HOME", "CXX")
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *arguments],
        env={**clean, "PYTHONPATH": str(ROOT), **environ},
        capture_output=True,
        text=True,
        check=False,
        timeout=280,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


_CONFIGURATION = """
import importlib.util, json, os, sys
import torch._inductor.config as original

def load(number=[0]):
    number[0] += 1
    spec = importlib.util.spec_from_file_location(f"configuration{number[0]}", original.__file__)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return {name: repr(value) for name, value in module.save_config_portable(ignore_private_configs=False).items()}

plain, changed = load(), {}
for name in sys.argv[1:]:
    changed[name] = []
    for value in ("1", "0", "7", "g++-77"):
        before = os.environ.pop(name, None)
        os.environ[name] = value
        try:
            changed[name] += [key for key, text in load().items() if plain.get(key) != text]
        except (ValueError, AssertionError):
            pass  # this variable is no switch, or no number
        os.environ.pop(name)
        if before is not None:
            os.environ[name] = before
print(json.dumps(changed))
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_inductor_reads_into_its_configuration() -> None:
    pytest.importorskip("torch")
    claims = {
        line.pattern: line
        for line in ROWS
        if line.pattern.startswith("TORCHINDUCTOR_") or line.pattern == "CXX"
    }
    changed = _python(_CONFIGURATION, *claims)
    assert isinstance(changed, dict)
    wrong = {
        name: keys
        for name, keys in changed.items()
        if bool(keys) != (claims[name].evidence in ("fx", "both"))
    }
    assert not wrong
    assert sum(map(bool, changed.values())) > 10


_HASHED_BY_TRITON = """
import json, os, sys
from triton._C.libtriton import get_cache_invalidating_env_vars
hashed = []
for name in sys.argv[1:]:
    os.environ[name] = "1"
    hashed += [name] if name in get_cache_invalidating_env_vars() else []
    del os.environ[name]
print(json.dumps(hashed))
"""
# Not in Triton's list of variables, but in its key by another way.
_BY_ANOTHER_WAY = {"PTXAS_OPTIONS", "TRITON_LIBDEVICE_PATH"}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_triton_hashes() -> None:
    pytest.importorskip("triton")
    ours = {line.pattern: line for line in ROWS if not line.pattern.startswith(("TORCH", "PYTORCH"))}
    hashed = set(_python(_HASHED_BY_TRITON, *ours))  # type: ignore[call-overload]
    claimed = {name for name, line in ours.items() if line.evidence in ("triton", "both")}
    assert claimed - _BY_ANOTHER_WAY == hashed


_KERNEL = """
import json, os, sys
import triton
from cachehome.demo.kernels import KERNELS

def compiled():
    return set(os.listdir(os.environ["TRITON_CACHE_DIR"])) if os.path.isdir(os.environ["TRITON_CACHE_DIR"]) else set()

KERNELS[0].compile()
first, missed = compiled(), []
for setting in sys.argv[1:]:
    name, _, value = setting.partition("=")
    os.environ[name] = value
    before = compiled()
    KERNELS[0].compile()
    if compiled() - before:
        missed.append(setting)
    del os.environ[name]
print(json.dumps({"first": len(first), "missed": missed}))
"""
MISSES = [
    "TRITON_DEFAULT_FP_FUSION=0",
    "TRITON_F32_DEFAULT=ieee",
    "TRITON_DISABLE_LINE_INFO=1",
    "DISABLE_LLVM_OPT=1",
    "MLIR_ENABLE_TIMING=1",
]
HITS = [
    "TRITON_STORE_BINARY_ONLY=1",
    "TRITON_PRINT_AUTOTUNING=1",
    "TRITON_CACHE_AUTOTUNING=1",
    "TORCHINDUCTOR_COMPILE_THREADS=1",
    # What differs between ranks is not in a kernel's key: its entries may be shared by all of them.
    "CUDA_VISIBLE_DEVICES=3",
    "LOCAL_RANK=3",
]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_real_kernels_for_sm_90(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    found = _python(_KERNEL, *MISSES, *HITS, TRITON_CACHE_DIR=str(tmp_path / "triton"))
    assert isinstance(found, dict)
    assert found["first"] >= 1
    assert found["missed"] == MISSES
    # Triton reads this one when it is imported.
    again = {"TRITON_CACHE_DIR": str(tmp_path / "triton")}
    assert len(os.listdir(tmp_path / "triton")) == 1 + len(MISSES)
    _python(_KERNEL, **again)
    assert len(os.listdir(tmp_path / "triton")) == 1 + len(MISSES)
    _python(_KERNEL, PTXAS_OPTIONS="-O1", **again)
    assert len(os.listdir(tmp_path / "triton")) == 2 + len(MISSES)
    for setting in MISSES:
        line = environment.row(setting.partition("=")[0])
        assert line is not None
        assert line.treatment == "in" or line.evidence == "triton"


_GRAPH = """
import json
import torch
import torch._inductor.config
from torch._dynamo.utils import counters

torch._inductor.config.cpp_cache_precompile_headers = False  # 150 MB for one kernel

@torch.compile
def f(x):
    return torch.softmax(x.sin() * 2 + 1, -1).sum()

with torch.no_grad():
    value = f(torch.arange(4096.0).reshape(64, 64)).item()
counted = counters["inductor"]
print(json.dumps({"hit": counted["fxgraph_cache_hit"], "miss": counted["fxgraph_cache_miss"]}))
"""
GRAPHS = {
    "TORCHINDUCTOR_SIZE_ASSERTS=0": "miss",
    "OMP_NUM_THREADS=1": "miss",
    "TORCH_COMPILE_CACHE_KEY_TAG=other": "miss",
    # The hole that the host tag closes: the graph hits, although it was made for another vector width.
    "ATEN_CPU_CAPABILITY=avx2": "hit",
}


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a cache that holds the graph."""
    pytest.importorskip("torch")
    root = tmp_path_factory.mktemp("graph")
    (root / "tmp").mkdir()
    environ = {
        "TORCHINDUCTOR_CACHE_DIR": str(root / "inductor"),
        "TMPDIR": str(root / "tmp"),
        "OMP_NUM_THREADS": "2",
    }
    assert _python(_GRAPH, **environ) == {"hit": 0, "miss": 1}
    return environ


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("setting", GRAPHS)
def test_real_graphs(setting: str, graph: dict[str, str]) -> None:
    name, _, value = setting.partition("=")
    found = _python(_GRAPH, **{**graph, name: value})
    assert found == {"hit": int(GRAPHS[setting] == "hit"), "miss": int(GRAPHS[setting] == "miss")}
    line = environment.row(name)
    assert line is not None
    assert (line.evidence == "fx") == (GRAPHS[setting] == "miss")
