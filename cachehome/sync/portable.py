"""What a file must be to leave this machine, and what changes in it on the way.

    kind of file             must be                              what changes on the way
    __grp__*.json            {"child_paths": {name: path}},       paths: names in the store, absolute here
                             every child beside it
    *.so *.o *.cubin *.hsaco an ELF file with all its sections    -
    fxgraph/*/*/* aotautograd/*/*   named by the sha256 of its bytes   -
    *.py                     Python that parses                   -
    *.best_config *.json     a JSON object                        -
    everything               not empty                            -

`check` and `canonical` work on bytes, so that a file is read once.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import struct
from collections.abc import Collection
from functools import lru_cache
from typing import Any

from cachehome.store.document import read

GROUP = "__grp__"
_CONTENT_NAMED = re.compile(
    r"((?:.*/)?(?:fxgraph/[^/]+|aotautograd)/[^/]+)/[^/]+"
)  # also below an engine's root
_LIBRARIES = (".so", ".o", ".cubin", ".hsaco")
_NOBITS = 8
_OBJECTS = (".best_config", ".json")


def graph_key(path: str) -> str:
    """What the graph in *path* lies under, with others of the same key; "" for a file of another kind."""
    found = _CONTENT_NAMED.fullmatch(path)
    return found.group(1) if found else ""


def is_group(path: str) -> bool:
    """Whether *path* is a Triton group: the file that names the others of a kernel by absolute path."""
    return path.endswith(".json") and path.rpartition("/")[2].startswith(GROUP)


def is_misplaced(entry: str, suffix: str) -> bool:
    """Whether a file of *entry* is a group that lies elsewhere than right in its directory: what its children are
    called there can't be told."""
    path = entry + suffix
    return GROUP in path and is_group(path) and path.rpartition("/")[0] != entry


def canonical(path: str, data: bytes) -> bytes:
    """The bytes of *path* as a store keeps them, the same whatever directory they lay in. Raises
    ValueError."""
    if not is_group(path):
        return data
    return _group({name: name for name in children(data)})


def children(group: bytes | memoryview) -> list[str]:
    """The names that a group file holds, in its order. Raises ValueError if it is none."""
    document = _object(group)
    paths = document.get("child_paths")
    if not isinstance(paths, dict) or not all(isinstance(path, str) for path in paths.values()):
        raise ValueError("not a group of child paths")
    for name in paths:
        if not name or "/" in name or "\0" in name or name[0] == ".":
            raise ValueError(f"the child {name[:80]!r}")
    return list(paths)


def packed(group: bytes | memoryview, present: Collection[str]) -> tuple[bytes, str]:
    """(a group as a store keeps it, what is wrong with it) in a directory that holds the files *present*. Raises
    ValueError."""
    names = children(group)
    missing = next((name for name in names if name not in present), "")
    return _group({name: name for name in names}), f"{missing} is missing" if missing else ""


def local(group: bytes, directory: str, present: Collection[str]) -> bytes:
    """A stored group as it must read in *directory*, with those of its children that are *present* there."""
    here = json.dumps(f"{directory}/")[:-1]
    paths = ", ".join([f'"{rest}: {here}{rest}' for name, rest in _quoted(group) if name in present])
    return f'{{"child_paths": {{{paths}}}}}'.encode()


@lru_cache(maxsize=64)
def _quoted(group: bytes) -> tuple[tuple[str, str], ...]:
    """(name, the same in JSON but for the opening quote) of each child. Kernels of one function have equal groups."""
    return tuple((name, json.dumps(name)[1:]) for name in children(group))


def points_here(group: bytes, directory: str) -> bool:
    """Whether the children of a local group file are named in *directory*, as a reader of Triton needs it."""
    document = _object(group)
    return all(os.path.dirname(path) == directory for path in document["child_paths"].values())


def _group(paths: dict[str, str]) -> bytes:
    return json.dumps({"child_paths": paths}).encode()


def check(path: str, data: bytes | memoryview) -> str:
    """What is wrong with a file, "" if nothing is. *path* is relative to its family's directory."""
    if not data:
        return "empty"
    if path.endswith(_LIBRARIES):
        return _elf(data)
    if graph_key(path):
        return _content_name(os.path.basename(path), data)
    if path.endswith(".py"):
        return _python(data)
    if path.endswith(_OBJECTS):
        try:
            document = _object(data)
        except ValueError as error:
            return str(error)
        if is_group(path) and not isinstance(document.get("child_paths"), dict):
            return "not a group of child paths"
    return ""


def check_group(data: bytes, present: Collection[str]) -> str:
    """What is wrong with a group whose directory holds the files *present*."""
    try:
        missing = [name for name in children(data) if name not in present]
    except ValueError as error:
        return str(error)
    return f"{missing[0]} is missing" if missing else ""


def check_local(path: str, name: str) -> str:
    """`check` for the file *path* on disk, whose name below its family's directory is *name*. Raises OSError."""
    with open(path, "rb", opener=no_wait) as file:
        return check(name, file.read())


def no_wait(path: str, flags: int) -> int:
    """Open what was a file a moment ago: if it is a pipe by now, nobody may write to it."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _object(data: bytes | memoryview) -> dict[str, Any]:
    document = read(data)
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    return document


def _content_name(name: str, data: bytes | memoryview) -> str:
    import base64

    # torch/_inductor/codecache.py, sha256_hash: base 32, lower case, cut.
    digest = base64.b32encode(hashlib.sha256(data).digest()).decode().lower()
    return "" if digest.startswith(name) else "its name is not the sha256 of its bytes"


def _python(data: bytes | memoryview) -> str:
    import ast
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(bytes(data))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return f"does not parse: {error}"
    return ""


def _elf(data: bytes | memoryview) -> str:
    """Whether an ELF file is as long as its own tables say. A short one kills the process that maps it (SIGBUS)."""
    if data[:4] != b"\x7fELF":
        # Other systems' libraries (Mach-O, PE) and archives have no such tables.
        return "cut short" if b"\x7fELF".startswith(bytes(data[:4])) else ""
    try:
        return "" if _elf_end(data) <= len(data) else "cut short"
    except (struct.error, KeyError, IndexError):
        return "cut short"


def _elf_end(data: bytes | memoryview) -> int:
    """Where the last part that the headers of an ELF file name ends. Raises for what is no such header."""
    order, wide = {1: "<", 2: ">"}[data[5]], {1: False, 2: True}[data[4]]
    header, program, section = _ELF[order, wide]
    programs, sections, program_size, program_count, section_size, section_count = header.unpack_from(data)
    if not program_count and not section_count:
        raise IndexError
    end = max(programs + program_size * program_count, sections + section_size * section_count)
    for at in range(programs, programs + program_size * program_count, program_size or 1):
        offset, size = program.unpack_from(data, at)
        end = max(end, offset + size)
    for at in range(sections, sections + section_size * section_count, section_size or 1):
        kind, offset, size = section.unpack_from(data, at)
        if kind != _NOBITS:  # such a section takes room in memory only
            end = max(end, offset + size)
    return int(end)


# (byte order, 64 bits) -> of the file's header: where the tables of programs and sections begin, size and number of the
# rows of each; of a program: offset, size in the file; of a section: type, offset, size.
_ELF = {
    (order, wide): tuple(
        struct.Struct(order + text)
        for text in (("32xQQ6xHHHH", "8xQ16xQ", "4xI16xQQ") if wide else ("28xII6xHHHH", "4xI8xI", "4xI8xII"))
    )
    for order in "<>"
    for wide in (False, True)
}
