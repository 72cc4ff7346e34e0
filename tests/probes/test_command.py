"""Which Python a command will use: found, or said to be unknown, never guessed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from cachehome.errors import CacheHomeError
from cachehome.identity import identity
from cachehome.probes.command import resolve
from cachehome.settings import Settings

HERE = os.path.dirname(os.path.abspath(sys.executable))
PATH = os.pathsep.join([HERE, "/usr/bin", "/bin"])


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of another virtual environment, which holds a torch of its own and nothing of ours."""
    root = tmp_path_factory.mktemp("other") / "venv"
    venv.create(root, with_pip=False, symlinks=True)
    (site,) = root.glob("lib/python*/site-packages")
    (site / "torch").mkdir()
    (site / "torch/version.py").write_text("__version__ = '9.9.9'\ngit_version = 'beef'\n")
    (site / "torch-9.9.9.dist-info").mkdir()
    (site / "torch-9.9.9.dist-info/RECORD").write_text("torch/__init__.py,sha256=x,1\n")
    return root / "bin" / "python"


def _environ(**values: str) -> dict[str, str]:
    return {
        "PATH": PATH,
        "HOME": os.environ.get("HOME", "/"),
        "PYTHONPATH": os.environ["PYTHONPATH"],
        **values,
    }


def _python(*command: str, **values: str) -> str | None:
    job = resolve(command, _environ(**values))
    return None if job.python is None else job.python[0]


