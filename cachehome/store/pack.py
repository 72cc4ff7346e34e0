"""A pack: an immutable file with the bytes of new entries, named by its sha256.

    packs/<sha256>.tar.zst      a plain tar that `tar --zstd -tf` lists:
        <family>/<entry name><suffix>   one member a file, ordered by extension, then name

The stream is cut into independent zstd frames of about 4 MB raw, so that frames are made and read in parallel
and a reader needs only those that hold its files. A reader does not parse tar: the manifest says where each
file lies, and holds the sha256 of every frame, so that no byte is decoded before it is verified.
"""

from __future__ import annotations

import hashlib
import mmap
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import NamedTuple

from cachehome.errors import IntegrityError
from cachehome.store.manifest import Pack, load_zstandard

FRAME = 4 << 20
BLOCK = 512
END = bytes(2 * BLOCK)
# The window is as large as a frame is: low levels alone would look back 1 or 2 MB only. With it, level 2 packs kernels
# smaller than level 3 does, a third faster.
_WINDOW_LOG = 22


class Piece(NamedTuple):
    """Where a file's bytes lie in a frame: *length* of them from *start*; the frame's number is its place in
    a list."""

    frame: int
    start: int
    length: int


# The sum of the bytes that are the same in each: owner, group, time, type, magic, device; blanks for the sum itself.
_CHECKSUM = sum(b"0000000" * 2 + b"0" * 11 + b" " * 8 + b"0" + b"ustar00" + b"0000000" * 2)


def tar_header(path: str, size: int, mode: int) -> bytes:
    """The tar header of a regular file: owner, group and time are zero, so that the same files give the same
    pack."""
    encoded = path.encode("utf-8", "surrogateescape")
    prefix = b""
    if len(encoded) > 100:
        cut = encoded.find(b"/", len(encoded) - 101)
        if not 0 < cut <= 155:
            return _long_member(path, size, mode)
        prefix, encoded = encoded[:cut], encoded[cut + 1 :]
    if size >= 8 << 30 or not encoded or not path.isascii():
        return _long_member(path, size, mode)
    header = b"%s%07o\x000000000\x000000000\x00%011o\x0000000000000\x00        0%sustar\x0000%s%s%s" % (
        encoded.ljust(100, b"\0"),
        mode & 0o777,
        size,
        bytes(100),
        bytes(64),
        b"0000000\x000000000\x00",
        prefix.ljust(155, b"\0") + bytes(12),
    )
    checksum = _CHECKSUM + sum(b"%s%s%s%s" % (encoded, prefix, header[100:107], header[124:135]))
    return header[:148] + b"%06o\0 " % checksum + header[156:]


def named(raw: memoryview, start: int, path: str, size: int) -> bool:
    """Whether the tar header that ends at *start* of a frame is that of the member *path* of *size* bytes."""
    header = bytes(raw[start - BLOCK : start - BLOCK + 135]) if start >= BLOCK else b""
    name = header[:100].rstrip(b"\0")
    return bool(name) and header[124:] == b"%011o" % size and path.encode().endswith(name)


def _long_member(path: str, size: int, mode: int) -> bytes:
    import tarfile

    info = tarfile.TarInfo(path)
    info.size, info.mode = size, mode & 0o777
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def padding(size: int) -> bytes:
    """What follows a member's bytes up to the next block."""
    return bytes(-size % BLOCK)


def memory(size: int) -> memoryview:
    """Memory for frames, of which only those pages cost something that are used."""
    return memoryview(mmap.mmap(-1, max(size, 1), access=mmap.ACCESS_COPY))  # shared pages would be dearer


def compressor(compression: str, *, texts: bool = False) -> Callable[[bytes | memoryview], bytes]:
    """The function that makes one frame of raw bytes; *compression* is `none` or `zstd:LEVEL`.

    *texts*: of kernels. They are packed a level lower, a quarter faster and as small: 12.8 MB of 211 that an H200 left
    with level 1, 12.9 with level 2, 13.7 with level 3.
    """
    zstandard = load_zstandard()
    # "none": zstd's fastest level still makes a .zst that every tool reads; its negative levels skip most of
    # the work.
    level = -50 if compression == "none" else int(compression.partition(":")[2] or 3)
    if texts and level > 1:
        level -= 1
    # Arguments that follow override what the level would set.
    parameters = zstandard.ZstdCompressionParameters.from_level(
        level, window_log=_WINDOW_LOG, write_checksum=False
    )
    compress = zstandard.ZstdCompressor(compression_params=parameters).compress

    def frame(raw: bytes | memoryview) -> bytes:
        return bytes(compress(raw))

    return frame


def decompressor() -> Callable[..., memoryview]:
    """The function (stored, size, into=None) that decodes one verified frame into exactly *size* raw bytes.

    *into*: memory of at least that many bytes, which the next frame may take again: pages that the system has to find
    and clear cost half of what decoding does. Raises `IntegrityError`.
    """
    zstandard = load_zstandard()
    decoder = zstandard.ZstdDecompressor(max_window_size=1 << 27)

    def raw(stored: bytes | memoryview, size: int, into: memoryview | None = None) -> memoryview:
        try:
            parameters = zstandard.get_frame_parameters(stored)
            if parameters.content_size != size:
                raise IntegrityError("a frame's size is not what the manifest says", reason="frame_size")
            data = (memoryview(bytearray(size)) if into is None else into)[:size]
            with decoder.stream_reader(stored, read_across_frames=True) as reader:
                # One call, since both ends are whole: the library then decodes in place, without a window of its own.
                if (size and reader.readinto(data) != size) or reader.read(1):
                    raise IntegrityError(
                        "a frame is longer or shorter than the manifest says", reason="frame_size"
                    )
        except zstandard.ZstdError as error:
            raise IntegrityError(f"a frame can't be decoded: {error}", reason="frame_damaged") from None
        return data

    return raw


def check_frame(stored: bytes | memoryview, pack: Pack, number: int) -> None:
    """Raise `IntegrityError` unless *stored* is frame *number* of *pack*."""
    size, _, digest = pack.frames[number]
    if len(stored) != size or hashlib.sha256(stored).hexdigest() != digest:
        raise IntegrityError(
            f"pack {pack.sha256[:16]} is damaged at frame {number}", name=pack.name, reason="pack_damaged"
        )


class Layout:
    """Turns offsets in a pack's raw stream into frames. `starts[i]`, `stored[i]`: where frame i begins, raw
    and stored."""

    def __init__(self, pack: Pack) -> None:
        self.pack = pack
        self.starts = [0]
        self.stored = [0]
        for stored, raw, _ in pack.frames:
            self.starts.append(self.starts[-1] + raw)
            self.stored.append(self.stored[-1] + stored)

    def frame_at(self, offset: int) -> int:
        """The number of the frame that holds the byte at *offset* of the raw stream."""
        return bisect_right(self.starts, offset) - 1

    def pieces(self, offset: int, size: int) -> Iterator[Piece]:
        """The pieces that hold *size* bytes at *offset*, in order; none for an empty file."""
        frame = self.frame_at(offset)
        while size > 0:
            start = offset - self.starts[frame]
            length = min(size, self.starts[frame + 1] - offset)
            if length > 0:
                yield Piece(frame, start, length)
            offset += length
            size -= length
            frame += 1
