"""The GPU suite: what a start takes from its caches, counted, in one call of less than ten minutes.

    python benchmarks/gpu/suite.py --out DIR [--mode default|max-autotune] [--minutes 9] [--ranks [N]] [--alone]
    python benchmarks/gpu/suite.py --out DIR --only-changes [--minutes 4]

    BASE/machine/    HOME (and TMPDIR) of a start: all that is local. "Another machine" is another empty one
         kept/       the machine that compiled, put aside while others run in its place
         elsewhere/  a HOME of another name, for relocated starts
         store/      the only thing that outlives a machine
         reports/    what each start counted

Arms: `cold`; `same`, the machine that compiled; `restored`, a fresh one of the same path; `slim`, without IR;
`relocated`, of another path, and `relocated as it is`, without the repair; `torch artifacts`, the mega-cache;
`changed ...`, restored with one thing changed, which its verdict or its notes have to name.
Counters come first; times are medians of arms that alternate within this call. A line of JSON a start goes to
DIR/results.jsonl as it happens, a table to DIR/table.md. What does not fit in the time is left out, and named.

With `--ranks` torchrun starts one process a GPU, and all of them share one live directory: each sees all GPUs and
uses its own, or, with `--alone`, sees only its own, so that all ask for the same keys. Counters are told by rank,
too, and how many files lie under one key (near-copies), when compiled and when restored.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT))

from table import table  # noqa: E402

from cachehome.observe import history  # noqa: E402
from cachehome.observe.verdict import judge  # noqa: E402

# What a start-up hook does in an installed environment; here the checkout need not be installed.
HOOK = """
import os
if os.environ.get("SUITE_NO_REPAIR"):
    from cachehome.observe import watch
    watch.REPAIRS.clear()
