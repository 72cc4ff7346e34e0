"""`cachehome key`: this machine's and job's identity, in hashes, in full, or with the reasons."""

from __future__ import annotations

import argparse
import os

from cachehome.commands import output
from cachehome.identity import Identity, flatten, identity
from cachehome.settings import Settings

DESCRIPTION = """Print the identity: build (what machine code depends on) and profile (what the job compiles).

With --json, a document that `--identity FILE` and CACHEHOME_IDENTITY take on another machine. With a command after --,
the identity of that command's interpreter, and the profile that `run` would give it."""
SETTINGS = ("profile", "build_key", "image", "sources", "identity")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--explain", action="store_true", help="every field, and what was left out and why")
    parser.add_argument(
        "command", nargs="*", metavar="-- COMMAND", help="the command that the identity is for"
    )


def run(args: argparse.Namespace, settings: Settings) -> int:
    found = identity(settings, os.environ, args.command or None)
    if args.json:
        output.as_json(found.to_dict())
    elif args.explain:
        output.lines(*explain(found))
    else:
        output.lines(f"{found.build_key}/{found.profile_key}")
    return 0


def explain(found: Identity) -> list[str]:
    """The identity as lines for people."""
    lines = [f"build {found.build_key}"]
    lines += _fields(flatten(found.build))
    lines += ["", f"profile {found.profile_key}"]
    lines += _fields(flatten(found.profile))
    lines += ["", "left out"]
    lines += _fields(found.left_out.items()) or ["  nothing"]
    return lines


def _fields(pairs: object) -> list[str]:
    fields = sorted(pairs)  # type: ignore[call-overload]
    width = min(max((len(name) for name, _ in fields), default=0), 40)
    return [f"  {name:<{width}}  {value or '(empty)'}" for name, value in fields]
