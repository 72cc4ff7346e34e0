"""What the processes of one node agree on, in files below `ROOT/.node/`, on local disk.

    <key>.restore.lock     who restores now; the others wait for its result
    <key>.restore.json     that result, good for whoever began before it was there
    <key>.publish.lock     who publishes now; the others wait, or leave it to that one
    <key>.publish.json     that result, good for whoever asked before that one began
    publish-<n>.lock       one for each of `publish_tasks_per_node`
    <key>.<action>.asked/  what those that wait ask of the one at work (`asked`)

`<key>` names an identity and a store, and for publishing the live directories too. One worker fetches, and clones
for those that wait with directories of their own (`slots`); one publishes what those that wait have made. Locks are an
optimisation and belong to the kernel: who dies lets go, and where there are none everybody does its own work, which
is right too.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import time
from typing import TYPE_CHECKING, Any

from cachehome.lifecycle.asked import Request
from cachehome.lifecycle.locks import Lock, write_json
from cachehome.lifecycle.transfer import Transfer, failure
from cachehome.sync.record import Record

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cachehome.lifecycle.transfer import Action


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

        *directories* map families to paths; *others* are those of workers that it is done for as well. *state* is the
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
        self._others = [dict(other) for other in others]
        self.others: list[Record] = []
        """How it ended for the others; none where they were not reached."""
        self._request: Request | None = None
        self._asked_in = ""
        self._result = ""
        self._own: Lock | None = None
        self._shares: list[Lock] = []
        self._share: Lock | None = None
        if state is not None:
            everywhere = {path for one in (directories, *others) for path in one.values()}
            mine = sorted(everywhere) if action == "publish" else arguments

            def named(*words: str) -> str:
                digest = hashlib.sha256("\0".join((key, *words)).encode()).hexdigest()[:16]
                return os.path.join(state, f"{digest}.{action}")

            self._result = f"{named(*mine)}.json"
            self._own = Lock(f"{named(*mine)}.lock")
            self._shares = [Lock(os.path.join(state, f"{action}-{n}.lock")) for n in range(at_once)]
            if action == "publish" or not arguments:  # what is left out is looked for in each directory
                self._asked_in = f"{named(*arguments)}.asked"

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
                details = dict(record.details)
                self.others = [Record.from_json(other) for other in details.pop("others", ())]
                seconds = {"wait": round(self._began - self._asked, 3), **record.seconds}
                self._end(record._replace(seconds=seconds, details=details), tell=True)
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
        if self._request is not None and (answer := self._request.answer()):
            wait = round(time.monotonic() - self._asked, 3)
            self.others = answer[1:]
            self._end(answer[0]._replace(seconds={"wait": wait}))
            return
        if self._own is not None and not self._own.take():
            if late:
                self._end(failure(self.action, "time_limit", waited_for="another process of this node"))
            elif not self._patient:
                self._end(failure(self.action, "another_worker", "disabled"))
            elif self.action == "restore":
                self._ask()
            return
        told = self._news()
        if told is not None:
            if self.action == "publish" or told["directories"] == _identities(self._directories):
                record = Record.from_json(told["record"])
                self._end(record._replace(details={**record.details, "by": told["by"]}))
                return
            if told["record"]["outcome"] == "hit" and not self._arguments:
                assert self._own is not None
                self._own.release()  # others clone at the same time
                self._since = None
                self._go("fill", ["--from", json.dumps(told["paths"]), "--to", json.dumps(self._others)])
                return
        served = self._request is not None and self._request.claimed()
        if self._shares and (served or not any(self._try(lock) for lock in self._shares)):
            if late:
                self._end(failure(self.action, "time_limit", waited_for="a free place on this node"))
            else:
                self._ask()
            return
        if self._request is not None:
            self._request.withdraw()
        if self._asked_in:
            verb = "fill" if self.action == "restore" else "gather"
            others = ["--to", json.dumps(self._others), "--asked", self._asked_in]
            self._go(verb, [*others, *self._arguments])
        else:
            self._go(self.action, self._arguments)

    def _ask(self) -> None:
        """Ask whoever is at work to do this, too."""
        if self._asked_in and self._request is None:
            self._request = Request(self._asked_in, [self._directories, *self._others])

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

    def _end(self, record: Record, tell: bool = False) -> None:
        self.record = record
        if self._request is not None:
            self._request.withdraw()
        if tell and self._result and self._since is not None and record.reason != "stopped":
            told = {
                "by": os.getpid(),
                "began": time.time() - (time.monotonic() - self._began),
                "ended": time.time(),
                "paths": self._directories,
                "directories": _identities(self._directories),
                "record": record.to_json(),
            }
            with contextlib.suppress(OSError, TypeError):
                write_json(self._result, told)
        for lock in (self._own, self._share):
            if lock is not None:
                lock.release()


def _identities(directories: Mapping[str, str]) -> dict[str, list[int]]:
    """Device and inode of each path: of one that was wiped meanwhile, nothing told is true."""
    found = {}
    for path in directories.values():
        with contextlib.suppress(OSError):
            status = os.stat(path)
            found[path] = [status.st_dev, status.st_ino]
    return found
