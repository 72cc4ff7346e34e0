"""The catalogue: what its rules take, what they leave, and what a plugin may add."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from cachehome import families, place

INDUCTOR, TRITON, VLLM, SGLANG = families.BUILTIN
KEY = "fabcdefghijklmnopqrstuvwxyz234567abcdefghijklmnopqrs"
SHA = KEY[:51]
GROUP = "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567ABCDEFGHIJKLMNOPQRST"


def kind(family: families.Family, path: str) -> str | None:
    """How *family* takes *path*; None if it leaves it."""
    if any(re.fullmatch(pattern, path) for pattern in family.never):
        return None
    return next((kind for kind, pattern in family.entries if re.fullmatch(pattern, path)), None)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (f"fxgraph/ab/{KEY}/{SHA}", "file"),
        (f"aotautograd/{KEY}/{SHA}", "file"),
        (f"ab/{KEY}.main.cpp", "stem"),
        (f"ab/{KEY}.main.so", "stem"),
        (f"ab/{KEY}.so", "stem"),
        (f"ab/{KEY}.h", "stem"),
        (f"ab/{KEY}.py", "file"),
        ("ab/0123456789abcdef.best_config", "file"),
        (f"ab/{KEY}.kernel_perf", "file"),
        ("cache/0123456789abcdef", "growing"),
    ],
)
def test_inductor_takes(path: str, expected: str) -> None:
    assert kind(INDUCTOR, path) == expected


@pytest.mark.parametrize(
    "path",
    [
        f"locks/{KEY}.lock",
        f"ab/{KEY}.lock",
        f"ab/.{KEY}.py.1234.140000000000000.tmp",
        f"fxgraph/ab/{KEY}/.1234.tmp",
        f"ab/{KEY}_CxxBuild/x.cpp",
        f"ab/{KEY}_CxxBuild",
        "gcc/bin/g++",
        "memoizer_cache.json",
        "memoizer_cache.lock",
        "dynamo/code_state_job_0.pkl",
        f"triton/0/{GROUP}/kernel.cubin",
        f"triton/{GROUP}/kernel.json",
        "triton",
        f"tmp.0123/{KEY}.py",
        ".cachehome/stamp",
        "unhashed_kernel_inputs/x",
        "precompiled_headers/x.h.gch",
        "ab/__pycache__/x.cpython-311.pyc",
        f"fxgraph/ab/{KEY}/not-a-sha",
        "tmpabc.py",
    ],
)
def test_inductor_leaves(path: str) -> None:
    assert kind(INDUCTOR, path) is None


def test_files_of_one_stem_are_one_entry() -> None:
    pattern = dict(INDUCTOR.entries)["stem"]
    stems = {
        re.fullmatch(pattern, f"ab/{KEY}{end}").group(1) for end in (".main.cpp", ".main.so", ".so", ".h")
    }
    assert stems == {f"ab/{KEY}"}


def test_triton_takes_groups_only() -> None:
    assert kind(TRITON, GROUP) == "tree"
    assert kind(TRITON, f"0/{GROUP}") == "tree"
    assert kind(TRITON, GROUP[:-1]) is None
    assert kind(TRITON, f"a/b/{GROUP}") is None
    assert kind(TRITON, "tmp.pid_12_0b0e") is None
    assert any(re.fullmatch(pattern, f"{GROUP}/tmp.pid_1_ab/x.json") for pattern in TRITON.never)


def test_what_a_launch_reads_is_no_ir() -> None:
    assert not any(f"kernel{end}".endswith(TRITON.ir) for end in (".cubin", ".hsaco", ".json", ".so"))
    assert all(
        f"kernel{end}".endswith(TRITON.ir)
        for end in (".ttir", ".ttgir", ".llir", ".ptx", ".source", ".amdgcn")
    )


RANK = "torch_compile_cache/0123456789/rank_0_0"
AOT = f"torch_compile_cache/torch_aot_compile/{'0' * 64}"


@pytest.mark.parametrize(
    ("engine", "below"), [(VLLM, RANK), (VLLM, AOT), (SGLANG, RANK), (SGLANG, f"{RANK}/backbone")]
)
def test_engines_hold_caches_of_both(engine: families.Family, below: str) -> None:
    for path, expected in (
        (f"inductor_cache/fxgraph/ab/{KEY}/{SHA}", "file"),
        (f"inductor_cache/aotautograd/{KEY}/{SHA}", "file"),
        (f"inductor_cache/ab/{KEY}.main.so", "stem"),
        (f"inductor_cache/ab/{KEY}.py", "file"),
        (f"inductor_cache/graph_parts/{KEY}.json", "file"),
        ("inductor_cache/graph_parts/settings-0123456789abcdef.json", "file"),
        ("inductor_cache/graph_parts/.0123.77", None),
        ("inductor_cache/cache/0123", "growing"),
        (f"triton_cache/{GROUP}", "tree"),
        (f"inductor_cache/triton/0/{GROUP}", "tree"),
        (f"inductor_cache/locks/{KEY}.lock", None),
        (f"inductor_cache/ab/{KEY}_CxxBuild/x.cpp", None),
        ("inductor_cache/dynamo/code_state_job_0.pkl", None),
        (f"triton_cache/tmp.pid_1_ab/{GROUP}", None),
    ):
        assert kind(engine, f"{below}/{path}") == expected, path


def test_vllm_takes_its_own_graphs_whole() -> None:
    assert kind(VLLM, f"{RANK}/backbone") == "tree"
    assert kind(VLLM, f"{RANK}/inductor_cache") is None
    assert kind(VLLM, f"{RANK}/triton_cache") is None
    assert kind(VLLM, f"{AOT}/rank_0_0/model") == "growing"
    assert kind(VLLM, f"{AOT}/rank_0_0/model.17.tmp") is None
    never = "|".join(f"(?:{pattern})" for pattern in VLLM.never)
    assert re.fullmatch(never, f"{RANK}/backbone/cache_key_factors.json")
    assert re.fullmatch(never, f"{RANK}/backbone/artifact_1/triton/0/{GROUP}")
    assert not re.fullmatch(never, f"{RANK}/backbone/vllm_compile_cache.py")
    assert not re.fullmatch(never, f"{RANK}/inductor_cache/triton/0/{GROUP}")


@pytest.mark.parametrize(
    "path", ["assets/x.jpg", "deep_gemm/cache/kernel.a/kernel.cubin", "modelinfos/x.json", "nv"]
)
def test_what_else_an_engine_keeps_is_not_entered(path: str) -> None:
    assert any(re.fullmatch(pattern, path.partition("/")[0]) for pattern in VLLM.never)


def test_a_row_lies_below_its_parent() -> None:
    assert TRITON.subdirectory.startswith(INDUCTOR.subdirectory + "/")


def test_the_hook_has_a_copy_of_the_default_rows() -> None:
    default = [row for row in families.BUILTIN if row.default]
    assert tuple((row.variable, row.subdirectory) for row in default) == place.ROWS
    assert {name for row in default for name in row.unless} <= set(place.UNUSUAL)


def test_patterns_compile() -> None:
    for row in families.BUILTIN:
        for sort, pattern in row.entries:
            assert sort in families.KINDS
            assert re.compile(pattern).groups == (1 if sort == "stem" else 0)
        for pattern in row.never:
            re.compile(pattern)


ROW = """
from cachehome.families import Family
ROW = Family({name!r}, {variable!r}, {place!r}, entries=(({kind!r}, {rule!r}),))
"""


def row(
    name: str = "mine", variable: str = "MINE_DIR", place: str = "mine", kind: str = "file", rule: str = ".*"
) -> str:
    return ROW.format(name=name, variable=variable, place=place, kind=kind, rule=rule)


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Installs a package with one entry point, as pip would."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def install(name: str, source: str) -> None:
        (tmp_path / f"plugin_{name}.py").write_text(source)
        info = tmp_path / f"plugin_{name}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: plugin_{name}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[cachehome.families]\n{name} = plugin_{name}:ROW\n")

    return install


def test_plugins_add_rows(plugin: Callable[[str, str], None]) -> None:
    three = row("three", "THREE", "three").replace("\nROW =", "\nTHREE =")
    plugin("b", f"{row('two', 'TWO', 'two')}{three}ROW = ROW, THREE")
    plugin("a", row())
    assert list(families.catalogue()) == ["inductor", "triton", "vllm", "sglang"]
    assert list(families.catalogue(plugins=True)) == [
        "inductor",
        "triton",
        "vllm",
        "sglang",
        "mine",
        "two",
        "three",
    ]


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        ("import no_such_module", "no_such_module"),
        ("ROW = 'a text'", "is not a cachehome"),
        ("ROW = 1", "not iterable"),
        (row("triton"), "is taken"),
        (row(variable="TRITON_CACHE_DIR"), "belongs to another"),
        (row(place="../x"), "not a relative path"),
        (row(place="/x"), "not a relative path"),
        (row(place=""), "not a relative path"),
        (row(kind="heap"), "unknown kind"),
        (row(kind="stem"), "has no group"),
        (row(rule="("), "unterminated"),
    ],
)
def test_a_bad_plugin_costs_nobody_the_others(plugin: Callable[[str, str], None], bad: str, why: str) -> None:
    plugin("bad", bad)
    plugin("good", row("good", "GOOD", "good"))
    problems: list[str] = []
    try:
        assert list(families.catalogue(plugins=True, problems=problems)) == [
            "inductor",
            "triton",
            "vllm",
            "sglang",
            "good",
        ]
    finally:
        sys.modules.pop("plugin_bad", None)
        sys.modules.pop("plugin_good", None)
    assert len(problems) == 1
    assert why in problems[0]
    assert "bad" in problems[0]
