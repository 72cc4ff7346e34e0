"""Retention: what may go, as a plan that can be shown, and how it goes.

    generation    stays while it is among the newest K that can be read, or younger than `keep_seconds`; goes in
                  ascending order. The ones before a compacted one stay for their age only
    profile       goes whole when nobody has published to it or restored from it for `keep_idle_seconds`
    pack          that no manifest and no pin of the build names: condemned, and deleted by a later prune, at least
                  `keep_seconds` later, if still unnamed and still condemned
    list, .tmp-*  denials that have expired; what killed writers left more than `writer_seconds` ago
    build         goes when it has no profile, no pack and no pin any more, and its denials are as old as idle ones

A collector may be killed at any line, and several may run at once: every step is safe by itself, in this order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from cachehome.errors import IntegrityError, NotInStore, Untrusted
from cachehome.store.manifest import Manifest
from cachehome.store.merge import COMPACTED
from cachehome.store.reader import generation_name
from cachehome.store.store import DAY, Store

if TYPE_CHECKING:
    from cachehome.settings import Settings


_WRITER = 3600.0  # what is being written is younger


def longest(settings: Settings) -> float:
    """Seconds that a publication or a restore may take: somebody may be about to name what is younger, or read it."""
    return max(settings.publish_budget_seconds, settings.exit_timeout_seconds, settings.store_timeout_seconds)


class Rules(NamedTuple):
    """How much is kept. `writer_seconds`: what killed writers left is older."""

    keep_generations: int = 2
    keep_seconds: float = DAY
    keep_idle_seconds: float = 30 * DAY
    writer_seconds: float = _WRITER

    @classmethod
    def of(cls, settings: Settings, *, at_least: float = 0.0) -> Rules:
        """The rules that *settings* tell, with no grace period shorter than *at_least*."""
        return cls(
            settings.keep_generations,
            max(settings.keep_seconds, at_least),
            max(settings.keep_idle_seconds, at_least),
            max(_WRITER, 2 * at_least),
        )


class Item(NamedTuple):
    """One name that goes, or is condemned, and why."""

    name: str
    bytes: int
    why: str


class Plan(NamedTuple):
    """What a prune of one build does. Nothing in it has happened yet; `apply` does it.

    *generations*: ascending within each profile. *idle*: profiles of which all goes. *named*: condemned, but named
    again. *seen*: generations that were read for this plan.
    """

    build: str
    rules: Rules
    inodes: int = 0
    bytes: int = 0
    generations: tuple[Item, ...] = ()
    hints: tuple[Item, ...] = ()
    packs: tuple[Item, ...] = ()
    condemn: tuple[Item, ...] = ()
    named: tuple[str, ...] = ()
    lists: tuple[Item, ...] = ()
    temporaries: tuple[Item, ...] = ()
    idle: tuple[str, ...] = ()
    whole: bool = False
    seen: frozenset[tuple[str, int]] = frozenset()

    @property
    def deleted(self) -> tuple[Item, ...]:
        """What is gone once the plan is applied. A pack takes its mark along."""
        return self.generations + self.hints + self.packs + self.lists + self.temporaries

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.deleted or self.condemn or self.named or self.whole)


class _Profile:
    """What planning finds out about one profile."""

    def __init__(self, name: str, numbers: list[int]) -> None:
        self.name = name
        self.numbers = numbers
        self.manifests: dict[int, Manifest] = {}
        self.ages: dict[int, float] = {}
        self.idle = False
        self.floor = 0
        self.blind = False  # one of its manifests may be sound, and can't be read by us or just now

    @property
    def kept(self) -> list[Manifest]:
        return [] if self.idle else [m for number, m in self.manifests.items() if number >= self.floor]


def plan(store: Store, build: str, rules: Rules) -> Plan:
    """What may go of *build*. Reads every manifest, writes nothing."""
    inodes, size = store.usage(build)
    condemned = _ages(store, f"{build}/condemned")
    packs = store.packs(build)
    profiles = [_profile(store, build, name, rules) for name in store.profiles(build)]
    pins = store.pins(build)
    pinned = {pack.sha256 for generation in pins.values() for pack in generation.manifest.packs}
    named = pinned | _names(m for profile in profiles for m in profile.manifests.values())
    kept = pinned | _names(m for profile in profiles for m in profile.kept)
    items = _Items(store, build)
    for profile in profiles:
        items.add_profile(profile)
    unnamed = set() if any(profile.blind for profile in profiles) else packs - kept
    for sha256 in sorted(unnamed):
        pack = f"{build}/packs/{sha256}.tar.zst"
        if sha256 in named or sha256 not in condemned:
            items.add(items.condemn, pack, "no other manifest names it" if sha256 in named else "unnamed")
        elif condemned[sha256] >= rules.keep_seconds:
            items.add(items.packs, pack, f"unnamed for {condemned[sha256]:.0f} s")
    for sha256 in sorted(set(condemned) - packs):
        items.add(items.lists, f"{build}/condemned/{sha256}", "its pack is gone")
    denied = store.denied(build)
    active = {found.label for found in denied.lists} | {label for label, _ in denied.unreadable}
    lists = _ages(store, f"{build}/denied")
    for label in sorted(set(lists) - active):
        items.add(items.lists, f"{build}/denied/{label}", "expired")
    for name in sorted(store.backend.temporaries(build)):
        with contextlib.suppress(NotInStore):
            age = store.backend.age(name)
            if age > rules.writer_seconds:
                items.add(items.temporaries, name, f"left by a killed writer {age:.0f} s ago")
    whole = not packs and not pins and all(profile.idle for profile in profiles)
    if whole:
        waiting = [*lists.values(), *_ages(store, build, "identity.json", "pruned").values()]
        whole = all(age > rules.keep_idle_seconds for age in waiting)
    return Plan(
        build,
        rules,
        inodes,
        size,
        generations=tuple(items.generations),
        hints=tuple(items.hints),
        packs=tuple(items.packs),
        condemn=tuple(items.condemn),
        named=tuple(sorted(kept & set(condemned))),
        lists=tuple(items.lists),
        temporaries=tuple(items.temporaries),
        idle=tuple(profile.name for profile in profiles if profile.idle),
        whole=whole,
        seen=frozenset((p.name, number) for p in profiles for number in p.numbers),
    )


class _Items:
    """The lists of a plan while it is made."""

    def __init__(self, store: Store, build: str) -> None:
        self.store = store
        self.build = build
        self.generations: list[Item] = []
        self.hints: list[Item] = []
        self.packs: list[Item] = []
        self.condemn: list[Item] = []
        self.lists: list[Item] = []
        self.temporaries: list[Item] = []

    def add(self, to: list[Item], name: str, why: str) -> None:
        with contextlib.suppress(NotInStore):
            to.append(Item(name, self.store.backend.size(name), why))

    def add_profile(self, profile: _Profile) -> None:
        for number in profile.numbers:
            if profile.idle:
                why = "its profile is idle"
            elif number < profile.floor:
                why = f"superseded, {profile.ages[number]:.0f} s old"
            else:
                break
            self.add(self.generations, generation_name(self.build, profile.name, number), why)
        if profile.idle:
            for hint in ("CURRENT", "identity.json", "used"):
                name = f"{self.build}/profiles/{profile.name}/{hint}"
                self.add(self.hints, name, "its profile is idle")


def _profile(store: Store, build: str, name: str, rules: Rules) -> _Profile:
    profile = _Profile(name, store.numbers(build, name))
    for number in profile.numbers:
        with contextlib.suppress(NotInStore):
            profile.ages[number] = store.backend.age(generation_name(build, name, number))
        try:
            profile.manifests[number] = store.read(build, name, number).manifest
        except NotInStore:
            continue
        except (IntegrityError, Untrusted) as error:
            profile.blind = profile.blind or error.fields.get("reason") == "unreadable"
    profile.numbers = [number for number in profile.numbers if number in profile.ages]
    profile.floor = _floor(profile, rules)
    profile.idle = _idle_seconds(store, build, profile) > rules.keep_idle_seconds
    return profile


def _floor(profile: _Profile, rules: Rules) -> int:
    """The lowest number that stays: all from there on do, so that numbers are freed in ascending order only."""
    stays = profile.numbers[-1:]  # also if it can't be read: the next number must not be used again
    count = rules.keep_generations
    for number in reversed(profile.numbers):
        manifest = profile.manifests.get(number)
        if manifest is not None and count > 0:
            stays.append(number)
            count = 0 if manifest.publisher.get(COMPACTED) else count - 1
        elif profile.ages[number] < rules.keep_seconds:
            stays.append(number)
    return min(stays, default=0)


def _idle_seconds(store: Store, build: str, profile: _Profile) -> float:
    """Seconds since somebody is known to have used the profile."""
    known = list(profile.ages.values())
    known += _ages(store, f"{build}/profiles/{profile.name}", "used", "identity.json", "CURRENT").values()
    return min(known, default=float("inf"))


def _ages(store: Store, prefix: str, *names: str) -> dict[str, float]:
    """The ages of *names* below *prefix*, or of all names there."""
    ages = {}
    for name in names or store.backend.list(prefix):
        with contextlib.suppress(NotInStore):
            ages[name] = store.backend.age(f"{prefix}/{name}")
    return ages


def _names(manifests: Iterable[Manifest]) -> set[str]:
    return {pack.sha256 for manifest in manifests for pack in manifest.packs}


def apply(store: Store, plan: Plan) -> Plan:
    """Do what *plan* says, unless things have changed since; what was done, as a plan. Raises `StoreError`."""
    backend, build = store.backend, plan.build
    for sha256 in plan.named:
        backend.delete(f"{build}/condemned/{sha256}")
    in_use = {name for name in plan.idle if not _still_idle(store, plan, name)}
    done: list[Item] = []
    for item in plan.generations + plan.hints:
        if item.name.split("/")[2] not in in_use:
            backend.delete(item.name)
            done.append(item)
    condemned = _condemn(store, plan, in_use)
    packs = _delete_packs(store, plan)
    for item in plan.lists + plan.temporaries:
        backend.delete(item.name)
    # What is not empty stays: somebody has used it meanwhile.
    idle = tuple(name for name in plan.idle if name not in in_use)
    for name in idle:
        backend.delete(f"{build}/profiles/{name}/generations")
        backend.delete(f"{build}/profiles/{name}")
    whole = plan.whole and not in_use and not store.packs(build)
    if whole:
        _delete_build(store, build)
    return Plan(
        build,
        plan.rules,
        *store.usage(build),
        generations=tuple(item for item in done if item in plan.generations),
        hints=tuple(item for item in done if item in plan.hints),
        packs=packs,
        condemn=condemned,
        named=plan.named,
        lists=plan.lists,
        temporaries=plan.temporaries,
        idle=idle,
        whole=whole,
        seen=plan.seen,
    )


def _still_idle(store: Store, plan: Plan, name: str) -> bool:
    numbers = store.numbers(plan.build, name)
    if any((name, number) not in plan.seen for number in numbers):
        return False
    used = _ages(store, f"{plan.build}/profiles/{name}", "used")
    return all(age > plan.rules.keep_idle_seconds for age in used.values())


def _condemn(store: Store, plan: Plan, in_use: set[str]) -> tuple[Item, ...]:
    """Mark packs. A mark that is there may be left from an earlier time: its age must not count."""
    if in_use:
        return ()  # which packs are still named is not what was planned
    for item in plan.condemn:
        mark = f"{plan.build}/condemned/{_sha256(item)}"
        store.backend.delete(mark)
        store.backend.put_new(mark, b"")
    return plan.condemn


def _delete_packs(store: Store, plan: Plan) -> tuple[Item, ...]:
    """Delete what is condemned for long enough, unless a manifest that is newer than the plan names it."""
    if not plan.packs:
        return ()
    build = plan.build
    named: set[str] = set()
    for profile in store.profiles(build):
        for number in store.numbers(build, profile):
            if (profile, number) not in plan.seen:
                with contextlib.suppress(NotInStore, IntegrityError, Untrusted):
                    named |= _names([store.read(build, profile, number).manifest])
    named |= _names(generation.manifest for generation in store.pins(build).values())
    done = []
    for item in plan.packs:
        mark = f"{build}/condemned/{_sha256(item)}"
        if _sha256(item) in named:
            continue
        try:
            # A publisher that names it removes the mark first, and looks after its commit whether the pack is there.
            if store.backend.age(mark) < plan.rules.keep_seconds:
                continue
        except NotInStore:
            continue
        store.backend.delete(item.name)
        store.backend.delete(mark)
        done.append(item)
    return tuple(done)


def _delete_build(store: Store, build: str) -> None:
    backend = store.backend
    for label in backend.list(f"{build}/denied"):
        backend.delete(f"{build}/denied/{label}")
    for name in ("pruned", "identity.json", "denied", "pins", "condemned", "packs", "profiles"):
        backend.delete(f"{build}/{name}")
    backend.delete(build)


def _sha256(pack: Item) -> str:
    return pack.name.rpartition("/")[2].removesuffix(".tar.zst")


def prune(store: Store, build: str, rules: Rules) -> Plan:
    """Plan and apply; what was done."""
    return apply(store, plan(store, build, rules))
