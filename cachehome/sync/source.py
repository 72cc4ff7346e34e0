"""A source: one family's live directory during a publish, with what need not be looked at, read or hashed again."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from cachehome.sync import portable
from cachehome.sync.scan import LocalEntry, Rules, Trees, look, scan
from cachehome.sync.table import Table, row

if TYPE_CHECKING:
    from cachehome.families import Family
    from cachehome.store.entries import Entry
    from cachehome.sync.live import Live, Stamp


class Source:
    """`local`: entries by name, as far as somebody had to look; `settled`: names of the trees that are as they were
    when the table was written."""

    def __init__(self, family: Family, live: Live, stamp: Stamp | None) -> None:
        self.family = family
        self.live = live
        self.stamp = stamp
        self.local: dict[str, LocalEntry] = {}
        self.settled: set[str] = set()
        self.table = Table()
        self._trees = Trees(self.table)
        self._hashed = False

    def __len__(self) -> int:
        return len(self.local) + len(self.settled)

    def scan(self) -> None:
        """Find the entries. Raises OSError."""
        self.table = self.live.table()
        self._trees = Trees(self.table)
        self.local = scan(self.family, self.live.directory, self._trees)
        self.settled = self._trees.settled

    def unsettle(self, names: Iterable[str]) -> None:
        """Have those of *names* that are settled among the `local` ones."""
        rules = Rules(self.family)
        for name in [name for name in names if name in self.settled]:
            self.settled.remove(name)
            files = look(rules, self.live.directory, name)
            if files:
                self.local[name] = LocalEntry(self.family.name, name, False, files)

    def has_settled(self, there: Entry) -> bool:
        """Whether a settled tree holds the files of *there*, and no others: most do, most times."""
        return self.table.tells(there.name, "".join(there.suffixes), there.hashes)  # both are in order

    def has(self, entry: LocalEntry, there: Entry) -> bool:
        """The same of an *entry* that was looked at: its files are as they were published or restored."""
        if len(entry.files) != len(there.files):
            return False
        name, here = entry.name, self.table.get
        for (suffix, *status), stored in zip(entry.files, there.files, strict=True):
            if suffix != stored.suffix or here(name + suffix) != row(stored.sha256, *status):
                return False
        return True

    def same(self, entry: LocalEntry, there: Entry) -> bool:
        """Whether *entry* holds the bytes of *there*; what is not known is hashed.

        Files that a warm start never reads don't count: a slim copy is the same entry.
        """
        ir = self.family.ir
        stored = {file.suffix: file.sha256 for file in there.files}
        for file in entry.files:
            if ir and file.suffix.endswith(ir):
                continue
            expected = stored.pop(file.suffix, "")
            path = entry.name + file.suffix
            have = self.table.known(path, file)
            if not have or have != expected:  # the table may be wrong, too: a digit of it has flipped
                with contextlib.suppress(OSError, ValueError):
                    have = hashlib.sha256(portable.canonical(path, self.read(path))).hexdigest()
                    self.table[path] = row(have, *file[1:])
                    self._hashed = True
            if have != expected and not portable.is_group(path):
                return False
        return not any(not (ir and suffix.endswith(ir)) for suffix in stored)

    def read(self, path: str) -> bytes:
        """The bytes of a file. Raises OSError."""
        with open(os.path.join(self.live.directory, path), "rb", opener=portable.no_wait) as file:
            return file.read()

    def keep_table(self, fresh: Mapping[str, Mapping[str, str]] = MappingProxyType({})) -> None:
        """Write the table if there is something to add: *fresh* hashes, by entry and suffix, of files as they were
        looked at, or others. A directory that may only be read has none."""
        with contextlib.suppress(OSError):
            self.live.make()
            learnt = self._trees.learn(self.local, fresh, self.live.now_ns())
            for name in fresh.keys() - learnt:
                hashes = fresh[name]
                files = [file for file in self.local[name].files if file.suffix in hashes]
                self.table.update({name + file.suffix: row(hashes[file.suffix], *file[1:]) for file in files})
            if learnt or fresh or self._hashed:
                self.live.write_table(self.table)
                self._hashed = False
