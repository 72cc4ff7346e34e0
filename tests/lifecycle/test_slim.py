"""Slim where it is safe: `run` leaves out the texts of kernels if the hook will make them when somebody asks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from cachehome import switch
from cachehome.identity import Identity
from cachehome.probes import interpreter
from cachehome.settings import Settings

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
ROOT = Path(__file__).resolve().parent.parent.parent
JOB = """
import glob, hashlib, json, os
from cachehome.demo.kernels import KERNELS
texts = glob.glob(os.environ["TRITON_CACHE_DIR"] + "/*/*.ttir")
kernel = KERNELS[0].compile()
print(json.dumps([len(texts), hashlib.sha256(kernel.asm["ttir"].encode()).hexdigest()]))
"""


@pytest.fixture
def hook(node) -> Path:
    """What an installed package does when a Python starts."""
    directory = node.directory / "hook"
    directory.mkdir()
    (directory / "sitecustomize.py").write_text("from cachehome import _boot; _boot.activate()\n")
    node.environ["PYTHONPATH"] = f"{directory}:{ROOT}"
    return directory


@pytest.mark.parametrize("seen", [True, False])
def test_the_default(node, hook, seen):
    pytest.importorskip("triton")
    who = Identity({"schema": 1}, {"name": "slim"}, {interpreter.HOOK: "seen"} if seen else {})
    (node.directory / "who.json").write_text(who.to_json())
    job = ["run", "--", sys.executable, "-W", "ignore", node.script(JOB)]
    environ = {"CACHEHOME_IDENTITY": str(node.directory / "who.json")}
    [was, cold] = json.loads(node.run(*job, **environ).stdout)
    node.wipe()
    [texts, warm] = json.loads(node.run(*job, **environ).stdout)
    assert (was, texts) == (0, 0 if seen else 1)
    assert warm == cold
    node.wipe()
    whole = json.loads(node.run(*job, CACHEHOME_SLIM="off", **environ).stdout)
    assert whole == [1, cold]


def test_who_asks_for_texts_keeps_a_warm_start(node, hook):
    """Making them again is no work of the job's, and no variable that we set meanwhile is a change of its user's."""
    pytest.importorskip("triton")
    who = Identity({"schema": 1}, {"name": "slim"}, {interpreter.HOOK: "seen"})
    (node.directory / "who.json").write_text(who.to_json())
    environ = {"CACHEHOME_IDENTITY": str(node.directory / "who.json"), "CACHEHOME_DIAGNOSTICS": "1"}
    job = ["run", "--", sys.executable, "-W", "ignore", node.script(JOB)]
    node.run(*job, **environ)
    node.wipe()
    for path in node.reports.glob("activity-*"):
        path.unlink()
    node.run(*job, **environ)
    report = node.run("report", str(node.reports), "--assert-warm", **environ)
    assert report.returncode == 0, report.stdout
    assert "texts of 1 kernels, which a slim restore leaves out, were made again" in report.stdout
    assert "became" not in report.stdout


def test_the_hook_is_seen_where_it_runs(node, hook):
    """In an interpreter that is asked, by what it has done there."""

    def left_out(path: str) -> object:
        job = interpreter.Job((sys.executable,), (), {**node.environ, "PYTHONPATH": path}, ())
        return interpreter.build(Settings(), job)[1].get(interpreter.HOOK)

    assert left_out(f"{hook}:{ROOT}")
    assert bool(left_out(str(ROOT))) == bool(switch.hooked())  # an installed package has it in any case
