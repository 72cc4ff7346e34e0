"""Owns the table of x86 features that generated code can use, and the sources of them other than Linux's modalias.

They decide whether machines may share files; the start-up hook reads the modalias alone. All sources give the same
answer, so that a container without `/sys` has the directories of its host.
"""

from __future__ import annotations

import sys

from cachehome import place

# Name in /proc/cpuinfo and bit, by Linux's word of features, which is a CPUID register: 0 is 1.EDX, 1 is
# 80000001.EDX, 4 is 1.ECX, 6 is 80000001.ECX, 9 is 7.EBX, 12 is 7.1.EAX, 16 is 7.ECX, 18 is 7.EDX. Left out
# is what belongs to kernel and firmware (smep, md_clear, arch_capabilities, ...), since it changes with a
# microcode or a boot option, and what /proc/cpuinfo hides.
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
# Bits of Arm's AT_HWCAP that are the kernel's own: evtstrm, cpuid.
_ARM_KERNEL = 1 << 2 | 1 << 11


def numbers() -> dict[str, str]:
    """The table as Linux's modalias names features: name in /proc/cpuinfo -> four hex digits."""
    return {
        name: f"{word * 32 + int(bit):04X}"
        for word, row in X86.items()
        for name, bit in (item.split("=") for item in row.split())
    }


def features(machine: str, cpuinfo: str = "/proc/cpuinfo", auxv: str = "/proc/self/auxv") -> str:
    """What place.cpu_features() says where there is no modalias of an x86; empty where there is nothing."""
    if machine not in ("x86_64", "amd64", "i686"):
        return hwcaps(machine, auxv)
    present = from_cpuinfo(cpuinfo)
    return place.features_line(present) if present else ""


def from_cpuinfo(path: str = "/proc/cpuinfo") -> set[bytes]:
    """The features of the first processor in /proc/cpuinfo, as modalias would name them."""
    _, found, rest = _read(path).partition(b"\nflags\t")
    if not found:
        return set()
    known = numbers()
    flags = rest.partition(b"\n")[0].decode("ascii", "replace").split()
    return {known[flag].encode() for flag in flags if flag in known}


def hwcaps(machine: str, path: str = "/proc/self/auxv") -> str:
    """What the kernel told this process of a processor other than x86: AT_HWCAP, AT_HWCAP2, AT_HWCAP3."""
    data = _read(path)
    size = 8 if sys.maxsize > 1 << 32 else 4
    caps = dict.fromkeys((16, 26, 29), 0)
    for start in range(0, len(data) - 2 * size + 1, 2 * size):
        key = int.from_bytes(data[start : start + size], sys.byteorder)
        if key in caps:
            caps[key] = int.from_bytes(data[start + size : start + 2 * size], sys.byteorder)
    if machine in ("aarch64", "arm64"):
        caps[16] &= ~_ARM_KERNEL
    return ",".join(f"{value:x}" for value in caps.values()) if any(caps.values()) else ""


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
