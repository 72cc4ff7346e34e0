"""Owns the identity: *build* (what machine code depends on), *profile* (what the job compiles), and their keys.

    Identity
    ├── build      {"schema", "python", "machine", "toolchain", "packages", "gpu", "environment", "sources", ...}
    ├── profile    {"name"} or {"command", "layout", "files"}
    └── left_out   {field: reason}: what is on purpose in neither, so that a reader can judge

A key is the sha256 of the canonical JSON of one part. The same document is what `cachehome key --json` prints, what
`CACHEHOME_IDENTITY` names, and what a store keeps as `identity.json`.
"""

from __future__ import annotations

import os
import sys
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from cachehome.errors import ConfigError
    from cachehome.settings import Settings

SCHEMA = 1
FORMAT = "cachehome-identity-1"
PLAIN_LENGTH = 64
_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789")
ABSENT = "(absent)"
AUTO = "auto"
DEFAULT = "default"


def canonical(value: object) -> bytes:
    """The one JSON text of *value* that is hashed: sorted, without blanks, ASCII."""
    import json

    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode()


def is_plain(name: str) -> bool:
    """Whether a profile's *name* can be a directory of a store as it is."""
    return (
        0 < len(name) <= PLAIN_LENGTH
        and name[0] in _LETTERS
        and all(c in _LETTERS or c in "._-" for c in name)
    )


class Identity(NamedTuple):
    """Build, profile, and what was left out of both. `Identity.load` and `from_json` are the way back."""

    build: dict[str, Any]
    profile: dict[str, Any]
    left_out: Mapping[str, str] = MappingProxyType({})

    @property
    def build_key(self) -> str:
        """64 hex digits: the directory of this build in a store."""
        return _sha256(canonical(self.build))

    @property
    def build8(self) -> str:
        """The first 8 of them: the level of a live directory."""
        return self.build_key[:8]

    @property
    def profile_key(self) -> str:
        """The profile's own name where that is plain, else 64 hex digits."""
        name = self.profile.get("name")
        if len(self.profile) == 1 and isinstance(name, str) and is_plain(name):
            return name
        return _sha256(canonical(self.profile))

    def to_json(self) -> str:
        """The document, one field a line, keys included."""
        import json

        return json.dumps(self.to_dict(), indent=1, sort_keys=True, allow_nan=False) + "\n"

    def to_dict(self) -> dict[str, Any]:
        """What `to_json` writes, as an object."""
        return {
            "format": FORMAT,
            "build": self.build,
            "profile": self.profile,
            "left_out": dict(self.left_out),
            "build_key": self.build_key,
            "profile_key": self.profile_key,
        }

    @classmethod
    def from_json(cls, text: str | bytes) -> Identity:
        """Read a document; ValueError with the reason if it is none, or its keys are not those of its content."""
        import json

        try:
            return cls.from_dict(json.loads(text))
        except RecursionError:
            raise ValueError("nested too deeply") from None

    @classmethod
    def from_dict(cls, document: object) -> Identity:
        """The same from an object."""
        if not isinstance(document, dict) or document.get("format") != FORMAT:
            raise ValueError(f"not an identity (no format {FORMAT})")
        parts: list[dict[str, Any]] = []
        for name in ("build", "profile", "left_out"):
            part = document.get(name, {} if name == "left_out" else None)
            if not isinstance(part, dict) or (name == "build" and not part):
                raise ValueError(f"{name} is not an object, or an empty one")
            parts.append(part)
        identity = cls(*parts)
        for key in ("build_key", "profile_key"):
            if document.get(key, getattr(identity, key)) != getattr(identity, key):
                raise ValueError(f"{key} does not belong to its content: it was edited or cut short")
        return identity

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, guarded: bool = False) -> Identity:
        """Read a file; `ConfigError` names it if it can't be read or is no identity. *guarded*: this process may hang
        over it, since another one looks after it."""
        from cachehome import named

        path = os.fspath(path)
        try:
            return cls.from_json(named.regular(path) if guarded else named.read(path))
        except (OSError, ValueError) as error:
            raise unusable(path, error) from None


