"""Does to caches what vLLM and SGLang do: moves them below the engine's root before anything is compiled.

usage: engine.py vllm|sglang OUT.json [RANK]

The layout is that of vLLM 0.33 (compilation/compiler_interface.py, backends.py, decorators.py) and SGLang 0.5.23
(srt/compilation/backend.py); graphs and kernels are real ones.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

engine, out, rank = sys.argv[1], sys.argv[2], (sys.argv[3:] or ["0"])[0]
root = Path(os.environ[{"vllm": "VLLM_CACHE_ROOT", "sglang": "SGLANG_CACHE_DIR"}[engine]])
base = root / "torch_compile_cache" / "0123456789" / f"rank_{rank}_0"
model = base / "backbone"
base = model if engine == "sglang" else base
for variable, name in (("TORCHINDUCTOR_CACHE_DIR", "inductor_cache"), ("TRITON_CACHE_DIR", "triton_cache")):
    (base / name).mkdir(parents=True, exist_ok=True)
    os.environ[variable] = str(base / name)

import torch  # noqa: E402
import torch._inductor.config  # noqa: E402
from torch._dynamo.utils import counters  # noqa: E402
from triton import knobs  # noqa: E402

from cachehome.demo.kernels import KERNELS  # noqa: E402

torch._inductor.config.cpp_cache_precompile_headers = False  # 156 MB for one kernel
seen = []
knobs.compilation.listener = lambda *, cache_hit, **_: seen.append(cache_hit)
x = torch.arange(64, dtype=torch.float32)
total = torch.compile(lambda x: (x.sin() + int(rank)).relu(), dynamic=False)(x).sum().item()
for kernel in KERNELS[:3]:
    kernel.compile()

# vLLM's own: its graphs, the index that names them, and what nobody reads when it starts warm.
model.mkdir(exist_ok=True)
index, graph = model / f"{engine}_compile_cache.py", model / "artifact_compile_range_1_8_subgraph_0"
loaded = index.exists()
if engine == "vllm":
    if loaded:
        assert graph.read_bytes() == b"graph of rank " + rank.encode()
    else:
        graph.write_bytes(b"graph of rank " + rank.encode())
        (model / "computation_graph.py").write_text("import torch\n")
        (model / "cache_key_factors.json").write_text(json.dumps({"env": {"VLLM_THING": "1"}}))
aot = root / "torch_compile_cache" / "torch_aot_compile" / ("0" * 64) / f"rank_{rank}_0"
aot.mkdir(parents=True, exist_ok=True)
if engine == "vllm" and not loaded:
    (aot / "model").write_bytes(b"a pickle")
(root / "assets").mkdir(exist_ok=True)
(root / "assets" / "download").write_bytes(b"x")
index.write_text("{(1, 0): 'artifact_compile_range_1_8_subgraph_0'}\n")

inductor, autograd = counters["inductor"], counters["aot_autograd"]
Path(out).write_text(
    json.dumps(
        {
            "total": total,
            "fx": [inductor["fxgraph_cache_hit"], inductor["fxgraph_cache_miss"]],
            "aot": [autograd["autograd_cache_hit"], autograd["autograd_cache_miss"]],
            "triton": [sum(seen), len(seen) - sum(seen)],
            "loaded": loaded,
            "model": (aot / "model").exists(),
            "directory": os.environ["TORCHINDUCTOR_CACHE_DIR"],
        }
    )
)
