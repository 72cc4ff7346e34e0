"""What is read from a live directory, where a store may have brought anything: regular files of a bounded size, opened
without waiting for whoever holds the other end of a pipe.

JSON that is written there can be published: it holds no half surrogate pairs, which a variable with a byte that is no
UTF-8 has.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from typing import Any

_MOST = 1e15  # more than any count or number of seconds
_FLAGS = (
    getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)


class TooLarge(OSError):
    """A file has more bytes than are read."""


def read(path: str, most: int) -> bytes:
    """The bytes of *path*. Raises OSError, `TooLarge` if there are more than *most*."""
    with open(os.open(path, os.O_RDONLY | _FLAGS), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        data = file.read(most + 1)
    if len(data) > most:
        raise TooLarge(errno.EFBIG, os.strerror(errno.EFBIG), path)
    return data


def parse(data: bytes | str) -> Any:
    """The JSON document in *data*. Raises ValueError."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("nested too deep") from None


def dumped(document: object) -> bytes:
    """The JSON of *document*."""
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "replace")


def replace(path: str, data: bytes) -> None:
    """Write *path* whole. Raises OSError."""
    temporary = os.path.join(
        os.path.dirname(path), f".{os.path.basename(path)}.{os.getpid()}"
    )  # no scan sees it
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)  # of a process that was killed
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FLAGS, 0o666), "wb") as file:
        file.write(data)
    os.replace(temporary, path)


def shown(text: str) -> str:
    """*text* as it can be written down."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def number(value: object) -> float | None:
    """*value* if it is a finite number from 0 on, else None: a note may say anything."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _MOST:
        return None
    return value
