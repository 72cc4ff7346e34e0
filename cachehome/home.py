"""The local home of the compile caches: where it lies on this machine, and why.

    <root>                     what CACHEHOME says, else user_cache_dir()/cachehome
      cp311-x86_64-1a2b3c4d    the host tag's first level: Python ABI, class of CPU
        torch-2.13.0+cpu       and its second: torch
          local | <build8>     the hook's | the one of a known build
            [<slot>]           a logical worker's own, if it asked for one
              torchinductor    a live directory: TORCHINDUCTOR_CACHE_DIR
                triton         another: TRITON_CACHE_DIR

No directory is made, and no place is chosen in which a compile would fail. Where nothing is usable no
variable is set, so that torch's own default applies. The start-up hook comes here only in unusual
environments (see place.py), so this module imports os and sys only.
"""

import os
import sys

import cachehome
from cachehome import families as catalogue
from cachehome import place
from cachehome.place import APPLIED, LOCAL, NAME, host_tag, network_mount, plain, torch_version

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, MutableMapping
    from typing import Any

    from cachehome.families import Family

__all__ = [
    "APPLIED",
    "LOCAL",
    "NAME",
    "Resolution",
    "applied",
    "apply",
    "directories",
    "examine",
    "host_tag",
    "network_mount",
    "path",
    "plain",
    "private_local",
    "resolve",
    "torch_version",
    "unusable",
    "user_cache_dir",
    "warnings",
    "wish",
]

_LOCAL_FUSE = (
    "bindfs encfs exfat fuse-overlayfs gocryptfs lxcfs mergerfs ntfs ntfs-3g squashfuse unionfs".split()
)
_TMP = ("/tmp", "/var/tmp", "/usr/tmp")  # noqa: S108 - where tempfile looks
_DEFAULTS = "so torch's own defaults apply: set CACHEHOME to a directory that you may write to"
_SURVIVES_REBOOT = "/var/tmp"  # noqa: S108 - what is made there is checked

_own_record = ""  # what this very process applied, as against a parent


class Resolution:
    """What activation sets in one environment, and why."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        self.off = False  # CACHEHOME=0
        self.root: str | None = None  # None where nothing is usable, or activation is off
        self.live: str | None = None  # root/tag/level[/slot]
        self.slot = ""
        self.source = ""  # where the root comes from
        self.reason = ""  # why this root, or why none
        self.values: dict[str, str] = {}  # variables to set
        self.unset: list[str] = []  # variables to remove
        self.kept: dict[str, str] = {}  # the user's own exports
        self.directories: dict[str, str] = {}  # family -> live directory in effect, exported or ours
        self.skipped: list[tuple[str, str]] = []  # (what, why) of all that was looked at and not taken
        self.notes: list[str] = []  # what else the user should know
        self.record = ""  # the value of CACHEHOME_APPLIED

    def __repr__(self) -> str:
        return f"Resolution(live={self.live!r}, source={self.source!r}, reason={self.reason!r})"


def user_cache_dir(environ: "Mapping[str, str] | None" = None) -> str | None:
    """The directory for this user's caches: absolute, usable, not made. None where there is none."""
    for directory, _ in place.candidates(os.environ if environ is None else environ):
        if not unusable(directory, foreign=False):
            return directory
    return None


