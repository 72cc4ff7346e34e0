"""What this node remembers of lines of generations in a store: the highest number that it has seen.

    <directory>/<line>-<store>  its number in decimal; the file's age tells when this node last used the line there
    <directory>/<line>          the same, of whatever store, by older versions: believed until there is the other one

Copies of a store have the same lines, and end where each was copied: <store> is a hash of its resolved place.

Best effort: where it can't be kept, or was wiped, there is nothing to compare with, and the check is skipped.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cachehome.settings import Settings

_MOST = 4096  # lines; the ones that were not used for longest are forgotten


class Memory:
    """The numbers below one *directory* on local disk, of lines of the store at *place*."""

    def __init__(self, directory: str, place: str) -> None:
        self.directory = directory
        self._store = hashlib.sha256(place.encode(errors="surrogateescape")).hexdigest()[:16]

    @classmethod
    def of(cls, place: str, settings: Settings | None = None) -> Memory | None:
        """This user's memory; None if there is no home to keep it in."""
        from cachehome import home

        if settings is not None and os.path.isabs(settings.enabled):
            return cls(os.path.join(settings.enabled, "lines"), place)
        directory = home.user_cache_dir()
        return cls(os.path.join(directory, "cachehome", "lines"), place) if directory else None

    def path(self, line: str) -> str:
        """The file that tells of *line*."""
        path = self._path(line)
        old = path.rpartition("-")[0]
        return old if not os.path.exists(path) and os.path.exists(old) else path

    def _path(self, line: str) -> str:
        name = line if line.isalnum() and len(line) <= 64 else "_"
        return os.path.join(self.directory, f"{name}-{self._store}")

    def highest(self, line: str) -> int:
        """The highest number seen of *line*, 0 if none is remembered."""
        try:
            with open(self.path(line), "rb") as file:
                return int(file.read(32))
        except (OSError, ValueError):
            return 0

    def age(self, line: str) -> float:
        """Seconds since this node last noted *line* of this store."""
        try:
            return time.time() - os.stat(self._path(line)).st_mtime
        except OSError:
            return float("inf")

    def note(self, line: str, number: int) -> None:
        """Remember *number*, unless a higher one is remembered. Never raises."""
        with contextlib.suppress(OSError):
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            path = self._path(line)
            temporary = f"{path}.{os.urandom(16).hex()}"
            with open(temporary, "wb") as file:
                file.write(b"%d\n" % max(number, self.highest(line)))
            os.replace(temporary, path)
            self._forget()

    def _forget(self) -> None:
        names = os.listdir(self.directory)
        if len(names) > _MOST:
            paths = [os.path.join(self.directory, name) for name in names]
            for path in sorted(paths, key=os.path.getmtime)[: _MOST // 4]:
                os.unlink(path)
