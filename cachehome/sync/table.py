"""The table of known hashes of a live directory, `.cachehome/files`: what need not be read again.

    <path below the directory> TAB <sha256> <size> <mtime_ns> <inode>        a line a file

A row holds as long as its file has that size, time of change and inode. Ten thousand of them are read and written at
each start, so they stay text in memory, too.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cachehome.sync.scan import LocalFile

Table = dict[str, str]
"""Path to the rest of its line."""

_HASH = 64  # digits


def read(data: bytes) -> Table:
    """The table in *data*. Raises ValueError if it is none."""
    words = os.fsdecode(data).replace("\n", "\t").split("\t") if data else []
    return dict(zip(words[::2], words[1::2], strict=True))


def write(table: Table) -> bytes:
    """The bytes of *table*, without what a line can't hold: a lost row costs one hash."""
    text = "\n".join(map("\t".join, table.items()))
    if text.count("\n") >= len(table) or text.count("\t") > len(table):
        table = {path: row for path, row in table.items() if "\n" not in path and "\t" not in path}
        text = "\n".join(map("\t".join, table.items()))
    return os.fsencode(text)


def row(sha256: str, size: int, mtime_ns: int, inode: int) -> str:
    """A file as its row tells it."""
    return f"{sha256} {size} {mtime_ns} {inode}"


def sha256_of(row: str) -> str:
    """The hash that a row tells."""
    return row[:_HASH]


def known(table: Table, path: str, file: LocalFile) -> str:
    """The hash of *file*, "" if it is not known or the file has changed since."""
    found = table.get(path, "")
    return found[:_HASH] if found[_HASH:] == f" {file[1]} {file[2]} {file[3]}" else ""
