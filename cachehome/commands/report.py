"""`cachehome report`: what the workers of a run restored and published."""

from __future__ import annotations

import argparse
from typing import Any

from cachehome.commands import output
from cachehome.settings import Settings

DESCRIPTION = """What the workers of a run restored and published, from the reports in DIRECTORY (default: report_dir).

A restore that hit brought files; whether they were used is another figure (`--diagnostics`)."""
SETTINGS = ("report_dir",)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", nargs="?", default="", metavar="DIRECTORY")


def run(args: argparse.Namespace, settings: Settings) -> int:
    from cachehome.errors import ConfigError
    from cachehome.lifecycle.reports import PROGRESS, STARTS, merge, read_parts

    directory = args.directory or settings.report_dir
    if not directory:
        raise ConfigError("report: no directory: name one, or set CACHEHOME_REPORT_DIR", key="report_dir")
    parts = read_parts(directory)
    reports = merge(parts)
    if args.json:
        output.as_json({"starts": reports[STARTS], "progress": reports[PROGRESS]})
    elif parts:
        output.lines(*_starts(reports[STARTS]["workers"]), "", *_rounds(reports[PROGRESS]["rounds"]))
    if not parts:
        output.talk(f"cachehome: no reports in {directory}")
    return 0 if parts else 3


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
