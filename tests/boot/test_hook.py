"""The hook in real interpreters: what it sets, what it imports, and that it is never heard."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from venvs import Venv, clean, make_venv

INDUCTOR, TRITON = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"
pytestmark = pytest.mark.slow
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")


# --- what it sets ---


def test_off_by_default(hooked: Venv) -> None:
    assert hooked.show() == "None"
    for value in ("", " ", "0", "off", "rel", "~/x", "yes"):
        assert hooked.show(CACHEHOME=value) == "None"


def test_on(hooked: Venv, tmp_path: Path) -> None:
    assert hooked.show(CACHEHOME="1").startswith(f"{hooked.home}/.cache/cachehome/cp3")
    assert hooked.show(CACHEHOME=str(tmp_path / "root")).startswith(f"{tmp_path}/root/cp3")
    assert hooked.show(CACHEHOME="1", variable=TRITON).endswith("/local/torchinductor/triton")


def test_it_makes_no_directory(hooked: Venv, tmp_path: Path) -> None:
    hooked.show(CACHEHOME=str(tmp_path / "root"))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("flag", ["-I", "-E", "-s", "-B", "-O", "-X utf8", "-Wd"])
def test_flags_that_do_not_matter(hooked: Venv, flag: str) -> None:
    assert hooked.show(*flag.split(), CACHEHOME="1") == hooked.show(CACHEHOME="1") != "None"


def test_without_site_there_is_no_hook(hooked: Venv) -> None:
    assert hooked.show("-S", CACHEHOME="1") == "None"


def test_an_exported_value_wins(hooked: Venv) -> None:
    assert hooked.show(CACHEHOME="1", **{INDUCTOR: "/x"}) == "/x"
    assert hooked.show(CACHEHOME="1", variable=TRITON, **{INDUCTOR: "/x"}) == "/x/triton"
    assert hooked.show(CACHEHOME="1", **{INDUCTOR: ""}).startswith(str(hooked.home))
    assert hooked.show(CACHEHOME="1", **{INDUCTOR: "rel"}) == f"{hooked.directory}/rel"
    assert hooked.show(CACHEHOME="1", variable=TRITON, TRITON_HOME="/t") == "None"


CHILD = """
import os, subprocess, sys
child = "import os; print(os.environ.get('TORCHINDUCTOR_CACHE_DIR'), flush=True)"
exec(child)
subprocess.run([sys.executable, "-c", child], env={**os.environ, "LOCAL_RANK": "1", "HOME": "/elsewhere"}, check=True)
subprocess.run([sys.executable, "-c", child], env={**os.environ, "TORCHINDUCTOR_CACHE_DIR": "/mine"}, check=True)
subprocess.run([sys.executable, "-c", child], env={}, check=True)
"""


def test_children(hooked: Venv) -> None:
    parent, child, own, empty = hooked.run("-c", CHILD, CACHEHOME="1").stdout.split()
    assert parent == child != "None"
    assert own == "/mine"
    assert empty == "None"


def test_children_with_slots(hooked: Venv) -> None:
    done = hooked.run("-c", CHILD, CACHEHOME="1", CACHEHOME_SLOT="rank{LOCAL_RANK}", LOCAL_RANK="0")
    parent, child, own, _ = done.stdout.split()
    assert parent.endswith("/local/rank0/torchinductor")
    assert child == parent.replace("rank0", "rank1")
    assert own == "/mine"


def test_more_than_once(hooked: Venv) -> None:
    code = "import os, site; a = dict(os.environ); site.addsitedir({!r}); assert a == dict(os.environ)"
    assert hooked.run("-c", code.format(str(hooked.site)), CACHEHOME="1").stderr == ""


def test_the_base_interpreter_is_another_environment(hooked: Venv) -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-c", "import sys; print(sys._base_executable)"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    shown = subprocess.run(
        [done.stdout.strip(), "-c", f"import os; print(os.environ.get({INDUCTOR!r}))"],
        env=clean(CACHEHOME="1", HOME=str(hooked.home)),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert shown.stdout.strip() == "None"


# --- what it imports ---


def imported(venv: Venv, **variables: str) -> set[str]:
    done = venv.run("-X", "importtime", "-c", "pass", **variables)
    return {
        line.rpartition("|")[2].strip()
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    }


def test_imports(hooked: Venv, tmp_path: Path) -> None:
    without = imported(make_venv(tmp_path))
    assert imported(hooked) - without == set()
    on = {"cachehome"}
    for value in ("0", "1", str(tmp_path)):
        assert imported(hooked, CACHEHOME=value) - without == on


@pytest.mark.parametrize(
    "variables",
    [
        {INDUCTOR: "/tmp/torchinductor_me", "USER": "me"},
        {"CACHEHOME_SLOT": "a", "CACHEHOME_FAMILIES": "triton"},
        {"HOME": "/dev/null/x", "CACHEHOME_LOCAL": "/dev/null"},
        {"HOME": ""},
        {"TRITON_HOME": "/x"},
        {"CACHEHOME_APPLIED": "x"},
    ],
)
def test_imports_where_things_are_unusual(hooked: Venv, tmp_path: Path, variables: dict[str, str]) -> None:
    without = imported(make_venv(tmp_path), **variables)
    new = imported(hooked, CACHEHOME="1", **variables) - without
    assert {name for name in new if name.partition(".")[0] != "cachehome"} <= {"pwd"}  # built in


# --- that it is never heard ---


@pytest.mark.parametrize(
    "variable", ["CACHEHOME", "HOME", "XDG_CACHE_HOME", INDUCTOR, TRITON, "CACHEHOME_APPLIED"]
)
@pytest.mark.parametrize(
    "value", ["\udcff\udcfe", "\n", "{", "x" * 5000, "/\udce9/x", "a=b;c=%", "//", "\x01"]
)
def test_odd_values(hooked: Venv, variable: str, value: str) -> None:
    done = hooked.run("-c", "pass", **({"CACHEHOME": "1"} | {variable: value}))
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("kind", ["module", "package", "directory", "file"])
@pytest.mark.parametrize("installed", [True, False])
def test_something_else_of_our_name(venv: Venv, tmp_path: Path, kind: str, installed: bool) -> None:
    """It lies before ours on the path, or ours is gone by hand and left its line."""
    other = tmp_path / "other"
    other.mkdir()
    if kind == "module":
        (other / "cachehome.py").write_text("x = 1\n")
    elif kind == "package":
        (other / "cachehome").mkdir()
        (other / "cachehome" / "__init__.py").write_text("")
        (other / "cachehome" / "cli.py").write_text("")
    elif kind == "directory":
        (other / "cachehome").mkdir()
    else:
        (other / "cachehome").write_text("a script")
    if not installed:
        (venv.site / "cachehome").rename(venv.site / "away")
    for variables in ({"CACHEHOME": "1"}, {"CACHEHOME_STORE": "/s"}):
        shown = venv.show(PYTHONPATH=str(other), **variables)
        ours = installed and kind in ("directory", "file") and "CACHEHOME" in variables
        assert (shown != "None") == ours


def test_a_working_directory_that_is_gone(hooked: Venv, tmp_path: Path) -> None:
    code = f"""
