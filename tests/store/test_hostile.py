"""Hostile stores: every attack is refused with a reason, and nothing is written but in the live directory's own place.

manifests   generation 2 is the attack, generation 1 is sound: a restore uses 1 and says what was wrong with 2
packs       the only generation is sound, its pack is not what it says: nothing is installed
misfits     entries that are well-formed, and that no scan would find under such a name: left out, the rest installed
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
import zstandard
from place import BUILD, IDENTITY, PROFILE, Place

from cachehome.store import manifest as format_
from cachehome.store.pack import padding, tar_header
from cachehome.sync.restore import restore

Payload = dict[str, Any]


# -- building blocks ---------------------------------------------------------------------------------------------------


def payload_of(data: bytes) -> Payload:
    stored = data.partition(b"\n")[2]
    return dict(orjson.loads(zstandard.ZstdDecompressor().decompress(stored)))


def wrapped(stored: bytes, **header: Any) -> bytes:
    """A manifest of these stored bytes, with a header that is right but for *header*."""
    fields = {
        "format": format_.FORMAT,
        "version": format_.VERSION,
        "sha256": hashlib.sha256(stored).hexdigest(),
    }
    return orjson.dumps(fields | header) + b"\n" + stored


def compressed(raw: bytes, level: int = 3) -> bytes:
    return bytes(zstandard.ZstdCompressor(level=level).compress(raw))


def manifest(payload: Any) -> bytes:
    return wrapped(compressed(orjson.dumps(payload)))


def add(payload: Payload, name: Any, suffixes: list[Any], family: int = 0, **columns: Any) -> Payload:
    """One more entry, its files being copies of the first one's bytes but for *columns*."""
    entries, files = payload["entries"], payload["files"]
    row = {"family": family, "name": name, "since": 2, "slim": 0, "files": len(suffixes)}
    for column, value in row.items():
        entries[column].append(columns.get(f"entry_{column}", value))
    for suffix in suffixes:
        files["suffix"].append(suffix)
        for column in ("size", "mode", "pack", "offset"):
            files[column].append(columns.get(column, files[column][0]))
        files["sha256"] += columns.get("sha256", files["sha256"][:64])
    return payload


def named(name: Any, *suffixes: Any) -> Callable[[Payload], Payload]:
    return lambda payload: add(payload, name, list(suffixes or ("",)))


def column(**columns: Any) -> Callable[[Payload], Payload]:
    return lambda payload: add(payload, "ab/evil.py", [""], **columns)


def at(*path: Any, value: Any) -> Callable[[Payload], Payload]:
    """Replace what lies at *path* in the payload."""

    def change(payload: Payload) -> Payload:
        found: Any = payload
        for key in path[:-1]:
            found = found[key]
        found[path[-1]] = value
        return payload

    return change


def without(*path: Any) -> Callable[[Payload], Payload]:
    def change(payload: Payload) -> Payload:
        found: Any = payload
        for key in path[:-1]:
            found = found[key]
        del found[path[-1]]
        return payload

    return change


def both(*changes: Callable[[Payload], Payload]) -> Callable[[Payload], Payload]:
    def change(payload: Payload) -> Payload:
        for one in changes:
            payload = one(payload)
        return payload

    return change


# -- manifests ---------------------------------------------------------------------------------------------------------

