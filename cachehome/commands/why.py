"""`cachehome why`: two identities, generations or runs compared in words; or one start that was cold."""

from __future__ import annotations

import argparse
import json
import os
from typing import TYPE_CHECKING, Any

from cachehome import causes
from cachehome.commands import output
from cachehome.errors import CacheHomeError, ConfigError, unread
from cachehome.identity import Difference, Identity, diff, identity

if TYPE_CHECKING:
    from cachehome.settings import Settings

DESCRIPTION = """Say what differs between two identities, whether it can change machine code, and what to do.

A and B are each one of
  FILE           an identity (`cachehome key --json`), or the record of a restore (`cachehome restore --json`);
                 `cachehome report` reads what CACHEHOME_REPORT_DIR holds
  SPEC           a generation of --store: BUILD[/PROFILE[/NUMBER]], hashes may be cut short, or NUMBER alone
  STORE:SPEC     the same of another store
  this           this machine, now (`this machine` is understood, too)
With A alone, B is this machine; a report alone is asked why its start was cold. With neither, A is the build of the
store that is nearest to this machine. Exit code 0: told; 3: nothing differs, or nothing was cold."""
SETTINGS = ("store", "profile", "build_key", "image", "sources", "identity", "store_timeout_seconds")
GUARDED = True
_MARKS = {"code": "build", "probe": "build, not read", "profile": "profile", "note": "no key"}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("a", nargs="?", metavar="A", help="what to compare")
    parser.add_argument("b", nargs="*", metavar="B", help="with what (default: this machine)")


def run(args: argparse.Namespace, settings: Settings) -> int:
    words = [args.a or "", *args.b]
    if [word.lower() for word in words[:2]] == ["this", "machine"]:
        words = ["this", *words[2:]]
    if [word.lower() for word in words[1:]] == ["this", "machine"]:
        words[1:] = ["this"]
    if len(words) > 2:
        raise ConfigError(f"why: two things can be compared, not {len(words)}")
    a, b = words[0], words[1] if len(words) > 1 else ""
    if not a:
        return _nearest(args, settings)
    one = _run(a, settings)
    if one.record and not b:
        return _cold(args, one, None)
    other = _run(b or "this", settings)
    if one.record and other.record:
        return _cold(args, other, one)
    return _compare(args, _identity_of(a, one), _identity_of(b or "this", other), (a, b or "this"))


def _compare(args: argparse.Namespace, a: Identity, b: Identity, names: tuple[str, str]) -> int:
    found = diff(a, b)
    # A build of the store alone has no profile.
    same_build = a.build_key == b.build_key
    same_profile = not a.profile or not b.profile or a.profile_key == b.profile_key
    if args.json:
        output.as_json(
            {
                "a": {"name": names[0], "build": a.build_key, "profile": _profile(a)},
                "b": {"name": names[1], "build": b.build_key, "profile": _profile(b)},
                "same_build": same_build,
                "same_profile": same_profile,
                "differences": [difference._asdict() for difference in found],
            }
        )
    else:
        for difference in found:
            output.lines(*_lines(difference))
        output.talk(f"cachehome: {_verdict(same_build, same_profile)}")
    return 0 if found else 3


def _profile(one: Identity) -> str:
    return one.profile_key if one.profile else ""


def _lines(found: Difference) -> list[str]:
    return [
        f"{found.field} [{_MARKS[found.kind]}]",
        f"  A  {_cut(found.a)}",
        f"  B  {_cut(found.b)}",
        f"  {found.words}",
    ]


def _cut(text: str, width: int = 160) -> str:
    return text if len(text) <= width else f"{text[:width]}..."


def _verdict(same_build: bool, same_profile: bool) -> str:
    if not same_build:
        return "two builds: machine code of one is never given to the other"
    if not same_profile:
        return "one build, two profiles: kernels are shared, each profile has its own generations"
    return "one identity: what one publishes, the other restores"


def _cold(args: argparse.Namespace, run_: causes.Run, other: causes.Run | None) -> int:
    found = causes.causes(run_, other)
    if args.json:
        output.as_json({"record": run_.record, "misses": run_.misses, "causes": found})
    else:
        output.lines(*(f"- {cause}" for cause in found))
        if not found:
            output.talk("cachehome: nothing in the report says that the start was cold")
    return 0 if found else 3


def _nearest(args: argparse.Namespace, settings: Settings) -> int:
    from cachehome.commands.store_arguments import open_store

    store = open_store(settings)
    mine = identity(settings, os.environ)
    known = {}
    for build in store.builds():
        document = store.identity(build)
        if document is not None:
            known[build] = Identity.from_dict(document)
    found = causes.nearest(mine, known)
    if found is None:
        output.talk("cachehome: the store holds no build")
        return 3
    name, count = found
    output.talk(
        f"cachehome: this build ({mine.build8}) is in the store"
        if not count
        else f"cachehome: this build ({mine.build8}) is not in the store; {name[:8]} is nearest, {count} fields differ"
    )
    return _compare(args, known[name], mine, (name, "this"))


def _run(name: str, settings: Settings) -> causes.Run:
    """What *name* stands for: an identity alone is a run of which nothing else is known."""
    if name.lower() in ("this", "this machine", "."):
        return causes.Run(identity=identity(settings, os.environ))
    if os.path.isfile(name):
        return _from_file(name)
    return causes.Run(identity=_generation(name, settings))


def _from_file(path: str) -> causes.Run:
    try:
        with open(path, "rb") as file:
            found = causes.read(json.load(file))
    except (OSError, ValueError) as error:
        raise ConfigError(f"why: {path} can't be read: {unread(error)}") from None
    if found is None:
        raise ConfigError(
            f"why: {path} holds neither an identity nor the record of a restore; a directory of reports is read by"
            f" `cachehome report {os.path.dirname(path) or '.'}`"
        )
    return found


def _generation(spec: str, settings: Settings) -> Identity:
    from cachehome.commands.store_arguments import generation, open_store
    from cachehome.errors import NotInStore

    url, colon, rest = spec.rpartition(":")
    if colon and os.path.isabs(url.removeprefix("file://")):
        settings, spec = settings.replace(store=(url,)), rest
    if not settings.store:
        raise ConfigError(f"why: {spec} is no file, and no store is set in which it could be a generation")
    store = open_store(settings)
    if (
        spec.isdecimal() and len(spec) < 8
    ):  # a number alone: of the only build and profile, or of this machine's
        mine = identity(settings, os.environ)
        build = mine.build_key if mine.build_key in store.builds() else ""
        profile = mine.profile_key if build and mine.profile_key in store.profiles(build) else ""
        spec = f"{build or _only(store.builds(), 'build')}/{profile or _only(store.profiles(build), 'profile')}/{spec}"
    build, profile, _ = generation(store, spec)
    document: dict[str, Any] | None = store.identity(build, profile) or store.identity(build)
    if document is None:
        raise NotInStore(f"the store keeps no identity of {build[:8]}/{profile}", name=spec)
    try:
        return Identity.from_dict(document)
    except ValueError as error:
        raise NotInStore(
            f"the identity of {build[:8]}/{profile} in the store can't be used: {error}", name=spec
        ) from None


def _only(found: list[str], what: str) -> str:
    if len(found) != 1:
        raise CacheHomeError(f"why: the store holds {len(found)} {what}s: say BUILD/PROFILE/NUMBER")
    return found[0]


def _identity_of(name: str, run_: causes.Run) -> Identity:
    if run_.identity is None:
        raise ConfigError(f"why: the report {name} holds no identity to compare; ask for it alone")
    return run_.identity
