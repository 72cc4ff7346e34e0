"""The JSON reports, below `report_dir`: owns their files, and what makes a part of them whole.

    compiler-cache.json            how each worker started: build, profile, outcome, reason, files, bytes,
                                   seconds by phase
    compiler-cache-progress.json   every round of publishing, with the same figures; rounds that overlap
                                   others say so,
                                   since their seconds must not be added up
    workers/<worker>.json          what one worker wrote: the two files above are made from these

Schemas: schemas/*.json beside this module. A report directory may be on a file system that hangs, so that
nobody but a process of its own writes there: `python -m cachehome.lifecycle.reports DIRECTORY < PART`, which
nobody waits for long.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from cachehome.lifecycle.child import be_modest
from cachehome.lifecycle.locks import write_json
from cachehome.lifecycle.transfer import abandon, importable, scratch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cachehome.lifecycle.place import Place
    from cachehome.lifecycle.rounds import Round
    from cachehome.sync.record import Record

VERSION = 1
STARTS, PROGRESS, WORKERS = "compiler-cache.json", "compiler-cache-progress.json", "workers"
SCHEMAS = {STARTS: "compiler-cache.schema.json", PROGRESS: "compiler-cache-progress.schema.json"}
_MOST = 64  # workers that each may merge everybody's parts; beyond it only the first one does
_MOST_WRITERS = (
    4  # more of them hang in a dead directory, and what they would have told is told by the next one
)
_PATIENCE, _LIMIT = 2.0, 60
# What a part must hold to be shown.
_FIGURES = {"outcome": str, "reason": str, "files": int, "bytes": int, "seconds": dict}
_ROUND = _FIGURES | {"kind": str, "began": str, "ended": str, "wall": (int, float)}


class Reporter:
    """What one process tells of its workers. Never raises and never waits long. Without a directory it does nothing."""

    def __init__(self, directory: str, via: str) -> None:
        self._directory = directory
        self._via = via
        self._workers: dict[str, dict[str, Any]] = {}
        self._writers: list[subprocess.Popen[bytes]] = []

    def started(self, place: Place, record: Record) -> None:
        """A worker's restore has ended."""
        worker = self._worker(place)
        worker["start"] = {
            **_figures(record),
            "at": _clock(time.time()),
            "directories": dict(place.directories),
            "relocated": list(record.details.get("relocated") or ()),
        }
        self._write(place.slot)

    def published(self, places: Iterable[Place], round_: Round) -> None:
        """A round has ended."""
        by_slot = {place.slot: place for place in places}
        for slot, record in zip(round_.slots, round_.records, strict=True):
            worker = self._worker(by_slot[slot])
            worker["rounds"].append(
                {
                    **_figures(record),
                    "kind": round_.kind,
                    "began": _clock(round_.began),
                    "ended": _clock(round_.ended),
                    "wall": round(round_.ended - round_.began, 3),
                }
            )
            self._write(slot)

    @property
    def pids(self) -> set[int]:
        """The writers at work."""
        return {writer.pid for writer in self._writers if writer.poll() is None}

    def close(self) -> None:
        """Give the last writers a moment."""
        until = time.monotonic() + _PATIENCE
        for writer in self._writers:
            try:
                writer.wait(max(0.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                abandon(writer)
        self._writers.clear()

    def _worker(self, place: Place) -> dict[str, Any]:
        if place.slot not in self._workers:
            host = os.uname().nodename
            rank = os.environ.get("RANK", "")
            name = f"{host}-{place.slot or (f'rank{rank}' if rank else os.getpid())}"
            self._workers[place.slot] = {
                "version": VERSION,
                "worker": re.sub(r"[^A-Za-z0-9._-]", "_", name),
                "host": host,
                "pid": os.getpid(),
                "rank": int(rank) if rank.isdigit() else None,
                "slot": place.slot,
                "via": self._via,
                "build": place.identity.build_key,
                "profile": place.identity.profile_key,
                "start": None,
                "rounds": [],
            }
        return self._workers[place.slot]

    def _write(self, slot: str) -> None:
        self._writers = [writer for writer in self._writers if writer.poll() is None]
        if not self._directory or len(self._writers) >= _MOST_WRITERS:
            return
        with contextlib.suppress(OSError, ValueError):
            part = scratch()
            part.write(json.dumps(self._workers[slot]).encode())
            part.seek(0)
            self._writers.append(
                subprocess.Popen(
                    [sys.executable, "-m", "cachehome.lifecycle.reports", self._directory],
                    env=importable(os.environ),
                    cwd="/",
                    stdin=part,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    start_new_session=True,
                )
            )
            part.close()


def _figures(record: Record) -> dict[str, Any]:
    return {
        "outcome": record.outcome,
        "reason": record.reason,
        "generation": record.generation,
        "entries": record.entries,
        "files": record.files,
        "bytes": record.bytes,
        "fetched_bytes": record.fetched_bytes,
        "seconds": dict(record.seconds),
        "message": record.details.get("message"),
    }


def _clock(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="milliseconds")


def merge(parts: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The two reports, by file name, from the *parts* of all workers."""
    head = {"version": VERSION, "written": _clock(time.time())}
    workers = [
        {key: value for key, value in part.items() if key not in ("rounds", "version")} for part in parts
    ]
    rounds = [{"worker": part["worker"], **row} for part in parts for row in part["rounds"]]
    rounds.sort(key=lambda row: (row["began"], row["worker"]))
    latest = ""
    for number, row in enumerate(rounds):
        following = rounds[number + 1]["began"] if number + 1 < len(rounds) else "~"
        row["overlaps"] = row["began"] < latest or following < row["ended"]
        latest = max(latest, row["ended"])
    workers.sort(key=lambda worker: worker["worker"])
    return {STARTS: {**head, "workers": workers}, PROGRESS: {**head, "rounds": rounds}}


def read_parts(directory: str) -> tuple[list[dict[str, Any]], list[str]]:
    """What the workers wrote, and the files that are left out, since they can't be read or are no such part.

    Raises OSError where the directory itself can't be read; one that is not there holds nothing."""
    parts, left_out = [], []
    with contextlib.suppress(FileNotFoundError):
        for name in sorted(os.listdir(os.path.join(directory, WORKERS))):
            if name.endswith(".json"):
                path = os.path.join(directory, WORKERS, name)
                part: Any = None
                with contextlib.suppress(OSError, ValueError, RecursionError), open(path, "rb") as file:
                    part = json.loads(file.read())
                if _whole(part):
                    parts.append(part)
                else:
                    left_out.append(path)
    return parts, left_out


def _whole(part: Any) -> bool:
    """Whether *part* holds what the reports are made of."""
    return (
        _has(part, {"worker": str, "build": str, "rounds": list})
        and part.get("version") == VERSION
        and (part.get("start") is None or _has(part["start"], _FIGURES))
        and all(_has(row, _ROUND) for row in part["rounds"])
    )


def _has(value: Any, fields: Mapping[str, Any]) -> bool:
    return (
        isinstance(value, dict)
        and all(isinstance(value.get(name), kind) for name, kind in fields.items())
        and all(isinstance(seconds, (int, float)) for seconds in value.get("seconds", {}).values())
    )


def schema(name: str) -> dict[str, Any]:
    """The JSON schema of the report *name*."""
    path = os.path.join(os.path.dirname(__file__), "schemas", SCHEMAS[name])
    with open(path, encoding="utf-8") as file:
        return dict(json.load(file))


def main(directory: str) -> int:
    """Store a part that comes from stdin, and make the reports anew."""
    be_modest()
    if hasattr(signal, "alarm"):
        signal.alarm(_LIMIT)
    part = json.load(sys.stdin)
    os.makedirs(os.path.join(directory, WORKERS), exist_ok=True)
    write_json(os.path.join(directory, WORKERS, f"{part['worker']}.json"), part)
    parts, _ = read_parts(directory)
    if len(parts) <= _MOST or not part["rank"]:
        for name, report in merge(parts).items():
            write_json(os.path.join(directory, name), report)
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
