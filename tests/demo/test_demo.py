"""The demo: what it judges, what it leaves behind, and the whole of it on a real compile."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cachehome.commands.demo import plain, starts, transfers, verdict
from cachehome.demo import demo
from cachehome.errors import CacheHomeError

COLD = demo.Start(
    seconds=40.0,
    cpu_seconds=38.0,
    compile_and_run_seconds=36.0,
    compilers={"kernel": 19, "header": 1, "probe": 10, "query": 4},
    libraries=29,
    caches={name: {"hits": 0, "misses": 2} for name in demo.CACHES},
    missed_kernels=["add"],
    loss=(5.5).hex(),
    gradient=(1.25).hex(),
    directories={},
)
WARM = replace(
    COLD,
    seconds=10.0,
    compile_and_run_seconds=8.0,
    compilers={"kernel": 0, "header": 1, "probe": 0, "query": 4},
    libraries=0,
    caches={name: {"hits": 2, "misses": 0} for name in demo.CACHES},
    missed_kernels=[],
)
MISS = demo.Transfer(0.2, 0.2, {"outcome": "miss", "reason": "no_published_generation"})
HIT = demo.Transfer(0.5, 0.4, {"outcome": "hit", "reason": "done", "files": 86, "bytes": 3_400_000})


def shortfalls(**changes: Any) -> list[str]:
    phases = {"first": MISS, "cold": COLD, "publish": HIT, "restore": HIT, "warm": WARM} | changes
    return demo.shortfalls(**phases)


def test_a_warm_start_falls_short_of_nothing() -> None:
    assert shortfalls() == []


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"first": HIT}, "first restore: hit"),
        ({"publish": MISS}, "publish: miss, no_published_generation"),
        ({"restore": MISS}, "restore: miss"),
        ({"warm": replace(WARM, compilers={**WARM.compilers, "kernel": 3})}, "3 C++ kernels compiled"),
        ({"warm": replace(WARM, libraries=1)}, "1 new libraries"),
        ({"warm": replace(WARM, missed_kernels=["gelu"])}, "Triton compiled gelu"),
        ({"warm": replace(WARM, loss=(5.25).hex())}, "loss 5.25 is not that of the cold start, 5.5"),
        ({"warm": replace(WARM, gradient=(1.0).hex())}, "gradient 1.0 is not"),
        (
            {"warm": replace(WARM, caches={**WARM.caches, "fxgraph": {"hits": 1, "misses": 1}})},
            "fxgraph: 1 misses",
        ),
        (
            {"warm": replace(WARM, caches={**WARM.caches, "triton": {"hits": 0, "misses": 0}})},
            "triton: not used",
        ),
        ({"cold": replace(COLD, caches=WARM.caches)}, "fxgraph: 2 hits in the cold start"),
    ],
)
def test_each_shortfall_is_said(changes: dict[str, Any], words: str) -> None:
    assert any(words in line for line in shortfalls(**changes))


def outcome(missed: list[str]) -> demo.Outcome:
    return demo.Outcome(MISS, COLD, HIT, demo.Wipe(90, 160_000_000), HIT, WARM, 5, 700_000, missed)


def test_the_document_has_stable_fields() -> None:
    document = json.loads(json.dumps(outcome([]).to_json()))
    assert set(document) == {
        "ok", "speedup", "speedup_with_restore", "compile_speedup", "first_restore", "cold", "publish", "wipe",
        "restore", "warm", "store_files", "store_bytes", "missed",
    }  # fmt: skip
    assert set(document["warm"]) == {
        "seconds", "cpu_seconds", "compile_and_run_seconds", "compilers", "libraries", "caches", "missed_kernels",
        "loss", "gradient", "directories",
    }  # fmt: skip
    assert set(document["restore"]) == {"seconds", "cpu_seconds", "record"}
    assert document["ok"] is True
    assert (document["speedup"], document["speedup_with_restore"], document["compile_speedup"]) == (
        4.0,
        3.81,
        4.5,
    )
    assert outcome(["triton: 1 misses"]).to_json()["ok"] is False


def test_the_tables_in_plain_text() -> None:
    text = plain(("", "cold", "warm"), starts(outcome([])))
    assert text.splitlines()[0].split() == ["cold", "warm"]
    assert any(line.split()[-2:] == ["19", "0"] for line in text.splitlines())
    assert [row[0] for row in transfers(outcome([]))] == ["publish", "restore", "wipe"]
    assert "4.0 times faster" in verdict(outcome([]))
    assert "not warm: triton: 1 misses" in verdict(outcome(["triton: 1 misses"]))


def test_a_phase_has_a_home_of_its_own_and_none_of_this_shells_caches(tmp_path: Path) -> None:
    shell = {
        "PATH": "/bin", "HOME": "/home/me", "TMPDIR": "/scratch", "CXX": "g++-12", "OMP_NUM_THREADS": "3",
        "CACHEHOME_STORE": "/store", "CACHEHOME_APPLIED": "x", "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1",
        "TRITON_CACHE_DIR": "/t", "TRITON_ALWAYS_COMPILE": "1", "XDG_CACHE_HOME": "/x", "TORCH_COMPILE_DEBUG": "1",
    }  # fmt: skip
    environ = demo.environment(shell, tmp_path / "home", tmp_path / "tmp")
    assert environ["HOME"] == str(tmp_path / "home")
    assert environ["TMPDIR"] == str(tmp_path / "tmp")
    assert environ["CACHEHOME"] == "1"
    assert (environ["CXX"], environ["OMP_NUM_THREADS"], environ["PATH"]) == ("g++-12", "3", "/bin")
    ours = {name for name in environ if name.startswith(("CACHEHOME", "TRITON", "TORCH", "XDG"))}
    assert ours == {"CACHEHOME"}


def test_the_base_directory_goes_whatever_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def interrupted() -> None:
        with demo.base_directory(None) as base:
            (base / "a").mkdir()
            (base / "a" / "b").write_text("")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert os.listdir(tmp_path) == []


def test_a_directory_that_is_kept_must_be_new(tmp_path: Path) -> None:
    with demo.base_directory(str(tmp_path / "new" / "one")) as base:
        (base / "x").write_text("")
    assert base.is_dir()
    with pytest.raises(CacheHomeError, match="not empty"), demo.base_directory(str(base)):
        pass


def test_no_space_in_the_base_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The precompiled header lies in TMPDIR, and torch does not quote its path."""
    with pytest.raises(CacheHomeError, match="space"), demo.base_directory(str(tmp_path / "a b")):
        pass
    (tmp_path / "a b").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "a b"))
    with demo.base_directory(None) as base:
        assert not demo.has_space(base)
    assert not base.exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "Traceback:\n  x\na.b.InductorError: CppCompileError: C++ compile error\ng++: fatal error: no\nSet X=1\n",
            "g++: fatal error: no",
        ),
        (
            "Traceback:\n  x\nModuleNotFoundError: No module named 'y'\n",
            "ModuleNotFoundError: No module named 'y'",
        ),
        ("killed\n\n", "killed"),
        ("", "it said nothing"),
    ],
)
def test_a_failed_phase_is_quoted_where_it_counts(tmp_path: Path, text: str, expected: str) -> None:
    work = demo.Demo(tmp_path, print)
    work.reports.mkdir()
    (work.reports / "cold.err").write_text(text)
    assert work.last_words("cold") == expected


