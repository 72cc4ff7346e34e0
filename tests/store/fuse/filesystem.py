"""The process behind `mounted`: shows a directory, and fails, delays, hangs and shortens as its rules say."""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
import time
from typing import Any

from mfusepy import FUSE, FuseOSError, Operations


class Rules:
    """The rules in the control file, and how often each was met."""

    def __init__(self, control: str) -> None:
        self.control = control
        self.lock = threading.Lock()
        self.seen = (0, 0)
        self.version = 0
        self.faults: list[dict[str, Any]] = []
        self.met: dict[int, int] = {}

    def load(self) -> None:
        found = os.stat(self.control)
        if (found.st_mtime_ns, found.st_ino) != self.seen:
            with open(self.control, encoding="utf-8") as file:
                document = json.load(file)
            self.seen = (found.st_mtime_ns, found.st_ino)
            self.version, self.faults, self.met = document["version"], document["faults"], {}

    def meet(self, verb: str, path: str) -> int:
        """Do what the rules say of this call; the most bytes that a read may give, 0 for no bound."""
        length = 0
        for number, fault, version in self.applying(verb, path):
            if fault["seconds"] > 0:
                time.sleep(fault["seconds"])
            while fault["seconds"] < 0 and self.still(number, version):
                time.sleep(0.02)
            if fault["errno"]:
                raise FuseOSError(getattr(errno, fault["errno"]))
            length = fault["length"] or length
        return length

    def applying(self, verb: str, path: str) -> list[tuple[int, dict[str, Any], int]]:
        with self.lock:
            self.load()
            found = []
            for number, fault in enumerate(self.faults):
                if fault["verb"] not in (verb, "*") or fault["match"] not in path:
                    continue
                count = self.met.get(number, 0)
                self.met[number] = count + 1
                if count >= fault["skip"] and (not fault["times"] or count < fault["skip"] + fault["times"]):
                    found.append((number, fault, self.version))
            return found

    def still(self, number: int, version: int) -> bool:
        with self.lock:
            self.load()
            return self.version == version and number < len(self.faults)


class Shown(Operations):
    """*source*, seen through *rules*."""

    use_ns = True

    def __init__(self, source: str, rules: Rules) -> None:
        self.source = source
        self.rules = rules

    def at(self, path: str) -> str:
        return self.source + path

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        self.rules.meet("getattr", path)
        found = os.lstat(self.at(path))
        keys = ("st_mode", "st_ino", "st_dev", "st_nlink", "st_uid", "st_gid", "st_size", "st_blocks")
        times = {f"st_{kind}time": getattr(found, f"st_{kind}time_ns") for kind in "amc"}
        return {key: getattr(found, key) for key in keys} | times

    def readdir(self, path: str, fh: int) -> list[str]:
        self.rules.meet("readdir", path)
        return [".", "..", *os.listdir(self.at(path))]

    def open(self, path: str, flags: int) -> int:
        self.rules.meet("open", path)
        return os.open(self.at(path), flags)

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        self.rules.meet("create", path)
        return os.open(self.at(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        most = self.rules.meet("read", path)
        return os.pread(fh, min(size, most) if most else size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        most = self.rules.meet("write", path)
        return os.pwrite(fh, data[:most] if most else data, offset)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        os.truncate(self.at(path), length)
        return 0

    def flush(self, path: str, fh: int) -> int:
        self.rules.meet("flush", path)
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        self.rules.meet("fsync", path)
        os.fsync(fh)
        return 0

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0

    def link(self, target: str, source: str) -> int:
        self.rules.meet("link", target)
        os.link(self.at(source), self.at(target))
        return 0

    def rename(self, old: str, new: str) -> int:
        self.rules.meet("rename", new)
        os.rename(self.at(old), self.at(new))
        return 0

    def unlink(self, path: str) -> int:
        self.rules.meet("unlink", path)
        os.unlink(self.at(path))
        return 0

    def mkdir(self, path: str, mode: int) -> int:
        self.rules.meet("mkdir", path)
        os.mkdir(self.at(path), mode)
        return 0

    def rmdir(self, path: str) -> int:
        os.rmdir(self.at(path))
        return 0

    def chmod(self, path: str, mode: int) -> int:
        os.chmod(self.at(path), mode)
        return 0

    def chown(self, path: str, uid: int, gid: int) -> int:
        os.chown(self.at(path), uid, gid)
        return 0

    def utimens(self, path: str, times: tuple[int, int] | None = None) -> int:
        os.utime(self.at(path), ns=times)
        return 0

    def symlink(self, target: str, source: str) -> int:
        os.symlink(source, self.at(target))
        return 0

    def readlink(self, path: str) -> str:
        return os.readlink(self.at(path))

    def statfs(self, path: str) -> dict[str, int]:
        found = os.statvfs(self.at(path))
        return {key: getattr(found, key) for key in dir(found) if key.startswith("f_") and key != "f_fsid"}


if __name__ == "__main__":
    _, shown, mountpoint, control = sys.argv
    # direct_io: a short read is passed on as it is, not taken for the end of the file; nothing is cached.
    FUSE(
        Shown(shown, Rules(control)),
        mountpoint,
        foreground=True,
        nothreads=False,
        direct_io=True,
        attr_timeout=0,
        entry_timeout=0,
        negative_timeout=0,
        allow_other=True,
    )
