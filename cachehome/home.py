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
torch's own default applies. What an ordinary start does not need lies in other modules: each function here
costs every start of Python.
"""

import os
import sys

from cachehome import families as catalogue

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, MutableMapping
    from typing import Any

    from cachehome.families import Family

NAME = "cachehome"
LOCAL = "local"
APPLIED = "CACHEHOME_APPLIED"

# Less than this, in bytes or in files, is too little room. Low on purpose: the path of a live directory is
# part of what makes a restart warm, so it must not change on an ordinary day of a nearly full disk.
ROOM_BYTES = 64 << 20
ROOM_FILES = 1000

# Below a live directory names take about 400 bytes of the 4,096 that a path may have.
_LONGEST = 3500

# x86 features that generated code can use, numbered as in modalias: host.X86 has the names and the reasons,
# and a test compares the two.
_FEATURES = (
    "0000 0004 0008 000F 0013 0017 0018 0019 001A 0036 003B 003D 003E 003F 0080 0081 0089 008C 008D 0093 "
    "0094 0096 0097 0099 009A 009C 009D 009E 00C0 00C5 00C6 00C7 00C8 00CB 00CF 00D0 00D5 00DD 0120 0123 "
    "0124 0125 0128 012B 0130 0131 0132 0133 0135 0137 0138 013A 013B 013C 013D 013E 013F 0184 0185 0201 "
    "0205 0206 0208 0209 020A 020B 020C 020E 0216 0219 021B 021C 0242 0243 0248 024E 0250 0256 0257 0258 "
    "0259 "
)
_MODALIAS = "/sys/devices/system/cpu/modalias"

# As in /proc/self/mounts. Mountpoint for S3 shows as `fuse`, gcsfuse as `fuse.gcsfuse`.
_NETWORK = (
    "afs beegfs ceph cifs coda fhgfs gfs2 glusterfs gpfs lustre ncpfs nfs nfs4 ocfs2 orangefs panfs pvfs2 quobyte smb3"
    " smbfs weka wekafs fuse"
)
_LOCAL_FUSE = "bindfs encfs exfat fuse-overlayfs gocryptfs lxcfs mergerfs ntfs ntfs-3g squashfuse unionfs"

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
    for path, _ in candidates(os.environ if environ is None else environ):
        if not unusable(path, foreign=False):
            return path
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
    if fault:
        answer.notes.append(fault)
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
    own = bool(record) and environ.get(APPLIED) == _own_record
    if record.get("tag") == answer.tag and not (own and app) and (not told or record["wish"] == wanted):
        roots.append((record["root"], record["source"] if own else "the parent process"))
        level = build8 or record["build"]
    if told:
        roots.append((wanted, asked_by))
    else:
        name = app if app and not wanted else NAME
        roots += [(os.path.join(path, name), source) for path, source in candidates(environ)]
    template = _text(environ, "CACHEHOME_SLOT") if slot is None else slot
    if template:
        from cachehome import odd

        answer.slot, fault = odd.slot(template, environ)
        if fault:
            answer.notes.append(fault)
    below = f"{answer.tag}/{level}/{answer.slot}".rstrip("/").replace("/", os.sep)
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
        answer.record = ";".join(
            f"{name}={fact.replace('%', '%25').replace(';', '%3B')}" for name, fact in (facts | ours).items()
        )
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
    answer = resolve(environ)
    if family is None:
        return answer.live
    known = catalogue.catalogue(plugins=True)
    if family not in known:
        raise ValueError(f"no family {family!r}: one of {', '.join(known)}")
    return answer.directories.get(family)


# --- wishes ---


def wish(environ: "Mapping[str, str]") -> tuple[str, str, str]:
    """What the user asks for ("", "off", "on" or an absolute root), by what, and what was wrong with it."""
    value, source = _text(environ, "CACHEHOME"), "CACHEHOME"
    if not value:
        from cachehome import switch

        value, source = switch.read(), "cachehome enable"
    low = value.lower()
    if low in ("1", "on"):
        return "on", source, ""
    if os.path.isabs(value):
        return os.path.normpath(value), source, ""
    if low in ("0", "off"):
        return "off", source, ""
    return "", "", f"{source}: {value!r} is not 0, off, 1, on or an absolute path: ignored" if value else ""


def applied(environ: "Mapping[str, str]") -> dict[str, str]:
    """The record of what an activation set in this environment: wish, source, root, tag, build, each
    variable.
    """
    value = environ.get(APPLIED)
    if not value:
        return {}
    items = (item.partition("=") for item in value.split(";"))
    record = {name: fact.replace("%3B", ";").replace("%25", "%") for name, _, fact in items}
    return record if {"wish", "source", "root", "tag", "build"} <= record.keys() else {}


def _text(environ: "Mapping[str, str]", variable: str) -> str:
    """The value of *variable*; blank is unset."""
    return environ.get(variable, "").strip()


def _chosen(environ: "Mapping[str, str]", answer: Resolution) -> "list[Family]":
    """The families that the hook sets: without a list, the catalogue's default set."""
    names = environ.get("CACHEHOME_FAMILIES", "").replace(",", " ").split()
    if not names:
        return [family for family in catalogue.BUILTIN if family.default]
    known = {family.name for family in catalogue.BUILTIN}
    answer.notes += [
        f"CACHEHOME_FAMILIES: {name!r} is no built-in family: the hook passes over it"
        for name in names
        if name not in known
    ]
    return [family for family in catalogue.BUILTIN if family.name in names]


