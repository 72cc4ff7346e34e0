"""Around a command: restore, start it, publish while it runs and after it, end as it ended.

    outside                    here                                        the command
    starts us            ->    identity, directories, restore         ->   starts, with our streams and
                         process group
    sends signals        ->    passed on, unless it got them itself   ->   does what it does
                               publishes: quiet, interval             <-   fills its caches
                               publishes what remains                 <-   ends
    sees the same end    <-    exit status, or the same signal

What a start that failed, or went well, means for the next one is for `starts` to say.

Whatever goes wrong here costs the command its warm start, never its run.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cachehome.lifecycle import place as places
from cachehome.lifecycle.probing import Probing
from cachehome.lifecycle.reports import Reporter
from cachehome.lifecycle.rounds import Round
from cachehome.lifecycle.signals import ENDING, Signals, open_files
from cachehome.lifecycle.starts import Attempt
from cachehome.lifecycle.transfer import Transfer
from cachehome.lifecycle.watch import Rhythm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from cachehome.identity import Identity
    from cachehome.lifecycle.node import Step
    from cachehome.lifecycle.place import Place
    from cachehome.settings import Settings
    from cachehome.sync.record import Record

NOT_FOUND, NOT_EXECUTABLE = 127, 126
_PAUSE, _LONG_PAUSE = 0.25, 5.0
_LOOK = 5.0  # seconds, at most, for the counters of a run
_PR_SET_PDEATHSIG = 1
# Ends that speak of wrong machine code. Nobody else should get what such a run compiled last.
_CRASHES = frozenset({signal.SIGSEGV, signal.SIGILL, signal.SIGBUS, signal.SIGFPE})


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: its exit `code` as a shell gives it, and the `signal` that ended it, else 0."""

    code: int
    signal: int = 0
    records: tuple[Record, ...] = ()

    @property
    def crashed(self) -> bool:
        return self.signal in _CRASHES or self.code - 128 in _CRASHES


def print_nothing(_line: str) -> None:
    """What is said when nobody listens."""


