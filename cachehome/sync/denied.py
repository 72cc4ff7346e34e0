"""What the store denies, found in a live directory; what a host leaves out by itself; and what a restore found damaged
in the store.

    <family's live directory>/.cachehome/suspects     [sha256 of a pack, ...]

Denied are bytes: a local entry is denied if its files, as a store keeps them, are those on a list. Files that a warm
start never reads don't count.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from cachehome.errors import ConfigError, NotInStore, StoreError
from cachehome.families import Family
from cachehome.store.entries import Entry, File
from cachehome.store.manifest import Manifest, Pack
from cachehome.store.marks import QUARANTINE, Denials, Denied, Row, introduced
from cachehome.store.merge import digest
from cachehome.store.store import Store
from cachehome.sync import portable
from cachehome.sync.live import Live
from cachehome.sync.record import Record, Work
from cachehome.sync.scan import LocalEntry
from cachehome.sync.table import Table, row

if TYPE_CHECKING:
    from cachehome.identity import Identity
    from cachehome.settings import Settings

_BLOCK = 4 << 20


class LeaveOut(NamedTuple):
    """What this host does without: the entries that generations brought which failed here.

    *line*: of generations, "": any. *up_to*: all generations up to this one, besides *numbers*. Local copies that are
    older than *made_before* (seconds since 1970) are moved aside; newer ones were made without the rest. *cold*: all
    that old lies in the live directories is moved aside, and without *up_to* nothing is taken from the store.
    """

    line: str = ""
    numbers: frozenset[int] = frozenset()
    up_to: int = 0
    made_before: float = float("inf")
    cold: bool = False

    @classmethod
    def parse(cls, text: str, made_before: float = float("inf"), cold: bool = False) -> LeaveOut:
        """`[LINE:]N,M,..K` as a command line gives it. Raises `ConfigError`."""
        line, _, parts = text.rpartition(":")
        try:
            split = [part for part in parts.split(",") if part]
            up_to = max((int(part[2:]) for part in split if part.startswith("..")), default=0)
            numbers = frozenset(int(part) for part in split if not part.startswith(".."))
        except ValueError:
            raise ConfigError(
                f"--leave-out {text!r}: numbers of generations, and ..N for all up to one",
                key="leave-out",
                source="--leave-out",
                value=text,
                allowed="[LINE:]N[,M][,..K]",
            ) from None
        return cls(line, numbers, up_to, made_before, cold)

    def covers(self, entry: Entry, manifest: Manifest) -> bool:
        """Whether *entry* of *manifest* is left out."""
        if self.line and self.line != manifest.line:
            return False
        return entry.since in self.numbers or entry.since <= self.up_to or (self.cold and not self.up_to)

    def old(self, entry: LocalEntry) -> bool:
        """Whether a local *entry* was there before."""
        return entry.newest_ns < self.made_before * 1e9

    def denials(self, manifest: Manifest) -> Denials:
        """What of *manifest* is left out, as a list of denied bytes."""
        rows = frozenset(
            (*entry.key, digest(entry, manifest.packs))
            for entry in manifest.entries.values()
            if self.covers(entry, manifest)
        )
        return Denials.of([Denied("left-out", QUARANTINE, rows)] if rows else [])

    def message(self) -> str:
        """What it does, for people."""
        if self.cold:
            return "a cold start, after failed ones"
        parts = [f"generations up to {self.up_to}"] if self.up_to else []
        parts += [f"generation {number}" for number in sorted(self.numbers)]
        return f"without what {' and '.join(parts)} brought"


def denied_here(
    denials: Denials, family: Family, live: Live, local: dict[str, LocalEntry], table: Table
) -> dict[str, bool]:
    """Names of *local* entries that are denied; True if they must not be used, either. Hashes go into *table*."""
    found = {}
    for of, name in denials.keys:
        if of == family.name and name in local:
            here = _row(family, live, local[name], table)
            if here in denials.rows:
                found[name] = denials.bad(here)
    return found


def _row(family: Family, live: Live, entry: LocalEntry, table: Table) -> Row:
    files = []
    for file in entry.files:
        if family.ir and file.suffix.endswith(family.ir):
            continue
        path = entry.name + file.suffix
        have = table.known(path, file)
        if not have:
            with (
                contextlib.suppress(OSError, ValueError),
                open(os.path.join(live.directory, path), "rb") as opened,
            ):
                have = hashlib.sha256(portable.canonical(path, opened.read())).hexdigest()
                table[path] = row(have, *file[1:])
        files.append(File(file.suffix, file.size, file.mode, have, 0, 0))
    return (family.name, entry.name, Entry(family.name, entry.name, 0, False, tuple(files)).digest())


def deny(settings: Settings, identity: Identity, line: str, numbers: Iterable[int]) -> Record:
    """Deny for everybody what generations of a *line* brought, as `cachehome quarantine` does. Never raises for what a
    store can do."""
    work = Work("deny", settings, identity)
    build = identity.build_key
    try:
        store = Store.open(settings.store[-1], settings)
        profile, manifests = _line(store, build, identity.profile_key, line)
        denied = 0
        for number in sorted(set(numbers)):
            rows = introduced(manifests, number)
            if rows:
                label = f"{QUARANTINE}-{profile[:40]}-{number}"
                by = f"{os.environ.get('USER') or os.geteuid()}@{os.uname().nodename}"
                note = "starts failed with it, and went well without"
                store.deny(build, Denied(label, QUARANTINE, rows, created=time.time(), by=by, note=note))
                denied += len(rows)
    except OSError as error:
        return work.failed(error)
    if not denied:
        return work.record("miss", "nothing_to_deny")
    return work.record("hit", "denied")._replace(entries=denied)


def _line(store: Store, build: str, profile: str, line: str) -> tuple[str, list[Manifest]]:
    """The profile that has the *line*, and its manifests. A profile without one may have started from another's."""
    for name in sorted(store.profiles(build), key=lambda found: found != profile):
        manifests = [g.manifest for g in store.generations(build, name) if g.manifest.line == line]
        if manifests:
            return name, manifests
    return profile, []


def suspect(live: Live, packs: Iterable[str]) -> None:
    """Leave word that *packs* were damaged when they were read. Never raises."""
    with contextlib.suppress(OSError):
        live.write_suspects(sorted({*live.suspects(), *packs}))


def damaged(store: Store, build: str, packs: Iterable[Pack], live: Iterable[Live]) -> list[str]:
    """Those of *packs* that a restore suspected, and that are damaged. They are read whole, once."""
    lives = list(live)
    suspects = {sha256 for one in lives for sha256 in one.suspects()}
    found = [pack.sha256 for pack in packs if pack.sha256 in suspects and not _sound(store, build, pack)]
    for one in lives:
        if one.suspects():
            with contextlib.suppress(OSError):
                one.write_suspects([])
    return found


def _sound(store: Store, build: str, pack: Pack) -> bool:
    digest = hashlib.sha256()
    try:
        for start in range(0, pack.size, _BLOCK):
            digest.update(store.backend.get(f"{build}/{pack.name}", start, _BLOCK))
    except NotInStore:
        return False
    except StoreError:
        return True  # it can't be said now
    return digest.hexdigest() == pack.sha256
