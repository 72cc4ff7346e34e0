"""Owns the count of C++ compilers that a process starts: how many, and for what."""

from __future__ import annotations

import os
import re
import sys
import threading
from collections import Counter
from typing import Any

PURPOSES = ("kernel", "header", "probe", "query")
_COMPILER = re.compile(r"([\w.]+-)*(g\+\+|gcc|c\+\+|cc|clang|clang\+\+|icpx)(-[\d.]+)?$")


class Compilers:
    """Counts the C++ compilers that this process starts, and touches nothing that a cache key holds.

    An audit hook sees every `subprocess.Popen`, whichever thread calls it. Inductor compiles C++ from threads
    of its own process, so none escapes; whoever starts this process can count new libraries from outside,
    too.
    """

    def __init__(self) -> None:
        self.started: Counter[str] = Counter(dict.fromkeys(PURPOSES, 0))
        self._lock = threading.Lock()
        sys.addaudithook(self._see)

    def _see(self, event: str, args: tuple[Any, ...]) -> None:
        if event != "subprocess.Popen":
            return
        command = args[1]
        words = (
            os.fsdecode(command).split()
            if isinstance(command, (str, bytes))
            else [os.fsdecode(word) for word in command]
        )
        if _COMPILER.match(os.path.basename(words[0])):
            with self._lock:
                self.started[purpose(words)] += 1


def purpose(words: list[str]) -> str:
    """What a compiler was started for, by its command line.

    kernel: a library with code of the model. header: the precompiled header, which lies in TMPDIR whatever
    the variables say. probe: a library of a few lines that tells whether an instruction set works. query:
    nothing is compiled, text comes back (a version, a search path, preprocessed source).
    """
    sources = [
        word for word in words[1:] if word.endswith((".cpp", ".cc", ".c")) and not word.startswith("-")
    ]
    if "c++-header" in words:
        return "header"
    if not sources or "-E" in words:
        return "query"
    # Inductor names what it generates <key>.main.cpp (and <key>.kernel.cpp), what it probes with <key>.cpp.
    return "kernel" if sources[0].endswith((".main.cpp", ".kernel.cpp")) else "probe"
