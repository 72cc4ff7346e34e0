"""Signals of a process that stands in front of another one and must pass on what it is sent.

Every signal that can be caught arrives as a byte in a pipe; no code runs inside a handler. What the whole
group got (a key of the terminal, `kill -- -GROUP`, a scheduler that tells every process of a job) must not be
passed on, or the command would get it twice, and a second SIGINT breaks what the first one began. No system
call tells. So there is a *witness*: a child that does nothing but note its signals. What reached the witness
reached the command too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Any

from cachehome.waiting import readable

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

# Not passed on: what the kernel tells a process about itself, and what can't be caught.
_OWN = frozenset(
    getattr(signal, name)
    for name in (
        "SIGKILL", "SIGSTOP", "SIGCHLD", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS",
        "SIGPIPE", "SIGXFSZ", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGTTIN", "SIGTTOU",
    )
    if hasattr(signal, name)
)  # fmt: skip
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
# A scheduler signals the processes of a job one after the other, and a busy machine runs the witness late.
WITNESS_DELAY = 0.5


class Signals:
    """From `with` on, signals are read by `wait`. Main thread only; at most one at a time."""

    def __init__(self) -> None:
        self._handlers: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {}
        self._pipe = (-1, -1)
        self._told = -1
        self._lifeline = -1
        self._seen: dict[int, float] = {}
        self._wakeup = -1
        self.witness = 0

    def __enter__(self) -> Signals:  # noqa: PYI034 - Self is newer than Python 3.10
        self._pipe = _pipe()
        # What is ignored on entry (nohup, a background job of a plain shell) stays so, for the command as
        # well.
        for number in (signal.valid_signals() - _OWN) | {signal.SIGCHLD}:
            if signal.getsignal(number) in (signal.SIG_IGN, None) and number != signal.SIGCHLD:
                continue
            with contextlib.suppress(OSError, ValueError):  # the C library keeps some numbers to itself
                self._handlers[number] = signal.signal(number, _nothing)
        self._wakeup = signal.set_wakeup_fd(self._pipe[1], warn_on_full_buffer=False)
        self._start_witness()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.set_wakeup_fd(self._wakeup)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        if self._lifeline >= 0:
            os.close(self._lifeline)  # the witness reads the end of it, and ends
            with contextlib.suppress(ChildProcessError):
                os.waitpid(self.witness, 0)
        for end in (*self._pipe, self._told):
            if end >= 0:
                os.close(end)

    def wait(self, seconds: float) -> list[int]:
        """The signals that came within *seconds*, at most; returns as soon as there is one. SIGCHLD is one of them."""
        with contextlib.suppress(InterruptedError):
            readable((end for end in (self._pipe[0], self._told) if end >= 0), seconds)
        self._ask_witness()
        return list(dict.fromkeys(_drain(self._pipe[0]) or b""))

    def reached_everybody(self, number: int) -> bool:
        """Whether the signal *number*, which `wait` has just returned, was sent to the command as well."""
        until = time.monotonic() + WITNESS_DELAY
        while self._told >= 0:
            # Older ones belong to a signal that came twice and was seen once.
            if self._seen.pop(number, -1.0) > until - 2 * WITNESS_DELAY:
                return True
            left = until - time.monotonic()
            if left <= 0 or not readable([self._told], left):
                return False
            self._ask_witness()
        return False

    def _ask_witness(self) -> None:
        if self._told < 0:
            return
        seen = _drain(self._told)
        if seen == b"":  # it is gone: from now on signals are passed on unasked
            os.close(self._told)
            self._told = -1
        self._seen.update(dict.fromkeys(seen or b"", time.monotonic()))

    def _start_witness(self) -> None:
        lifeline, told = os.pipe(), _pipe()
        try:
            self.witness = os.fork()
        except OSError:  # no process to be had: then signals are passed on unasked
            for end in (*lifeline, *told):
                os.close(end)
            return
        if self.witness == 0:
            try:
                signal.set_wakeup_fd(told[1], warn_on_full_buffer=False)
                _hold_only(lifeline[0], told[1])
                while os.read(lifeline[0], 1):
                    pass
            finally:
                os._exit(0)
        os.close(lifeline[0])
        os.close(told[1])
        self._lifeline, self._told = lifeline[1], told[0]


def _nothing(_number: int, _frame: FrameType | None) -> None:
    """A handler, so that the number reaches the pipe."""


def _pipe() -> tuple[int, int]:
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    return ends


def _drain(end: int) -> bytes | None:
    try:
        return os.read(end, 4096)
    except (BlockingIOError, InterruptedError):
        return None


def _hold_only(*kept: int) -> None:
    """Let go of the job's streams (a reader waits for their end) and directory."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        if stream not in kept:
            os.dup2(null, stream)
    for end in open_files():
        if end > 2 and end not in kept:
            with contextlib.suppress(OSError):
                os.close(end)
    os.chdir("/")


def open_files() -> list[int]:
    """The numbers of this process's open files."""
    for directory in ("/proc/self/fd", "/dev/fd"):
        with contextlib.suppress(OSError):
            return [int(name) for name in os.listdir(directory)]
    return list(range(256))
