"""One build of a store, and publishers of it that bring a few small entries."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

from cachehome.store.store import Generation, Store
from cachehome.store.stress import addition

BUILD = "b" * 64


class Lab:
    """One build of a store, and publishers of it."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.store = Store(backend)

    def publish(
        self,
        store: Store | None = None,
        profile: str = "p",
        *,
        seconds: float = 5.0,
        lost: tuple[str, ...] = (),
        **files: str,
    ) -> tuple[Generation, bool]:
        """Publish entries, name=content, as cachehome.sync does: packs first, then the commit."""
        store = store or self.store
        new, stored = addition({name: content.encode() for name, content in files.items()})

        ((pack, source),) = store.add_packs(BUILD, [(new.packs[0], stored)])
        return store.commit(
            BUILD,
            profile,
            replace(new, packs=(pack,)),
            deadline=time.monotonic() + seconds,
            lost=lost,
            sources={pack.sha256: source},
        )

    def names(self, profile: str = "p", number: int | None = None) -> set[str]:
        """Names of the entries of a generation, the newest one by default."""
        found = (
            self.store.newest(BUILD, profile) if number is None else self.store.read(BUILD, profile, number)
        )
        return {name for _, name in found.manifest.entries} if found else set()

    def numbers(self, profile: str = "p") -> list[int]:
        return self.store.numbers(BUILD, profile)

    def pack(self, profile: str, entry: str) -> str:
        """sha256 of the pack that holds an entry of the newest generation."""
        found = self.store.newest(BUILD, profile)
        assert found is not None
        manifest = found.manifest
        return manifest.packs[manifest.entries["stress", entry].files[0].pack].sha256
