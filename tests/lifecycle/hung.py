"""A file system that stops answering, as a dead file server does: FUSE, with nobody who replies.

Who touches it sleeps in the kernel. `killable`: SIGKILL still ends the sleeper, as on a hard NFS mount;
otherwise nothing does.
"""

from __future__ import annotations

import array
import os
import select
import shutil
import socket
import struct
import subprocess
import threading
from pathlib import Path

FUSERMOUNT = shutil.which("fusermount3") or shutil.which("fusermount")
_INIT = 26


class Hung:
    """*directory* hangs from `begin` to `end`."""

    def __init__(self, directory: Path, *, killable: bool = True) -> None:
        self.directory = directory
        self.killable = killable
        self.device = -1
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            subprocess.run(
                [FUSERMOUNT or "", "-o", "rw,nosuid,nodev,fsname=hung", "--", str(self.directory)],
                env={**os.environ, "_FUSE_COMMFD": str(theirs.fileno())}, pass_fds=[theirs.fileno()], check=True,
            )  # fmt: skip
            fds = array.array("i")
            _, ancillary, _, _ = ours.recvmsg(1, socket.CMSG_LEN(fds.itemsize))
            fds.frombytes(ancillary[0][2][: fds.itemsize])
        self.device = fds[0]
        if not self.killable:
            self._thread = threading.Thread(target=self._swallow, daemon=True)
            self._thread.start()

    def end(self) -> None:
        """Now every access fails, and the mount is gone."""
        if self.device >= 0:
            subprocess.run(
                [FUSERMOUNT or "", "-u", "-z", "--", str(self.directory)],
                check=False,
                stderr=subprocess.DEVNULL,
            )
            device, self.device = self.device, -1
            if self._thread:
                self._thread.join()  # the connection lives while somebody reads from it
            os.close(device)

    def _swallow(self) -> None:
        """Take requests, which makes their senders unkillable, and answer the first one only: hello."""
        while (device := self.device) >= 0:
            if not select.select([device], [], [], 0.1)[0]:
                continue
            try:
                request = os.read(device, 1 << 18)
            except OSError:
                return
            _, opcode, unique = struct.unpack_from("<IIQ", request)
            if opcode == _INIT:
                reply = (
                    struct.pack("<IIIIHHIIHHI", 7, 31, 1 << 17, 0, 12, 9, 1 << 17, 1, 32, 0, 0) + b"\0" * 28
                )
                os.write(device, struct.pack("<IiQ", 16 + len(reply), 0, unique) + reply)
