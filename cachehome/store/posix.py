"""A store in a directory, on a local or shared file system. The one module that knows errnos.

    ROOT/a/b        a name; it appears complete, by link(2) or rename(2) from a temporary name in the same directory
    ROOT/a/.tmp-*   a file being written, or what a killed writer left (prune removes the old ones)

Who may read the root may read what is made in it; only its owner may write, with `shared` its group, too. Before
anything is read, the owner and mode of every directory down to it and of the file are checked (owners.py). Below the
root, symbolic links are not followed.

What shared file systems taught, and where it is minded here:
- NFS: a listing or a "no such file" may be a minute old, a handle goes stale (ESTALE) when the file was replaced: open
  by path, again, a few times. A name that begins with a dot may be a silly-renamed file: never listed.
- NFS: the reply to link(2) may be lost, so EEXIST can mean our own success: callers stamp what they create.
- BeeGFS links only within one directory: the temporary file lies beside its final name.
- Write errors (EDQUOT, ENOSPC, EIO) may come only with fsync(2) or close(2): both are checked.
- A read or a write may be short: neither is the end.
- Clocks of clients differ: ages are measured against a file that the server has just stamped.
- One file that can't be read (EIO, EACCES) is one bad file: an older generation may do. The store is unavailable when
  its root is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from cachehome.errors import (
    IntegrityError,
    NotInStore,
    StoreError,
    StoreUnavailable,
    UnsupportedStore,
    Untrusted,
)
from cachehome.store.owners import Owners

TEMPORARY = ".tmp-"
Result = TypeVar("Result")

_TRIES = 4
_FIRST_WAIT = 0.05
_BLOCK = 1 << 20
_AGAIN = {errno.ESTALE, errno.EIO, errno.EAGAIN}
_NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV}
_NO_SUCH_CALL = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EROFS}
_DENIED = {errno.EACCES, errno.EPERM}
_ABSENT = {errno.ENOENT, errno.ENOTDIR}
_ADVICE = {
    errno.ENOSPC: "the file system is full: make room there",
    errno.EDQUOT: "the quota is used up: raise it or make room",
    errno.EFBIG: "the file system takes no file so large",
    errno.EROFS: "the store is read-only: set publish = off for a reader",
    errno.EACCES: "check owner and mode",
    errno.EPERM: "check owner and mode",
    errno.EMFILE: "raise the limit of open files (ulimit -n)",
    errno.ENFILE: "this machine has too many open files",
    errno.ENAMETOOLONG: "use a shorter path",
    errno.ELOOP: "symbolic links lead in a circle",
    errno.ENOTCONN: "it is not mounted (any more): mount it again",
    errno.ENODEV: "it is not mounted (any more): mount it again",
    errno.ENXIO: "it is not mounted (any more): mount it again",
    errno.ESTALE: "the mount is stale: mount it again",
}


def without_expiry(path: str) -> str:
    """What a store at *path* lacks on WEKA, "" elsewhere: some of its path must say when it expires, `tmp-30d`."""
    from cachehome import home

    if home.network_mount(path) not in ("wekafs", "weka"):
        return ""
    for part in path.split("/"):
        if re.fullmatch(r"tmp-[0-9]+[hdwmy]", part):
            return ""
    return f"{path} is on WEKA and has no component tmp-N[hdwmy], which says when it expires"


class PosixBackend:
    """The five verbs on a directory. *owners*: whom to trust; *shared*: the group may write what is created."""

    def __init__(self, root: str, *, shared: bool = False, owners: Owners | None = None) -> None:
        self.root = root.rstrip("/") or "/"
        self.url = f"file://{self.root}"
        self.shared = shared
        self.owners = owners or Owners(shared=shared)
        self._trusted: set[str] = set()
        self._made_as: tuple[int, int, int] | None = None
        self._clock: float | None = None

    def __repr__(self) -> str:
        return f"PosixBackend({self.root!r})"

    def path(self, name: str) -> str:
        """Where *name* lies."""
        return f"{self.root}/{name}" if name else self.root

    def check(self) -> None:
        """Raise `StoreUnavailable` unless the root is a directory that can be read, `Untrusted` if it must not be."""
        path = self.root
        if not os.path.isabs(path):
            raise StoreUnavailable(f"the store {path} is not an absolute path: name it from / on", path=path)
        try:
            status = self._again(lambda: os.stat(path))
            if not stat.S_ISDIR(status.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            self._again(lambda: os.scandir(path).close())
        except NotADirectoryError as error:
            raise StoreUnavailable(
                f"the store {path} is a file, or lies below one: name a directory",
                path=path,
                errno=error.errno,
            ) from None
        except FileNotFoundError as error:
            raise StoreUnavailable(
                f"the store {path} does not exist: mount it, or make it (mkdir -p)",
                path=path,
                errno=error.errno,
            ) from None
        except OSError as error:
            raise self._unavailable(error, path, "read the store") from None
        self.owners.meet(status)
        self._must_trust(path, status)
        self._trusted.add("")

    # -- reading ---------------------------------------------------------------------------------------------------

    def get(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        path = self.path(name)
        self._trust_directories(os.path.dirname(name))
        try:
            return self._again(lambda: self._get(path, offset, length))
        except StoreError:
            raise
        except OSError as error:
            if error.errno in _ABSENT:
                raise NotInStore(f"{path} is not in the store", name=name, errno=error.errno) from None
            if error.errno in _DENIED:
                raise Untrusted(
                    f"cannot read {path}: {error.strerror}; its publisher keeps it private (shared = on, or a root"
                    " that others may read)",
                    path=path,
                    reason="unreadable",
                ) from None
            if error.errno == errno.ELOOP:
                raise Untrusted(f"{path} is a symbolic link", path=path, reason="store_untrusted") from None
            if error.errno == errno.EIO:
                raise IntegrityError(
                    f"cannot read {path}: {error.strerror}", name=name, reason="unreadable"
                ) from None
            raise self._unavailable(error, path, "read") from None

    def _get(self, path: str, offset: int, length: int | None) -> bytes:
        # A FIFO must not block: what it is shows once it is open.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise IntegrityError(f"{path} is not a regular file", name=path, reason="not_a_file")
            self._must_trust(path, status)
            left = max(0, status.st_size - offset)
            return _read(descriptor, offset, left if length is None else min(left, length))
        finally:
            os.close(descriptor)

    def list(self, prefix: str) -> list[str]:
        path = self.path(prefix)
        try:
            self._trust_directories(prefix)
            return [name for name in self._again(lambda: os.listdir(path)) if not name.startswith(".")]
        except StoreError:
            raise
        except OSError as error:
            if error.errno in _ABSENT:
                return []
            raise self._unavailable(error, path, "list") from None

    def size(self, name: str) -> int:
        return self._stat(name).st_size

    def age(self, name: str) -> float:
        written = self._stat(name).st_mtime
        if self._clock is None:
            self._clock = self._server_time(name) - time.monotonic()
        return max(0.0, self._clock + time.monotonic() - written)

    def usage(self, prefix: str) -> tuple[int, int]:
        names = size = 0
        for _, status in self._walk(self.path(prefix)):
            names += 1
            size += 0 if stat.S_ISDIR(status.st_mode) else status.st_size
        return names, size

    def temporaries(self, prefix: str) -> set[str]:
        start = len(self.root.rstrip("/")) + 1
        return {
            path[start:]
            for path, _ in self._walk(self.path(prefix))
            if os.path.basename(path).startswith(TEMPORARY)
        }

    def _walk(self, path: str) -> Iterator[tuple[str, os.stat_result]]:
        """(path, status) of all that lies below a directory, which may change meanwhile."""
        try:
            with os.scandir(path) as listing:
                entries = list(listing)
        except OSError as error:
            if error.errno in (*_ABSENT, errno.ESTALE):
                return
            raise self._unavailable(error, path, "list") from None
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            yield entry.path, status
            if stat.S_ISDIR(status.st_mode):
                yield from self._walk(entry.path)

    def _stat(self, name: str) -> os.stat_result:
        path = self.path(name)
        try:
            return self._again(lambda: os.stat(path))
        except OSError as error:
            if error.errno in (*_ABSENT, errno.ESTALE):
                raise NotInStore(f"{path} is not in the store", name=name, errno=error.errno) from None
            raise self._unavailable(error, path, "read") from None

    def _server_time(self, name: str) -> float:
        probe = self._temporary(name)  # where a collector finds it, should we be killed now
        try:
            self._write(probe, b"")
            return os.stat(probe).st_mtime
        except OSError:
            return time.time()
        finally:
            _remove(probe)

    # -- whom to trust ---------------------------------------------------------------------------------------------

    def _trust_directories(self, name: str) -> None:
        """Check each directory from the root down to *name*, once. One that is not there is no matter of trust."""
        if name in self._trusted:
            return
        if not name:
            self.check()
            return
        self._trust_directories(os.path.dirname(name))
        path = self.path(name)
        try:
            status = self._again(lambda: os.lstat(path))
        except OSError as error:
            if error.errno in _ABSENT:
                return
            raise self._unavailable(error, path, "read") from None
        self._must_trust(path, status)
        self._trusted.add(name)

    def _must_trust(self, path: str, status: os.stat_result) -> None:
        problem = (
            f"{path} is a symbolic link"
            if stat.S_ISLNK(status.st_mode)
            else self.owners.distrust(path, status)
        )
        if problem:
            raise Untrusted(
                problem,
                path=path,
                owner=status.st_uid,
                mode=stat.S_IMODE(status.st_mode),
                reason="store_untrusted",
            )

    # -- writing ---------------------------------------------------------------------------------------------------

    def put(self, name: str, source: str | bytes) -> None:
        path = self.path(name)
        try:
            self._again(lambda: self._put(name, path, source), errno.ESTALE)
        except StoreError:
            raise
        except OSError as error:
            raise self._unavailable(error, path, "write") from None

    def _put(self, name: str, path: str, source: str | bytes) -> None:
        temporary = self._temporary(name)
        try:
            self._write(temporary, source)
            os.rename(temporary, path)
        finally:
            _remove(temporary)
        _sync_directory(os.path.dirname(path))

    def put_new(self, name: str, data: bytes) -> bool:
        path = self.path(name)
        try:
            return self._again(lambda: self._put_new(name, path, data), errno.ESTALE)
        except StoreError:
            raise
        except OSError as error:
            raise self._unavailable(error, path, "write") from None

    def _put_new(self, name: str, path: str, data: bytes) -> bool:
        temporary = self._temporary(name)
        try:
            self._write(temporary, data)
            os.link(temporary, path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno in _NO_LINKS and os.path.exists(temporary):
                raise UnsupportedStore(
                    f"{self.root} has no hard links ({error.strerror}), so a commit can't be exclusive there:"
                    " publish to another file system",
                    path=path,
                    errno=error.errno,
                ) from None
            raise
        finally:
            _remove(temporary)
        _sync_directory(os.path.dirname(path))
        return True

    def delete(self, name: str) -> None:
        path = self.path(name)
        try:
            os.unlink(path)
        except OSError as error:
            # Darwin says EPERM for a directory.
            if error.errno == errno.EISDIR or (error.errno == errno.EPERM and os.path.isdir(path)):
                # A directory that somebody has just put a file into stays (ENOTEMPTY), and so does a busy one.
                with contextlib.suppress(OSError):
                    os.rmdir(path)
            elif error.errno not in (*_ABSENT, errno.ESTALE):
                raise self._unavailable(error, path, "delete") from None

    def _temporary(self, name: str) -> str:
        # Its own short name: a long final name must not push it over the limit of 255 bytes.
        return self.path(f"{os.path.dirname(name)}/{TEMPORARY}{os.urandom(16).hex()}".lstrip("/"))

    def _write(self, path: str, source: str | bytes) -> None:
        _, mode, _ = self._modes()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        for attempt in range(_TRIES):
            try:
                descriptor = os.open(path, flags, mode)
                break
            except FileNotFoundError:
                # Not made yet, or emptied and removed by a collector: both may happen again.
                if attempt + 1 == _TRIES:
                    raise
                self._make_directories(os.path.dirname(path))
        # Unbuffered: an error that comes only with close(2) is raised by the end of this block.
        with open(descriptor, "wb", buffering=0):
            self._own(descriptor, mode)
            if isinstance(source, bytes):
                _write_all(descriptor, source)
            elif self._linked(descriptor, path, source):
                return  # what was made has no name any more
            else:
                with open(source, "rb", buffering=0) as original:
                    while block := original.read(_BLOCK):
                        _write_all(descriptor, block)
            _sync(descriptor)

    def _linked(self, made: int, path: str, source: str) -> bool:
        """Let the file *source* take the place of the empty one that was *made* at *path*, instead of copying it.
        False where it can't, or would differ from a copy in more than its bytes: those of another group, say, could
        not read it."""
        name = os.path.join(os.path.dirname(path), TEMPORARY + os.urandom(16).hex())
        with open(source, "rb", buffering=0, opener=_no_link) as file:
            try:
                self._own(file.fileno(), self._modes()[1])  # before others can reach it
                if _nature(file.fileno()) != _nature(made):
                    return False
                os.utime(file.fileno())  # its age counts from now
                os.link(source, name)
                os.rename(name, path)
            except OSError:
                _remove(name)
                return False  # no links here; if it is something else, copying tells what
            _sync(file.fileno())
        return True

    def _modes(self) -> tuple[int, int, int]:
        """(mode of directories, mode of files, group) of what is made: who may read the root may read it."""
        if self._made_as is None:
            root = os.stat(self.root)
            directory = 0o700 | root.st_mode & 0o055 | (0o2070 if self.shared else 0)
            self._made_as = directory, directory & 0o666, root.st_gid
        return self._made_as

    def _own(self, target: int | str, mode: int) -> None:
        """Give what was made its *mode*, whatever the umask took, and its group. Some file systems can't: so be it."""
        group = self._modes()[2]
        found = os.stat(target)
        if self.shared and found.st_gid != group:
            with contextlib.suppress(OSError):
                os.chown(target, -1, group)
        if stat.S_IMODE(found.st_mode) & 0o777 != mode & 0o777 or mode & ~found.st_mode & stat.S_ISGID:
            with contextlib.suppress(OSError):
                os.chmod(target, mode)

    def _make_directories(self, path: str) -> None:
        # Below the root only: a store that is not mounted must not be made anew on the local disk.
        self.check()
        mode = self._modes()[0]
        missing = []
        while path != self.root and not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for directory in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(directory, mode & 0o777)
                self._own(directory, mode)

    # -- errors ----------------------------------------------------------------------------------------------------

    def _again(self, verb: Callable[[], Result], *only: int) -> Result:
        """Do *verb*, again a few times when its error may pass. A handle that was stale is no longer used then."""
        wait = _FIRST_WAIT
        for _ in range(_TRIES - 1):
            try:
                return verb()
            except StoreError:
                raise
            except OSError as error:
                if error.errno not in (only or _AGAIN) and (only or not _hidden(error)):
                    raise
            time.sleep(wait)
            wait *= 2
        return verb()

    def _unavailable(self, error: OSError, path: str, verb: str) -> StoreUnavailable:
        why = error.strerror or str(error)
        advice = _ADVICE.get(error.errno or 0, "check the mount and its server")
        if error.errno in _DENIED and verb in ("write", "delete"):
            advice += ", or set publish = off for a reader"
        if error.errno == errno.ENOSPC:
            with contextlib.suppress(OSError):
                room = os.statvfs(self.root)
                if room.f_files and not room.f_favail:
                    advice = "no inodes are left (df -i): remove files there"
        return StoreUnavailable(
            f"cannot {verb} {path}: {why}; {advice}", path=path, verb=verb, errno=error.errno
        )