def resolve(
    environ: "Mapping[str, str] | None" = None,
    *,
    app: str | None = None,
    build8: str | None = None,
    tag: str | None = None,
    families: "Iterable[Family] | None" = None,
    local: str | None = None,
    slot: str | None = None,
    make: bool = False,
) -> Resolution:
    """What activation would set in *environ*, which is left as it is.

    *app*: an engine's name. *build8*: the first 8 digits of a known build. *tag*: the host tag of another
    interpreter. *families*, *local*, *slot*: instead of what the variables say. *make*: make a private local
    directory where one is needed.
    """
    environ = os.environ if environ is None else environ
    answer = Resolution(tag or host_tag(environ))
    wanted, asked_by, fault = wish(environ)
    _note(answer, fault)
    rows = list(families) if families is not None else _chosen(environ, answer)
    if wanted == "off":
        answer.off, answer.source = True, asked_by
        answer.reason = f"activation is switched off by {asked_by}"
        _assign(answer, rows, environ, {})
        answer.values, answer.unset = {}, []
        return answer
    # A child keeps the directories of its parent, but not on another kind of host (a launcher hands its
    # environment to nodes with another CPU), nor if it was told a root of its own.
    record = applied(environ)
    level = build8 or LOCAL
    roots = []
    told = os.path.isabs(wanted)
    own = bool(record) and environ.get(APPLIED) in (_own_record, cachehome.hook_record)
    inherited = record.get("root") and record["tag"] == answer.tag and (not told or record["wish"] == wanted)
    if inherited and not (own and app):
        roots.append((record["root"], record["source"] if own else "the parent process"))
        level = build8 or record["build"]
    if told:
        roots.append((wanted, asked_by))
    else:
        for variable in ("XDG_CACHE_HOME", "HOME"):
            value = _text(environ, variable)
            if value and not os.path.isabs(value):
                answer.skipped.append((f"{variable}={value}", "is not an absolute path"))
        name = app if app and not wanted else NAME
        roots += [(os.path.join(cache, name), source) for cache, source in place.candidates(environ)]
    answer.slot, fault = _slot(_text(environ, "CACHEHOME_SLOT") if slot is None else slot, environ)
    _note(answer, fault)
    below = os.path.join(*answer.tag.split("/"), level, *filter(None, [answer.slot]))
    _settle(answer, roots, below, _text(environ, "CACHEHOME_LOCAL") if local is None else local, told, make)
    _assign(answer, rows, environ, record)
    ours = {name: value for name, value in answer.values.items() if name not in answer.kept}
    if ours:
        root = answer.root or ""
        facts = {"wish": wanted, "source": answer.source, "root": root, "tag": answer.tag, "build": level}
        answer.record = place.record_of(facts | ours)
    return answer


def apply(answer: Resolution, environ: "MutableMapping[str, str]") -> None:
    """Carry *answer* out in *environ*."""
    global _own_record
    if answer.off:
        return
    for variable in answer.unset:
        environ.pop(variable, None)
    environ.update(answer.values)
    if answer.record:
        environ[APPLIED] = answer.record
    else:
        environ.pop(APPLIED, None)
    if environ is os.environ:
        _own_record = answer.record


def directories(
    environ: "Mapping[str, str] | None" = None, build8: str | None = None, **wishes: "Any"
) -> dict[str, str]:
    """The live directory in effect of each family, absolute: an exported one, else ours. *wishes*: see
    resolve().
    """
    return resolve(environ, build8=build8, **wishes).directories


def path(family: str | None = None, environ: "Mapping[str, str] | None" = None) -> str | None:
    """The live directory of *family*, or the one that holds all of ours; None where torch's own default
    applies.
    """
    if family is None:
        return resolve(environ).live
    known = catalogue.catalogue(plugins=True)
    if family not in known:
        raise ValueError(f"no family {family!r}: one of {', '.join(known)}")
    return resolve(environ, families=known.values()).directories.get(family)


def warnings(answer: Resolution) -> list[str]:
    """What speaks against the directories that the user exported: they are used as told."""
    found = []
    for variable, value in answer.kept.items():
        fault = examine(answer.values.get(variable, value))[1]
        if fault:
            found.append(f"{variable}={value}: {fault}; used as told")
    return found


# --- wishes ---


def wish(environ: "Mapping[str, str]") -> tuple[str, str, str]:
    """What the user asks for ("", "off", "on" or an absolute root), by what, and what was wrong with it."""
    from cachehome import switch

    value, source = _text(environ, "CACHEHOME"), "CACHEHOME"
    switched = switch.read()
    if switched and value in ("", switched):
        value, source = switched, "cachehome enable"
    low = value.lower()
    if low in ("1", "on"):
        return "on", source, ""
    if low in ("0", "off"):
        return "off", source, ""
    if os.path.isabs(value):
        return os.path.normpath(value), source, ""
    return "", "", f"{source}: {value!r} is not 0, off, 1, on or an absolute path: ignored" if value else ""


