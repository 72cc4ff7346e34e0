"""A round: the directories of several workers, published together under one time limit."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from cachehome.lifecycle.slots import shared

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cachehome.lifecycle.place import Place
    from cachehome.sync.record import Record


class Round:
    """What a round did. `kind`: first | interval | final."""

    def __init__(
        self,
        kind: str,
        began: float,
        ended: float = 0.0,
        slots: Sequence[str] = (),
        records: Sequence[Record] = (),
    ) -> None:
        self.kind = kind
        self.began = began
        self.ended = ended
        self.slots = list(slots)
        self.records = list(records)

    def __repr__(self) -> str:
        return f"Round({self.kind}, {self.slots}: {'; '.join(record.line() for record in self.records)})"

    @property
    def done(self) -> bool:
        """Whether everything that was there when it began is in the store."""
        return all(record.outcome == "hit" or record.reason in _NOTHING for record in self.records)


_NOTHING = ("nothing_to_publish", "another_worker")


class Publishing:
    """A round under way. Polled; ends in a `Round`, within *seconds* and the time that it takes to kill a process."""

    def __init__(
        self,
        places: Sequence[Place],
        seconds: float,
        *,
        kind: str,
        since: float | None = None,
        patient: bool = True,
    ) -> None:
        """*places* belong to one identity."""
        self._places = list(places)
        self._until = time.monotonic() + seconds
        others = [place.directories for place in self._places[1:]]
        self._step = places[0].publish(seconds, since=since, patient=patient, others=others)
        self.round = Round(kind, time.time())

    @property
    def pids(self) -> set[int]:
        return {self._step.pid} if self._step.pid else set()

    def poll(self) -> Round | None:
        """Look once; the round if it has ended."""
        if time.monotonic() >= self._until:
            self._step.stop("time_limit")
        record = self._step.poll()
        if record is None:
            return None
        if not self.round.records:
            others = [shared(record, place.directories) for place in self._places[1:]]
            self.round.slots = [place.slot for place in self._places]
            self.round.records = [record, *(self._step.others or others)]
            self.round.ended = time.time()
        return self.round

    def stop(self, reason: str = "stopped") -> None:
        """Begin to end it."""
        self._step.stop(reason)

    def wait(self) -> Round:
        """Block until it has ended, in bounded time."""
        while (ended := self.poll()) is None:
            time.sleep(0.05)
        return ended
