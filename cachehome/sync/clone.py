"""Clones: live directories of other workers of this node, filled from one that was restored, without the store.

    a file of                        comes as
    a Triton kernel                  a hard link; its group, which names absolute paths, is written anew
    fxgraph/, aotautograd/           a hard link
    anything else                    a copy, hashed on the way

Linked is only what its compiler never writes into: Triton and torch write those files under a temporary name and
rename them, so that a worker which compiles one again gets a file of its own. A linker writes libraries in place, and
torch wrote its tuning results so. Only what was verified and is untouched since then comes over; what is there stays.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from cachehome.sync import parallel, portable
from cachehome.sync.live import Live, Stamp, known, trouble
from cachehome.sync.record import Phases, Record
from cachehome.sync.scan import LocalEntry, LocalFile, scan
from cachehome.sync.stage import fill

if TYPE_CHECKING:
    from cachehome.families import Family
    from cachehome.identity import Identity

# Family -> beginnings of the entries whose files are only ever replaced. Of others nobody knows.
_REPLACED = {"triton": ("",), "inductor": ("fxgraph/", "aotautograd/")}
_HERE = "@"  # stands for the directory in a group that is to be written; no child's name holds a "/"
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class _Piece(NamedTuple):
    """An entry to be brought. Its files by how they come; *rows* of the table as they are over there."""

    entry: LocalEntry
    size: int
    tree: bool
    deep: bool
    """Whether there are directories in the tree."""
    linked: list[str]
    groups: list[tuple[str, bytes]]
    copied: list[LocalFile]
    rows: dict[str, list[Any]]


class _Model(NamedTuple):
    """What one family's directory has to give."""

    family: Family
    live: Live
    stamp: Stamp
    table: dict[str, list[Any]]
    pieces: list[_Piece]


def clone(
    identity: Identity, source: Mapping[str, str], targets: Sequence[Mapping[str, str]]
) -> list[Record | None]:
    """Fill each of *targets* (family to path) with what was restored into *source*. None for one that can't be filled:
    it belongs to another build, is not to be trusted, or failed.

    Raises ValueError if *source* was not restored for this build, OSError if it can't be read.
    """
    phases = Phases()
    with phases("clone"):
        models = [_model(identity, family, path) for family, path in _known(source)]

    def one(number: int) -> dict[str, Any] | None:
        try:
            # Each begins elsewhere: two that link the same file at the same time wait for each other.
            return _Clone(identity, models, targets[number], number / len(targets)).record().to_json()
        except (OSError, ValueError):
            return None

    # As many at once as there are, so that the last one does not work alone.
    workers = min(len(targets), 8)
    return [found and Record(**found) for found in parallel.each(one, range(len(targets)), workers=workers)]


def _known(source: Mapping[str, str]) -> list[tuple[Family, str]]:
    from cachehome import families

    catalogue = families.catalogue(plugins=True)
    return [(catalogue[name], source[name]) for name in sorted(source.keys() & catalogue.keys())]


def _model(identity: Identity, family: Family, directory: str) -> _Model:
    live = Live(directory)
    stamp = live.stamp()
    if stamp is None or stamp.build != identity.build_key:
        raise ValueError(f"{live.directory} was not restored for this build")
    table = live.table()
    beginnings = _REPLACED.get(family.name, ())
    pieces = []
    for entry in scan(family, live.directory).values():
        rows = {}
        for file in entry.files:
            path = entry.name + file.suffix
            if not known(table, path, file):
                break  # Only what was verified: the worker over there may be compiling by now.
            rows[path] = table[path]
        else:
            with contextlib.suppress(OSError, ValueError):
                pieces.append(_piece(live, entry, rows, entry.name.startswith(beginnings)))
    return _Model(family, live, stamp, table, pieces)


def _piece(live: Live, entry: LocalEntry, rows: dict[str, list[Any]], replaced: bool) -> _Piece:
    linked, groups, copied = [], [], []
    for file in entry.files:
        path = entry.name + file.suffix
        if portable.is_group(path):
            with open(f"{live.directory}/{path}", "rb", buffering=0) as group:
                present = {other.suffix[1:] for other in entry.files}
                groups.append((file.suffix, portable.local(group.read(), _HERE, present)))
        elif replaced:
            linked.append(file.suffix)
        else:
            copied.append(file)
    size = sum(file.size for file in entry.files)
    tree = entry.files[0].suffix[:1] == "/"
    deep = tree and any("/" in file.suffix[1:] for file in entry.files)
    return _Piece(entry, size, tree, deep, linked, groups, copied, rows)


