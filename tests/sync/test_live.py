from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachehome.settings import Settings
from cachehome.sync import live, table
from cachehome.sync.live import Live, Stamp
from cachehome.sync.scan import LocalFile
from cachehome.sync.table import Table


def test_stamp_and_table_come_back(tmp_path: Path) -> None:
    one = Live(str(tmp_path / "a" / "triton"))
    assert one.stamp() is None
    assert one.table().rows() == {}
    one.make()
    stamp = Stamp("b" * 64, True, 12, 3, "c" * 64)
    one.write_stamp(stamp)
    one.write_table(Table({"x/y": table.row("d" * 64, 1, 2, 3, 0o600)}))
    assert one.stamp() == stamp
    assert one.table().rows() == {"x/y": table.row("d" * 64, 1, 2, 3, 0o600)}
    assert (tmp_path / "a" / "triton").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("text", ["", "[]", "nonsense", '{"build": 1}', "\0"])
def test_a_damaged_stamp_is_none(tmp_path: Path, text: str) -> None:
    one = Live(str(tmp_path))
    one.make()
    (tmp_path / ".cachehome" / "stamp").write_text(text)
    (tmp_path / ".cachehome" / "files").write_text(text)
    assert one.stamp() is None
    assert one.table().known("build", LocalFile("", 1, 2, 3, 0o600)) == ""


_HOLD = """
import sys
from cachehome.sync.live import Live
with Live(sys.argv[1]).locked(5) as held:
    print(held, flush=True)
    sys.stdin.read()
"""


def test_the_lock_excludes_and_gives_up(tmp_path: Path) -> None:
    one = Live(str(tmp_path))
    one.make()
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            _HOLD,
            str(tmp_path),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "True\n"
    with one.locked(0.2) as held:
        assert not held
    holder.kill()  # the kernel frees what a killed holder held
    holder.communicate()
    with one.locked(5) as held:
        assert held


def test_old_leftovers_go_and_new_ones_stay(tmp_path: Path) -> None:
    one = Live(str(tmp_path))
    one.make()
    old, new = one.staging(), one.staging()
    long_ago = time.time() - 100_000
    (Path(old) / "x").write_text("x")
    os.utime(old, (long_ago, long_ago))
    one.tidy()
    assert not os.path.exists(old)
    assert os.path.exists(new)


def test_a_directory_of_somebody_else_is_trouble(tmp_path: Path) -> None:
    assert live.trouble(str(tmp_path)) == ""
    assert live.trouble(str(tmp_path / "absent")) == ""
    (tmp_path / "file").write_text("")
    assert "not a directory" in live.trouble(str(tmp_path / "file"))
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert "written by everybody" in live.trouble(str(tmp_path / "open"))
    if os.geteuid() == 0:
        (tmp_path / "foreign").mkdir()
        os.chown(tmp_path / "foreign", 12345, 12345)
        assert "uid 12345" in live.trouble(str(tmp_path / "foreign"))


def test_an_unknown_family_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"families: 'tritn'.*triton"):
        live.in_effect(Settings(families=("tritn",)))


def test_directories_follow_the_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    both = live.in_effect(Settings())
    assert {"inductor", "triton"} <= set(both)
    assert both["triton"] == both["inductor"] + "/triton"
    assert set(live.in_effect(Settings(families=("inductor",)))) == {"inductor"}
    assert "/rank3/" in live.in_effect(Settings(slot="rank3"))["inductor"]


def test_what_could_not_be_written_leaves_nothing(tmp_path: Path) -> None:
    def pieces() -> Iterator[str]:
        yield "x/y\t" + table.row("d" * 64, 1, 2, 3, 0o600)
        raise OSError(errno.ENOSPC, "No space left on device")

    live = Live(str(tmp_path / "live"))
    live.make()
    before = os.listdir(live.own)
    with pytest.raises(OSError, match="No space"):
        live.write_table(Table(), pieces())
    assert os.listdir(live.own) == before
