"""Compaction: the live entries of a build in as few packs as it has origins, and less of them where it is too large.

Two packs an origin at most: one, and one of files that a warm start never reads. What is denied is left behind. To get
below a bound, entries go, the ones that no restore has used for longest first: of the profile that was idle longest,
then what was introduced first. They are denied for a while, so that the live directories which still hold them do not
bring them back.

A compacted generation is a commit like any other. The old packs go when retention has removed the generations that name
them.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cachehome.errors import NotInStore
from cachehome.store import marks
from cachehome.store.entries import Entry, File
from cachehome.store.manifest import Manifest, Pack
from cachehome.store.merge import COMPACTED, Key, Writer, digest
from cachehome.store.pack import (
    END,
    FRAME,
    Layout,
    check_frame,
    compressor,
    decompressor,
    padding,
    tar_header,
)
from cachehome.store.reader import Head
from cachehome.store.store import Store

_FILL = 0.8  # of the bound: publishers need room, too
_FRAMES = 16  # decoded frames kept while packs are read

Place = tuple[str, int, int]  # pack, offset, size


@dataclass(frozen=True, slots=True)
class Compaction:
    """What was done, or is to be. *bytes*: of packs that live entries are in; *dropped*: entries that go."""

    build: str
    profiles: tuple[str, ...] = ()
    packs: int = 0
    bytes: int = 0
    dropped: frozenset[marks.Row] = frozenset()
    new_packs: int = 0
    new_bytes: int = 0


@dataclass(slots=True)
class _Work:
    heads: dict[str, Manifest]
    dropped: frozenset[marks.Row]
    packs: dict[str, Pack]


def survey(store: Store, build: str, limit: int = 0) -> Compaction | None:
    """What `compact` would do, None if there is nothing to gain. *limit*: bytes of the build, 0: no bound."""
    work = _survey(store, build, limit)
    if work is None:
        return None
    return Compaction(
        build,
        tuple(sorted(work.heads)),
        len(work.packs),
        sum(pack.size for pack in work.packs.values()),
        work.dropped,
    )


def _survey(store: Store, build: str, limit: int) -> _Work | None:
    heads = {}
    for profile in store.profiles(build):
        found = store.newest(build, profile)
        if found is not None:
            heads[profile] = found.manifest
    packs = {pack.sha256: pack for manifest in heads.values() for pack in manifest.packs}
    if store.lost(build, list(packs.values())):
        return None  # the next publish mends the line first
    denied = store.denied(build).rows
    dropped = frozenset(_rows(heads) & denied)
    if limit:
        dropped |= _too_much(store, build, heads, dropped, limit)
    groups = {(_origin(m, pack), pack.ir) for m in heads.values() for pack in m.packs}
    if not dropped and len(packs) <= len(groups):
        return None
    return _Work(heads, dropped, packs)


def _rows(heads: dict[str, Manifest]) -> set[marks.Row]:
    return {(*e.key, digest(e, m.packs)) for m in heads.values() for e in m.entries.values()}


def _too_much(
    store: Store, build: str, heads: dict[str, Manifest], dropped: frozenset[marks.Row], limit: int
) -> frozenset[marks.Row]:
    """The entries that must go for the others to fit: those that were used longest ago first."""
    size: dict[marks.Row, float] = {}
    order: dict[marks.Row, tuple[float, int]] = {}
    for profile, manifest in heads.items():
        idle = 0.0
        with contextlib.suppress(NotInStore):
            idle = store.backend.age(f"{build}/profiles/{profile}/used")
        ratio = [pack.size / max(1, sum(frame[1] for frame in pack.frames)) for pack in manifest.packs]
        for entry in manifest.entries.values():
            row = (*entry.key, digest(entry, manifest.packs))
            if row in dropped:
                continue
            size[row] = sum(file.size * ratio[file.pack] for file in entry.files)
            # Used when any profile that holds it was: the least idle one counts.
            order[row] = min(order.get(row, (idle, -entry.since)), (idle, -entry.since))
    total = sum(size.values())
    if max(total, store.usage(build)[1]) <= limit:
        return frozenset()
    out = set()
    for row in sorted(size, key=lambda row: (order[row], row), reverse=True):
        if total <= _FILL * limit:
            break
        out.add(row)
        total -= size[row]
    return frozenset(out)


def _origin(manifest: Manifest, pack: Pack) -> str:
    """What an origin is called here: where its files lay. Who published them does not make another one."""
    origin = {key: value for key, value in manifest.origins[pack.origin].items() if key != "publisher"}
    return repr(sorted(origin.items(), key=repr))


def compact(
    store: Store,
    build: str,
    *,
    limit: int = 0,
    deny_seconds: float = 0.0,
    compression: str = "zstd:2",
    deadline: float,
    publisher: dict[str, Any] | None = None,
) -> Compaction | None:
    """Do it; None if there is nothing to gain. *deny_seconds*: how long dropped entries are not to come back."""
    work = _survey(store, build, limit)
    if work is None:
        return None
    evicted = work.dropped - store.denied(build).rows
    if evicted and deny_seconds:
        now = time.time()
        label = f"{marks.EVICTED}-{int(now)}-{uuid.uuid4().hex[:8]}"
        store.deny(build, marks.Denied(label, marks.EVICTED, evicted, now, now + deny_seconds))
    with tempfile.TemporaryDirectory(prefix="cachehome-compact-") as directory:
        moved, made = _repack(store, build, work, directory, compression)
        stored = store.add_packs(build, made)
        names = {old.sha256: pack for (old, _), (pack, _) in zip(made, stored, strict=True)}
        moved = {key: (names[pack.sha256], at, origin) for key, (pack, at, origin) in moved.items()}
        sources = {pack.sha256: path for pack, path in stored}
        for profile in work.heads:
            propose = _Compacted(work.dropped, moved, dict(publisher or {}) | {COMPACTED: True})
            with contextlib.suppress(NotInStore):  # a profile that has gone meanwhile
                store.advance(build, profile, propose, deadline=deadline, sources=sources)
    return Compaction(
        build,
        tuple(sorted(work.heads)),
        len(work.packs),
        sum(pack.size for pack in work.packs.values()),
        work.dropped,
        len(made),
        sum(pack.size for pack, _ in made),
    )


class _Compacted:
    """Proposes a generation in which what was repacked lies in the new packs; what came since stays where it is."""

    def __init__(
        self,
        dropped: frozenset[marks.Row],
        moved: dict[tuple[Place, str], tuple[Pack, int, dict[str, Any]]],
        publisher: dict[str, Any],
    ) -> None:
        self.dropped = dropped
        self.moved = moved
        self.publisher = publisher

    def __call__(self, head: Head, number: int, lost: frozenset[str]) -> Manifest | None:
        if head.generation is None:
            return None
        base = head.generation.manifest
        writer = Writer()
        changed = False
        for key, entry in base.entries.items():
            if (*key, digest(entry, base.packs)) in self.dropped or any(
                base.packs[file.pack].sha256 in lost for file in entry.files
            ):
                changed = True
            else:
                changed |= self._take(writer, key, entry, base)
        return writer.manifest(number, self.publisher) if changed else None

    def _take(self, writer: Writer, key: Key, entry: Entry, base: Manifest) -> bool:
        """Add *entry*; whether it has moved."""
        places = [
            self.moved.get((_place(base, file), _origin(base, base.packs[file.pack]))) for file in entry.files
        ]
        if any(place is None for place in places):
            writer.take({key: entry}, base.packs, base.origins)
            return False
        packs: list[Pack] = []
        origins: list[dict[str, Any]] = []
        files = []
        for file, place in zip(entry.files, places, strict=True):
            assert place is not None
            pack, offset, origin = place
            known = [p.sha256 for p in packs]
            if pack.sha256 not in known:
                packs.append(pack._replace(origin=len(origins)))
                origins.append(origin)
                known.append(pack.sha256)
            files.append(file._replace(pack=known.index(pack.sha256), offset=offset))
        writer.take({key: entry._replace(files=tuple(files))}, tuple(packs), tuple(origins))
        return True


def _place(manifest: Manifest, file: File) -> Place:
    return manifest.packs[file.pack].sha256, file.offset, file.size


def _repack(
    store: Store, build: str, work: _Work, directory: str, compression: str
) -> tuple[dict[tuple[Place, str], tuple[Pack, int, dict[str, Any]]], list[tuple[Pack, str]]]:
    """Write the new packs; (where each file went, [(pack, path)])."""
    groups: dict[tuple[str, bool], dict[Place, tuple[str, str, File]]] = {}
    origins: dict[str, dict[str, Any]] = {}
    for manifest in work.heads.values():
        for entry in manifest.entries.values():
            if (*entry.key, digest(entry, manifest.packs)) in work.dropped:
                continue
            for file in entry.files:
                pack = manifest.packs[file.pack]
                origin = _origin(manifest, pack)
                origins.setdefault(origin, manifest.origins[pack.origin])
                path = f"{entry.family}/{entry.name}{file.suffix}"
                extension = file.suffix.rpartition(".")[2]
                groups.setdefault((origin, pack.ir), {})[_place(manifest, file)] = (extension, path, file)
    source = _Source(store, build, work.packs)
    moved: dict[tuple[Place, str], tuple[Pack, int, dict[str, Any]]] = {}
    made = []
    for number, ((origin, ir), found) in enumerate(sorted(groups.items())):
        path = os.path.join(directory, f"{number}.tar.zst")
        ordered = sorted(found.items(), key=lambda item: (item[1][:2], item[0]))
        pack, offsets = _write(path, source, [(place, *what[1:]) for place, what in ordered], ir, compression)
        made.append((pack, path))
        for (place, _), offset in zip(ordered, offsets, strict=True):
            moved[place, origin] = (pack, offset, origins[origin])
    return moved, made


def _write(
    path: str, source: _Source, files: list[tuple[Place, str, File]], ir: bool, compression: str
) -> tuple[Pack, list[int]]:
    """Write one pack; it, and where each file lies in its raw stream. The same file twice is stored once."""
    compress = compressor(compression, texts=ir)
    frames: list[tuple[int, int, str]] = []
    whole = hashlib.sha256()
    offsets: list[int] = []
    stored_at: dict[tuple[str, str], int] = {}
    buffer = bytearray()
    position = 0
    with open(path, "wb") as out:

        def flush() -> None:
            nonlocal buffer, position
            if buffer:
                stored = compress(bytes(buffer))
                out.write(stored)
                whole.update(stored)
                frames.append((len(stored), len(buffer), hashlib.sha256(stored).hexdigest()))
                position += len(buffer)
                buffer = bytearray()

        for place, name, file in files:
            if (name, file.sha256) in stored_at:
                offsets.append(stored_at[name, file.sha256])
                continue
            if len(buffer) + file.size > FRAME:
                flush()
            buffer += tar_header(name, file.size, file.mode)
            offsets.append(position + len(buffer))
            stored_at[name, file.sha256] = offsets[-1]
            running = hashlib.sha256()
            for part in source.read(place):
                running.update(part)
                buffer += part
                if len(buffer) >= FRAME:
                    flush()
            if running.hexdigest() != file.sha256:
                raise source.damaged(name)
            buffer += padding(file.size)
        flush()
        buffer += END
        flush()
    return Pack(whole.hexdigest(), sum(frame[0] for frame in frames), ir, 0, tuple(frames)), offsets


class _Source:
    """Reads files out of packs, with the frames decoded last at hand."""

    def __init__(self, store: Store, build: str, packs: dict[str, Pack]) -> None:
        self.store = store
        self.build = build
        self.packs = packs
        self.layouts = {sha256: Layout(pack) for sha256, pack in packs.items()}
        self.decode = decompressor()
        self.frames: OrderedDict[tuple[str, int], memoryview] = OrderedDict()

    def read(self, place: Place) -> Iterator[memoryview]:
        sha256, offset, size = place
        for piece in self.layouts[sha256].pieces(offset, size):
            raw = self._frame(sha256, piece.frame)
            yield raw[piece.start : piece.start + piece.length]

    def _frame(self, sha256: str, number: int) -> memoryview:
        if (sha256, number) not in self.frames:
            pack, layout = self.packs[sha256], self.layouts[sha256]
            size, raw, _ = pack.frames[number]
            stored = self.store.backend.get(f"{self.build}/{pack.name}", layout.stored[number], size)
            check_frame(stored, pack, number)
            self.frames[sha256, number] = self.decode(stored, raw)
            if len(self.frames) > _FRAMES:
                self.frames.popitem(last=False)
        self.frames.move_to_end((sha256, number))
        return self.frames[sha256, number]

    def damaged(self, name: str) -> Exception:
        from cachehome.errors import IntegrityError

        return IntegrityError(f"{name} is not what the manifest says", name=name, reason="file_damaged")
