"""Reading a store: what is there, lines of generations, marks. Writes nothing but what this node remembers.

    <url>/cachehome-v1/<build>/identity.json                       the build, in full, for people and for the diff
                              /packs/<sha256>.tar.zst              immutable; shared by the build's profiles
                              /profiles/<profile>/identity.json
                                                 /generations/<n>  immutable; creating the next number IS the commit
                                                 /CURRENT          a hint for people: the newest number; never decides
                                                 /used             its age: when somebody last used the profile
                              /denied, pins, condemned             marks.py
                              /pruned                              its age: when a publisher last pruned on the way

The newest generation is the highest number listed. Holes and strays are legal. Listings may lag, and so may the answer
that a name is not there.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import re
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

from cachehome.errors import IntegrityError, NotInStore, StoreError, StoreUnavailable, Untrusted
from cachehome.store import document, marks
from cachehome.store.backend import Backend, Nested
from cachehome.store.manifest import MAX_STORED, Manifest, Pack, decode
from cachehome.store.memory import Memory

LAYOUT = "cachehome-v1"
_DIGITS = 8
_DECODED = 4  # manifests kept
_HASH = re.compile("[0-9a-f]{64}")
_LARGEST_IDENTITY = 1 << 20  # bytes; one that is cut short is none
_MOST_DIGITS = 18  # what JSON holds as a whole number; a longer name is a stray, and must not end the line
_FIRST_WAIT = 0.05
_LAG_TRIES = 5  # how often a listing is asked again that shows a generation which is not there
_UNREADABLE_SECONDS = 3600.0  # a generation that can't be read (EIO, EACCES) may be readable again soon

Refused = Callable[[int, StoreError], None]


class Generation(NamedTuple):
    """A manifest that was read and verified, and the sha256 of its bytes."""

    manifest: Manifest
    sha256: str

    @property
    def number(self) -> int:
        return self.manifest.number


class Head(NamedTuple):
    """The end of a line: the highest number there is, and the newest generation that can be read."""

    highest: int
    generation: Generation | None


class Reader:
    """The generations below one backend. Raises `StoreUnavailable` when the backend does not work.

    *memory*: what this node has seen of each line; None: nothing.
    """

    def __init__(
        self, backend: Backend, *, sign: Any = None, verify: Any = None, memory: Memory | None = None
    ) -> None:
        self.backend = Nested(backend, LAYOUT)
        self.url = backend.url
        self.memory = memory
        self._decoded: dict[str, Generation] = {}
        self._sign = sign
        self._verify = verify
        self._verified: dict[str, int] = {}

    # -- what is there -------------------------------------------------------------------------------------------------

    def builds(self) -> list[str]:
        """Hashes of all builds."""
        return sorted(name for name in self.backend.list("") if _HASH.fullmatch(name))

    def profiles(self, build: str) -> list[str]:
        """Names of the profiles of *build*."""
        return sorted(self.backend.list(f"{build}/profiles"))

    def numbers(self, build: str, profile: str) -> list[int]:
        """Numbers of the generations listed, ascending. The last one is the newest, whatever CURRENT says."""
        names = self.backend.list(f"{build}/profiles/{profile}/generations")
        return sorted(
            int(name)
            for name in names
            if _DIGITS <= len(name) <= _MOST_DIGITS and name.isdecimal() and name.isascii()
        )

    def packs(self, build: str) -> set[str]:
        """sha256 of each pack that is listed."""
        names = self.backend.list(f"{build}/packs")
        return {name.removesuffix(".tar.zst") for name in names if name.endswith(".tar.zst")}

    def identity(self, build: str, profile: str | None = None) -> dict[str, Any] | None:
        """The build's identity, or the profile's, as it was published; None if it is not there."""
        name = f"{build}/profiles/{profile}/identity.json" if profile else f"{build}/identity.json"
        try:
            found = document.read(self.backend.get(name, 0, _LARGEST_IDENTITY))
        except (NotInStore, IntegrityError, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def usage(self, build: str) -> tuple[int, int]:
        """Inodes and bytes of *build*'s directory: packs, manifests, marks, leftovers, all of it."""
        return self.backend.usage(build)

    # -- reading -------------------------------------------------------------------------------------------------------

    def read(self, build: str, profile: str, number: int, highest: int | None = None) -> Generation:
        """One generation, verified. Raises `NotInStore`, `IntegrityError`, `Untrusted`.

        *highest*: the highest number listed; a line that this node has seen higher is refused.
        """
        name = generation_name(build, profile, number)
        generation = self._decode(name, self.backend.get(name, 0, MAX_STORED + 1))
        manifest = generation.manifest
        if (manifest.build, manifest.profile, manifest.number) != (build, profile, number):
            raise IntegrityError(
                f"the manifest {name} belongs elsewhere: {manifest.build[:8]}/{manifest.profile}/{manifest.number}",
                name=name,
                reason="manifest_misplaced",
            )
        if highest is not None:
            self._check_line(build, profile, manifest, highest)
        return generation

    def _decode(self, name: str, data: bytes) -> Generation:
        """Verify and decode; what was decoded a moment ago, as a commit and its check do, is not decoded again."""
        sha256 = hashlib.sha256(data).hexdigest()
        found = self._decoded.get(sha256)
        if found is None:
            found = Generation(decode(data, name, self._verify), sha256)
            while len(self._decoded) >= _DECODED:
                del self._decoded[next(iter(self._decoded))]
            self._decoded[sha256] = found
        return found

    def _check_line(self, build: str, profile: str, manifest: Manifest, highest: int) -> None:
        if self.memory is None:
            return
        if self._verify is not None:
            # Anybody may list a number; of signed lines only those count that were verified, newest first.
            highest = self._verified[manifest.line] = max(
                self._verified.get(manifest.line, 0), manifest.number
            )
        seen = self.memory.highest(manifest.line)
        if seen <= highest:
            if manifest.number > seen:
                self.memory.note(manifest.line, manifest.number)
            return
        with contextlib.suppress(IntegrityError, Untrusted):
            if self._exists(generation_name(build, profile, seen)):
                return  # the listing lags
        raise IntegrityError(
            f"the line of {build[:8]}/{profile} ends at generation {highest}, and this node has seen {seen}: somebody"
            f" has shortened it; to accept that, remove {self.memory.path(manifest.line)}",
            name=generation_name(build, profile, highest),
            reason="line_shortened",
        )

    def _exists(self, name: str) -> bool:
        """Whether *name* can be opened: less cached than a listing or a status."""
        try:
            self.backend.get(name, 0, 1)
        except NotInStore:
            return False
        return True

    def newest(self, build: str, profile: str, refused: Refused | None = None) -> Generation | None:
        """The newest generation that can be read and trusted; *refused* hears of each newer one that can't.

        Raises `IntegrityError` if the line is shorter than this node has seen it.
        """
        return self.head(build, profile, refused=refused).generation

    def head(
        self,
        build: str,
        profile: str,
        at_least: int = 0,
        refused: Refused | None = None,
        *,
        for_writing: bool = False,
    ) -> Head:
        """The end of a line. *at_least*: a number that is there, whatever the listing shows.

        *for_writing*: raises `StoreUnavailable` if the newest one may be readable again in a moment: to build on an
        older one would lose what it holds.
        """
        wait = _FIRST_WAIT
        for attempt in range(_LAG_TRIES):
            numbers = self._numbers(build, profile, at_least)
            highest = max(numbers, default=0)
            vanished = False
            for number in reversed(numbers):
                try:
                    generation = self._read_twice(build, profile, number)
                except NotInStore:
                    vanished = True
                    if attempt + 1 < _LAG_TRIES:
                        break  # pruned since it was listed, or not to be seen yet: list again
                except (IntegrityError, Untrusted) as error:
                    if for_writing:
                        self._must_be_old(build, profile, number, error)
                    if refused is not None and not vanished:
                        refused(number, error)
                else:
                    self._check_line(build, profile, generation.manifest, highest)
                    return Head(highest, generation)
            if not vanished:
                return Head(highest, None)
            time.sleep(wait if attempt else 0)
            wait *= 2
        return Head(highest, None)

    def _numbers(self, build: str, profile: str, at_least: int) -> list[int]:
        """The numbers listed, and those from *at_least* on that can be opened though they are not listed."""
        numbers = set(self.numbers(build, profile))
        if at_least:
            number = max(at_least, max(numbers, default=0))
            numbers.add(at_least)
            while self._exists(generation_name(build, profile, number + 1)):
                number += 1
                numbers.add(number)
        return sorted(numbers)

    def _read_twice(self, build: str, profile: str, number: int) -> Generation:
        """A read may be short or garbled for once. What was damaged twice is damaged."""
        try:
            return self.read(build, profile, number)
        except IntegrityError:
            return self.read(build, profile, number)

    def _must_be_old(self, build: str, profile: str, number: int, error: StoreError) -> None:
        if error.fields.get("reason") != "unreadable":
            return
        with contextlib.suppress(NotInStore):
            if self.backend.age(generation_name(build, profile, number)) < _UNREADABLE_SECONDS:
                raise StoreUnavailable(
                    f"generation {number} of {build[:8]}/{profile} can't be read just now ({error}): the next publish"
                    " tries again",
                    number=number,
                    reason="unreadable",
                )

    def generations(self, build: str, profile: str) -> Iterator[Generation]:
        """All generations that can be read, ascending."""
        for number in self.numbers(build, profile):
            with contextlib.suppress(NotInStore, IntegrityError, Untrusted):
                yield self.read(build, profile, number)

    def fallback(
        self, build: str, profile: str, refused: Callable[[str, int, StoreError], None] | None = None
    ) -> Generation | None:
        """The newest generation of the build's other profiles; *refused* hears (profile, number, error) of what can't
        be read or trusted."""
        found = []
        for other in self.profiles(build):
            if other != profile:
                hear = functools.partial(refused, other) if refused is not None else None
                with contextlib.suppress(IntegrityError):  # a shortened line
                    found.append(self.newest(build, other, hear))
        return max(
            (generation for generation in found if generation is not None),
            key=lambda generation: generation.manifest.created,
            default=None,
        )

    # -- marks -------------------------------------------------------------------------------------------------------

    def denied(self, build: str) -> marks.Denials:
        """What is denied to everybody. A list that can't be read denies nothing and is reported."""
        lists, unreadable = [], []
        for label in sorted(self.backend.list(f"{build}/denied")):
            name = f"{build}/denied/{label}"
            try:
                lists.append(marks.decode(name, self.backend.get(name), self._verify))
            except NotInStore:
                continue
            except (IntegrityError, Untrusted) as error:
                unreadable.append((label, str(error)))
        return marks.Denials.of(lists, unreadable)

    def pins(self, build: str) -> dict[str, Generation]:
        """The pinned manifests that can be read, by label."""
        found = {}
        for label in sorted(self.backend.list(f"{build}/pins")):
            name = f"{build}/pins/{label}"
            with contextlib.suppress(NotInStore, IntegrityError, Untrusted):
                generation = self._decode(name, self.backend.get(name))
                if generation.manifest.build == build:
                    found[label] = generation
        return found

    def find(self, build: str, profile: str, number: int) -> Generation:
        """`read`, or the pinned copy of a generation that retention has removed."""
        try:
            return self.read(build, profile, number)
        except NotInStore:
            for generation in self.pins(build).values():
                if (generation.manifest.profile, generation.number) == (profile, number):
                    return generation
            raise

    def has_pack(self, build: str, pack: Pack) -> bool:
        """Whether *pack* is there and as long as it must be, whatever the listing shows."""
        try:
            return self.backend.size(f"{build}/{pack.name}") == pack.size
        except NotInStore:
            return False

    def lost(self, build: str, packs: Collection[Pack]) -> list[str]:
        """Those of *packs* that are gone. One listing, whatever their number."""
        listed = self.packs(build) if packs else set()
        return [pack.sha256 for pack in packs if pack.sha256 not in listed and not self.has_pack(build, pack)]


def generation_name(build: str, profile: str, number: int) -> str:
    """The name of a generation in the store."""
    return f"{build}/profiles/{profile}/generations/{number:0{_DIGITS}d}"
