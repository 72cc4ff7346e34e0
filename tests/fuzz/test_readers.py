"""Fuzzing of what reads a store: manifests, frames, marks, and the bookkeeping of a live directory.

Whatever the bytes, a reader gives an object that holds what it promises, or raises `IntegrityError`. `corpus/` keeps
inputs that once mattered: they are tried first, as they are. A failure that Hypothesis finds belongs there.
`CACHEHOME_FUZZ=100` multiplies the number of examples.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import orjson
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cachehome.errors import IntegrityError, NotInStore, StoreUnavailable
from cachehome.identity import Identity
from cachehome.settings import Settings
from cachehome.store.entries import Entry, File
from cachehome.store.manifest import FORMAT, VERSION, Manifest, Pack, check_path, decode, encode
from cachehome.store.pack import decompressor
from cachehome.store.signing import seal, unseal
from cachehome.store.store import Store
from cachehome.sync.live import Live
from cachehome.sync.restore import restore

IDENTITY = Identity({"test": 1}, {"name": "default"})
CORPUS = Path(__file__).parent / "corpus"
FACTOR = int(os.environ.get("CACHEHOME_FUZZ", "1"))
fuzz = settings(
    max_examples=300 * FACTOR, deadline=None, derandomize=FACTOR == 1, suppress_health_check=list(HealthCheck)
)


def sound() -> Manifest:
    digest = "0123456789abcdef" * 4
    entries = {}
    for family, name, suffixes in (
        ("inductor", "ab/cabc", (".cpp", ".so")),
        ("inductor", "cd/c.py", ("",)),
        ("triton", "A" * 52, ("/__grp__k.json", "/k.cubin", "/k.json")),
    ):
        files = tuple(
            File(suffix, 10, 0o600, digest, 0, 512 * number) for number, suffix in enumerate(suffixes)
        )
        entries[family, name] = Entry(family, name, 1, False, files)
    pack = Pack(digest, 30, False, 0, ((10, 4096, digest), (20, 1024, digest)))
    origin = {"directories": {"inductor": "/home/u/x"}, "tag": "t", "slot": "", "publisher": {}}
    return Manifest("b" * 64, "p", "l" * 32, 7, "", "n", 1.5, entries, (pack,), (origin,), {"cachehome": "0"})


SOUND = encode(sound())
PAYLOAD = zstandard.ZstdDecompressor().decompress(SOUND.partition(b"\n")[2])


def wrapped(stored: bytes) -> bytes:
    header = {"format": FORMAT, "version": VERSION, "sha256": hashlib.sha256(stored).hexdigest()}
    return orjson.dumps(header) + b"\n" + stored


def compressed(raw: bytes) -> bytes:
    return bytes(zstandard.ZstdCompressor().compress(raw))


def take(data: bytes) -> Manifest | None:
    """The manifest, checked against all that it promises; None if it was refused."""
    try:
        found = decode(data, "fuzzed")
    except IntegrityError:
        return None
    for (family, name), entry in found.entries.items():
        assert (entry.family, entry.name) == (family, name)
        assert entry.files
        for file in entry.files:
            check_path(name + file.suffix)
            pack = found.packs[file.pack]
            assert 0 <= file.offset <= file.offset + file.size <= sum(raw for _, raw, _ in pack.frames)
            assert 0 <= file.mode <= 0o777
            assert len(file.sha256) == 64
        assert isinstance(found.origin_of(entry), dict)
    assert found.file_count >= len(found.entries)
    assert decode(encode(found), "again") == found  # what can be read can be published again
    return found


# -- the corpus --------------------------------------------------------------------------------------------------------


def kept(kind: str) -> list[Path]:
    return sorted((CORPUS / kind).iterdir())


@pytest.mark.parametrize("path", kept("manifests"), ids=lambda path: path.name)
def test_kept_manifests(path: Path) -> None:
    found = take(path.read_bytes())
    assert (found is not None) is path.name.startswith("good-")


@pytest.mark.parametrize("path", kept("frames"), ids=lambda path: path.name)
def test_kept_frames(path: Path) -> None:
    good, size = path.name.startswith("good-"), int(path.name.rpartition("-")[2])
    try:
        data = decompressor()(path.read_bytes(), size)
    except IntegrityError:
        assert not good
    else:
        assert good
        assert len(data) == size


@pytest.mark.parametrize("path", kept("marks"), ids=lambda path: path.name)
def test_kept_marks(path: Path) -> None:
    try:
        unseal("b/denied/x", path.read_bytes())
    except IntegrityError:
        assert not path.name.startswith("good-")
    else:
        assert path.name.startswith("good-")


# -- mutations ---------------------------------------------------------------------------------------------------------


@st.composite
def mutated(draw: Any, original: bytes) -> bytes:
    """*original* with some bytes changed, cut, added or moved."""
    data = bytearray(original)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        how = draw(st.sampled_from(("set", "cut", "insert", "tail", "copy")))
        if how == "set" and data:
            data[at] = draw(st.integers(0, 255))
        elif how == "cut":
            del data[at : at + draw(st.integers(1, 40))]
        elif how == "insert":
            data[at:at] = draw(st.binary(max_size=20))
        elif how == "tail":
            del data[at:]
        else:
            data[at:at] = data[draw(st.integers(0, max(0, len(data) - 1))) :][: draw(st.integers(1, 40))]
    return bytes(data)


odd = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 64) - 1),
    st.sampled_from([-1, 0, 1, 2, 1 << 31, (1 << 63) - 1, (1 << 64) - 1]),
    st.floats(),
    st.text(max_size=12),
    st.sampled_from(
        ["", "..", "/", "/etc/passwd", "../x", "a" * 64, "0" * 64, "ab/c.py", "ab", "inductor", "e" * 300]
    ),
    st.lists(st.integers(0, 3), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of all that lies below *node*."""
    found = [path] if path else []
    if isinstance(node, dict | list):
        for key, value in node.items() if isinstance(node, dict) else enumerate(node):
            found += places(value, (*path, key))
    return found


