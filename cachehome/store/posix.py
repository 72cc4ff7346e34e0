"""A store in a directory, on a local or shared file system. The one module that knows errnos.

    ROOT/a/b        a name; it appears complete, by link(2) or rename(2) from a temporary name in the same directory
    ROOT/a/.tmp-*   a file being written, or what a killed writer left (`tidy` removes the old ones)

What shared file systems taught, and where it is minded here:
- NFS: a listing or a "no such file" may be a minute old, a handle goes stale (ESTALE) when the file was replaced: open
  by path, again, a few times. A name that begins with a dot may be a silly-renamed file: never listed.
- NFS: the reply to link(2) may be lost, so EEXIST can mean our own success: callers stamp what they create.
- BeeGFS links only within one directory: the temporary file lies beside its final name.
- Write errors (EDQUOT, ENOSPC, EIO) may come only with fsync(2) or close(2): both are checked.
- Clocks of clients differ: ages are measured against a file that the server has just stamped.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import time
import uuid

from cachehome.errors import NotInStore, StoreError, StoreUnavailable, UnsupportedStore

TEMPORARY = ".tmp-"
_STALE_TRIES = 4
_NO_LINKS = {errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV}
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS}
_ABSENT = {errno.ENOENT, errno.ENOTDIR}


def _unavailable(error: OSError, path: str, verb: str) -> StoreError:
    why = error.strerror or str(error)
    advice = {
        **dict.fromkeys(_FULL, "make room there or raise the quota"),
        **dict.fromkeys(_DENIED, "check owner and mode, or set publish = off for a reader"),
    }.get(error.errno or 0, "check the mount")
    return StoreUnavailable(f"cannot {verb} {path}: {why}; {advice}", path=path, verb=verb, errno=error.errno)


class PosixBackend:
    """The five verbs on a directory. *shared*: the group may read and write what is created."""

    def __init__(self, root: str, *, shared: bool = False) -> None:
        self.root = root.rstrip("/") or "/"
        self.url = f"file://{self.root}"
        self.file_mode = 0o660 if shared else 0o600
        self.directory_mode = 0o2770 if shared else 0o700
        self._clock: float | None = None

    def __repr__(self) -> str:
        return f"PosixBackend({self.root!r})"

    def path(self, name: str) -> str:
        """Where *name* lies."""
        return f"{self.root}/{name}" if name else self.root

    def check(self) -> None:
        """Raise `StoreUnavailable` unless the root is a directory that can be read."""
        path = self.root
        try:
            with os.scandir(path):
                return
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
            raise _unavailable(error, path, "read the store") from None

    def get(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        path = self.path(name)
        for attempt in range(_STALE_TRIES):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    status = os.fstat(descriptor)
                    if not stat.S_ISREG(status.st_mode):
                        raise StoreUnavailable(f"{path} is not a regular file", path=path, verb="read")
                    wanted = max(0, status.st_size - offset) if length is None else length
                    return _read(descriptor, offset, wanted)
                finally:
                    os.close(descriptor)
            except OSError as error:
                if isinstance(error, StoreError):
                    raise
                if error.errno in _ABSENT:
                    raise NotInStore(f"{path} is not in the store", name=name, errno=error.errno) from None
                if error.errno != errno.ESTALE or attempt + 1 == _STALE_TRIES:
                    raise _unavailable(error, path, "read") from None
                time.sleep(0.05 * 2**attempt)
        raise AssertionError("unreachable")

    def put(self, name: str, source: str | bytes) -> None:
        path = self.path(name)
        temporary = self._temporary(name)
        try:
            self._write(temporary, source)
            os.rename(temporary, path)
            self._sync_directory(os.path.dirname(path))
        except OSError as error:
            raise _unavailable(error, path, "write") from None
        finally:
            _remove(temporary)

    def put_new(self, name: str, data: bytes) -> bool:
        path = self.path(name)
        temporary = self._temporary(name)
        try:
            self._write(temporary, data)
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
            except OSError as error:
                if error.errno in _NO_LINKS:
                    raise UnsupportedStore(
                        f"{self.root} has no hard links ({error.strerror}), so a commit can't be exclusive there:"
                        " publish to another file system",
                        path=path,
                        errno=error.errno,
                    ) from None
                raise
            self._sync_directory(os.path.dirname(path))
            return True
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            raise _unavailable(error, path, "write") from None
        finally:
            _remove(temporary)

    def list(self, prefix: str) -> list[str]:
        path = self.path(prefix)
        for attempt in range(_STALE_TRIES):
            try:
                return [name for name in os.listdir(path) if not name.startswith(".")]
            except OSError as error:
                if error.errno in _ABSENT:
                    return []
                if error.errno != errno.ESTALE or attempt + 1 == _STALE_TRIES:
                    raise _unavailable(error, path, "list") from None
                time.sleep(0.05 * 2**attempt)
        raise AssertionError("unreachable")

    def delete(self, name: str) -> None:
        path = self.path(name)
        try:
            os.unlink(path)
        except IsADirectoryError:
            self._delete_directory(path)
        except OSError as error:
            # Darwin says EPERM for a directory.
            if error.errno == errno.EPERM and os.path.isdir(path):
                self._delete_directory(path)
            elif error.errno not in (*_ABSENT, errno.ESTALE):
                raise _unavailable(error, path, "delete") from None

    def _delete_directory(self, path: str) -> None:
        # A directory that somebody has just put a file into stays (ENOTEMPTY), and so does a busy one.
        with contextlib.suppress(OSError):
            os.rmdir(path)

    def size(self, name: str) -> int:
        return self._stat(name).st_size

    def age(self, name: str) -> float:
        written = self._stat(name).st_mtime
        if self._clock is None:
            self._clock = self._server_time() - time.monotonic()
        return max(0.0, self._clock + time.monotonic() - written)

    def _stat(self, name: str) -> os.stat_result:
        try:
            return os.stat(self.path(name))
        except OSError as error:
            if error.errno in (*_ABSENT, errno.ESTALE):
                raise NotInStore(
                    f"{self.path(name)} is not in the store", name=name, errno=error.errno
                ) from None
            raise _unavailable(error, self.path(name), "read") from None

    def _server_time(self) -> float:
        probe = self._temporary("clock")
        try:
            self._write(probe, b"")
            return os.stat(probe).st_mtime
        except OSError:
            return time.time()
        finally:
            _remove(probe)

    def _temporary(self, name: str) -> str:
        # Its own short name: a long final name must not push it over the limit of 255 bytes.
        return self.path(f"{os.path.dirname(name)}/{TEMPORARY}{uuid.uuid4().hex}".lstrip("/"))

    def _write(self, path: str, source: str | bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags, self.file_mode)
        except FileNotFoundError:
            self._make_directories(os.path.dirname(path))
            descriptor = os.open(path, flags, self.file_mode)
        with open(descriptor, "wb", buffering=0) as file:
            if self.file_mode != 0o600:
                os.fchmod(descriptor, self.file_mode)  # the umask may have taken the group's rights
            if isinstance(source, bytes):
                _write_all(descriptor, source)
            else:
                with open(source, "rb") as original:
                    shutil.copyfileobj(original, file, 1 << 20)
            os.fsync(descriptor)

    def _make_directories(self, path: str) -> None:
        # Below the root only: a store that is not mounted must not be made anew on the local disk.
        self.check()
        missing = []
        while path != self.root and not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path)
        for directory in reversed(missing):
            with contextlib.suppress(FileExistsError):
                os.mkdir(directory, self.directory_mode)
                if self.directory_mode != 0o700:
                    os.chmod(directory, self.directory_mode)

    def _sync_directory(self, path: str) -> None:
        # Local file systems need it for the new name to survive a power cut; some network ones refuse it.
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return
        try:
            os.fsync(descriptor)
        except OSError:
            return
        finally:
            os.close(descriptor)


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


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _remove(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
