"""Private live directories of the workers of a node: one process fills those of all, and publishes from all of them.

    ROOT/<host tag>/<build8>/rank0/torchinductor   restored, every byte verified
                            /rank1/torchinductor   cloned from it (`clone`)

The workers may be those of one driver, or processes of their own that ask at the same time (`asked`).
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import time
from typing import TYPE_CHECKING

from cachehome.sync.record import Phases, Record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cachehome.identity import Identity
    from cachehome.lifecycle.place import Place
    from cachehome.settings import Settings
    from cachehome.sync.stage import Target

Directories = dict[str, str]


def restore_all(
    places: Sequence[Place], seconds: float, since: float, arguments: Sequence[str] = ()
) -> list[Record]:
    """Restore the first of *places* and clone the others from it, in one process; their records. With *arguments* of
    the verb each is restored by itself, for what they leave out is looked for in each."""
    until = time.monotonic() + seconds
    others = [place.directories for place in places[1:]]
    step = places[0].restore(seconds, since=since, arguments=arguments, others=others)
    first = step.wait()
    if len(step.others) == len(others):
        return [first, *step.others]
    if first.outcome == "unavailable":
        return [first, *(shared(first, other) for other in others)]
    steps = [
        place.restore(max(1.0, until - time.monotonic()), since=since, arguments=arguments)
        for place in places[1:]
    ]
    while sum(step.poll() is None for step in steps):
        time.sleep(0.02)
    return [first, *(step.wait() for step in steps)]


def shared(record: Record, directories: Directories) -> Record:
    """*record* as that of another worker, whose *directories* it was done for as well: figures count once."""
    message = record.details.get("message")
    details = {"together": True, "directories": directories, **({"message": message} if message else {})}
    return record._replace(entries=0, files=0, bytes=0, fetched_bytes=0, seconds={}, details=details)


def main(arguments: Sequence[str]) -> int:
    """`fill | gather --json --identity FILE [--to LIST OF DIRECTORIES] [--asked DIRECTORY]`, for `child`.

    fill [--from DIRECTORIES]    restore the directories in effect, or clone them where another worker has restored
                                 *from*; then fill the others, and those that processes ask for meanwhile
    gather [--adopt]             publish from the directories in effect, the others and those that are asked for
    """
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=("fill", "gather"))
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--identity", required=True)
    parser.add_argument("--from", dest="source", type=json.loads)
    parser.add_argument("--to", type=json.loads, default=[])
    parser.add_argument("--asked", default="")
    parser.add_argument("--adopt", action="store_true")
    args = parser.parse_args(arguments)
    from cachehome.commands import output
    from cachehome.errors import CacheHomeError
    from cachehome.identity import Identity
    from cachehome.settings import Settings

    gc.disable()  # a short life with many small objects
    try:
        work = _Work(Settings.load(), Identity.load(args.identity))
        if args.verb == "fill":
            record = work.fill(args.source, args.to, args.asked)
        else:
            record = work.gather(args.to, args.asked, args.adopt)
    except CacheHomeError as error:
        output.talk(f"cachehome: {error}")
        return 2
    return output.record(record, json_wanted=True)


class _Work:
    """What the process of a transfer does, for more workers than one."""

    def __init__(self, settings: Settings, identity: Identity) -> None:
        self.settings = settings
        self.identity = identity

    def fill(self, source: Directories | None, others: Sequence[Directories], asked: str) -> Record:
        """The record of the directories in effect, with those of the *others* in its details."""
        from cachehome.sync import guard
        from cachehome.sync.live import in_effect

        mine = in_effect(self.settings)
        if source is not None:
            first, *records = self._each(self._restored(source), [mine, *others])
            return _with(first, records)
        return guard.restore(
            self.settings,
            self.identity,
            mine,
            then=lambda first, targets: self._others(first, targets, others, asked),
        )

    def gather(self, others: Sequence[Directories], asked: str, adopt: bool) -> Record:
        """The same of a publication."""
        from cachehome.lifecycle.asked import claim
        from cachehome.sync import guard
        from cachehome.sync.live import in_effect

        mine = in_effect(self.settings)
        claims = claim(asked)
        sets = [mine, *others, *(one for claimed in claims for one in claimed.wanted)]
        record = guard.publish(self.settings, self.identity, sets, adopt=adopt)
        for claimed in claims:
            claimed.answer([shared(record, one) for one in claimed.wanted])
        return _with(record, [shared(record, one) for one in others])

    def _restored(self, source: Directories) -> Sequence[Target]:
        from cachehome.sync import clone

        try:
            return clone.restored(source)
        except OSError:  # somebody wiped it
            return ()

    def _each(self, source: Sequence[Target], targets: Sequence[Directories]) -> list[Record]:
        """Clone *targets* from *source*, and restore those that can't be cloned."""
        from cachehome.sync.restore import restore

        found: list[Record | None] = [None] * len(targets)
        if source:
            from cachehome.sync.clone import clone

            with contextlib.suppress(OSError, ValueError):  # somebody works there, or wiped it
                found = clone(self.identity, source, targets)
        return [
            record or restore(self.settings, self.identity, target)
            for record, target in zip(found, targets, strict=True)
        ]

    def _others(
        self, first: Record, restored: Sequence[Target], others: Sequence[Directories], asked: str
    ) -> Record:
        """*first* is how *restored* was; with what became of the others."""
        if first.outcome == "unavailable":
            return first
        from cachehome.lifecycle.asked import claim

        source = restored if first.outcome == "hit" else ()
        done: list[Record] = []
        phases = Phases()
        with phases("others"):
            # More come while some are served.
            while (claims := claim(asked)) or len(done) < len(others):
                left = others[len(done) :]
                wanted = [one for claimed in claims for one in claimed.wanted]
                records = iter(self._each(source, [*left, *wanted]))
                done += [next(records) for _ in left]
                for claimed in claims:
                    claimed.answer([next(records) for _ in claimed.wanted])
        return _with(first._replace(seconds=first.seconds | phases.seconds), done)


def _with(first: Record, others: Sequence[Record]) -> Record:
    return first._replace(details=first.details | {"others": [o.to_json() for o in others]})


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
