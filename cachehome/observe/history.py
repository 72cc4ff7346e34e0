"""The logs of many processes, added up: one `Activity` for a run with its compile workers and ranks.

A counter is known only where each process that wrote one, and should have, could watch it; else it is `None`, and
is printed as `unknown`. The same holds for the work of compile workers that left no log: they start with an
environment of their own, and without the start-up hook nobody watches them.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from cachehome.observe import files
from cachehome.observe.activity import LARGEST, PREFIX, SUFFIX, record_of

# group -> its counters
GROUPS: dict[str, tuple[str, ...]] = {
    "fx": ("fx_hits", "fx_misses", "fx_bypasses", "saved_fx_seconds"),
    "aot": ("aot_hits", "aot_misses", "aot_bypasses", "saved_aot_seconds"),
    "bundles": ("bundled_kernels", "autotuners_loaded"),
    "triton": ("triton_hits", "triton_misses", "triton_puts", "triton_seconds"),
    "benchmarks": ("benchmarks",),
    "tuning": ("kernels_tuned",),
    "compilers": ("cxx_kernels", "cxx_headers", "cxx_probes", "cxx_queries", "ptxas"),
}
# Counters that something outside every group writes, or that say 0 where nothing was written.
PLAIN = (
    "kernels_requested",
    "kernels_preloaded",
    "compile_seconds",
    "workers",
    "worker_jobs",
    "saved_unknown",
)
REPAIRS = (
    "autotuners_repaired",
    "autotuners_unrepaired",
    "headers_skipped",
    "kernels_completed",
    "choices_kept",
)
_NESTED = 200
_INDUCTOR = frozenset({"fx", "aot", "bundles", "benchmarks", "tuning", "compilers"})
GROUP_OF = {counter: group for group, counters in GROUPS.items() for counter in counters}


@dataclass(frozen=True, slots=True)
class Process:
    """One log."""

    path: str
    facts: dict[str, Any]
    counts: Counter[str]
    watched: frozenset[str]
    unknown: dict[str, str]
    events: tuple[dict[str, Any], ...]
    full: bool = False

    @property
    def began(self) -> float:
        return files.number(self.facts.get("t")) or 0.0

    @property
    def worker(self) -> bool:
        return self.facts.get("role") == "compile worker"


@dataclass(frozen=True, slots=True)
class Activity:
    """What a run took from its caches. `counts`: None for what is not known."""

    run: str
    began: float
    processes: int
    ranks: tuple[str, ...]
    counts: dict[str, float | None]
    unknown: dict[str, str]
    missed: dict[str, list[str]]
    tuned: list[str]
    directories: dict[str, list[str]]
    """Family to the directories in effect, in the order in which they came to be."""
    made_seconds: dict[str, float] = field(default_factory=dict)
    """Key of a Triton kernel that was compiled to how long that took."""
    used: dict[str, list[str]] = field(default_factory=dict)
    known_seconds: dict[str, float] = field(default_factory=dict)
    """Key of a Triton kernel that was found to how long it took to compile, where whoever did measured it."""
    restored: dict[str, Any] = field(default_factory=dict)
    """How the restore before it ended, {} if no process knew."""
    changed: list[str] = field(default_factory=list)
    """Circumstances that are others than those under which what was looked up, or what is nearest to it, was made."""

    def __getitem__(self, counter: str) -> float | None:
        return self.counts.get(counter)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def read(path: str) -> Process | None:
    """The log *path*; None if it is none. A line that was cut short is left out."""
    facts: dict[str, Any] = {}
    counts: Counter[str] = Counter()
    watched: set[str] = set()
    unknown: dict[str, str] = {}
    events: list[dict[str, Any]] = []
    full = False
    try:
        lines = files.read(path, 2 * LARGEST).decode("utf-8", "replace").splitlines()
    except (OSError, ValueError):
        return None
    for line in lines:
        if line.count("[") + line.count("{") > _NESTED:
            continue  # what reads it need not mind its depth
        try:
            event = files.parse(line)
            if "\\ud" in line:  # half a surrogate pair: no terminal and no page can show it
                event = files.parse(files.dumped(event))
            kind = event["event"]
            if kind == "process":
                facts = event
            elif kind == "counts":
                for name, count in event["add"].items():
                    counts[str(name)] += files.number(count) or 0  # type: ignore[assignment]
            elif kind == "watched":
                watched.add(event["what"])
            elif kind == "unknown":
                unknown[event["what"]] = str(event.get("why", ""))
            elif kind == "full":
                full = True
            else:
                events.append(event)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            continue
    if not facts:
        return None
    return Process(path, facts, counts, frozenset(watched - set(unknown)), unknown, tuple(events), full)


def logs(*directories: str) -> list[Process]:
    """All logs in *directories*, oldest first."""
    found = [process for path in _paths(directories) if (process := read(path))]
    return sorted(found, key=lambda process: process.began)


def _paths(directories: Iterable[str]) -> Iterator[str]:
    for directory in directories:
        try:
            names = sorted(os.listdir(directory))
        except OSError:
            continue
        yield from (os.path.join(directory, n) for n in names if n.startswith(PREFIX) and n.endswith(SUFFIX))


def runs(processes: Iterable[Process]) -> list[Activity]:
    """One activity for each run, oldest first."""
    by_run: dict[str, list[Process]] = {}
    for process in processes:
        by_run.setdefault(str(process.facts.get("run", "")), []).append(process)
    return sorted((total(members) for members in by_run.values()), key=lambda activity: activity.began)


def total(processes: list[Process]) -> Activity:
    """*processes*, at least one, added up."""
    summed: Counter[str] = Counter()
    for process in processes:
        summed.update(process.counts)
    unknown = _unknown(processes)
    counts: dict[str, float | None] = {}
    for counter, group in GROUP_OF.items():
        counts[counter] = None if group in unknown else _number(summed[counter])
    for counter in (*PLAIN, *REPAIRS):
        counts[counter] = _number(summed[counter])
    missed: dict[str, list[str]] = {}
    used: dict[str, list[str]] = {}
    tuned: list[str] = []
    changed: list[str] = []
    restored: list[dict[str, Any]] = []
    made: dict[str, float] = {}
    known: dict[str, float] = {}
    directories: dict[str, list[str]] = {}
    for process in processes:
        for event in process.events:
            kind, what = event["event"], str(event.get("what", ""))
            if kind == "missed":
                name = event.get("name") or ("" if what == "fx" else event.get("key"))
                missed.setdefault(what, []).append(str(name or ""))
            elif kind == "used":
                key = str(event.get("key", ""))
                used.setdefault(what, []).append(key)
                if (seconds := files.number(event.get("seconds"))) is not None:
                    known[key] = float(seconds)
            elif kind == "tuned":
                tuned.append(str(event.get("name") or event.get("file") or ""))
            elif kind == "restored" and not process.worker:
                restored += [record] if (record := record_of(event)) else []
            elif kind == "changed":
                changed.append(str(event.get("text", "")))
            elif kind == "made" and (seconds := files.number(event.get("seconds"))) is not None:
                made[str(event.get("key", ""))] = float(seconds)
            elif kind == "directories" and not process.worker:
                for family in ("inductor", "triton"):
                    seen = directories.setdefault(family, [])
                    place = str(event.get(family) or "")
                    if place and (not seen or seen[-1] != place):
                        seen.append(place)
    main = [process for process in processes if not process.worker]
    first = min(processes, key=lambda process: process.began)
    return Activity(
        run=str(first.facts.get("run", "")),
        began=first.began,
        processes=len(processes),
        ranks=tuple(sorted({str(p.facts["rank"]) for p in main if p.facts.get("rank")})),
        counts=counts,
        unknown=unknown,
        missed=missed,
        tuned=tuned,
        directories=directories,
        made_seconds=made,
        known_seconds=known,
        used=used,
        restored=one_restored(restored),
        changed=list(dict.fromkeys(changed)),
    )


def one_restored(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One record for the restores of all workers: one that did not hit, if there is one; {} if there is none."""
    return dict(next((r for r in records if r.get("outcome") != "hit"), records[0] if records else {}))


def _unknown(processes: list[Process]) -> dict[str, str]:
    """Group to the reason for which its counters say nothing."""
    unknown: dict[str, str] = {}
    for process in processes:
        unknown.update((group, why) for group, why in process.unknown.items() if group in GROUPS)
        if process.full:
            unknown.update(dict.fromkeys(GROUPS, f"{process.path} is full"))
        # A module of another name was never noticed. Where Inductor has worked, all of these are imported.
        if any(
            process.counts[name]
            for name in ("fx_hits", "fx_misses", "aot_hits", "aot_misses", "compile_seconds")
        ):
            for group in _INDUCTOR - process.watched:
                unknown.setdefault(group, "its module was never imported: this torch is built in another way")
    pools = [event for process in processes for event in process.events if event["event"] == "pool"]
    asked = any(p.counts["worker_jobs"] or "workers" in p.unknown for p in processes)
    if pools and asked and not any(process.worker for process in processes):
        unknown.setdefault("triton", "the compile workers left no log: they run without the start-up hook")
    return unknown


def _number(count: float) -> float:
    return int(count) if count == int(count) else round(count, 3)
