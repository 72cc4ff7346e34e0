"""Inductor and AOTAutograd, counted: by torch's own counters, read whenever something has just ended.

fx_hits fx_misses fx_bypasses         lookups of the FX graph cache
aot_hits aot_misses aot_bypasses      the same of AOTAutograd's
bundled_kernels autotuners_loaded     kernels written from a graph's entry, autotuners unpickled from it
kernels_requested kernels_preloaded   kernels that a graph asked for, those of them that were unpickled
benchmarks kernels_tuned              measurements of candidates, kernels that were tuned at run time
cxx_kernels cxx_headers cxx_probes cxx_queries ptxas    compilers started
workers                               compile workers asked for; they keep logs of their own
compile_seconds                       in Dynamo and its backend, tracing and loading included
saved_fx_seconds saved_aot_seconds    what the entries that were hit had taken to make, as torch noted in them
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from typing import Any

from cachehome.observe import circumstances, compilers, patches
from cachehome.observe.activity import log, worker
from cachehome.observe.graphs import Graphs, parts_of

# torch's counters -> ours
_FX = {
    f"fxgraph_cache_{end}": f"fx_{ours}"
    for end, ours in (("hit", "hits"), ("miss", "misses"), ("bypass", "bypasses"))
}
_AOT = {
    f"autograd_cache_{end}": f"aot_{ours}"
    for end, ours in (("hit", "hits"), ("miss", "misses"), ("bypass", "bypasses"))
}
_BUNDLES = {"triton_bundler_load_static_autotuner": "autotuners_loaded"}
_ASYNC = {"async_compile_cache_miss": "kernels_requested", "async_compile_cache_hit": "kernels_preloaded"}
_MEASURED = (".benchmark_gpu", ".benchmark_cpu")

_NAMED = 3  # differences that a line names

_graphs: dict[str, Graphs] = {}
_seen: dict[str, float] = {}
_lock = threading.RLock()
_thread = threading.local()


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()  # a thread that is not here may have held the old one


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def snapshot() -> None:
    """Write by how much torch's counters have grown."""
    with _lock:
        grown = {}
        for name, now in _now().items():
            before = _seen.get(name, 0)
            _seen[name] = now
            # Who clears torch's counters begins anew, and so do we.
            difference = now - before if now >= before else now
            if difference:
                grown[name] = round(difference, 3)
    if grown:
        log.add(**grown)


def _now() -> dict[str, float]:
    utils = sys.modules.get("torch._dynamo.utils")
    counters = getattr(utils, "counters", None)
    if counters is None:
        return {}
    # .get, since asking a defaultdict for a name that it lacks would change it.
    inductor, aot = counters.get("inductor") or {}, counters.get("aot_autograd") or {}
    now: dict[str, float] = {
        ours: inductor[name] for name, ours in (_FX | _BUNDLES | _ASYNC).items() if name in inductor
    }
    now |= {ours: aot[name] for name, ours in _AOT.items() if name in aot}
    measured = [
        count
        for name, count in list(inductor.items())
        if name.startswith("benchmarking.") and name.endswith(_MEASURED)
    ]
    if measured:
        now["benchmarks"] = sum(measured)
    spent = getattr(utils, "cumulative_time_spent_ns", None) or {}
    seconds = sum(spent.get(phase, 0) for phase in ("entire_frame_compile", "entire_backward_compile")) / 1e9
    if seconds:
        now["compile_seconds"] = seconds
    return now


def _ended(*_: Any) -> None:
    snapshot()


def watch_compilations(module: Any) -> None:
    """Watch `torch._dynamo.callback`: each compilation ends there. Not by registering, which a reset undoes."""
    try:
        patches.after(patches.member(module, "CompilationCallbackHandler"), "run_end_callbacks", _ended)
    except patches.Unfamiliar as error:
        log.watched("compilations", str(error))
    import atexit

    atexit.register(snapshot)


def watch_fx(module: Any) -> None:
    """Watch `torch._inductor.codecache`, and from now on the compilers that this process starts."""
    try:
        patches.mentions(module, *_FX)
        patches.after(patches.member(module, "FxGraphCache"), "load_with_key", _fx_looked_up)
    except patches.Unfamiliar as error:
        log.watched("fx", str(error))
    else:
        log.watched("fx")
    compilers.watch()


def _fx_looked_up(result: Any, _args: Any, _kwargs: Any) -> None:
    graph, info = result
    key = str(info.get("key", ""))
    why: list[str] = []
    patches.quietly(lambda: why.extend(_explain(key, info.get("components") or (), missed=graph is None)))
    if graph is None:
        log.note("missed", what="fx", key=key, name="; ".join(why[:_NAMED]), differences=len(why))
    elif not getattr(_thread, "in_aot", 0):  # else the AOT entry's time holds this one
        saved = info.get("time_saved_ns")
        log.note("used", what="fx", key=key)
        if saved is None:
            log.add(saved_unknown=1)
        else:
            log.add(saved_fx_seconds=round(saved / 1e9, 3))
    snapshot()


