"""Staging: the files of chosen entries, read from packs, verified, written beside the live directory, moved into it.

A frame is verified before it is decoded, and every file before the entry that it belongs to is moved into the
live directory. Work is shared out in tasks, runs of files that follow each other in a pack.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import NamedTuple

from cachehome.errors import IntegrityError, NotInStore
from cachehome.families import Family
from cachehome.store.backend import Backend
from cachehome.store.entries import Entry
from cachehome.store.manifest import Manifest, Pack
from cachehome.store.pack import Layout, check_frame, decompressor, memory, named
from cachehome.sync import parallel, portable
from cachehome.sync.live import Live, ours
from cachehome.sync.scan import LocalEntry
from cachehome.sync.table import Table, line, parse, row, status

_READ = 4 << 20  # stored bytes that a worker reads at once
# The cost of a task, in raw bytes and what creating a file is worth in them: enough that opening a pack does not count,
# little enough to share the work out evenly.
_TASK = 8 << 20
_FILE = 24 << 10
_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

# offset and size in the pack's raw stream, sha256, number of the target, path below its directory, mode
Place = tuple[int, int, str, int, str, int]


class Target:
    """One family's live directory during a restore."""

    def __init__(self, family: Family, live: Live) -> None:
        self.family = family
        self.live = live
        self.local: dict[str, LocalEntry] = {}
        self.table = Table()
        self.fresh: list[str] = []
        """Lines that its table gets, as text: those of the files that were staged."""
        self.wanted: list[Entry] = []
        self.moved: list[tuple[Entry, list[str]]] = []
        """What came into the directory, with the suffixes of its files."""
        self.staging = ""
        self.descriptor = -1

    def whole_table(self) -> Table:
        """The table with the fresh lines."""
        return Table(self.table.rows() | parse("\n".join(self.fresh)))

    def open_staging(self) -> None:
        """Make the staging directory that files are written into."""
        self.staging = self.live.staging()
        self.descriptor = os.open(self.staging, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        # Workers that make the directories of kernels themselves run into each other, thousands of times.
        for entry in self.wanted:
            if "/" not in entry.name and entry.suffixes[0][:1] == "/":
                os.mkdir(entry.name, 0o700, dir_fd=self.descriptor)

    def move_in(self, plan: Plan) -> int:
        """Move what was staged of the `wanted` entries into the live directory; the number of files. `moved` and the
        table tell what came. Raises OSError."""
        files = 0
        made: set[str] = set()
        there = os.open(self.live.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for entry in self.wanted:
                members = plan.members(entry)
                if members and self._move(there, entry.name, members, made):
                    self.moved.append((entry, members))
                    files += len(members)
        finally:
            os.close(there)
        self.live.write_table(self.table, self.fresh)
        return files

    def _move(self, there: int, name: str, suffixes: list[str], made: set[str]) -> bool:
        """Move an entry into the live directory, open as *there*; False if somebody else's is there by now."""
        here = self.descriptor
        parents = name.rpartition("/")[0]
        if parents and not _make_parents(there, parents, made):
            return False
        if suffixes[0][:1] == "/":  # then all of them
            try:
                os.rename(name, name, src_dir_fd=here, dst_dir_fd=there)
            except FileExistsError:
                return False
            except OSError:
                # ENOTEMPTY, on some systems under other names: a compiler was faster.
                if not os.path.isdir(f"{self.live.directory}/{name}"):
                    raise
                return False
            return True
        moved = False
        for path in [name + suffix for suffix in suffixes]:
            with contextlib.suppress(FileExistsError):
                # link(2), since rename(2) would replace what a compiler has written meanwhile.
                os.link(path, path, src_dir_fd=here, dst_dir_fd=there)
                moved = True
        return moved

    def close_staging(self) -> None:
        """Remove it, with what was not moved away. Never raises."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        if self.staging:
            try:
                os.rmdir(self.staging)
            except OSError:
                import shutil

                shutil.rmtree(self.staging, ignore_errors=True)
            self.staging = ""


def _make_parents(there: int, parents: str, made: set[str]) -> bool:
    """Make the directories of *parents* below *there*; False if one is a link, or not ours alone to write."""
    path = ""
    for part in parents.split("/") if parents not in made else ():
        path = f"{path}/{part}" if path else part
        try:
            os.mkdir(path, 0o700, dir_fd=there)
        except FileExistsError:
            if not ours(os.stat(path, dir_fd=there, follow_symlinks=False)):
                return False
    made.add(parents)
    return True


class Task(NamedTuple):
    """A run of files in one pack, in the order of their offsets."""

    pack: Pack
    layout: Layout
    places: list[Place]


class Plan:
    """What is to be staged: the files of every target's `wanted` entries that lie in a pack that is read.

    *slim*: packs of files that a warm start never reads are left alone.
    """

    def __init__(self, manifest: Manifest, targets: list[Target], *, slim: bool) -> None:
        self.manifest = manifest
        self.targets = targets
        self.left_alone = {number for number, pack in enumerate(manifest.packs) if slim and pack.ir}
        self._members: dict[tuple[str, str], list[str]] = {}
        places: list[list[Place]] = [[] for _ in manifest.packs]
        for number, target in enumerate(targets):
            for entry in target.wanted:
                name = entry.name
                members = self._members[entry.key] = []
                for suffix, size, mode, sha256, pack, offset in entry.outside(self.left_alone):
                    members.append(suffix)
                    # Files are this user's alone: what is read from here is run.
                    only_mine = 0o700 if mode & 0o111 else 0o600
                    places[pack].append((offset, size, sha256, number, name + suffix, only_mine))
        self.places = [sorted(found, key=itemgetter(0)) for found in places]

    @property
    def size(self) -> int:
        """Bytes to be written."""
        return sum(place[1] for found in self.places for place in found)

    def members(self, entry: Entry) -> list[str]:
        """Suffixes of the files of *entry* that are staged."""
        return self._members[entry.key]

    def tasks(self) -> list[Task]:
        """The work in even shares."""
        cost = sum(place[1] + _FILE for found in self.places for place in found)
        goal = max(_TASK, cost // (8 * parallel.most()))
        return [
            Task(pack, layout, share)
            for pack, found in zip(self.manifest.packs, self.places, strict=True)
            if found
            for layout in [Layout(pack)]
            for share in _shares(layout, found, goal)
        ]

    def run(self, backend: Backend, deadline: float) -> int:
        """Stage everything; the stored bytes read. Raises `IntegrityError`, `StoreError`, `TimeoutError`."""
        for target in self.targets:
            if target.wanted:
                target.open_staging()
        tasks = self.tasks()
        fetched = 0
        stager = _Stager(self, backend)
        for read, texts in parallel.each(stager, tasks, deadline=deadline):
            fetched += read
            for target, text in zip(self.targets, texts, strict=True):
                target.fresh += [text] if text else []
        return fetched


def _shares(layout: Layout, places: list[Place], goal: int) -> Iterator[list[Place]]:
    """Cut the files of a pack where the cost reaches *goal*, or earlier where a frame begins: a frame with a cut is
    decoded twice."""
    begin = cost = end = 0
    for number, place in enumerate(places):
        new_frame = place[0] >= end and place[1] > 0  # an empty file may lie behind the last one
        if cost >= goal or (2 * cost >= goal and new_frame):
            yield places[begin:number]
            begin, cost = number, 0
        if new_frame:
            end = layout.starts[layout.frame_at(place[0]) + 1]
        cost += place[1] + _FILE
    yield places[begin:]


class _Stager:
    """Reads frames, verifies, decodes, and writes files into the staging directories."""

    def __init__(self, plan: Plan, backend: Backend) -> None:
        self.plan = plan
        self.backend = backend
        self.texts = [target.family.ir for target in plan.targets]
        self.prefixes = [f"{target.family.name}/" for target in plan.targets]
        self.descriptors = [target.descriptor for target in plan.targets]
        # The entry whose directory is a key holds a group in it: which of its children will be there?
        self.trees = [
            {entry.name: entry for entry in target.wanted if entry.suffixes[0][:1] == "/"}
            for target in plan.targets
        ]
        read = [pack for pack, found in zip(plan.manifest.packs, plan.places, strict=True) if found]
        self.largest = max((raw for pack in read for _, raw, _ in pack.frames), default=0)
        self._idle: list[_Decoder] = []  # dear to make, and each serves one thread at a time

    def __call__(self, task: Task) -> tuple[int, list[str]]:
        """(stored bytes read, for each target the lines of its table)."""
        decoder = self._idle.pop() if self._idle else _Decoder(self.largest)
        frames = _Frames(self.backend, f"{self.plan.manifest.build}/{task.pack.name}", task, decoder)
        starts, ir = task.layout.starts, task.pack.ir
        lines: list[list[str]] = [[] for _ in self.descriptors]
        begin = end = 0
        raw = memoryview(b"")
        for place in task.places:
            offset, size, sha256, number, path, _ = place
            if size and not begin <= offset < end:
                frame = task.layout.frame_at(offset)
                begin, end = starts[frame], starts[frame + 1]
                raw = frames.raw(frame)
            if offset + size <= end:
                data: bytes | memoryview = raw[offset - begin : offset - begin + size]
                # What is run or read is hashed. Texts that a warm start never reads are three quarters of the
                # bytes: they lie in a verified frame, and the tar header before them names them.
                text = ir and path.endswith(self.texts[number])
                if not (text and named(raw, offset - begin, self.prefixes[number] + path, size)):
                    if hashlib.sha256(data).hexdigest() != sha256:
                        raise _damaged(place)
                    if portable.is_group(path):
                        data = self._group(number, path, bytes(data))
                status = fill(self._create(place), (data,))
            else:
                # Longer than a frame: written as it is decoded, and checked at its end, in the staging
                # directory.
                parts: Iterable[bytes | memoryview] = _stream(frames, task.layout, place)
                if portable.is_group(path):
                    # Each part as bytes of its own: the next one takes its memory.
                    parts = (self._group(number, path, b"".join(map(bytes, parts))),)
                status = fill(self._create(place), parts)
                begin = end = 0
            lines[number].append(line(path, row(sha256, *status)))
        self._idle.append(decoder)
        return frames.read, ["\n".join(found) for found in lines]

    def _create(self, place: Place) -> int:
        """The descriptor of a new file in the staging directory."""
        _, _, _, number, path, mode = place
        at = self.descriptors[number]
        try:
            return os.open(path, _FLAGS, mode, dir_fd=at)
        except FileNotFoundError:
            self._make_parents(number, path.rpartition("/")[0])
            return os.open(path, _FLAGS, mode, dir_fd=at)

    def _make_parents(self, number: int, parents: str) -> None:
        try:
            os.mkdir(parents, 0o700, dir_fd=self.descriptors[number])
        except FileExistsError:
            pass  # another worker was faster
        except FileNotFoundError:
            os.makedirs(os.path.join(self.plan.targets[number].staging, parents), mode=0o700, exist_ok=True)

    def _group(self, number: int, path: str, data: bytes) -> bytes:
        directory = path.rpartition("/")[0]
        entry = self.trees[number].get(directory)
        if entry is None:
            raise IntegrityError(f"{path} is in no entry", name=path, reason="file_misplaced")
        present = [suffix[1:] for suffix in self.plan.members(entry)]
        try:
            return portable.local(data, f"{self.plan.targets[number].live.directory}/{directory}", present)
        except ValueError as error:
            raise IntegrityError(f"{path}: {error}", name=path, reason="file_damaged") from None


def fill(descriptor: int, parts: Iterable[bytes | memoryview]) -> tuple[int, int, int, int]:
    """Write *parts* to a new file and close it: (size, mtime_ns, inode, mode), as a table of hashes knows it."""
    try:
        for part in parts:
            written = os.write(descriptor, part)
            while written < len(part):
                written += os.write(descriptor, memoryview(part)[written:])
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    return status(found)


def _stream(frames: _Frames, layout: Layout, place: Place) -> Iterator[memoryview]:
    running = hashlib.sha256()
    for piece in layout.pieces(place[0], place[1]):
        part = frames.raw(piece.frame)[piece.start : piece.start + piece.length]
        running.update(part)
        yield part
    if running.hexdigest() != place[2]:
        raise _damaged(place)


def _damaged(place: Place) -> IntegrityError:
    return IntegrityError(f"{place[4]} is not what the manifest says", name=place[4], reason="file_damaged")


class _Decoder:
    """Decodes one frame at a time, each into the memory of the last one, up to *largest* bytes."""

    def __init__(self, largest: int) -> None:
        self.decode = decompressor()
        self.memory = memory(largest)

    def __call__(self, stored: memoryview, size: int) -> memoryview:
        return self.decode(stored, size, self.memory)


class _Frames:
    """The frames that a task needs, in order, read some MB at a time. `read`: stored bytes so far."""

    def __init__(self, backend: Backend, name: str, task: Task, decode: _Decoder) -> None:
        self.backend = backend
        self.name = name
        self.pack = task.pack
        self.stored = task.layout.stored
        last = task.places[-1]
        self.end = task.layout.frame_at(max(0, last[0] + last[1] - 1)) + 1
        self.decode = decode
        self.buffer = memoryview(b"")
        self.begin = 0
        self.read = 0

    def raw(self, number: int) -> memoryview:
        """The raw bytes of frame *number*, verified before it was decoded; good until the next one is."""
        stored = self._get(number)
        check_frame(stored, self.pack, number)
        return self.decode(stored, self.pack.frames[number][1])

    def _get(self, number: int) -> memoryview:
        begin, end = self.stored[number], self.stored[number + 1]
        if not self.begin <= begin or end > self.begin + len(self.buffer):
            last = number + 1
            while last < self.end and self.stored[last + 1] - begin <= _READ:
                last += 1
            self.buffer = memoryview(b"")
            try:
                data = self.backend.get(self.name, begin, self.stored[last] - begin)
            except NotInStore as error:
                raise IntegrityError(str(error), name=self.pack.name, reason="pack_missing") from None
            self.buffer, self.begin = memoryview(data), begin
            self.read += len(data)
        return self.buffer[begin - self.begin : end - self.begin]
