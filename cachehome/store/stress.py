"""The load that a store is put under to prove on a user's own mount that its promises hold there.

What short schedules can show, drills.py shows first. Here many processes work on a store in a scratch directory with
grace periods of seconds: publishers, one in ten of which is killed at a random moment, readers, and a collector. Every
so often they go on to a new profile, so that idle ones go whole. They write down what was acknowledged, and compare it
with what is there:

    lost         a publication was acknowledged, and a newer generation lacks it
    twice        two publishers were told that they created the same generation
    backwards    a reader was given an older generation than before
    hole         the newest generation names a pack that is not there, or is damaged
    error        anything that a publisher, reader or collector may not raise

A second host joins by the same directory: what one host acknowledged, its own readers check in what both have written.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from cachehome.errors import CommitConflict, IntegrityError, NotInStore, StoreError
from cachehome.store import gc
from cachehome.store.backend import Backend, Nested
from cachehome.store.lab import BUILD, SCRATCH, addition, check, clear
from cachehome.store.store import Store

KINDS = ("lost", "twice", "backwards", "hole", "error")
_PATH = re.compile(r"\S*/\S*|[0-9a-f]{8,}")
_TURN = 6.0  # seconds that a profile is written to
_LONGEST = 5.0  # seconds that processes which were killed may take
_HANGS = 60.0  # seconds after the end in which every process must have ended


@dataclass(frozen=True, slots=True)
class Load:
    """How many of each, for how long, and with what retention. *kill*: one publication in so many is killed."""

    seconds: float = 30.0
    writers: int = 12
    readers: int = 4
    collectors: int = 1
    kill: int = 10
    grace: float = 4.0
    keep: int = 2

    @property
    def rules(self) -> gc.Rules:
        return gc.Rules(self.keep, self.grace, max(4 * self.grace, 2 * _TURN), 10 * self.grace)


@dataclass(slots=True)
class Report:
    """Counts, and what was wrong: `problems` holds the first of each kind in words."""

    seconds: float = 0.0
    published: int = 0
    unchanged: int = 0
    gave_up: int = 0
    held_up: int = 0
    killed: int = 0
    reads: int = 0
    lags: int = 0
    prunes: int = 0
    deleted: int = 0
    lost: int = 0
    twice: int = 0
    backwards: int = 0
    hole: int = 0
    error: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        """Whether every promise was kept, and the load was one."""
        return not any(getattr(self, kind) for kind in KINDS) and self.published > 0 and self.reads > 0

    def to_json(self) -> dict[str, Any]:
        """The report as JSON types."""
        return asdict(self) | {"sound": self.sound}


class Stress:
    """One host's part. *new_store*: what each process opens the scratch directory with."""

    def __init__(
        self,
        backend: Backend,
        load: Load,
        *,
        new_store: Callable[[Backend], Store] = Store,
        prune: Callable[[Store, str, gc.Rules], gc.Plan] = gc.prune,
    ) -> None:
        self.scratch = Nested(backend, SCRATCH)
        self.load = load
        self.new_store = new_store
        self.prune = prune
        # Containers may share a host name, and each has a process 1.
        self.me = f"{os.uname().nodename}-{os.urandom(4).hex()}"
        self.directory = ""
        self.end = 0.0

    def run(self, *, join: bool = False) -> Report:
        """Do it, and say how it went. *join*: take part in what another host has begun. Raises `StoreError`."""
        if join and not self.scratch.list("members"):
            raise NotInStore(
                "nobody has begun a stress test there: start one without --join first", name=SCRATCH
            )
        if not join:
            clear(self.scratch)
        me = f"members/{self.me}"
        begin = time.monotonic()
        report = Report()
        try:
            self.scratch.put(me, b"")
            if not join:
                self.scratch.put("begin", b"")
            self.end = time.monotonic() + self.load.seconds
            with tempfile.TemporaryDirectory(prefix="cachehome-stress-") as self.directory:
                self._processes()
                self._collect(report)
        finally:
            with contextlib.suppress(StoreError):
                self.scratch.delete(me)
                if not self.scratch.list("members"):
                    clear(self.scratch)
        report.seconds = round(time.monotonic() - begin, 1)
        return report

    # -- processes -----------------------------------------------------------------------------------------------------

    def _processes(self) -> None:
        roles: list[tuple[Callable[[int], None], int]] = [
            (self._writer, self.load.writers),
            (self._reader, self.load.readers),
            (self._collector, self.load.collectors),
        ]
        children: list[int] = []
        try:
            for role, count in roles:
                for number in range(count):
                    with _no_interrupt():  # none is started that is not in the list
                        children.append(self._start(role, number, leads=True))
            while children:
                children = [child for child in children if not os.waitpid(child, os.WNOHANG)[0]]
                if children and time.monotonic() > self.end + _HANGS:
                    self._note("error", text=f"{len(children)} processes did not end: the store hangs")
                    return
                time.sleep(0.02)
        finally:
            until = time.monotonic() + _LONGEST
            for child in children:
                _end(child, until)

    def _start(self, role: Callable[[int], None], number: int, *, leads: bool = False) -> int:
        """The process that plays *role*; *leads*: of a group with all that it starts itself."""
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if leads:
            with contextlib.suppress(OSError):  # here and there, for whoever comes first
                os.setpgid(pid, pid or os.getpid())
        if pid:
            return pid
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
            random.seed(os.urandom(8))
            role(number)
        except BaseException as error:
            told = str(error) if isinstance(error, StoreError) else traceback.format_exc(limit=-4)
            self._note("error", text=f"{role.__name__.strip('_')}: {told}")
        finally:
            os._exit(0)

    def _note(self, kind: str, **facts: Any) -> None:
        """Write a line down at once: the next moment may not come."""
        line = json.dumps({"kind": kind, **facts}).encode() + b"\n"
        path = os.path.join(self.directory, f"{os.getpid()}.log")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.write(descriptor, line)
        os.close(descriptor)

    def _notes(self, kind: str = "") -> Iterator[dict[str, Any]]:
        for name in os.listdir(self.directory):
            with open(os.path.join(self.directory, name), "rb") as file:
                for line in file:
                    if line.endswith(b"\n"):
                        note = json.loads(line)
                        if kind in ("", note["kind"]):
                            yield note

    def _profile(self) -> str:
        return f"turn-{int(self.scratch.age('begin') // _TURN):04d}"

    def _writer(self, number: int) -> None:
        fresh = number * 1_000_000
        again: list[
            tuple[float, int]
        ] = []  # what was killed is tried again, also when its pack is about to go
        while time.monotonic() < self.end:
            if again and again[0][0] < time.monotonic():
                publication = again.pop(0)[1]
            else:
                publication = fresh = fresh + 1
            begin = time.monotonic()
            pid = self._start(self._publish, publication)
            if random.randrange(self.load.kill) == 0:
                time.sleep(random.uniform(0, 0.03))
                os.kill(pid, signal.SIGKILL)
                self._note("killed", seconds=time.monotonic() - begin)
                again.append((time.monotonic() + random.uniform(0, 3 * self.load.grace), publication))
                again.sort()
            os.waitpid(pid, 0)
            time.sleep(random.uniform(0, 0.02))

    def _publish(self, number: int) -> None:
        begin = time.monotonic()
        store = self.new_store(self.scratch)
        profile = self._profile()
        name = f"{self.me}-{number}"
        # The same publication has the same bytes, and some of its entries are others', too.
        common = f"common-{number % 7}"
        new, stored = addition({name: random.Random(name).randbytes(600), common: common.encode() * 20})
        deadline = begin + self.load.grace / 2
        ((pack, source),) = store.add_packs(BUILD, [(new.packs[0], stored)])
        new = new._replace(packs=(pack,))
        try:
            generation, ours = store.commit(
                BUILD, profile, new, deadline=deadline, sources={pack.sha256: source}
            )
        except CommitConflict:
            self._note("gave_up")
            return
        self._note(
            "published" if ours else "unchanged",
            name=name,
            profile=profile,
            line=generation.manifest.line,
            number=generation.number,
            nonce=generation.manifest.nonce,
            seconds=time.monotonic() - begin,
            idle=self._may_be_gone(profile),
        )

    def _may_be_gone(self, profile: str) -> bool:
        """Whether a profile may have gone whole by now, and have begun anew: a busy machine may hold somebody up for
        so long that it is used again."""
        turn = int(profile.rpartition("-")[2])
        return self.scratch.age("begin") >= turn * _TURN + self.load.rules.keep_idle_seconds

    def _reader(self, number: int) -> None:
        del number
        seen: dict[str, tuple[str, int]] = {}
        while time.monotonic() < self.end:
            profile = self._profile()
            known = [note for note in self._notes() if note.get("profile") == profile]
            self._read(profile, known, seen)
            time.sleep(random.uniform(0, 0.02))

    def _read(self, profile: str, known: list[dict[str, Any]], seen: dict[str, tuple[str, int]]) -> None:
        """Read the newest generation as a restore does, and compare it with what was acknowledged before."""
        store = self.new_store(self.scratch)
        generation = store.newest(BUILD, profile)
        line = generation.manifest.line if generation else ""
        if self._may_be_gone(profile):
            known = [note for note in known if note.get("line") == line]
            if seen.get(profile, (line,))[0] != line:
                del seen[profile]
        if generation is None:
            if any(note["kind"] == "published" for note in known):
                self._problem("lost", f"{profile} has no generation, and had")
            return
        manifest, number = generation.manifest, generation.number
        before = seen.get(profile, (line, 0))[1]
        if number < before:
            self._problem("backwards", f"{profile}: {number} after {before}")
        seen[profile] = (line, max(number, before))
        for note in known:
            if note["kind"] not in ("published", "unchanged"):
                continue
            if note["number"] > number:
                self._note("lag")
            elif note["number"] == number and note["nonce"] != manifest.nonce:
                self._problem("twice", f"{profile}: {number} was acknowledged, and is another publisher's")
            elif ("stress", note["name"]) not in manifest.entries:
                self._problem("lost", f"{profile}: {note['name']} of {note['number']} is not in {number}")
        try:
            check(store, manifest)
            self._note("read")
        except (NotInStore, IntegrityError) as error:
            # It may have gone while it was read; then a newer one is there.
            if number == max(store.numbers(BUILD, profile), default=0):
                self._problem("hole", f"{profile}: {number}: {error}", nonce=manifest.nonce)

    def _problem(self, kind: str, text: str, **facts: Any) -> None:
        self._note(kind, text=text, **facts)

    def _collector(self, number: int) -> None:
        del number
        store = self.new_store(self.scratch)
        while time.monotonic() < self.end:
            done = self.prune(store, BUILD, self.load.rules)
            self._note("pruned", deleted=len(done.deleted))
            time.sleep(random.uniform(0, 0.1))

    # -- at the end ----------------------------------------------------------------------------------------------------

    def _collect(self, report: Report) -> None:
        """Look at what is left once more, and count."""
        known = list(self._notes())
        for profile in self.new_store(self.scratch).profiles(BUILD):
            mine = [note for note in known if note.get("profile") == profile]
            # A turn that was over long ago may have gone whole.
            if self.new_store(self.scratch).numbers(BUILD, profile):
                self._read(profile, mine, {})
        counts = {"read": "reads", "lag": "lags", "pruned": "prunes"}
        commits: dict[tuple[str, int, str], set[str]] = {}
        told: dict[tuple[str, str], str] = {}
        notes = list(self._notes())
        # A publication that is held up for longer than the grace period may lose its pack before it is named.
        long = {note.get("nonce", "") for note in notes if note.get("seconds", 0.0) > self.load.grace}
        ours = {note["nonce"] for note in notes if note["kind"] == "published"}
        report.held_up = sum(note.get("seconds", 0.0) > self.load.grace for note in notes)
        for note in notes:
            if note["kind"] == "hole" and (note["nonce"] if note["nonce"] in ours else "") in long:
                continue
            name = counts.get(note["kind"], note["kind"])
            setattr(report, name, getattr(report, name) + 1)
            report.deleted += note.get("deleted", 0)
            if note["kind"] == "published":
                key = (note["profile"], note["number"], note["line"] if note["idle"] else "")
                commits.setdefault(key, set()).add(note["nonce"])
            if note["kind"] in KINDS:
                told.setdefault((note["kind"], _PATH.sub("", note["text"])), note["text"])
        for kind in KINDS:  # what differs in names only is told once
            texts = [text for (of, _), text in told.items() if of == kind]
            report.problems += [f"{kind}: {text}" for text in texts[:3]]
        for (profile, number, _), nonces in commits.items():
            if len(nonces) > 1:
                report.twice += 1
                report.problems.append(f"twice: {profile}: {len(nonces)} publishers made generation {number}")
        if not (report.published and report.reads):
            report.problems.append(
                f"nothing was proved: {report.published} publications, {report.gave_up} that gave up after half a grace"
                " period: raise --grace, or the time"
            )


@contextlib.contextmanager
def _no_interrupt() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _end(leader: int, until: float) -> None:
    """Kill a group, and see it end: what it still wrote would lie there for good. One that hangs is not waited for."""
    with (
        contextlib.suppress(ProcessLookupError, PermissionError),
        open(os.devnull, "wb", buffering=0) as sign,
    ):
        while True:
            os.killpg(leader, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(leader, os.WNOHANG)
            sign.write(b".")  # of life, for whoever waits for us: the disk of a killed process may be slow
            if time.monotonic() >= until:
                return
            time.sleep(0.005)
