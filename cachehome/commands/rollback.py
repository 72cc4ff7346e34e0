"""`cachehome rollback`: deny what came after a generation."""

from __future__ import annotations

import argparse

from cachehome.commands import marking
from cachehome.commands.store_arguments import open_store
from cachehome.settings import Settings
from cachehome.store import marks

DESCRIPTION = """Deny the entries that came after a generation, for all profiles of its build.

Restores leave them out and move local copies aside; publishers do not bring them back. Another copy of an entry,
with other bytes, is welcome. `cachehome unquarantine` undoes it."""
SETTINGS = marking.SETTINGS
GUARDED = True


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("generation", metavar=marking.GENERATION, help=marking.HELP)
    parser.add_argument("--note", default="", help="why, for people")
    parser.add_argument("--dry-run", action="store_true", help="only list the entries")


def run(args: argparse.Namespace, settings: Settings) -> int:
    store = open_store(settings)
    done = marking.deny(store, args.generation, marks.ROLLBACK, args.note, dry_run=args.dry_run)
    return marking.tell(done, json_wanted=args.json, dry_run=args.dry_run)
