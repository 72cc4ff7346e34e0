"""Work on a store in a process of its own, which is ended, or left behind, when the store hangs.

    this process                              its child
    passes on what the child prints      <-   does the work
    looks for signs of life: CPU time, bytes read and written
    none for so many seconds: ends it, says so in a line, fails

A transfer has a deadline; looking after a store may take hours, and is late only when nothing moves any more. Where
open(2) never returns, nobody waits for the child.
"""

from __future__ import annotations

import io
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

from cachehome.commands import ended
from cachehome.threads import alone
from cachehome.waiting import readable

_LOOK_EVERY = 0.25
_GRACE = 1.0  # seconds that a child which was told to end may be silent: it removes what it has tried out
_LONGEST = 10.0  # seconds that it may take for that in all
_BLOCK = 1 << 16


def possible() -> bool:
    """Whether this process may fork, and has streams for a child to print to."""
    streams = all(stream is not None for stream in (sys.stdin, sys.stdout, sys.stderr))
    return streams and hasattr(os, "fork") and alone()


def within(seconds: float, act: Callable[[], int], late: str) -> int:
    """The exit code of *act*; 1, and *late* on stderr, if it gives no sign of life for so many *seconds*."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    pipes = {1: os.pipe(), 2: os.pipe()}
    with ended.cleanly():
        pid = os.fork()
        if not pid:
            _child(act, pipes)
        for _, theirs in pipes.values():
            os.close(theirs)
        relays = {ours: stream for stream, (ours, _) in pipes.items()}
        try:
            code = _see_through(pid, relays, seconds)
            if code is None:
                _end(pid)
        except KeyboardInterrupt:
            _end(pid, told=True)  # a key of the terminal, which the child got as well
            raise
        except BaseException:
            _end(pid)
            raise
        finally:
            for ours, _ in pipes.values():
                os.close(ours)
    if code is None:
        print(f"cachehome: {late}", file=sys.stderr)
        return 1
    return code


def _child(act: Callable[[], int], pipes: dict[int, tuple[int, int]]) -> NoReturn:
    """The life of the forked child. Nothing of the parent's may run twice, so it never returns."""
    code = 1
    try:
        for stream, (ours, theirs) in pipes.items():
            os.dup2(theirs, stream)
            os.close(ours)
            os.close(theirs)
        if isinstance(sys.stdout, io.TextIOWrapper):  # data comes before what is said of it, as on a terminal
            sys.stdout.reconfigure(line_buffering=True)
        code = act()
        sys.stdout.flush()
        sys.stderr.flush()
    except SystemExit:
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


class _Life:
    """Whether a process moves."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.seen: int | None = -1
        self.moved = time.monotonic()

    def silent(self) -> float:
        """Seconds since it last gave a sign of life; 0 where that can't be seen."""
        from cachehome.lifecycle.transfer import signs_of_life

        now, seen = time.monotonic(), signs_of_life(self.pid)
        if seen is None or seen != self.seen:
            self.seen, self.moved = seen, now
        return now - self.moved


def _see_through(pid: int, pipes: dict[int, int], seconds: float) -> int | None:
    """Pass on what comes through *pipes* until the child has ended; its exit code, None if it hangs."""
    life = _Life(pid)
    while life.silent() < seconds:
        _relay(pipes, _LOOK_EVERY)
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            while _relay(pipes, 0):
                pass
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
    return None


def _relay(pipes: dict[int, int], seconds: float) -> bool:
    """Pass on what comes within so many *seconds*; whether there was anything. Pipes that have ended are left out."""
    ready = readable(pipes, seconds) if pipes else []
    for ours in ready:
        block = os.read(ours, _BLOCK)
        if block:
            _write(pipes[ours], block)
        else:
            del pipes[ours]
    if not pipes:
        time.sleep(min(seconds, 0.001))  # it is about to end
    return bool(ready)


def _write(stream: int, block: bytes) -> None:
    view = memoryview(block)
    while view:
        view = view[os.write(stream, view) :]


def _end(pid: int, *, told: bool = False) -> None:
    """End the child, that was *told* already. One that hangs in the kernel is not waited for."""
    for number, grace in ((0 if told else signal.SIGTERM, _GRACE), (signal.SIGKILL, _GRACE / 4)):
        os.kill(pid, number)
        life = _Life(pid)
        until = time.monotonic() + _LONGEST
        while life.silent() < grace and time.monotonic() < until:
            if os.waitpid(pid, os.WNOHANG)[0]:
                return
            time.sleep(0.01)
