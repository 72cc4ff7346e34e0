"""The local home of the compile caches: where it lies on this machine, and why.

    <root>                     what CACHEHOME says, else user_cache_dir()/cachehome
      cp311-x86_64-1a2b3c4d    the host tag's first level: Python ABI, class of CPU
        torch-2.13.0+cpu       and its second: torch
          local | <build8>     the hook's | the one of a known build
            [<slot>]           a logical worker's own, if it asked for one
              torchinductor    a live directory: TORCHINDUCTOR_CACHE_DIR
                triton         another: TRITON_CACHE_DIR

The start-up hook runs this in every Python process: nothing but os and sys is imported, no directory is made,
and no place is chosen in which a compile would fail. Where nothing is usable no variable is set, so that
torch's own default applies.
"""

import os
import sys

from cachehome import families as catalogue
from cachehome.host import host_tag, plain, torch_version

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, MutableMapping
    from typing import Any

    from cachehome.families import Family

__all__ = [
    "Resolution",
    "apply",
    "directories",
    "host_tag",
    "network_mount",
    "path",
    "plain",
    "resolve",
    "torch_version",
    "user_cache_dir",
]

NAME = "cachehome"
LOCAL = "local"
APPLIED = "CACHEHOME_APPLIED"

# Less than this, in bytes or in files, is too little room. Low on purpose: the path of a live directory is
# part of what makes a restart warm, so it must not change on an ordinary day of a nearly full disk.
ROOM_BYTES = 64 << 20
ROOM_FILES = 1000

# Inductor splits the compiler's command line as a shell would. Below a live directory names take about 400
# bytes.
_QUOTING = "'\"\\"
_LONGEST = 3500

_NETWORK = frozenset(
    "afs beegfs ceph cifs coda fhgfs gfs2 glusterfs gpfs lustre ncpfs nfs nfs4 ocfs2 orangefs panfs pvfs2"
    " quobyte smb3 smbfs weka wekafs".split()
)
# Any other file system in user space is somebody's bucket or server.
_LOCAL_FUSE = frozenset(
    "bindfs encfs exfat fuse-overlayfs gocryptfs lxcfs mergerfs ntfs ntfs-3g squashfuse unionfs".split()
)


# As tempfile looks through them; our own directory lies in one that outlives a reboot.
_TMP = ("/tmp", "/var/tmp", "/usr/tmp")  # noqa: S108
_SHARED_TMP = "/var/tmp"  # noqa: S108


class Resolution:
    """What activation sets in one environment, and why."""

    __slots__ = (
        "directories",
        "kept",
        "live",
        "notes",
        "off",
        "reason",
        "record",
        "root",
        "skipped",
        "slot",
        "source",
        "tag",
        "unset",
        "values",
    )

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


# --- candidates ---------------------------------------------------------------------------------------------


def user_cache_dir(environ: "Mapping[str, str] | None" = None) -> str | None:
    """The directory for this user's caches: absolute, usable, not made. None where there is none."""
    for path, _ in _candidates(os.environ if environ is None else environ):
        if not unusable(path, foreign=False):
            return path
    return None


def _candidates(environ: "Mapping[str, str]") -> "Iterator[tuple[str, str]]":
    """(directory, where it comes from), best first. Only absolute ones: a relative one would be another
    directory in every working directory, and nobody expands a `~` that the shell left alone.
    """
    path = _text(environ, "XDG_CACHE_HOME")
    if os.path.isabs(path):
        yield os.path.normpath(path), "XDG_CACHE_HOME"
    if sys.platform in ("darwin", "win32"):
        yield from _platform_candidate(environ)
        return
    path, source = _text(environ, "HOME"), "HOME"
    if not os.path.isabs(path):
        path, source = _passwd_home(), "the passwd entry"
    if os.path.isabs(path):
        yield os.path.join(os.path.normpath(path), ".cache"), source


def _platform_candidate(environ: "Mapping[str, str]") -> "Iterator[tuple[str, str]]":
    try:
        import platformdirs

        path = platformdirs.user_cache_dir()
    except ImportError:
        path = _text(environ, "LOCALAPPDATA") if os.name == "nt" else os.path.expanduser("~/Library/Caches")
    if os.path.isabs(path):
        yield os.path.normpath(path), "the platform's cache directory"


def _text(environ: "Mapping[str, str]", variable: str) -> str:
    """The value of *variable*; blank is unset."""
    return environ.get(variable, "").strip()


def _passwd_home() -> str:
    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_dir
    except (ImportError, KeyError, OSError):
        return ""


