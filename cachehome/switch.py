"""The switch of one Python environment: the file `cachehome-on.pth` beside `cachehome.pth`, in site-packages.

    import os; os.environ["CACHEHOME"] = os.environ.get("CACHEHOME") or "1"

So `enable` is CACHEHOME with a value of its own, or an absolute root, in every process of this environment that was not
told otherwise. The line needs nothing of ours: left behind, it would set a variable that nobody reads. `enable` enters
the file in the RECORD of the installed package, so that an uninstall takes it away. It sorts before `cachehome.pth`,
and from Python 3.18 on, where lines of .pth are passed over, the hook reads it itself.
"""

import os
import sys

MARKER = "cachehome-on.pth"
HOOK = "cachehome.pth"
_LINE = 'import os; os.environ["CACHEHOME"] = os.environ.get("CACHEHOME") or '


def sites() -> list[str]:
    """The site directories on sys.path, by their names: site and sysconfig are too much for the hook."""
    return [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]


def read() -> str:
    """What the switch says; empty if it is off."""
    for site in sites():
        try:
            with open(os.path.join(site, MARKER), encoding="ascii") as file:
                text = file.readline().strip()
        except (OSError, ValueError):
            continue
        if text.startswith(_LINE):
            return _unquote(text[len(_LINE) :])
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
    _replace(path, f"{_LINE}{value!a}\n".encode())
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


def _unquote(text: str) -> str:
    """What ascii() made of the value; without ast, which is too much for the hook."""
    text = text[1:-1]
    return text.encode().decode("unicode_escape") if "\\" in text else text


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