import cachehome.activate
from cachehome.observe import watch
watch.start(count=True)
"""
DROPPED = ("CACHEHOME", "TORCHINDUCTOR_", "TORCH_COMPILE_", "TRITON_", "XDG_", "CUDA_CACHE_")


class Suite:
    def __init__(self, options: argparse.Namespace, base: Path) -> None:
        self.options = options
        self.base = base
        self.machine, self.store = base / "machine", base / "store"
        self.deadline = time.monotonic() + options.minutes * 60
        self.out = Path(options.out)
        self.out.mkdir(parents=True, exist_ok=True)
        self.rows: list[dict[str, Any]] = []
        self.left_out: list[str] = []
        self.number = 0
        self.longest: dict[str, float] = {}
        self.store.mkdir()
        hook = base / "hook"
        hook.mkdir()
        (hook / "sitecustomize.py").write_text(HOOK)
        self.environ = {n: v for n, v in os.environ.items() if not n.startswith(DROPPED)}
        self.environ["PYTHONPATH"] = os.pathsep.join(
            filter(None, (str(hook), str(ROOT), self.environ.get("PYTHONPATH")))
        )
        if site.ENABLE_USER_SITE:
            self.environ.setdefault("PYTHONUSERBASE", site.getuserbase())

    # -- machines -----------------------------------------------------------------------------------------

    def fresh(self, home: Path) -> None:
        """Nothing local: no HOME, no TMPDIR, no Triton or CUDA cache below either."""
        self.drop(home)
        (home / "tmp").mkdir(parents=True)

    def drop(self, home: Path) -> None:
        """Out of the way now, deleted at the end: deleting now would slow down what is written next."""
        if home.exists():
            trash = self.base / "trash"
            trash.mkdir(exist_ok=True)
            home.rename(trash / f"{len(list(trash.iterdir()))}")

    def environment(self, home: Path, reports: Path, **more: str) -> dict[str, str]:
        return self.environ | {
            "HOME": str(home),
            "TMPDIR": str(home / "tmp"),
            "CACHEHOME": "1",
            "CACHEHOME_STORE": str(self.store),
            "CACHEHOME_DIAGNOSTICS": "1",
            "CACHEHOME_REPORT_DIR": str(reports),
            **more,
        }

    # -- one start ----------------------------------------------------------------------------------------

    def transfer(self, verb: str, home: Path, *options: str, **more: str) -> dict[str, Any]:
        """One restore or publish; its record, with the seconds of the whole process."""
        environ = self.environment(home, self.base / "reports" / "transfers", **more)
        environ["PYTHONPATH"] = environ["PYTHONPATH"].split(os.pathsep, 1)[1]  # a verb needs no hook
        begin = time.monotonic()
        found = subprocess.run(
            [sys.executable, "-m", "cachehome", verb, "--json", *options],
            env=environ, cwd=self.base, capture_output=True, text=True, timeout=300, check=False,
        )  # fmt: skip
        seconds = time.monotonic() - begin
        try:
            record: dict[str, Any] = json.loads(found.stdout)
        except ValueError:
            record = {"outcome": "failed", "reason": found.stderr[-500:]}
        return record | {"process_seconds": round(seconds, 3)}

    def start(
        self,
        arm: str,
        home: Path,
        *options: str,
        record: dict[str, Any] | None = None,
        note: str = "",
        **more: str,
    ) -> dict[str, Any]:
        """One start of the workload; its row."""
        self.number += 1
        reports = self.base / "reports" / f"{self.number:02}-{arm.replace(' ', '-')}"
        reports.mkdir(parents=True)
        begin = time.monotonic()
        with open(reports / "said.txt", "wb") as said:
            process = subprocess.Popen(
                [*self.launcher(), str(HERE / "workload.py"), str(reports / "out-RANK.json"),
                 *self.workload(), *options],
                env=self.environment(home, reports, CACHEHOME_RUN=arm, **more),
                cwd=self.base, stdout=said, stderr=said, start_new_session=True,
            )  # fmt: skip
            code = process.wait(600)
        seconds = round(time.monotonic() - begin, 3)
        saw = [json.loads(path.read_text()) for path in sorted(reports.glob("out-*.json"))]
        # Compile workers outlive it for a moment, and would slow down the next start.
        for group in (process.pid, *(one["pid"] for one in saw)):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        self.longest[arm] = max(self.longest.get(arm, 0.0), seconds)
        row: dict[str, Any] = {"arm": arm, "n": self.number, "note": note, "seconds": seconds, "code": code}
        if code or len(saw) != self.options.ranks:
            row["said"] = (reports / "said.txt").read_text(errors="replace")[-3000:]
        else:
            slowest = max(saw, key=lambda one: sum(one["first_output"].values()))
            row |= {name: value for name, value in slowest.items() if name != "seconds"} | {
                "steps": slowest["seconds"],
                "outputs": [one["outputs"] for one in saw],
                "choices": [one["choices"] for one in saw],
                "graphs": graphs(slowest["directories"]["TORCHINDUCTOR_CACHE_DIR"]),
            }
        logs = history.logs(str(reports))
        activity = history.total(logs) if logs else None
        found = judge(activity, record)
        row |= {
            "counts": activity.counts if activity else {},
            "unknown": activity.unknown if activity else {},
            "tuned": activity.tuned[:5] if activity else [],
            "missed": {what: names[:20] for what, names in activity.missed.items()} if activity else {},
            "processes": activity.processes if activity else 0,
            "verdict": found.line(),
            "state": found.state,
            "notes": [cause.text for cause in found.notes],
            "restore": record,
            "by_rank": by_rank(logs, record),
        }
        self.rows.append(row)
        with open(self.out / "results.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        print(f"{arm}: {seconds:.1f} s, {found.line()[:200]}", flush=True)
        for rank, told in row["by_rank"].items():
            print(f"  {rank}: {told['state']} {told['counts']}", flush=True)
        return row

    def launcher(self) -> list[str]:
        """What starts the workload: Python, or torchrun."""
        if self.options.ranks == 1:
            return [sys.executable]
        return [
            sys.executable, "-m", "torch.distributed.run", "--standalone",
            f"--nproc-per-node={self.options.ranks}",
        ]  # fmt: skip

    def workload(self) -> list[str]:
        o = self.options
        words = [
            "--mode",
            o.mode,
            "--layers",
            str(o.layers),
            "--batches",
            o.batches,
            "--tokens",
            str(o.tokens),
            "--device",
            o.device,
        ]
        return [*words, *(["--small"] if o.small else []), *(["--alone"] if o.alone else [])]

    def fits(self, arm: str, seconds: float | None = None) -> bool:
        """Whether another start of *arm* fits in the time that is left; if not, it is named."""
        need = seconds if seconds is not None else self.longest.get(arm, self.longest.get("same", 30.0))
        if time.monotonic() + need + 8 < self.deadline:
            return True
        self.left_out.append(arm)
        return False

    # -- arms ---------------------------------------------------------------------------------------------

    def cold(self) -> None:
        self.fresh(self.machine)
        self.start("cold", self.machine, "--save", str(self.base / "artifacts"), *self.cpp)
        published = self.transfer("publish", self.machine, "--adopt")
        self.write({"arm": "publish", "restore": published})
        print(f"publish: {published.get('outcome')}, {published.get('files')} files", flush=True)
        if published.get("outcome") != "hit":
            raise SystemExit(f"publish: {published}")
        self.machine.rename(self.base / "kept")

    def same(self) -> None:
        # A copy, since each start leaves something behind: all begin with what the first one had written.
        shutil.copytree(self.base / "kept", self.machine, symlinks=True)
        self.start("same", self.machine)
        self.drop(self.machine)

    def restored(self, arm: str = "restored", *options: str, **more: str) -> None:
        self.fresh(self.machine)
        record = self.transfer("restore", self.machine, *options)
        self.start(arm, self.machine, record=record, **more)
        self.drop(self.machine)

    def slim(self) -> None:
        self.restored("slim", "--slim", "restore")

    def relocated(self, arm: str = "relocated", *options: str, **more: str) -> None:
        self.drop(self.machine)
        home = self.base / "elsewhere"
        self.fresh(home)
        record = self.transfer("restore", home, *options)
        row = self.start(arm, home, record=record, **more)
        # The path that the entries were made in: nothing may be written there.
        row["written_outside"] = sum(len(names) for _, _, names in os.walk(self.machine))
        self.write({"arm": arm, "n": row["n"], "written_outside": row["written_outside"]})
        self.drop(self.machine)

    def artifacts(self) -> None:
        self.fresh(self.machine)
        self.start("torch artifacts", self.machine, "--load", str(self.base / "artifacts"), CACHEHOME="0",
                   TORCHINDUCTOR_CACHE_DIR=str(self.machine / "torchinductor"))  # fmt: skip
        self.drop(self.machine)

    def changed(self, what: str, *options: str, **more: str) -> None:
        """A restored machine, with one thing changed after the restore."""
        self.fresh(self.machine)
        record = self.transfer("restore", self.machine)
        self.start(f"changed {what}", self.machine, *options, record=record, note=what, **more)
        self.drop(self.machine)

    def other_build(self, **more: str) -> None:
        """A restore after a variable of the identity was changed: a miss that says so."""
        self.fresh(self.machine)
        record = self.transfer("restore", self.machine, **more)
        self.write({"arm": "another build", "restore": record})
        print(
            f"another build: {record.get('outcome')}: {record.get('details', {}).get('message')}", flush=True
        )
        self.drop(self.machine)

    @property
    def cpp(self) -> list[str]:
        """With changes alone there is a graph with C++ kernels, too, whose key holds the thread count."""
        return ["--cpp"] if self.options.only_changes else []

    def write(self, row: dict[str, Any]) -> None:
        """A line that is no start."""
        with open(self.out / "results.jsonl", "a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    # -- all of it ----------------------------------------------------------------------------------------

    def run(self) -> None:
        self.write({"arm": "environment", **environment()})
        self.cold()
        if self.options.only_changes:
            self.changes()
            return
        arms: dict[str, Callable[[], None]] = {
            "same": self.same, "restored": self.restored, "slim": self.slim, "relocated": self.relocated,
        }  # fmt: skip
        for number in range(self.options.rounds):
            chosen = self.options.arms.split(",")
            order = [*chosen[number % len(chosen) :], *chosen[: number % len(chosen)]]
            for arm in order:
                if self.fits(arm):
                    arms[arm]()
            if number == 0:
                self.singles()
                self.changes()

    def singles(self) -> None:
        if not self.options.singles:
            return
        if self.fits("relocated as it is"):
            self.relocated("relocated as it is", SUITE_NO_REPAIR="1")
        if self.fits("relocated, slim"):
            self.relocated("relocated, slim", "--slim", "restore")
        if self.options.ranks == 1 and self.fits("torch artifacts"):
            self.artifacts()

    def changes(self) -> None:
        if self.options.ranks > 1 or not self.options.changes:
            return
        cold = self.longest.get("cold", 60.0)
        threads = {"OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "4"}
        if self.fits("changed thread count"):
            self.changed("thread count", **threads)
        if self.cpp and self.fits("changed thread count, C++ kernels"):
            self.changed("thread count, C++ kernels", *self.cpp, **threads)
        if self.fits("changed path"):
            self.relocated("changed path")
        if self.fits("changed shape", cold):
            self.changed("shape", "--batches", f"{self.options.batches.split(',')[0]},3")
        variable = {"TORCHINDUCTOR_SIZE_ASSERTS": "0"}
        if self.fits("changed variable", cold):
            self.changed("variable", **variable)
        self.other_build(**variable)


def by_rank(logs: list[history.Process], record: dict[str, Any] | None) -> dict[str, Any]:
    """What each rank counted, its compile workers included; {} if there are no ranks."""
    members: dict[str, list[history.Process]] = {}
    for process in logs:
        if process.facts.get("rank"):
            members.setdefault(str(process.facts["rank"]), []).append(process)
    told = {}
    for rank, processes in sorted(members.items()):
        activity = history.total(processes)
        counts = {name: count for name, count in activity.counts.items() if count}
        told[rank] = {"state": judge(activity, record).state, "counts": counts}
    return told


def graphs(live: str) -> dict[str, Any]:
    """Keys of FX graphs, files under them, the most under one key, their MB."""
    sizes: dict[str, list[int]] = {}
    for directory, _, names in os.walk(os.path.join(live, "fxgraph")):
        found = [os.path.getsize(os.path.join(directory, name)) for name in names if name[0] != "."]
        if found:
            sizes[directory] = found
    files = [size for found in sizes.values() for size in found]
    most = max(map(len, sizes.values()), default=0)
    return {"keys": len(sizes), "files": len(files), "most": most, "megabytes": round(sum(files) / 1e6, 1)}


def environment() -> dict[str, Any]:
    """The machine, for the table's head."""
    facts: dict[str, Any] = {"python": platform.python_version(), "cpus": os.cpu_count()}
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
        facts["gpu"] = subprocess.run(
            query, capture_output=True, text=True, timeout=30, check=True
        ).stdout.strip()
    from importlib.metadata import PackageNotFoundError, version

    for name in ("torch", "triton"):
        with contextlib.suppress(PackageNotFoundError):
            facts[name] = version(name)
    return facts


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", required=True)
    parser.add_argument("--mode", choices=("default", "max-autotune"), default="default")
    parser.add_argument(
        "--minutes", type=float, default=9.0, help="all of it, the machine's start not counted"
    )
    parser.add_argument("--rounds", type=int, default=5, help="starts of each alternating arm")
    parser.add_argument("--arms", default="same,restored,slim,relocated", help="which ones alternate")
    parser.add_argument(
        "--no-singles", dest="singles", action="store_false", help="no starts of the arms that run once"
    )
    parser.add_argument("--layers", type=int, help="12, with max-autotune 4")
    parser.add_argument("--batches", help="1,2, with max-autotune 1")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument(
        "--ranks",
        type=int,
        nargs="?",
        const=0,
        default=1,
        help="so many processes by torchrun in one live directory; without N one a GPU",
    )
    parser.add_argument("--alone", action="store_true", help="each rank sees its own GPU only")
    parser.add_argument(
        "--no-changes", dest="changes", action="store_false", help="no starts with one thing changed"
    )
    parser.add_argument(
        "--only-changes", action="store_true", help="a cold start and those with one thing changed"
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="a tiny model, to try the suite itself")
    parser.add_argument("--base", help="an empty directory instead of a temporary one; it is kept")
    options = parser.parse_args()
    tuning = options.mode == "max-autotune"
    options.layers = options.layers or (4 if tuning else 12)
    options.batches = options.batches or ("1" if tuning else "1,2")
    if not options.ranks:
        listed = subprocess.run(
            ["nvidia-smi", "--list-gpus"], capture_output=True, text=True, check=True
        ).stdout
        options.ranks = len(listed.splitlines())
    base = Path(options.base) if options.base else Path(tempfile.mkdtemp(prefix="gpu-suite-"))
    base.mkdir(parents=True, exist_ok=True)
    suite = Suite(options, base)
    try:
        suite.run()
    finally:
        page = table(suite.rows, environment(), vars(options), suite.left_out)
        (suite.out / "table.md").write_text(page, encoding="utf-8")
        print(page)
        if not options.base:
            shutil.rmtree(base, ignore_errors=True)


if __name__ == "__main__":
    main()
