"""Why a start was cold: the likely causes, from what a run reported of itself.

A run's report is any JSON document that holds a record (`action`, `outcome`, `reason`, `details`), and, where they are
known, an identity, counters of what compilers hit and missed, and the environment at the end of the run.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from cachehome.errors import IntegrityError, NotInStore, Untrusted
from cachehome.identity import ABSENT, FORMAT, Identity, diff

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from cachehome.store.reader import Reader

_READ = 32  # builds of a store that are looked at for the nearest
_PROFILES = 16  # of each
_PATIENCE = 1.0  # seconds for finding out which they are
_TOLD, _SHOWN = 3, 60  # differences that a line names, letters of a value
_SENTENCES = {
    "no_published_generation": "nothing was published for this build and profile yet: a first run starts cold",
    "other_build": "the live directory holds the work of another build: `cachehome run` keeps builds apart",
    "no_store": "no store is set: give --store or CACHEHOME_STORE",
}
# Counters of torch and of ours that count a miss, and what it is that missed.
_MISSES = {
    "fxgraph_cache_miss": "graphs",
    "autograd_cache_miss": "graphs",
    "triton_bundler_save_kernel": "kernels",
    "group_miss": "kernels",
    "triton_miss": "kernels",
    "compiled": "kernels",
}


@dataclass(frozen=True, slots=True)
class Run:
    """What is known of one run."""

    record: dict[str, Any] = field(default_factory=dict)
    identity: Identity | None = None
    counters: dict[str, float] = field(default_factory=dict)
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def misses(self) -> dict[str, int]:
        """Counted misses by what missed."""
        found: dict[str, int] = {}
        for name, number in self.counters.items():
            kind = _MISSES.get(name.rsplit(".", 1)[-1])
            if kind and number > 0:
                found[kind] = max(found.get(kind, 0), int(number))
        return found


def read(document: object) -> Run | None:
    """The run that *document* reports, None if it holds no record and no identity."""
    record: dict[str, Any] = {}
    identity = None
    counters: dict[str, float] = {}
    environ: dict[str, str] = {}
    for name, part in _objects(document):
        if {"action", "outcome"} <= part.keys() and (not record or part["action"] == "restore"):
            record = part
        elif part.get("format") == FORMAT:
            identity = Identity.from_dict(part)
        elif name == "counters":
            counters.update(_numbers(part))
        elif name in ("environment", "environ") and all(isinstance(value, str) for value in part.values()):
            environ.update(part)
    return Run(record, identity, counters, environ) if record or identity else None


def causes(run: Run, other: Run | None = None) -> list[str]:
    """Likely causes of a cold start of *run*, the surest first. *other* is an earlier run to compare with."""
    told: list[str] = []
    outcome, reason = run.record.get("outcome"), str(run.record.get("reason", ""))
    told_of = run.record.get("details")
    details = told_of if isinstance(told_of, dict) else {}
    if outcome in ("miss", "disabled", "unavailable", "rejected"):
        message = details.get("message")
        sentence = _SENTENCES.get(reason, reason.replace("_", " "))
        told.append(f"nothing was restored ({outcome}): {sentence}" + (f" ({message})" if message else ""))
    if run.identity and other and other.identity:
        told += [
            found.words for found in diff(other.identity, run.identity) if found.kind in ("code", "probe")
        ]
    told += _overwritten(run, details)
    told += _late(run)
    compiled = run.misses
    if outcome == "hit" and not compiled and not told:
        return []
    if details.get("relocated"):
        told.append(
            "the entries were made in another directory (relocated): graphs hit, but what names its own path is"
            " compiled anew; keep the same user, HOME and class of host, or let `run` choose the directory"
        )
    if details.get("profile_fallback"):
        told.append(
            f"this profile had no generation of its own and started from {details['profile_fallback']}'s: what"
            " only this job compiles was not in there; its next start has it"
        )
    told += _threads(run, other)
    if outcome == "hit" and compiled:
        what = " and ".join(f"{number} {kind}" for kind, number in compiled.items())
        told.append(
            f"{what} missed although files were restored. If nothing above explains it: shapes or graphs that no"
            " published run had seen (they are published now), or a kernel whose source moved in its file"
        )
    return list(dict.fromkeys(told))


def nearest(mine: Identity, others: Mapping[str, Identity]) -> tuple[str, int] | None:
    """Which of *others* differs least from *mine* in its build, and in how many fields."""
    counted = {
        name: sum(found.kind in ("code", "probe") for found in diff(other, mine))
        for name, other in others.items()
    }
    name = min(counted, key=lambda key: (counted[key], key), default=None)
    return None if name is None else (name, counted[name])


def other_builds(mine: Identity, store: Reader) -> str:
    """What the build that is nearest to *mine* in *store* differs in, in a line; "" if there is none. Raises
    StoreError."""
    builds = store.builds()
    known = {}
    for build in _used_last(store, builds) if len(builds) > _READ else builds:
        # One that can't be read or trusted hides none of the others.
        with contextlib.suppress(NotInStore, IntegrityError, Untrusted, ValueError, RecursionError):
            other = Identity.from_dict(store.identity(build))
            diff(other, mine)  # fails here if it is nested too deep
            known[build] = other
    found = nearest(mine, known)
    if found is None or not found[1]:
        return ""
    told = [
        f"{difference.field.removeprefix('environment.')}: {_shown(difference.a)} became {_shown(difference.b)}"
        for difference in diff(known[found[0]], mine)
        if difference.kind in ("code", "probe")
    ]
    more = f"; and {len(told) - _TOLD} more" if len(told) > _TOLD else ""
    looked_at = f" of {len(known)} looked at" if len(builds) > _READ else ""
    return f"nothing of this build is there; of the nearest{looked_at}, {found[0][:8]}, {'; '.join(told[:_TOLD])}{more}"


def _used_last(store: Reader, builds: list[str]) -> list[str]:
    """Those of *builds* that somebody used last, as far as that can be found out soon."""
    until = time.monotonic() + _PATIENCE
    idle: dict[str, float] = {}
    for build in builds:
        if time.monotonic() > until:
            break
        with contextlib.suppress(NotInStore, IntegrityError, Untrusted):
            for profile in itertools.islice(store.profiles(build), _PROFILES):
                # A profile that nobody has come back to has the second alone.
                for name in ("used", "identity.json"):
                    with contextlib.suppress(NotInStore):
                        age = store.backend.age(f"{build}/profiles/{profile}/{name}")
                        idle[build] = min(age, idle.get(build, age))
    return sorted(builds, key=lambda build: idle.get(build, float("inf")))[:_READ]


def _shown(text: str) -> str:
    text = text if text.isprintable() else ascii(text)
    return "unset" if text == ABSENT else text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def _overwritten(run: Run, details: Mapping[str, Any]) -> list[str]:
    """An engine that took other directories than those that were filled."""
    from cachehome import families

    directories = details.get("directories")
    if not isinstance(directories, dict):
        return []
    told = []
    for family in families.BUILTIN:
        filled, used = directories.get(family.name), run.environ.get(family.variable)
        # An engine's root is carried whole, with what it moves there.
        carried = any(f"{used}/".startswith(f"{str(root).rstrip('/')}/") for root in directories.values())
        if filled and used and not carried:
            told.append(
                f"{family.variable} was {used} at the end, but {filled} was filled: the engine, or a line in the job,"
                " overwrote it; export it before the start, so that both use it, or take that line out"
            )
    return told


def _late(run: Run) -> list[str]:
    """Variables that were set after the snapshot: compilers saw them, the key did not."""
    from cachehome.probes.environment import probe

    if run.identity is None or not run.environ:
        return []
    kept = run.identity.build.get("environment", {})
    late = {name: text for name, text in probe(run.environ)[0].items() if kept.get(name) != text}
    return [
        f"{name}={text} was set after the start (it was {kept.get(name, 'unset')}): compilers hash it, the key was made"
        " before; export it before the start"
        for name, text in late.items()
    ]


def _threads(run: Run, other: Run | None) -> list[str]:
    if not (run.identity and other and other.identity):
        return []
    return [
        f"{found.field}: {found.words}"
        for found in diff(other.identity, run.identity)
        if found.kind == "note"
    ]


def _objects(value: object, name: str = "", depth: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every object of a document with the name that it stands under, the outermost first."""
    if depth > 12:
        return
    if isinstance(value, dict):
        yield name, value
        for key, item in value.items():
            yield from _objects(item, str(key), depth + 1)
    elif isinstance(value, list):
        for item in value:
            yield from _objects(item, name, depth + 1)


def _numbers(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    for key, item in value.items():
        if isinstance(item, dict):
            yield from _numbers(item, f"{prefix}{key}.")
        elif isinstance(item, (int, float)) and not isinstance(item, bool):
            yield f"{prefix}{key}", item
