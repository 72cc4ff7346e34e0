"""A verb that is told to end: what it has started ends with it, and what it tried out is removed on the way."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import NoReturn

_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
_CHILD = getattr(signal, "SIGCHLD", None)


@contextlib.contextmanager
def cleanly() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise SystemExit, with the exit code that a shell gives. Where they are ignored, they stay
    so; but for SIGCHLD: else nobody could tell how a child has ended."""
    ours = [number for number in _SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    unreaped = _CHILD is not None and signal.getsignal(_CHILD) is signal.SIG_IGN
    for number in ours:
        signal.signal(number, _end)
    if _CHILD is not None and unreaped:
        signal.signal(_CHILD, signal.SIG_DFL)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
        if _CHILD is not None and unreaped:
            signal.signal(_CHILD, signal.SIG_IGN)


def _end(number: int, _frame: object) -> NoReturn:
    for other in _SIGNALS:
        # Once is enough. Not ignored: Python complains of one that is on its way already.
        signal.signal(other, lambda *_: None)
    raise SystemExit(128 + number)
