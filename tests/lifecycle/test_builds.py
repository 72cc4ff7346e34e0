"""What lies in the directories of builds: said by `status`, and by an agent that works beside them."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

KILLED = """
import os, signal
here = os.path.join(os.environ["TORCHINDUCTOR_CACHE_DIR"], "ab")
os.makedirs(here, exist_ok=True)
open(os.path.join(here, "c1.best_config"), "w").write('{"n": 1}')
os.kill(os.getppid(), signal.SIGKILL)
"""


def left(node, **environ: str) -> dict:
    """A run is killed before it publishes; what `status` says of its directories, on the plain default."""
    node.run("run", "--", sys.executable, node.script(KILLED), **environ)
    told = json.loads(node.run("status", "--json", CACHEHOME="1").stdout)
    return told["builds"][-1]


def publish(node, command: str) -> None:
    words = shlex.split(command)
    assert words[0] == "cachehome"
    ended = subprocess.run(
        [sys.executable, "-m", *words], env=node.environ, cwd=node.directory, check=False, timeout=100
    )
    assert ended.returncode == 0


def test_status_finds_the_directories_of_run(node):
    found = left(node, CACHEHOME_SLOT="rank3")
    assert found["slot"] == "rank3"
    assert Path(found["directory"], "torchinductor/ab/c1.best_config").is_file()
    assert (found["profile"], found["files"], found["unpublished"]) == ("test", 1, 1)
    assert found["publish"] in node.run("status").stdout
    publish(node, found["publish"])
    assert node.published() == {"ab/c1.best_config"}
    told = json.loads(node.run("status", "--json").stdout)["builds"]
    assert [one["unpublished"] for one in told] == [0]


def test_an_agent_says_what_others_have_left(node):
    from cachehome.identity import Identity

    other = node.directory / "other.json"
    other.write_text(Identity({"schema": 1, "python": "cp311", "machine": "other"}, {"name": "b"}).to_json())
    found = left(node, CACHEHOME_IDENTITY=str(other))
    node.run("agent", "start")
    node.run("agent", "release", "--wait")
    (log,) = node.home.rglob("agent-*/log")
    line = next(line for line in log.read_text().splitlines() if "not published" in line)
    assert line.endswith(found["publish"])
    assert "holds 1 entries" in line


def test_the_profile_that_was_used_last_is_told(node):
    for profile in ("a", "b", "a"):
        node.run("run", "--", "true", CACHEHOME_IDENTITY=str(node.identity(profile)))
    found = left(node, CACHEHOME_IDENTITY=str(node.identity("a")))
    assert found["profile"] == "a"
    os.mkfifo(os.path.join(found["directory"], "identity-newer.json"))
    told = json.loads(node.run("status", "--json").stdout)["builds"]
    assert [one["profile"] for one in told] == ["a"]
