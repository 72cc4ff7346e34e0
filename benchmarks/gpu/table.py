"""The table of a suite: an arm a line, counters first, then the medians and spread of its times."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

Rows = Sequence[dict[str, Any]]


def table(rows: Rows, facts: dict[str, Any], options: dict[str, Any], left_out: Sequence[str]) -> str:
    """The page, in Markdown."""
    arms: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        arms.setdefault(row["arm"], []).append(row)
    cold = next((row for row in rows if row["arm"] == "cold" and "outputs" in row), None)
    lines = [
        ", ".join(f"{name} {value}" for name, value in facts.items()),
        "",
        "mode {mode}, {layers} layers, batches {batches} of {tokens} tokens, {ranks} process(es)".format(
            **options
        ),
        "",
        f"| start | outputs | {' | '.join(COLUMNS)} |",
        f"|{'---|' * (len(COLUMNS) + 2)}",
    ]
    for arm, found in arms.items():
        good = [row for row in found if "outputs" in row]
        if not good:
            lines.append(f"| {arm} | failed: {found[0].get('said', '')[-200:]!r} |")
            continue
        cells = [cell(good) for cell in COLUMNS.values()]
        lines.append(f"| {arm} | {_outputs(good, cold)} | {' | '.join(cells)} |")
    lines += ["", "Median [smallest to largest]. Verdicts of the starts that were not warm, or changed:", ""]
    for arm, found in arms.items():
        changed = arm.startswith("changed")
        told = [row for row in found if "state" in row and (changed or row["state"] != "warm")]
        for line in dict.fromkeys(
            "; note: ".join((row["verdict"], *(row["notes"] if changed else ()))) for row in told
        ):
            lines.append(f"- {arm}: {line}")
    ranked = [row for row in rows if row.get("by_rank")]
    if ranked:
        lines += ["", "By rank, what is not zero:", ""]
    for row in ranked:
        for rank, told in row["by_rank"].items():
            counts = ", ".join(f"{name} {count:g}" for name, count in told["counts"].items())
            lines.append(f"- {row['arm']} {row['n']}, {rank}: {told['state']}; {counts}")
    if left_out:
        lines += ["", f"Left out for lack of time: {', '.join(dict.fromkeys(left_out))}."]
    return "\n".join(lines) + "\n"


def _outputs(rows: Rows, cold: dict[str, Any] | None) -> str:
    if cold is None or rows[0].get("note") == "shape":
        return "-"
    if all(row["outputs"] == cold["outputs"] for row in rows):
        return "equal"
    return "same choices" if all(row["choices"] == cold["choices"] for row in rows) else "differ"


def _pair(rows: Rows, first: str, second: str) -> str:
    return f"{_count(rows, first)}/{_count(rows, second)}"


def _count(rows: Rows, name: str) -> str:
    values = [row["counts"].get(name) for row in rows]
    return "unknown" if any(value is None for value in values) else _range(values)


def _range(values: Sequence[Any]) -> str:
    if not values:
        return "-"
    low, high = min(values), max(values)
    return f"{low}" if low == high else f"{low} to {high}"


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "-"
    middle = statistics.median(values)
    return f"{middle:.2f}" if len(values) == 1 else f"{middle:.2f} [{min(values):.2f} to {max(values):.2f}]"


def _graphs(rows: Rows) -> str:
    found = [row["graphs"] for row in rows if row.get("graphs")]
    return "-" if not found else "{files} of {keys} keys, {megabytes} MB".format(**found[0])


def _restored(rows: Rows) -> str:
    records = [row["restore"] for row in rows if row.get("restore")]
    if not records:
        return "-"
    return f"{records[0].get('files', 0)}, {records[0].get('bytes', 0) / 1e6:.1f}"


COLUMNS: dict[str, Callable[[Rows], str]] = {
    "n": lambda rows: str(len(rows)),
    "verdict": lambda rows: "; ".join(dict.fromkeys(row["state"] for row in rows)),
    "FX hit/miss": lambda rows: _pair(rows, "fx_hits", "fx_misses"),
    "AOT hit/miss": lambda rows: _pair(rows, "aot_hits", "aot_misses"),
    "Triton hit/miss": lambda rows: _pair(rows, "triton_hits", "triton_misses"),
    "autotuners loaded/repaired": lambda rows: _pair(rows, "autotuners_loaded", "autotuners_repaired"),
    "choices kept": lambda rows: _count(rows, "choices_kept"),
    "tuned/benchmarks": lambda rows: _pair(rows, "kernels_tuned", "benchmarks"),
    "C++/ptxas": lambda rows: _pair(rows, "cxx_kernels", "ptxas"),
    "written outside": lambda rows: _range(
        [row["written_outside"] for row in rows if "written_outside" in row]
    ),
    "FX files": _graphs,
    "restored files, MB": _restored,
    "restore s": lambda rows: _spread(
        [row["restore"]["process_seconds"] for row in rows if row.get("restore")]
    ),
    "first outputs s": lambda rows: _spread([sum(row["first_output"].values()) for row in rows]),
    "whole process s": lambda rows: _spread(
        [row["seconds"] for row in rows if isinstance(row["seconds"], float)]
    ),
}
