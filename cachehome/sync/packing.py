"""Packing: files of live directories, read once, checked, hashed, made portable, and compressed into new
packs.

Packs are made on local disk. Files that a warm start never reads go into a pack of their own. A file that is
broken, or that changed while it was read, is reported with what is wrong, and its entry is not published.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from cachehome.store.entries import Entry, File
from cachehome.store.manifest import Pack
from cachehome.store.pack import BLOCK, END, FRAME, compressor, memory, padding, tar_header
from cachehome.sync import parallel, portable
from cachehome.sync.scan import LocalFile
from cachehome.sync.source import Source

# A file to be packed: its path, the number of its source, the name of its entry, the file. A tuple, since there are
# thousands.
_Member = tuple[str, int, str, LocalFile]
# What a worker says of a file: problem (it is not in the frame, or must not be used), size, sha256, offset from the
# task's first byte.
_Found = tuple[str, int, str, int]
_Frame = tuple[bytes, int, str]  # what is stored, bytes before, sha256 of what is stored


class _Task(NamedTuple):
    """Files for one frame, or one file that is too long for it. *ir*: texts that a warm start never reads."""

    members: list[_Member]
    ir: bool
    long: bool


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
        self._files: list[dict[str, list[File]]] = [{} for _ in sources]
        """By source, the files of each entry that were packed."""
        self._problems: dict[tuple[int, str], str] = {}
        self._paths: list[str] = []

    def make(self, first: int) -> None:
        """Read, check, compress. *first*: what number its first pack is to have. Raises OSError, TimeoutError."""
        kinds = self._members()
        length = sum(member[3][1] for members in kinds for member in members)
        # What fits a frame or two is shared out all the same; by what it is, so that the same files give the same pack.
        most = min(FRAME, max(_SHARE, length // _SHARES))
        tasks = [list(_tasks(members, bool(ir), self.replaced, most)) for ir, members in enumerate(kinds)]
        worker = _Packer(self.sources, self.compression, self.replaced)
        results = parallel.each(worker, [task for some in tasks for task in some], deadline=self.deadline)
        for some in filter(None, tasks):
            self._pack(first + len(self.packs), some, islice(results, len(some)))

    def _members(self) -> tuple[list[_Member], list[_Member]]:
        """The files to be packed, ordered by extension, then path; those that a warm start never reads apart."""
        kinds: tuple[dict[str, list[_Member]], dict[str, list[_Member]]] = ({}, {})
        for number, source in enumerate(self.sources):
            ir = source.family.ir
            alike: dict[str, list[_Member]] = {}  # kernels have files of the same suffixes
            for name in sorted(self.wanted[number]):
                for file in source.local[name].files:
                    suffix = file[0]
                    members = alike.get(suffix)
                    if members is None:
                        is_ir = bool(ir) and suffix.endswith(ir)
                        members = kinds[is_ir].setdefault(suffix.rpartition(".")[2], [])
                        alike[suffix] = members = [] if is_ir and self.slim else members
                    members.append((name + suffix, number, name, file))
        first, second = ([m for key in sorted(kind) for m in sorted(kind[key])] for kind in kinds)
        return first, second

    def _pack(
        self, number: int, tasks: list[_Task], results: Iterator[tuple[list[_Frame], list[_Found]]]
    ) -> None:
        path = self._new_file()
        frames: list[tuple[int, int, str]] = []
        digest = hashlib.sha256()
        start = 0
        with open(path, "wb") as spool:  # buffered, since a write to a full disk may be short

            def add(stored: bytes, raw: int, sha256: str) -> None:
                spool.write(stored)
                digest.update(stored)
                frames.append((len(stored), raw, sha256))

            for task, (made, found) in zip(tasks, results, strict=True):
                self._note(task, found, number, start)
                for frame in made:
                    add(*frame)
                    start += frame[1]
            tail = compressor(self.compression)(END)
            add(tail, len(END), hashlib.sha256(tail).hexdigest())
        pack = Pack(digest.hexdigest(), sum(frame[0] for frame in frames), task.ir, 0, tuple(frames))
        self.packs.append((pack, path))

    def _note(self, task: _Task, found: list[_Found], pack: int, start: int) -> None:
        new, files = tuple.__new__, self._files
        for (path, number, name, file), (problem, size, sha256, offset) in zip(
            task.members, found, strict=True
        ):
            if problem:
                self._problems.setdefault((number, name), f"{os.path.basename(path)} is {problem}")
                continue
            size = file[1] if size == file[1] else size  # noqa: PLW2901 - one object less, of thousands
            stored = new(File, (file[0], size, file[4], sha256, pack, start + offset))
            if name in files[number]:
                files[number][name].append(stored)
            else:
                files[number][name] = [stored]

    def _new_file(self) -> str:
        source = next(s for s, names in zip(self.sources, self.wanted, strict=True) if names)
        source.live.make()
        directory = source.live.staging()
        self._paths.append(directory)
        return os.path.join(directory, _NAME)

    def files(self) -> Iterator[tuple[Pack, str]]:
        """The packs that hold a sound entry, with the path of each."""
        yield from self.packs

    def entry(self, number: int, name: str) -> tuple[str, Entry | None]:
        """(what is wrong, None) or ("", the entry) for a name that was to be packed."""
        problem, files = self._problems.get((number, name), ""), self._files[number].get(name, [])
        if problem or not files:
            return problem or "nothing of it is to be published", None
        family = self.sources[number].family
        has_ir = any(family.ir and file.suffix.endswith(family.ir) for file in files)
        slim = bool(family.ir) and not has_ir and any(portable.is_group(name + file.suffix) for file in files)
        return "", Entry(family.name, name, 0, slim, tuple(sorted(files)))

    def hashes(self, number: int) -> dict[str, dict[str, str]]:
        """Those of a source's files that were packed, by entry and suffix."""
        packed = self._files[number].items()
        return {name: {file.suffix: file.sha256 for file in files} for name, files in packed}

    def remove(self) -> None:
        """Remove the files on local disk. Never raises."""
        for path in self._paths:
            with contextlib.suppress(OSError):  # the next restore tidies up
                os.unlink(os.path.join(path, _NAME))
            with contextlib.suppress(OSError):
                os.rmdir(path)


