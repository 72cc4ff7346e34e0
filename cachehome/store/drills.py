"""Short schedules of two or three parties that prove the store's promises on a user's own mount, one by one.

Each brings a rival, a collector, a lost answer or a kill to the very call where a protocol with a step less goes wrong,
which hours of load may not meet. All bytes go through the real backend, in a scratch directory of the store; only the
clock is put forward, where a grace period has to pass.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from cachehome.errors import CommitConflict, StoreError, StoreUnavailable
from cachehome.store import gc
from cachehome.store.backend import Backend, Nested
from cachehome.store.lab import BUILD, SCRATCH, Lab, addition, check, clear
from cachehome.store.reader import LAYOUT
from cachehome.store.scripted import Clock, Fault, Scripted
from cachehome.store.store import Store

RULES = gc.Rules(keep_generations=2, keep_seconds=100.0, keep_idle_seconds=1e9)
ROOT = f"{LAYOUT}/{BUILD}"
LINE = f"{ROOT}/profiles/p/generations"
_RACERS, _RACES = 4, 6
# What says nothing of a promise, and would say it for every drill.
_NO_PLACE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTCONN, errno.ESTALE}


class Broken(Exception):
    """The promise that a drill is about was not kept."""


@dataclass(frozen=True, slots=True)
class Drill:
    """What it proves, and how. *forks*: real processes take part, so it needs a backend that they share."""

    name: str
    promise: str
    play: Callable[[Bench], None]
    forks: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a drill went. `problem`: "" if the promise was kept."""

    name: str
    promise: str
    problem: str
    seconds: float

    @property
    def sound(self) -> bool:
        return not self.problem

    def to_json(self) -> dict[str, Any]:
        """The outcome as JSON types."""
        return asdict(self) | {"sound": self.sound}


DRILLS: dict[str, Drill] = {}


def _drill(
    promise: str, *, forks: bool = False
) -> Callable[[Callable[[Bench], None]], Callable[[Bench], None]]:
    def add(play: Callable[[Bench], None]) -> Callable[[Bench], None]:
        DRILLS[play.__name__] = Drill(play.__name__, promise, play, forks)
        return play

    return add


def run(backend: Backend) -> Iterator[Outcome]:
    """Each drill in turn, in an empty directory of its own. Raises `StoreUnavailable` where none could be played."""
    scratch = Nested(backend, f"{SCRATCH}/drills-{os.urandom(4).hex()}")
    clear(scratch)
    try:
        for drill in DRILLS.values():
            begin = time.monotonic()
            problem = failure(drill, Nested(scratch, drill.name))
            yield Outcome(drill.name, drill.promise, problem, round(time.monotonic() - begin, 3))
    finally:
        with contextlib.suppress(StoreError):
            clear(scratch)
            backend.delete(SCRATCH)  # unless somebody else is there


def failure(drill: Drill, backend: Backend) -> str:
    """What *drill* finds wrong with *backend*, "" if nothing."""
    try:
        drill.play(Bench(backend))
    except (Broken, StoreError) as error:
        if isinstance(error, StoreUnavailable) and error.errno in _NO_PLACE:
            raise
        return str(error)
    except Exception as error:  # a defect of what is tried out, whatever it is
        return f"{type(error).__name__}: {error}"
    return ""


class Bench(Lab):
    """A lab whose clock can be put forward, and parties whose calls follow a script."""

    def __init__(self, backend: Backend) -> None:
        self.clock = Clock(backend)
        super().__init__(self.clock)

    def party(self, *faults: Fault) -> Store:
        """A store as another process sees it, with *faults* on its way."""
        return Store(Scripted(self.clock, *faults))

    def holds(self, *names: str, profile: str = "p") -> None:
        """The newest generation holds all of *names*, byte for byte."""
        lacks = set(names) - self.names(profile)
        must(not lacks, f"the newest generation lacks what was acknowledged: {', '.join(sorted(lacks))}")
        self.whole(profile)

    def free(self, *numbers: int) -> None:
        """What a collector does to generations that are no longer wanted."""
        for number in numbers:
            self.clock.delete(f"{LINE}/{number:08d}")

    def left_behind(self) -> None:
        """The pack of a="1", which a killed publisher left: unnamed, and condemned for long enough."""
        new, stored = addition({"a": b"a"})
        self.clock.put(f"{ROOT}/{new.packs[0].name}", stored)
        gc.prune(self.store, BUILD, RULES)
        self.clock.now += 200

    def killed(self, act: Callable[..., object], fault: Fault) -> bool:
        """Do *act* in a process of its own that is killed at *fault*; whether it came so far."""
        pid = os.fork()
        if not pid:
            try:
                act(self.party(fault))
            finally:
                os._exit(0)
        return os.WIFSIGNALED(os.waitpid(pid, 0)[1])


def must(kept: bool, otherwise: str) -> None:
    """Raise `Broken` unless *kept*."""
    if not kept:
        raise Broken(otherwise)


# -- commits -------------------------------------------------------------------------------------------------------


