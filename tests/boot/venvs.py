"""Real environments: venvs into which pip installs the wheel."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KEPT = ("PATH", "LANG", "LC_ALL", "SYSTEMROOT", "TMPDIR")


def clean(**variables: str) -> dict[str, str]:
    """An environment with nothing of the developer's in it."""
    return {name: os.environ[name] for name in KEPT if name in os.environ} | variables


@dataclass(frozen=True)
class Venv:
    """A virtual environment without pip of its own."""

    directory: Path
    home: Path

    @property
    def python(self) -> Path:
        return self.directory / "bin" / "python"

    @property
    def site(self) -> Path:
        return next(self.directory.glob("lib/python*/site-packages"))

    def run(
        self, *arguments: str | Path, check: bool = True, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Run this environment's Python; HOME is the venv's own, unless *variables* say otherwise."""
        environ = clean(**({"HOME": str(self.home)} | variables))
        done = subprocess.run(
            [str(self.python), *map(str, arguments)],
            env={name: value for name, value in environ.items() if value is not None},
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        if check:
            assert done.returncode == 0, done.stderr
        return done

    def show(self, *flags: str, variable: str = "TORCHINDUCTOR_CACHE_DIR", **variables: str) -> str:
        """What a plain process sees of *variable*; it must have nothing to say on stderr."""
        done = self.run(*flags, "-c", f"import os; print(os.environ.get({variable!r}))", **variables)
        assert done.stderr == ""
        return done.stdout.strip()

    def cachehome(
        self, *arguments: str, check: bool = True, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        return self.run("-m", "cachehome", *arguments, check=check, **variables)

    def pip(self, *arguments: str | Path) -> None:
        """The pip of the tests' own interpreter, working on this environment."""
        command = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            self.python,
            "--disable-pip-version-check",
            *arguments,
        ]
        done = subprocess.run(
            [str(part) for part in command],
            env=clean(HOME=str(self.home), PIP_NO_INDEX="1"),
            cwd=self.directory,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        assert done.returncode == 0, done.stdout + done.stderr

    def install(self, wheel: Path) -> None:
        self.pip("install", "--quiet", "--no-deps", wheel)

    def uninstall(self) -> None:
        self.pip("uninstall", "--quiet", "--yes", "cachehome")

    def everything(self) -> set[str]:
        """All files and directories."""
        return {str(path.relative_to(self.directory)) for path in self.directory.rglob("*")}


def make_venv(directory: Path, *options: str) -> Venv:
    directory.mkdir(exist_ok=True)
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", *options, str(directory / "venv")],
        check=True,
        timeout=100,
    )
    (directory / "home").mkdir()
    made = Venv(directory / "venv", directory / "home")
    (made.site / "another_package.py").write_text("")  # pip removes a site-packages that it leaves empty
    return made
