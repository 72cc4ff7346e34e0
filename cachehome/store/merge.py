"""What a publisher brings, and how it is joined with what a line of generations holds already. Pure functions."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from cachehome.store.entries import Entry
from cachehome.store.manifest import Manifest, Pack

Key = tuple[str, str]
# Of a manifest's `publisher`: this generation replaces the ones before it, which are kept for their age only.
COMPACTED = "compacted"


class Addition(NamedTuple):
    """What one publisher brings: entries whose `File.pack` counts in `packs`, and where they came from.

    *overwrite*: keys whose newer bytes replace older ones (growing entries); for all others the first one wins.
    *base*: where a profile without a generation starts from.
    """

    entries: dict[Key, Entry]
    packs: tuple[Pack, ...]
    origins: tuple[dict[str, Any], ...]
    overwrite: frozenset[Key] = frozenset()
    base: Manifest | None = None
    publisher: Mapping[str, Any] = MappingProxyType({})


def digest(entry: Entry, packs: tuple[Pack, ...]) -> str:
    """What identifies the bytes of *entry* beside its name: a slim copy counts as the same entry."""
    return entry.digest(
        frozenset(file.suffix.rpartition(".")[2] for file in entry.files if packs[file.pack].ir)
    )


def indices(packs: tuple[Pack, ...], names: Collection[str]) -> set[int]:
    """The places of the packs called *names*."""
    return {number for number, pack in enumerate(packs) if pack.sha256 in names}


def missing(
    start: Manifest | None,
    addition: Addition,
    lost: Collection[str] = (),
    denied: Collection[tuple[str, str, str]] = (),
) -> dict[Key, Entry]:
    """The entries of *addition* that *start* lacks: not there, only in packs that are *lost*, or *denied*.

    What is denied itself is not added, nor what lies in a pack that could not be stored.
    """
    away = indices(addition.packs, lost)
    gone = indices(start.packs, lost) if start else set()
    names = {(family, name) for family, name, _ in denied}
    found = {}
    for key, entry in addition.entries.items():
        if not away.isdisjoint(entry.packs):
            continue
        if key in names and (*key, digest(entry, addition.packs)) in denied:
            continue
        there = start.entries.get(key) if start else None
        if start is not None and there is not None and gone.isdisjoint(there.packs):
            if there.hashes == entry.hashes:
                continue
            bad = key in names and (*key, digest(there, start.packs)) in denied
            if not bad and key not in addition.overwrite:
                continue
        found[key] = entry
    return found


def merge(
    start: Manifest | None,
    addition: Addition,
    entries: dict[Key, Entry],
    number: int,
    *,
    lost: Collection[str] = (),
    new_line: bool = False,
) -> Manifest:
    """A manifest of all that *start* still has, and of *entries*; packs that nothing names are left out.

    Its build, profile, line and parent are for the caller to fill in. *new_line*: what *start* has is another
    profile's and was introduced there; here it is by this generation.
    """
    writer = Writer()
    if start is not None:
        gone = indices(start.packs, lost)
        kept = {
            key: entry._replace(since=number) if new_line else entry
            for key, entry in start.entries.items()
            if key not in entries and (not gone or gone.isdisjoint(entry.packs))
        }
        writer.take(kept, start.packs, start.origins)
    fresh = {key: entry._replace(since=number) for key, entry in entries.items()}
    writer.take(fresh, addition.packs, addition.origins)
    return writer.manifest(number, addition.publisher)


class Writer:
    """Collects entries of several manifests into one."""

    def __init__(self) -> None:
        self.entries: dict[Key, Entry] = {}
        self.packs: list[Pack] = []
        self.origins: list[dict[str, Any]] = []
        self._place: dict[str, int] = {}

    def take(
        self, entries: dict[Key, Entry], packs: tuple[Pack, ...], origins: tuple[dict[str, Any], ...]
    ) -> None:
        """Add *entries*, whose files count in *packs*, which count in *origins*."""
        moved: dict[int, int] = {}
        for key, entry in entries.items():
            before = entry.packs
            for pack in before:
                if pack not in moved:
                    moved[pack] = self._number(packs[pack], origins)
            if any(moved[pack] != pack for pack in before):
                files = tuple(file._replace(pack=moved[file.pack]) for file in entry.files)
                entry = entry._replace(files=files)  # noqa: PLW2901
            self.entries[key] = entry

    def _number(self, pack: Pack, origins: tuple[dict[str, Any], ...]) -> int:
        if pack.sha256 not in self._place:
            origin = origins[pack.origin]
            if origin not in self.origins:
                self.origins.append(origin)
            self._place[pack.sha256] = len(self.packs)
            self.packs.append(pack._replace(origin=self.origins.index(origin)))
        return self._place[pack.sha256]

    def manifest(self, number: int, publisher: Mapping[str, Any]) -> Manifest:
        """What was collected, as generation *number* of a line that the caller fills in."""
        return Manifest(
            build="",
            profile="",
            line="",
            number=number,
            parent="",
            nonce=os.urandom(16).hex(),
            created=time.time(),
            entries=self.entries,
            packs=tuple(self.packs),
            origins=tuple(self.origins),
            publisher=publisher,
        )
