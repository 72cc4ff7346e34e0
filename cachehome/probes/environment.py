"""Owns the `environment` part of a build: variables that reach code generation. The table is `variables.txt`.

An unknown variable of a compiler stays in: a key that is too large costs a warm start, one that is too small gives wrong
code. What the table takes out has its reason there, and `left_out` repeats it.
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


_rows: tuple[list[Row], dict[str, Row], re.Pattern[str]] | None = None


def rows() -> list[Row]:
    """The table, in its order."""
    return _table()[0]


def row(name: str) -> Row | None:
    """The line that decides on variable *name*."""
    table, exact, rest = _table()
    match = rest.fullmatch(name)
    # A name of its own stands before the rules in the table, so the first of both is the one that comes first there.
    by_rule = table[int(match.lastgroup[1:])] if match and match.lastgroup else None
    by_name = exact.get(name)
    if by_name and by_rule:
        return by_name if table.index(by_name) < table.index(by_rule) else by_rule
    return by_name or by_rule


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


def _table() -> tuple[list[Row], dict[str, Row], re.Pattern[str]]:
    global _rows
    if _rows is None:
        table = []
        with open(os.path.join(os.path.dirname(__file__), "variables.txt"), encoding="utf-8") as file:
            for text in file:
                if text.strip() and not text.startswith("#"):
                    table.append(Row(*re.split(r"\s{2,}", text.strip())))
        exact = {line.pattern: line for line in reversed(table) if line.exact}
        rules = [f"(?P<r{i}>{_expression(line.pattern)})" for i, line in enumerate(table) if not line.exact]
        _rows = table, exact, re.compile("|".join(rules))
    return _rows


def _expression(pattern: str) -> str:
    return "".join(".*" if part == "*" else part for part in re.split(r"(\*)", pattern))
