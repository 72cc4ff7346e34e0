"""Growing entries: files that their compiler rewrites with more in it, and that several workers fill apart.

Inductor's timings of matrix products, `cache/<hash>`, are JSON objects of objects: those are merged key by key,
and what the store has stays: two hosts that timed the same product would take turns for ever. What is of no known
format can't be merged, and the last one published wins. No union is larger than `LARGEST`.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from cachehome.errors import IntegrityError
from cachehome.store.backend import Backend
from cachehome.store.entries import File
from cachehome.store.manifest import Pack
from cachehome.store.pack import Layout, check_frame, decompressor

LARGEST = 8 << 20


def merged(ours: bytes, theirs: bytes) -> bytes | None:
    """*theirs* with what only *ours* has; *theirs* alone if that is too large, None if they have no known format."""
    if ours.lstrip()[:1] != b"{" or theirs.lstrip()[:1] != b"{":
        return None
    if max(len(ours), len(theirs)) > LARGEST:
        return theirs
    try:
        # As their compiler reads them: a timing may be Infinity.
        both = json.dumps(_union(json.loads(ours), json.loads(theirs)), sort_keys=True).encode()
    except (ValueError, RecursionError):
        return None
    return both if len(both) <= LARGEST else theirs


def same(one: bytes, two: bytes) -> bool:
    """Whether two JSON files say the same."""
    if one == two:
        return True
    try:  # as text: NaN is not even itself
        return json.dumps(json.loads(one), sort_keys=True) == json.dumps(json.loads(two), sort_keys=True)
    except (ValueError, RecursionError):
        return False


def _union(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    both = ours | theirs
    for key in ours.keys() & theirs.keys():
        if isinstance(ours[key], dict) and isinstance(theirs[key], dict):
            both[key] = _union(ours[key], theirs[key])
    return both


def stored(backend: Backend, build: str, pack: Pack, file: File) -> bytes:
    """The bytes of one *file* of a store, verified. Raises `IntegrityError`, `NotInStore`."""
    layout, decode = Layout(pack), decompressor()
    parts = []
    for piece in layout.pieces(file.offset, file.size):
        data = backend.get(f"{build}/{pack.name}", layout.stored[piece.frame], pack.frames[piece.frame][0])
        check_frame(data, pack, piece.frame)
        parts.append(decode(data, pack.frames[piece.frame][1])[piece.start : piece.start + piece.length])
    whole = b"".join(parts)
    if hashlib.sha256(whole).hexdigest() != file.sha256:
        raise IntegrityError("a file is not what the manifest says", name=pack.name, reason="file_damaged")
    return whole
