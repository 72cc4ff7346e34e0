"""The agent: it outlives whoever started it, and ends by itself."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cachehome.lifecycle.agent import Claims, Lease, claim_path


@pytest.fixture
def agents(node):
    """Ends the agents that a test leaves."""
    yield node
    node.run("agent", "stop", "--wait", CACHEHOME_EXIT_TIMEOUT_SECONDS="1")
    for agent in status(node)["agents"]:
        if agent["state"] in ("ready", "starting", "ending"):
            os.kill(agent["pid"], signal.SIGKILL)


def start(node, *arguments: str, **environ: str) -> dict[str, object]:
    ended = node.run("agent", "start", "--json", *arguments, **environ)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout)


def status(node) -> dict[str, list[dict[str, object]]]:
    return json.loads(node.run("agent", "status", "--json").stdout)


def state(node) -> str:
    agents = status(node)["agents"]
    return str(agents[0]["state"]) if agents else "none"


def leave(told, number: int) -> None:
    path = Path(told["variables"]["TORCHINDUCTOR_CACHE_DIR"]) / "ab" / f"c{number}.best_config"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"n": number}))


def test_a_job_from_start_to_end(agents, wait_for):
    node = agents
    told = start(node)
    wait_for(lambda: state(node) == "ready")
    assert node.run("agent", "status").returncode == 0
    leave(told, 1)
    wait_for(lambda: node.published() == {"ab/c1.best_config"})
    leave(told, 2)
    assert node.run("agent", "release", "--wait").returncode == 0
    assert node.published() == {"ab/c1.best_config", "ab/c2.best_config"}
    assert state(node) == "ended"
    node.wipe()
    start(node)
    assert Path(told["variables"]["TORCHINDUCTOR_CACHE_DIR"], "ab/c2.best_config").exists(), (
        "restored before it returns"
    )


def test_it_is_detached(agents):
    node = agents
    told = start(node)
    pid = int(told["pid"])
    assert os.getsid(pid) == pid
    assert os.getpgid(pid) == pid


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"CACHEHOME_LEASE_TIMEOUT_SECONDS": "1"}, "lease lost"),
        ({"CACHEHOME_STARTUP_TIMEOUT_SECONDS": "1"}, "never claimed"),
    ],
)
def test_it_ends_by_itself_and_publishes_what_remains(agents, wait_for, settings, reason):
    node = agents
    settings["CACHEHOME_PUBLISH_INTERVAL_SECONDS"] = "3600"
    if reason == "never claimed":
        agent = node.start("agent", "run", **settings)
        wait_for(lambda: state(node) == "ready")
        live = status(node)["agents"][0]["live"]
        leave({"variables": {"TORCHINDUCTOR_CACHE_DIR": f"{live}/torchinductor"}}, 1)
        assert agent.wait(60) == 0
    else:
        leave(start(node, **settings), 1)
    wait_for(lambda: state(node) == "ended")
    assert status(node)["agents"][0]["reason"] == reason
    assert node.published() == {"ab/c1.best_config"}


def test_renewals_keep_it(agents, wait_for):
    node = agents
    told = start(node, CACHEHOME_LEASE_TIMEOUT_SECONDS="2")
    with Lease(str(told["heartbeat"]), 0.3):
        time.sleep(4)
        assert state(node) == "ready"
        assert node.run("agent", "renew").returncode == 0
    wait_for(lambda: state(node) == "ended")


def test_a_claim_of_a_process_ends_with_it(agents, wait_for):
    node = agents
    with subprocess.Popen(["sleep", "60"]) as driver:
        start(node, "--pid", str(driver.pid), CACHEHOME_LEASE_TIMEOUT_SECONDS="0.5")
        time.sleep(2)
        assert state(node) == "ready", "no renewals are needed"
        driver.kill()
    wait_for(lambda: state(node) == "ended")
    assert status(node)["agents"][0]["reason"] == "released"


def test_two_jobs_share_one_agent(agents, wait_for):
    node = agents
    one = start(node, "--name", "one")
    two = start(node, "--name", "two")
    assert one["pid"]
    assert two["pid"] is None, "the second finds the first"
    assert node.run("agent", "run").returncode == 3
    assert node.run("agent", "release", "--name", "one", "--wait").returncode == 0
    time.sleep(1)
    assert state(node) == "ready"
    assert node.run("agent", "release", "--name", "two", "--wait").returncode == 0
    wait_for(lambda: state(node) == "ended")
    assert node.run("agent", "release", "--name", "two").returncode == 3
    assert node.run("agent", "stop").returncode == 3


def test_a_claim_that_comes_while_an_agent_ends_finds_one(agents, hung, wait_for):
    node = agents
    environ = {"CACHEHOME_PUBLISH_INTERVAL_SECONDS": "3600", "CACHEHOME_EXIT_TIMEOUT_SECONDS": "3"}
    told = start(node, **environ)
    leave(told, 1)
    hung.begin()
    node.run("agent", "release", **environ)
    wait_for(lambda: state(node) == "ending")
    hung.end()
    start(node, **environ)
    wait_for(lambda: state(node) == "ready")
    time.sleep(5)
    assert state(node) == "ready"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_without_a_lease_it_stays_until_it_is_told(agents, wait_for, number):
    node = agents
    environ = {"CACHEHOME_STARTUP_TIMEOUT_SECONDS": "0.5", "CACHEHOME_PUBLISH_INTERVAL_SECONDS": "3600"}
    agent = node.start("agent", "run", "--no-lease", **environ)
    wait_for(lambda: state(node) == "ready")
    live = status(node)["agents"][0]["live"]
    leave({"variables": {"TORCHINDUCTOR_CACHE_DIR": f"{live}/torchinductor"}}, 1)
    time.sleep(1)
    agent.send_signal(number)
    assert agent.wait(60) == 0
    assert node.published() == {"ab/c1.best_config"}


def test_variables_for_shells(agents):
    node = agents
    lines = node.run("agent", "start", "--shell", "sh").stdout
    told = subprocess.run(
        ["sh", "-c", 'eval "$1"; echo "$TRITON_CACHE_DIR"', "sh", lines],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout.endswith("/torchinductor/triton\n")
    slurm = node.run("agent", "start", "--shell", "slurm").stdout
    assert all(line.startswith("export ") and "=" in line for line in slurm.splitlines())


def test_the_last_publication_is_bounded_when_the_store_hangs(agents, hung, wait_for):
    node = agents
    environ = {"CACHEHOME_PUBLISH_INTERVAL_SECONDS": "3600", "CACHEHOME_EXIT_TIMEOUT_SECONDS": "1"}
    agent = node.start("agent", "run", "--no-lease", **environ)
    wait_for(lambda: state(node) == "ready")
    live = status(node)["agents"][0]["live"]
    leave({"variables": {"TORCHINDUCTOR_CACHE_DIR": f"{live}/torchinductor"}}, 1)
    hung.begin()
    agent.send_signal(signal.SIGTERM)
    assert agent.wait(30) == 0
    assert status(node)["agents"][0]["last"]["reason"] == "time_limit"


def test_a_later_agent_salvages_what_a_killed_one_left(agents, wait_for):
    node = agents
    told = start(node, CACHEHOME_PUBLISH_INTERVAL_SECONDS="3600")
    wait_for(lambda: state(node) == "ready")
    leave(told, 1)
    os.kill(int(told["pid"]), signal.SIGKILL)
    wait_for(lambda: state(node) == "killed")
    assert node.published() == set()
    start(node)
    wait_for(lambda: node.published() == {"ab/c1.best_config"})


DRIVER = """
import json, os, subprocess, sys, time
told = json.loads(subprocess.run([sys.executable, "-m", "cachehome", "agent", "start", "--json"],
                                 stdout=subprocess.PIPE, check=True).stdout)
