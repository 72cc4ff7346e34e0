"""The table of settings, and the only reader of CACHEHOME_* and of the configuration file.

Three sources, the first that has a key wins: command line, environment, TOML file. The file is
`CACHEHOME_CONFIG`, else `cachehome.toml` in the working directory, else `cachehome/cachehome.toml` in the
user's configuration directory; its section is `[compiler_cache]`. An empty value counts as unset. `TABLE`
below is what the reference page is made from.

Imports nothing but os and sys: the start-up hook may use it.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from cachehome.errors import ConfigError

SECTION = "compiler_cache"
PREFIX = "CACHEHOME_"
# Variables of ours that are no settings: where the file is, what activation applied, whether the hook
# explains itself, which processes are one run.
NOT_SETTINGS = frozenset({"CACHEHOME_CONFIG", "CACHEHOME_APPLIED", "CACHEHOME_DEBUG", "CACHEHOME_RUN"})
ON = ("1", "on", "true", "yes")
OFF = ("0", "off", "false", "no")
_UNITS = {"": 1, "k": 1000, "m": 1000**2, "g": 1000**3, "t": 1000**4}
_UNITS.update({"ki": 1 << 10, "mi": 1 << 20, "gi": 1 << 30, "ti": 1 << 40})


class Setting:
    """One row of the table: `key`, `variable`, `kind` (how a text is read), `default`, `meaning`,
    `in_key`."""

    __slots__ = ("allowed", "default", "in_key", "key", "kind", "meaning", "read", "variable")

    def __init__(
        self,
        key: str,
        read: Callable[[str], object],
        default: object,
        allowed: str,
        meaning: str,
        *,
        variable: str = "",
        in_key: bool = False,
    ) -> None:
        self.key = key
        self.read = read
        self.default = default
        self.allowed = allowed
        self.meaning = meaning
        self.variable = variable or PREFIX + key.upper()
        self.in_key = in_key

    @property
    def flag(self) -> str:
        """The option of the command line, `--max-storage-bytes`."""
        return "--" + self.key.replace("_", "-")


def _text(value: str) -> str:
    return value


def _name(value: str) -> str:
    if len(value) > 64 or not all(c.isalnum() or c in "._-" for c in value) or not value[0].isalnum():
        raise ValueError
    return value


def _profile(value: str) -> str:
    # A name that is not plain is still a name: it is hashed (identity.Identity.profile_key).
    if len(value) > 4096 or "\n" in value or "\0" in value:
        raise ValueError
    return value


def _choice(*allowed: str) -> Callable[[str], str]:
    def read(value: str) -> str:
        if value.lower() not in allowed:
            raise ValueError
        return value.lower()

    return read


def _switch(value: str) -> bool:
    if value.lower() in ON:
        return True
    if value.lower() in OFF:
        return False
    raise ValueError


def _seconds(value: str) -> float:
    number = float(value)
    if not 0 <= number < 1e9:
        raise ValueError
    return number


def _positive_seconds(value: str) -> float:
    if _seconds(value) <= 0:
        raise ValueError
    return float(value)


def _count(value: str) -> int:
    if int(value) < 1:
        raise ValueError
    return int(value)


def _whole(value: str) -> int:
    if int(value) < 0:
        raise ValueError
    return int(value)


def read_bytes(value: str) -> int:
    """A number of bytes: `8589934592`, `8GiB`, `500 MB`."""
    digits = value.strip().rstrip("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ ")
    unit = value.strip()[len(digits) :].strip().lower().removesuffix("b")
    amount = float(digits) * _UNITS[unit]
    if not 0 <= amount < 1 << 62:
        raise ValueError
    return int(amount)


def _absolute(value: str) -> str:
    if not os.path.isabs(value):
        raise ValueError
    return os.path.normpath(value)


def _path(value: str) -> str:
    return os.path.abspath(os.path.expanduser(value))


def _paths(value: str) -> tuple[str, ...]:
    return tuple(_path(part) for part in _split(value))


def _split(value: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in value.split(",") if part.strip())


def _stores(value: str) -> tuple[str, ...]:
    stores = _split(value)
    for store in stores:
        scheme = store.partition("://")[0] if "://" in store else ""
        if scheme not in ("", "file", "s3", "gs", "az") or (not scheme and not os.path.isabs(store)):
            raise ValueError
    return stores


def _owners(value: str) -> tuple[str, ...]:
    return _split(value)


def _compression(value: str) -> str:
    algorithm, _, level = value.partition(":")
    if value == "none" or (algorithm == "zstd" and 1 <= int(level or 3) <= 19):
        return value
    raise ValueError


def _enabled(value: str) -> str:
    # No more words than the hook knows: true in one place and unknown in the other would help nobody.
    if value.lower() in ("1", "on"):
        return "on"
    if value.lower() in ("0", "off"):
        return "off"
    return _absolute(value)


_SWITCH = "on or off"
_SECONDS = "seconds, 0 or more"
_ABOVE_0 = "seconds, more than 0"
_COUNT = "a whole number, 1 or more"

TABLE: tuple[Setting, ...] = (
    Setting(
        "enabled",
        _enabled,
        "",
        "on, off, or an absolute directory",
        "unset: the hook does nothing; off: activation does nothing either; on: the default root; a path:"
        " that root",
        variable="CACHEHOME",
    ),
    Setting(
        "store",
        _stores,
        (),
        "an absolute directory without a comma, or its URL (file://; s3, gs and az are refused); several, comma"
        " separated",
        "where generations are kept; several: nearest first, the last one is the authority; unset: no sync",
    ),
    Setting(
        "profile",
        _profile,
        "",
        "a name, or auto",
        "names what the job compiles; auto: a hash of what the job says of itself; unset: `auto` for run and"
        " Session, else `default`",
        in_key=True,
    ),
    Setting(
        "profile_fallback",
        _choice("build", "none"),
        "build",
        "build or none",
        "a profile without a generation starts from the newest one of the same build",
    ),
    Setting("build_key", _text, "", "any text", "a hand-made difference between builds", in_key=True),
    Setting(
        "image",
        _text,
        "",
        "a digest, or a file that holds one",
        "the container image that the job runs in",
        in_key=True,
    ),
    Setting(
        "sources",
        _paths,
        (),
        "files and directories, comma separated",
        "source trees whose content is part of the build",
        in_key=True,
    ),
    Setting(
        "packages",
        _split,
        (),
        "names of distributions, comma separated",
        "installed packages whose versions are part of the build, besides the known ones",
        in_key=True,
    ),
    Setting(
        "profile_files",
        _paths,
        (),
        "files, comma separated",
        "configuration files whose content is part of the profile `auto`",
        in_key=True,
    ),
    Setting(
        "local",
        _absolute,
        "",
        "an absolute directory",
        "where live directories go when the root is on a network file system",
    ),
    Setting(
        "slot",
        _text,
        "",
        "a name, may hold {LOCAL_RANK}-like fields",
        "a private live directory for a logical worker; unset: workers share one",
    ),
    Setting("families", _split, (), "names of the catalogue, comma separated", "unset: the default set"),
    Setting(
        "restore",
        _switch,
        True,
        _SWITCH,
        "off: nothing is fetched from the store; what the live directory holds is used, and published",
    ),
    Setting("publish", _switch, True, _SWITCH, "off: a reader"),
    Setting(
        "publish_interval_seconds", _seconds, 600.0, _SECONDS, "least time between two publication checks"
    ),
    Setting(
        "publish_budget_seconds",
        _positive_seconds,
        240.0,
        _ABOVE_0,
        "time limit that one round shares; what is late is cancelled",
    ),
    Setting("publish_tasks_per_node", _count, 2, _COUNT, "how many workers of a node publish at once"),
    Setting(
        "store_timeout_seconds",
        _positive_seconds,
        120.0,
        _ABOVE_0,
        "how long a restore may take before the job starts cold; the verbs that look after a store: how long it may"
        " give no sign of life",
    ),
    Setting(
        "max_storage_bytes",
        read_bytes,
        8 << 30,
        "bytes, or a number with a unit (8GiB)",
        "bound of one build's directory in the store; 0: nothing is uploaded",
    ),
    Setting(
        "identity",
        _path,
        "",
        "a file made by `cachehome key --json`",
        "the identity to use instead of probing this machine",
    ),
    Setting(
        "store_owners",
        _owners,
        (),
        "user names or ids, comma separated",
        "who, besides me and root, may own what is read from a directory store",
    ),
    Setting("shared", _switch, False, _SWITCH, "files of the store are readable and writable by the group"),
    Setting("keep_generations", _count, 2, _COUNT, "retention: the newest generations are kept"),
    Setting(
        "keep_seconds",
        _seconds,
        86_400.0,
        _SECONDS,
        "retention: younger generations are kept; publishers, which prune on their way, also keep what is younger than"
        " a publication or a restore may take",
    ),
    Setting(
        "keep_idle_seconds",
        _seconds,
        2_592_000.0,
        _SECONDS,
        "profiles and builds that nobody used for so long go whole",
    ),
    Setting(
        "compression",
        _compression,
        "zstd:2",
        "none, or zstd:LEVEL with a level of 1 to 19",
        "of new packs; texts of kernels have a level less",
    ),
    Setting(
        "slim",
        _choice("auto", "off", "restore", "publish"),
        "auto",
        "auto, off, restore or publish",
        "restore: files that a warm start never reads are stored, not fetched; publish: nor stored; auto: restore"
        " where `run` or a Session starts a Python with the start-up hook, else off",
    ),
    Setting(
        "require_warm",
        _split,
        (),
        "names of the catalogue, comma separated",
        "families for which a miss is an error",
    ),
    Setting("diagnostics", _switch, False, _SWITCH, "counters of what was hit"),
    Setting("report_dir", _path, "", "a directory", "where the JSON reports go"),
    Setting(
        "signing_key",
        _path,
        "",
        "a file made by `cachehome keygen`",
        "private key that signs what is published",
    ),
    Setting(
        "trusted_keys",
        _paths,
        (),
        "files with public keys, comma separated",
        "with trusted keys, unsigned means absent",
    ),
    Setting("heartbeat_interval_seconds", _positive_seconds, 30.0, _ABOVE_0, "the agent's lease is renewed"),
    Setting("lease_timeout_seconds", _positive_seconds, 600.0, _ABOVE_0, "the agent ends without a renewal"),
    Setting(
        "startup_timeout_seconds", _positive_seconds, 7_200.0, _ABOVE_0, "the agent ends if nobody claims it"
    ),
    Setting("exit_timeout_seconds", _positive_seconds, 600.0, _ABOVE_0, "time for the last publication"),
    Setting(
        "max_failed_starts",
        _whole,
        2,
        "a whole number, 0 or more",
        "after so many failed starts on a host, run leaves out what the newest generation brought, then the"
        " one before, then starts cold; 0: never",
    ),
    Setting(
        "start_seconds",
        _positive_seconds,
        600.0,
        _ABOVE_0,
        "a command of run that lives so long has started well",
    ),
    Setting("start_mark", _path, "", "a file", "a command of run that makes or changes it has started well"),
    Setting(
        "deny_failed",
        _switch,
        False,
        _SWITCH,
        "on: what run left out, and a start then went well without, is denied for everybody",
    ),
)
BY_KEY = {row.key: row for row in TABLE}
BY_VARIABLE = {row.variable: row for row in TABLE}


class Settings:
    """All settings with their sources. Immutable; `sources[key]` is "default", or what a user would look for:
    `--store`, `CACHEHOME_STORE`, `/etc/x/cachehome.toml`."""

    enabled: str
    store: tuple[str, ...]
    profile: str
    profile_fallback: str
    build_key: str
    image: str
    sources: tuple[str, ...]
    packages: tuple[str, ...]
    profile_files: tuple[str, ...]
    local: str
    slot: str
    families: tuple[str, ...]
    restore: bool
    publish: bool
    publish_interval_seconds: float
    publish_budget_seconds: float
    publish_tasks_per_node: int
    store_timeout_seconds: float
    max_storage_bytes: int
    identity: str
    store_owners: tuple[str, ...]
    shared: bool
    keep_generations: int
    keep_seconds: float
    keep_idle_seconds: float
    compression: str
    slim: str
    require_warm: tuple[str, ...]
    diagnostics: bool
    report_dir: str
    signing_key: str
    trusted_keys: tuple[str, ...]
    heartbeat_interval_seconds: float
    lease_timeout_seconds: float
    startup_timeout_seconds: float
    exit_timeout_seconds: float
    max_failed_starts: int
    start_seconds: float
    start_mark: str
    deny_failed: bool
    origin: dict[str, str]
    file: str  # the configuration file that was read, "" if there is none
    unread: tuple[str, ...]  # sections and keys of it that are nobody's
    problems: tuple[ConfigError, ...]

    def __init__(self, **values: object) -> None:
        unknown = set(values) - set(BY_KEY)
        if unknown:
            raise TypeError(f"no such setting: {', '.join(sorted(unknown))}")
        for row in TABLE:
            self.__dict__[row.key] = values.get(row.key, row.default)
        self.__dict__["origin"] = {row.key: "default" for row in TABLE} | dict.fromkeys(values, "argument")
        self.__dict__.update(problems=(), file="", unread=())

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Settings are immutable: use replace({name}=...)")

    def __repr__(self) -> str:
        told = ", ".join(f"{k}={getattr(self, k)!r}" for k, v in self.origin.items() if v != "default")
        return f"Settings({told})"

    def replace(self, **values: object) -> Settings:
        """A copy with other *values* (already of the right type)."""
        return Settings(**({k: getattr(self, k) for k, v in self.origin.items() if v != "default"} | values))

    def to_json(self) -> dict[str, Any]:
        """What was told, and by whom; `from_json` is the way back."""
        return {
            key: (source, getattr(self, key)) for key, source in self.origin.items() if source != "default"
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Settings:
        """Settings of another process."""
        settings = cls(**{key: value for key, (_, value) in told.items()})
        settings.origin.update({key: source for key, (source, _) in told.items()})
        return settings

    @classmethod
    def load(
        cls,
        environ: Mapping[str, str] | None = None,
        command_line: Mapping[str, str] | None = None,
        directory: str | None = None,
        *,
        lenient: bool = False,
    ) -> Settings:
        """Read the three sources.

        *command_line* maps keys to texts; *directory* is the working directory. Raises `ConfigError` at the
        first value that is not allowed; if *lenient*, such a value is left out and kept in `problems`.
        """
        environ = os.environ if environ is None else environ
        problems: list[ConfigError] = []
        values: dict[str, object] = {}
        sources: dict[str, str] = {}

        def take(row: Setting, text: str, source: str) -> None:
            if row.key in values or not text.strip():
                return
            try:
                values[row.key] = row.read(text.strip())
                sources[row.key] = source
            except (ValueError, KeyError, OverflowError):
                problems.append(_wrong(row.key, source, text, row.allowed))

        for key, text in (command_line or {}).items():
            take(BY_KEY[key], text, BY_KEY[key].flag)
        for row in TABLE:
            take(row, environ.get(row.variable, ""), row.variable)
        problems.extend(_unknown_variables(environ))
        path, table, unread, trouble = _file(environ, directory)
        problems.extend(trouble)
        for key, value in table.items():
            if key not in BY_KEY:
                problems.append(_unknown(key, path, BY_KEY))
            else:
                take(BY_KEY[key], _as_text(value), path)
        if problems and not lenient:
            raise problems[0]
        settings = cls(**values)
        settings.origin.update(sources)
        settings.__dict__.update(problems=tuple(problems), file=path, unread=unread)
        return settings


def _wrong(key: str, source: str, value: object, allowed: str) -> ConfigError:
    from cachehome.errors import ConfigError

    return ConfigError(
        f"{key}: {value!r} (from {source}) is not allowed: {allowed}",
        key=key,
        source=source,
        value=value,
        allowed=allowed,
    )


def _no_toml(path: str, error: Exception) -> ConfigError:
    from cachehome.errors import ConfigError

    allowed = f"TOML with a section [{SECTION}]"
    return ConfigError(
        f"{path}: {error}; it is to be {allowed}", key="the file", source=path, value="", allowed=allowed
    )


def _unknown(key: str, source: str, known: Mapping[str, object]) -> ConfigError:
    import difflib

    from cachehome.errors import ConfigError

    near = difflib.get_close_matches(key, list(known), n=1)
    hint = f"did you mean {near[0]}?" if near else "see `cachehome status`"
    return ConfigError(
        f"unknown setting {key} (from {source}): {hint}",
        key=key,
        source=source,
        value=None,
        allowed=", ".join(known),
    )


def _unknown_variables(environ: Mapping[str, str]) -> list[ConfigError]:
    found = []
    for name in sorted(environ):
        if (
            not name.startswith(PREFIX)
            or name in BY_VARIABLE
            or name in NOT_SETTINGS
            or not environ[name].strip()
        ):
            continue
        # Kubernetes gives every pod such variables for a service that somebody called "cachehome".
        if name.startswith((PREFIX + "SERVICE_", PREFIX + "PORT")):
            continue
        found.append(_unknown(name, "the environment", BY_VARIABLE))
    return found


def _file(
    environ: Mapping[str, str], directory: str | None
) -> tuple[str, dict[str, object], tuple[str, ...], list[ConfigError]]:
    """(the file, its section, what else it holds, problems)"""
    from cachehome import named as named_file

    named = environ.get("CACHEHOME_CONFIG", "").strip()
    config = environ.get("XDG_CONFIG_HOME", "").strip()
    if not os.path.isabs(config):
        home = os.path.expanduser("~")
        config = os.path.join(home, ".config") if os.path.isabs(home) else ""
    candidates = [named] if named else [os.path.join(directory or os.curdir, "cachehome.toml")]
    if not named and config:
        candidates.append(os.path.join(config, "cachehome", "cachehome.toml"))
    for path in candidates:
        try:
            text = named_file.read(path) if named else named_file.regular(path)
        except OSError as error:
            if named:
                return (
                    path,
                    {},
                    (),
                    [_wrong("CACHEHOME_CONFIG", "the environment", path, str(error.strerror))],
                )
            continue
        return _parse(os.path.abspath(path), text)
    return "", {}, (), []


def _parse(path: str, text: bytes) -> tuple[str, dict[str, object], tuple[str, ...], list[ConfigError]]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib
        except ImportError:
            from cachehome.errors import missing_extra

            raise missing_extra("tomli", "sync") from None
    try:
        document = tomllib.loads(text.decode())
        table: Any = document.pop(SECTION, {})
        if not isinstance(table, dict):
            raise ValueError(f"[{SECTION}] is not a section")
    except ValueError as error:
        return path, {}, (), [_no_toml(path, error)]
    unread = tuple(key if _is_value(value) else f"[{key}]" for key, value in document.items())
    return path, table, unread, []


def _is_value(value: object) -> bool:
    """Whether *value* is that of a key, no section and no list of sections."""
    return not isinstance(value[0] if isinstance(value, list) and value else value, dict)


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, list):
        return ",".join(map(str, value))
    return str(value)
