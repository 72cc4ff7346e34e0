"""The report as one HTML file, without scripts and without anything from elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from cachehome.observe.history import GROUPS, REPAIRS
from cachehome.observe.runs import Run

_STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 70em; padding: 0 1em; color: #222 }
table { border-collapse: collapse; margin: .6em 0 1.4em } th, td { padding: .2em .8em; border-bottom: 1px solid #ddd }
th { text-align: left } td.n { text-align: right; font-variant-numeric: tabular-nums }
.state { padding: .1em .6em; border-radius: .6em; color: white; background: #777 }
.warm { background: #17803d } .partly { background: #b26a00 } .inert, .cold { background: #b3261e }
@media (prefers-color-scheme: dark) { body { background: #181818; color: #ddd } th, td { border-color: #444 } }
"""


def page(
    runs: Sequence[Run], starts: Sequence[Mapping[str, Any]], rounds: Sequence[Mapping[str, Any]]
) -> str:
    """The whole document; the newest run comes first."""
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>cachehome report</title>',
        f"<style>{_STYLE}</style></head><body><h1>cachehome report</h1>",
        *(_run(run) for run in reversed(runs)),
    ]
    if not runs:
        parts.append("<p>No process left counters.</p>")
    if starts:
        parts += ["<h2>Restored</h2>", _restored(starts)]
    if rounds:
        parts += ["<h2>Published</h2>", _published(rounds)]
    return "\n".join([*parts, "</body></html>\n"])


def _run(run: Run) -> str:
    activity, verdict = run.activity, run.verdict
    began = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(activity.began))
    saved = ""
    if verdict.saved_seconds is not None:
        least = "at least " if verdict.saved_partly else ""
        saved = f"<p>Saved {least}{verdict.saved_seconds:.1f} s of compiling, as measured when it was compiled.</p>"
    items = "".join(f"<li>{escape(cause.text)}</li>" for cause in (*verdict.causes, *verdict.notes))
    rows = [
        (counter.replace("_", " "), activity.counts.get(counter))
        for counter in (*(name for names in GROUPS.values() for name in names), "compile_seconds", *REPAIRS)
    ]
    counted = _table(
        ("counter", ""), [(name, "unknown" if value is None else f"{value:g}") for name, value in rows]
    )
    places = "".join(
        f"<li>{escape(family)}: {escape(' → '.join(found))}</li>"
        for family, found in activity.directories.items()
        if found
    )
    state = f'<span class="state {escape(verdict.state.split()[0])}">{escape(verdict.state)}</span>'
    return (
        f"<h2>{escape(activity.run)} {state}</h2><p>Began {began} UTC; {activity.processes} processes"
        f"{', ' + str(len(activity.ranks)) + ' ranks' if activity.ranks else ''}.</p>"
        f"{saved}<ul>{items}</ul>{counted}<ul>{places}</ul>"
    )


def _restored(starts: Sequence[Mapping[str, Any]]) -> str:
    rows = []
    for worker in starts:
        start = worker.get("start") or {}
        seconds = f"{sum((start.get('seconds') or {}).values()):.2f}"
        rows.append(
            (
                worker.get("worker"),
                start.get("outcome"),
                start.get("reason"),
                start.get("files"),
                start.get("bytes"),
                seconds,
            )
        )
    return _table(("worker", "outcome", "reason", "files", "bytes", "seconds"), rows)


def _published(rounds: Sequence[Mapping[str, Any]]) -> str:
    names = ("worker", "kind", "outcome", "reason", "files", "bytes", "wall")
    return _table(names, [tuple(row.get(name) for name in names) for row in rounds])


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    def cell(value: Any) -> str:
        text = "" if value is None else str(value)
        return f"<td{' class=n' if text.replace('.', '', 1).isdigit() else ''}>{escape(text)}</td>"

    body = "".join(f"<tr>{''.join(map(cell, row))}</tr>" for row in rows)
    return f"<table><tr>{''.join(f'<th>{escape(name)}</th>' for name in head)}</tr>{body}</table>"