@st.composite
def documents(draw: Any) -> Any:
    """The payload with some of its values replaced, removed or doubled."""
    document = orjson.loads(PAYLOAD)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(places(document)))
        parent = document
        for key in path[:-1]:
            parent = parent[key]
        how = draw(st.sampled_from(("replace", "replace", "remove", "double")))
        if how == "remove":
            del parent[path[-1]]
        elif how == "double" and isinstance(parent, list):
            parent.append(parent[path[-1]])
        else:
            parent[path[-1]] = draw(odd)
        if not places(document):
            break
    return document


@given(mutated(SOUND))
@fuzz
def test_manifests_that_were_damaged(data: bytes) -> None:
    take(data)


@given(mutated(SOUND.partition(b"\n")[2]))
@fuzz
def test_payloads_that_were_damaged_and_hashed_anew(stored: bytes) -> None:
    take(wrapped(stored))


@given(mutated(PAYLOAD))
@fuzz
def test_json_that_was_damaged(raw: bytes) -> None:
    take(wrapped(compressed(raw)))


@given(documents())
@fuzz
def test_documents_with_odd_values(document: Any) -> None:
    try:
        raw = orjson.dumps(document)
    except TypeError:  # a lone surrogate, a number that JSON has no name for
        return
    take(wrapped(compressed(raw)))


@given(st.binary(max_size=300))
@fuzz
def test_bytes(data: bytes) -> None:
    take(data)
    take(wrapped(data))


RAW = bytes(range(256)) * 20
FRAME = compressed(RAW)


@given(mutated(FRAME) | st.binary(max_size=200), st.sampled_from([len(RAW), 0, 1, len(RAW) + 1, 1 << 26]))
@fuzz
def test_frames(stored: bytes, size: int) -> None:
    try:
        assert len(decompressor()(stored, size)) == size
    except IntegrityError:
        pass


@given(mutated(seal("b/denied/x", b'{"a": [1, 2]}')) | st.binary(max_size=200))
@fuzz
def test_marks(data: bytes) -> None:
    try:
        assert isinstance(unseal("b/denied/x", data), bytes)
    except IntegrityError:
        pass


class Fixed:
    """A store of one generation, whatever its bytes, and of no pack."""

    url = "fixed:"

    def __init__(self, data: bytes) -> None:
        self.data = data

    def get(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        if "/generations/" not in name:
            raise NotInStore(name, name=name)
        return self.data

    def list(self, prefix: str) -> list[str]:
        return ["00000007"] if prefix.endswith("/generations") else []

    def __getattr__(self, name: str) -> Any:
        raise StoreUnavailable(f"nothing but get and list: {name}")


@given(documents())
@settings(fuzz, max_examples=100 * FACTOR)
def test_a_restore_of_odd_documents_ends_in_a_record(
    tmp_path_factory: pytest.TempPathFactory, document: Any
) -> None:
    live = tmp_path_factory.getbasetemp() / "restored"
    live.mkdir(exist_ok=True, mode=0o700)
    if isinstance(document, dict):
        document |= {"build": IDENTITY.build_key, "profile": IDENTITY.profile_key}
    try:
        data = wrapped(compressed(orjson.dumps(document)))
    except TypeError:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Store, "open", classmethod(lambda cls, *_: cls(Fixed(data))))
        record = restore(
            Settings(store=("/fixed",)), IDENTITY, {"inductor": str(live), "triton": str(live / "triton")}
        )
    assert record.outcome in ("miss", "rejected", "unavailable", "hit")
    assert record.files == 0
    orjson.dumps(record.to_json())


# -- what a killed process or somebody's editor left in a live directory -----------------------------------------------


@given(
    st.sampled_from(["stamp", "files"]),
    odd
    | st.dictionaries(
        st.sampled_from(["build", "whole", "restored_ns", "generation", "manifest", "ab/c.py", "more"]), odd
    ),
    st.binary(max_size=30),
)
@fuzz
def test_bookkeeping(tmp_path_factory: pytest.TempPathFactory, name: str, document: Any, tail: bytes) -> None:
    live = Live(str(tmp_path_factory.getbasetemp() / "live"))
    live.make()
    try:
        raw = orjson.dumps(document)
    except TypeError:
        raw = b""
    for data in (raw, raw + tail):
        Path(live.own, name).write_bytes(data)
        stamp = live.stamp()
        assert stamp is None or (isinstance(stamp.build, str) and isinstance(stamp.restored_ns, int))
        assert live.table().rows() is not None


def test_the_corpus_is_what_this_format_makes() -> None:
    """The good manifest of the corpus reads as the one that is built here: the format has not changed unnoticed."""
    assert decode((CORPUS / "manifests/good-sound").read_bytes(), "kept") == sound()
