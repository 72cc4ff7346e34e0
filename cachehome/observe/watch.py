"""The watcher: calls a function of ours once a module of torch or Triton has been imported.

The start-up hook imports this module in processes that use a restored directory, or that are to be counted: it
imports os and sys alone, and torch is never imported because of it. A finder at the head of `sys.meta_path`
looks at names only. For the few of `REPAIRS` and `COUNTERS` it lets Python's own path finder answer and hangs
`exec_module` of that one loader, which keeps its type and everything else, until the module has been run.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    Table = dict[str, tuple[tuple[str, str], ...]]

RUN = "CACHEHOME_RUN"  # which processes belong together; children inherit it

# module that was imported -> (module of ours, function that takes it), ...
REPAIRS: "Table" = {
    "torch._inductor.triton_bundler": (("cachehome.observe.relocation", "install"),),
    "torch._inductor.codecache": (("cachehome.observe.headers", "install"),),
    "torch._inductor.runtime.compile_tasks": (("cachehome.observe.toolchain", "install"),),
    "torch._inductor.runtime.triton_heuristics": (
        ("cachehome.observe.choices", "install"),
        ("cachehome.observe.ir", "install_autotuners"),
    ),
    "triton.compiler.compiler": (("cachehome.observe.ir", "install"),),
}
COUNTERS: "Table" = {
    "torch._dynamo.callback": (("cachehome.observe.inductor", "watch_compilations"),),
    "torch._functorch._aot_autograd.autograd_cache": (("cachehome.observe.inductor", "watch_aot"),),
    "torch._inductor.codecache": (("cachehome.observe.inductor", "watch_fx"),),
    "torch._inductor.triton_bundler": (("cachehome.observe.inductor", "watch_bundles"),),
    "torch._inductor.runtime.benchmarking": (("cachehome.observe.inductor", "watch_benchmarks"),),
    "torch._inductor.runtime.triton_heuristics": (("cachehome.observe.inductor", "watch_tuning"),),
    "torch._inductor.compile_worker.subproc_pool": (("cachehome.observe.inductor", "watch_workers"),),
    "triton.runtime.cache": (("cachehome.observe.kernels", "watch_cache"),),
}

counting = False
_watched: dict[str, list[tuple[str, str]]] = {}


def start(count: bool = False) -> None:
    """Watch from now on; with *count*, not for repairs alone. What is imported already is handed over at once."""
    global counting
    tables = [] if _watched else [REPAIRS]
    if count and not counting:
        counting = True
        tables.append(COUNTERS)
        os.environ.setdefault(RUN, run_name(os.environ))
    for table in tables:
        for name, targets in table.items():
            _watched.setdefault(name, []).extend(targets)
            module = sys.modules.get(name)
            if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
                _hand_over(module, list(targets))
    if _watched and not any(finder is Finder for finder in sys.meta_path):
        sys.meta_path.insert(0, Finder)


def run_name(environ: "Mapping[str, str]") -> str:
    """A name for this process and its descendants; the same in all tasks of a job step."""
    if environ.get("SLURM_JOB_ID"):
        return f"slurm-{environ['SLURM_JOB_ID']}.{environ.get('SLURM_STEP_ID', '0')}"
    import time

    return f"{time.time_ns() // 1_000_000:x}-{os.getpid()}"


class Finder:
    """Finds nothing itself, and notices what is found."""

    @classmethod
    def find_spec(cls, name: str, path: "Any" = None, target: "Any" = None) -> "Any":
        if name not in _watched:
            return None
        try:
            from importlib.machinery import PathFinder

            spec = PathFinder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                _hang(spec.loader, _watched[name])
        except Exception:
            return None  # an editable install, a frozen program: another finder's, and it stays unwatched
        return spec


def _hang(loader: "Any", targets: "list[tuple[str, str]]") -> None:
    run = loader.exec_module

    def exec_module(module: "Any") -> None:
        del loader.exec_module  # back to the method of its class before anybody looks
        run(module)
        _hand_over(module, targets)

    loader.exec_module = exec_module


def _hand_over(module: "Any", targets: "list[tuple[str, str]]") -> None:
    for name, function in targets:
        try:
            getattr(__import__(name, fromlist=[function]), function)(module)
        except Exception as error:
            _failed(name.rpartition(".")[2] if function.startswith("install") else function, error)


def _failed(function: str, error: Exception) -> None:
    """What could not be watched is unknown."""
    from cachehome import _boot

    _boot.explain()
    try:
        from cachehome.observe.activity import log

        group = "triton" if function == "watch_cache" else function.removeprefix("watch_")
        log.watched(group, f"{type(error).__name__}: {error}")
    except Exception:
        _boot.explain()
