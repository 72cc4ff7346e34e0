"""Triton's kernels, counted: groups found, missed and written, and how long a missed one took to compile.

    triton_hits     groups that were found, whole
    triton_misses   groups that were not, so that the kernel was compiled
    triton_puts     groups that were written
    triton_seconds  from a miss to the group's writing

On a warm GPU start these stay near 0: Inductor loads its kernels by itself, and `autotuners_loaded` counts them.

Triton notes nowhere how long a kernel took. Here it is kept in `kernel_seconds.json` of Triton's live directory,
{key: [seconds, circumstances]}, which is published and restored with the kernels, so that a start elsewhere knows what
it was spared, and what has changed since. A compile worker, whose circumstances are torch's, writes {key: seconds}.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from cachehome.observe import circumstances, compilers, files, patches
from cachehome.observe.activity import log, worker
from cachehome.observe.circumstances import Circumstances

TIMES = "kernel_seconds.json"
LARGEST = 4 << 20  # bytes beyond which it does not grow; the union of two, as a store has it, is read
_COMPARED = 50  # circumstances that a miss is compared with
_EVERY = 2.0  # seconds between two times that they are written, since a process may be killed
_SHARE = 20.0  # times as long as writing took, nothing is written: ten thousand kernels take 0.1 s
_PATIENCE = 0.5  # seconds


class Kernel(NamedTuple):
    """What is known of one kernel: how long it took to compile, and the circumstances, None if nobody noted them."""

    seconds: float
    made: Circumstances | None


_missed = threading.local()  # key -> when it was missed, by this thread
_lock = threading.Lock()
_known: dict[str, dict[str, Kernel]] = {}  # live directory -> what its file says
_fresh: dict[str, dict[str, Kernel]] = {}  # the same of what was measured here and is not written yet
_made: dict[str, list[Circumstances]] = {}  # of the known ones, each once
_written_at = _cost = 0.0
_due: threading.Timer | None = None  # writes soon
_ends_in = 0  # the process that writes at its end


def _after_fork() -> None:
    global _due, _lock
    _lock = threading.Lock()  # a thread that is not here may have held the old one
    _due = None
    _fresh.clear()  # the parent writes it


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


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
        kernel = known(_live(args[0])).get(key)
        log.note("used", what="triton", key=key, **({} if kernel is None else {"seconds": kernel.seconds}))
        log.add(triton_hits=1)
        circumstances.compare(kernel and kernel.made)
        return
    times: dict[str, float] = vars(_missed).setdefault("times", {})
    times[key] = time.perf_counter()
    log.note("missed", what="triton", key=key, name=name.removesuffix(".json"))
    log.add(triton_misses=1)
    known(live := _live(args[0]))
    circumstances.compare(*_made[live])


def _written(_path: Any, args: tuple[Any, ...], _kwargs: Any) -> None:
    key = str(args[0].key)
    began = vars(_missed).get("times", {}).pop(key, None)
    if began is None:
        log.add(triton_puts=1)
        return
    seconds = round(time.perf_counter() - began, 3)
    log.note("made", what="triton", key=key, seconds=seconds)
    log.add(triton_puts=1, triton_seconds=seconds)
    _remember(_live(args[0]), key, seconds)


def _live(manager: Any) -> str:
    return os.path.dirname(manager.cache_dir) if manager.cache_dir else ""


def known(live: str) -> dict[str, Kernel]:
    """The kernels of a live directory, as far as anybody measured them."""
    if live not in _known:
        found = {}
        with contextlib.suppress(OSError):
            found = _read(live)
        _known[live] = found
        made = (frozenset(kernel.made.items()) for kernel in found.values() if kernel.made is not None)
        _made[live] = [dict(items) for items, _ in Counter(made).most_common(_COMPARED)]
    return _known[live]


def _read(live: str) -> dict[str, Kernel]:
    """What the file says. Raises `files.TooLarge`."""
    try:
        document = files.parse(files.read(os.path.join(live, TIMES), 2 * LARGEST))
        return {str(key): kernel for key, told in document.items() if (kernel := _kernel(told))}
    except files.TooLarge:
        raise
    except (OSError, ValueError, AttributeError):
        return {}


def _kernel(told: Any) -> Kernel | None:
    try:
        seconds, made = told if isinstance(told, list) else (told, None)
        found = files.number(seconds)
        return None if found is None else Kernel(float(found), circumstances.read(made))
    except (ValueError, AttributeError, RecursionError):
        return None


@contextlib.contextmanager
def _alone(live: str) -> Iterator[None]:
    """Compile workers write the same file at the same time: one after the other. Where that can't be had soon, and
    where there are no locks, one may lose what another has measured."""
    try:
        import fcntl
    except ImportError:  # not a POSIX system
        yield
        return
    descriptor = os.open(live, os.O_RDONLY | os.O_CLOEXEC)
    try:
        until = time.monotonic() + _PATIENCE
        while time.monotonic() < until:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.002)
            except OSError:
                break
        yield
    finally:
        with contextlib.suppress(OSError):
            # A child that was forked meanwhile has the descriptor, too.
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def _remember(live: str, key: str, seconds: float) -> None:
    global _due, _ends_in
    with _lock:
        if _ends_in != os.getpid():
            _ends_in = os.getpid()
            _at_end()
        _fresh.setdefault(live, {})[key] = Kernel(seconds, circumstances.now())
        pause = max(0.0 if worker() else _EVERY, _SHARE * _cost)  # a worker is killed at any time
        wait = _written_at + pause - time.monotonic()
        if wait > 0 and _due is None:
            _due = threading.Timer(wait, _write)
            _due.daemon = True
            try:
                _due.start()
            except RuntimeError:  # the interpreter ends
                wait = 0.0
    if wait <= 0:
        _write()


def _at_end() -> None:
    if worker():  # which ends without atexit, if it is not killed
        from multiprocessing.util import Finalize

        Finalize(None, _write, exitpriority=0)
    else:
        atexit.register(_write)


def _write() -> None:
    """Add what was measured to the files, as long as they don't grow too large."""
    global _cost, _due, _written_at
    with _lock:
        _due = None
        began = time.monotonic()
        for live, measured in list(_fresh.items()):
            with contextlib.suppress(OSError, RuntimeError), _alone(live):
                kernels = _read(live) | measured
                told = {
                    key: kernel.seconds if kernel.made is None else kernel for key, kernel in kernels.items()
                }
                text = files.dumped(told)
                if len(text) <= LARGEST:
                    files.replace(os.path.join(live, TIMES), text)
                known(live).update(measured)
                del _fresh[live]
        _written_at = time.monotonic()
        _cost = _written_at - began