# --- places ---


def candidates(environ: "Mapping[str, str]") -> list[tuple[str, str]]:
    """(directory, where it comes from), best first. Only absolute ones: a relative one would be another
    directory in every working directory, and nobody expands a `~` that the shell left alone.
    """
    found = []
    cache = _text(environ, "XDG_CACHE_HOME")
    if os.path.isabs(cache):
        found.append((os.path.normpath(cache), "XDG_CACHE_HOME"))
    home = _text(environ, "HOME")
    if sys.platform in ("darwin", "win32") or not os.path.isabs(home):
        from cachehome import odd

        return found + odd.candidates(environ)
    return [*found, (os.path.join(os.path.normpath(home), ".cache"), "HOME")]


def unusable(path: str, *, foreign: bool = True) -> str:
    """Why a compile below *path* would fail; empty if it would not.

    *foreign* false: somebody else's directory counts as unusable for root. What `sudo -E` makes there its
    owner could neither change nor remove.
    """
    # Inductor splits the compiler's command line as a shell would, and torch.compile fails in a directory
    # like `a b`.
    if not path.isprintable() or " " in path or "'" in path or '"' in path or "\\" in path:
        return "its name holds a blank, a quote or a backslash, which break the compiler's command line"
    if len(path) > _LONGEST:
        return "its name is too long"
    here, fault = _nearest(path)
    if fault or not hasattr(os, "statvfs"):
        return fault
    flags = os.statvfs(here).f_flag
    if flags & os.ST_RDONLY:
        return f"{here} is on a file system mounted read-only"
    if flags & getattr(os, "ST_NOEXEC", 0):
        return f"{here} is on a file system mounted noexec"
    if not os.access(here, os.W_OK | os.X_OK):
        return f"{here} is not writable"
    if not foreign and os.geteuid() == 0:
        found = os.stat(here)
        if found.st_uid and not found.st_mode & 0o1000:
            return f"{here} belongs to user {found.st_uid}, and this is root"
    return ""


def _nearest(path: str) -> tuple[str, str]:
    """The nearest ancestor of *path* that exists, and why nothing could be made in it."""
    while True:
        try:
            mode = os.lstat(path).st_mode
            break
        except (FileNotFoundError, NotADirectoryError):
            path = os.path.dirname(path)
        except OSError as error:
            return path, f"{path}: {error.strerror}"
    if mode & 0o170000 == 0o120000:
        try:
            mode = os.stat(path).st_mode
        except OSError as error:
            return path, f"the link {path}: {error.strerror}"
    return path, "" if mode & 0o170000 == 0o040000 else f"{path} is not a directory"


def unsuitable(path: str) -> str:
    """Why live directories should not lie at *path*, although compiles would work; empty if they may."""
    kind = network_mount(path)
    if kind:
        return f"it is on a network file system ({kind})"
    if not hasattr(os, "statvfs"):
        return ""
    room = os.statvfs(_nearest(path)[0])
    free = room.f_bavail * room.f_frsize
    if room.f_blocks and free < ROOM_BYTES:
        return f"it has too little room ({free >> 20} MiB free)"
    if room.f_files and room.f_favail < ROOM_FILES:
        return f"it has too little room ({room.f_favail} files free)"
    return ""


def network_mount(path: str, mounts: str = "/proc/self/mounts") -> str | None:
    """The type of the network file system that *path* lies on; None if it is local, or nothing tells."""
    table = os.fsdecode(_read(mounts))
    if not any(f" {kind} " in table for kind in _NETWORK.split()) and " fuse." not in table:
        return None
    from cachehome import odd

    kind = odd.mount_type(os.path.realpath(path), table)
    program, _, name = kind.partition(".")
    remote = program == "fuse" if name else kind in _NETWORK.split()
    return kind if remote and name not in _LOCAL_FUSE.split() else None


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
    why = "; ".join(f"{root}: {fault}" for root, fault in answer.skipped) or "no home was found"
    answer.reason = f"no usable directory ({why}), so torch's own defaults apply"
    if elsewhere:
        from cachehome import odd

        if local and not os.path.isabs(local):
            answer.notes.append(f"CACHEHOME_LOCAL: {local!r} is not an absolute path: ignored")
            local = ""
        answer.source = "CACHEHOME_LOCAL" if local else "the private local directory"
        answer.root, fault = odd.private_local(local, make=make)
        if answer.root is None:
            answer.skipped.append((answer.source, fault))
            answer.reason = f"no usable directory ({why}; {fault}), so torch's own defaults apply"
            return
        answer.reason = f"{answer.root} is {answer.source}, used since {why}"
        answer.live = os.path.join(answer.root, below)


