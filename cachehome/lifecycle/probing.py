"""The identity of a command, found out by a forked child: it may take long or hang, and no signal must wait for it."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING

from cachehome.errors import CacheHomeError
from cachehome.identity import Identity, identity
from cachehome.named import keep_only

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cachehome.settings import Settings


class Probing:
    """Under way. For a process with one thread."""

    def __init__(
        self, settings: Settings, environ: Mapping[str, str], command: Sequence[str], seconds: float
    ) -> None:
        self._seconds = seconds
        self._late = time.monotonic() + seconds
        self._data = bytearray()
        self._end, theirs = os.pipe()
        os.set_blocking(self._end, False)
        self.pid = os.fork()
        if not self.pid:
            _child(theirs, settings, environ, command)
        os.close(theirs)

    def poll(self) -> Identity | None:
        """Look once; the identity if it is known. Raises `CacheHomeError` with the reason why it can't be."""
        with contextlib.suppress(BlockingIOError):
            while block := os.read(self._end, 1 << 16):
                self._data += block
            self._close(1.0)
            kind, text = self._data[:1], bytes(self._data[1:])
            if kind != b"r":
                raise CacheHomeError(text.decode(errors="replace") or "the process that probes died")
            return Identity.from_json(text)
        if time.monotonic() > self._late:
            self.stop()
            raise CacheHomeError(
                f"identity: not known within {self._seconds:g} s: is a file server gone? --identity FILE gives it"
            )
        return None

    def stop(self) -> None:
        """End it. One that hangs in the kernel is left behind."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self._close(0.2)

    def _close(self, seconds: float) -> None:
        os.close(self._end)
        until = time.monotonic() + seconds
        while not os.waitpid(self.pid, os.WNOHANG)[0] and time.monotonic() < until:
            time.sleep(0.001)


def _child(end: int, settings: Settings, environ: Mapping[str, str], command: Sequence[str]) -> None:
    """The life of the forked child. Never returns."""
    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        keep_only(end)
        try:
            answer = b"r" + identity(settings, environ, command).to_json().encode()
        except Exception as error:
            answer = f"e{error}".encode(errors="replace")
        view = memoryview(answer)
        while view:
            view = view[os.write(end, view) :]
    finally:
        os._exit(0)
