"""What the processes of one node agree on, in files below `ROOT/.node/`, on local disk.

    <key>.restore.lock       who restores these directories now; the others wait for its result
    <key>.restore.json       that result, good for whoever began before it was there
    <key>.publish.lock       who publishes these directories now; the others do so after it, and find less to
                             do
    publish-<n>.lock         one for each of `publish_tasks_per_node`

`<key>` names an identity and a set of live directories. Locks are an optimisation and belong to the kernel:
who dies lets go, and where there are none everybody does its own work, which is right too.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import time
from typing import TYPE_CHECKING, Any

from cachehome.lifecycle.transfer import Transfer, failure, record_from

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cachehome.lifecycle.transfer import Action
    from cachehome.sync.record import Record

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]


class Lock:
    """A lock of the kernel on a file that is never removed: a removed one would have two holders."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = -1

    def take(self) -> bool:
        """Whether it is ours now. Where there are no locks it always is."""
        if self._file >= 0 or fcntl is None:
            return True
        try:
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            return True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        except OSError:  # ENOLCK, EOPNOTSUPP, ...
            os.close(file)
            return True
        self._file = file
        return True

    def release(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class Step:
    """A transfer that takes its turn on this node. Polled like one, and ends in a record like one."""

    def __init__(
        self,
        action: Action,
        environ: Mapping[str, str],
        directories: Iterable[str],
        *,
        state: str | None,
        seconds: float,
        identity: str = "",
        key: str = "",
        since: float | None = None,
        at_once: int = 0,
        modest: bool = True,
        arguments: Sequence[str] = (),
    ) -> None:
        """Begin.

        *state* is the directory of this page, None if there is none. *seconds* bounds the wait for the turn
        and the work together. The result of another process is taken over if it came after *since* (seconds
        since the epoch); None: never. *at_once* bounds how many such steps of this node work at the same
        time.
        """
        self.action = action
        self.record: Record | None = None
        self._transfer: Transfer | None = None
        self._begun = time.monotonic()
        self._seconds = seconds
        self._since = since
        self._directories = sorted(set(directories))
        self._start: dict[str, Any] = {
            "environ": environ, "identity": identity, "modest": modest, "arguments": arguments
        }  # fmt: skip
        self._result = ""
        self._own: Lock | None = None
        self._shares: list[Lock] = []
        self._share: Lock | None = None
        self._wait = 0.0
        if state is not None:
            name = hashlib.sha256("\0".join((key, *arguments, *self._directories)).encode()).hexdigest()[:16]
            base = os.path.join(state, f"{name}.{action}")
            self._result = base + ".json"
            self._own = Lock(base + ".lock")
            self._shares = [Lock(os.path.join(state, f"{action}-{n}.lock")) for n in range(at_once)]

    def poll(self) -> Record | None:
        """Look once; the record if it has ended."""
        if self.record is not None:
            return self.record
        if self._transfer is None and not self._take_turn():
            return self.record
        if self._transfer is None:
            self._wait = time.monotonic() - self._begun
            left = max(1.0, self._seconds - self._wait)
            self._transfer = Transfer(self.action, seconds=left, **self._start)
        record = self._transfer.poll()
        if record is not None:
            self._end(dataclasses.replace(record, seconds={**record.seconds, "wait": round(self._wait, 3)}))
        return self.record

    def stop(self, reason: str = "stopped") -> None:
        """Begin to end it."""
        if self._transfer is not None:
            self._transfer.stop(reason)
        elif self.record is None:
            self._end(failure(self.action, reason), tell=False)

    def wait(self) -> Record:
        """Block until it has ended, in bounded time."""
        while (record := self.poll()) is None:
            if self._transfer is not None:
                record = self._transfer.wait()
            else:
                time.sleep(0.05)
        return record

    @property
    def pid(self) -> int | None:
        return self._transfer.pid if self._transfer else None

    def _take_turn(self) -> bool:
        late = time.monotonic() - self._begun >= self._seconds
        if self._own is not None and not self._own.take():
            if late:
                self._end(
                    failure(self.action, "time_limit", waited_for="another process of this node"), tell=False
                )
            return False
        shared = self._taken_over()
        if shared is not None:
            self._end(shared, tell=False)
            return False
        if self._shares and self._share is None:
            self._share = next((lock for lock in self._shares if lock.take()), None)
            if self._share is None:
                if late:
                    self._end(
                        failure(self.action, "time_limit", waited_for="a free place on this node"), tell=False
                    )
                return False
        return True

    def _taken_over(self) -> Record | None:
        """Another process's result, if it is recent enough and its directories are still the same ones."""
        if not self._result or self._since is None:
            return None
        try:
            with open(self._result, encoding="utf-8") as file:
                told = json.load(file)
            if self._since <= told["at"] <= time.time() + 1 and told["directories"] == _identities(
                self._directories
            ):
                record = record_from(told["record"])
                return dataclasses.replace(record, details={**record.details, "by": told["by"]})
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return None

    def _end(self, record: Record, tell: bool = True) -> None:
        self.record = record
        if tell and self._result and self._since is not None and record.reason != "stopped":
            told = {"at": time.time(), "by": os.getpid(), "directories": _identities(self._directories)}
            with contextlib.suppress(OSError, TypeError):
                write_json(self._result, {**told, "record": dataclasses.asdict(record)})
        for lock in (self._own, self._share):
            if lock is not None:
                lock.release()


def write_json(path: str, value: object) -> None:
    """Replace the file at *path* as a whole."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(value, file, indent=2)
            file.write("\n")
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _identities(directories: Iterable[str]) -> dict[str, list[int]]:
    found = {}
    for path in directories:
        with contextlib.suppress(OSError):
            status = os.stat(path)
            found[path] = [status.st_dev, status.st_ino]
    return found
