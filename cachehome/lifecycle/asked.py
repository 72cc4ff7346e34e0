"""What processes that wait for their turn ask of the one at work, so that it does their work, too.

    DIRECTORY/<name>           [{family: path}, ...], locked as long as somebody waits for an answer
             /<name>.claim     locked by the process at work that is about to answer
             /<name>.answer    [record, ...]

Whoever dies lets go of its locks: a request that nobody waits for is removed, one that nobody answers is taken back.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence

from cachehome.lifecycle.locks import Lock, write_json
from cachehome.sync.record import Record

_CLAIM, _ANSWER = ".claim", ".answer"


class Request:
    """One of this process. `withdraw` ends it."""

    def __init__(self, directory: str, wanted: Sequence[Mapping[str, str]]) -> None:
        self._path = os.path.join(directory, os.urandom(16).hex())
        self._lock = Lock(self._path)
        with contextlib.suppress(OSError):
            write_json(self._path, [dict(one) for one in wanted])
        self._lock.take()

    def answer(self) -> list[Record]:
        """One record for each that was wanted; none as long as there is no answer."""
        try:
            with open(self._path + _ANSWER, encoding="utf-8") as file:
                return [Record.from_json(record) for record in json.load(file)]
        except (OSError, ValueError, TypeError):
            return []

    def claimed(self) -> bool:
        """Whether somebody is about to answer."""
        if not os.path.exists(self._path + _CLAIM):
            return False
        lock = Lock(self._path + _CLAIM)
        free = lock.take()
        lock.release()
        return not free

    def withdraw(self) -> None:
        """It is answered, or not waited for any more."""
        for path in (self._path, self._path + _CLAIM, self._path + _ANSWER):
            with contextlib.suppress(OSError):
                os.unlink(path)
        self._lock.release()


class Claim:
    """A request of another process, which this one answers."""

    def __init__(self, path: str, wanted: list[dict[str, str]], lock: Lock) -> None:
        self.wanted = wanted
        self._path = path
        self._lock = lock

    def answer(self, records: Sequence[Record]) -> None:
        """Tell what became of it."""
        with contextlib.suppress(OSError):
            write_json(self._path + _ANSWER, [record.to_json() for record in records])
        self._lock.release()


def claim(directory: str) -> list[Claim]:
    """All requests in *directory* that somebody waits for and nobody answers yet."""
    found = []
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(directory)) if directory else ():
            path = os.path.join(directory, name)
            base, dot, _ = name.partition(".")
            if dot:
                if name != base + _CLAIM and name != base + _ANSWER:
                    continue
                if not os.path.exists(os.path.join(directory, base)):
                    os.unlink(path)  # of a request that was taken back meanwhile
                continue
            waiting, ours = Lock(path), Lock(path + _CLAIM)
            if waiting.take():
                os.unlink(path)
            elif not os.path.exists(path + _ANSWER) and ours.take():
                with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
                    found.append(Claim(path, json.load(file), ours))
            waiting.release()
    return found
