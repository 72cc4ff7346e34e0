"""The cyclic garbage collector, switched off where much is made and nothing of it is garbage."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from cachehome.threads import alone


@contextmanager
def uncollected() -> Iterator[None]:
    """Leave the collector off: it would look at thousands of tuples again and again, and have their pages copied in
    forked workers. Not where other threads run, who may make garbage: one that hangs would leave it off for good."""
    collecting = gc.isenabled() and alone()
    if collecting:
        gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
