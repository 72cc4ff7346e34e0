"""What the verbs of activation share: the answer for this environment, and who set which variable."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from cachehome import families, home

if TYPE_CHECKING:
    from collections.abc import Collection

    from cachehome.families import Family
    from cachehome.settings import Settings


def chosen(settings: Settings, problems: list[str]) -> list[Family]:
    """The families that *settings* name, else the default set."""
    known = families.catalogue(plugins=True, problems=problems)
    problems += [
        f"families: {name!r} is not in the catalogue: {', '.join(known)}"
        for name in settings.families
        if name not in known
    ]
    return families.chosen(known, settings.families)


def resolution(settings: Settings, *, make: bool = False, without: Collection[str] = ()) -> home.Resolution:
    """What activation sets here, by the command line and the file of settings too; *without* these variables."""
    problems: list[str] = []
    environ = {name: value for name, value in os.environ.items() if name not in without}
    if settings.enabled and not environ.get("CACHEHOME", "").strip():
        environ["CACHEHOME"] = settings.enabled
    answer = home.resolve(
        environ,
        families=chosen(settings, problems),
        local=settings.local,
        slot=settings.slot,
        make=make,
    )
    answer.notes += problems
    return answer


def set_by(variable: str, answer: home.Resolution) -> str:
    """Who set *variable* in this environment: the user, cachehome, torch, or nobody."""
    value = os.environ.get(variable, "")
    if not value.strip():
        return "nobody"
    if variable in answer.kept:
        return "the user"
    return "cachehome" if value == home.applied(os.environ).get(variable) else "torch"
