"""Write the reference pages that are made from the code: docs/reference/{settings,commands,families}.md.

`make docs` runs it; tests/test_reference.py fails when a committed page differs.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import sys
from pathlib import Path

PAGES = Path(__file__).resolve().parent / "reference"
sys.path.insert(0, str(PAGES.parents[1]))
NOTE = "<!-- made by docs/generate.py from {source}: change it there -->\n\n"


def table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def value(default: object) -> str:
    """A default as a user would write it."""
    if isinstance(default, bool):
        return "on" if default else "off"
    if default in ("", ()):
        return "unset"
    if isinstance(default, float) and default.is_integer():
        default = int(default)
    return f"{default:,}" if isinstance(default, int) else code(str(default))


def settings() -> str:
    from cachehome.settings import TABLE

    rows = [
        [
            code(row.key),
            code(row.variable),
            value(row.default),
            row.allowed,
            row.meaning + (" (**in the key**)" if row.in_key else ""),
        ]
        for row in TABLE
    ]
    return f"""# Settings

{NOTE.format(source="cachehome.settings.TABLE")}One table, three sources; the first that has a key wins: the command line
(`--publish-interval-seconds 300`; each command lists those that it uses), the environment, the section
`[compiler_cache]` of a TOML file. The file is the one that `CACHEHOME_CONFIG` names, else `cachehome.toml` in the working
directory, else `cachehome/cachehome.toml` in the user's configuration directory.

An empty value counts as unset. An unknown key, or a value that is not allowed, is an error that names the key, its source and
what is allowed; the start-up hook ignores it, and `cachehome status` shows it. Settings are not part of the key, unless the
table says so.

{table(["key", "variable", "default", "allowed", "meaning"], rows)}
The stores of this version are directories (an absolute path or `file://`): `s3://`, `gs://` and `az://` are read, and refused when they are
used. Of several, only the last one, the authority, is used.

Three more variables are no settings: `CACHEHOME_CONFIG` (the file), `CACHEHOME_DEBUG` (errors of our own that are otherwise swallowed are
printed), and `CACHEHOME_APPLIED`, which cachehome itself sets for its children: leave it alone.

```toml
[compiler_cache]
enabled = true
store = "/mnt/shared/compile-cache"
max_storage_bytes = "16GiB"
families = ["inductor", "triton"]
```
"""


def families() -> str:
    from cachehome.families import BUILTIN

    rows = [
        [
            code(family.name),
            code(family.variable),
            code(family.subdirectory),
            ", ".join(map(code, family.unless)) or "-",
            "yes" if family.default else "no",
        ]
        for family in BUILTIN
    ]
    parts = [
        [code(family.name), kind, code(pattern)] for family in BUILTIN for kind, pattern in family.entries
    ]
    slim = "; ".join(
        f"{code(family.name)}: " + ", ".join(map(code, family.ir)) for family in BUILTIN if family.ir
    )
    return f"""# Families

{NOTE.format(source="cachehome.families.BUILTIN")}A family is one compiler's cache.

{table(["family", "variable", "below the live directory", "left alone if set", "by default"], rows)}
What makes up one entry, the smallest unit that is published and restored. Patterns match paths relative to the family's
directory; a file that matches none stays where it is.

{table(["family", "kind", "pattern"], parts)}
`tree`: a directory, whole. `file`: each file. `stem`: the files that share the group. `growing`: a file that its compiler
rewrites with more in it; what two hosts made is merged where its format is known, else the last one wins.

A slim restore leaves these files out: {slim}.

## Another family

A package adds rows through the entry point group `cachehome.families`; `cachehome status` shows them. The start-up hook knows
the built-in rows only.

```toml
[project.entry-points."cachehome.families"]
mycompiler = "mypackage.caches:FAMILY"     # a cachehome.families.Family
```
"""


def commands() -> str:
    from cachehome import cli

    text = f"""# Commands

{NOTE.format(source="the parser of cachehome.cli")}`cachehome VERB`, or `python -m cachehome VERB`. Data goes to standard output,
talk to standard error. `--json` gives objects with stable names. Exit status: 0 done, 1 failed, 2 wrong usage, 3 nothing to do
or nothing found.

{table(["verb", "what it does"], [[f"[{verb}](#{verb})", cli.VERBS[verb][1]] for verb in verbs()])}"""
    for verb in verbs():
        text += f"\n## {verb}\n\n```text\n{help_text(verb)}```\n"
    return text


def verbs() -> list[str]:
    """The verbs that there are."""
    from cachehome.cli import VERBS

    return [verb for verb, (module, _) in VERBS.items() if importlib.util.find_spec(module)]


def help_text(verb: str) -> str:
    """What `cachehome VERB --help` prints, the same on every terminal and Python version."""
    from cachehome import cli

    parser = cli.parser_of(verb)
    parser.formatter_class = functools.partial(
        argparse.RawDescriptionHelpFormatter, max_help_position=36, width=110
    )
    return parser.format_help()


MADE = {"settings.md": settings, "families.md": families, "commands.md": commands}

if __name__ == "__main__":
    for name, make in MADE.items():
        (PAGES / name).write_text(make(), encoding="utf-8")
        print(f"docs/reference/{name}")
