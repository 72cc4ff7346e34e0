"""The identity on a machine with a GPU: the probe's figures, its time, and whether they are what CUDA says.

    python benchmarks/gpu/identity.py [RUNS]

Prints one JSON object. The times are of fresh processes, on a warm disk; the check against torch comes last, since it
makes the CUDA context that the probe does without.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time

_PROBE = """
import json, sys, time
begin = time.perf_counter()
import cachehome.identity
imported = time.perf_counter()
found = cachehome.identity()
first = time.perf_counter()
cachehome.identity()
again = time.perf_counter()
from cachehome.probes import gpu
part, left_out = gpu.probe({})
asked = time.perf_counter()
print(json.dumps({
    "import_ms": 1e3 * (imported - begin), "identity_ms": 1e3 * (first - imported), "again_ms": 1e3 * (again - first),
    "gpu_ms": 1e3 * (asked - again), "identity": found.to_dict(),
    "cuda_touched": "torch" in sys.modules or "libcuda.so" in open("/proc/self/maps").read(),
}))
"""


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    environ = {**os.environ, "PYTHONPATH": root, "CACHEHOME": "0"}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    found = []
    for _ in range(runs + 1):  # the first one warms the disk
        begin = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", _PROBE], env=environ, capture_output=True, text=True, check=True
        )
        found.append({**json.loads(done.stdout), "process_ms": 1e3 * (time.perf_counter() - begin)})
    names = ("import_ms", "identity_ms", "again_ms", "gpu_ms", "process_ms")
    report = {
        "runs": runs,
        **{name: round(statistics.median(run[name] for run in found[1:]), 1) for name in names},
        "slowest_identity_ms": round(max(run["identity_ms"] for run in found[1:]), 1),
        "first_identity_ms": round(found[0]["identity_ms"], 1),
        "one_key": len({run["identity"]["build_key"] for run in found}) == 1,
        "cuda_touched": any(run["cuda_touched"] for run in found),
        "gpu": found[-1]["identity"]["build"]["gpu"],
        "toolchain": found[-1]["identity"]["build"]["toolchain"],
        "host_tag": found[-1]["identity"]["build"]["host_tag"],
        "torch_says": _torch(),
    }
    print(json.dumps(report, indent=1))


def _torch() -> object:
    try:
        import torch
    except ImportError:
        return "torch is not installed"
    if not torch.cuda.is_available():
        return "torch sees no GPU"
    devices = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
    return sorted({f"{d.name}, sm_{d.major}{d.minor}, {d.multi_processor_count} SMs" for d in devices})


if __name__ == "__main__":
    main()
