"""Growing entries: files that their compiler rewrites with more in it, and that several workers fill apart.

Inductor's timings of matrix products, `cache/<hash>`, are JSON objects of objects: those are merged key by key, ours
before theirs. What is of no known format can't be merged, and the last one published wins.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from cachehome.errors import IntegrityError
from cachehome.store.backend import Backend
from cachehome.store.manifest import File, Pack
from cachehome.store.pack import Layout, check_frame, decompressor


def merged(ours: bytes, theirs: bytes) -> bytes | None:
    """The union of two growing files, None if they have no format that is known."""
    try:
        one, two = json.loads(ours), json.loads(theirs)  # as their compiler does: a timing may be Infinity
    except (ValueError, RecursionError):
        return None
    if not isinstance(one, dict) or not isinstance(two, dict):
        return None
    return json.dumps(_union(one, two), sort_keys=True).encode()


def same(one: bytes, two: bytes) -> bool:
    """Whether two JSON files say the same."""
    try:
        return bool(json.loads(one) == json.loads(two))
    except (ValueError, RecursionError):
        return one == two


def _union(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, Any]:
    both = dict(theirs)
    for key, value in ours.items():
        other = both.get(key)
        together = isinstance(value, dict) and isinstance(other, dict)
        both[key] = _union(value, dict(other or {})) if together else value
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
