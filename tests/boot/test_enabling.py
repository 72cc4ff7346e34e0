"""enable and disable, installs, upgrades and uninstalls: nothing is left, and no start is ever noisy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from venvs import ROOT, Venv, clean, make_venv

pytestmark = pytest.mark.slow


def is_on(venv: Venv, **variables: str) -> bool:
    return venv.show(**variables) != "None"


def test_enable_and_disable(venv: Venv) -> None:
    before = venv.everything()
    record = next(venv.site.glob("cachehome-*.dist-info")) / "RECORD"
    text = record.read_bytes()
    assert venv.cachehome("disable", check=False).returncode == 3
    done = venv.cachehome("enable")
    assert done.stdout == ""
    assert is_on(venv)
    assert venv.cachehome("enable").returncode == 0  # twice is no error
    assert not is_on(venv, CACHEHOME="0")
    assert venv.show(CACHEHOME="/dev/shm/root").startswith("/dev/shm/root/")
    assert "on, by cachehome enable" in venv.cachehome("status").stdout
    assert venv.cachehome("disable").returncode == 0
    assert not is_on(venv)
    assert record.read_bytes() == text
    after = {path for path in venv.everything() if "__pycache__" not in path}
    assert after == {path for path in before if "__pycache__" not in path}


def test_enable_with_a_root(venv: Venv, tmp_path: Path) -> None:
    assert venv.cachehome("enable", "--root", "rel", check=False).returncode == 2
    venv.cachehome("enable", "--root", f"{tmp_path}/ä/root/")
    assert venv.show().startswith(f"{tmp_path}/ä/root/cp3")
    assert venv.show("-I").startswith(f"{tmp_path}/ä/root/cp3")


@pytest.mark.parametrize("enabled", [False, True])
def test_an_uninstall_leaves_nothing(wheel: Path, tmp_path: Path, enabled: bool) -> None:
    venv = make_venv(tmp_path)
    before = venv.everything()
    venv.install(wheel)
    if enabled:
        venv.cachehome("enable")
        assert is_on(venv)
    venv.uninstall()
    assert venv.everything() == before
    for variables in ({}, {"CACHEHOME": "1"}):
        assert venv.show(**variables) == "None"
    assert ".cache" not in os.listdir(venv.home)


def test_a_switch_that_was_left_behind_is_silent(venv: Venv) -> None:
    venv.cachehome("enable")
    # An installer that forgets what is not its own.
    record = next(venv.site.glob("cachehome-*.dist-info")) / "RECORD"
    record.write_text(record.read_text().replace("cachehome-on.pth,,\n", ""))
    venv.uninstall()
    assert (venv.site / "cachehome-on.pth").exists()
    assert venv.show() == "None"


@pytest.mark.parametrize("left", ["cachehome.pth", "cachehome.start", "cachehome-on.pth"])
def test_what_is_left_of_a_broken_uninstall(venv: Venv, left: str) -> None:
    venv.cachehome("enable")
    text = (venv.site / left).read_text()
    venv.uninstall()
    (venv.site / left).write_text(text)
    assert venv.show() == "None"
    (venv.site / "cachehome" / "__pycache__").mkdir(parents=True)
    assert venv.show() == "None"


def test_newer_pythons_call_the_start_file(venv: Venv) -> None:
    """From Python 3.18 on the lines of .pth are passed over: what the .start names does it all."""
    start = "from cachehome._boot import activate; activate()"
    show = "print(os.environ.get('TORCHINDUCTOR_CACHE_DIR'))"
    code = f"import os, sys; sys.path.append({str(venv.site)!r}); {start}; {show}"
    assert venv.run("-S", "-c", code).stdout == "None\n"
    for name in ("plain", "ä日", "a$b"):
        venv.cachehome("enable", "--root", f"/dev/shm/{name}")
        assert venv.run("-S", "-c", code).stdout.startswith(f"/dev/shm/{name}/cp3")
        assert venv.show().startswith(f"/dev/shm/{name}/cp3")


def test_an_upgrade_is_silent(venv: Venv, wheel: Path) -> None:
    venv.cachehome("enable")
    venv.pip("install", "--quiet", "--no-deps", "--force-reinstall", wheel)
    assert not is_on(venv)
    assert is_on(venv, CACHEHOME="1")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_read_only_environment_gives_one_line(hooked: Venv) -> None:
    script = 'mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && exec "$2" -m cachehome enable'
    done = subprocess.run(
        ["unshare", "-m", "sh", "-c", script, "sh", str(hooked.site), str(hooked.python)],
        env=clean(HOME=str(hooked.home)),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    if "mount" in done.stderr or "unshare" in done.stderr:
        pytest.skip(f"can't mount here: {done.stderr.strip()}")
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "Read-only file system; set CACHEHOME=1 instead" in done.stderr


def test_a_venv_that_sees_the_hook_of_the_one_below(hooked: Venv, tmp_path: Path) -> None:
    """enable in a venv with --system-site-packages switches the venv, not what lies below it."""
    below = make_venv(tmp_path / "below")
    (below.site / "below.pth").write_text(f"import site; site.addsitedir({str(hooked.site)!r})\n")
    assert below.show(CACHEHOME="1") != "None"
    below.cachehome("enable")
    assert (below.site / "cachehome-on.pth").exists()
    assert is_on(below)
    assert not is_on(hooked)
    below.cachehome("disable")
    assert not is_on(below)


def test_without_the_hook_enable_says_what_to_do(tmp_path: Path) -> None:
    venv = make_venv(tmp_path)
    done = venv.run("-m", "cachehome", "enable", check=False, PYTHONPATH=str(ROOT))
    assert done.returncode == 1
    assert "not installed" in done.stderr
    assert "import cachehome.activate" in done.stderr
    code = "import cachehome.activate, os; print(os.environ['TORCHINDUCTOR_CACHE_DIR'])"
    assert venv.run("-c", code, PYTHONPATH=str(ROOT)).stdout.startswith(str(venv.home))


def test_an_editable_install(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    pytest.importorskip("editables")
    venv = make_venv(tmp_path)
    before = venv.everything()
    build = f"import os, hatchling.build as b; os.chdir({str(ROOT)!r}); b.build_editable({str(tmp_path)!r})"
    subprocess.run([sys.executable, "-c", build], check=True, capture_output=True, timeout=100)
    checkout = {path.name for path in (ROOT / "cachehome").iterdir()}
    venv.install(next(tmp_path.glob("*.whl")))
    assert (
        venv.run("-c", "import cachehome; print(cachehome.__file__)").stdout.strip()
        == f"{ROOT}/cachehome/__init__.py"
    )
    assert is_on(venv, CACHEHOME="1")
    assert not is_on(venv)
    venv.cachehome("enable")
    assert is_on(venv)
    assert {path.name for path in (ROOT / "cachehome").iterdir()} - {"__pycache__"} == checkout - {
        "__pycache__"
    }
    venv.uninstall()
    assert venv.everything() == before
    assert venv.show(CACHEHOME="1") == "None"
