"""What the keys of known graphs were made of, so that a miss can be explained: `.cachehome/graphs.jsonl`.

    {"key": ..., "parts": {"example_inputs[0]": ["a1b2c3d4", "shape (4, 32)"], ...}}    the first line has all parts
    {"key": ..., "parts": {...}}                                                      others those that differ from it

torch lists the parts of each FX graph key, some 640 of them, with the hash and the text of each. The file lies in
the live directory of Inductor, is not published, and stops to grow at `LARGEST` bytes.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any

LARGEST = 4 << 20
_PART = re.compile(r"\[(\w+)\] ([^:\n]+): (.*)", re.DOTALL)
_SHAPE = re.compile(r"shape=torch\.Size\(\[([^\]]*)\]\)")
_DTYPE = re.compile(r"dtype=torch\.(\w+)")

Parts = dict[str, list[str]]


def parts_of(components: list[str]) -> Parts:
    """Name of each part of a key to [its hash, what it says]."""
    found: Parts = {}
    for line in components:
        match = _PART.fullmatch(line)
        if match:
            digest, name, text = match.groups()
            found[name] = [digest[:12], _short(text)]
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


class Graphs:
    """The file of one live directory, read once and appended to. Never raises."""

    def __init__(self, live: str) -> None:
        self.path = os.path.join(live, ".cachehome", "graphs.jsonl")
        self.known: dict[str, Parts] = {}
        self._first: Parts = {}
        self._size = 0
        try:
            with open(self.path, encoding="utf-8", errors="replace") as file:
                lines = file.read(2 * LARGEST).splitlines()
        except OSError:
            return
        self._size = sum(map(len, lines))
        for line in lines:
            try:
                document = json.loads(line)
                parts: Parts = dict(document["parts"])
                self._first = self._first or parts
                self.known[str(document["key"])] = {
                    name: part for name, part in (self._first | parts).items() if part
                }
            except (ValueError, KeyError, TypeError):
                continue

    def look_up(self, key: str, components: list[str]) -> list[str]:
        """Remember a key; if it is new, how it differs from the known one that is nearest."""
        if key in self.known:
            return []
        parts = parts_of(components)
        told = self.nearest(parts)
        self.known[key] = parts
        self._append(key, parts)
        return told

    def nearest(self, parts: Parts) -> list[str]:
        """The shortest list of differences from a known key; [] if there is none."""
        found = [differences(parts, known) for known in self.known.values()]
        return min(found, key=len, default=[])

    def _append(self, key: str, parts: Parts) -> None:
        new: dict[str, Any] = {n: p for n, p in parts.items() if self._first.get(n) != p}
        new |= {n: [] for n in self._first if n not in parts}
        self._first = self._first or parts
        line = json.dumps({"key": key, "parts": new}).encode() + b"\n"
        if self._size + len(line) > LARGEST:
            return
        self._size += len(line)
        try:
            os.makedirs(os.path.dirname(self.path), mode=0o700, exist_ok=True)
            file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                os.write(file, line)
            finally:
                os.close(file)
        except OSError:
            return
