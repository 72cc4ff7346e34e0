"""Near-copies of one graph, of which one is worth publishing.

    fxgraph/<xx>/<key>/<sha>, aotautograd/<key>/<sha>

Several ranks that compile the same graph at the same time write one file each under the same key, with other
bytes, since they hold times and names; on a GPU each holds all kernels of its graph. A lookup takes the first
file of the key whose guards hold. Where the inputs have no symbolic sizes there are no guards, which the key
implies, so all files of such a key are equally good: the first one published stays the only one.

Files are read, never unpickled: a graph without guards says so in a few bytes.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Collection, Mapping, Sequence

from cachehome.sync import portable
from cachehome.sync.scan import LocalEntry

_FIELD = (
    b"\x8c\x0bguards_expr"  # a short string of 11 bytes, which the pickler may note (\x94, or q and a number)
)
_NONE = (b"\x94N", b"N")


def redundant(
    wanted: Sequence[str], local: Mapping[str, LocalEntry], there: Collection[str], directory: str
) -> set[str]:
    """Those entries of *wanted* that add nothing to the keys that are *there*, or to each other."""
    by_key: dict[str, list[str]] = {}
    for name in wanted:
        key = portable.graph_key(name)
        if key:
            by_key.setdefault(key, []).append(name)
    found: set[str] = set()
    for key, names in by_key.items():
        if len(names) + (key in there) < 2:
            continue
        names.sort(key=lambda name: (local[name].newest_ns, name))
        alike = [name for name in names if unguarded(os.path.join(directory, name))]
        kept = "" if key in there else next((name for name in alike if _sound(directory, name)), "")
        if kept or key in there:
            found.update(name for name in alike if name != kept)
    return found


def kept(names: Collection[str], directory: str) -> set[str]:
    """The keys of those entries that are to be published of *directory*, as far as they are sound."""
    return {key for name in names if (key := portable.graph_key(name)) and _sound(directory, name)}


def _sound(directory: str, name: str) -> bool:
    try:
        return not portable.check_local(os.path.join(directory, name), name)
    except OSError:
        return False


def unguarded(path: str) -> bool:
    """Whether the graph in *path* holds for whatever its key holds for; False if that can't be told."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            at = data.find(_FIELD)
            if at < 0:
                return False
            while at >= 0:
                end = at + len(_FIELD)
                if not data[end : end + 2].startswith(_NONE):
                    return False
                at = data.find(_FIELD, end)
            return True
    except (OSError, ValueError):
        return False
