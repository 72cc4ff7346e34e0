"""The five verbs that a store needs of the place where its bytes lie, and the age of a name by that place's own clock.

Names are relative, with `/` between their parts: `packs/<sha256>.tar.zst`. Wrap, don't branch: faults, counting and
tiers are classes around a backend.
"""

from __future__ import annotations

import os
from typing import Protocol, runtime_checkable


@runtime_checkable
class Backend(Protocol):
    """One directory or bucket. Every verb raises `StoreUnavailable` when the place does not work."""

    url: str

    def get(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        """The bytes of *name*, or *length* of them from *offset* (fewer at its end). Raises `NotInStore`."""

    def put(self, name: str, source: str | bytes) -> None:
        """Create or replace *name* whole, with the content of the local file *source*, or with these bytes.

        Nobody writes to that file any more: it may get *name* as a second one of its own.
        """

    def put_new(self, name: str, data: bytes) -> bool:
        """Create *name* with these bytes if it does not exist; False if it does.

        Exclusive among all writers of the store, and all or nothing. A reply may be lost: True tells that we created
        it, False only that it is there. Raises `UnsupportedStore` where that can't be promised.
        """

    def list(self, prefix: str) -> list[str]:
        """The last parts of the names directly below *prefix*, `""` for the top; [] if there are none."""

    def delete(self, name: str) -> None:
        """Remove *name*; removing what is not there is no error."""

    def size(self, name: str) -> int:
        """Bytes of *name*. Raises `NotInStore`."""

    def age(self, name: str) -> float:
        """Seconds since *name* was last put, by the store's own clock. Raises `NotInStore`."""

    def usage(self, prefix: str) -> tuple[int, int]:
        """(names, bytes) of all that lies below *prefix*, whatever it is: what a quota counts."""

    def temporaries(self, prefix: str) -> set[str]:
        """Names below *prefix* that are being written, or that a killed writer left. `list` does not show them."""


class Nested:
    """The part of *backend* below *prefix*, as a backend of its own."""

    def __init__(self, backend: Backend, prefix: str) -> None:
        self.backend = backend
        self.prefix = prefix
        self.url = f"{backend.url.rstrip('/')}/{prefix}"

    def _name(self, name: str) -> str:
        return f"{self.prefix}/{name}" if name else self.prefix

    def get(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        return self.backend.get(self._name(name), offset, length)

    def put(self, name: str, source: str | bytes) -> None:
        self.backend.put(self._name(name), source)

    def put_new(self, name: str, data: bytes) -> bool:
        return self.backend.put_new(self._name(name), data)

    def list(self, prefix: str) -> list[str]:
        return self.backend.list(self._name(prefix))

    def delete(self, name: str) -> None:
        self.backend.delete(self._name(name))

    def size(self, name: str) -> int:
        return self.backend.size(self._name(name))

    def age(self, name: str) -> float:
        return self.backend.age(self._name(name))

    def usage(self, prefix: str) -> tuple[int, int]:
        return self.backend.usage(self._name(prefix))

    def temporaries(self, prefix: str) -> set[str]:
        return {name[len(self.prefix) + 1 :] for name in self.backend.temporaries(self._name(prefix))}


def jitter(low: float, high: float) -> float:
    """Some number from *low* to *high*: what many do must not happen at once. Importing random would cost more."""
    return low + (high - low) * int.from_bytes(os.urandom(4), "big") / (1 << 32)
