"""The right cache or none: what changes a key, what does not, and that `why` names it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from identity_lab import A100, B200, FEATURES, H200, Lab
from identity_lab import lab as lab
from identity_lab import nvml_library as nvml_library

import cachehome.identity
from cachehome.errors import CacheHomeError, ConfigError
from cachehome.identity import Identity, canonical, diff, identity, is_plain
from cachehome.probes.packages import search_path
from cachehome.settings import Settings

ROOT = Path(__file__).resolve().parent.parent
Change = Callable[[Lab], dict[str, str] | None]


def _environ(**values: str) -> Change:
    return lambda _: values


def _set(name: str, value: object) -> Change:
    def change(machine: Lab) -> None:
        machine.settings[name] = value

    return change


def _none(*_: object) -> None:
    return None


def _rmtree(path: Path) -> None:
    import shutil

    shutil.rmtree(path)


def _append(path: Path, line: str) -> None:
    path.write_text(path.read_text() + line + "\n")


def _move_site(machine: Lab) -> None:
    other = machine.root / "another" / "prefix"
    other.parent.mkdir()
    machine.site.rename(other)
    machine.site.symlink_to(other)


# Two pods of one job: whatever is changed here, the key stays.
SAME: dict[str, Change] = {
    "host name": _environ(HOSTNAME="worker-7f9c4"),
    "pod": _environ(POD_NAME="job-0", POD_IP="10.1.2.3", POD_UID="6f1c0b3e-0000-4000-8000-1234567890ab"),
    "user": _environ(USER="somebody", LOGNAME="somebody"),
    "HOME": _environ(HOME="/home/somebody"),
    "TMPDIR": _environ(TMPDIR="/scratch/job-77"),
    "working directory": _environ(PWD="/elsewhere", OLDPWD="/"),
    "rank": _environ(RANK="3", LOCAL_RANK="3", GROUP_RANK="1", NODE_RANK="1"),
    "rendezvous": _environ(MASTER_ADDR="10.0.0.1", MASTER_PORT="29500", TORCHELASTIC_RUN_ID="abc"),
    "world size, which is the profile's": _environ(WORLD_SIZE="16"),
    "launch time": _environ(SLURM_JOB_ID="4711", SLURM_JOB_START_TIME="1764500000"),
    "Kubernetes service called triton": _environ(
        TRITON_PORT="tcp://10.3.0.1:80", TRITON_SERVICE_HOST="10.3.0.1"
    ),
    "Kubernetes service called vllm": _environ(
        VLLM_PORT_8000_TCP_ADDR="10.3.0.2", VLLM_SERVICE_PORT_HTTP="8000"
    ),
    "address of a pod in a vLLM variable": _environ(VLLM_NIXL_SIDE_CHANNEL_HOST="10.1.2.3"),
    "vLLM's own address": _environ(VLLM_HOST_IP="10.1.2.3", VLLM_PORT="4000"),
    "placement of a vLLM engine": _environ(VLLM_RAY_BUNDLE_INDICES="4,5"),
    "where Inductor's cache is": _environ(TORCHINDUCTOR_CACHE_DIR="/var/x"),
    "where Triton's cache is": _environ(TRITON_CACHE_DIR="/var/x/triton"),
    "TRITON_HOME": _environ(TRITON_HOME="/home/x"),
    "where other caches are": _environ(
        VLLM_CACHE_ROOT="/a", FLASHINFER_WORKSPACE_BASE="/b", DG_JIT_CACHE_DIR="/c", TVM_FFI_CACHE_DIR="/d"
    ),
    "XDG_CACHE_HOME": _environ(XDG_CACHE_HOME="/var/cache"),
    "compile threads": _environ(TORCHINDUCTOR_COMPILE_THREADS="4"),
    "logging": _environ(TORCH_LOGS="+inductor", TORCH_CPP_LOG_LEVEL="INFO", VLLM_LOGGING_LEVEL="DEBUG"),
    "debug dump": _environ(TORCH_COMPILE_DEBUG="1", TRITON_KERNEL_DUMP="1"),
    "allocator": _environ(PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"),
    "NCCL": _environ(NCCL_DEBUG="INFO", TORCH_NCCL_ASYNC_ERROR_HANDLING="1"),
    "remote cache": _environ(TORCHINDUCTOR_REDIS_HOST="redis", TORCHINDUCTOR_FX_GRAPH_REMOTE_CACHE="1"),
    "switched caches": _environ(TORCHINDUCTOR_FORCE_DISABLE_CACHES="1", TRITON_ALWAYS_COMPILE="1"),
    "hash seed": _environ(PYTHONHASHSEED="7"),
    "our own variables": _environ(CACHEHOME_STORE="/store", CACHEHOME_SLOT="rank3"),
    "one of two equal GPUs": _environ(CUDA_VISIBLE_DEVICES="1"),
    "the other one": _environ(CUDA_VISIBLE_DEVICES="0"),
    "a GPU by its UUID": _environ(CUDA_VISIBLE_DEVICES="GPU-11111"),
    "order of devices": _environ(CUDA_DEVICE_ORDER="PCI_BUS_ID"),
    "more GPUs of one kind": lambda m: m.gpu("570.86.15", *[f"{H200}{i}" for i in range(8)]),
    "a secret with a compiler's prefix": _environ(VLLM_API_KEY="sk-abcdefghijkl", SGLANG_API_KEY="x"),
    "order of CPU features": lambda m: m.cpu(*reversed(FEATURES)),
    "features of the kernel and its mitigations": lambda m: m.cpu(*FEATURES, "00EA", "00E1", "0168"),
    "torch's own ptxas, same version, named late": lambda m: {
        "TRITON_PTXAS_PATH": str(m.ptxas("12.9.86", "site/torch/bin/ptxas"))
    },
    "another prefix": _move_site,
    "another installer": lambda m: _append(
        m.site / "torch-2.13.0+cpu.dist-info/RECORD", "torch-2.13.0+cpu.dist-info/INSTALLER,sha256=q,1"
    ),
    "a script with another first line": lambda m: _append(
        m.site / "torch-2.13.0+cpu.dist-info/RECORD", "../../../bin/torchrun,sha256=q,1"
    ),
    "bytecode": lambda m: _append(m.site / "torch-2.13.0+cpu.dist-info/RECORD", "torch/__pycache__/x.pyc,,"),
    "a package that compiles nothing": lambda m: _none(m.package("requests", "2.0")),
    "tuning of the compiler": lambda m: m.compiler("12.2.0", isa="avx2 avx avx512f"),
}

# What machine code depends on: another key each, and `why` names the field.
OTHER: dict[str, tuple[str, Change]] = {
    "driver": ("gpu.driver", lambda m: m.gpu("575.10", H200, H200)),
    "GPU model": ("gpu.models", lambda m: m.gpu("570.86.15", A100)),
    "two models": ("gpu.models", lambda m: m.gpu("570.86.15", H200, B200)),
    "number of SMs": ("gpu.models", lambda m: m.gpu("570.86.15", "NVIDIA H200|9|0|16640|GPU-1")),
    "capability": ("gpu.models", lambda m: m.gpu("570.86.15", "NVIDIA H200|9|1|16896|GPU-1")),
    "MIG": (
        "gpu.models",
        lambda m: m.gpu("570.86.15", f"{H200}|NVIDIA H200 MIG 1g.18gb,NVIDIA H200 MIG 2g.35gb"),
    ),
    "no visible GPU": ("gpu.vendor", _environ(CUDA_VISIBLE_DEVICES="")),
    "no GPU": ("gpu.vendor", lambda m: m.gpu("570.86.15")),
    "GPU that fell off the bus": ("gpu.vendor", lambda m: m.gpu("570.86.15", "NVIDIA H200|0|0|0|GPU-1")),
    "driver and library differ": ("gpu.vendor", lambda m: m.gpu("!18")),
    "no permission": ("gpu.vendor", lambda m: m.gpu("!4")),
    "ptxas": ("toolchain.ptxas", lambda m: _none(m.ptxas("12.8.93"))),
    "ptxas by its variable": (
        "toolchain.ptxas",
        lambda m: {"TRITON_PTXAS_PATH": str(m.ptxas("13.0.1", "opt/ptxas"))},
    ),
    "ptxas of torch": ("toolchain.ptxas", lambda m: _none(m.ptxas("13.0.2", "site/torch/bin/ptxas"))),
    "broken ptxas": (
        "toolchain.ptxas",
        lambda m: _none(m.script("site/triton/backends/nvidia/bin/ptxas", "echo cannot load; exit 127")),
    ),
    "no ptxas": ("toolchain.ptxas", lambda m: (m.site / "triton/backends/nvidia/bin/ptxas").unlink()),
    "nvcc": ("toolchain.nvcc", lambda m: _none(m.script("bin/nvcc", "echo release 13.0, V13.0.88"))),
    "compiler": ("toolchain.cxx", lambda m: m.compiler("13.1.0")),
    "compiler by CXX": (
        "toolchain.cxx",
        lambda m: {"CXX": str(m.script("opt/c++", "echo 'c++ (X) 14.1.0'"))},
    ),
    "no compiler": ("toolchain.cxx", lambda m: (m.bin / "g++").unlink()),
    "compiler that hangs up": ("toolchain.cxx", lambda m: _none(m.script("bin/g++", "exit 1"))),
    "march": ("toolchain.march", lambda m: m.compiler("12.2.0", march="znver4")),
    "instruction sets of the compiler": ("toolchain.isa", lambda m: m.compiler("12.2.0", isa="avx avx2")),
    "CPU without AVX-512": ("machine.cpu", lambda m: m.cpu(*FEATURES[:4])),
    "CPU with one feature more": ("machine.cpu", lambda m: m.cpu(*FEATURES, "0257")),
    "CPU by the variable that torch honours": ("host_tag", _environ(ATEN_CPU_CAPABILITY="avx2")),
    "torch version": ("packages.torch.version", lambda m: m.torch("2.14.0")),
    "torch commit": ("packages.torch.git_version", lambda m: m.torch(git="beef")),
    "torch's CUDA": ("packages.torch.cuda", lambda m: m.torch(cuda="'12.8'")),
    "torch of the same version, built anew": (
        "packages.torch.record",
        lambda m: _none(m.package("torch", "2.13.0+cpu", "torch/__init__.py,sha256=other,1")),
    ),
    "triton": ("packages.triton.version", lambda m: _none(m.package("triton", "3.8.0"))),
    "no triton": ("packages.triton.version", lambda m: _none(*(_rmtree(p) for p in m.site.glob("triton-*")))),
    "transformer-engine": (
        "packages.transformer-engine.version",
        lambda m: _none(m.package("transformer_engine", "2.1")),
    ),
    "flash-linear-attention": (
        "packages.flash-linear-attention.version",
        lambda m: _none(m.package("flash_linear_attention", "0.3")),
    ),
    "deep-ep": ("packages.deep-ep.version", lambda m: _none(m.package("deep_ep", "1.2"))),
    "flashinfer": (
        "packages.flashinfer-python.version",
        lambda m: _none(m.package("flashinfer-python", "0.7.4")),
    ),
    "vllm": ("packages.vllm.version", lambda m: _none(m.package("vllm", "0.33.0"))),
    "sglang": ("packages.sglang.version", lambda m: _none(m.package("sglang", "0.5.23"))),
    "megatron-core": ("packages.megatron-core.version", lambda m: _none(m.package("Megatron.Core", "0.15"))),
    "cuDNN": (
        "packages.nvidia-cudnn-cu12.version",
        lambda m: _none(m.package("nvidia_cudnn_cu12", "9.10.2.21")),
    ),
    "TORCHINDUCTOR_MAX_AUTOTUNE": (
        "environment.TORCHINDUCTOR_MAX_AUTOTUNE",
        _environ(TORCHINDUCTOR_MAX_AUTOTUNE="1"),
    ),
    "an unknown variable of Inductor": (
        "environment.TORCHINDUCTOR_NEW_THING",
        _environ(TORCHINDUCTOR_NEW_THING="1"),
    ),
    "an unknown variable of Triton": ("environment.TRITON_NEW_THING", _environ(TRITON_NEW_THING="1")),
    "an unknown variable of vLLM": ("environment.VLLM_NEW_KERNEL", _environ(VLLM_NEW_KERNEL="1")),
    "set, but empty": ("environment.TORCHINDUCTOR_FREEZING", _environ(TORCHINDUCTOR_FREEZING="")),
    "OMP_NUM_THREADS": ("environment.OMP_NUM_THREADS", _environ(OMP_NUM_THREADS="4")),
    "arch list": ("environment.TORCH_CUDA_ARCH_LIST", _environ(TORCH_CUDA_ARCH_LIST="9.0a")),
    "TF32": ("environment.NVIDIA_TF32_OVERRIDE", _environ(NVIDIA_TF32_OVERRIDE="0")),
    "options of the host compiler": ("environment.CXXFLAGS", _environ(CXXFLAGS="-O1")),
    "options of ptxas": ("environment.PTXAS_OPTIONS", _environ(PTXAS_OPTIONS="-O1")),
    "Transformer Engine": ("environment.NVTE_FUSED_ATTN", _environ(NVTE_FUSED_ATTN="0")),
    "cache tag of torch": (
        "environment.TORCH_COMPILE_CACHE_KEY_TAG",
        _environ(TORCH_COMPILE_CACHE_KEY_TAG="b"),
    ),
    "content of libdevice": (
        "environment.TRITON_LIBDEVICE_PATH",
        lambda m: {"TRITON_LIBDEVICE_PATH": str(m.script("opt/libdevice.10.bc", "other"))},
    ),
    "build_key": ("build_key", _set("build_key", "mine")),
    "image": ("image", _set("image", "sha256:1234")),
    "a source file": (
        "sources.model.py",
        lambda m: m.settings.update(sources=(str(m.script("src/model.py", "x")),)),
    ),
}


def test_enough_cases() -> None:
    assert len(SAME) + len(OTHER) >= 60


@pytest.mark.parametrize("case", SAME)
def test_same_job_has_the_same_key(lab: Lab, case: str) -> None:
    before = lab.identity()
    after = lab.identity(**(SAME[case](lab) or {}))
    assert diff(before, after) == [], case
    assert (after.build_key, after.profile_key) == (before.build_key, before.profile_key)


@pytest.mark.parametrize("case", OTHER)
def test_other_machine_code_has_another_key(lab: Lab, case: str) -> None:
    before = lab.identity()
    field, change = OTHER[case]
    after = lab.identity(**(change(lab) or {}))
    assert after.build_key != before.build_key
    named = {found.field: found for found in diff(before, after)}
    assert field in named
    assert named[field].kind in ("code", "probe")
    assert named[field].words


def test_no_two_other_cases_have_one_key(lab: Lab, tmp_path: Path) -> None:
    failures = ("broken ptxas", "no ptxas", "ptxas")
    keys = set()
    for case in failures:
        OTHER[case][1](lab)
        keys.add(lab.identity().build_key)
    assert len(keys) == len(failures)


def test_a_gpu_that_cannot_be_read_has_a_value_of_its_own(lab: Lab) -> None:
    found = set()
    for first in ("!4", "!18", "!15", "570.86.15"):
        lab.gpu(first)
        found.add(json.dumps(lab.identity().build["gpu"]))
    assert len(found) == 4


def test_avx512_and_avx2_never_share(lab: Lab) -> None:
    """By the variable that torch honours, and by another CPU: another build, and other live directories."""
    wide = lab.identity()
    told = lab.identity(ATEN_CPU_CAPABILITY="avx2")
    lab.cpu(*FEATURES[:4])
    narrow = lab.identity()
    assert len({wide.build_key, told.build_key, narrow.build_key}) == 3
    assert len({one.build["host_tag"] for one in (wide, told, narrow)}) == 3
    assert "wrong numbers" in next(d for d in diff(wide, narrow) if d.field == "machine.cpu").words


def test_unknown_cpu_is_a_failure_not_a_class(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cachehome.place.cpu_features", lambda: "")
    assert lab.identity().build["machine"]["cpu"].startswith("error: ")


SECRETS = {
    "HF_TOKEN": "hf_AbCdEfGhIjKlMnOpQrStUvWx",
    "VLLM_API_KEY": "plainword1234567",
    "TRITON_NEW_THING": "ghp_16C7e42F292c6912E7710c838347Ae178B4a",
    "TORCHINDUCTOR_REMOTE": "redis://user:hunter2hunter2@cache:6379/0",
    "SGLANG_PASSWORD": "hunter2hunter2",
    "NVTE_SOMETHING": "AKIAIOSFODNN7EXAMPLE",
    "CUDA_X": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NSJ9.abc",
    "TORCH_COMPILE_CACHE_KEY_TAG": "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9v",
}


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_nowhere(lab: Lab, name: str) -> None:
    before = lab.identity(command=[sys.executable, "train.py"])
    after = lab.identity(command=[sys.executable, "train.py"], **{name: SECRETS[name]})
    assert SECRETS[name] not in after.to_json()
    assert after.build_key == before.build_key
    if name not in ("TRITON_NEW_THING", "TORCHINDUCTOR_REMOTE", "NVTE_SOMETHING", "CUDA_X"):
        assert f'"environment.{name}"' not in after.to_json()


def test_a_secret_on_the_command_line_is_nowhere(lab: Lab) -> None:
    base = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", "m"]
    before = lab.identity(command=base)
    for words in (
        ["--api-key", "hunter2hunter2"],
        ["--hf-token=hunter2hunter2"],
        ["--unknown", "ghp_16C7e42F292c6912E7710c838347Ae178B4a"],
        ["--extra", '{"api_key": "hunter2hunter2"}'],
    ):
        after = lab.identity(command=[*base, *words])
        assert "hunter2" not in after.to_json()
        assert "ghp_" not in after.to_json()
        assert after.profile_key == before.profile_key or words[0] == "--extra"


def test_names_of_the_pod_in_an_unknown_variable_do_not_split(lab: Lab) -> None:
    one = lab.identity(
        HOSTNAME="worker-77", VLLM_SIDE="worker-77:9000 at 10.2.3.4", TRITON_NEW="/tmp/a/thing"
    )
    two = lab.identity(
        HOSTNAME="worker-78", VLLM_SIDE="worker-78:9000 at 10.2.3.9", TRITON_NEW="/tmp/b/thing"
    )
    assert one.build_key == two.build_key
    assert "worker-77" not in one.to_json()
    assert "10.2.3.4" not in one.to_json()


def test_versions_are_not_taken_for_addresses(lab: Lab) -> None:
    assert lab.identity(CUDNN_VERSION="9.10.2.21").build["environment"]["CUDNN_VERSION"] == "9.10.2.21"


def test_an_unknown_variable_that_names_a_file_counts_by_content(lab: Lab, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for directory in ("a", "b"):
        (tmp_path / directory / "plugin.so").write_bytes(b"1")
    one = lab.identity(TRITON_NEW_PLUGIN=str(tmp_path / "a/plugin.so"))
    two = lab.identity(TRITON_NEW_PLUGIN=str(tmp_path / "b/plugin.so"))
    assert one.build_key == two.build_key
    (tmp_path / "b/plugin.so").write_bytes(b"2")
    assert lab.identity(TRITON_NEW_PLUGIN=str(tmp_path / "b/plugin.so")).build_key != one.build_key


# --- profile --------------------------------------------------------------------------------------------------


def test_profile_of_a_verb_without_a_job(lab: Lab) -> None:
    assert lab.identity().profile_key == "default"
    lab.settings["profile"] = "auto"
    assert lab.identity().profile_key == "default"
    lab.settings["profile"] = "qwen3-8b"
    assert lab.identity().profile_key == "qwen3-8b"
    assert lab.identity(command=[sys.executable, "x.py"]).profile_key == "qwen3-8b"


@pytest.mark.parametrize("name", ["a b", "a/b", "../up", ".hidden", "-x", "x" * 65, "naïve", "a\tb"])
def test_a_name_that_is_no_directory_is_hashed(name: str) -> None:
    key = Identity({"a": 1}, {"name": name}).profile_key
    assert not is_plain(name)
    assert len(key) == 64


def test_profile_of_a_job_is_its_command(lab: Lab) -> None:
    one = lab.identity(command=[sys.executable, "/a/train.py", "--lr", "1e-4", "--port", "1"])
    two = lab.identity(command=[sys.executable, "/b/train.py", "--port", "2", "--lr", "1e-4"])
    three = lab.identity(command=[sys.executable, "/b/train.py", "--lr", "1e-3"])
    assert one.profile_key == two.profile_key != three.profile_key
    assert one.build_key == three.build_key


def test_what_the_command_sets_is_in_the_build(lab: Lab) -> None:
    plain = lab.identity(command=[sys.executable, "x.py"])
    by_env = lab.identity(command=["/usr/bin/env", "TORCHINDUCTOR_FREEZING=1", sys.executable, "x.py"])
    exported = lab.identity(command=[sys.executable, "x.py"], TORCHINDUCTOR_FREEZING="1")
    assert by_env.build_key == exported.build_key != plain.build_key
    assert by_env.profile_key == plain.profile_key


# --- the document ---------------------------------------------------------------------------------------------


def test_the_document_comes_back(lab: Lab, tmp_path: Path) -> None:
    found = lab.identity(command=[sys.executable, "x.py"], TRITON_X="naïve \udc80")
    path = tmp_path / "identity.json"
    path.write_text(found.to_json())
    again = Identity.load(path)
    assert again == found
    assert again.build_key == found.build_key


def test_a_file_is_taken_instead_of_probing(lab: Lab, tmp_path: Path) -> None:
    path = tmp_path / "identity.json"
    path.write_text(Identity({"schema": 1, "x": 1}, {"name": "p"}).to_json())
    lab.settings["identity"] = str(path)
    assert lab.identity(TRITON_LATE="1").build == {"schema": 1, "x": 1}
    assert lab.identity().profile_key == "p"
    lab.settings["profile"] = "auto"
    assert lab.identity().profile_key == "p"
    lab.settings["profile"] = "mine"
    assert lab.identity().profile_key == "mine"


def test_the_variable_hands_the_snapshot_down(tmp_path: Path) -> None:
    path = tmp_path / "identity.json"
    path.write_text(Identity({"schema": 1}, {"name": "p"}).to_json())
    found = cachehome.identity(environ={"CACHEHOME_IDENTITY": str(path), "OMP_NUM_THREADS": "1"})
    assert found.build == {"schema": 1}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        '{"format": "other", "build": {"a": 1}, "profile": {}}',
        '{"format": "cachehome-identity-1", "build": {}, "profile": {}}',
        '{"format": "cachehome-identity-1", "build": [], "profile": {}}',
        '{"format": "cachehome-identity-1", "build": {"a": 1}, "profile": {"name": "x"}, "build_key": "0"}',
        "[" * 100_000,
    ],
)
def test_a_bad_file_is_named(text: str, tmp_path: Path) -> None:
    path = tmp_path / "identity.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=str(path)):
        Identity.load(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="missing"):
        identity(Settings(identity=str(tmp_path / "missing.json")))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), JSON, min_size=1), st.dictionaries(st.text(), JSON, min_size=1))
def test_any_identity_survives_its_json(build: dict[str, object], profile: dict[str, object]) -> None:
    found = Identity(build, profile)
    again = Identity.from_json(found.to_json())
    assert again == found
    assert again.profile_key == found.profile_key


@given(st.dictionaries(st.text(), JSON))
def test_order_does_not_matter(value: dict[str, object]) -> None:
    assert canonical(dict(reversed(value.items()))) == canonical(value)


def test_the_key_of_this_version() -> None:
    """The schema is a promise: the same facts have the same key in every version that says schema 1."""
    known = Identity({"schema": 1, "gpu": {"models": ["a", "b"]}, "text": "é"}, {"name": "a b"})
    assert known.build_key == "21ddccfcc2eac5fce4d2b1ca4a61ef424a0c5058d0e8f38934c7c3324e82f456"
    assert known.profile_key == "d2ed47277773c61fc46d279fbb2c4d13adb80d6a69bb80491f3491f4cb060754"
    assert known.build8 == known.build_key[:8]


# --- processes ------------------------------------------------------------------------------------------------


def _in_a_process(code: str, **environ: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    return done.stdout


def test_fresh_processes_agree() -> None:
    code = "import cachehome; print(cachehome.identity().build_key)"
    keys = {
        _in_a_process(code, PYTHONHASHSEED=str(seed), TMPDIR=f"/tmp/{seed}", HOSTNAME=f"h{seed}")
        for seed in range(6)
    }
    assert len(keys) == 1


def test_importing_is_cheap_and_torch_is_never_imported() -> None:
    code = """
