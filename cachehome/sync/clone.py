"""Clones: live directories of other workers of this node, filled from one that was restored, without the store.

    a file of                        comes as
    a Triton kernel                  a hard link; its group, which names absolute paths, is written anew
    fxgraph/, aotautograd/           a hard link
    anything else                    a copy, hashed on the way

Linked is only what its compiler never writes into: Triton and torch write those files under a temporary name and
rename them, so that a worker which compiles one again gets a file of its own. A linker writes libraries in place, and
torch wrote its tuning results so. Only what was verified and is untouched comes over: it is looked at once more when
all have it. A directory that holds anything already is no target: what lies there is a restore's matter.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import stat
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from cachehome.store.entries import File
from cachehome.sync import parallel, portable
from cachehome.sync.live import Live, Stamp, trouble
from cachehome.sync.record import Phases, Record
from cachehome.sync.scan import OWN, LocalFile, scan
from cachehome.sync.stage import Target, fill
from cachehome.sync.table import Table, row, sha256_of, status

if TYPE_CHECKING:
    from cachehome.families import Family
    from cachehome.identity import Identity

# Family -> beginnings of the entries whose files are only ever replaced. Of others nobody knows.
_REPLACED = {"triton": ("",), "inductor": ("fxgraph/", "aotautograd/")}
_HERE = "@"  # stands for the directory in a group that is to be written; no child's name holds a "/"
_PART = 64  # entries that are looked at together
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class _Piece(NamedTuple):
    """An entry to be brought, its files by how they come."""

    name: str
    modes: dict[str, int]
    """Suffix of each file to the mode of a copy."""
    size: int
    tree: bool
    deep: bool
    """Whether there are directories in the tree."""
    linked: list[str]
    groups: list[tuple[str, bytes]]
    copied: list[str]
    rows: dict[str, str]
    """As they are over there."""


class _Model(NamedTuple):
    """What one family's directory has to give."""

    family: Family
    live: Live
    stamp: Stamp
    pieces: dict[str, _Piece]
    """By name."""


def clone(
    identity: Identity, source: Sequence[Target], targets: Sequence[Mapping[str, str]]
) -> list[Record | None]:
    """Fill each of *targets* (family to path) with what was restored into *source*. None for one that can't be filled:
    it belongs to another build, holds something, is not to be trusted, or failed.

    Raises ValueError if *source* was not restored for this build, or holds what nobody has verified; OSError if it
    can't be read.
    """
    phases = Phases()
    with phases("clone"):
        models = [_model(identity, target) for target in source]

    def one(number: int) -> dict[str, Any] | None:
        try:
            # Each begins elsewhere: two that link the same file at the same time wait for each other.
            return _Clone(identity, models, targets[number], number / len(targets)).record().to_json()
        except (OSError, ValueError):
            return None

    found = [told and Record(**told) for told in parallel.each(one, range(len(targets)))]
    for model, name in _changed(models):
        for record, target in zip(found, targets, strict=True):
            if record and model.family.name in target:
                _take_back(Live(target[model.family.name]), model.pieces[name])
    return found


def _changed(models: Sequence[_Model]) -> list[tuple[_Model, str]]:
    """Entries of which a file is not, or no longer, the one that was verified: a worker may be at work over there."""

    def look(part: tuple[int, list[str]]) -> list[str]:
        model = models[part[0]]
        return [name for name in part[1] if not _untouched(model, name)]

    parts = [
        (number, names[at : at + _PART])
        for number, names in enumerate([list(model.pieces) for model in models])
        for at in range(0, len(names), _PART)
    ]
    looked_at = zip(parts, parallel.each(look, parts), strict=True)
    return [(models[number], name) for (number, _), names in looked_at for name in names]


def _untouched(model: _Model, name: str) -> bool:
    for path, there in model.pieces[name].rows.items():
        try:
            found = os.lstat(f"{model.live.directory}/{path}")
        except OSError:
            return False
        if there != row(sha256_of(there), *status(found)) or not stat.S_ISREG(found.st_mode):
            return False
    return True


def _take_back(live: Live, piece: _Piece) -> None:
    """Move what came of *piece* out of the way, and forget it."""
    with contextlib.suppress(OSError):
        live.set_aside(piece.name, list(piece.modes), tree=piece.tree)
        rows = live.table().rows()
        live.write_table(Table({path: one for path, one in rows.items() if path not in piece.rows}))


