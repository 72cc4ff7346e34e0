"""`cachehome agent`: caches of a node, looked after by a process of their own."""

from __future__ import annotations

import contextlib
import os
import shlex
import sys
import time
from typing import TYPE_CHECKING, Any

from cachehome.commands import output

if TYPE_CHECKING:
    import argparse

    from cachehome.lifecycle.place import Place
    from cachehome.settings import Settings

DESCRIPTION = """Look after the caches of this node, detached from any one process.

start    restore, leave an agent behind, and print the variables for the job's processes
run      be the agent, in the foreground (systemd, a sidecar); with --no-lease until SIGTERM

The others are for every agent of this node whose claim, if they need one, is NAME:
renew    renew the claim (touching the file that start prints as `heartbeat` does the same)
release  let go of the claim; an agent ends with its last one
stop     publish what remains and end
status   what they do; exit code 0 if one works and has restored, 3 if none"""
SETTINGS = (
    "store",
    "profile",
    "identity",
    "families",
    "slot",
    "restore",
    "publish",
    "publish_interval_seconds",
    "publish_budget_seconds",
    "store_timeout_seconds",
    "lease_timeout_seconds",
    "startup_timeout_seconds",
    "exit_timeout_seconds",
    "slim",
    "report_dir",
)
_ACTIONS = ("start", "run", "renew", "release", "stop", "status")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=_ACTIONS)
    parser.add_argument(
        "--name", default="", help="of the claim (default: the job's id in Slurm, else `driver`)"
    )
    parser.add_argument(
        "--pid", type=int, help="start: the claim lives as long as this process, without renewals"
    )
    parser.add_argument("--no-lease", action="store_true", help="work without claims, until asked to end")
    parser.add_argument(
        "--shell", choices=("sh", "slurm"), help="start: print lines for `eval`, or for Slurm's TaskProlog"
    )
    parser.add_argument(
        "--status", type=int, help="release: how the driver ended; failed starts leave out what breaks it"
    )
    parser.add_argument("--wait", action="store_true", help="stop, release: until the agent has ended")
    import argparse

    for what in ("--restored", "--claimed"):  # what `start` has done already
        parser.add_argument(what, action="store_true", help=argparse.SUPPRESS)


def run(args: argparse.Namespace, settings: Settings) -> int:
    from cachehome.errors import CacheHomeError
    from cachehome.lifecycle import place

    if settings.enabled == "off":
        output.talk("cachehome: activation is off")
        return 3
    try:
        if args.action in ("start", "run"):
            here = place.prepare(settings, os.environ)
            return _start(args, here) if args.action == "start" else _run(args, here)
        others = {"stop": _stop, "status": _status, "renew": _renew, "release": _release}
        return others[args.action](args, settings)
    except OSError as error:
        raise CacheHomeError(f"agent: {error}") from None


def _name(args: argparse.Namespace) -> str:
    return args.name or os.environ.get("SLURM_JOB_ID", "") or "driver"


def _start(args: argparse.Namespace, place: Place) -> int:
    from cachehome.lifecycle import agent

    directory = agent.directory_of(place)
    for note in place.notes:
        output.talk(f"cachehome: {note}")
    heartbeat = agent.claim_path(directory, _name(args))
    if args.pid:
        agent.claim_for(heartbeat, args.pid)
    elif not args.no_lease:
        agent.Lease(heartbeat).renew()
    record = agent.restore(place)
    if record is not None:
        output.talk(f"cachehome: {record.line()}")
    started = None
    # One that is about to end may not have seen our claim: its successor waits for it.
    if agent.status(directory)["state"] not in ("starting", "ready"):
        process = agent.detach(place, leased=not args.no_lease)
        started = process.pid
        process.returncode = 0  # it is nobody's child from here on
        _until(lambda: agent.status(directory)["state"] == "ready", 10.0)
    _print_variables(args, place, heartbeat, started)
    return 0


