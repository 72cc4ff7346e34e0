"""When a precompiled header is needless."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cachehome.observe import headers

CODE = """
def write(*_, **__): return "key", MAIN
def _precompile_header(header): return f"built {header}"
class CppCodeCache:
    @classmethod
    def load_async(cls, main_code):
        key, main_path = write(
            main_code, "main.cpp", extra="")
        return _precompile_header("h"), (lambda: main_path)
def other(): return _precompile_header("h")
"""


@pytest.fixture
def codecache(tmp_path: Path) -> Any:
    module = ModuleType("codecache")
    source = tmp_path / "codecache.py"
    source.write_text(CODE)
    module.__file__ = str(source)
    module.MAIN = str(tmp_path / "ck.main.cpp")  # type: ignore[attr-defined]
    exec(compile(CODE, str(source), "exec"), vars(module))
    headers.install(module)
    return module


def test_a_library_that_is_there_needs_none(codecache: Any, tmp_path: Path) -> None:
    assert codecache.CppCodeCache.load_async("")[0] == "built h"
    (tmp_path / "ck.main.so").write_bytes(b"")
    assert codecache.CppCodeCache.load_async("")[0] == "built h"  # a compiler was killed
    (tmp_path / "ck.main.so").write_bytes(b"\x7fELF")
    assert codecache.CppCodeCache.load_async("")[0] == ""
    assert codecache.other() == "built h"


def test_a_torch_without_that_name_is_left_alone(tmp_path: Path) -> None:
    module = ModuleType("codecache")
    source = tmp_path / "codecache.py"
    text = CODE.replace("main_path", "path_of_main")
    source.write_text(text)
    module.__file__ = str(source)
    exec(compile(text, str(source), "exec"), vars(module))
    before = module._precompile_header
    headers.install(module)
    assert module._precompile_header is before


@pytest.mark.parametrize("source", [None, 3, "", "x.cpp", "/no/such.main.cpp"])
def test_what_cannot_be_told_gets_a_header(source: object) -> None:
    assert not headers.needless(source)
