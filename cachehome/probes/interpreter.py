"""Owns the question to an interpreter: the whole build as seen from the Python that the job will use.

Our own interpreter is asked in this process. Any other one, also the same one under another PYTHONPATH, is started
with our package lent to it (it needs nothing installed) and prints the answer as one JSON line.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from cachehome import switch
from cachehome.probes import (
    ABSENT,
    ProbeError,
    Tool,
    environment,
    gpu,
    machine,
    packages,
    scrub,
    source,
    value,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cachehome.settings import Settings

SCHEMA = 1
OLDEST = (3, 10)
# A manager may make the environment first; the job would wait for that, too.
ANSWER_SECONDS = 120.0
# Variables that decide what an interpreter imports, and so what it would find.
_PATH_VARIABLES = (
    "PYTHONPATH",
    "PYTHONHOME",
    "PYTHONUSERBASE",
    "PYTHONNOUSERSITE",
    "PYTHONSAFEPATH",
    "PYTHONPLATLIBDIR",
)
_MARK = "cachehome-build:"
HOOK = "python.hook"  # in what is left out, where our start-up hook was seen in the interpreter
# Runs in the other interpreter. Our package is lent without its neighbours: a path entry would lend these, too.
_LENT = """
import sys
if sys.version_info < {oldest}:
    sys.exit("it is Python %d.%d" % sys.version_info[:2])
sys.dont_write_bytecode = True
search = [entry for entry in sys.path[1:] if entry]
hooked = getattr(sys.modules.get("cachehome"), "hook_ran", False)
import importlib.util as util
spec = util.spec_from_file_location("cachehome", {package!r} + "/__init__.py", submodule_search_locations=[{package!r}])
sys.modules["cachehome"] = module = util.module_from_spec(spec)
spec.loader.exec_module(module)
from cachehome.probes import interpreter
interpreter.answer(search, hooked)
"""


class Job:
    """What a command comes down to.

    *python* starts its interpreter (None: it is ours), with the *options* that decide what that finds. *environ* is the
    environment with what the command itself sets, *argv* the command without its wrappers, *notes* what to know.
    """

    __slots__ = ("argv", "environ", "notes", "options", "python")

    def __init__(
        self,
        python: Sequence[str] | None,
        options: Sequence[str],
        environ: Mapping[str, str],
        argv: Sequence[str],
        notes: Mapping[str, str] | None = None,
    ) -> None:
        self.python = python
        self.options = options
        self.environ = environ
        self.argv = argv
        self.notes = dict(notes or {})

    @classmethod
    def of_this_process(cls, environ: Mapping[str, str]) -> Job:
        """No command: the job runs in the interpreter that is running now."""
        own = sys.executable or "python3"
        return cls(None if is_this_one(own, (), environ) else (own,), (), environ, ())


def build(settings: Settings, job: Job) -> tuple[dict[str, Any], dict[str, str]]:
    """The build of *job* and what was left out of it. `CacheHomeError` if its interpreter gives no answer."""
    wishes = {
        "build_key": settings.build_key,
        "image": settings.image,
        "sources": list(settings.sources),
        "packages": list(settings.packages),
    }
    if job.python is None:
        return probe(job.environ, wishes, packages.search_path(), hooked=bool(switch.hooked()))
    return _ask(job, wishes)


def probe(
    environ: Mapping[str, str],
    wishes: Mapping[str, Any],
    search: Sequence[str],
    *,
    lent: bool = False,
    hooked: bool = False,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Ask every probe in this process. Programs are started first and read last, so that they run side by side."""
    from cachehome.probes.toolchain import Toolchain

    toolchain = Toolchain(environ, search)
    found = packages.find(search, wishes["packages"])
    trees = {f"package {package.name}": package.checkout for package in found if package.checkout}
    for path in wishes["sources"]:
        name = os.path.basename(path)
        while name in trees:  # two of one name: told apart by their order, since a path is no part of a key
            name += "'"
        trees[name] = path
    sources = {name: source.start(path, environ) for name, path in trees.items()}
    devices, left_out = gpu.probe(environ)
    variables, dropped = environment.probe(environ)
    left_out.update(dropped)
    parts: dict[str, Any] = {
        "schema": SCHEMA,
        "host_tag": value(machine.host_tag, environ, search if lent else None),
        "python": machine.python(),
        "machine": machine.machine(),
        "gpu": devices,
        "environment": variables,
        "packages": {package.name: packages.describe(package, search) for package in found},
        "toolchain": toolchain.answers(),
        "sources": {name: value(answer) for name, answer in sources.items()},
        "image": value(source.image, wishes["image"]) if wishes["image"] else ABSENT,
        "build_key": wishes["build_key"],
    }
    if hooked:
        left_out[HOOK] = "it runs when this Python starts, so that a slim restore will do"
    left_out["machine.threads"] = f"{_threads()}: in torch's own key of every graph with C++ code"
    return parts, left_out


def answer(search: Sequence[str], hooked: bool) -> None:
    """What the lent package does in the other interpreter: print its build. *hooked*: our hook has run in it."""
    wishes = json.load(sys.stdin)
    existing = [entry for entry in search if os.path.isdir(entry)]
    document = json.dumps(probe(os.environ, wishes, existing, lent=True, hooked=hooked))
    sys.stdout.write(f"\n{_MARK}{document}\n")


def _ask(job: Job, wishes: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    from cachehome.errors import CacheHomeError

    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    program = _LENT.format(oldest=OLDEST, package=package)
    python = job.python or (sys.executable,)
    given = json.dumps(wishes).encode()
    tool = Tool([*python, *job.options, "-c", program], _without_ours(job.environ), given, ANSWER_SECONDS)
    try:
        lines = [line for line in tool.text().split("\n") if line.startswith(_MARK)]
        if not lines:
            raise ProbeError("no answer")
        parts, left_out = json.loads(lines[-1][len(_MARK) :])
    except (ProbeError, ValueError) as error:
        raise CacheHomeError(
            f"the identity of {scrub.command(python)} is not known: {error}; give one with --identity FILE, made by"
            f" `cachehome key --json` where the job runs",
        ) from None
    return parts, left_out


def is_this_one(python: str, options: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Whether *python* under *environ* would find what this process finds."""
    own = os.path.abspath(sys.executable)
    if os.path.dirname(os.path.abspath(python)) != os.path.dirname(own):
        return False
    try:
        if not os.path.samefile(python, own):
            return False
    except OSError:
        return False
    if options or sys.flags.isolated or sys.flags.no_site or sys.flags.ignore_environment:
        return False
    if any(environ.get(name, "") != os.environ.get(name, "") for name in _PATH_VARIABLES):
        return False
    return _user_site(environ) == _user_site(os.environ)


def _user_site(environ: Mapping[str, str]) -> str:
    """The user's own site directory if it is there: HOME alone makes no difference."""
    base = environ.get("PYTHONUSERBASE") or os.path.join(environ.get("HOME", ""), ".local")
    path = os.path.join(base, "lib", f"python{sys.version_info[0]}.{sys.version_info[1]}", "site-packages")
    return path if os.path.isdir(path) else ""


def _without_ours(environ: Mapping[str, str]) -> dict[str, str]:
    """The job's environment without what would start our hook, or hand our answer back to us."""
    ours = {name: text for name, text in environ.items() if not name.startswith("CACHEHOME")}
    return {**ours, "CACHEHOME": "0", "PYTHONDONTWRITEBYTECODE": "1"}


def _threads() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count() or 0
