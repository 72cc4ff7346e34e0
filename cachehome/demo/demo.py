"""The demo: what a warm start is worth here, on a real compile, in a directory of its own.

    BASE/home/      HOME of every phase; what activation sets lies below it
        /tmp/       TMPDIR of every phase; the compiler's precompiled header lies here, and is wiped too
        /store/     the store: the only thing that outlives the wipe
        /reports/   what each workload saw, and what it wrote to its standard streams

Each phase is a fresh process that does what a user would do: `cachehome restore` on the empty store (a miss),
the workload cold, `cachehome publish`, everything local wiped, `cachehome restore`, the workload warm.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import site
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import cachehome
from cachehome.errors import CacheHomeError, MissingExtra

if TYPE_CHECKING:
    # Never at run time: importing it activates cachehome, which is for the phases alone.
    from cachehome.demo.workload import Report

# Of the caller's environment all is kept but what says where caches lie and whether they are used: the demo
# shows what cachehome does by itself, not what this shell is set to.
OURS = ("CACHEHOME", "TORCHINDUCTOR_", "TORCH_COMPILE_", "TORCHDYNAMO_", "TRITON_", "XDG_")
CACHES = ("fxgraph", "aotautograd", "triton")
PHASE_TIMEOUT = 1800.0


@dataclass(frozen=True, slots=True)
class Start:
    """One run of the workload."""

    seconds: float  # the whole process, as its parent sees it
    cpu_seconds: float  # user and system, of the process and all that it waited for
    compile_and_run_seconds: float
    compilers: dict[str, int]  # C++ compilers started: kernel, header, probe, query
    libraries: int  # new .so files below HOME: counts kernels and probes a second time, from outside
    caches: dict[str, dict[str, int]]  # fxgraph, aotautograd, triton: hits, misses
    missed_kernels: list[str]
    loss: str
    gradient: str
    directories: dict[str, str]


@dataclass(frozen=True, slots=True)
class Transfer:
    """One `cachehome restore` or `cachehome publish`."""

    seconds: float
    cpu_seconds: float
    record: dict[str, Any]  # as the command printed it


@dataclass(frozen=True, slots=True)
class Wipe:
    """What was deleted between publish and restore."""

    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """The whole demo. `missed` says in words what was not as it should be; empty means that it was."""

    first_restore: Transfer
    cold: Start
    publish: Transfer
    wipe: Wipe
    restore: Transfer
    warm: Start
    store_files: int
    store_bytes: int
    missed: list[str]

    @property
    def speedup(self) -> float:
        return self.cold.seconds / self.warm.seconds

    @property
    def compile_speedup(self) -> float:
        return self.cold.compile_and_run_seconds / self.warm.compile_and_run_seconds

    @property
    def speedup_with_restore(self) -> float:
        return self.cold.seconds / (self.restore.seconds + self.warm.seconds)

    def to_json(self) -> dict[str, Any]:
        return {
            "ok": not self.missed,
            "speedup": round(self.speedup, 2),
            "speedup_with_restore": round(self.speedup_with_restore, 2),
            "compile_speedup": round(self.compile_speedup, 2),
            **asdict(self),
        }


class Demo:
    """The phases, in a base directory. `say` gets one line as each begins."""

    def __init__(self, base: Path, say: Callable[[str], None]) -> None:
        self.base = base
        self.say = say
        self.home, self.tmp, self.store, self.reports = (
            base / name for name in ("home", "tmp", "store", "reports")
        )
        self.environ = environment(os.environ, self.home, self.tmp)

    def run(self) -> Outcome:
        for directory in (self.home, self.tmp, self.store, self.reports):
            directory.mkdir(parents=True)
        self.say("importing torch once, so that no phase pays for a disk that has not read it yet")
        self._process("import", "-c", "import torch, triton")
        self.say("restore: the store is empty")
        first = self.transfer("restore", "restore-empty")
        self.say("cold start: everything is compiled (this is the long one)")
        cold = self.start("cold")
        self.say(f"publish: after {cold.seconds:.1f} s, what was compiled goes to the store")
        publish = self.transfer("publish", "publish")
        wipe = self.wipe()
        self.say(f"wiped HOME and TMPDIR: {wipe.files} files, {wipe.bytes / 1e6:.1f} MB")
        self.say("restore: into the wiped HOME")
        restore = self.transfer("restore", "restore")
        self.say("warm start")
        warm = self.start("warm")
        self.say(f"done: {warm.seconds:.1f} s")
        missed = shortfalls(first, cold, publish, restore, warm)
        return Outcome(first, cold, publish, wipe, restore, warm, *measure(self.store), missed)

    def start(self, name: str) -> Start:
        before = self.libraries()
        report_file = self.reports / f"{name}.json"
        seconds, cpu, code, _ = self._process(name, "-m", "cachehome.demo.workload", str(report_file))
        if code != 0:
            raise CacheHomeError(f"the demo's {name} start failed: {self.last_words(name)}", phase=name)
        report = cast("Report", json.loads(report_file.read_text()))
        return Start(
            seconds=seconds,
            cpu_seconds=cpu,
            compile_and_run_seconds=round(report["seconds"]["inductor"] + report["seconds"]["triton"], 3),
            compilers=report["compilers"],
            libraries=len(self.libraries() - before),
            caches=cast("dict[str, dict[str, int]]", report["caches"]),
            missed_kernels=report["missed"],
            loss=report["loss"],
            gradient=report["gradient"],
            directories=report["directories"],
        )

    def transfer(self, verb: str, name: str) -> Transfer:
        command = ("-m", "cachehome", verb, "--json", "--store", str(self.store))
        seconds, cpu, code, output = self._process(name, *command)
        try:
            record = json.loads(output)
        except ValueError:
            raise CacheHomeError(
                f"the demo's {verb} ended with code {code} and no record: {self.last_words(name)}", phase=name
            ) from None
        return Transfer(seconds, cpu, record)

    def wipe(self) -> Wipe:
        files = size = 0
        for directory in (self.home, self.tmp):
            counted = measure(directory)
            files, size = files + counted[0], size + counted[1]
            shutil.rmtree(directory)
            directory.mkdir()
        return Wipe(files, size)

    def libraries(self) -> set[str]:
        return {path for path in walk(self.home) if path.endswith(".so")}

    def last_words(self, name: str) -> str:
        """What a failed phase said: the compiler's error, else the exception, else its last line."""
        file = self.reports / f"{name}.err"
        lines = [line.strip() for line in file.read_text(errors="replace").splitlines() if line.strip()]
        for sign in (r"(fatal )?error: ", r"^[\w.]+(Error|Exception|Interrupt)\b"):
            found = [line for line in lines if re.search(sign, line)]
            if found:
                return found[-1]
        return lines[-1] if lines else "it said nothing"

    def _process(self, name: str, *arguments: str) -> tuple[float, float, int, bytes]:
        """Wall and CPU seconds, exit code and standard output of one fresh interpreter."""
        output = self.reports / f"{name}.out"
        with open(output, "wb") as out, open(self.reports / f"{name}.err", "wb") as err:
            begin = time.monotonic()
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=self.base,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            try:
                status, usage = wait(process, PHASE_TIMEOUT)
            except BaseException:
                end(process)
                raise
            seconds = time.monotonic() - begin
        cpu = usage.ru_utime + usage.ru_stime
        return round(seconds, 3), round(cpu, 3), os.waitstatus_to_exitcode(status), output.read_bytes()


