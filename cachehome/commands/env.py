"""`cachehome env`: what activation sets here, for a shell to take over."""

from __future__ import annotations

import argparse
import os
import shlex
import sys

from cachehome import home
from cachehome.commands import activation, output
from cachehome.settings import Settings

DESCRIPTION = """Print what activation sets in this environment.

    eval "$(cachehome env)"                # sh, bash, zsh
    cachehome env --shell fish | source    # fish

Exit code: 0, or 3 if there is nothing to set (the reason is on stderr)."""
SETTINGS = ("families", "local", "slot")
LENIENT = True


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shell", choices=("sh", "fish", "json"), default="sh", help="how to write it (sh)")


def run(args: argparse.Namespace, settings: Settings) -> int:
    answer = activation.resolution(settings, make=True)
    variables = dict(answer.values)
    if answer.record:
        variables[home.APPLIED] = answer.record
    if args.json or args.shell == "json":
        output.as_json(
            {
                "variables": variables,
                "unset": answer.unset,
                "kept": answer.kept,
                "root": answer.root,
                "live": answer.live,
                "source": answer.source,
                "reason": answer.reason,
                "skipped": answer.skipped,
                "notes": answer.notes,
            }
        )
    else:
        _write([_export(args.shell, name, value) for name, value in variables.items()])
        _write([_unset(args.shell, name) for name in answer.unset])
    for note in [*answer.notes, *home.warnings(answer)]:
        output.talk(f"cachehome: {note}")
    if not variables:
        output.talk(f"cachehome: {answer.reason}")
        return 3
    return 0


def _export(shell: str, name: str, value: str) -> str:
    if shell == "fish":
        quoted = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"set -gx {name} '{quoted}'"
    return f"export {name}={shlex.quote(value)}"


def _unset(shell: str, name: str) -> str:
    return f"set -e {name}" if shell == "fish" else f"unset {name}"


def _write(lines: list[str]) -> None:
    """Paths are bytes: what is not text passes through as it is, in any locale."""
    text = "".join(line + "\n" for line in lines)
    stream = getattr(sys.stdout, "buffer", None)
    if stream is None:
        sys.stdout.write(text)
    else:
        sys.stdout.flush()
        stream.write(os.fsencode(text))
