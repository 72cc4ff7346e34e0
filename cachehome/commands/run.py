"""`cachehome run -- COMMAND`: restore, run it, publish; its exit status, streams and signals are the command's own."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from typing import TYPE_CHECKING

from cachehome.waiting import writable

if TYPE_CHECKING:
    import argparse

    from cachehome.lifecycle.run import Ended
    from cachehome.settings import Settings

DESCRIPTION = """Restore, run COMMAND with the variables of all families set, publish while it runs and after it.

The exit code, streams and signals are COMMAND's own; 126 and 127 as in a shell. Talk is on stderr: one line
before
COMMAND starts, one after it. Nothing here fails COMMAND, except a miss of what --require-warm names."""
OWN_OUTPUT = True  # stdout is COMMAND's: no --json
LENIENT = True  # a wrong variable or file costs the warm start, not the run
SETTINGS = (
    "store",
    "profile",
    "profile_fallback",
    "identity",
    "families",
    "slot",
    "restore",
    "publish",
    "publish_interval_seconds",
    "store_timeout_seconds",
    "exit_timeout_seconds",
    "slim",
    "require_warm",
    "report_dir",
    "max_failed_starts",
    "start_seconds",
    "start_mark",
    "deny_failed",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    import argparse

    parser.add_argument(
        "--quiet", "-q", action="store_true", help="say nothing about what was restored and published"
    )
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what to run, with its arguments"
    )


def run(args: argparse.Namespace, settings: Settings) -> int:
    from cachehome.errors import ConfigError
    from cachehome.lifecycle.place import insist_on
    from cachehome.lifecycle.run import Run

    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if not command:
        raise ConfigError("run: no command; say `cachehome run -- COMMAND ARGUMENTS`")
    say = _quiet if args.quiet else _say
    for problem in settings.problems:
        if str(problem.fields.get("source", "")).startswith("--"):
            raise problem  # whoever types it is there to mend it
        say(f"ignored: {problem}")
    _check_names(settings)
    if settings.enabled == "off":
        insist_on(settings, "CACHEHOME is off")
        return _instead_of_us(command)
    return _end_like(Run(command, settings, say=say).go())


def _check_names(settings: Settings) -> None:
    """Raise `ConfigError` for a family on the command line that no catalogue has."""
    from cachehome import families

    for key in ("families", "require_warm"):
        source = settings.origin.get(key, "")
        if source.startswith("--"):
            families.check(getattr(settings, key), key, source)


def _quiet(_line: str) -> None:
    pass


def _say(line: str) -> None:
    """A line on stderr. Whoever reads that may be gone, or not read: that must not hold up an exit status."""
    if sys.stderr is None:
        return
    with contextlib.suppress(OSError, ValueError):
        if writable(2, 1.0):
            os.write(2, f"cachehome: {line[:2000]}\n".encode(errors="replace"))


def _instead_of_us(command: list[str]) -> int:
    """Become the command: it runs untouched."""
    from cachehome.lifecycle.run import NOT_EXECUTABLE, NOT_FOUND

    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 - no shell is wanted
    except OSError as error:
        _say(f"{command[0]}: {error.strerror}")
        return NOT_FOUND if isinstance(error, (FileNotFoundError, NotADirectoryError)) else NOT_EXECUTABLE


def _end_like(ended: Ended) -> int:
    """Die of the signal that the command died of, so that a shell or a scheduler sees the same end."""
    if ended.signal:
        with contextlib.suppress(ImportError, OSError, ValueError):
            import resource

            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the command has left its core already
        with contextlib.suppress(OSError, ValueError):
            if ended.signal not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(ended.signal, signal.SIG_DFL)
            os.kill(os.getpid(), ended.signal)
    return ended.code
