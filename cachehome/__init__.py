"""cachehome: one home for every compile cache of torch.compile and Triton, and warm starts anywhere.

>>> import cachehome
>>> cachehome.activate(app="engine").directories["inductor"]  # doctest: +SKIP
'/home/u/.cache/engine/cp311-x86_64-1a2b3c4d/torch-2.13.0+cpu/local/torchinductor'

The public names are loaded when they are first used (_public.py). What stands in this file is what the start-up hook
runs in every Python process: the ladder of candidates, what stands against each, the host tag, and the answer for an
ordinary environment. Another module for it would add an eighth to the cost of the hook, so other modules know these
functions as place.py. It imports os and sys, nothing more, and does without `from __future__ import annotations`, which
is an import like any other; it makes nothing. What is unusual is home.py's.
"""

import os
import sys

__version__ = "0.1.0"

__all__ = [
    "CacheHomeError",
    "Session",
    "Settings",
    "Store",
    "__version__",
    "activate",
    "identity",
    "path",
    "publish",
    "restore",
    "user_cache_dir",
]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Any

    from cachehome import identity
    from cachehome.early import activate
    from cachehome.errors import CacheHomeError
    from cachehome.home import path, user_cache_dir
    from cachehome.lifecycle.session import Session
    from cachehome.settings import Settings
    from cachehome.store.store import Store
    from cachehome.sync.guard import publish, restore

NAME = "cachehome"
LOCAL = "local"
APPLIED = "CACHEHOME_APPLIED"

# (variable, subdirectory) of the families that the hook sets: the default rows of families.BUILTIN. A copy,
# because that import would cost a fifth of the hook; a test compares the two.
ROWS = (
    ("TORCHINDUCTOR_CACHE_DIR", "torchinductor"),
    ("TRITON_CACHE_DIR", "torchinductor/triton"),
    ("VLLM_CACHE_ROOT", "vllm"),
    ("SGLANG_CACHE_DIR", "sglang"),
)
# What makes an environment unusual.
UNUSUAL = ("CACHEHOME_SLOT", "CACHEHOME_FAMILIES", "TRITON_HOME")

# Less than this, in bytes or in files, is too little room. Low on purpose: the path of a live directory is
# part of what makes a restart warm, so it must not change on an ordinary day of a nearly full disk.
ROOM_BYTES = 64 << 20
ROOM_FILES = 1000

# Below a live directory names take about 400 bytes of the 4,096 that a path may have.
_LONGEST = 3500

# How types of network file systems begin in /proc/self/mounts. Mountpoint for S3 shows as `fuse`, gcsfuse as
# `fuse.gcsfuse`.
NETWORK = (
    b" nfs| fuse| weka| lustre | gpfs | ceph | cifs | smb| beegfs | fhgfs | glusterfs | afs | coda | orangefs | pvfs2 "
    b"| panfs | quobyte | ncpfs "
)

_PLAIN = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+-"

# x86 features that generated code can use, as modalias numbers them: host.X86 has the names and the reasons.
FEATURES = (
    b"0000 0004 0008 000F 0013 0017 0018 0019 001A 0036 003B 003D 003E 003F 0080 0081 0089 008C 008D 0093 "
    b"0094 0096 0097 0099 009A 009C 009D 009E 00C0 00C5 00C6 00C7 00C8 00CB 00CF 00D0 00D5 00DD 0120 0123 "
    b"0124 0125 0128 012B 0130 0131 0132 0133 0135 0137 0138 013A 013B 013C 013D 013E 013F 0184 0185 0201 "
    b"0205 0206 0208 0209 020A 020B 020C 020E 0216 0219 021B 021C 0242 0243 0248 024E 0250 0256 0257 0258 "
    b"0259 "
)


hook_record = ""  # what the hook applied in this very process, as against a parent
hook_ran = False  # a venv runs each .pth twice (python/cpython#75723)


