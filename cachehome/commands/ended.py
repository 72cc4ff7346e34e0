"""A verb that is told to end: what it has started ends with it, and what it tried out is removed on the way."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import NoReturn

_SIGNALS = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextlib.contextmanager
def cleanly() -> Iterator[None]:
    """Let SIGTERM and SIGHUP raise SystemExit, with the exit code that a shell gives. What is ignored stays ignored."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    ours = [number for number, handler in before.items() if handler is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, _end)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, before[number])


def _end(number: int, _frame: object) -> NoReturn:
    for other in _SIGNALS:
        signal.signal(other, signal.SIG_IGN)  # once is enough
    raise SystemExit(128 + number)
