"""GPUs through NVML (a library with its interface, built here) and through the kernel's files."""

from __future__ import annotations

from pathlib import Path

import pytest
from identity_lab import A100, B200, H200, Lab
from identity_lab import lab as lab
from identity_lab import nvml_library as nvml_library

from cachehome.probes import gpu, kfd, nvml


def _models(machine: Lab, **environ: str) -> object:
    part, _ = gpu.probe(environ)
    return part.get("models")


def test_what_is_read(lab: Lab) -> None:
    assert gpu.probe({})[0] == {
        "vendor": "nvidia",
        "driver": "570.86.15",
        "models": ["NVIDIA H200, sm_90, 132 SMs"],
    }


@pytest.mark.parametrize(
    ("device", "sms"),
    [
        (A100, "108 SMs"),
        (B200, "148 SMs"),
        ("NVIDIA GeForce RTX 4090|8|9|16384|U", "128 SMs"),
        ("Tesla V100|7|0|5120|U", "80 SMs"),
        ("NVIDIA Next|15|3|9999|U", "9999 cores in unknown SMs"),
        ("NVIDIA Odd|9|0|0|U", "error: NVML nvmlDeviceGetNumGpuCores: not supported SMs"),
    ],
)
def test_number_of_sms(lab: Lab, device: str, sms: str) -> None:
    lab.gpu("1", device)
    (model,) = gpu.probe({})[0]["models"]
    assert model.endswith(f", {sms}")


MIXED = [f"{H200}0", f"{A100}1", f"{H200}2"]
H, A = "NVIDIA H200, sm_90, 132 SMs", "NVIDIA A100-SXM4-80GB, sm_80, 108 SMs"


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("GPU-11110", [H]),
        ("GPU-2222", [A]),
        ("GPU-11110,GPU-22221", [A, H]),
        ("0,1", [A, H]),
        ("0", [A, H]),  # CUDA's order is by speed: nobody can say which one that is
    ],
)
def test_two_kinds(lab: Lab, wanted: str, expected: list[str]) -> None:
    lab.gpu("1", *MIXED)
    assert _models(lab, CUDA_VISIBLE_DEVICES=wanted) == expected


def test_two_kinds_in_the_order_of_the_bus(lab: Lab) -> None:
    lab.gpu("1", *MIXED)
    assert _models(lab, CUDA_VISIBLE_DEVICES="1", CUDA_DEVICE_ORDER="PCI_BUS_ID") == [A]


@pytest.mark.parametrize("wanted", ["", "-1", "7", "GPU-unknown", "NoDevFiles", "x,0"])
def test_every_device_is_hidden(lab: Lab, wanted: str) -> None:
    part, left_out = gpu.probe({"CUDA_VISIBLE_DEVICES": wanted})
    assert part == gpu.NONE
    assert "gpu.hidden" in left_out


def test_cuda_stops_at_the_first_that_it_does_not_know(lab: Lab) -> None:
    lab.gpu("1", *MIXED)
    assert _models(lab, CUDA_VISIBLE_DEVICES="1,9,0", CUDA_DEVICE_ORDER="PCI_BUS_ID") == [A]


def test_mig(lab: Lab) -> None:
    lab.gpu("1", f"{H200}|NVIDIA H200 MIG 1g.18gb,NVIDIA H200 MIG 2g.35gb")
    assert _models(lab) == [
        "NVIDIA H200 MIG 1g.18gb, sm_90, 16 SMs",
        "NVIDIA H200 MIG 2g.35gb, sm_90, 32 SMs",
    ]
    assert _models(lab, CUDA_VISIBLE_DEVICES="MIG-102") == ["NVIDIA H200 MIG 2g.35gb, sm_90, 32 SMs"]


def test_a_library_without_its_driver_is_no_gpu(lab: Lab, tmp_path: Path) -> None:
    lab.gpu("!9")
    assert gpu.probe({}, str(tmp_path))[0] == gpu.NONE


def test_no_library(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(nvml, "LIBRARIES", (str(tmp_path / "missing.so"),))
    assert gpu.probe({}, str(tmp_path))[0] == gpu.NONE
    version = tmp_path / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\nGCC version\n"
    )
    part = gpu.probe({}, str(tmp_path))[0]
    assert part["driver"] == "580.65.06"
    assert part["models"].startswith("error: ")


def test_failures_differ(lab: Lab) -> None:
    found = []
    for code in (4, 12, 15, 18, 999, 42):
        lab.gpu(f"!{code}")
        found.append(gpu.probe({})[0]["vendor"])
    assert len(set(found)) == 6
    assert all(text.startswith("error: NVML nvmlInit_v2: ") for text in found)


# --- AMD ----------------------------------------------------------------------------------------------------------


def _kfd(root: Path, *targets: tuple[int, int]) -> None:
    nodes = root / "sys/class/kfd/kfd/topology/nodes"
    for number, (target, simds) in enumerate([(0, 0), *targets]):  # the first node is the processor
        (nodes / str(number)).mkdir(parents=True)
        text = f"cpu_cores_count 0\nsimd_count {simds}\nsimd_per_cu 4\ngfx_target_version {target}\n"
        (nodes / str(number) / "properties").write_text(text)
    (root / "opt/rocm/.info").mkdir(parents=True)
    (root / "opt/rocm/.info/version").write_text("6.3.1-48\n")
    (root / "sys/module/amdgpu").mkdir(parents=True)
    (root / "sys/module/amdgpu/version").write_text("6.10.5\n")


@pytest.fixture
def amd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(nvml, "LIBRARIES", ())
    return tmp_path


def test_amd(amd: Path) -> None:
    _kfd(amd, (90402, 1216), (90402, 1216))
    assert gpu.probe({}, str(amd))[0] == {
        "vendor": "amd",
        "driver": "6.10.5",
        "rocm": "6.3.1-48",
        "models": ["gfx942, 304 CUs"],
    }


def test_amd_names(amd: Path) -> None:
    _kfd(amd, (90010, 416), (110000, 384), (120001, 256))
    assert kfd.nodes(str(amd)) == ["gfx90a, 104 CUs", "gfx1100, 96 CUs", "gfx1201, 64 CUs"]
    assert gpu.probe({"HIP_VISIBLE_DEVICES": "1"}, str(amd))[0]["models"] == ["gfx1100, 96 CUs"]
    assert gpu.probe({"ROCR_VISIBLE_DEVICES": ""}, str(amd))[0] == gpu.NONE


def test_only_a_processor(amd: Path) -> None:
    _kfd(amd)
    assert gpu.probe({}, str(amd)) == (gpu.NONE, {})


def test_rocm_elsewhere(amd: Path) -> None:
    _kfd(amd, (90402, 1216))
    (amd / "rocm-7/.info").mkdir(parents=True)
    (amd / "rocm-7/.info/version").write_text("7.0.0\n")
    assert gpu.probe({"ROCM_PATH": str(amd / "rocm-7")}, str(amd))[0]["rocm"] == "7.0.0"
    assert gpu.probe({"ROCM_PATH": str(amd / "none")}, str(amd))[0]["rocm"] == "absent"
