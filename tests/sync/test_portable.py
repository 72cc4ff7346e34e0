from __future__ import annotations

import base64
import hashlib
import json
import subprocess
from pathlib import Path

import pytest

from cachehome.sync import portable


def test_a_group_is_stored_by_name_and_written_by_path() -> None:
    group = json.dumps({"child_paths": {"k.cubin": "/old/KEY/k.cubin", "k.json": "/old/KEY/k.json"}}).encode()
    stored = portable.canonical("KEY/__grp__k.json", group)
    assert json.loads(stored) == {"child_paths": {"k.cubin": "k.cubin", "k.json": "k.json"}}
    assert portable.canonical("KEY/__grp__k.json", stored) == stored
    here = portable.local(stored, "/new/KEY", {"k.cubin", "k.json"})
    assert json.loads(here) == {"child_paths": {"k.cubin": "/new/KEY/k.cubin", "k.json": "/new/KEY/k.json"}}
    slim = portable.local(stored, "/new/KEY", {"k.json"})
    assert json.loads(slim) == {"child_paths": {"k.json": "/new/KEY/k.json"}}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"child_paths": 1}',
        '{"child_paths": {"../x": "/x"}}',
        '{"child_paths": {"a/b": "/x"}}',
        "\xff",
    ],
)
def test_what_is_no_group(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 json's own text
        portable.canonical("KEY/__grp__k.json", text.encode("latin-1"))


def test_a_group_without_a_child_is_incomplete() -> None:
    group = json.dumps({"child_paths": {"k.cubin": "/old/k.cubin"}}).encode()
    assert portable.check_group(group, {"k.cubin"}) == ""
    assert portable.check_group(group, {"k.json"}) == "k.cubin is missing"


@pytest.mark.parametrize(
    ("path", "data", "problem"),
    [
        ("ab/c.so", b"", "empty"),
        ("ab/c.so", b"\x7fEL", "cut short"),
        ("ab/c.so", b"\x7fELF\2\1\1" + bytes(20), "cut short"),
        ("ab/c.py", b"def f(:\n", "does not parse"),
        ("ab/c.py", b"x = 1\n", ""),
        ("ab/c.best_config", b"[1]", "not a JSON object"),
        ("ab/c.best_config", b'{"XBLOCK": 8', "line 1 column 13"),
        ("ab/c.best_config", b'{"XBLOCK": 8}', ""),
        ("ab/c.kernel_perf", b"0.05", ""),
        ("KEY/k.json", b"{", "line 1 column 2"),
        ("fxgraph/ab/key/" + "a" * 51, b"x", "not the sha256"),
    ],
)
def test_check(path: str, data: bytes, problem: str) -> None:
    found = portable.check(path, data)
    assert bool(found) == bool(problem)
    assert problem in found


def test_content_named_files(tmp_path: Path) -> None:
    data = b"a pickle"
    name = base64.b32encode(hashlib.sha256(data).digest()).decode().lower()[:51]
    assert portable.check(f"fxgraph/ab/key/{name}", data) == ""
    assert portable.check(f"aotautograd/key/{name}", data[:-1] + b"f") != ""


def test_every_cut_of_a_library_is_found(tmp_path: Path) -> None:
    source = tmp_path / "k.cpp"
    source.write_text('extern "C" int kernel(int x) { return x + 1; }\n')
    library = tmp_path / "k.so"
    subprocess.run(["g++", "-shared", "-fPIC", "-g1", "-o", library, source], check=True)
    whole = library.read_bytes()
    assert portable.check("ab/k.so", whole) == ""
    assert portable.check_local(str(library), "ab/k.so") == ""
    for length in [*range(0, 300, 7), *range(300, len(whole), 997), len(whole) - 1]:
        assert portable.check("ab/k.so", whole[:length]), length


def test_real_kernels_are_sound_and_their_cuts_are_not(compiled_kernels: Path) -> None:
    cubin = next(compiled_kernels.glob("*/*.cubin"))
    data = cubin.read_bytes()
    assert portable.check("KEY/k.cubin", data) == ""
    for length in [*range(1, len(data), 997), len(data) - 1]:
        assert portable.check("KEY/k.cubin", data[:length]) == "cut short", length
    for path in compiled_kernels.glob("*/*"):
        name = str(path.relative_to(compiled_kernels))
        assert portable.check_local(str(path), name) == ""
