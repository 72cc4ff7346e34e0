"""`cachehome doctor`: what is wrong here or with a store, and how to mend it."""

from __future__ import annotations

import argparse
import importlib
import os
from typing import TYPE_CHECKING, Any

from cachehome.commands import numbers, output
from cachehome.errors import CacheHomeError, ConfigError, StoreError, missing_extra
from cachehome.settings import Settings
from cachehome.store import probe
from cachehome.store.probe import FAIL, OK, WARN, Finding

if TYPE_CHECKING:
    from cachehome.store.backend import Backend
    from cachehome.store.drills import Outcome
    from cachehome.store.stress import Report

DESCRIPTION = """Look at this environment, and at a store: the one named, else the one that is set.

With --stress, prove on this very mount, in a scratch directory of the store, that commits are exclusive, that no
publication is lost, that readers never go back or see a hole. First by drills: short schedules of two or three parties
with rivals, lost answers and kills at chosen calls; each says which promise it is about. Then by load, for so many
seconds (0: none): many publishers of which one in ten is killed, readers, a collector, grace periods of seconds. A
second host takes part in the load with --join, started while the first one runs.

Exit code: 0 all is well, 1 something is not."""
SETTINGS = ("store", "publish", "shared", "store_owners", "max_storage_bytes", "store_timeout_seconds")
GUARDED = True
LENIENT = True
_LIBRARIES = ("zstandard",)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "place", nargs="?", default="", metavar="STORE", help="a directory, or its file:// URL"
    )
    parser.add_argument(
        "--stress", type=numbers.seconds, default=None, metavar="SECONDS", help="drills, and load for so long"
    )
    parser.add_argument("--join", action="store_true", help="take part in what another host has begun")
    parser.add_argument(
        "--writers", type=numbers.count, default=12, metavar="N", help="publishers at a time (%(default)s)"
    )
    parser.add_argument("--readers", type=numbers.count, default=4, metavar="N", help="readers (%(default)s)")
    parser.add_argument(
        "--grace",
        type=numbers.seconds,
        default=4.0,
        metavar="SECONDS",
        help="retention while stressing (%(default)s)",
    )


def run(args: argparse.Namespace, settings: Settings) -> int:
    stresses = args.stress is not None
    if args.join and not args.stress:
        raise ConfigError("doctor: --join takes part in a load: say for how long with --stress SECONDS")
    if stresses:
        for library in _missing():
            raise missing_extra(library, "sync")
    findings: list[Finding] = [] if stresses else _here(settings)
    place = args.place or (settings.store[-1] if settings.store else "")
    drilled: list[Outcome] = []
    report: Report | None = None
    if place:
        place = place if "://" in place else os.path.abspath(place)
        found, backend = _store(place, settings)
        findings += found
        if stresses and backend is not None:
            try:
                drilled, report = _stress(args, backend)
            except StoreError as error:
                findings.append(Finding("stress", FAIL, str(error)))
    elif stresses:
        findings.append(Finding("store", FAIL, "no store is set: name one, or set CACHEHOME_STORE"))
    sound = all(finding.state != FAIL for finding in findings) and all(outcome.sound for outcome in drilled)
    if stresses:
        sound = sound and bool(drilled or report) and (report is None or report.sound)
    if args.json:
        rows = [finding._asdict() for finding in findings]
        output.as_json(
            {
                "sound": sound,
                "store": place or None,
                "findings": rows,
                "drills": [outcome.to_json() for outcome in drilled],
                "stress": report.to_json() if report else None,
            }
        )
    else:
        output.lines(*(f"{state:4}  {name:12} {message}" for name, state, message in findings))
        output.lines(*map(_drill_text, drilled))
        if report is not None:
            output.lines(*_text(report))
        if stresses:
            output.lines("sound" if sound else "NOT SOUND: do not publish to this store")
    return 0 if sound else 1


def _missing() -> list[str]:
    """The libraries that a store needs and that are not here."""
    missing = []
    for library in _LIBRARIES:
        try:
            importlib.import_module(library)
        except ImportError:
            missing.append(library)
    return missing


def _here(settings: Settings) -> list[Finding]:
    from cachehome.commands import status

    facts = status.status(settings)
    root = facts["root"]
    findings = [Finding("root", OK if root else WARN, f"{root or 'none'}: {facts['reason']}")]
    if facts["config"]["file"]:
        findings.append(Finding("config", OK, f"{facts['config']['file']} was read"))
    if facts["active"]["on"] and not facts["hook"]["installed"]:
        findings.append(Finding("hook", WARN, status.NO_HOOK))
    findings += [Finding("settings", FAIL, problem) for problem in facts["problems"]]
    findings += [Finding(library, FAIL, str(missing_extra(library, "sync"))) for library in _missing()]
    findings += [Finding("note", WARN, note) for note in facts["notes"]]
    findings += [Finding("skipped", WARN, f"{row['what']}: {row['why']}") for row in facts["skipped"]]
    if facts["too_late"]:
        findings.append(Finding("activation", WARN, str(facts["too_late"])))
    return findings


def _store(place: str, settings: Settings) -> tuple[list[Finding], Any]:
    """(findings, the backend; None if it can't be written to)."""
    from cachehome.store.store import Store

    try:
        backend = Store.open(place, settings).backend.backend
        tried = probe.examine(backend, max_bytes=settings.max_storage_bytes, publishes=settings.publish)
    except CacheHomeError as error:
        return [Finding("store", FAIL, str(error))], None
    found = [Finding("store", OK, f"{backend.url} is there"), *tried]
    good = {finding.name for finding in found if finding.state == OK}
    return found, backend if "writable" in good else None


def _stress(args: argparse.Namespace, backend: Backend) -> tuple[list[Outcome], Report | None]:
    from cachehome.store import drills
    from cachehome.store.stress import Load, Stress

    load = Load(args.stress, args.writers, args.readers, grace=args.grace)
    drilled = []
    if not args.join:
        output.talk(f"cachehome: {len(drills.DRILLS)} drills")
        drilled = list(drills.run(backend))
    if not load.seconds:
        return drilled, None
    output.talk(
        f"cachehome: {load.writers} writers, {load.readers} readers, a collector, for {load.seconds:.0f} s"
    )
    return drilled, Stress(backend, load).run(join=args.join)


def _drill_text(outcome: Outcome) -> str:
    state = OK if outcome.sound else FAIL
    return f"{state:4}  {outcome.promise}" + (f": BROKEN: {outcome.problem}" if outcome.problem else "")


def _text(report: Report) -> list[str]:
    words = {
        "published": "publications",
        "unchanged": "publications that others had made",
        "gave_up": "publications that gave up at their deadline",
        "held_up": "publications that took longer than the grace period (if many: raise --grace)",
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
    return [*(f"{getattr(report, key):8}  {word}" for key, word in words.items()), *report.problems]