def restored(directories: Mapping[str, str]) -> list[Target]:
    """What a restore has left in *directories* (family to path), to clone from. Raises OSError."""
    from cachehome import families

    catalogue = families.catalogue(plugins=True)
    targets = [
        Target(catalogue[name], Live(directories[name]))
        for name in sorted(directories.keys() & catalogue.keys())
    ]
    for target in targets:
        target.local = scan(target.family, target.live.directory)
        target.table = target.live.table()
    return targets


def _model(identity: Identity, source: Target) -> _Model:
    live, table = source.live, source.whole_table()
    stamp = live.stamp()
    if stamp is None or stamp.build != identity.build_key:
        raise ValueError(f"{live.directory} was not restored for this build")
    replaced = _REPLACED.get(source.family.name, ())
    pieces = {}

    def add(name: str, files: Sequence[LocalFile | File]) -> None:
        with contextlib.suppress(OSError):  # it is gone
            pieces[name] = _piece(live, name, files, table, name.startswith(replaced))

    for entry in source.local.values():
        if all(table.known(entry.name + file.suffix, file) for file in entry.files):
            add(entry.name, entry.files)
        elif entry.newest_ns <= stamp.restored_ns:  # else it is the work of the worker over there
            raise ValueError(f"nobody has verified {live.directory}/{entry.name}")
    for stored, suffixes in source.moved:
        add(stored.name, [file for file in stored.files if file.suffix in suffixes])
    return _Model(source.family, live, stamp, pieces)


def _piece(live: Live, name: str, files: Sequence[LocalFile | File], table: Table, replaced: bool) -> _Piece:
    linked, groups, copied, rows, size = [], [], [], {}, 0
    for file in files:
        suffix = file.suffix
        rows[name + suffix] = table.get(name + suffix)
        size += file.size
        if portable.is_group(suffix):
            groups.append((suffix, _group(live, name, suffix, [other.suffix[1:] for other in files])))
        elif replaced:
            linked.append(suffix)
        else:
            copied.append(suffix)
    tree = files[0].suffix[:1] == "/"
    deep = tree and any("/" in file.suffix[1:] for file in files)
    modes = {file.suffix: 0o700 if file.mode & 0o111 else 0o600 for file in files}
    return _Piece(name, modes, size, tree, deep, linked, groups, copied, rows)


def _group(live: Live, name: str, suffix: str, present: list[str]) -> bytes:
    with open(f"{live.directory}/{name}{suffix}", "rb", buffering=0) as file:
        group = file.read()
    # Made alike first: what was said of one kernel of a function then holds for all.
    there = _json_text(f"{live.directory}/{name}")
    return portable.local(group.replace(there, _json_text(_HERE)), _HERE, present)


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
        self.families = {model.family.name: 0 for model in self.models}
        self.files = self.size = 0

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
                self._check_empty(here)
                here.make()
                self._fill(model, here)
                there = model.stamp
                generation = there.generation if there.generation is not None else generation
                here.write_stamp(
                    Stamp(self.identity.build_key, True, here.now_ns(), there.generation, there.manifest)
                )
        record = Record(
            "restore",
            "hit",
            "cloned",
            self.identity.build_key,
            self.identity.profile_key,
            generation,
            sum(self.families.values()),
            self.files,
            self.size,
            seconds=phases.seconds,
            details={
                "from": {model.family.name: model.live.directory for model in self.models},
                "directories": dict(self.target),
                "families": self.families,
            },
        )
        if self.models:
            with contextlib.suppress(OSError):
                Live(self.target[self.models[0].family.name]).write_restored(record)
        return record

    def _check_empty(self, here: Live) -> None:
        """Raise ValueError if there is anything in the directory but our own, and directories of other families."""
        others = {os.path.realpath(path) for path in self.target.values()}
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(here.directory):
                path = f"{here.directory}/{name}"
                below = any(other == path or other.startswith(f"{path}/") for other in others)
                if name != OWN and not (below and stat.S_ISDIR(os.lstat(path).st_mode)):
                    raise ValueError(f"{path} is there already")

    def _fill(self, model: _Model, here: Live) -> None:
        rows: dict[str, str] = {}
        staging = here.staging()
        try:
            with _Hands(model, here, staging) as hands:
                pieces = list(model.pieces.values())
                first = int(self.begin * len(pieces))
                for piece in itertools.chain(pieces[first:], pieces[:first]):
                    if hands.bring(piece, rows):
                        self.families[model.family.name] += 1
                        self.files += len(piece.modes)
                        self.size += piece.size
        finally:
            import shutil

            shutil.rmtree(staging, ignore_errors=True)
        here.write_table(Table(rows))


