"""The repair of needless precompiled headers.

Before it loads a C++ kernel, Inductor makes the 156 MB of a precompiled header, if it does not find it below the
temporary directory (no variable moves it), even where the kernel's library is there and nothing will be compiled.
Here it is told to go without a header whenever the library exists. Should the library vanish in between, it is
compiled without one: slower, and the same.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from cachehome.observe import patches
from cachehome.observe.activity import log

_SOURCE = ".main.cpp"


def install(module: Any) -> None:
    """Repair `torch._inductor.codecache`."""
    try:
        load = patches.member(patches.member(module, "CppCodeCache"), "load_async")
        names = getattr(load, "__code__", load.__func__.__code__).co_varnames
        cells = getattr(load, "__code__", load.__func__.__code__).co_cellvars
        if "main_path" not in (*names, *cells):
            raise patches.Unfamiliar("CppCodeCache.load_async has no main_path")
        patches.mentions(module, 'write(\n            main_code, "main.cpp"')
        patches.replace(module, "_precompile_header", _precompile)
    except (patches.Unfamiliar, AttributeError) as error:
        log.watched("headers", str(error))
    else:
        log.watched("headers")


def _precompile(theirs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # 0 is this function, 1 the patch, 2 who wants the header.
    if needless(sys._getframe(2).f_locals.get("main_path")):  # noqa: SLF001 - no argument tells it
        log.add(headers_skipped=1)
        return ""  # what CppBuilder takes for "none"
    return theirs(*args, **kwargs)


def needless(source: object) -> bool:
    """Whether the library of the C++ file *source* is there already."""
    if not isinstance(source, str) or not source.endswith(_SOURCE):
        return False
    library = source.removesuffix(".cpp") + ".so"
    try:
        return os.stat(library).st_size > 0
    except OSError:
        return False
