"""Workers: the same function over many tasks, on all cores, results in the order of the tasks; or one other thing to do
beside what this process does.

Forked processes where that is safe, which is in a process with one thread; threads elsewhere (inside a driver
that has torch loaded). Small files are bound by the interpreter's lock: two processes do what sixteen threads
can't.
"""

from __future__ import annotations

import contextlib
import marshal
import os
import select
import signal
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NoReturn, TypeVar

from cachehome import threads

Task = TypeVar("Task")

_HEADER = struct.Struct("<BIQ")
_TOKEN = struct.Struct("<H")
_READ = 1 << 18
_ENDING = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
_MOST_TASKS = 32_000  # the tokens of all tasks fit a pipe


def cores() -> int:
    """Processors that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:
        return os.cpu_count() or 1


def most() -> int:
    """How many workers there are at most: more than eight only wait for each other, in one directory."""
    return min(cores(), 8)


def each(
    function: Callable[[Task], Any],
    tasks: Sequence[Task],
    *,
    workers: int | None = None,
    deadline: float | None = None,
) -> Iterator[Any]:
    """Yield `function(task)` of each task, in order. What a task raises is raised here, and ends the others.

    Results are made of numbers, strings, bytes, tuples, lists, dicts and None. *deadline*: `time.monotonic()`
    after which `TimeoutError` is raised and forked workers are killed, whatever they hang in.
    """
    workers = min(workers or most(), len(tasks))
    if workers <= 1:
        return map(function, tasks)
    if threads.may_fork() and len(tasks) <= _MOST_TASKS:
        return _forked(function, tasks, workers, deadline)
    return _threaded(function, tasks, workers, deadline)


@contextlib.contextmanager
def beside(function: Callable[[], object]) -> Iterator[None]:
    """Have *function* called by another process meanwhile, where forking is safe and another core is there; else at
    once. What it raises there is lost: it must be something that may as well be left undone."""
    if most() < 2 or not threads.may_fork():
        function()
        yield
        return
    pid = 0
    try:
        with _no_signals():
            pid = _fork()
            if not pid:
                _live(function)
        if pid < 0:
            function()
        yield
    except BaseException as error:
        if pid > 0 and not isinstance(error, Exception):  # a signal: nobody has time
            _end(pid)
        raise
    finally:
        if pid > 0:
            with contextlib.suppress(ChildProcessError):  # it was ended, or the system has reaped it
                os.waitpid(pid, 0)


def _threaded(
    function: Callable[[Task], Any], tasks: Sequence[Task], workers: int, deadline: float | None
) -> Iterator[Any]:
    # Not an executor: at its end the interpreter would wait for a thread that hangs in a dead store.
    import queue
    import threading

    numbers = iter(range(len(tasks)))
    lock = threading.Lock()
    ahead = threading.Semaphore(2 * workers)  # results that wait for their turn take memory
    answers: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()
    stopped = threading.Event()

    def work() -> None:
        while True:
            ahead.acquire()
            with lock:
                number = -1 if stopped.is_set() else next(numbers, -1)
            if number < 0:
                return
            try:
                answers.put((number, function(tasks[number]), None))
            except BaseException as error:  # raised again in the thread that asked
                answers.put((number, None, error))

    for _ in range(workers):
        threading.Thread(target=work, name="cachehome", daemon=True).start()
    done: dict[int, Any] = {}
    try:
        for wanted in range(len(tasks)):
            while wanted not in done:
                try:
                    number, result, failed = answers.get(timeout=_left(deadline))
                except queue.Empty:
                    raise TimeoutError("workers did not answer in time") from None
                if failed:
                    raise failed
                done[number] = result
            ahead.release()
            yield done.pop(wanted)
    finally:
        stopped.set()
        ahead.release(workers)


def _left(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def _forked(
    function: Callable[[Task], Any], tasks: Sequence[Task], workers: int, deadline: float | None
) -> Iterator[Any]:
    tokens, feed = os.pipe()
    every = b"".join(map(_TOKEN.pack, range(len(tasks))))
    os.set_blocking(feed, False)
    fed = os.write(feed, every)  # into an empty pipe: some fit
    os.close(feed)
    if fed < len(every):  # a user who has many pipes gets small ones
        os.close(tokens)
        yield from _threaded(function, tasks, workers, deadline)
        return
    children: dict[int, int] = {}  # read end of its results -> pid
    try:
        for _ in range(workers):
            results, mine = _wide_pipe()
            with _no_signals():
                pid = _fork()
                if not pid:
                    for end in (
                        results,
                        *children,
                    ):  # else a worker whose parent has died would wait for itself
                        os.close(end)
                    _live(lambda: _work(function, tasks, tokens, mine))  # noqa: B023 - called at once
                if pid > 0:
                    children[results] = pid
            os.close(mine)
            if pid < 0:
                os.close(results)
                break
        yield from _collect(children, len(tasks), deadline) if children else map(function, tasks)
    finally:
        os.close(tokens)
        for results, pid in children.items():
            os.close(results)
            _end(pid, wait=deadline is None or time.monotonic() < deadline)


def _fork() -> int:
    """As `os.fork`; -1 where there may be no more processes: with fewer of them it takes longer, and that is all."""
    try:
        return os.fork()
    except OSError:
        return -1


@contextlib.contextmanager
def _no_signals() -> Iterator[None]:
    """A signal between a fork and the note of it would leave a worker that nobody ends."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(pid: int, *, wait: bool = True) -> None:
    """Kill a worker. One that hangs in the kernel can't be reaped now, and is not waited for; init or our own end
    will."""
    # The system may have reaped it, where whoever started us wants that.
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0 if wait else os.WNOHANG)


