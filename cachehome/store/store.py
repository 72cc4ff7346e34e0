"""A store: builds, each with packs and one line of generations a profile.

    <url>/cachehome-v1/<build>/identity.json                         the build, in full, for people and for the diff
                              /packs/<sha256>.tar.zst                immutable; shared by the build's profiles
                              /profiles/<profile>/identity.json
                                                 /generations/<number>   immutable; creating the next number IS the commit
                                                 /CURRENT            a hint: the newest number; never decides

Write order: packs, then the generation that names them, then the hint. Read order is the reverse without the hint: the
newest generation is the highest number listed. Holes and strays are legal.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from cachehome.errors import CommitConflict, ConfigError, IntegrityError, NotInStore, StoreError, Untrusted
from cachehome.store.backend import Backend, Nested
from cachehome.store.manifest import MAX_STORED, Entry, Manifest, Pack, decode, encode
from cachehome.store.owners import Owners
from cachehome.store.posix import PosixBackend
from cachehome.store.signing import Keys

if TYPE_CHECKING:
    from cachehome.settings import Settings

LAYOUT = "cachehome-v1"
_DIGITS = 8
_MOST_DIGITS = 18  # what JSON holds as a whole number; a longer name is a stray, and must not end the line
_FIRST_WAIT = 0.05
_LONGEST_WAIT = 2.0


class Generation(NamedTuple):
    """A manifest that was read and verified, and the sha256 of its bytes."""

    manifest: Manifest
    sha256: str

    @property
    def number(self) -> int:
        return self.manifest.number


@dataclass(frozen=True, slots=True)
class Addition:
    """What one publisher brings: entries whose `File.pack` counts in `packs`, and where they came from.

    *overwrite*: keys whose newer bytes replace older ones (growing entries); for all others the first one wins.
    *base*: where a profile without a generation starts from.
    """

    entries: dict[tuple[str, str], Entry]
    packs: tuple[Pack, ...]
    origins: tuple[dict[str, Any], ...]
    overwrite: frozenset[tuple[str, str]] = frozenset()
    base: Manifest | None = None
    publisher: dict[str, Any] = field(default_factory=dict)


class Store:
    """The generations below one backend. Raises `StoreUnavailable` when the backend does not work."""

    def __init__(self, backend: Backend, *, sign: Any = None, verify: Any = None) -> None:
        self.backend = Nested(backend, LAYOUT)
        self.url = backend.url
        self._sign = sign
        self._verify = verify

    def __repr__(self) -> str:
        return f"Store({self.url!r})"

    @classmethod
    def open(cls, url: str, settings: Settings | None = None) -> Store:
        """The store at *url*, a directory or a `file://` URL, with the owners and keys that *settings* trust.

        Raises `StoreUnavailable` if it is not there, `Untrusted` if strangers can write to it.
        """
        path = url.removeprefix("file://")
        if "://" in path or not path.startswith("/"):
            raise ConfigError(
                f"store: {url!r} is not a directory, and this version has no other backend",
                key="store",
                source="store",
                value=url,
                allowed="an absolute directory or file://",
            )
        if settings is None:
            backend = PosixBackend(path)
            backend.check()
            return cls(backend)
        keys = Keys.load(settings)
        owners = Owners(settings.store_owners, shared=settings.shared)
        backend = PosixBackend(path, shared=settings.shared, owners=owners)
        backend.check()
        return cls(backend, sign=keys.sign if keys else None, verify=keys.verify if keys else None)

    # -- what is there ---------------------------------------------------------------------------------------------

    def builds(self) -> list[str]:
        """Hashes of all builds."""
        return sorted(self.backend.list(""))

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
        import orjson

        name = f"{build}/profiles/{profile}/identity.json" if profile else f"{build}/identity.json"
        try:
            found = orjson.loads(self.backend.get(name))
        except (NotInStore, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def usage(self, build: str) -> tuple[int, int]:
        """Files and bytes of *build*'s directory: packs, manifests, marks, all of it."""
        return self._usage(build)

    def _usage(self, prefix: str) -> tuple[int, int]:
        files = size = 0
        for name in self.backend.list(prefix):
            below = f"{prefix}/{name}"
            if name.endswith((".zst", ".json")) or name.isdecimal() or name == "CURRENT":
                with contextlib.suppress(NotInStore):
                    size += self.backend.size(below)
                    files += 1
            else:
                more = self._usage(below)
                files, size = files + more[0], size + more[1]
        return files, size

    # -- reading ---------------------------------------------------------------------------------------------------

    def read(self, build: str, profile: str, number: int) -> Generation:
        """One generation, verified. Raises `NotInStore`, `IntegrityError`, `Untrusted`."""
        name = _generation_name(build, profile, number)
        data = self.backend.get(name, 0, MAX_STORED + 1)
        manifest = decode(data, name, self._verify)
        if (manifest.build, manifest.profile, manifest.number) != (build, profile, number):
            raise IntegrityError(
                f"the manifest {name} belongs elsewhere: {manifest.build[:8]}/{manifest.profile}/{manifest.number}",
                name=name,
                reason="manifest_misplaced",
            )
        return Generation(manifest, hashlib.sha256(data).hexdigest())

    def newest(
        self, build: str, profile: str, refused: Callable[[int, StoreError], None] | None = None
    ) -> Generation | None:
        """The newest generation that can be read and trusted; *refused* hears of each newer one that can't."""
        for number in reversed(self.numbers(build, profile)):
            try:
                return self.read(build, profile, number)
            except NotInStore:
                continue  # pruned since it was listed
            except (IntegrityError, PermissionError) as error:
                if refused is not None:
                    refused(number, error)
        return None

    def fallback(self, build: str, profile: str) -> Generation | None:
        """The newest generation of the build's other profiles."""
        found = [self.newest(build, other) for other in self.profiles(build) if other != profile]
        return max(
            (generation for generation in found if generation is not None),
            key=lambda generation: generation.manifest.created,
            default=None,
        )

    # -- writing ---------------------------------------------------------------------------------------------------

    def add_pack(self, build: str, sha256: str, path: str) -> None:
        """Put the local file *path* into the store as pack *sha256*."""
        self.backend.put(f"{build}/packs/{sha256}.tar.zst", path)

    def add_identity(self, build: str, profile: str, of_build: bytes, of_profile: bytes) -> None:
        """Leave the identities beside what they name, for people and for the diff. The first one stays."""
        self.backend.put_new(f"{build}/identity.json", of_build)
        self.backend.put_new(f"{build}/profiles/{profile}/identity.json", of_profile)

    def commit(
        self, build: str, profile: str, addition: Addition, *, deadline: float, lost: Iterable[str] = ()
    ) -> tuple[Generation, bool]:
        """Make a generation that holds what the newest one holds and *addition*; (generation, whether it is ours).

        *deadline*: `time.monotonic()` after which it gives up with `CommitConflict`. *lost*: packs that are gone;
        entries in them count as lacking.
        """
        lost = frozenset(lost)
        wait = _FIRST_WAIT
        tries = 0
        while True:
            highest = max(self.numbers(build, profile), default=0)
            base = self.newest(build, profile)
            start = base.manifest if base else addition.base
            entries = _missing(start, addition, lost)
            if not entries and base is not None:
                return base, tries > 0
            tries += 1
            manifest = _merge(start, addition, entries, lost, number=highest + 1)
            manifest = replace(
                manifest,
                build=build,
                profile=profile,
                line=base.manifest.line if base else uuid.uuid4().hex,
                parent=base.sha256 if base else "",
            )
            data = encode(manifest, self._sign)
            won = self.backend.put_new(_generation_name(build, profile, manifest.number), data)
            if not won:
                # A lost reply: the winner may be ourselves.
                with contextlib.suppress(NotInStore, IntegrityError, Untrusted):
                    won = self.read(build, profile, manifest.number).manifest.nonce == manifest.nonce
            # A number below the highest may be free again after a prune: what was created there is no commit.
            if won and max(self.numbers(build, profile), default=manifest.number) <= manifest.number:
                with contextlib.suppress(StoreError):
                    self.backend.put(f"{build}/profiles/{profile}/CURRENT", b"%d\n" % manifest.number)
                return Generation(manifest, hashlib.sha256(data).hexdigest()), True
            if won:
                continue
            if time.monotonic() + wait > deadline:
                raise CommitConflict(
                    f"others kept publishing to {profile}: gave up after {tries} tries; the next publish tries again",
                    number=manifest.number,
                    tries=tries,
                )
            time.sleep(random.uniform(0, wait))
            wait = min(2 * wait, _LONGEST_WAIT)


