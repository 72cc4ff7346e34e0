"""Owns what a difference is called in words: what it means, whether it can change machine code, what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cachehome.probes import is_failure

if TYPE_CHECKING:
    from cachehome.identity import Difference


def difference(name: str, left: str, right: str, kind: str) -> Difference:
    """The difference of field *name*."""
    from cachehome.identity import Difference

    if kind == "code" and (is_failure(left) or is_failure(right)):
        return Difference(name, left, right, "probe", "one side could not be read")
    return Difference(name, left, right, kind, name)
