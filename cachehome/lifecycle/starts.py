"""Failed starts of `run`, of a Session and of what an agent serves on this host, and what is therefore done without.

    ROOT/.node/starts/<key>.json    a `State`; <key> names a build and a profile. Gone or unreadable: nothing failed
    ROOT/.node/starts/<key>.lock    held while it is changed
    ROOT/.node/starts/<key>.open/   starts that nobody stands beside, a file each, until it is known how they went

An entry can verify and break the job all the same. After `max_failed_starts` failed starts the host leaves out what
the newest generation brought, after as many more what the one before brought, too, and then it starts cold. A start
that goes well ends that and proves what was left out: this host goes on without it. If even cold starts fail, the
cache is not what is wrong: all that was not proved is used again.

    failed     a crash signal, or an error status, before the start counts as good
    good       status 0, `start_seconds` are over, or `start_mark` was made or changed
    neither    wrong usage (2, 64), not found or not executable (127, 126), any other signal, being told to end, and a
               kill for want of memory

A Session is in the process that may crash, so its start lies in a file that the interpreter writes to when it does; the
next one counts that. Killed without a word is neither. Who ends an agent's claim says how the driver ended, or nothing.

Starts that overlap are one attempt: the ranks of a job, the replicas on a host. So a verdict on a start that began
before the last failure is ignored.
"""

from __future__ import annotations

import contextlib
import faulthandler
import hashlib
import json
import os
import signal
import time
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from cachehome.lifecycle.locks import Lock, write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cachehome.lifecycle.place import Place
    from cachehome.sync.record import Record

CRASHES = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGABRT, signal.SIGFPE})
USAGE = frozenset({2, 64, 126, 127})  # wrong usage, and the same in sysexits.h; not executable; not found
_SUSPECTS = 2  # generations that are left out one after the other, before it is all of them
_LOCK_SECONDS = 2.0


class Start(NamedTuple):
    """One start of a command, as far as it matters here."""

    began: float
    line: str = ""
    generation: int = 0
    introduced: tuple[int, ...] = ()
    """The newest generations that brought what was restored, newest first."""
    restored: bool = True
    """Whether there is anything to blame, from the store or here."""
    obeyed: bool = True
    """Whether it did without what it was to do without, which takes a store that answers."""
    command: str = ""


class State(NamedTuple):
    """What is remembered. `line` is the line of generations that all numbers belong to."""

    line: str = ""
    failures: int = 0
    """Failed starts since the last good one, or since the last step."""
    failed: float = 0.0
    """When the last of them ended, in seconds since 1970."""
    command: str = ""
    """A hash of the command line that failed."""
    suspects: tuple[int, ...] = ()
    """The newest generations whose entries the first of them got: what came later is not its fault."""
    steps: int = 0
    """How many suspects are left out; one more than there are: all is, it starts cold."""
    stepped: float = 0.0
    """When that last changed. Local copies that are older are moved aside."""
    highest: int = 0
    """The newest generation when that last changed."""
    proved: tuple[int, ...] = ()
    """Generations whose entries were left out when a start went well."""
    up_to: int = 0
    """The same for all generations up to this one."""
    denied: tuple[int, ...] = ()
    """Those of `proved` that were denied for everybody."""

    @property
    def cold(self) -> bool:
        """Whether it starts cold, and that is still to be proved."""
        return self.steps > len(self.suspects)

    @property
    def without(self) -> tuple[int, ...]:
        """Numbers of the generations whose entries are left out, besides those `below`."""
        return tuple(sorted({*self.proved, *self.suspects[: self.steps]}))

    @property
    def below(self) -> int:
        """What all generations up to this one brought is left out; 0: of none."""
        return max(self.up_to, self.highest if self.cold else 0)

    def arguments(self) -> list[str]:
        """For `cachehome restore`."""
        parts = [*([f"..{self.below}"] if self.below or self.cold else []), *map(str, self.without)]
        if not parts:
            return []
        cold = ["--cold"] if self.cold else []
        return ["--leave-out", f"{self.line}:{','.join(parts)}", "--made-before", repr(self.stepped), *cold]


