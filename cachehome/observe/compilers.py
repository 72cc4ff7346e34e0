"""Compilers, counted: how many this process starts, and for what.

    cxx_kernels    libraries with code of the model, and Triton's launchers
    cxx_headers    the precompiled header
    cxx_probes     libraries of a few lines that tell whether an instruction set works
    cxx_queries    nothing is compiled: a version, a search path, preprocessed source
    ptxas          kernels assembled

An audit hook sees every process that this one starts, from whichever thread, whatever torch's inside is like.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from cachehome.observe.activity import log

_CXX = ("g++", "gcc", "c++", "cc", "clang++", "clang", "icpx", "nvcc", "hipcc")
_watching = False


def watch() -> None:
    """Count from now on; once a process."""
    global _watching
    if not _watching:
        _watching = True
        sys.addaudithook(_audit)
        log.watched("compilers")


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if event != "subprocess.Popen":
        return
    try:
        command = args[1]
        words = command.split() if isinstance(command, str) else [os.fsdecode(word) for word in command]
        kind = compiler(words)
        if kind:
            log.add(**{kind: 1})
    except Exception:
        return  # a command line as nobody has seen one; it must start all the same


def compiler(words: list[str]) -> str:
    """Which counter the command line *words* adds to, "" if it starts no compiler."""
    name = os.path.basename(words[0])
    if name.startswith("ptxas"):
        return "ptxas" if any(word.endswith(".ptx") for word in words) else ""
    plain = name.rstrip("0123456789.-")
    if not plain.endswith(_CXX) or (
        plain not in _CXX and not plain.endswith(tuple(f"-{end}" for end in _CXX))
    ):
        return ""
    sources = [word for word in words[1:] if word.endswith((".cpp", ".cc", ".c", ".cu")) and word[0] != "-"]
    if "c++-header" in words:
        return "cxx_headers"
    if not sources or "-E" in words:
        return "cxx_queries"
    # Inductor calls what it generates <key>.main.cpp and <key>.kernel.cpp, what it probes with <key>.cpp.
    probe = sources[0].endswith(".cpp") and os.path.basename(sources[0]).count(".") == 1
    return "cxx_probes" if probe else "cxx_kernels"
