"""`cachehome report`: what the workers of a run restored and published, and what they used."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from cachehome.commands import output
from cachehome.errors import CacheHomeError, ConfigError
from cachehome.settings import Settings

if TYPE_CHECKING:
    from cachehome.observe.runs import Run

DESCRIPTION = """What the workers of a run restored and published, from the reports in DIRECTORY (default: report_dir,
else the live directories of this machine), and, where diagnostics were on, what the runs used of it: warm, partly warm,
inert or cold, and why.

--assert-warm is a gate: exit code 1 unless the last run was warm, or, with --require-warm, those families of it."""
SETTINGS = ("report_dir", "require_warm")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", nargs="?", default="", metavar="DIRECTORY")
    parser.add_argument("--assert-warm", action="store_true", help="exit with 1 unless the last run was warm")
    parser.add_argument("--html", metavar="FILE", help="write a page for a browser, too")


def run(args: argparse.Namespace, settings: Settings) -> int:
    from cachehome.lifecycle.reports import PROGRESS, STARTS, merge, read_parts
    from cachehome.observe import runs as all_runs

    directory = args.directory or settings.report_dir
    directories = [directory] if directory else _live(settings)
    if os.path.exists(directory) and not os.path.isdir(directory):
        raise ConfigError(f"report: {directory} is not a directory: name the one that report_dir named")
    try:
        parts, left_out = read_parts(directory) if directory else ([], [])
    except OSError as error:
        raise CacheHomeError(f"report: {directory} can't be read: {error.strerror}", path=directory) from None
    for path in left_out:
        output.talk(f"cachehome: left out, since it is no report of this version: {path}")
    reports = merge(parts)
    starts, rounds = reports[STARTS]["workers"], reports[PROGRESS]["rounds"]
    runs = all_runs.load(directories, starts)
    if args.json:
        told = {"starts": reports[STARTS], "progress": reports[PROGRESS]}
        output.as_json({**told, "runs": [run.to_json() for run in runs]})
    else:
        if parts:
            output.lines(*_starts(starts), "", *_rounds(rounds), *([""] if runs else ()))
        if runs:
            output.lines(*all_runs.lines(runs))
    if args.html:
        _write(args.html, starts, rounds, runs)
    if not parts and not runs:
        where = directory or "the live directories of this machine"
        output.talk(f"cachehome: nothing was reported in {where}")
        output.talk(
            "cachehome: set CACHEHOME_DIAGNOSTICS=1 for what a run uses, report_dir (CACHEHOME_REPORT_DIR) for what it"
            " restores and publishes"
        )
    if args.assert_warm:
        return _gate(runs, settings)
    return 0 if parts or runs else 3


def _live(settings: Settings) -> list[str]:
    """Where logs lie: in the directories in effect, and in those of `run`, sessions and agents."""
    from cachehome.commands import activation
    from cachehome.lifecycle.builds import builds
    from cachehome.observe.activity import below
    from cachehome.sync.live import in_effect

    answer = activation.resolution(settings)
    sets = [in_effect(settings), *(one.families for one in builds(answer.root, answer.tag))]
    return list(dict.fromkeys(below(live) for one in sets for live in one.values()))


def _gate(runs: list[Run], settings: Settings) -> int:
    from cachehome.observe.verdict import judge, require

    verdict = runs[-1].verdict if runs else judge(None)
    faults = (
        [cause.text for cause in require(verdict, settings.require_warm)] if settings.require_warm else []
    )
    if not faults and (verdict.warm or settings.require_warm):
        return 0
    output.talk(f"cachehome: not warm: {'; '.join(faults) or verdict.line()}")
    return 1


def _write(path: str, starts: list[dict[str, Any]], rounds: list[dict[str, Any]], runs: list[Run]) -> None:
    from cachehome.observe.page import page

    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(page(runs, starts, rounds))
    except OSError as error:
        raise CacheHomeError(f"{path}: {error.strerror or error}", path=path) from None


def _starts(workers: list[dict[str, Any]]) -> list[str]:
    lines = [
        f"{'worker':<28} {'build':<9} {'outcome':<12} {'reason':<26} {'files':>7} {'size':>9} {'seconds':>8}"
    ]
    for worker in workers:
        start = worker["start"] or {"outcome": "-", "reason": "-", "files": 0, "bytes": 0, "seconds": {}}
        lines.append(
            f"{worker['worker']:<28} {worker['build'][:8]:<9} {start['outcome']:<12} {start['reason'][:26]:<26}"
            f" {start['files']:>7} {output.size(start['bytes']):>9} {sum(start['seconds'].values()):>8.2f}"
        )
    return lines


def _rounds(rounds: list[dict[str, Any]]) -> list[str]:
    lines = [f"{'round':<28} {'kind':<9} {'outcome':<12} {'reason':<26} {'files':>7} {'size':>9} {'wall':>8}"]
    for row in rounds:
        line = f"{row['worker']:<28} {row['kind']:<9} {row['outcome']:<12} {row['reason'][:26]:<26} {row['files']:>7}"
        lines.append(
            f"{line} {output.size(row['bytes']):>9} {row['wall']:>8.2f}{'  overlaps' * row['overlaps']}"
        )
    return lines
