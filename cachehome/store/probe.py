"""What a place must be able to do for a store to lie there: tried out, in a scratch directory of its own.

A finding is `ok`, `warn` (it works, and something is worth knowing) or `fail` (publishing, or all, will not work).
"""

from __future__ import annotations

import os
import time
import uuid
from typing import NamedTuple

from cachehome.errors import StoreError, UnsupportedStore
from cachehome.store.backend import Backend, Nested
from cachehome.store.posix import PosixBackend, without_expiry

OK, WARN, FAIL = "ok", "warn", "fail"
_SKEW = 60.0
_ROOM = 1 << 30
_INODES = 10_000
_LEAST_ROOM, _LEAST_INODES = 16 << 20, 100  # with less, no publication will do


class Finding(NamedTuple):
    """One thing that was looked at."""

    name: str
    state: str
    message: str


def examine(backend: Backend, *, max_bytes: int = 0, publishes: bool = True) -> list[Finding]:
    """Try out *backend*. *max_bytes*: how large one build may grow. *publishes*: whether it is to be written to."""
    bad = FAIL if publishes else WARN
    findings = []
    if isinstance(backend, PosixBackend):
        findings += _place(backend, max_bytes, bad)
    scratch = Nested(backend, f"cachehome-doctor-{uuid.uuid4().hex}")
    try:
        findings += _try_out(scratch)
    except UnsupportedStore as error:
        findings.append(Finding("exclusive", FAIL, str(error)))
    except StoreError as error:
        # What it says of a scratch file holds for the whole place.
        why = str(error).removeprefix(f"cannot write {error.fields.get('path')}: ")
        findings.append(Finding("writable", bad, f"nothing can be published: {why}"))
    finally:
        for name in ("once", "twice", ""):
            try:
                scratch.delete(name)
            except StoreError:
                break
    return findings


def _place(backend: PosixBackend, max_bytes: int, bad: str) -> list[Finding]:
    from cachehome import home

    kind = home.network_mount(backend.root)
    told = f"{kind}, shared between hosts" if kind else "a local file system: only this host sees it"
    findings = [Finding("file system", OK, told)]
    expiry = without_expiry(backend.root)
    if expiry:
        findings.append(Finding("expiry", WARN, expiry))
    if "," in backend.root:
        findings.append(
            Finding("path", FAIL, "it holds a comma, which separates stores in settings: choose another")
        )
    room = os.statvfs(backend.root)
    free = room.f_bavail * room.f_frsize
    wanted = max(_ROOM, max_bytes)
    told = f"{free / 1e9:.1f} GB free"
    if free < wanted:
        told += (
            f": less than one build may take ({wanted / 1e9:.1f} GB): make room, or lower max_storage_bytes"
        )
    state = OK if free >= wanted else bad if free < _LEAST_ROOM else WARN
    findings.append(Finding("room", state, told))
    if room.f_files:
        state = OK if room.f_favail >= _INODES else bad if room.f_favail < _LEAST_INODES else WARN
        told = f"{room.f_favail} inodes free" + ("" if state == OK else ": remove files there (df -i)")
        findings.append(Finding("inodes", state, told))
    return findings


def _try_out(scratch: Nested) -> list[Finding]:
    data = os.urandom(4096)
    before = time.time()
    scratch.put("once", data)
    findings = [Finding("writable", OK, "files can be made")]
    again = scratch.put_new("twice", data) and not scratch.put_new("twice", b"another")
    kept = scratch.get("twice") == data
    if again and kept:
        findings.append(Finding("exclusive", OK, "a name is created once, and complete"))
    else:
        told = (
            "a name was created twice: publishers would overwrite each other"
            if kept
            else "it was overwritten"
        )
        findings.append(Finding("exclusive", FAIL, f"{told}; publish to another file system"))
    scratch.put("once", data[::-1])
    if scratch.get("once") != data[::-1] or scratch.get("once", 10, 10) != data[::-1][10:20]:
        findings.append(Finding("reads", FAIL, "what was written is not what is read back"))
    if not {"once", "twice"} <= set(scratch.list("")):
        findings.append(Finding("listing", WARN, "a listing does not show what was just made: it lags"))
    if isinstance(scratch.backend, PosixBackend):
        skew = os.stat(scratch.backend.path(f"{scratch.prefix}/once")).st_mtime - before
        state = WARN if abs(skew) > _SKEW else OK
        told = f"its clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} this host's"
        findings.append(
            Finding("clock", state, told if state == WARN else "its clock agrees with this host's")
        )
    scratch.delete("once")
    if "once" in scratch.list(""):
        findings.append(Finding("deletion", WARN, "what was deleted is still listed: it lags"))
    return findings
