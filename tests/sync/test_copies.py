"""Near-copies of one graph: one is published, and guarded ones all are."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from cachehome.sync import copies
from cachehome.sync.scan import LocalEntry, LocalFile


class Graph:
    """As torch's CompiledFxGraph: a class with a __dict__, pickled with protocol 4 or 5."""

    def __init__(self, guards: object, noise: str) -> None:
        self.before = noise
        self.guards_expr = guards
        self.cudagraph_info = None


def entry(live: Path, name: str, guards: object, when: int, protocol: int = 4) -> LocalEntry:
    path = live / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(Graph(guards, name), protocol))
    return LocalEntry("inductor", name, False, (LocalFile("", path.stat().st_size, when, 1, 0o600),))


@pytest.fixture(autouse=True)
def names_need_not_be_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    check = lambda path, name: "broken" if name.endswith("broken") else ""  # noqa: E731
    monkeypatch.setattr("cachehome.sync.portable.check_local", check)


@pytest.mark.parametrize("folder", ["fxgraph/ab/key", "aotautograd/key"])
def test_the_first_of_several_ranks_stays(tmp_path: Path, folder: str) -> None:
    local = {
        f"{folder}/{n}": entry(tmp_path, f"{folder}/{n}", None, when)
        for n, when in (("a", 3), ("b", 1), ("c", 2))
    }
    assert copies.redundant(list(local), local, (), str(tmp_path)) == {f"{folder}/a", f"{folder}/c"}
    assert copies.redundant(list(local), local, {folder}, str(tmp_path)) == set(local)


def test_a_broken_copy_is_not_the_one_that_stays(tmp_path: Path) -> None:
    names = [f"fxgraph/ab/k/{n}" for n in ("broken", "a", "b")]
    local = {name: entry(tmp_path, name, None, when) for when, name in enumerate(names)}
    assert copies.redundant(names, local, (), str(tmp_path)) == {names[0], names[2]}
    assert copies.redundant([names[0], names[0]], local, (), str(tmp_path)) == set()


def test_guards_are_never_judged(tmp_path: Path) -> None:
    local = {
        f"aotautograd/k/{n}": entry(tmp_path, f"aotautograd/k/{n}", guards, 1)
        for n, guards in (("a", "s0 < 5"), ("b", "s0 < 5"))
    }
    assert copies.redundant(list(local), local, {"aotautograd/k"}, str(tmp_path)) == set()


def test_one_of_a_key_stays_and_other_kinds_do(tmp_path: Path) -> None:
    names = ("fxgraph/ab/k1/a", "fxgraph/ab/k2/a", "ab/x.py", "cache/1")
    local = {name: entry(tmp_path, name, None, 1) for name in names}
    assert copies.redundant(names, local, (), str(tmp_path)) == set()


def test_what_cannot_be_told_is_published(tmp_path: Path) -> None:
    for number, data in enumerate((b"", b"\x80\x04N.", b"\x8c\x0bguards_expr")):
        path = tmp_path / str(number)
        path.write_bytes(data)
        assert not copies.unguarded(str(path))
    assert not copies.unguarded(str(tmp_path / "none"))
    for protocol in (4, 5):
        entry(tmp_path, "fxgraph/ab/k/a", None, 1, protocol)
        assert copies.unguarded(str(tmp_path / "fxgraph/ab/k/a"))
