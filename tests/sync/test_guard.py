"""What a restore and a publish import: half of the time of a small one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEAR = {
    "asyncio",
    "dataclasses",
    "filelock",
    "inspect",
    "logging",
    "orjson",
    "shutil",
    "subprocess",
    "tempfile",
}
PRINT = "\nimport sys\nprint(*sorted(sys.modules))"


def imported(code: str) -> set[str]:
    root = Path(__file__).parents[2]
    words = [sys.executable, "-S", "-c", code + PRINT]
    return set(subprocess.run(words, capture_output=True, text=True, check=True, cwd=root).stdout.split())


@pytest.mark.parametrize("verb", ["restore", "publish"])
def test_a_transfer_imports_nothing_dear(verb: str) -> None:
    """Each of these took 3 to 20 ms."""
    code = f"from cachehome.cli import parser_of; parser_of({verb!r})\nimport cachehome.sync.{verb}"
    assert not DEAR & imported(code)


@pytest.mark.parametrize("verb", ["restore", "publish"])
def test_what_waits_for_a_transfer_imports_little(verb: str) -> None:
    """Its child has to copy each page that both of them touch."""
    code = f"from cachehome.cli import parser_of; parser_of({verb!r})\nimport cachehome.sync.guard"
    assert {name for name in imported(code) if name.startswith(("cachehome", "hashlib", "zstandard"))} == {
        "cachehome",
        "cachehome.cli",
        "cachehome.collector",
        "cachehome.commands",
        "cachehome.commands.ended",
        "cachehome.commands.output",
        f"cachehome.commands.{verb}",
        "cachehome.errors",
        "cachehome.settings",
        "cachehome.sync",
        "cachehome.sync.ahead",
        "cachehome.sync.guard",
        "cachehome.sync.parallel",
        "cachehome.sync.record",
        "cachehome.threads",
    }
