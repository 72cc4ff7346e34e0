"""`cachehome doctor`: what is wrong here or with a store, and how to mend it."""

from __future__ import annotations

import argparse
import importlib
import os
from typing import Any

from cachehome.commands import output
from cachehome.errors import CacheHomeError
from cachehome.settings import Settings
from cachehome.store import probe
from cachehome.store.probe import FAIL, OK, WARN, Finding

DESCRIPTION = """Look at this environment, and at a store: the one named, else the one that is set.

With --stress, work on the store for a while as many hosts do, in a scratch directory of its own with grace periods of
seconds: publishers of which one in ten is killed, readers, a collector. It proves on this very mount that commits are
exclusive, that no publication is lost, that readers never go back or see a hole. A second host takes part with
--join, started while the first one runs.

Exit code: 0 all is well, 1 something is not."""
SETTINGS = ("store", "shared", "store_owners", "max_storage_bytes")
LENIENT = True
_LIBRARIES = ("zstandard", "orjson")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("place", nargs="?", default="", metavar="STORE", help="a directory or a URL")
    parser.add_argument("--stress", type=float, default=0.0, metavar="SECONDS", help="for so long")
    parser.add_argument("--join", action="store_true", help="take part in what another host has begun")
    parser.add_argument(
        "--writers", type=int, default=12, metavar="N", help="publishers at a time (%(default)s)"
    )
    parser.add_argument("--readers", type=int, default=4, metavar="N", help="readers (%(default)s)")
    parser.add_argument(
        "--grace", type=float, default=4.0, metavar="SECONDS", help="retention while stressing (%(default)s)"
    )


def run(args: argparse.Namespace, settings: Settings) -> int:
    findings: list[Finding] = [] if args.stress else _here(settings)
    place = args.place or (settings.store[-1] if settings.store else "")
    report = None
    if place:
        place = place if "://" in place else os.path.abspath(place)
        found, backend = _store(place, settings)
        findings += found
        if args.stress and backend is not None:
            report = _stress(args, backend)
    elif args.stress:
        findings.append(Finding("store", FAIL, "no store is set: name one, or set CACHEHOME_STORE"))
    sound = all(finding.state != FAIL for finding in findings) and (
        not args.stress or (report is not None and report["sound"])
    )
    if args.json:
        rows = [finding._asdict() for finding in findings]
        output.as_json({"sound": sound, "store": place or None, "findings": rows, "stress": report})
    else:
        output.lines(*(f"{state:4}  {name:12} {message}" for name, state, message in findings))
        if report is not None:
            output.lines(*_text(report))
    return 0 if sound else 1


def _here(settings: Settings) -> list[Finding]:
    from cachehome.commands import status

    facts = status.status(settings)
    root = facts["root"]
    findings = [Finding("root", OK if root else WARN, f"{root or 'none'}: {facts['reason']}")]
    findings += [Finding("settings", FAIL, problem) for problem in facts["problems"]]
    for library in _LIBRARIES:
        try:
            importlib.import_module(library)
        except ImportError:
            findings.append(Finding(library, FAIL, "it is not installed: pip install 'cachehome[sync]'"))
    findings += [Finding("note", WARN, note) for note in facts["notes"]]
    findings += [Finding("skipped", WARN, f"{row['what']}: {row['why']}") for row in facts["skipped"]]
    if facts["too_late"]:
        findings.append(Finding("activation", WARN, str(facts["too_late"])))
    return findings


def _store(place: str, settings: Settings) -> tuple[list[Finding], Any]:
    """(findings, the backend; None if it can't be published to)."""
    from cachehome.store.store import Store

    try:
        backend = Store.open(place, settings).backend.backend
        tried = probe.examine(backend, max_bytes=settings.max_storage_bytes)
    except CacheHomeError as error:
        return [Finding("store", FAIL, str(error))], None
    found = [Finding("store", OK, f"{backend.url} is there"), *tried]
    good = {finding.name for finding in found if finding.state == OK}
    return found, backend if {"writable", "exclusive"} <= good else None


def _stress(args: argparse.Namespace, backend: Any) -> dict[str, Any]:
    from cachehome.store.stress import Load, Stress

    load = Load(args.stress, args.writers, args.readers, grace=args.grace)
    output.talk(
        f"cachehome: {load.writers} writers, {load.readers} readers, a collector, for {load.seconds:.0f} s"
    )
    return Stress(backend, load).run(join=args.join).to_json()


def _text(report: dict[str, Any]) -> list[str]:
    words = {
        "published": "publications",
        "unchanged": "publications that others had made",
        "gave_up": "publications that gave up at their deadline",
        "killed": "publishers killed",
        "reads": "generations read whole",
        "lags": "listings that lagged",
        "prunes": "collections",
        "deleted": "files collected",
        "lost": "LOST publications",
        "twice": "generations created TWICE",
        "backwards": "readers that went BACKWARDS",
        "hole": "HOLES in what was read",
        "error": "ERRORS",
    }
    lines = [f"{report[key]:8}  {word}" for key, word in words.items()]
    return [
        *lines,
        *report["problems"],
        "sound" if report["sound"] else "NOT SOUND: do not publish to this store",
    ]
