"""Owns the profile: what a job compiles. A name, or what its command line says of it.

    {"name": "qwen3-8b-decode"}
    {"program": "vllm serve", "arguments": ["Qwen/Qwen3-8B", "--max-model-len 32768"],
     "layout": {"tensor_parallel": "8"}, "files": {"Qwen3-8B/config.json": "77ab..."}}

Options that say where, when and for whom a job runs are dropped (`flags.txt`), unknown ones stay. Paths become names,
the configuration files among them become hashes of their content.
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

from cachehome.probes import scrub
from cachehome.probes.source import file_digest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_PYTHON = re.compile(r"(?:python|pypy)\d*(?:\.\d+)*t?(?:\.exe)?")
# A module that is the same program as a console script.
_MODULES = {
    "vllm.entrypoints.openai.api_server": "vllm serve",
    "vllm.entrypoints.cli.main": "vllm",
    "sglang.launch_server": "sglang serve",
    "sglang.srt.server": "sglang serve",
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate launch",
    "deepspeed.launcher.runner": "deepspeed",
}
_VERBS = {"vllm": 1, "sglang": 1, "accelerate": 1, "ray": 2}
# They start another program: what follows their own options is the job's own command.
_LAUNCHERS = frozenset({"torchrun", "accelerate launch", "deepspeed", "ray job submit"})
_NUMBER = re.compile(r"-\d*\.?\d+(?:[eE][+-]?\d+)?")
_OVERRIDE = re.compile(r"([+~]{0,3}[A-Za-z_][\w.@/-]*)=(.*)", re.DOTALL)
_FILE = re.compile(r".*\.(?:ya?ml|json|toml|ini|cfg|conf|gin|jinja2?)", re.IGNORECASE)
_RELATIVE = re.compile(
    r"(?:\.{1,2}/|~/).*|[^/\s].*/[^/\s]*\.(?:py|sh|ya?ml|json|toml|ini|cfg|conf|gin|jsonl|txt|safetensors|gguf)"
)
_MODEL_FILES = ("config.json", "hf_quant_config.json", "model_index.json", "params.json")
_LARGEST_FILE = 16 << 20
# How many processes there are, where a launcher has said it in the environment already.
_SIZES = ("WORLD_SIZE", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")


class Flag(NamedTuple):
    """One line of the table."""

    program: str
    names: tuple[str, ...]
    values: str
    treatment: str
    reason: str


def describe(
    argv: Sequence[str], environ: Mapping[str, str], files: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, str]]:
    """What the command *argv* says of what it compiles. *files* are configuration files to add."""
    reader = _Reader(environ)
    reader.read(list(argv))
    for path in files:
        reader.files[os.path.basename(path)] = file_digest(path)
    part: dict[str, Any] = {"program": " > ".join(reader.programs), "arguments": reader.arguments}
    if "world_size" not in reader.layout and "processes_per_node" not in reader.layout:
        size = next((environ[name] for name in _SIZES if environ.get(name, "").isdigit()), None)
        if size:
            reader.layout["world_size"] = size
    for name, value in (("layout", reader.layout), ("files", reader.files)):
        if value:
            part[name] = dict(sorted(value.items()))
    return part, reader.left_out


class _Reader:
    """Reads a command from left to right: program, its options, and, after a launcher's, the next program."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        self.programs: list[str] = []
        self.arguments: list[str] = []
        self.layout: dict[str, str] = {}
        self.files: dict[str, str] = {}
        self.left_out: dict[str, str] = {}
        self.secrets = 0

    def read(self, argv: list[str]) -> None:
        if not argv:
            return
        name, rest = self.program(argv)
        if name != "ray job submit":  # Ray runs the entry point as it stands: both are one job
            self.programs.append(name)
        if name not in _LAUNCHERS:
            self.options(name.split()[0], rest)
            return
        launcher = name.split()[0]
        at = self.launcher_options(launcher, rest)
        module = any(word in ("-m", "--module") for word in rest[:at])
        self.options(launcher, [word for word in rest[:at] if word != "--"])
        inner = rest[at:]
        if not inner:
            return
        if module:
            inner = ["python", "-m", *inner]
        elif launcher != "ray" and "--no-python" not in rest[:at] and "--no_python" not in rest[:at]:
            inner = ["python", *inner]
        self.read(inner)

    def program(self, argv: list[str]) -> tuple[str, list[str]]:
        """What the command starts, by a name that is the same on every machine, and the arguments of that."""
        name, rest = os.path.basename(argv[0]), argv[1:]
        if _PYTHON.fullmatch(name):
            while rest and rest[0].startswith("-") and rest[0] != "-":
                word = rest.pop(0)
                if word == "-m" and rest:
                    module = rest.pop(0)
                    return _MODULES.get(module, f"-m {module}"), rest
                if word == "-c" and rest:
                    return "-c", rest
                if word in ("-X", "-W") and rest:
                    rest.pop(0)
                elif word.startswith(("-O", "-B")) and word != "-B":
                    self.arguments.append(word)  # assertions off: another program
            if not rest:
                return "python", rest
            # `python /venv/bin/vllm serve` is `vllm serve`.
            name, rest = os.path.basename(rest[0]), rest[1:]
        verbs = _VERBS.get(name, 0)
        if verbs and len(rest) >= verbs and not any(word.startswith("-") for word in rest[:verbs]):
            return " ".join([name, *rest[:verbs]]), rest[verbs:]
        return name, rest

    def launcher_options(self, launcher: str, rest: list[str]) -> int:
        """The place where a launcher's own options end. Those that the table does not know take a value."""
        at = 0
        while at < len(rest) and rest[at].startswith("-"):
            if rest[at] == "--":
                return at + 1
            name, joined, _ = rest[at].partition("=")
            flag = find(launcher, name)
            at += 1
            if not joined and (flag is None or flag.values != "0"):
                at += 1
        return at

    def options(self, program: str, words: list[str]) -> None:
        positional: list[str] = []
        optional: list[str] = []
        at = 0
        while at < len(words):
            word = words[at]
            at += 1
            if word == "--":
                continue
            override = None if _is_option(word) else _OVERRIDE.fullmatch(word)
            if not _is_option(word) and not override:
                positional.append(self.value(word))
                continue
            if override:
                name, values = override[1], [override[2]]
                flag = find(program, name.lstrip("+~")) or _of_override(program, name)
            else:
                name, joined, value = word.partition("=")
                flag = find(program, name)
                values = [value] if joined else []
                if not joined:
                    values = _following(words, at, flag.values if flag else "+")
                    at += len(values)
            optional += self.option(name, values, flag)
        if "world_size" in self.layout:
            optional = [word for word in optional if not word.startswith("--rank ")]
        self.arguments += [word for word in positional if word]
        # The same option twice keeps its order: the last one wins.
        self.arguments += sorted(optional, key=lambda text: text.split(" ", 1)[0])

    def option(self, name: str, values: list[str], flag: Flag | None) -> list[str]:
        """One option as it goes into the profile; an empty list if it does not."""
        written = _spelled(name)
        name = flag.names[0] if flag and not flag.names[0].endswith("*") else written
        if scrub.secret_name(name, " ".join(values)) or any(scrub.secret_shape(value) for value in values):
            self.secrets += 1
            self.left_out["command secrets"] = (
                f"{self.secrets}, by name or by shape: neither name nor value is kept"
            )
            return []
        if flag and flag.treatment == "drop":
            self.left_out[f"command.{written}"] = flag.reason
            return []
        if flag and flag.treatment.startswith("layout:"):
            self.layout[flag.treatment.partition(":")[2]] = self.value(" ".join(values)) or "on"
            return []
        return [" ".join([name, *filter(None, map(self.value, values))])]

    def value(self, text: str) -> str:
        """A value without paths, addresses and names of this pod; files of configuration leave their content."""
        if text[:1] in "{[":
            try:
                return json.dumps(self.tree(json.loads(text)), sort_keys=True, separators=(",", ":"))
            except ValueError:
                pass
        self.content(text)
        if _RELATIVE.fullmatch(text):
            return scrub.path_name(text)
        kept, taken = scrub.text(text, self.environ)
        if taken == ["secret"]:
            self.secrets += 1
            self.left_out["command secrets"] = (
                f"{self.secrets}, by name or by shape: neither name nor value is kept"
            )
            return ""
        return kept

    def tree(self, value: Any) -> Any:
        """A JSON argument, cleaned leaf by leaf."""
        if isinstance(value, dict):
            return {
                name: self.tree(item)
                for name, item in value.items()
                if not scrub.secret_name(name, str(item))
            }
        if isinstance(value, list):
            return [self.tree(item) for item in value]
        return self.value(value) if isinstance(value, str) else value

    def content(self, text: str) -> None:
        """Note the content of the configuration file, or of the model directory, that *text* names."""
        path = os.path.expanduser(text)
        try:
            if _FILE.fullmatch(path) and os.path.isfile(path) and os.path.getsize(path) <= _LARGEST_FILE:
                self.files[os.path.basename(path)] = file_digest(path)
            elif os.sep in path and os.path.isdir(path):
                for name in _MODEL_FILES:
                    if os.path.isfile(os.path.join(path, name)):
                        self.files[f"{scrub.path_name(path)}/{name}"] = file_digest(os.path.join(path, name))
        except (OSError, ValueError):
            return  # not a path after all


