"""Private live directories of the workers of a node: one process fills those of all.

    ROOT/<host tag>/<build8>/rank0/torchinductor   restored, every byte verified
                            /rank1/torchinductor   cloned from it (`clone`)

The workers may be those of one driver, or processes of their own that ask at the same time (`node`).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import json
import os
import time
from typing import TYPE_CHECKING, Any

from cachehome.sync.record import Phases, Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cachehome.identity import Identity
    from cachehome.lifecycle.place import Place
    from cachehome.settings import Settings

Directories = dict[str, str]


def restore_all(places: Sequence[Place], seconds: float, since: float) -> list[Record]:
    """Restore the first of *places* and clone the others from it, in one process; their records."""
    until = time.monotonic() + seconds
    others = [place.directories for place in places[1:]]
    step = places[0].restore(seconds, since=since, others=others)
    first = step.wait()
    if len(step.others) == len(others):
        return [first, *step.others]
    if first.outcome == "unavailable":  # for all of them
        details = {"message": first.details.get("message"), "by": "the first worker"}
        return [first, *(first._replace(seconds={}, details=dict(details)) for _ in others)]
    steps = [place.restore(max(1.0, until - time.monotonic()), since=since) for place in places[1:]]
    while sum(step.poll() is None for step in steps):
        time.sleep(0.02)
    return [first, *(step.wait() for step in steps)]


def main(arguments: Sequence[str]) -> int:
    """`fill --json --identity FILE [--from DIRECTORIES] [--to LIST OF DIRECTORIES] [--asked DIRECTORY]`, for `child`.

    Restores the directories in effect, or clones them where another worker has restored *from*. Then fills the others,
    and those that processes ask for in files below *asked*: see `node`.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--identity", required=True)
    parser.add_argument("--from", dest="source", type=json.loads)
    parser.add_argument("--to", type=json.loads, default=[])
    parser.add_argument("--asked", default="")
    args = parser.parse_args(arguments)
    from cachehome.commands import output
    from cachehome.errors import CacheHomeError
    from cachehome.identity import Identity
    from cachehome.settings import Settings
    from cachehome.sync import guard
    from cachehome.sync.live import in_effect

    gc.disable()  # a short life with many small objects
    fill = _Fill(Settings.load(), Identity.load(args.identity))
    try:
        mine: Directories = in_effect(fill.settings)
    except CacheHomeError as error:
        output.talk(f"cachehome: {error}")
        return 2
    if args.source:
        first, *others = fill.each(args.source, [mine, *args.to])
        record = first._replace(details={**first.details, "others": [o.to_json() for o in others]})
    else:
        record = guard.restore(
            fill.settings,
            fill.identity,
            mine,
            then=lambda found: fill.others(found, mine, args.to, args.asked),
        )
    return output.record(record, json_wanted=True)


@dataclasses.dataclass(frozen=True, slots=True)
class _Fill:
    settings: Settings
    identity: Identity

    def each(self, source: Directories | None, targets: Sequence[Directories]) -> list[Record]:
        """Clone *targets* from *source*, and restore those that can't be cloned."""
        from cachehome.sync.restore import restore

        found: list[Record | None] = [None] * len(targets)
        if source is not None:
            from cachehome.sync.clone import clone

            with contextlib.suppress(OSError, ValueError):  # somebody works there, or wiped it
                found = clone(self.identity, source, targets)
        return [
            record or restore(self.settings, self.identity, target)
            for record, target in zip(found, targets, strict=True)
        ]

    def others(
        self, first: Record, restored: Directories, targets: Sequence[Directories], asked: str
    ) -> Record:
        """*first* is how *restored* was; with what became of the others in its details."""
        if first.outcome == "unavailable":
            return first
        from cachehome.lifecycle.node import requests

        source = restored if first.outcome == "hit" else None
        told: dict[str, Any] = {"others": [], "asked": {}}
        phases = Phases()
        with phases("others"):
            # More come while some are served.
            while (found := requests(asked, told["asked"])) or targets:
                records = iter(self.each(source, [*targets, *found.values()]))
                told["others"] += [next(records).to_json() for _ in targets]
                told["asked"] |= {name: next(records).to_json() for name in found}
                targets = ()
        return first._replace(seconds=first.seconds | phases.seconds, details=first.details | told)


def remove(live: str, seconds: float = 60.0) -> None:
    """Remove the private directory *live* of a worker. Never raises, and leaves what it can't remove."""
    import shutil

    until = time.monotonic() + seconds
    aside = f"{live}.gone-{os.getpid()}"
    with contextlib.suppress(OSError):
        os.rename(live, aside)  # at once, so that nobody finds half of it
        live = aside
    while os.path.lexists(live) and time.monotonic() < until:
        shutil.rmtree(live, ignore_errors=True)
        if os.path.lexists(live):
            time.sleep(0.1)
