"""Publish: from the live directories to a new generation, only what the newest one lacks.

    scan      entries of each family, by stat alone
    compare   with the newest generation: same name, same bytes: nothing to do; other bytes: the first one wins and it is
              counted; growing entries: the last one wins
    pack      new files, read once: checked, hashed, made portable, compressed in frames by all cores; what a warm start
              never reads goes into a pack of its own
    upload    packs, then identities
    commit    the next generation (store.py)

An entry with a file that is broken, or that changed while it was read, is left for the next time.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from cachehome.errors import CommitConflict, ConfigError, StoreError, StoreUnavailable
from cachehome.families import Family
from cachehome.store.manifest import Entry, File, Manifest, Pack
from cachehome.store.pack import END, FRAME, compressor, member, padding
from cachehome.store.store import Addition, Generation, Store
from cachehome.sync import parallel, portable
from cachehome.sync.live import Live, Stamp, known, row, trouble
from cachehome.sync.record import Phases, Record
from cachehome.sync.restore import host_tag, other_build
from cachehome.sync.scan import LocalEntry, LocalFile, scan

if TYPE_CHECKING:
    from cachehome.identity import Identity
    from cachehome.settings import Settings


@dataclass(slots=True)
class _Source:
    """One family's live directory during a publish."""

    family: Family
    live: Live
    stamp: Stamp | None
    local: dict[str, LocalEntry] = field(default_factory=dict)
    table: dict[str, list[Any]] = field(default_factory=dict)


class _Chunk(NamedTuple):
    """A file, or a part of a long one, in a frame to be made."""

    source: int
    entry: str
    file: LocalFile
    start: int
    length: int
    first: bool
    last: bool


class Found(NamedTuple):
    """What a worker says of a file that it put into a frame. `problem`: it is not in the frame, or must not be used."""

    source: int
    entry: str
    suffix: str
    problem: str
    size: int
    sha256: str
    offset: int


def publish(
    settings: Settings,
    identity: Identity,
    directories: Mapping[str, str] | None = None,
    *,
    adopt: bool = False,
) -> Record:
    """Publish what the live *directories* (family name -> path; None: those in effect) hold and the store lacks.

    Never raises for what a store or a file system can do; the record says it. *adopt*: directories that were never
    stamped hold this build's work and no other's. Raises `ConfigError` for settings that can't be meant.
    """
    work = _Publish(settings, identity, directories)
    try:
        return work.run(adopt)
    except ConfigError:
        raise
    except CommitConflict as error:
        return work.record("unavailable", "commit_conflict", message=str(error))
    except StoreError as error:
        outcome = "unavailable" if isinstance(error, StoreUnavailable) else "rejected"
        reason = error.fields.get("reason") or ("store_unavailable" if outcome == "unavailable" else "store_error")
        return work.record(outcome, str(reason), message=str(error))
    except TimeoutError as error:
        return work.record("unavailable", "store_timeout", message=str(error))
    except OSError as error:
        return work.record("unavailable", "local_error", message=f"{error.filename or ''}: {error.strerror or error}")


