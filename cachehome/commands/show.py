"""`cachehome show`: what a generation holds."""

from __future__ import annotations

import argparse
from typing import Any

from cachehome.commands import output
from cachehome.commands.store_arguments import GENERATION, HELP, generation, open_store
from cachehome.settings import Settings
from cachehome.store.manifest import Manifest

DESCRIPTION = "Show a generation: who made it, its packs, and its entries by family."
SETTINGS = ("store", "store_timeout_seconds")
GUARDED = True


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "generation",
        nargs="?",
        default="",
        metavar=GENERATION,
        help=HELP,
    )
    parser.add_argument("--entries", action="store_true", help="list every entry")


def run(args: argparse.Namespace, settings: Settings) -> int:
    store = open_store(settings)
    build, profile, number = generation(store, args.generation)
    found = store.read(build, profile, number)
    document = _document(found.manifest, found.sha256, entries=args.entries)
    if args.json:
        output.as_json(document)
    else:
        output.lines(*_text(document))
    return 0


def _document(manifest: Manifest, sha256: str, *, entries: bool) -> dict[str, Any]:
    families: dict[str, dict[str, int]] = {}
    for entry in manifest.entries.values():
        row = families.setdefault(entry.family, {"entries": 0, "slim": 0, "files": 0, "bytes": 0})
        row["entries"] += 1
        row["slim"] += entry.slim
        row["files"] += len(entry.files)
        row["bytes"] += sum(file.size for file in entry.files)
    document: dict[str, Any] = {
        "build": manifest.build,
        "profile": manifest.profile,
        "line": manifest.line,
        "number": manifest.number,
        "sha256": sha256,
        "parent": manifest.parent,
        "created": manifest.created,
        "publisher": manifest.publisher,
        "families": families,
        "origins": list(manifest.origins),
        "packs": [
            {"sha256": pack.sha256, "bytes": pack.size, "ir": pack.ir, "frames": len(pack.frames)}
            for pack in manifest.packs
        ],
    }
    if entries:
        document["entries"] = [
            {
                "family": entry.family,
                "name": entry.name,
                "since": entry.since,
                "slim": entry.slim,
                "files": [
                    {"path": entry.name + file.suffix, "bytes": file.size, "sha256": file.sha256}
                    for file in entry.files
                ],
            }
            for entry in manifest.entries.values()
        ]
    return document


def _text(document: dict[str, Any]) -> list[str]:
    lines = [
        f"generation {document['number']} of {document['build'][:16]}/{document['profile'][:40]}",
        f"  line {document['line']}, manifest {document['sha256'][:16]}",
    ]
    for family, row in document["families"].items():
        slim = f", {row['slim']} slim" if row["slim"] else ""
        lines.append(
            f"  {family}: {row['entries']} entries{slim}, {row['files']} files, {output.size(row['bytes'])}"
        )
    for pack in document["packs"]:
        kind = "  never read by a warm start" if pack["ir"] else ""
        lines.append(f"  pack {pack['sha256'][:16]}  {output.size(pack['bytes'])}{kind}")
    for origin in document["origins"]:
        lines.append(f"  made in {', '.join(origin.get('directories', {}).values())} on {origin.get('tag')}")
    for entry in document.get("entries", []):
        lines.append(f"  {entry['since']:>6}  {entry['family']}/{entry['name']}  {len(entry['files'])} files")
    return lines
