"""The convention of the pages: which fenced blocks are commands, and how their session runs.

    ```console                    a session in bash; all blocks of a page are one session, in page order
    $ cachehome ls --json         a command ("> " continues it)
    [...]                         what it prints, if shown: "..." stands for anything, also for whole lines
    $ cachehome restore # exit 3  another exit status than 0
    ```
    ```python                     a script of its own, in the same session; no output is compared
    ```bash                       a file for the reader: checked by `bash -n`
    ```toml                       a settings file: read by cachehome.settings

A comment `<!-- not run: REASON -->` just above a block leaves it out; test_pages.py counts these. The session
has an empty HOME, which outputs call /home/you, no variable of ours or of the compilers, and `/shared/` means a
directory of its own.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
FOREIGN = re.compile(r"CACHEHOME|TORCH|TRITON|XDG_|PYTEST|PYTHON|INDUCTOR|SLURM_|KUBERNETES_")


@dataclass(frozen=True, slots=True)
class Block:
    page: Path
    line: int
    language: str
    text: str
    not_run: str | None


@dataclass(frozen=True, slots=True)
class Command:
    line: int
    text: str
    expected: str | None
    status: int


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[Block]:
    found, lines = [], page.read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        fence = re.match(r"( *)```(\w+)", lines[number])
        if fence:
            start, indent = number, len(fence[1])
            number += 1
            while lines[number].strip() != "```":
                number += 1
            above = next((x.strip() for x in reversed(lines[:start]) if x.strip()), "")
            reason = re.fullmatch(r"<!-- not run: (.+) -->", above)
            body = "\n".join(x[indent:] for x in lines[start + 1 : number])
            found.append(Block(page, start + 2, fence[2], body, reason[1] if reason else None))
        elif re.match(r" *```\s*$", lines[number]):  # a fence without a language: text, not a command
            number += 1
            while lines[number].strip() != "```":
                number += 1
        number += 1
    return found


def commands(block: Block) -> list[Command]:
    if block.language == "python":
        script = f"python - <<'END_OF_SCRIPT'\n{block.text}\nEND_OF_SCRIPT"
        return [Command(block.line, script, None, 0)]
    found: list[Command] = []
    text, output, line = "", [], 0

    def close() -> None:
        if text:
            status = re.search(r"# exit (\d+)$", text)
            found.append(Command(line, text, "\n".join(output) or None, int(status[1]) if status else 0))

    for offset, raw in enumerate(block.text.splitlines()):
        if raw.startswith("$ "):
            close()
            text, output, line = raw[2:], [], block.line + offset
        elif (raw == ">" or raw.startswith("> ")) and not output:
            text += "\n" + raw[2:]
        else:
            assert text, f"{name(block.page)}:{block.line + offset}: output without a command"
            output.append(raw)
    close()
    return found


def matches(expected: str, actual: str) -> bool:
    pattern = "".join(
        ".*" if part == "..." else re.escape(part) for part in re.split(r"(\.\.\.)", expected.strip())
    )
    return re.fullmatch(pattern, actual.strip(), re.DOTALL) is not None


def environment(home: Path) -> dict[str, str]:
    environ = {k: v for k, v in os.environ.items() if not FOREIGN.match(k)}
    for directory in (home, home / "tmp", home / "shared"):
        directory.mkdir(mode=0o700, exist_ok=True)
    environ["PATH"] = os.path.dirname(sys.executable) + os.pathsep + environ.get("PATH", os.defpath)
    return environ | {"HOME": str(home), "TMPDIR": str(home / "tmp"), "COLUMNS": "120", "NO_COLOR": "1"}


def run(page: Path, home: Path, timeout: float) -> list[str]:
    """Run the session of *page* in *home*; return what went otherwise than the page says."""
    session = [
        command
        for block in blocks(page)
        if block.language in ("console", "python") and block.not_run is None
        for command in commands(block)
    ]
    shared, here = str(home / "shared") + "/", shlex.quote(str(home))
    script = "".join(
        f"{{ {command.text.replace('/shared/', shared)}\n}} >{here}/.out.{i} 2>&1 </dev/null\n"
        f"echo $? >{here}/.status.{i}\n"
        for i, command in enumerate(session)
    )
    environ = environment(home)
    process = subprocess.run(
        ["bash"],
        input=script,
        env=environ,
        cwd=home,
        timeout=timeout,
        text=True,
        capture_output=True,
        check=False,
    )
    problems = [f"{name(page)}: bash says: {process.stderr.strip()}"] if process.stderr.strip() else []
    for i, command in enumerate(session):
        status = home / f".status.{i}"
        output = (home / f".out.{i}").read_text(errors="replace") if status.exists() else ""
        output = output.replace(shared, "/shared/").replace(str(home), "/home/you")
        where = f"{name(page)}:{command.line}: $ {command.text.splitlines()[0]}"
        if not status.exists():
            problems.append(f"{where}\n  did not end")
        elif int(status.read_text()) != command.status:
            problems.append(
                f"{where}\n  exit {status.read_text().strip()}, the page says {command.status}\n{output}"
            )
        elif command.expected is not None and not matches(command.expected, output):
            problems.append(f"{where}\n  the page shows\n{command.expected}\n  but it printed\n{output}")
    return problems