class _Clone:
    """One target under way."""

    def __init__(
        self, identity: Identity, models: Sequence[_Model], target: Mapping[str, str], begin: float = 0.0
    ) -> None:
        """*begin*: where in the order of entries, from 0 to 1."""
        self.identity = identity
        self.begin = begin
        self.models = [model for model in models if model.family.name in target]
        self.target = target
        self.entries = self.files = self.size = 0

    def record(self) -> Record:
        """Fill it. Raises ValueError if it is not ours to fill, OSError."""
        phases = Phases()
        generation = None
        with phases("clone"):
            for model in self.models:
                here = Live(self.target[model.family.name])
                mine = here.stamp()
                problem = trouble(here.directory)
                if problem or (mine is not None and mine.build != self.identity.build_key):
                    raise ValueError(problem or f"{here.directory} belongs to another build")
                here.make()
                present = scan(model.family, here.directory)
                self._fill(model, here, present)
                whole = mine.whole if mine else not present
                there = model.stamp
                generation = there.generation if there.generation is not None else generation
                here.write_stamp(
                    Stamp(self.identity.build_key, whole, here.now_ns(), there.generation, there.manifest)
                )
        return Record(
            "restore",
            "hit",
            "cloned",
            self.identity.build_key,
            self.identity.profile_key,
            generation,
            self.entries,
            self.files,
            self.size,
            seconds=phases.seconds,
            details={
                "from": {model.family.name: model.live.directory for model in self.models},
                "directories": dict(self.target),
            },
        )

    def _fill(self, model: _Model, here: Live, present: Collection[str]) -> None:
        table = here.table()
        staging = here.staging()
        try:
            with _Hands(model, here, staging) as hands:
                first = int(self.begin * len(model.pieces))
                for piece in itertools.chain(model.pieces[first:], model.pieces[:first]):
                    if piece.entry.name not in present and hands.bring(piece, table):
                        self.entries += 1
                        self.files += len(piece.rows)
                        self.size += piece.size
        finally:
            import shutil

            shutil.rmtree(staging, ignore_errors=True)
        here.write_table(table)


class _Hands:
    """Brings entries from one live directory into another. Paths are relative to open directories: shorter for the
    kernel to walk."""

    def __init__(self, model: _Model, here: Live, staging: str) -> None:
        self.table = model.table
        self.here = here.directory
        self.staging = staging
        self.made: set[str] = set()
        self.names = map(str, itertools.count())
        self.mark = f'"{_HERE}/'.encode()
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        self.open = [os.open(path, flags) for path in (model.live.directory, self.here, staging)]
        self.there_fd, self.here_fd, self.staging_fd = self.open

    def __enter__(self) -> _Hands:  # noqa: PYI034 - Self is newer than Python 3.10
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self.open:
            os.close(descriptor)

    def bring(self, piece: _Piece, table: dict[str, list[Any]]) -> bool:
        """Whether it came, with its rows in *table*; not if it is gone over there, or somebody else's is here by
        now."""
        name = piece.entry.name
        parent = name.rpartition("/")[0]
        if parent and parent not in self.made:
            os.makedirs(f"{self.here}/{parent}", mode=0o700, exist_ok=True)
            self.made.add(parent)
        staged = next(self.names)
        try:
            if piece.tree:
                os.mkdir(staged, 0o700, dir_fd=self.staging_fd)
            for file in piece.entry.files if piece.deep else ():
                os.makedirs(
                    f"{self.staging}/{staged}{os.path.dirname(file.suffix)}", mode=0o700, exist_ok=True
                )
            rows = piece.rows | self._stage(piece, staged)
        except (FileNotFoundError, ValueError):  # replaced meanwhile: what it is now was never verified
            return False
        moved = self._move_tree(staged, name) if piece.tree else self._move_files(staged, piece.entry)
        if moved:
            table.update(rows)
        return moved

    def _stage(self, piece: _Piece, staged: str) -> dict[str, list[Any]]:
        """Make all files of an entry below *staged*; rows of those that are no links."""
        name = piece.entry.name
        there, here = self.there_fd, self.staging_fd
        rows = {}
        copied = piece.copied
        try:
            for suffix in piece.linked:
                os.link(
                    name + suffix, staged + suffix, src_dir_fd=there, dst_dir_fd=here, follow_symlinks=False
                )
        except FileNotFoundError:
            raise
        except OSError:  # another file system, one without links, or as many as it bears
            left = piece.linked[piece.linked.index(suffix) :]
            copied = [file for file in piece.entry.files if file.suffix in left] + copied
        for suffix, group in piece.groups:
            directory = _json_text(os.path.dirname(f"{self.here}/{name}{suffix}"))
            rows[name + suffix] = self._write(staged + suffix, group.replace(self.mark, directory), 0o600)
        for file in copied:
            with open(os.open(name + file.suffix, _READ, dir_fd=there), "rb", buffering=0) as opened:
                data = opened.read()
            if hashlib.sha256(data).hexdigest() != piece.rows[name + file.suffix][3]:
                raise ValueError(f"{name}{file.suffix} has changed")
            mode = 0o700 if file.mode & 0o111 else 0o600
            rows[name + file.suffix] = self._write(staged + file.suffix, data, mode)
        return {path: [*found, piece.rows[path][3]] for path, found in rows.items()}

    def _write(self, path: str, data: bytes, mode: int) -> tuple[int, int, int]:
        return fill(os.open(path, _WRITE, mode, dir_fd=self.staging_fd), [data])

    def _move_tree(self, staged: str, name: str) -> bool:
        try:
            os.rename(staged, name, src_dir_fd=self.staging_fd, dst_dir_fd=self.here_fd)
        except OSError:
            if not os.path.isdir(f"{self.here}/{name}"):
                raise
            return False
        return True

    def _move_files(self, staged: str, entry: LocalEntry) -> bool:
        """Move files one by one, over nothing that is here."""
        moved = False
        for file in entry.files:
            names = (staged + file.suffix, entry.name + file.suffix)
            with contextlib.suppress(FileExistsError):
                try:
                    os.link(*names, src_dir_fd=self.staging_fd, dst_dir_fd=self.here_fd)
                except FileExistsError:
                    raise
                except OSError:  # a file system without links
                    os.rename(*names, src_dir_fd=self.staging_fd, dst_dir_fd=self.here_fd)
                moved = True
        return moved


def _json_text(directory: str) -> bytes:
    """The beginning of a JSON string for a path below *directory*."""
    return json.dumps(directory + "/")[:-1].encode()
