"""Reading a file that somebody named: a pipe, a device or a file server that is gone must not hold up a job.

A forked child opens it where this process has one thread, else a thread does: either can be left behind.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time

from cachehome import threads

SECONDS = 10.0
MOST = 16 << 20
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


def read(path: str, seconds: float = SECONDS) -> bytes:
    """The content of the regular file *path*. Raises OSError, `TimeoutError` after *seconds*."""
    if path == os.devnull:
        return b""
    found = _forked(path, seconds) if threads.may_fork() else _threaded(path, seconds)
    if found is None:
        raise no_answer(path, seconds)
    return found


def no_answer(path: str, seconds: float) -> TimeoutError:
    """The error for a file whose server does not answer."""
    return TimeoutError(errno.ETIMEDOUT, f"no answer within {seconds:g} s", path)


def regular(path: str) -> bytes:
    """The same, where waiting for a file server is nothing new. Raises OSError."""
    # Asked before it is opened: to open a device may do something.
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "not a regular file", path)
    with open(os.open(path, _FLAGS), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        data = file.read(MOST + 1)
    if len(data) > MOST:
        raise OSError(errno.EFBIG, f"larger than {MOST >> 20} MiB", path)
    return data


def _threaded(path: str, seconds: float) -> bytes | None:
    import threading

    answer: list[bytes | OSError] = []

    def work() -> None:
        try:
            answer.append(regular(path))
        except OSError as error:
            answer.append(error)

    thread = threading.Thread(target=work, name="cachehome-read", daemon=True)
    thread.start()
    thread.join(seconds)
    if not answer:
        return None
    if isinstance(answer[0], OSError):
        raise answer[0]
    return answer[0]


def _forked(path: str, seconds: float) -> bytes | None:
    import signal

    from cachehome.waiting import readable

    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        _child(path, theirs)
    os.close(theirs)
    data = bytearray()
    until = time.monotonic() + seconds
    try:
        while readable([ours], until - time.monotonic()):
            block = os.read(ours, 1 << 20)
            if not block:
                break
            data += block
        else:
            os.kill(pid, signal.SIGKILL)
            _bury(pid, 0.2)
            return None
    finally:
        os.close(ours)
    _bury(pid, 1.0)
    if not data:
        raise OSError(errno.EIO, "the process that reads it died", path)
    number, _, words = data[1:].partition(b" ")
    if data[:1] == b"e":
        raise OSError(int(number), words.decode(errors="replace"), path)
    return bytes(data[1:])


def _child(path: str, end: int) -> None:
    """The life of the forked child. Never returns: nothing of the parent's may run twice."""
    import signal

    try:
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        keep_only(end)
        try:
            answer = b"r" + regular(path)
        except OSError as error:
            answer = f"e{error.errno or 0} {error.strerror or error}".encode()
        view = memoryview(answer)
        while view:
            view = view[os.write(end, view) :]
    finally:
        os._exit(0)


def keep_only(end: int) -> None:
    """Let a forked child hold nothing of its parent's but *end*: it may be left behind, and whoever reads a pipe that
    it has would wait for it."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in {0, 1, 2} - {end}:
        os.dup2(null, descriptor)
    try:
        found = [int(name) for name in os.listdir("/proc/self/fd")]
    except OSError:
        found = list(range(1024))
    for descriptor in found:
        if descriptor > 2 and descriptor != end:
            with contextlib.suppress(OSError):
                os.close(descriptor)


def _bury(pid: int, seconds: float) -> None:
    """Reap a child; one that hangs in the kernel is not waited for."""
    until = time.monotonic() + seconds
    pause = 0.0002
    with contextlib.suppress(ChildProcessError):  # whoever started us has the system reap our children
        while not os.waitpid(pid, os.WNOHANG)[0] and time.monotonic() < until:
            time.sleep(pause)
            pause = min(0.02, 2 * pause)
