"""Other users and other limits, for tests: a function run as somebody else, a script run under strace."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest


def as_user(
    uid: int,
    function: Callable[[], Any],
    *,
    gid: int | None = None,
    groups: Sequence[int] = (),
    umask: int = 0o022,
) -> Any:
    """The result of *function* in a forked child of another user; what it raises is raised here.

    Forked, not started: the interpreter may lie where that user can't read. So the caller imports what it needs.
    """
    if os.geteuid() != 0:
        pytest.skip("only root may become somebody else")
    answer, mine = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of the parent: the child makes none
        pid = os.fork()
    if not pid:
        try:
            os.setgroups(list(groups))
            os.setgid(uid if gid is None else gid)
            os.setuid(uid)
            os.umask(umask)
            try:
                result = (True, function())
            except BaseException as error:
                result = (False, error)
            with open(mine, "wb") as file:
                file.write(pickle.dumps(result))
        finally:
            os._exit(0)
    os.close(mine)
    with open(answer, "rb") as file:
        data = file.read()
    os.waitpid(pid, 0)
    done, result = pickle.loads(data)
    if not done:
        raise result
    return result


def injected(script: str, *faults: str, path: str | Path = "", arguments: Sequence[object] = ()) -> Any:
    """What a Python *script* prints as JSON, run under strace with *faults* (`openat:error=EIO:when=1`) on *path*."""
    if not shutil.which("strace"):
        pytest.skip("strace is not installed")
    command = ["strace", "-f", "-qq", "-o", os.devnull]
    for fault in faults:
        command += ["-e", f"trace={fault.partition(':')[0]}", "-e", f"inject={fault}"]
    if path:
        command += ["-P", str(path)]
    done = subprocess.run(
        [*command, sys.executable, "-c", script, *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    if "ptrace" in done.stderr and "denied" in done.stderr:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
