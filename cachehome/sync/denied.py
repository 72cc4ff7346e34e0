"""What the store denies, found in a live directory; and what a restore found damaged in the store.

    <family's live directory>/.cachehome/suspects     [sha256 of a pack, ...]

Denied are bytes: a local entry is denied if its files, as a store keeps them, are those on a list. Files that a warm
start never reads don't count.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable
from typing import Any

from cachehome.errors import NotInStore, StoreError
from cachehome.families import Family
from cachehome.store.manifest import Entry, File, Pack
from cachehome.store.marks import Denials, Row
from cachehome.store.store import Store
from cachehome.sync import portable
from cachehome.sync.live import Live, known, row
from cachehome.sync.scan import LocalEntry

_BLOCK = 4 << 20


def denied_here(
    denials: Denials, family: Family, live: Live, local: dict[str, LocalEntry], table: dict[str, list[Any]]
) -> dict[str, bool]:
    """Names of *local* entries that are denied; True if they must not be used, either. Hashes go into *table*."""
    found = {}
    for of, name in denials.keys:
        if of == family.name and name in local:
            here = _row(family, live, local[name], table)
            if here in denials.rows:
                found[name] = denials.bad(here)
    return found


def _row(family: Family, live: Live, entry: LocalEntry, table: dict[str, list[Any]]) -> Row:
    files = []
    for file in entry.files:
        if family.ir and file.suffix.endswith(family.ir):
            continue
        path = entry.name + file.suffix
        have = known(table, path, file)
        if not have:
            with (
                contextlib.suppress(OSError, ValueError),
                open(os.path.join(live.directory, path), "rb") as opened,
            ):
                have = hashlib.sha256(portable.canonical(path, opened.read())).hexdigest()
                table[path] = row(file, have)
        files.append(File(file.suffix, file.size, file.mode, have, 0, 0))
    return (family.name, entry.name, Entry(family.name, entry.name, 0, False, tuple(files)).digest())


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