def failed(state: State, start: Start, now: float, limit: int) -> State:
    """The state after *start* failed."""
    if start.began < state.failed or not (start.restored or state.steps):
        return state
    if start.line and start.line != state.line:
        state = State(line=start.line)  # numbers of another line mean nothing
    first = not state.failures and not state.steps
    state = state._replace(
        failures=state.failures + 1,
        failed=now,
        command=start.command,
        suspects=start.introduced[:_SUSPECTS] if first else state.suspects,
    )
    if state.failures < limit:
        return state
    if state.cold:
        return state._replace(failures=0, steps=0, suspects=())
    return state._replace(
        failures=0,
        steps=state.steps + 1,
        stepped=now,
        highest=max(state.highest, start.generation),
    )


def went_well(state: State, start: Start) -> State:
    """The state after *start* went well."""
    if start.began < state.failed or not (state.failures or state.steps):
        return state
    if start.line and start.line != state.line:
        return State(line=start.line)
    if not start.obeyed:
        return state._replace(failures=0)
    proved, up_to = (state.proved, state.highest) if state.cold else (state.without, state.up_to)
    return state._replace(failures=0, steps=0, suspects=(), proved=proved, up_to=up_to)


def to_deny(state: State, start: Start) -> tuple[int, ...]:
    """Generations whose entries the same command failed with and has just gone well without. What a cold start went
    without is none: nothing says which of it was bad."""
    if start.command != state.command or not start.obeyed or start.began < state.failed:
        return ()
    return tuple(sorted(set(state.proved) - set(state.denied)))


def verdict(code: int, *, told_to_end: bool = False, out_of_memory: bool = False) -> str:
    """What a command that ended before it counted as started has shown: good, failed or neither. *code* as in a
    shell."""
    if code == 0:
        return "good"
    if code in USAGE or told_to_end or out_of_memory:
        return "neither"
    number = code - 128
    if number in signal.valid_signals():
        return "failed" if number in CRASHES else "neither"
    return "failed"


def told(before: State, after: State, limit: int) -> str:
    """A line for people about what has changed; "" if that is nothing they need to know."""
    if after.failed == before.failed:  # it went well
        if before.cold and not after.cold:
            return f"a cold start went well: this host goes on without generations up to {after.up_to}"
        if before.steps and not after.steps:
            return f"a start without what generation {_listed(after.proved)} brought went well: this host goes on so"
        return ""
    steps = before.steps if after.line == before.line else 0
    if after.steps > steps:
        what = "is cold" if after.cold else f"does without what generation {_listed(after.without)} brought"
        return f"failed starts: {limit}; the next one {what}"
    return "cold starts fail, too: the next one uses the cache again" if steps > after.steps else ""


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