def _print_variables(args: argparse.Namespace, place: Place, heartbeat: str, pid: int | None) -> None:
    if args.shell == "sh":
        output.lines(*(f"export {name}={shlex.quote(value)}" for name, value in place.variables.items()))
        output.talk(f"cachehome: when the agent has ended: unset {' '.join(place.variables)}")
    elif args.shell == "slurm":
        output.lines(*(f"export {name}={value}" for name, value in place.variables.items()))
    elif args.json:
        output.as_json({"heartbeat": heartbeat, "pid": pid, "variables": place.variables, "live": place.live})
    else:
        output.lines(
            *(f"{name}={value}" for name, value in place.variables.items()), f"heartbeat: {heartbeat}"
        )


def _run(args: argparse.Namespace, place: Place) -> int:
    from cachehome.lifecycle.agent import Agent

    for note in place.notes:
        _say(note)
    leased = not args.no_lease
    if not Agent(place, _say, leased=leased, restored=args.restored, claimed=args.claimed).run():
        _say("agent: another one works here already")
        return 3
    return 0


def _say(line: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(time.strftime("%Y-%m-%dT%H:%M:%S"), f"cachehome: {line}", file=sys.stderr, flush=True)


def _claims(args: argparse.Namespace, settings: Settings) -> dict[str, str]:
    """Directory of each agent that the claim exists with, and the claim's file."""
    from cachehome.lifecycle import agent

    found = {directory: agent.claim_path(directory, _name(args)) for directory in agent.directories(settings)}
    return {directory: path for directory, path in found.items() if os.path.exists(path)}


def _renew(args: argparse.Namespace, settings: Settings) -> int:
    from cachehome.lifecycle import agent

    claims = _claims(args, settings)
    for path in claims.values():
        agent.Lease(path).renew()
    if any(map(agent.working, claims)):
        return 0
    whose = f"that works has a claim {_name(args)!r}"
    output.talk(f"cachehome: no agent of this node {whose}: `cachehome agent start` starts one")
    return 3


def _release(args: argparse.Namespace, settings: Settings) -> int:
    from cachehome.lifecycle import agent

    claims = _claims(args, settings)
    for directory, path in claims.items():
        line = agent.driver_ended(directory, args.status) if args.status is not None else ""
        if line:
            output.talk(f"cachehome: {line}")
        agent.Lease(path).release()
    unclaimed = [
        one["directory"]
        for one in map(agent.status, agent.directories(settings))
        if one.get("leased") and not one["claims"] and one["state"] in ("starting", "ready", "ending")
    ]
    # A claim that lives as long as a process may have gone with it: what is to be waited for is the agent's end.
    if not claims and not (args.wait and unclaimed):
        output.talk(f"cachehome: no agent of this node has a claim {_name(args)!r}")
        return 3
    return _wait(unclaimed, settings) if args.wait else 0


def _stop(args: argparse.Namespace, settings: Settings) -> int:
    from cachehome.lifecycle import agent

    working = [directory for directory in agent.directories(settings) if agent.working(directory)]
    for directory in working:
        with open(os.path.join(directory, "stop"), "wb"):
            pass
    if not working:
        output.talk("cachehome: no agent works here")
        return 3
    return _wait(working, settings) if args.wait else 0


def _wait(directories: list[str], settings: Settings) -> int:
    from cachehome.lifecycle import agent

    seconds = settings.exit_timeout_seconds + 30
    if _until(lambda: not any(map(agent.working, directories)), seconds):
        return 0
    output.talk(
        f"cachehome: {directories[0]}: the agent has not ended within {seconds:.0f} s; see its log there"
    )
    return 1


def _status(args: argparse.Namespace, settings: Settings) -> int:
    from cachehome.lifecycle import agent

    agents = [agent.status(directory) for directory in agent.directories(settings)]
    if args.json:
        output.as_json({"agents": agents})
    else:
        for one in agents:
            claims = ", ".join(one["claims"]) or "none"
            output.lines(
                f"{one['state']}  pid {one['pid']}  {one['rounds']} rounds  claims: {claims}  {one['live']}"
            )
    if not agents:
        output.talk("cachehome: no agent has worked here: `cachehome agent start` starts one")
    return 0 if any(one["state"] == "ready" for one in agents) else 3


def _until(condition: Any, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.1)
    return True
