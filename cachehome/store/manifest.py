"""The manifest: the full list of entries of one key at one moment, and its format on disk.

    {"format":"cachehome-manifest","version":1,"sha256":"<of the payload as stored>","signature":"..."}\\n
    <payload: one zstd frame of one JSON object>

    build profile line number parent nonce created    what this manifest is; nothing can be replayed elsewhere
    publisher                                          who wrote it: host job, versions
    families   ["inductor", "triton"]
    origins    [{"root", "tag", "slot", ...}]          where a pack's files came from
    packs      [{"sha256", "size", "ir", "origin", "frames": [[bytes, raw bytes, sha256], ...]}]
    entries    columns: family, name, since, slim, files     (files: how many of the columns below belong to it)
    files      columns: suffix, size, mode, pack, offset, and sha256 as one string of 64 letters each

A file's path below its family's live directory is its entry's name + its suffix; its bytes are `size` bytes at `offset`
of its pack's uncompressed stream. Columns, not objects: 100,000 files stay cheap.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from operator import add, gt
from types import MappingProxyType
from typing import Any, NamedTuple

from cachehome.errors import IntegrityError, missing_extra
from cachehome.store.document import pieces, read, write
from cachehome.store.entries import Columns, Entry, Files, columns

FORMAT = "cachehome-manifest"
VERSION = 1
# A manifest of 100,000 files takes 4 MB and unpacks to 20. Limits stop a bomb before it is unpacked.
MAX_STORED = 64 << 20
MAX_PAYLOAD = 256 << 20
MAX_FILES = 1_000_000
MAX_PACKS = 10_000
MAX_FRAME = 64 << 20  # raw; writers make frames of 4 MB
_MAX_HEADER = 64 << 10
_MAX_DEPTH = 32
_SHORT = 200  # a path no longer than this is right if its two halves are
# Relative, plain, and possible below any live directory. No part begins with a dot: those are our own and temporary
# names, and `.` and `..`. Nothing that a terminal would act on.
_PART = r"[^./\\\x00-\x1f\x7f][^/\\\x00-\x1f\x7f]{0,254}"
_PATH = re.compile(rf"{_PART}(?:/{_PART}){{0,{_MAX_DEPTH - 1}}}")
_FAMILY = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_HASH = re.compile(r"[0-9a-f]{64}")


class Pack(NamedTuple):
    """One pack as the manifest names it. `frames`: (stored bytes, raw bytes, sha256 of the stored bytes) each."""

    sha256: str
    size: int
    ir: bool
    origin: int
    frames: tuple[tuple[int, int, str], ...]

    @property
    def name(self) -> str:
        return f"packs/{self.sha256}.tar.zst"


class Manifest(NamedTuple):
    """A manifest in memory. A new generation is made with `_replace`."""

    build: str
    profile: str
    line: str
    number: int
    parent: str
    nonce: str
    created: float
    entries: dict[tuple[str, str], Entry]
    packs: tuple[Pack, ...]
    origins: tuple[dict[str, Any], ...]
    publisher: Mapping[str, Any] = MappingProxyType({})

    @property
    def file_count(self) -> int:
        return sum(len(entry.files) for entry in self.entries.values())

    @property
    def raw_bytes(self) -> int:
        return sum(file.size for entry in self.entries.values() for file in entry.files)

    def origin_of(self, entry: Entry) -> dict[str, Any]:
        """Where *entry* was made: the origin of the pack that holds it."""
        return self.origins[self.packs[entry.packs[0]].origin]


def encode(manifest: Manifest, sign: Any = None) -> bytes:
    """The bytes of *manifest*. *sign*: bytes -> signature text, over the header line without the signature.

    Raises `IntegrityError` for entries that exclude each other: no reader would take it.
    """
    zstandard = load_zstandard()
    families = sorted({family for family, _ in manifest.entries})
    index = {family: number for number, family in enumerate(families)}
    _claim(manifest)
    entries = [manifest.entries[key] for key in sorted(manifest.entries)]
    head = write(
        {
            "build": manifest.build,
            "profile": manifest.profile,
            "line": manifest.line,
            "number": manifest.number,
            "parent": manifest.parent,
            "nonce": manifest.nonce,
            "created": manifest.created,
            "publisher": dict(manifest.publisher),
            "families": families,
            "origins": manifest.origins,
            "packs": [
                {"sha256": p.sha256, "size": p.size, "ir": p.ir, "origin": p.origin, "frames": p.frames}
                for p in manifest.packs
            ],
        }
    )
    rows = {
        "family": [index[entry.family] for entry in entries],
        "name": [entry.name for entry in entries],
        "since": [entry.since for entry in entries],
        "slim": [int(entry.slim) for entry in entries],
        "files": [len(entry.files) for entry in entries],
    }
    files = columns(entries)._asdict()
    payload = b"".join(
        [head[:-1], b',"entries":', *pieces(rows), b',"files":', *pieces(files, digits="sha256"), b"}"]
    )
    # Most of it are hashes, which no level makes smaller: level 3 takes twice the time for a 14th of the bytes.
    stored: bytes = zstandard.ZstdCompressor(level=1).compress(payload)
    header = {"format": FORMAT, "version": VERSION, "sha256": hashlib.sha256(stored).hexdigest()}
    if sign is not None:
        header["signature"] = sign(write(header))
    return write(header) + b"\n" + stored


def _claim(manifest: Manifest) -> None:
    claims: dict[str, _Claims] = {}
    try:
        for entry in manifest.entries.values():
            claim = claims.setdefault(entry.family, _Claims())
            suffixes = entry.suffixes
            for suffix in suffixes if suffixes[0][:1] != "/" else [""]:
                claim.add(entry.name + suffix)
        for claim in claims.values():
            claim.check()
    except ValueError as error:
        raise IntegrityError(f"entries exclude each other: {error}", reason="entries_collide") from None


def split(data: bytes, name: str) -> tuple[dict[str, Any], memoryview]:
    """Header and stored payload of a manifest's bytes, the payload checked against the header, not yet decoded."""
    line, newline, _ = data[: _MAX_HEADER + 1].partition(b"\n")
    try:
        if not newline:
            raise ValueError("no header line")
        header = read(line)
        if header.get("format") != FORMAT:
            raise ValueError("another format")
        if write(header) != line:
            raise ValueError("written in another way than it is signed")
        if header["version"] != VERSION:
            raise ValueError(f"version {header['version']!r}, this cachehome reads {VERSION}")
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise _broken(name, f"header: {error}") from None
    if len(data) > MAX_STORED:
        raise _broken(name, "larger than any manifest")
    stored = memoryview(data)[len(line) + 1 :]  # to copy it would take new memory
    if hashlib.sha256(stored).hexdigest() != header.get("sha256"):
        raise _broken(name, "sha256 differs")
    return header, stored


