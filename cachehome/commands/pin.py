"""`cachehome pin`: keep the packs of a generation."""

from __future__ import annotations

import argparse

from cachehome.commands import marking, output
from cachehome.commands.store_arguments import open_store
from cachehome.errors import StoreError
from cachehome.settings import Settings

DESCRIPTION = """Keep everything that a generation needs, whatever retention does to its line.

`cachehome restore --generation NUMBER` finds it then, too. `cachehome unpin` undoes it."""
SETTINGS = marking.SETTINGS
GUARDED = True


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("generation", metavar=marking.GENERATION, help=marking.HELP)
    parser.add_argument("--label", default="", help="what to call it; default: PROFILE-NUMBER")


def run(args: argparse.Namespace, settings: Settings) -> int:
    store = open_store(settings)
    build, profile, number = marking.numbered(store, args.generation)
    label = args.label or f"{profile[:40]}-{number}"
    if not store.pin(build, profile, number, label):
        raise StoreError(f"the label {label} pins another generation: unpin it, or give --label", name=label)
    if args.json:
        output.as_json({"build": build, "profile": profile, "generation": number, "label": label})
    output.talk(f"cachehome: generation {number} is pinned; undo: cachehome unpin {build[:8]}/{label}")
    return 0
