"""A store in a directory and machines that publish to it and restore from it, each with a live directory of its own."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from cachehome.identity import Identity
from cachehome.settings import Settings
from cachehome.store.store import Store
from cachehome.sync.publish import publish
from cachehome.sync.record import Record
from cachehome.sync.restore import restore

IDENTITY = Identity({"test": 1}, {"name": "default"})
BUILD, PROFILE = IDENTITY.build_key, IDENTITY.profile_key


class Place:
    """One store. Every `publish` and `restore` is that of a machine of its own."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.directory = directory
        self.root = directory / "store"
        # What a node remembers of lines lies below `enabled`: not in the home of whoever runs the tests.
        node = {"enabled": str(directory / "node"), "store_timeout_seconds": 20.0}
        self.settings = Settings(store=(str(self.root),), **(node | settings))

    def make(self, mode: int = 0o700) -> Place:
        self.root.mkdir(exist_ok=True)
        self.root.chmod(mode)
        return self

    @property
    def generations(self) -> Path:
        return self.root / "cachehome-v1" / BUILD / "profiles" / PROFILE / "generations"

    @property
    def packs(self) -> Path:
        return self.root / "cachehome-v1" / BUILD / "packs"

    def numbers(self) -> list[int]:
        return sorted(int(path.name) for path in self.generations.glob("0*"))

    def live(self, parent: Path | None = None) -> Path:
        """A new machine's live directory."""
        return Path(tempfile.mkdtemp(dir=parent or self.directory))

    def publish(self, *names: str, live: Path | None = None, **settings: Any) -> Record:
        """Publish entries, each a line of Python that holds its own name."""
        live = live or self.live()
        for name in names:
            path = live / "ab" / f"{name}.py"
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"name = {name!r}\n")
        return publish(self.settings.replace(**settings), IDENTITY, {"inductor": str(live)}, adopt=True)

    def restore(self, live: Path | None = None, **settings: Any) -> tuple[Record, set[str]]:
        """The record, and the names that the live directory holds afterwards."""
        live = live or self.live()
        record = restore(self.settings.replace(**settings), IDENTITY, {"inductor": str(live)})
        return record, {path.stem for path in live.glob("ab/*.py")}

    def store(self, **settings: Any) -> Store:
        return Store.open(str(self.root), self.settings.replace(**settings))