class Run:
    """One command with caches around it. `Run(...).go()`, once, in the main thread."""

    def __init__(
        self,
        command: Sequence[str],
        settings: Settings,
        environ: Mapping[str, str] | None = None,
        say: Callable[[str], None] = print_nothing,
    ) -> None:
        """*say* gets lines for people; it must not fail."""
        self._command = list(command)
        self._settings = settings
        self._environ = dict(os.environ if environ is None else environ)
        self._say = say
        self._since = time.time()
        self._place: Place | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._step: Step | Transfer | None = None
        self._attempt: Attempt | None = None
        self._denying: Transfer | None = None
        self._told_to_end = False
        self._records: list[Record] = []
        self._rounds = 0
        self._began = 0.0
        self._reporter = Reporter(settings.report_dir, "run")
        self._inherited = [end for end in open_files() if end > 2 and _inheritable(end)]

    def go(self) -> Ended:
        """Run it to its end. Raises `NotWarm` if the settings ask for that, and nothing else."""
        _occupy_streams()
        with Signals() as signals:
            self._signals = signals
            ended = self._around()
        return dataclasses.replace(ended, records=tuple(self._records))

    def _around(self) -> Ended:
        try:
            who, stopped = self._identity()
            if who is None:
                return Ended(128 + stopped, stopped)
            self._place = places.place_of(self._settings, who, self._environ).started_here()
        except Exception as error:  # a probe, a full disk, a strange home: the command runs, cold
            places.insist_on(self._settings, error)  # which says it all
            self._say(f"no warm start: {error}")
            with contextlib.suppress(Exception):
                self._environ = places.unsynced(self._settings, self._environ)
        notes = self._place.notes if self._place else []
        for note in [*notes, *_out_of_reach(self._environ, self._command)]:
            self._say(note)
        if self._place and not self._settings.store:
            self._say("no store is set (CACHEHOME_STORE): the caches stay on this machine")
        stopped = self._before()
        if stopped:
            return Ended(128 + stopped, stopped)
        refused = self._start()
        if refused:
            return refused
        self._let_go()
        if self._attempt:
            self._attempt.begin()
        ended = self._while_it_runs()
        if self._attempt:
            self._judged(self._attempt.ended(ended.code, told_to_end=self._told_to_end))
        self._after(ended)
        self._say_if_unused()
        return ended

    # before

    def _identity(self) -> tuple[Identity | None, int]:
        """The identity of the command; None and the number of a signal that ended everything before it was known."""
        probing = Probing(self._settings, self._environ, self._command, self._settings.store_timeout_seconds)
        while (who := probing.poll()) is None:
            for number in self._signals.wait(_PAUSE):
                if number in ENDING:
                    probing.stop()
                    return None, number
        return who, 0

    def _before(self) -> int:
        """Restore. The number of the signal that ended everything already, else 0."""
        if self._place is None or not (self._settings.store and self._settings.restore):
            places.insist_on(self._settings, "restore is off" if self._settings.store else "no store is set")
            return next((number for number in self._signals.wait(0) if number in ENDING), 0)
        self._attempt = Attempt(self._place, self._command, self._since)
        step = self._place.restore(
            self._settings.store_timeout_seconds, since=self._since, arguments=self._attempt.state.arguments()
        )
        record, stopped = self._see_through(step)
        self._records.append(record)
        self._reporter.started(self._place, record)
        self._attempt.restored(record)
        self._say("; ".join(filter(None, (record.line(), self._attempt.note()))))
        if not stopped:
            places.insist(record, self._settings)
        return stopped

    def _start(self) -> Ended | None:
        """Start the command. An end if that was not possible."""
        try:
            self._process = _popen(self._command, self._place.environ if self._place else self._environ)
        except OSError as error:
            self._say(f"{self._command[0]}: {error.strerror or error}")
            missing = isinstance(error, (FileNotFoundError, NotADirectoryError))
            return Ended(NOT_FOUND if missing else NOT_EXECUTABLE)
        return None

    def _let_go(self) -> None:
        """Hold none of the command's files: who reads its output sees the end of it when the command ends."""
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1):
            os.dup2(null, stream)
        for end in (*self._inherited, *([null] if null > 1 else ())):
            with contextlib.suppress(OSError):
                os.close(end)

    # while it runs

    def _while_it_runs(self) -> Ended:
        assert self._process is not None
        rhythm = (
            Rhythm(self._directories, self._settings.publish_interval_seconds) if self._publishes else None
        )
        while True:
            pause = _PAUSE if self._step or self._denying else rhythm.pause if rhythm else _LONG_PAUSE
            for number in self._signals.wait(pause):
                self._told_to_end = self._told_to_end or number in ENDING
                if number != signal.SIGCHLD and not self._signals.reached_everybody(number):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(self._process.pid, number)  # not send_signal, which would reap it
            ended = self._look()
            if ended:
                return ended
            self._reap()
            if self._attempt and self._attempt.counts_as_good():
                self._judged(self._attempt.started_well())
            if self._denying and (record := self._denying.poll()):
                self._denied(record)
            if self._step is None and rhythm and rhythm.due():
                self._step = self._publish(self._settings.publish_budget_seconds)
            elif self._step and (record := self._step.poll()):
                self._ended(record, "interval" if self._rounds else "first")
                self._step = None
                if rhythm and record.outcome != "hit":
                    rhythm.failed()

    def _look(self) -> Ended | None:
        """The command's end, if it has ended. If it stopped, and somebody sits at a terminal, so do we."""
        assert self._process is not None
        pid, status = os.waitpid(self._process.pid, os.WNOHANG | os.WUNTRACED)
        if not pid:
            return None
        if os.WIFSTOPPED(status):
            if _in_foreground():
                os.kill(os.getpid(), signal.SIGSTOP)
            return None
        self._process.returncode = os.waitstatus_to_exitcode(status)
        number = max(0, -self._process.returncode)
        return Ended(128 + number if number else self._process.returncode, number)

    def _reap(self) -> None:
        """As the first process of a container: bury whatever was left to us."""
        if os.getpid() != 1:
            return
        mine = self._reporter.pids | {
            self._signals.witness,
            self._process.pid if self._process else 0,
            self._step.pid if self._step else 0,
            self._denying.pid if self._denying else 0,
        }
        with contextlib.suppress(ChildProcessError):
            while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if found.si_pid in mine:
                    return  # its owner will; what is behind it is seen at the next look
                os.waitpid(found.si_pid, 0)

    # after it

    def _after(self, ended: Ended) -> None:
        """Publish what remains, in bounded time. A signal cuts it short."""
        if not self._publishes:
            return
        until = time.monotonic() + self._settings.exit_timeout_seconds
        stopped = 0
        if self._denying:  # first: other bytes of what is denied are published below
            record, stopped = self._see_through(self._denying, until)
            self._denied(record)
        if self._step:
            if ended.crashed:
                self._step.stop("crashed")
            record, stopped = self._see_through(self._step, until)
            self._ended(record, "interval" if self._rounds else "first")
        if not stopped and not ended.crashed and time.monotonic() < until:
            record, _ = self._see_through(self._publish(until - time.monotonic()), until)
            self._ended(record, "final")
        self._reporter.close()
        if self._rounds or ended.crashed:
            self._say(summary(self._records, ended))

    def _say_if_unused(self) -> None:
        """A warning if the counters say that nothing of what was restored was used. Never waits long."""
        restored = next((record for record in self._records if record.action == "restore"), None)
        if self._place is None or not self._settings.diagnostics or not restored or restored.outcome != "hit":
            return
        from cachehome.observe import activity, runs, watch

        told = self._settings.report_dir
        directories = [told] if told else [activity.below(live) for live in self._directories]
        name, record = self._place.environ.get(watch.RUN, ""), restored.to_json()
        found: list[Any] = []

        def look() -> None:
            with contextlib.suppress(Exception):
                found.append(runs.unused(directories, name, self._since, record))

        looking = threading.Thread(target=look, daemon=True)  # a report directory may hang
        looking.start()
        looking.join(_LOOK)
        if found and found[0]:
            causes = "; ".join(cause.text for cause in found[0].causes)
            self._say(f"WARNING: inert, nothing of what was restored was used: {causes}")

    @property
    def _publishes(self) -> bool:
        return self._place is not None and bool(self._settings.store) and self._settings.publish

    @property
    def _directories(self) -> list[str]:
        return list(self._place.directories.values()) if self._place else []

    def _publish(self, seconds: float) -> Step:
        assert self._place is not None
        self._began = time.time()
        return self._place.publish(seconds)

    def _ended(self, record: Record, kind: str) -> None:
        assert self._place is not None
        self._records.append(record)
        self._rounds += 1
        self._reporter.published(
            [self._place], Round(kind, self._began, time.time(), [self._place.slot], [record])
        )

    def _judged(self, line: str) -> None:
        """What this start has shown is known."""
        assert self._attempt is not None
        if line:
            self._say(line)
        if self._attempt.deny and self._publishes:
            assert self._place is not None
            self._denying = self._place.deny(self._attempt.state.line, self._attempt.deny)

    def _denied(self, record: Record) -> None:
        assert self._attempt is not None
        self._denying = None
        record = record._replace(action="deny")
        self._records.append(record)
        self._say(record.line())
        if record.outcome in ("hit", "miss"):
            self._attempt.denied()

    def _see_through(self, step: Step | Transfer, until: float = float("inf")) -> tuple[Record, int]:
        """Its record, and the number of the signal that cut it short, else 0."""
        stopped = 0
        under_way, self._step = self._step, step
        while (record := step.poll()) is None:
            for number in self._signals.wait(_PAUSE):
                if number in ENDING and not stopped:
                    stopped = number
                    step.stop("stopped")
            if time.monotonic() > until:
                step.stop("time_limit")
            self._reap()
        self._step = None if under_way is step else under_way
        return record, stopped


