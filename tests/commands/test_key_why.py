"""`key` and `why` as a user types them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cachehome.identity import Identity
from cachehome.store.posix import PosixBackend
from cachehome.store.store import Store


def _cachehome(*words: str, code: int = 0, **environ: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "cachehome", *words],
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == code, done
    return done.stdout, done.stderr


def _json(*words: str, code: int = 0, **environ: str) -> Any:
    return json.loads(_cachehome(words[0], "--json", *words[1:], code=code, **environ)[0])


@pytest.fixture
def here(tmp_path: Path) -> Path:
    path = tmp_path / "here.json"
    path.write_text(_cachehome("key", "--json")[0])
    return path


def test_key(here: Path) -> None:
    found = Identity.load(here)
    assert _cachehome("key")[0].strip() == f"{found.build_key}/default"
    assert _cachehome("key", CACHEHOME_PROFILE="p")[0].strip() == f"{found.build_key}/p"
    assert _cachehome("key", "--profile", "p")[0].strip() == f"{found.build_key}/p"
    assert _json("key", "--build-key", "x")["build_key"] != found.build_key


def test_key_of_a_command() -> None:
    found = _json("key", "--", sys.executable, "train.py", "--port", "80", "--lr", "1")
    assert found["profile"] == {"program": "train.py", "arguments": ["--lr 1"]}
    assert found["left_out"]["command.--port"] == "port"
    _, err = _cachehome("key", "--", "docker", "run", "x", code=1)
    assert "docker runs it elsewhere" in err


def test_key_explained() -> None:
    out, _ = _cachehome("key", "--explain", MLIR_ENABLE_DUMP="1", TRITON_X="2", TRITON_CACHE_DIR="/x")
    assert "environment.TRITON_X" in out.split("left out")[0]
    assert "environment.TRITON_CACHE_DIR" in out.split("left out")[1]
    assert "location" in out.split("left out")[1]


def test_a_secret_is_in_no_output() -> None:
    secret = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"
    for words in (["key", "--explain"], ["key", "--json"], ["why", "this", "this", "--json"]):
        out, err = _cachehome(*words, code=3 if words[0] == "why" else 0, VLLM_THING=secret, HF_TOKEN=secret)
        assert "ghp_" not in out + err


def test_the_snapshot_is_taken(here: Path) -> None:
    before = Identity.load(here).build_key
    assert _cachehome("key", CACHEHOME_IDENTITY=str(here), OMP_NUM_THREADS="1")[0].startswith(before)
    assert not _cachehome("key", OMP_NUM_THREADS="1")[0].startswith(before)
    _, err = _cachehome("key", code=2, CACHEHOME_IDENTITY="/nowhere/x.json")
    assert "/nowhere/x.json" in err


def test_why_two_files(here: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text(
        _cachehome("key", "--json", TORCHINDUCTOR_MAX_AUTOTUNE="1", ATEN_CPU_CAPABILITY="avx2")[0]
    )
    out, err = _cachehome("why", str(here), str(other))
    assert "environment.TORCHINDUCTOR_MAX_AUTOTUNE [build]" in out
    assert "in none of torch's keys" in out
    assert "two builds" in err
    found = _json("why", str(here), str(other))
    assert not found["same_build"]
    assert {row["kind"] for row in found["differences"]} == {"code"}


def test_why_against_this_machine(here: Path) -> None:
    assert "one identity" in _cachehome("why", str(here), code=3)[1]
    assert "one identity" in _cachehome("why", str(here), "this", "machine", code=3)[1]
    assert "environment.TRITON_X" in _cachehome("why", str(here), "this", TRITON_X="1")[0]


def test_why_names_what_a_compiler_hashes_though_we_do_not(here: Path) -> None:
    out, err = _cachehome("why", str(here), "this", MLIR_ENABLE_DUMP="1")
    assert "environment.MLIR_ENABLE_DUMP [no key]" in out
    assert "Triton's kernels compile anew" in out
    assert "one identity" in err


@pytest.fixture
def store(tmp_path: Path, here: Path) -> Path:
    """A store with two builds: this machine's without its triton, and one that is far off."""
    directory = tmp_path / "store"
    directory.mkdir()
    known = Store(PosixBackend(str(directory)))
    mine = Identity.load(here)
    near = Identity({**mine.build, "build_key": "other"}, mine.profile)
    far = Identity({"schema": 0}, mine.profile)
    for one in (near, far):
        of_build = Identity(one.build, {}).to_json().encode()
        known.add_identity(one.build_key, one.profile_key, of_build, one.to_json().encode())
        name = f"{one.build_key}/profiles/{one.profile_key}/generations/00000007"
        known.backend.put_new(name, b"a manifest that why does not read")
    return directory