def _hook() -> None:
    """The start-up hook: set the variables of the compile caches if CACHEHOME says so.

    `cachehome.pth` calls it where any variable of ours is set, `cachehome.start` always. It never raises, prints or
    exits.
    """
    global hook_ran, hook_record
    try:
        if hook_ran:
            return
        hook_ran = True
        wish = os.environ.get("CACHEHOME", "").strip()
        if wish.lower() in ("1", "on") or os.path.isabs(wish):
            values = ordinary(os.environ, wish)
            if values is None:
                from cachehome import home

                home.apply(home.resolve(os.environ), os.environ)
            else:
                for variable, value in values.items():  # update() asks abc whether this is a mapping
                    os.environ[variable] = value
                hook_record = values.get(APPLIED, "")
        # Else it is off, or not a wish, which `cachehome status` shows. A parent may have been on.
        live = os.environ.get("TORCHINDUCTOR_CACHE_DIR") if APPLIED in os.environ else None
        if "CACHEHOME_DIAGNOSTICS" in os.environ or (live and os.path.exists(stamp_of(live))):
            from cachehome import _boot

            _boot.observe()
    except BaseException:
        # Whatever it is: an exception would be text on stderr at every start of Python, and SystemExit or
        # KeyboardInterrupt the end of the interpreter.
        if os.environ.get("CACHEHOME_DEBUG"):
            from cachehome import _boot

            _boot.explain()


def stamp_of(live: str) -> str:
    """The stamp of the directory that Inductor uses: an engine that moved it did so below its own root."""
    return live.partition("/torch_compile_cache/")[0] + "/.cachehome/stamp"


def ordinary(environ: "Mapping[str, str]", wanted: str) -> "dict[str, str] | None":
    """What the hook sets in an ordinary environment; None if it is unusual, and home.resolve() has to decide.

    Both give the same answer: this is the part of it that nearly every process needs, for a fifth of the
    time. *wanted*, by *asked_by*: `1`, `on`, or an absolute root.
    """
    for name in UNUSUAL:
        if name in environ:
            return None
    told = os.path.isabs(wanted)
    wanted = os.path.normpath(wanted) if told else "on"
    tag = host_tag(environ)
    record = environ.get(APPLIED)
    if record:
        # A child keeps the directories of its parent, so that nothing is to be done.
        if (told and not record.startswith(f"wish={wanted};")) or f";tag={tag};" not in record:
            return None
        for variable, _ in ROWS:
            if f";{variable}={environ.get(variable)};" not in f"{record};":
                return None
        return None if obstacle(environ[ROWS[0][0]], foreign=told)[0] else {}
    for variable, _ in ROWS:
        if variable in environ:
            return None
    root, source = wanted, "CACHEHOME"
    if not told:
        cache, source = next(iter(candidates(environ)), ("", ""))
        root = os.path.join(cache, NAME)
    live = os.path.join(root, tag, LOCAL)
    if not source or obstacle(f"{live}/{ROWS[0][1]}", foreign=told)[0]:
        return None
    values = {variable: f"{live}/{subdirectory}" for variable, subdirectory in ROWS}
    facts = {"wish": wanted, "source": source, "root": root, "tag": tag, "build": LOCAL}
    return {**values, APPLIED: record_of({**facts, **values})}


def record_of(facts: "dict[str, str]") -> str:
    """The value of CACHEHOME_APPLIED, by which a child knows what was set for it and what its user exported."""
    return ";".join(
        [f"{name}={fact.replace('%', '%25').replace(';', '%3B')}" for name, fact in facts.items()]
    )


# --- candidates ---


def candidates(environ: "Mapping[str, str]") -> "list[tuple[str, str]]":
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


