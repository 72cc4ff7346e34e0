"""What the processes of one node agree on, in files below `ROOT/.node/`, on local disk.

    <key>.restore.lock     who restores now; the others wait for its result
    <key>.restore.json     that result, good for whoever began before it was there
    <key>.asked/<name>     directories that who waits wants filled, too, locked as long as it waits: who restores
                           clones them in the same process (`slots`), and tells of them in its result
    <key>.publish.lock     who publishes now; the others wait, or leave it to that one
    <key>.publish.json     that result, good for whoever asked before that one began
    publish-<n>.lock       one for each of `publish_tasks_per_node`

`<key>` names an identity, and for publishing the live directories too: one worker fetches, and those that come too
late to ask clone from it themselves. Locks are an optimisation and belong to the kernel: who dies lets
go, and where there are none everybody does its own work, which is right too.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from typing import TYPE_CHECKING, Any

from cachehome.lifecycle.transfer import Transfer, failure, record_from

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

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
        directories: Mapping[str, str],
        *,
        state: str | None,
        seconds: float,
        identity: str = "",
        key: str = "",
        since: float | None = None,
        at_once: int = 0,
        patient: bool = True,
        modest: bool = True,
        arguments: Sequence[str] = (),
        others: Sequence[Mapping[str, str]] = (),
    ) -> None:
        """Begin.

        *directories* map families to paths; *others* are those of workers to be filled as well. *state* is the
        directory of this page, None if there is none. *seconds* bounds the wait for the turn and the work together.
        Another process's result is taken over if it is news to somebody who asked at *since* (seconds since the
        epoch); None: never. *at_once* bounds how many such steps of this node work at the same time. If not *patient*,
        it ends when another process does the same already.
        """
        self.action: Action = action
        self.record: Record | None = None
        self._transfer: Transfer | None = None
        self._asked = time.monotonic()
        self._began = 0.0
        self._seconds = seconds
        self._since = since
        self._patient = patient
        self._directories = dict(directories)
        self._options: dict[str, Any] = {"environ": environ, "identity": identity, "modest": modest}
        self._arguments = list(arguments)
        self._wanted = [dict(other) for other in others]
        self.others: list[Record] = []
        """How the others were filled; none where they were not."""
        self._asked_for: Request | None = None
        self._asked_in = ""
        self._result = ""
        self._own: Lock | None = None
        self._shares: list[Lock] = []
        self._share: Lock | None = None
        if state is not None:
            paths = sorted(set(directories.values())) if action == "publish" else arguments
            name = hashlib.sha256("\0".join((key, *paths)).encode()).hexdigest()[:16]
            self._result = os.path.join(state, f"{name}.{action}.json")
            self._own = Lock(os.path.join(state, f"{name}.{action}.lock"))
            if action == "restore" and not arguments:  # what is left out must be looked for in each directory
                self._asked_in = os.path.join(state, f"{name}.asked")
            self._shares = [Lock(os.path.join(state, f"{action}-{n}.lock")) for n in range(at_once)]

    @property
    def pid(self) -> int | None:
        return self._transfer.pid if self._transfer else None

    def poll(self) -> Record | None:
        """Look once; the record if it has ended."""
        if self._transfer is None and self.record is None:
            self._take_turn()
        if self._transfer is not None and self.record is None:
            record = self._transfer.poll()
            if record is not None:
                wait = round(self._began - self._asked, 3)
                details = dict(record.details)
                self.others = [record_from(other) for other in details.pop("others", ())]
                answers = details.pop("asked", {})
                seconds = {"wait": wait, **record.seconds}
                self._end(record._replace(seconds=seconds, details=details), tell=True, answers=answers)
        return self.record

    def stop(self, reason: str = "stopped") -> None:
        """Begin to end it."""
        if self._transfer is not None:
            self._transfer.stop(reason)
        elif self.record is None:
            self._end(failure(self.action, reason))

    def wait(self) -> Record:
        """Block until it has ended, in bounded time."""
        while (record := self.poll()) is None:
            if self._transfer is not None:
                self._transfer.wait()
            else:
                time.sleep(0.05)
        return record

    def _take_turn(self) -> None:
        """Start the transfer, or end without one, or leave things as they are until the next look."""
        late = time.monotonic() - self._asked >= self._seconds
        if self._asked_for is not None and (answer := self._answer(self._asked_for)):
            self._end(answer)
            return
        if self._own is not None and not self._own.take():
            if self._asked_in and self._asked_for is None:
                self._asked_for = Request(self._asked_in, self._directories)
            if late:
                self._end(failure(self.action, "time_limit", waited_for="another process of this node"))
            elif not self._patient:
                self._end(failure(self.action, "another_worker", "disabled"))
            return
        told = self._news()
        if told is not None:
            if self.action == "publish" or told["directories"] == _identities(self._directories):
                record = record_from(told["record"])
                self._end(record._replace(details={**record.details, "by": told["by"]}))
                return
            if told["record"]["outcome"] == "hit" and not self._arguments:
                assert self._own is not None
                self._own.release()  # others clone at the same time
                self._since = None
                self._go("fill", ["--from", json.dumps(told["paths"]), "--to", json.dumps(self._wanted)])
                return
        if self._shares and not any(self._try(lock) for lock in self._shares):
            if late:
                self._end(failure(self.action, "time_limit", waited_for="a free place on this node"))
            return
        if self._asked_in:
            self._go("fill", ["--to", json.dumps(self._wanted), "--asked", self._asked_in])
        else:
            self._go(self.action, self._arguments)

    def _answer(self, request: Request) -> Record | None:
        """How another process has filled what was asked for."""
        told = self._news()
        found = told["asked"].get(request.name) if told else None
        if told is None or found is None:
            return None
        record = record_from(found)
        wait = round(time.monotonic() - self._asked, 3)
        return record._replace(seconds={"wait": wait}, details={**record.details, "by": told["by"]})

    def _try(self, lock: Lock) -> bool:
        taken = lock.take()
        self._share = lock if taken else None
        return taken

    def _go(self, verb: str, arguments: list[str]) -> None:
        self._began = time.monotonic()
        left = max(1.0, self._seconds - (self._began - self._asked))
        self._transfer = Transfer(self.action, verb=verb, seconds=left, arguments=arguments, **self._options)

    def _news(self) -> dict[str, Any] | None:
        """What another process tells of its result, if that is recent enough and its directories are the same ones."""
        if not self._result or self._since is None:
            return None
        try:
            with open(self._result, encoding="utf-8") as file:
                told = json.load(file)
            # A restore counts from its end on: what it brought is there. A publication counts from its
            # beginning: what was there then is published.
            when = told["ended" if self.action == "restore" else "began"]
            if self._since <= when <= time.time() + 1 and told["directories"] == _identities(told["paths"]):
                return dict(told)
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return None

    def _end(self, record: Record, tell: bool = False, answers: Mapping[str, Any] | None = None) -> None:
        self.record = record
        if self._asked_for is not None:
            self._asked_for.withdraw()
        if tell and self._result and self._since is not None and record.reason != "stopped":
            told = {
                "by": os.getpid(),
                "began": time.time() - (time.monotonic() - self._began),
                "ended": time.time(),
                "paths": self._directories,
                "directories": _identities(self._directories),
                "record": record.to_json(),
                "asked": dict(answers or {}),
            }
            with contextlib.suppress(OSError, TypeError):
                write_json(self._result, told)
        for lock in (self._own, self._share):
            if lock is not None:
                lock.release()


class Request:
    """What a waiting process asks the one that restores to fill, too. The lock on it says that it still waits."""

    def __init__(self, directory: str, wanted: Mapping[str, str]) -> None:
        self.name = os.urandom(16).hex()
        self._path = os.path.join(directory, self.name)
        self._lock = Lock(self._path)
        with contextlib.suppress(OSError):
            write_json(self._path, dict(wanted))
        self._lock.take()

    def withdraw(self) -> None:
        """It is answered, or not waited for any more."""
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        self._lock.release()


def requests(directory: str, answered: Collection[str]) -> dict[str, dict[str, str]]:
    """What is asked for in *directory* by those who still wait, but for what is *answered*: name -> directories."""
    found: dict[str, dict[str, str]] = {}
    with contextlib.suppress(OSError):
        for name in sorted(set(os.listdir(directory)) - set(answered)) if directory else ():
            path = os.path.join(directory, name)
            lock = Lock(path)
            with contextlib.suppress(OSError, ValueError):
                if lock.take():
                    os.unlink(path)  # nobody waits for it
                else:
                    with open(path, encoding="utf-8") as file:
                        found[name] = dict(json.load(file))
            lock.release()
    return found


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


def _identities(directories: Mapping[str, str]) -> dict[str, list[int]]:
    """Device and inode of each path: of one that was wiped meanwhile, nothing told is true."""
    found = {}
    for path in directories.values():
        with contextlib.suppress(OSError):
            status = os.stat(path)
            found[path] = [status.st_dev, status.st_ino]
    return found