class _Publish:
    def __init__(self, settings: Settings, identity: Identity, directories: Mapping[str, str] | None) -> None:
        from cachehome import families, home

        self.settings = settings
        self.identity = identity
        self.phases = Phases()
        catalogue = families.catalogue(plugins=True)
        if directories is None:
            directories = home.directories(os.environ)
        self.sources = [
            _Source(catalogue[name], live, live.stamp())
            for name, live in ((name, Live(path)) for name, path in directories.items() if name in catalogue)
            if os.path.isdir(live.directory)
        ]
        self.details: dict[str, Any] = {"directories": {s.family.name: s.live.directory for s in self.sources}}

    def record(self, outcome: str, reason: str, **details: Any) -> Record:
        return Record(
            "publish",
            outcome,
            reason,
            self.identity.build_key,
            self.identity.profile_key,
            seconds=self.phases.seconds,
            details=self.details | details,
        )

    def run(self, adopt: bool) -> Record:
        settings = self.settings
        if not settings.store:
            return self.record("disabled", "no_store", message="no store is set (CACHEHOME_STORE)")
        if not settings.publish:
            return self.record("disabled", "publish_off", message="publish = off")
        if not settings.max_storage_bytes:
            return self.record("disabled", "storage_limit", message="max_storage_bytes = 0")
        deadline = time.monotonic() + settings.publish_budget_seconds
        for source in self.sources:
            problem = trouble(source.live.directory)
            if problem:
                return self.record("rejected", "live_directory_untrusted", message=problem)
            if source.stamp and source.stamp.build != self.identity.build_key:
                return self.record("rejected", "other_build", message=other_build(source.live, source.stamp))
        with self.phases("scan"):
            unclaimed = self._scan(adopt)
        entries = sum(len(source.local) for source in self.sources)
        if not entries and unclaimed:
            return self.record(
                "miss",
                "never_stamped",
                unclaimed=unclaimed,
                message=f"{unclaimed} entries may be another build's: publish --adopt takes them",
            )
        if not entries:
            return self.record("miss", "nothing_to_publish", message="no live directory holds an entry")
        return self._publish(deadline)

    def _scan(self, adopt: bool) -> int:
        """Fill `local` with the entries that are ours to publish; the number of those that may not be."""
        unclaimed = 0
        for source in self.sources:
            source.local = scan(source.family, source.live.directory)
            source.table = source.live.table()
            stamp = source.stamp
            if adopt and source.local and (stamp is None or not stamp.whole):
                source.live.make()
                restored = stamp.restored_ns if stamp else 0
                source.stamp = stamp = Stamp(self.identity.build_key, True, restored)
                source.live.write_stamp(stamp)
            if stamp is None or not stamp.whole:
                since = stamp.restored_ns if stamp else None
                mine = {
                    name: entry
                    for name, entry in source.local.items()
                    if since is not None and entry.newest_ns > since
                }
                unclaimed += len(source.local) - len(mine)
                source.local = mine
        if unclaimed:
            self.details["unclaimed"] = unclaimed
        return unclaimed

    # -- against the store -----------------------------------------------------------------------------------------

    def _publish(self, deadline: float) -> Record:
        build, profile = self.identity.build_key, self.identity.profile_key
        with self.phases("compare"):
            store = Store.open(self.settings.store[-1], self.settings)
            head = store.newest(build, profile, self._unreadable)
            start = head
            if start is None and self.settings.profile_fallback != "none":
                start = store.fallback(build, profile)
            base = start.manifest if start else None
            there = store.packs(build) if base else set()
            lost = [pack.sha256 for pack in base.packs if pack.sha256 not in there] if base else []
            wanted, kept = self._compare(base, frozenset(lost))
        if head is None and base is not None:
            # Its first own generation names the packs of the profile that it started from.
            base = replace(base, entries=kept)
        if not any(wanted) and (head is not None or not kept):
            return self._done(head, "unchanged" if head else "nothing_to_publish")
        limit = self._over_limit(store)
        if limit:
            return limit
        spool = _Spool(self.sources, wanted, self.settings.compression, self.settings.slim == "publish", deadline)
        try:
            with self.phases("pack"):
                spool.make()
            addition = self._addition(spool, base, wanted)
            if not addition.entries and (head is not None or not kept):
                return self._done(head, "nothing_sound")
            with self.phases("upload"):
                for pack, path in spool.files():
                    if pack.sha256 not in there or pack.sha256 in lost:
                        store.add_pack(build, pack.sha256, path)
                identity = self.identity
                store.add_identity(
                    build,
                    profile,
                    replace(identity, profile={}).to_json().encode(),
                    identity.to_json().encode(),
                )
            with self.phases("commit"):
                generation, ours = store.commit(build, profile, addition, deadline=deadline, lost=lost)
        finally:
            spool.remove()
        self._remember(spool)
        reason = "published" if ours else "others_were_faster"
        files = [file for entry in addition.entries.values() for file in entry.files]
        return replace(
            self._done(generation, reason),
            entries=len(addition.entries),
            files=len(files),
            bytes=sum(file.size for file in files),
            fetched_bytes=sum(pack.size for pack, _ in spool.packs),
        )

    def _unreadable(self, number: int, error: StoreError) -> None:
        self.details.setdefault("rejected", []).append({"generation": number, "message": str(error)})

    def _done(self, generation: Generation | None, reason: str) -> Record:
        record = self.record("hit" if generation else "miss", reason)
        return replace(record, generation=generation.number if generation else None)

    def _over_limit(self, store: Store) -> Record | None:
        files, size = store.usage(self.identity.build_key)
        if size < self.settings.max_storage_bytes:
            return None
        return self.record(
            "disabled",
            "storage_limit",
            message=f"the build takes {size} bytes in {files} files, max_storage_bytes is"
            f" {self.settings.max_storage_bytes}: raise it, or make room with `cachehome prune`",
        )

    def _compare(
        self, base: Manifest | None, lost: frozenset[str]
    ) -> tuple[list[list[str]], dict[tuple[str, str], Entry]]:
        """(names to pack, by source; entries of *base* that lie here, too)."""
        wanted: list[list[str]] = [[] for _ in self.sources]
        kept: dict[tuple[str, str], Entry] = {}
        conflicts = 0
        gone = {n for n, pack in enumerate(base.packs) if pack.sha256 in lost} if base else set()
        for number, source in enumerate(self.sources):
            ir = source.family.ir
            changed_table = False
            for name, entry in source.local.items():
                there = base.entries.get((source.family.name, name)) if base else None
                if there is None or any(file.pack in gone for file in there.files):
                    wanted[number].append(name)
                    continue
                same, hashed = _same(source, entry, there, ir)
                changed_table = changed_table or hashed
                if same or not entry.growing:
                    kept[there.key] = there
                    conflicts += not same
                else:
                    wanted[number].append(name)
            if changed_table:
                with contextlib.suppress(OSError):
                    source.live.make()
                    source.live.write_table(source.table)
        if conflicts:
            self.details["conflicts"] = conflicts
        return wanted, kept

    def _addition(self, spool: _Spool, base: Manifest | None, wanted: list[list[str]]) -> Addition:
        entries: dict[tuple[str, str], Entry] = {}
        left_out: dict[str, str] = {}
        growing = set()
        for number, source in enumerate(self.sources):
            for name in wanted[number]:
                problem, entry = spool.entry(number, name)
                if entry is None:
                    left_out[f"{source.family.name}/{name}"] = problem
                    continue
                entries[entry.key] = entry
                if source.local[name].growing:
                    growing.add(entry.key)
        if left_out:
            self.details["left_out"] = left_out
        publisher = self._publisher()
        origin = {
            "directories": {source.family.name: source.live.directory for source in self.sources},
            "tag": host_tag(self.identity),
            "slot": self.settings.slot,
            "publisher": publisher,
        }
        packs = tuple(pack for pack, _ in spool.packs)
        return Addition(entries, packs, (origin,), frozenset(growing), base, publisher)

    def _publisher(self) -> dict[str, Any]:
        from cachehome import __version__

        return {"cachehome": __version__, "profile": self.identity.profile_key}

    def _remember(self, spool: _Spool) -> None:
        """Keep the hashes, so that the next publish need not read what it published now."""
        for number, source in enumerate(self.sources):
            fresh = spool.rows(number)
            if not fresh:
                continue
            with contextlib.suppress(OSError):
                source.live.make()
                source.live.write_table(source.table | fresh)


