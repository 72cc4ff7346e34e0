"""One restore or one publish as a process that its starter can be late for, kill, or leave behind.

    running     each look asks for signs of life: CPU time, bytes read and written, by it and by its children
    ending      its time is up, or it gave no sign of life for `stall` seconds: SIGTERM to its process group
    killed      GRACE seconds later: SIGKILL
    abandoned   GRACE seconds later it is still there, held by a dead mount: its starter goes on without it

Ends in a `Record` in every case, and raises nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from typing import IO, TYPE_CHECKING, Any, Literal

from cachehome.home import APPLIED
from cachehome.settings import BY_KEY, BY_VARIABLE, NOT_SETTINGS, PREFIX
from cachehome.sync.record import Record

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from cachehome.settings import Settings

Action = Literal["restore", "publish"]

GRACE = 2.0
# A dead store shows by silence, long before a limit that must also let a large cache through. Publishing gets
# more, because one fsync of a large pack on a busy file server is silent too.
STALL: dict[Action, float] = {"restore": 20.0, "publish": 60.0}
_LOOK_EVERY = 0.5
_abandoned: list[subprocess.Popen[bytes]] = []


class Transfer:
    """A transfer that runs. Not thread-safe: one owner, which calls `poll` often or `wait` once."""

    def __init__(
        self,
        action: Action,
        environ: Mapping[str, str],
        *,
        seconds: float,
        verb: str = "",
        identity: str = "",
        arguments: Sequence[str] = (),
        modest: bool = True,
        stall: float | None = None,
    ) -> None:
        """Start it.

        *environ* holds the directories in effect and the settings (`environment`); *identity* is a file;
        *arguments* go to the verb as they are; *modest* means low priority.
        """
        self.action: Action = action
        self.record: Record | None = None
        self.started = time.monotonic()
        self._stall = STALL[action] if stall is None else stall
        self._late = self.started + seconds
        self._kill: float | None = None
        self._abandon: float | None = None
        self._reason = ""
        self._life = (-1, self.started)
        self._looked = 0.0
        self._process: subprocess.Popen[bytes] | None = None
        # Files, not pipes: a child of the child can't keep them open, and nothing has to be read while it
        # runs.
        self._out, self._talk = scratch(), scratch()
        command = [sys.executable, "-m", "cachehome.lifecycle.child", "low" if modest else "normal"]
        command += [
            f"{seconds + 3 * GRACE:.3f}",
            verb or action,
            "--json",
            *(["--identity", identity] if identity else ()),
        ]
        try:
            self._process = subprocess.Popen(
                [*command, *arguments],
                # Without the record of what we applied, the directories count as told: this interpreter's own
                # host tag may be another than that of the job's.
                env={k: v for k, v in importable(environ).items() if k != APPLIED},
                cwd="/",  # a name in the job's directory must not shadow a module, and the directory may be gone
                stdin=subprocess.DEVNULL,
                stdout=self._out,
                stderr=self._talk,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            self._finish(failure(action, f"cannot start {sys.executable or 'Python'}: {error}"))

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def poll(self) -> Record | None:
        """Look once, take the next step if one is due, and return the record if it has ended."""
        if self.record is not None or self._process is None:
            return self.record
        status = self._process.poll()
        now = time.monotonic()
        if status is not None:
            if self._kill is not None:
                self._signal(signal.SIGKILL)  # whatever its group still holds
            self._finish(self._read(status))
        elif self._abandon is not None and now >= self._abandon:
            abandon(self._process)
            self._finish(failure(self.action, self._reason, abandoned=self._process.pid))
        elif self._kill is not None and now >= self._kill:
            self._signal(signal.SIGKILL)
            self._abandon = self._abandon or now + GRACE
        elif self._kill is None and now >= self._late:
            self.stop("time_limit")
        elif self._kill is None and now - self._looked >= _LOOK_EVERY:
            self._looked = now
            life = signs_of_life(self._process.pid)
            if life is None or life != self._life[0]:
                self._life = (-1 if life is None else life, now)
            elif now - self._life[1] >= self._stall:
                self.stop("no_answer")
        return self.record

    def stop(self, reason: str = "stopped") -> None:
        """Begin to end it; `poll` or `wait` see it through within 2 * GRACE seconds."""
        if self.record is None and self._kill is None:
            self._reason = reason
            self._kill = time.monotonic() + GRACE
            self._signal(signal.SIGTERM)

    def wait(self) -> Record:
        """Block until it has ended, in bounded time."""
        while (record := self.poll()) is None:
            assert self._process is not None
            _pause(self._process, _LOOK_EVERY / 2)
        return record

    def _signal(self, number: int) -> None:
        assert self._process is not None
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)

    def _finish(self, record: Record) -> None:
        # What no phase accounts for is the process: its interpreter, its imports, its end.
        other = round(max(0.0, self.seconds - sum(record.seconds.values())), 6)
        self.record = record._replace(seconds={**record.seconds, "process": other})
        self._out.close()
        self._talk.close()

    def _read(self, status: int) -> Record:
        self._out.seek(0)
        self._talk.seek(0)
        talk = self._talk.read().decode(errors="replace").strip().splitlines()
        try:
            return Record.from_json(json.loads(self._out.read()))
        except (ValueError, TypeError, KeyError):
            pass
        if self._reason:
            return failure(self.action, self._reason)
        said = talk[-1].removeprefix("cachehome: ") if talk else ""
        if status < 0:
            said = f"ended by signal {-status}"
        return failure(self.action, said or f"ended with status {status}")


def _pause(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait for *process* to end, for so long at most; `Popen.wait` would look only twenty times a second."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except (AttributeError, OSError):  # another system, an old kernel, or it has been reaped
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        return
    try:
        poll = select.poll()  # select() takes no descriptor above 1,023
        poll.register(descriptor, select.POLLIN)
        poll.poll(seconds * 1000)
    finally:
        os.close(descriptor)


def abandon(process: subprocess.Popen[bytes]) -> None:
    """Go on without *process*, which does not end."""
    _abandoned.append(process)


def failure(action: str, reason: str, outcome: str = "unavailable", **details: Any) -> Record:
    """The record of a transfer that could not give one itself."""
    return Record(action, outcome, reason, details=details)


def environment(environ: Mapping[str, str], settings: Settings) -> dict[str, str]:
    """*environ* for a child that must see just these *settings*, wherever they came from."""
    child = {
        k: v
        for k, v in environ.items()
        if k in NOT_SETTINGS or not (k.startswith(PREFIX) or k in BY_VARIABLE)
    }
    child["CACHEHOME_CONFIG"] = os.devnull
    for key, origin in settings.origin.items():
        if origin != "default":
            child[BY_KEY[key].variable] = _text(getattr(settings, key))
    return child


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)


def signs_of_life(pid: int) -> int | None:
    """A number that changes when the process or a child of it did anything; None where that can't be seen."""
    total, seen = 0, False
    for member in _with_children(pid):
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{member}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            total += (
                int(fields[11]) + int(fields[12]) + member
            )  # user and system time; a new child counts too
            seen = True
            with open(f"/proc/{member}/io", "rb") as file:
                total += sum(int(line.rpartition(b":")[2]) for line in file.read().splitlines())
    return total if seen else None


def _with_children(pid: int) -> Iterator[int]:
    yield pid
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as file:
                for child in file.read().split():
                    yield from _with_children(int(child))


def scratch() -> IO[bytes]:
    if hasattr(os, "memfd_create"):
        with contextlib.suppress(OSError):
            return open(os.memfd_create("cachehome"), "w+b")
    import tempfile

    return tempfile.TemporaryFile()


def importable(environ: Mapping[str, str]) -> dict[str, str]:
    """*environ* with which a child in another working directory finds this same package."""
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    named = [part for part in environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    with contextlib.suppress(OSError):  # the working directory may be gone
        named = [os.path.abspath(part) for part in named]
    if os.path.basename(here) not in ("site-packages", "dist-packages"):
        named.append(here)
    return {**environ, "PYTHONPATH": os.pathsep.join(named)} if named else dict(environ)
