"""The repair of relocated autotuners: their file names are made to lie in the live directory in effect.

An entry of the FX graph cache holds pickled autotuners, each with the absolute name of the source file that it
was made from. Beside that file torch looks for the chosen configuration and writes it, so an entry that was made
in another directory has its benchmarks run again, and their result written outside the live directory. Here the
name gets the directory in effect when torch unpickles them, before anything has looked at it.

Only names that torch itself has made are touched, `<two letters>/<key>.py` with the letters taken from the key.
Whatever looks different stays as it is, and is counted as not repaired.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from cachehome.observe import patches
from cachehome.observe.activity import log


def install(module: Any) -> None:
    """Repair what `torch._inductor.triton_bundler` unpickles."""
    try:
        bundler = patches.member(module, "TritonBundler")
        patches.before(bundler, "load_autotuners", _unpickled)
    except patches.Unfamiliar as error:
        log.watched("relocation", str(error))
    else:
        log.watched("relocation")


def _unpickled(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    entries = args[1] if len(args) > 1 else kwargs.get("static_autotuners")
    live = os.environ.get("TORCHINDUCTOR_CACHE_DIR", "")
    if entries and os.path.isabs(live):
        repaired, strange = repair(entries, live)
        if repaired:
            log.add(autotuners_repaired=repaired)
        if strange:
            log.note("unrepaired", what="inductor", names=strange[:5])
            log.add(autotuners_unrepaired=len(strange))


def repair(entries: Iterable[Any], live: str) -> tuple[int, list[str]]:
    """(how many autotuners of *entries* were moved to the directory *live*, file names that were left alone)."""
    repaired = 0
    strange: list[str] = []
    for entry in entries:
        kernel = getattr(entry, "kernel", None)
        name = getattr(kernel, "filename", None)
        if name is None or _is_below(name, live):
            continue
        here = _moved(name, live, ".py")
        # What saves a chosen configuration is a bound method of an object with a file name of its own.
        cache = getattr(getattr(kernel, "save_cache_hook", None), "__self__", None)
        local = getattr(cache, "local_cache", None)
        beside = ""
        if local is not None:
            known = isinstance(local, tuple) and len(local) == 2
            beside = _moved(local[1], live, ".best_config", os.path.dirname(here)) if known else ""
        if not here or (local is not None and not beside):
            strange.append(str(name))
            continue
        if cache is not None and local is not None:
            cache.local_cache = (local[0], beside)
        kernel.filename = here  # type: ignore[union-attr]
        repaired += 1
    return repaired, strange


def _moved(name: object, live: str, suffix: str, directory: str = "") -> str:
    """The file *name* of torch's below *live*, "" if it is none of those."""
    if not isinstance(name, str) or not name.endswith(suffix) or not os.path.isabs(name):
        return ""
    parent, base = os.path.basename(os.path.dirname(name)), os.path.basename(name)
    if directory:
        return os.path.join(directory, base) if parent == os.path.basename(directory) else ""
    if parent != base[1:3] or not base[: -len(suffix)].isalnum():
        return ""
    return os.path.join(live, parent, base)


def _is_below(name: object, live: str) -> bool:
    return isinstance(name, str) and name.startswith(live.rstrip(os.sep) + os.sep)
