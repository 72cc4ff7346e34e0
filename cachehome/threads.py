"""Whether this process has other threads: then it must not fork, and what belongs to the whole of it is not ours to
switch.

Does not import `threading`, which most short commands never need: who has started a thread has done that already.
"""

from __future__ import annotations

import os
import sys


def alone() -> bool:
    """Whether no other thread of Python's runs here."""
    threading = sys.modules.get("threading")
    return threading is None or threading.active_count() == 1


def may_fork() -> bool:
    """Whether a forked child may go on with Python: this process has one thread, of whatever kind."""
    if not hasattr(os, "fork") or sys.platform == "darwin" or not alone():
        return False
    try:
        return len(os.listdir("/proc/self/task")) == 1
    except OSError:
        return False
