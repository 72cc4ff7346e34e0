"""Where compile caches can lie on this machine: the ladder of candidates, what stands against each, the host
tag.

The start-up hook runs `ordinary()` in every Python process, so that this module is as small as it can be,
imports nothing but os and sys, and makes nothing. What is unusual is home.py's, which builds on it.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

NAME = "cachehome"
LOCAL = "local"
APPLIED = "CACHEHOME_APPLIED"

# (variable, subdirectory) of the families that the hook sets: the default rows of families.BUILTIN. A copy,
# because that import would cost a fifth of the hook; a test compares the two.
ROWS = (("TORCHINDUCTOR_CACHE_DIR", "torchinductor"), ("TRITON_CACHE_DIR", "torchinductor/triton"))
# What makes an environment unusual.
UNUSUAL = ("CACHEHOME_SLOT", "CACHEHOME_FAMILIES", "TRITON_HOME")

# Less than this, in bytes or in files, is too little room. Low on purpose: the path of a live directory is
# part of what makes a restart warm, so it must not change on an ordinary day of a nearly full disk.
ROOM_BYTES = 64 << 20
ROOM_FILES = 1000

# Below a live directory names take about 400 bytes of the 4,096 that a path may have.
_LONGEST = 3500

# Types in /proc/self/mounts. Mountpoint for S3 shows as `fuse`, gcsfuse as `fuse.gcsfuse`.
NETWORK = (
    b" nfs", b" fuse", b" weka", b" lustre ", b" gpfs ", b" ceph ", b" cifs ", b" smb", b" beegfs ", b" fhgfs ",
    b" glusterfs ", b" afs ", b" coda ", b" orangefs ", b" pvfs2 ", b" panfs ", b" quobyte ", b" ncpfs ",
)  # fmt: skip

_PLAIN = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+-"

# x86 features that generated code can use, as modalias numbers them: host.X86 has the names and the reasons.
FEATURES = (
    "0000 0004 0008 000F 0013 0017 0018 0019 001A 0036 003B 003D 003E 003F 0080 0081 0089 008C 008D 0093 "
    "0094 0096 0097 0099 009A 009C 009D 009E 00C0 00C5 00C6 00C7 00C8 00CB 00CF 00D0 00D5 00DD 0120 0123 "
    "0124 0125 0128 012B 0130 0131 0132 0133 0135 0137 0138 013A 013B 013C 013D 013E 013F 0184 0185 0201 "
    "0205 0206 0208 0209 020A 020B 020C 020E 0216 0219 021B 021C 0242 0243 0248 024E 0250 0256 0257 0258 "
    "0259 "
)


def ordinary(environ: "Mapping[str, str]", wanted: str, asked_by: str) -> dict[str, str] | None:
    """What the hook sets in an ordinary environment; None if it is unusual, and home.resolve() has to decide.

    Both give the same answer: this is the part of it that nearly every process needs, for a fifth of the
    time. *wanted* is `on` or an absolute root, by *asked_by*.
    """
    for name in UNUSUAL:
        if name in environ:
            return None
    told = wanted != "on"
    tag = host_tag(environ)
    record = environ.get(APPLIED)
    if record:
        # A child keeps the directories of its parent, so that nothing is to be done.
        if (told and not record.startswith(f"wish={wanted};")) or f";tag={tag};" not in record:
            return None
        for variable, _ in ROWS:
            if f";{variable}={environ.get(variable)};" not in f"{record};":
                return None
        return None if examine(environ[ROWS[0][0]], foreign=told)[0] else {}
    for variable, _ in ROWS:
        if variable in environ:
            return None
    root, source = wanted, asked_by
    if not told:
        cache, source = next(iter(candidates(environ)), ("", ""))
        root = os.path.join(cache, NAME)
    live = os.path.join(root, tag, LOCAL)
    if not source or examine(f"{live}/{ROWS[0][1]}", foreign=told)[0]:
        return None
    values = {variable: f"{live}/{subdirectory}" for variable, subdirectory in ROWS}
    facts = {"wish": wanted, "source": source, "root": root, "tag": tag, "build": LOCAL}
    return {**values, APPLIED: record_of({**facts, **values})}


def record_of(facts: dict[str, str]) -> str:
    """The value of CACHEHOME_APPLIED, by which a child knows what was set for it and what its user exported."""
    return ";".join(
        [f"{name}={fact.replace('%', '%25').replace(';', '%3B')}" for name, fact in facts.items()]
    )


# --- candidates ---


def candidates(environ: "Mapping[str, str]") -> list[tuple[str, str]]:
    """(directory, where it comes from), best first. Only absolute ones: a relative one would be another
    directory in every working directory, and nobody expands a `~` that the shell left alone.
    """
    found = []
    cache = environ.get("XDG_CACHE_HOME", "").strip()
    if os.path.isabs(cache):
        found.append((os.path.normpath(cache), "XDG_CACHE_HOME"))
    user = environ.get("HOME", "").strip()
    if os.path.isabs(user) and sys.platform not in ("darwin", "win32"):
        return [*found, (os.path.join(os.path.normpath(user), ".cache"), "HOME")]
    from cachehome import home

    return found + home.other_candidates(environ)


def examine(path: str, *, foreign: bool = True) -> tuple[str, str]:
    """What stands against live directories at *path*, by kind and in words; two empty texts if nothing does.

    `name` and `unusable`: a compile would fail. `network` and `room`: it would not, but they should lie
    elsewhere. *foreign* false: somebody else's directory is unusable for root, since what `sudo -E` makes
    there its owner could neither change nor remove.
    """
    # Inductor splits the compiler's command line as a shell would: torch.compile fails in a directory `a b`.
    if (
        not path.isprintable()
        or " " in path
        or "'" in path
        or '"' in path
        or ("\\" in path and os.sep == "/")
    ):
        return (
            "name",
            "its name holds a blank, a quote or a backslash, which break the compiler's command line",
        )
    if len(path) > _LONGEST:
        return "name", "its name is too long"
    while True:
        link = False
        try:
            found = os.lstat(path)
            link = found.st_mode & 0o170000 == 0o120000
            if link:
                found = os.stat(path)
            break
        except (FileNotFoundError, NotADirectoryError):
            if link:
                return "unusable", f"{path} is a link to nowhere"
            path = os.path.dirname(path)
        except OSError as error:
            return "unusable", f"{path}: {error.strerror}"
    if found.st_mode & 0o170000 != 0o040000:
        return "unusable", f"{path} is not a directory"
    if not os.access(path, os.W_OK | os.X_OK):
        why = ", as its file system is mounted read-only" if os.statvfs(path).f_flag & os.ST_RDONLY else ""
        return "unusable", f"{path} is not writable{why}"
    if os.name != "posix":
        return "", ""
    system = os.statvfs(path)
    if system.f_flag & getattr(os, "ST_NOEXEC", 0):
        return "unusable", f"{path} is on a file system mounted noexec"
    if not foreign and found.st_uid and not found.st_mode & 0o1000 and os.geteuid() == 0:
        return "unusable", f"{path} belongs to user {found.st_uid}, and this is root"
    free = system.f_bavail * system.f_frsize
    if system.f_blocks and free < ROOM_BYTES:
        return "room", f"it has too little room ({free >> 20} MiB free)"
    if system.f_files and system.f_favail < ROOM_FILES:
        return "room", f"it has too little room ({system.f_favail} files free)"
    # A disk of this machine's is no network: that saves most starts from reading the table of mounts.
    device = found.st_dev
    if os.major(device) and os.path.exists(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"):
        return "", ""
    kind = network_mount(path)
    return ("network", f"it is on a network file system ({kind})") if kind else ("", "")


def network_mount(path: str, mounts: str = "/proc/self/mounts") -> str | None:
    """The type of the network file system that *path* lies on; None if it is local, or nothing tells."""
    table = _read(mounts)
    for kind in NETWORK:
        if kind in table:
            from cachehome import home

            return home.network_type(os.path.realpath(path), os.fsdecode(table))
    return None


# --- the host tag ---


def host_tag(environ: "Mapping[str, str] | None" = None) -> str:
    """Two directory levels that keep apart what must not share files,
    `cp311-x86_64-1a2b3c4d/torch-2.13.0+cpu`.

    Inductor writes C++ for one vector width, and no key of torch's holds the instruction set: a cache made
    under AVX-512 and read under AVX2 gives wrong numbers without a word.
    """
    capability = (os.environ if environ is None else environ).get("ATEN_CPU_CAPABILITY", "").strip()
    python = {"cpython": "cp", "pypy": "pp"}.get(sys.implementation.name, sys.implementation.name)
    python += f"{sys.version_info[0]}{sys.version_info[1]}{getattr(sys, 'abiflags', '')}"
    # torch obeys the capability, and no key of torch's holds it.
    first = f"{python}-{machine()}-{cpu_class()}" + (f"-{capability.lower()}" if capability else "")
    return f"{plain(first)}/torch-{plain(torch_version())}"


def plain(text: str) -> str:
    """*text* as a part of a path that every shell and compiler takes as it is."""
    return "".join([letter if letter in _PLAIN else "_" for letter in text])


def machine() -> str:
    """`x86_64`, `aarch64`."""
    return (
        os.uname().machine
        if os.name == "posix"
        else os.environ.get("PROCESSOR_ARCHITECTURE", "unknown").lower()
    )


def cpu_class(features: str | None = None) -> str:
    """8 hex digits of a hash of the features that generated code can use; `00000000` where nothing tells."""
    features = cpu_features() if features is None else features
    value = fnv1a(features.encode()) if features else 0
    return f"{value >> 32 ^ value & 0xFFFFFFFF:08x}"


def cpu_features(modalias: str = "/sys/devices/system/cpu/modalias") -> str:
    """The features in one line, the same whichever source they come from; empty where there is none."""
    # "cpu:type:x86,ven0000fam0006mod00A7:feature:,0000,0001,..."
    kind, _, listed = _read(modalias).decode("ascii", "replace").partition("feature:")
    if not kind.startswith("cpu:type:x86"):
        from cachehome import host

        return host.features(machine())
    present = set(listed.strip().split(","))
    return f"x86:{int(''.join(['1' if number in present else '0' for number in FEATURES.split()]), 2):x}"


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
    for site in _sites() if sites is None else sites:
        text = _read(f"{site}/torch/version.py")
        if text:
            version = text.partition(b"__version__ = ")[2].partition(b"\n")[0].strip().strip(b"'\"")
            return version.decode("ascii", "replace") or "unknown"
    return "none"


def _sites() -> "Iterator[str]":
    yield os.path.dirname(os.path.dirname(__file__))
    python = f"python{sys.version_info[0]}.{sys.version_info[1]}{'t' if 't' in getattr(sys, 'abiflags', '') else ''}"
    for prefix in (sys.prefix, sys.base_prefix):
        yield f"{prefix}/lib/{python}/site-packages" if os.name == "posix" else f"{prefix}/Lib/site-packages"
        yield f"{prefix}/lib64/{python}/site-packages"
        if prefix == "/usr":  # Debian and its children
            yield f"/usr/local/lib/{python}/dist-packages"
            yield "/usr/lib/python3/dist-packages"
    user = os.environ.get("PYTHONUSERBASE", "").strip() or os.environ.get("HOME", "").strip() + "/.local"
    yield f"{user}/lib/{python}/site-packages"


def _read(path: str) -> bytes:
    """What a small file holds; empty if there is none."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return b""
    try:
        data = b""
        while True:
            more = os.read(descriptor, 16384)
            if not more:
                return data
            data += more
    except OSError:
        return b""
    finally:
        os.close(descriptor)
