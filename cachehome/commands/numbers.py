"""Numbers on the command line, and what a wrong one is told."""

from __future__ import annotations

import argparse
import contextlib


def count(text: str) -> int:
    """A whole number, 1 or more."""
    with contextlib.suppress(ValueError):
        if int(text) >= 1:
            return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not allowed: a whole number, 1 or more")


def seconds(text: str) -> float:
    """Seconds, 0 or more."""
    with contextlib.suppress(ValueError):
        if 0 <= float(text) < 1e9:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not allowed: seconds, 0 or more")
