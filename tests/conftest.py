"""What every test stands on: an environment without the developer's own settings, and real caches to work with."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Whatever the developer's shell or an activated hook has set must not reach a test.
_OURS = ("CACHEHOME", "TORCHINDUCTOR_", "TRITON_", "XDG_")


signal.signal(
    signal.SIGHUP, signal.SIG_DFL
)  # what nohup ignores, the commands that tests start would ignore, too


@pytest.fixture(scope="session")
def a_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home for the tests: nothing of theirs may reach the developer's own."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, a_home: Path) -> None:
    for name in list(os.environ):
        if name.startswith(_OURS):
            monkeypatch.delenv(name)
    # Children import the checkout, also where it is not installed.
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("HOME", str(a_home))


_COMPILE = """
from cachehome.demo.kernels import KERNELS
for kernel in KERNELS[:4]:
    kernel.compile()
"""


@pytest.fixture(scope="session")
def compiled_kernels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Triton cache with four real sm_90 kernels. Read only: tests copy it."""
    pytest.importorskip("triton")
    directory = tmp_path_factory.mktemp("kernels") / "triton"
    environ = os.environ | {"TRITON_CACHE_DIR": str(directory), "PYTHONPATH": str(ROOT)}
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _COMPILE], check=True, env=environ, cwd=ROOT, timeout=300
    )
    return directory


@pytest.fixture
def triton_cache(compiled_kernels: Path, tmp_path: Path) -> Path:
    """A live directory of Triton's with four kernels, as if they had been compiled in it."""
    live = tmp_path / "origin" / "triton"
    shutil.copytree(compiled_kernels, live)
    for group in live.glob("*/__grp__*.json"):
        group.write_text(group.read_text().replace(str(compiled_kernels), str(live)))
    return live
