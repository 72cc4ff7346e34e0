"""Activation from inside a program."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
INDUCTOR = "TORCHINDUCTOR_CACHE_DIR"


def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        check=True,
        timeout=110,
    )


def test_the_ways_to_say_it(tmp_path: Path) -> None:
    ways = {
        "import cachehome.activate": "cachehome",
        "import cachehome; cachehome.activate()": "cachehome",
        "from cachehome import activate; activate()": "cachehome",
        "from cachehome.activate import activate; activate()": "cachehome",
        "import cachehome; cachehome.activate(app='mstar')": "mstar",
        "import cachehome.activate; cachehome.activate(app='mstar')": "mstar",
        "from cachehome import activate; activate('my engine/2')": "my_engine_2",
    }
    for way, app in ways.items():
        done = run(f"import os; {way}; print(os.environ[{INDUCTOR!r}])", HOME=str(tmp_path))
        assert done.stdout.startswith(f"{tmp_path}/.cache/{app}/cp3"), way
        assert done.stderr == ""


def test_off_does_nothing(tmp_path: Path) -> None:
    code = f"import os, cachehome.activate; print(os.environ.get({INDUCTOR!r}), cachehome.activate(app='x').reason)"
    assert (
        run(code, HOME=str(tmp_path), CACHEHOME="0").stdout
        == "None activation is switched off by CACHEHOME\n"
    )


def test_it_never_fails(tmp_path: Path) -> None:
    code = "import cachehome; print(cachehome.activate(app={!r}).reason)"
    for app in ("", "..", "/", "é"):
        assert run(code.format(app), HOME=str(tmp_path)).returncode == 0
    assert "torch's own defaults apply" in run(code.format("x"), HOME="/dev/null/x").stdout
    broken = "import cachehome.home; cachehome.home.resolve = None; print(cachehome.activate().reason)"
    assert "activation failed" in run(broken, HOME=str(tmp_path)).stdout


def test_a_later_call_in_the_same_process_may_name_another_app(tmp_path: Path) -> None:
    code = f"""
import os, cachehome
for app in ("one", "two", None):
    cachehome.activate(app=app)
    for path in (os.environ[{INDUCTOR!r}], cachehome.path()):
        print(path.split("/.cache/")[1].split("/")[0], end=" ")
"""
    assert run(code, HOME=str(tmp_path)).stdout == "one one two two two two "


def test_directories_are_logged_once(tmp_path: Path) -> None:
    code = """
import logging, cachehome
logging.basicConfig(level=logging.INFO, format="%(name)s %(message)s")
cachehome.activate()
cachehome.activate()
"""
    lines = run(code, HOME=str(tmp_path)).stderr.splitlines()
    assert [line.partition("=")[0] for line in lines] == [
        f"cachehome {INDUCTOR}",
        "cachehome TRITON_CACHE_DIR",
        "cachehome VLLM_CACHE_ROOT",
        "cachehome SGLANG_CACHE_DIR",
    ]


def test_importing_the_package_imports_nothing(tmp_path: Path) -> None:
    code = (
        "import sys; before = set(sys.modules); import cachehome; print(*sorted(set(sys.modules) - before))"
    )
    assert run(code, HOME=str(tmp_path)).stdout.split() == ["cachehome"]


def test_spawned_and_forked_workers_inherit(tmp_path: Path) -> None:
    code = f"""
import multiprocessing, os, cachehome.activate
def show(expected):
    assert os.environ[{INDUCTOR!r}] == expected
if __name__ == "__main__":
    for method in ("fork", "forkserver"):
        worker = multiprocessing.get_context(method).Process(target=show, args=(os.environ[{INDUCTOR!r}],))
        worker.start(); worker.join()
        assert worker.exitcode == 0
"""
    script = tmp_path / "job.py"
    script.write_text(code)
    subprocess.run(
        [sys.executable, str(script)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(tmp_path)},
        check=True,
        timeout=60,
    )


@pytest.mark.slow
def test_too_late_is_said_once_and_loading_dynamo_is_not_too_late(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    code = f"""
import os, torch, torch._dynamo
default = os.environ[{INDUCTOR!r}]
assert "torchinductor_" in default  # torch's own
import cachehome
torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
answer = cachehome.activate(app="one")
assert answer.values and os.environ[{INDUCTOR!r}] == answer.values[{INDUCTOR!r}] != default
torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
kept = dict(os.environ)
assert cachehome.activate(app="one").notes == []  # nothing would change
for _ in range(2):
    assert "already compiled" in cachehome.activate(app="two").notes[0]
assert dict(os.environ) == kept
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(ROOT),
            "HOME": str(tmp_path),
            "TMPDIR": str(tmp_path),
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("too late") == 1
