"""Owns the question which Python a command will use, and what of it is the job: `Job`.

    env CUDA_VISIBLE_DEVICES=1 nice -n 5 torchrun --nproc-per-node 8 train.py
    └── environment ─────────┘ └ wrapper ┘ └ console script: the Python of its first line; the rest is the job

What can't be known (a container, another host, a script that chooses a Python) is said, never guessed: the wrong
answer would be the wrong cache. A program that shows no Python at all is taken to start the one that PATH names, as
nearly every launcher does, and that is noted.
"""

from __future__ import annotations

import os
import re
import shlex
from typing import TYPE_CHECKING

from cachehome.probes import find_program, scrub
from cachehome.probes.interpreter import Job, is_this_one

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cachehome.errors import CacheHomeError

_PYTHON = re.compile(r"(?:python|pypy)\d*(?:\.\d+)*t?(?:-\w+)?(?:\.exe)?")
_DEEPEST = 20

# Programs that change nothing of what Python finds, and start the command that follows: options that take a value,
# then the number of arguments before the command.
_WRAPPERS: dict[str, tuple[str, int]] = {
    "nice": ("-n --adjustment", 0),
    "ionice": ("-c --class -n --classdata", 0),
    "chrt": ("-T -P -D", 1),
    "nohup": ("", 0),
    "setsid": ("", 0),
    "time": ("-f --format -o --output", 0),
    "timeout": ("-s --signal -k --kill-after", 1),
    "stdbuf": ("-i --input -o --output -e --error", 0),
    "taskset": ("", 1),
    "numactl": ("-i --interleave -N --cpunodebind -C --physcpubind -m --membind -p --preferred", 0),
    "numad": ("", 0),
    "prlimit": ("", 0),
    "catchsegv": ("", 0),
    "strace": ("-e -o -p -s -E -P", 0),
    "exec": ("-a", 0),
    "command": ("", 0),
    "tini": ("-p", 0),
    "dumb-init": ("-r --rewrite", 0),
    "nsys": (
        "-o --output -t --trace -s --sample -w --show-output -y --delay -d --duration -c --capture-range",
        0,
    ),
    "ncu": ("-o --export -k --kernel-name -c --launch-count -s --launch-skip --set --section --metrics", 0),
    "rocprof": ("-i -o -d -t", 0),
    "rocprofv3": ("-d -o -i", 0),
    "py-spy": ("-o --output -r --rate -d --duration -f --format", 0),
    "memray": ("-o --output", 0),
}
# Their first word is a subcommand.
_WITH_VERB = {"nsys": "profile", "py-spy": "record", "memray": "run"}
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash"})
# They start processes here or on other nodes of one kind; `cachehome agree` compares these.
_SPREADERS = frozenset(
    {"srun", "mpirun", "mpiexec", "mpiexec.hydra", "jsrun", "aprun", "flux", "parallel", "xargs"}
)
_ELSEWHERE = frozenset(
    "docker podman nerdctl kubectl oc ssh apptainer singularity enroot sbatch sky modal dstack sudo su doas chroot"
    " systemd-run unshare nsenter bwrap proot".split()
)
# They choose an environment, and `PREFIX python` runs its Python: options with a value before the command.
_MANAGERS: dict[str, str] = {
    "uv": "-p --python --project --directory --with --with-editable --with-requirements --extra --no-extra --group"
    " --no-group --only-group --env-file --index --default-index -i --index-url --extra-index-url -f --find-links"
    " --config-file --cache-dir --python-platform --package -w --color --link-mode --resolution --prerelease"
    " -P --upgrade-package --exclude-newer --refresh-package --no-build-package --no-binary-package",
    "poetry": "-C --directory -P --project",
    "pdm": "-p --project -s --site-packages",
    "pipenv": "--python",
    "hatch": "-e --env -p --project",
    "rye": "",
    "pixi": "-e --environment --manifest-path -x",
    "conda": "-n --name -p --prefix --cwd",
    "mamba": "-n --name -p --prefix --cwd",
    "micromamba": "-n --name -p --prefix --cwd -r --root-prefix",
}
# The python of a manager's environment is asked through the manager.
_SCRIPT_BLOCK = re.compile(r"^# /// script\s*$", re.MULTILINE)
# What in a shell script may choose another Python than the one that PATH says now.
_CHANGES_PATH = re.compile(
    r"""(?:^|[;&|\s])(?:(?:source|\.|eval|conda|mamba|micromamba|module|ml|pyenv|spack|exec\s+-c|
        docker|podman|apptainer|singularity|ssh|srun|chroot|sudo|su)\s|export\s+PATH=|PATH=|VIRTUAL_ENV=)""",
    re.VERBOSE | re.MULTILINE,
)
_SHELL_WORD = re.compile(r"(?<![\w./$-])((?:[\w./~-]*/)?[\w.-]+)(?=[\s;|&)]|$)")
_SHELL_META = re.compile(r"[;&|<>`$(){}*?\n]")


