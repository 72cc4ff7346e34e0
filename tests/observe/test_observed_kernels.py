from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cachehome.observe import files, kernels
from cachehome.sync.portable import check

COMPILES = """
import sys
from cachehome.observe import kernels
live, name = sys.argv[1:]
kernels._EVERY = 0  # as often as a compile worker writes
for number in range(20):
    kernels._remember(live, f"{name}-{number}", number / 10)
"""


@pytest.mark.timeout(120)
def test_processes_that_measure_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    started = [
        subprocess.Popen([sys.executable, "-c", COMPILES, str(tmp_path), f"worker{number}"])
        for number in range(6)
    ]
    assert [process.wait() for process in started] == [0] * 6
    found = kernels.known(str(tmp_path))
    assert len(found) == 120
    assert found["worker3-7"].seconds == 0.7


def test_what_an_older_version_or_a_worker_wrote_is_read(tmp_path: Path) -> None:
    content = {"OLD": 1.5, "NEW": [2.5, {"thread count": "4"}]}
    (tmp_path / kernels.TIMES).write_text(json.dumps(content))
    found = kernels.known(str(tmp_path))
    assert (found["OLD"].seconds, found["OLD"].made) == (1.5, None)
    assert (found["NEW"].seconds, found["NEW"].made) == (2.5, {"thread count": "4"})


def test_only_finite_seconds_count(tmp_path: Path) -> None:
    told = '{"A": "nan", "B": 1e999, "C": -5, "D": NaN, "E": true, "F": [1], "G": [2, 3], "H": [2.5, null]}'
    (tmp_path / kernels.TIMES).write_text(told)
    assert kernels.known(str(tmp_path)) == {"H": kernels.Kernel(2.5, None)}


def remember(live: Path, code: str = "", **environ: str) -> None:
    begin = "import sys; from cachehome.observe import kernels; kernels._remember(sys.argv[1], 'NEW', 1.5);"
    done = subprocess.run(
        [sys.executable, "-c", begin + code, str(live)],
        env={**os.environ, **environ}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_a_variable_that_is_no_utf8_can_be_published(tmp_path: Path) -> None:
    remember(tmp_path, TORCHINDUCTOR_NOTE="caf\udce9")
    data = (tmp_path / kernels.TIMES).read_bytes()
    assert check(kernels.TIMES, data) == ""
    made = kernels.known(str(tmp_path))["NEW"].made
    assert made is not None
    assert made["TORCHINDUCTOR_NOTE"] == "caf\\udce9"


def test_the_file_does_not_grow_too_large(tmp_path: Path) -> None:
    path = tmp_path / kernels.TIMES
    for size in (kernels.LARGEST, 3 * kernels.LARGEST):
        key = "x" * (size - 20)
        path.write_text(json.dumps({key: 1.0}))
        remember(tmp_path)
        assert json.loads(path.read_text()) == {key: 1.0}
    path.write_text("rubbish")
    remember(tmp_path)
    assert "NEW" in json.loads(path.read_text())


def test_a_fifo_of_that_name_is_replaced(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / kernels.TIMES)
    remember(tmp_path)
    assert set(kernels.known(str(tmp_path))) == {"NEW"}


def test_a_miss_is_compared_with_circumstances_and_not_with_kernels(tmp_path: Path) -> None:
    made = [{"thread count": str(number % 3)} for number in range(3000)]
    content = {f"K{number}": [1.0, circumstances] for number, circumstances in enumerate(made)}
    (tmp_path / kernels.TIMES).write_text(json.dumps(content))
    assert len(kernels.known(str(tmp_path))) == 3000
    assert sorted(one["thread count"] for one in kernels._made[str(tmp_path)]) == ["0", "1", "2"]


KILLED = """
import os, signal, sys, time
from cachehome.observe import files, kernels
sys.argv[0] = "/x/compile_worker/__main__.py"
slow, written = files.replace, []
def replace(path, data):
    time.sleep(0.02)  # a file system that takes its time
    slow(path, data)
    written.append(path)
files.replace = replace
for number in range(100):
    kernels._remember(sys.argv[1], f"K{number}", 1.0)
while kernels._fresh:
    time.sleep(0.01)
print(len(written), flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_worker_that_is_killed_has_written_seldom_and_all(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, "")
    assert len(kernels.known(str(tmp_path))) == 100
    assert int(done.stdout) < 50
    assert os.listdir(tmp_path) == [kernels.TIMES]
    assert files.parse((tmp_path / kernels.TIMES).read_bytes())


ENDS = """
import multiprocessing, sys
from cachehome.observe import kernels

def work(live):
    sys.argv[0] = "/x/compile_worker/__main__.py"
    kernels._cost = 1e6  # nothing is written until the end
    for number in range(3):
        kernels._remember(live, f"K{number}", 1.0)

child = multiprocessing.get_context("fork").Process(target=work, args=sys.argv[1:])
kernels._written_at = kernels.time.monotonic()
child.start()
child.join()
sys.exit(child.exitcode)
"""


def test_a_worker_writes_at_its_end(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDS, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert set(kernels.known(str(tmp_path))) == {"K0", "K1", "K2"}