def applied(environ: "Mapping[str, str]") -> dict[str, str]:
    """The record of what an activation set in this environment: wish, source, root, tag, build, each
    variable.
    """
    items = (item.partition("=") for item in environ.get(APPLIED, "").split(";"))
    record = {name: fact.replace("%3B", ";").replace("%25", "%") for name, _, fact in items}
    return record if {"wish", "source", "root", "tag", "build"} <= record.keys() else {}


def _text(environ: "Mapping[str, str]", variable: str) -> str:
    """The value of *variable*; blank is unset."""
    return environ.get(variable, "").strip()


def _note(answer: Resolution, note: str) -> None:
    if note:
        answer.notes.append(note)


def _chosen(environ: "Mapping[str, str]", answer: Resolution) -> "list[Family]":
    """The families that the hook sets: without a list, the catalogue's default set."""
    names = environ.get("CACHEHOME_FAMILIES", "").replace(",", " ").split()
    known = {family.name for family in catalogue.BUILTIN}
    for name in names:
        if name not in known:
            _note(answer, f"CACHEHOME_FAMILIES: {name!r} is no built-in family: the hook passes over it")
    return [family for family in catalogue.BUILTIN if (family.name in names if names else family.default)]


def _slot(template: str, environ: "Mapping[str, str]") -> tuple[str, str]:
    """The name of this worker's own directory; empty, and why, if it shares the common one."""
    if not template:
        return "", ""
    try:
        name = template.format_map(environ)
    except KeyError as error:
        return "", f"slot {template!r}: {error.args[0]} is not set, so the shared directory is used"
    except (ValueError, AttributeError, IndexError, TypeError):
        return "", f"slot {template!r} is not a text with {{NAME}} fields: ignored"
    if name.strip(".") and len(name) < 200 and plain(name) == name:
        return name, ""
    return "", f"slot {name!r} is not a plain name (letters, digits, dots, dashes): ignored"


# --- places ---


# What place.obstacle() says: the kind, and what to tell the user. `name`, `unusable`: a compile would fail. `network`,
# `room`: it would not, but live directories should lie elsewhere.
OBSTACLES = {
    "letter": (
        "name",
        "its name holds a blank, a quote or a backslash, which break the compiler's command line",
    ),
    "long": ("name", "its name is too long"),
    "link": ("unusable", "{} is a link to nowhere"),
    "error": ("unusable", "{}"),
    "file": ("unusable", "{} is not a directory"),
    "access": ("unusable", "{} is not writable"),
    "kernel": ("unusable", "{} is the kernel's, and keeps no files"),
    "noexec": ("unusable", "{} is on a file system mounted noexec"),
    "foreign": ("unusable", ""),
    "room": ("room", "it has too little room"),
    "network": ("network", "it is on a network file system"),
}


def examine(directory: str, *, foreign: bool = True) -> tuple[str, str]:
    """What stands against live directories at *directory*, by kind and in words; two empty texts if nothing does."""
    word, where = place.obstacle(directory, foreign=foreign)
    if not word:
        return "", ""
    kind, text = OBSTACLES[word]
    why = text.format(where)
    if word == "access" and hasattr(os, "statvfs") and os.statvfs(where).f_flag & os.ST_RDONLY:
        why += ", as its file system is mounted read-only"
    elif word == "network":
        why += f" ({network_mount(where)})"
    elif word == "foreign":
        why = f"{where} belongs to user {os.stat(where).st_uid}, and this is root"
    elif word == "room":
        room = os.statvfs(where)
        why += f" ({room.f_bavail * room.f_frsize >> 20} MiB and {room.f_favail} files free)"
    return kind, why


def unusable(directory: str, *, foreign: bool = True) -> str:
    """Why a compile below *directory* would fail; empty if it would not."""
    kind, why = examine(directory, foreign=foreign)
    return why if kind in ("name", "unusable") else ""


