"""What the start-up hook adds to `python -c pass`.

    python benchmarks/hook.py [--starts 200] [--json] [--instructions]

Makes a wheel and one venv a case, then starts each of them in rounds, shuffled within a round. The figure is
the median over rounds of the difference to the case without a hook in the same round, so that a slow minute
of the machine hits all cases alike. On a machine that others use nothing of this holds: --instructions has
valgrind count the instructions of one start a case instead, which is the same each time. Exit code 1 if a
limit is passed. Needs hatchling; the comparison needs setuptools.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

PROJECT = Path(__file__).resolve().parent.parent
LIMITS = {"hook, off": 0.6, "hook, on": 0.8}  # milliseconds over no hook
BASE = "no hook"


def make_wheel(directory: Path) -> Path:
    """A wheel of this project, made with hatchling and nothing from the network."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)]
    subprocess.run(command, cwd=PROJECT, check=True, stdout=subprocess.DEVNULL)
    return next(directory.glob("*.whl"))


def make_venv(directory: Path) -> tuple[Path, Path]:
    """A venv without pip: its interpreter and its site-packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(directory)], check=True)
    python = directory / "bin" / "python"
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run([python, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    return python, Path(site)


def install(wheel: Path, site: Path, python: Path) -> None:
    """What pip would do with a pure wheel: unpack, compile."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    subprocess.run([python, "-m", "compileall", "-q", str(site)], check=True)


def setuptools_hook(site: Path, python: Path) -> bool:
    """Install the hook that most environments have had for years: setuptools' distutils-precedence."""
    for entry in map(Path, sys.path):
        if (entry / "distutils-precedence.pth").exists():
            shutil.copy(entry / "distutils-precedence.pth", site)
            shutil.copytree(entry / "_distutils_hack", site / "_distutils_hack")
            subprocess.run([python, "-m", "compileall", "-q", str(site)], check=True)
            return True
    return False


def start(python: Path, environment: dict[str, str]) -> float:
    """Milliseconds from spawn to the end of `python -c pass`."""
    begun = time.perf_counter()
    child = os.posix_spawn(python, [str(python), "-c", "pass"], environment)
    _, status = os.waitpid(child, 0)
    taken = time.perf_counter() - begun
    if status:
        raise SystemExit(f"{python} ended with {os.waitstatus_to_exitcode(status)}")
    return taken * 1000


def instructions(python: Path, environment: dict[str, str]) -> int:
    """How many instructions `python -c pass` takes, those of the kernel not counted."""
    counted = subprocess.run(
        [
            "valgrind",
            "--tool=cachegrind",
            "--cache-sim=no",
            "--cachegrind-out-file=/dev/null",
            python,
            "-c",
            "pass",
        ],
        env=environment | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=True,
    )
    line = next(line for line in counted.stderr.splitlines() if "I   refs:" in line or "I refs:" in line)
    return int(line.rpartition(":")[2].replace(",", ""))


def measure(starts: int, count: bool) -> dict[str, dict[str, float]]:
    """Figures by case, in milliseconds, or in thousands of instructions."""
    with tempfile.TemporaryDirectory(prefix="cachehome-bench-") as name:
        scratch = Path(name)
        wheel = make_wheel(scratch / "dist")
        environment = {"HOME": str(scratch), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
        bare, _ = make_venv(scratch / "bare")
        hooked, site = make_venv(scratch / "hooked")
        install(wheel, site, hooked)
        cases = {
            BASE: (bare, environment),
            "hook, off": (hooked, environment),
            "hook, CACHEHOME=0": (hooked, environment | {"CACHEHOME": "0"}),
            "hook, on": (hooked, environment | {"CACHEHOME": "1"}),
        }
        other, site = make_venv(scratch / "other")
        if setuptools_hook(site, other):
            cases["setuptools' distutils-precedence"] = (other, environment)
        if count:
            counts = {case: instructions(*where) / 1000 for case, where in cases.items()}
            return {case: {"instructions": n, "added": n - counts[BASE]} for case, n in counts.items()}
        times: dict[str, list[float]] = {case: [] for case in cases}
        for turn in range(starts + 5):
            for case in random.sample(list(cases), len(cases)):
                taken = start(*cases[case])
                if turn >= 5:  # the first ones fill the page cache
                    times[case].append(taken)
    return {
        case: {
            "median": statistics.median(values),
            "min": min(values),
            "added": statistics.median(a - b for a, b in zip(values, times[BASE], strict=True)),
            "added_min": min(values) - min(times[BASE]),
        }
        for case, values in times.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--starts", type=int, default=200)
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--instructions", action="store_true", help="count instructions with valgrind, not time"
    )
    args = parser.parse_args()
    figures = measure(args.starts, args.instructions)
    if args.instructions:
        print(
            json.dumps(figures)
            if args.json
            else f"Python {sys.version.split()[0]}, thousands of instructions"
        )
        for case, row in figures.items() if not args.json else ():
            print(f"{case:34}{row['instructions']:12,.0f}{row['added']:+12,.0f}")
        return 0
    late = [case for case, limit in LIMITS.items() if figures[case]["added"] > limit]
    if args.json:
        print(
            json.dumps({"python": sys.version.split()[0], "starts": args.starts, "ms": figures, "over": late})
        )
        return bool(late)
    print(f"Python {sys.version.split()[0]}, {args.starts} starts a case, milliseconds")
    print(f"{'case':34}{'median':>9}{'min':>9}{'added':>9}{'of min':>9}{'limit':>9}")
    for case, row in figures.items():
        limit = f"{LIMITS[case]:+.1f}" if case in LIMITS else ""
        print(
            f"{case:34}{row['median']:9.2f}{row['min']:9.2f}{row['added']:+9.2f}{row['added_min']:+9.2f}{limit:>9}"
        )
    for case in late:
        print(f"over its limit: {case}", file=sys.stderr)
    return bool(late)


if __name__ == "__main__":
    sys.exit(main())