def test_why_a_generation(store: Path, here: Path) -> None:
    near = Identity({**Identity.load(here).build, "build_key": "other"}, {})
    for spec in (f"{near.build8}/default/7", f"{near.build8}", f"{store}:{near.build8}/default"):
        words = [] if ":" in spec else ["--store", str(store)]
        out, _ = _cachehome("why", spec, *words)
        assert out.splitlines()[0] == "build_key [build]"
    _, err = _cachehome("why", "7", "--store", str(store), code=1)
    assert "2 builds" in err
    _, err = _cachehome("why", "nothing", "--store", str(store), code=1)
    assert "no build nothing" in err
    _, err = _cachehome("why", "nothing", code=2)
    assert "no store is set" in err


def test_why_without_words_names_the_nearest_build(store: Path, here: Path) -> None:
    out, err = _cachehome("why", "--store", str(store))
    assert "is not in the store" in err
    assert "1 fields differ" in err
    assert out.splitlines()[0] == "build_key [build]"
    assert "this build" in _cachehome("why", "--store", str(store), "--build-key", "other", code=3)[1]


def _report(path: Path, identity: Identity | None = None, **parts: Any) -> str:
    record = {
        "action": "restore",
        "outcome": "hit",
        "reason": "restored",
        "details": {},
        **parts.pop("record", {}),
    }
    document = {"record": record, **parts}
    if identity:
        document["identity"] = identity.to_dict()
    path.write_text(json.dumps(document))
    return str(path)


CAUSES: dict[str, tuple[dict[str, Any], str]] = {
    "nothing published": (
        {"record": {"outcome": "miss", "reason": "no_published_generation"}},
        "nothing was published for this build",
    ),
    "rejected": (
        {"record": {"outcome": "rejected", "reason": "bad_pack", "details": {"message": "sha256 differs"}}},
        "sha256 differs",
    ),
    "relocated": (
        {
            "record": {"details": {"relocated": ["/old/place"]}},
            "counters": {"inductor": {"fxgraph_cache_miss": 3}},
        },
        "relocated",
    ),
    "fallback": (
        {"record": {"details": {"profile_fallback": "other"}}, "counters": {"fxgraph_cache_miss": 3}},
        "started from other's",
    ),
    "unseen shape": ({"counters": {"inductor": {"fxgraph_cache_miss": 3}}}, "3 graphs missed"),
    "engine that overwrote the variable": (
        {
            "record": {"details": {"directories": {"inductor": "/a/torchinductor"}}},
            "environment": {"TORCHINDUCTOR_CACHE_DIR": "/root/.cache/vllm/x"},
        },
        "overwrote it",
    ),
}


@pytest.mark.parametrize("case", CAUSES)
def test_why_a_start_was_cold(case: str, tmp_path: Path) -> None:
    parts, expected = CAUSES[case]
    report = _report(tmp_path / "run.json", **parts)
    assert expected in _cachehome("why", report)[0]
    assert _json("why", report)["causes"]


def test_why_a_variable_was_set_late(here: Path, tmp_path: Path) -> None:
    report = _report(tmp_path / "run.json", Identity.load(here), environment={"OMP_NUM_THREADS": "1"})
    assert "OMP_NUM_THREADS=1 was set after the start" in _cachehome("why", report)[0]


def test_why_another_number_of_threads(here: Path, tmp_path: Path) -> None:
    mine = Identity.load(here)
    other = Identity(mine.build, mine.profile, {**mine.left_out, "machine.threads": "97: x"})
    one = _report(tmp_path / "one.json", other)
    two = _report(tmp_path / "two.json", mine, counters={"fxgraph_cache_miss": 1})
    assert "number of CPUs" in _cachehome("why", one, two)[0]


def test_why_a_warm_start_was_warm(tmp_path: Path) -> None:
    report = _report(tmp_path / "run.json", counters={"inductor": {"fxgraph_cache_hit": 3}})
    assert "nothing in the report" in _cachehome("why", report, code=3)[1]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"record": {}}', "\x00"])
def test_why_something_else(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(text)
    assert "why: " in _cachehome("why", str(path), code=2)[1]
