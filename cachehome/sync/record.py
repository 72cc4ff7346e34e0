"""The record: how one restore or publish ended.

    {"action": "restore", "outcome": "hit", "reason": "restored", "build": ..., "profile": ...,
     "generation": 7,
     "entries": 812, "files": 6496, "bytes": 41000000, "fetched_bytes": 5200000,
     "seconds": {"scan": .01, "fetch": .2, ...}, "details": {...}}

outcome      hit | miss | rejected | unavailable | disabled
reason       one word for programs, `details["message"]` the same in a line for people
entries, files, bytes   what was installed, or what was newly published
fetched_bytes           bytes read from the store's packs, or written to it
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from cachehome.errors import CommitConflict, StoreError, StoreUnavailable

if TYPE_CHECKING:
    from cachehome.identity import Identity
    from cachehome.settings import Settings

OUTCOMES = ("hit", "miss", "rejected", "unavailable", "disabled")


class Record(NamedTuple):
    """One restore or publish. See the module's docstring for the fields."""

    action: str
    outcome: str
    reason: str
    build: str = ""
    profile: str = ""
    generation: int | None = None
    entries: int = 0
    files: int = 0
    bytes: int = 0
    fetched_bytes: int = 0
    seconds: dict[str, float] = {}  # noqa: RUF012 - nobody changes a record
    details: dict[str, Any] = {}  # noqa: RUF012

    def to_json(self) -> dict[str, Any]:
        """The record as JSON types."""
        return self._asdict()

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Record:
        """A record from its JSON object; what a newer writer added is left out."""
        return cls(**{name: value for name, value in document.items() if name in cls._fields})

    def line(self) -> str:
        """The record for people."""
        what = f"{self.action}: {self.outcome}, {self.reason}"
        if self.generation is not None:
            profile = str(self.details.get("profile_fallback", self.profile))
            what += f", generation {self.generation} of {self.build[:8]}/{profile[:16]}"
        if self.files:
            what += f", {self.entries} entries, {self.files} files, {self.bytes / 1e6:.1f} MB"
        if self.seconds:
            what += f", {sum(self.seconds.values()):.2f} s"
        message = self.details.get("message")
        return f"{what} ({message})" if message else what


class Phases:
    """Seconds by phase, added up: `with phases("scan"): ...`."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        begin = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = round(self.seconds.get(name, 0.0) + time.perf_counter() - begin, 6)


def asked(settings: Settings | None, identity: Identity | None) -> tuple[Settings, Identity]:
    """What a caller of the Python API left out: the settings in effect, and this process's identity."""
    if settings is None:
        from cachehome.settings import Settings

        settings = Settings.load()
    if identity is None:
        from cachehome.identity import identity as identify

        identity = identify(settings)
    return settings, identity


class Work:
    """A restore or publish under way: what its record will say."""

    def __init__(self, action: str, settings: Settings, identity: Identity) -> None:
        self.action = action
        self.settings = settings
        self.identity = identity
        self.phases = Phases()
        self.details: dict[str, Any] = {}

    def record(self, outcome: str, reason: str, **details: Any) -> Record:
        """The record, with what is known so far."""
        return Record(
            self.action,
            outcome,
            reason,
            self.identity.build_key,
            self.identity.profile_key,
            seconds=self.phases.seconds,
            details=self.details | details,
        )

    def failed(self, error: OSError) -> Record:
        """The record of a store or a file system that did not do what was asked."""
        if isinstance(error, CommitConflict):
            return self.record("unavailable", "commit_conflict", message=str(error))
        if isinstance(error, StoreError):
            outcome, reason = "rejected", "store_error"
            if isinstance(error, StoreUnavailable):
                outcome, reason = "unavailable", "store_unavailable"
            return self.record(outcome, error.fields.get("reason") or reason, message=str(error))
        if isinstance(error, TimeoutError):
            return self.record("unavailable", "store_timeout", message=str(error))
        where = f"{error.filename}: " if error.filename else ""
        return self.record("unavailable", "local_error", message=f"{where}{error.strerror or error}")
