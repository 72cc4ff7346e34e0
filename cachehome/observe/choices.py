"""The repair of forgotten choices: kernels that were tuned by coordinate descent are not tuned again.

Coordinate descent (`max-autotune` asks for it) finds the best configuration of a kernel and writes it beside the
kernel's source. A later start reads it there, but up to torch 2.12 an autotuner that comes out of a graph's entry
does not remember that it was found so: it is tuned anew at its first launch, in every start, which compiles its
neighbours and may choose another one. Here it is told, as torch 2.13 does by itself.
"""

from __future__ import annotations

from typing import Any

from cachehome.observe import patches
from cachehome.observe.activity import log


def install(module: Any) -> None:
    """Repair `torch._inductor.runtime.triton_heuristics`."""
    try:
        check = patches.member(module, "check_autotune_cache")
        hashable = patches.member(module, "triton_config_to_hashable")

        def recheck(theirs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            kernel = args[0]
            results = list(getattr(kernel, "compile_results", ()))
            answer = theirs(*args, **kwargs)
            reload = args[1] if len(args) > 1 else kwargs.get("reload_kernel_from_src")
            patches.quietly(_remember, kernel, results, reload, check, hashable)
            return answer

        patches.replace(patches.member(module, "CachingAutotuner"), "recheck_autotune_cache", recheck)
    except patches.Unfamiliar as error:
        log.watched("choices", str(error))
    else:
        log.watched("choices")


def _remember(kernel: Any, results: list[Any], reload: Any, check: Any, hashable: Any) -> None:
    """Give *kernel*, whose compiled *results* were unpickled, the configuration that coordinate descent found."""
    if not (kernel.inductor_meta or {}).get("coordinate_descent_tuning") or not results:
        return
    if all(getattr(result.config, "found_by_coordesc", False) for result in kernel.compile_results):
        return  # a torch that remembers
    configs, _, info = check([result.config for result in results], kernel.filename, kernel.inductor_meta)
    if info.get("autotune_cache_state") != "hit" or not getattr(configs[0], "found_by_coordesc", False):
        return
    best = configs[0]
    for result in results:
        if hashable(result.config) == hashable(best):
            result.config.found_by_coordesc = True
            kernel.compile_results = [result]
            log.add(choices_kept=1)
            return
    # Found after the entry was written. Its kernel is in Triton's cache.
    if kernel.fn.fn is None:
        kernel.fn = reload().fn
    kernel.compile_results = [kernel._precompile_config(best)]  # noqa: SLF001 - torch 2.13 does the same here
    log.add(choices_kept=1)
