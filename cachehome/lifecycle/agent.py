"""The agent: restores and publishes the caches of a node, detached from any one process. Owns its directory:

    ROOT/.node/agent-<key>/       <key> names an identity and the live directories
        lock                      held by the agent that works: there is one, and a second one does no harm
        claims/<name>             one a driver; it renews its claim by touching the file, and releases it by
                                  removing it
        stop                      somebody asks it to end
        start                     the start of the driver, until somebody says how that ended (`starts`)
        status.json               what it does, for people and for those who wait
        log                       what a detached one says

It restores, watches, publishes when the directories have turned quiet and then by interval, and ends when the
last claim is released or has not been renewed for `lease_timeout_seconds`, when nobody claims it within
`startup_timeout_seconds`, or when it is asked to; then it publishes what remains within
`exit_timeout_seconds`. What a killed agent left is published by the next one. Without a lease
(`leased=False`: systemd, a sidecar) it stays until it is asked to end.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from cachehome import home
from cachehome.lifecycle.builds import builds
from cachehome.lifecycle.locks import Lock, write_json
from cachehome.lifecycle.reports import Reporter
from cachehome.lifecycle.rounds import Publishing
from cachehome.lifecycle.starts import Attempt, decide
from cachehome.lifecycle.transfer import environment, importable
from cachehome.lifecycle.watch import Rhythm
from cachehome.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType, TracebackType

    from cachehome.lifecycle.place import Place
    from cachehome.sync.record import Record

_PAUSE = 0.5
_LOST, _RELEASED, _NEVER = _NOBODY = ("lease lost", "released", "never claimed")


def directory_of(place: Place) -> str:
    """Where the agents of *place* agree. Raises OSError if there is no place for it."""
    import hashlib

    if place.state is None:
        raise FileNotFoundError(f"no directory for an agent: {' '.join(place.notes)}")
    words = (place.identity.build_key, place.identity.profile_key, *sorted(place.directories.values()))
    return os.path.join(place.state, "agent-" + hashlib.sha256("\0".join(words).encode()).hexdigest()[:16])


def directories(settings: Settings) -> list[str]:
    """The directories of all agents that this node has or had below the root in effect."""
    root = home.resolve(environment(os.environ, settings), local=settings.local or None).root
    if root is None:
        return []
    state = os.path.join(root, ".node")
    with contextlib.suppress(OSError):
        return [os.path.join(state, name) for name in sorted(os.listdir(state)) if name.startswith("agent-")]
    return []


class Claims:
    """The claims in an agent's directory, as one process sees them change. Clocks are not compared: a claim
    is as old as
    the time since its file was last seen to change."""

    def __init__(self, directory: str) -> None:
        self._directory = os.path.join(directory, "claims")
        self._seen: dict[str, tuple[int, float]] = {}
        self.ever = False  # whether there was one

    def look(self) -> float | None:
        """Seconds since the last renewal of any claim; None if there is none."""
        now = time.monotonic()
        found: dict[str, tuple[int, float]] = {}
        with contextlib.suppress(OSError), os.scandir(self._directory) as entries:
            for entry in list(entries):
                with contextlib.suppress(OSError):
                    changed = entry.stat().st_mtime_ns
                    before = self._seen.get(entry.name)
                    found[entry.name] = before if before and before[0] == changed else (changed, now)
                    lives = _process_lives(entry.path)
                    if lives:
                        found[entry.name] = (changed, now)
                    elif lives is not None:
                        del found[entry.name]
                        os.unlink(entry.path)
                        self.ever = True
        self._seen = found
        self.ever = self.ever or bool(found)
        return min((now - at for _, at in found.values()), default=None)

    def drop(self) -> None:
        """Remove those that were seen: their drivers are gone."""
        for name in self._seen:
            with contextlib.suppress(OSError):
                os.unlink(os.path.join(self._directory, name))


def claim_for(path: str, pid: int) -> None:
    """Make the claim *path* live as long as the process *pid*."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with open(path, "w", encoding="utf-8") as file:
        file.write(f"{pid} {_birth(pid)}\n")


def _process_lives(path: str) -> bool | None:
    """Whether the process that the claim *path* names lives; None if it names none."""
    with open(path, encoding="utf-8") as file:
        words = file.read(100).split()
    if len(words) != 2:
        return None
    return _birth(int(words[0])) == words[1] != ""


