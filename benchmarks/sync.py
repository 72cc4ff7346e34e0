"""Sync benchmark: publish and restore of a corpus of real kernels, side by side with the usual tools.

    python benchmarks/sync.py [--corpus DIR] [--small] [--target DIR] [--rounds N] [--identity FILE] [--json]

Figures are of whole processes, as `os.wait4` accounts for them: wall, user and system seconds, peak
resident memory. Those marked "in process" are of one call, in a process that imports first and then looks
at the clock. Each round runs every contender once, in one order or, every other round, in the opposite one,
so that a machine which becomes slower does so for all. Ratios are taken within a round; the median of them
is what counts. Everything goes to new names below --target and is deleted at the end: ext4 takes thirty
times longer to create files where as many were deleted a moment ago. Nothing is asserted about times;
contents are compared to the byte.
"""

from __future__ import annotations

import argparse
import compileall
import contextlib
import filecmp
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent))
import corpus as corpora

ROOT = Path(__file__).resolve().parent.parent
OWN = ".cachehome"
INSIDE = ", in process"
CALL = """
import json, sys, time
import zstandard
from cachehome.identity import Identity
from cachehome.settings import Settings
from cachehome.sync.publish import publish
from cachehome.sync.restore import restore
verb, store, slim, identity = sys.argv[1:]
settings = Settings.load(command_line={"store": store, "slim": slim, "identity": identity})
identity = Identity.load(identity)
begin = time.perf_counter()
record = publish(settings, identity, adopt=True) if verb == "publish" else restore(settings, identity)
print(json.dumps({"call": time.perf_counter() - begin, **record.to_json()}))
"""
PACK = "import sys, tarfile\nwith tarfile.open(sys.argv[2], 'w:gz') as tar: tar.add(sys.argv[1], 'triton')"
UNPACK = "import sys, tarfile\nwith tarfile.open(sys.argv[1]) as tar: tar.extractall(sys.argv[2])"


class Run(NamedTuple):
    """One process, or one call in it."""

    wall: float
    user: float
    system: float
    rss: int  # bytes, of the largest of its processes
    written: int = 0  # bytes of what it made
    record: dict[str, Any] | None = None  # what cachehome said of it


class Claim(NamedTuple):
    """A figure that somebody may want to hold against us."""

    what: str
    target: str
    value: float
    met: bool


# -- what is run -----------------------------------------------------------------------------------


