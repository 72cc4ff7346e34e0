"""The directory store on file systems that are full, read-only, stale or not there: real ones, or under strace."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuse import Fault, mounted
from people import as_user, injected

from cachehome.errors import (
    IntegrityError,
    NotInStore,
    StoreError,
    StoreUnavailable,
    UnsupportedStore,
    Untrusted,
)
from cachehome.store.owners import Owners
from cachehome.store.posix import TEMPORARY, PosixBackend, without_expiry
from cachehome.store.store import Store

NAME = "cachehome-v1/build/generations/00000001"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def public() -> Iterator[Path]:
    """A directory that other users can reach."""
    path = Path(tempfile.mkdtemp(prefix="cachehome-test-"))
    path.chmod(0o755)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def mount(path: Path, options: str) -> Iterator[None]:
    path.mkdir(exist_ok=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"mode=700,{options}", "none", path], check=False, capture_output=True
    )
    if done.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def leftovers(root: Path) -> list[str]:
    return [name for _, _, names in os.walk(root) for name in names if name.startswith(TEMPORARY)]


# -- what it does ------------------------------------------------------------------------------------------------------


def test_names_appear_whole_and_once(root: Path) -> None:
    backend = PosixBackend(str(root))
    assert backend.put_new(NAME, b"one")
    assert not backend.put_new(NAME, b"two")
    assert backend.get(NAME) == b"one"
    assert backend.get(NAME, 1, 100) == b"ne"
    assert backend.get(NAME, 7, 1) == b""
    backend.put(NAME, b"three")
    assert (backend.get(NAME), backend.size(NAME)) == (b"three", 5)
    assert backend.list("cachehome-v1/build/generations") == ["00000001"]
    assert backend.list("nothing/here") == []
    assert 0 <= backend.age(NAME) < 60
    backend.delete(NAME)
    backend.delete(NAME)
    with pytest.raises(NotInStore):
        backend.get(NAME)
    assert leftovers(root) == []


def test_a_file_is_put_whole(root: Path, tmp_path: Path) -> None:
    (tmp_path / "pack").write_bytes(os.urandom(3 << 20))
    PosixBackend(str(root)).put("packs/a", str(tmp_path / "pack"))
    assert (root / "packs/a").read_bytes() == (tmp_path / "pack").read_bytes()


def test_a_file_of_the_same_file_system_is_not_copied(root: Path, tmp_path: Path) -> None:
    """It gets a second name, with the mode and the age that a copy would have."""
    root.chmod(0o750)
    pack = tmp_path / "pack"
    pack.write_bytes(b"frames")
    pack.chmod(0o600)
    os.utime(pack, (1, 1))
    backend = PosixBackend(str(root))
    backend.put("packs/a", str(pack))
    found = (root / "packs/a").stat()
    assert (found.st_ino, stat.S_IMODE(found.st_mode)) == (pack.stat().st_ino, 0o640)
    assert backend.age("packs/a") < 60
    pack.unlink()
    assert backend.get("packs/a") == b"frames"
    assert leftovers(root) == []


def test_a_pack_has_the_group_of_its_directory(public: Path) -> None:
    """A publisher fills a store for the members of a group that it is not in."""
    root, pack = public / "store", public / "pack"
    root.mkdir()
    pack.write_bytes(b"frames")

    def put() -> None:
        PosixBackend(str(root)).put("packs/a", str(pack))

    def get() -> bytes:
        return PosixBackend(str(root), owners=Owners(["4001"])).get("packs/a")

    if os.geteuid() == 0:
        os.chown(root, 4001, 4000)
        os.chown(pack, 4001, 4001)
        root.chmod(0o2750)
    as_user(4001, put)
    assert as_user(4002, get, groups=[4000]) == b"frames"
    assert (root / "packs/a").stat().st_gid == 4000
    assert leftovers(root) == []


def test_a_pack_has_the_access_list_of_its_directory(root: Path, tmp_path: Path) -> None:
    """By default: owner rwx, group r-x, the group 4000 r-x, mask r-x, others nothing."""
    rows = [(1, 7, -1), (4, 5, -1), (8, 5, 4000), (16, 5, -1), (32, 0, -1)]
    default = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *row) for row in rows)
    root.chmod(0o750)
    try:
        os.setxattr(root, "system.posix_acl_default", default)
    except OSError as error:
        pytest.skip(f"no access lists here: {error}")
    pack = tmp_path / "pack"
    pack.write_bytes(b"frames")
    backend = PosixBackend(str(root))
    backend.put("a", b"written")
    backend.put("b", str(pack))
    assert (root / "b").read_bytes() == b"frames"
    lists = [os.getxattr(root / name, "system.posix_acl_access") for name in "ab"]
    assert lists[0] == lists[1]


def test_a_pack_that_everybody_may_write_to_is_never_in_the_store(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the umask is 0: who opens it then could change it later."""
    root.chmod(0o755)
    pack = tmp_path / "pack"
    pack.write_bytes(b"frames")
    pack.chmod(0o666)
    modes = []
    link = os.link
    monkeypatch.setattr(
        os, "link", lambda source, name: modes.append(os.stat(source).st_mode & 0o777) or link(source, name)
    )
    PosixBackend(str(root)).put("packs/a", str(pack))
    assert modes == [0o644]
    assert (root / "packs/a").stat().st_ino == pack.stat().st_ino


