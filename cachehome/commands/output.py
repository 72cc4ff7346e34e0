"""How verbs print: JSON or lines on stdout, talk on stderr."""

from __future__ import annotations

import contextlib
import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cachehome.sync.record import Record


def as_json(document: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(document, indent=1, default=str))


def lines(*texts: str) -> None:
    """Lines of data on stdout."""
    for text in texts:
        print(text)


def talk(text: str) -> None:
    """A line for people on stderr. It is not what a verb is about, so where it can't be written, it is not."""
    with contextlib.suppress(OSError):
        print(text, file=sys.stderr, flush=True)


def record(found: Record, *, json_wanted: bool) -> int:
    """Print how a restore or publish ended; the exit code that goes with it."""
    if json_wanted:
        as_json(found.to_json())
    talk(f"cachehome: {found.line()}")
    for note in _notes(found.details):
        talk(f"cachehome: {note}")
    return {"hit": 0, "miss": 3, "disabled": 3}.get(found.outcome, 1)


def _notes(details: dict[str, Any]) -> list[str]:
    notes = []
    for rejected in details.get("rejected", []):
        notes.append(f"generation {rejected['generation']} was not used: {rejected['message']}")
    for moved in details.get("set_aside", [])[:5]:
        notes.append(f"moved aside: {moved}")
    for name, problem in list(details.get("left_out", {}).items())[:5]:
        notes.append(f"left out: {name}: {problem}")
    if details.get("relocated"):
        notes.append(f"relocated: entries were made in {', '.join(details['relocated'])}")
    if details.get("conflicts"):
        notes.append(f"{details['conflicts']} entries differ from the published ones, which stay")
    if details.get("profile_fallback"):
        notes.append(f"this profile has no generation yet: took that of {details['profile_fallback']}")
    return notes


def counted(count: int, noun: str) -> str:
    """A number of things for people."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def size(count: float) -> str:
    """A number of bytes for people."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError("unreachable")


def ago(seconds: float) -> str:
    """A duration for people."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"
