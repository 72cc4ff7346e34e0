"""The log of a process: where it lies, what a fork does, and that it never gets in the way."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from conftest import Python

from cachehome.observe import history

WRITE = "from cachehome.observe.activity import log\nlog.add(fx_hits=1)\n"


def test_it_lies_in_the_live_directory(python: Python, tmp_path: Path) -> None:
    live = tmp_path / "live"
    done = python(WRITE, CACHEHOME_DIAGNOSTICS="1", TORCHINDUCTOR_CACHE_DIR=str(live))
    assert done.stderr == ""
    [process] = history.logs(str(live / ".cachehome" / "activity"))
    assert process.counts["fx_hits"] == 1
    assert process.facts["run"]
    assert "argv" not in process.facts


@pytest.mark.parametrize("where", ["", "relative", "/proc/no/such", "/dev/null"])
def test_where_it_cannot_be_there_is_none(python: Python, where: str, tmp_path: Path) -> None:
    done = python(WRITE * 2, CACHEHOME_DIAGNOSTICS="1", TORCHINDUCTOR_CACHE_DIR=where, HOME="/nonexistent")
    assert (done.returncode, done.stdout) == (0, "")
    assert not (tmp_path / "relative").exists()


def test_off_there_is_none(python: Python, tmp_path: Path) -> None:
    python(WRITE, TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "live"))
    assert not (tmp_path / "live").exists()


def test_a_fork_has_a_log_of_its_own_and_killed_ones_lose_nothing(python: Python, tmp_path: Path) -> None:
    code = (
        WRITE
        + """
import os, signal
log.watched("fx")
child = os.fork()
if not child:
    log.add(fx_misses=5)
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(child, 0)
log.add(fx_hits=1)
"""
    )
    python(code, CACHEHOME_DIAGNOSTICS="1", TORCHINDUCTOR_CACHE_DIR=str(tmp_path))
    parent, child = history.logs(str(tmp_path / ".cachehome" / "activity"))
    assert (parent.counts["fx_hits"], parent.counts["fx_misses"]) == (2, 0)
    assert (child.counts["fx_hits"], child.counts["fx_misses"]) == (0, 5)
    assert child.facts["parent"] == parent.facts["pid"]
    assert parent.facts["run"] == child.facts["run"]
    assert "fx" in child.watched


def test_a_number_that_was_used_before(python: Python, tmp_path: Path) -> None:
    code = f"import os; os.getpid = lambda: 7\n{WRITE}"
    for _ in range(2):
        python(code, CACHEHOME_DIAGNOSTICS="1", CACHEHOME_REPORT_DIR=str(tmp_path / "reports"))
    assert sorted(os.listdir(tmp_path / "reports")) == ["activity-7-1.jsonl", "activity-7.jsonl"]


def test_old_ones_go(python: Python, tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    reports.mkdir()
    for name in ("activity-1.jsonl", "mine.jsonl"):
        (reports / name).write_text("{}")
        os.utime(reports / name, (1, 1))
    python(WRITE, CACHEHOME_DIAGNOSTICS="1", CACHEHOME_REPORT_DIR=str(reports))
    assert not (reports / "activity-1.jsonl").exists()
    assert (reports / "mine.jsonl").exists()


def test_tasks_of_a_job_step_are_one_run(python: Python, tmp_path: Path) -> None:
    for _ in range(2):
        python(
            WRITE,
            CACHEHOME_DIAGNOSTICS="1",
            CACHEHOME_REPORT_DIR=str(tmp_path / "r"),
            SLURM_JOB_ID="5",
            SLURM_STEP_ID="1",
        )
    [run] = history.runs(history.logs(str(tmp_path / "r")))
    assert (run.run, run["fx_hits"]) == ("slurm-5.1", None if "fx" in run.unknown else 2)


def test_a_report_directory_that_hangs_holds_nobody_up(python: Python, tmp_path: Path) -> None:
    code = """
import os, time
made = os.makedirs
os.makedirs = lambda *_, **__: time.sleep(60)
from cachehome.observe.activity import log
began = time.monotonic()
for _ in range(20_000):
    log.add(fx_hits=1)
print(time.monotonic() - began < 30)
"""
    began = time.monotonic()
    done = python(code, CACHEHOME_DIAGNOSTICS="1", CACHEHOME_REPORT_DIR=str(tmp_path / "reports"))
    assert (done.returncode, done.stdout.strip()) == (0, "True"), done.stderr
    assert time.monotonic() - began < 50
