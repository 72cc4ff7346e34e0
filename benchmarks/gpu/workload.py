"""One start: import, build the model, compile or load it for each batch size, say what came out and when.

usage: workload.py OUT-RANK.json [--mode default|max-autotune] [--layers N] [--batches 1,2] [--save F | --load F]
                                     [--cpp]

Below torchrun each process works on the GPU of its local rank, and writes the file of its rank.

Times are seconds since the process began. What it knows of caches is what torch does by itself.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time

BEGAN = time.perf_counter()

parser = argparse.ArgumentParser()
parser.add_argument("out")
parser.add_argument("--mode", default="default")
parser.add_argument("--layers", type=int, default=28)
parser.add_argument("--batches", default="1,2")
parser.add_argument("--tokens", type=int, default=128)
parser.add_argument("--device", default="cuda")
parser.add_argument("--small", action="store_true", help="a tiny model, to try the suite without a GPU")
parser.add_argument("--save", help="write torch's own cache artifacts to this file at the end")
parser.add_argument("--load", help="read them from this file before anything is compiled")
parser.add_argument("--cpp", action="store_true", help="a small graph for the CPU, too")
parser.add_argument("--alone", action="store_true", help="this rank sees its own GPU only")
args = parser.parse_args()

rank, local, world = (int(os.environ.get(name, "0")) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
if args.alone:
    os.environ["CUDA_VISIBLE_DEVICES"], local = str(local), 0

import model as models  # noqa: E402
import torch  # noqa: E402

cuda = args.device.startswith("cuda")
seconds = {"import": time.perf_counter() - BEGAN}
torch.manual_seed(0)
config = models.Config(layers=args.layers, **(models.SMALL if args.small else {}))
torch.set_default_dtype(torch.bfloat16 if cuda else torch.float32)
if cuda:
    torch.cuda.set_device(local)
if world > 1:
    torch.distributed.init_process_group("nccl" if cuda else "gloo")
args.device = f"cuda:{local}" if cuda else args.device
with torch.device(args.device):
    decoder = models.Decoder(config).eval()
    for parameter in decoder.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.02)
if cuda:
    torch.cuda.synchronize()
seconds["model"] = time.perf_counter() - BEGAN
if args.load:
    with open(args.load, "rb") as file:
        torch.compiler.load_cache_artifacts(file.read())
    seconds["load"] = time.perf_counter() - BEGAN - seconds["model"]

begin = time.perf_counter()
compiled = torch.compile(decoder, dynamic=False, **({} if args.mode == "default" else {"mode": args.mode}))
seconds["torch.compile"] = time.perf_counter() - begin  # imports Dynamo and Inductor
first: dict[str, float] = {}
digest = hashlib.sha256()
choices = hashlib.sha256()
with torch.no_grad():
    for batch in map(int, args.batches.split(",")):
        generator = torch.Generator(args.device).manual_seed(batch)
        ids = torch.randint(
            0, config.vocabulary, (batch, args.tokens), device=args.device, generator=generator
        )
        begin = time.perf_counter()
        out = compiled(ids)
        if cuda:
            torch.cuda.synchronize()
        first[str(batch)] = round(time.perf_counter() - begin, 3)
        wide = out.float().cpu()
        digest.update(wide.numpy().tobytes())
        choices.update(wide.argmax(-1).numpy().tobytes())
if cuda:
    begin = time.perf_counter()
    digest.update(models.kernels(args.device).cpu().numpy().tobytes())
    seconds["kernels"] = time.perf_counter() - begin
if args.cpp:
    with torch.no_grad():
        torch.compile(lambda x: x.float().sin().sum(), dynamic=False)(torch.ones(4096, device="cpu"))
if world > 1:  # every rank got the same
    total = wide.double().sum().to(args.device)
    theirs = total.clone()
    torch.distributed.all_reduce(theirs)
    digest.update(repr(bool(torch.isclose(theirs, total * world))).encode())
seconds["total"] = time.perf_counter() - BEGAN
size = 0
if args.save:
    begin = time.perf_counter()
    artifacts = torch.compiler.save_cache_artifacts()
    assert artifacts is not None
    with open(args.save, "wb") as file:
        size = file.write(artifacts[0])
    seconds["save"] = time.perf_counter() - begin

with open(args.out.replace("RANK", str(rank)), "w", encoding="utf-8") as file:
    json.dump(
        {
            "pid": os.getpid(),
            "rank": rank,
            "seconds": {name: round(value, 3) for name, value in seconds.items()},
            "first_output": first,
            "outputs": digest.hexdigest()[:16],
            "choices": choices.hexdigest()[:16],
            "artifact_bytes": size,
            "directories": {
                n: os.environ.get(n, "") for n in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
            },
            "versions": {
                "torch": torch.__version__,
                "cuda": torch.version.cuda or "",
                "gpu": torch.cuda.get_device_name(args.device) if cuda else "",
                "gpus": torch.cuda.device_count() if cuda else 0,
            },
        },
        file,
    )
# What a container does at its end. Leaving in peace would wait seconds for compile workers that have nothing to do.
time.sleep(0.1)  # the counters are written by a thread
os._exit(0)
