"""A machine in a directory: compilers, packages, CPU and GPUs whose answers a test can change one at a time.

The compilers are scripts on PATH, the packages metadata in a site directory, and NVML a library that is compiled here
and called through ctypes like the real one.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from cachehome import place
from cachehome.identity import Identity, identity
from cachehome.probes import nvml, packages
from cachehome.settings import Settings

NVML_SOURCE = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
/* LAB_NVML names a file: a line with the driver, then one line a device: name|major|minor|cores|uuid|MIG names,...
   A first line "!N" makes the initialisation fail with N. */
static char lines[64][512]; static int count;
static void load(void) {
  FILE *f = fopen(getenv("LAB_NVML"), "r"); count = 0;
  while (f && count < 64 && fgets(lines[count], 512, f)) { lines[count][strcspn(lines[count], "\n")] = 0; count++; }
  if (f) fclose(f);
}
static char *part(const char *line, int n) {
  static char buffer[512]; const char *p = line;
  while (n-- && p) { p = strchr(p, '|'); if (p) p++; }
  buffer[0] = 0; if (p) { strncpy(buffer, p, 511); buffer[strcspn(buffer, "|")] = 0; }
  return buffer;
}
/* A handle is 100 * device + instance; an instance counts from 1. */
static char *mig(long h) {
  static char copy[512]; strcpy(copy, part(lines[h / 100], 5));
  char *token = strtok(copy, ","); for (long i = 1; token && i < h % 100; i++) token = strtok(NULL, ",");
  return token;
}
int nvmlInit_v2(void) { load(); return lines[0][0] == '!' ? atoi(lines[0] + 1) : 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *s, unsigned n) { strncpy(s, lines[0], n); return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = count - 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **h) { *h = (void *)(long)(100 * (i + 1)); return 0; }
int nvmlDeviceGetName(void *h, char *s, unsigned n) {
  strncpy(s, (long)h % 100 ? mig((long)h) : part(lines[(long)h / 100], 0), n); return 0; }
int nvmlDeviceGetUUID(void *h, char *s, unsigned n) {
  if ((long)h % 100) snprintf(s, n, "MIG-%ld", (long)h); else strncpy(s, part(lines[(long)h / 100], 4), n); return 0; }
int nvmlDeviceGetCudaComputeCapability(void *h, int *a, int *b) {
  *a = atoi(part(lines[(long)h / 100], 1)); *b = atoi(part(lines[(long)h / 100], 2)); return *a ? 0 : 15; }
int nvmlDeviceGetNumGpuCores(void *h, unsigned *n) { *n = atoi(part(lines[(long)h / 100], 3)); return *n ? 0 : 3; }
int nvmlDeviceGetMigMode(void *h, unsigned *a, unsigned *b) {
  *a = *b = part(lines[(long)h / 100], 5)[0] != 0; return 0; }
int nvmlDeviceGetMaxMigDeviceCount(void *h, unsigned *n) { *n = 7; return 0; }
int nvmlDeviceGetMigDeviceHandleByIndex(void *h, unsigned i, void **m) {
  *m = (void *)((long)h + i + 1); return mig((long)*m) ? 0 : 6; }
int nvmlDeviceGetAttributes_v2(void *h, unsigned *a) { a[0] = 16 * ((long)h % 100); return 0; }
"""
H200 = "NVIDIA H200|9|0|16896|GPU-1111"
A100 = "NVIDIA A100-SXM4-80GB|8|0|6912|GPU-2222"
B200 = "NVIDIA B200|10|0|18944|GPU-3333"

AVX512 = "128 127 avx2 avx512f avx512bw"
MODALIAS = "cpu:type:x86,ven0000fam0006mod00A7:feature:,{}\n"
# Numbers of features as Linux counts them: SSE2, AVX, FMA, AVX2, and those of AVX-512.
FEATURES = ["001A", "009C", "008C", "0125", "0130", "013E", "013F"]


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library, built once."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler to build the NVML of the lab with")
    directory = tmp_path_factory.mktemp("nvml")
    source = directory / "nvml.c"
    source.write_text(NVML_SOURCE)
    library = directory / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-w", "-shared", "-fPIC", "-o", library, source], check=True)
    return library


