"""The table of known hashes of a live directory, `.cachehome/files`: what need not be read again.

    <path of a file> TAB <sha256> <size> <mtime_ns> <inode> <mode>        holds as long as the file is the same
    <path of a tree> TAB <ctime_ns> <inode> /<name>/<name>...             no file has come, gone or been replaced since

Paths are relative to the directory, a line each. Ten thousand of them are read and written at each start, so they stay
text in memory, too. Of a directory that is a tree, the first line spares a look at each of its files: a time of change,
which nobody can set, and what was in it. Only a file that is written in place changes without it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import chain, islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cachehome.sync.scan import LocalFile

Table = dict[str, str]
"""Path to the rest of its line."""

HASH = 64  # digits of a hash, with which the row of a file begins
_PIECE = 500  # rows


def read(data: bytes) -> Table:
    """The table in *data*. Raises ValueError if it is none."""
    return parse(os.fsdecode(data))


def parse(text: str) -> Table:
    """The table that lines of *text* make. Raises ValueError if they are none."""
    words = text.replace("\n", "\t").split("\t") if text else []
    return dict(zip(words[::2], words[1::2], strict=True))


def write(table: Table, fresh: Iterable[str] = ()) -> Iterator[bytes]:
    """The bytes of *table*, and of *fresh* lines after it, piece by piece: the whole would take new memory twice.

    A path that a line can't hold is left out: a lost row costs one hash.
    """
    begin = b""
    for text in chain(map(_text, _pieces(table)), fresh):
        if text:
            yield begin + os.fsencode(text)
            begin = b"\n"


def _pieces(table: Table) -> Iterator[list[tuple[str, str]]]:
    rows = iter(table.items())
    while piece := list(islice(rows, _PIECE)):
        yield piece


def _text(piece: list[tuple[str, str]]) -> str:
    text = "\n".join(map("\t".join, piece))
    if text.count("\n") >= len(piece) or text.count("\t") > len(piece):
        text = "\n".join(line(path, row) for path, row in piece if not {"\n", "\t"} & {*path, *row})
    return text


def line(path: str, row: str) -> str:
    """The line of a file or a tree; *path* holds no control character."""
    return f"{path}\t{row}"


def row(sha256: str, size: int, mtime_ns: int, inode: int, mode: int) -> str:
    """A file as its row tells it."""
    return f"{sha256} {size} {mtime_ns} {inode} {mode}"


def status(found: os.stat_result) -> tuple[int, int, int, int]:
    """What of a file's status its row holds."""
    return found.st_size, found.st_mtime_ns, found.st_ino, found.st_mode & 0o777


def sha256_of(row: str) -> str:
    """The hash that the row of a file tells."""
    return row[:HASH]


def status_of(row: str) -> tuple[int, int, int, int]:
    """(size, mtime_ns, inode, mode) that the row of a file tells. Raises ValueError if it is no such row."""
    size, mtime_ns, inode, mode = row[HASH + 1 :].split(" ")
    return int(size), int(mtime_ns), int(inode), int(mode)


def known(table: Table, path: str, file: LocalFile) -> str:
    """The hash of *file*, "" if it is not known or the file has changed since."""
    found = table.get(path, "")
    return found[:HASH] if found[HASH:] == f" {file[1]} {file[2]} {file[3]} {file[4]}" else ""


def tree_row(found: os.stat_result, suffixes: Iterable[str]) -> str:
    """A tree as its row tells it; *found* is from before it was listed. *suffixes* have no slash but the first: what
    changes in a directory below does not show."""
    return f"{found.st_ctime_ns} {found.st_ino} {''.join(suffixes)}"


def unchanged(table: Table, tree: str, found: os.stat_result) -> list[str]:
    """The suffixes of a *tree* that is as its row tells; [] if it is not, or there is none."""
    state, slash, names = table.get(tree, "").partition(" /")
    if not slash or state != f"{found.st_ctime_ns} {found.st_ino}":
        return []
    return [f"/{name}" for name in names.split("/")]
