"""The activity log: what one process took from its caches, and what it made. `activity-PID.jsonl`, a line an event.

    {"event": "process", "t": ..., "pid": ..., "parent": ..., "run": ..., "program": ..., "rank": ...}   first line
    {"event": "restored", "outcome": "hit", "reason": ..., "details": ...}   how the last restore here ended
    {"event": "watched", "what": "fx"}                            this group of counters tells the truth here
    {"event": "unknown", "what": "fx", "why": ...}                this one says nothing: torch's inside differs
    {"event": "counts", "add": {"fx_hits": 1}}                    counters, as differences
    {"event": "missed", "what": "triton", "name": ..., "key": ...}   looked up, not found
    {"event": "made", "what": "triton", "key": ..., "seconds": ...}  compiled instead, and how long that took
    {"event": "used", "what": "triton", "key": ...}               found
    {"event": "changed", "text": "thread count: 16 became 3"}     since what was looked up was made
    {"event": "worker"}                                           this is a compile worker, and it is watched
    {"event": "directories", "inductor": ..., "triton": ...}      in effect, whenever they change

The log lies in `report_dir`, else in `.cachehome/activity` of the live directory. Each event is written at once,
or handed to a thread at once: a server that is killed must not lose them. There is no log while diagnostics are
off, and none where it can't be written; one that has grown to `LARGEST` bytes ends with the event `full`.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import queue
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

from cachehome.observe import files

LARGEST = 16 << 20
_RECORD = 1 << 20  # bytes
_MOST_WAITING = 10_000  # events
_PATIENCE = 2.0  # seconds at the end of a process
OLD = 14 * 86_400.0  # seconds after which a log may go
PREFIX, SUFFIX = "activity-", ".jsonl"
VARIABLES = {"inductor": "TORCHINDUCTOR_CACHE_DIR", "triton": "TRITON_CACHE_DIR"}
RANKS = ("RANK", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")


class Log:
    """The log of this process. Never raises; a child of a fork begins its own."""

    def __init__(self) -> None:
        self._begin()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._silent = threading.local()
        self._lock = threading.RLock()  # a finalizer may start a compiler while an event is written
        self._sink: File | Behind | None = None
        self._closed = False
        self._directories: dict[str, str] = {}
        # A fork inherits the patches of its parent, so what the parent could watch is watched here, too.
        self._told = list(getattr(self, "_told", []))

    def add(self, **counts: float) -> None:
        """Add to counters."""
        self.note("counts", add=counts)

    @property
    def silent(self) -> bool:
        """Whether this thread does something that is no part of the job's work."""
        return getattr(self._silent, "depth", 0) > 0

    @contextlib.contextmanager
    def silence(self) -> Iterator[None]:
        """Note nothing of what this thread does meanwhile."""
        self._silent.depth = getattr(self._silent, "depth", 0) + 1
        try:
            yield
        finally:
            self._silent.depth -= 1

    def watched(self, group: str, why_not: str = "") -> None:
        """Say whether the counters of *group* can be believed."""
        fact = {"what": group, "why": why_not} if why_not else {"what": group}
        event = ("unknown" if why_not else "watched", fact)
        if event not in self._told:
            self._told.append(event)
            if self._sink:
                self.note(event[0], **fact)

    def note(self, event: str, **facts: Any) -> None:
        """Write one event."""
        from cachehome.observe import watch

        if not watch.counting or self._closed or self.silent:
            return
        try:
            with self._lock:
                if self._sink is None:
                    self._open()
                self._look_at_directories()
                self._write(event, facts)
        except Exception:
            self._closed = True  # a full disk, a directory that is gone: a log is worth nobody's job

    def _open(self) -> None:
        directory, reports = place()
        if not directory:
            raise FileNotFoundError
        file = File(directory)
        self._sink = Behind(file) if reports else file
        self._write("process", process())
        found = restored()
        if found:
            self._write("restored", found)
        for event, fact in self._told:
            self._write(event, fact)

    def _write(self, event: str, facts: dict[str, Any]) -> None:
        assert self._sink is not None
        row = {"event": event, "t": round(time.time(), 3), **facts}
        self._sink.write(json.dumps(row, default=str).encode() + b"\n")

    def _look_at_directories(self) -> None:
        now = {family: os.environ.get(variable, "") for family, variable in VARIABLES.items()}
        if now != self._directories:
            self._directories = now
            self._write("directories", now)