def _assign(
    answer: Resolution, rows: "list[Family]", environ: "Mapping[str, str]", record: "Mapping[str, str]"
) -> None:
    """Say for each family whose directory is in effect: the user's, ours, or nobody's."""
    exported: dict[str, str] = {}  # by subdirectory; what lies below the user's directory moves with it
    for family in rows:
        variable, value, place = family.variable, environ.get(family.variable, ""), ""
        above = next((row for row in rows if family.subdirectory.startswith(row.subdirectory + "/")), None)
        if value.strip() and value != record.get(variable):
            from cachehome import odd

            if not odd.torch_default(family, above, value, environ, record):
                place, note = odd.absolute(variable, value)
                answer.kept[variable] = value
                exported[family.subdirectory] = place
                if note:
                    answer.notes.append(note)
                if place != value:
                    answer.values[variable] = place
        if not place:
            unless = next((name for name in family.unless if _text(environ, name)), "")
            if unless:
                answer.skipped.append((family.name, f"{unless} is set"))
            elif above and above.subdirectory in exported:
                place = exported[above.subdirectory] + family.subdirectory[len(above.subdirectory) :]
                answer.values[variable] = place
            elif answer.live:
                place = f"{answer.live}/{family.subdirectory}".replace("/", os.sep)
                answer.values[variable] = place
        if place:
            answer.directories[family.name] = place
        elif variable in environ and (not value.strip() or value == record.get(variable)):
            # Worse than none: to Inductor an empty value is the working directory, and ours is out of date.
            answer.unset.append(variable)


# --- the host tag ---


def host_tag(environ: "Mapping[str, str] | None" = None) -> str:
    """Two directory levels that keep apart what must not share files.

    Inductor writes C++ for one vector width, and no key of torch's holds the instruction set: a cache made
    under AVX-512 and read under AVX2 gives wrong numbers without a word.
    """
    environ = os.environ if environ is None else environ
    python = {"cpython": "cp", "pypy": "pp"}.get(sys.implementation.name, sys.implementation.name)
    abi = f"{python}{sys.version_info[0]}{sys.version_info[1]}{getattr(sys, 'abiflags', '')}"
    first = f"{abi}-{machine()}-{cpu_class()}"
    capability = _text(environ, "ATEN_CPU_CAPABILITY").lower()
    if capability:
        first += f"-{plain(capability)}"  # torch obeys it, and no key of torch's holds it
    return f"{first}/torch-{plain(torch_version())}"


def machine() -> str:
    """`x86_64`, `aarch64`."""
    return (
        os.uname().machine
        if hasattr(os, "uname")
        else os.environ.get("PROCESSOR_ARCHITECTURE", "unknown").lower()
    )


def cpu_class(features: str | None = None) -> str:
    """8 hex digits of a hash of the features that generated code can use; `00000000` where nothing tells."""
    features = cpu_features() if features is None else features
    if not features:
        return "00000000"
    value = fnv1a(features.encode())
    return f"{value >> 32 ^ value & 0xFFFFFFFF:08x}"


def cpu_features(modalias: str = _MODALIAS) -> str:
    """The features in one line, the same whichever source they come from; empty where there is none."""
    # "cpu:type:x86,ven0000fam0006mod00A7:feature:,0000,0001,..."
    kind, _, listed = _read(modalias).decode("ascii", "replace").partition("feature:")
    present = set(listed.strip().split(",")) if kind.startswith("cpu:type:x86") else set()
    if not present:
        from cachehome import host

        if machine() not in ("x86_64", "amd64", "i686"):
            return host.hwcaps(machine())
        present = host.from_cpuinfo()
        if not present:
            return ""
    bits = "".join(["1" if number in present else "0" for number in _FEATURES.split()])
    return f"x86:{int(bits, 2):x}"


def fnv1a(data: bytes) -> int:
    """The 64-bit FNV-1a hash: hashlib and zlib would cost the hook an import."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def torch_version(sites: "Iterable[str] | None" = None) -> str:
    """The version of the torch that lies beside our own package, in the site directories of this Python and
    of the one below it, or in the user's; from its text, without importing it. `none` where there is none.
    """
    if sites is None:
        text = _read(os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + "/torch/version.py")
        if not text:
            from cachehome import host

            text = next(
                filter(None, (_read(f"{site}/torch/version.py") for site in host.site_directories())), b""
            )
    else:
        text = next(filter(None, (_read(f"{site}/torch/version.py") for site in sites)), b"")
    _, _, rest = text.partition(b"__version__ = ")
    return rest.partition(b"\n")[0].strip().strip(b"'\"").decode("ascii", "replace") or "none"


def plain(text: str) -> str:
    """*text* as a part of a path that every shell and compiler takes as it is."""
    if text.isascii() and text.replace(".", "").replace("-", "").replace("_", "").replace("+", "").isalnum():
        return text
    return "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "._+-") else "_" for letter in text
    )


def _read(path: str) -> bytes:
    """The first 64 kB of a file; empty if there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        return os.read(descriptor, 65536)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
