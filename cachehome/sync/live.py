"""What cachehome keeps in a live directory that it syncs.

    <family's live directory>/.cachehome/
        stamp           {"build", "whole", "restored_ns", "generation", "manifest"}: whose work lies here
        restored        how the last restore ended, for the log of who uses it (observe/activity.py)
        suspects        [sha256, ...]: packs that a restore found damaged
        files           hashes that need not be computed again: table.py
        lock            one of a node's workers fetches at a time (flock; without it, go on)
        staging-*/      a restore that is under way, or was killed
        aside-*/        what was moved out of the way: broken or denied entries

Compilers never look into it, scans skip it.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from cachehome.store import document
from cachehome.sync.scan import OWN
from cachehome.sync.table import Table

if TYPE_CHECKING:
    from cachehome.settings import Settings
    from cachehome.sync.record import Record

_STAGING = "staging-"
_ASIDE = "aside-"
_OLD = 86_400.0  # seconds; nobody restores for a day, and nobody maps a moved library for longer than its job


class Stamp(NamedTuple):
    """Whose work lies in a live directory.

    *build*: full hash. *whole*: all of it is that build's, since it was empty when it was first stamped, or
    was adopted; else only what is newer than *restored_ns*. *manifest*: sha256 of the manifest restored last.
    """

    build: str
    whole: bool
    restored_ns: int
    generation: int | None = None
    manifest: str = ""


class Live:
    """The bookkeeping of one family's live *directory*."""

    def __init__(self, directory: str) -> None:
        self.directory = os.path.realpath(directory)
        self.own = os.path.join(self.directory, OWN)

    def make(self) -> None:
        """Create the directory and our own, for this user alone. Raises OSError."""
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        os.makedirs(self.own, mode=0o700, exist_ok=True)

    # -- stamp and table ----------------------------------------------------------------------------------

    def stamp(self) -> Stamp | None:
        """The stamp; None if the directory was never synced, or its stamp can't be read."""
        found = self._load("stamp")
        if not isinstance(found, dict):
            return None
        try:
            stamp = Stamp(**found)
        except TypeError:
            return None
        kinds = (str, bool, int, int if stamp.generation is not None else type(None), str)
        return stamp if tuple(map(type, stamp)) == kinds else None

    def write_stamp(self, stamp: Stamp) -> None:
        """Replace the stamp."""
        self._store("stamp", stamp._asdict())

    def write_restored(self, record: Record) -> None:
        """Keep how a restore ended."""
        told = ("message", "directories", "relocated", "profile_fallback")
        details = {name: record.details[name] for name in told if name in record.details}
        self._store("restored", {"outcome": record.outcome, "reason": record.reason, "details": details})

    def now_ns(self) -> int:
        """The time that a file written here now would get: what `restored_ns` is compared with."""
        path = os.path.join(self.own, f"clock-{os.urandom(16).hex()}")
        with open(path, "wb", opener=_only_mine):
            found = os.stat(path).st_mtime_ns
        os.unlink(path)
        return found

    def table(self) -> Table:
        """The known hashes; none if they can't be read."""
        try:
            with open(os.path.join(self.own, "files"), "rb") as file:
                return Table.read(file.read())
        except (OSError, ValueError):
            return Table()

    def write_table(self, known: Table, fresh: Iterable[str] = ()) -> None:
        """Replace the known hashes; *fresh* lines are newer ones. Two workers may race: a lost row costs one hash."""
        self._replace("files", known.write(fresh))

    def suspects(self) -> list[str]:
        """Packs of the store that a restore found damaged, for the next publish to look at."""
        found = self._load("suspects")
        return [str(sha256) for sha256 in found] if isinstance(found, list) else []

    def write_suspects(self, packs: list[str]) -> None:
        """Replace the list."""
        self._store("suspects", packs)

    def _load(self, name: str) -> Any:
        try:
            with open(os.path.join(self.own, name), "rb") as file:
                return document.read(file.read())
        except (OSError, ValueError):
            return None

    def _store(self, name: str, content: Any) -> None:
        self._replace(name, [document.write(content)])

    def _replace(self, name: str, pieces: Iterable[bytes]) -> None:
        path = os.path.join(self.own, name)
        temporary = f"{path}.{os.urandom(16).hex()}"
        try:
            with open(temporary, "wb", opener=_only_mine) as file:
                file.writelines(pieces)
            os.replace(temporary, path)
        except BaseException:  # a full disk, or a signal
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise

    # -- moving things ------------------------------------------------------------------------------------

    def staging(self) -> str:
        """A new empty directory on the same file system."""
        path = os.path.join(self.own, f"{_STAGING}{os.urandom(16).hex()}")
        os.mkdir(path, 0o700)
        return path

    def set_aside(self, name: str, suffixes: list[str], *, tree: bool) -> None:
        """Move the files of entry *name* out of the way, the whole directory if it is a *tree*."""
        target = os.path.join(self.own, f"{_ASIDE}{os.urandom(16).hex()}")
        os.mkdir(target, 0o700)
        if tree:
            with contextlib.suppress(FileNotFoundError):
                os.rename(os.path.join(self.directory, name), os.path.join(target, os.path.basename(name)))
            return
        for suffix in suffixes:
            path = os.path.join(self.directory, name + suffix)
            with contextlib.suppress(FileNotFoundError):
                os.rename(path, os.path.join(target, os.path.basename(path)))

    def tidy(self) -> None:
        """Remove what restores of more than a day ago left behind. Never raises."""
        with contextlib.suppress(OSError), os.scandir(self.own) as listing:
            for entry in list(listing):
                old = time.time() - entry.stat(follow_symlinks=False).st_mtime > _OLD
                if old and entry.name.startswith((_STAGING, _ASIDE)):
                    import shutil

                    shutil.rmtree(entry.path, ignore_errors=True)
                elif old and entry.name.startswith(("clock-", "stamp.", "files.", "restored.")):
                    os.unlink(entry.path)

    @contextlib.contextmanager
    def locked(self, timeout: float) -> Iterator[bool]:
        """Hold the node's lock for this directory if it can be had within *timeout* seconds; yields whether.

        flock(2) by hand: importing filelock costs more than a slim restore may. Nothing rests on the lock.
        """
        import fcntl

        try:
            descriptor = os.open(os.path.join(self.own, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            yield False
            return
        try:
            held = False
            deadline = time.monotonic() + timeout
            while not held:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    held = True
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        break
                    time.sleep(0.05)
                except OSError:  # no locks here (ENOLCK, ENOSYS, ...): any of them means the same
                    break
            yield held
        finally:
            os.close(descriptor)  # never unlinked: waiters would lock another inode


def _only_mine(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def in_effect(settings: Settings) -> dict[str, str]:
    """The live directory in effect of each family that *settings* name: an exported one, else ours.

    Raises `ConfigError` for a family that no catalogue has.
    """
    from cachehome import families, home

    families.check(settings.families, "families", settings.origin["families"])
    chosen = families.chosen(families.catalogue(plugins=True), settings.families)
    return home.directories(
        os.environ, families=chosen, local=settings.local or None, slot=settings.slot or None, make=True
    )


def trouble(directory: str) -> str:
    """Why a live *directory* can't be trusted, "" if it can: code is loaded from it."""
    try:
        found = os.lstat(directory)
    except FileNotFoundError:
        return ""
    if stat.S_ISLNK(found.st_mode):
        found = os.stat(directory)
    if not stat.S_ISDIR(found.st_mode):
        return f"{directory} is not a directory"
    if found.st_uid not in (os.geteuid(), 0):
        return f"{directory} belongs to uid {found.st_uid}"
    # A sticky bit does not help: what others put there is loaded all the same.
    if found.st_mode & 0o002:
        return f"{directory} can be written by everybody: chmod o-w {directory}"
    own = os.path.join(directory, OWN)
    try:
        return "" if ours(os.lstat(own)) else f"{own} is a link, or others may write there: remove it"
    except FileNotFoundError:
        return ""


def ours(found: os.stat_result) -> bool:
    """Whether this is a directory, no link to one, that nobody but this user and root may have made and may change."""
    mode = found.st_mode
    return stat.S_ISDIR(mode) and found.st_uid in (os.geteuid(), 0) and not mode & 0o002