def _hidden(error: OSError) -> bool:
    """Whether a name that was said not to exist is in its directory: clients cache such answers for a while."""
    path = error.filename
    if error.errno != errno.ENOENT or not isinstance(path, str):
        return False
    try:
        return os.path.basename(path) in os.listdir(os.path.dirname(path))
    except OSError:
        return False


def _read(descriptor: int, offset: int, wanted: int) -> bytes:
    if not wanted:
        return b""
    data = os.pread(descriptor, wanted, offset)
    if len(data) == wanted or not data:
        return data
    parts = [data]  # a short read is not the end of the file
    have = len(data)
    while have < wanted:
        data = os.pread(descriptor, wanted - have, offset + have)
        if not data:
            break
        parts.append(data)
        have += len(data)
    return b"".join(parts)


def _nature(descriptor: int) -> tuple[object, ...]:
    """What a file has from where it was made: file system, owner, group, mode; access list and label."""
    found = os.fstat(descriptor)
    attributes = {}
    with contextlib.suppress(OSError, AttributeError):  # none there, or none on this system
        attributes = {name: os.getxattr(descriptor, name) for name in os.listxattr(descriptor)}
    return found.st_dev, found.st_uid, found.st_gid, found.st_mode, attributes


def _no_link(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _sync(descriptor: int) -> None:
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_SUCH_CALL:
            raise


def _sync_directory(path: str) -> None:
    # Local file systems need it for the new name to survive a power cut; some network ones refuse it.
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
