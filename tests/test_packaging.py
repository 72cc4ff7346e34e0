"""The wheel: what is in it, that pip installs and removes all of it, the hook included, also editable."""

from __future__ import annotations

import email
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import cachehome

ROOT = Path(__file__).resolve().parents[1]
HOOK = {
    "cachehome.pth": (ROOT / "cachehome" / "hook" / "cachehome.pth").read_text(),
    "cachehome.start": "cachehome._boot:activate\n",
}
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("packaging")]


def run(*command: str | Path, **variables: str) -> str:
    environ = {
        k: v for k, v in os.environ.items() if not k.startswith(("CACHEHOME", "PYTHON", "TORCH", "TRITON"))
    }
    done = subprocess.run(
        [str(part) for part in command],
        env=environ | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"} | variables,
        cwd=os.path.dirname(sys.executable),
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the sdist, and the wheel that is built from it."""
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    directory = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", directory, ROOT)
    return directory


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    return next(dist.glob("*.whl"))


def test_wheel_holds_the_package_and_the_hook_once(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        for name, text in HOOK.items():
            assert archive.read(name).decode() == text
    info = f"cachehome-{cachehome.__version__}.dist-info"
    assert {name.split("/")[0] for name in names} == {"cachehome", info, *HOOK}
    assert "cachehome/py.typed" in names
    assert not [name for name in names if name.startswith("cachehome/hook") or "__pycache__" in name]
    sources = {p.relative_to(ROOT).as_posix() for p in (ROOT / "cachehome").rglob("*.py")}
    assert sources == {name for name in names if name.endswith(".py")}


def test_metadata(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        info = f"cachehome-{cachehome.__version__}.dist-info"
        metadata = email.message_from_bytes(archive.read(f"{info}/METADATA"))
        scripts = archive.read(f"{info}/entry_points.txt").decode()
    assert metadata["Version"] == cachehome.__version__
    assert metadata["Requires-Python"] == ">=3.10"
    assert metadata["License-Expression"] == "Apache-2.0"
    extras = set(metadata.get_all("Provides-Extra", []))
    assert extras == {"all", "cli", "dev", "platform", "sign", "sync", "torch"}
    assert all("extra ==" in requirement for requirement in metadata.get_all("Requires-Dist", []))
    assert "cachehome = cachehome.entry:console" in scripts


def test_sdist_holds_what_the_tests_and_pages_need(dist: Path) -> None:
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"pyproject.toml", "Makefile", "LICENSE", "README.md", "CHANGELOG.md"} <= names
    assert {
        ".ci/run",
        ".ci/system",
        "docs/tutorial.md",
        "tests/test_packaging.py",
        "cachehome/hook/cachehome.pth",
    } <= names


def test_editable_wheel_has_the_hook(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    pytest.importorskip("editables")
    build = f"import os, hatchling.build as b; os.chdir({str(ROOT)!r}); b.build_editable({str(tmp_path)!r})"
    run(sys.executable, "-c", build)
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as archive:
        for name, text in HOOK.items():
            assert archive.read(name).decode() == text


def test_install_activate_uninstall_leaves_nothing(wheel: Path, tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "venv")
    python = tmp_path / "venv" / "bin" / "python"
    site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    before = {p.name for p in site.iterdir()}
    run(python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel)
    show = "import os; print(os.environ.get('TORCHINDUCTOR_CACHE_DIR'))"
    home = str(tmp_path / "home")
    os.mkdir(home)
    assert run(python, "-c", show, HOME=home) == "None\n"
    root = str(tmp_path / "root")
    assert run(python, "-c", show, HOME=home, CACHEHOME=root).startswith(root)
    assert (
        run(tmp_path / "venv" / "bin" / "cachehome", "--version", HOME=home)
        .strip()
        .endswith(cachehome.__version__)
    )
    assert os.listdir(home) == []
    run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "cachehome")
    assert {p.name for p in site.iterdir()} == before
    assert run(python, "-c", show, CACHEHOME=root) == "None\n"


def test_version_has_one_source() -> None:
    assert f'__version__ = "{cachehome.__version__}"' in (ROOT / "cachehome" / "__init__.py").read_text()
    assert cachehome.__version__ not in (ROOT / "pyproject.toml").read_text()
