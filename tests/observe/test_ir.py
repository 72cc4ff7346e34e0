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


READERS = """
watch.start()
from triton import knobs
hits = []
knobs.compilation.listener = lambda *, cache_hit, **_: hits.append(cache_hit)
here = os.environ["TRITON_CACHE_DIR"]
where = {"full": here, "slim": here + "-slim"}

def compile_in(place):
    os.environ["TRITON_CACHE_DIR"] = where[place]
    del hits[:]
    return kernel.compile(), list(hits)

for place in where:
    compile_in(place)
    slim(where[place]) if place == "slim" else None
assert compile_in("slim")[1] == [True] and "ttir" not in dict.keys(compile_in("slim")[0].asm)
"""


def test_dumps_and_overrides_do_the_same_as_with_a_whole_kernel(python: Python, tmp_path: Path) -> None:
    """They act while a kernel is compiled; where it is cached they do nothing, slim or not."""
    code = (
        COMMON
        + READERS
        + """
def dumped(place, **variables):
    os.environ |= {"TRITON_DUMP_DIR": sys.argv[1] + place} | variables
    asm, hit = compile_in(place)
    for name in variables:
        del os.environ[name]
    return hit, sorted(os.path.basename(path) for path in glob.glob(sys.argv[1] + place + "/*/*"))

kernel_dump = {"TRITON_KERNEL_DUMP": "1"}
assert dumped("full", **kernel_dump) == dumped("slim", **kernel_dump) == ([True], [])
hit, files = dumped("full", TRITON_ALWAYS_COMPILE="1", **kernel_dump)
assert "add.ttir" in files and "add.ptx" in files and hit != [True]
assert dumped("slim", TRITON_ALWAYS_COMPILE="1", **kernel_dump) == (hit, files)

slim(where["slim"])
[text] = glob.glob(sys.argv[1] + "full/*/add.ttir")
override = sys.argv[1] + "override"
os.environ["TRITON_OVERRIDE_DIR"] = override
changed = os.path.join(override, os.path.basename(os.path.dirname(text)), "add.ttir")
os.makedirs(os.path.dirname(changed))
with open(text) as file, open(changed, "w") as out:
    out.write(file.read().replace("arith.addf", "arith.mulf"))
os.environ["TRITON_KERNEL_OVERRIDE"] = "1"
for always in ("0", "1"):
    os.environ["TRITON_ALWAYS_COMPILE"] = always
    (one, hit), (other, again) = compile_in("full"), compile_in("slim")
    assert hit == again
    assert one.asm["cubin"] == other.asm["cubin"] and one.asm["ttgir"] == other.asm["ttgir"]
print("mulf" in one.asm["ttgir"])
"""
    )
    done = python(code, str(tmp_path / "dump-"), TRITON_CACHE_DIR=str(tmp_path / "triton"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "True"


def test_what_debugs_a_compiler_finds_what_it_would_in_a_whole_kernel(python: Python, tmp_path: Path) -> None:
    """Those that are part of the key compile anew, the others find the kernel, and its texts when they ask."""
    code = (
        COMMON
        + READERS
        + """
names = (
    "TRITON_DEBUG", "TRITON_FRONT_END_DEBUGGING", "TRITON_DISABLE_LINE_INFO", "MLIR_ENABLE_DUMP", "LLVM_IR_ENABLE_DUMP",
    "NVPTX_ENABLE_DUMP", "MLIR_ENABLE_TIMING", "TRITON_ENABLE_LLVM_DEBUG", "DISABLE_PTXAS_OPT", "USE_IR_LOC",
)
seen = {}
for name in names:
    os.environ[name] = "ttgir" if name == "USE_IR_LOC" else "1"
    (one, hit), (other, again) = compile_in("full"), compile_in("slim")
    seen[name] = hit[0]
    assert hit == again, name
    assert sorted(one.asm) == sorted(other.asm) and one.asm["ttir"] == other.asm["ttir"], name
    assert not hit[0] or one.asm["cubin"] == other.asm["cubin"], name
    del os.environ[name]
    slim(where["slim"])
print(seen["MLIR_ENABLE_DUMP"], seen["TRITON_FRONT_END_DEBUGGING"])
"""
    )
    done = python(code, TRITON_CACHE_DIR=str(tmp_path / "triton"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split()[-2:] == ["False", "True"]


AUTOTUNER = """
import pickle
from torch._inductor.runtime import triton_helpers, triton_heuristics as heuristics
from torch._inductor.runtime.hints import AutotuneHint, DeviceProperties, HeuristicType
from triton import Config
from triton.runtime.jit import JITFunction

device = DeviceProperties(
    type="cuda", index=0, multi_processor_count=132, cc=90, major=9, regs_per_multiprocessor=65536,
    max_threads_per_multi_processor=2048, warp_size=32,
)
names = [parameter.name for parameter in kernel.function.params]
triton_helpers.set_driver_to_gpu = lambda: None  # nothing is launched

def autotuner(function, **meta):
    signature = dict(zip(names, ["*bf16"] * 3 + ["i32", "constexpr"]))
    return heuristics.CachingAutotuner(
        function, {"signature": signature, "device": device, "constants": {}, "configs": [{}]},
        [Config({"BLOCK": 1024}, num_warps=4, num_stages=3)], False, [], False, HeuristicType.POINTWISE,
        inductor_meta={"kernel_name": "add", "store_cubin": False, **meta}, filename="add.py",
    )

def precompiled(**meta):
    one = autotuner(JITFunction(kernel.function.fn), **meta)
    return one, one._precompile_config(one.configs[0])
"""


def test_aotinductor_gets_the_assembly_that_it_packs(python: Python, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = (
        COMMON
        + AUTOTUNER
        + """
watch.start()
whole = dict(precompiled(store_cubin=True)[1].kernel.asm)
slim(live)
one, packed = precompiled(store_cubin=True)
one.prepare_for_pickle()
again = pickle.loads(pickle.dumps(packed)).kernel.asm  # as a compile worker hands it over
assert again["ptx"] == whole["ptx"] and again["llir"] == whole["llir"] and sorted(again) == sorted(whole)
print(type(again).__name__)
"""
    )
    done = python(
        code, TRITON_CACHE_DIR=str(tmp_path / "triton"), TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "it")
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "AsmDict"


def test_a_kernel_that_a_worker_loaded_gets_its_text(python: Python, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = (
        COMMON
        + AUTOTUNER
        + """
watch.start()
one, result = precompiled()
assert isinstance(result, heuristics.TritonCompileResult), result
whole = dict(result.kernel.asm)
slim(live)
one, result = precompiled()
function = one.fn.fn
one.prepare_for_pickle()
one._reload_kernel = lambda: autotuner(JITFunction(function))  # torch imports the kernel's module for it
one.compile_results = [pickle.loads(pickle.dumps(result))]
assert "ptx" not in one.compile_results[0].kernel.asm
try:
    one._make_launchers()
except Exception:
    pass  # there is no GPU to launch on
asm = one.compile_results[0].kernel.asm
assert asm["ptx"] == whole["ptx"] and sorted(asm) == sorted(whole)
print(len(os.listdir(glob.glob(live + "/*/")[0])))
"""
    )
    done = python(
        code,
        TRITON_CACHE_DIR=str(tmp_path / "triton"),
        TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "it"),
        TORCHINDUCTOR_USE_STATIC_TRITON_LAUNCHER="0",
        TORCHINDUCTOR_USE_STATIC_CUDA_LAUNCHER="0",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "8"


def test_a_bundle_with_a_slim_kernel_leaves_a_whole_one_alone(python: Python, tmp_path: Path) -> None:
    """What torch puts into a new graph's entry never replaces the kernel that is restored beside it."""
    pytest.importorskip("torch")
    code = (
        COMMON
        + """
import shutil
whole = dict(kernel.compile().asm)
shutil.copytree(live, live + "2")
for group in glob.glob(live + "2/*/__grp__*"):
    with open(group) as file:
        text = file.read()
    with open(group, "w") as file:
        file.write(text.replace(live, live + "2"))
slim(live)
from torch._inductor.triton_bundler import TritonBundler
TritonBundler.begin_compile()
TritonBundler.put(os.listdir(live)[0], 0)
bundle, _ = TritonBundler.collect()
os.environ["TRITON_CACHE_DIR"] = live + "2"
TritonBundler.read_and_emit(bundle)
print(dict(kernel.compile().asm) == whole)
"""
    )
    done = python(code, TRITON_CACHE_DIR=str(tmp_path / "triton"))
    assert done.stdout.strip() == "True", done.stderr


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
