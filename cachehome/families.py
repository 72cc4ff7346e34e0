"""The catalogue of cache families: one row a compiler cache.

A row says where the cache lies and which of its files belong together:

``name``          what people and settings call it
``variable``      the environment variable that moves it
``subdirectory``  its place below the live directory. A row whose subdirectory lies below another row's moves
                  with it: exporting ``TORCHINDUCTOR_CACHE_DIR`` alone moves Triton too
``unless``        variables that, when set, make us leave the family alone
``entries``       (kind, pattern) pairs; a file that fits none of them stays where it is
``never``         patterns of what is not carried, whatever the entries say; such a directory is not entered
``ir``            suffixes of files that a warm start never reads: ``name.endswith(family.ir)``
``default``       whether it is set and carried unless the user names families

Patterns are regular expressions for a full match of a path relative to the family's directory, with ``/``
between its parts. The kinds:

``tree``     a directory; all of it is one entry, and one with more files replaces it
``file``     each file is an entry
``stem``     files with the same first group are one entry
``growing``  a file that its compiler rewrites with more in it; the last one wins

Rows are plain data and patterns plain strings, because the start-up hook reads this module and may not import
``re``. Third parties add rows through the entry point group ``cachehome.families``; the hook knows the
built-in rows only, since looking for entry points costs more than all the rest of it.
"""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

GROUP = "cachehome.families"

KINDS = ("tree", "file", "stem", "growing")


class Family:
    """One row. Immutable by convention: importing dataclasses would cost the hook 17 ms."""

    __slots__ = ("default", "entries", "ir", "name", "never", "subdirectory", "unless", "variable")

    def __init__(
        self,
        name: str,
        variable: str,
        subdirectory: str,
        *,
        entries: "Iterable[tuple[str, str]]",
        unless: "Iterable[str]" = (),
        never: "Iterable[str]" = (),
        ir: "Iterable[str]" = (),
        default: bool = True,
    ) -> None:
        self.name = name
        self.variable = variable
        self.subdirectory = subdirectory
        self.unless = tuple(unless)
        self.entries = tuple(entries)
        self.never = tuple(never)
        self.ir = tuple(ir)
        self.default = default

    def __repr__(self) -> str:
        return f"Family({self.name!r}, {self.variable!r}, {self.subdirectory!r})"


# Locks and half-written files look alike everywhere. Hidden names cover Inductor's `.<pid>.<thread>.tmp`, the
# `.nfsXXXX` of NFS and our own `.cachehome`; `tmp.*` covers Triton's `tmp.pid_*` and `tmp.<uuid>`.
_NEVER = (
    r"(?:.*/)?\.[^/]*(?:/.*)?",
    r"(?:.*/)?tmp\.[^/]*(?:/.*)?",
    r"(?:.*/)?locks(?:/.*)?",
    r"(?:.*/)?__pycache__(?:/.*)?",
    r".*\.(?:lock|tmp)",
)

_INDUCTOR = (
    # The last part is 51 letters of the base-32 sha256 of the file's bytes; a key may hold several.
    ("file", r"fxgraph/[a-z0-9]{2}/[^/]+/[a-z2-7]{51,52}"),
    ("file", r"aotautograd/[^/]+/[a-z2-7]{51,52}"),
    # Source and library of one C++ or CUTLASS kernel: k.cpp k.so, k.main.cpp k.main.so, k.h, k.cu k.o
    ("stem", r"([a-z0-9]{2}/[^/.]+)(?:\.[^/.]+)*\.(?:cpp|cc|cu|h|hpp|o|so|dll|dylib|pyd)"),
    ("file", r"[a-z0-9]{2}/[^/]+\.(?:py|best_config|kernel_perf)"),
    ("growing", r"cache/[^/]+"),
    ("file", r"graph_parts/[a-z0-9-]+\.json"),  # ours: observe/graphs.py
)
_TRITON = (
    ("tree", r"(?:[0-9]+/)?[A-Z2-7]{52}"),
    ("growing", r"(?:[0-9]+/)?kernel_seconds\.json"),  # ours: observe/kernels.py
)
_INDUCTOR_NEVER = (
    r"(?:.*/)?[^/]*_CxxBuild(?:/.*)?",  # the working directory of a compiler that was killed
    r"(?:.*/)?gcc(?:/.*)?",  # a whole conda compiler
    r"(?:.*/)?memoizer_cache\.[^/]*",
    r"(?:.*/)?dynamo/code_state_[^/]*",  # profile-guided state: it would steer another job's compilation
    r"(?:.*/)?unhashed_kernel_inputs(?:/.*)?",
)
_IR = (".ttir", ".ttgir", ".glir", ".llir", ".ptx", ".amdgcn", ".source")


def _below(prefix: str, rules: "Iterable[tuple[str, str]]") -> "tuple[tuple[str, str], ...]":
    """*rules* for a cache that lies below *prefix*, a pattern without groups."""
    return tuple(
        (kind, f"({prefix}{rule[1:]}" if rule[0] == "(" and rule[1] != "?" else prefix + rule)
        for kind, rule in rules
    )


# Engines that move the caches of Inductor and Triton below a directory of their own when they compile:
# torch_compile_cache/<hash>/rank_0_0/{inductor_cache,triton_cache}, torch_aot_compile/<hash>/inductor_cache, and
# with SGLang one level more. What else their roots hold, downloads and other caches, stays where it is.
_ENGINE = r"torch_compile_cache/(?:[^/]+/){2,3}"
_ENGINE_RULES = (
    *_below(_ENGINE + "inductor_cache/", _INDUCTOR),
    *_below(_ENGINE + "(?:triton_cache|inductor_cache/triton)/", _TRITON),
)
_ENGINE_NEVER = (r"(?!torch_compile_cache(?:/|$)).+", *_NEVER, *_INDUCTOR_NEVER)