directory = os.path.join(told["variables"]["TORCHINDUCTOR_CACHE_DIR"], "ab")
os.makedirs(directory, exist_ok=True)
print("ready", told["pid"], flush=True)
number = int(sys.argv[1])
while True:
    path = os.path.join(directory, f"c{number}.best_config")
    open(told["heartbeat"], "ab").close()
    with open(path + ".tmp", "w") as file:
        json.dump({"n": number}, file)
    os.rename(path + ".tmp", path)
    print(number, time.time(), flush=True)
    os.utime(told["heartbeat"])
    number += 1
    time.sleep(0.02)
"""


def killed_at_random(node, times: int, seed: int) -> tuple[int, int, int]:
    """Kill driver, agent, or both with their groups, *times* times.

    (entries left, those of more than an interval before the kill that were there at once, those that are there in the
    end); raises if one of either kind is missing.
    """
    chance = random.Random(seed)
    environ = {
        **node.environ,
        "CACHEHOME_PUBLISH_INTERVAL_SECONDS": "0.2",
        "CACHEHOME_LEASE_TIMEOUT_SECONDS": "1",
    }
    script = node.script(DRIVER)
    left: set[int] = set()
    old = 0
    for _ in range(times):
        driver = subprocess.Popen(
            [sys.executable, script, str(max(left, default=-1) + 1)],
            env=environ, cwd=node.directory, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        first = driver.stdout.readline().split()
        agent = int(first[1]) if first[1:] and first[1] != "None" else 0
        time.sleep(chance.choice([chance.uniform(0, 1.5), chance.uniform(0, 5)]))
        whom = chance.choice(["driver", "agent", "both"])
        killed = time.time()
        if whom != "driver" and agent:
            kill_group(agent)
        if whom == "agent":
            time.sleep(chance.uniform(0, 0.3))
        kill_group(driver.pid)
        lines = [line.split() for line in driver.stdout.read().splitlines()]
        driver.communicate()
        wrote = {int(number): float(when) for number, when in (line for line in lines if len(line) == 2)}
        left |= wrote.keys()
        verified = node.run("verify", "--json")
        assert verified.returncode in (0, 3), verified.stdout + verified.stderr
        # An interval, the processes that scan, pack and commit, and a busy machine.
        due = {number for number, when in wrote.items() if when < killed - 3}
        assert names(due) <= node.published()
        old += len(due)
    assert node.run("agent", "start").returncode == 0
    assert node.run("agent", "stop", "--wait").returncode in (0, 3), "3: its short lease was faster"
    assert names(left) <= node.published()
    return len(left), old, len(node.published())


def names(numbers) -> set[str]:
    return {f"ab/c{number}.best_config" for number in numbers}


def kill_group(pid: int) -> None:
    for number in {pid, *groups_of(pid)}:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(number, signal.SIGKILL)


def groups_of(pid: int) -> list[int]:
    """Groups of the children of *pid*: a transfer has its own."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


KILLS = int(os.environ.get("KILLS", "6"))


@pytest.mark.slow
@pytest.mark.timeout(max(600, 15 * KILLS))
def test_killed_at_random_moments(agents):
    """Driver, agent, or both with their process groups: the store stays valid, and nothing that was left is lost."""
    killed_at_random(agents, KILLS, 1)


# -- claims


def test_claims_age_by_what_is_seen(tmp_path):
    claims = Claims(str(tmp_path))
    assert claims.look() is None
    assert not claims.ever
    lease = Lease(claim_path(str(tmp_path), "../we ird"))
    lease.renew()
    assert claims.look() == 0
    assert claims.ever
    time.sleep(0.05)
    assert claims.look() >= 0.05
    os.utime(claim_path(str(tmp_path), "../we ird"), (0, 0))  # whatever the clock says, it changed
    assert claims.look() == 0
    claims.drop()
    assert claims.look() is None


def test_a_driver_that_ended_before_the_agent_looked(agents):
    """The claim was made, and is gone: nobody will come."""
    assert agents.run("agent", "run", "--claimed").returncode == 0
    assert status(agents)["agents"][0]["reason"] == "released"
