"""Restore and publish with a deadline that holds whatever the store does, even where open(2) never returns.

    process with one thread     the transfer runs in a forked child, which can be killed; one that can't be killed
                                either, since its file server is gone, is left behind
    process with threads        it runs in a thread, which is left behind: forking would not be safe there

These are what the verbs and `cachehome.restore`, `cachehome.publish` call.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

from cachehome.sync import parallel
from cachehome.sync.record import Record, asked

if TYPE_CHECKING:
    from cachehome.identity import Identity
    from cachehome.settings import Settings
    from cachehome.sync.denied import LeaveOut
    from cachehome.sync.stage import Target

_MARGIN = 0.5  # seconds; what has a deadline of its own tells more, and comes first
_GRACE = 1.0  # seconds for a child that was told to end: it removes what it has staged
_ENDED, _FAILED = b"r", b"e"  # what follows in the answer of a child: a record, or an exception


def restore(
    settings: Settings | None = None,
    identity: Identity | None = None,
    directories: Mapping[str, str] | None = None,
    *,
    number: int | None = None,
    leave_out: LeaveOut | None = None,
    then: Callable[[Record, Sequence[Target]], Record] = lambda record, _: record,
) -> Record:
    """`cachehome.sync.restore.restore`, ended after `store_timeout_seconds`. *then*: what else to do in that time."""
    from cachehome.sync import restore as module

    settings, identity = asked(settings, identity)
    return _within(
        settings.store_timeout_seconds,
        lambda: module.restore(
            settings, identity, directories, number=number, leave_out=leave_out, then=then
        ),
        _late("restore", settings, identity, settings.store_timeout_seconds),
    )


def publish(
    settings: Settings | None = None,
    identity: Identity | None = None,
    directories: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None,
    *,
    adopt: bool = False,
) -> Record:
    """`cachehome.sync.publish.publish`, ended after `publish_budget_seconds`."""
    from cachehome.sync import publish as module

    settings, identity = asked(settings, identity)
    return _within(
        settings.publish_budget_seconds,
        lambda: module.publish(settings, identity, directories, adopt=adopt),
        _late("publish", settings, identity, settings.publish_budget_seconds),
    )


def _late(action: str, settings: Settings, identity: Identity, seconds: float) -> Callable[[str], Record]:
    """The record of a transfer that gave none, for the reason that it died of; "" if it did not end in time."""

    def record(died: str) -> Record:
        store = settings.store[-1] if settings.store else "no store"
        message = died or f"{store} did not answer within {seconds:g} s: check the mount and its server"
        reason = "transfer_died" if died else "store_timeout"
        build, profile = identity.build_key, identity.profile_key
        return Record(action, "unavailable", reason, build, profile, details={"message": message})

    return record


def _within(seconds: float, transfer: Callable[[], Record], late: Callable[[str], Record]) -> Record:
    deadline = time.monotonic() + seconds + _MARGIN
    return (_forked if parallel.may_fork() else _threaded)(deadline, transfer, late)


def _threaded(deadline: float, transfer: Callable[[], Record], late: Callable[[str], Record]) -> Record:
    found: list[Record] = []
    failed: list[BaseException] = []

    def work() -> None:
        try:
            found.append(transfer())
        except BaseException as error:  # raised again in the thread that asked
            failed.append(error)

    thread = threading.Thread(target=work, name="cachehome", daemon=True)
    thread.start()
    thread.join(max(0.0, deadline - time.monotonic()))
    if failed:
        raise failed[0]
    return found[0] if found else late("")


def _forked(deadline: float, transfer: Callable[[], Record], late: Callable[[str], Record]) -> Record:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none at all
            stream.flush()
    answer, mine = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(answer)
        _child(transfer, mine)
    os.close(mine)
    ended = False
    try:
        data = _receive(answer, deadline)
        ended = data is not None
    finally:
        os.close(answer)
        status = _reap(pid, _GRACE) if ended else _end(pid)
    if data is None:
        return late("")
    if not data:
        return late(f"the transfer was killed by signal {-status}" if status < 0 else "the transfer died")
    kind, data = data[:1], data[1:]
    if kind == _FAILED:
        import pickle  # here, since most transfers give a record

        raise pickle.loads(data)  # noqa: S301 - our own child wrote it
    return Record(**marshal.loads(data))  # noqa: S302


def _child(transfer: Callable[[], Record], mine: int) -> NoReturn:
    """The life of the forked child. Nothing of the parent's may run twice, so it never returns."""
    try:
        # Whoever reads our parent's output must not wait for a child that was left behind.
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        signal.signal(signal.SIGTERM, _leave)
        try:
            data = _ENDED + marshal.dumps(transfer().to_json())
        except Exception as error:
            data = _FAILED + parallel.pickled(error)
        with open(mine, "wb") as file:
            file.write(data)
    finally:
        os._exit(0)


def _leave(_number: int, _frame: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit  # so that what was staged is removed on the way out


def _receive(answer: int, deadline: float) -> bytes | None:
    """All that the child writes; None if that was not all by the *deadline*."""
    poll = select.poll()
    poll.register(answer, select.POLLIN | select.POLLHUP)
    data = bytearray()
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not poll.poll(left * 1000):
            return None
        block = os.read(answer, 1 << 20)
        if not block:
            return bytes(data)
        data += block


def _end(pid: int) -> int:
    """End a child that is late, and its workers. One that hangs in the kernel is not waited for."""
    os.kill(pid, signal.SIGTERM)
    workers = _workers(pid)
    status = _reap(pid, _GRACE)
    for process in [*workers, *([pid] if status == _RUNNING else [])]:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGKILL)
    return _reap(pid, _GRACE / 4) if status == _RUNNING else status


_RUNNING = 1 << 16


def _reap(pid: int, seconds: float) -> int:
    """The exit status of a child, minus the signal that ended it, `_RUNNING` if it does not end in time."""
    until = time.monotonic() + seconds
    wait = 0.0005
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() >= until:
            return _RUNNING
        time.sleep(wait)
        wait = min(2 * wait, 0.05)


def _workers(pid: int) -> list[int]:
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as file:
            return [int(child) for child in file.read().split()]
    except (OSError, ValueError):
        return []
