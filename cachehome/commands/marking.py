"""What `pin`, `rollback`, `quarantine` and their opposites share: which generation is meant, who did it, labels."""

from __future__ import annotations

import os
import re
import socket
import time
from typing import Any

from cachehome.commands import output
from cachehome.commands.store_arguments import named
from cachehome.errors import ConfigError, NotInStore
from cachehome.store import marks
from cachehome.store.store import Store

SETTINGS = ("store", "shared", "store_owners", "signing_key", "trusted_keys", "store_timeout_seconds")
GENERATION = "[BUILD/][PROFILE/]NUMBER"
HELP = "hashes may be cut short; parts that are left out: the only one"


def numbered(store: Store, spec: str) -> tuple[str, str, int]:
    """(build, profile, number) of `[BUILD/][PROFILE/]NUMBER`. The generation itself may be gone already."""
    found = named(store, spec) if re.fullmatch("([^/]+/){0,2}[0-9]+", spec.strip("/")) else None
    if found is None or found[2] is None:
        raise ConfigError(
            f"{spec!r} does not end with the number of a generation: {GENERATION}",
            key="generation",
            source="the command line",
            value=spec,
            allowed=GENERATION,
        )
    return found[0], found[1], found[2]


def me() -> str:
    """Who does it, for people who read the list later."""
    return f"{os.environ.get('USER') or os.geteuid()}@{socket.gethostname()}"


def deny(store: Store, spec: str, reason: str, note: str, *, dry_run: bool) -> dict[str, Any]:
    """Deny what one generation brought, or what came after it; what was done, for printing."""
    build, profile, number = numbered(store, spec)
    manifests = [generation.manifest for generation in store.generations(build, profile)]
    manifests += [g.manifest for g in store.pins(build).values() if g.manifest.profile == profile]
    chosen = marks.introduced if reason == marks.QUARANTINE else marks.after
    rows = chosen(manifests, number)
    if not rows:
        what = "brought" if reason == marks.QUARANTINE else "came after"
        raise NotInStore(
            f"nothing that can be read {what} generation {number} of {build[:8]}/{profile}", name=spec
        )
    label = f"{reason}-{profile[:40]}-{number}"
    denied = marks.Denied(label, reason, rows, created=time.time(), by=me(), note=note)
    if not dry_run:
        store.deny(build, denied)
    return {
        "build": build,
        "profile": profile,
        "generation": number,
        "label": label,
        "entries": [
            {"family": family, "name": name, "digest": digest} for family, name, digest in sorted(rows)
        ],
    }


def tell(document: dict[str, Any], *, json_wanted: bool, dry_run: bool) -> int:
    """Print what `deny` did."""
    if json_wanted:
        output.as_json(document | {"dry_run": dry_run})
    else:
        output.lines(*(f"{entry['family']}/{entry['name']}" for entry in document["entries"]))
    count, build = len(document["entries"]), document["build"][:8]
    verb = "would be denied" if dry_run else "are denied"
    output.talk(
        f"cachehome: {count} entries {verb} for all profiles of build {build};"
        f" undo: cachehome unquarantine {build}/{document['label']}"
    )
    return 0


def labelled(store: Store, spec: str, directory: str) -> tuple[str, str]:
    """(build, label) of `[BUILD/]LABEL` below *directory*."""
    before, _, label = spec.rpartition("/")
    named = spec.replace("/", "-")  # PROFILE/NUMBER, as `pin` takes it, has such a label
    found = [
        (build, there)
        for build in store.builds()
        for there in store.backend.list(f"{build}/{directory}")
        if there == named or (there == label and build.startswith(before))
    ]
    if len(found) != 1:
        told = f"{len(found)} builds have" if found else "no build has"
        raise NotInStore(f"{told} a label {spec!r}: name it as BUILD/LABEL", name=spec)
    return found[0]