def unusable(path: str, *, foreign: bool = True) -> str:
    """Why a compile below *path* would fail; empty if it would not.

    *foreign* false: somebody else's directory counts as unusable for root. What `sudo -E` makes there its
    owner could neither change nor remove.
    """
    for letter in path:
        if letter in _QUOTING or letter.isspace() or not letter.isprintable():
            return f"its name holds {letter!r}, which breaks the compiler's command line"
    if len(path) > _LONGEST:
        return "its name is too long"
    here = path
    while True:
        try:
            found = os.stat(here)
            break
        except (FileNotFoundError, NotADirectoryError):
            if os.path.islink(here):
                return f"{here} is a link to nowhere"
            here = os.path.dirname(here)
        except OSError as error:
            return f"{here}: {error.strerror}"
    if found.st_mode & 0o170000 != 0o040000:
        return f"{here} is not a directory"
    flags = os.statvfs(here).f_flag if hasattr(os, "statvfs") else 0
    if flags & getattr(os, "ST_RDONLY", 0):
        return f"{here} is on a file system mounted read-only"
    if flags & getattr(os, "ST_NOEXEC", 0):
        return f"{here} is on a file system mounted noexec"
    if not os.access(here, os.W_OK | os.X_OK):
        return f"{here} is not writable"
    if not foreign and found.st_uid and not found.st_mode & 0o1000 and _uid() == 0:
        return f"{here} belongs to user {found.st_uid}, and this is root"
    return ""


def unsuitable(path: str) -> str:
    """Why live directories should not lie at *path*, although compiles would work; empty if they may."""
    kind = network_mount(path)
    if kind:
        return f"it is on a network file system ({kind})"
    if not hasattr(os, "statvfs"):
        return ""
    here = path
    while not os.path.exists(here):
        here = os.path.dirname(here)
    room = os.statvfs(here)
    free = room.f_bavail * room.f_frsize
    if room.f_blocks and free < ROOM_BYTES:
        return f"it has too little room ({free >> 20} MiB free)"
    if room.f_files and room.f_favail < ROOM_FILES:
        return f"it has too little room ({room.f_favail} files free)"
    return ""


def network_mount(path: str, mounts: str = "/proc/self/mounts") -> str | None:
    """The type of the network file system that *path* lies on; None if it is local, or nothing tells."""
    try:
        with open(mounts, "rb") as file:
            table = os.fsdecode(file.read())
    except OSError:
        return None
    path = os.path.realpath(path) + "/"
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
        if len(point) >= longest and path.startswith(point.rstrip("/") + "/"):
            longest, kind = len(point), fields[2]
    program, _, name = kind.partition(".")  # Mountpoint for S3 is `fuse`, gcsfuse `fuse.gcsfuse`
    if kind in _NETWORK or (program == "fuse" and name not in _LOCAL_FUSE):
        return kind
    return None


def private_local(local: str = "", *, make: bool = False) -> tuple[str | None, str]:
    """The private directory on local disk, or None and why not.

    *local* (CACHEHOME_LOCAL), or `cachehome-<uid>` in it where it is not ours alone; else
    `/var/tmp/cachehome-<uid>`. Whoever can write there runs code here: it must be a directory, ours, of mode
    0700. *make* makes it.
    """
    if not hasattr(os, "getuid"):
        return None, "there is none on this platform"
    own = f"{NAME}-{_uid()}"
    why = ""
    for place in (local, os.path.join(local, own)) if local else (os.path.join(_SHARED_TMP, own),):
        if make:
            try:
                os.mkdir(place, 0o700)
            except OSError:
                pass  # it is there, or the next lines say what is wrong
        try:
            found = os.lstat(place)
        except OSError as error:
            why = why or f"{place}: {error.strerror}"
            continue
        if found.st_mode & 0o170777 == 0o040700 and found.st_uid == _uid():
            why = unusable(place) or unsuitable(place)
            return (None, why) if why else (place, "")
        why = f"{place} is not a directory of mode 0700 of user {_uid()}"
    return None, why


def _uid() -> int:
    return os.geteuid() if hasattr(os, "geteuid") else -1


# --- wishes -------------------------------------------------------------------------------------------------


def wish(environ: "Mapping[str, str]") -> tuple[str, str, str]:
    """What the user asks for ("", "off", "on" or an absolute root), by what, and what was wrong with it."""
    value, source = _text(environ, "CACHEHOME"), "CACHEHOME"
    if not value:
        from cachehome import switch

        value, source = switch.read(), "cachehome enable"
    if not value:
        return "", "", ""
    low = value.lower()
    if low in ("0", "off"):
        return "off", source, ""
    if low in ("1", "on"):
        return "on", source, ""
    if os.path.isabs(value):
        return os.path.normpath(value), source, ""
    return "", "", f"{source}: {value!r} is not 0, off, 1, on or an absolute path: ignored"


