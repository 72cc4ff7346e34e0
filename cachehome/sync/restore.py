"""Restore: from the newest generation that verifies to the live directories.

Order of checks: owner and mode of the store, signature, manifest, key and host tag, then every frame of the
packs before it is decoded, then every file. Files are staged beside the live directory and moved into it
entry by entry, only once all of them are there. What exists locally stays, unless it is broken: that is moved
aside. Anything wrong is recorded, the next older generation is tried, and in the end it is a cold start.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from cachehome.collector import uncollected
from cachehome.errors import (
    CacheHomeError,
    ConfigError,
    IntegrityError,
    NotInStore,
    StoreError,
    StoreUnavailable,
)
from cachehome.store.entries import Entry
from cachehome.store.manifest import Manifest
from cachehome.store.marks import Denials
from cachehome.store.store import Generation, Store
from cachehome.sync import portable
from cachehome.sync.denied import LeaveOut, denied_here, suspect
from cachehome.sync.live import Live, Stamp, in_effect, trouble
from cachehome.sync.record import Record, Work, asked
from cachehome.sync.scan import LocalEntry, Rules, scan
from cachehome.sync.stage import Plan, Target
from cachehome.sync.table import Table

if TYPE_CHECKING:
    from cachehome.identity import Identity
    from cachehome.settings import Settings

_NEWEST = 2  # generations that a record names as those that brought what is here
_NO_DIRECTORY = "no live directory is in effect: set CACHEHOME to a directory that you may write to"
_QUIET = 60.0  # seconds after which an incomplete entry is nobody's work in progress


def restore(
    settings: Settings | None = None,
    identity: Identity | None = None,
    directories: Mapping[str, str] | None = None,
    *,
    number: int | None = None,
    leave_out: LeaveOut | None = None,
    then: Callable[[Record, Sequence[Target]], Record] = lambda record, _: record,
) -> Record:
    """Fill the live *directories* (family name -> path; None: those in effect) from the store of *settings*.

    Never raises for what a store or a file system can do; the record says it. *number*: that generation, not
    the newest. *leave_out*: what not to install, and not to leave lying there. *then*: what else to do with what came.
    Raises `ConfigError` for settings that can't be meant.
    """
    work = _Restore(*asked(settings, identity), directories, leave_out)
    try:
        with uncollected():
            record = work.run(number)
    except ConfigError:
        raise
    except OSError as error:
        record = work.failed(error)
    work.note(record)
    return then(record, work.targets)


class _Restore(Work):
    def __init__(
        self,
        settings: Settings,
        identity: Identity,
        directories: Mapping[str, str] | None,
        leave_out: LeaveOut | None = None,
    ) -> None:
        from cachehome import families

        super().__init__("restore", settings, identity)
        self.rejected: list[dict[str, Any]] = []
        self.families: dict[
            str, int
        ] = {}  # entries of the generation that a family finds, new or there already
        self.used: Callable[[], None] | None = None  # tells the store that its generation is in use
        self.denials = Denials()
        self.leave_out = leave_out
        if leave_out is not None:
            self.details["without"] = {
                "line": leave_out.line,
                "generations": sorted(leave_out.numbers),
                "up_to": leave_out.up_to,
                "cold": leave_out.cold,
            }
            self.details["message"] = leave_out.message()
        catalogue = families.catalogue(plugins=True)
        if directories is None:
            directories = in_effect(settings)
        self.targets = [
            Target(catalogue[name], Live(path)) for name, path in directories.items() if name in catalogue
        ]
        self.details["directories"] = {t.family.name: t.live.directory for t in self.targets}

    def run(self, number: int | None) -> Record:
        if not self.settings.store:
            return self.record("disabled", "no_store", message="no store is set (CACHEHOME_STORE)")
        if not self.targets:
            return self.record("disabled", "no_directory", message=_NO_DIRECTORY)
        for target in self.targets:
            problem = trouble(target.live.directory)
            if problem:
                return self.record("rejected", "live_directory_untrusted", message=problem)
            stamp = target.live.stamp()
            # A directory that another build stamped and never filled holds nobody's work.
            if (
                stamp is not None
                and stamp.build != self.identity.build_key
                and scan(target.family, target.live.directory)
            ):
                return self.record("rejected", "other_build", message=other_build(target.live, stamp))
            target.live.make()
        with contextlib.ExitStack() as stack:
            with self.phases("lock"):
                # One of a node's workers fetches; the others find it done. If the lock can't be had, go on
                # without.
                stack.enter_context(self.targets[0].live.locked(self.settings.store_timeout_seconds / 2))
            for target in self.targets:
                target.live.tidy()
            with self.phases("scan"):
                for target in self.targets:
                    target.local = scan(target.family, target.live.directory)
                    target.table = target.live.table()
                    self._set_broken_aside(target)
                    if self.leave_out is not None and self.leave_out.cold:
                        old = [name for name, entry in target.local.items() if self.leave_out.old(entry)]
                        self._set_aside(target, old, "before a cold start")
                local = sum(len(target.local) for target in self.targets)
                if local:
                    self.details["local"] = local
            result = self._restore(number)
            with self.phases("stamp"):
                for target in self.targets:
                    self._stamp(target, result)
        if self.used is not None:
            with self.phases("touch"):  # last: a store that can't be written to must cost nothing but this
                self.used()
        return result

    def note(self, record: Record) -> None:
        """Leave how it ended in the directory, for whoever asks later why a start was not warm."""
        for target in self.targets[:1]:
            with contextlib.suppress(OSError):
                if not trouble(target.live.directory) and os.path.isdir(target.live.own):
                    target.live.write_restored(record)

    def _restore(self, number: int | None) -> Record:
        if not self.settings.restore:
            return self.record("disabled", "restore_off", message="restore = off")
        with self.phases("manifest"):
            store = Store.open(self.settings.store[-1], self.settings)
            self._set_denied_aside(store.denied(self.identity.build_key))
        build, profile = self.identity.build_key, self.identity.profile_key
        tried: set[tuple[str, int]] = set()
        while True:
            # From the newest listing each time: a generation may go, or a better one come, while one is read.
            with self.phases("manifest"):
                candidates = self._candidates(store, number)
                chosen = next((found for found in candidates if found not in tried), None)
            if chosen is None:
                break
            tried.add(chosen)
            origin, candidate = chosen
            try:
                with self.phases("manifest"):
                    if number is None:
                        generation = store.read(build, origin, candidate, candidates[0][1])
                    else:
                        generation = store.find(build, origin, candidate)
                result = self._install(store, generation, borrowed=origin != profile)
                self.used = partial(store.touch, build, origin, generation.manifest.line)
                return result
            except NotInStore as error:
                if error.fields.get("name", "").startswith("packs/") or "pack" in str(error):
                    self._reject(origin, candidate, "pack_missing", error)
            except IntegrityError as error:
                self._reject(origin, candidate, str(error.fields.get("reason", "damaged")), error)
            except PermissionError as error:
                if not isinstance(error, CacheHomeError):
                    raise
                self._reject(origin, candidate, str(error.fields.get("reason", "untrusted")), error)
        if self.rejected:
            first = self.rejected[0]
            return self.record("rejected", first["reason"], message=first["message"])
        if number is None:
            return self.record("miss", "no_published_generation", **self._nearest(store))
        return self.record("miss", "no_published_generation", message=_no_such(store, build, profile, number))

    def _nearest(self, store: Store) -> dict[str, str]:
        """The message that says in which parts the nearest build of *store* is another one."""
        from cachehome.causes import other_builds

        with self.phases("nearest"), contextlib.suppress(StoreError):
            message = other_builds(self.identity, store)
            return {"message": message} if message else {}
        return {}

    def _candidates(self, store: Store, number: int | None) -> list[tuple[str, int]]:
        """(profile, number) to try, best first."""
        build, profile = self.identity.build_key, self.identity.profile_key
        if number is not None:
            return [(profile, number)]
        own = [(profile, found) for found in reversed(store.numbers(build, profile))]
        if own or self.settings.profile_fallback == "none":
            return own
        refused: list[tuple[str, int, StoreError]] = []
        found = store.fallback(build, profile, lambda *what: refused.append(what))
        if found is None:
            for other, damaged, error in refused:
                self._reject(other, damaged, str(error.fields.get("reason", "untrusted")), error)
            return []
        other = found.manifest.profile
        return [(other, number) for number in reversed(store.numbers(build, other))]

    def _reject(self, profile: str, number: int, reason: str, error: Exception) -> None:
        if reason in ("pack_damaged", "frame_damaged", "frame_size") and isinstance(error, IntegrityError):
            pack = str(error.fields.get("name", "")).rpartition("/")[2].removesuffix(".tar.zst")
            suspect(self.targets[0].live, [pack])
        self.details.setdefault("rejected", self.rejected)
        self.rejected.append(
            {"profile": profile, "generation": number, "reason": reason, "message": str(error)}
        )

    # -- the live directory -------------------------------------------------------------------------------

    def _set_broken_aside(self, target: Target) -> None:
        """Move entries that would break a reader out of the way; what was hashed and has not changed is not
        read."""
        for entry in list(target.local.values()):
            problem = broken(target.live, target.table, entry)
            if problem:
                self._set_aside(target, [entry.name], problem)

    def _set_aside(self, target: Target, names: Iterable[str], why: str) -> None:
        for name in names:
            entry = target.local.pop(name)
            target.live.set_aside(name, [file.suffix for file in entry.files], tree=_is_tree(entry))
            self.details.setdefault("set_aside", []).append(f"{entry.family}/{name}: {why}")

    def _set_denied_aside(self, denials: Denials) -> None:
        """Move entries that everybody was told not to use out of the way, and leave out those of a generation."""
        self.denials = denials
        for target in self.targets:
            here = denied_here(denials, target.family, target.live, target.local, target.table)
            self._set_aside(target, [name for name, bad in here.items() if bad], "denied")
        if denials.unreadable:
            self.details["denials_unreadable"] = [f"{label}: {why}" for label, why in denials.unreadable]

    def _stamp(self, target: Target, result: Record) -> None:
        before = target.live.stamp()
        if before is not None and before.build != self.identity.build_key:
            before = None
        whole = before.whole if before else not target.local
        manifest = str(result.details.get("manifest", "")) or (before.manifest if before else "")
        generation = (
            result.generation if result.generation is not None else (before.generation if before else None)
        )
        target.live.write_stamp(
            Stamp(self.identity.build_key, whole, target.live.now_ns(), generation, manifest)
        )

    # -- one generation -----------------------------------------------------------------------------------

    def _install(self, store: Store, generation: Generation, *, borrowed: bool) -> Record:
        manifest = generation.manifest
        if self.leave_out is not None:
            denials = self.leave_out.denials(manifest)
            for target in self.targets:
                here = denied_here(denials, target.family, target.live, target.local, target.table)
                old = [name for name in here if self.leave_out.old(target.local[name])]
                self._set_aside(target, old, "left out")
        skipped, introduced_by = self._choose(manifest)
        try:
            with self.phases("fetch"):
                plan = Plan(manifest, self.targets, slim=self.settings.slim in ("restore", "publish"))
                self._check_room(plan.size, sum(map(len, plan.places)))
                deadline = time.monotonic() + self.settings.store_timeout_seconds
                fetched = plan.run(store.backend, deadline)
            with self.phases("install"):
                entries, files, size = self._move_in(plan)
        finally:
            for target in self.targets:
                target.close_staging()
        usable = len(manifest.entries) - skipped.get("other_family", 0) - skipped.get("other_host", 0)
        details: dict[str, Any] = {
            "manifest": generation.sha256,
            "skipped": skipped,
            "line": manifest.line,
            "introduced_by": introduced_by,
            "families": self.families,
        }
        if borrowed:
            details["profile_fallback"] = manifest.profile
        relocated = self._relocated(manifest)
        if relocated:
            details["relocated"] = relocated
        if manifest.entries and not usable:
            return self.record("miss", "other_host", **details)
        withheld = {why: skipped[why] for why in ("denied", "left_out") if skipped.get(why)}
        if usable and usable == sum(withheld.values()):
            if "denied" in withheld:  # of leave_out the record tells already
                counted = " and ".join(
                    f"{count} are {why.replace('_', ' ')}" for why, count in withheld.items()
                )
                details["message"] = (
                    f"of {usable} entries {counted}: `cachehome unquarantine` lists the denials"
                )
            return self.record("miss", "all_denied" if "denied" in withheld else "left_out", **details)
        return self.record("hit", "restored" if entries else "already_there", **details)._replace(
            generation=manifest.number,
            entries=entries,
            files=files,
            bytes=size,
            fetched_bytes=fetched,
        )

    def _relocated(self, manifest: Manifest) -> list[str]:
        """Directories other than ours that entries were made in: some of them hold that path (design, 7)."""
        here = {name: t.live.directory for t in self.targets if self.families.get(name := t.family.name)}
        there: set[str] = set()
        for origin in manifest.origins:
            paths = origin.get("directories", {})
            there.update(paths.get(name, directory) for name, directory in here.items())
        return sorted(there - set(here.values()))

    def _choose(self, manifest: Manifest) -> tuple[dict[str, int], list[int]]:
        """Fill `wanted` of each target. Counts of what is left out, by reason; the newest generations that brought the
        rest."""
        tag = host_tag(self.identity)
        foreign = {
            number
            for number, pack in enumerate(manifest.packs)
            if manifest.origins[pack.origin].get("tag", tag) != tag
        }
        by_family = {target.family.name: target for target in self.targets}
        fits = {target.family.name: _Fitting(Rules(target.family)) for target in self.targets}
        reasons = ("denied", "left_out", "already_there", "other_family", "other_host", "unfit")
        skipped = dict.fromkeys(reasons, 0)
        introduced_by = set()
        self.families = warm = dict.fromkeys(by_family, 0)
        for target in self.targets:
            target.wanted = []
        for (family, name), entry in manifest.entries.items():
            found = by_family.get(family)
            if found is None:
                skipped["other_family"] += 1
            elif foreign and not foreign.isdisjoint(entry.packs):
                skipped["other_host"] += 1
            elif self.denials.denies(entry, manifest):
                skipped["denied"] += 1
            elif self.leave_out is not None and self.leave_out.covers(entry, manifest):
                skipped["left_out"] += 1
            elif name in found.local and not self._incomplete(found, entry):
                skipped["already_there"] += 1
                introduced_by.add(entry.since)
                warm[family] += 1
            elif not fits[family](name, tuple(entry.suffixes)):
                skipped["unfit"] += 1
            else:
                found.wanted.append(entry)
                warm[family] += 1
                introduced_by.add(entry.since)
        counts = {reason: count for reason, count in skipped.items() if count}
        return counts, sorted(introduced_by, reverse=True)[:_NEWEST]

    def _incomplete(self, target: Target, entry: Entry) -> bool:
        """Whether a local entry lacks files that a reader needs: a killed run left it. A tree is then moved
        aside."""
        local = target.local[entry.name]
        have = {file.suffix for file in local.files}
        ir = target.family.ir
        if all(file.suffix in have or (ir and file.suffix.endswith(ir)) for file in entry.files):
            return False
        if _is_tree(local):
            # A group is written last. Without one, somebody may be compiling the kernel right now.
            if not any(portable.is_group(suffix) for suffix in have) and _age(local) < _QUIET:
                return False
            target.live.set_aside(entry.name, [], tree=True)
            self.details.setdefault("set_aside", []).append(f"{entry.family}/{entry.name}: incomplete")
        return True

    def _check_room(self, size: int, files: int) -> None:
        """Refuse before anything is written: no half tree is left on a full disk."""
        room = os.statvfs(self.targets[0].live.own)
        if room.f_files and files > room.f_favail:
            raise StoreUnavailable(
                f"{self.targets[0].live.directory} has {room.f_favail} inodes left, the generation needs {files}:"
                " remove files there, or set CACHEHOME_LOCAL",
                reason="no_room",
            )
        if size > room.f_bavail * room.f_frsize:
            raise StoreUnavailable(
                f"{self.targets[0].live.directory} has room for {room.f_bavail * room.f_frsize} bytes,"
                f" the generation needs {size}: make room, or set CACHEHOME_LOCAL",
                reason="no_room",
            )

    def _move_in(self, plan: Plan) -> tuple[int, int, int]:
        files = sum(target.move_in(plan) for target in self.targets if target.wanted)
        entries = sum(len(target.moved) for target in self.targets)
        return entries, files, plan.size if entries else 0


class _Fitting:
    """Whether a scan would find the files of an entry here under its name, and a reader its groups."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.plain: set[tuple[str, ...]] = set()  # suffixes of trees with nothing special; kernels share them

    def __call__(self, name: str, suffixes: tuple[str, ...]) -> bool:
        if suffixes in self.plain and name.isascii():
            return self.rules.fit(name, suffixes)
        whole = name + "".join(suffixes)
        try:
            os.fsencode(whole)  # without UTF-8 in the locale, this process can't name every file
        except UnicodeEncodeError:
            return False
        if not self.rules.fit(name, suffixes) or any(portable.is_misplaced(name, s) for s in suffixes):
            return False
        if whole.isascii() and suffixes[0][:1] == "/":
            self.plain.add(suffixes)
        return True


