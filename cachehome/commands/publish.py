"""`cachehome publish`: one publication of the directories in effect."""

from __future__ import annotations

import argparse

from cachehome.commands import ended, output
from cachehome.settings import Settings

DESCRIPTION = """Publish what the live directories in effect hold and the newest generation lacks.

Exit code: 0 published or unchanged, 3 nothing to publish, 1 rejected or unavailable."""
SETTINGS = (
    "store",
    "profile",
    "profile_fallback",
    "identity",
    "families",
    "slim",
    "compression",
    "max_storage_bytes",
    "publish_budget_seconds",
    "store_owners",
    "shared",
    "signing_key",
    "trusted_keys",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--adopt",
        action="store_true",
        help="take all of a directory that was never stamped: it holds this build's work and no other's",
    )


def run(args: argparse.Namespace, settings: Settings) -> int:
    from cachehome.sync.guard import publish

    with ended.cleanly():
        found = publish(settings, adopt=args.adopt)
    return output.record(found, json_wanted=args.json)