import sys
import cachehome.identity
heavy = {"subprocess", "json", "hashlib", "ctypes", "shlex", "argparse", "importlib.metadata"}
assert not heavy & sys.modules.keys(), heavy & sys.modules.keys()
cachehome.identity()
assert not {"torch", "triton", "importlib.metadata", "cachehome.store", "zstandard"} & sys.modules.keys()
print("fine")
"""
    assert _in_a_process(code).strip() == "fine"


def test_the_module_is_callable() -> None:
    assert isinstance(cachehome.identity, type(sys))
    assert callable(cachehome.identity)


def test_an_unknown_interpreter_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CacheHomeError, match="--identity FILE"):
        identity(Settings(), dict(os.environ), ["docker", "run", "image"])


def test_a_secret_is_in_no_error() -> None:
    command = ["docker", "run", "-e", "HF_TOKEN=hunter2hunter2", "image", "--api-key", "hunter2hunter2"]
    with pytest.raises(CacheHomeError) as found:
        identity(Settings(), dict(os.environ), command)
    assert "hunter2" not in f"{found.value} {found.value.fields}"


def test_two_sources_of_one_name_both_count(lab: Lab) -> None:
    paths = tuple(str(lab.script(f"{name}/model.py", name)) for name in "ab")
    lab.settings["sources"] = paths
    both = lab.identity()
    assert len(both.build["sources"]) == 2
    lab.script("a/model.py", "changed")
    assert lab.identity().build_key != both.build_key


def test_odd_surroundings(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Broken quotes, a relative PATH, a working directory that is gone: an identity all the same."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setattr("cachehome.probes.packages.search_path", search_path)
    found = lab.identity(CXX="g++ 'x", CC='"', PATH="", CUDA_HOME="relative")
    assert found.build["toolchain"]["cxx"] == "absent"
