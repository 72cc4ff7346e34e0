"""Triton's kernels, counted: groups found, missed and written, and how long a missed one took to compile.

    triton_hits     groups that were found, whole
    triton_misses   groups that were not, so that the kernel was compiled
    triton_puts     groups that were written
    triton_seconds  from a miss to the group's writing

On a warm GPU start these stay near 0: Inductor loads its kernels by itself, and `autotuners_loaded` counts them.
"""

from __future__ import annotations

import threading
import time
from typing import Any

from cachehome.observe import compilers, patches
from cachehome.observe.activity import log

_missed = threading.local()  # key -> when it was missed, by this thread


def watch_cache(module: Any) -> None:
    """Watch `triton.runtime.cache`, and the compilers that Triton starts."""
    compilers.watch()
    try:
        manager = patches.member(module, "FileCacheManager")
        patches.mentions(module, "__grp__", "child_paths")
        patches.after(manager, "get_group", _looked_up)
        patches.after(manager, "put_group", _written)
        patches.after(module, "get_cache_manager", _managed)
    except patches.Unfamiliar as error:
        log.watched("triton", str(error))
    else:
        log.watched("triton")


def _managed(found: Any, _args: Any, _kwargs: Any) -> None:
    if not hasattr(type(found).get_group, "__wrapped__"):
        log.watched("triton", f"TRITON_CACHE_MANAGER is {type(found).__module__}.{type(found).__qualname__}")


def _looked_up(found: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    name = kwargs["filename"] if "filename" in kwargs else args[1]
    key = str(args[0].key)
    # Triton 3.6 and 3.7 answer with an empty or a partial group when children are gone.
    if found and name in found:
        log.note("used", what="triton", key=key)
        log.add(triton_hits=1)
        return
    times: dict[str, float] = vars(_missed).setdefault("times", {})
    times[key] = time.perf_counter()
    log.note("missed", what="triton", key=key, name=name.removesuffix(".json"))
    log.add(triton_misses=1)


def _written(_path: Any, args: tuple[Any, ...], _kwargs: Any) -> None:
    key = str(args[0].key)
    began = vars(_missed).get("times", {}).pop(key, None)
    if began is None:
        log.add(triton_puts=1)
        return
    seconds = round(time.perf_counter() - began, 3)
    log.note("made", what="triton", key=key, seconds=seconds)
    log.add(triton_puts=1, triton_seconds=seconds)
