"""`cachehome unpin`: undo a pin; without a label, list them."""

from __future__ import annotations

import argparse
from typing import Any

from cachehome.commands import marking, output
from cachehome.commands.store_arguments import open_store
from cachehome.settings import Settings

DESCRIPTION = """Let a pinned generation go. Without a label, show the pins.

Exit code: 0 done or listed, 3 nothing is pinned."""
SETTINGS = marking.SETTINGS
GUARDED = True


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("label", nargs="?", default="", metavar="[BUILD/]LABEL", help="as it was told")


def run(args: argparse.Namespace, settings: Settings) -> int:
    store = open_store(settings)
    if args.label:
        build, label = marking.labelled(store, args.label, "pins")
        store.unpin(build, label)
        if args.json:
            output.as_json({"build": build, "label": label})
        output.talk(f"cachehome: {build[:8]}/{label} is no longer pinned")
        return 0
    rows: list[dict[str, Any]] = []
    for build in store.builds():
        pins = store.pins(build)
        for label in sorted(store.backend.list(f"{build}/pins")):
            found = pins.get(label)
            facts = (
                {"profile": found.manifest.profile, "generation": found.number}
                if found
                else {"problem": "can't be read: it keeps nothing"}
            )
            rows.append({"build": build, "label": label, **facts})
    if args.json:
        output.as_json({"store": store.url, "pins": rows})
    else:
        for row in rows:
            told = row.get("problem") or f"{row['profile']}/{row['generation']}"
            output.lines(f"{row['build'][:8]}/{row['label']}  {told}")
    if not rows:
        output.talk(f"cachehome: nothing is pinned in {store.url}")
        return 3
    return 0
