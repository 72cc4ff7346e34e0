"""Packing: files of live directories, read once, checked, hashed, made portable, and compressed into new
packs.

Packs are made on local disk. Files that a warm start never reads go into a pack of their own. A file that is
broken, or that changed while it was read, is reported with what is wrong, and its entry is not published.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from cachehome.store.manifest import Entry, File, Pack
from cachehome.store.pack import BLOCK, END, FRAME, compressor, member, padding
from cachehome.sync import parallel, portable
from cachehome.sync.scan import LocalFile
from cachehome.sync.source import Source
from cachehome.sync.table import Table, row


class _Chunk(NamedTuple):
    """A file, or a part of a long one, in a frame to be made."""

    source: int
    entry: str
    file: LocalFile
    start: int
    length: int
    first: bool
    last: bool


# What a worker says of a file: number of its source, entry, suffix, problem (it is not in the frame, or must not be
# used), size, sha256, offset from the task's first byte.
_Found = tuple[int, str, str, str, int, str, int]
# The same in the parent, with what an offset counts from, and the number of the pack.
_Place = tuple[_Found, int, int]


class Spool:
    """New packs, made on local disk. `packs`: (pack, path of its file) once made."""

    def __init__(
        self,
        sources: list[Source],
        wanted: list[list[str]],
        compression: str,
        slim: bool,
        deadline: float,
        replaced: Mapping[tuple[int, str], bytes] | None = None,
    ) -> None:
        self.replaced = replaced or {}  # (number of the source, path) -> bytes instead of the file's
        self.sources = sources
        self.wanted = wanted
        self.compression = compression
        self.slim = slim
        self.deadline = deadline
        self.packs: list[tuple[Pack, str]] = []
        self._places: dict[tuple[int, str], list[_Place]] = {}
        self._paths: list[str] = []

    def make(self) -> None:
        """Read, check, compress. Raises OSError, TimeoutError."""
        plain: list[tuple[str, str, int, str, LocalFile]] = []
        ir: list[tuple[str, str, int, str, LocalFile]] = []
        for number, source in enumerate(self.sources):
            for name in self.wanted[number]:
                for file in source.local[name].files:
                    is_ir = bool(source.family.ir) and file.suffix.endswith(source.family.ir)
                    if is_ir and self.slim:
                        continue
                    extension = file.suffix.rpartition(".")[2]
                    (ir if is_ir else plain).append((extension, name + file.suffix, number, name, file))
        kinds = [
            (is_ir, list(_frames(sorted(files)))) for is_ir, files in ((False, plain), (True, ir)) if files
        ]
        tasks = [task for _, some in kinds for task in some]
        worker = _Packer(self.sources, self.compression, self.replaced)
        results = parallel.each(worker, tasks, deadline=self.deadline)
        for is_ir, some in kinds:
            self._pack(is_ir, islice(results, len(some)))

    def _pack(self, ir: bool, results: Iterator[tuple[list[tuple[bytes, int, str]], list[_Found]]]) -> None:
        path = self._new_file()
        frames: list[tuple[int, int, str]] = []
        digest = hashlib.sha256()
        place = len(self.packs)
        start = 0
        with open(path, "wb", buffering=1 << 20) as spool:

            def add(stored: bytes, raw: int, sha256: str) -> None:
                spool.write(stored)
                digest.update(stored)
                frames.append((len(stored), raw, sha256))

            for made, found in results:
                for one in found:
                    self._places.setdefault(one[:2], []).append((one, start, place))
                for stored, raw, sha256 in made:
                    add(stored, raw, sha256)
                    start += raw
            tail = compressor(self.compression)(END)
            add(tail, len(END), hashlib.sha256(tail).hexdigest())
        pack = Pack(digest.hexdigest(), sum(frame[0] for frame in frames), ir, 0, tuple(frames))
        self.packs.append((pack, path))

    def _new_file(self) -> str:
        source = next(s for s, names in zip(self.sources, self.wanted, strict=True) if names)
        source.live.make()
        directory = source.live.staging()
        self._paths.append(directory)
        return os.path.join(directory, "pack.tar.zst")

    def files(self) -> Iterator[tuple[Pack, str]]:
        """The packs that hold a sound entry, with the path of each."""
        yield from self.packs

    def entry(self, number: int, name: str) -> tuple[str, Entry | None]:
        """(what is wrong, None) or ("", the entry) for a name that was to be packed."""
        source = self.sources[number]
        local = source.local[name]
        found = self._places.get((number, name), [])
        for (_, _, suffix, problem, *_), _, _ in found:
            if problem:
                return f"{os.path.basename(name + suffix)} is {problem}", None
        modes = {file.suffix: file.mode for file in local.files}
        files = tuple(
            sorted(
                File(suffix, size, modes[suffix], sha256, pack, start + offset)
                for (_, _, suffix, _, size, sha256, offset), start, pack in found
            )
        )
        ir = source.family.ir
        has_ir = any(ir and file.suffix.endswith(ir) for file in files)
        slim = bool(ir) and not has_ir and any(portable.is_group(name + file.suffix) for file in files)
        return "", Entry(source.family.name, name, 0, slim, files)

    def rows(self, number: int) -> Table:
        """Rows of the table for what was packed of source *number*."""
        source = self.sources[number]
        rows = {}
        for (of, name), found in self._places.items():
            if of != number:
                continue
            by_suffix = {file.suffix: file for file in source.local[name].files}
            for (_, _, suffix, problem, _, sha256, _), _, _ in found:
                if not problem:
                    rows[name + suffix] = row(sha256, *by_suffix[suffix][1:])
        return rows

    def remove(self) -> None:
        """Remove the files on local disk. Never raises."""
        import shutil

        for path in self._paths:
            shutil.rmtree(path, ignore_errors=True)


def _frames(files: list[tuple[str, str, int, str, LocalFile]]) -> Iterator[list[list[_Chunk]]]:
    """Tasks: each a list of frames to be made, each a list of chunks. A long file is a task of its own."""
    frame: list[_Chunk] = []
    size = 0
    for _, _, source, name, file in files:
        if file.size > FRAME:
            if frame:
                yield [frame]
                frame, size = [], 0
            cuts = range(0, file.size, FRAME)
            yield [
                [_Chunk(source, name, file, at, min(FRAME, file.size - at), at == 0, at + FRAME >= file.size)]
                for at in cuts
            ]
            continue
        if frame and size + file.size > FRAME:
            yield [frame]
            frame, size = [], 0
        frame.append(_Chunk(source, name, file, 0, file.size, True, True))
        size += file.size + 512
    if frame:
        yield [frame]


# Room for the header and the padding of a file, and some for a group that is written anew. A name that is longer than a
# header has room for takes several.
_AROUND = 3 * BLOCK
_AROUND_LONG = 16 * BLOCK
_SHORT = 80
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


class _Packer:
    """Makes frames: reads files, checks and hashes them, compresses."""

    def __init__(
        self, sources: list[Source], compression: str, replaced: Mapping[tuple[int, str], bytes]
    ) -> None:
        self.sources = sources
        self.compression = compression
        self.replaced = replaced
        # A compressor and a frame's memory are dear to make, and each serves one thread at a time.
        self._idle: list[tuple[Callable[[memoryview], bytes], bytearray]] = []

    def __call__(self, task: list[list[_Chunk]]) -> tuple[list[tuple[bytes, int, str]], list[_Found]]:
        """(frames, what there is to say of each file)."""
        compress, memory = self._idle.pop() if self._idle else (compressor(self.compression), bytearray())
        made: list[tuple[bytes, int, str]] = []
        found: list[_Found] = []
        start = 0
        running: Any = None
        for frame in task:
            needed = sum(map(self._room, frame))
            if needed > len(memory):
                memory = bytearray(needed)
            view = memoryview(memory)
            end = 0
            for chunk in frame:
                if chunk.first and chunk.last:
                    end += self._whole(chunk, start, view[end:], end, found)
                else:
                    running, length = self._part(chunk, start, view, found, running)
                    end += length
            if end:
                stored = compress(view[:end])
                made.append((stored, end, hashlib.sha256(stored).hexdigest()))
            start += end
        self._idle.append((compress, memory))
        return made, found

    def _room(self, chunk: _Chunk) -> int:
        """At most so many bytes does a chunk take."""
        path = chunk.entry + chunk.file.suffix
        instead = self.replaced.get((chunk.source, path), b"")
        around = _AROUND if len(path) < _SHORT and path.isascii() else _AROUND_LONG
        return max(chunk.length, len(instead)) + around

    def _whole(self, chunk: _Chunk, start: int, view: memoryview, at: int, found: list[_Found]) -> int:
        """Put a file that fits a frame at the beginning of *view*; the bytes that it took."""
        number, entry, file = chunk[:3]
        source = self.sources[number]
        path = entry + file.suffix
        data: bytes | memoryview = self.replaced.get((number, path), b"")
        try:
            if not data:
                length = self._read(source, path, file, 0, view[BLOCK : BLOCK + file.size + 1])
                data = view[BLOCK : BLOCK + length]
            if portable.is_group(path):
                present = {other.suffix[1:] for other in source.local[entry].files}
                data, problem = portable.packed(data, present)
            else:
                problem = portable.check(path, data)
            if not problem and self._being_built(chunk):
                problem = "being built"
        except (OSError, ValueError) as error:
            problem = str(error)
        if problem:
            found.append((number, entry, file.suffix, problem, 0, "", 0))
            return 0
        size = len(data)
        digest = hashlib.sha256(data).hexdigest()
        header = member(f"{source.family.name}/{path}", size, file.mode)
        begin = len(header)
        if begin != BLOCK or not isinstance(data, memoryview):
            view[begin : begin + size] = data
        view[:begin] = header
        end = begin + size
        tail = padding(size)
        view[end : end + len(tail)] = tail
        found.append((number, entry, file.suffix, "", size, digest, start + at + begin))
        return end + len(tail)

    def _part(
        self, chunk: _Chunk, start: int, view: memoryview, found: list[_Found], running: Any
    ) -> tuple[Any, int]:
        """Put a piece of a long file at the beginning of *view*: (hash so far, the bytes that it took)."""
        source, file = self.sources[chunk.source], chunk.file
        path = chunk.entry + file.suffix
        header = b""
        if chunk.first:
            header = member(f"{source.family.name}/{path}", file.size, file.mode)
            running = [hashlib.sha256(), start + len(header), ""]
        begin = len(header)
        end = begin + chunk.length
        view[:begin] = header
        try:
            self._read(source, path, file, chunk.start, view[begin:end])
            if chunk.first:
                running[2] = running[2] or portable.check_local(
                    os.path.join(source.live.directory, path), path
                )
        except (OSError, ValueError) as error:
            view[begin:end] = bytes(chunk.length)  # the header has promised so many bytes
            running[2] = running[2] or str(error)
        running[0].update(view[begin:end])
        tail = padding(file.size) if chunk.last else b""
        view[end : end + len(tail)] = tail
        if chunk.last:
            problem = running[2] or ("being built" if self._being_built(chunk) else "")
            at = (file.size, running[0].hexdigest(), running[1])
            found.append((chunk.source, chunk.entry, file.suffix, problem, *at))
        return running, end + len(tail)

    def _read(self, source: Source, path: str, file: LocalFile, start: int, into: memoryview) -> int:
        """Read what fits *into*; the bytes read. Raises ValueError if the file is not what the scan saw."""
        descriptor = os.open(f"{source.live.directory}/{path}", _FLAGS)
        try:
            length = os.preadv(descriptor, [into], start)
            now = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        changed = (now.st_size, now.st_mtime_ns, now.st_ino) != (file.size, file.mtime_ns, file.inode)
        if changed or length != min(len(into), file.size - start):
            raise ValueError("changing")
        return length

    def _being_built(self, chunk: _Chunk) -> bool:
        """Whether the lock of a C++ kernel is held: its compiler writes the library in place."""
        if not chunk.file.suffix.endswith(".so"):
            return False
        import fcntl

        cache, stem = os.path.dirname(os.path.dirname(chunk.entry)), os.path.basename(chunk.entry)
        lock = os.path.join(self.sources[chunk.source].live.directory, cache, "locks", f"{stem}.lock")
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            return False
        finally:
            os.close(descriptor)
        return False