def _birth(pid: int) -> str:
    """What tells a process from a later one with the same number; "" if there is none."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return "" if fields[0] in (b"Z", b"X") else fields[19].decode()
    except (OSError, IndexError):
        pass
    if sys.platform == "linux":
        return ""
    try:
        os.kill(pid, 0)
    except OSError:
        return ""
    return "alive"


class Lease:
    """A driver's claim on the agent of this node: `with Lease(path): ...` renews it until the end.

    *path* is what `cachehome agent start` prints as `heartbeat`. Who can't use Python touches that file
    instead.
    """

    def __init__(self, path: str, interval: float | None = None) -> None:
        """*interval*: seconds; None: `heartbeat_interval_seconds`."""
        self._path = path
        self._interval = interval or Settings.load(lenient=True).heartbeat_interval_seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="cachehome-lease", daemon=True)

    def renew(self) -> None:
        """Renew it now."""
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
        with open(self._path, "ab"):
            os.utime(self._path)

    def release(self) -> None:
        """Let go: the agent may end, if this was the last claim."""
        self._ended.set()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

    def _beat(self) -> None:
        while not self._ended.wait(self._interval):
            with contextlib.suppress(OSError):
                if not self._ended.is_set():
                    self.renew()

    def __enter__(self) -> Lease:  # noqa: PYI034 - Self is newer than Python 3.10
        self.renew()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def claim_path(directory: str, name: str) -> str:
    """The file of the claim *name*."""
    return os.path.join(directory, "claims", re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".") or "driver")


class Agent:
    """One agent in this process. `run` once, in the main thread."""

    def __init__(
        self,
        place: Place,
        say: Callable[[str], None],
        *,
        leased: bool = True,
        restored: bool = False,
        claimed: bool = False,
    ) -> None:
        """*claimed*: somebody claimed it before it began, and may be gone by now."""
        self._place = place
        self._settings = place.settings
        self._directory = directory_of(place)
        self._say = say
        self._leased = leased
        self._restored = restored
        self._claimed = claimed
        self._stop = ""
        self._reporter = Reporter(self._settings.report_dir, "agent")
        self._status: dict[str, Any] = {
            "pid": os.getpid(),
            "leased": leased,
            "state": "starting",
            "rounds": 0,
            "last": None,
        }

    def run(self) -> bool:
        """Work until there is a reason to end; whether there was anything to do (False: another agent works here)."""
        lock = Lock(os.path.join(self._directory, "lock"))
        if not self._succeed(lock):
            return False
        before = {
            number: signal.signal(number, self._asked)
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        }
        try:
            self._tell("starting")
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(self._directory, "stop"))
            if not self._restored:
                self._restore()
            for line in self._left_by_others():
                self._say(line)
            claims = Claims(self._directory)
            claims.ever = self._claimed
            reason = ""
            while not reason:
                self._tell("ready")
                reason = self._watch(claims)
                self._say(f"agent: ends: {reason}")
                self._tell("ending", reason=reason)
                self._finish()
                if reason in _NOBODY and claims.look() is not None:
                    self._say("agent: goes on: a new claim")
                    reason = ""
            self._reporter.close()
            self._tell("ended", reason=reason)
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            lock.release()
        return True

    def _succeed(self, lock: Lock) -> bool:
        """Take the lock from an agent that is about to end; whether it is ours."""
        until = time.monotonic() + self._settings.exit_timeout_seconds + 30
        tries = 0
        while not lock.take():
            tries += 1
            ending = status(self._directory, ask=False)["state"] in ("ending", "ended")
            # The first tries are for those who only ask whether an agent works here.
            if (tries > 20 and not ending) or time.monotonic() > until:
                return False
            time.sleep(0.05)
        return True

    def _asked(self, number: int, _frame: FrameType | None) -> None:
        self._stop = f"{signal.Signals(number).name}"

    def _restore(self) -> None:
        record = restore(self._place, lambda: bool(self._stop))
        if record is not None:
            self._say(record.line())
            self._reporter.started(self._place, record)

    def _left_by_others(self) -> list[str]:
        """Lines about what runs under other identities have left here unpublished: this agent is not theirs."""
        found = self._place.found
        mine = set(self._place.directories.values())
        return [
            f"agent: {one.directory} holds {one.unpublished} entries of {one.build[:8]}/{one.profile[:16]} that are not"
            f" published: {one.command}"
            for one in builds(found.root, found.tag)
            if not mine & set(one.families.values()) and one.unpublished
        ]

    def _watch(self, claims: Claims) -> str:
        settings = self._settings
        rhythm = Rhythm(self._place.directories.values(), settings.publish_interval_seconds)
        began = time.monotonic()
        publishing: Publishing | None = None
        while True:
            reason = self._stop or self._reason(claims, began)
            if reason:
                if publishing is not None:
                    self._ended(publishing, self._settings.exit_timeout_seconds)
                return reason
            if publishing is None and self._publishes and rhythm.due():
                kind = "interval" if self._status["rounds"] else "first"
                publishing = self._publish(kind, settings.publish_budget_seconds)
            elif publishing is not None and publishing.poll() is not None:
                if not self._ended(publishing):
                    rhythm.failed()
                publishing = None
            time.sleep(min(_PAUSE, max(0.05, rhythm.pause)))

    def _reason(self, claims: Claims, began: float) -> str:
        if os.path.exists(os.path.join(self._directory, "stop")):
            return "asked to stop"
        if not self._leased:
            return ""
        age = claims.look()
        if age is not None and age > self._settings.lease_timeout_seconds:
            claims.drop()
            return _LOST
        if age is None and claims.ever:
            return _RELEASED
        if age is None and time.monotonic() - began > self._settings.startup_timeout_seconds:
            return _NEVER
        return ""

    @property
    def _publishes(self) -> bool:
        return bool(self._settings.store) and self._settings.publish

    def _publish(self, kind: str, seconds: float) -> Publishing:
        return Publishing([self._place], seconds, kind=kind, patient=kind == "final")

    def _ended(self, publishing: Publishing, seconds: float = 0.0) -> bool:
        """See a round through, if it has not ended, and tell of it; whether it did its work."""
        until = time.monotonic() + seconds
        while publishing.poll() is None:
            if time.monotonic() > until:
                publishing.stop("time_limit")
            time.sleep(0.05)
        round_ = publishing.round
        self._reporter.published([self._place], round_)
        for record in round_.records:
            self._say(record.line())
        self._status["rounds"] += 1
        self._tell(self._status["state"], last=round_.records[-1].to_json() if round_.records else None)
        return round_.done

    def _finish(self) -> None:
        if self._publishes:
            self._stop = ""
            publishing = self._publish("final", self._settings.exit_timeout_seconds)
            while publishing.poll() is None:
                if self._stop:  # asked again: at once
                    publishing.stop()
                time.sleep(0.05)
            self._ended(publishing)

    def _tell(self, state: str, **facts: Any) -> None:
        self._status |= {"state": state, "at": time.time(), "live": self._place.live, **facts}
        with contextlib.suppress(OSError):
            write_json(os.path.join(self._directory, "status.json"), self._status)


def restore(place: Place, stopped: Callable[[], bool] = lambda: False) -> Record | None:
    """Restore *place*, in bounded time, and remember the start of its driver; None if the settings ask for none."""
    if not place.settings.store or not place.settings.restore:
        return None
    now = time.time()
    attempt = Attempt(place, [], now)
    step = place.restore(place.settings.store_timeout_seconds, since=now, arguments=attempt.state.arguments())
    while (record := step.poll()) is None:
        if stopped():
            step.stop()
        time.sleep(0.02)
    attempt.restored(record)
    attempt.leave_open(os.path.join(directory_of(place), "start"))
    return record


def driver_ended(directory: str, code: int) -> str:
    """The driver that the agent of *directory* serves has ended with status *code*. A line for people, or ""."""
    return decide(os.path.join(directory, "start"), code)


def detach(place: Place, *, leased: bool) -> subprocess.Popen[bytes]:
    """Start an agent for *place* that outlives this process, its terminal and its process group."""
    directory = directory_of(place)
    os.makedirs(directory, mode=0o700, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "cachehome",
        "agent",
        "run",
        "--restored",
        "--claimed" if leased else "--no-lease",
    ]
    variables = {**environment(place.environ, place.settings), "CACHEHOME_IDENTITY": place.identity_file}
    with open(os.path.join(directory, "log"), "ab") as log:
        return subprocess.Popen(
            command,
            env=importable(variables),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def working(directory: str) -> bool:
    """Whether an agent works there now."""
    lock = Lock(os.path.join(directory, "lock"))
    taken = lock.take()
    lock.release()
    return not taken


def status(directory: str, *, ask: bool = True) -> dict[str, Any]:
    """What the agent of *directory* says of itself; if *ask*, checked against its lock: a killed one can't tell."""
    found: dict[str, Any] = {"state": "none", "pid": None, "rounds": 0, "live": None, "last": None}
    with contextlib.suppress(OSError, ValueError), open(os.path.join(directory, "status.json"), "rb") as file:
        found |= json.load(file)
    if ask and found["state"] != "ended" and not working(directory):
        found["state"] = "killed"
    found["claims"] = []
    with contextlib.suppress(OSError):
        found["claims"] = sorted(os.listdir(os.path.join(directory, "claims")))
    return {**found, "directory": directory}