NAMES = {
    "absolute": "/etc/cron.d/evil",
    "parent": "../evil",
    "parents": "../../../../../../tmp/evil",
    "parent inside": "ab/../../evil",
    "ends with parent": "ab/..",
    "current": ".",
    "current inside": "ab/./evil.py",
    "empty": "",
    "empty part": "ab//evil.py",
    "ends with a slash": "ab/",
    "hidden": ".bashrc",
    "our own directory": ".cachehome/stamp",
    "hidden inside": "ab/.evil.py",
    "NUL": "ab/evil\0.py",
    "backslash": "ab\\..\\evil.py",
    "newline": "ab/evil\n.py",
    "escape sequence": "ab/\x1b[2Jevil.py",
    "delete": "ab/\x7f.py",
    "300 letters": "ab/" + "e" * 300,
    "256 letters": "ab/" + "e" * 256,
    "300 bytes of 150 letters": "ab/" + "é" * 150,
    "33 levels": "/".join(["ab"] * 33),
    "600 levels": "/".join("a" for _ in range(600)),
    "longer than 1,024": "/".join(["e" * 200] * 6),
    "a number": 7,
    "null": None,
    "a list": ["ab", "evil.py"],
    "a truth value": True,
}
SUFFIXES = {
    "parent": ("/../../evil",),
    "a slash alone": ("/",),
    "two slashes": ("//evil",),
    "hidden": ("/.evil",),
    "half a directory": ("/a", ".b"),
    "half a directory, other order": (".b", "/a"),
    "slash inside": ("evil/b.py",),
    "absolute": ("/a", "/../../../etc/passwd"),
    "twice": (".so", ".so"),
    "file and directory": ("/a", "/a/b"),
    "300 letters": ("/" + "e" * 300,),
    "a number": (7,),
    "null": (None,),
}
PAYLOADS: dict[str, Callable[[Payload], Any]] = {
    **{f"name: {what}": named(name) for what, name in NAMES.items()},
    **{f"suffix: {what}": named("ab/evil", *suffixes) for what, suffixes in SUFFIXES.items()},
    "an entry twice": named("ab/a.py"),
    "a file of two entries": named("ab/a", ".py"),
    "a file where a directory must be": named("ab/a.py/evil.py"),
    "a directory where a file must be": named("ab"),
    "a tree around another entry": named("ab", "/evil.py"),
    "trees in trees": both(named("cd", "/a"), named("cd/ef", "/b")),
    "size: negative": column(size=-1),
    "size: a fraction": column(size=1.5),
    "size: a truth value": column(size=True),
    "size: text": column(size="5"),
    "size: null": column(size=None),
    "size: beyond the pack": column(size=1 << 40),
    "size: beyond 63 bits": column(size=(1 << 64) - 1),
    "offset: negative": column(offset=-1),
    "offset: beyond the pack": column(offset=1 << 40),
    "offset: a fraction": column(offset=0.5),
    "pack: negative": column(pack=-1),
    "pack: none such": column(pack=9),
    "mode: text": column(mode="0777"),
    "hash: short": column(sha256="ab"),
    "hash: long": column(sha256="a" * 65),
    "family: none such": column(entry_family=9),
    "family: negative": column(entry_family=-1),
    "family: text": column(entry_family="inductor"),
    "files: none": column(entry_files=0),
    "files: negative": column(entry_files=-1),
    "files: more than there are": column(entry_files=9),
    "files: a fraction": column(entry_files=1.0),
    "since: text": column(entry_since="1"),
    "slim: text": column(entry_slim="no"),
    "families: parent": at("families", value=["../inductor"]),
    "families: empty name": at("families", value=[""]),
    "families: number": at("families", value=[7]),
    "families: upper case": at("families", value=["Inductor"]),
    "families: long": at("families", value=["f" * 300]),
    "families: twice": at("families", value=["inductor", "inductor"]),
    "families: none": at("families", value=[]),
    "families: text": at("families", value="inductor"),
    "columns: a missing one": without("files", "mode"),
    "columns: a short one": at("files", "mode", value=[]),
    "columns: text": at("files", "suffix", value="x"),
    "columns: an object": at("entries", "name", value={"0": "x"}),
    "columns: hash of another kind": at("files", "sha256", value=["a" * 64]),
    "packs: none": at("packs", value=[]),
    "packs: an object": at("packs", value={}),
    "packs: name with a path": at("packs", 0, "sha256", value="../" * 20 + "evil"),
    "packs: name of 64 letters with a path": at("packs", 0, "sha256", value=("../" * 22)[:64]),
    "packs: name in upper case": at("packs", 0, "sha256", value="A" * 64),
    "packs: name of another kind": at("packs", 0, "sha256", value=7),
    "packs: size that lies": at("packs", 0, "size", value=1),
    "packs: negative size": at("packs", 0, "size", value=-1),
    "packs: no such origin": at("packs", 0, "origin", value=1),
    "packs: negative origin": at("packs", 0, "origin", value=-1),
    "packs: ir of another kind": at("packs", 0, "ir", value="yes"),
    "packs: twice": lambda p: {**p, "packs": p["packs"] * 2},
    "packs: a million": lambda p: {**p, "packs": p["packs"] * (format_.MAX_PACKS + 1)},
    "frames: none": at("packs", 0, "frames", value=[]),
    "frames: raw size of a bomb": at("packs", 0, "frames", 0, 1, value=1 << 40),
    "frames: negative raw size": at("packs", 0, "frames", 0, 1, value=-1),
    "frames: raw size of another kind": at("packs", 0, "frames", 0, 1, value="9"),
    "frames: stored size of nothing": at("packs", 0, "frames", 0, 0, value=0),
    "frames: negative stored size": at("packs", 0, "frames", 0, 0, value=-5),
    "frames: too long a row": at("packs", 0, "frames", 0, value=[1, 2, "a" * 64, 4]),
    "frames: hash of another kind": at("packs", 0, "frames", 0, 2, value=7),
    "frames: short hash": at("packs", 0, "frames", 0, 2, value="ab"),
    "origins: none": at("origins", value=[]),
    "origins: of another kind": at("origins", value=["x"]),
    "origins: tag of another kind": at("origins", 0, "tag", value=7),
    "origins: directories of another kind": at("origins", 0, "directories", value=["x"]),
    "origins: a directory of another kind": at("origins", 0, "directories", "inductor", value=7),
    "another build": at("build", value="f" * 64),
    "another profile": at("profile", value="other"),
    "another number": at("number", value=3),
    "a number of another kind": at("number", value="2"),
    "a number below zero": at("number", value=-2),
    "no line": without("line"),
    "a line of another kind": at("line", value=None),
    "publisher of another kind": at("publisher", value=[]),
    "created of another kind": at("created", value="yesterday"),
    "no object": lambda _: [1, 2],
    "null": lambda _: None,
    "an empty object": lambda _: {},
}