BUILTIN = (
    Family(
        "inductor",
        "TORCHINDUCTOR_CACHE_DIR",
        "torchinductor",
        entries=_INDUCTOR,
        never=(*_NEVER, r"triton(?:/.*)?", *_INDUCTOR_NEVER),  # triton: the family below
    ),
    Family(
        "triton",
        "TRITON_CACHE_DIR",
        "torchinductor/triton",
        unless=("TRITON_HOME",),
        # Inductor puts a directory of the device's index between, where the variable is unset.
        entries=_TRITON,
        never=_NEVER,
        ir=_IR,
    ),
    Family(
        "vllm",
        "VLLM_CACHE_ROOT",
        "vllm",
        entries=(
            *_ENGINE_RULES,
            # vLLM's own: a part of a model, with an index that names its graphs. An index without one of them would
            # fail the engine's start, so they are one entry.
            ("tree", r"torch_compile_cache/[^/]+/rank_[0-9]+_[0-9]+/(?!(?:inductor|triton)_cache$)[^/]+"),
            # Written anew, under the same name, when the model's source has changed.
            ("growing", r"torch_compile_cache/torch_aot_compile/[^/]+/rank_[0-9]+_[0-9]+/model"),
        ),
        never=(
            *_ENGINE_NEVER,
            r"(?:.*/)?cache_key_factors\.json",  # the environment of whoever compiled; written anew if it is gone
            # Kernels of a graph that was saved unpacked: the graph brings them.
            r"torch_compile_cache/[^/]+/rank_[0-9]+_[0-9]+/(?!(?:inductor|triton)_cache/)[^/]+/(?:.*/)?triton(?:_cache)?(?:/.*)?",
        ),
        ir=_IR,
    ),
    # Its index names graphs that are entries of their own; without it they are looked up, and found.
    Family("sglang", "SGLANG_CACHE_DIR", "sglang", entries=_ENGINE_RULES, never=_ENGINE_NEVER, ir=_IR),
)


def catalogue(plugins: bool = False, problems: list[str] | None = None) -> "dict[str, Family]":
    """All rows by name. ``problems`` receives what was wrong with a plugin's row, which is then left out:
    somebody else's broken package must not cost anybody the built-in families."""
    rows = {family.name: family for family in BUILTIN}
    import sys

    sites = tuple(sys.path)
    if plugins and sites not in _with_plugins:
        _with_plugins[sites] = _any_plugin(sites)
    if not plugins or not _with_plugins[sites]:
        return rows
    from importlib.metadata import entry_points

    for point in sorted(entry_points(group=GROUP), key=lambda point: point.name):
        try:
            loaded = point.load()
            for family in (loaded,) if isinstance(loaded, Family) else tuple(loaded):
                fault = _fault(family, rows)
                if fault:
                    raise ValueError(fault)
                rows[family.name] = family
        except Exception as error:
            if problems is not None:
                problems.append(f"family plugin {point.name!r} ({point.value}): {error}")
    return rows


def chosen(rows: "dict[str, Family]", names: "Iterable[str]") -> "list[Family]":
    """Those of a catalogue's *rows* that are named; the default set if none is."""
    wanted = set(names)
    return [row for row in rows.values() if (row.name in wanted if wanted else row.default)]


def check(names: "Iterable[str]", key: str, source: str) -> None:
    """Raise `ConfigError` if one of *names*, from the setting *key*, is in no catalogue."""
    rows = catalogue(plugins=True)
    for name in names:
        if name not in rows:
            from cachehome.errors import ConfigError

            known = ", ".join(rows)
            # An option is what its user has typed; all else has to be looked for.
            said = f"{source}: {name!r}" if source.startswith("--") else f"{key}: {name!r} (from {source})"
            raise ConfigError(
                f"{said} is not in the catalogue: {known}",
                key=key,
                source=source,
                value=name,
                allowed=known,
            )


_with_plugins: "dict[tuple[str, ...], bool]" = {}
"""What was found on a `sys.path`: a transfer asks several times."""


def _any_plugin(sites: "tuple[str, ...]") -> bool:
    """Whether a package in *sites* has rows for us. Asking importlib.metadata would cost 40 ms, nearly always for
    nothing."""
    import os

    for site in sites:
        try:
            names = os.listdir(site or os.curdir)
        except NotADirectoryError:
            return True  # a zip file: only importlib.metadata reads those
        except OSError:
            continue
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                try:
                    with open(os.path.join(site, name, "entry_points.txt"), "rb", buffering=0) as file:
                        if GROUP.encode() in file.read():
                            return True
                except OSError:
                    continue
    return False


def _fault(family: object, rows: "dict[str, Family]") -> str:
    """What is wrong with a plugin's row, or an empty string."""
    import re

    if not isinstance(family, Family):
        return f"{family!r} is not a cachehome.families.Family"
    if family.name in rows:
        return f"the name {family.name!r} is taken"
    if any(family.variable == row.variable for row in rows.values()):
        return f"the variable {family.variable!r} belongs to another family"
    parts = family.subdirectory.split("/")
    if not family.subdirectory or "." in parts or ".." in parts or "" in parts:
        return f"{family.subdirectory!r} is not a relative path below the live directory"
    for kind, pattern in family.entries:
        if kind not in KINDS:
            return f"unknown kind {kind!r}: one of {', '.join(KINDS)}"
        if kind == "stem" and not re.compile(pattern).groups:
            return f"the stem pattern {pattern!r} has no group"
    for pattern in (*(pattern for _, pattern in family.entries), *family.never):
        re.compile(pattern)
    return ""
