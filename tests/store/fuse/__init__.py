"""A file system that misbehaves on request, for tests of directory stores.

    with mounted(source, mountpoint) as faults:      # skips where there is no FUSE
        faults.set(Fault("open", "generations", errno="ESTALE", times=1))

It shows the directory *source*. Faults are rules in a file that it reads anew before each call.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Fault:
    """One rule, for paths that hold *match*.

    *verb*: open, getattr, readdir, read, write, create, link, rename, fsync, flush, mkdir, unlink, or `*`.
    *errno*: a name: fail with it. *seconds*: wait first; below 0: until the rule is gone. *length*: no more
    bytes are read or written at once. *times*: then it no longer applies; 0: it always does. *skip*: so many calls
    go through first.
    """

    verb: str
    match: str = ""
    errno: str = ""
    seconds: float = 0.0
    length: int = 0
    times: int = 0
    skip: int = 0


class Faults:
    """The rules of a mounted file system."""

    def __init__(self, control: Path) -> None:
        self.control = control
        self.version = 0
        self.set()

    def set(self, *faults: Fault) -> None:
        """Replace all rules; counts begin anew."""
        self.version += 1
        temporary = self.control.with_suffix(".new")
        temporary.write_text(
            json.dumps({"version": self.version, "faults": [asdict(fault) for fault in faults]})
        )
        temporary.replace(self.control)


def missing() -> str:
    """Why no FUSE file system can be mounted here, "" if one can."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse can't be opened"
    if os.geteuid() != 0:
        return "mounting needs root"
    if importlib.util.find_spec("mfusepy") is None:
        return "mfusepy is not installed"
    if not shutil.which("fusermount3"):
        return "fusermount3 is not installed"
    return ""


@contextlib.contextmanager
def mounted(source: Path, mountpoint: Path) -> Iterator[Faults]:
    """Show *source* at *mountpoint*; skips the test where that can't be done."""
    if reason := missing():
        pytest.skip(reason)
    for path in (source, mountpoint):
        path.mkdir(exist_ok=True, mode=0o700)
    faults = Faults(mountpoint.with_name(f"{mountpoint.name}.faults"))
    log = mountpoint.with_name(f"{mountpoint.name}.log")
    with log.open("wb") as talk:
        process = subprocess.Popen(
            [
                sys.executable,
                Path(__file__).with_name("filesystem.py"),
                source,
                mountpoint,
                faults.control,
            ],
            stdout=talk,
            stderr=talk,
        )
    try:
        until = time.monotonic() + 20
        while not os.path.ismount(mountpoint):
            if process.poll() is not None or time.monotonic() > until:
                pytest.skip(f"FUSE does not work here: {log.read_text()[-300:]}")
            time.sleep(0.02)
        yield faults
    finally:
        faults.set()
        subprocess.run(["fusermount3", "-u", "-z", mountpoint], check=False, capture_output=True)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
