"""What the keys of known graphs were made of, so that a miss can be explained: `graph_parts/` of Inductor's live
directory.

    <key>.json            {"parts": {"example_inputs[0]": ["a1b2c3d4", "float32[4, 32]"], ...},
                           "shared": "settings-0123456789abcdef", "made": {"thread count": "16", ...}}
    settings-<hash>.json  {"parts": {...}}    600 of the 640 parts, alike for all graphs of most programs

torch lists the parts of each FX graph key with the hash and the text of each. The files are published and restored
with the graphs, so that a start elsewhere can name what differs. `made`: the circumstances of who compiled the graph.
No file is written over, none is added beyond `LARGEST` bytes, and no compiler looks into them. Of what a store brought,
no more is read than a miss may cost.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

from cachehome.observe import circumstances, files
from cachehome.observe.circumstances import Circumstances

DIRECTORY = "graph_parts"
LARGEST = 4 << 20
_KEY, _SETTINGS = 256 << 10, 1 << 20  # bytes of one file
_READ = 8 << 20  # bytes of all that a miss is compared with, wherever they came from
_COMPARED = 1000  # keys that it is compared with
_LISTED = 10_000  # files; a directory with so many is full
_NONE = [""]
_RUBBISH = (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError)
_SHARED = ("inductor_config", "torch_version", "system_info")
_PART = re.compile(r"\[(\w+)\] ([^:\n]+): (.*)", re.DOTALL)
_SHAPE = re.compile(r"shape=torch\.Size\(\[([^\]]*)\]\)")
_DTYPE = re.compile(r"dtype=torch\.(\w+)")

Parts = dict[str, list[str]]


def parts_of(components: Iterable[str]) -> Parts:
    """Name of each part of a key to [its hash, what it says]. What looks like a secret leaves no trace."""
    from cachehome.probes import scrub

    found: Parts = {}
    for line in components:
        match = _PART.fullmatch(line)
        if match:
            digest, name, text = match.groups()
            short = _short(text)
            if short and (scrub.secret_name(name, short) or scrub.secret_shape(short)):
                continue
            found[files.shown(name)] = [files.shown(digest[:12]), short]
    return found


def _short(text: str) -> str:
    shape, dtype = _SHAPE.search(text), _DTYPE.search(text)
    if shape:
        return f"{dtype.group(1) if dtype else '?'}[{shape.group(1)}]"
    return text if len(text) <= 60 and text.isprintable() and " at 0x" not in text else ""


def differences(parts: Parts, known: Parts) -> list[str]:
    """In which parts two keys differ, in words; what a user can change comes first."""
    names = sorted(_differing(parts, known), key=_rank)
    return [_in_words(name, known.get(name), parts.get(name)) for name in names]


def _differing(parts: Parts, known: Parts) -> list[str]:
    return [n for n in known.keys() | parts.keys() if known.get(n, _NONE)[0] != parts.get(n, _NONE)[0]]


def _split(parts: Parts) -> tuple[Parts, Parts]:
    """(the parts that a graph has for itself, the settings)."""
    own = {name: part for name, part in parts.items() if not name.startswith(_SHARED)}
    return own, {name: part for name, part in parts.items() if name not in own}


def _rank(name: str) -> tuple[int, str]:
    return (2 if name == "gm" else 1 if name.startswith(("torch_version", "system_info")) else 0, name)


def _in_words(name: str, before: list[str] | None, now: list[str] | None) -> str:
    what = name
    for start, word in (
        ("example_inputs", "input"), ("inductor_config", "Inductor setting"), ("fx_kwargs", "compile option"),
    ):  # fmt: skip
        if name.startswith(start + "["):
            what = f"{word} {name[len(start) + 1 : -1]}"
    if name == "gm":
        return "the graph itself"
    if name == "cpp_runtime_thread_count":
        what = "thread count"
    if before is None or now is None:
        return f"{what}: {'new' if before is None else 'gone'}"
    return f"{what}: {before[1]} became {now[1]}" if before[1] and now[1] else what


class Known(NamedTuple):
    """What is known of one key: its own parts, the name of the file with the others, and who made it."""

    own: Parts
    shared: str
    made: Circumstances | None


class Graphs:
    """The files of one live directory. Never raises."""

    def __init__(self, live: str) -> None:
        self.directory = os.path.join(live, DIRECTORY)
        self._shared: dict[str, Parts] = {}
        self._before: list[Known] | None = None
        self._size: int | None = None
        self._left = _READ

    def read(self, key: str) -> Known | None:
        """What is known of *key*, None if that is nothing."""
        try:
            return self._known(self._load(key, _KEY))
        except _RUBBISH:
            return None

    def nearest(self, parts: Parts) -> tuple[list[str], Circumstances | None]:
        """(the shortest list of differences from a key that was known before this process missed one, the
        circumstances of that one); ([], None) if there was none."""
        if self._before is None:
            self._before = list(self._all())
        own, shared = _split(parts)
        others = {name: len(_differing(shared, known)) for name, known in self._shared.items()}
        found = min(
            self._before,
            key=lambda known: others[known.shared] + len(_differing(own, known.own)),
            default=None,
        )
        if found is None:
            return [], None
        return differences(parts, self._shared[found.shared] | found.own), found.made

    def _all(self) -> Iterator[Known]:
        """The keys that a miss is compared with; `_shared` has the rest of their parts."""
        for key in self._keys()[:_COMPARED]:
            try:
                known = self._known(self._bounded(key, _KEY))
                if known.shared not in self._shared:
                    self._shared[known.shared] = _split(_parts(self._bounded(known.shared, _SETTINGS)))[1]
            except _RUBBISH:
                continue
            yield known

    def _known(self, document: Any) -> Known:
        made = circumstances.read(document.get("made"))
        return Known(_split(_parts(document))[0], str(document["shared"]), made)

    def keep(self, key: str, parts: Parts, made: Circumstances | None) -> None:
        """Write down what *key* is made of, unless that is known."""
        if not key.isalnum() or not parts or os.path.lexists(self._path(key)):
            return
        own, shared = _split(parts)
        text = files.dumped({"parts": shared})
        name = f"settings-{hashlib.sha256(text).hexdigest()[:16]}"
        with contextlib.suppress(OSError):
            self._write(name, text, _SETTINGS)
            self._write(key, files.dumped({"parts": own, "shared": name, "made": made}), _KEY)

    def _write(self, name: str, text: bytes, most: int) -> None:
        path = self._path(name)
        if self._size is None:
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            with os.scandir(self.directory) as listing:
                entries = list(itertools.islice(listing, _LISTED))
            full = len(entries) == _LISTED
            self._size = (
                LARGEST if full else sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
            )
        if len(text) > most or self._size + len(text) > LARGEST or os.path.lexists(path):
            return
        self._size += len(text)
        files.replace(path, text)

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, f"{name}.json")

    def _keys(self) -> list[str]:
        try:
            names = sorted(os.listdir(self.directory))
        except OSError:
            return []
        return [name[:-5] for name in names if name.endswith(".json") and name[:-5].isalnum()]

    def _load(self, name: str, most: int) -> Any:
        return files.parse(self._bytes(name, most))

    def _bounded(self, name: str, most: int) -> Any:
        data = self._bytes(name, min(most, self._left))
        self._left -= len(data)
        return files.parse(data)

    def _bytes(self, name: str, most: int) -> bytes:
        if os.sep in name:
            raise ValueError(name)
        return files.read(self._path(name), most)


def _parts(document: Any) -> Parts:
    return {str(name): [str(part[0]), str(part[1])] for name, part in document["parts"].items()}