def obstacle(path: str, *, foreign: bool = True) -> "tuple[str, str]":
    """What stands against live directories at *path*: a word and a place, two empty texts if nothing does.

    Which words mean that a compile would fail, and what to tell the user, is in home.OBSTACLES. *foreign* false:
    somebody else's directory will not do for root, since what `sudo -E` makes there its owner could neither change nor
    remove.
    """
    # Inductor splits the compiler's command line as a shell would: torch.compile fails in a directory `a b`.
    if (
        not path.isprintable()
        or " " in path
        or "'" in path
        or '"' in path
        or ("\\" in path and os.sep == "/")
    ):
        return "letter", path
    if len(path) > _LONGEST:
        return "long", path
    while True:
        link = False
        try:
            found = os.lstat(path)
            link = found.st_mode & 0o170000 == 0o120000
            if link:
                found = os.stat(path)
            break
        except (FileNotFoundError, NotADirectoryError):
            above = os.path.dirname(path)
            if link or above == path:
                return ("link", path) if link else ("error", f"{path} does not exist")
            path = above
        except OSError as error:
            return "error", f"{path}: {error.strerror}"
    if found.st_mode & 0o170000 != 0o040000:
        return "file", path
    if not os.access(path, os.W_OK | os.X_OK):
        return "access", path
    if path.startswith(("/proc", "/sys")) and path.split("/", 2)[1] in ("proc", "sys"):
        return "kernel", path
    if os.name != "posix":
        return "", ""
    system = os.statvfs(path)
    if system.f_flag & getattr(os, "ST_NOEXEC", 0):
        return "noexec", path
    if not foreign and found.st_uid and not found.st_mode & 0o1000 and os.geteuid() == 0:
        return "foreign", path
    if system.f_blocks and system.f_bavail * system.f_frsize < ROOM_BYTES:
        return "room", path
    if system.f_files and system.f_favail < ROOM_FILES:
        return "room", path
    # A disk of this machine's is no network: that saves most starts from reading the table of mounts.
    device = found.st_dev
    if os.major(device) and os.path.exists(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}"):
        return "", ""
    return ("network", path) if network_mount(path) else ("", "")


def network_mount(path: str, mounts: str = "/proc/self/mounts") -> "str | None":
    """The type of the network file system that *path* lies on; None if it is local, or nothing tells."""
    table = _read(mounts)
    for kind in NETWORK.split(b"|"):
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


def cpu_class(features: "str | None" = None) -> str:
    """8 hex digits of a hash of the features that generated code can use; `00000000` where nothing tells."""
    features = cpu_features() if features is None else features
    value = fnv1a(features.encode()) if features else 0
    return f"{value >> 32 ^ value & 0xFFFFFFFF:08x}"


def cpu_features(modalias: str = "/sys/devices/system/cpu/modalias") -> str:
    """The features in one line, the same whichever source they come from; empty where there is none."""
    # "cpu:type:x86,ven0000fam0006mod00A7:feature:,0000,0001,..."
    kind, _, listed = _read(modalias).partition(b"feature:")
    if not kind.startswith(b"cpu:type:x86"):
        from cachehome import host

        return host.features(machine())
    return features_line(set(listed.strip().split(b",")))


def features_line(present: "set[bytes]") -> str:
    """The features in one line: a bit each, in the order of FEATURES."""
    bits = bytes(map((48).__add__, map(present.__contains__, FEATURES.split())))  # 48 and 49 are "0" and "1"
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
    for site in _sites() if sites is None else sites:
        text = _read(f"{site}/torch/version.py")
        if text:
            version = text.partition(b"__version__ = ")[2].partition(b"\n")[0].strip().strip(b"'\"")
            return version.decode("ascii", "replace") or "unknown"
    return "none"


def _sites() -> "Iterator[str]":

    own = os.path.dirname(os.path.dirname(__file__))
    yield own
    python = f"python{sys.version_info[0]}.{sys.version_info[1]}{'t' if 't' in getattr(sys, 'abiflags', '') else ''}"
    for prefix in (sys.prefix, sys.base_prefix):
        for library in {"lib", sys.platlibdir}:
            site = (
                f"{prefix}/{library}/{python}/site-packages"
                if os.name == "posix"
                else f"{prefix}/Lib/site-packages"
            )
            if site != own:
                yield site
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
            more = os.read(descriptor, 4096)
            if not more:
                return data
            data += more
    except OSError:
        return b""
    finally:
        os.close(descriptor)


# --- public names ---


def __getattr__(name: str) -> "Any":

    if name in __all__:
        from cachehome import _public

        return _public.load(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> "list[str]":
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
