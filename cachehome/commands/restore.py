"""`cachehome restore`: one restore into the directories in effect."""

from __future__ import annotations

import argparse

from cachehome.commands import ended, output
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
    parser.add_argument(
        "--leave-out",
        metavar="[LINE:]N,M,..K",
        help="without what generations N and M brought, nor all up to K; older local copies are moved aside",
    )
    parser.add_argument(
        "--made-before",
        type=float,
        default=float("inf"),
        metavar="SECONDS",
        help="of local copies, only those made before this time (since 1970) are moved aside",
    )
    parser.add_argument(
        "--cold", action="store_true", help="move aside all else in the live directories, too"
    )


def run(args: argparse.Namespace, settings: Settings) -> int:
    from cachehome.sync.guard import restore

    leave_out = None
    if args.leave_out or args.cold:
        from cachehome.sync.denied import LeaveOut

        leave_out = LeaveOut.parse(args.leave_out or "", args.made_before, args.cold)
    with ended.cleanly():
        found = restore(settings, number=args.generation, leave_out=leave_out)
    return output.record(found, json_wanted=args.json)