class Attempt:
    """One start of a command or a driver: what it does without, how it began, and what becomes of it. Never raises."""

    def __init__(self, place: Place, command: Sequence[str], began: float) -> None:
        self._settings = place.settings
        self._path = ""
        self._start = Start(
            began,
            restored=False,
            command=hashlib.sha256("\0".join(command).encode("utf-8", "replace")).hexdigest(),
        )
        self._mark = self._look()
        self._until = float("inf")
        self._kills = oom_kills()
        self._judged = False
        self.state = State()
        self.deny: tuple[int, ...] = ()
        """Generations to deny for everybody, once `started_well` or `ended` has been called."""
        if place.state is not None and self._settings.max_failed_starts:
            key = f"{place.identity.build_key}/{place.identity.profile_key}"
            name = hashlib.sha256(key.encode()).hexdigest()[:16]
            self._path = os.path.join(place.state, "starts", name)
            self._count_the_dead()
            self.state = read(f"{self._path}.json")
        self._file: IO[str] | None = None
        self._lock: Lock | None = None
        self._reports = False

    def note(self) -> str:
        """What a user must know when something is left out, else ""."""
        return f"to try again with all of it: rm {self._path}.json" if self.state.arguments() else ""

    def restored(self, record: Record) -> None:
        """The restore has ended."""
        details = record.details
        self._start = self._start._replace(
            line=str(details.get("line") or ""),
            generation=record.generation or 0,
            introduced=tuple(details.get("introduced_by") or ()),
            restored=bool(details.get("introduced_by") or details.get("local")),
            obeyed=record.outcome == "hit" or record.reason == "left_out" or self.state.cold,
        )

    def begin(self) -> None:
        """The command has been started."""
        self._until = time.monotonic() + self._settings.start_seconds

    def leave_open(self, path: str = "") -> None:
        """The same, of a driver that nobody waits for. *path*: the file in which somebody will look for it (`decide`);
        without, this process is the driver."""
        self.begin()
        if not self._path:
            return
        mine = not path
        path = path or os.path.join(f"{self._path}.open", os.urandom(16).hex())
        content = {
            "path": self._path,
            "limit": self._settings.max_failed_starts,
            "until": time.time() + self._settings.start_seconds,
            "start": self._start._asdict(),
        }
        with contextlib.suppress(OSError):
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            with open(path, "w", encoding="utf-8") as file:
                file.write(json.dumps(content) + "\n")
            if mine:
                self._lock = Lock(path)
                self._lock.take()
                self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 - closed by `settle`
                if not faulthandler.is_enabled():  # else somebody wants the report elsewhere
                    faulthandler.enable(self._file)
                    self._reports = True

    def settle(self, how: str) -> str:
        """It is known how this process has started: good, failed or neither. A line for people, or ""."""
        if self._judged:
            return ""
        line = self._judge("good" if self.counts_as_good() else how)
        if self._file is not None and self._lock is not None:
            if self._reports:
                faulthandler.disable()
            with contextlib.suppress(OSError):
                os.unlink(self._file.name)
            self._file.close()
            self._lock.release()
        return line

    def _count_the_dead(self) -> None:
        """Count the starts of processes that crashed before they had started well."""
        directory = f"{self._path}.open"
        with contextlib.suppress(OSError):
            for name in os.listdir(directory):
                path = os.path.join(directory, name)
                lock = Lock(path)
                if lock.take():
                    crashed = os.stat(path).st_mtime
                    with open(path, encoding="utf-8", errors="replace") as file:
                        start, crash = file.readline(), file.read(1)
                    os.unlink(path)
                    if crash:
                        _decide(start, "failed", crashed)
                lock.release()

    def counts_as_good(self) -> bool:
        """Whether it has just turned out to have started well."""
        if self._judged or not self._path:
            return False
        return time.monotonic() >= self._until or self._look() != self._mark

    def started_well(self) -> str:
        """It has. A line for people, or ""."""
        return self._judge("good")

    def ended(self, code: int, *, told_to_end: bool) -> str:
        """The command has ended. A line for people, or ""."""
        if self._judged:
            return ""
        if self._look() != self._mark:
            return self._judge("good")
        kills = oom_kills()
        killed = kills is not None and self._kills is not None and kills > self._kills
        return self._judge(verdict(code, told_to_end=told_to_end, out_of_memory=killed))

    def denied(self) -> None:
        """What was to be denied for everybody is."""
        numbers = self.deny
        self._update(lambda state: state._replace(denied=tuple(sorted({*state.denied, *numbers}))))
        self.deny = ()

    def _judge(self, how: str) -> str:
        self._judged = True
        limit = self._settings.max_failed_starts
        if not self._path or how == "neither":
            return ""
        if how == "good":
            if self.state == State():
                return ""  # nothing failed: nothing to write
            before, after = self._update(lambda state: went_well(state, self._start))
            if self._settings.deny_failed:
                self.deny = to_deny(after, self._start)
        else:
            before, after = self._update(lambda state: failed(state, self._start, time.time(), limit))
        self.state = after
        return told(before, after, limit)

    def _look(self) -> tuple[int, int, int] | None:
        """What changes when the mark is made or changed."""
        if not self._settings.start_mark:
            return None
        try:
            found = os.stat(self._settings.start_mark)
        except OSError:
            return None
        return (found.st_ino, found.st_mtime_ns, found.st_size)

    def _update(self, change: Callable[[State], State]) -> tuple[State, State]:
        return update(self._path, change)


