"""Private live directories of the workers of a node: one of them is restored, the others are cloned from it.

    ROOT/<host tag>/<build8>/rank0/torchinductor   restored, every byte verified
                            /rank1/torchinductor   cloned: what its table of hashes says is untouched since
                                                   then

A file of a Triton kernel is hard-linked: Triton replaces files, it never writes into one. Inductor compiles
libraries and writes tuning results in place, so its files are copied. Groups name absolute paths and are
written anew.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import time
from typing import TYPE_CHECKING, Any

from cachehome.sync import portable
from cachehome.sync.live import Live, Stamp, in_effect, known, row
from cachehome.sync.record import Phases, Record
from cachehome.sync.scan import LocalEntry, LocalFile, scan

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cachehome.families import Family
    from cachehome.identity import Identity
    from cachehome.lifecycle.place import Place


def restore_all(places: Sequence[Place], seconds: float, since: float) -> list[Record]:
    """Restore the first of *places* and clone the others from it, in one process; their records."""
    from cachehome.lifecycle.transfer import Transfer, environment, record_from

    until = time.monotonic() + seconds
    first = places[0].restore(seconds, since=since).wait()
    others = list(places[1:])
    if others and first.outcome == "hit":
        targets = json.dumps([place.directories for place in others])
        cloned = Transfer(
            "restore",
            environment(places[0].environ, places[0].settings),
            verb="clone",
            identity=places[0].identity_file,
            arguments=["--from", json.dumps(places[0].directories), "--to", targets],
            seconds=max(1.0, until - time.monotonic()),
            modest=False,
        ).wait()
        each = cloned.details.get("each", [])
        if len(each) == len(others):
            return [first, *map(record_from, each)]
    steps = [place.restore(max(1.0, until - time.monotonic()), since=since) for place in others]
    while sum(step.poll() is None for step in steps):
        time.sleep(0.02)
    return [first, *(step.wait() for step in steps)]


def main(arguments: Sequence[str]) -> int:
    """`clone --json --identity FILE --from DIRECTORIES [--to LIST OF DIRECTORIES]`, for `child`.

    Without a list, the directories in effect become a copy, and are restored if that can't be.
    """
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--identity", required=True)
    parser.add_argument("--from", dest="source", type=json.loads, required=True)
    parser.add_argument("--to", type=json.loads)
    args = parser.parse_args(arguments)
    from cachehome.commands import output
    from cachehome.identity import Identity
    from cachehome.settings import Settings
    from cachehome.sync import parallel
    from cachehome.sync.restore import restore

    identity = Identity.load(args.identity)
    if args.to is not None:

        def one(target: dict[str, str]) -> dict[str, Any]:
            return clone(identity, args.source, target).to_json()

        records = list(parallel.each(one, args.to))
        return output.record(Record("restore", "hit", "cloned", details={"each": records}), json_wanted=True)
    settings = Settings.load()
    try:
        record = clone(identity, args.source, in_effect(settings))
    except (OSError, ValueError):  # somebody works there, or wiped it
        record = restore(settings, identity)
    return output.record(record, json_wanted=True)


def clone(identity: Identity, source: Mapping[str, str], target: Mapping[str, str]) -> Record:
    """Fill the *target* directories (family to path) with what was restored into *source*. What is there
    stays.

    Raises ValueError if a directory is not of this build, OSError if it can't be read or written.
    """
    from cachehome import families

    phases = Phases()
    catalogue = families.catalogue(plugins=True)
    entries = files = size = 0
    generation: int | None = None
    with phases("clone"):
        for name in sorted(source.keys() & target.keys() & catalogue.keys()):
            there, here = Live(source[name]), Live(target[name])
            stamp, mine = there.stamp(), here.stamp()
            if stamp is None or stamp.build != identity.build_key:
                raise ValueError(f"{there.directory} was not restored for this build")
            if mine is not None and mine.build != identity.build_key:
                raise ValueError(f"{here.directory} belongs to another build")
            here.make()
            found = _clone(catalogue[name], there, here)
            whole = mine.whole if mine else not found[3]
            here.write_stamp(
                Stamp(identity.build_key, whole, here.now_ns(), stamp.generation, stamp.manifest)
            )
            generation = stamp.generation if stamp.generation is not None else generation
            entries, files, size = entries + found[0], files + found[1], size + found[2]
    return Record(
        "restore",
        "hit",
        "cloned",
        identity.build_key,
        identity.profile_key,
        generation,
        entries,
        files,
        size,
        seconds=phases.seconds,
        details={"from": dict(source), "directories": dict(target)},
    )


def _clone(family: Family, there: Live, here: Live) -> tuple[int, int, int, int]:
    """Counts of entries, files and bytes that came, and of entries that were here."""
    table, mine = there.table(), here.table()
    present = scan(family, here.directory)
    entries = files = size = 0
    staging = here.staging()
    made: set[str] = set()
    try:
        for entry in scan(family, there.directory).values():
            rows = [known(table, entry.name + file.suffix, file) for file in entry.files]
            # Only what was verified: the worker over there may be compiling by now.
            if entry.name in present or not all(rows):
                continue
            bring = _tree if entry.files[0].suffix[:1] == "/" else _files
            came = bring(entry, there, here, staging, made)
            for file, sha256, found in zip(entry.files, rows, came, strict=False):
                changed = file._replace(size=found.st_size, mtime_ns=found.st_mtime_ns, inode=found.st_ino)
                mine[entry.name + file.suffix] = row(changed, sha256)
            if came:
                entries, files = entries + 1, files + len(came)
                size += sum(file.size for file in entry.files)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    here.write_table(mine)
    return entries, files, size, len(present)


def _tree(entry: LocalEntry, there: Live, here: Live, staging: str, made: set[str]) -> list[os.stat_result]:
    """Bring a directory that is one entry. The status of its files; none if somebody else's is there by now."""
    directory = os.path.join(staging, "tree")
    os.mkdir(directory, 0o700)
    target = os.path.join(here.directory, entry.name)
    children = {file.suffix[1:] for file in entry.files}
    came = []
    for file in entry.files:
        source, copy = f"{there.directory}/{entry.name}{file.suffix}", directory + file.suffix
        if "/" in file.suffix[1:]:
            os.makedirs(os.path.dirname(copy), mode=0o700, exist_ok=True)
        if portable.is_group(file.suffix):
            came.append(_write(copy, portable.local(_read(source), target, children)))
        else:
            came.append(_link_or_copy(source, copy, file))
    _make_parent(target, made)
    try:
        os.rename(directory, target)
    except OSError:
        shutil.rmtree(directory, ignore_errors=True)
        return []
    return came


