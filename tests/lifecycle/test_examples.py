"""The examples of docs/how-to/examples: parsed, and their commands run for real."""

from __future__ import annotations

import configparser
import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "examples"


@pytest.fixture
def command(node) -> Path:
    """A directory with `cachehome`, for PATH."""
    directory = node.directory / "bin"
    directory.mkdir()
    script = directory / "cachehome"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m cachehome "$@"\n')
    script.chmod(0o755)
    node.environ["PATH"] = f"{directory}{os.pathsep}{node.environ['PATH']}"
    return directory


def entry(directory: str, number: int) -> None:
    path = Path(directory) / "ab" / f"c{number}.best_config"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"n": number}))


def test_slurm_prolog_and_epilog(node, command, wait_for):
    """Two tasks on a node: both get the variables, one agent works, the last one to end publishes."""

    def hook(name: str, task: int, pid: int = 0) -> str:
        slurm = {"SLURM_JOB_ID": "17", "SLURM_PROCID": str(task), "SLURM_TASK_PID": str(pid)}
        return subprocess.run(
            ["bash", str(EXAMPLES / f"slurm-task-{name}.sh")],
            env={**node.environ, "CACHEHOME_PUBLISH_INTERVAL_SECONDS": "3600", **slurm},
            cwd=node.directory, stdout=subprocess.PIPE, text=True, timeout=60, check=True,
        ).stdout  # fmt: skip

    with subprocess.Popen(["sleep", "60"]) as task:
        lines = [hook("prolog", number, task.pid) for number in (0, 1)]
        assert lines[0] == lines[1]
        variables = dict(line.removeprefix("export ").split("=", 1) for line in lines[0].splitlines())
        entry(variables["TORCHINDUCTOR_CACHE_DIR"], 1)
        hook("epilog", 0)
        assert node.published() == set()
        hook("epilog", 1)
        task.kill()
    assert node.published() == {"ab/c1.best_config"}


@pytest.mark.parametrize("name", ["prolog", "epilog"])
def test_slurm_leaves_other_jobs_alone(node, name):
    environ = {k: v for k, v in node.environ.items() if k != "CACHEHOME_STORE"}
    ended = subprocess.run(
        ["bash", str(EXAMPLES / f"slurm-task-{name}.sh")],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout == ended.stderr == ""


def test_systemd_unit(node, wait_for):
    unit = configparser.ConfigParser(strict=True, interpolation=None)
    unit.optionxform = str
    unit.read(EXAMPLES / "cachehome-agent.service")
    service = unit["Service"]
    words = shlex.split(service["ExecStart"])
    assert words[0].endswith("/cachehome")
    agent = node.start(*words[1:])
    wait_for(lambda: node.run("agent", "status").returncode == 0)
    assert node.run(*words[1:]).returncode == int(service["RestartPreventExitStatus"])
    agent.terminate()
    assert agent.wait(60) == 0


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_finds_no_fault(tmp_path):
    unit = tmp_path / "cachehome-agent.service"
    unit.write_text(
        (EXAMPLES / unit.name).read_text().replace("/opt/venv/bin/cachehome", shutil.which("true"))
    )
    told = subprocess.run(
        ["systemd-analyze", "verify", str(unit)], capture_output=True, text=True, check=False
    )
    assert (told.returncode, told.stderr) == (0, "")


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda path: path.stem)
def test_kubernetes(node, command, wait_for, path):
    """The containers' commands, with their environment, in directories that stand for the volumes."""
    yaml = pytest.importorskip("yaml")
    spec = yaml.safe_load(path.read_text())["spec"]
    first, server = spec["initContainers"][0], spec["containers"][0]
    assert first["env"] == server["env"]
    names = {volume["name"] for volume in spec["volumes"]}
    assert names == {mount["name"] for mount in first["volumeMounts"]}
    live, identity = node.directory / "live", node.directory / "identity"
    live.mkdir(mode=0o700)
    identity.mkdir()
    shutil.copy(node.environ["CACHEHOME_IDENTITY"], identity / "identity.json")
    roots = {"/live": live, "/store": node.store, "/identity": identity}
    environ = dict(node.environ)
    for variable in first["env"]:
        value = variable["value"]
        root = next((root for root in roots if value.startswith(root)), "")
        value = f"{roots[root]}{value[len(root) :]}" if root else value
        environ[variable["name"]] = value
    entry(environ["TORCHINDUCTOR_CACHE_DIR"], 1)
    sidecar = subprocess.Popen(first["command"], env=environ, cwd=node.directory)
    node.processes.append(sidecar)
    if first.get("restartPolicy") == "Always":
        probe = first["startupProbe"]["exec"]["command"]
        wait_for(lambda: subprocess.run(probe, env=environ, capture_output=True, check=False).returncode == 0)
        entry(environ["TORCHINDUCTOR_CACHE_DIR"], 2)
        assert int(environ["CACHEHOME_EXIT_TIMEOUT_SECONDS"]) < spec["terminationGracePeriodSeconds"]
        sidecar.terminate()
    assert sidecar.wait(60) == 0
    if "agent" in first["command"]:
        assert "ab/c2.best_config" in node.published()