def test_a_file_of_another_file_system_is_copied(root: Path) -> None:
    with tempfile.NamedTemporaryFile(dir="/dev/shm") as pack:
        if os.stat(pack.name).st_dev == root.stat().st_dev:
            pytest.skip("one file system for all")
        pack.write(b"frames")
        pack.flush()
        backend = PosixBackend(str(root))
        backend.put("packs/a", pack.name)
        assert backend.get("packs/a") == b"frames"
        assert (root / "packs/a").stat().st_nlink == 1


def test_a_name_of_255_letters(root: Path) -> None:
    backend = PosixBackend(str(root))
    backend.put("packs/" + "n" * 255, b"x")
    assert backend.get("packs/" + "n" * 255) == b"x"
    with pytest.raises(StoreUnavailable, match="too long"):
        backend.put("packs/" + "n" * 256, b"x")


@pytest.mark.parametrize(
    ("mode", "shared", "directory", "file"),
    [
        (0o700, False, 0o700, 0o600),
        (0o755, False, 0o755, 0o644),
        (0o750, False, 0o750, 0o640),
        (0o1777, False, 0o755, 0o644),
        (0o2770, True, 0o2770, 0o660),
        (0o2775, True, 0o2775, 0o664),
    ],
)
def test_who_may_read_the_root_may_read_what_is_made(
    root: Path, mode: int, shared: bool, directory: int, file: int
) -> None:
    root.chmod(mode)
    before = os.umask(0o077)
    try:
        PosixBackend(str(root), shared=shared).put_new(NAME, b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((root / NAME).stat().st_mode) == file
    for parent in list((root / NAME).relative_to(root).parents)[:-1]:
        assert stat.S_IMODE((root / parent).stat().st_mode) == directory


# -- one line for each thing that is wrong -----------------------------------------------------------------------------


def one_line(error: StoreError, *words: str) -> None:
    text = str(error)
    assert "\n" not in text
    assert "Traceback" not in text
    for word in words:
        assert word in text


def test_missing_file_and_relative_roots(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for root, words in (
        (tmp_path / "absent", ("does not exist", "mkdir -p")),
        (tmp_path / "file", ("is a file", "name a directory")),
        (tmp_path / "file/below", ("is a file, or lies below one",)),
        (Path("relative/store"), ("not an absolute path",)),
    ):
        with pytest.raises(StoreUnavailable) as caught:
            PosixBackend(str(root)).check()
        one_line(caught.value, str(root), *words)


def test_a_root_that_may_not_be_read(public: Path) -> None:
    (public / "store").mkdir(mode=0o700)
    with pytest.raises(StoreUnavailable) as caught:
        as_user(12345, lambda: PosixBackend(str(public / "store"), owners=Owners(["0"])).check())
    one_line(caught.value, "Permission denied", "check owner and mode")


def test_a_read_only_store_is_read(root: Path) -> None:
    with mount(root, "size=1m"):
        PosixBackend(str(root)).put_new(NAME, b"x")
        subprocess.run(["mount", "-o", "remount,ro", root], check=True)
        backend = PosixBackend(str(root))
        backend.check()
        assert backend.get(NAME) == b"x"
        assert backend.age(NAME) >= 0
        for verb in (backend.put, backend.put_new):
            with pytest.raises(StoreUnavailable) as caught:
                verb("cachehome-v1/build/new", b"x")
            one_line(caught.value, "read-only", "publish = off")


def test_a_full_store_and_one_without_inodes(root: Path, tmp_path: Path) -> None:
    (tmp_path / "pack").write_bytes(bytes(2 << 20))
    with mount(root, "size=1m"):
        backend = PosixBackend(str(root))
        backend.put_new(NAME, b"x")
        for source in (bytes(2 << 20), str(tmp_path / "pack")):
            with pytest.raises(StoreUnavailable) as caught:
                backend.put("packs/a", source)
            one_line(caught.value, "full", "make room")
        assert leftovers(root) == []
        assert backend.get(NAME) == b"x"
    with mount(root, "nr_inodes=8"):
        backend = PosixBackend(str(root))
        room = os.statvfs(root).f_favail
        for number in range(room - 2):  # the directory takes one, and each file is made beside its name
            backend.put(f"packs/{number}", b"x")
        (root / "last").touch()
        with pytest.raises(StoreUnavailable) as caught:
            backend.put("packs/one-more", b"x")
        one_line(caught.value, "no inodes are left")
        assert leftovers(root) == []


def test_a_mount_whose_server_is_gone(tmp_path: Path) -> None:
    with mounted(tmp_path / "source", tmp_path / "store") as faults:
        backend = PosixBackend(str(tmp_path / "store"))
        backend.put_new(NAME, b"x")
        for name in ("ENOTCONN", "ENODEV", "ETIMEDOUT", "EHOSTDOWN"):
            faults.set(Fault("getattr", errno=name))
            with pytest.raises(StoreUnavailable) as caught:
                PosixBackend(str(tmp_path / "store")).check()
            one_line(caught.value, "mount")


# -- things that are not files -----------------------------------------------------------------------------------------


def test_odd_things_under_a_name(root: Path) -> None:
    backend = PosixBackend(str(root))
    backend.put_new(NAME, b"x")
    path = root / NAME
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(IntegrityError, match="not a regular file"):  # and it does not wait for a writer
        backend.get(NAME)
    path.unlink()
    path.symlink_to("/etc/passwd")
    with pytest.raises(Untrusted, match="symbolic link"):
        backend.get(NAME)
    path.unlink()
    path.mkdir()
    with pytest.raises((IntegrityError, StoreUnavailable)):
        backend.get(NAME)
    path.rmdir()
    if os.geteuid() == 0:
        with contextlib.suppress(PermissionError):
            os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 5))  # /dev/zero never ends
            with pytest.raises(IntegrityError, match="not a regular file"):
                backend.get(NAME)


