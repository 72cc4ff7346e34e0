"""Files that somebody named: whatever they are, reading them ends."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading

import pytest

from cachehome import named


@pytest.fixture(params=["one thread", "threads"])
def threads(request):
    """Run with this process's one thread, or with another one beside it."""
    if request.param == "one thread":
        yield
        return
    ended = threading.Event()
    other = threading.Thread(target=ended.wait)
    other.start()
    yield
    ended.set()
    other.join()


def test_a_file(tmp_path, threads):
    path = tmp_path / "file"
    for content in (b"", b"e1 x", b"x" * 300_000):
        path.write_bytes(content)
        assert named.read(str(path)) == content
    assert named.read(os.devnull) == b""


def test_what_is_none(tmp_path, threads, monkeypatch):
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "large").write_bytes(b"x" * 2000)
    monkeypatch.setattr(named, "MOST", 1000)
    expected = {
        "fifo": errno.EINVAL,
        "large": errno.EFBIG,
        "none": errno.ENOENT,
        ".": errno.EINVAL,
        "/dev/zero": errno.EINVAL,
    }
    for name, number in expected.items():
        with pytest.raises(OSError, match=os.path.basename(name)) as error:
            named.read(os.path.join(tmp_path, name))
        assert error.value.errno == number


def test_in_a_process_that_has_closed_its_streams(tmp_path):
    path = tmp_path / "file"
    path.write_text("content")
    code = (
        f"from cachehome import named; open({str(tmp_path / 'out')!r}, 'wb').write(named.read({str(path)!r}))"
    )
    subprocess.run(
        ["sh", "-c", f'exec "{sys.executable}" -c "$0" <&- >&- 2>&-', code], check=True, timeout=60
    )
    assert (tmp_path / "out").read_text() == "content"


def test_in_a_process_with_more_files_than_select_can_name(tmp_path):
    path = tmp_path / "file"
    path.write_text("content")
    code = f"""
import os, resource
from cachehome import named
try:
    resource.setrlimit(resource.RLIMIT_NOFILE, (3000, max(3000, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
except (OSError, ValueError):
    raise SystemExit(77)
for _ in range(2000):
    os.open(os.devnull, os.O_RDONLY)
assert named.read({str(path)!r}) == b"content"
"""
    ended = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, timeout=100)
    if ended.returncode == 77:
        pytest.skip("may not open so many files")
    assert (ended.returncode, ended.stderr) == (0, b"")