class Bench:
    """The directories of one benchmark, its contenders and what was measured.

    BASE/live/triton   the corpus, copied: its groups name this path
        /change/       kernels that move into it and out again
        /home/         HOME of every process
        /pack/         what restores start from: a store, a tar.zst
        /new/N         what is being written
    """

    def __init__(self, base: Path, corpus: Path, identity: Path | None) -> None:
        self.base = base
        self.live, self.change = base / "live" / "triton", base / "change"
        self.store, self.archive = base / "pack" / "store", base / "pack" / "triton.tar.zst"
        self.runs: dict[str, list[Run]] = defaultdict(list)
        self.names = (base / "new" / str(number) for number in range(1_000_000))
        self.in_memory = file_system(base) == "tmpfs"  # no trap, but no room either: delete at once
        for directory in (base / "home", base / "new", self.store):
            directory.mkdir(parents=True)
        copy_live(corpus / "triton", self.live, corpus / "triton", self.live)
        copy_live(corpus / "change", self.change, corpus / "change", self.live)
        self.identity = base / "identity.json"
        if identity:
            shutil.copy(identity, self.identity)
        else:
            code = "from cachehome.identity import identity; print(identity().to_json())"
            self.identity.write_bytes(self.process(sys.executable, "-c", code)[1])
        self.verb("publish", self.store)
        self.process("sh", "-c", f"{self.tar()} | zstd -q -3 -T0 -o {self.archive}")

    def tar(self) -> str:
        return f"tar --exclude={OWN} -C {self.live.parent} -cf - triton"

    def round(self, number: int) -> None:
        contenders: list[Callable[[], None]] = [
            lambda: self.publish("", self.verb),
            lambda: self.other("tar | zstd -3 -T0", f"{self.tar()} | zstd -q -3 -T0 -o {{}}/triton.tar.zst"),
            lambda: self.publish(INSIDE, self.call),
            lambda: self.other("cp -a, either way", f"cp -a {self.live} {{}}"),
            lambda: self.restore("restore", self.verb, "off"),
            lambda: self.other("zstd -d | tar -x", f"zstd -q -dc {self.archive} | tar -C {{}} -xf -"),
            lambda: self.restore("restore, slim", self.verb, "restore"),
            lambda: self.restore(f"restore{INSIDE}", self.call, "off"),
            lambda: self.restore(f"restore, slim{INSIDE}", self.call, "restore"),
        ]
        if shutil.which("rsync"):
            contenders.append(lambda: self.other("rsync -a, either way", f"rsync -a {self.live} {{}}"))
        if number == 0:  # the better part of a minute: once
            contenders.append(self.tarfile)
        for contender in contenders if number % 2 == 0 else reversed(contenders):
            contender()

    def publish(self, label: str, how: Callable[..., Run]) -> None:
        """A first publish, one without a change, and one of two per cent, to one new store."""
        shutil.rmtree(self.live / OWN, ignore_errors=True)
        with self.new() as store:

            def measured(name: str) -> None:
                before = tree_size(store)
                run = how("publish", store)
                self.runs[name + label].append(run._replace(written=tree_size(store) - before))

            measured("publish")
            measured("publish, no change")
            names = os.listdir(self.change)
            for name in names:
                (self.change / name).rename(self.live / name)
            try:
                measured("publish, 2 % new")
            finally:
                for name in names:
                    (self.live / name).rename(self.change / name)

    def restore(self, label: str, how: Callable[..., Run], slim: str) -> None:
        with self.new() as to:
            run = how("restore", self.store, live=to / "triton", slim=slim)
            if label not in self.runs:
                compare(self.live, to / "triton", whole=slim == "off")
            self.runs[label].append(run._replace(written=tree_size(to)))

    def other(self, label: str, command: str) -> None:
        with self.new() as to:
            run, _ = self.process("sh", "-c", command.format(to))
            self.runs[label].append(run._replace(written=tree_size(to)))

    def tarfile(self) -> None:
        with self.new() as packed, self.new() as to:
            archive = packed / "triton.tar.gz"
            run, _ = self.process(sys.executable, "-c", PACK, self.live, archive)
            self.runs["Python tarfile + gzip"].append(run._replace(written=tree_size(packed)))
            run, _ = self.process(sys.executable, "-W", "ignore", "-c", UNPACK, archive, to)
            self.runs["Python tarfile + gunzip"].append(run._replace(written=tree_size(to)))

    def memory(self) -> dict[str, int]:
        """Peak of all processes of a verb together, in bytes: sampled, in runs that are not timed."""
        shutil.rmtree(self.live / OWN, ignore_errors=True)
        peaks = {}
        for name, verb, slim in (("publish", "publish", "off"), ("restore", "restore", "off")):
            with self.new() as made:
                store, live = (made, self.live) if verb == "publish" else (self.store, made / "triton")
                command = self.command(verb, store, slim)
                started = subprocess.Popen(
                    command,
                    cwd=self.base,
                    env=self.environment(live),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
                peaks[name] = 0
                while started.poll() is None:
                    peaks[name] = max(peaks[name], sum(map(resident, family_tree(started.pid))))
                    time.sleep(0.002)
        return peaks

    # -- processes

    @contextlib.contextmanager
    def new(self) -> Iterator[Path]:
        path = next(self.names)
        path.mkdir()
        if not self.in_memory:
            os.sync()  # what the last contender wrote is not this one's burden
        yield path
        if self.in_memory:
            shutil.rmtree(path)

    def command(self, verb: str, store: Path, slim: str) -> list[str]:
        words = [sys.executable, "-m", "cachehome", verb, "--json", "--store", str(store), "--slim", slim]
        return [*words, "--identity", str(self.identity), *(["--adopt"] if verb == "publish" else [])]

    def verb(self, verb: str, store: Path, live: Path | None = None, slim: str = "off") -> Run:
        run, output = self.process(*self.command(verb, store, slim), live=live)
        return run._replace(record=hit(output))

    def call(self, verb: str, store: Path, live: Path | None = None, slim: str = "off") -> Run:
        run, output = self.process(sys.executable, "-c", CALL, verb, store, slim, self.identity, live=live)
        record = hit(output)
        return run._replace(wall=record["call"], record=record)

    def environment(self, live: Path | None) -> dict[str, str]:
        dropped = ("CACHEHOME", "TRITON_", "TORCHINDUCTOR_", "XDG_", "PYTHONDONTWRITEBYTECODE")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
        own = {
            "HOME": self.base / "home",
            "TRITON_CACHE_DIR": live or self.live,
            "CACHEHOME_FAMILIES": "triton",
        }
        kept |= {name: str(value) for name, value in own.items()}
        return kept | {
            "PYTHONPATH": os.pathsep.join((str(ROOT), kept.get("PYTHONPATH", ""))).strip(os.pathsep)
        }

    def process(self, *command: object, live: Path | None = None) -> tuple[Run, bytes]:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            words, environ = [str(word) for word in command], self.environment(live)
            begin = time.perf_counter()
            started = subprocess.Popen(
                words, cwd=self.base, env=environ, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )
            _, status, usage = os.wait4(started.pid, 0)
            wall = time.perf_counter() - begin
            started.returncode = os.waitstatus_to_exitcode(status)
            out.seek(0)
            err.seek(0)
            output = out.read()
            if started.returncode:
                raise RuntimeError(f"{words} ended with {started.returncode}: {output!r} {err.read()!r}")
        return Run(wall, usage.ru_utime, usage.ru_stime, usage.ru_maxrss * 1024), output


def hit(output: bytes) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(output)
    if record["outcome"] != "hit":
        raise RuntimeError(f"not a hit: {record}")
    return record


# -- trees and processes ---------------------------------------------------------------------------


def copy_live(source: Path, target: Path, old: Path, new: Path) -> None:
    """Copy kernels, and let their groups name *new* where they named *old*."""
    shutil.copytree(source, target, ignore=shutil.ignore_patterns(OWN))
    for group in target.glob("*/__grp__*"):
        group.write_text(group.read_text().replace(f"{old}/", f"{new}/"))


def compare(published: Path, restored: Path, *, whole: bool) -> None:
    """What was restored is what was published, to the byte. Groups name their place; slim leaves out."""
    kernels = set(os.listdir(restored)) - {OWN}
    if kernels != set(os.listdir(published)) - {OWN}:
        raise RuntimeError(f"{restored} holds other kernels than {published}")
    for kernel in kernels:
        theirs, ours = set(os.listdir(published / kernel)), set(os.listdir(restored / kernel))
        names = [name for name in ours if not name.startswith("__grp__")]
        _, differ, errors = filecmp.cmpfiles(published / kernel, restored / kernel, names, shallow=False)
        if differ or errors or ours - theirs or (whole and ours != theirs):
            raise RuntimeError(f"{restored / kernel} is not as published: {differ} {errors} {theirs ^ ours}")


def tree_size(tree: Path) -> int:
    """Bytes of the files, but for our own notes in a live directory."""
    return sum(
        os.lstat(os.path.join(folder, name)).st_size
        for folder, _, names in os.walk(tree)
        if OWN not in folder
        for name in names
    )


def file_system(path: Path) -> str:
    mounts = [line.split()[1:3] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return max((len(point), kind) for point, kind in mounts if path.resolve().is_relative_to(point))[1]


def family_tree(pid: int) -> Iterator[int]:
    yield pid
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield from family_tree(int(child))


def resident(pid: int) -> int:
    """Bytes of a process, a page that several share split between them."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return 0


# -- what is said ----------------------------------------------------------------------------------


def claims(runs: dict[str, list[Run]], memory: dict[str, int]) -> list[Claim]:
    def ratio(over: str, under: str) -> float:
        return statistics.median(a.wall / b.wall for a, b in zip(runs[over], runs[under], strict=True))

    def size(over: str, under: str) -> float:
        return statistics.median(a.written / b.written for a, b in zip(runs[over], runs[under], strict=True))

    def at_most(what: str, limit: float, value: float, unit: str = "") -> Claim:
        return Claim(what, f"at most {limit:g}{unit}", round(value, 3), value <= limit)

    def at_least(what: str, limit: float, value: float) -> Claim:
        return Claim(what, f"at least {limit:g}", round(value, 3), value >= limit)

    pack, unpack = "tar | zstd -3 -T0", "zstd -d | tar -x"
    idle = statistics.median(run.wall for run in runs[f"publish, no change{INSIDE}"])
    change = "publish, 2 % new"
    return [
        at_most(f"publish / {pack}, time", 1.2, ratio("publish", pack)),
        at_most(f"publish / {pack}, bytes", 1.0, size("publish", pack)),
        at_least(f"{unpack} / restore, time", 1.2, ratio(unpack, "restore")),
        at_least(f"{unpack} / restore{INSIDE}, time", 1.5, ratio(unpack, f"restore{INSIDE}")),
        at_least(f"{unpack} / restore, slim, time", 2.2, ratio(unpack, "restore, slim")),
        at_least(f"{unpack} / restore, slim{INSIDE}, time", 3.5, ratio(unpack, f"restore, slim{INSIDE}")),
        at_most(f"{change} / publish, bytes", 0.1, size(change, "publish")),
        at_most(f"{change} / publish, time", 0.2, ratio(change, "publish")),
        at_most(f"{change} / publish, time{INSIDE}", 0.2, ratio(change + INSIDE, f"publish{INSIDE}")),
        at_most(f"publish, no change{INSIDE}", 0.1, idle, " s"),
        *(at_most(f"{verb}, peak memory", 200, peak / 1e6, " MB") for verb, peak in memory.items()),
    ]


def markdown(runs: dict[str, list[Run]], found: list[Claim]) -> str:
    lines = [
        "| what | wall s, min | median | max | user s | system s | largest, MB | written, MB | runs |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, measured in runs.items():
        walls = sorted(run.wall for run in measured)
        middle = Run(*(statistics.median(column) for column in list(zip(*measured, strict=True))[:5]))
        cells = [f"{value:.3f}" for value in (walls[0], middle.wall, walls[-1])]
        whole = not name.endswith(INSIDE)  # of a call only the wall clock is known
        cells += [f"{value:.2f}" if whole else "" for value in (middle.user, middle.system)]
        cells += [f"{middle.rss / 1e6:.0f}", f"{middle.written / 1e6:.2f}", str(len(measured))]
        lines.append(f"| {cell(name)} | {' | '.join(cells)} |")
    lines += ["", "| median of the rounds' ratios | target | measured | |", "|---|---|---|---|"]
    for claim in found:
        met = "met" if claim.met else "not met"
        lines.append(f"| {cell(claim.what)} | {claim.target} | {claim.value:g} | {met} |")
    return "\n".join(lines)


def cell(text: str) -> str:
    return text.replace("|", r"\|")


def machine(base: Path) -> dict[str, Any]:
    uname = os.uname()
    return {
        "system": f"{uname.sysname} {uname.release} {uname.machine}",
        "cpus": os.cpu_count(),
        "python": sys.version.split()[0],
        "file_system": file_system(base),
        "load": round(os.getloadavg()[0], 2),
    }


def options(description: str) -> argparse.ArgumentParser:
    """What every benchmark on the corpus can be told."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--corpus", type=Path, help="where the corpus is, or is made (default: the user's cache)"
    )
    parser.add_argument("--kernels", type=int, default=corpora.KERNELS, help="size of the corpus")
    parser.add_argument("--small", dest="kernels", action="store_const", const=corpora.SMALL)
    parser.add_argument(
        "--target", type=Path, default=tempfile.gettempdir(), help="what file system to measure"
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--identity", type=Path, help="use this identity file (default: make one)")
    parser.add_argument("--json", action="store_true")
    return parser


def main(argv: list[str] | None = None) -> int:
    parser = options("Publish and restore, side by side with the usual tools.")
    args = parser.parse_args(argv)
    directory = (args.corpus or corpora.default_directory(args.kernels)).resolve()
    made = corpora.make(directory, args.kernels)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was written goes also then
    base = Path(tempfile.mkdtemp(prefix="cachehome-sync-", dir=args.target)).resolve()
    compileall.compile_dir(ROOT / "cachehome", quiet=1)  # as pip leaves an installed package
    try:
        about = machine(base)
        bench = Bench(base, directory, args.identity)
        for number in range(args.rounds):
            print(f"round {number + 1} of {args.rounds}", file=sys.stderr, flush=True)
            bench.round(number)
        found = claims(bench.runs, bench.memory())
    finally:
        shutil.rmtree(base, ignore_errors=True)
    runs = {name: [run._asdict() for run in measured] for name, measured in bench.runs.items()}
    if args.json:
        claimed = [claim._asdict() for claim in found]
        print(json.dumps({"machine": about, "corpus": made, "claims": claimed, "runs": runs}))
        return 0
    print(", ".join(f"{name} {value}" for name, value in about.items()))
    print(f"{made['kernels']} kernels, {made['files']} files, {made['bytes'] / 1e6:.0f} MB\n")
    print(markdown(bench.runs, found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