def _wide_pipe() -> tuple[int, int]:
    """A pipe that takes a whole frame, where the system allows that: fewer turns between the two ends."""
    ends = os.pipe()
    with contextlib.suppress(ImportError, AttributeError, OSError):
        import fcntl

        fcntl.fcntl(ends[1], fcntl.F_SETPIPE_SZ, _READ)  # Linux; the constant is there from Python 3.10 on
    return ends


def _live(act: Callable[[], object]) -> NoReturn:
    """The life of a forked worker: *act*. Never returns: nothing of the parent's may run twice."""
    status = 1
    try:
        for number in _ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
        act()
        status = 0
    finally:
        os._exit(status)


def _work(function: Callable[[Task], Any], tasks: Sequence[Task], tokens: int, mine: int) -> None:
    """Do tasks as long as there are some."""
    while token := os.read(tokens, _TOKEN.size):  # one read takes one token, also with several readers
        (number,) = _TOKEN.unpack(token)
        try:
            failed, data = 0, marshal.dumps(function(tasks[number]))
        except Exception as error:
            failed, data = 1, pickled(error)
        _send(mine, _HEADER.pack(failed, number, len(data)))
        _send(mine, data)


def pickled(error: Exception) -> bytes:
    """*error* for another process, or what it says where it can't travel."""
    import pickle

    with contextlib.suppress(Exception):
        data = pickle.dumps(error)
        pickle.loads(data)  # noqa: S301 - some can be written but not be read
        return data
    return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))


def _send(end: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(end, view) :]


class _Answers:
    """What comes through the pipe of one worker: a header, then as many bytes as it tells, again and again."""

    def __init__(self, end: int) -> None:
        self.end = end
        self._memory = bytearray(_READ)  # used for one answer after the other: new pages are dear
        self._filled = 0
        self._wanted = _HEADER.size
        self._failed = self._number = -1

    def read(self, done: dict[int, Any]) -> bool:
        """Take what is there, and add what is whole to *done*; False if the worker has ended. Raises what it raised."""
        count = os.readv(self.end, [memoryview(self._memory)[self._filled : self._wanted]])
        self._filled += count
        if self._filled == self._wanted:
            self._filled = 0
            if self._number < 0:
                self._failed, self._number, self._wanted = _HEADER.unpack_from(self._memory)
                if self._wanted > len(self._memory):
                    self._memory = bytearray(self._wanted)
            else:
                done[self._number] = self._answer(memoryview(self._memory)[: self._wanted])
                self._number, self._wanted = -1, _HEADER.size
        return count > 0

    def _answer(self, data: memoryview) -> Any:
        if self._failed:
            import pickle

            raise pickle.loads(data)  # noqa: S301 our own child
        return marshal.loads(data)  # noqa: S302 our own child


def _collect(children: dict[int, int], count: int, deadline: float | None) -> Iterator[Any]:
    answers = {end: _Answers(end) for end in children}
    done: dict[int, Any] = {}
    poll = select.poll()
    for end in answers:
        poll.register(end, select.POLLIN | select.POLLHUP)
    for wanted in range(count):
        while wanted not in done:
            if not answers:
                raise ChildProcessError("a worker died")
            left = _left(deadline)
            ready = poll.poll(None if left is None else left * 1000)
            if not ready:
                raise TimeoutError("workers did not answer in time")
            for end, _ in ready:
                if not answers[end].read(done):
                    poll.unregister(end)
                    del answers[end]
        yield done.pop(wanted)
