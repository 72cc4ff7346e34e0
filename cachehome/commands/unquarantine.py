"""`cachehome unquarantine`: undo a quarantine or a rollback; without a label, list them."""

from __future__ import annotations

import argparse
from typing import Any

from cachehome.commands import marking, output
from cachehome.commands.store_arguments import open_store
from cachehome.settings import Settings

DESCRIPTION = """Remove a list of denied entries: they are welcome again. Without a label, show the lists in force.

Exit code: 0 done or listed, 3 nothing is denied."""
SETTINGS = marking.SETTINGS
GUARDED = True


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("label", nargs="?", default="", metavar="[BUILD/]LABEL", help="as it was told")


def run(args: argparse.Namespace, settings: Settings) -> int:
    store = open_store(settings)
    if args.label:
        build, label = marking.labelled(store, args.label, "denied")
        store.allow(build, label)
        if args.json:
            output.as_json({"build": build, "label": label})
        output.talk(f"cachehome: {build[:8]}/{label} is no longer denied")
        return 0
    rows: list[dict[str, Any]] = []
    for build in store.builds():
        denials = store.denied(build)
        rows += [found._asdict() | {"build": build, "entries": len(found.entries)} for found in denials.lists]
        rows += [{"build": build, "label": label, "problem": why} for label, why in denials.unreadable]
    if args.json:
        output.as_json({"store": store.url, "denied": rows})
    else:
        for row in rows:
            told = row.get("problem") or f"{row['entries']} entries  {row['by']}  {row['note']}"
            output.lines(f"{row['build'][:8]}/{row['label']}  {told}".rstrip())
    if not rows:
        output.talk(f"cachehome: nothing is denied in {store.url}")
        return 3
    return 0
