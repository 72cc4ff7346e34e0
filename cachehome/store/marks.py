"""Marks: small files beside a build's packs that say what people and collectors decided.

    <build>/denied/<label>      entries that readers leave out and publishers do not add. Sealed (signing.py) JSON:
                                {"reason", "created", "expires", "by", "note", "entries": [[family, name, digest], ...]}
    <build>/pins/<label>        the bytes of a manifest: its packs stay, whatever becomes of its generation
    <build>/condemned/<sha256>  empty: a pack that no manifest names; its age decides when it goes

Denied are bytes, not names: another copy of an entry, with other bytes, is welcome. A list is undone by removing it. A
list that can't be read denies nothing and is reported; it is never in the way of a start.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from typing import Any, NamedTuple

from cachehome.errors import ConfigError, IntegrityError
from cachehome.store.document import read, write
from cachehome.store.entries import Entry
from cachehome.store.manifest import Manifest
from cachehome.store.merge import Key, digest
from cachehome.store.signing import seal, unseal

Row = tuple[str, str, str]  # family, name, digest

QUARANTINE, ROLLBACK, EVICTED = "quarantine", "rollback", "evicted"
_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class Denied(NamedTuple):
    """One list. *reason*: quarantine, rollback, or evicted: not bad, but not to be brought back before it *expires*
    (seconds since 1970; None: never)."""

    label: str
    reason: str
    entries: frozenset[Row]
    created: float = 0.0
    expires: float | None = None
    by: str = ""
    note: str = ""

    @property
    def expired(self) -> bool:
        return self.expires is not None and time.time() > self.expires

    @property
    def bad(self) -> bool:
        """Whether the entries must not be used, either; if not, local copies stay."""
        return self.reason != EVICTED


class Denials(NamedTuple):
    """All lists of a build that are in force. *unreadable*: (label, why) of the others."""

    lists: tuple[Denied, ...] = ()
    unreadable: tuple[tuple[str, str], ...] = ()
    rows: frozenset[Row] = frozenset()
    keys: frozenset[Key] = frozenset()

    @classmethod
    def of(cls, lists: Iterable[Denied], unreadable: Iterable[tuple[str, str]] = ()) -> Denials:
        """The *lists* that have not expired."""
        live = tuple(found for found in lists if not found.expired)
        rows = frozenset(row for found in live for row in found.entries)
        return cls(live, tuple(unreadable), rows, frozenset((family, name) for family, name, _ in rows))

    def denies(self, entry: Entry, manifest: Manifest) -> bool:
        """Whether *entry* of *manifest* is denied."""
        return entry.key in self.keys and (*entry.key, digest(entry, manifest.packs)) in self.rows

    def bad(self, row: Row) -> bool:
        """Whether local copies of *row* must go, too."""
        return any(found.bad and row in found.entries for found in self.lists)


def encode(name: str, denied: Denied, sign: Any = None) -> bytes:
    """The bytes of a list that is called *name* in the store."""
    document = denied._asdict() | {"entries": sorted(denied.entries)}
    del document["label"]
    return seal(name, write(document), sign)


def decode(name: str, data: bytes, verify: Any = None) -> Denied:
    """The list in these bytes. Raises `IntegrityError`, `Untrusted`."""
    try:
        document = read(unseal(name, data, verify))
        rows = frozenset(
            (str(family), str(entry), str(found)) for family, entry, found in document["entries"]
        )
        expires = document["expires"]
        return Denied(
            label=name.rpartition("/")[2],
            reason=str(document["reason"]),
            entries=rows,
            created=float(document["created"]),
            expires=None if expires is None else float(expires),
            by=str(document["by"]),
            note=str(document["note"]),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise IntegrityError(f"{name} is damaged: {error}", name=name, reason="mark_damaged") from None


def check_label(label: str) -> None:
    """Raise `ConfigError` unless *label* can be a name in a store."""
    if not _LABEL.fullmatch(label):
        raise ConfigError(
            f"the label {label!r} is not allowed: letters, digits, dot, dash and underscore",
            key="label",
            source="the command line",
            value=label,
            allowed="letters, digits, . _ -",
        )


def introduced(manifests: Iterable[Manifest], number: int) -> frozenset[Row]:
    """What generation *number* of a line brought, by all of its *manifests* that can be read."""
    return _rows(manifests, lambda since: since == number)


def after(manifests: Iterable[Manifest], number: int) -> frozenset[Row]:
    """What came after generation *number* of a line."""
    return _rows(manifests, lambda since: since > number)


def _rows(manifests: Iterable[Manifest], chosen: Any) -> frozenset[Row]:
    return frozenset(
        (*entry.key, digest(entry, manifest.packs))
        for manifest in manifests
        for entry in manifest.entries.values()
        if chosen(entry.since)
    )