def _script(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


OWN = [
    ["python", "train.py"],
    [sys.executable, "-u", "train.py", "-I"],
    ["python", "-X", "dev", "-W", "error", "-m", "pkg"],
    ["env", "A=b", "python", "x.py"],
    ["env", "-u", "A", "--unset=B", "python", "x.py"],
    ["env", "-S", "A=b python x.py"],
    ["nice", "-n", "5", "nohup", "python", "x.py"],
    ["timeout", "-k", "5", "60", "python", "x.py"],
    ["stdbuf", "-oL", "setsid", "python", "x.py"],
    ["taskset", "-c", "0-3", "python", "x.py"],
    ["taskset", "ff", "python", "x.py"],
    ["numactl", "--cpunodebind=0", "-m", "0", "python", "x.py"],
    ["nsys", "profile", "-o", "x", "python", "x.py"],
    ["bash", "-c", "python x.py"],
    ["bash", "-c", "A=b exec python x.py"],
    ["sh", "-c", "set -e; python prepare.py && python x.py"],
    ["mpirun", "-np", "4", "--bind-to", "core", "python", "x.py"],
    ["srun", "--ntasks=4", "python", "x.py"],
    ["python", "-m", "cachehome", "run", "--profile", "x", "--", "python", "x.py"],
]


@pytest.mark.parametrize("command", OWN, ids=" ".join)
def test_ours(command: list[str]) -> None:
    assert _python(*command) is None


@pytest.mark.parametrize("command", OWN[3:], ids=" ".join)
def test_another_virtual_environment(command: list[str], other: Path) -> None:
    path = os.pathsep.join([str(other.parent), "/usr/bin", "/bin"])
    assert _python(*command, PATH=path) == str(other)


UNKNOWN = {
    "docker": ["docker", "run", "image", "python", "x.py"],
    "ssh": ["ssh", "host", "python", "x.py"],
    "sudo": ["sudo", "python", "x.py"],
    "ray job submit": ["ray", "job", "submit", "--", "python", "x.py"],
    "not there": ["no-such-program-anywhere"],
    "nothing": [],
    "nothing behind the wrapper": ["nice"],
    "env alone": ["env", "A=b"],
    "activated first": ["bash", "-c", "source other/bin/activate && python x.py"],
    "conda": ["bash", "-c", 'eval "$(conda shell.bash hook)"; conda activate x; python x.py'],
    "PATH changed": ["bash", "-c", "PATH=/opt/x:$PATH python x.py; true"],
    "a variable": ["bash", "-c", '"$PYTHON" x.py; true'],
    "login shell": ["bash", "-lc", "python x.py"],
    "broken quotes": ["bash", "-c", "python 'x.py"],
    "no script": ["bash", "no-such-script.sh"],
    "broken env -S": ["env", "-S", "python 'x"],
    "no -- in a nested run": ["cachehome", "run"],
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_unknown_is_said(case: str) -> None:
    with pytest.raises(CacheHomeError, match="--identity FILE"):
        resolve(UNKNOWN[case], _environ())


def test_console_scripts(tmp_path: Path, other: Path) -> None:
    plain = _script(tmp_path / "vllm", f"#!{other}\nimport sys\n")
    long = _script(tmp_path / "long", f"#!/bin/sh\n'''exec' \"{other}\" \"$0\" \"$@\"\n' '''\nimport sys\n")
    by_env = _script(tmp_path / "by_env", "#!/usr/bin/env python\n")
    split = _script(tmp_path / "split", "#!/usr/bin/env -S python -u\n")
    ours = _script(tmp_path / "ours", f"#!{sys.executable}\n")
    assert _python(plain, "serve", "m") == str(other)
    assert _python(long, "serve", "m") == str(other)
    assert _python(by_env) is None
    assert _python(split) is None
    assert _python(ours) is None
    path = os.pathsep.join([str(tmp_path), str(other.parent), "/usr/bin"])
    assert _python("by_env", PATH=path) == str(other)
    assert resolve([plain, "serve", "m"], _environ()).argv == [plain, "serve", "m"]


def test_torchrun_starts_what_it_is_told(tmp_path: Path, other: Path) -> None:
    torchrun = _script(tmp_path / "torchrun", f"#!{other}\n")
    assert _python(torchrun, "--nproc-per-node", "8", "train.py") == str(other)
    assert _python(torchrun, "--no-python", "--nproc-per-node", "8", "bash", "-c", "python x.py") is None
    assert _python(torchrun, "train.py", PYTHON_EXEC=sys.executable) is None


def test_a_shell_script_that_names_one_python(tmp_path: Path, other: Path) -> None:
    good = _script(
        tmp_path / "good.sh", '#!/bin/bash\n# conda activate x\nset -eu\nexec python train.py "$@"\n'
    )
    two = _script(tmp_path / "two.sh", f"#!/bin/bash\npython prepare.py\n{other} train.py\n")
    itself = _script(tmp_path / "itself.sh", f"#!{tmp_path}/itself.sh\n")
    assert _python(good, "--lr", "1") is None
    assert "interpreter" in resolve(["bash", good], _environ()).notes
    for bad in (two, itself):
        with pytest.raises(CacheHomeError):
            resolve([bad], _environ())


def test_a_program_that_shows_no_python_is_taken_to_start_the_one_of_path(tmp_path: Path) -> None:
    script = _script(tmp_path / "none.sh", "#!/bin/bash\necho hello\n")
    chosen = _script(tmp_path / "chosen.sh", '#!/bin/bash\n"$MY_PYTHON" train.py\n')
    for command in (["/bin/ls"], [script], ["sh", "-c", "exit 7"], ["sh", "-c", "./server && exit 7"]):
        job = resolve(command, _environ())
        assert job.python is None
        assert "taken to be" in job.notes["interpreter"]
    with pytest.raises(CacheHomeError, match="no Python that can be seen"):
        resolve([chosen], _environ())  # "python" is in it, but not as a program that can be found
    with pytest.raises(CacheHomeError):
        resolve(["/bin/ls"], {"PATH": str(tmp_path / "empty")})


def test_what_env_sets_reaches_the_job() -> None:
    job = resolve(["env", "-i", "TRITON_X=1", f"PATH={PATH}", "python", "x.py"], _environ(TRITON_Y="2"))
    assert job.environ == {"TRITON_X": "1", "PATH": PATH}
    assert resolve(["bash", "-c", "TRITON_X=1 python x.py"], _environ()).environ["TRITON_X"] == "1"


@pytest.mark.parametrize(
    "manager", [["uv", "run", "--with", "x"], ["poetry", "run"], ["conda", "run", "-n", "env"]]
)
def test_a_manager_is_asked_itself(manager: list[str], tmp_path: Path, other: Path) -> None:
    count = manager.index("run") + 1 + len(manager[manager.index("run") + 1 :])
    _script(
        tmp_path / manager[0],
        f"#!/bin/sh\nshift {count - 1}\nTRITON_FROM_MANAGER=1\nexport TRITON_FROM_MANAGER\n"
        f'PATH="{other.parent}:$PATH"\nexec "$@"\n',
    )
    environ = _environ(PATH=os.pathsep.join([str(tmp_path), PATH]))
    found = identity(Settings(), environ, [*manager, "python", "x.py"])
    assert found.build["packages"]["torch"]["version"] == "9.9.9"
    assert found.build["environment"]["TRITON_FROM_MANAGER"] == "1"
    assert found.profile["program"] == "x.py"
    assert "command.interpreter" in found.left_out


def test_uv_with_an_environment_for_one_script(tmp_path: Path) -> None:
    _script(tmp_path / "uv", "#!/bin/sh\nexit 1\n")
    script = _script(tmp_path / "x.py", "# /// script\n# dependencies = []\n# ///\n")
    with pytest.raises(CacheHomeError, match="this script alone"):
        resolve(["uv", "run", script], _environ(PATH=f"{tmp_path}:{PATH}"))


# --- the other interpreter is asked -------------------------------------------------------------------------------


def test_the_identity_is_that_of_the_other_interpreter(other: Path) -> None:
    found = identity(Settings(build_key="b"), _environ(), [str(other), "x.py"])
    assert found.build["packages"] == {
        "torch": {
            "version": "9.9.9",
            "git_version": "beef",
            "record": found.build["packages"]["torch"]["record"],
        }
    }
    assert found.build["host_tag"].endswith("/torch-9.9.9")
    assert found.build["build_key"] == "b"
    assert found.build["toolchain"]["ptxas"] == "absent"


def test_asked_and_asking_agree() -> None:
    """The same interpreter under the same conditions has one build, whether it is asked in this process or another."""
    environ = {**_environ(), "PYTHONPATH": os.environ["PYTHONPATH"]}
    here = identity(Settings(), environ)
    asked = identity(Settings(), {**environ, "PYTHONSAFEPATH": ""}, [sys.executable, "-s", "x.py"])
    assert asked.build == here.build


@pytest.mark.parametrize("version", ["3.10", "3.12", "3.13", "3.14"])
def test_other_versions_of_python(version: str, tmp_path: Path) -> None:
    found = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python")) or sorted(
        Path("/usr/bin").glob(f"python{version}")
    )
    if not found:
        pytest.skip(f"no Python {version} here")
    environ = {"PATH": PATH, "HOME": str(tmp_path)}
    build = identity(Settings(), environ, [str(found[0]), "x.py"]).build
    assert build["python"]["version"] == version
    assert build["host_tag"].startswith(f"cp{version.replace('.', '')}-")


def test_an_old_python_says_so() -> None:
    found = sorted(Path.home().glob(".pyenv/versions/3.[689].*/bin/python"))
    if not found:
        pytest.skip("no old Python here")
    with pytest.raises(CacheHomeError, match=r"Python 3\.[689]"):
        identity(Settings(), _environ(), [str(found[0]), "x.py"])


def test_a_noisy_interpreter_is_understood(other: Path) -> None:
    (site,) = other.parent.parent.glob("lib/python*/site-packages")
    noisy = site / "noisy.pth"
    noisy.write_text("import sys; print('hello'); sys.stderr.write('there\\n')\n")
    try:
        assert identity(Settings(), _environ(), [str(other)]).build["packages"]["torch"]["version"] == "9.9.9"
    finally:
        noisy.unlink()


def test_a_broken_interpreter_is_an_error(tmp_path: Path) -> None:
    broken = _script(tmp_path / "python", "#!/bin/sh\necho 'no libpython' >&2\nexit 127\n")
    with pytest.raises(CacheHomeError, match="no libpython"):
        identity(Settings(), _environ(), [broken, "x.py"])


def test_the_question_leaves_nothing_behind(other: Path, tmp_path: Path) -> None:
    before = {path for path in other.parent.parent.rglob("*") if "__pycache__" not in path.parts}
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys, cachehome; print(cachehome.identity(command=sys.argv[1:]).to_json())",
            other,
        ],
        env={**os.environ, "CACHEHOME": "1"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert json.loads(done.stdout)["build"]["packages"]["torch"]["version"] == "9.9.9"
    assert {path for path in other.parent.parent.rglob("*") if "__pycache__" not in path.parts} == before
    assert list(tmp_path.iterdir()) == []
