"""`cachehome prune`: what retention lets go, shown or done."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict
from typing import Any

from cachehome.commands import output
from cachehome.commands.store_arguments import builds_of, open_store
from cachehome.errors import CommitConflict
from cachehome.settings import Settings
from cachehome.store import gc
from cachehome.store.compact import Compaction, compact, survey
from cachehome.store.store import Store

DESCRIPTION = """Remove generations that were superseded long enough ago, packs that nothing names, profiles and builds
that nobody uses, and what killed writers left. Safe at any time: nothing goes that a reader may still need.

Packs go in two steps, keep_seconds apart: condemned by one prune, deleted by a later one.

Exit code: 0 something went (or would), 3 nothing to do."""
SETTINGS = (
    "store",
    "keep_generations",
    "keep_seconds",
    "keep_idle_seconds",
    "max_storage_bytes",
    "compression",
    "shared",
    "store_owners",
    "signing_key",
    "trusted_keys",
    "store_timeout_seconds",
)
GUARDED = True


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("build", nargs="?", default="", help="only builds whose hash begins so")
    parser.add_argument("--dry-run", action="store_true", help="show the plan, change nothing")
    parser.add_argument(
        "--compact",
        action="store_true",
        help="also gather live entries in few packs, and drop the ones that were used longest ago until the build"
        " is within max_storage_bytes",
    )


def run(args: argparse.Namespace, settings: Settings) -> int:
    store = open_store(settings)
    rules = gc.Rules.of(settings)
    if rules.keep_seconds < gc.longest(settings):
        output.talk(
            f"cachehome: a publication or a restore may take {gc.longest(settings):g} s by the settings: with a grace"
            f" period of {rules.keep_seconds:g} s one that is under way may have to begin again"
        )
    builds = [
        _build(store, build, rules, settings, args.dry_run, args.compact)
        for build in builds_of(store, args.build)
    ]
    totals = {
        key: sum(build[key] for build in builds)
        for key in ("inodes", "bytes", "deleted_inodes", "deleted_bytes", "condemned_bytes")
    }
    if args.json:
        output.as_json({"store": store.url, "dry_run": args.dry_run, "builds": builds, **totals})
    else:
        for build in builds:
            output.lines(*_text(build))
    verb = "would go" if args.dry_run else "went"
    output.talk(
        f"cachehome: {output.size(totals['deleted_bytes'])} in {totals['deleted_inodes']} inodes {verb},"
        f" {output.size(totals['condemned_bytes'])} condemned; the store holds {output.size(totals['bytes'])}"
        f" in {totals['inodes']} inodes"
    )
    return 0 if any(build["changed"] for build in builds) else 3


def _build(
    store: Store, build: str, rules: gc.Rules, settings: Settings, dry_run: bool, with_compaction: bool
) -> dict[str, Any]:
    plan = gc.plan(store, build, rules)
    inodes, size = plan.inodes, plan.bytes
    compaction = None
    problem = ""
    if not dry_run:
        plan = gc.apply(store, plan)
    if with_compaction and dry_run:
        compaction = survey(store, build, settings.max_storage_bytes)
    elif with_compaction:
        try:
            compaction = compact(
                store,
                build,
                limit=settings.max_storage_bytes,
                deny_seconds=settings.keep_idle_seconds,
                compression=settings.compression,
                deadline=time.monotonic() + settings.publish_budget_seconds,
                publisher={"by": "cachehome prune --compact"},
            )
        except CommitConflict as error:
            problem = str(error)
    if not dry_run:
        inodes, size = store.usage(build)
    return {
        "build": build,
        "changed": not plan.empty or compaction is not None,
        "inodes": inodes,
        "bytes": size,
        "deleted_inodes": len(plan.deleted) + len(plan.packs),
        "deleted_bytes": sum(item.bytes for item in plan.deleted),
        "condemned_bytes": sum(item.bytes for item in plan.condemn),
        "deleted": [item._asdict() for item in plan.deleted],
        "condemned": [item._asdict() for item in plan.condemn],
        "idle_profiles": list(plan.idle),
        "whole": plan.whole,
        "compaction": _compaction(compaction) if compaction else None,
        "problem": problem,
    }


def _compaction(done: Compaction) -> dict[str, Any]:
    return asdict(done) | {"dropped": [list(row) for row in sorted(done.dropped)]}


def _text(build: dict[str, Any]) -> list[str]:
    lines = [f"build {build['build'][:16]}  {build['inodes']} inodes, {output.size(build['bytes'])}"]
    for word, items in (("delete", build["deleted"]), ("condemn", build["condemned"])):
        for item in items:
            name = item["name"].partition("/")[2]
            lines.append(f"  {word:<8}{output.size(item['bytes']):>10}  {name}: {item['why']}")
    if build["whole"]:
        lines.append("  the build goes whole")
    if build["compaction"]:
        found = build["compaction"]
        lines.append(
            f"  compact {output.counted(found['packs'], 'pack')} ({output.size(found['bytes'])}),"
            f" dropping {len(found['dropped'])} entries"
        )
    if build["problem"]:
        lines.append(f"  not compacted: {build['problem']}")
    return lines
