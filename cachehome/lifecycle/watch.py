"""When to publish: a cheap look at the live directories, and the rhythm that follows from it.

first    once nothing has changed for QUIET seconds, or an interval is over: a replica may live for less
         than an interval
later    an interval after the last one began, if something changed since
last     its owner's affair: always, since a file that is written in place changes nothing that a look can
         see
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

QUIET = 20.0
_CHEAP = 1 / 50  # share of one CPU that looking may cost

Look = tuple[int, int]


def look(directories: Iterable[str]) -> Look:
    """A value that changes when a file below *directories* is made, renamed or removed: no file is opened or
    asked for.

    Such a change shows in the directory that holds it, so its time and number of names are enough.
    """
    count = total = 0
    for top in set(directories):
        stack = [top]
        while stack:
            path = stack.pop()
            try:
                total += os.stat(path).st_mtime_ns
                with os.scandir(path) as entries:
                    for entry in entries:
                        count += 1
                        if entry.name != ".cachehome" and entry.is_dir(follow_symlinks=False):
                            stack.append(entry.path)
            except OSError:  # removed while we look
                count -= 1
    return count, total


class Rhythm:
    """Says when a publication of *directories* is due. Call `due` as often as `pause` says."""

    def __init__(self, directories: Iterable[str], interval: float, quiet: float | None = None) -> None:
        self._directories = sorted(set(directories))
        self._interval = interval
        self._quiet = min(QUIET, interval) if quiet is None else quiet
        self._first = True
        self._last = self._changed = self._next = time.monotonic()
        self._look: Look = (-1, -1)
        self._published: Look = (-1, -1)
        self.pause = 0.0

    def due(self) -> bool:
        """Whether to publish now. If so, it is counted as done: the next one comes an interval later."""
        now = time.monotonic()
        if now < self._next:
            return False
        seen = look(self._directories)
        cost = time.monotonic() - now
        if seen != self._look:
            self._look, self._changed = seen, now
        # Looking often enough to see quiet begin, and never so often that it costs the job anything.
        self.pause = max(min(1.0, self._quiet / 4), cost / _CHEAP, 0.05)
        self._next = now + self.pause
        waited = now - self._last >= self._interval
        if self._first:
            due = waited or now - self._changed >= self._quiet
        else:
            due = waited and seen != self._published
        if due:
            self._first, self._last, self._published = False, now, seen
        return due

    def failed(self) -> None:
        """The publication that was due did not happen: the next check may try again though nothing changed."""
        self._published = (-1, -1)