def _age(entry: LocalEntry) -> float:
    return time.time() - entry.newest_ns / 1e9


def _is_tree(entry: LocalEntry) -> bool:
    return any(file.suffix.startswith("/") for file in entry.files)


def broken(live: Live, table: Table, entry: LocalEntry) -> str:
    """What would make a reader of a local entry fail, "" if nothing would. Hashed and unchanged files are not
    read."""
    present = {file.suffix[1:] for file in entry.files}
    for file in entry.files:
        path = entry.name + file.suffix
        if table.known(path, file):
            continue
        full = os.path.join(live.directory, path)
        try:
            problem = portable.check_local(full, path)
            if not problem and portable.is_group(path):
                with open(full, "rb") as group:
                    problem = portable.check_group(group.read(), present)
        except OSError:
            continue  # gone, or not ours to read: no reader of it will fail because of us
        if problem:
            return f"{os.path.basename(path)} is {problem}" if problem in ("empty", "cut short") else problem
    return ""


def other_build(live: Live, stamp: Stamp) -> str:
    """The line for a directory that another build's work lies in, with the command that mends it."""
    return (
        f"{live.directory} holds the work of build {stamp.build[:8]}: use `cachehome run`, which keeps"
        f" builds apart, or start afresh: mv {live.directory} {live.directory}.{stamp.build[:8]}"
    )


def _no_such(store: Store, build: str, profile: str, number: int) -> str:
    there = store.numbers(build, profile)
    told = f"{there[0]} to {there[-1]}" if len(there) > 1 else str(there[0]) if there else "none"
    return f"there is no generation {number} of {build[:8]}/{profile[:16]}: there is {told}"


def host_tag(identity: Identity) -> str:
    """The host tag that *identity* was made under; this machine's if it does not say."""
    from cachehome import home

    return str(identity.build.get("host_tag") or home.host_tag())
