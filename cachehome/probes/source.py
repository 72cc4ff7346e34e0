"""Owns the `sources` and `image` parts of a build: content of files and trees, commits, and the image's digest.

commit 1f0c9b2d...                   a clean checkout
commit 1f0c9b2d... + 5a7e...         with changes that are not committed, by their content
tree 9d41...                         no checkout: every file by its path in the tree and its content
file 77ab...
"""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from cachehome.named import read
from cachehome.probes import ABSENT, ProbeError, Tool, find_program, value

if TYPE_CHECKING:
    import hashlib
    from collections.abc import Callable, Iterator, Mapping

MOST_FILES = 50_000
MOST_BYTES = 2 << 30
_SKIPPED = frozenset(
    {".git", ".hg", ".svn", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".tox", ".venv"}
)
# Nothing of a checkout's own configuration is run: it may be somebody else's.
_GIT = ["-c", "core.fsmonitor=false", "-c", "safe.directory=*", "-c", "core.hooksPath=/dev/null"]


def image(text: str) -> str:
    """A digest as given, or the one that a file holds."""
    if not os.path.isabs(text):
        return text
    try:
        return read(text)[:4096].decode(errors="replace").strip() or "error: the file is empty"
    except OSError as error:
        raise ProbeError(f"the file: {error.strerror}") from None


def start(path: str, environ: Mapping[str, str]) -> Callable[[], str]:
    """Begin to describe the file or tree at *path*; the answer is asked for later."""
    if os.path.isfile(path):
        return lambda: f"file {file_digest(path)}"
    if not os.path.isdir(path):
        return lambda: ABSENT
    git = find_program("git", environ)
    if git is None or not _in_checkout(path):
        return lambda: f"tree {value(tree_digest, path)}"
    command = [git, *_GIT, "-C", path]
    quiet = {**environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_CONFIG_NOSYSTEM": "1", "GIT_PAGER": "cat"}
    for name in ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_EXTERNAL_DIFF"):
        quiet.pop(name, None)
    head = Tool([*command, "rev-parse", "HEAD"], quiet)
    changed = Tool(
        [*command, "diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv", "--no-color", "--", "."],
        quiet,
    )
    untracked = Tool([*command, "ls-files", "-z", "--others", "--exclude-standard"], quiet)

    def answer() -> str:
        # All three are asked before any may fail, or the others would be left behind.
        outputs = [value(tool.output) for tool in (head, changed, untracked)]
        failed = next((output for output in outputs if isinstance(output, str)), None)
        if failed:
            return f"tree {value(tree_digest, path)}"
        dirt = _dirt(path, outputs[1], outputs[2])
        return f"commit {outputs[0].decode().strip()}" + (f" + {dirt}" if dirt else "")

    return answer


def file_digest(path: str) -> str:
    """16 hex digits of the content, or why there is none."""
    return str(value(_file_digest, path))


def _file_digest(path: str) -> str:
    import hashlib

    digest = hashlib.sha256()
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise ProbeError("not a file")  # a pipe would be waited for without end
    _feed(digest, path)
    return digest.hexdigest()[:16]


def tree_digest(path: str) -> str:
    """16 hex digits of all files below *path*: names, executability and content; links by what they say."""
    import hashlib

    digest = hashlib.sha256()
    total = 0
    for files, (name, full) in enumerate(_files(path), 1):
        found = os.lstat(full)
        total += found.st_size
        if files > MOST_FILES or total > MOST_BYTES:
            raise ProbeError(f"more than {MOST_FILES} files or {MOST_BYTES >> 30} GiB")
        digest.update(os.fsencode(name) + b"\0")
        if stat.S_ISLNK(found.st_mode):
            digest.update(b"link\0" + os.fsencode(os.readlink(full)))
        elif stat.S_ISREG(found.st_mode):
            digest.update(b"run\0" if found.st_mode & 0o100 else b"file\0")
            digest.update(found.st_size.to_bytes(8, "big"))
            _feed(digest, full)
    return digest.hexdigest()[:16]


def _files(path: str) -> Iterator[tuple[str, str]]:
    for directory, directories, names in os.walk(path):
        directories[:] = sorted(
            name
            for name in directories
            if name not in _SKIPPED and not name.endswith((".egg-info", ".dist-info"))
        )
        links = [name for name in directories if os.path.islink(os.path.join(directory, name))]
        for name in sorted([*names, *links]):
            if not name.endswith((".pyc", ".pyo")):
                full = os.path.join(directory, name)
                yield os.path.relpath(full, path), full


def _feed(digest: hashlib._Hash, path: str) -> None:
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)


def _in_checkout(path: str) -> bool:
    here = os.path.abspath(path)
    while not os.path.exists(os.path.join(here, ".git")):
        here, child = os.path.dirname(here), here
        if here == child:
            return False
    return True


def _dirt(path: str, changed: bytes, untracked: bytes) -> str:
    import hashlib

    if not changed and not untracked:
        return ""
    digest = hashlib.sha256(changed)
    for name in sorted(untracked.split(b"\0")):
        if name:
            digest.update(name + b"\0" + file_digest(os.path.join(path, os.fsdecode(name))).encode())
    return digest.hexdigest()[:16]