def applied(environ: "Mapping[str, str]") -> dict[str, str]:
    """The record of what an activation set in this environment: wish, root, tag, build, and each variable."""
    record = {}
    for item in environ.get(APPLIED, "").split(";"):
        name, _, value = item.partition("=")
        record[name] = value.replace("%3B", ";").replace("%25", "%")
    return record if {"wish", "source", "root", "tag", "build"} <= record.keys() else {}


def _record(facts: dict[str, str]) -> str:
    return ";".join(
        f"{name}={value.replace('%', '%25').replace(';', '%3B')}" for name, value in facts.items()
    )


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


# --- the answer ---------------------------------------------------------------------------------------------

_own_record = ""  # what this very process applied, as against a parent


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
) -> "Resolution":
    """What activation would set in *environ*, which is left as it is.

    *app*: an engine's name. *build8*: the first 8 digits of a known build. *tag*: the host tag of another
    interpreter. *families*, *local*, *slot*: instead of what the variables say. *make*: make a private local
    directory where one is needed.
    """
    environ = os.environ if environ is None else environ
    answer = Resolution(tag or host_tag(environ))
    wanted, asked_by, fault = wish(environ)
    if fault:
        answer.notes.append(fault)
    rows = list(families) if families is not None else _chosen(environ, answer)
    if wanted == "off":
        answer.off = True
        answer.source = asked_by
        answer.reason = "activation is switched off by CACHEHOME"
        _assign(answer, rows, environ, {})
        answer.values.clear()
        answer.unset.clear()
        return answer
    record = applied(environ)
    level = build8 or LOCAL
    roots = []
    # A child keeps the directories of its parent, but not on another kind of host (a launcher hands its
    # environment to nodes with another CPU), nor if it was told a root of its own.
    told = os.path.isabs(wanted)
    own = environ.get(APPLIED) == _own_record
    again = own and app is not None
    if record.get("tag") == answer.tag and not again and (not told or record.get("wish") == wanted):
        roots.append((record["root"], record["source"] if own else "the parent process"))
        level = build8 or record["build"]
    if told:
        roots.append((wanted, asked_by))
    else:
        name = app if app and not wanted else NAME
        roots += [(os.path.join(path, name), source) for path, source in _candidates(environ)]
    answer.slot, fault = _slot(_text(environ, "CACHEHOME_SLOT") if slot is None else slot, environ)
    if fault:
        answer.notes.append(fault)
    below = os.path.join(*answer.tag.split("/"), level, *filter(None, [answer.slot]))
    _settle(answer, roots, below, _text(environ, "CACHEHOME_LOCAL") if local is None else local, told, make)
    _assign(answer, rows, environ, record)
    ours = {name: value for name, value in answer.values.items() if name not in answer.kept}
    if ours:
        facts = {
            "wish": wanted,
            "source": answer.source,
            "root": answer.root or "",
            "tag": answer.tag,
            "build": level,
        }
        answer.record = _record(facts | ours)
    return answer


def _chosen(environ: "Mapping[str, str]", answer: Resolution) -> "list[Family]":
    """The families that the hook sets: without a list, the catalogue's default set."""
    rows = catalogue.BUILTIN
    names = [name for name in environ.get("CACHEHOME_FAMILIES", "").replace(",", " ").split() if name]
    for name in names:
        if all(name != family.name for family in rows):
            answer.notes.append(
                f"CACHEHOME_FAMILIES: {name!r} is no built-in family: the hook passes over it"
            )
    return [family for family in rows if (family.name in names if names else family.default)]


def _settle(
    answer: Resolution, roots: list[tuple[str, str]], below: str, local: str, told: bool, make: bool
) -> None:
    """Choose the first of *roots* that will do, else the private local directory."""
    # Somewhere else on local disk helps against a network, a lack of room, a name that no compiler can take.
    elsewhere = bool(local)
    for root, source in roots:
        fault = unusable(os.path.join(root, below, "torchinductor"), foreign=told)
        if fault.startswith("its name"):
            elsewhere = True
        elif not fault:
            fault = unsuitable(root)
            elsewhere = elsewhere or bool(fault)
            if not fault:
                answer.root, answer.source, answer.reason = root, source, f"{root} comes from {source}"
                answer.live = os.path.join(root, below)
                return
        answer.skipped.append((root, fault))
    if elsewhere:
        if local and not os.path.isabs(local):
            answer.notes.append(f"CACHEHOME_LOCAL: {local!r} is not an absolute path: ignored")
            local = ""
        place, fault = private_local(local, make=make)
        if place is not None:
            why = "; ".join(f"{root}: {fault}" for root, fault in answer.skipped)
            answer.root, answer.source = place, "CACHEHOME_LOCAL" if local else "the private local directory"
            answer.reason = (
                f"{place} is {answer.source}, used since {why or 'no directory of the user was found'}"
            )
            answer.live = os.path.join(place, below)
            return
        answer.skipped.append((local or "the private local directory", fault))
    why = "; ".join(f"{root}: {fault}" for root, fault in answer.skipped)
    answer.reason = f"no usable directory ({why or 'no home'}), so torch's own defaults apply"