import os, subprocess, sys
os.mkdir({str(tmp_path / "gone")!r}); os.chdir({str(tmp_path / "gone")!r}); os.rmdir({str(tmp_path / "gone")!r})
os.environ["TRITON_CACHE_DIR"] = "rel"
done = subprocess.run([sys.executable, "-c", "pass"], capture_output=True)
print(done.returncode, done.stderr)
"""
    assert hooked.run("-c", code, CACHEHOME="1").stdout == "0 b''\n"


@pytest.mark.parametrize(
    "damage",
    [
        "raise RuntimeError('broken')",
        "raise SystemExit(3)",
        "raise KeyboardInterrupt",
        "def (",
        "import no_such_module",
    ],
)
def test_a_broken_package(venv: Venv, damage: str) -> None:
    (venv.site / "cachehome" / "home.py").write_text(damage + "\n")
    unusual = {"CACHEHOME": "1", "CACHEHOME_SLOT": "a"}
    assert venv.show(**unusual) == "None"
    done = venv.run("-c", "print('ran')", CACHEHOME_DEBUG="1", **unusual)
    assert done.stdout == "ran\n"
    assert "Traceback" in done.stderr
    assert venv.run("-c", "pass", CACHEHOME_DEBUG="0", **unusual).stderr == ""


def test_no_stderr_to_write_to(venv: Venv) -> None:
    (venv.site / "cachehome" / "home.py").write_text("raise SystemExit\n")
    script = '"$0" -c "print(1)" 2>&-'
    done = subprocess.run(
        ["sh", "-c", script, str(venv.python)],
        env=clean(CACHEHOME="1", CACHEHOME_SLOT="a", CACHEHOME_DEBUG="1", HOME=str(venv.home)),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, "1\n")


def test_the_hook_is_one_plain_line(wheel: Path, hooked: Venv) -> None:
    for name in ("cachehome.pth", "cachehome.start"):
        text = (hooked.site / name).read_bytes()
        assert text.isascii()
        assert text.count(b"\n") == 1
        assert len(text.strip()) <= 170  # it asks for its variable and for its package: never a traceback
        assert not [word for word in (b"exec", b"eval", b"base64", b"http") if word in text]


# --- users without a home ---


def as_user(
    uid: int, gid: int, venv: Venv, *arguments: str, **variables: str
) -> subprocess.CompletedProcess[str]:
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("needs setpriv")
    return subprocess.run(
        [setpriv, f"--reuid={uid}", f"--regid={gid}", "--clear-groups", str(venv.python), *arguments],
        env={"PATH": "/usr/bin:/bin", "CACHEHOME": "1", **variables},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture
def open_venv(hooked: Venv) -> Venv:
    """The environment, readable by any user."""
    for directory in [hooked.directory, *hooked.directory.parents]:
        if (
            directory.stat().st_mode & 0o005 != 0o005
            and directory.owner() == "root"
            and directory != Path("/root")
        ):
            directory.chmod(directory.stat().st_mode | 0o755)
    probe = as_user(12345, 12345, hooked, "-c", "pass", CACHEHOME="0")
    if probe.returncode != 0:
        pytest.skip(f"another user can't run this Python: {probe.stderr.strip()[-100:]}")
    return hooked


@root_only
@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"HOME": "/"},
        {"HOME": "/root"},
        {"HOME": "/nonexistent"},
        {"HOME": ""},
        {"HOME": "/etc/passwd/x"},
        {"XDG_CACHE_HOME": "/root/x"},
    ],
)
@pytest.mark.parametrize("gid", [12345, 0])
def test_a_user_without_a_usable_home(open_venv: Venv, variables: dict[str, str], gid: int) -> None:
    code = f"import os; print(*map(os.environ.get, [{INDUCTOR!r}, {TRITON!r}, 'CACHEHOME_APPLIED']))"
    done = as_user(12345, gid, open_venv, "-c", code, **variables)
    assert (done.returncode, done.stdout, done.stderr) == (0, "None None None\n", "")
    status = as_user(12345, gid, open_venv, "-m", "cachehome", "status", **variables)
    assert status.returncode == 0, status.stderr
    assert "torch's own defaults apply" in status.stdout
    done = as_user(
        12345,
        gid,
        open_venv,
        "-c",
        "import cachehome.activate; print(cachehome.user_cache_dir())",
        **variables,
    )
    assert (done.stdout, done.stderr) == ("None\n", "")


@root_only
def test_another_user_with_a_directory_of_its_own(open_venv: Venv) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o711)
        os.mkdir(f"{name}/mine")
        os.chown(f"{name}/mine", 12345, 12345)
        code = f"import os; print(os.environ.get({INDUCTOR!r}))"
        done = as_user(12345, 12345, open_venv, "-c", code, XDG_CACHE_HOME=f"{name}/mine")
        assert done.stdout.startswith(f"{name}/mine/cachehome/cp3")


def test_a_package_that_was_removed_by_hand_is_silent(venv: Venv) -> None:
    """The line that stays behind looks for its package first: a traceback at every start would be worse than a miss."""
    shutil.rmtree(venv.site / "cachehome")
    assert venv.show(CACHEHOME="1") == "None"
    (venv.site / "cachehome").mkdir()  # what an uninstaller leaves where others had put files
    assert venv.show(CACHEHOME="1") == "None"