def resolve(command: Sequence[str], environ: Mapping[str, str]) -> Job:
    """The job of *command*. `CacheHomeError` says which part of it is beyond knowing."""
    if not command:
        raise _unknown(command, "it is empty")
    return _Finder(command, environ).find()


def _unknown(command: Sequence[str], why: str) -> CacheHomeError:
    from cachehome.errors import CacheHomeError

    return CacheHomeError(
        f"the interpreter of `{scrub.command(command)[:200]}` is not known: {why}; give the identity with"
        f" --identity FILE, made by `cachehome key --json` where the job runs"
    )


class _Finder:
    """Peels a command, layer by layer."""

    def __init__(self, argv: Sequence[str], environ: Mapping[str, str], outer: _Finder | None = None) -> None:
        self.command: Sequence[str] = outer.command if outer else argv
        self.depth: int = outer.depth + 1 if outer else 0
        self.argv = list(argv)
        self.environ = dict(environ)
        self.notes: dict[str, str] = {}
        self.in_shell = False

    def find(self) -> Job:
        while self.depth < _DEEPEST:
            self.depth += 1
            if not self.argv:
                raise self.unknown("it names no program")
            job = self.step()
            if job:
                return job
        raise self.unknown("it starts itself")

    def unknown(self, why: str) -> CacheHomeError:
        return _unknown(self.command, why)

    def step(self) -> Job | None:
        """Peel one layer off `argv`, or give the job."""
        name = os.path.basename(self.argv[0])
        if _PYTHON.fullmatch(name):
            return self.python()
        if name == "env":
            self.env()
        elif name in _WRAPPERS:
            self.wrapper(name)
        elif name in _SHELLS:
            return self.shell()
        elif name in _MANAGERS and "run" in self.argv[1:]:
            return self.managed(name)
        elif name in _ELSEWHERE or (name == "ray" and self.argv[1:3] == ["job", "submit"]):
            raise self.unknown(f"{name} runs it elsewhere, or as somebody else")
        elif name in _SPREADERS:
            self.notes["interpreter"] = f"{name} starts it: every node is taken to have this one"
            self.argv = self.argv[self.first_program(self.argv, 1) :]
        else:
            return self.file()
        return None

    def python(self) -> Job | None:
        argv = self.argv
        program = find_program(argv[0], self.environ)
        if program is None:
            raise self.unknown(_missing(argv[0]))
        options, at = [], 1
        while at < len(argv) and argv[at].startswith("-") and argv[at] not in ("-", "--"):
            letters = argv[at][1:]
            if letters[0] in "mc":
                break
            if letters[0] in "XW" and len(letters) == 1:
                at += 1
            elif not argv[at].startswith("--"):
                options += [f"-{letter}" for letter in letters if letter in "IEsSP"]
            at += 1
        if argv[at : at + 2] == ["-m", "cachehome"] and "run" in argv[at + 2 :]:
            self.after_dashes()
            return None
        return self.job(program, options)

    def job(self, program: str, options: Sequence[str] = ()) -> Job:
        """The job with the interpreter *program*."""
        own = is_this_one(program, options, self.environ)
        return Job(None if own else (program,), () if own else options, self.environ, self.argv, self.notes)

    def assumed(self, why: str) -> Job:
        """The job of a program that shows no Python: that of PATH."""
        program = find_program("python3", self.environ) or find_program("python", self.environ)
        if program is None:
            raise self.unknown(why)
        self.notes["interpreter"] = f"{why}: taken to be {program}, the one of PATH"
        return self.job(program)

    def env(self) -> None:
        """`env -i -u NAME NAME=value ... command`."""
        argv, at = self.argv, 1
        while at < len(argv):
            word = argv[at]
            if word in ("-i", "-", "--ignore-environment"):
                self.environ = {}
            elif word in ("-u", "--unset", "-C", "--chdir"):
                at += 1
                if word in ("-u", "--unset") and at < len(argv):
                    self.environ.pop(argv[at], None)
            elif word.startswith("--unset="):
                self.environ.pop(word.partition("=")[2], None)
            elif word in ("-S", "--split-string") or word.startswith(("-S", "--split-string=")):
                text = word.partition("=")[2] if word.startswith("--split-string=") else word[2:]
                if not text:
                    at += 1
                    text = argv[at] if at < len(argv) else ""
                argv[at : at + 1] = self.split(text)
                continue
            elif word.startswith("-"):
                pass
            elif "=" in word:
                name, _, value = word.partition("=")
                self.environ[name] = value
            else:
                break
            at += 1
        self.argv = argv[at:]

    def split(self, text: str) -> list[str]:
        try:
            return shlex.split(text)
        except ValueError:
            raise self.unknown("its quoting is broken") from None

    def wrapper(self, name: str) -> None:
        with_value, arguments = _WRAPPERS[name]
        at = 1
        if self.argv[1:2] == [_WITH_VERB.get(name)]:
            at = 2
        at = self.skip_options(at, with_value.split())
        if name == "taskset" and "-c" in self.argv[1:at]:
            arguments = 1
        self.argv = self.argv[at + arguments :]

    def skip_options(self, at: int, with_value: Sequence[str]) -> int:
        """The place of the first word that is no option."""
        while at < len(self.argv) and self.argv[at].startswith("-"):
            if self.argv[at] == "--":
                return at + 1
            at += 2 if self.argv[at] in with_value else 1
        return at

    def after_dashes(self) -> None:
        if "--" not in self.argv:
            raise self.unknown("it has no -- before its command")
        self.argv = self.argv[self.argv.index("--") + 1 :]

    def managed(self, name: str) -> Job:
        """`uv run --with x python y.py`: the manager itself is asked which Python that is."""
        at = self.skip_options(self.argv.index("run") + 1, _MANAGERS[name].split())
        prefix, rest = self.argv[:at], self.argv[at:]
        if find_program(prefix[0], self.environ) is None:
            raise self.unknown(_missing(prefix[0]))
        if not rest:
            raise self.unknown(f"{name} run names no program")
        script = rest[0] if rest[0].endswith(".py") else ""
        if name == "uv" and ("--script" in prefix or "-s" in prefix or (script and _has_block(script))):
            raise self.unknown("uv makes an environment for this script alone")
        prefix = [word for word in prefix if word not in ("-m", "--module", "--")]
        if name == "hatch":
            prefix.append("--")
        self.argv = rest if not script else ["python", *rest]
        self.notes["interpreter"] = f"that of `{scrub.command(prefix)} python`"
        return Job((*prefix, "python"), (), self.environ, self.argv, self.notes)

    def file(self) -> Job | None:
        """A program by name: a console script says its interpreter in its first line."""
        path = find_program(self.argv[0], self.environ)
        if path is None and self.in_shell:
            return self.assumed(f"{self.argv[0]} is no program, perhaps the shell's own word")
        if path is None:
            raise self.unknown(_missing(self.argv[0]))
        name = os.path.basename(path)
        if name == "cachehome" and "run" in self.argv[1:]:
            self.after_dashes()
            return None
        try:
            with open(path, "rb") as file:
                head = file.read(4096).decode(errors="replace")
        except OSError as error:
            raise self.unknown(f"{path}: {error.strerror}") from None
        if not head.startswith("#!"):
            real = os.path.realpath(path)
            if _PYTHON.fullmatch(os.path.basename(real)):
                return self.job(path)
            return self.assumed(f"{path} is no Python and no script")
        inner = _Finder(_shebang(head), self.environ, self)
        if os.path.basename(inner.argv[0]) in _SHELLS:
            self.argv = [inner.argv[0], path, *self.argv[1:]]
            return None
        job = inner.find()
        if name == "torchrun" and {"--no-python", "--no_python"}.intersection(self.argv):
            self.argv = self.argv[self.first_program(self.argv, 1) :]
            return None
        chosen = self.environ.get("PYTHON_EXEC", "") if name == "torchrun" else ""
        if chosen:
            return self.job(find_program(chosen, self.environ) or chosen)
        return Job(job.python, job.options, self.environ, self.argv, self.notes)

    def first_program(self, argv: Sequence[str], at: int) -> int:
        """The place of the first word that some Python runs. Options of launchers are too many to know."""
        for place in range(at, len(argv)):
            word = argv[place]
            name = os.path.basename(word)
            known = _PYTHON.fullmatch(name) or name in _SHELLS or name in _WRAPPERS or name == "env"
            if known and find_program(word, self.environ):
                return place
            path = None if word.startswith("-") else find_program(word, self.environ)
            if path and _first_line(path).startswith("#!") and "python" in _first_line(path):
                return place
        raise self.unknown(f"{argv[0]} starts no Python that can be seen")

    def shell(self) -> Job | None:
        """`bash -c TEXT`, or a script: readable where it names one Python and does not choose another first."""
        argv, at = self.argv, 1
        text = None
        while at < len(argv) and argv[at].startswith(("-", "+")) and argv[at] != "--":
            if argv[at] in ("-o", "-O", "+o", "+O", "--rcfile", "--init-file"):
                at += 1
            elif not argv[at].startswith("--"):
                if "l" in argv[at] or "i" in argv[at]:
                    raise self.unknown("a login or interactive shell sets its own PATH")
                if "c" in argv[at]:
                    text = argv[at + 1] if at + 1 < len(argv) else ""
            at += 1
        if text is None:
            rest = [word for word in argv[at:] if word != "--"]
            if not rest:
                raise self.unknown("a shell without a script")
            try:
                with open(rest[0], encoding="utf-8", errors="replace") as file:
                    text = file.read(1 << 20)
            except OSError as error:
                raise self.unknown(f"{rest[0]}: {error.strerror}") from None
            text = self.unquoted(text)
            if text is None:
                return None
        elif not _SHELL_META.search(text):
            self.argv = self.split(text)
            while self.argv and re.fullmatch(r"[A-Za-z_]\w*=.*", self.argv[0], re.DOTALL):
                name, _, value = self.argv.pop(0).partition("=")
                self.environ[name] = value
            self.in_shell = True
            return None
        return self.read_script(text)

    def unquoted(self, text: str) -> str | None:
        """A script's *text*; None if it was the two lines that pip writes where a path is too long for a first line."""
        exec_line = re.match(r"#!/bin/sh\n'''exec' (\"[^\"]+\"|\S+) \"\$0\" \"\$@\"", text)
        if not exec_line:
            return text
        self.argv = [exec_line[1].strip('"'), *self.argv[1:]]
        return None

    def read_script(self, text: str) -> Job:
        lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
        text = "\n".join(lines)
        other = _CHANGES_PATH.search(text)
        if other:
            raise self.unknown(f"the shell script may choose another Python ({other.group().strip()})")
        jobs: dict[tuple[Sequence[str] | None, Sequence[str]], Job] = {}
        for word in dict.fromkeys(_SHELL_WORD.findall(text)):
            name = os.path.basename(word)
            if name in _MANAGERS or name in _ELSEWHERE:
                raise self.unknown(f"the shell script starts {name}")
            path = find_program(os.path.expanduser(word), self.environ)
            if path and (_PYTHON.fullmatch(name) or "python" in _first_line(path)):
                job = _Finder([path], self.environ, self).find()
                jobs[job.python, tuple(job.options)] = job
        if not jobs and "python" not in text.lower():
            return self.assumed("the shell script starts no Python that can be seen")
        if len(jobs) != 1:
            raise self.unknown(
                f"the shell script starts {'several Pythons' if jobs else 'no Python that can be seen'}"
            )
        (job,) = jobs.values()
        self.notes["interpreter"] = "the one that the shell script names"
        return Job(job.python, job.options, self.environ, self.argv, self.notes)


def _shebang(head: str) -> list[str]:
    """The words of a first line. Linux passes all after the program as one argument; `env -S` splits that itself."""
    line = head.split("\n", 1)[0][2:].strip()
    program, _, argument = line.partition(" ")
    return [program, argument.strip()] if argument.strip() else [program]


def _first_line(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return file.readline(512).decode(errors="replace")
    except OSError:
        return ""


def _has_block(path: str) -> bool:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return bool(_SCRIPT_BLOCK.search(file.read(1 << 16)))
    except OSError:
        return False


def _missing(program: str) -> str:
    """Why *program* can't be started, as far as its name tells."""
    there = os.sep in program and os.path.exists(program)
    return (
        f"{program} can't be executed: chmod +x, or name its interpreter"
        if there
        else f"{program} is not found"
    )
