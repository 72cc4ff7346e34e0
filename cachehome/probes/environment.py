"""Owns the `environment` part of a build: variables that reach code generation. The table is `variables.txt`.

An unknown variable of a compiler stays in: a key that is too large costs a warm start, one that is too small gives
wrong code. What the table takes out has its reason there, and `left_out` repeats it.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, NamedTuple

from cachehome.probes import scrub
from cachehome.probes.source import file_digest

if TYPE_CHECKING:
    from collections.abc import Mapping

SECRETS = "environment secrets"


class Row(NamedTuple):
    """One line of the table."""

    treatment: str
    pattern: str
    evidence: str
    reason: str

    @property
    def exact(self) -> bool:
        """Whether the line names one variable, so that its author knew it."""
        return "*" not in self.pattern

    def fits(self, name: str) -> bool:
        """Whether *name* is one that the line is about. A `*` stands for anything, also for nothing."""
        first, *others = self.pattern.split("*")
        if not others:
            return name == first
        if not name.startswith(first) or len(name) < len(self.pattern) - len(others):
            return False
        at = len(first)
        for part in others[:-1]:
            at = name.find(part, at)
            if at < 0:
                return False
            at += len(part)
        return name.endswith(others[-1]) and len(name) - len(others[-1]) >= at


class _Table(NamedTuple):
    """The lines, and how every name begins that any of them is about."""

    rows: list[Row]
    beginnings: tuple[str, ...]


_table: _Table | None = None


def rows() -> list[Row]:
    """The table, in its order."""
    return _load().rows


def row(name: str) -> Row | None:
    """The line that decides on variable *name*; None if it is no compiler's."""
    table = _load()
    # A rule for the end of a name speaks of a compiler's variables only: everybody has a *_TIMEOUT.
    if not name.startswith(table.beginnings):
        return None
    found = next((line for line in table.rows if line.fits(name)), None)
    if found is None or not found.pattern.startswith("*"):
        return found
    ours = any(line.fits(name) for line in table.rows if not line.pattern.startswith("*"))
    return found if ours else None


def probe(environ: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The part, and what was left out of it and why."""
    from cachehome import families

    kept: dict[str, str] = {}
    left_out: dict[str, str] = {}
    secrets = 0
    locations = {family.variable for family in families.BUILTIN}
    for name in sorted(environ):
        line = row(name)
        if line is None or name.startswith("CACHEHOME"):
            continue
        value = environ[name].strip()
        known = line.exact and line.treatment == "in"
        if (not known and scrub.secret_name(name, value)) or scrub.secret_shape(value):
            secrets += 1
            continue
        if name in locations or line.treatment == "out":
            # A value that a compiler hashes all the same is worth showing: it explains a miss.
            shown = f"{scrub.text(value, environ)[0]}: " if line.evidence not in ("-", "none") else ""
            left_out[f"environment.{name}"] = f"{shown}{line.reason}"
        elif line.treatment == "file":
            kept[name] = ",".join(_content(path) for path in re.split(r"[:;,]", value) if path)
        else:
            kept[name], taken = (value, []) if "VERSION" in name else scrub.text(_by_content(value), environ)
            if taken:
                left_out[f"environment.{name}"] = f"in the key without {', '.join(sorted(set(taken)))}"
    if secrets:
        left_out[SECRETS] = f"{secrets}, by name or by shape: neither name nor value is kept"
    return kept, left_out


def _by_content(value: str) -> str:
    """A variable that nobody knows and that names a file: its content is what a compiler would read."""
    return _content(value) if os.path.isabs(value) and os.path.isfile(value) else value


def _content(path: str) -> str:
    return f"{os.path.basename(path)} {file_digest(path)}"


def _load() -> _Table:
    global _table
    if _table is None:
        with open(os.path.join(os.path.dirname(__file__), "variables.txt"), encoding="utf-8") as file:
            lines = [text.strip() for text in file if text.strip() and not text.startswith("#")]
        table = [Row(*re.split(r"\s{2,}", line)) for line in lines]
        _table = _Table(table, tuple({part for line in table if (part := line.pattern.split("*")[0])}))
    return _table
