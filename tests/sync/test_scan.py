from __future__ import annotations

import os
import shutil
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from cachehome import threads
from cachehome.families import BUILTIN
from cachehome.sync import parallel
from cachehome.sync.scan import scan

FAMILIES = {family.name: family for family in BUILTIN}
KEY = "A2B" + "C" * 49
SHA = "a" * 51
MANY = ["".join(letters) + "C" * 49 for letters in product("ABCDEFGH", repeat=3)]


def fill(root: Path, *names: str) -> None:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")


def found(family: str, root: Path) -> dict[str, list[str]]:
    entries = scan(FAMILIES[family], str(root))
    return {name: [file.suffix for file in entry.files] for name, entry in entries.items()}


def test_inductor(tmp_path: Path) -> None:
    fill(
        tmp_path,
        f"fxgraph/ab/key1/{SHA}",
        f"fxgraph/ab/key1/{'b' * 51}",
        f"aotautograd/key2/{SHA}",
        "ab/cabc.main.cpp",
        "ab/cabc.main.so",
        "ab/cxyz.py",
        "ab/0123.best_config",
        "ab/cxyz.kernel_perf",
        "cache/0ab3",
    )
    assert found("inductor", tmp_path) == {
        f"fxgraph/ab/key1/{SHA}": [""],
        f"fxgraph/ab/key1/{'b' * 51}": [""],
        f"aotautograd/key2/{SHA}": [""],
        "ab/cabc": [".main.cpp", ".main.so"],
        "ab/cxyz.py": [""],
        "ab/0123.best_config": [""],
        "ab/cxyz.kernel_perf": [""],
        "cache/0ab3": [""],
    }
    entries = scan(FAMILIES["inductor"], str(tmp_path))
    assert [name for name, entry in entries.items() if entry.growing] == ["cache/0ab3"]


def test_what_is_never_carried(tmp_path: Path) -> None:
    fill(
        tmp_path,
        "locks/cabc.lock",
        "ab/cabc.lock",
        "ab/.123.456.tmp",
        f"fxgraph/ab/key/.{SHA}.tmp",
        "cabc_CxxBuild/x.cpp",
        "ab/cabc_CxxBuild/x.so",
        "memoizer_cache.json",
        "dynamo/code_state_job_0.pkl",
        f"triton/{KEY}/k.cubin",
        f"triton/0/{KEY}/k.cubin",
        ".cachehome/stamp",
        "gcc/bin/g++",
        "something/unknown.bin",
    )
    assert found("inductor", tmp_path) == {}


def test_triton(tmp_path: Path) -> None:
    fill(
        tmp_path,
        f"{KEY}/k.cubin",
        f"{KEY}/__grp__k.json",
        f"1/{KEY}/k.cubin",
        f"{KEY}/tmp.pid_12_34/k.ptx",
        f"{'a' * 52}/k.cubin",
        f"tmp.{KEY}/k.cubin",
    )
    assert found("triton", tmp_path) == {
        KEY: ["/__grp__k.json", "/k.cubin"],
        f"1/{KEY}": ["/k.cubin"],
    }


def test_symbolic_links_and_odd_files_are_not_seen(tmp_path: Path) -> None:
    fill(tmp_path, "elsewhere/k.cubin", f"{KEY}/k.cubin")
    (tmp_path / KEY / "link.cubin").symlink_to(tmp_path / "elsewhere/k.cubin")
    (tmp_path / ("B" * 52)).symlink_to(tmp_path / "elsewhere")
    os.mkfifo(tmp_path / KEY / "pipe")
    assert found("triton", tmp_path) == {KEY: ["/k.cubin"]}


def test_no_directory_is_no_entry(tmp_path: Path) -> None:
    assert found("inductor", tmp_path / "absent") == {}
    fill(tmp_path, "file")
    assert found("inductor", tmp_path / "file") == {}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_directory_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir(mode=0)
    with pytest.raises(PermissionError):
        scan(FAMILIES["inductor"], str(tmp_path / "x"))


def test_many_trees_are_looked_at_by_all_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [f"{tree}/{name}" for tree in MANY for name in ("k.cubin", "k.json", ".k.tmp", "in/k")]
    fill(tmp_path, *files)
    monkeypatch.setattr(threads, "may_fork", lambda: False)
    alone = scan(FAMILIES["triton"], str(tmp_path))
    assert alone.keys() == {*MANY}
    each, workers = parallel.each, iter([3])
    monkeypatch.setattr(parallel, "each", lambda *called: each(*called, workers=next(workers)))
    monkeypatch.setattr(threads, "may_fork", lambda: True)
    assert scan(FAMILIES["triton"], str(tmp_path)) == alone
    assert not list(workers)
    suffixes = [file.suffix for entry in alone.values() for file in entry.files]
    assert {*suffixes} == {"/k.cubin", "/k.json", "/in/k"}
    assert len({*map(id, suffixes)}) < 10, "thousands of files share few strings"


def test_a_tree_that_is_gone_when_it_is_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the listing of the directory and the look at what it holds."""
    fill(tmp_path, *[f"{tree}/k.json" for tree in MANY])
    each = parallel.each

    def late(function: Any, shares: Any) -> Any:
        shutil.rmtree(tmp_path / MANY[7])
        return each(function, shares, workers=3)

    monkeypatch.setattr(parallel, "each", late)
    monkeypatch.setattr(threads, "may_fork", lambda: True)
    assert scan(FAMILIES["triton"], str(tmp_path)).keys() == {*MANY} - {MANY[7]}
