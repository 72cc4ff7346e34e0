"""Autotuners as torch pickles them (2.9 to 2.13 alike), moved to another live directory."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cachehome.observe.relocation import repair

KEY = "cr4vzm5nbnkakebxzjoncmfpmmomray4oguhxbjvxqjfn2nmmatb"
OLD = f"/tmp/a/r4/{KEY}.py"
NEW = f"/new/live/r4/{KEY}.py"


class Cache:
    """torch/_inductor/runtime/autotune_cache.py: local_cache is (backend, file name)."""

    def __init__(self, name: str) -> None:
        self.local_cache: Any = (object(), name)

    def save(self) -> None:
        pass


def entry(filename: Any, hook: Any = None) -> Any:
    return SimpleNamespace(kernel=SimpleNamespace(filename=filename, save_cache_hook=hook))


def test_a_name_of_torch_moves() -> None:
    found = entry(OLD)
    assert repair([found], "/new/live") == (1, [])
    assert found.kernel.filename == NEW
    assert repair([found], "/new/live") == (0, [])


def test_what_saves_the_choice_moves_too() -> None:
    cache = Cache("/tmp/a/r4/0123abcd.best_config")
    backend = cache.local_cache[0]
    assert repair([entry(OLD, cache.save)], "/new/live") == (1, [])
    assert cache.local_cache == (backend, "/new/live/r4/0123abcd.best_config")


@pytest.mark.parametrize(
    "name",
    ["/home/me/kernels.py", f"/tmp/a/xx/{KEY}.py", f"/tmp/a/r4/{KEY}.cpp", f"r4/{KEY}.py", "<string>", 7,
     f"/tmp/a/r4/{KEY}..py", "/tmp/a/r4/cr4/../x.py"],
)  # fmt: skip
def test_a_name_of_anybody_else_stays(name: Any) -> None:
    found = entry(name)
    assert repair([found], "/new/live") == (0, [str(name)])
    assert found.kernel.filename == name


def test_a_kernel_without_a_file_is_none_of_ours() -> None:
    assert repair([entry(None), SimpleNamespace()], "/new/live") == (0, [])


def test_either_both_move_or_none() -> None:
    for name in ("/tmp/a/zz/0123.best_config", "/tmp/a/r4/x.json", 5):
        cache = Cache("")
        cache.local_cache = (object(), name)
        found = entry(OLD, cache.save)
        assert repair([found], "/new/live") == (0, [OLD])
        assert found.kernel.filename == OLD
    cache.local_cache = "another torch"
    assert repair([entry(OLD, cache.save)], "/new/live") == (0, [OLD])


def test_the_name_of_a_directory_that_begins_alike() -> None:
    found = entry(f"/new/live2/r4/{KEY}.py")
    assert repair([found], "/new/live") == (1, [])
    assert found.kernel.filename == NEW