def _tasks(
    members: list[_Member], ir: bool, replaced: Mapping[tuple[int, str], bytes], most: int
) -> Iterator[_Task]:
    """Cut *members* where a frame holds as much as it is to: *most* bytes, or one file."""
    frame: list[_Member] = []
    size = 0
    for member in members:
        instead = len(replaced.get((member[1], member[0]), b"")) if replaced else 0
        length = instead or member[3][1]
        if frame and size + length > most:
            yield _Task(frame, ir, False)
            frame, size = [], 0
        if length > FRAME and not instead:
            yield _Task([member], ir, True)
            continue
        frame.append(member)
        size += length + BLOCK
    if frame:
        yield _Task(frame, ir, False)


# Room for the header and the padding of a file, and some for a group that is written anew. A name that is longer than a
# header has room for takes several.
_AROUND = 3 * BLOCK
_AROUND_LONG = 16 * BLOCK
_SHORT = 80
_NAME = "pack.tar.zst"  # of each new pack, in a directory of its own
_ENOUGH = 4 * FRAME  # for most frames
_SHARE = 1 << 20  # raw bytes of a frame that is worth being made beside another one
_SHARES = 4


class _Packer:
    """Makes frames: reads files, checks and hashes them, compresses."""

    def __init__(
        self, sources: list[Source], compression: str, replaced: Mapping[tuple[int, str], bytes]
    ) -> None:
        self.sources = sources
        self.compression = compression
        self.replaced = replaced
        self.roots = [f"{source.live.directory}/" for source in sources]
        self.prefixes = [f"{source.family.name}/" for source in sources]
        # A compressor and a frame's memory are dear to make, and each serves one thread at a time.
        self._idle: list[tuple[dict[bool, Callable[[memoryview], bytes]], memoryview]] = []

    def __call__(self, task: _Task) -> tuple[list[_Frame], list[_Found]]:
        """(frames, what there is to say of each file)."""
        compressors, view = self._idle.pop() if self._idle else ({}, memory(_ENOUGH))
        if task.ir not in compressors:
            compressors[task.ir] = compressor(self.compression, texts=task.ir)
        compress = compressors[task.ir]
        needed = sum(map(self._room, task.members))
        if needed > len(view):
            view = memory(needed)
        if task.long:
            made, found = self._long(task.members[0], view, compress)
        else:
            end, found = self._gather(task, view)
            made = [_stored(view[:end], compress)] if end else []
        self._idle.append((compressors, view))
        return made, found

    def _room(self, member: _Member) -> int:
        """At most so many bytes does a file take in a frame."""
        path, number, _, file = member
        length = min(file.size, FRAME)
        if self.replaced:
            length = max(length, len(self.replaced.get((number, path), b"")))
        return length + (_AROUND if len(path) < _SHORT and path.isascii() else _AROUND_LONG)

    def _gather(self, task: _Task, view: memoryview) -> tuple[int, list[_Found]]:
        """Put files into *view*, one after the other: (the bytes that they took, what there is to say of each)."""
        found: list[_Found] = []
        end = 0
        for path, number, name, file in task.members:
            begin = end + BLOCK
            data: bytes | memoryview = self.replaced.get((number, path), b"") if self.replaced else b""
            try:
                if not data:
                    length = self._read(number, path, file, 0, view[begin : begin + file.size + 1])
                    data = view[begin : begin + length]
                if task.ir:
                    problem = "" if data else "empty"
                elif portable.is_misplaced(name, file.suffix):
                    problem = "a group that lies in no kernel's own directory"
                elif portable.is_group(path):
                    present = {other.suffix[1:] for other in self.sources[number].local[name].files}
                    data, problem = portable.packed(data, present)
                else:
                    problem = portable.check(path, data) or self._being_built(number, name, file)
            except (OSError, ValueError) as error:
                problem = str(error)
            if problem:
                found.append((problem, 0, "", 0))
                continue
            size, digest = len(data), hashlib.sha256(data).hexdigest()  # before it is moved
            header = tar_header(self.prefixes[number] + path, size, file.mode)
            if len(header) != BLOCK or not isinstance(data, memoryview):
                begin = end + len(header)
                view[begin : begin + size] = data
            view[end:begin] = header
            end = begin + size
            found.append(("", size, digest, begin))
            tail = padding(size)
            view[end : end + len(tail)] = tail
            end += len(tail)
        return end, found

    def _long(
        self, member: _Member, view: memoryview, compress: Callable[[memoryview], bytes]
    ) -> tuple[list[_Frame], list[_Found]]:
        """Make the frames of a file that is too long for one."""
        path, number, name, file = member
        made: list[_Frame] = []
        problem, digest = "", hashlib.sha256()
        header = tar_header(self.prefixes[number] + path, file.size, file.mode)
        view[: len(header)] = header
        begin = len(header)
        for start in range(0, file.size, FRAME):
            end = begin + min(FRAME, file.size - start)
            try:
                self._read(number, path, file, start, view[begin:end])
                if not start:
                    problem = portable.check_local(self.roots[number] + path, path)
            except (OSError, ValueError) as error:
                view[begin:end] = bytes(end - begin)  # the header has promised so many bytes
                problem = problem or str(error)
            digest.update(view[begin:end])
            tail = padding(file.size) if start + FRAME >= file.size else b""
            view[end : end + len(tail)] = tail
            made.append(_stored(view[: end + len(tail)], compress))
            begin = 0
        problem = problem or self._being_built(number, name, file)
        return made, [(problem, file.size, digest.hexdigest(), len(header))]

    def _read(self, number: int, path: str, file: LocalFile, start: int, into: memoryview) -> int:
        """Read what fits *into*; the bytes read. Raises ValueError if the file is not what the scan saw."""
        descriptor = portable.no_wait(self.roots[number] + path, os.O_RDONLY)
        try:
            length = os.preadv(descriptor, [into], start)
            now = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        _, size, mtime_ns, inode, _ = file
        changed = now.st_mtime_ns != mtime_ns or now.st_size != size or now.st_ino != inode
        if changed or length != min(len(into), size - start):
            raise ValueError("changing")
        return length

    def _being_built(self, number: int, name: str, file: LocalFile) -> str:
        """What is wrong where the lock of a C++ kernel is held: its compiler writes the library in place."""
        if not file.suffix.endswith(".so"):
            return ""
        import fcntl

        cache, stem = os.path.dirname(os.path.dirname(name)), os.path.basename(name)
        lock = os.path.join(self.roots[number], cache, "locks", f"{stem}.lock")
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return ""
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return "being built"
        except OSError:
            return ""
        finally:
            os.close(descriptor)
        return ""


def _stored(raw: memoryview, compress: Callable[[memoryview], bytes]) -> _Frame:
    stored = compress(raw)
    return stored, len(raw), hashlib.sha256(stored).hexdigest()
