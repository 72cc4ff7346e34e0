"""The example: it activates, and hands on to whatever sitecustomize was there before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from venvs import ROOT, clean

EXAMPLE = ROOT / "sitecustomize_example"
SHOW = "import os; print(os.environ.get('TORCHINDUCTOR_CACHE_DIR'))"


def run(
    home: Path, *path: Path, python: str = sys.executable, code: str = SHOW, **variables: str
) -> list[str]:
    environ = clean(HOME=str(home), PYTHONPATH=os.pathsep.join(map(str, path)), CACHEHOME="1") | variables
    done = subprocess.run(
        [python, "-c", code], env=environ, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stderr == ""
    return done.stdout.splitlines()


@pytest.fixture
def other(tmp_path: Path) -> Path:
    directory = tmp_path / "other"
    directory.mkdir()
    (directory / "sitecustomize.py").write_text("print('other', __name__, __file__)\n")
    return directory


def test_it_activates(tmp_path: Path) -> None:
    assert run(tmp_path, EXAMPLE, ROOT)[0].startswith(f"{tmp_path}/.cache/cachehome/")
    assert run(tmp_path, EXAMPLE, ROOT, CACHEHOME="") == ["None"]


def test_it_hands_on(tmp_path: Path, other: Path) -> None:
    lines = run(tmp_path, EXAMPLE, ROOT, other)
    assert lines[0] == f"other sitecustomize {other}/sitecustomize.py"
    assert lines[1].startswith(str(tmp_path))


def test_two_copies_do_not_call_each_other_for_ever(tmp_path: Path, other: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "sitecustomize.py").write_text((EXAMPLE / "sitecustomize.py").read_text())
    assert len(run(tmp_path, EXAMPLE, copy, other, ROOT)) == 2


def test_without_cachehome_it_is_silent(tmp_path: Path, other: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "sitecustomize.py").write_text((EXAMPLE / "sitecustomize.py").read_text())
    lines = run(tmp_path, copy, other, python=getattr(sys, "_base_executable", sys.executable))
    assert lines[0].startswith("other")


@pytest.mark.skipif(not Path("/usr/bin/python3").exists(), reason="needs the system's Python")
def test_debians_own(tmp_path: Path) -> None:
    code = "import sys; print(sys.modules['sitecustomize'].__file__, sys.version_info >= (3, 10))"
    before = run(
        tmp_path,
        tmp_path,
        python="/usr/bin/python3",
        code=f"import sys\nif 'sitecustomize' in sys.modules: {code}",
    )
    if not before or not before[0].endswith("True"):
        pytest.skip("the system's Python is older, or has no sitecustomize of its own")
    assert run(tmp_path, EXAMPLE, ROOT, python="/usr/bin/python3", code=code) == before
    assert run(tmp_path, EXAMPLE, ROOT, python="/usr/bin/python3")[0].startswith(str(tmp_path))
