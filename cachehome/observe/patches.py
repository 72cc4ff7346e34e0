"""Patches: a function of ours before or after one of somebody else's, which does what it did.

Whatever ours raises is swallowed: it watches, and the watched must not notice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

Before = Callable[[tuple[Any, ...], dict[str, Any]], object]
After = Callable[[Any, tuple[Any, ...], dict[str, Any]], object]


class Unfamiliar(Exception):
    """A module of torch or Triton is not built as those that we know."""


def before(owner: Any, name: str, ours: Before) -> None:
    """Call *ours*(args, kwargs) before each call of *owner*.*name*. Raises `Unfamiliar`."""

    def around(theirs: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        quietly(ours, args, kwargs)
        return theirs(*args, **kwargs)

    replace(owner, name, around)


def after(owner: Any, name: str, ours: After) -> None:
    """Call *ours*(result, args, kwargs) after each call of *owner*.*name*. Raises `Unfamiliar`."""

    def around(theirs: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = theirs(*args, **kwargs)
        quietly(ours, result, args, kwargs)
        return result

    replace(owner, name, around)


def replace(owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Make *owner*.*name*(*args, **kwargs) return *around*(original, args, kwargs). Raises `Unfamiliar`.

    A method stays the kind of method that it was.
    """
    found = getattr(owner, "__dict__", {}).get(name)
    kind = type(found) if isinstance(found, (staticmethod, classmethod)) else None
    theirs = found.__func__ if isinstance(found, (staticmethod, classmethod)) else found
    if not callable(theirs):
        raise Unfamiliar(f"{getattr(owner, '__name__', owner)} has no {name}")

    @functools.wraps(theirs)
    def patched(*args: Any, **kwargs: Any) -> Any:
        return around(theirs, args, kwargs)

    setattr(owner, name, kind(patched) if kind else patched)


def member(module: Any, name: str) -> Any:
    """*module*.*name*. Raises `Unfamiliar`."""
    try:
        return getattr(module, name)
    except AttributeError:
        raise Unfamiliar(f"{module.__name__} has no {name}") from None


def mentions(module: Any, *words: str) -> None:
    """Make sure that the source of *module* holds *words*, names that nothing else tells of. Raises `Unfamiliar`."""
    try:
        with open(module.__file__, encoding="utf-8") as file:
            source = file.read()
    except (OSError, TypeError, ValueError):
        raise Unfamiliar(f"{module.__name__} has no source to look at") from None
    for word in words:
        if word not in source:
            raise Unfamiliar(f"{module.__name__} does not mention {word}")


def quietly(ours: Callable[..., object], *args: Any) -> None:
    """Call *ours*; nobody hears of it if that fails."""
    try:
        ours(*args)
    except Exception:
        from cachehome import _boot

        _boot.explain()
