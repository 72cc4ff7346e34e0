"""The verdict: whether a start was warm, and if not, why.

    warm         everything that was looked up was found, nothing was compiled or tuned
    partly warm  some was; the causes name what was not
    inert        files were restored and none of them was used
    cold         nothing was found, and nothing had been restored
    unknown      the counters that would tell are not known, or there are none

A restore that hit says that files are there; only the counters say that they were used.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from cachehome.observe.history import Activity

STATES = ("warm", "partly warm", "inert", "cold", "unknown")
_HITS = ("fx_hits", "aot_hits", "triton_hits", "autotuners_loaded")
_NEEDED = {"inductor": ("fx_hits", "fx_misses"), "triton": ("triton_hits", "triton_misses")}
_NAMED = 3


@dataclass(frozen=True, slots=True)
class Cause:
    """One reason for which a start was not warm: `kind` for programs, `text` for people."""

    kind: str
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """`state` of a start; `families` the same for each family that was used."""

    state: str
    causes: tuple[Cause, ...] = ()
    notes: tuple[Cause, ...] = ()
    """What was not as intended and did no harm: a repair, an unknown counter."""
    families: dict[str, str] = field(default_factory=dict)
    saved_seconds: float | None = None
    """Measured when the entries that were hit were made; None if nothing is known of that."""
    saved_partly: bool = False
    """Whether some of what was hit never told how long it took."""

    @property
    def warm(self) -> bool:
        return self.state == "warm"

    def line(self) -> str:
        """The verdict for people."""
        saved = ""
        if self.saved_seconds:
            saved = (
                f", {'at least ' if self.saved_partly else ''}{self.saved_seconds:.1f} s of compiling saved"
            )
        why = f": {'; '.join(cause.text for cause in self.causes)}" if self.causes else ""
        return f"{self.state}{saved}{why}"

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def judge(
    activity: Activity | None,
    restored: Mapping[str, Any] | None = None,
    times: Mapping[str, float] | None = None,
) -> Verdict:
    """The verdict on *activity*.

    *restored*: the record of the restore before it, if there was one. *times*: seconds that Triton kernels took to
    compile, by key, as older logs know them, for those of which the restored directory says nothing.
    """
    record = restored or {}
    causes = list(_of_restore(record))
    if activity is None:
        causes.append(
            Cause("no_counters", "no process left counters: is `diagnostics` on, and the start-up hook?")
        )
        return Verdict("unknown", tuple(causes))
    families = {name: state for name in _NEEDED if (state := _family(activity, name))}
    found = [_of_places(activity, record), _of_graphs(activity), _of_kernels(activity), _of_tuning(activity)]
    causes += [cause for causes_ in found for cause in causes_]
    hits = sum(activity[name] or 0 for name in _HITS)
    blind = [name for name, needed in _NEEDED.items() if any(activity[counter] is None for counter in needed)]
    lost = _lost(activity)
    if not hits and ("inductor" in blind or (blind and not lost)):
        state = "unknown"
    elif not hits and record.get("outcome") == "hit" and not _borrowed(record):
        state = "inert"
        if not lost:
            causes.append(Cause("nothing_looked_up", "no compiler looked anything up in a cache"))
    elif not hits:
        state = "cold" if lost else "unknown"
        if not lost:
            causes.append(Cause("nothing_looked_up", "no compiler looked anything up in a cache"))
    elif lost:
        state = "partly warm"
    else:
        state = "unknown" if blind else "warm"
    saved, untold = _saved(activity, times or {})
    if state == "warm":
        notes, causes = [*causes], []
    else:
        notes = []
    (notes if state != "unknown" else causes).extend(_blind(activity))
    notes += _notes(activity)
    notes += _of_circumstances(activity, state, causes)
    if untold:
        notes.append(
            Cause("saved_unknown", f"time saved: unknown for {untold} hits: nobody timed their compilation")
        )
    return Verdict(state, tuple(causes), tuple(notes), families, saved, bool(untold))


def require(verdict: Verdict, families: Iterable[str]) -> list[Cause]:
    """What speaks against *families* having been warm. A family that nobody used is no fault."""
    faults = []
    for name in families:
        state = verdict.families.get(name, "")
        if state not in ("", "warm"):
            faults.append(Cause("required", f"{name} was {state}"))
    if verdict.state in ("inert", "unknown") and not faults:
        faults.append(Cause("required", f"the start was {verdict.state}"))
    return faults


def _family(activity: Activity, name: str) -> str:
    """The state of one family, "" if it was not used."""
    if name == "inductor":
        hits = (activity["fx_hits"] or 0) + (activity["aot_hits"] or 0)
        lost = sum(
            activity[c] or 0
            for c in ("fx_misses", "aot_misses", "aot_bypasses", "fx_bypasses", "kernels_tuned")
        )
        lost += activity["cxx_kernels"] or 0
    else:
        hits = (activity["triton_hits"] or 0) + (activity["autotuners_loaded"] or 0)
        lost = activity["triton_misses"] or 0
    if any(activity[counter] is None for counter in _NEEDED[name]):
        return "unknown"
    if not hits and not lost:
        return ""
    return "warm" if not lost else "partly warm" if hits else "cold"


def _lost(activity: Activity) -> float:
    """How much was compiled or tuned."""
    names = (
        "fx_misses",
        "fx_bypasses",
        "aot_misses",
        "aot_bypasses",
        "triton_misses",
        "kernels_tuned",
        "cxx_kernels",
        "ptxas",
    )
    return sum(activity[name] or 0 for name in names)


def _of_restore(record: Mapping[str, Any]) -> Iterable[Cause]:
    outcome, reason = str(record.get("outcome", "")), str(record.get("reason", ""))
    details = record.get("details") or {}
    message = details.get("message") or reason
    if outcome == "miss":
        yield Cause("restore_miss", f"nothing was restored: {message}")
    elif outcome in ("rejected", "unavailable"):
        yield Cause(f"restore_{outcome}", f"nothing was restored: {message}")
    elif _borrowed(record):
        yield Cause(
            "borrowed", f"restored from the profile {_borrowed(record)[:16]}: this one has no generation yet"
        )
    origins = list(details.get("relocated") or ())
    above = [path for path in origins if not any(path.startswith(other + os.sep) for other in origins)]
    beside = Counter(map(os.path.dirname, above))
    told = dict.fromkeys(parent if beside[parent := os.path.dirname(path)] > 1 else path for path in above)
    if told:
        yield Cause("relocated", f"entries were made in {', '.join(told)}")


def _borrowed(record: Mapping[str, Any]) -> str:
    """The profile that the first start of another one was restored from: it need not hold anything for that."""
    return str((record.get("details") or {}).get("profile_fallback", ""))


def _of_places(activity: Activity, record: Mapping[str, Any]) -> Iterable[Cause]:
    restored = (record.get("details") or {}).get("directories") or {}
    for family, places in activity.directories.items():
        # An engine that moves a family below its own root moves it to where it is carried, too.
        lost = [place for place in places if not any(_within(place, root) for root in restored.values())]
        if len(places) > 1 and lost:
            yield Cause(
                "replaced", f"the {family} directory was replaced while it ran: {' -> '.join(places)}"
            )
        if family in restored and lost and len(lost) == len(places):
            yield Cause("elsewhere", f"restored to {restored[family]}, but {family} used {places[-1]}")


def _within(place: str, directory: str) -> bool:
    try:
        a, b = os.path.realpath(place), os.path.realpath(directory)
    except ValueError:  # no path at all
        return False
    return a == b or a.startswith(b + os.sep)


def _of_graphs(activity: Activity) -> Iterable[Cause]:
    missed = activity["fx_misses"] or 0
    if missed:
        why = [text for text in activity.missed.get("fx", []) if text]
        told = f": {'; '.join(dict.fromkeys(why[:_NAMED]))}" if why else ""
        yield Cause("graphs_missed", f"{missed} graphs were compiled{told}")
    elif activity["aot_misses"]:
        yield Cause("aot_missed", f"{activity['aot_misses']} graphs were traced by AOTAutograd again")
    bypassed = (activity["fx_bypasses"] or 0) + (activity["aot_bypasses"] or 0)
    if bypassed:
        yield Cause("bypassed", f"{bypassed} graphs can't be cached (torch calls it a bypass)")


def _of_kernels(activity: Activity) -> Iterable[Cause]:
    if activity["triton_misses"]:
        yield Cause(
            "kernels_missed",
            f"Triton compiled {activity['triton_misses']} kernels{_some(activity.missed.get('triton', []))}",
        )
    elif activity["ptxas"]:
        yield Cause("kernels_assembled", f"ptxas ran {activity['ptxas']} times")
    if activity["cxx_kernels"]:
        yield Cause("cxx", f"{activity['cxx_kernels']} C++ compilations")


def _of_tuning(activity: Activity) -> Iterable[Cause]:
    if activity["kernels_tuned"]:
        yield Cause("tuned", f"{activity['kernels_tuned']} kernels were tuned again{_some(activity.tuned)}")
    if activity["autotuners_unrepaired"]:
        yield Cause("unrepaired", f"{activity['autotuners_unrepaired']} autotuners name another directory")


def _some(names: Sequence[str]) -> str:
    found = list(dict.fromkeys(name for name in names if name))
    return f" ({', '.join(found[:_NAMED])}{', ...' if len(found) > _NAMED else ''})" if found else ""


def _notes(activity: Activity) -> list[Cause]:
    notes = []
    if activity["autotuners_repaired"]:
        notes.append(
            Cause("repaired", f"{activity['autotuners_repaired']} relocated autotuners were repaired")
        )
    if activity["kernels_completed"]:
        notes.append(
            Cause(
                "completed",
                f"texts of {activity['kernels_completed']} kernels, which a slim restore leaves out, were made again"
                " for who asked: --slim off restores them",
            )
        )
    if activity["choices_kept"]:
        notes.append(
            Cause("choices", f"{activity['choices_kept']} kernels kept what coordinate descent had found")
        )
    return notes


def _of_circumstances(activity: Activity, state: str, causes: Iterable[Cause]) -> Iterable[Cause]:
    """What has changed since it was compiled, one note each, unless a cause says it already."""
    told = "\n".join(cause.text for cause in causes)
    harmless = "; nothing had to be compiled for it" if state == "warm" else ""
    for text in activity.changed:
        if text not in told:
            yield Cause("changed", f"{text}{harmless}")


def _blind(activity: Activity) -> list[Cause]:
    return [Cause("unknown", f"{group}: unknown, {why}") for group, why in activity.unknown.items()]


def _saved(activity: Activity, times: Mapping[str, float]) -> tuple[float | None, int]:
    """(seconds, how many of the hits never told how long they took to make)."""
    unknown = int(activity["saved_unknown"] or 0)
    parts = [value for name in ("saved_fx_seconds", "saved_aot_seconds") if (value := activity[name])]
    for key in activity.used.get("triton", ()):
        seconds = activity.known_seconds.get(key, times.get(key))
        if seconds is None:
            unknown += 1
        else:
            parts.append(seconds)
    return (round(sum(parts), 3) if parts else None), unknown