def test_a_link_to_the_root_is_fine_and_one_below_it_is_not(root: Path, tmp_path: Path) -> None:
    PosixBackend(str(root)).put_new(NAME, b"x")
    (tmp_path / "link").symlink_to(root)
    linked = PosixBackend(str(tmp_path / "link"))
    linked.check()
    assert linked.get(NAME) == b"x"
    (root / "cachehome-v1").rename(tmp_path / "elsewhere")
    (root / "cachehome-v1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Untrusted, match="symbolic link"):
        PosixBackend(str(root)).get(NAME)


# -- injected errors ---------------------------------------------------------------------------------------------------

_READ = """
import json, sys
from cachehome.store.posix import PosixBackend
from cachehome.errors import StoreError
backend = PosixBackend(sys.argv[1])
try:
    print(json.dumps(backend.get(sys.argv[2]).decode()))
except StoreError as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""
_WRITE = """
import json, os, sys
from cachehome.store.posix import PosixBackend
from cachehome.errors import StoreError
backend = PosixBackend(sys.argv[1])
backend._temporary = lambda name: backend.path(os.path.dirname(name) + "/.tmp-x")
try:
    print(json.dumps(getattr(backend, sys.argv[3])(sys.argv[2], b"new")))
except StoreError as error:
    print(json.dumps([type(error).__name__, str(error)]))
"""


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        ("openat:error=ESTALE:when=1", "data"),
        ("openat:error=ESTALE:when=1..3", "data"),
        ("openat:error=ESTALE", "StoreUnavailable"),
        ("openat:error=EIO:when=1", "data"),
        ("openat:error=EIO", "IntegrityError"),
        ("openat:error=EACCES", "Untrusted"),
        ("openat:error=EMFILE", "StoreUnavailable"),
        ("pread64:error=EIO:when=1..2", "data"),
        ("pread64:error=EIO", "IntegrityError"),
        ("pread64:error=ESTALE:when=1", "data"),
        ("openat:error=ENOENT:when=1..2", "data"),  # a cached "no such file", while the listing has it
        ("openat:error=ETIMEDOUT", "StoreUnavailable"),
    ],
)
def test_errors_of_reading(root: Path, fault: str, found: str) -> None:
    PosixBackend(str(root)).put_new(NAME, b"data")
    answer = injected(_READ, fault, path=root / NAME, arguments=[root, NAME])
    assert (answer if isinstance(answer, str) else answer[0]) == found


@pytest.mark.parametrize("verb", ["put", "put_new"])
@pytest.mark.parametrize(
    ("fault", "found", "words"),
    [
        ("fsync:error=EDQUOT:when=1", "StoreUnavailable", "quota"),
        ("fsync:error=ENOSPC:when=1", "StoreUnavailable", "full"),
        ("fsync:error=EIO:when=1", "StoreUnavailable", "check the mount"),
        ("fsync:error=EINVAL", "", ""),
        ("fsync:error=ENOSYS", "", ""),
        ("write:error=ENOSPC:when=1", "StoreUnavailable", "full"),
        ("rename,renameat,renameat2,link,linkat:error=EIO", "StoreUnavailable", "check the mount"),
        ("rename,renameat,renameat2,link,linkat:error=ESTALE:when=1", "", ""),
        ("chmod,fchmod:error=EPERM", "", ""),
    ],
)
def test_errors_of_writing(root: Path, verb: str, fault: str, found: str, words: str) -> None:
    (root / "packs").mkdir(mode=0o700)
    path = root / "packs/.tmp-x" if fault.startswith("write") else ""  # not the writes of the interpreter
    answer = injected(_WRITE, fault, path=path, arguments=[root, "packs/a", verb])
    if found:
        assert answer[0] == found
        assert words in answer[1]
        assert os.listdir(root / "packs") == []
    else:
        assert answer in (None, True)
        assert os.listdir(root / "packs") == ["a"]


@pytest.mark.parametrize("name", ["EPERM", "ENOSYS", "EOPNOTSUPP", "EXDEV", "EMLINK"])
def test_a_file_system_without_links_is_refused(root: Path, name: str) -> None:
    answer = injected(_WRITE, f"link,linkat:error={name}", arguments=[root, "a/b", "put_new"])
    assert answer[0] == UnsupportedStore.__name__
    assert leftovers(root) == []


def test_short_reads_and_short_writes(tmp_path: Path) -> None:
    data = os.urandom(300_000)
    (tmp_path / "pack").write_bytes(data)
    with mounted(tmp_path / "source", tmp_path / "store") as faults:
        faults.set(Fault("read", length=7_001), Fault("write", length=9_001))
        backend = PosixBackend(str(tmp_path / "store"))
        backend.put("packs/a", str(tmp_path / "pack"))
        backend.put("packs/b", data)
        assert backend.get("packs/a") == backend.get("packs/b") == data
        assert backend.get("packs/a", 5, 100_000) == data[5:100_005]
    assert (tmp_path / "source/packs/a").read_bytes() == data


def test_stale_handles_and_late_errors_on_a_mount(tmp_path: Path) -> None:
    with mounted(tmp_path / "source", tmp_path / "store") as faults:
        backend = PosixBackend(str(tmp_path / "store"))
        backend.put_new(NAME, b"x")
        for verb in ("open", "read", "getattr", "readdir"):
            faults.set(Fault(verb, errno="ESTALE", times=3))
            assert backend.get(NAME) == b"x"
            assert backend.list("cachehome-v1") == ["build"]
        for verb, name in (("flush", "EDQUOT"), ("fsync", "EDQUOT"), ("flush", "EIO"), ("write", "ENOSPC")):
            faults.set(Fault(verb, errno=name))
            with pytest.raises(StoreUnavailable) as caught:
                backend.put_new("cachehome-v1/build/more", b"x")
            assert caught.value.errno == getattr(errno, name)
            faults.set()
            assert backend.list("cachehome-v1/build") == ["generations"]


@pytest.mark.parametrize(
    ("path", "fault"),
    [
        ("/weka/team/tmp-30d/caches", ""),
        ("/weka/tmp-4h/x", ""),
        ("/weka/team/caches", "tmp-N"),
        ("/weka/tmp-30x/caches", "tmp-N"),
        ("/weka/tmp-d/caches", "tmp-N"),
        ("/weka/xtmp-3d/caches", "tmp-N"),
    ],
)
def test_a_root_on_weka_says_when_it_expires(monkeypatch: pytest.MonkeyPatch, path: str, fault: str) -> None:
    monkeypatch.setattr("cachehome.home.network_mount", lambda _: "wekafs")
    assert bool(without_expiry(path)) == bool(fault)
    assert fault in (without_expiry(path))


def test_other_file_systems_may_have_any_path(tmp_path: Path) -> None:
    assert without_expiry(str(tmp_path)) == ""


def test_a_store_on_weka_without_an_expiry_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cachehome.home.network_mount", lambda _: "wekafs")
    with pytest.raises(StoreUnavailable, match="tmp-N") as caught:
        Store.open(str(tmp_path))
    assert caught.value.reason == "no_expiry"