def update(path: str, change: Callable[[State], State]) -> tuple[State, State]:
    """Change what is remembered at *path*; what it was, and what it is."""
    lock = Lock(f"{path}.lock")
    until = time.monotonic() + _LOCK_SECONDS
    while not lock.take() and time.monotonic() < until:
        time.sleep(0.01)
    try:
        before = read(f"{path}.json")
        after = change(before)
        if after != before:
            with contextlib.suppress(OSError):
                write_json(f"{path}.json", after._asdict())
    finally:
        lock.release()
    return before, after


def decide(path: str, code: int) -> str:
    """The driver whose start lies in the file *path* has ended with status *code*. A line for people, or ""."""
    try:
        with open(path, encoding="utf-8") as file:
            start = file.readline()
        os.unlink(path)
    except OSError:
        return ""
    return _decide(start, verdict(code), time.time())


def _decide(text: str, how: str, when: float) -> str:
    try:
        document = json.loads(text)
        path, limit, until = str(document["path"]), int(document["limit"]), float(document["until"])
        start = Start(**document["start"])
        start = start._replace(introduced=tuple(start.introduced))
    except (ValueError, KeyError, TypeError):
        return ""
    if how == "good" or when > until:
        before, after = update(path, lambda state: went_well(state, start))
    elif how == "failed":
        before, after = update(path, lambda state: failed(state, start, when, limit))
    else:
        return ""
    return told(before, after, limit)


def read(path: str) -> State:
    """What the file at *path* holds; an empty state if that can't be read."""
    try:
        with open(path, encoding="utf-8") as file:
            document = json.load(file)
        return State(
            **{name: _as(document[name], default) for name, default in State._field_defaults.items()}
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return State()


def _as(value: Any, like: Any) -> Any:
    """*value* as the type of *like*. Raises TypeError or ValueError."""
    if isinstance(like, tuple) and isinstance(value, list):
        return tuple(_as(item, 0) for item in value)
    if isinstance(value, bool) or not isinstance(
        value, (int, float) if isinstance(like, float) else type(like)
    ):
        raise TypeError
    return type(like)(value)


def oom_kills() -> int | None:
    """How many processes of our control group were killed for want of memory; None where that can't be read."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            lines = [line.rstrip("\n").split(":", 2) for line in file]
        for number, controllers, path in lines:
            if number == "0" and not controllers:
                names = [f"/sys/fs/cgroup{path}/memory.events", "/sys/fs/cgroup/memory.events"]
            elif "memory" in controllers.split(","):
                names = [
                    f"/sys/fs/cgroup/memory{path}/memory.oom_control",
                    "/sys/fs/cgroup/memory/memory.oom_control",
                ]
            else:
                continue
            for name in names:
                with contextlib.suppress(OSError), open(name, encoding="utf-8") as file:
                    return next(int(line.split()[1]) for line in file if line.startswith("oom_kill "))
    return None


def main(arguments: Sequence[str]) -> int:
    """`deny --json --identity FILE --line LINE NUMBER ...`, for `child`: deny for everybody what these generations
    brought."""
    import argparse

    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--identity", required=True)
    parser.add_argument("--line", required=True)
    parser.add_argument("numbers", type=int, nargs="+")
    args = parser.parse_args(arguments)
    from cachehome.commands import output
    from cachehome.identity import Identity
    from cachehome.settings import Settings
    from cachehome.sync.denied import deny

    return output.record(
        deny(Settings.load(), Identity.load(args.identity), args.line, args.numbers), json_wanted=True
    )
