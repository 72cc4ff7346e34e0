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
    """Rows of files by path, and trees that are as they were when they were learnt."""

    def __init__(self, rows: Mapping[str, str] | None = None) -> None:
        self._rows = dict(rows or {})
        """Of files that lie in no tree of `_trees`."""
        self._trees: dict[str, tuple[bytes, int, int]] = {}
        """Path to the lines of the tree: from where to where of what. Copies would take new memory."""
        self._seen: dict[str, dict[str, str]] = {}
        """Rows of trees that somebody has looked into."""

    @classmethod
    def read(cls, data: bytes) -> Table:
        """The table in *data*. Raises ValueError if it is none."""
        end = data.find(b"\n\n")
        table = cls(parse(os.fsdecode(data if end < 0 else data[:end])))
        while end >= 0:
            begin = end + 2
            end = data.find(b"\n\n", begin)
            lines = (data, begin, len(data) if end < 0 else end)
            table._trees[os.fsdecode(data[begin : data.index(b"\t", *lines[1:])])] = lines
        return table

    def write(self, fresh: Iterable[str] = ()) -> Iterator[bytes]:
        """The bytes of the table, and of *fresh* lines, which are newer, piece by piece: the whole would take new
        memory twice. A path that a line can't hold is left out: a lost row costs one hash."""
        begin = b""
        for text in chain(map(_text, _pieces(self._rows)), fresh):
            if text:
                yield begin + os.fsencode(text)
                begin = b"\n"
        for data, start, end in self._trees.values():
            yield b"\n\n" + data[start:end]

    def rows(self) -> dict[str, str]:
        """All rows, by path."""
        found: dict[str, str] = {}
        for tree in self._trees:
            found |= self._look(tree)
        return found | self._rows

    def get(self, path: str) -> str:
        """The row of a file, "" if there is none."""
        found = self._rows.get(path, "")
        if not found and self._trees:
            tree = path.rpartition("/")[0]
            if tree in self._trees:
                return self._look(tree).get(path, "")
        return found

    def __setitem__(self, path: str, row: str) -> None:
        self.update({path: row})

    def update(self, rows: Mapping[str, str]) -> None:
        """Add *rows*, or replace those that there are. A tree with a new row is no longer as it was."""
        for tree in {path.rpartition("/")[0] for path in rows} & self._trees.keys():
            self._rows = self._look(tree) | self._rows
            del self._trees[tree], self._seen[tree]
        self._rows |= rows

    def known(self, path: str, file: LocalFile) -> str:
        """The hash of *file*, "" if it is not known or the file has changed since."""
        found = self.get(path)
        return found[:HASH] if found[HASH:] == f" {file[1]} {file[2]} {file[3]} {file[4]}" else ""

    # -- trees ---------------------------------------------------------------------------------------------------------

    def unchanged(self, tree: str, found: os.stat_result) -> bool:
        """Whether a *tree* is as its lines tell, and they are whole."""
        data, begin, end = self._trees.get(tree, (b"", 0, 0))
        head = os.fsencode(f"{tree}\t{found.st_ctime_ns} {found.st_ino}\t")
        if not data.startswith(head, begin, end):
            return False
        names = begin + len(head)
        hashes = data.find(b"\t", names, end) + 1
        files = data.find(b"\n", hashes, end)
        count = data.count(b"/", names, hashes)
        return 0 < count == data.count(b"\n", files, end) and files - hashes == HASH * count

    def tells(self, tree: str, names: str, hashes: str) -> bool:
        """Whether the files of a *tree* have these *names* and these *hashes*, each as one text."""
        data, begin, end = self._trees.get(tree, (b"\t\t", 0, 2))
        state = data.find(b"\t", begin, end) + 1
        try:
            told = os.fsencode(f"{names}\t{hashes}\n")
        except UnicodeEncodeError:  # names that no file here can have, without UTF-8 in the locale
            return False
        return data.startswith(told, data.find(b"\t", state, end) + 1, end)

    def learn(
        self, tree: str, found: os.stat_result, files: Sequence[LocalFile], hashes: Sequence[str]
    ) -> bool:
        """Keep the *files* of a *tree*, which holds just these, as one; whether its lines can hold them. *found* is
        from before it was listed. Their suffixes have no slash but the first: what changes in a directory below does
        not show."""
        names = "".join([file[0] for file in files])
        if names.count("/") != len(files) or {"\n", "\t"} & {*tree, *names}:
            return False
        if self._rows:
            for path in (tree, *[tree + file[0] for file in files]):
                self._rows.pop(path, None)
        head = f"{tree}\t{found.st_ctime_ns} {found.st_ino}\t{names}\t{''.join(hashes)}"
        lines = [f"{size} {mtime_ns} {inode} {mode}" for _, size, mtime_ns, inode, mode in files]
        told = os.fsencode("\n".join([head, *lines]))
        self._trees[tree] = (told, 0, len(told))
        self._seen.pop(tree, None)
        return True

    def _lines(self, tree: str) -> str:
        data, begin, end = self._trees[tree]
        return os.fsdecode(data[begin:end])

    def _look(self, tree: str) -> dict[str, str]:
        """The rows of a *tree*. One that is damaged is lost, which costs a hash."""
        if tree not in self._seen:
            lines = self._lines(tree)
            names, hashes = _head(lines)
            told = lines.split("\n")[1:]
            self._seen[tree] = {
                tree + suffix: f"{hashes[HASH * number : HASH * (number + 1)]} {status}"
                for number, (suffix, status) in enumerate(zip(_suffixes(names), told, strict=False))
            }
        return self._seen[tree]


def _head(lines: str) -> tuple[str, str]:
    """(names, hashes) of a tree; empty if its line is none."""
    fields = lines.partition("\n")[0].split("\t")
    return (fields[2], fields[3]) if len(fields) == 4 else ("", "")


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
