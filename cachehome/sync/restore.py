"""Restore: from the newest generation that verifies to the live directories.

Order of checks: owner and mode of the store, signature, manifest, key and host tag, then every frame of the packs
before it is decoded, then every file. Files are staged beside the live directory and moved into it entry by entry, only
once all of them are there. What exists locally stays, unless it is broken: that is moved aside. Anything wrong is
recorded, the next older generation is tried, and in the end it is a cold start.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from cachehome.errors import CacheHomeError, ConfigError, IntegrityError, NotInStore, StoreError, StoreUnavailable
from cachehome.families import Family
from cachehome.store.backend import Backend
from cachehome.store.manifest import Entry, Manifest, Pack
from cachehome.store.pack import Layout, Piece, check_frame, decompressor
from cachehome.store.store import Generation, Store
from cachehome.sync import parallel, portable
from cachehome.sync.live import Live, Stamp, known, trouble
from cachehome.sync.record import Phases, Record
from cachehome.sync.scan import LocalEntry, scan

if TYPE_CHECKING:
    from cachehome.identity import Identity
    from cachehome.settings import Settings

_READ = 4 << 20  # stored bytes that a worker reads at once
_QUIET = 60.0  # seconds after which an incomplete entry is nobody's work in progress
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
class _Target:
    """One family's live directory during a restore."""

    family: Family
    live: Live
    local: dict[str, LocalEntry] = field(default_factory=dict)
    table: dict[str, list[Any]] = field(default_factory=dict)
    wanted: list[Entry] = field(default_factory=list)
    staging: str = ""
    descriptor: int = -1


def restore(
    settings: Settings,
    identity: Identity,
    directories: Mapping[str, str] | None = None,
    *,
    number: int | None = None,
) -> Record:
    """Fill the live *directories* (family name -> path; None: those in effect) from the store of *settings*.

    Never raises for what a store or a file system can do; the record says it. *number*: that generation, not the
    newest. Raises `ConfigError` for settings that can't be meant.
    """
    work = _Restore(settings, identity, directories)
    try:
        return work.run(number)
    except ConfigError:
        raise
    except StoreError as error:
        outcome = "unavailable" if isinstance(error, StoreUnavailable) else "rejected"
        reason = error.fields.get("reason") or ("store_unavailable" if outcome == "unavailable" else "store_error")
        return work.record(outcome, str(reason), message=str(error))
    except TimeoutError as error:
        return work.record("unavailable", "store_timeout", message=str(error))
    except OSError as error:
        return work.record("unavailable", "local_error", message=f"{error.filename or ''}: {error.strerror or error}")