def summary(records: Sequence[Record], ended: Ended) -> str:
    """One line about everything that was published."""
    rounds = [record for record in records if record.action == "publish"]
    if ended.crashed:
        return f"publish: nothing at the end, since the command crashed (status {ended.code})"
    last = rounds[-1]
    if len(rounds) == 1:
        return last.line()
    files, size = sum(record.files for record in rounds), sum(record.bytes for record in rounds)
    return f"{last.line()}; {len(rounds)} rounds: {files} files, {size / 1e6:.1f} MB"


def _out_of_reach(environ: Mapping[str, str], command: Sequence[str]) -> list[str]:
    """What runs elsewhere, and is started by somebody else, without our variables."""
    address = environ.get("RAY_ADDRESS", "")
    submits = os.path.basename(command[0]) == "ray" and "submit" in command[1:4]
    if not submits and address in ("", "local"):
        return []
    where = f"at {address}" if address else "that it submits to"
    return [
        f"the Ray cluster {where} started its workers itself: they are not reached, only what this command starts"
    ]


def _popen(command: list[str], environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start *command* with our streams, files, process group and directory."""
    options: dict[str, Any] = {"env": environ, "close_fds": False}
    if sys.platform == "linux":
        import ctypes

        prctl = ctypes.CDLL(None).prctl
        # Whoever kills us means the command: without us it would be killed itself. Safe, as we have one
        # thread.
        options["preexec_fn"] = lambda: prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    try:
        return subprocess.Popen(command, **options)
    except OSError as error:
        if error.errno != errno.ENOEXEC:
            raise
    # A script without a first line that names its interpreter: execvp, which env and nice use, gives it to
    # the shell.
    found = (
        command[0]
        if os.sep in command[0]
        else shutil.which(command[0], path=environ.get("PATH")) or command[0]
    )
    return subprocess.Popen(["/bin/sh", found, *command[1:]], **options)


def _occupy_streams() -> None:
    """Let nothing of ours get the number of a stream that is closed. The command finds it closed all the same."""
    while (null := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(null)


def _inheritable(end: int) -> bool:
    try:
        return os.get_inheritable(end)
    except OSError:
        return False


def _in_foreground() -> bool:
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
