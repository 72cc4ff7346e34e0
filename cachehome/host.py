"""The host tag, `cp311-x86_64-1a2b3c4d/torch-2.13.0+cpu`: what must not share files.

Inductor writes C++ for one vector width, and no key of torch's holds the instruction set: a cache made under
AVX-512 and read under AVX2 gives wrong numbers without a word. So machines share a directory only if they
have the same features that generated code can use. Imports os and sys only, for the start-up hook.
"""

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

MODALIAS = "/sys/devices/system/cpu/modalias"
CPUINFO = "/proc/cpuinfo"
AUXV = "/proc/self/auxv"

# The features of x86 that a compiler can make use of: name in /proc/cpuinfo = bit, by Linux's word of
# features, which is a CPUID register: 0 is 1.EDX, 1 is 80000001.EDX, 4 is 1.ECX, 6 is 80000001.ECX, 9 is
# 7.EBX, 12 is 7.1.EAX, 16 is 7.ECX, 18 is 7.EDX. Left out are those of kernel and firmware (smep, md_clear,
# arch_capabilities, ...), which change with a microcode or a boot option, and those that /proc/cpuinfo hides.
X86 = {
    0: "fpu=0 tsc=4 cx8=8 cmov=15 clflush=19 mmx=23 fxsr=24 sse=25 sse2=26",
    1: "mmxext=22 rdtscp=27 lm=29 3dnowext=30 3dnow=31",
    4: "pni=0 pclmulqdq=1 ssse3=9 fma=12 cx16=13 sse4_1=19 sse4_2=20 movbe=22 popcnt=23 aes=25 xsave=26"
    " avx=28 f16c=29 rdrand=30",
    6: "lahf_lm=0 abm=5 sse4a=6 misalignsse=7 3dnowprefetch=8 xop=11 lwp=15 fma4=16 tbm=21 mwaitx=29",
    9: "fsgsbase=0 bmi1=3 hle=4 avx2=5 bmi2=8 rtm=11 avx512f=16 avx512dq=17 rdseed=18 adx=19 avx512ifma=21"
    " clflushopt=23 clwb=24 avx512pf=26 avx512er=27 avx512cd=28 sha_ni=29 avx512bw=30 avx512vl=31",
    12: "avx_vnni=4 avx512_bf16=5",
    16: "avx512vbmi=1 waitpkg=5 avx512_vbmi2=6 gfni=8 vaes=9 vpclmulqdq=10 avx512_vnni=11 avx512_bitalg=12"
    " avx512_vpopcntdq=14 rdpid=22 cldemote=25 movdiri=27 movdir64b=28",
    18: "avx512_4vnniw=2 avx512_4fmaps=3 avx512_vp2intersect=8 serialize=14 tsxldtrk=16 amx_bf16=22"
    " avx512_fp16=23 amx_tile=24 amx_int8=25",
}
# The same as masks, so that the hook need not read the table (a test compares the two).
_MASKS = {
    0: 0x07888111,
    1: 0xE8400000,
    4: 0x76D83203,
    6: 0x202189E1,
    9: 0xFDAF0939,
    12: 0x00000030,
    16: 0x1A405F62,
    18: 0x03C1410C,
}
# Arm: bits of AT_HWCAP that are no instructions of the processor's (evtstrm, cpuid).
_ARM_KERNEL = 1 << 2 | 1 << 11

UNKNOWN = "00000000"


def host_tag(environ: "Mapping[str, str] | None" = None) -> str:
    """Two directory levels that keep apart what must not share files."""
    environ = os.environ if environ is None else environ
    first = f"{python_abi()}-{machine()}-{cpu_class()}"
    capability = environ.get("ATEN_CPU_CAPABILITY", "").strip()
    if capability:
        first += f"-{plain(capability.lower())}"  # torch obeys it, and no key of torch's holds it
    return f"{first}/torch-{plain(torch_version())}"


def plain(text: str) -> str:
    """*text* as a part of a path that every shell and compiler takes as it is."""
    return "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "._+-") else "_" for letter in text
    )


def python_abi() -> str:
    """`cp311`, `cp313t`, `pp310`."""
    name = {"cpython": "cp", "pypy": "pp"}.get(sys.implementation.name, sys.implementation.name)
    return f"{name}{sys.version_info[0]}{sys.version_info[1]}{getattr(sys, 'abiflags', '')}"


def machine() -> str:
    """`x86_64`, `aarch64`."""
    try:
        return plain(os.uname().machine)
    except AttributeError:
        return plain(os.environ.get("PROCESSOR_ARCHITECTURE", "unknown").lower())


