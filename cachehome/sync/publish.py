"""Publish: from the live directories to a new generation, only what the newest one lacks.

    scan      entries of each family, by stat alone, and only where something may have changed
    compare   with the newest generation: same bytes: nothing to do; other bytes under the same name: the first
              one wins, and it is counted; growing entries are merged, or the last one wins
    pack      new files, read once (packing.py)
    upload    packs, then identities
    commit    the next generation (store.py)

An entry with a file that is broken, or that changed while it was read, is left for the next time.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from cachehome.collector import uncollected
from cachehome.errors import ConfigError, StoreError
from cachehome.store.entries import Entry
from cachehome.store.manifest import Manifest, Pack, Paths
from cachehome.store.marks import Denials
from cachehome.store.store import Addition, Generation, Store
from cachehome.sync import copies, growing, parallel, portable
from cachehome.sync.denied import damaged, denied_here
from cachehome.sync.live import Live, Stamp, in_effect, trouble
from cachehome.sync.packing import Spool
from cachehome.sync.record import Record, Work, asked
from cachehome.sync.restore import host_tag, other_build
from cachehome.sync.scan import LocalEntry
from cachehome.sync.source import Source

if TYPE_CHECKING:
    from cachehome.identity import Identity
    from cachehome.settings import Settings


def publish(
    settings: Settings | None = None,
    identity: Identity | None = None,
    directories: Mapping[str, str] | Sequence[Mapping[str, str]] | None = None,
    *,
    adopt: bool = False,
) -> Record:
    """Publish what the live *directories* (family name -> path; None: those in effect) hold and the store
    lacks. Several sets of them, the slots of a node, make one generation together.

    Never raises for what a store or a file system can do; the record says it. *adopt*: directories that were
    never stamped hold this build's work and no other's. Raises `ConfigError` for settings that can't be
    meant.
    """
    work = _Publish(*asked(settings, identity), directories)
    try:
        with uncollected():
            return work.run(adopt)
    except ConfigError:
        raise
    except OSError as error:
        return work.failed(error)


class _Publish(Work):
    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        directories: Mapping[str, str] | Sequence[Mapping[str, str]] | None,
    ) -> None:
        from cachehome import families

        super().__init__("publish", settings, identity)
        catalogue = families.catalogue(plugins=True)
        if directories is None:
            directories = in_effect(settings)
        self.sources: list[Source] = []
        self.sets: list[range] = []  # numbers of the sources that lie together
        for one in (directories,) if isinstance(directories, Mapping) else directories:
            begin = len(self.sources)
            for name, live in ((name, Live(path)) for name, path in one.items() if name in catalogue):
                if os.path.isdir(live.directory):
                    self.sources.append(Source(catalogue[name], live, live.stamp()))
            self.sets.append(range(begin, len(self.sources)))
        self.denials = Denials()
        self.paths = Paths()
        found = [self._directories(numbers) for numbers in self.sets]
        self.details["directories"] = found[0]
        if len(found) > 1:
            self.details["slots"] = found

    def _directories(self, numbers: Iterable[int]) -> dict[str, str]:
        return {self.sources[n].family.name: self.sources[n].live.directory for n in numbers}

    def run(self, adopt: bool) -> Record:
        settings = self.settings
        if not settings.store:
            return self.record("disabled", "no_store", message="no store is set (CACHEHOME_STORE)")
        if not settings.publish:
            return self.record("disabled", "publish_off", message="publish = off")
        if settings.trusted_keys and not settings.signing_key:
            message = "trusted_keys is set and signing_key is not: nobody who trusts them would read it"
            return self.record("disabled", "no_signing_key", message=message)
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
        entries = sum(map(len, self.sources))
        if not entries and unclaimed:
            return self.record(
                "miss",
                "never_stamped",
                unclaimed=unclaimed,
                message=f"{unclaimed} entries may be another build's: publish --adopt takes them",
            )
        if not entries:
            with self.phases("compare"):
                Store.open(self.settings.store[-1], self.settings)  # who named a wrong one hears of it now
            return self.record("miss", "nothing_to_publish", message="no live directory holds an entry")
        return self._publish(deadline)

    def _scan(self, adopt: bool) -> int:
        """Fill `local` with the entries that are ours to publish; the number of those that may not be."""
        unclaimed = 0
        for source in self.sources:
            source.scan()
            stamp = source.stamp
            if adopt and len(source) and (stamp is None or not stamp.whole):
                source.live.make()
                restored = stamp.restored_ns if stamp else 0
                source.stamp = stamp = Stamp(self.identity.build_key, True, restored)
                source.live.write_stamp(stamp)
            if stamp is None or not stamp.whole:
                since = stamp.restored_ns if stamp else None
                source.unsettle(list(source.settled))
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

    # -- against the store --------------------------------------------------------------------------------

    def _publish(self, deadline: float) -> Record:
        build, profile = self.identity.build_key, self.identity.profile_key
        with self.phases("compare"):
            store = Store.open(self.settings.store[-1], self.settings)
            head = store.newest(build, profile, self._unreadable)
            if head is not None:
                store.touch(build, profile, head.manifest.line)
            start = head
            if start is None and self.settings.profile_fallback != "none":
                start = store.fallback(build, profile)
            base = start.manifest if start else None
            packs = base.packs if base else ()
            lost = store.lost(build, packs) + damaged(store, build, packs, [s.live for s in self.sources])
            self._leave_out_denied(store.denied(build))
            wanted, kept = self._compare(base, frozenset(lost))
            replaced = self._merge_growing(store, base, wanted, kept)
        if head is None and base is not None:
            # Its first own generation names the packs of the profile that it started from.
            base = base._replace(entries=kept)
        mend = head is not None and bool(lost)
        if not any(wanted) and not mend and (head is not None or not kept):
            return self._done(head, "unchanged" if head else "nothing_to_publish")
        limit = self._over_limit(store)
        if limit:
            return limit
        spools = [
            Spool(
                self.sources,
                [names if number in numbers else [] for number, names in enumerate(wanted)],
                self.settings.compression,
                self.settings.slim == "publish",
                deadline,
                replaced,
            )
            for numbers in self.sets
        ]
        try:
            with self.phases("pack"):
                made = 0
                for spool in spools:
                    spool.make(made)
                    made += len(spool.packs)
            addition = self._addition(spools, base, wanted)
            if not addition.entries and not mend and (head is not None or not kept):
                return self._done(head, "nothing_sound")
            size = sum(pack.size for spool in spools for pack, _ in spool.packs)
            limit = self._over_limit(store, size)
            if limit:
                return limit
            # What is known of the files is true whatever becomes of the generation.
            with parallel.beside(lambda: self._remember(spools)):
                with self.phases("upload"):
                    paths = [path for spool in spools for _, path in spool.files()]
                    stored = store.add_packs(build, zip(addition.packs, paths, strict=True), lost)
                    addition = addition._replace(packs=tuple(pack for pack, _ in stored))
                    sources = {pack.sha256: path for pack, path in stored}
                    # The same files give the same pack: what is back need not be left out of the line.
                    mended = any(sha256 in sources for sha256 in lost)
                    lost = [sha256 for sha256 in lost if sha256 not in sources]
                    identity = self.identity
                    store.add_identity(
                        build,
                        profile,
                        identity._replace(profile={}).to_json().encode(),
                        identity.to_json().encode(),
                    )
                with self.phases("commit"):
                    generation, ours = store.commit(
                        build, profile, addition, deadline=deadline, lost=lost, sources=sources
                    )
        finally:
            for spool in spools:
                spool.remove()
        with self.phases("prune"):
            self._prune(store)
        reason = "published" if ours else "mended" if mended else "others_were_faster"
        files = [file for entry in addition.entries.values() for file in entry.files]
        return self._done(generation, reason)._replace(
            entries=len(addition.entries),
            files=len(files),
            bytes=sum(file.size for file in files),
            fetched_bytes=size,
        )

    def _unreadable(self, number: int, error: StoreError) -> None:
        self.details.setdefault("rejected", []).append({"generation": number, "message": str(error)})

    def _done(self, generation: Generation | None, reason: str) -> Record:
        record = self.record("hit" if generation else "miss", reason)
        return record._replace(generation=generation.number if generation else None)

    def _leave_out_denied(self, denials: Denials) -> None:
        """Forget local entries that are denied: they must not come back."""
        self.denials = denials
        for source in self.sources:
            source.unsettle([name for family, name in denials.keys if family == source.family.name])
            for name in denied_here(denials, source.family, source.live, source.local, source.table):
                del source.local[name]
                self.details["denied"] = self.details.get("denied", 0) + 1
        if denials.unreadable:
            self.details["denials_unreadable"] = [f"{label}: {why}" for label, why in denials.unreadable]

    def _prune(self, store: Store) -> bool:
        """Prune on the way, if nobody has for a day; whether we did. The publication does not fail over it."""
        with contextlib.suppress(StoreError):
            if store.take_turn_to_prune(self.identity.build_key):
                from cachehome.store import gc  # here, since few publications need it

                # Nobody looks on: what others may be working with stays.
                rules = gc.Rules.of(self.settings, at_least=gc.longest(self.settings))
                gc.prune(store, self.identity.build_key, rules)
                return True
        return False

    def _over_limit(self, store: Store, more: int = 0) -> Record | None:
        build, limit = self.identity.build_key, self.settings.max_storage_bytes
        files, size = store.usage(build)
        if size + more > limit and self._prune(store):
            files, size = store.usage(build)
        if size + more <= limit:
            return None
        return self.record(
            "disabled",
            "storage_limit",
            message=f"the build takes {size} bytes in {files} files and {more} are to be added, max_storage_bytes"
            f" is {limit}: raise it, or make room with `cachehome prune --compact`",
        )

    def _compare(
        self, base: Manifest | None, lost: frozenset[str]
    ) -> tuple[list[list[str]], dict[tuple[str, str], Entry]]:
        """(names to pack, by source; entries of *base* that lie here, too)."""
        wanted: list[list[str]] = [[] for _ in self.sources]
        kept: dict[tuple[str, str], Entry] = {}
        conflicts = 0
        gone = {n for n, pack in enumerate(base.packs) if pack.sha256 in lost} if base else set()
        keys = self._keys(base, gone)
        taken: set[tuple[Any, ...]] = set()

        def take(number: int, entry: LocalEntry) -> None:
            # What another slot has made alike comes from there; one of another size may be cut short.
            if len(self.sets) > 1 and not _merges(entry):
                alike = (*entry.key, *[(file.suffix, file.size) for file in entry.files])
                if alike in taken:
                    return
                taken.add(alike)
            wanted[number].append(entry.name)

        for number, source in enumerate(self.sources):
            ir = source.family.ir
            for name in list(source.settled):
                there = base.entries.get((source.family.name, name)) if base and not gone else None
                if there and source.has_settled(there):
                    kept[there.key] = there
                else:
                    source.unsettle([name])
            for name in source.local:
                there = base.entries.get((source.family.name, name)) if base else None
                if base and there and self.denials.denies(there, base):
                    there = None  # other bytes are welcome
                if there and not gone and source.has(source.local[name], there):
                    kept[there.key] = there
                    continue
                if (
                    there
                    and _more(source.local[name], there, ir, self.settings.slim == "publish")
                    and self._nameable(source.local[name])
                ):
                    source.local[name] = source.local[name]._replace(growing=True)
                entry = source.local[name]
                if there is None or not gone.isdisjoint(there.packs):
                    if self._nameable(entry):
                        take(number, entry)
                    continue
                same = source.same(entry, there) and not (there.slim and entry.growing)
                if same or not entry.growing:
                    kept[there.key] = there
                    conflicts += not same
                else:
                    take(number, entry)
            if not wanted[number]:
                source.keep_table()
            found = copies.redundant(
                wanted[number], source.local, keys[source.family.name], source.live.directory
            )
            if found:
                wanted[number] = [name for name in wanted[number] if name not in found]
                self.details["copies"] = self.details.get("copies", 0) + len(found)
            if len(self.sets) > 1:  # the next slot's are copies of these
                keys[source.family.name] |= copies.kept(wanted[number], source.live.directory)
        if conflicts:
            self.details["conflicts"] = conflicts
        return wanted, kept

    def _keys(self, base: Manifest | None, gone: set[int]) -> dict[str, set[str]]:
        """By family, the keys under which *base* holds a graph that readers get."""
        keys: dict[str, set[str]] = {source.family.name: set() for source in self.sources}
        for (family, name), entry in (base.entries if base else {}).items():
            key = portable.graph_key(name) if family in keys else ""
            if key and base and gone.isdisjoint(entry.packs) and not self.denials.denies(entry, base):
                keys[family].add(key)
        return keys

    def _nameable(self, entry: LocalEntry) -> bool:
        """Whether a manifest may hold the names of *entry*: readers refuse one that holds any other."""
        try:
            self.paths.check(entry.name, tuple([file.suffix for file in entry.files]))
        except ValueError as error:
            self.details.setdefault("left_out", {})[f"{entry.family}/{entry.name}"] = str(error)
            return False
        return True

    def _merge_growing(
        self,
        store: Store,
        base: Manifest | None,
        wanted: list[list[str]],
        kept: dict[tuple[str, str], Entry],
    ) -> dict[tuple[int, str], bytes]:
        """(number of the source, path) -> bytes to publish instead of the local file's: theirs and ours together."""
        replaced: dict[tuple[int, str], bytes] = {}
        having: dict[tuple[str, str], list[int]] = {}
        for number, source in enumerate(self.sources):
            for name in wanted[number]:
                if _merges(source.local[name]):
                    having.setdefault((source.family.name, name), []).append(number)
        for (family, name), numbers in having.items():
            there = base.entries.get((family, name)) if base else None
            if there is None and len(numbers) == 1:
                continue
            union, theirs = None, b""
            try:
                union = self.sources[numbers[0]].read(name)
                for number in numbers[1:]:
                    union = union and growing.merged(union, self.sources[number].read(name))
            except OSError:
                continue  # it is gone
            if base is not None and there is not None:
                with contextlib.suppress(StoreError):  # damaged or gone: ours replace it
                    pack = base.packs[there.files[0].pack]
                    theirs = growing.stored(store.backend, self.identity.build_key, pack, there.files[0])
                    union = union and growing.merged(union, theirs)
            if union is None:
                continue
            for number in numbers[1:]:
                wanted[number].remove(name)
            if there is not None and growing.same(union, theirs):
                wanted[numbers[0]].remove(name)
                kept[there.key] = there
            else:
                replaced[numbers[0], name] = union
        return replaced

    def _addition(self, spools: list[Spool], base: Manifest | None, wanted: list[list[str]]) -> Addition:
        entries: dict[tuple[str, str], Entry] = {}
        left_out: dict[str, str] = {}
        growing = set()
        packs: list[Pack] = []
        for origin, (spool, numbers) in enumerate(zip(spools, self.sets, strict=True)):
            for number in numbers:
                for name in wanted[number]:
                    problem, entry = spool.entry(number, name)
                    if entry is None:
                        left_out[f"{self.sources[number].family.name}/{name}"] = problem
                        continue
                    entries[entry.key] = entry
                    if self.sources[number].local[name].growing:
                        growing.add(entry.key)
            packs += (pack._replace(origin=origin) for pack, _ in spool.packs)
        if left_out:
            self.details.setdefault("left_out", {}).update(left_out)
        publisher = self._publisher()
        origins = tuple(
            {
                "directories": self._directories(numbers),
                "tag": host_tag(self.identity),
                "slot": self.settings.slot,
                "publisher": publisher,
            }
            for numbers in self.sets
        )
        return Addition(entries, tuple(packs), origins, frozenset(growing), base, publisher)

    def _publisher(self) -> dict[str, Any]:
        from cachehome import __version__

        return {"cachehome": __version__, "profile": self.identity.profile_key}

    def _remember(self, spools: list[Spool]) -> None:
        """Keep the hashes, so that the next publish need not read what it published now."""
        for spool, numbers in zip(spools, self.sets, strict=True):
            for number in numbers:
                self.sources[number].keep_table(spool.hashes(number))


def _merges(entry: LocalEntry) -> bool:
    """Whether *entry* is one growing file."""
    return entry.growing and not entry.files[0].suffix


def _more(entry: LocalEntry, there: Entry, ir: tuple[str, ...], slim: bool) -> bool:
    """Whether a local entry has more than *there*, which was published before it was finished, or slim."""
    ours = {file.suffix for file in entry.files if not (ir and file.suffix.endswith(ir))}
    theirs = {file.suffix for file in there.files if not (ir and file.suffix.endswith(ir))}
    whole = there.slim and not slim and len(entry.files) > len(there.files)
    return ours > theirs or (whole and ours == theirs)