class _Restore:
    def __init__(self, settings: Settings, identity: Identity, directories: Mapping[str, str] | None) -> None:
        from cachehome import families, home

        self.settings = settings
        self.identity = identity
        self.phases = Phases()
        self.rejected: list[dict[str, Any]] = []
        catalogue = families.catalogue(plugins=True)
        if directories is None:
            directories = home.directories(os.environ)
        self.targets = [
            _Target(catalogue[name], Live(path)) for name, path in directories.items() if name in catalogue
        ]
        self.details: dict[str, Any] = {"directories": {t.family.name: t.live.directory for t in self.targets}}

    def record(self, outcome: str, reason: str, **details: Any) -> Record:
        if self.rejected:
            self.details["rejected"] = self.rejected
        return Record(
            "restore",
            outcome,
            reason,
            self.identity.build_key,
            self.identity.profile_key,
            seconds=self.phases.seconds,
            details=self.details | details,
        )

    def run(self, number: int | None) -> Record:
        if not self.settings.store:
            return self.record("disabled", "no_store", message="no store is set (CACHEHOME_STORE)")
        if not self.targets:
            return self.record("disabled", "no_directory", message="no live directory is in effect")
        for target in self.targets:
            problem = trouble(target.live.directory)
            if problem:
                return self.record("rejected", "live_directory_untrusted", message=problem)
            stamp = target.live.stamp()
            if stamp is not None and stamp.build != self.identity.build_key:
                return self.record("rejected", "other_build", message=other_build(target.live, stamp))
            target.live.make()
        with contextlib.ExitStack() as stack:
            with self.phases("lock"):
                # One of a node's workers fetches; the others find it done. If the lock can't be had, go on without.
                stack.enter_context(self.targets[0].live.locked(self.settings.store_timeout_seconds))
            for target in self.targets:
                target.live.tidy()
            with self.phases("scan"):
                for target in self.targets:
                    target.local = scan(target.family, target.live.directory)
                    target.table = target.live.table()
                    self._set_broken_aside(target)
            result = self._restore(number)
            with self.phases("stamp"):
                for target in self.targets:
                    self._stamp(target, result)
        return result

    def _restore(self, number: int | None) -> Record:
        if not self.settings.restore:
            return self.record("disabled", "restore_off", message="restore = off")
        with self.phases("manifest"):
            store = Store.open(self.settings.store[-1], self.settings)
            candidates = self._candidates(store, number)
        build, profile = self.identity.build_key, self.identity.profile_key
        for origin, candidate in candidates:
            try:
                with self.phases("manifest"):
                    generation = store.read(build, origin, candidate)
                return self._install(store, generation, borrowed=origin != profile)
            except NotInStore as error:
                if error.fields.get("name", "").startswith("packs/") or "pack" in str(error):
                    self._reject(origin, candidate, "pack_missing", error)
            except IntegrityError as error:
                self._reject(origin, candidate, str(error.fields.get("reason", "damaged")), error)
            except PermissionError as error:
                if not isinstance(error, CacheHomeError):
                    raise
                self._reject(origin, candidate, "untrusted", error)
        if self.rejected:
            first = self.rejected[0]
            return self.record("rejected", first["reason"], message=first["message"])
        return self.record("miss", "no_published_generation")

    def _candidates(self, store: Store, number: int | None) -> list[tuple[str, int]]:
        """(profile, number) to try, best first."""
        build, profile = self.identity.build_key, self.identity.profile_key
        if number is not None:
            return [(profile, number)]
        own = [(profile, found) for found in reversed(store.numbers(build, profile))]
        if own or self.settings.profile_fallback == "none":
            return own
        other = store.fallback(build, profile)
        return [(other.manifest.profile, other.number)] if other else []

    def _reject(self, profile: str, number: int, reason: str, error: Exception) -> None:
        self.rejected.append(
            {"profile": profile, "generation": number, "reason": reason, "message": str(error)}
        )

    # -- the live directory ----------------------------------------------------------------------------------------

    def _set_broken_aside(self, target: _Target) -> None:
        """Move entries that would break a reader out of the way; what was hashed and has not changed is not read."""
        for entry in list(target.local.values()):
            problem = broken(target.live, target.table, entry)
            if problem:
                suffixes = [file.suffix for file in entry.files]
                target.live.set_aside(entry.name, suffixes, tree=_is_tree(entry))
                del target.local[entry.name]
                self.details.setdefault("set_aside", []).append(f"{entry.family}/{entry.name}: {problem}")

    def _stamp(self, target: _Target, result: Record) -> None:
        before = target.live.stamp()
        whole = before.whole if before else not target.local
        manifest = str(result.details.get("manifest", "")) or (before.manifest if before else "")
        generation = result.generation if result.generation is not None else (before.generation if before else None)
        target.live.write_stamp(
            Stamp(self.identity.build_key, whole, target.live.now_ns(), generation, manifest)
        )

    # -- one generation --------------------------------------------------------------------------------------------

    def _install(self, store: Store, generation: Generation, *, borrowed: bool) -> Record:
        manifest = generation.manifest
        skipped = self._choose(manifest)
        try:
            with self.phases("fetch"):
                fetched = self._stage(store, manifest)
            with self.phases("install"):
                entries, files, size = self._move_in()
        finally:
            for target in self.targets:
                if target.descriptor >= 0:
                    os.close(target.descriptor)
                    target.descriptor = -1
                if target.staging:
                    shutil.rmtree(target.staging, ignore_errors=True)
                    target.staging = ""
        usable = len(manifest.entries) - skipped.get("other_family", 0) - skipped.get("other_host", 0)
        details: dict[str, Any] = {"manifest": generation.sha256, "skipped": skipped, "line": manifest.line}
        if borrowed:
            details["profile_fallback"] = manifest.profile
        relocated = self._relocated(manifest)
        if relocated:
            details["relocated"] = relocated
        if manifest.entries and not usable:
            return self.record("miss", "other_host", **details)
        return replace(
            self.record("hit", "restored" if entries else "already_there", **details),
            generation=manifest.number,
            entries=entries,
            files=files,
            bytes=size,
            fetched_bytes=fetched,
        )

    def _relocated(self, manifest: Manifest) -> list[str]:
        """Directories other than ours that entries were made in: some of them hold that path (design, 7)."""
        here = {target.live.directory for target in self.targets}
        there: set[str] = set()
        for origin in manifest.origins:
            paths = origin.get("directories", {})
            there.update(paths.get(t.family.name, t.live.directory) for t in self.targets)
        return sorted(there - here)

    def _choose(self, manifest: Manifest) -> dict[str, int]:
        """Fill `wanted` of each target; counts of what is left out, by reason."""
        tag = host_tag(self.identity)
        foreign = {
            number
            for number, pack in enumerate(manifest.packs)
            if manifest.origins[pack.origin].get("tag", tag) != tag
        }
        by_family = {target.family.name: target for target in self.targets}
        skipped = {"already_there": 0, "other_family": 0, "other_host": 0}
        for target in self.targets:
            target.wanted = []
        for (family, name), entry in manifest.entries.items():
            target = by_family.get(family)
            if target is None:
                skipped["other_family"] += 1
            elif foreign and any(file.pack in foreign for file in entry.files):
                skipped["other_host"] += 1
            elif name in target.local and not self._incomplete(target, entry):
                skipped["already_there"] += 1
            else:
                target.wanted.append(entry)
        return {reason: count for reason, count in skipped.items() if count}

    def _incomplete(self, target: _Target, entry: Entry) -> bool:
        """Whether a local entry lacks files that a reader needs: a killed run left it. A tree is then moved aside."""
        local = target.local[entry.name]
        have = {file.suffix for file in local.files}
        ir = target.family.ir
        if all(file.suffix in have or (ir and file.suffix.endswith(ir)) for file in entry.files):
            return False
        if _is_tree(local):
            if time.time() - local.newest_ns / 1e9 < _QUIET:
                return False  # somebody may be writing it right now
            target.live.set_aside(entry.name, [], tree=True)
            self.details.setdefault("set_aside", []).append(f"{entry.family}/{entry.name}: incomplete")
        return True

    def _stage(self, store: Store, manifest: Manifest) -> int:
        slim = self.settings.slim != "off"
        places: dict[int, list[Place]] = {}
        for number, target in enumerate(self.targets):
            if not target.wanted:
                continue
            ir = target.family.ir if slim else ()
            for entry in target.wanted:
                name = entry.name
                for file in entry.files:
                    if ir and file.suffix.endswith(ir):
                        continue
                    # Files are this user's: what is read from here is run.
                    mode = 0o700 if file.mode & 0o111 else 0o600
                    places.setdefault(file.pack, []).append(
                        Place(file.offset, file.size, file.sha256, number, name + file.suffix, mode)
                    )
        self._check_room(sum(place.size for found in places.values() for place in found))
        tasks = [task for pack, found in sorted(places.items()) for task in _tasks(manifest.packs[pack], found)]
        for target in self.targets:
            if target.wanted:
                target.staging = target.live.staging()
                target.descriptor = os.open(target.staging, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        groups = {
            number: {entry.name: [file.suffix for file in entry.files] for entry in target.wanted}
            for number, target in enumerate(self.targets)
        }
        worker = _Worker(store.backend, self.identity.build_key, self.targets, groups, slim)
        deadline = time.monotonic() + self.settings.store_timeout_seconds
        fetched = 0
        for stored, rows in parallel.each(worker, tasks, deadline=deadline):
            fetched += stored
            for family, path, size, mtime_ns, inode, sha256 in rows:
                self.targets[family].table[path] = [size, mtime_ns, inode, sha256]
        return fetched

    def _check_room(self, size: int) -> None:
        """Refuse before anything is written: no half tree is left on a full disk."""
        room = os.statvfs(self.targets[0].live.own)
        if size > room.f_bavail * room.f_frsize:
            raise StoreUnavailable(
                f"{self.targets[0].live.directory} has room for {room.f_bavail * room.f_frsize} bytes, the generation"
                f" needs {size}: make room, or set CACHEHOME_LOCAL",
                reason="no_room",
            )

    def _move_in(self) -> tuple[int, int, int]:
        entries = files = size = 0
        for target in self.targets:
            if not target.wanted:
                continue
            made: set[str] = set()
            slim = target.family.ir if self.settings.slim != "off" else ()
            for entry in target.wanted:
                members = [f for f in entry.files if not (slim and f.suffix.endswith(slim))]
                if _move(target, entry, [file.suffix for file in members], made):
                    entries += 1
                    files += len(members)
                    size += sum(file.size for file in members)
            target.live.write_table(target.table)
        return entries, files, size


def _move(target: _Target, entry: Entry, suffixes: list[str], made: set[str]) -> bool:
    """Move a staged entry into the live directory; False if somebody else's is there by now."""
    live, staging = target.live.directory, target.staging
    parent = os.path.dirname(entry.name)
    if parent not in made:
        os.makedirs(os.path.join(live, parent), mode=0o700, exist_ok=True)
        made.add(parent)
    if any(suffix.startswith("/") for suffix in suffixes):
        try:
            os.rename(f"{staging}/{entry.name}", f"{live}/{entry.name}")
        except FileExistsError:
            return False
        except OSError:
            # ENOTEMPTY, on some systems under other names: a compiler was faster.
            if not os.path.isdir(f"{live}/{entry.name}"):
                raise
            return False
        return True
    moved = False
    for suffix in suffixes:
        with contextlib.suppress(FileExistsError):
            # link(2), since rename(2) would replace what a compiler has written meanwhile.
            os.link(f"{staging}/{entry.name}{suffix}", f"{live}/{entry.name}{suffix}")
            moved = True
    return moved


def _is_tree(entry: LocalEntry) -> bool:
    return any(file.suffix.startswith("/") for file in entry.files)


def _tasks(pack: Pack, places: list[Place]) -> list[tuple[Pack, list[tuple[Place, list[Piece]]]]]:
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


class _Worker:
    """Reads frames, verifies, decodes, and writes files into the staging directories."""

    def __init__(
        self,
        backend: Backend,
        build: str,
        targets: list[_Target],
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

                def stream(
                    pieces: list[Piece] = pieces, running: Any = running
                ) -> Any:
                    for piece in pieces:
                        part = memoryview(frames.raw(piece.frame))[piece.start : piece.start + piece.length]
                        running.update(part)
                        yield part

                rows.append(self._write(place, stream()))
                self._expect(place, running.hexdigest())
        return frames.read, rows

    def _expect(self, place: Place, digest: str) -> None:
        if digest != place.sha256:
            raise IntegrityError(f"{place.path} is not what the manifest says", name=place.path, reason="file_damaged")

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

    def _group(self, target: _Target, place: Place, data: bytes) -> bytes:
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


def broken(live: Live, table: dict[str, list[Any]], entry: LocalEntry) -> str:
    """What would make a reader of a local entry fail, "" if nothing would. Hashed and unchanged files are not read."""
    present = {file.suffix[1:] for file in entry.files}
    for file in entry.files:
        path = entry.name + file.suffix
        if known(table, path, file):
            continue
        full = os.path.join(live.directory, path)
        try:
            problem = portable.check_local(full, path, file.size)
            if not problem and portable.is_group(path):
                with open(full, "rb") as group:
                    problem = portable.check_group(group.read(), present)
        except OSError:
            continue  # gone, or not ours to read: no reader of it will fail because of us
        if problem:
            return f"{os.path.basename(path)} is {problem}" if problem in ("empty", "cut short") else problem
    return ""


def other_build(live: Live, stamp: Stamp) -> str:
    """The line for a directory that another build's work lies in, with the command that mends it."""
    return (
        f"{live.directory} holds the work of build {stamp.build[:8]}: use `cachehome run`, which keeps builds apart, or"
        f" start afresh: mv {live.directory} {live.directory}.{stamp.build[:8]}"
    )


def host_tag(identity: Identity) -> str:
    """The host tag that *identity* was made under; this machine's if it does not say."""
    from cachehome import host

    return str(identity.build.get("host_tag") or host.host_tag())