def _same(
    source: _Source, entry: LocalEntry, there: Entry, ir: tuple[str, ...]
) -> tuple[bool, bool]:
    """(whether a local entry holds the bytes of *there*, whether something had to be hashed for it).

    Files that a warm start never reads don't count: a slim copy is the same entry.
    """
    stored = {file.suffix: file.sha256 for file in there.files}
    hashed = False
    for file in entry.files:
        if ir and file.suffix.endswith(ir):
            continue
        expected = stored.pop(file.suffix, "")
        path = entry.name + file.suffix
        have = known(source.table, path, file)
        if not have:
            with contextlib.suppress(OSError, ValueError):
                with open(os.path.join(source.live.directory, path), "rb") as opened:
                    have = hashlib.sha256(portable.canonical(path, opened.read())).hexdigest()
                source.table[path] = row(file, have)
                hashed = True
        if have != expected and not portable.is_group(path):
            return False, hashed
    return not any(not (ir and suffix.endswith(ir)) for suffix in stored), hashed


class _Spool:
    """New packs, made on local disk. `packs`: (pack, path of its file) once made."""

    def __init__(
        self,
        sources: list[_Source],
        wanted: list[list[str]],
        compression: str,
        slim: bool,
        deadline: float,
    ) -> None:
        self.sources = sources
        self.wanted = wanted
        self.compression = compression
        self.slim = slim
        self.deadline = deadline
        self.packs: list[tuple[Pack, str]] = []
        self._places: dict[tuple[int, str], list[tuple[Found, int]]] = {}
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
        for is_ir, files in ((False, plain), (True, ir)):
            if files:
                files.sort()
                self._pack(is_ir, list(_frames(files)))

    def _pack(self, ir: bool, tasks: list[list[list[_Chunk]]]) -> None:
        path = self._new_file()
        frames: list[tuple[int, int, str]] = []
        digest = hashlib.sha256()
        place = len(self.packs)
        start = 0
        worker = _Packer(self.sources, self.compression)
        with open(path, "wb", buffering=1 << 20) as spool:

            def add(stored: bytes, raw: int, sha256: str) -> None:
                spool.write(stored)
                digest.update(stored)
                frames.append((len(stored), raw, sha256))

            for made, found in parallel.each(worker, tasks, deadline=self.deadline):
                for fields in found:
                    one = Found(*fields)
                    moved = one._replace(offset=one.offset + start)
                    self._places.setdefault((one.source, one.entry), []).append((moved, place))
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
        for one, _ in found:
            if one.problem:
                return f"{os.path.basename(name + one.suffix)} is {one.problem}", None
        modes = {file.suffix: file.mode for file in local.files}
        files = tuple(
            sorted(
                File(one.suffix, one.size, modes[one.suffix], one.sha256, pack, one.offset) for one, pack in found
            )
        )
        ir = source.family.ir
        has_ir = any(ir and file.suffix.endswith(ir) for file in files)
        slim = bool(ir) and not has_ir and any(portable.is_group(name + file.suffix) for file in files)
        return "", Entry(source.family.name, name, 0, slim, files)

    def rows(self, number: int) -> dict[str, list[Any]]:
        """Rows of the table for what was packed of source *number*."""
        source = self.sources[number]
        rows = {}
        for (of, name), found in self._places.items():
            if of != number:
                continue
            by_suffix = {file.suffix: file for file in source.local[name].files}
            for one, _ in found:
                if not one.problem:
                    rows[name + one.suffix] = row(by_suffix[one.suffix], one.sha256)
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


