"""Entries of a manifest and their files: an object each where somebody looks at them, in columns where nobody does.

Entry       family, name, since, slim, files
File        suffix, size, mode, sha256, pack, offset
Columns     the same fields of many files, a list each, as the manifest holds them
Files       the files of one entry: a part of columns, or a tuple
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple, overload


class File(NamedTuple):
    """One file of an entry. `offset` counts in the uncompressed stream of pack number `pack`."""

    suffix: str
    size: int
    mode: int
    sha256: str
    pack: int
    offset: int


class Columns(NamedTuple):
    """The files of all entries of a manifest, as it holds them."""

    suffix: list[str]
    size: list[int]
    mode: list[int]
    pack: list[int]
    offset: list[int]
    sha256: str


class Files(Sequence[File]):
    """The files of one entry of a manifest that was read. Each is made when it is asked for: of ten thousand, most
    never are."""

    __slots__ = ("_begin", "_columns", "_end")

    def __init__(self, columns: Columns, begin: int, end: int) -> None:
        self._columns = columns
        self._begin = begin
        self._end = end

    @classmethod
    def of(cls, files: Sequence[File]) -> Files:
        """*files* in columns of their own."""
        suffixes, sizes, modes, hashes, packs, offsets = map(list, zip(*files, strict=True))
        return cls(Columns(suffixes, sizes, modes, packs, offsets, "".join(hashes)), 0, len(files))

    def columns(self) -> Columns:
        """Their part of the columns."""
        of, here = self._columns, slice(self._begin, self._end)
        return Columns(
            of.suffix[here], of.size[here], of.mode[here], of.pack[here], of.offset[here], self.hashes
        )

    def followed_by(self, other: Files) -> Files | None:
        """Both together; None if *other* does not begin where these end."""
        if other._columns is not self._columns or other._begin != self._end:
            return None
        return Files(self._columns, self._begin, other._end)

    def outside(self, packs: Container[int]) -> Iterator[File]:
        """Those that lie in none of *packs*."""
        suffix, size, mode, pack, offset, sha256 = self._columns
        new = tuple.__new__
        for at in range(self._begin, self._end):
            if pack[at] not in packs:
                digest = sha256[64 * at : 64 * at + 64]
                yield new(File, (suffix[at], size[at], mode[at], digest, pack[at], offset[at]))

    def __len__(self) -> int:
        return self._end - self._begin

    def __iter__(self) -> Iterator[File]:
        suffix, size, mode, pack, offset, sha256 = self.columns()
        hashes = [sha256[at : at + 64] for at in range(0, len(sha256), 64)]
        rows = zip(suffix, size, mode, hashes, pack, offset, strict=True)
        return map(partial(tuple.__new__, File), rows)  # a third of the time of File._make

    @overload
    def __getitem__(self, index: int) -> File: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[File, ...]: ...
    def __getitem__(self, index: int | slice) -> File | tuple[File, ...]:
        return tuple(self)[index]

    def __eq__(self, other: object) -> bool:
        return tuple(self) == tuple(other) if isinstance(other, Files | tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))

    @property
    def suffixes(self) -> list[str]:
        return self._columns.suffix[self._begin : self._end]

    @property
    def packs(self) -> list[int]:
        return self._columns.pack[self._begin : self._end]

    @property
    def hashes(self) -> str:
        """All of them, as one text."""
        return self._columns.sha256[64 * self._begin : 64 * self._end]


class Entry(NamedTuple):
    """One entry: `family` and `name` identify it, `since` is the generation that introduced it."""

    family: str
    name: str
    since: int
    slim: bool
    files: Sequence[File]

    @property
    def key(self) -> tuple[str, str]:
        return (self.family, self.name)

    def outside(self, packs: Container[int]) -> Iterator[File]:
        """Its files that lie in none of *packs*."""
        files = self.files
        return files.outside(packs) if isinstance(files, Files) else (f for f in files if f.pack not in packs)

    @property
    def suffixes(self) -> list[str]:
        """Those of its files."""
        files = self.files
        return files.suffixes if isinstance(files, Files) else [file.suffix for file in files]

    @property
    def packs(self) -> list[int]:
        """The pack of each file."""
        files = self.files
        return files.packs if isinstance(files, Files) else [file.pack for file in files]

    @property
    def hashes(self) -> str:
        """Their hashes, as one text."""
        files = self.files
        return files.hashes if isinstance(files, Files) else "".join([file.sha256 for file in files])

    def digest(self, leave_out: frozenset[str] = frozenset()) -> str:
        """sha256 of what the entry holds, whatever pack it lies in; without files of the extensions *leave_out*."""
        text = "".join(
            f"{file.suffix}\0{file.sha256}\n"
            for file in sorted(self.files, key=lambda file: file.suffix)
            if file.suffix.rpartition(".")[2] not in leave_out
        )
        return hashlib.sha256(text.encode()).hexdigest()


def columns(entries: Iterable[Entry]) -> Columns:
    """The files of all *entries*, one after the other."""
    whole, hashes = Columns([], [], [], [], [], ""), []
    for files in _runs(entries):
        own = files.columns()
        whole.suffix.extend(own.suffix)
        whole.size.extend(own.size)
        whole.mode.extend(own.mode)
        whole.pack.extend(own.pack)
        whole.offset.extend(own.offset)
        hashes.append(own.sha256)
    return whole._replace(sha256="".join(hashes))


def _runs(entries: Iterable[Entry]) -> Iterator[Files]:
    """The files of all *entries* in as few pieces as they lie in: most follow each other in the manifest before."""
    run: Files | None = None
    for entry in entries:
        files = entry.files if isinstance(entry.files, Files) else Files.of(entry.files)
        longer = run.followed_by(files) if run is not None else None
        if run is not None and longer is None:
            yield run
        run = files if longer is None else longer
    if run is not None:
        yield run
