"""A store: reading (reader.py), and the commit protocol.

Write order: packs, then the generation that names them, then the hint. What was created may be answered with an error,
or with "exists". A commit is done when the highest generation holds what it added, and all of its packs are there.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, TypeAlias

from cachehome.errors import (
    CommitConflict,
    ConfigError,
    IntegrityError,
    NotInStore,
    StoreError,
    StoreUnavailable,
    UnsupportedStore,
    Untrusted,
)
from cachehome.store import marks
from cachehome.store.backend import jitter
from cachehome.store.manifest import Manifest, Pack, decode, encode
from cachehome.store.memory import Memory
from cachehome.store.merge import Addition, merge, missing
from cachehome.store.owners import Owners
from cachehome.store.pack import compressor
from cachehome.store.posix import PosixBackend, without_expiry
from cachehome.store.reader import Generation, Head, Reader, generation_name
from cachehome.store.signing import Keys

if TYPE_CHECKING:
    from cachehome.settings import Settings

__all__ = ["Addition", "Generation", "Store"]

DAY = 86_400.0
_FIRST_WAIT = 0.05
_LONGEST_WAIT = 2.0
_USED = "used"  # after a line in this node's memory: when it last said so

# (head, number of the next generation, packs that are gone) -> what it is to be; None: there is nothing to add.
Propose = Callable[[Head, int, frozenset[str]], "Manifest | None"]
Source: TypeAlias = "str | bytes"  # a local file, or the bytes
Sources = Mapping[str, Source]


class Store(Reader):
    """A store that can be written to. Raises `StoreUnavailable` when the backend does not work."""

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    @classmethod
    def open(cls, url: str, settings: Settings | None = None) -> Store:
        """The store at *url*, a directory or a `file://` URL. Raises `StoreUnavailable` if it is not there."""
        path = url.removeprefix("file://")
        if "://" in path or not path.startswith("/"):
            raise ConfigError(
                f"store: this version has no backend for {url!r}: name a directory, absolute or as file://",
                key="store",
                source="store",
                value=url,
                allowed="an absolute directory or file://",
            )
        fault = without_expiry(path)
        if fault:
            raise StoreUnavailable(f"{fault}: choose a path that has one", path=path, reason="no_expiry")
        memory = Memory.of(os.path.realpath(path), settings)
        if settings is None:
            backend, keys = PosixBackend(path), None
        else:
            owners = Owners(settings.store_owners, shared=settings.shared)
            backend, keys = PosixBackend(path, shared=settings.shared, owners=owners), Keys.load(settings)
        backend.check()
        if keys is None:
            return cls(backend, memory=memory)
        return cls(backend, sign=keys.sign, verify=keys.verify, memory=memory)

    # -- marks -------------------------------------------------------------------------------------------------------

    def deny(self, build: str, denied: marks.Denied) -> None:
        """Add or replace a list."""
        marks.check_label(denied.label)
        self._must_sign()
        name = f"{build}/denied/{denied.label}"
        self.backend.put(name, marks.encode(name, denied, self._sign))

    def allow(self, build: str, label: str) -> None:
        """Remove a list: what it denied is welcome again."""
        marks.check_label(label)
        self.backend.delete(f"{build}/denied/{label}")

    def pin(self, build: str, profile: str, number: int, label: str) -> bool:
        """Keep the packs of a generation under *label*; False if the label keeps another one."""
        marks.check_label(label)
        generation = self.read(build, profile, number)
        data = self.backend.get(generation_name(build, profile, number))
        self._revive(build, generation.manifest)
        if self.backend.put_new(f"{build}/pins/{label}", data):
            return True
        there = self.pins(build).get(label)
        return there is not None and there.sha256 == generation.sha256

    def unpin(self, build: str, label: str) -> None:
        """Remove a pin."""
        marks.check_label(label)
        self.backend.delete(f"{build}/pins/{label}")

    def touch(self, build: str, profile: str, line: str = "") -> None:
        """Say that the profile is in use, about once a day for all users together. Never raises.

        *line*: its line; a node that noted it in the last hours has said so, too, and need not ask.
        """
        known = f"{line}{_USED}"
        if self.memory is not None and line and self.memory.age(known) < DAY / 2:
            return
        name = f"{build}/profiles/{profile}/used"
        with contextlib.suppress(StoreError):
            try:
                due = self.backend.age(name) > DAY * jitter(0.5, 1)
            except NotInStore:
                due = True
            if due:
                self.backend.put(name, b"")
        if self.memory is not None and line:
            self.memory.note(known, 0)

    def take_turn_to_prune(self, build: str) -> bool:
        """Whether a publisher is to prune *build* on the way, about once a day for all of them together: the others see
        that one has."""
        mark = f"{build}/pruned"
        try:
            # Not all at the same second: most of those that come later see the mark.
            due = self.backend.age(mark) > DAY * jitter(1, 1.1)
        except NotInStore:
            self.backend.put_new(mark, b"")
            return False
        if due:
            self.backend.put(mark, b"%d\n" % time.time())
        return due

    # -- writing -------------------------------------------------------------------------------------------------------

    def add_packs(
        self, build: str, packs: Iterable[tuple[Pack, Source]], again: Collection[str] = ()
    ) -> list[tuple[Pack, Source]]:
        """Store *packs*, and those of them in *again* also if they are there; the packs that may be named.

        A pack that is condemned may be deleted at any moment by a collector that has looked at everything already. So
        it is never named: the same files are stored under another name.
        """
        condemned = set(self.backend.list(f"{build}/condemned"))
        stored = []
        for pack, source in packs:
            if pack.sha256 in condemned:
                pack, source = renamed(pack, source)  # noqa: PLW2901
            if pack.sha256 in again or not self.has_pack(build, pack):
                self.backend.put(f"{build}/{pack.name}", source)
            stored.append((pack, source))
        return stored

    def add_identity(self, build: str, profile: str, of_build: bytes, of_profile: bytes) -> None:
        """Leave the identities beside what they name, for people and for the diff. The first one stays."""
        self.backend.put_new(f"{build}/identity.json", of_build)
        self.backend.put_new(f"{build}/profiles/{profile}/identity.json", of_profile)

    def commit(
        self,
        build: str,
        profile: str,
        addition: Addition,
        *,
        deadline: float,
        lost: Iterable[str] = (),
        sources: Sources | None = None,
    ) -> tuple[Generation, bool]:
        """Make a generation that holds what the newest one holds and *addition*; (generation, whether it is ours).

        *deadline*: `time.monotonic()` after which it gives up with `CommitConflict`. *lost*: packs that are gone;
        entries in them count as lacking. *sources*: where the bytes of the addition's packs are, by sha256, should one
        have to be stored again.
        """
        denied = self.denied(build).rows

        def propose(head: Head, number: int, lost: frozenset[str]) -> Manifest | None:
            base = head.generation.manifest if head.generation else None
            start = base or addition.base
            entries = missing(start, addition, lost, denied)
            if base is not None and not entries and not any(pack.sha256 in lost for pack in base.packs):
                return None
            return merge(start, addition, entries, number, lost=lost, new_line=base is None)

        return self.advance(build, profile, propose, deadline=deadline, lost=lost, sources=sources)

    def advance(
        self,
        build: str,
        profile: str,
        propose: Propose,
        *,
        deadline: float,
        lost: Iterable[str] = (),
        sources: Sources | None = None,
    ) -> tuple[Generation, bool]:
        """Add what *propose* makes of the newest generation to the line; (the newest one, whether it is ours).

        Done when the highest generation holds what was to be added, and all of its packs are there.
        """
        gone = frozenset(lost)
        nonces: set[str] = set()
        at_least = tries = 0
        wait = _FIRST_WAIT
        ours = False
        while True:
            head = self.head(build, profile, at_least, for_writing=True)
            base = head.generation
            ours = ours or (base is not None and base.manifest.nonce in nonces)
            proposal = propose(head, head.highest + 1, gone)
            if proposal is None:
                if base is None:
                    raise NotInStore(
                        f"{build[:8]}/{profile} has no generation", name=f"{build}/profiles/{profile}"
                    )
                settled = base
            else:
                if time.monotonic() > deadline:
                    raise _gave_up(profile, head.highest, tries)
                tries += 1
                nonces.add(proposal.nonce)
                settled, won = self._create(build, profile, proposal, base)
                if not won:
                    at_least = max(at_least, settled.number)
                    if time.monotonic() + wait > deadline:
                        raise _gave_up(profile, at_least, tries)
                    time.sleep(jitter(0, wait))
                    wait = min(2 * wait, _LONGEST_WAIT)
                    continue
                ours = True
                if not self._stands(build, profile, settled.number, head.highest):
                    continue
            if not ours:
                return settled, False
            away = self._absent(build, settled.manifest, sources or {})
            if not away:
                self._hint(build, profile, settled)
                return settled, True
            gone |= away
            if time.monotonic() > deadline:
                raise _gave_up(profile, settled.number, tries)

    def _create(
        self,
        build: str,
        profile: str,
        proposal: Manifest,
        base: Generation | None,
    ) -> tuple[Generation, bool]:
        """Try to commit; (what was to be committed, whether it is there)."""
        self._must_sign()
        manifest = proposal._replace(
            build=build,
            profile=profile,
            line=base.manifest.line if base else os.urandom(16).hex(),
            parent=base.sha256 if base else "",
        )
        self._revive(build, manifest)
        data = encode(manifest, self._sign)
        generation = Generation(manifest, hashlib.sha256(data).hexdigest())
        name = generation_name(build, profile, manifest.number)
        try:
            won = self.backend.put_new(name, data)
        except UnsupportedStore:
            raise
        except StoreError:
            # It failed, or it was done and only the answer failed.
            if not self._is_mine(name, manifest):
                raise
            won = True
        return generation, won or self._is_mine(name, manifest)

    def _must_sign(self) -> None:
        """Refuse to write what those who trust the same keys as we do would not read."""
        if self._verify is not None and self._sign is None:
            raise Untrusted(
                "trusted_keys is set and signing_key is not: nobody who trusts them would read it",
                reason="no_signing_key",
            )

    def _is_mine(self, name: str, manifest: Manifest) -> bool:
        """Whether the generation that is there is the one that we tried to create: a reply may be lost."""
        try:
            return decode(self.backend.get(name), name).nonce == manifest.nonce
        except StoreError:
            return False

    def _stands(self, build: str, profile: str, number: int, highest: int) -> bool:
        """Whether what was created is the newest. A number below may be free again after a prune: a generation there
        is no commit, and then the one it was to follow is gone, too, since prune deletes in ascending order."""
        if max(self.numbers(build, profile), default=number) > number:
            return False
        if not highest:
            return True
        try:
            return self._exists(generation_name(build, profile, highest))
        except (IntegrityError, Untrusted):
            return True  # damaged, but there

    def _revive(self, build: str, manifest: Manifest) -> None:
        """Take the marks off packs that *manifest* is about to name: their age must not count against it later."""
        condemned = set(self.backend.list(f"{build}/condemned"))
        for pack in manifest.packs:
            if pack.sha256 in condemned:
                self.backend.delete(f"{build}/condemned/{pack.sha256}")

    def _absent(self, build: str, manifest: Manifest, sources: Sources) -> frozenset[str]:
        """The packs of a committed *manifest* that are not there and can't be stored again."""
        absent = set()
        for sha256 in self.lost(build, manifest.packs):
            if sha256 in sources:
                self.backend.put(f"{build}/packs/{sha256}.tar.zst", sources[sha256])
            else:
                absent.add(sha256)
        return frozenset(absent)

    def _hint(self, build: str, profile: str, generation: Generation) -> None:
        with contextlib.suppress(StoreError):
            self.backend.put(f"{build}/profiles/{profile}/CURRENT", b"%d\n" % generation.number)
        if self.memory is not None:
            self.memory.note(generation.manifest.line, generation.number)


def renamed(pack: Pack, source: Source) -> tuple[Pack, Source]:
    """The same files as a pack of another name: a frame is appended that lies behind the end of the tar."""
    raw = os.urandom(512)
    frame = compressor("zstd:1")(raw)
    if isinstance(source, bytes):
        source += frame
        digest = hashlib.sha256(source)
    else:
        with open(source, "r+b") as file:
            digest = hashlib.sha256()
            while block := file.read(1 << 20):
                digest.update(block)
            file.write(frame)
            digest.update(frame)
    frames = (*pack.frames, (len(frame), len(raw), hashlib.sha256(frame).hexdigest()))
    return pack._replace(sha256=digest.hexdigest(), size=pack.size + len(frame), frames=frames), source


def _gave_up(profile: str, number: int, tries: int) -> CommitConflict:
    return CommitConflict(
        f"others kept publishing to {profile}: gave up after {tries} tries; the next publish tries again",
        number=number,
        tries=tries,
    )