def _assign(
    answer: Resolution, rows: "list[Family]", environ: "Mapping[str, str]", record: "Mapping[str, str]"
) -> None:
    """Say for each family whose directory is in effect: the user's, ours, or nobody's."""
    exported: dict[str, str] = {}  # by subdirectory; what lies below the user's directory moves with it
    for family in rows:
        variable, value = family.variable, environ.get(family.variable, "")
        parent = next((row for row in rows if family.subdirectory.startswith(row.subdirectory + "/")), None)
        unless = next((name for name in family.unless if _text(environ, name)), "")
        place = ""
        if value.strip() and not _nobodys(family, parent, environ, record):
            answer.kept[variable] = value
            place = exported[family.subdirectory] = _absolute(variable, value, answer)
            if place != value:
                answer.values[variable] = place
        elif unless:
            answer.skipped.append((family.name, f"{unless} is set"))
        elif parent and parent.subdirectory in exported:
            place = exported[parent.subdirectory] + family.subdirectory[len(parent.subdirectory) :]
            answer.values[variable] = place
        elif answer.live:
            place = os.path.join(answer.live, *family.subdirectory.split("/"))
            answer.values[variable] = place
        if place:
            answer.directories[family.name] = place
        elif variable in environ and (not value.strip() or value == record.get(variable)):
            # Worse than none: Inductor takes an empty value for the working directory, and one of ours is out
            # of date.
            answer.unset.append(variable)


def _nobodys(
    family: "Family", parent: "Family | None", environ: "Mapping[str, str]", record: "Mapping[str, str]"
) -> bool:
    """Whether the exported value is one that we applied, or that torch itself wrote into the environment."""
    value = environ[family.variable]
    if value == record.get(family.variable):
        return True
    if family.name == "inductor":
        return _torch_default(value, environ)
    for above in (environ.get(parent.variable), record.get(parent.variable)) if parent else ():
        if parent and above:
            place = above + family.subdirectory[len(parent.subdirectory) :]
            if value == place or (value.startswith(place + "/") and value[len(place) + 1 :].isdigit()):
                return True
    return False


def _torch_default(value: str, environ: "Mapping[str, str]") -> bool:
    """Whether *value* is `<tmp>/torchinductor_<user>`, which importing torch._dynamo writes where nobody
    chose.
    """
    parent, name = os.path.split(value)
    if not name.startswith("torchinductor_"):
        return False
    users = [environ.get(name, "") for name in ("LOGNAME", "USER", "LNAME", "USERNAME")]
    users.append(f"uid_{_uid()}")
    try:
        import pwd

        users.append(pwd.getpwuid(os.getuid()).pw_name)
    except (ImportError, KeyError, OSError):
        pass
    places = [_text(environ, name) for name in ("TMPDIR", "TEMP", "TMP")] + [*_TMP]
    names = ["".join("_" if letter in '\\/:*?"<>|' else letter for letter in user) for user in users if user]
    return name[len("torchinductor_") :] in names and parent in [
        os.path.normpath(path) for path in places if path
    ]


def _absolute(variable: str, value: str, answer: Resolution) -> str:
    """The user's *value*, absolute: a compiler with another working directory would look elsewhere."""
    if os.path.isabs(value):
        return value
    try:
        path = os.path.abspath(value)
    except OSError:
        answer.notes.append(f"{variable}: {value!r} is relative, the working directory is gone: left as is")
        return value
    tilde = ", since nobody expands a quoted ~" if value.startswith("~") else ""
    answer.notes.append(f"{variable}: {value!r} is relative, so it is {path}{tilde}")
    return path


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
    """The live directory in effect of each family, absolute: an exported one, else ours. For *wishes* see
    resolve().
    """
    return resolve(environ, build8=build8, **wishes).directories


def path(family: str | None = None, environ: "Mapping[str, str] | None" = None) -> str | None:
    """The live directory of *family*, or the one that holds all of ours; None where torch's own default
    applies.
    """
    answer = resolve(environ)
    if family is None:
        return answer.live
    if family not in catalogue.catalogue(plugins=True):
        raise ValueError(f"no family {family!r}: one of {', '.join(catalogue.catalogue(plugins=True))}")
    return answer.directories.get(family)
