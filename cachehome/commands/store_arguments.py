"""What the verbs that look after a store have in common: which store, build, profile and generation is
meant."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cachehome.errors import ConfigError, NotInStore
from cachehome.settings import Settings
from cachehome.store.store import Store

GENERATION = "[BUILD/][PROFILE/][NUMBER]"
HELP = "hashes may be cut short; parts that are left out: the only one, the newest one"


def open_store(settings: Settings) -> Store:
    """The authority of the store that is set. Raises `ConfigError` if none is."""
    if not settings.store:
        raise ConfigError(
            "no store is set: give --store or CACHEHOME_STORE",
            key="store",
            source="default",
            value="",
            allowed="an absolute directory or a URL",
        )
    return Store.open(settings.store[-1], settings)


def one(name: str, found: list[str], what: str) -> str:
    """The one of *found* that *name* is, or begins. Raises `NotInStore` for none or several."""
    if name in found:
        return name
    matches = [full for full in found if full.startswith(name)]
    if len(matches) == 1:
        return matches[0]
    told = f"{len(matches)} {what}s begin with {name}" if matches else f"no {what} {name}"
    raise NotInStore(f"{told} in the store: `cachehome ls` lists them", name=name)


def builds_of(store: Store, prefix: str) -> list[str]:
    """The builds whose hash begins with *prefix*. Raises `NotInStore` if all there are begin otherwise."""
    every = store.builds()
    found = [build for build in every if build.startswith(prefix)]
    if every and not found:
        there = ", ".join(build[:8] for build in every[:5]) + (", ..." if len(every) > 5 else "")
        raise NotInStore(f"no build begins with {prefix} (there are {len(every)}: {there})", name=prefix)
    return found


def named(store: Store, spec: str) -> tuple[str, str, int | None]:
    """(build, profile, number) of `[BUILD/][PROFILE/][NUMBER]`; hashes may be cut short, what is left out is the only
    one, or None."""
    parts = [part for part in spec.split("/") if part]
    number = None
    # A hash that is all digits is told from a number by its length, a profile by its full name.
    digits = parts[-1] if parts and re.fullmatch("[0-9]+", parts[-1]) else ""
    if digits and (len(parts) == 3 or len(digits.lstrip("0")) < 8):
        number = int(parts.pop())
    builds = store.builds()
    if len(parts) == 1 and len(builds) == 1 and not builds[0].startswith(parts[0]):
        parts = [*builds, *parts]
    if len(parts) > 2:
        raise NotInStore(f"{spec!r} does not name a generation: {GENERATION}", name=spec)
    if len(parts) == 1 and len(builds) > 1 and not any(build.startswith(parts[0]) for build in builds):
        holders = [
            build[:8] for build in builds if any(p.startswith(parts[0]) for p in store.profiles(build))
        ]
        if holders:
            told = f"the store holds {len(builds)} builds, and {parts[0]} is a profile of {', '.join(holders[:5])}"
            raise NotInStore(f"{told}: say which one, {holders[0]}/{spec}", name=spec)
    build = one(parts[0], builds, "build") if parts else _only(builds, "build")
    profiles = store.profiles(build)
    if len(parts) == 1 and number is not None and str(number) in profiles:
        return build, str(number), None
    return build, one(parts[1], profiles, "profile") if len(parts) > 1 else _only(profiles, "profile"), number


def generation(store: Store, spec: str) -> tuple[str, str, int]:
    """The same, of a generation that is there; the newest one if no number is named."""
    build, profile, number = named(store, spec)
    numbers = store.numbers(build, profile)
    if number is None and numbers:
        return build, profile, numbers[-1]
    if number is None or number not in numbers:
        raise absent(build, profile, number, numbers)
    return build, profile, number


def absent(build: str, profile: str, number: int | None, numbers: Sequence[int]) -> NotInStore:
    """The error for a generation that is not there: it says which *numbers* are."""
    there = (
        "none" if not numbers else str(numbers[0]) if len(numbers) == 1 else f"{numbers[0]} to {numbers[-1]}"
    )
    missing = "no generation" if number is None else f"no generation {number}"
    name = f"{build}/profiles/{profile}"
    return NotInStore(f"{build[:8]}/{profile} has {missing}: it has {there}", name=name)


def _only(found: list[str], what: str) -> str:
    if len(found) == 1:
        return found[0]
    told = f"{len(found)} {what}s: say which one" if found else f"no {what}"
    raise NotInStore(f"the store holds {told}; `cachehome ls` lists them", name=what)
