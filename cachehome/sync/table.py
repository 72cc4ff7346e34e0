"""The table of known hashes of a live directory, `.cachehome/files`: what need not be read again.

    <path of a file> TAB <sha256> <size> <mtime_ns> <inode> <mode>        holds as long as the file is the same
    (an empty line before each tree)
    <path of a tree> TAB <ctime_ns> <inode> TAB /<name>/<name>... TAB <sha256><sha256>...
    <size> <mtime_ns> <inode> <mode>                                      of each of its files

Paths are relative to the directory. Of a directory that is a tree, its first line spares a look at each of its files:
a time of change, which nobody can set, and what was in it. Only a file that is written in place changes without it.
Ten thousand files are known at each start, and most lie in trees that are as they were: those stay one text.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cachehome.sync.scan import LocalFile

Status = tuple[int, int, int, int]
"""(size, mtime_ns, inode, mode)"""

HASH = 64  # digits of a hash, with which the row of a file begins
_PIECE = 500  # rows


class Table:
    """Rows of files by path, and trees that nobody has had to look into."""

    def __init__(self, rows: Mapping[str, str] | None = None) -> None:
        self._rows = dict(rows or {})
        self._trees: dict[str, bytes] = {}
        """Path to the lines of the tree. What lies in one is in `_rows` only if it is newer."""

    @classmethod
    def read(cls, data: bytes) -> Table:
        """The table in *data*. Raises ValueError if it is none."""
        loose, *trees = data.split(b"\n\n")
        table = cls(parse(os.fsdecode(loose)))
        table._trees = {os.fsdecode(tree[: tree.index(b"\t")]): tree for tree in trees}
        return table

    def write(self, fresh: Iterable[str] = ()) -> Iterator[bytes]:
        """The bytes of the table, and of *fresh* lines, which are newer, piece by piece: the whole would take new
        memory twice. A path that a line can't hold is left out: a lost row costs one hash."""
        begin = b""
        for text in chain(map(_text, _pieces(self._rows)), fresh):
            if text:
                yield begin + os.fsencode(text)
                begin = b"\n"
        for tree in self._trees.values():
            yield b"\n\n" + tree

    def rows(self) -> dict[str, str]:
        """All rows, by path."""
        for tree in list(self._trees):
            self._open(tree)
        return self._rows

    def get(self, path: str) -> str:
        """The row of a file, "" if there is none."""
        found = self._rows.get(path, "")
        if not found and self._trees:
            tree = path.rpartition("/")[0]
            if tree in self._trees:
                self._open(tree)
                found = self._rows.get(path, "")
        return found

    def __setitem__(self, path: str, row: str) -> None:
        self._rows[path] = row

    def update(self, rows: Mapping[str, str]) -> None:
        """Add *rows*, or replace those that there are."""
        self._rows |= rows

    def known(self, path: str, file: LocalFile) -> str:
        """The hash of *file*, "" if it is not known or the file has changed since."""
        found = self.get(path)
        return found[:HASH] if found[HASH:] == f" {file[1]} {file[2]} {file[3]} {file[4]}" else ""

    # -- trees ---------------------------------------------------------------------------------------------------------

    def unchanged(self, tree: str, found: os.stat_result) -> tuple[str, str] | None:
        """(names of the files, their hashes), each as one text, of a *tree* that is as its line tells; else None."""
        lines = self._trees.get(tree, b"")
        head = os.fsdecode(lines[: lines.find(b"\n")]).split("\t")
        if len(head) != 4 or head[1] != f"{found.st_ctime_ns} {found.st_ino}":
            return None
        names, hashes = head[2:]
        count = lines.count(b"\n")
        return (names, hashes) if names.count("/") == count and len(hashes) == HASH * count else None

    def files(self, tree: str) -> list[tuple[str, Status]]:
        """(suffix, status) of each file in a tree that is unchanged, as it was when it was looked at. Raises ValueError
        if that can't be read any more."""
        names = os.fsdecode(self._trees[tree].partition(b"\n")[0]).split("\t")[2]
        self._open(tree)
        return [(suffix, status_of(self.get(tree + suffix))) for suffix in _suffixes(names)]

    def learn(self, tree: str, found: os.stat_result, suffixes: Sequence[str]) -> bool:
        """Keep the rows of a *tree*, which holds just these files, as one; whether its lines can hold them. *found* is
        from before it was listed. *suffixes* have no slash but the first: what changes in a directory below does not
        show."""
        names = "".join(suffixes)
        if names.count("/") != len(suffixes) or {"\n", "\t"} & {*tree, *names}:
            return False
        rows = [self._rows.pop(tree + suffix) for suffix in suffixes]
        hashes = "".join([row[:HASH] for row in rows])
        head = f"{tree}\t{found.st_ctime_ns} {found.st_ino}\t{names}\t{hashes}"
        self._trees[tree] = os.fsencode("\n".join([head, *[row[HASH + 1 :] for row in rows]]))
        return True

    def _open(self, tree: str) -> None:
        """Have the rows of a *tree* among the others. A line that is damaged is lost, which costs a hash each."""
        head, *rest = os.fsdecode(self._trees.pop(tree)).split("\n")
        fields = head.split("\t")
        names, hashes = fields[2:] if len(fields) == 4 else ("", "")
        for number, (suffix, told) in enumerate(zip(_suffixes(names), rest, strict=False)):
            self._rows.setdefault(tree + suffix, f"{hashes[HASH * number : HASH * (number + 1)]} {told}")


def _suffixes(names: str) -> list[str]:
    return [f"/{name}" for name in names.split("/")[1:]]


def parse(text: str) -> dict[str, str]:
    """The rows that lines of *text* make. Raises ValueError if they are none."""
    words = text.replace("\n", "\t").split("\t") if text else []
    return dict(zip(words[::2], words[1::2], strict=True))


def _pieces(rows: Mapping[str, str]) -> Iterator[list[tuple[str, str]]]:
    items = iter(rows.items())
    while piece := list(islice(items, _PIECE)):
        yield piece


def _text(piece: list[tuple[str, str]]) -> str:
    text = "\n".join(map("\t".join, piece))
    if text.count("\n") >= len(piece) or text.count("\t") > len(piece):
        text = "\n".join(line(path, row) for path, row in piece if not {"\n", "\t"} & {*path, *row})
    return text


def line(path: str, row: str) -> str:
    """The line of a file; *path* holds no control character."""
    return f"{path}\t{row}"


def row(sha256: str, size: int, mtime_ns: int, inode: int, mode: int) -> str:
    """A file as its row tells it."""
    return f"{sha256} {size} {mtime_ns} {inode} {mode}"


def status(found: os.stat_result) -> Status:
    """What of a file's status its row holds."""
    return found.st_size, found.st_mtime_ns, found.st_ino, found.st_mode & 0o777


def sha256_of(row: str) -> str:
    """The hash that the row of a file tells."""
    return row[:HASH]


def status_of(row: str) -> Status:
    """(size, mtime_ns, inode, mode) that the row of a file tells. Raises ValueError if it is no such row."""
    size, mtime_ns, inode, mode = row[HASH + 1 :].split(" ")
    return int(size), int(mtime_ns), int(inode), int(mode)
