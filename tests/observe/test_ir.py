"""Slim kernels, real ones: they load, torch bundles them, and who asks for their text gets it."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Python

pytestmark = pytest.mark.slow

COMMON = """
import glob, json, os, sys
from cachehome.observe import watch
from cachehome.demo.kernels import KERNELS
from cachehome.families import BUILTIN

def slim(live):
    for directory in glob.glob(live + "/*/"):
        for name in os.listdir(directory):
            if name.endswith(BUILTIN[1].ir):
                os.unlink(directory + name)
        for group in glob.glob(directory + "__grp__*"):
            with open(group) as file:
                paths = json.load(file)["child_paths"]
            with open(group, "w") as file:
                json.dump({"child_paths": {n: p for n, p in paths.items() if os.path.exists(p)}}, file)

live = os.environ["TRITON_CACHE_DIR"]
kernel = KERNELS[0]
"""


@pytest.fixture(autouse=True)
def triton() -> None:
    pytest.importorskip("triton")


def test_its_text_is_made_again_and_its_directory_complete(python: Python, tmp_path: Path) -> None:
    code = (
        COMMON
        + """
watch.start()
full = dict(kernel.compile().asm)
slim(live)
found = kernel.compile().asm
assert "ttir" in found and "amdgcn" not in found and sorted(dict.keys(found)) == ["cubin"]
assert found["ttir"] == full["ttir"]
assert dict(found.items()) == full and len(found) == len(full)
assert found.get("amdgcn") is None
directories = glob.glob(live + "/*/")
assert len(directories) == 1 and len(os.listdir(directories[0])) == 8, directories
try:
    found["nothing"]
except KeyError as error:
    print(error)
"""
    )
    done = python(code, TRITON_CACHE_DIR=str(tmp_path / "triton"))
    assert done.returncode == 0, done.stderr
    assert "Unknown key: 'nothing'" in done.stdout


def test_a_whole_kernel_and_a_pickled_one_are_triton_s_own(python: Python, tmp_path: Path) -> None:
    code = (
        COMMON
        + """
import pickle
watch.start()
whole = kernel.compile().asm
slim(live)
small = kernel.compile().asm
again = pickle.loads(pickle.dumps(small))
print(type(whole).__name__, type(small).__name__, type(again).__name__, sorted(again))
"""
    )
    done = python(code, TRITON_CACHE_DIR=str(tmp_path / "triton"))
    assert done.stdout.strip() == "AsmDict SlimAsmDict AsmDict ['cubin']", done.stderr


def test_a_kernel_that_cannot_be_compiled_again_says_why(python: Python, tmp_path: Path) -> None:
    code = (
        COMMON
        + """
watch.start()
kernel.compile()
slim(live)
found = kernel.compile().asm
found.complete = lambda: 1 / 0
try:
    found["ptx"]
except KeyError as error:
    print(error)
"""
    )
    done = python(code, TRITON_CACHE_DIR=str(tmp_path / "triton"))
    assert "left out of a slim restore" in done.stdout, done.stderr


def test_torch_bundles_a_slim_kernel_that_loads_elsewhere(python: Python, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = (
        COMMON
        + """
kernel.compile()
slim(live)
from torch._inductor.triton_bundler import TritonBundler
TritonBundler.begin_compile()
TritonBundler.put(os.listdir(live)[0], 0)
bundle, _ = TritonBundler.collect()
os.environ["TRITON_CACHE_DIR"] = live + "2"
assert TritonBundler.read_and_emit(bundle).cached_kernel_names == ["add"]
watch.start()
seen = []
from triton import knobs
knobs.compilation.listener = lambda *, cache_hit, **_: seen.append(cache_hit)
print(sorted(dict.keys(kernel.compile().asm)), seen)
"""
    )
    done = python(code, TRITON_CACHE_DIR=str(tmp_path / "triton"))
    assert done.stdout.strip() == "['cubin'] [True]", done.stderr
