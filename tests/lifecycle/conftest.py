"""Jobs on a node of their own: HOME, store, real processes. The identity is given: probing is tested elsewhere."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hung import FUSERMOUNT, Hung

FOREIGN = re.compile(
    r"CACHEHOME|TORCH|TRITON|XDG_|PYTEST|INDUCTOR|SLURM_|RAY_|NOTIFY_SOCKET|RANK|LOCAL_|WORLD_SIZE"
)
BUILD = {"schema": 1, "python": "cp311", "machine": "test"}


class Node:
    """One machine, as jobs see it: HOME, a store, and short times."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.home, self.store, self.reports = (directory / name for name in ("home", "store", "reports"))
        for path in (self.home, self.store):
            path.mkdir(mode=0o700)
        self.processes: list[subprocess.Popen[str]] = []
        self.environ = {name: value for name, value in os.environ.items() if not FOREIGN.match(name)}
        self.environ |= {
            "HOME": str(self.home),
            "CACHEHOME_STORE": str(self.store),
            "CACHEHOME_IDENTITY": str(self.identity()),
            "CACHEHOME_REPORT_DIR": str(self.reports),
            "CACHEHOME_PUBLISH_INTERVAL_SECONDS": "0.5",
            "CACHEHOME_STORE_TIMEOUT_SECONDS": "30",
            "CACHEHOME_EXIT_TIMEOUT_SECONDS": "30",
            "PYTHONUNBUFFERED": "1",
        }

    def identity(self, profile: str = "test") -> Path:
        from cachehome.identity import Identity

        path = self.directory / f"{profile}.json"
        path.write_text(Identity(dict(BUILD), {"name": profile}).to_json())
        return path

    def start(self, *command: str, session: bool = True, **environ: str) -> subprocess.Popen[str]:
        """`python -m cachehome ...` as a process group of its own."""
        process = subprocess.Popen(
            [sys.executable, "-m", "cachehome", *command],
            env={k: v for k, v in {**self.environ, **environ}.items() if v != "-"},
            cwd=self.directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=session,
            preexec_fn=None if session else os.setpgrp,  # noqa: PLW1509 - one thread
        )
        self.processes.append(process)
        return process

    def run(self, *command: str, **environ: str) -> subprocess.CompletedProcess[str]:
        """The same, to its end."""
        process = self.start(*command, **environ)
        out, err = process.communicate(timeout=100)
        return subprocess.CompletedProcess(command, process.returncode, out, err)

    def script(self, text: str, name: str = "job.py") -> str:
        path = self.directory / name
        path.write_text(text)
        return str(path)

    def published(self) -> set[str]:
        """Names of the entries in the newest generation."""
        listed = self.run("show", "--json", "--entries")
        if listed.returncode:
            return set()
        return {entry["name"] for entry in json.loads(listed.stdout)["entries"]}

    def wipe(self) -> None:
        """A new machine: everything local is gone."""
        self.home.rename(self.directory / f"old-{time.monotonic_ns()}")
        self.home.mkdir(mode=0o700)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    for process in made.processes:
        if process.poll() is None:
            os.killpg(process.pid, 9)
        process.communicate()


@pytest.fixture
def wait_for() -> Callable[[Callable[[], Any]], Any]:
    """Wait until a condition holds, and return its value; fails after a minute."""

    def wait(condition: Callable[[], Any], seconds: float = 60) -> Any:
        until = time.monotonic() + seconds
        while not (value := condition()):
            assert time.monotonic() < until, "it never happened"
            time.sleep(0.02)
        return value

    return wait


@pytest.fixture
def hung(node: Node, request: pytest.FixtureRequest) -> Iterator[Hung]:
    """The node's store as one that can hang; parametrized with whether its sleepers can be killed."""
    if FUSERMOUNT is None or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("needs fusermount and /dev/fuse")
    made = Hung(node.store, killable=getattr(request, "param", True))
    yield made
    made.end()
