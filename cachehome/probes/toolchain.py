"""Owns the `toolchain` part of a build: the host compiler and what it makes of `-march=native`, ptxas, nvcc.

cxx                gcc 12.2.0 (Debian 12.2.0-14+deb12u1)
march, isa         what `-march=native` means here; Inductor hashes only the word
libstdcxx          libstdc++.so.6.0.30
cc                 builds Triton's launchers
ptxas, ptxas_blackwell, nvcc
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from typing import TYPE_CHECKING

from cachehome.probes import ABSENT, ProbeError, Tool, find_program, value

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_ENABLED = re.compile(r"^\s+-m([\w.+-]+)\s+\[enabled\]", re.MULTILINE)
_OPTION = re.compile(r"^\s+-m(arch|cpu)=\s+(\S+)", re.MULTILINE)
_CLANG = re.compile(r'"-target-(cpu|feature)" "([^"]+)"')
_GCC = re.compile(r"\S+ \((.+)\) (\d\S*)")
_RELEASE = re.compile(r"release [\d.]+, (V[\d.]+)(?:\s+Build (\S+))?")


class Toolchain:
    """Starts every compiler at once; `answers` waits for them."""

    def __init__(self, environ: Mapping[str, str], search: Sequence[str]) -> None:
        cxx = _words(environ.get("CXX", "")) or ["clang++" if sys.platform == "darwin" else "g++"]
        cc = _words(environ.get("CC", "")) or [_default_cc(environ)]
        self._asked: dict[str, Callable[[], str] | str] = {}
        self._ask(environ, "cxx", cxx, ["--version"], _version)
        self._ask(environ, "cc", cc, ["--version"], _version)
        clang = "clang" in os.path.basename(cxx[0])
        target = ["-###", "-E", "-x", "c++", os.devnull] if clang else ["-Q", "--help=target"]
        self._ask(environ, "target", cxx, ["-march=native", *target], str)
        self._ask(environ, "libstdcxx", cxx, ["-print-file-name=libstdc++.so.6"], _file_name)
        for name, path in _ptxas(environ, search).items():
            self._ask(environ, name, [path] if path else [], ["--version"], _release)
        nvcc = _nvcc(environ)
        self._ask(environ, "nvcc", [nvcc] if nvcc else [], ["--version"], _release)

    def _ask(
        self,
        environ: Mapping[str, str],
        name: str,
        command: Sequence[str],
        options: Sequence[str],
        read: Callable[[str], str],
    ) -> None:
        program = find_program(command[0], environ) if command else None
        if program is None:
            self._asked[name] = ABSENT
            return
        tool = Tool([program, *command[1:], *options], environ)
        self._asked[name] = lambda: read(tool.text())

    def answers(self) -> dict[str, str]:
        """The part, as soon as all have answered."""
        answers = {
            name: asked if isinstance(asked, str) else str(value(asked))
            for name, asked in self._asked.items()
        }
        target = answers.pop("target")
        march, isa = _target(target)
        return {**answers, "march": march, "isa": isa}


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # a quote without its partner: a program of that name, which is not there
        return [command]


def _default_cc(environ: Mapping[str, str]) -> str:
    return "gcc" if find_program("gcc", environ) else "clang"


def _ptxas(environ: Mapping[str, str], search: Sequence[str]) -> dict[str, str | None]:
    """Triton takes the one that its variable names, else its own; torch, if it has one, names that one."""
    own = {
        "ptxas": (
            "TRITON_PTXAS_PATH",
            (("torch", "bin", "ptxas"), ("triton", "backends", "nvidia", "bin", "ptxas")),
        ),
        "ptxas_blackwell": (
            "TRITON_PTXAS_BLACKWELL_PATH",
            (("triton", "backends", "nvidia", "bin", "ptxas-blackwell"),),
        ),
    }
    found: dict[str, str | None] = {}
    for name, (variable, places) in own.items():
        candidates = [environ.get(variable, "")]
        candidates += [os.path.join(directory, *place) for place in places for directory in search]
        found[name] = next(
            (path for path in candidates if os.access(path, os.X_OK) and os.path.isfile(path)), None
        )
    return found


def _nvcc(environ: Mapping[str, str]) -> str | None:
    """In the order of torch.utils.cpp_extension."""
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if environ.get(variable):
            return find_program(os.path.join(environ[variable], "bin", "nvcc"), environ)
    return find_program("nvcc", environ) or find_program("/usr/local/cuda/bin/nvcc", environ)


def _version(text: str) -> str:
    lines = text.splitlines()
    if not lines:
        raise ProbeError("no version")
    match = _GCC.fullmatch(lines[0].strip())
    return f"gcc {match[2]} ({match[1]})" if match else lines[0].strip()


def _release(text: str) -> str:
    match = _RELEASE.search(text)
    if not match:
        raise ProbeError("no release in its version")
    return " ".join(part for part in match.groups() if part)


def _file_name(text: str) -> str:
    """The library that the compiler would link, by its real name: the version is in there."""
    path = text.strip()
    return os.path.basename(os.path.realpath(path)) if os.path.isabs(path) else ABSENT


def _target(text: str) -> tuple[str, str]:
    """Architecture and instruction sets of `-march=native`. Tuning is not in it: it changes speed, not what can run."""
    if text == ABSENT or text.startswith("error: "):
        return text, text
    clang = _CLANG.findall(text)
    if clang:
        features = {name[1:] for kind, name in clang if kind == "feature" and name.startswith("+")}
        return next((name for kind, name in clang if kind == "cpu"), ABSENT), " ".join(
            sorted(features)
        ) or ABSENT
    option = _OPTION.search(text)
    enabled = set(_ENABLED.findall(text))
    if not option and not enabled:
        return "error: no target in the compiler's answer", "error: no target in the compiler's answer"
    return option[2] if option else ABSENT, " ".join(sorted(enabled)) or ABSENT
