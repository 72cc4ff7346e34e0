"""Slots benchmark: private live directories for eight workers of a node, beside one restore and `cp -a`.

    python benchmarks/slots.py [--corpus DIR] [--small] [--target DIR] [--rounds N] [--slots N] [--json]

Whole processes, from their start to the end of the last one, with the corpus and in the manner of `sync.py`:

    one restore         `cachehome restore`
    one worker          a Session in one process
    a driver            one process, a Session with all slots
    a process each      as many processes at once as there are slots, a Session in each, as torchrun starts them
    cp -a               of the restored tree, once and as often as there are slots
"""

from __future__ import annotations

import compileall
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import corpus as corpora
from sync import ROOT, Bench, Run, cell, compare, machine, options

DRIVER = """
import json, os, sys
import cachehome
names = sys.argv[1].split(",")
session = cachehome.Session(slots=names, handlers=False).start()
print(json.dumps([[session.environ(name)["TRITON_CACHE_DIR"], record.outcome, record.reason, record.fetched_bytes]
                  for name, record in zip(names, session.records)]), flush=True)
os._exit(0)
"""


class Slots(Bench):
    """The workers beside what `Bench` has. BASE/new/N is the HOME of a round's workers."""

    def __init__(self, base: Path, corpus: Path, identity: Path | None, count: int) -> None:
        super().__init__(base, corpus, identity)
        self.names_of_slots = [f"rank{number}" for number in range(count)]

    def round(self, number: int) -> None:
        everybody = ",".join(self.names_of_slots)
        contenders = [
            lambda: self.restore("one restore", self.verb, "off"),
            lambda: self.workers("one worker", ["rank0"]),
            lambda: self.workers("a driver", [everybody]),
            lambda: self.workers("a process each", self.names_of_slots),
            lambda: self.other("cp -a, once", f"cp -a {self.live} {{}}"),
            lambda: self.other(
                "cp -a, for all", "".join(f"cp -a {self.live} {{0}}/{name};" for name in self.names_of_slots)
            ),
        ]
        for contender in contenders if number % 2 == 0 else reversed(contenders):
            contender()

    def workers(self, label: str, groups: list[str]) -> None:
        """Start a process for each of *groups* of slots; together they are one run."""
        with self.new() as home:
            environ = self.environment(None) | {
                "HOME": str(home),
                "CACHEHOME_STORE": str(self.store),
                "CACHEHOME_IDENTITY": str(self.identity),
            }
            del environ["TRITON_CACHE_DIR"]
            begin = time.perf_counter()
            started = [
                subprocess.Popen(
                    [sys.executable, "-c", DRIVER, group],
                    cwd=self.base,
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                )
                for group in groups
            ]
            user = system = 0.0
            told: list[Any] = []
            for process in started:
                assert process.stdout is not None
                told += json.loads(process.stdout.read())
                _, status, usage = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
                user, system = user + usage.ru_utime, system + usage.ru_stime
            wall = time.perf_counter() - begin
            fetched = [one for one in told if one[3] and one[2] == "restored"]
            if {one[1] for one in told} != {"hit"} or len(fetched) != 1:
                raise RuntimeError(f"{label}: not one fetch for all: {told}")
            if label not in self.runs:
                for directory, *_ in told:
                    compare(self.live, Path(directory), whole=True)
            reasons = {one[2]: sum(other[2] == one[2] for other in told) for one in told}
            self.runs[label].append(Run(wall, user, system, 0, 0, reasons))


def ratios(runs: dict[str, list[Run]]) -> list[tuple[str, float, float]]:
    """(what, median of the rounds' ratios of wall time, the same of CPU time)."""
    pairs = [
        ("a driver", "one restore"),
        ("a driver", "one worker"),
        ("a process each", "one worker"),
        ("cp -a, for all", "cp -a, once"),
        ("a driver", "cp -a, for all"),
    ]

    def median(over: str, under: str, of: Any) -> float:
        both = zip(runs[over], runs[under], strict=True)
        return round(statistics.median(of(one) / of(other) for one, other in both), 2)

    return [
        (f"{o} / {u}", median(o, u, lambda run: run.wall), median(o, u, lambda run: run.user + run.system))
        for o, u in pairs
    ]


def markdown(runs: dict[str, list[Run]]) -> str:
    lines = ["| what | wall s, min | median | CPU s, median | runs |", "|---|---|---|---|---|"]
    for name, measured in runs.items():
        walls = [run.wall for run in measured]
        cpu = statistics.median(run.user + run.system for run in measured)
        lines.append(
            f"| {cell(name)} | {min(walls):.2f} | {statistics.median(walls):.2f} | {cpu:.2f} | {len(walls)} |"
        )
    lines += ["", "| median of the rounds' ratios | wall | CPU |", "|---|---|---|"]
    lines += [f"| {cell(what)} | {wall:.2f} | {cpu:.2f} |" for what, wall, cpu in ratios(runs)]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    parser = options("Private directories for the workers of a node.")
    parser.add_argument("--slots", type=int, default=8)
    args = parser.parse_args(argv)
    directory = (args.corpus or corpora.default_directory(args.kernels)).resolve()
    made = corpora.make(directory, args.kernels)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was written goes also then
    base = Path(tempfile.mkdtemp(prefix="cachehome-slots-", dir=args.target)).resolve()
    compileall.compile_dir(ROOT / "cachehome", quiet=1)
    try:
        about = machine(base)
        bench = Slots(base, directory, args.identity, args.slots)
        for number in range(args.rounds):
            print(f"round {number + 1} of {args.rounds}", file=sys.stderr, flush=True)
            bench.round(number)
    finally:
        shutil.rmtree(base, ignore_errors=True)
    if args.json:
        runs = {name: [run._asdict() for run in measured] for name, measured in bench.runs.items()}
        print(json.dumps({"machine": about, "corpus": made, "ratios": ratios(bench.runs), "runs": runs}))
        return 0
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    print(f"{made['kernels']} kernels, {made['files']} files, {args.slots} slots\n")
    print(markdown(bench.runs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
