"""Where a job's caches live on this node: its identity, its directories, and the environment that says so.

ROOT/<host tag>/<build8>/identity-<hash>.json    the identity that the job's processes are handed down,
                                                 kept: a later
                                                 agent salvages by it what a killed one left
ROOT/.node/                                      what the processes of this node agree on (`node`)
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from typing import TYPE_CHECKING, Any, NamedTuple

from cachehome import families, home
from cachehome.errors import NotWarm
from cachehome.identity import Identity, identity
from cachehome.lifecycle.node import Step
from cachehome.lifecycle.transfer import Transfer, environment
from cachehome.observe import watch
from cachehome.probes.interpreter import HOOK

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, Sequence

    from cachehome.lifecycle.transfer import Action
    from cachehome.settings import Settings
    from cachehome.sync.record import Record

_OURS = ("CACHEHOME_IDENTITY", "CACHEHOME_SLOT")


class Place(NamedTuple):
    """One set of live directories of one identity, on this node."""

    settings: Settings
    identity: Identity
    identity_file: str
    environ: dict[str, str]
    """The whole environment of a process that is to use it."""
    found: home.Resolution

    @property
    def directories(self) -> dict[str, str]:
        """Family to live directory in effect, an exported one included."""
        return self.found.directories

    @property
    def live(self) -> str | None:
        """The directory that holds all of ours."""
        return self.found.live

    @property
    def repaired(self) -> bool:
        """Whether a Python of this job loads our repairs when it starts: the hook was seen in its interpreter, and it
        will find the stamp of a restore."""
        return (
            HOOK in self.identity.left_out and home.APPLIED in self.environ and "inductor" in self.directories
        )

    def started_here(self) -> Place:
        """This place for processes that we start: a restore may leave out what they make again when it is read."""
        if self.settings.slim != "auto" or not self.repaired:
            return self
        return self._replace(settings=self.settings.replace(slim="restore"))

    @property
    def slot(self) -> str:
        """The worker that has it for itself, "" if it is shared."""
        return self.found.slot

    @property
    def state(self) -> str | None:
        """Where the processes of this node agree (`node`)."""
        return os.path.join(self.found.root, ".node") if self.found.root else None

    @property
    def notes(self) -> list[str]:
        """What a user should know of all that."""
        found = self.found
        taken = self.identity.left_out.get("command.interpreter", "")
        guess = [f"identity: {taken}; --identity FILE gives another"] if "taken to be" in taken else []
        image = str(self.identity.build.get("image", ""))
        if image.startswith("error: "):
            guess.append(f"image: {self.settings.image} can't be used: {image.removeprefix('error: ')}")
        return [*guess, *found.notes, *([found.reason] if found.root is None or found.skipped else ())]

    @property
    def variables(self) -> dict[str, str]:
        """What of its environment is set by us."""
        names = (*self.found.values, home.APPLIED, *_OURS)
        return {name: self.environ[name] for name in names if name in self.environ}

    def apply(self, environ: MutableMapping[str, str]) -> None:
        """Make the caller's own *environ* that of this place."""
        home.apply(self.found, environ)
        environ.update({name: self.environ[name] for name in _OURS if name in self.environ})

    @property
    def private(self) -> bool:
        """Whether all directories bear this build in their path, so that no other one can have worked there."""
        return self.live is not None and all(
            os.path.commonpath([self.live, path]) == self.live for path in self.directories.values()
        )

    def restore(
        self,
        seconds: float,
        *,
        since: float,
        arguments: Sequence[str] = (),
        others: Sequence[Mapping[str, str]] = (),
    ) -> Step:
        """Begin to restore, unless another process of this node has done so after *since*, with the same *arguments*
        of the verb. *others*: directories of other workers to be filled as well."""
        return self._step("restore", seconds, since=since, modest=False, arguments=arguments, others=others)

    def publish(
        self,
        seconds: float,
        *,
        since: float | None = None,
        patient: bool = True,
        others: Sequence[Mapping[str, str]] = (),
    ) -> Step:
        """Begin to publish, at low priority, from the directories of *others* as well. See `Step` for *since* and
        *patient*."""
        # What was never stamped is ours all the same: the store was away when it should have been.
        adopt = ["--adopt"] if self.private else []
        at_once = self.settings.publish_tasks_per_node
        # The worker's own limit comes first: it can say what it has done.
        settings = self.settings.replace(publish_budget_seconds=max(1.0, seconds))
        return self._step(
            "publish",
            seconds,
            since=since,
            patient=patient,
            arguments=adopt,
            others=others,
            at_once=at_once,
            settings=settings,
        )

    def deny(self, line: str, numbers: Sequence[int]) -> Transfer:
        """Begin to deny for everybody what the generations *numbers* of *line* brought."""
        return Transfer(
            "publish",
            environment(self.environ, self.settings),
            verb="deny",
            seconds=self.settings.store_timeout_seconds,
            identity=self.identity_file,
            arguments=["--line", line, *map(str, numbers)],
        )

    def _step(
        self, action: Action, seconds: float, *, settings: Settings | None = None, **options: Any
    ) -> Step:
        return Step(
            action,
            environment(self.environ, settings or self.settings),
            self.directories,
            state=self.state,
            seconds=seconds,
            identity=self.identity_file,
            key="\0".join((self.identity.build_key, self.identity.profile_key, *self.settings.store)),
            **options,
        )


