"""`cachehome enable`: the hook is on in this Python environment, without a variable."""

from __future__ import annotations

import argparse
import os
import sys

from cachehome import switch
from cachehome.commands import output
from cachehome.errors import CacheHomeError, ConfigError
from cachehome.settings import Settings

DESCRIPTION = """Switch the start-up hook on for this Python environment.

It takes effect in the next process and lasts until `cachehome disable` or until the package is uninstalled or
upgraded. CACHEHOME, where it is set, outranks it: CACHEHOME=0 switches one process tree off."""
LENIENT = True


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--root", metavar="DIRECTORY", help="an absolute directory, instead of the default root"
    )


def run(args: argparse.Namespace, settings: Settings) -> int:
    del settings  # a switch, read by the hook, which reads no settings
    if args.root and not os.path.isabs(args.root):
        raise ConfigError(f"--root: {args.root!r} is not an absolute directory", key="root", value=args.root)
    if args.root and "\n" in args.root:
        raise ConfigError("--root: a name with a line break can't be kept", key="root", value=args.root)
    before = switch.read()
    try:
        path = switch.turn_on(os.path.normpath(args.root) if args.root else "1")
    except OSError as error:
        raise CacheHomeError(
            f"can't switch on: {error.filename}: {error.strerror}; set CACHEHOME=1 instead"
        ) from None
    if not path:
        raise CacheHomeError(
            f"the start-up hook is not installed for {sys.executable}: install cachehome there with pip,"
            " or use `import cachehome.activate`"
        )
    if args.json:
        output.as_json({"enabled": True, "file": path})
    output.talk(f"cachehome: on from the next start of {sys.executable} ({path})")
    if os.environ.get("CACHEHOME", "").strip() not in ("", before):  # the switch sets it, too
        output.talk(f"cachehome: CACHEHOME={os.environ['CACHEHOME']} in this environment outranks it")
    return 0
