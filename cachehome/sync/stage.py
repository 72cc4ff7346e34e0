"""Staging: the files of chosen entries, read from packs, verified, and written beside the live directory.

A frame is verified before it is decoded, and every file before the entry that it belongs to is moved into the live
directory. Work is shared out in tasks, runs of files that follow each other in a pack.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cachehome.errors import IntegrityError, NotInStore
from cachehome.families import Family
from cachehome.store.backend import Backend
from cachehome.store.manifest import Entry, Pack
from cachehome.store.pack import Layout, Piece, check_frame, decompressor
from cachehome.sync import portable
from cachehome.sync.live import Live
from cachehome.sync.scan import LocalEntry

_READ = 4 << 20  # stored bytes that a worker reads at once
_TASK = 24 << 20  # raw bytes of a task: enough that opening a pack does not count, few enough to share out


class Place(NamedTuple):
    """A file to be written: where it lies in its pack's raw stream, and where it goes."""

    offset: int
    size: int
    sha256: str
    family: int
    path: str
    mode: int


@dataclass(slots=True)
class Target:
    """One family's live directory during a restore."""

    family: Family
    live: Live
    local: dict[str, LocalEntry] = field(default_factory=dict)
    table: dict[str, list[Any]] = field(default_factory=dict)
    wanted: list[Entry] = field(default_factory=list)
    staging: str = ""
    descriptor: int = -1


def tasks_of(pack: Pack, places: list[Place]) -> list[tuple[Pack, list[tuple[Place, list[Piece]]]]]:
    """Split the files of a pack into tasks: runs of files whose frames follow each other."""
    layout = Layout(pack)
    tasks: list[tuple[Pack, list[tuple[Place, list[Piece]]]]] = []
    last = -2
    raw = 0
    for place in sorted(places):
        pieces = list(layout.pieces(place.offset, place.size))
        first = pieces[0].frame if pieces else last
        if not tasks or first > last + 1 or (raw >= _TASK and first > last):
            tasks.append((pack, []))
            raw = 0
        tasks[-1][1].append((place, pieces))
        last = pieces[-1].frame if pieces else last
        raw += place.size
    return tasks


class Stager:
    """Reads frames, verifies, decodes, and writes files into the staging directories."""

    def __init__(
        self,
        backend: Backend,
        build: str,
        targets: list[Target],
        names: dict[int, dict[str, list[str]]],
        slim: bool,
    ) -> None:
        self.backend = backend
        self.build = build
        self.targets = targets
        self.names = names
        self.slim = slim

    def __call__(
        self, task: tuple[Pack, list[tuple[Place, list[Piece]]]]
    ) -> tuple[int, list[tuple[int, str, int, int, int, str]]]:
        """(stored bytes read, a row of the table for each file)."""
        pack, files = task
        frames = _Frames(self.backend, self.build, pack, files)
        rows = []
        for place, pieces in files:
            if len(pieces) == 1:
                _, start, length = pieces[0]
                parts = [memoryview(frames.raw(pieces[0].frame))[start : start + length]]
                digest = hashlib.sha256(parts[0]).hexdigest()
                self._expect(place, digest)
                rows.append(self._write(place, iter(parts)))
            else:
                # Longer than a frame: written as it is decoded, and checked at its end, in the staging directory.
                running = hashlib.sha256()

                def stream(pieces: list[Piece] = pieces, running: Any = running) -> Any:
                    for piece in pieces:
                        part = memoryview(frames.raw(piece.frame))[piece.start : piece.start + piece.length]
                        running.update(part)
                        yield part

                rows.append(self._write(place, stream()))
                self._expect(place, running.hexdigest())
        return frames.read, rows

    def _expect(self, place: Place, digest: str) -> None:
        if digest != place.sha256:
            raise IntegrityError(
                f"{place.path} is not what the manifest says", name=place.path, reason="file_damaged"
            )

    def _write(self, place: Place, parts: Any) -> tuple[int, str, int, int, int, str]:
        target = self.targets[place.family]
        if portable.is_group(place.path):
            parts = [self._group(target, place, b"".join(parts))]
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            descriptor = os.open(place.path, flags, place.mode, dir_fd=target.descriptor)
        except FileNotFoundError:
            os.makedirs(os.path.join(target.staging, os.path.dirname(place.path)), mode=0o700, exist_ok=True)
            descriptor = os.open(place.path, flags, place.mode, dir_fd=target.descriptor)
        try:
            for part in parts:
                while part:
                    part = part[os.write(descriptor, part) :]
            found = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        return place.family, place.path, found.st_size, found.st_mtime_ns, found.st_ino, place.sha256

    def _group(self, target: Target, place: Place, data: bytes) -> bytes:
        directory, name = os.path.split(place.path)
        # The entry is the directory itself, or one above it (a device's number lies between).
        suffixes = self.names[place.family].get(directory)
        if suffixes is None:
            raise IntegrityError(f"{place.path} is in no entry", name=place.path, reason="file_misplaced")
        ir = target.family.ir if self.slim else ()
        present = {suffix[1:] for suffix in suffixes if not (ir and suffix.endswith(ir))}
        try:
            return portable.local(data, os.path.join(target.live.directory, directory), present)
        except ValueError as error:
            raise IntegrityError(f"{place.path}: {error}", name=place.path, reason="file_damaged") from None


class _Frames:
    """The frames that a task needs, in order, read some MB at a time. `read`: stored bytes so far."""

    def __init__(
        self, backend: Backend, build: str, pack: Pack, files: list[tuple[Place, list[Piece]]]
    ) -> None:
        self.backend = backend
        self.name = f"{build}/{pack.name}"
        self.pack = pack
        self.layout = Layout(pack)
        self.decode = decompressor()
        used = [piece.frame for _, pieces in files for piece in pieces]
        self.end = max(used, default=-1) + 1
        self.number = -1
        self.data = b""
        self.buffer = b""
        self.buffer_start = 0
        self.read = 0

    def raw(self, number: int) -> bytes:
        """The raw bytes of frame *number*; the last one asked for is kept."""
        if number != self.number:
            stored = self._stored(number)
            check_frame(stored, self.pack, number)
            self.data = self.decode(stored, self.pack.frames[number][1])
            self.number = number
        return self.data

    def _stored(self, number: int) -> bytes:
        begin, end = self.layout.stored[number], self.layout.stored[number + 1]
        if not self.buffer_start <= begin or end > self.buffer_start + len(self.buffer):
            last = number + 1
            while last < self.end and self.layout.stored[last + 1] - begin <= _READ:
                last += 1
            length = self.layout.stored[last] - begin
            try:
                self.buffer = self.backend.get(self.name, begin, length)
            except NotInStore as error:
                raise IntegrityError(str(error), name=self.pack.name, reason="pack_missing") from None
            self.buffer_start = begin
            self.read += len(self.buffer)
        return self.buffer[begin - self.buffer_start : end - self.buffer_start]
