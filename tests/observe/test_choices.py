"""Autotuners that come out of a graph's entry keep what coordinate descent had found."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from cachehome.observe import choices


class Config(SimpleNamespace):
    """triton.Config: kwargs, and what torch hangs on it."""


def best_of(value: int) -> Config:
    return Config(kwargs={"XBLOCK": value}, found_by_coordesc=True)


class Autotuner:
    """torch 2.9 to 2.12's: a choice among one configuration is no choice, and how it was found is forgotten."""

    def __init__(self, *values: int, **meta: Any) -> None:
        self.compile_results = [SimpleNamespace(config=Config(kwargs={"XBLOCK": value})) for value in values]
        self.inductor_meta = {"coordinate_descent_tuning": True} | meta
        self.filename = "/live/ab/cab.py"
        self.fn = SimpleNamespace(fn=None)

    def recheck_autotune_cache(self, reload_kernel_from_src: Any) -> None:
        assert reload_kernel_from_src
        best = CACHED[0]
        if best and len(self.compile_results) > 1:
            same = [result for result in self.compile_results if result.config.kwargs == best.kwargs]
            self.compile_results = same or self.compile_results

    def _precompile_config(self, config: Config) -> Any:
        assert self.fn.fn == "loaded"
        return SimpleNamespace(config=config)


CACHED: list[Config | None] = [None]


def check(configs: list[Config], filename: str, meta: dict[str, Any]) -> Any:
    best = CACHED[0]
    return (
        ([best], None, {"autotune_cache_state": "hit"})
        if best
        else (configs, None, {"autotune_cache_state": "miss"})
    )


@pytest.fixture
def autotuner() -> Any:
    module = ModuleType("triton_heuristics")
    made = type(
        "CachingAutotuner", (Autotuner,), {"recheck_autotune_cache": Autotuner.recheck_autotune_cache}
    )
    vars(module).update(
        CachingAutotuner=made,
        check_autotune_cache=check,
        triton_config_to_hashable=lambda config: str(config.kwargs),
    )
    choices.install(module)
    return made


def chosen(kernel: Any) -> list[tuple[int, bool]]:
    return [
        (r.config.kwargs["XBLOCK"], getattr(r.config, "found_by_coordesc", False))
        for r in kernel.compile_results
    ]


def reload() -> Any:
    return SimpleNamespace(fn=SimpleNamespace(fn="loaded"))


@pytest.mark.parametrize("values", [(8,), (4, 8, 16)])
def test_a_choice_that_is_there_is_kept(autotuner: Any, values: tuple[int, ...]) -> None:
    CACHED[0] = best_of(8)
    kernel = autotuner(*values)
    kernel.recheck_autotune_cache(reload_kernel_from_src=reload)
    assert chosen(kernel) == [(8, True)]


def test_a_choice_that_was_found_later_is_compiled(autotuner: Any) -> None:
    CACHED[0] = best_of(32)
    kernel = autotuner(8)
    kernel.recheck_autotune_cache(reload)
    assert chosen(kernel) == [(32, True)]


@pytest.mark.parametrize(
    ("cached", "meta"),
    [(None, {}), (Config(kwargs={"XBLOCK": 8}), {}), (best_of(8), {"coordinate_descent_tuning": False})],
)
def test_everything_else_is_as_it_was(autotuner: Any, cached: Config | None, meta: dict[str, Any]) -> None:
    CACHED[0] = cached
    kernel = autotuner(4, 16, **meta)
    before = list(kernel.compile_results)
    kernel.recheck_autotune_cache(reload)
    assert kernel.compile_results == before
    assert chosen(kernel) == [(4, False), (16, False)]


def test_a_torch_that_is_built_in_another_way_is_left_alone(autotuner: Any) -> None:
    CACHED[0] = best_of(32)
    kernel = autotuner(8)
    kernel.recheck_autotune_cache(lambda: None)  # what it returns has no fn
    assert chosen(kernel) == [(8, False)]
    module = ModuleType("triton_heuristics")
    choices.install(module)
    assert not hasattr(module, "CachingAutotuner")
