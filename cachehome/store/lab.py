"""One build of a store, and publishers that bring a few small entries: for drills, load and tests."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection

from cachehome.errors import IntegrityError, NotInStore
from cachehome.store.backend import Backend
from cachehome.store.entries import Entry, File
from cachehome.store.manifest import Manifest, Pack
from cachehome.store.merge import Addition
from cachehome.store.pack import END, Layout, check_frame, compressor, decompressor, padding, tar_header
from cachehome.store.store import Generation, Store

SCRATCH = "cachehome-stress"  # where a store is tried out, beside what it holds
BUILD = hashlib.sha256(b"cachehome-lab").hexdigest()


class Lab:
    """One build of the store on *backend*."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.store = Store(backend)

    def publish(
        self,
        store: Store | None = None,
        profile: str = "p",
        *,
        seconds: float = 5.0,
        lost: Collection[str] = (),
        **files: str,
    ) -> tuple[Generation, bool]:
        """Publish entries, name=content, as cachehome.sync does: packs first, then the commit."""
        return self.bring(*files.items(), store=store, profile=profile, seconds=seconds, lost=lost)

    def bring(
        self,
        *entries: str | tuple[str, str],
        store: Store | None = None,
        profile: str = "p",
        seconds: float = 5.0,
        lost: Collection[str] = (),
    ) -> tuple[Generation, bool]:
        """The same with entries as names, or (name, content)."""
        store = store or self.store
        pairs = [(entry, entry) if isinstance(entry, str) else entry for entry in entries]
        new, stored = addition({name: content.encode() for name, content in pairs})
        ((pack, source),) = store.add_packs(BUILD, [(new.packs[0], stored)])
        return store.commit(
            BUILD,
            profile,
            new._replace(packs=(pack,)),
            deadline=time.monotonic() + seconds,
            lost=lost,
            sources={pack.sha256: source},
        )

    def newest(self, profile: str = "p") -> Manifest | None:
        """The newest generation's manifest."""
        found = self.store.newest(BUILD, profile)
        return found.manifest if found else None

    def names(self, profile: str = "p") -> set[str]:
        """Names of the entries of the newest generation."""
        manifest = self.newest(profile)
        return {name for _, name in manifest.entries} if manifest else set()

    def numbers(self, profile: str = "p") -> list[int]:
        return self.store.numbers(BUILD, profile)

    def pack(self, profile: str, entry: str) -> str:
        """sha256 of the pack that holds an entry of the newest generation."""
        manifest = self.newest(profile)
        assert manifest is not None
        return manifest.packs[manifest.entries["stress", entry].files[0].pack].sha256

    def whole(self, profile: str = "p") -> None:
        """Read every byte of the newest generation. Raises `IntegrityError`, `NotInStore`."""
        manifest = self.newest(profile)
        if manifest is None:
            raise NotInStore(f"{profile} has no generation that can be read", name=profile)
        check(self.store, manifest)


def small_pack(files: dict[str, bytes]) -> tuple[Pack, bytes, dict[str, int]]:
    """(pack, its bytes, where each file lies) of a few small files in one frame."""
    raw = bytearray()
    offsets = {}
    for path, data in sorted(files.items()):
        raw += tar_header(path, len(data), 0o600)
        offsets[path] = len(raw)
        raw += data + padding(len(data))
    raw += END
    stored = compressor("zstd:1")(bytes(raw))
    digest = hashlib.sha256(stored).hexdigest()
    return Pack(digest, len(stored), False, 0, ((len(stored), len(raw), digest),)), stored, offsets


def addition(files: dict[str, bytes], origin: str = "stress") -> tuple[Addition, bytes]:
    """An addition of one entry a file, in one pack, and the pack's bytes."""
    pack, stored, offsets = small_pack({f"stress/{name}": data for name, data in files.items()})
    entries = {}
    for name, data in files.items():
        file = File("", len(data), 0o600, hashlib.sha256(data).hexdigest(), 0, offsets[f"stress/{name}"])
        entries["stress", name] = Entry("stress", name, 0, False, (file,))
    return Addition(entries, (pack,), ({"directories": {"stress": origin}},)), stored


def check(store: Store, manifest: Manifest) -> None:
    """Read every byte that *manifest* names. Raises `IntegrityError`, `NotInStore`."""
    decode = decompressor()
    raw: dict[int, bytes] = {}
    for number, pack in enumerate(manifest.packs):
        stored = store.backend.get(f"{manifest.build}/{pack.name}")
        at = Layout(pack).stored
        parts = []
        for frame, (_, size, _) in enumerate(pack.frames):
            part = stored[at[frame] : at[frame + 1]]
            check_frame(part, pack, frame)
            parts.append(decode(part, size))
        raw[number] = b"".join(parts)
    for entry in manifest.entries.values():
        for file in entry.files:
            data = raw[file.pack][file.offset : file.offset + file.size]
            if hashlib.sha256(data).hexdigest() != file.sha256:
                raise IntegrityError(f"{entry.name} is not what the manifest says", reason="file_damaged")


def clear(backend: Backend, prefix: str = "") -> None:
    """Remove all that lies below *prefix*, and it."""

    def below(prefix: str) -> None:
        for name in backend.list(prefix):
            path = f"{prefix}/{name}".lstrip("/")
            below(path)
            backend.delete(path)

    for name in backend.temporaries(prefix):
        backend.delete(name)
    below(prefix)
    for name in backend.temporaries(prefix):
        backend.delete(name)
    backend.delete(prefix)
