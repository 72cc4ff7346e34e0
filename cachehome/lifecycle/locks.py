"""Files that several processes of a node share: locks of the kernel, and files that are replaced as a whole."""

from __future__ import annotations

import contextlib
import json
import os

try:
    import fcntl
except ImportError:  # not a POSIX system
    fcntl = None  # type: ignore[assignment]


class Lock:
    """A lock of the kernel on a file that is never removed: a removed one would have two holders."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file = -1

    def take(self) -> bool:
        """Whether it is ours now. Where there are no locks it always is."""
        if self._file >= 0 or fcntl is None:
            return True
        try:
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            return True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            return False
        except OSError:  # ENOLCK, EOPNOTSUPP, ...
            os.close(file)
            return True
        self._file = file
        return True

    def release(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def write_json(path: str, value: object) -> None:
    """Replace the file at *path* as a whole."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(value, file, indent=2)
            file.write("\n")
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
