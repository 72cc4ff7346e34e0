"""What the verbs that look after a store have in common: which store, build, profile and generation is
meant."""

from __future__ import annotations

from cachehome.errors import ConfigError, NotInStore
from cachehome.settings import Settings
from cachehome.store.store import Store


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


def generation(store: Store, spec: str) -> tuple[str, str, int]:
    """(build, profile, number) of `BUILD[/PROFILE[/NUMBER]]`; parts that are left out are the only or the
    newest one."""
    parts = [part for part in spec.split("/") if part]
    builds = store.builds()
    build = one(parts[0], builds, "build") if parts else _only(builds, "build")
    profiles = store.profiles(build)
    profile = one(parts[1], profiles, "profile") if len(parts) > 1 else _only(profiles, "profile")
    numbers = store.numbers(build, profile)
    if len(parts) > 2:
        if not parts[2].isdecimal() or int(parts[2]) not in numbers:
            raise NotInStore(f"no generation {parts[2]} of {build[:8]}/{profile}", name=spec)
        return build, profile, int(parts[2])
    if not numbers:
        raise NotInStore(f"{build[:8]}/{profile} has no generation", name=spec)
    return build, profile, numbers[-1]


def _only(found: list[str], what: str) -> str:
    if len(found) == 1:
        return found[0]
    told = f"{len(found)} {what}s: say which one" if found else f"no {what}"
    raise NotInStore(f"the store holds {told}; `cachehome ls` lists them", name=what)