class File:
    """A log on disk, made with its first line. Raises OSError, and `EOFError` once it is full."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self._file = -1
        self._written = 0

    def write(self, line: bytes) -> None:
        if self._file < 0:
            self._file = self._make()
        if self._written + len(line) > LARGEST:
            os.write(self._file, b'{"event": "full"}\n')
            raise EOFError
        os.write(self._file, line)
        self._written += len(line)

    def _make(self) -> int:
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        _tidy(self.directory)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | getattr(os, "O_CLOEXEC", 0)
        for number in range(1000):
            name = f"{PREFIX}{os.getpid()}{f'-{number}' if number else ''}{SUFFIX}"
            try:
                return os.open(os.path.join(self.directory, name), flags, 0o600)
            except FileExistsError:
                continue  # another container's process of that number, or one of long ago
        raise FileExistsError(self.directory)


class Behind:
    """The same from a thread of its own: a report directory may be on a file system that hangs, and no compiler
    waits for it."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="cachehome-activity", daemon=True)
        self._thread.start()
        atexit.register(self._end)

    def write(self, line: bytes) -> None:
        if not self._thread.is_alive() or self._lines.qsize() > _MOST_WAITING:
            raise BrokenPipeError
        self._lines.put(line)

    def _run(self) -> None:
        try:
            while line := self._lines.get():
                self._file.write(line)
        except (OSError, EOFError):
            return

    def _end(self) -> None:
        self._lines.put(b"")
        self._thread.join(_PATIENCE)


def place() -> tuple[str, bool]:
    """The directory of the log, "" if there is none, and whether that is `report_dir` and not a live directory."""
    from cachehome.settings import Settings

    told = Settings.load(lenient=True).report_dir
    if told:
        return told, True
    live = next((os.environ[variable] for variable in VARIABLES.values() if os.environ.get(variable)), "")
    live = live.partition("/torch_compile_cache/")[0]  # an engine's root, where a report looks, too
    return (below(live) if os.path.isabs(live) else ""), False


def restored() -> dict[str, Any]:
    """How the last restore of the live directory ended (sync/live.py); {} if nothing tells."""
    for variable in VARIABLES.values():
        live = os.environ.get(variable, "").partition("/torch_compile_cache/")[0]
        if os.path.isabs(live):
            with contextlib.suppress(OSError, ValueError):
                return record_of(
                    files.parse(files.read(os.path.join(live, ".cachehome", "restored"), _RECORD))
                )
    return {}


def record_of(document: Any) -> dict[str, Any]:
    """The record in *document* without what is of another type than it must be; {} if it is none."""
    if not isinstance(document, dict) or not all(
        isinstance(document.get(n), str) for n in ("outcome", "reason")
    ):
        return {}
    told = document.get("details")
    details: dict[str, Any] = {}
    for name, value in told.items() if isinstance(told, dict) else ():
        if name == "directories" and isinstance(value, dict):
            details[name] = {family: path for family, path in value.items() if isinstance(path, str)}
        elif name == "relocated" and isinstance(value, (list, tuple)):
            details[name] = [path for path in value if isinstance(path, str)]
        elif name in ("message", "profile_fallback") and isinstance(value, str):
            details[name] = value
    return {"outcome": document["outcome"], "reason": document["reason"], "details": details}


def below(live: str) -> str:
    """Where the logs of a live directory lie, if there is no `report_dir`."""
    return os.path.join(live, ".cachehome", "activity")


def process() -> dict[str, Any]:
    """What the first line says of this process: nothing of its arguments but the program, which may hold secrets."""
    from cachehome import __version__
    from cachehome.observe import watch

    script = sys.argv[0] if sys.argv and sys.argv[0] not in ("", "-c") else "-c"
    role = "compile worker" if worker() else ""
    rank = next((f"{name}={os.environ[name]}" for name in RANKS if os.environ.get(name)), "")
    versions = {name: str(getattr(sys.modules.get(name), "__version__", "")) for name in ("torch", "triton")}
    return {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "run": os.environ.get(watch.RUN, ""),
        "program": os.path.basename(script),
        "role": role,
        "rank": rank,
        "cachehome": __version__,
        **versions,
    }


def worker() -> bool:
    """Whether this process is one of Inductor's compile workers."""
    return "compile_worker" in (sys.argv[0] if sys.argv else "")


def _tidy(directory: str) -> None:
    """Remove logs of long ago."""
    limit = time.time() - OLD
    with os.scandir(directory) as listing:
        for entry in listing:
            if (
                entry.name.startswith(PREFIX)
                and entry.name.endswith(SUFFIX)
                and entry.stat(follow_symlinks=False).st_mtime < limit
            ):
                os.unlink(entry.path)


log = Log()
