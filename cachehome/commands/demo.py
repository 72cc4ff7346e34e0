"""`cachehome demo`: cold start, publish, wipe, restore, warm start, and the figures side by side."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

from cachehome.demo.demo import CACHES, Outcome, demo

if TYPE_CHECKING:
    from cachehome.settings import Settings

LENIENT = True  # the demo has settings of its own

LABELS = {"fxgraph": "FX graph cache", "aotautograd": "AOTAutograd cache", "triton": "Triton cache"}
COMPILERS = {
    "kernel": "C++ compilers started: kernels",
    "header": "  precompiled header (in TMPDIR)",
    "probe": "  instruction set probes",
    "query": "  version and preprocessor queries",
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--keep", metavar="DIR", help="work in this new directory, and leave it for inspection"
    )


def run(args: argparse.Namespace, _settings: Settings) -> int:
    outcome = _ended_like_ctrl_c(lambda: demo(args.keep, _progress))
    if args.json:
        print(json.dumps(outcome.to_json()))
    else:
        show(("start", "cold", "warm"), starts(outcome))
        show(("transfer", "seconds", "files", "MB", "MB in store"), transfers(outcome))
        print(f"\n{verdict(outcome)}")
    for line in outcome.missed:
        print(f"demo: missed: {line}", file=sys.stderr)
    return 1 if outcome.missed else 0


def _progress(line: str) -> None:
    print(f"demo: {line}", file=sys.stderr, flush=True)


def _ended_like_ctrl_c(work: Callable[[], Outcome]) -> Outcome:
    """A terminal that closes, or a `timeout`, ends the demo as Ctrl-C does: with its directory gone."""

    def end(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    previous = {}
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:  # under nohup a closed terminal does not count
            previous[number] = signal.signal(number, end)
    try:
        return work()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def verdict(outcome: Outcome) -> str:
    if outcome.missed:
        return "The warm start was not warm: " + "; ".join(outcome.missed) + "."
    loss = float.fromhex(outcome.warm.loss)
    return (
        f"The warm start was {outcome.speedup:.1f} times faster than the cold one "
        f"({outcome.speedup_with_restore:.1f} times with the restore before it), "
        f"and its loss is the same to the last bit: {loss:.6f}."
    )


def starts(outcome: Outcome) -> list[tuple[str, ...]]:
    cold, warm = outcome.cold, outcome.warm
    rows: list[tuple[str, ...]] = [
        ("whole process, s", f"{cold.seconds:.1f}", f"{warm.seconds:.1f}"),
        ("compile and run, s", f"{cold.compile_and_run_seconds:.1f}", f"{warm.compile_and_run_seconds:.1f}"),
        ("CPU, s", f"{cold.cpu_seconds:.1f}", f"{warm.cpu_seconds:.1f}"),
    ]
    rows += [
        (label, str(cold.compilers[name]), str(warm.compilers[name])) for name, label in COMPILERS.items()
    ]
    rows.append(("new libraries (.so)", str(cold.libraries), str(warm.libraries)))
    for name in CACHES:
        cells = (f"{start.caches[name]['hits']} / {start.caches[name]['misses']}" for start in (cold, warm))
        rows.append((f"{LABELS[name]}, hits / misses", *cells))
    return rows


def transfers(outcome: Outcome) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, transfer in (("publish", outcome.publish), ("restore", outcome.restore)):
        record = transfer.record
        size, stored = record.get("bytes", 0) / 1e6, record.get("fetched_bytes", 0) / 1e6
        rows.append(
            (name, f"{transfer.seconds:.2f}", str(record.get("files", 0)), f"{size:.2f}", f"{stored:.2f}")
        )
    rows.append(("wipe", "", str(outcome.wipe.files), f"{outcome.wipe.bytes / 1e6:.2f}", ""))
    return rows


def show(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """A table: rich's where it is installed, else plain columns."""
    try:
        from rich.console import Console
        from rich.table import Table
    except ImportError:
        print(f"\n{plain(header, rows)}")
        return
    table = Table()
    for index, name in enumerate(header):
        table.add_column(name, justify="right" if index else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def plain(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = []
    for first, *others in (header, *rows):
        cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)
