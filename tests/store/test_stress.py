"""How the load judges what it sees: what a busy machine does to it is no fault of the store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from memory import MemoryBackend

from cachehome.store.lab import BUILD, SCRATCH, Lab
from cachehome.store.stress import Load, Report, Stress

OF = f"{SCRATCH}/cachehome-v1/{BUILD}"
TURN, IDLE = 6.0, 12.0  # seconds that a profile is written to, and after which it may go whole


class Bench(Stress):
    """The load's judge, with notes that a test writes, and a clock that it moves."""

    def __init__(self, directory: Path) -> None:
        self.memory = MemoryBackend()
        super().__init__(self.memory, Load(grace=2.0))
        self.directory = str(directory)
        self.scratch.put("begin", b"")
        self.lab = Lab(self.scratch)
        self.seen: dict[str, tuple[str, int]] = {}

    def publish(self, name: str, **facts: Any) -> None:
        """A publication to the first profile, as its publisher notes it."""
        generation, _ = self.lab.bring(name, profile="turn-0000")
        manifest = generation.manifest
        noted = {"line": manifest.line, "number": generation.number, "nonce": manifest.nonce, "seconds": 0.1}
        noted |= {"profile": "turn-0000", "name": name, "idle": self._may_be_gone("turn-0000")}
        self._note("published", **(noted | facts))

    def read(self) -> list[str]:
        """Look as a reader does; the kinds of all problems so far."""
        self._read("turn-0000", [note for note in self._notes() if "profile" in note], self.seen)
        return [note["kind"] for note in self._notes() if "text" in note]

    def remove(self, below: str) -> None:
        for name in list(self.memory.names):
            if name.startswith(f"{OF}/{below}"):
                self.memory.delete(name)

    def report(self) -> Report:
        report = Report()
        self._collect(report)
        return report


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def test_a_profile_that_was_idle_for_long_may_go_whole_and_begin_anew(bench: Bench) -> None:
    for name in "abc":
        bench.publish(name)
    assert bench.read() == []
    bench.memory.now = IDLE
    bench.remove("profiles")
    assert bench.read() == []
    bench.publish("late")  # its publisher was held up for as long
    assert bench.read() == []
    assert bench.report().sound


@pytest.mark.parametrize("seconds", [0.0, IDLE - 0.1])
def test_before_that_it_may_not(bench: Bench, seconds: float) -> None:
    bench.publish("a")
    bench.publish("b")
    bench.memory.now = seconds
    bench.remove("profiles")
    assert bench.read() == ["lost"]
    bench.publish("c")
    assert set(bench.read()) == {"lost", "twice"}
    report = bench.report()
    assert report.lost
    assert report.twice
    assert not report.sound


@pytest.mark.parametrize(("seconds", "sound"), [(0.1, False), (2.1, True)])
def test_a_hole_where_a_publication_was_held_up(bench: Bench, seconds: float, sound: bool) -> None:
    """For longer than the grace period, so that its pack could go before it was named."""
    bench.publish("a", seconds=seconds)
    bench.read()
    bench.remove("packs")
    assert bench.read() == ["hole"]
    report = bench.report()
    assert (report.sound, report.hole, report.held_up) == (sound, 0 if sound else 2, int(sound))


@pytest.mark.parametrize(("seconds", "sound"), [(0.1, False), (2.1, True)])
def test_a_hole_of_a_publisher_that_was_killed_late(bench: Bench, seconds: float, sound: bool) -> None:
    bench.publish("a")
    bench.read()
    bench.lab.bring("b", profile="turn-0000")
    bench._note("killed", seconds=seconds)
    bench.remove("packs")
    assert bench.report().sound == sound


def test_a_machine_too_slow_for_any_publication(bench: Bench) -> None:
    bench._note("gave_up")
    report = bench.report()
    assert not report.sound
    assert report.problems == [
        "nothing was proved: 0 publications, 1 that gave up after half a grace period: raise --grace, or the time"
    ]
