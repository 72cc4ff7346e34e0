"""`cachehome ls`: builds, profiles and generations of a store."""

from __future__ import annotations

import argparse
from typing import Any

from cachehome.commands import output
from cachehome.commands.store_arguments import builds_of, open_store
from cachehome.errors import IntegrityError, NotInStore
from cachehome.settings import Settings
from cachehome.store.store import Store

DESCRIPTION = "List builds, profiles and generations, with their sizes and ages."
SETTINGS = ("store", "store_timeout_seconds")
GUARDED = True


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("build", nargs="?", default="", help="only builds whose hash begins so")


def run(args: argparse.Namespace, settings: Settings) -> int:
    store = open_store(settings)
    builds = [_build(store, build) for build in builds_of(store, args.build)]
    if args.json:
        output.as_json({"store": store.url, "builds": builds})
    else:
        for build in builds:
            output.lines(*_text(build))
    if not builds:
        output.talk(f"cachehome: nothing in {store.url}")
        return 3
    return 0


def _build(store: Store, build: str) -> dict[str, Any]:
    files, size = store.usage(build)
    profiles = []
    for profile in store.profiles(build):
        generations = []
        for number in store.numbers(build, profile):
            try:
                manifest = store.read(build, profile, number).manifest
            except NotInStore:
                continue
            except (IntegrityError, PermissionError) as error:
                generations.append({"number": number, "problem": str(error)})
                continue
            name = f"{build}/profiles/{profile}/generations/{number:08d}"
            generations.append(
                {
                    "number": number,
                    "age_seconds": round(store.backend.age(name)),
                    "entries": len(manifest.entries),
                    "new_entries": sum(entry.since == number for entry in manifest.entries.values()),
                    "files": manifest.file_count,
                    "bytes": manifest.raw_bytes,
                    "packs": len(manifest.packs),
                }
            )
        profiles.append({"profile": profile, "generations": generations})
    return {"build": build, "files": files, "bytes": size, "profiles": profiles}


def _text(build: dict[str, Any]) -> list[str]:
    lines = [
        f"build {build['build'][:16]}  {build['files']} files, {output.size(build['bytes'])} in the store"
    ]
    for profile in build["profiles"]:
        lines.append(f"  profile {profile['profile'][:40]}")
        for found in profile["generations"]:
            if "problem" in found:
                lines.append(f"    {found['number']:>6}  {found['problem']}")
                continue
            lines.append(
                f"    {found['number']:>6}  {output.ago(found['age_seconds']):>7} old"
                f"  {found['entries']:>6} entries (+{found['new_entries']})"
                f"  {found['files']:>7} files  {output.size(found['bytes']):>9}"
                f"  {output.counted(found['packs'], 'pack')}"
            )
    return lines
