"""The runs that a report tells of: what each took from its caches, and the verdict on it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cachehome.observe import history
from cachehome.observe.activity import record_of
from cachehome.observe.history import Activity
from cachehome.observe.verdict import Verdict, judge


@dataclass(frozen=True, slots=True)
class Run:
    """One run: its processes added up, and the verdict."""

    activity: Activity
    verdict: Verdict

    def to_json(self) -> dict[str, Any]:
        activity = self.activity
        return {
            "run": activity.run,
            "began": activity.began,
            "processes": activity.processes,
            "ranks": list(activity.ranks),
            "verdict": self.verdict.to_json(),
            "counts": activity.counts,
            "unknown": activity.unknown,
            "directories": activity.directories,
        }


def load(directories: Iterable[str], starts: Sequence[Mapping[str, Any]] = ()) -> list[Run]:
    """All runs whose logs lie in *directories*, oldest first.

    *starts*: the workers of compiler-cache.json. Where no log tells how the restore ended, the last run is judged
    by how they began; older ones had others.
    """
    activities = history.runs(history.logs(*directories))
    times: dict[str, float] = {}
    for activity in activities:
        times |= activity.made_seconds
    last = len(activities) - 1
    return [
        Run(
            activity,
            judge(activity, activity.restored or (restored(starts) if number == last else None), times),
        )
        for number, activity in enumerate(activities)
    ]


def unused(directories: Iterable[str], run: str, since: float, record: Mapping[str, Any]) -> Verdict | None:
    """The verdict on *run* since then if it used nothing of what *record* says was restored, else None."""
    found = [process for process in history.logs(*directories) if process.began >= since]
    processes = [process for process in found if process.facts.get("run") == run]
    verdict = judge(history.total(processes) if processes else None, record)
    return verdict if verdict.state == "inert" else None


def restored(starts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One record for the starts of all workers; {} if there is none."""
    record = history.one_restored([worker["start"] for worker in starts if worker.get("start")])
    return record_of({**record, "details": record})


def lines(runs: Sequence[Run]) -> list[str]:
    """The runs for people."""
    found = [
        f"{'run':<24} {'verdict':<12} {'saved s':>8} {'FX':>7} {'AOT':>7} {'Triton':>7} {'tuned':>6} {'compilers':>9}"
    ]
    for run in runs:
        a, v = run.activity, run.verdict
        saved = "-" if v.saved_seconds is None else f"{v.saved_seconds:.1f}"
        cxx, ptxas = a["cxx_kernels"], a["ptxas"]
        compilers = "unknown" if cxx is None or ptxas is None else f"{cxx + ptxas:g}"
        found.append(
            f"{a.run[:24]:<24} {v.state:<12} {saved:>8} {_pair(a, 'fx'):>7} {_pair(a, 'aot'):>7}"
            f" {_pair(a, 'triton'):>7} {_one(a['kernels_tuned']):>6} {compilers:>9}"
        )
        found += [f"  {cause.text}" for cause in (*v.causes, *v.notes)]
    return found


def _pair(activity: Activity, group: str) -> str:
    """Hits of lookups."""
    hits, misses = activity[f"{group}_hits"], activity[f"{group}_misses"]
    return "unknown" if hits is None or misses is None else f"{hits:g}/{hits + misses:g}"


def _one(count: float | None) -> str:
    return "unknown" if count is None else f"{count:g}"