def test_a_phase_that_does_not_end_is_ended_with_all_that_it_started(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = f"sleep 300 & echo $! > {pid}.new; mv {pid}.new {pid}; trap '' TERM; wait"
    process = subprocess.Popen(["sh", "-c", script], start_new_session=True)
    while not pid.exists():
        time.sleep(0.01)
    with pytest.raises(CacheHomeError, match="took longer"):
        demo.wait(process, 0.05)
    demo.end(process)
    assert process.returncode is not None
    assert gone(int(pid.read_text()))


def gone(pid: int) -> bool:
    for _ in range(500):
        try:
            with open(f"/proc/{pid}/stat") as file:
                if file.read().rpartition(")")[2].split()[0] == "Z":
                    return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.01)
    return False


# -- the real thing

needs_compilers = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "triton", "zstandard"))
    or not shutil.which("g++"),
    reason="needs torch, triton, zstandard and g++",
)


def command(tmp_path: Path, *arguments: str) -> dict[str, Any]:
    environ = {**os.environ, "TMPDIR": str(tmp_path)}
    return {"args": [sys.executable, "-m", "cachehome", "demo", *arguments], "env": environ}


@pytest.mark.slow
@pytest.mark.timeout(900)
@needs_compilers
def test_cold_publish_wipe_restore_warm(tmp_path: Path) -> None:
    done = subprocess.run(**command(tmp_path, "--json"), capture_output=True, timeout=880, check=False)
    document = json.loads(done.stdout)
    assert (done.returncode, document["missed"]) == (0, []), done.stderr.decode()
    assert document["ok"] is True
    cold, warm = document["cold"], document["warm"]
    assert cold["caches"]["triton"] == {"hits": 0, "misses": 13}
    assert warm["caches"]["triton"] == {"hits": 13, "misses": 0}
    assert cold["compilers"]["kernel"] > 5
    # Two ways of counting, from inside and from outside, agree.
    assert cold["libraries"] == cold["compilers"]["kernel"] + cold["compilers"]["probe"]
    assert (warm["libraries"], warm["compilers"]["kernel"]) == (0, 0)
    assert warm["loss"] == cold["loss"]
    assert document["restore"]["record"]["files"] == document["publish"]["record"]["files"] > 100
    # The directories in effect were below the demo's own HOME, and nothing of it is left.
    assert all(path.startswith(str(tmp_path.resolve())) for path in warm["directories"].values())
    assert os.listdir(tmp_path) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
@needs_compilers
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_demo_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    process = subprocess.Popen(**command(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    with process:
        assert process.stderr is not None
        for line in process.stderr:
            if b"cold start" in line:
                break
        while not list(tmp_path.rglob("*.cpp")):  # the compilers are at work
            assert process.poll() is None
            time.sleep(0.1)
        process.send_signal(number)
        process.stderr.read()
        assert process.wait(60) == (130 if number == signal.SIGINT else 143)
    assert os.listdir(tmp_path) == []
