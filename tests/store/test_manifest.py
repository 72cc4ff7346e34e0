"""The format on disk: what version 1 wrote is read for ever, and what is written is version 1."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import make_golden
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from cachehome.errors import IntegrityError
from cachehome.store.entries import Entry, File
from cachehome.store.manifest import Manifest, decode, encode

GOLDEN = Path(__file__).parent / "golden"


def payload(data: bytes) -> dict[str, object]:
    found: dict[str, object] = json.loads(zstandard.ZstdDecompressor().decompress(data.partition(b"\n")[2]))
    return found


def test_a_manifest_of_version_1_is_read() -> None:
    assert decode((GOLDEN / "v1.manifest").read_bytes(), "golden") == make_golden.manifest()[0]


def test_what_is_written_is_version_1() -> None:
    golden, made = (GOLDEN / "v1.manifest").read_bytes(), encode(make_golden.manifest()[0])
    assert payload(made) == payload(golden)
    header = json.loads(made.partition(b"\n")[0])
    assert {**header, "sha256": ""} == {"format": "cachehome-manifest", "version": 1, "sha256": ""}
    assert header["sha256"] == hashlib.sha256(made.partition(b"\n")[2]).hexdigest()


def test_a_manifest_without_entries_is_read() -> None:
    """All that it was to hold may be denied."""
    whole = make_golden.manifest()[0]
    manifest = whole._replace(entries={}, packs=(), origins=())
    assert decode(encode(manifest), "empty") == manifest


def test_the_keys_of_version_1() -> None:
    document = payload((GOLDEN / "v1.manifest").read_bytes())
    assert sorted(document) == [
        "build",
        "created",
        "entries",
        "families",
        "files",
        "line",
        "nonce",
        "number",
        "origins",
        "packs",
        "parent",
        "profile",
        "publisher",
    ]
    assert sorted(document["entries"]) == ["family", "files", "name", "since", "slim"]  # type: ignore[call-overload]
    assert sorted(document["files"]) == ["mode", "offset", "pack", "sha256", "size", "suffix"]  # type: ignore[call-overload]


def test_a_pack_of_version_1_is_a_tar_that_others_read(tmp_path: Path) -> None:
    manifest, stored = make_golden.manifest()
    assert (GOLDEN / "v1.tar.zst").read_bytes() == stored
    assert manifest.packs[0].sha256 == hashlib.sha256(stored).hexdigest()
    if not (shutil.which("tar") and shutil.which("zstd")):
        pytest.skip("needs tar and zstd")
    listed = subprocess.run(
        ["tar", "--zstd", "-tf", GOLDEN / "v1.tar.zst"], check=True, capture_output=True, text=True
    )
    assert listed.stdout.split() == sorted(make_golden.FILES)


names = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,20}", fullmatch=True)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    base = make_golden.manifest()[0]
    raw = sum(frame[1] for frame in base.packs[0].frames)
    entries = {}
    for name in draw(st.sets(names, max_size=8)):
        suffixes = draw(st.sets(names, min_size=1, max_size=4))
        files = tuple(
            File(
                f"/{suffix}",
                draw(st.integers(0, 9)),
                draw(st.integers(0, 0o777)),
                draw(st.binary(min_size=32, max_size=32)).hex(),
                0,
                draw(st.integers(0, raw - 9)),
            )
            for suffix in sorted(suffixes)
        )
        family = draw(st.sampled_from(["inductor", "triton"]))
        entries[family, name] = Entry(family, name, draw(st.integers(1, 7)), draw(st.booleans()), files)
    return base._replace(entries=entries)


@settings(max_examples=60, deadline=None)
@given(manifests())
def test_what_is_written_is_read(manifest: Manifest) -> None:
    assert decode(encode(manifest), "m") == manifest


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_changed_byte_is_noticed(data: st.DataObject) -> None:
    golden = bytearray((GOLDEN / "v1.manifest").read_bytes())
    place = data.draw(st.integers(0, len(golden) - 1))
    bit = 1 << data.draw(st.integers(0, 7))
    golden[place] ^= bit
    with pytest.raises(IntegrityError):
        decode(bytes(golden), "m")


@pytest.mark.parametrize("keep", [0, 1, 50, -1])
def test_a_manifest_cut_short_is_noticed(keep: int) -> None:
    golden = (GOLDEN / "v1.manifest").read_bytes()
    with pytest.raises(IntegrityError):
        decode(golden[:keep], "m")


def test_files_are_what_a_tuple_of_them_is() -> None:
    made = make_golden.manifest()[0]
    read = decode(encode(made), "golden")
    for key, entry in made.entries.items():
        there = read.entries[key]
        assert there == entry
        assert entry == there
        assert hash(there.files) == hash(entry.files)
        assert len(there.files) == len(entry.files)
        assert there.files[-1] == entry.files[-1]
        assert there.files[:1] == entry.files[:1]
        assert repr(there.files) == repr(entry.files)
        assert all(type(file) is File for file in there.files)
        assert there.files != entry.files[:-1]
        told = [(e.suffixes, e.packs, e.hashes, e.digest()) for e in (there, entry)]
        assert told[0] == told[1]
    some = dict(list(read.entries.items())[::2])  # of both kinds, and not all of the columns
    mixed = read._replace(entries={**made.entries, **some})
    assert decode(encode(mixed), "mixed") == read
    assert decode(encode(read._replace(entries=some)), "some").entries == some


@pytest.mark.parametrize(
    "hashes",
    [
        lambda text: {text[at : at + 64]: 0 for at in range(0, len(text), 64)},
        list,
        lambda text: text[:-1] + "X",
        lambda text: text[:-1] + "\n",
        lambda text: text[:-1] + "\u0661",
        lambda text: text.upper(),
        lambda text: text[:-64],
    ],
)
def test_hashes_that_are_none(hashes: Callable[[str], object]) -> None:
    whole = encode(make_golden.manifest()[0])
    document = payload(whole)
    files: dict[str, object] = document["files"]  # type: ignore[assignment]
    files["sha256"] = hashes("ab" * 16 + str(files["sha256"])[32:])
    stored = zstandard.ZstdCompressor().compress(json.dumps(document).encode())
    header = json.loads(whole.partition(b"\n")[0]) | {"sha256": hashlib.sha256(stored).hexdigest()}
    with pytest.raises(IntegrityError, match="damaged"):
        decode(json.dumps(header, separators=(",", ":")).encode() + b"\n" + stored, "bad")
