"""The switch of one Python environment: the file `cachehome.on` beside `cachehome.pth`, in site-packages.

It holds what CACHEHOME would: `1`, or an absolute root. `enable` writes it and enters it in the RECORD of the
installed package, so that an uninstall takes it away; a leftover would be a text file that nothing reads.
Imports os and sys only: the start-up hook looks here when CACHEHOME is unset.
"""

import os
import sys

from cachehome._boot import MARKER

HOOK = "cachehome.pth"


def sites() -> list[str]:
    """The site directories on sys.path, by their names: site and sysconfig are too much for the hook."""
    return [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]


def read() -> str:
    """What the switch says; empty if it is off."""
    for site in sites():
        try:
            descriptor = os.open(os.path.join(site, MARKER), os.O_RDONLY)
        except OSError:
            continue
        try:
            return os.fsdecode(os.read(descriptor, 4096)).strip()
        finally:
            os.close(descriptor)
    return ""


def hooked() -> list[str]:
    """The site directories that hold the start-up hook."""
    return [site for site in sites() if os.path.exists(os.path.join(site, HOOK))]


def turn_on(value: str = "1") -> str:
    """Switch this environment on, return the file that was written; empty if there is no hook."""
    places = hooked()
    if places and sys.prefix != sys.base_prefix:
        # A venv that sees the hook of the Python below it: switch this venv, not that Python.
        places = [site for site in sites() if site.startswith(sys.prefix + os.sep)] or places
    if not places:
        return ""
    path = os.path.join(places[0], MARKER)
    _replace(path, os.fsencode(value) + b"\n")
    _record(places[0], present=True)
    return path


def turn_off() -> list[str]:
    """Switch it off, return the files that were removed."""
    removed = []
    for site in sites():
        path = os.path.join(site, MARKER)
        try:
            os.unlink(path)
        except FileNotFoundError:
            continue
        _record(site, present=False)
        removed.append(path)
    return removed


def _record(site: str, *, present: bool) -> None:
    """Enter the switch in the RECORD of the package that installed the hook, or strike it out."""
    line = f"{MARKER},,".encode()
    for name in os.listdir(site):
        path = os.path.join(site, name, "RECORD")
        if not (name.startswith("cachehome-") and name.endswith(".dist-info") and os.path.exists(path)):
            continue
        with open(path, "rb") as file:
            text = file.read()
        end = b"\r\n" if b"\r\n" in text else b"\n"
        lines = [row for row in text.splitlines() if row != line]
        if present:
            lines.append(line)
        _replace(path, end.join(lines) + end)


def _replace(path: str, data: bytes) -> None:
    """Write by rename: an installer may have hard-linked what is there to its own cache."""
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        mode = os.stat(path).st_mode & 0o7777
    except FileNotFoundError:
        mode = 0o644
    try:
        with open(temporary, "wb") as file:
            file.write(data)
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except OSError:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