def bomb(declared: int | None, real: int) -> bytes:
    """A frame that says it holds *declared* bytes (None: does not say) and holds *real*."""
    parameters = zstandard.ZstdCompressionParameters.from_level(1, write_content_size=declared is not None)
    stored = bytearray(zstandard.ZstdCompressor(compression_params=parameters).compress(bytes(real)))
    if declared is not None and declared != real:
        # Rebuild the header: magic, descriptor for an 8-byte size and a window, the size.
        old = zstandard.frame_header_size(bytes(stored))
        return b"\x28\xb5\x2f\xfd\xc0\x58" + declared.to_bytes(8, "little") + bytes(stored[old:])
    return bytes(stored)


def raw_manifests(sound: bytes) -> dict[str, bytes]:
    """Attacks below the level of JSON, made of a sound generation 2."""
    header, _, stored = sound.partition(b"\n")
    text = zstandard.ZstdDecompressor().decompress(stored)
    return {
        "empty": b"",
        "a newline": b"\n",
        "no payload": header + b"\n",
        "no newline": header,
        "cut by a byte": sound[:-1],
        "one byte more": sound + b"\0",
        "a bit flipped": sound[:-9] + bytes([sound[-9] ^ 4]) + sound[-8:],
        "header: not JSON": b"{]\n" + stored,
        "header: a list": b"[]\n" + stored,
        "header: null": b"null\n" + stored,
        "header: endless": b"{" + b" " * 100_000 + header[1:] + b"\n" + stored,
        "header: deep": b"[" * 50_000 + b"\n" + stored,
        "header: another format": wrapped(stored, format="tar"),
        "header: version 2": wrapped(stored, version=2),
        "header: version text": wrapped(stored, version="1"),
        "header: no hash": wrapped(stored, sha256=None),
        "header: hash under another name": wrapped(stored).replace(b'"sha256"', b'"sha512"', 1),
        "header: another hash": wrapped(stored, sha256="0" * 64),
        "header: not canonical": header.replace(b":", b": ", 1) + b"\n" + stored,
        "header: a key twice": header[:-1] + b',"version":1}\n' + stored,
        "zstd: not": wrapped(b"not zstd at all"),
        "zstd: magic alone": wrapped(b"\x28\xb5\x2f\xfd"),
        "zstd: cut": wrapped(stored[: len(stored) // 2]),
        "zstd: data behind": wrapped(stored + b"junk"),
        "zstd: two frames": wrapped(stored + stored),
        "zstd: a skippable frame first": wrapped(b"\x50\x2a\x4d\x18\x04\0\0\0abcd" + stored),
        "zstd: no content size": wrapped(bomb(None, 1000)),
        "zstd: an empty frame": wrapped(compressed(b"")),
        "zstd: a bomb that says so": wrapped(bomb(1 << 40, 1 << 20)),
        "zstd: a bomb that lies": wrapped(bomb(100, 64 << 20)),
        "zstd: shorter than it says": wrapped(bomb(1 << 20, 100)),
        "zstd: 300 MB of zeros": wrapped(bomb(300 << 20, 300 << 20)),
        "json: cut": wrapped(compressed(text[:-1])),
        "json: data behind": wrapped(compressed(text + b"{}")),
        "json: deep": wrapped(compressed(b"[" * 1_000_000)),
        "json: not UTF-8": wrapped(compressed(text.replace(b"inductor", b"induct\xff\xff", 1))),
        "json: a lone surrogate": wrapped(compressed(text.replace(b"ab/a.py", b"ab/\\ud800.py", 1))),
        "json: NaN": wrapped(compressed(text.replace(b'"number":2', b'"number":NaN', 1))),
        "json: a huge number": wrapped(
            compressed(text.replace(b'"number":2', b'"number":2' + b"0" * 5000, 1))
        ),
    }


# -- packs -------------------------------------------------------------------------------------------------------------


def frame_of(raw: bytes) -> tuple[bytes, list[Any]]:
    stored = compressed(raw)
    return stored, [len(stored), len(raw), hashlib.sha256(stored).hexdigest()]


def repacked(payload: Payload, stored: bytes, raw: int) -> tuple[bytes, Payload]:
    """The manifest's pack replaced by one frame of these *stored* bytes, said to hold *raw* bytes; hashes are right."""
    pack = payload["packs"][0]
    pack["sha256"] = hashlib.sha256(stored).hexdigest()
    pack["size"] = len(stored)
    pack["frames"] = [[len(stored), raw, pack["sha256"]]]
    return stored, payload


def packs(payload: Payload, original: bytes) -> dict[str, tuple[bytes | None, Payload]]:
    """(bytes of the pack, None for as it was; payload) of each attack."""

    def fresh() -> Payload:
        return dict(orjson.loads(orjson.dumps(payload)))

    total = sum(frame[1] for frame in payload["packs"][0]["frames"])
    raw = b"".join(
        zstandard.ZstdDecompressor().decompress(original[start : start + frame[0]])
        for start, frame in zip(starts(payload), payload["packs"][0]["frames"], strict=True)
    )
    half = compressed(raw[: total // 2]) + compressed(raw[total // 2 :])
    wrong = at("files", "sha256", value="0" * 64)(fresh())
    return {
        "first frame cut by a byte": (original[: payload["packs"][0]["frames"][0][0] - 1], fresh()),
        "cut in half": (original[: len(original) // 2], fresh()),
        "empty": (b"", fresh()),
        "a bit flipped": (original[:40] + bytes([original[40] ^ 1]) + original[41:], fresh()),
        "junk": (os.urandom(len(original)), fresh()),
        "frame: not zstd": repacked(fresh(), os.urandom(total), total),
        "frame: says less than the manifest": repacked(fresh(), compressed(raw[:-1]), total),
        "frame: says more than the manifest": repacked(fresh(), compressed(raw + b"x"), total),
        "frame: holds less than it says": repacked(fresh(), bomb(total, 10), total),
        "frame: a bomb that lies": repacked(fresh(), bomb(total, 64 << 20), total),
        "frame: does not say": repacked(fresh(), bomb(None, total), total),
        "frame: two in one": repacked(fresh(), half, total),
        "frame: data behind": repacked(fresh(), compressed(raw) + b"x" * 64, total),
        "frame: a dictionary that is not there": repacked(fresh(), with_dictionary(raw), total),
        "file: another hash": (None, wrong),
        "file: at another place": (None, at("files", "offset", 0, value=0)(fresh())),
        "file: another size": (None, at("files", "size", 0, value=3)(fresh())),
    }


def starts(payload: Payload) -> list[int]:
    found = [0]
    for stored, _, _ in payload["packs"][0]["frames"]:
        found.append(found[-1] + stored)
    return found[:-1]


def with_dictionary(raw: bytes) -> bytes:
    content = zstandard.ZstdCompressionDict(os.urandom(4096), dict_type=zstandard.DICT_TYPE_RAWCONTENT)
    stored = bytearray(zstandard.ZstdCompressor(dict_data=content).compress(raw))
    if stored[4] & 3 == 0:  # a raw dictionary has no id: give it one
        stored[4] |= 1
        stored.insert(zstandard.frame_header_size(bytes(stored)) - 2, 77)
    return bytes(stored)


MISFITS = {
    "of another family": named("triton/0/" + "A" * 52, "/evil.cubin"),
    "of another family, a file": named("triton/evil.py"),
    "a lock": named("locks/evil.lock"),
    "a lock of the right shape": named("ab/evil.lock"),
    "steering state": named("dynamo/code_state_evil"),
    "a script at the top": named("evil.py"),
    "byte code": named("__pycache__/evil.pyc"),
    "byte code of the right depth": named("ab/__pycache__/evil.py"),
    "a temporary name": named("ab/tmp.evil.py"),
    "a path of Python": named("ab/evil.pth"),
    "a shell script": named("ab/evil.sh"),
    "a tree where files are": named("cd", "/evil.py"),
    "a compiler": named("gcc/bin/gcc"),
    "an unknown family": both(
        lambda p: {**p, "families": [*p["families"], "zz"]}, lambda p: add(p, "x", [""], 1)
    ),
}


# -- the tests ---------------------------------------------------------------------------------------------------------


class Arena:
    """A store with one sound generation, and a look at everything below the test's directory."""

    def __init__(self, directory: Path) -> None:
        self.place = Place(directory).make()
        self.place.publish("a")
        self.first = self.place.generations / "00000001"
        self.sound = self.first.read_bytes()

    def second(self, data: bytes) -> None:
        path = self.place.generations / "00000002"
        path.write_bytes(data)
        path.chmod(0o600)

    def payload(self, number: int = 2) -> Payload:
        return payload_of(self.sound) | {"number": number}

    def everything(self) -> dict[str, tuple[int, int]]:
        found = {}
        for path, directories, files in os.walk(self.place.directory):
            for name in (*directories, *files):
                status = os.lstat(os.path.join(path, name))
                found[os.path.join(path, name)] = (status.st_mode, status.st_size)
        return found

    def restore(self) -> tuple[Any, set[str]]:
        """The record, and what lies in the live directory; fails if anything else has changed."""
        target = self.place.live()
        before = self.everything()
        record = restore(self.place.settings, IDENTITY, {"inductor": str(target)})
        after = self.everything()
        node = self.place.settings.enabled
        outside = {
            path
            for path in after.keys() | before.keys()
            if after.get(path) != before.get(path)
            and not path.startswith((f"{target}/", str(target), node))
            and not path.endswith("/used")  # the store's note that somebody uses this profile
        }
        assert not outside
        own = {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}
        assert not [path for path in own if "staging-" in path]
        return record, {path for path in own if not path.startswith(".cachehome/")}


@pytest.fixture
def arena(tmp_path: Path) -> Arena:
    return Arena(tmp_path)


def refused(arena: Arena, what: str, data: bytes) -> None:
    arena.second(data)
    record, files = arena.restore()
    assert (record.outcome, record.generation, files) == ("hit", 1, {"ab/a.py"}), what
    (found,) = record.details["rejected"]
    assert found["generation"] == 2, what
    assert found["reason"] in ("manifest_damaged", "manifest_misplaced"), what
    assert "\n" not in found["message"], what
    assert "\x1b" not in found["message"], what


def test_the_sound_one_is_taken(arena: Arena) -> None:
    arena.second(manifest(add(arena.payload(), "ab/b.py", [""])))
    record, files = arena.restore()
    assert (record.generation, files) == (2, {"ab/a.py", "ab/b.py"})


@pytest.mark.parametrize("what", PAYLOADS)
def test_payloads(arena: Arena, what: str) -> None:
    refused(arena, what, manifest(PAYLOADS[what](arena.payload())))


def test_manifests_below_json(arena: Arena) -> None:
    cases = raw_manifests(manifest(arena.payload()))
    for what, data in cases.items():
        refused(arena, what, data)
    assert len(cases) == 39


def test_a_manifest_larger_than_any(arena: Arena) -> None:
    path = arena.place.generations / "00000002"
    with path.open("wb") as file:
        file.truncate(8 << 30)  # sparse
    path.chmod(0o600)
    record, files = arena.restore()
    assert (record.generation, files) == (1, {"ab/a.py"})


def test_packs(arena: Arena) -> None:
    (pack,) = arena.place.packs.iterdir()
    original = pack.read_bytes()
    cases = packs(arena.payload(1), original)
    for what, (data, payload) in cases.items():
        path = arena.place.packs / f"{payload['packs'][0]['sha256']}.tar.zst"
        path.write_bytes(original if data is None else data)
        path.chmod(0o600)
        arena.first.write_bytes(manifest(payload))
        record, files = arena.restore()
        assert (record.outcome, files) == ("rejected", set()), what
        assert record.reason in ("pack_damaged", "frame_size", "frame_damaged", "file_damaged"), (
            what,
            record.reason,
        )
        assert "\n" not in record.details["message"], what
        if path != pack:
            path.unlink()
        pack.write_bytes(original)
    assert len(cases) == 17


def test_packs_that_are_no_files(arena: Arena, tmp_path: Path) -> None:
    (pack,) = arena.place.packs.iterdir()
    copy = tmp_path / "copy"
    pack.rename(copy)
    arena.place.packs.chmod(0o700)
    for make in (
        lambda: os.mkfifo(pack, 0o600),
        lambda: pack.symlink_to(copy),
        lambda: pack.symlink_to("/dev/zero"),
        lambda: pack.symlink_to(pack),
        lambda: pack.mkdir(mode=0o700),
        lambda: None,
    ):
        make()
        record, files = arena.restore()
        assert (record.outcome, files) == ("rejected", set())
        if pack.is_symlink() or pack.exists():
            pack.rmdir() if pack.is_dir() and not pack.is_symlink() else pack.unlink()


@pytest.mark.parametrize("what", MISFITS)
def test_misfits(arena: Arena, what: str) -> None:
    arena.second(manifest(MISFITS[what](arena.payload())))
    record, files = arena.restore()
    assert (record.outcome, record.generation, files) == ("hit", 2, {"ab/a.py"})
    skipped = record.details["skipped"]
    assert skipped.get("unfit", 0) + skipped.get("other_family", 0) == 1


def test_tar_headers_do_not_matter(arena: Arena) -> None:
    """The stream's own names and kinds are for people: a restore goes by the manifest alone."""
    data = b"name = 'evil'\n"
    link = bytearray(tar_header("../../../../tmp/evil", len(data), 0o4777))
    link[156:157] = b"2"
    link[157 : 157 + 11] = b"/etc/passwd"
    raw = bytes(link) + data + padding(len(data))
    payload = arena.payload(1)
    stored, payload = repacked(payload, compressed(raw), len(raw))
    payload["files"] |= {"size": [len(data)], "offset": [512], "mode": [0o6777]}
    payload["files"]["sha256"] = hashlib.sha256(data).hexdigest()
    path = arena.place.packs / f"{payload['packs'][0]['sha256']}.tar.zst"
    path.write_bytes(stored)
    path.chmod(0o600)
    arena.first.write_bytes(manifest(payload))
    record, files = arena.restore()
    assert (record.outcome, files) == ("hit", {"ab/a.py"})
    (target,) = (Path(found) for found in record.details["directories"].values())
    assert (target / "ab/a.py").read_bytes() == data
    assert (target / "ab/a.py").lstat().st_mode & 0o7777 in (0o600, 0o700)


@pytest.mark.parametrize(
    "children",
    [
        {"../../evil": "x"},
        {"/etc/passwd": "x"},
        {"..": "x"},
        {".evil": "x"},
        {"a\0b": "x"},
        {"": "x"},
        {"k.json": 7},
        ["k.json"],
        None,
    ],
)
def test_groups_that_point_elsewhere(tmp_path: Path, children: Any) -> None:
    place = Place(tmp_path).make()
    kernel = "A" * 52
    group = orjson.dumps({"child_paths": children})
    raw = tar_header(f"triton/{kernel}/__grp__k.json", len(group), 0o600) + group + padding(len(group))
    stored, frame = frame_of(raw)
    sha256 = hashlib.sha256(stored).hexdigest()
    payload = {
        "build": BUILD,
        "profile": PROFILE,
        "line": "l",
        "number": 1,
        "parent": "",
        "nonce": "",
        "created": 1.0,
        "publisher": {},
        "families": ["triton"],
        "origins": [{}],
        "packs": [{"sha256": sha256, "size": len(stored), "ir": False, "origin": 0, "frames": [frame]}],
        "entries": {"family": [0], "name": [kernel], "since": [1], "slim": [0], "files": [1]},
        "files": {
            "suffix": ["/__grp__k.json"],
            "size": [len(group)],
            "mode": [0o600],
            "pack": [0],
            "offset": [512],
            "sha256": hashlib.sha256(group).hexdigest(),
        },
    }
    for path, data in (
        (place.packs / f"{sha256}.tar.zst", stored),
        (place.generations / "00000001", manifest(payload)),
    ):
        path.parent.mkdir(parents=True, mode=0o700)
        path.write_bytes(data)
        path.chmod(0o600)
    target = place.live()
    record = restore(place.settings, IDENTITY, {"triton": str(target)})
    assert (record.outcome, record.reason) == ("rejected", "file_damaged")
    assert not (target / kernel).exists()


def test_the_count() -> None:
    assert len(PAYLOADS) == 123
    assert len(MISFITS) == 14
    # and 39 below JSON, 1 too large, 17 packs, 6 that are no files, 1 of tar, 9 groups: 210 attacks


# -- the other way: what a publisher must not write --------------------------------------------------------------------


def test_names_that_no_reader_would_take_are_left_out(tmp_path: Path) -> None:
    place = Place(tmp_path).make()
    source = place.live()
    (source / "ab").mkdir()
    longest = "n" * 252
    for name in (b"a\\b", b"a\nb", b"a\x1bb", b"a\xffb", b"good", longest.encode(), "é".encode()):
        with open(os.path.join(os.fsencode(source), b"ab", name + b".py"), "wb") as file:
            file.write(b"x = 1\n")
    record = place.publish(live=source)
    assert (record.outcome, record.entries) == ("hit", 3)
    assert len(record.details["left_out"]) == 4
    assert place.restore()[1] == {"good", longest, "é"}


def test_names_that_a_process_can_not_write_are_left_out(tmp_path: Path) -> None:
    """A locale without UTF-8: what has a plain name comes."""
    place = Place(tmp_path).make()
    source = place.live()
    (source / "ab").mkdir()
    for name in (b"good.py", "é.py".encode()):
        with open(os.path.join(os.fsencode(source), b"ab", name), "wb") as file:
            file.write(b"x = 1\n")
    assert place.publish(live=source).entries == 2
    code = (
        "import sys; sys.path[:0] = [sys.argv[1], sys.argv[2]]\nfrom pathlib import Path\nfrom place import Place\n"
        "record = Place(Path(sys.argv[3])).restore()[0]\n"
        "print(record.outcome, record.entries, record.details['skipped'])"
    )
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", code, here.parents[1], here, tmp_path],
        env=os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "hit 1 {'unfit': 1}", done.stderr


def test_entries_that_exclude_each_other_are_not_committed(arena: Arena) -> None:
    """Another publisher has a file where ours has a directory: a generation with both could never be read."""
    arena.second(manifest(add(arena.payload(), "ab/b.py/c.py", [""])))
    record = arena.place.publish("b")
    assert (record.outcome, record.reason) == ("rejected", "entries_collide")
    assert arena.place.restore()[0].generation == 2