def wait(process: subprocess.Popen[bytes], timeout: float) -> tuple[int, Any]:
    """`os.wait4` with a deadline; an interrupt comes through at once."""
    deadline = time.monotonic() + timeout
    while True:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid:
            process.returncode = os.waitstatus_to_exitcode(status)
            return status, usage
        if time.monotonic() > deadline:
            raise CacheHomeError(f"a phase of the demo took longer than {timeout:.0f} s")
        time.sleep(0.005)


def end(process: subprocess.Popen[bytes]) -> None:
    """End a phase and the compilers that it started: they are its process group."""
    for number, patience in ((signal.SIGTERM, 3.0), (signal.SIGKILL, 10.0)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(patience)


def environment(environ: Mapping[str, str], home: Path, tmp: Path) -> dict[str, str]:
    """The environment of every phase: the caller's, with a HOME and a TMPDIR of its own, and cachehome on."""
    kept = {name: value for name, value in environ.items() if not name.startswith(OURS)}
    kept |= {"HOME": str(home), "TMPDIR": str(tmp), "CACHEHOME": "1"}
    root = str(Path(cachehome.__file__).parent.parent)
    if not root.endswith("-packages"):  # run from a checkout that is not installed
        kept["PYTHONPATH"] = os.pathsep.join(filter(None, (root, kept.get("PYTHONPATH"))))
    if site.ENABLE_USER_SITE:  # packages installed with `pip install --user` would vanish with HOME
        kept.setdefault("PYTHONUSERBASE", site.getuserbase())
    return kept


def shortfalls(first: Transfer, cold: Start, publish: Transfer, restore: Transfer, warm: Start) -> list[str]:
    """What was not as it should be, in words."""
    found = []
    expected = (("first restore", first, "miss"), ("publish", publish, "hit"), ("restore", restore, "hit"))
    for name, transfer, outcome in expected:
        if transfer.record.get("outcome") != outcome:
            found.append(f"{name}: {transfer.record.get('outcome')}, {transfer.record.get('reason')}")
    for cache in CACHES:
        if cold.caches[cache]["hits"]:
            found.append(f"{cache}: {cold.caches[cache]['hits']} hits in the cold start, so it was not cold")
        if warm.caches[cache]["misses"]:
            found.append(f"{cache}: {warm.caches[cache]['misses']} misses")
        elif not warm.caches[cache]["hits"]:
            found.append(f"{cache}: not used at all")
    if warm.missed_kernels:
        found.append(f"Triton compiled {', '.join(warm.missed_kernels)}")
    if warm.compilers["kernel"]:
        found.append(f"{warm.compilers['kernel']} C++ kernels compiled")
    if warm.libraries:
        found.append(f"{warm.libraries} new libraries in the live directories")
    for name in ("loss", "gradient"):
        before, after = (float.fromhex(getattr(start, name)) for start in (cold, warm))
        if before != after:
            found.append(f"{name} {after} is not that of the cold start, {before}")
    return found


def walk(tree: Path) -> Iterator[str]:
    for folder, _, names in os.walk(tree):
        for name in names:
            yield os.path.join(folder, name)


def measure(tree: Path) -> tuple[int, int]:
    """Number and bytes of the files below a directory."""
    sizes = [os.lstat(path).st_size for path in walk(tree)]
    return len(sizes), sum(sizes)


def require_packages() -> None:
    for package in ("torch", "triton"):
        if importlib.util.find_spec(package) is None:
            raise MissingExtra(
                f"the demo compiles with {package}: pip install 'cachehome[torch]'",
                package=package,
                extra="torch",
            )


def has_space(path: str | Path) -> bool:
    return any(character.isspace() for character in str(path))


@contextlib.contextmanager
def base_directory(keep: str | None) -> Iterator[Path]:
    """A directory for the demo: given and kept, or temporary and gone at the end, however that comes."""
    if keep:
        base = Path(keep).absolute()
        if has_space(base):
            raise CacheHomeError(
                f"torch can't compile where TMPDIR has a space in it: {base}", path=str(base)
            )
        base.mkdir(parents=True, exist_ok=True)
        if any(base.iterdir()):
            raise CacheHomeError(f"{base} is not empty: give --keep a new directory", path=str(base))
        yield base
        return
    parent = tempfile.gettempdir()
    base = Path(tempfile.mkdtemp(prefix="cachehome-demo-", dir="/var/tmp" if has_space(parent) else parent))  # noqa: S108
    try:
        yield base
    finally:
        for _ in range(3):  # a compiler that has just been killed may still create a file
            shutil.rmtree(base, ignore_errors=True)
            if not base.exists():
                break
            time.sleep(0.2)


def demo(keep: str | None = None, say: Callable[[str], None] = print) -> Outcome:
    """Run all phases. What it needs and lacks raises CacheHomeError; what missed is in the outcome."""
    require_packages()
    with base_directory(keep) as base:
        return Demo(base, say).run()
