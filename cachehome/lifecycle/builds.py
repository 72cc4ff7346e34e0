"""The live directories of builds below a root: what `run`, sessions and agents have filled on this node.

ROOT/<host tag>/<build8>/identity-<hash>.json    whose they are (`place`)
                        /torchinductor, ...      shared by the workers of the build
                        /<slot>/torchinductor    private
"""

from __future__ import annotations

import contextlib
import os
import shlex
from typing import TYPE_CHECKING, NamedTuple

from cachehome import families
from cachehome.identity import Identity

if TYPE_CHECKING:
    from collections.abc import Iterator


class Build(NamedTuple):
    """One set of live directories of a build."""

    directory: str
    """The level of the build, or of the slot below it."""
    slot: str
    identity_file: str
    build: str
    profile: str
    families: dict[str, str]

    @property
    def unpublished(self) -> int:
        """Entries that no restore brought and no publication took: of a run that was killed, or that still works."""
        from cachehome.sync.live import Live
        from cachehome.sync.scan import scan

        catalogue = families.catalogue(plugins=True)
        count = 0
        for name, path in self.families.items():
            with contextlib.suppress(OSError):
                table = Live(path).table()
                for entry in scan(catalogue[name], path).values():
                    count += not all(table.known(entry.name + file.suffix, file) for file in entry.files)
        return count

    @property
    def command(self) -> str:
        """What publishes them."""
        slot = f"--slot {shlex.quote(self.slot)} " if self.slot else ""
        return f"cachehome run --identity {shlex.quote(self.identity_file)} {slot}--restore off -- true"


def builds(root: str | None, tag: str) -> list[Build]:
    """All below *root* of this host tag. What can't be read is left out."""
    found: list[Build] = []
    level = os.path.join(root, *tag.split("/")) if root else ""
    for directory in _directories(level):
        file = _newest(directory)
        if file:
            with contextlib.suppress(ValueError):
                who = Identity.load(file)
                for slot in ("", *map(os.path.basename, _directories(directory))):
                    here = os.path.join(directory, slot) if slot else directory
                    rows = _families(here)
                    if rows:
                        found.append(Build(here, slot, file, who.build_key, who.profile_key, rows))
    return found


def _directories(path: str) -> Iterator[str]:
    with contextlib.suppress(OSError), os.scandir(path) as entries:
        for entry in sorted(entries, key=lambda entry: entry.name):
            if entry.is_dir(follow_symlinks=False):
                yield entry.path


def _newest(directory: str) -> str:
    """The identity that was taken last, "" if there is none."""
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        files = [
            e
            for e in entries
            if e.name.startswith("identity-")
            and e.name.endswith(".json")
            and e.is_file(follow_symlinks=False)
        ]
        return max(files, key=lambda e: e.stat().st_mtime).path if files else ""
    return ""


def _families(directory: str) -> dict[str, str]:
    rows = families.catalogue(plugins=True).values()
    paths = {row.name: os.path.join(directory, *row.subdirectory.split("/")) for row in rows}
    return {name: path for name, path in paths.items() if os.path.isdir(path)}