def _explain(key: str, components: Sequence[str], *, missed: bool) -> list[str]:
    """How a key that *missed* differs from the nearest one that this directory knows. What it is made of is kept."""
    from cachehome.observe import watch

    live = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")
    if not watch.counting or not key or not os.path.isabs(live):
        return []
    with _lock:
        graphs = _graphs.setdefault(live, Graphs(live))
        if not missed and (known := graphs.read(key)):
            circumstances.compare(known.made)
            return []
        parts = parts_of(components)
        if not missed:  # compiled without diagnostics: who knows how
            graphs.keep(key, parts, None)
            return []
        why, before = graphs.nearest(parts)
        circumstances.compare(before)
        graphs.keep(key, parts, circumstances.now())
        return why


def watch_aot(module: Any) -> None:
    """Watch `torch._functorch._aot_autograd.autograd_cache`."""
    try:
        patches.mentions(module, *_AOT)
        cache = patches.member(module, "AOTAutogradCache")
        patches.after(cache, "_lookup", _aot_entry)
        patches.replace(cache, "try_load", _aot_load)
    except patches.Unfamiliar as error:
        log.watched("aot", str(error))
    else:
        log.watched("aot")


def _aot_entry(result: Any, _args: Any, _kwargs: Any) -> None:
    entry = result[0] if isinstance(result, tuple) and result else result
    if entry is not None:
        _thread.taken_ns = entry.forward_time_taken_ns + entry.backward_time_taken_ns


def _aot_load(theirs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    _thread.in_aot = getattr(_thread, "in_aot", 0) + 1
    _thread.taken_ns = None
    try:
        result = theirs(*args, **kwargs)
    finally:
        _thread.in_aot -= 1
    try:
        found = result[0] if isinstance(result, tuple) else result
        if found is None:
            log.note("missed", what="aot")
        elif _thread.taken_ns is None:
            log.add(saved_unknown=1)
        else:
            log.add(saved_aot_seconds=round(_thread.taken_ns / 1e9, 3))
        snapshot()
    except Exception:
        log.watched("aot", "AOTAutogradCache.try_load returned something unfamiliar")
    return result


def watch_bundles(module: Any) -> None:
    """Watch `torch._inductor.triton_bundler`."""
    try:
        patches.mentions(module, *_BUNDLES)
        patches.after(patches.member(module, "TritonBundler"), "read_and_emit", _emitted)
    except patches.Unfamiliar as error:
        log.watched("bundles", str(error))
    else:
        log.watched("bundles")


def _emitted(result: Any, _args: Any, _kwargs: Any) -> None:
    if result is not None and result.cached_kernel_names:
        log.add(bundled_kernels=len(result.cached_kernel_names))


def watch_benchmarks(module: Any) -> None:
    """Watch `torch._inductor.runtime.benchmarking`, whose counters the snapshot reads."""
    try:
        patches.mentions(module, "benchmarking.", "def benchmark_gpu")
    except patches.Unfamiliar as error:
        log.watched("benchmarks", str(error))
    else:
        log.watched("benchmarks")


def watch_tuning(module: Any) -> None:
    """Watch `torch._inductor.runtime.triton_heuristics`: kernels are tuned when they first run."""
    try:
        patches.after(patches.member(module, "CachingAutotuner"), "benchmark_all_configs", _tuned)
    except patches.Unfamiliar as error:
        log.watched("tuning", str(error))
    else:
        log.watched("tuning")


def _tuned(_timings: Any, args: tuple[Any, ...], _kwargs: Any) -> None:
    kernel = args[0]
    log.note(
        "tuned",
        what="inductor",
        file=str(kernel.filename),
        name=str((kernel.inductor_meta or {}).get("kernel_name", "")),
    )
    log.add(kernels_tuned=1)
    snapshot()


def watch_workers(module: Any) -> None:
    """Watch `torch._inductor.compile_worker.subproc_pool`."""
    try:
        pool = patches.member(module, "SubprocPool")
        patches.after(pool, "__init__", _pool)
        patches.before(pool, "submit", _job)
    except patches.Unfamiliar as error:
        log.watched("workers", str(error))
    if worker():
        log.note("worker")  # one that had nothing to do is told from one that nobody watches


def _pool(_none: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    count = kwargs["nprocs"] if "nprocs" in kwargs else args[1]
    log.note("pool", workers=count, pid=args[0].process.pid)
    log.add(workers=count)


def _job(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    work = kwargs["job_fn"] if "job_fn" in kwargs else args[1]
    if getattr(work, "__name__", "") != "_get_ready":  # which asks whether they are awake
        log.add(worker_jobs=1)