class Lab:
    """One machine."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "bin"
        self.site = root / "site"
        self.gpus = root / "gpus"
        self.modalias = root / "modalias"
        self.environ = {
            "PATH": str(self.bin),
            "HOME": str(root / "home"),
            "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        }
        self.settings: dict[str, object] = {}
        for directory in (self.bin, self.site):
            directory.mkdir(parents=True)
        self.compiler("12.2.0")
        self.cpu(*FEATURES)
        self.ptxas("12.9.86")
        self.package("torch", "2.13.0+cpu", "torch/__init__.py,sha256=aaa,1")
        self.torch(git="cf30", cuda="None")
        self.package("triton", "3.9.0", "triton/__init__.py,sha256=bbb,1")
        self.gpu("570.86.15", f"{H200}0", f"{H200}1")

    def script(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    def compiler(self, version: str, march: str = "sapphirerapids", isa: str = "avx avx2 avx512f") -> None:
        flags = "\n".join(f"  -m{flag}  [enabled]" for flag in isa.split())
        answer = f"""case "$*" in
*--version*) echo "$(/usr/bin/basename $0) (Debian {version}-14) {version}";;
*--help=target*) cat <<'X'
  -march=   {march}
  -mtune=   generic
  -mavx512er  [disabled]
{flags}
X
;;
*) echo libstdc++.so.6;; esac"""
        for name in ("g++", "gcc"):
            self.script(f"bin/{name}", answer.replace("cat <<", "/bin/cat <<"))

    def cpu(self, *features: str) -> None:
        self.modalias.write_text(MODALIAS.format(",".join(features)))

    def ptxas(self, version: str, place: str = "site/triton/backends/nvidia/bin/ptxas") -> Path:
        return self.script(
            place, f"echo 'Cuda compilation tools, release 12.9, V{version}'; echo 'Build cuda_12.9.r'"
        )

    def package(self, name: str, version: str, *record: str) -> Path:
        for old in self.site.glob(f"{name.replace('-', '_')}-*.dist-info"):
            shutil.rmtree(old)
        metadata = self.site / f"{name.replace('-', '_')}-{version}.dist-info"
        metadata.mkdir()
        (metadata / "RECORD").write_text("\n".join([*record, f"{metadata.name}/METADATA,sha256=zz,1", ""]))
        return metadata

    def torch(self, version: str = "2.13.0+cpu", *, git: str = "cf30", cuda: str = "None") -> None:
        (self.site / "torch").mkdir(exist_ok=True)
        (self.site / "torch/version.py").write_text(
            f"from typing import Optional\n__version__ = '{version}'\ndebug = False\ncuda: Optional[str] = {cuda}\n"
            f"git_version = '{git}'\nhip: Optional[str] = None\n"
        )

    def gpu(self, driver: str, *devices: str) -> None:
        self.gpus.write_text("\n".join([driver, *devices, ""]))

    def identity(self, *, command: list[str] | None = None, **environ: str) -> Identity:
        return identity(Settings(**self.settings), {**self.environ, **environ}, command)


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nvml_library: Path) -> Lab:
    """A machine with two H200 and a CPU with AVX-512."""
    machine = Lab(tmp_path / "lab")
    monkeypatch.setattr(nvml, "LIBRARIES", (str(nvml_library),))
    monkeypatch.setenv("LAB_NVML", str(machine.gpus))
    monkeypatch.setattr(packages, "search_path", lambda: [str(machine.site)])
    features = functools.partial(place.cpu_features, str(machine.modalias))
    monkeypatch.setattr(place, "cpu_features", features)
    monkeypatch.setattr("cachehome.cpu_features", features)  # where the host tag looks
    real = place.torch_version
    monkeypatch.setattr(
        place, "torch_version", lambda sites=None: real([str(machine.site)] if sites is None else sites)
    )
    return machine