_flags: dict[str, list[Flag]] = {}


def flags() -> dict[str, list[Flag]]:
    """The table by program, in its order."""
    if not _flags:
        with open(os.path.join(os.path.dirname(__file__), "flags.txt"), encoding="utf-8") as file:
            for text in file:
                if text.strip() and not text.startswith("#"):
                    program, names, values, treatment, reason = re.split(r"\s{2,}", text.strip())
                    _flags.setdefault(program, []).append(
                        Flag(program, tuple(names.split(",")), values, treatment, reason)
                    )
    return _flags


def find(program: str, name: str) -> Flag | None:
    """The line for option *name* of *program*."""
    spelled = _spelled(name)
    table = flags()
    for flag in [*table.get(program, []), *table["*"]]:
        for known in flag.names:
            if spelled == known or (known.endswith("*") and spelled.startswith(known[:-1])):
                return flag
    return None


def _of_override(program: str, name: str) -> Flag | None:
    """The line for `trainer.default_root_dir=...`. Short last words (`lora.rank`, `head.out`) are no options."""
    last = _spelled("--" + name.lstrip("+~").rsplit(".", 1)[-1])
    if "-" not in last[2:] and last[2:] not in ("host", "port", "seed", "logdir", "workdir", "outdir"):
        return None
    return find(program, last)


def _spelled(name: str) -> str:
    """Options are written with hyphens or underscores, as people like it; one letter stays as it is."""
    return name.replace("_", "-").lower() if name.startswith("--") else name


def _is_option(word: str) -> bool:
    return len(word) > 1 and word.startswith("-") and not _NUMBER.fullmatch(word)


def _following(words: list[str], at: int, values: str) -> list[str]:
    """The values of an option whose name stands just before *at*."""
    if values == "0":
        return []
    end = at
    most = len(words) if values == "+" else at + 1
    while (
        end < min(len(words), most) and (not _is_option(words[end]) or values == "1") and words[end] != "--"
    ):
        end += 1
    return words[at:end]
