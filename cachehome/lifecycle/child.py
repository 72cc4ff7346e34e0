"""The process of one transfer: `python -m cachehome.lifecycle.child PRIORITY SECONDS VERB ...`.

    PRIORITY   low: yield CPU and disk to the job; normal: the job is waiting for this
    SECONDS    its whole process group ends after so long, also when whoever started it is gone
    VERB ...   what `cachehome` is told, `fill` or `gather` (`slots`), `deny` (`starts`)

Set by the process itself: code between fork and exec is not safe in a driver that has threads.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from types import FrameType

_IOPRIO_SET = {"x86_64": 251, "aarch64": 30, "ppc64le": 273, "riscv64": 30}
_LOWEST_OF_BEST_EFFORT = 2 << 13 | 7  # not "idle": on a busy disk that class may wait for ever


def main(arguments: list[str]) -> int:
    priority, seconds, *command = arguments
    if hasattr(signal, "SIGALRM"):
        signal.signal(signal.SIGALRM, _end_group)
        signal.setitimer(signal.ITIMER_REAL, max(1.0, float(seconds)))
    signal.signal(signal.SIGTERM, _leave)
    if priority == "low":
        be_modest()
    if command[0] in ("fill", "gather"):
        from cachehome.lifecycle.slots import main as slots

        return slots(command)
    if command[0] == "deny":
        from cachehome.lifecycle.starts import main as deny

        return deny(command[1:])
    from cachehome.sync import ahead

    ahead.begin(command)
    from cachehome.cli import main as cachehome

    return cachehome(command)


def be_modest() -> None:
    """Lowest useful priority for CPU and disk, inherited by whatever this process starts."""
    with contextlib.suppress(OSError, AttributeError):
        os.nice(10)
    # Where the kernel shares CPU out by session, nice counts within ours only, and a session of one process would get
    # as much as the whole job.
    with contextlib.suppress(OSError), open("/proc/self/autogroup", "w", encoding="ascii") as file:
        file.write("10")
    number = _IOPRIO_SET.get(os.uname().machine) if sys.platform == "linux" else None
    if number is not None:
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).syscall(number, 1, 0, _LOWEST_OF_BEST_EFFORT)


def _leave(number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise SystemExit(128 + number)  # an exception, so that staging directories are removed on the way out


def _end_group(_number: int, _frame: FrameType | None) -> None:
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(128 + signal.SIGKILL)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
