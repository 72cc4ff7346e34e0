"""`run` around a command whose Python is not ours: identity, host tag and directories are those of the job."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from cachehome.store import Store

JOB = 'mkdir -p "$TORCHINDUCTOR_CACHE_DIR/ab" && echo "x = 1" >"$TORCHINDUCTOR_CACHE_DIR/ab/job.py"'


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A Python without torch: its host tag ends in torch-none."""
    venv.create(tmp_path / "venv", with_pip=False, symlinks=True)
    return tmp_path / "venv" / "bin"


@pytest.mark.parametrize("named", [True, False], ids=["named", "of PATH"])
def test_what_the_job_made_is_published_from_its_own_directory(
    tmp_path: Path, bare: Path, named: bool
) -> None:
    store = tmp_path / "store"
    store.mkdir(mode=0o700)
    environ = os.environ | {"HOME": str(tmp_path), "PATH": f"{bare}:{os.environ['PATH']}"}
    script = tmp_path / "job.py"
    script.write_text(f"import os\nos.system('''{JOB}''')\n")
    command = [str(bare / "python"), str(script)] if named else ["sh", "-c", JOB]
    ran = subprocess.run(
        [sys.executable, "-m", "cachehome", "run", "--store", str(store), "--", *command],
        env=environ,
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
    )
    found = Store.open(str(store))
    (build,) = found.builds()
    identity = found.identity(build)
    assert identity is not None
    assert identity["build"]["host_tag"].endswith("/torch-none"), ran.stderr
    (profile,) = found.profiles(build)
    assert list(found.read(build, profile, 1).manifest.entries) == [("inductor", "ab/job.py")]
    assert ("taken to be" in ran.stderr) is not named