def other_candidates(environ: "Mapping[str, str]") -> list[tuple[str, str]]:
    """The cache directory on another platform, or of a user without HOME."""
    source = "the platform's cache directory"
    if sys.platform in ("darwin", "win32"):
        try:
            import platformdirs

            cache = platformdirs.user_cache_dir()
        except ImportError:
            cache = os.path.expanduser("~/Library/Caches")
            if sys.platform == "win32":
                cache = _text(environ, "LOCALAPPDATA")
    else:
        wrong = "no absolute path" if _text(environ, "HOME") else "not set"
        source = f"the passwd entry, since HOME is {wrong}"
        try:
            import pwd

            cache = os.path.join(pwd.getpwuid(os.getuid()).pw_dir, ".cache")
        except (ImportError, KeyError, OSError):
            return []
    return [(os.path.normpath(cache), source)] if os.path.isabs(cache) else []


def network_type(real: str, table: str) -> str | None:
    """The type of the network file system that *real*, a path without links, lies on, by the table of mounts."""
    real = real.rstrip("/") + "/"
    longest, kind = -1, ""
    for line in table.split("\n"):
        fields = line.split(" ", 3)
        if len(fields) < 4:
            continue
        point = fields[1]
        if "\\" in point:
            for escape, letter in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
                point = point.replace(escape, letter)
        # Of several mounts on one point the last one is seen.
        if len(point) >= longest and real.startswith(point.rstrip("/") + "/"):
            longest, kind = len(point), fields[2]
    # Any file system in user space is somebody's bucket or server, but for these.
    if kind == "fuseblk" or kind.removeprefix("fuse.") in _LOCAL_FUSE:
        return None
    return (
        kind
        if any(f" {kind} ".startswith(start) for start in os.fsdecode(place.NETWORK).split("|"))
        else None
    )


def private_local(chosen: str = "", *, make: bool = False) -> tuple[str | None, str]:
    """The private directory on local disk, or None and why there is none.

    It is *chosen* (CACHEHOME_LOCAL), or `cachehome-<uid>` in it where it is not ours alone; else
    `/var/tmp/cachehome-<uid>`. Whoever can write there runs code here: it must be a directory, ours, of mode
    0700. *make* makes it.
    """
    if os.name != "posix":
        return None, "there is no private directory on this platform"
    user = os.geteuid()
    own = os.path.join(chosen or _SURVIVES_REBOOT, f"{NAME}-{user}")
    why = ""
    for directory in (chosen, own) if chosen else (own,):
        if make:
            try:
                os.mkdir(directory, 0o700)
            except OSError:
                pass  # it is there, or the next lines say what is wrong
        try:
            found = os.lstat(directory)
        except OSError as error:
            why = why or f"{directory}: {error.strerror}"
            continue
        if found.st_mode & 0o170777 == 0o040700 and found.st_uid == user:
            fault = examine(directory)[1]
            return (None, f"{directory}: {fault}") if fault else (directory, "")
        why = f"{directory} is not a directory of mode 0700 of user {user}"
    return None, why


def _settle(
    answer: Resolution, roots: list[tuple[str, str]], below: str, local: str, told: bool, make: bool
) -> None:
    """Choose the first of *roots* that will do, else the private local directory."""
    elsewhere = bool(local)
    for root, source in roots:
        kind, fault = examine(os.path.join(root, below, "torchinductor"), foreign=told)
        if not fault:
            answer.root, answer.source, answer.reason = root, source, f"{root} comes from {source}"
            answer.live = os.path.join(root, below)
            return
        answer.skipped.append((root, fault))
        # Local disk helps against a network, a lack of room, a name that no compiler can take.
        elsewhere = elsewhere or kind != "unusable"
    why = "; ".join(f"{what}: {fault}" for what, fault in answer.skipped) or "no home was found"
    answer.reason = f"no usable directory ({why}), {_DEFAULTS}"
    if not elsewhere:
        return
    if local and not os.path.isabs(local):
        _note(answer, f"CACHEHOME_LOCAL: {local!r} is not an absolute path: ignored")
        local = ""
    source = "CACHEHOME_LOCAL" if local else "the private local directory"
    answer.root, fault = private_local(local, make=make)
    if answer.root is None:
        answer.skipped.append((source, fault))
        answer.reason = f"no usable directory ({why}; {source}: {fault}), {_DEFAULTS}"
        return
    answer.source = source
    answer.reason = f"{answer.root} is {source}, used since {why}"
    answer.live = os.path.join(answer.root, below)


