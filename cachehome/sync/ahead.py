"""A child that is forked before anybody knows what it is to do, and imports what it will need meanwhile.

    this process                              its child
    begin: the words of a command line   ->   imports a transfer, and what that needs
    reads the command line, the settings      waits
    tell: which settings                 ->   does it (guard.py)
    ends without a word                  ->   ends

Each of the two takes as long as the other. Does not import anything itself that both would have to wait for.
"""

from __future__ import annotations

import contextlib
import os

from cachehome import threads

_waiting: list[tuple[str, int, int, int]] = []
"""(action, pid, where it is told, where it answers); one at most."""


def begin(words: list[str]) -> None:
    """Fork a child for the command line *words*, if that is a transfer and forking is safe."""
    if not words or words[0] not in ("restore", "publish") or {"-h", "--help"} & {*words}:
        return
    if not threads.may_fork():
        return
    ends: list[int] = []
    try:
        ends += pipe()
        ends += pipe()
        pid = os.fork()
    except OSError:  # it would only have saved time
        for end in ends:
            os.close(end)
        return
    theirs, request, answer, mine = ends
    if pid:
        os.close(theirs)
        os.close(mine)
        _waiting.append((words[0], pid, request, answer))
        return
    try:
        os.close(request)
        os.close(answer)
        from cachehome.sync import guard

        guard.serve(words[0], theirs, mine)
    finally:
        os._exit(0)


def pipe() -> tuple[int, int]:
    """The ends of a pipe, none of them a number of the standard streams: a child closes those, and a process may have
    been started without them."""
    import fcntl

    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3) if end < 3 else end for end in ends]
    for end in {*ends} - {*moved}:
        os.close(end)
    return moved[0], moved[1]


def tell(action: str, request: bytes) -> tuple[int, int] | None:
    """Tell the child that was begun for this *action* what it is to do: (its pid, where it answers); None if there is
    none."""
    if not _waiting or _waiting[-1][0] != action:
        return None
    _, pid, end, answer = _waiting.pop()
    try:
        with open(end, "wb") as file:
            file.write(request)
    except BrokenPipeError:  # it has died
        os.close(answer)
        with contextlib.suppress(ChildProcessError):  # whoever started us has the system reap our children
            os.waitpid(pid, 0)
        return None
    return pid, answer
