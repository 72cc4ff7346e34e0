from __future__ import annotations

import os

import pytest
import zstandard

from cachehome.errors import IntegrityError
from cachehome.store.pack import decompressor, memory

RAW = os.urandom(1000) + bytes(3000)
STORED = zstandard.ZstdCompressor().compress(RAW)


@pytest.mark.parametrize("into", [None, memory(len(RAW)), memory(10 * len(RAW))])
def test_a_frame_is_decoded_into_memory_of_its_size_or_more(into: memoryview | None) -> None:
    found = decompressor()(STORED, len(RAW), into)
    assert found == RAW
    assert into is None or into[: len(RAW)] == RAW


def test_the_next_frame_takes_the_same_memory() -> None:
    decode, into = decompressor(), memory(len(RAW))
    first = decode(STORED, len(RAW), into)
    decode(zstandard.ZstdCompressor().compress(bytes(4000)), 4000, into)
    assert first == bytes(4000)


@pytest.mark.parametrize("into", [None, memory(10 * len(RAW))])
@pytest.mark.parametrize(
    ("stored", "size", "reason"),
    [
        (STORED, len(RAW) - 1, "frame_size"),
        (STORED, len(RAW) + 1, "frame_size"),
        (STORED[:-5], len(RAW), "frame_size"),
        (STORED + b"x", len(RAW), "frame_damaged"),
        (STORED + STORED, len(RAW), "frame_size"),
        (b"", 0, "frame_damaged"),
    ],
    ids=["longer", "shorter", "cut", "more", "two", "none"],
)
def test_what_is_not_one_whole_frame_of_that_size(
    into: memoryview | None, stored: bytes, size: int, reason: str
) -> None:
    with pytest.raises(IntegrityError) as caught:
        decompressor()(stored, size, into)
    assert caught.value.reason == reason


def test_an_empty_frame() -> None:
    assert len(decompressor()(zstandard.ZstdCompressor().compress(b""), 0)) == 0
