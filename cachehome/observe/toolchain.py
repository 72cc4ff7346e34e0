"""The repair of a late choice of ptxas: torch's own, from the start.

When Inductor compiles its first kernel in a process, torch points TRITON_PTXAS_PATH to the ptxas that it ships, and
the version of ptxas is part of Triton's keys. In a warm start nothing is compiled, so the variable stays unset, and
kernels that were launched without Inductor are looked for under another key: they are compiled again. Here torch
makes its choice when it is imported, in the start that compiles and in those that do not.
"""

from __future__ import annotations

from typing import Any

from cachehome.observe import patches
from cachehome.observe.activity import log


def install(module: Any) -> None:
    """Have `torch._inductor.runtime.compile_tasks` choose now."""
    try:
        patches.member(module, "_set_triton_ptxas_path")()
    except patches.Unfamiliar as error:
        log.watched("toolchain", str(error))
    else:
        log.watched("toolchain")