class _Hands:
    """Brings entries from one live directory into another. Paths are relative to open directories: shorter for the
    kernel to walk."""

    def __init__(self, model: _Model, here: Live, staging: str) -> None:
        self.here = here.directory
        self.staging = staging
        self.made: set[str] = set()
        self.names = map(str, itertools.count())
        self.mark = _json_text(_HERE)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        self.open = [os.open(path, flags) for path in (model.live.directory, self.here, staging)]
        self.there_fd, self.here_fd, self.staging_fd = self.open

    def __enter__(self) -> _Hands:  # noqa: PYI034 - Self is newer than Python 3.10
        return self

    def __exit__(self, *_: object) -> None:
        for descriptor in self.open:
            os.close(descriptor)

    def bring(self, piece: _Piece, rows: dict[str, str]) -> bool:
        """Whether it came, with its rows among *rows*; not if it is gone over there, or somebody else's is here by
        now."""
        name = piece.name
        parent = name.rpartition("/")[0]
        if parent and parent not in self.made:
            os.makedirs(f"{self.here}/{parent}", mode=0o700, exist_ok=True)
            self.made.add(parent)
        staged = next(self.names)
        try:
            if piece.tree:
                os.mkdir(staged, 0o700, dir_fd=self.staging_fd)
            for suffix in piece.modes if piece.deep else ():
                os.makedirs(f"{self.staging}/{staged}{os.path.dirname(suffix)}", mode=0o700, exist_ok=True)
            own = self._stage(piece, staged)
        except (FileNotFoundError, ValueError):  # replaced meanwhile: what it is now was never verified
            return False
        moved = self._move_tree(staged, name) if piece.tree else self._move_files(staged, piece)
        if moved:
            rows |= piece.rows | own
        return moved

    def _stage(self, piece: _Piece, staged: str) -> dict[str, str]:
        """Make all files of an entry below *staged*; rows of those that are no links."""
        name = piece.name
        there, here = self.there_fd, self.staging_fd
        rows: dict[str, str] = {}
        copied = piece.copied

        def write(suffix: str, data: bytes, sha256: str) -> None:
            descriptor = os.open(staged + suffix, _WRITE, piece.modes[suffix], dir_fd=here)
            rows[name + suffix] = row(sha256, *fill(descriptor, [data]))

        try:
            for suffix in piece.linked:
                os.link(
                    name + suffix, staged + suffix, src_dir_fd=there, dst_dir_fd=here, follow_symlinks=False
                )
        except FileNotFoundError:
            raise
        except OSError:  # another file system, one without links, or as many as it bears
            left = piece.linked[piece.linked.index(suffix) :]
            copied = [*left, *copied]
        for suffix, group in piece.groups:
            directory = _json_text(os.path.dirname(f"{self.here}/{name}{suffix}"))
            write(suffix, group.replace(self.mark, directory), sha256_of(piece.rows[name + suffix]))
        for suffix in copied:
            with open(os.open(name + suffix, _READ, dir_fd=there), "rb", buffering=0) as opened:
                data = opened.read()
            sha256 = sha256_of(piece.rows[name + suffix])
            if hashlib.sha256(data).hexdigest() != sha256:
                raise ValueError(f"{name}{suffix} has changed")
            write(suffix, data, sha256)
        return rows

    def _move_tree(self, staged: str, name: str) -> bool:
        try:
            os.rename(staged, name, src_dir_fd=self.staging_fd, dst_dir_fd=self.here_fd)
        except OSError:
            if not os.path.isdir(f"{self.here}/{name}"):
                raise
            return False
        return True

    def _move_files(self, staged: str, piece: _Piece) -> bool:
        """Move files one by one, over nothing that is here."""
        moved = False
        for suffix in piece.modes:
            names = (staged + suffix, piece.name + suffix)
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
