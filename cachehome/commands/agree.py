"""`cachehome agree`: all nodes that compute have one identity, or a table of what differs where."""

from __future__ import annotations

import argparse
import os

from cachehome import agreement
from cachehome.commands import numbers, output
from cachehome.identity import identity
from cachehome.settings import Settings

DESCRIPTION = """Check that all nodes have one identity, before anything is restored.

Run it on every node with the same DIRECTORY, which all of them see and which is fresh for each launch. Nodes without a
GPU are not asked as soon as one with a GPU is there. For a job in another interpreter, give each node's identity with
--identity FILE (`cachehome key --json -- COMMAND`). Exit code 0: they agree; 1: they do not, or too few came."""
SETTINGS = ("profile", "build_key", "image", "sources", "identity")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIRECTORY", help="a directory that every node can write")
    parser.add_argument(
        "--nodes", type=numbers.count, required=True, metavar="N", help="how many nodes must agree"
    )
    parser.add_argument(
        "--name", metavar="NAME", help="this node's name in the table (default: its host name)"
    )
    parser.add_argument(
        "--timeout",
        type=numbers.seconds,
        default=300.0,
        metavar="SECONDS",
        help="how long to wait (default: 300)",
    )


def run(args: argparse.Namespace, settings: Settings) -> int:
    mine = identity(settings, os.environ)
    document = {"agree": True, "build": mine.build_key, "profile": mine.profile_key}
    try:
        found = agreement.agree(args.directory, mine, args.nodes, node=args.name, timeout=args.timeout)
    except agreement.Disagreement as error:
        if args.json:
            rows = [{"field": row.field, "values": dict(row.values)} for row in error.rows]
            output.as_json({**document, "agree": False, "reason": "differ", "differences": rows})
        else:
            output.lines(*agreement.table(error.rows))
        output.talk(f"cachehome: {error}")
        return 1
    except agreement.TooFew as error:
        if args.json:
            output.as_json({**document, "agree": False, "reason": "too_few", "nodes": error.nodes})
        output.talk(f"cachehome: {error}")
        return 1
    if args.json:
        output.as_json({**document, "nodes": sorted(found)})
    else:
        agree = "node agrees" if len(found) == 1 else "nodes agree"
        key = f"build {mine.build_key[:16]}, profile {mine.profile_key[:16]}"
        output.lines(f"{len(found)} {agree}: {key}")
    return 0
