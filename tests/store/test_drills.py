"""Drills and load of `doctor --stress`, and tests of them: a store without one step of the protocol is caught."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import broken
import pytest
from fuse import mounted
from memory import MemoryBackend

from cachehome.store import drills

# step -> what the load, too, reports of it
LOAD = {
    "no_rebase": "lost",
    "rename_instead_of_link": "twice",
    "look_then_rename": "lost",
    "no_grace_for_packs": "hole",
    "manifest_before_packs": "lost",
}


def doctor(step: str, directory: Path, seconds: float, *words: str) -> tuple[int, dict[str, Any]]:
    """(exit code, report) of `cachehome doctor --stress` on a store without this *step*."""
    directory.chmod(0o700)
    script = str(Path(broken.__file__))
    done = subprocess.run(
        [
            sys.executable,
            "-W",
            "ignore",
            script,
            step,
            str(directory),
            f"--stress={seconds}",
            "--json",
            *words,
        ],
        check=False,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=100,
    )
    assert done.returncode in (0, 1), done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return done.returncode, found


@pytest.mark.parametrize("name", [drill.name for drill in drills.DRILLS.values() if not drill.forks])
def test_a_drill_in_memory(name: str, memory: MemoryBackend) -> None:
    assert drills.failure(drills.DRILLS[name], memory) == ""


def test_the_drills_on_a_whole_store(tmp_path: Path) -> None:
    code, report = doctor("none", tmp_path, 0)
    assert [drill for drill in report["drills"] if not drill["sound"]] == []
    assert {drill["name"] for drill in report["drills"]} == set(drills.DRILLS)
    assert (code, report["sound"], report["stress"]) == (0, True, None)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("step", broken.STEPS)
def test_the_program_catches_a_store_without_a_step(step: str, tmp_path: Path) -> None:
    code, report = doctor(step, tmp_path, 0)
    assert (code, report["sound"]) == (1, False)
    assert [drill["promise"] for drill in report["drills"] if drill["problem"]], report
    assert list(tmp_path.iterdir()) == []


def test_what_is_broken_is_said_in_words(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o700)
    with pytest.MonkeyPatch.context() as patch:
        broken.STEPS["forgets_the_base"](patch.setattr)
        patch.setattr(drills, "DRILLS", {"adds": drills.DRILLS["adds"]})
        assert broken.main("none", str(tmp_path), "--stress", "0") == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2:] == [
        "fail  a publication adds to what was there: BROKEN: the newest generation lacks what was acknowledged: a",
        "NOT SOUND: do not publish to this store",
    ]


@pytest.mark.parametrize("step", LOAD)
def test_the_load_catches_a_store_without_a_step(step: str, tmp_path: Path) -> None:
    small = ("--writers", "8", "--readers", "3", "--grace", "2")
    for seconds in (3.0, 8.0, 16.0):  # it is not the store that may be lucky, but a machine that is busy
        code, report = doctor(step, tmp_path, seconds, *small)
        if report["stress"][LOAD[step]]:
            break
    assert report["stress"][LOAD[step]], report
    assert (code, report["stress"]["sound"]) == (1, False), report


def test_a_whole_store_passes(tmp_path: Path) -> None:
    for seconds in (8.0, 30.0):
        code, report = doctor("none", tmp_path, seconds, "--writers", "8", "--readers", "3", "--grace", "2")
        assert (code, report["sound"]) == (0, True), json.dumps(report)
        if report["stress"]["killed"] and report["stress"]["deleted"]:
            break
    assert report["stress"]["killed"], report
    assert report["stress"]["deleted"], report
    assert list(tmp_path.iterdir()) == []


def host(name: str, store: Path, at: Path, words: str) -> subprocess.Popen[str]:
    """`cachehome doctor` as on a host of its own: host name, processes, and a mount of *store* of its own."""
    script = f"hostname {name} && mount --bind {store} {at} && exec {sys.executable} -m cachehome doctor {at} {words}"
    return subprocess.Popen(
        ["unshare", "--uts", "--pid", "--mount", "--fork", "--mount-proc", "sh", "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )


@pytest.mark.parametrize(("kind", "names"), [("fuse", ("one", "two")), ("directory", ("same", "same"))])
def test_a_second_host_takes_part(kind: str, names: tuple[str, str], tmp_path: Path) -> None:
    if os.geteuid() != 0 or not shutil.which("unshare"):
        pytest.skip("namespaces need root and unshare")
    source, mount = tmp_path / "source", tmp_path / "mount"
    places = tmp_path / "first", tmp_path / "second"
    for path in (source, *places):
        path.mkdir(mode=0o700)
    with mounted(source, mount) if kind == "fuse" else contextlib.nullcontext():
        store = mount if kind == "fuse" else source
        small = "--json --writers 3 --readers 2"
        first = host(names[0], store, places[0], f"{small} --stress 7")
        members = source / "cachehome-stress" / "members"
        until = time.monotonic() + 30
        while not (members.is_dir() and list(members.iterdir())) and time.monotonic() < until:
            time.sleep(0.05)
        second = host(names[1], store, places[1], f"{small} --stress 4 --join")
        found = [process.communicate(timeout=90) for process in (second, first)]
        for out, talk in found:
            report = json.loads(out or "{}")
            assert report.get("sound"), f"{report.get('findings')} {talk}"
            assert report["stress"]["published"]
        assert (first.returncode, second.returncode) == (0, 0)
        assert list(store.iterdir()) == []
