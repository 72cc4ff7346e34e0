"""Which processes count as C++ compilers, and for what they were started."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

from cachehome.demo.compilers import purpose

FLAGS = ["-O3", "-march=native", "-ltorch", "-fopenmp"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["/c/ab/cabc.main.cpp", *FLAGS, "-o", "/c/ab/cabc.main.so"], "kernel"),
        (["/c/ab/cabc.kernel.cpp", *FLAGS, "-c", "-o", "/c/ab/cabc.kernel.o"], "kernel"),
        (["/c/ab/cabc.cpp", *FLAGS, "-o", "/c/ab/cabc.so"], "probe"),
        (["-x", "c++-header", "/t/ph/c.h", *FLAGS, "-o", "/t/ph/c.h.gch"], "header"),
        (["/t/header.hpp", *FLAGS, "-E", "-P", "-o", "/t/header.i"], "query"),
        (["--version"], "query"),
        (["-v"], "query"),
        (["-print-file-name=bin"], "query"),
    ],
)
def test_the_command_line_tells_the_purpose(words: list[str], expected: str) -> None:
    assert purpose(["g++", *words]) == expected


COUNT = """
import json, subprocess, sys, threading
from cachehome.demo.compilers import Compilers
compilers = Compilers()
subprocess.run([sys.argv[1], "--version"], stdout=subprocess.DEVNULL)
thread = threading.Thread(target=lambda: subprocess.check_output((sys.argv[1], "-v"), stderr=subprocess.STDOUT))
thread.start(); thread.join()
subprocess.run(sys.argv[1] + " --version", shell=True, stdout=subprocess.DEVNULL)
subprocess.run([sys.executable, "-c", "pass"])
subprocess.run("true", stdout=subprocess.DEVNULL)
print(json.dumps(compilers.started))
"""


def test_real_processes_are_counted_from_every_thread_and_others_are_not() -> None:
    compiler = shutil.which("g++") or shutil.which("c++") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no compiler here")
    output = subprocess.check_output([sys.executable, "-c", COUNT, compiler], timeout=60)
    # The third runs in a shell: a shell is not a compiler, and Inductor never uses one.
    assert json.loads(output) == {"kernel": 0, "header": 0, "probe": 0, "query": 2}
