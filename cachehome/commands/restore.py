"""`cachehome restore`: one restore into the directories in effect."""

from __future__ import annotations

import argparse

from cachehome.commands import output
from cachehome.settings import Settings

DESCRIPTION = """Fill the live directories in effect from the newest generation that verifies.

Exit code: 0 hit, 3 miss or disabled, 1 rejected or unavailable. `cachehome run` does it around a command."""
SETTINGS = (
    "store",
    "profile",
    "profile_fallback",
    "identity",
    "families",
    "slim",
    "store_timeout_seconds",
    "store_owners",
    "shared",
    "trusted_keys",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--generation", type=int, metavar="N", help="this generation, not the newest")


def run(args: argparse.Namespace, settings: Settings) -> int:
    import gc

    from cachehome.identity import identity
    from cachehome.sync.guard import restore

    gc.disable()  # a short life with many small objects: collecting them would only cost time
    found = restore(settings, identity(settings), number=args.generation)
    return output.record(found, json_wanted=args.json)