class _Packer:
    """Makes frames: reads files, checks and hashes them, compresses."""

    def __init__(self, sources: list[_Source], compression: str) -> None:
        self.sources = sources
        self.compression = compression
        self.locks = [os.path.join(source.live.directory, "locks") for source in sources]

    def __call__(self, task: list[list[_Chunk]]) -> tuple[list[tuple[bytes, int, str]], list[tuple[Any, ...]]]:
        """(frames, a `Found` for each file); offsets count from the task's first byte."""
        compress = compressor(self.compression)
        made: list[tuple[bytes, int, str]] = []
        found: list[Found] = []
        start = 0
        running: Any = None
        for frame in task:
            parts: list[bytes] = []
            for chunk in frame:
                if chunk.first and chunk.last:
                    start += self._whole(chunk, start, parts, found)
                else:
                    running, length = self._part(chunk, start, parts, found, running)
                    start += length
            raw = b"".join(parts)
            if raw:
                stored = compress(raw)
                made.append((stored, len(raw), hashlib.sha256(stored).hexdigest()))
        return made, [tuple(one) for one in found]  # plain tuples: what crosses a pipe

    def _whole(self, chunk: _Chunk, start: int, parts: list[bytes], found: list[Found]) -> int:
        """Add a file that fits a frame; the bytes that it took."""
        source, file = self.sources[chunk.source], chunk.file
        path = chunk.entry + file.suffix
        problem = ""
        data = b""
        try:
            data = self._read(source, path, file, 0, file.size + 1)
            problem = portable.check(path, data) or self._group_problem(source, chunk, path, data)
            data = portable.canonical(path, data) if not problem else b""
            if self._being_built(chunk):
                problem = "being built"
        except (OSError, ValueError) as error:
            problem = str(error)
        if problem:
            found.append(Found(chunk.source, chunk.entry, file.suffix, problem, 0, "", 0))
            return 0
        header = member(f"{source.family.name}/{path}", len(data), file.mode)
        tail = padding(len(data))
        parts += [header, data, tail]
        digest = hashlib.sha256(data).hexdigest()
        found.append(
            Found(chunk.source, chunk.entry, file.suffix, "", len(data), digest, start + len(header))
        )
        return len(header) + len(data) + len(tail)

    def _group_problem(self, source: _Source, chunk: _Chunk, path: str, data: bytes) -> str:
        if not portable.is_group(path):
            return ""
        present = {file.suffix[1:] for file in source.local[chunk.entry].files}
        return portable.check_group(data, present)

    def _part(
        self, chunk: _Chunk, start: int, parts: list[bytes], found: list[Found], running: Any
    ) -> tuple[Any, int]:
        """Add a piece of a long file: (hash so far, the bytes that it took)."""
        source, file = self.sources[chunk.source], chunk.file
        path = chunk.entry + file.suffix
        header = b""
        if chunk.first:
            header = member(f"{source.family.name}/{path}", file.size, file.mode)
            running = [hashlib.sha256(), start + len(header), ""]
        try:
            data = self._read(source, path, file, chunk.start, chunk.length)
            if chunk.first:
                running[2] = running[2] or portable.check_local(
                    os.path.join(source.live.directory, path), path, file.size
                )
        except (OSError, ValueError) as error:
            data = bytes(chunk.length)  # the header has promised so many bytes
            running[2] = running[2] or str(error)
        running[0].update(data)
        tail = padding(file.size) if chunk.last else b""
        parts += [header, data, tail]
        if chunk.last:
            problem = running[2] or ("being built" if self._being_built(chunk) else "")
            found.append(
                Found(
                    chunk.source, chunk.entry, file.suffix, problem, file.size, running[0].hexdigest(), running[1]
                )
            )
        return running, len(header) + len(data) + len(tail)

    def _read(self, source: _Source, path: str, file: LocalFile, start: int, length: int) -> bytes:
        descriptor = os.open(
            os.path.join(source.live.directory, path), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        )
        try:
            data = os.pread(descriptor, length, start)
            now = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        changed = (now.st_size, now.st_mtime_ns, now.st_ino) != (file.size, file.mtime_ns, file.inode)
        if changed or len(data) != min(length, file.size - start):
            raise ValueError("changing")
        return data

    def _being_built(self, chunk: _Chunk) -> bool:
        """Whether the lock of a C++ kernel is held: its compiler writes the library in place."""
        if not chunk.file.suffix.endswith(".so"):
            return False
        import fcntl

        stem = os.path.basename(chunk.entry)
        try:
            descriptor = os.open(
                os.path.join(self.locks[chunk.source], f"{stem}.lock"), os.O_RDWR | os.O_CLOEXEC
            )
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
