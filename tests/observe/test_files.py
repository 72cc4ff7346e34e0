"""What may lie in a live directory and must not hold a job up."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from cachehome.observe import activity, files, history
from cachehome.observe.graphs import DIRECTORY, Graphs
from cachehome.observe.kernels import TIMES, known

pytestmark = pytest.mark.timeout(30)
DEEP = b"[" * 100_000


def test_only_regular_files_of_a_bounded_size_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 10)
    assert files.read(str(tmp_path / "file"), 10) == b"x" * 10
    with pytest.raises(files.TooLarge):
        files.read(str(tmp_path / "file"), 9)
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to("file")
    for name in ("fifo", "link", ".", "nothing"):
        with pytest.raises(OSError, match=name):
            files.read(str(tmp_path / name), 10)
    with pytest.raises(OSError, match="not a regular file"):
        files.read("/dev/zero", 10)
    for rubbish, why in ((DEEP, "nested"), (b"\xff", "decode"), (b"", "Expecting")):
        with pytest.raises(ValueError, match=why):
            files.parse(rubbish)


def test_a_file_is_replaced_whole_whatever_lies_there(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "name")
    os.mkfifo(tmp_path / f".name.{os.getpid()}")
    files.replace(str(tmp_path / "name"), b"new")
    assert (tmp_path / "name").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["name"]


def test_what_can_be_published_holds_no_half_pairs() -> None:
    assert files.shown("caf\udce9 \u00e9") == "caf\\udce9 \u00e9"
    assert files.dumped({"caf\udce9": "\ud800\u00e9"}).decode() == '{"caf?":"?\u00e9"}'


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1, "1", True, None, [1], 10**400])
def test_what_is_no_number_of_seconds(value: object) -> None:
    assert files.number(value) is None
    assert (files.number(0), files.number(1.5)) == (0, 1.5)


@pytest.mark.parametrize("what", ["fifo", "deep", "directory", "huge"])
def test_nothing_of_a_live_directory_holds_a_job_up(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / DIRECTORY).mkdir()
    (tmp_path / ".cachehome").mkdir()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    for name in (f"{DIRECTORY}/k0.json", TIMES, ".cachehome/restored"):
        path = tmp_path / name
        if what == "fifo":
            os.mkfifo(path)
        elif what == "deep":
            path.write_bytes(DEEP)
        elif what == "directory":
            path.mkdir()
        else:
            path.touch()
            os.truncate(path, 1 << 40)
    assert Graphs(str(tmp_path)).read("k0") is None
    assert Graphs(str(tmp_path)).nearest({"a": ["1", "x"]}) == ([], None)
    assert known(str(tmp_path)) == {}
    assert activity.restored() == {}


def test_a_record_has_the_types_that_it_must_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".cachehome").mkdir()
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    restored = tmp_path / ".cachehome" / "restored"
    for document in ([1], {"outcome": ["x"], "reason": "y", "details": {}}, {"reason": "y"}):
        restored.write_text(json.dumps(document))
        assert activity.restored() == {}
    details = {"directories": {"a": "/a", "b": 1}, "relocated": ["/b", 2], "message": [3], "more": 4}
    restored.write_text(json.dumps({"outcome": "hit", "reason": "restored", "details": details}))
    assert activity.restored()["details"] == {"directories": {"a": "/a"}, "relocated": ["/b"]}
    restored.write_text(json.dumps({"outcome": "hit", "reason": "restored", "details": [1]}))
    assert activity.restored() == {"outcome": "hit", "reason": "restored", "details": {}}


def test_a_log_may_be_anything(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "activity-1.jsonl")
    rows = [
        '{"event": "process", "t": "soon", "run": "r"}',
        '{"event": "counts", "add": {"fx_hits": NaN, "triton_misses": 2, "aot_hits": Infinity, "triton_hits": -3}}',
        '{"event": "used", "what": "triton", "key": "A", "seconds": 1e999}',
        '{"event": "used", "what": "triton", "key": "B", "seconds": 2.5}',
        '{"event": "made", "what": "triton", "key": "C", "seconds": NaN}',
        '{"event": "tuned", "name": ' + "[" * 5000 + "]" * 5000 + "}",
        DEEP.decode(),
    ]
    (tmp_path / "activity-2.jsonl").write_text("\n".join(rows))
    [run] = history.runs(history.logs(str(tmp_path)))
    assert (run.began, run.known_seconds, run.made_seconds, run.tuned) == (0.0, {"B": 2.5}, {}, [])
    found = {name: count for name, count in run.counts.items() if count}
    assert found == {"triton_misses": 2}


def test_reading_costs_no_more_than_it_may(tmp_path: Path) -> None:
    live = tmp_path / DIRECTORY
    live.mkdir()
    (live / "settings-1.json").write_text('{"parts":{}}')
    (live / "k.json").write_text('{"parts":{"a":["1","small"]},"shared":"settings-1"}')
    big = {"parts": {f"p{n}": ["a", "b"] for n in range(180_000)}, "shared": "settings-1", "made": None}
    (live / "f0.json").write_text(json.dumps(big))
    for number in range(1, 20):
        os.link(live / "f0.json", live / f"f{number}.json")
    graphs = Graphs(str(tmp_path))
    assert graphs.read("f0") is None
    assert graphs.nearest({"a": ["2", "smaller"]}) == (["a: small became smaller"], None)
    for number in range(20):
        (live / f"f{number}.json").unlink()
    big["parts"] = {f"p{n}": ["a", "b"] for n in range(10_000)}
    for number in range(100):
        (live / f"f{number}.json").write_text(json.dumps(big))
    graphs = Graphs(str(tmp_path))
    graphs.nearest({"a": ["2", "smaller"]})
    assert 0 < sum(len(known.own) for known in graphs._before or ()) < 600_000, "of a million"
