"""Waiting for descriptors by poll(2): select(2) takes no number above 1,023, and a job may have opened more before."""

from __future__ import annotations

import select
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def readable(ends: Iterable[int], seconds: float) -> list[int]:
    """Which of *ends* can be read, or have ended, within so many *seconds*."""
    return _ready(ends, select.POLLIN, seconds)


def writable(end: int, seconds: float) -> bool:
    """Whether *end* takes something, or will never do, within so many *seconds*."""
    return bool(_ready([end], select.POLLOUT, seconds))


def _ready(ends: Iterable[int], event: int, seconds: float) -> list[int]:
    poll = select.poll()
    for end in ends:
        poll.register(end, event)
    return [end for end, _ in poll.poll(max(0.0, seconds) * 1000)]