def unusable(path: str, error: OSError | ValueError) -> ConfigError:
    """The error for a file that is no identity, or can't be read, with the next step."""
    from cachehome.errors import ConfigError, unread

    return ConfigError(
        f"identity: {path} can't be used: {unread(error)}; make one with `cachehome key --json`",
        key="identity",
        source=path,
        value=path,
        allowed="a file made by `cachehome key --json`",
    )


def identity(
    settings: Settings | None = None,
    environ: Mapping[str, str] | None = None,
    command: Sequence[str] | None = None,
    *,
    program: Sequence[str] = (),
    guarded: bool = False,
) -> Identity:
    """The identity of *command* (None: of this interpreter) under *environ*. *program*: the command line of this very
    process, where it is the job itself. *guarded*: see `Identity.load`.

    A file that *settings* names (`CACHEHOME_IDENTITY`) is taken as it is, since the first process of a tree took the
    snapshot; only a profile with a name of its own is exchanged. Raises `CacheHomeError` when the interpreter that
    *command* will use can't be known.
    """
    environ = os.environ if environ is None else environ
    if settings is None:
        from cachehome.settings import Settings as Loaded

        settings = Loaded.load(environ)
    named = settings.profile if settings.profile != AUTO else ""
    if settings.identity:
        given = Identity.load(settings.identity, guarded=guarded)
        return Identity(given.build, {"name": named}, given.left_out) if named else given

    from cachehome.probes import interpreter

    if command is None:
        job = interpreter.Job.of_this_process(environ)
    else:
        from cachehome.probes.command import resolve

        job = resolve(command, environ)
    build, left_out = interpreter.build(settings, job)
    profile: dict[str, Any] = {"name": named or DEFAULT}
    argv = program if command is None else job.argv
    if argv and not named:
        from cachehome.probes.profile import describe

        profile, dropped = describe(argv, job.environ, settings.profile_files)
        left_out.update(dropped)
    left_out.update({f"command.{name}": note for name, note in job.notes.items()})
    return Identity(build, profile, dict(sorted(left_out.items())))


class Difference(NamedTuple):
    """One field in which two identities differ, in *words* that say what it means and what to do.

    *kind*: "code" (another build: machine code can differ), "profile" (another set of kernels), "probe" (one side could
    not be read), "note" (in no key, but a reason why compilers may miss).
    """

    field: str
    a: str
    b: str
    kind: str
    words: str


def diff(a: Identity, b: Identity) -> list[Difference]:
    """Every difference of *a* and *b*, the ones that change machine code first."""
    from cachehome.probes import words

    found = []
    for part, kind in (("build", "code"), ("profile", "profile"), ("left_out", "note")):
        if part == "profile" and not (a.profile and b.profile):
            continue  # a store keeps the build alone beside its profiles
        one, other = dict(flatten(getattr(a, part))), dict(flatten(getattr(b, part)))
        for name in sorted(one.keys() | other.keys()):
            left, right = one.get(name, ABSENT), other.get(name, ABSENT)
            if left == right or (kind == "note" and ABSENT in (left, right) and not words.explains(name)):
                continue
            found.append(words.difference(name, left, right, kind))
    return found


def flatten(part: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Pairs of dotted name and text: `("gpu.driver", "550.54")`."""
    for key, value in part.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):  # an empty one has no fields
            yield from flatten(value, name + ".")
        else:
            yield name, value if isinstance(value, str) else canonical(value).decode()


def _sha256(data: bytes) -> str:
    import hashlib

    return hashlib.sha256(data).hexdigest()


class _CallableModule(type(sys)):  # type: ignore[misc]
    """`cachehome.identity` names this module as well as its function: calling the module calls the function."""

    identity: Callable[..., Identity]

    def __call__(
        self,
        settings: Settings | None = None,
        environ: Mapping[str, str] | None = None,
        command: Sequence[str] | None = None,
    ) -> Identity:
        return self.identity(settings, environ, command)


sys.modules[__name__].__class__ = _CallableModule
