"""The command line: `cachehome VERB`. Owns the table of verbs; each verb is a module of cachehome/commands.

A verb's module has `arguments(parser)` and `run(args, settings) -> exit code`, and may name in `SETTINGS` the
keys of the settings that are its options. `GUARDED`: it works on a store, which may hang. Data on stdout, talk
on stderr. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 nothing to do or nothing found. Only the module of the
verb that was asked for is imported.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import NoReturn

from cachehome import settings as settings_module
from cachehome.collector import uncollected
from cachehome.errors import CacheHomeError, ConfigError

DONE, FAILED, USAGE, NOTHING = 0, 1, 2, 3

VERBS: dict[str, tuple[str, str]] = {
    "env": ("cachehome.commands.env", "print what activation sets here, for a shell"),
    "path": ("cachehome.commands.path", "print the live directory of a family"),
    "status": ("cachehome.commands.status", "what is live, by whom, how large"),
    "enable": ("cachehome.commands.enable", "switch the hook on for this Python environment"),
    "disable": ("cachehome.commands.disable", "switch it off again"),
    "key": ("cachehome.commands.key", "this machine's and job's identity"),
    "why": ("cachehome.commands.why", "the difference of two identities, generations or runs"),
    "agree": ("cachehome.commands.agree", "check that all nodes have one identity"),
    "restore": ("cachehome.commands.restore", "fill the live directories from the store"),
    "publish": ("cachehome.commands.publish", "publish what the live directories hold"),
    "run": ("cachehome.commands.run", "restore, run a command, publish"),
    "agent": ("cachehome.commands.agent", "the same for a node, detached from any process"),
    "ls": ("cachehome.commands.ls", "list builds, profiles and generations of a store"),
    "show": ("cachehome.commands.show", "what a generation holds"),
    "verify": ("cachehome.commands.verify", "read every byte of a store and check it"),
    "prune": ("cachehome.commands.prune", "remove what retention lets go; --dry-run shows it"),
    "pin": ("cachehome.commands.pin", "keep a generation"),
    "unpin": ("cachehome.commands.unpin", "let it go again; list the pins"),
    "rollback": ("cachehome.commands.rollback", "deny what came after a generation"),
    "quarantine": ("cachehome.commands.quarantine", "deny what a generation brought"),
    "unquarantine": ("cachehome.commands.unquarantine", "undo that; list what is denied"),
    "doctor": ("cachehome.commands.doctor", "what is wrong here or with a store, and how to mend it"),
    "keygen": ("cachehome.commands.keygen", "make a pair of keys for a signed store"),
    "report": ("cachehome.commands.report", "what the last runs restored, used and compiled"),
    "demo": ("cachehome.commands.demo", "cold start, publish, wipe, restore, warm start on a real compile"),
}


class Help(argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of descriptions. Made for every option, so without argparse's import of shutil."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_columns() - 2)


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as all else does."""

    def error(self, message: str) -> NoReturn:
        self.exit(
            USAGE, f"{self.prog.replace(' ', ': ', 1)}: {message}; `{self.prog} --help` tells what it takes\n"
        )


def parser_of(verb: str) -> argparse.ArgumentParser:
    """The parser of one *verb*, with the options of its settings."""
    module_name, line = VERBS[verb]
    module = importlib.import_module(module_name)
    parser = Parser(
        prog=f"cachehome {verb}",
        description=getattr(module, "DESCRIPTION", line),
        formatter_class=Help,
        allow_abbrev=False,
    )
    if not getattr(module, "OWN_OUTPUT", False):
        parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    module.arguments(parser)
    group = None
    for key in getattr(module, "SETTINGS", ()):
        row = settings_module.BY_KEY[key]
        group = group or parser.add_argument_group(
            "settings", "each also a variable and a key of cachehome.toml"
        )
        group.add_argument(
            row.flag,
            dest=f"setting_{key}",
            metavar="VALUE",
            help=f"{row.meaning} ({row.variable}; {row.allowed})".replace("%", "%%"),
        )
    return parser