def fnv1a(data: bytes) -> int:
    """The 64-bit FNV-1a hash: hashlib and zlib would cost the hook an import."""
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return value


def cpu_class() -> str:
    """8 hex digits of a hash of the features, or `00000000` where nothing tells."""
    features = cpu_features()
    if not features:
        return UNKNOWN
    value = fnv1a(features.encode())
    return f"{value >> 32 ^ value & 0xFFFFFFFF:08x}"


def cpu_features(modalias: str = MODALIAS, cpuinfo: str = CPUINFO, auxv: str = AUXV) -> str:
    """The features in one line, the same whichever source they come from; empty where there is none."""
    if machine() not in ("x86_64", "amd64", "i686", "i386"):
        return _from_auxv(_read(auxv))
    words = _from_modalias(_read(modalias)) or _from_cpuinfo(_read(cpuinfo))
    if not words:
        return ""  # the hwcaps of an x86 say nothing of its vector units
    return "x86:" + ",".join(f"{word}={words.get(word, 0) & mask:x}" for word, mask in _MASKS.items())


def _read(path: str) -> bytes:
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
    except OSError:
        return b""
    try:
        data = b""
        while len(data) < 1 << 20:
            more = os.read(descriptor, 1 << 16)
            if not more:
                break
            data += more
        return data
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def _from_modalias(text: bytes) -> dict[int, int]:
    """`cpu:type:x86,ven0000fam0006mod00A7:feature:,0000,0001,...`: numbers are word * 32 + bit."""
    if not text.startswith(b"cpu:type:x86"):
        return {}
    words: dict[int, int] = {}
    for number in text.rpartition(b"feature:")[2].split(b","):
        try:
            feature = int(number, 16)
        except ValueError:
            continue  # the empty one before the first comma, and the newline
        words[feature >> 5] = words.get(feature >> 5, 0) | 1 << (feature & 31)
    return words


def _from_cpuinfo(text: bytes) -> dict[int, int]:
    """The first `flags` line of an x86."""
    _, found, rest = text.partition(b"\nflags\t")
    if not found:
        return {}
    flags = set(rest.partition(b"\n")[0].decode("ascii", "replace").split())
    words = {}
    for word, names in X86.items():
        pairs = (pair.split("=") for pair in names.split())
        words[word] = sum(1 << int(bit) for name, bit in pairs if name in flags)
    return words


def _from_auxv(data: bytes) -> str:
    """The hwcaps that the kernel gave this process: AT_HWCAP, AT_HWCAP2, AT_HWCAP3."""
    size = 8 if sys.maxsize > 1 << 32 else 4
    caps = dict.fromkeys((16, 26, 29), 0)
    for start in range(0, len(data) - 2 * size + 1, 2 * size):
        key = int.from_bytes(data[start : start + size], sys.byteorder)
        if key in caps:
            caps[key] = int.from_bytes(data[start + size : start + 2 * size], sys.byteorder)
    if machine() in ("aarch64", "arm64"):
        caps[16] &= ~_ARM_KERNEL
    if not any(caps.values()):
        return ""
    return "hwcap:" + ",".join(f"{value:x}" for value in caps.values())


def torch_version(sites: "Iterable[str] | None" = None) -> str:
    """The version of the torch that lies beside our own package, in the site directories of this Python and
    of the one below it, or in the user's; from its text, without importing it. `none` where there is none."""
    for site in _sites() if sites is None else sites:
        head = _read(os.path.join(site, "torch", "version.py"))
        _, found, rest = head.partition(b"__version__ = ")
        if found:
            version = rest.partition(b"\n")[0].strip().strip(b"'\"").decode("ascii", "replace")
            if version:
                return version
    return "none"


def _sites() -> "Iterator[str]":
    """The site directories, found without the site and sysconfig modules."""
    yield os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    threads = "t" if "t" in getattr(sys, "abiflags", "") else ""
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}{threads}"
    for prefix in dict.fromkeys((sys.prefix, sys.base_prefix)):
        if os.name == "nt":
            yield os.path.join(prefix, "Lib", "site-packages")
            continue
        yield f"{prefix}/lib/{version}/site-packages"
        yield f"{prefix}/lib64/{version}/site-packages"
        if prefix == "/usr":  # Debian and its children
            yield f"/usr/local/lib/{version}/dist-packages"
            yield "/usr/lib/python3/dist-packages"
    base = os.environ.get("PYTHONUSERBASE", "").strip() or os.path.expanduser("~/.local")
    if os.path.isabs(base):
        yield f"{base}/lib/{version}/site-packages"
