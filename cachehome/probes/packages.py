"""Owns the `packages` part of a build: installed packages that change machine code, by version and content.

The metadata is read as text. importlib.metadata costs 38 ms to import, and a version alone does not tell a package
that was rebuilt under the same number: the hashes in RECORD do, and they are the same in every prefix.
"""

from __future__ import annotations

import json
import os
import re
import sys
from typing import TYPE_CHECKING, Any

from cachehome.probes import ABSENT, value

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

_METADATA = re.compile(r"(?P<name>[A-Za-z0-9][\w.]*?)-(?P<version>[^-]+)(?:-py[\d.]+)?\.(?:dist|egg)-info")
# Lines of RECORD that hold code: hashed, inside the package's own directory, not its metadata (which names the
# installer) and not a script (whose first line names the prefix).
_CODE = re.compile(rb"^(?!\.\.|/|[^/\n]*\.dist-info/)[^\n]*,sha256=[^\n,]*", re.MULTILINE)
_TORCH = re.compile(r"^(__version__|debug|cuda|git_version|hip|xpu)\b[^=\n]*=\s*(.+?)\s*$", re.MULTILINE)


class Installed:
    """One package that was found: `name`, `version`, where its `metadata` lies, and its checkout if it is editable."""

    __slots__ = ("checkout", "metadata", "name", "version")

    def __init__(self, name: str, version: str, metadata: str, checkout: str | None) -> None:
        self.name = name
        self.version = version
        self.metadata = metadata
        self.checkout = checkout


def search_path() -> list[str]:
    """Where this interpreter finds installed packages: `sys.path` without the place of the running script."""
    try:
        here = {"", os.getcwd(), os.path.dirname(os.path.abspath(sys.argv[0] if sys.argv else ""))}
    except OSError:  # the working directory is gone
        here = {""}
    return [
        entry for i, entry in enumerate(sys.path) if os.path.isdir(entry) and not (i == 0 and entry in here)
    ]


def find(search: Iterable[str], more: Sequence[str] = ()) -> list[Installed]:
    """The packages of the table, and *more*, on the path *search*; of two the first, as Python does."""
    wanted = re.compile("|".join(_pattern(name) for name in (*table(), *more)))
    found: dict[str, Installed] = {}
    for directory in search:
        try:
            names = sorted(os.listdir(directory))
        except OSError:
            continue
        for entry in names:
            match = _METADATA.fullmatch(entry)
            link = entry.endswith(".egg-link")
            if not match and not link:
                continue
            name = normalise(match["name"] if match else entry.removesuffix(".egg-link"))
            if name in found or not wanted.fullmatch(name):
                continue
            path = os.path.join(directory, entry)
            version = match["version"] if match else "develop"
            found[name] = Installed(name, version, path, _linked(path) if link else _editable(path))
    return [found[name] for name in sorted(found)]


def describe(package: Installed, search: Iterable[str]) -> dict[str, Any]:
    """Version and content of one package; an editable one's content is its source (`probes.source`)."""
    described: dict[str, Any] = {"version": package.version}
    if not package.checkout:
        described["record"] = value(_record, package.metadata)
    if package.name == "torch":
        described.update(value(_torch_build, search, package.metadata) or {})
    return described


def without_metadata(name: str, search: Iterable[str]) -> bool:
    """Whether a package can be imported though nothing says its version, as from a checkout on PYTHONPATH."""
    return any(os.path.isfile(os.path.join(directory, name, "__init__.py")) for directory in search)


def torch_build(search: Iterable[str]) -> dict[str, str]:
    """Version, commit, CUDA and ROCm of torch, read from the text of `torch/version.py` on the path *search*."""
    for directory in search:
        try:
            with open(os.path.join(directory, "torch", "version.py"), encoding="utf-8") as file:
                text = file.read()
        except OSError:
            continue
        return {name.strip("_"): raw.strip("'\"") for name, raw in _TORCH.findall(text)}
    return {}


def _torch_build(search: Iterable[str], metadata: str) -> dict[str, str]:
    return torch_build([os.path.dirname(metadata), *search])


def table() -> dict[str, str]:
    """Names and reasons of `packages.txt`."""
    with open(os.path.join(os.path.dirname(__file__), "packages.txt"), encoding="utf-8") as file:
        lines = [line.split(maxsplit=1) for line in file if line.strip() and not line.startswith("#")]
    return {name: reason.strip() for name, reason in lines}


def normalise(name: str) -> str:
    """A package's name as the index spells it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _pattern(name: str) -> str:
    return re.escape(name.rstrip("*") if name.endswith("*") else normalise(name)) + (
        ".*" if name.endswith("*") else ""
    )


def _record(metadata: str) -> str:
    import hashlib

    try:
        with open(os.path.join(metadata, "RECORD"), "rb") as file:
            lines = [line for line in _CODE.findall(file.read()) if b".pyc," not in line]
    except OSError:
        return ABSENT  # a distribution's own package, or an egg
    lines.sort()
    return hashlib.sha256(b"\n".join(lines)).hexdigest()[:16]


def _editable(metadata: str) -> str | None:
    try:
        with open(os.path.join(metadata, "direct_url.json"), encoding="utf-8") as file:
            origin = json.load(file)
        if origin.get("dir_info", {}).get("editable") and origin["url"].startswith("file://"):
            from urllib.parse import unquote

            return unquote(origin["url"][len("file://") :])
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        pass
    return None


def _linked(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8") as file:
            return file.readline().strip() or None
    except (OSError, ValueError):
        return None