def main(arguments: Sequence[str] | None = None, *, guard: bool = False) -> int:
    """Run one verb; the exit code. *guard*: in a process of its own, if it looks after a store, which may hang."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    return _told(lambda: _main(words, guard=guard))


def _main(words: list[str], *, guard: bool) -> int:
    if not words or words[0] in ("-h", "--help"):
        print(overview(), file=sys.stdout if words else sys.stderr, flush=True)
        return DONE if words else USAGE
    if words[0] in ("-V", "--version"):
        from cachehome import __version__

        print(__version__, flush=True)
        return DONE
    verb = words[0]
    if verb not in VERBS:
        raise ConfigError(
            f"no verb {verb!r}{_near(verb)}; `cachehome --help` lists them",
            key="verb",
            source="the command line",
            value=verb,
            allowed=", ".join(VERBS),
        )
    return _run(verb, words[1:], guard=guard)


def _told(act: Callable[[], int]) -> int:
    """The exit code of *act*; an error is one line on stderr."""
    try:
        return act()
    except ConfigError as error:
        return _say(str(error), USAGE)
    except CacheHomeError as error:
        return _say(str(error), FAILED)
    except BrokenPipeError:
        # `cachehome ls | head`: nobody reads on. The interpreter must not fail over it at exit, either.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return DONE
    except OSError as error:
        return _say(f"{error.filename or 'cannot go on'}: {error.strerror or error}", FAILED)
    except KeyboardInterrupt:
        return _say("interrupted", 130)


def _say(text: str, code: int) -> int:
    with contextlib.suppress(OSError):  # it can't be said
        print(f"cachehome: {text}", file=sys.stderr, flush=True)
    return code


def _run(verb: str, words: list[str], *, guard: bool) -> int:
    with uncollected():  # nothing of what is imported is garbage
        args = parser_of(verb).parse_args(words)
        given = {
            key.removeprefix("setting_"): value
            for key, value in vars(args).items()
            if key.startswith("setting_") and value is not None
        }
        module = importlib.import_module(VERBS[verb][0])
        lenient = getattr(module, "LENIENT", False)
        settings = settings_module.Settings.load(command_line=given, lenient=lenient)

    def act() -> int:
        code = module.run(args, settings)
        if sys.stdout is not None:  # a supervisor may start us with it closed
            sys.stdout.flush()
        return int(code)

    if not guard or not getattr(module, "GUARDED", False):
        return act()
    from cachehome.commands import guarded

    if not guarded.possible():
        return act()
    place = getattr(args, "place", "") or (settings.store[-1] if settings.store else "the store")
    seconds = settings.store_timeout_seconds
    late = f"{place} gave no sign of life for {seconds:g} s: check the mount and its server"
    return guarded.within(seconds, lambda: _told(act), late)


def overview() -> str:
    """The page of `cachehome --help`."""
    width = max(map(len, VERBS))
    verbs = "\n".join(f"  {verb:<{width}}  {line}" for verb, (_, line) in VERBS.items())
    return (
        "usage: cachehome VERB [OPTION ...]\n\n"
        "One home for every compile cache, and warm starts anywhere.\n\n"
        f"{verbs}\n\n"
        "`cachehome VERB --help` tells more. Data on stdout, talk on stderr; --json on every verb that"
        " reports.\n"
        "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 nothing to do or nothing found."
    )


def _columns() -> int:
    try:
        return int(os.environ.get("COLUMNS", "")) or 80
    except ValueError:
        pass
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or 80  # type: ignore[union-attr]
    except (AttributeError, ValueError, OSError):
        return 80


def _near(verb: str) -> str:
    import difflib

    near = difflib.get_close_matches(verb, VERBS, n=1)
    return f" (did you mean {near[0]}?)" if near else ""