# --- variables ---


def _assign(
    answer: Resolution, rows: "list[Family]", environ: "Mapping[str, str]", record: "Mapping[str, str]"
) -> None:
    """Say for each family whose directory is in effect: the user's, ours, or nobody's."""
    exported: dict[str, str] = {}  # by subdirectory; what lies below the user's directory moves with it
    for family in rows:
        variable, value, directory = family.variable, environ.get(family.variable, ""), ""
        above = next((row for row in rows if family.subdirectory.startswith(row.subdirectory + "/")), None)
        unless = next((name for name in family.unless if _text(environ, name)), "")
        if value.strip() and not _nobodys(family, above, environ, record):
            directory, fault = _absolute(variable, value)
            _note(answer, fault)
            answer.kept[variable] = value
            exported[family.subdirectory] = directory
            if directory != value:
                answer.values[variable] = directory
        elif unless:
            answer.skipped.append((family.name, f"{unless} is set"))
        elif above and above.subdirectory in exported:
            directory = exported[above.subdirectory] + family.subdirectory[len(above.subdirectory) :]
            answer.values[variable] = directory
        elif answer.live:
            directory = os.path.join(answer.live, *family.subdirectory.split("/"))
            answer.values[variable] = directory
        if directory:
            answer.directories[family.name] = directory
        elif variable in environ and (not value.strip() or value == record.get(variable)):
            # Worse than none: to Inductor an empty value is the working directory, and ours is out of date.
            answer.unset.append(variable)


def _nobodys(
    family: "Family", above: "Family | None", environ: "Mapping[str, str]", record: "Mapping[str, str]"
) -> bool:
    """Whether the exported value is one that we applied, or that torch wrote into the environment by itself."""
    value = environ[family.variable]
    if value == record.get(family.variable):
        return True
    if family.name == "inductor":
        return _torch_default(value, environ)
    # `<it>/triton/<device>`, at the first kernel of Inductor's.
    for directory in (environ.get(above.variable), record.get(above.variable)) if above else ():
        if above and directory:
            default = directory + family.subdirectory[len(above.subdirectory) :]
            if value == default or (value.startswith(default + "/") and value[len(default) + 1 :].isdigit()):
                return True
    return False


def _torch_default(value: str, environ: "Mapping[str, str]") -> bool:
    """Whether *value* is `<tmp>/torchinductor_<user>`, which importing torch._dynamo exports where nobody
    chose.
    """
    parent, name = os.path.split(value)
    if not name.startswith("torchinductor_"):
        return False
    users = [environ.get(variable, "") for variable in ("LOGNAME", "USER", "LNAME", "USERNAME")]
    try:
        import pwd

        users.append(f"uid_{os.getuid()}")
        users.append(pwd.getpwuid(os.getuid()).pw_name)
    except (ImportError, KeyError, OSError):
        pass
    names = ["".join("_" if letter in '\\/:*?"<>|' else letter for letter in user) for user in users if user]
    places = [*_TMP, *(environ[variable] for variable in ("TMPDIR", "TEMP", "TMP") if environ.get(variable))]
    return name[len("torchinductor_") :] in names and parent in map(os.path.normpath, places)


def _absolute(variable: str, value: str) -> tuple[str, str]:
    """The user's *value* made absolute, and a note: a compiler with another working directory would look
    elsewhere.
    """
    if os.path.isabs(value):
        return value, ""
    try:
        directory = os.path.abspath(value)
    except OSError:
        return value, f"{variable}: {value!r} is relative and the working directory is gone: left as it is"
    tilde = ", since nobody expands a quoted ~" if value.startswith("~") else ""
    return directory, f"{variable}: {value!r} is relative, so it is {directory}{tilde}"