def decode(data: bytes, name: str, verify: Any = None) -> Manifest:
    """Read a manifest. *verify*: (signed bytes, signature or None) -> None, raises `Untrusted`.

    Raises `IntegrityError` for anything that is not exactly a manifest of version 1.
    """
    zstandard = load_zstandard()
    header, stored = split(data, name)
    if verify is not None:
        signature = header.pop("signature", None)
        verify(write(header), signature)
    try:
        raw = zstandard.get_frame_parameters(stored).content_size
        if not 0 < raw <= MAX_PAYLOAD or zstandard.frame_header_size(stored) >= len(stored):
            raise ValueError("size of the payload")
        decoder = zstandard.ZstdDecompressor()
        payload = decoder.decompress(stored, max_output_size=raw, allow_extra_data=False)
        if len(payload) != raw:
            raise ValueError("not one whole frame")
        return _manifest(read(payload))
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        IndexError,
        zstandard.ZstdError,
        OverflowError,
    ) as error:
        raise _broken(name, f"{type(error).__name__}: {error}") from None


def _manifest(payload: dict[str, Any]) -> Manifest:
    _typed(
        payload,
        build=str,
        profile=str,
        line=str,
        number=int,
        parent=str,
        nonce=str,
        publisher=dict,
    )
    _typed(payload, families=list, origins=list, packs=list, entries=dict, files=dict)
    origins = tuple(payload["origins"])
    for origin in origins:
        _origin(origin)
    if len(payload["packs"]) > MAX_PACKS:
        raise ValueError("too many packs")
    packs = tuple(_pack(row) for row in payload["packs"])
    if any(not 0 <= pack.origin < len(origins) for pack in packs):
        raise ValueError("a pack without origin")
    if len({pack.sha256 for pack in packs}) != len(packs):
        raise ValueError("two packs have one name")
    raw = [sum(frame[1] for frame in pack.frames) for pack in packs]
    return Manifest(
        build=payload["build"],
        profile=payload["profile"],
        line=payload["line"],
        number=payload["number"],
        parent=payload["parent"],
        nonce=payload["nonce"],
        created=float(payload["created"]),
        publisher=payload["publisher"],
        packs=packs,
        origins=origins,
        entries={entry.key: entry for entry in _entries(payload, raw)},
    )


