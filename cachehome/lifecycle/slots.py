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


def main(arguments: Sequence[str]) -> int:
    """`clone --json --identity FILE --from DIRECTORIES`: copy those to the directories in effect, else restore."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--identity", required=True)
    parser.add_argument("--from", dest="source", type=json.loads, required=True)
    args = parser.parse_args(arguments)
    from cachehome.commands import output
    from cachehome.identity import Identity
    from cachehome.settings import Settings
    from cachehome.sync.restore import restore

    settings, identity = Settings.load(), Identity.load(args.identity)
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
    try:
        for entry in scan(family, there.directory).values():
            paths = [entry.name + file.suffix for file in entry.files]
            # Only what was verified: the worker over there may be compiling by now.
            if entry.name in present or not all(map(known, [table] * len(paths), paths, entry.files)):
                continue
            if _move_in(_stage(entry, there, staging, here), entry, here, staging):
                for path, file in zip(paths, entry.files, strict=True):
                    with contextlib.suppress(OSError):
                        mine[path] = _row(os.path.join(here.directory, path), file, known(table, path, file))
                entries, files = entries + 1, files + len(paths)
                size += sum(file.size for file in entry.files)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    here.write_table(mine)
    return entries, files, size, len(present)


def _stage(entry: LocalEntry, there: Live, staging: str, here: Live) -> list[str]:
    """Copy an entry to the staging directory; its paths below it."""
    paths = []
    made = ""
    tree = _is_tree(entry)
    for file in entry.files:
        path = entry.name + file.suffix
        source, target = os.path.join(there.directory, path), os.path.join(staging, path)
        if os.path.dirname(target) != made:
            made = os.path.dirname(target)
            os.makedirs(made, mode=0o700, exist_ok=True)
        if portable.is_group(path):
            with open(source, "rb") as opened:
                children = {other.suffix[1:] for other in entry.files}
                text = portable.local(opened.read(), os.path.join(here.directory, entry.name), children)
            with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
                opened.write(text)
        elif not (tree and _link(source, target)):
            shutil.copyfile(source, target)
            os.chmod(target, file.mode)
        paths.append(path)
    return paths


def _link(source: str, target: str) -> bool:
    try:
        os.link(source, target)
        return True
    except OSError:  # another file system, or one without links
        return False


def _move_in(paths: list[str], entry: LocalEntry, here: Live, staging: str) -> bool:
    moves = [entry.name] if _is_tree(entry) else paths
    for path in moves:
        target = os.path.join(here.directory, path)
        os.makedirs(os.path.dirname(target), mode=0o700, exist_ok=True)
        try:
            os.rename(os.path.join(staging, path), target)
        except OSError:  # somebody else's is there by now
            return False
    return True


def _is_tree(entry: LocalEntry) -> bool:
    return entry.files[0].suffix[:1] == "/"


def _row(path: str, file: LocalFile, sha256: str) -> list[Any]:
    found = os.stat(path)
    return row(file._replace(size=found.st_size, mtime_ns=found.st_mtime_ns, inode=found.st_ino), sha256)


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
