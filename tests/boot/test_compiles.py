"""A real torch.compile in every strange home: it works, and the cache is where activation says."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from venvs import ROOT, clean

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++"),
]
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")

# Without precompiled headers and probes of the vector unit: the same paths, in a fraction of the time.
JOB = """
import os, sys
import cachehome.activate
os.chdir("/")
import torch
import torch._inductor.config as config
config.cpp_cache_precompile_headers = False
config.compile_threads = 1
import torch._inductor.runtime.cache_dir_utils as dirs
assert torch.compile(lambda x: x * 2 + 1)(torch.ones(8)).tolist() == [3.0] * 8
print(dirs.cache_dir())
print(os.environ.get("CACHEHOME_APPLIED"))
"""


@dataclass(frozen=True)
class Outcome:
    directory: Path
    ours: bool
    cwd: Path

    @property
    def libraries(self) -> int:
        return len(list(self.directory.glob("*/*.so")))


def compile_in(tmp_path: Path, *prefix: str, python: str = sys.executable, **variables: str) -> Outcome:
    """Run the job; TMPDIR is *tmp_path*/tmp, so that torch's own default is in it."""
    (tmp_path / "tmp").mkdir(exist_ok=True, mode=0o777)
    (tmp_path / "tmp").chmod(0o1777)
    environ = clean(PYTHONPATH=str(ROOT), TORCHINDUCTOR_VEC_ISA_OK="0", CACHEHOME="1") | variables
    environ["TMPDIR"] = str(tmp_path / "tmp")
    done = subprocess.run(
        [*prefix, python, "-B", "-W", "ignore", "-c", JOB],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    directory, record = done.stdout.splitlines()
    return Outcome(Path(directory), record != "None", tmp_path)


def test_letters_that_are_not_ascii(tmp_path: Path) -> None:
    home = tmp_path / "jürgen-日本$;"
    home.mkdir()
    outcome = compile_in(tmp_path, HOME=str(home))
    assert outcome.ours
    assert outcome.directory.is_relative_to(home / ".cache" / "cachehome")
    assert outcome.libraries


def test_letters_that_break_the_compilers_command_line(tmp_path: Path) -> None:
    (tmp_path / "john doe").mkdir()
    (tmp_path / "local").mkdir(mode=0o700)
    outcome = compile_in(tmp_path, HOME=str(tmp_path / "john doe"), CACHEHOME_LOCAL=str(tmp_path / "local"))
    assert outcome.ours
    assert outcome.directory.is_relative_to(tmp_path / "local")
    assert outcome.libraries


def test_a_relative_value_is_where_the_job_was_started(tmp_path: Path) -> None:
    outcome = compile_in(tmp_path, HOME=str(tmp_path), TORCHINDUCTOR_CACHE_DIR="cache/x")
    assert outcome.directory == tmp_path / "cache" / "x"
    assert outcome.libraries


def test_empty_values_and_a_home_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    variables = {"TORCHINDUCTOR_CACHE_DIR": "", "TRITON_CACHE_DIR": "", "XDG_CACHE_HOME": "~/x"}
    outcome = compile_in(tmp_path, HOME=str(tmp_path / "file" / "x"), **variables)
    assert not outcome.ours
    assert outcome.directory.is_relative_to(tmp_path / "tmp")
    assert sorted(os.listdir(tmp_path)) == ["file", "tmp"]


@root_only
@pytest.mark.parametrize("option", ["ro", "noexec"])
def test_a_home_on_an_unusable_mount(tmp_path: Path, option: str) -> None:
    (tmp_path / "home").mkdir()
    mount = [
        "unshare",
        "-m",
        "sh",
        "-c",
        f'mount -t tmpfs -o {option} none "$0" && exec "$@"',
        str(tmp_path / "home"),
    ]
    probe = subprocess.run([*mount, "true"], capture_output=True, check=False, timeout=60)
    if probe.returncode != 0:
        pytest.skip(f"can't mount here: {probe.stderr.decode().strip()}")
    outcome = compile_in(tmp_path, *mount, HOME=str(tmp_path / "home"))
    assert not outcome.ours
    assert outcome.directory.is_relative_to(tmp_path / "tmp")
    assert outcome.libraries


@root_only
def test_a_user_without_a_name() -> None:
    import tempfile

    user = ["setpriv", "--reuid=54321", "--regid=0", "--clear-groups"]
    if shutil.which("setpriv") is None:
        pytest.skip("needs setpriv")
    probe = subprocess.run(
        [*user, sys.executable, "-c", "import torch"], capture_output=True, check=False, timeout=100, cwd="/"
    )
    if probe.returncode != 0:
        pytest.skip("another user can't run this Python")
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        outcome = compile_in(Path(name), *user, HOME="/")
        assert not outcome.ours
        assert outcome.directory == Path(name) / "tmp" / "torchinductor_uid_54321"
        assert outcome.libraries
