"""What the keys of known graphs were made of, so that a miss can be explained: `graph_parts/` of Inductor's live
directory.

    <key>.json            {"parts": {"example_inputs[0]": ["a1b2c3d4", "float32[4, 32]"], ...},
                           "shared": "settings-0123456789abcdef", "made": {"thread count": "16", ...}}
    settings-<hash>.json  {"parts": {...}}    600 of the 640 parts, alike for all graphs of most programs

torch lists the parts of each FX graph key with the hash and the text of each. The files are published and restored
with the graphs, so that a start elsewhere can name what differs. `made`: the circumstances of who compiled the graph.
No file is written over, none is added beyond `LARGEST` bytes, and no compiler looks into them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from cachehome.observe import circumstances
from cachehome.observe.circumstances import Circumstances

DIRECTORY = "graph_parts"
LARGEST = 4 << 20
_COMPARED = 1000  # keys that a miss is compared with: 150 us each
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
            found[name] = [digest[:12], short]
    return found


def _short(text: str) -> str:
    shape, dtype = _SHAPE.search(text), _DTYPE.search(text)
    if shape:
        return f"{dtype.group(1) if dtype else '?'}[{shape.group(1)}]"
    return text if len(text) <= 60 and text.isprintable() and " at 0x" not in text else ""


def differences(parts: Parts, known: Parts) -> list[str]:
    """In which parts two keys differ, in words; what a user can change comes first."""
    names = [n for n in {**known, **parts} if known.get(n, [""])[0] != parts.get(n, [""])[0]]
    return [_in_words(name, known.get(name), parts.get(name)) for name in sorted(names, key=_rank)]


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
    """What is known of one key."""

    parts: Parts
    made: Circumstances | None


class Graphs:
    """The files of one live directory. Never raises."""

    def __init__(self, live: str) -> None:
        self.directory = os.path.join(live, DIRECTORY)
        self._shared: dict[str, Parts] = {}
        self._before: list[Known] | None = None
        self._size: int | None = None

    def read(self, key: str) -> Known | None:
        """What is known of *key*, None if that is nothing."""
        try:
            document = self._load(key)
            shared = str(document["shared"])
            if shared not in self._shared:
                self._shared[shared] = _parts(self._load(shared)["parts"])
            made = circumstances.read(document.get("made"))
            return Known(self._shared[shared] | _parts(document["parts"]), made)
        except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            return None

    def nearest(self, parts: Parts) -> tuple[list[str], Circumstances | None]:
        """(the shortest list of differences from a key that was known before this process missed one, the
        circumstances of that one); ([], None) if there was none."""
        if self._before is None:
            self._before = [known for key in self._keys()[:_COMPARED] if (known := self.read(key))]
        found = [(differences(parts, known.parts), known.made) for known in self._before]
        return min(found, key=lambda one: len(one[0]), default=([], None))

    def keep(self, key: str, parts: Parts, made: Circumstances | None) -> None:
        """Write down what *key* is made of, unless that is known."""
        if not key.isalnum() or not parts or os.path.exists(self._path(key)):
            return
        shared = {name: part for name, part in parts.items() if name.startswith(_SHARED)}
        text = _dumped({"parts": shared})
        name = f"settings-{hashlib.sha256(text).hexdigest()[:16]}"
        own = {name: part for name, part in parts.items() if name not in shared}
        with contextlib.suppress(OSError):
            self._write(name, text)
            self._write(key, _dumped({"parts": own, "shared": name, "made": made}))

    def _write(self, name: str, text: bytes) -> None:
        path = self._path(name)
        if self._size is None:
            os.makedirs(self.directory, mode=0o700, exist_ok=True)
            with os.scandir(self.directory) as listing:
                self._size = sum(entry.stat(follow_symlinks=False).st_size for entry in listing)
        if self._size + len(text) > LARGEST or os.path.exists(path):
            return
        self._size += len(text)
        temporary = os.path.join(self.directory, f".{name}.{os.getpid()}")  # hidden: no scan sees it
        with open(temporary, "wb") as file:
            file.write(text)
        os.replace(temporary, path)

    def _path(self, name: str) -> str:
        return os.path.join(self.directory, f"{name}.json")

    def _keys(self) -> list[str]:
        try:
            names = sorted(os.listdir(self.directory))
        except OSError:
            return []
        return [name[:-5] for name in names if name.endswith(".json") and name[:-5].isalnum()]

    def _load(self, name: str) -> Any:
        if os.sep in name:
            raise ValueError(name)
        with open(self._path(name), "rb") as file:
            return json.loads(file.read(LARGEST))


def _parts(document: Any) -> Parts:
    return {str(name): [str(part[0]), str(part[1])] for name, part in document.items()}


def _dumped(document: object) -> bytes:
    return json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
