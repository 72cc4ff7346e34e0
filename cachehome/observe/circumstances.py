"""Circumstances of a compilation: what a user can change and what the key need not hold.

    {"thread count": "16", "TORCHINDUCTOR_COMPILE_THREADS": "4", "TRITON_DEFAULT_FP_FUSION": "0"}

torch's number of threads, how many compile at once, and the variables that the table of the identity lets in, as the
identity shows them: no secret is among them. They are noted beside what was compiled (`graphs`, `kernels`) and travel
with it. What is found under others is noted in the log, each change once a process: `{"event": "changed", ...}`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from cachehome.observe import files
from cachehome.observe.activity import log, worker

Circumstances = dict[str, str]

THREADS = "thread count"
_AT_ONCE = "TORCHINDUCTOR_COMPILE_THREADS"
_COUNTED = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # the thread count tells what became of them

_environ: dict[str, str] = {}
_variables: dict[str, str] = {}  # of that environment
_told: set[str] = set()


def now() -> Circumstances | None:
    """Those of this process; None in a compile worker, whose variables and threads torch has set."""
    global _environ, _variables
    if worker():
        return None
    environ = dict(os.environ)
    if environ != _environ:
        _environ, _variables = environ, _shown(environ)
    found = dict(_variables)
    if environ.get(_AT_ONCE):
        found[_AT_ONCE] = files.shown(environ[_AT_ONCE])
    threads = getattr(sys.modules.get("torch"), "get_num_threads", None)
    if threads is not None:
        found[THREADS] = str(threads())
    return found


def _shown(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables, as the identity shows them; but no file is read here, in the middle of a job."""
    from cachehome.probes import environment

    asked = {}
    for name, text in environ.items():
        line = environment.row(name)
        if line is None:  # may be this pod's own name, which is cut out of the others
            asked[name] = text
        elif line.treatment == "in" and name not in _COUNTED:
            asked[name] = os.path.basename(text) if os.path.isabs(text) else text
    return {files.shown(name): files.shown(text) for name, text in environment.probe(asked)[0].items()}


def read(document: Any) -> Circumstances | None:
    """What a file says of them; None if nobody noted them. Raises AttributeError for what is no object."""
    return (
        None
        if document is None
        else {files.shown(str(name)): files.shown(str(text)) for name, text in document.items()}
    )


def changes(before: Circumstances, after: Circumstances) -> list[str]:
    """What differs, in words."""
    names = {*before, *after} - ({THREADS} if THREADS not in before or THREADS not in after else set())
    return [
        f"{name}: {before.get(name, 'unset')} became {after.get(name, 'unset')}"
        for name in sorted(names, key=lambda name: (name != THREADS, name))
        if before.get(name) != after.get(name)
    ]


def compare(*known: Circumstances | None) -> None:
    """Note in the log what has changed since something was made under the nearest of *known*."""
    here = None if log.silent else now()
    if here is None:
        return
    found = [changes(before, here) for before in known if before is not None]
    for text in min(found, key=len, default=[]):
        if text not in _told:
            _told.add(text)
            log.note("changed", text=text)