def _generation_name(build: str, profile: str, number: int) -> str:
    return f"{build}/profiles/{profile}/generations/{number:0{_DIGITS}d}"


def _missing(
    start: Manifest | None, addition: Addition, lost: frozenset[str]
) -> dict[tuple[str, str], Entry]:
    """The entries of *addition* that *start* lacks, or holds only in packs that are gone."""
    if start is None:
        return addition.entries
    gone = {number for number, pack in enumerate(start.packs) if pack.sha256 in lost}
    missing = {}
    for key, entry in addition.entries.items():
        there = start.entries.get(key)
        if there is not None and not any(file.pack in gone for file in there.files):
            same = [file.sha256 for file in there.files] == [file.sha256 for file in entry.files]
            if same or key not in addition.overwrite:
                continue
        missing[key] = entry
    return missing


def _merge(
    start: Manifest | None,
    addition: Addition,
    missing: dict[tuple[str, str], Entry],
    lost: frozenset[str],
    number: int,
) -> Manifest:
    """A manifest of all that *start* still has, and of *missing*; packs that nothing names are left out."""
    packs: list[Pack] = []
    origins: list[dict[str, Any]] = []
    entries: dict[tuple[str, str], Entry] = {}
    place: dict[str, int] = {}

    def number_of(pack: Pack, of: tuple[dict[str, Any], ...]) -> int:
        if pack.sha256 not in place:
            origin = of[pack.origin]
            if origin not in origins:
                origins.append(origin)
            place[pack.sha256] = len(packs)
            packs.append(pack._replace(origin=origins.index(origin)))
        return place[pack.sha256]

    def take(
        found: dict[tuple[str, str], Entry],
        of: tuple[Pack, ...],
        origin: tuple[dict[str, Any], ...],
        since: int | None,
    ) -> None:
        moved: dict[int, int] = {}
        for key, entry in found.items():
            files = entry.files
            for file in files:
                if file.pack not in moved:
                    moved[file.pack] = number_of(of[file.pack], origin)
            if any(moved[file.pack] != file.pack for file in files):
                files = tuple(file._replace(pack=moved[file.pack]) for file in files)
            entries[key] = entry._replace(files=files, since=entry.since if since is None else since)

    if start is not None:
        gone = {index for index, pack in enumerate(start.packs) if pack.sha256 in lost}
        kept = {
            key: entry
            for key, entry in start.entries.items()
            if key not in missing and not any(file.pack in gone for file in entry.files)
        }
        take(kept, start.packs, start.origins, None)
    take(missing, addition.packs, addition.origins, number)
    return Manifest(
        build="",
        profile="",
        line="",
        number=number,
        parent="",
        nonce=uuid.uuid4().hex,
        created=time.time(),
        entries=entries,
        packs=tuple(packs),
        origins=tuple(origins),
        publisher=addition.publisher,
    )