def prepare(
    settings: Settings,
    environ: Mapping[str, str],
    *,
    command: Sequence[str] | None = None,
    slot: str | None = None,
) -> Place:
    """The place of *command* (None: of this process) under *environ*. Raises `CacheHomeError`."""
    return place_of(settings, identity(settings, environ, command), environ, slot=slot)


def place_of(
    settings: Settings, who: Identity, environ: Mapping[str, str], *, slot: str | None = None
) -> Place:
    """The place of the identity *who*, for the worker *slot* (None: the slot of the settings)."""
    if slot is not None:
        settings = settings.replace(slot=slot)
    # The tag is that of the job's interpreter, which need not be ours.
    found = _resolve(settings, environ, build8=who.build8, tag=str(who.build.get("host_tag") or "") or None)
    level = os.path.dirname(found.live) if found.live and found.slot else found.live
    file = _keep(who, level)
    job = dict(environ)
    home.apply(found, job)
    job["CACHEHOME_IDENTITY"] = file
    if slot is not None:
        job["CACHEHOME_SLOT"] = slot
    if settings.diagnostics:  # which a file may have asked for; the job's processes read variables
        job["CACHEHOME_DIAGNOSTICS"] = "1"
        if settings.report_dir:
            job["CACHEHOME_REPORT_DIR"] = settings.report_dir
        job.setdefault(watch.RUN, watch.run_name(job))
    return Place(settings, who, file, job, found)


def insist(record: Record, settings: Settings) -> None:
    """Raise `NotWarm` if *settings* ask for families that *record* did not bring."""
    warm = record.details.get("families", {})
    cold = [
        name for name in settings.require_warm if record.outcome != "hit" or (warm and not warm.get(name))
    ]
    if cold:
        raise _not_warm(cold, record.line())


def insist_on(settings: Settings, why_not: object) -> None:
    """Raise `NotWarm` if *settings* ask for families where nothing can be restored."""
    if settings.require_warm:
        raise _not_warm(list(settings.require_warm), why_not)


def _not_warm(cold: list[str], why: object) -> NotWarm:
    return NotWarm(f"require_warm: {', '.join(cold)}: no warm start ({why})", families=cold)


def unsynced(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """*environ* with the directories that the hook would set: for a job whose identity can't be known."""
    job = dict(environ)
    home.apply(_resolve(settings, environ), job)
    return job


def _resolve(settings: Settings, environ: Mapping[str, str], **wishes: Any) -> home.Resolution:
    return home.resolve(
        environment(environ, settings),
        families=families.chosen(families.catalogue(plugins=True), settings.families),
        local=settings.local or None,
        slot=settings.slot or None,
        make=True,
        **wishes,
    )


def _keep(who: Identity, directory: str | None) -> str:
    """A private file with the identity, beside its live directories if there are any. The same one each time."""
    text = who.to_json().encode()
    if directory and (path := _kept(text, directory)):
        return path
    import tempfile  # here, since most places have a directory

    if path := _kept(text, os.path.join(tempfile.gettempdir(), f"cachehome-{os.getuid()}")):
        return path
    descriptor, path = tempfile.mkstemp(prefix="cachehome-identity-", suffix=".json")
    with open(descriptor, "wb") as file:
        file.write(text)
    return path


def _kept(text: bytes, directory: str) -> str:
    """The file with *text* in a *directory* of ours; "" where that can't be."""
    path = os.path.join(directory, f"identity-{hashlib.sha256(text).hexdigest()[:16]}.json")
    with contextlib.suppress(OSError):
        os.makedirs(directory, mode=0o700, exist_ok=True)
        found = os.lstat(directory)  # in a directory for all, a link may be anybody's
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            return ""
        if _taken(path, text):
            return path
        temporary = os.path.join(directory, f".{os.urandom(16).hex()}")
        try:
            with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(text)
            os.replace(temporary, path)
        except OSError:
            os.unlink(temporary)
            raise
        return path
    return ""


def _taken(path: str, text: bytes) -> bool:
    """Whether *path* is a file of ours with this *text*; it is the newest one from now on (`builds`)."""
    try:
        end = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        found = os.fstat(end)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.getuid():
            return False
        if os.read(end, len(text) + 1) != text:
            return False
        with contextlib.suppress(OSError):
            os.utime(end)
        return True
    finally:
        os.close(end)
