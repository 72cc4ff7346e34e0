"""A round: the directories of several workers, published by a few tasks at a time under one time limit."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cachehome.lifecycle.node import Step
    from cachehome.lifecycle.place import Place
    from cachehome.sync.record import Record


@dataclass(slots=True)
class Round:
    """What a round did. `kind`: first | interval | final."""

    kind: str
    began: float
    ended: float = 0.0
    slots: list[str] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)

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
        at_once: int,
        since: float | None = None,
        patient: bool = True,
    ) -> None:
        self._waiting = list(places)
        self._running: list[tuple[Place, Step]] = []
        self._until = time.monotonic() + seconds
        self._at_once = at_once
        self._since = since
        self._patient = patient
        self._reason = ""
        self.round = Round(kind, time.time())

    @property
    def pids(self) -> set[int]:
        return {step.pid for _, step in self._running if step.pid}

    def poll(self) -> Round | None:
        """Look once; the round if it has ended."""
        left = self._until - time.monotonic()
        if left <= 0 and not self._reason:
            self.stop("time_limit")
        while self._waiting and len(self._running) < self._at_once and not self._reason:
            place = self._waiting.pop(0)
            self._running.append(
                (place, place.publish(max(1.0, left), since=self._since, patient=self._patient))
            )
        for place, step in list(self._running):
            record = step.poll()
            if record is not None:
                self._running.remove((place, step))
                self.round.slots.append(place.slot)
                self.round.records.append(record)
        if self._running or (self._waiting and not self._reason):
            return None
        self.round.ended = self.round.ended or time.time()
        return self.round

    def stop(self, reason: str = "stopped") -> None:
        """Begin to end it: what runs is cancelled, what waits does not begin."""
        from cachehome.lifecycle.transfer import failure

        if not self._reason:
            self._reason = reason
            for _, step in self._running:
                step.stop(reason)
            for place in self._waiting:
                self.round.slots.append(place.slot)
                self.round.records.append(failure("publish", reason))
            self._waiting.clear()

    def wait(self) -> Round:
        """Block until it has ended, in bounded time."""
        while (ended := self.poll()) is None:
            time.sleep(0.05)
        return ended
