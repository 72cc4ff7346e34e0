"""Agreement of nodes: all that compute must have one identity, before anything is restored.

Each node puts its identity on a board and waits until enough are there; then every node gives the same verdict. A board
is a directory that all of them see, or a store of torch.distributed (or anything with its `set`, `get`, `add`):

    DIRECTORY/<node>.json                  DirectoryBoard: one file a node, written aside and renamed
    <prefix>/count, <prefix>/<number>      StoreBoard: a counter, and the identities by number

Nodes without a GPU are not asked as soon as one with a GPU is there: a head node compiles nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from cachehome.errors import CacheHomeError, ConfigError
from cachehome.identity import ABSENT, Identity, flatten

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_FIRST_WAIT = 0.02
_LONGEST_WAIT = 1.0


class Disagreement(CacheHomeError):
    """Nodes differ. Fields: `rows`, a list of `Row`."""


class TooFew(CacheHomeError):
    """Not all nodes came in time. Fields: `nodes`, the names of those that did, and `wanted`."""


@dataclass(frozen=True, slots=True)
class Row:
    """One field in which nodes differ: each value, and the nodes that have it, the most common one first."""

    field: str
    values: tuple[tuple[str, tuple[str, ...]], ...]


class Board(Protocol):
    """Where nodes show their identities to each other."""

    def show(self, node: str, document: str) -> None:
        """Put up what *node* has to say, instead of what it said before."""

    def read(self) -> dict[str, str]:
        """What all nodes have put up so far."""


class DirectoryBoard:
    """A board in a directory. It should be fresh for each launch, or old answers count."""

    def __init__(self, directory: str) -> None:
        self.directory = os.path.abspath(directory)

    def show(self, node: str, document: str) -> None:
        path = os.path.join(self.directory, f"{_file_name(node)}.json")
        temporary = os.path.join(self.directory, f".{_file_name(node)}.{os.getpid()}.tmp")
        try:
            os.makedirs(self.directory, exist_ok=True)
            with open(temporary, "w", encoding="utf-8") as file:
                file.write(document)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise ConfigError(
                f"{self.directory} can't be used: {error.strerror}",
                key="directory",
                source="agree",
                value=self.directory,
                allowed="a directory that every node can write",
            ) from None

    def read(self) -> dict[str, str]:
        found = {}
        # A new listing each time: some network file systems keep an old one for a while, so the wait must be longer.
        for name in os.listdir(self.directory):
            if name.endswith(".json") and not name.startswith("."):
                with (
                    contextlib.suppress(OSError, ValueError),
                    open(os.path.join(self.directory, name), encoding="utf-8") as file,
                ):
                    found[name.removesuffix(".json")] = file.read()
        return found


class StoreBoard:
    """A board in a store of torch.distributed (`TCPStore`, `FileStore`, `HashStore`, `PrefixStore`)."""

    def __init__(self, store: Any, prefix: str = "cachehome/agree") -> None:
        self.store = store
        self.prefix = prefix
        self._own: int | None = None
        self._read: dict[int, str] = {}

    def show(self, node: str, document: str) -> None:
        if self._own is None:
            self._own = int(self.store.add(f"{self.prefix}/number", 1))
        self.store.set(f"{self.prefix}/{self._own}", json.dumps([node, document]))
        self.store.add(f"{self.prefix}/count", 1)

    def read(self) -> dict[str, str]:
        # A number is given out before its value is there, so ask only for those that are.
        for number in range(1, int(self.store.add(f"{self.prefix}/number", 0)) + 1):
            key = f"{self.prefix}/{number}"
            if number not in self._read and self.store.check([key]):
                self._read[number] = bytes(self.store.get(key)).decode()
        return dict(json.loads(text) for text in self._read.values())


def agree(
    board: Board | str | os.PathLike[str],
    mine: Identity,
    nodes: int,
    *,
    node: str | None = None,
    timeout: float = 300.0,
) -> dict[str, Identity]:
    """Wait until *nodes* have shown their identities on *board* (a directory, or a `Board`) and compare them.

    Returns the identities that were asked, by node. Raises `Disagreement`, or `TooFew` after *timeout* seconds.
    """
    if isinstance(board, (str, os.PathLike)):
        board = DirectoryBoard(os.fspath(board))
    name = node or (os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "node"))
    board.show(name, mine.to_json())
    deadline = time.monotonic() + timeout
    wait = _FIRST_WAIT
    while True:
        found = _parse(board.read())
        those = asked(found)
        if len(those) >= nodes:
            break
        if time.monotonic() >= deadline:
            came = ", ".join(sorted(those)) or "none"
            raise TooFew(
                f"only {len(those)} of {nodes} nodes came within {timeout:.0f} s: {came}",
                nodes=sorted(those),
                wanted=nodes,
            )
        time.sleep(min(wait, max(deadline - time.monotonic(), 0)))
        wait = min(wait * 1.5, _LONGEST_WAIT)
    rows = compare(those)
    if rows:
        fields = ", ".join(row.field for row in rows[:5]) + (" ..." if len(rows) > 5 else "")
        raise Disagreement(f"{len(those)} nodes do not have one identity: they differ in {fields}", rows=rows)
    return those


def asked(found: Mapping[str, Identity]) -> dict[str, Identity]:
    """The nodes that must agree: those with a GPU, or all if none has one."""
    with_gpu = {node: one for node, one in found.items() if has_gpu(one)}
    return with_gpu or dict(found)


def has_gpu(one: Identity) -> bool:
    """Whether the identity is that of a node with a GPU. One whose GPU could not be read counts as such."""
    gpu = one.build.get("gpu")
    return not isinstance(gpu, dict) or gpu.get("vendor", "none") != "none"


def compare(found: Mapping[str, Identity]) -> list[Row]:
    """The fields in which the nodes differ, build before profile."""
    rows: list[Row] = []
    for part in ("build", "profile"):
        flat = {node: dict(flatten(getattr(one, part))) for node, one in found.items()}
        for field in sorted({name for fields in flat.values() for name in fields}):
            values: dict[str, list[str]] = {}
            for node in sorted(flat):
                values.setdefault(flat[node].get(field, ABSENT), []).append(node)
            if len(values) > 1:
                ordered = sorted(values.items(), key=lambda item: (-len(item[1]), item[1]))
                title = field if part == "build" else f"profile.{field}"
                rows.append(Row(title, tuple((value, tuple(nodes)) for value, nodes in ordered)))
    return rows


def table(rows: Iterable[Row], width: int = 60) -> list[str]:
    """The rows as lines of text."""
    lines = []
    for row in rows:
        lines.append(row.field)
        for value, nodes in row.values:
            shown = value if len(value) <= width else f"{value[: width - 20]}...{value[-17:]}"
            who = ", ".join(nodes[:8]) + (f" and {len(nodes) - 8} more" if len(nodes) > 8 else "")
            lines.append(f"  {shown or '(empty)':<{width}}  {who}")
    return lines


def _parse(texts: Mapping[str, str]) -> dict[str, Identity]:
    found = {}
    for node, text in texts.items():
        with contextlib.suppress(
            ValueError
        ):  # half of a file, on a file system that shows such: it will be whole soon
            found[node] = Identity.from_json(text)
    return found


def _file_name(node: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in node).lstrip(".") or "node"