@_drill("of several who create one name at one time, one succeeds, and what it wrote stays", forks=True)
def one_creator(bench: Bench) -> None:
    backend = bench.clock.backend
    must(backend.put_new("once", b"first"), "a new name could not be created")
    must(not backend.put_new("once", b"second"), "a name was created twice")
    must(backend.get("once") == b"first", "a name that existed was overwritten")
    for race in range(_RACES):
        name = f"race-{race}"
        start, go = os.pipe()
        racers = [_racer(backend, name, number, start, go) for number in range(_RACERS)]
        os.close(start)
        os.close(go)  # they all wait for this
        won = [number for number, pid in enumerate(racers) if os.waitpid(pid, 0)[1] == 0]
        must(len(won) == 1, f"{len(won)} of {_RACERS} were told that they created one name")
        must(backend.get(name) == b"%d" % won[0] * 1000, "the winner's bytes were overwritten")


def _racer(backend: Backend, name: str, number: int, start: int, go: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    won = False
    try:
        os.close(go)
        os.read(start, 1)
        won = backend.put_new(name, b"%d" % number * 1000)
    finally:
        os._exit(not won)


@_drill("a publication adds to what was there")
def adds(bench: Bench) -> None:
    bench.bring("a")
    bench.bring("b")
    bench.holds("a", "b")


@_drill("a publisher that a rival overtakes builds on the rival's generation")
def overtaken(bench: Bench) -> None:
    rival = Fault("call", 0, "put_new", lambda: bench.bring("rival"), part="/generations/")
    generation, ours = bench.bring("mine", store=bench.party(rival))
    must((generation.number, ours) == (2, True), "the rival's generation was taken for the publisher's own")
    bench.holds("rival", "mine")


@_drill("a commit whose answer is lost is known for what it is")
def lost_answer(bench: Bench) -> None:
    for number, how in enumerate(("after", "lost"), 1):
        store = bench.party(Fault(how, 0, "put_new", part="/generations/"))
        found, ours = bench.bring(f"a{number}", store=store)
        must((found.number, ours) == (number, True), "a commit that succeeded was taken for a failure")
    must(bench.numbers() == [1, 2], "a commit whose answer was lost was done again")
    bench.holds("a1", "a2")


@_drill("a publisher that is late gives up")
def late(bench: Bench) -> None:
    bench.bring("a")
    try:
        bench.bring("b", seconds=-1)
    except CommitConflict:
        must(bench.numbers() == [1], "a publisher that gave up has committed")
        return
    raise Broken("a publisher whose deadline is over went on")


def _others_go_on(bench: Bench) -> None:
    """Others publish, and a collector frees the number that is about to be created."""
    for name in ("b", "c", "d"):
        bench.bring(name)
    bench.free(1, 2, 3)


@_drill("a number that a collector has freed is no commit")
def freed_number(bench: Bench) -> None:
    bench.bring("a")
    meanwhile = Fault("call", 0, "put_new", lambda: _others_go_on(bench), part="/generations/")
    bench.bring("mine", store=bench.party(meanwhile))
    bench.holds("a", "b", "c", "d", "mine")


@_drill("a number that a collector has freed is no commit, also where a listing is old")
def freed_number_in_an_old_listing(bench: Bench) -> None:
    bench.bring("a")
    meanwhile = Fault("call", 0, "put_new", lambda: _others_go_on(bench), part="/generations/")
    # The listing after the creation shows what was known, and the publisher's own name.
    old = Fault("answer", 1, "list", lambda _: ["00000001", "00000002"], part="/generations")
    bench.bring("mine", store=bench.party(meanwhile, old))
    bench.holds("a", "b", "c", "d", "mine")


@_drill("a listing that does not show the newest generation does not mislead a publisher")
def short_listing(bench: Bench) -> None:
    for name in ("a", "b", "c"):
        bench.bring(name)
    nothing = Fault("lost", 0, "list", part="/generations", times=10**6)
    bench.bring("mine", store=bench.party(nothing))
    bench.holds("a", "b", "c", "mine")


@_drill("a generation that is listed and not yet to be seen is waited for")
def not_yet_seen(bench: Bench) -> None:
    bench.bring("a")
    bench.bring("b")
    bench.bring("c", store=bench.party(Fault("lost", 0, "get", part="/generations/", times=3)))
    bench.holds("a", "b", "c")


@_drill("one read that is cut short does not make a generation a damaged one")
def short_read(bench: Bench) -> None:
    bench.bring("a")
    short = Fault("answer", 0, "get", lambda data: data[:-10], part="/generations/")
    bench.bring("b", store=bench.party(short))
    bench.holds("a", "b")


@_drill("a publisher that is killed, at whatever call, leaves the store whole", forks=True)
def killed_publisher(bench: Bench) -> None:
    bench.bring("a")
    at = 0
    while bench.killed(lambda store, name=f"k{at}": bench.bring(name, store=store), Fault("kill", at)):
        bench.holds("a")
        at += 1
    bench.bring("b")
    bench.holds("a", f"k{at}", "b")


# -- packs ---------------------------------------------------------------------------------------------------------


@_drill("a pack that goes before the commit is stored again")
def pack_gone(bench: Bench) -> None:
    name = f"{ROOT}/{addition({'a': b'a'})[0].packs[0].name}"
    gone = Fault("call", 0, "put_new", lambda: bench.clock.delete(name), part="/generations/")
    bench.bring("a", store=bench.party(gone))
    bench.holds("a")


@_drill("what a generation names is no longer condemned")
def mark_taken_off(bench: Bench) -> None:
    bench.bring("a")
    bench.clock.put(f"{ROOT}/condemned/{bench.pack('p', 'a')}", b"")
    bench.bring("b")
    must(not bench.clock.list(f"{ROOT}/condemned"), "a pack that is named has kept its mark")


@_drill("a condemned pack is not named, at whatever moment its collector is")
def condemned_is_not_named(bench: Bench) -> None:
    bench.left_behind()
    at = 0
    while True:  # the publication comes at each look and each deletion of the collector
        here = Fault("call", at, "delete", lambda: bench.bring("a"))
        gc.prune(bench.party(here), BUILD, RULES)
        if here.seen <= at:
            return
        bench.holds("a")
        for number in bench.numbers():
            bench.free(number)
        for sha256 in bench.store.packs(BUILD):
            bench.clock.delete(f"{ROOT}/packs/{sha256}.tar.zst")
        for sha256 in bench.clock.list(f"{ROOT}/condemned"):
            bench.clock.delete(f"{ROOT}/condemned/{sha256}")
        bench.left_behind()
        at += 1


# -- collection ----------------------------------------------------------------------------------------------------


@_drill("a reader under way is safe from the collector")
def reader_under_way(bench: Bench) -> None:
    bench.bring("a")
    reading = bench.newest()
    lost = bench.pack("p", "a")
    bench.clock.now += 50
    for name in ("b", "c", "d"):
        bench.bring(name, lost=(lost,))
    for _ in range(3):
        bench.clock.now += 10
        gc.prune(bench.store, BUILD, RULES)
        must(1 in bench.numbers(), "a generation went within its grace period")
        must(reading is not None, "nothing could be read")
        if reading is not None:
            check(bench.store, reading)


@_drill("generations go in ascending order, wherever the collector is killed", forks=True)
def killed_collector(bench: Bench) -> None:
    for name in "abcd":
        bench.bring(name)
    bench.clock.now += 200
    at = 0
    while bench.killed(lambda store: gc.prune(store, BUILD, RULES), Fault("kill", at, "delete")):
        left = bench.numbers()
        must(left == list(range(left[0], 5)), f"of generations 1 to 4, {left} were left")
        bench.holds(*"abcd")
        at += 1
    must(bench.numbers() == [3, 4], f"{bench.numbers()} were kept of generations 1 to 4")
    bench.holds(*"abcd")


@_drill("a pack goes two grace periods after the last generation that names it")
def two_graces(bench: Bench) -> None:
    bench.bring("a")
    lost = bench.pack("p", "a")
    bench.bring("b", lost=(lost,))  # generation 2 no longer names it
    bench.bring("c")
    for passed, there in ((200, True), (50, True), (60, False)):
        bench.clock.now += passed
        gc.prune(bench.store, BUILD, RULES)
        must(lost in bench.store.packs(BUILD) or not there, "a pack went before its grace period was over")
        must(lost not in bench.store.packs(BUILD) or there, "a pack that nothing names was not collected")
    bench.holds("b", "c")


@_drill("a pack that is named while the collector is at work stays")
def named_meanwhile(bench: Bench) -> None:
    bench.bring("a")
    lost = bench.pack("p", "a")
    bench.bring("b", lost=(lost,))
    bench.bring("c")
    mark = f"{ROOT}/condemned/{lost}"
    for _ in range(2):
        bench.clock.now += 200
        plan = gc.plan(bench.store, BUILD, RULES)
        if plan.packs:
            # A publisher that has been at it for too long, and took the mark off: only its manifest tells.
            bench.store.commit(BUILD, "p", addition({"a": b"a"})[0], deadline=time.monotonic() + 5)
            bench.clock.put(mark, b"")
            bench.clock.now += 200
        gc.apply(bench.store, plan)
    must(lost in bench.store.packs(BUILD), "a pack went that the newest generation names")
    bench.holds("a", "b", "c")


@_drill("an old mark does not shorten a pack's grace period")
def old_mark(bench: Bench) -> None:
    bench.bring("a")
    lost = bench.pack("p", "a")
    bench.clock.put(f"{ROOT}/condemned/{lost}", b"")  # by a collector that did not see the commit
    bench.clock.now += 200
    bench.bring("b", lost=(lost,))
    bench.bring("c")
    bench.clock.now += 200
    for _ in range(2):
        gc.prune(bench.store, BUILD, RULES)
    must(lost in bench.store.packs(BUILD), "a pack went by the age of an old mark")
