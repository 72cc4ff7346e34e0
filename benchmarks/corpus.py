"""Owns the corpus: a directory of real kernels, compiled here for sm_90 without a GPU.

    DIRECTORY/corpus.json        what it holds and what it took to make
             /triton/<52 letters>/   the kernels: a live directory of Triton's
             /change/<52 letters>/   two per cent more, for a small publish

About 10,700 files and 290 MB by default, in four minutes on two cores; `--small` makes 300 kernels. What is
there already is kept, so that an interrupted run goes on where it stopped.

    python benchmarks/corpus.py [DIRECTORY] [--small] [--kernels N] [--processes N] [--json]
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

KERNELS = 1341
SMALL = 300
CHANGE = 0.02  # what is held back, as a share of the whole


def default_directory(kernels: int = KERNELS) -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(home) / "cachehome-benchmarks" / f"corpus-{kernels}"


def make(directory: Path, kernels: int = KERNELS, processes: int | None = None) -> dict[str, Any]:
    """Compile what is missing and return what is there."""
    summary = directory / "corpus.json"
    extra = max(1, round(kernels * CHANGE))
    if summary.exists():
        made: dict[str, Any] = json.loads(summary.read_text())
        if made["kernels"] == kernels:
            return made
    directory.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    processes = processes or max(1, min(8, os.cpu_count() or 1))
    with open(directory / "corpus.log", "wb") as log:
        workers = [
            subprocess.Popen(
                [sys.executable, __file__, str(directory), "--part", f"{i},{processes},{kernels},{extra}"],
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
            for i in range(processes)
        ]
        failed = [w.args for w in workers if w.wait() != 0]
    if failed:
        raise RuntimeError(f"a corpus worker failed: see {directory / 'corpus.log'}")
    made = {"kernels": kernels, "change": extra, "processes": processes}
    made |= {"seconds": round(time.monotonic() - started, 1), **measure(directory / "triton")}
    made["change_files"] = measure(directory / "change")["files"]
    made["change_bytes"] = measure(directory / "change")["bytes"]
    summary.write_text(json.dumps(made, indent=1) + "\n")
    return made


def measure(tree: Path) -> dict[str, Any]:
    """Files, bytes, and the share of each extension in the bytes."""
    sizes: Counter[str] = Counter()
    files = directories = 0
    for folder, _, names in os.walk(tree):
        directories += 1
        for name in names:
            files += 1
            sizes[os.path.splitext(name)[1]] += os.lstat(os.path.join(folder, name)).st_size
    total = sum(sizes.values())
    shares = {ext: round(size / total, 3) for ext, size in sizes.most_common()}
    return {"directories": directories - 1, "files": files, "bytes": total, "shares": shares}


def part(directory: Path, index: int, processes: int, kernels: int, extra: int) -> None:
    """Compile every ``processes``-th kernel: the work of one worker process."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    from cachehome.demo.kernels import variants

    if kernels + extra > len(list(variants())):
        raise ValueError(f"there are only {len(list(variants()))} variants")
    step = (kernels + extra) // extra  # the change is drawn from everywhere, as a real one would be
    held_back = set(range(step - 1, step * extra, step))
    for number, kernel in itertools.islice(enumerate(variants()), index, kernels + extra, processes):
        os.environ["TRITON_CACHE_DIR"] = str(directory / ("change" if number in held_back else "triton"))
        kernel.compile()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make the corpus of the sync benchmark.")
    parser.add_argument("directory", nargs="?", type=Path)
    parser.add_argument("--kernels", type=int, default=KERNELS)
    parser.add_argument(
        "--small", dest="kernels", action="store_const", const=SMALL, help=f"{SMALL} kernels only"
    )
    parser.add_argument("--processes", type=int)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    directory = args.directory or default_directory(args.kernels)
    if args.part:
        part(directory, *map(int, args.part.split(",")))
        return 0
    made = make(directory, args.kernels, args.processes)
    print(json.dumps(made) if args.json else "\n".join(f"{name:12} {value}" for name, value in made.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
