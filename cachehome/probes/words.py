"""Owns what a difference is called: what it means, whether it can change machine code, what to do.

The longest field name that fits decides; `environment.*` asks the table of variables.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachehome.probes import is_failure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cachehome.identity import Difference

_REBUILD = "the other build starts cold once and then has a line of its own in the store"
_SAME_IMAGE = "use one image on all nodes"

# Beginning of a field's name: what it is, whether and how it changes machine code, what to do.
_MEANINGS = {
    "schema": ("the version of this key", "changes nothing by itself", "use one version of cachehome"),
    "host_tag": (
        "the host tag",
        "kernels for one class of CPU or one torch do not work under another; live directories differ, too",
        "see the fields below it",
    ),
    "python": ("the interpreter", "extension modules and generated wrappers depend on its ABI", _SAME_IMAGE),
    "machine.cpu": (
        "the instruction sets of the CPU",
        (
            "C++ kernels are generated for one vector width, and no key of torch's holds it: a cache of the other one"
            " gives wrong numbers or crashes"
        ),
        "keep nodes of one class together",
    ),
    "machine.libc": (
        "the C library",
        "native code needs the version that it was linked with, or a later one",
        _SAME_IMAGE,
    ),
    "machine": ("the machine", "native code is made for one system and architecture", _REBUILD),
    "toolchain.isa": (
        "what -march=native enables",
        "C++ kernels use these instructions; another CPU stops with SIGILL. Inductor hashes only the word `native`",
        "keep nodes of one class together",
    ),
    "toolchain.march": (
        "what -march=native means",
        "C++ kernels are made for this processor",
        "keep nodes of one class together",
    ),
    "toolchain.ptxas": ("the assembler of NVIDIA device code", "every cubin comes from it", _SAME_IMAGE),
    "toolchain.nvcc": (
        "the CUDA compiler",
        "kernels that are compiled at run time come from it",
        _SAME_IMAGE,
    ),
    "toolchain.libstdcxx": ("the C++ library", "C++ kernels need its version or a later one", _SAME_IMAGE),
    "toolchain": ("the host compiler", "C++ kernels and Triton's launchers come from it", _SAME_IMAGE),
    "packages.torch": ("torch", "Inductor, its headers and the libraries that kernels call", _SAME_IMAGE),
    "packages.triton": ("Triton", "the compiler of most kernels, with its ptxas", _SAME_IMAGE),
    "packages": ("a package with kernels", "its code ends up in what is compiled", _SAME_IMAGE),
    "gpu.driver": (
        "the GPU driver",
        "it loads and links device code, and tuning was done under it; no compiler's key holds it",
        "expect one cold start after a driver update; roll it out to all nodes",
    ),
    "gpu.models": (
        "the GPU models that the job sees",
        "device code and tuning are made for one model",
        "keep models apart, or set CUDA_VISIBLE_DEVICES so that the job sees one kind",
    ),
    "gpu": (
        "the GPUs",
        "device code is made for them",
        "give the identity of the nodes that compute with --identity FILE",
    ),
    "environment": (
        "a variable that compilers read",
        "it can change the code that they generate",
        "set it alike on all nodes",
    ),
    "sources": (
        "the source that was named",
        "kernels are compiled from it",
        "commit, and use one checkout everywhere",
    ),
    "image": ("the container image", "everything in it may differ", _SAME_IMAGE),
    "build_key": ("the hand-made key", "it was set to keep builds apart", "set CACHEHOME_BUILD_KEY alike"),
}
_PROFILE = {
    "name": ("the profile's name", "set CACHEHOME_PROFILE alike, or leave it to `auto`"),
    "program": ("the program", "it compiles other graphs"),
    "arguments": (
        "the job's options",
        "drop what only says where it runs; a new profile starts from its build's newest",
    ),
    "layout": ("the parallel layout", "shapes and communication differ with it"),
    "files": ("the content of a configuration file", "a changed configuration can compile other graphs"),
}
_NOTES = {
    "machine.threads": (
        "the number of CPUs. Not in the key, but torch's own keys hold the number of threads for every graph with C++"
        " code: such graphs compile anew; OMP_NUM_THREADS fixes it"
    ),
}


def difference(name: str, left: str, right: str, kind: str) -> Difference:
    """The difference of field *name*, which has the text *left* on one side and *right* on the other."""
    from cachehome.identity import Difference

    if kind == "note":
        return Difference(name, left, right, kind, _note(name))
    if kind == "profile":
        what, then = _longest(_PROFILE, name, ("the profile", "it names another set of kernels"))
        return Difference(
            name,
            left,
            right,
            kind,
            f"{what}{_delta(left, right)}. No other machine code, another set of it: {then}",
        )
    what, change, do = _longest(
        _MEANINGS, name, ("a part of the build", "it may change machine code", _REBUILD)
    )
    if is_failure(left) or is_failure(right):
        failed = " and ".join(
            f"{side}: {text[7:]}" for side, text in (("A", left), ("B", right)) if is_failure(text)
        )
        return Difference(
            name,
            left,
            right,
            "probe",
            f"{what} could not be read ({failed}), which counts as another build: mend that",
        )
    if name.startswith("environment."):
        what, change = _variable(name.partition(".")[2]) or (what, change)
    return Difference(
        name, left, right, kind, f"{what}{_delta(left, right)}: {change}. {do[0].upper()}{do[1:]}"
    )


def _longest(table: Mapping[str, tuple[str, ...]], name: str, default: tuple[str, ...]) -> tuple[str, ...]:
    fits = [known for known in table if name == known or name.startswith((known + ".", known + "_"))]
    return table[max(fits, key=len)] if fits else default


def _variable(name: str) -> tuple[str, str] | None:
    """What variable *name* is, and what another value of it does."""
    from cachehome.probes.environment import row

    line = row(name)
    if line is None:
        return None
    hashed = {"fx": "Inductor's graphs", "triton": "Triton's kernels", "both": "graphs and kernels"}.get(
        line.evidence
    )
    misses = f"{hashed} compile anew under another value" if hashed else ""
    if line.treatment == "in" and not line.exact:
        return (
            f"a variable of a compiler ({line.reason})",
            misses or "what it does is not known, so it counts",
        )
    return "a variable that compilers read", f"{line.reason}{'; ' if misses else ''}{misses}"


def _delta(left: str, right: str) -> str:
    """For lists of words: what only one side has."""
    one, other = left.split(), right.split()
    if len(one) < 8 and len(other) < 8:
        return ""
    only = [
        (side, sorted(set(mine) - set(theirs)))
        for side, mine, theirs in (("A", one, other), ("B", other, one))
    ]
    told = [f"only {side} has {' '.join(words[:12])}" for side, words in only if words]
    return f" ({'; '.join(told)})" if told else ""


def _note(name: str) -> str:
    if name in _NOTES:
        return _NOTES[name]
    variable = _variable(name.partition(".")[2]) if name.startswith("environment.") else None
    return f"not in the key: {variable[1]}" if variable else "not in the key"


def explains(name: str) -> bool:
    """Whether a field that is in no key explains why a compiler misses."""
    from cachehome.probes.environment import row

    line = row(name.partition(".")[2]) if name.startswith("environment.") else None
    return line is not None and line.evidence not in ("-", "none")