def _files(entry: LocalEntry, there: Live, here: Live, staging: str, made: set[str]) -> list[os.stat_result]:
    """Bring files that are one entry, one by one."""
    came = []
    copy = os.path.join(staging, "file")
    for file in entry.files:
        path = entry.name + file.suffix
        target = os.path.join(here.directory, path)
        _make_parent(target, made)
        _copy(os.path.join(there.directory, path), copy, file)
        came.append(os.stat(copy))
        os.rename(copy, target)
    return came


def _make_parent(path: str, made: set[str]) -> None:
    parent = os.path.dirname(path)
    if parent not in made:
        os.makedirs(parent, mode=0o700, exist_ok=True)
        made.add(parent)


def _link_or_copy(source: str, target: str, file: LocalFile) -> os.stat_result:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        _copy(source, target, file)
    return os.stat(target)


def _copy(source: str, target: str, file: LocalFile) -> None:
    shutil.copyfile(source, target)
    if file.mode != 0o600:
        os.chmod(target, file.mode)


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


def _write(path: str, data: bytes) -> os.stat_result:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb", buffering=0) as file:
        file.write(data)
        return os.fstat(file.fileno())


def remove(live: str, seconds: float = 60.0) -> None:
    """Remove the private directory *live* of a worker. Never raises, and leaves what it can't remove."""
    until = time.monotonic() + seconds
    aside = f"{live}.gone-{os.getpid()}"
    with contextlib.suppress(OSError):
        os.rename(live, aside)  # at once, so that nobody finds half of it
        live = aside
    while os.path.lexists(live) and time.monotonic() < until:
        shutil.rmtree(live, ignore_errors=True)
        if os.path.lexists(live):
            time.sleep(0.1)