def _origin(origin: Any) -> None:
    if type(origin) is not dict:
        raise ValueError("an origin is not an object")
    usual: dict[str, Any] = {"directories": {}, "tag": "", "slot": "", "publisher": {}} | origin
    _typed(usual, directories=dict, tag=str, slot=str, publisher=dict)
    _all(str, list(usual["directories"].values()))


def _typed(document: dict[str, Any], **kinds: type) -> None:
    for key, kind in kinds.items():
        if type(document[key]) is not kind:  # True is an int, too
            raise ValueError(f"{key} is no {kind.__name__}")


def _all(kind: type, *columns: list[Any]) -> None:
    """Raise ValueError unless all that *columns* hold is of this *kind*."""
    for column in columns:
        if type(column) is not list or not set(map(type, column)) <= {kind}:
            raise ValueError(f"a column holds something else than {kind.__name__}")


def _pack(row: dict[str, Any]) -> Pack:
    _typed(row, sha256=str, size=int, ir=bool, origin=int, frames=list)
    frames = tuple((stored, raw, digest) for stored, raw, digest in row["frames"])
    _all(int, [frame[0] for frame in frames], [frame[1] for frame in frames])
    _all(str, [frame[2] for frame in frames])
    if not _HASH.fullmatch(row["sha256"]):
        raise ValueError("a pack's name")
    for stored, raw, digest in frames:
        # Level 19 makes what can't be compressed a little longer.
        if (
            not 0 < stored <= MAX_FRAME + (1 << 20)
            or not 0 <= raw <= MAX_FRAME
            or not _HASH.fullmatch(digest)
        ):
            raise ValueError("a pack's frames")
    if sum(frame[0] for frame in frames) != row["size"]:
        raise ValueError("a pack's size")
    return Pack(row["sha256"], row["size"], row["ir"], row["origin"], frames)


