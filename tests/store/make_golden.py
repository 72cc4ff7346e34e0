"""Makes tests/store/golden: run once for each version of the format. What is there must stay readable for ever."""

from __future__ import annotations

import hashlib
from pathlib import Path

from cachehome.store.entries import Entry, File
from cachehome.store.lab import small_pack
from cachehome.store.manifest import Manifest, encode

HERE = Path(__file__).parent / "golden"
FILES = {
    "triton/ABCDEF/kernel.cubin": b"\x7fELF golden" * 9,
    "triton/ABCDEF/kernel.json": b'{"num_warps": 4}',
    "inductor/ab/cabc.py": b"x = 1\n",
}


def manifest() -> tuple[Manifest, bytes]:
    pack, stored, offsets = small_pack(FILES)

    def file(path: str, suffix: str, mode: int) -> File:
        data = FILES[path]
        return File(suffix, len(data), mode, hashlib.sha256(data).hexdigest(), 0, offsets[path])

    entries = {
        ("triton", "ABCDEF"): Entry(
            "triton",
            "ABCDEF",
            6,
            True,
            (
                file("triton/ABCDEF/kernel.cubin", "/kernel.cubin", 0o644),
                file("triton/ABCDEF/kernel.json", "/kernel.json", 0o600),
            ),
        ),
        ("inductor", "ab/cabc.py"): Entry(
            "inductor", "ab/cabc.py", 7, False, (file("inductor/ab/cabc.py", "", 0o600),)
        ),
    }
    origin = {
        "directories": {"triton": "/home/u/.cache/t"},
        "tag": "cp311-x86_64-0badc0de/torch-2.13.0",
        "slot": "",
    }
    made = Manifest(
        build="b" * 64,
        profile="serve",
        line="1" * 32,
        number=7,
        parent="2" * 64,
        nonce="3" * 32,
        created=1_700_000_000.5,
        entries=entries,
        packs=(pack,),
        origins=(origin,),
        publisher={"cachehome": "1.0"},
    )
    return made, stored


if __name__ == "__main__":
    made, stored = manifest()
    HERE.mkdir(exist_ok=True)
    (HERE / "v1.manifest").write_bytes(encode(made))
    (HERE / "v1.tar.zst").write_bytes(stored)
