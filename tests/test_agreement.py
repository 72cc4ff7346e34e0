"""All nodes have one identity, or a table says what differs where."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cachehome.agreement import (
    Board,
    DirectoryBoard,
    Disagreement,
    StoreBoard,
    TooFew,
    agree,
    asked,
    compare,
    table,
)
from cachehome.errors import ConfigError
from cachehome.identity import Identity

GPU = {"vendor": "nvidia", "driver": "570", "models": ["H200"]}


def _node(gpu: object = GPU, **build: object) -> Identity:
    return Identity({"schema": 1, "gpu": gpu, **build}, {"name": "p"})


def _together(
    board: Callable[[], Board | str], nodes: dict[str, Identity], wanted: int, timeout: float = 20
) -> dict[str, object]:
    """Each node in a thread; what it returned or raised."""
    results: dict[str, object] = {}

    def one(name: str) -> None:
        try:
            results[name] = agree(board(), nodes[name], wanted, node=name, timeout=timeout)
        except Exception as error:
            results[name] = error

    threads = [threading.Thread(target=one, args=(name,)) for name in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.fixture(params=["directory", "HashStore", "FileStore"])
def board(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], Board | str]:
    if request.param == "directory":
        return lambda: str(tmp_path / "board")
    distributed = pytest.importorskip("torch.distributed")
    if request.param == "HashStore":
        store = distributed.HashStore()
        return lambda: StoreBoard(store)
    path = str(tmp_path / "store")
    return lambda: StoreBoard(distributed.FileStore(path, -1))


def test_they_agree(board: Callable[[], Board | str]) -> None:
    nodes = {f"node-{number}": _node() for number in range(4)}
    results = _together(board, nodes, 4)
    assert all(isinstance(found, dict) and set(found) == set(nodes) for found in results.values()), results


def test_they_differ_and_everybody_says_so(board: Callable[[], Board | str]) -> None:
    nodes = {
        "a": _node(driver="1"),
        "b": _node(driver="1"),
        "c": _node(driver="2", environment={"TRITON_X": "1"}),
    }
    results = _together(board, nodes, 3)
    for found in results.values():
        assert isinstance(found, Disagreement), found
        assert [row.field for row in found.rows] == ["driver", "environment.TRITON_X"]
        assert found.rows[0].values == (("1", ("a", "b")), ("2", ("c",)))


def test_nodes_without_a_gpu_are_not_asked(board: Callable[[], Board | str]) -> None:
    nodes = {"head": _node(gpu={"vendor": "none"}, driver="other"), "a": _node(), "b": _node()}
    results = _together(board, nodes, 2)
    assert all(isinstance(found, dict) and set(found) == {"a", "b"} for found in results.values()), results


def test_a_gpu_that_cannot_be_read_is_asked() -> None:
    nodes = {"head": _node(gpu={"vendor": "none"}), "a": _node(gpu={"vendor": "error: lost"}), "b": _node()}
    assert set(asked(nodes)) == {"a", "b"}
    assert compare(asked(nodes))


def test_without_any_gpu_all_are_asked() -> None:
    assert set(asked({"a": _node(gpu={"vendor": "none"}), "b": _node(gpu={"vendor": "none"})})) == {"a", "b"}


def test_too_few(tmp_path: Path) -> None:
    with pytest.raises(TooFew, match="only 1 of 2 nodes came within 0 s: a") as found:
        agree(str(tmp_path), _node(), 2, node="a", timeout=0.1)
    assert found.value.nodes == ["a"]


def test_half_a_file_is_waited_for(tmp_path: Path) -> None:
    (tmp_path / "b.json").write_text(_node().to_json()[:50])
    threading.Timer(0.3, lambda: (tmp_path / "b.json").write_text(_node().to_json())).start()
    assert set(agree(str(tmp_path), _node(), 2, node="a", timeout=20)) == {"a", "b"}


def test_a_node_that_comes_again_counts_once(tmp_path: Path) -> None:
    board = DirectoryBoard(str(tmp_path))
    board.show("../a b", _node(x="old").to_json())
    board.show("../a b", _node().to_json())
    assert list(board.read()) == ["_a_b"]
    assert [path.name for path in tmp_path.iterdir()] == ["_a_b.json"]


def test_a_directory_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="can't be used"):
        agree(str(tmp_path / "file" / "x"), _node(), 1)


def test_profiles_must_agree_too() -> None:
    rows = compare({"a": Identity({"x": 1}, {"name": "p"}), "b": Identity({"x": 1}, {"name": "q"})})
    assert [row.field for row in rows] == ["profile.name"]


def test_the_table_is_readable() -> None:
    rows = compare({"a": _node(isa="avx " * 50), "b": _node(), "c": _node()})
    text = table(rows)
    assert text[0] == "isa"
    assert text[1].endswith("b, c")
    assert max(map(len, text)) < 90


def _command(directory: Path, name: str, *words: str, **environ: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "cachehome", "agree", str(directory), "--name", name, *words],
        env={**os.environ, **environ},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _ends(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def test_the_verb(tmp_path: Path) -> None:
    words = ["--nodes", "2", "--timeout", "50"]
    ended = [_ends(process) for process in [_command(tmp_path / "one", name, *words) for name in "ab"]]
    assert [code for code, _, _ in ended] == [0, 0]
    assert "2 nodes agree" in ended[0][1]

    two = tmp_path / "two"
    processes = [_command(two, "a", *words, TRITON_X="1"), _command(two, "b", *words, "--json")]
    (code_a, out_a, err_a), (code_b, out_b, _) = map(_ends, processes)
    assert (code_a, code_b) == (1, 1)
    assert "environment.TRITON_X" in out_a
    assert "differ in environment.TRITON_X" in err_a
    document = json.loads(out_b)
    assert document["agree"] is False
    assert document["differences"] == [
        {"field": "environment.TRITON_X", "values": {"1": ["a"], "(absent)": ["b"]}}
    ]


def test_the_verb_ends_in_time(tmp_path: Path) -> None:
    code, _, err = _ends(_command(tmp_path, "a", "--nodes", "2", "--timeout", "0.2"))
    assert code == 1
    assert "only 1 of 2 nodes" in err
    assert _ends(_command(tmp_path, "a", "--nodes", "0"))[0] == 2
