"""`cachehome path`: one live directory."""

from __future__ import annotations

import argparse

from cachehome import families
from cachehome.commands import activation, output
from cachehome.errors import ConfigError
from cachehome.settings import Settings

DESCRIPTION = """Print the live directory in effect of a family, or the one that holds all of ours.

Exit code: 0, or 3 if there is none, so that torch's own default applies (the reason is on stderr)."""
SETTINGS = ("local", "slot")
LENIENT = True


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("family", nargs="?", metavar="FAMILY", help="inductor, triton, ...")


def run(args: argparse.Namespace, settings: Settings) -> int:
    known = families.catalogue(plugins=True)
    if args.family is not None and args.family not in known:
        raise ConfigError(f"no family {args.family!r}: one of {', '.join(known)}", value=args.family)
    answer = activation.resolution(settings.replace(families=(args.family,)) if args.family else settings)
    if args.family and known[args.family].subdirectory.count("/"):
        # What lies below another family's directory moves with it, so all have to be looked at.
        answer = activation.resolution(settings.replace(families=tuple(known)))
    place = answer.directories.get(args.family) if args.family else answer.live
    if args.json:
        output.as_json({"family": args.family, "path": place, "reason": answer.reason})
    elif place is not None:
        output.lines(place)
    if place is None:
        skipped = dict(answer.skipped).get(args.family or "")
        output.talk(f"cachehome: {skipped or answer.reason}")
        return 3
    return 0
