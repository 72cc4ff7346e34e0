"""`cachehome disable`: take back what `cachehome enable` did."""

from __future__ import annotations

import argparse
import os

from cachehome import switch
from cachehome.commands import output
from cachehome.errors import CacheHomeError
from cachehome.settings import Settings

DESCRIPTION = """Switch the start-up hook off for this Python environment, and leave nothing behind.

Exit code: 0, or 3 if it was not on."""
LENIENT = True


def arguments(parser: argparse.ArgumentParser) -> None:
    del parser


def run(args: argparse.Namespace, settings: Settings) -> int:
    del settings  # a switch, read by the hook, which reads no settings
    before = switch.read()
    try:
        removed = switch.turn_off()
    except OSError as error:
        raise CacheHomeError(
            f"can't switch off: {error.filename}: {error.strerror}; set CACHEHOME=0 instead"
        ) from None
    if args.json:
        output.as_json({"enabled": False, "removed": removed})
    output.talk(
        f"cachehome: off from the next start (removed {', '.join(removed)})"
        if removed
        else "cachehome: was off"
    )
    if os.environ.get("CACHEHOME", "").strip() not in ("", before):  # the switch has set it, too
        output.talk(f"cachehome: CACHEHOME={os.environ['CACHEHOME']} in this environment still decides")
    return 0 if removed else 3