def _entries(payload: dict[str, Any], raw: list[int]) -> Iterator[Entry]:
    families = payload["families"]
    columns, files = payload["entries"], payload["files"]
    names, counts, since = columns["name"], columns["files"], columns["since"]
    suffixes, sizes, modes = files["suffix"], files["size"], files["mode"]
    packs, offsets, hashes = files["pack"], files["offset"], files["sha256"]
    _all(str, families, names, suffixes)
    _typed(files, sha256=str)
    if hashes.encode("ascii").translate(None, b"0123456789abcdef"):
        raise ValueError("the hashes")
    _all(int, counts, columns["family"], since, columns["slim"], sizes, modes, packs, offsets)
    if any(not _FAMILY.fullmatch(family) for family in families) or len(set(families)) != len(families):
        raise ValueError("the families")
    total = len(suffixes)
    if total > MAX_FILES:
        raise ValueError("too many files")
    if not len(sizes) == len(modes) == len(packs) == len(offsets) == total or len(hashes) != 64 * total:
        raise ValueError("columns of files differ in length")
    if not len(names) == len(counts) == len(columns["family"]) == len(since) == len(columns["slim"]):
        raise ValueError("columns of entries differ in length")
    if sum(counts) != total or (counts and min(counts) < 1):
        raise ValueError("files of entries")
    if min(columns["family"], default=0) < 0 or (total and min(map(min, (sizes, offsets, packs))) < 0):
        raise ValueError("a number below zero")
    # By column, not by file: there may be a hundred thousand of them.
    if max(packs, default=-1) >= len(raw) or any(
        map(gt, map(add, offsets, sizes), map(raw.__getitem__, packs))
    ):
        raise ValueError("a file lies outside its pack")
    whole = Columns(suffixes, sizes, [mode & 0o777 for mode in modes], packs, offsets, hashes)
    claims = [_Claims() for _ in families]
    paths = Paths()
    begin = 0
    for name, count, family, generation, slim in zip(
        names, counts, columns["family"], since, columns["slim"], strict=True
    ):
        end = begin + count
        own = tuple(suffixes[begin:end])
        paths.check(name, own)
        for suffix in own if own[0][:1] != "/" else [""]:
            claims[family].add(name + suffix)
        yield Entry(families[family], name, generation, bool(slim), Files(whole, begin, end))
        begin = end
    for claim in claims:
        claim.check()


class Paths:
    """Which paths a manifest may hold."""

    def __init__(self) -> None:
        self._trees: dict[tuple[str, ...], int] = {}
        """Suffixes that passed, as kernels share them: length of the longest."""

    def check(self, name: str, suffixes: tuple[str, ...]) -> None:
        """Raise ValueError unless it may hold an entry of this *name* with these *suffixes*."""
        check_path(name)
        if suffixes[0][:1] == "/":
            if len(name) + self._trees.get(suffixes, _SHORT) > _SHORT:
                _check_tree(name, suffixes)
                self._trees[suffixes] = max(map(len, suffixes))
            return
        for suffix in suffixes:
            if "/" in suffix:
                raise ValueError(f"the suffix {suffix[:80]!r}")
            check_path(name + suffix)


def _check_tree(name: str, suffixes: tuple[str, ...]) -> None:
    for suffix in suffixes:
        check_path(name + suffix)
        if suffix[0] != "/":
            raise ValueError(f"{name} is half a directory")
    _Claims(suffix[1:] for suffix in suffixes).check()


class _Claims:
    """Paths that one family's entries take: no two alike, none of them where another needs a directory."""

    def __init__(self, paths: Iterable[str] = ()) -> None:
        self.paths: set[str] = set()
        self.directories: set[str] = set()
        for path in paths:
            self.add(path)

    def add(self, path: str) -> None:
        if path in self.paths:
            raise ValueError(f"two entries hold {path}")
        self.paths.add(path)
        parent = path.rpartition("/")[0]
        while parent and parent not in self.directories:
            self.directories.add(parent)
            parent = parent.rpartition("/")[0]

    def check(self) -> None:
        if not self.paths.isdisjoint(self.directories):
            raise ValueError(f"a file where a directory must be: {min(self.paths & self.directories)}")


def check_path(path: str) -> None:
    """Raise ValueError unless *path* is relative, plain and short enough to be made below any live directory."""
    if not _PATH.fullmatch(path) or len(path) > 1024:
        raise ValueError(f"the path {path[:80]!r}")
    if not path.isascii() and any(len(part.encode()) > 255 for part in path.split("/")):
        raise ValueError(f"the path {path[:80]!r}")


def _broken(name: str, reason: str) -> IntegrityError:
    return IntegrityError(f"the manifest {name} is damaged: {reason}", name=name, reason="manifest_damaged")


def load_zstandard() -> Any:
    """The library. Raises `MissingExtra`."""
    try:
        import zstandard
    except ImportError:
        raise missing_extra("zstandard", "sync") from None
    return zstandard
