"""Restore and publish with a deadline that holds whatever the store does, even where open(2) never returns.

    process with one thread     the transfer runs in a forked child, which can be killed; one that can't be killed
                                either, since its file server is gone, is left behind
    process with threads        it runs in a thread, which is left behind: forking would not be safe there

The child reads the identity and imports what a transfer needs by itself: what its parent has touched before would have
to be copied for it, page by page. These are what the verbs and `cachehome.restore`, `cachehome.publish` call.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import select
import signal
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from cachehome import threads
from cachehome.settings import Settings
from cachehome.sync import ahead, parallel
from cachehome.sync.record import Record

if TYPE_CHECKING:
    from cachehome.errors import ConfigError
    from cachehome.identity import Identity
    from cachehome.sync.denied import LeaveOut
    from cachehome.sync.stage import Target

_MARGIN = 0.5  # seconds; what has a deadline of its own tells more, and comes first
_GRACE = 1.0  # seconds for a child that was told to end: it removes what it has staged
_HEADER = struct.Struct("<cQ")  # of what a child says: its kind, and how many bytes follow
_STARTED, _ENDED, _FAILED = b"s", b"r", b"e"  # kinds: keys of the identity, a record, an exception
_Keys = tuple[str, str]


def restore(
    settings: Settings | None = None,
    identity: Identity | None = None,
    directories: Mapping[str, str] | None = None,
    *,
    number: int | None = None,
    leave_out: LeaveOut | None = None,
    then: Callable[[Record, Sequence[Target]], Record] | None = None,
) -> Record:
    """`cachehome.sync.restore.restore`, ended after `store_timeout_seconds`. *then*: what else to do in that time."""
    more = {"number": number, "leave_out": leave_out} | ({"then": then} if then else {})
    return _Guard("restore", settings, identity, directories, more).run()


def publish(
    settings: Settings | None = None,
    identity: Identity | None = None,
    directories: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None,
    *,
    adopt: bool = False,
) -> Record:
    """`cachehome.sync.publish.publish`, ended after `publish_budget_seconds`."""
    return _Guard("publish", settings, identity, directories, {"adopt": adopt}).run()


def serve(action: str, request: int, answer: int) -> None:
    """The life of a child that was forked early: import what a transfer needs, read what it is to be, do it."""
    _be_quiet()
    _transfer(action)
    for name in ("cachehome.identity", "hashlib", "zstandard"):
        with contextlib.suppress(ImportError):
            import_module(name)
    with open(request, "rb") as file:
        data = file.read()
    if data:
        told, more = marshal.loads(data)  # noqa: S302 - our own parent wrote it
        _Guard(action, Settings.from_json(told), None, None, more).work(answer)


def _transfer(action: str) -> Callable[..., Record]:
    transfer: Callable[..., Record] = getattr(import_module(f"cachehome.sync.{action}"), action)
    return transfer


class _Guard:
    """One guarded transfer. *more*: what else its function is called with. `seconds`: from when the identity is known,
    which is no store's business."""

    def __init__(
        self,
        action: str,
        settings: Settings | None,
        identity: Identity | None,
        directories: Mapping[str, str] | Sequence[Mapping[str, str]] | None,
        more: dict[str, Any],
    ) -> None:
        self.action = action
        self.settings = settings = settings or Settings.load()
        self.identity = identity
        self.directories = directories
        self.more = more
        own = settings.store_timeout_seconds if action == "restore" else settings.publish_budget_seconds
        self.seconds = own + _MARGIN

    def run(self) -> Record:
        """The record of the transfer, or one that says why there is none. Raises what it raises."""
        return self._forked() if threads.may_fork() else self._threaded()

    def _call(self, identity: Identity) -> Record:
        return _transfer(self.action)(self.settings, identity, self.directories, **self.more)

    def _late(self, keys: _Keys, died: str = "") -> Record:
        """The record of a transfer that gave none, for the reason that it *died* of; "" if it did not end in time."""
        store = self.settings.store[-1] if self.settings.store else "no store"
        late = f"{store} did not answer within {self.seconds - _MARGIN:g} s: check the mount and its server"
        reason = "transfer_died" if died else "store_timeout"
        return Record(self.action, "unavailable", reason, *keys, details={"message": died or late})

    def _threaded(self) -> Record:
        import threading

        identity = self._identify()
        found: list[Record] = []
        failed: list[BaseException] = []

        def work() -> None:
            try:
                found.append(self._call(identity))
            except BaseException as error:  # raised again in the thread that asked
                failed.append(error)

        thread = threading.Thread(target=work, name="cachehome", daemon=True)
        thread.start()
        thread.join(self.seconds)
        if failed:
            raise failed[0]
        return found[0] if found else self._late(_keys(identity))

    def _forked(self) -> Record:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none at all
                stream.flush()
        pid, answer = self._early_child() or self._child()
        death = _death(pid)
        keys: _Keys = ("", "")
        status = _RUNNING
        try:
            kind, data = _receive(answer, death, self._time_to_identify())
            if kind == _STARTED:
                keys = marshal.loads(data)  # noqa: S302 - our own child wrote it
                kind, data = _receive(answer, death, self.seconds)
            if kind:
                status = _reap(pid, _GRACE)
        except TimeoutError:
            if keys == ("", ""):
                raise self._unidentified() from None
            return self._late(keys)
        finally:
            for end in {answer, death} - {-1}:
                os.close(end)
            if status == _RUNNING:
                status = _end(pid)
        if kind == _FAILED:
            import pickle  # here, since most transfers give a record

            raise pickle.loads(data)  # noqa: S301
        if kind == _ENDED:
            return Record(**marshal.loads(data))  # noqa: S302
        return self._late(
            keys, f"the transfer was killed by signal {-status}" if status < 0 else "the transfer died"
        )

    def _time_to_identify(self) -> float | None:
        """Seconds that a file may take. To find out what a machine is takes as long as it takes."""
        from cachehome import named

        return named.SECONDS if self.settings.identity else None

    def _unidentified(self) -> ConfigError:
        from cachehome import named
        from cachehome.identity import unusable

        path = self.settings.identity
        return unusable(path, named.no_answer(path, named.SECONDS))

    def _early_child(self) -> tuple[int, int] | None:
        """(its pid, where it answers) of one that was begun for a plain transfer of the command line."""
        told = self.identity is not None or self.directories is not None
        if told or not all(map(_is_plain, self.more.values())):
            return None
        return ahead.tell(self.action, marshal.dumps((self.settings.to_json(), self.more)))

    def _child(self) -> tuple[int, int]:
        """The same of a new one."""
        answer, mine = ahead.pipe()
        pid = os.fork()
        if pid:
            os.close(mine)
            return pid, answer
        try:
            os.close(answer)
            _be_quiet()
            self.work(mine)
        finally:
            os._exit(0)

    def work(self, end: int) -> None:
        """What the forked child does; it answers through *end*."""

        def say(kind: bytes, data: bytes) -> None:
            file.write(_HEADER.pack(kind, len(data)) + data)
            file.flush()

        with open(end, "wb") as file:
            try:
                identity = self._identify(guarded=True)
                say(_STARTED, marshal.dumps(_keys(identity)))
                say(_ENDED, marshal.dumps(self._call(identity).to_json()))
            except Exception as error:
                say(_FAILED, parallel.pickled(error))

    def _identify(self, *, guarded: bool = False) -> Identity:
        if self.identity is not None:
            return self.identity
        from cachehome.identity import identity

        return identity(self.settings, guarded=guarded)


