"""Owns what a probe may answer: a value, `absent`, or `error: ...` with a reason that tells two failures apart.

A probe reads one thing that machine code depends on. It never raises, never answers with an empty text, and puts
nothing into its answer that differs between two starts of the same job: no path, no process id, no time.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

ABSENT = "absent"
ERROR = "error: "
TOOL_SECONDS = 20.0


class ProbeError(Exception):
    """Why a probe has no value. The message goes into the key: it must be the same at each start."""


def value(probe: Callable[..., Any], *arguments: Any) -> Any:
    """What *probe* answers, or its failure as a value of its own."""
    try:
        return probe(*arguments)
    except Exception as error:  # whatever goes wrong in a probe costs a warm start, never the job
        return failure(error)


def failure(error: Exception) -> str:
    """The value that stands for *error*."""
    if isinstance(error, ProbeError):
        return ERROR + str(error)
    if isinstance(error, OSError) and error.errno:
        return f"{ERROR}{errno.errorcode.get(error.errno, error.errno)}"
    place = error.__traceback__
    while place and place.tb_next:
        place = place.tb_next
    where = f"{os.path.basename(place.tb_frame.f_code.co_filename)}:{place.tb_lineno}" if place else "nowhere"
    return f"{ERROR}{type(error).__name__} at {where}"


def is_failure(text: object) -> bool:
    """Whether a value stands for a probe that failed."""
    return isinstance(text, str) and text.startswith(ERROR)


class Tool:
    """A program that was started and whose answer is asked for later, so that all of them run side by side."""

    __slots__ = ("_input", "_name", "_process", "_seconds")

    def __init__(
        self,
        command: Sequence[str],
        environ: Mapping[str, str],
        stdin: bytes | None = None,
        seconds: float = TOOL_SECONDS,
    ) -> None:
        import subprocess

        self._name = os.path.basename(command[0])
        self._input = stdin
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | OSError
        try:
            self._process = subprocess.Popen(
                list(command),
                # One language for everybody: messages are part of the answer.
                env={**environ, "LC_ALL": "C", "LANGUAGE": ""},
                stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except OSError as error:
            self._process = error

    def output(self) -> bytes:
        """All that it wrote; `ProbeError` says why there is none."""
        import subprocess

        if isinstance(self._process, OSError):
            raise ProbeError(f"{self._name}: {errno.errorcode.get(self._process.errno or 0, 'not started')}")
        with self._process as process:
            try:
                data = process.communicate(self._input, timeout=self._seconds)[0]
            except subprocess.TimeoutExpired:
                process.kill()
                # Not until its pipe is at an end: a grandchild may hold that open for ever.
                if process.stdout:
                    process.stdout.close()
                raise ProbeError(f"{self._name}: no answer within {self._seconds:.0f} s") from None
        if process.returncode:
            raise ProbeError(f"{self._name}: {_ending(process.returncode)}: {_last_line(data)}")
        return data

    def text(self) -> str:
        """The same, decoded."""
        return self.output().decode(errors="replace")


def _ending(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exit {code}"


def _last_line(data: bytes) -> str:
    """The last line of a message without what could differ at the next start."""
    import re

    from cachehome.probes import scrub

    lines = data.decode(errors="replace").split("\n")
    line = next((line.strip() for line in reversed(lines) if line.strip()), "no message")
    return re.sub(r"\d{3,}", "#", scrub.text(line)[0])[:160]


def find_program(name: str, environ: Mapping[str, str]) -> str | None:
    """The path of program *name* on the PATH of *environ*, made absolute; None if it is not there."""
    if os.sep in name:
        return os.path.abspath(name) if _executable(name) else None
    for directory in environ.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(directory or os.curdir, name)
        if _executable(path):
            return os.path.abspath(path)
    return None


def _executable(path: str) -> bool:
    return os.path.isfile(path) and os.access(path, os.X_OK)
