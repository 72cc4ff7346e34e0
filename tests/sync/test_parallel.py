from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import queue  # noqa: F401 - another user may not be able to import it
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cachehome import threads
from cachehome.errors import IntegrityError
from cachehome.sync import parallel


@pytest.fixture(params=["fork", "thread"])
def each(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Iterator[object]]:
    # pytest and its plug-ins may have threads of their own: the choice is tested apart.
    monkeypatch.setattr(threads, "may_fork", lambda: request.param == "fork")
    return parallel.each


def test_results_come_in_the_order_of_the_tasks(each: Callable[..., Iterator[object]]) -> None:
    def slow_first(task: int) -> tuple[int, bytes]:
        time.sleep(0.05 if task == 0 else 0)
        return task, bytes(task)

    assert list(each(slow_first, range(50), workers=3)) == [(n, bytes(n)) for n in range(50)]


def test_large_results_and_few_tasks(each: Callable[..., Iterator[object]]) -> None:
    assert list(each(lambda n: bytes([n]) * 3_000_000, [1, 2], workers=8)) == [
        b"\1" * 3_000_000,
        b"\2" * 3_000_000,
    ]
    assert list(each(lambda n: n, [], workers=2)) == []
    assert list(each(lambda n: n + 1, [1], workers=2)) == [2]


def test_an_error_keeps_its_type_and_fields(each: Callable[..., Iterator[object]]) -> None:
    def fail(task: int) -> int:
        if task == 5:
            raise IntegrityError("damaged", name="packs/x", reason="pack_damaged")
        return task

    with pytest.raises(IntegrityError, match="damaged") as caught:
        list(each(fail, range(9), workers=2))
    assert caught.value.reason == "pack_damaged"


class Picky(Exception):
    """Can be written by pickle, and not be read."""

    def __init__(self, one: str, two: str) -> None:
        super().__init__(f"{one} {two}")


@pytest.mark.parametrize("make", [lambda: Picky("a", "b"), lambda: type("Local", (Exception,), {})("a b")])
def test_an_error_that_can_not_travel_is_told_in_words(
    make: Callable[[], Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: int) -> int:
        raise make()

    monkeypatch.setattr(threads, "may_fork", lambda: True)
    with pytest.raises(RuntimeError, match=r"(Picky|Local): a b"):
        list(parallel.each(fail, range(3), workers=2))


def test_a_worker_that_hangs_is_left_at_the_deadline(each: Callable[..., Iterator[object]]) -> None:
    release = threading.Event()
    try:
        with pytest.raises(TimeoutError):
            list(each(lambda _: release.wait(30), range(4), workers=2, deadline=time.monotonic() + 0.3))
    finally:
        release.set()


def test_a_killed_worker_is_an_error_not_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "may_fork", lambda: True)
    mother = os.getpid()

    def die(task: int) -> int:
        if task == 3 and os.getpid() != mother:
            os.kill(os.getpid(), signal.SIGKILL)
        return task

    with pytest.raises(ChildProcessError):
        list(parallel.each(die, range(50), workers=2))


def test_a_process_with_threads_does_not_fork() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    try:
        assert not threads.may_fork()
        pids = set(parallel.each(lambda _: os.getpid(), range(8), workers=2))
        assert pids == {os.getpid()}
    finally:
        done.set()
        thread.join()


@pytest.mark.timeout(60)
def test_more_tasks_than_a_small_pipe_holds() -> None:
    """A user who has many pipes gets small ones."""
    if os.geteuid() != 0:
        pytest.skip("only root may become somebody who has many pipes")
    pid = os.fork()
    if not pid:
        status = 1
        try:
            os.setuid(4003)
            pipes = [os.pipe() for _ in range(80)]
            with contextlib.suppress(PermissionError):
                for _, end in pipes:
                    fcntl.fcntl(end, fcntl.F_SETPIPE_SZ, 1 << 20)
            pipes += [os.pipe() for _ in range(20)]
            small = fcntl.fcntl(pipes[-1][1], fcntl.F_GETPIPE_SZ) < 18_000
            signal.alarm(20)
            # This child has one thread, whatever pytest and its plug-ins have.
            right = list(parallel._forked(lambda task: task, range(9000), 4, None)) == list(range(9000))
            status = 0 if right and small else 2 if right else 1
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if status == 2:
        pytest.skip("no limit on pipes here")
    assert status == 0


@pytest.mark.parametrize("fork", [True, False])
def test_something_is_done_beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fork: bool) -> None:
    monkeypatch.setattr(threads, "may_fork", lambda: fork)
    with parallel.beside(lambda: (tmp_path / "pid").write_text(str(os.getpid()))):
        pass
    assert (int((tmp_path / "pid").read_text()) == os.getpid()) == (not fork or parallel.most() < 2)


@pytest.fixture
def forking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two cores, and no other thread."""
    monkeypatch.setattr(threads, "may_fork", lambda: True)
    monkeypatch.setattr(parallel, "most", lambda: 2)


@pytest.mark.usefixtures("forking")
def test_what_is_done_beside_ends_before_what_it_is_beside(tmp_path: Path) -> None:
    def slow() -> None:
        time.sleep(0.2)
        (tmp_path / "pid").write_text(str(os.getpid()))

    with pytest.raises(OSError, match="full"), parallel.beside(slow):
        raise OSError("full")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.usefixtures("forking")
def test_a_signal_does_not_wait_for_what_is_done_beside(tmp_path: Path) -> None:
    def endless() -> None:
        (tmp_path / str(os.getpid())).touch()
        time.sleep(600)

    def leave() -> None:
        while not os.listdir(tmp_path):
            time.sleep(0.01)
        raise SystemExit

    with pytest.raises(SystemExit), parallel.beside(endless):
        leave()
    with pytest.raises(ProcessLookupError):
        os.kill(int(os.listdir(tmp_path)[0]), 0)


@pytest.mark.usefixtures("forking")
def test_what_fails_beside_is_lost(capfd: pytest.CaptureFixture[str]) -> None:
    with parallel.beside(lambda: 1 / 0):
        pass
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("forking")
@pytest.mark.parametrize("possible", [0, 1])
def test_where_there_may_be_no_more_processes(monkeypatch: pytest.MonkeyPatch, possible: int) -> None:
    fork, left = os.fork, iter(range(possible))

    def limited() -> int:
        if next(left, None) is None:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        return fork()

    monkeypatch.setattr(os, "fork", limited)
    assert list(parallel.each(lambda task: task + 1, range(30), workers=3)) == list(range(1, 31))
    done: list[int] = []
    with parallel.beside(lambda: done.append(1)):
        assert done == [1]


WHILE_IT_FORKS = """
import os, signal, sys, time
from cachehome.sync import parallel
number, path, fork = int(sys.argv[1]), sys.argv[2], os.fork
def forked():
    pid = fork()
    if pid:
        os.kill(os.getpid(), number)
    return pid
def leave(*_):
    raise SystemExit(7)
def late():
    time.sleep(0.5)
    open(path, "w").close()
os.fork, parallel.most = forked, lambda: 2
signal.signal(number, leave)
with parallel.beside(late):
    time.sleep(60)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_it_forks(tmp_path: Path, number: signal.Signals) -> None:
    """In a process of its own: where others have threads, one of those would take the signal."""
    words = [sys.executable, "-c", WHILE_IT_FORKS, str(int(number)), str(tmp_path / "late")]
    assert subprocess.run(words, check=False, timeout=60).returncode == 7
    time.sleep(1)
    assert not (tmp_path / "late").exists()