def _keys(identity: Identity) -> _Keys:
    return identity.build_key, identity.profile_key


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, bool | int)


def _be_quiet() -> None:
    """Whoever reads our parent's output must not wait for a child that was left behind."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
            signal.signal(number, _leave)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _leave(_number: int, _frame: object) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        # Not ignored: Python complains of one that is on its way already.
        signal.signal(number, lambda *_: None)
    raise SystemExit  # so that what was staged is removed on the way out


def _receive(answer: int, death: int, seconds: float | None) -> tuple[bytes, bytes]:
    """The next thing that the child says: kind, content; empty if it has ended. Raises `TimeoutError`."""
    until = None if seconds is None else time.monotonic() + seconds
    header = _read(answer, death, _HEADER.size, until)
    if len(header) < _HEADER.size:
        return b"", b""
    kind, length = _HEADER.unpack(header)
    data = _read(answer, death, length, until)
    return (kind, data) if len(data) == length else (b"", b"")


def _read(answer: int, death: int, length: int, until: float | None) -> bytes:
    """So many bytes, fewer if the child has ended: a worker of it may hold the other end of *answer* for a while."""
    poll = select.poll()
    for end in {answer, death} - {-1}:
        poll.register(end, select.POLLIN | select.POLLHUP)
    data = b""
    while len(data) < length:
        left = None if until is None else until - time.monotonic()
        ready = [] if left is not None and left <= 0 else [end for end, _ in poll.poll(left and left * 1000)]
        if not ready:
            raise TimeoutError("the child did not answer in time")
        block = os.read(answer, length - len(data)) if answer in ready else b""
        if not block:
            break
        data += block
    return data


def _death(pid: int) -> int:
    """A descriptor that can be read once the child has ended; -1 where there is none. To look from time to time would
    be a sign of life to whoever started us."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):  # another system, or an old kernel
        return -1


def _end(pid: int) -> int:
    """End a child that is late, and its workers. One that hangs in the kernel is not waited for."""
    with contextlib.suppress(ProcessLookupError):
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
        try:
            found, status = os.waitpid(pid, os.WNOHANG)
        except ChildProcessError:  # whoever started us has the system reap our children
            return 0
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
