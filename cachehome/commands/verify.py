"""`cachehome verify`: read every byte of a store and check it against its manifests."""

from __future__ import annotations

import argparse
import hashlib
from typing import Any

from cachehome.commands import output
from cachehome.commands.store_arguments import builds_of, open_store
from cachehome.errors import IntegrityError, NotInStore
from cachehome.settings import Settings
from cachehome.store.manifest import Manifest, Pack
from cachehome.store.pack import Layout, check_frame, decompressor
from cachehome.store.store import Store

DESCRIPTION = """Check manifests, packs and files of every generation, and packs that nothing names.

Exit code: 0 all is well, 1 something is damaged, 3 the store is empty."""
SETTINGS = ("store", "store_timeout_seconds")
GUARDED = True


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("build", nargs="?", default="", help="only builds whose hash begins so")


def run(args: argparse.Namespace, settings: Settings) -> int:
    store = open_store(settings)
    totals = {"generations": 0, "packs": 0, "files": 0, "bytes": 0, "unnamed_packs": 0}
    problems: list[dict[str, Any]] = []
    builds = builds_of(store, args.build)
    for build in builds:
        _build(store, build, totals, problems)
    if args.json:
        output.as_json({"store": store.url, "builds": len(builds), **totals, "problems": problems})
    else:
        output.lines(
            f"{output.counted(len(builds), 'build')}, {output.counted(totals['generations'], 'generation')},"
            f" {output.counted(totals['packs'], 'pack')}, {output.counted(totals['files'], 'file')},"
            f" {output.size(totals['bytes'])} checked;"
            f" {output.counted(totals['unnamed_packs'], 'pack')} that no generation names"
        )
        output.lines(*(f"{problem['name']}: {problem['message']}" for problem in problems))
    if problems:
        return 1
    return 0 if totals["generations"] else 3


def _build(store: Store, build: str, totals: dict[str, int], problems: list[dict[str, Any]]) -> None:
    packs: dict[str, Pack] = {}
    files: dict[str, dict[tuple[int, int], str]] = {}
    for profile in store.profiles(build):
        for number in store.numbers(build, profile):
            try:
                manifest = store.read(build, profile, number).manifest
            except NotInStore:
                continue
            except (IntegrityError, PermissionError) as error:
                problems.append({"name": f"{build[:8]}/{profile}/{number}", "message": str(error)})
                continue
            totals["generations"] += 1
            _collect(manifest, packs, files)
    for sha256, pack in packs.items():
        totals["packs"] += 1
        try:
            _pack(store, build, pack, files[sha256], totals)
        except (IntegrityError, NotInStore, PermissionError) as error:
            problems.append({"name": f"{build[:8]}/{pack.name}", "message": str(error)})
    totals["unnamed_packs"] += len(store.packs(build) - set(packs))


def _collect(
    manifest: Manifest, packs: dict[str, Pack], files: dict[str, dict[tuple[int, int], str]]
) -> None:
    for pack in manifest.packs:
        packs[pack.sha256] = pack
        files.setdefault(pack.sha256, {})
    for entry in manifest.entries.values():
        for file in entry.files:
            files[manifest.packs[file.pack].sha256][file.offset, file.size] = file.sha256


def _pack(
    store: Store, build: str, pack: Pack, files: dict[tuple[int, int], str], totals: dict[str, int]
) -> None:
    """Read one pack whole: its own hash, its frames, its files. Memory: one frame."""
    name = f"{build}/{pack.name}"
    if store.backend.size(name) != pack.size:
        raise IntegrityError("its size is not what the manifest says", name=name, reason="pack_damaged")
    layout, decode, whole = Layout(pack), decompressor(), hashlib.sha256()
    waiting = sorted((offset, size, digest) for (offset, size), digest in files.items())
    running: list[tuple[int, Any, str]] = []  # (end, hash, expected) of files that go on in the next frame
    for number, (stored_size, _, _) in enumerate(pack.frames):
        stored = store.backend.get(name, layout.stored[number], stored_size)
        whole.update(stored)
        check_frame(stored, pack, number)
        raw = decode(stored, pack.frames[number][1])
        begin, end = layout.starts[number], layout.starts[number + 1]
        while waiting and waiting[0][0] < end:
            offset, size, digest = waiting.pop(0)
            running.append(
                (offset + size, hashlib.sha256(raw[offset - begin : offset - begin + size]), digest)
            )
            totals["files"] += 1
            totals["bytes"] += size
        still = []
        for stop, digest_so_far, expected in running:
            if stop > end:
                still.append((stop, digest_so_far, expected))
            elif digest_so_far.hexdigest() != expected:
                raise IntegrityError("a file is not what the manifest says", name=name, reason="file_damaged")
        running = still
        # A file longer than a frame begins at one's start and is alone in the next ones.
        if running and number + 1 < len(pack.frames):
            nxt = store.backend.get(name, layout.stored[number + 1], pack.frames[number + 1][0])
            check_frame(nxt, pack, number + 1)
            more = decode(nxt, pack.frames[number + 1][1])
            for stop, digest_so_far, _ in running:
                digest_so_far.update(more[: stop - end])
    if whole.hexdigest() != pack.sha256:
        raise IntegrityError("its sha256 is not its name", name=name, reason="pack_damaged")
