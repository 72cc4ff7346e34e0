"""The reference pages say what the code says: the committed ones are those that docs/generate.py makes."""

from __future__ import annotations

import ast
import importlib.util
import re
from pathlib import Path

import pytest

from cachehome import settings

ROOT = Path(__file__).resolve().parents[1]
_spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
assert _spec is not None
assert _spec.loader is not None
generate = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(generate)


@pytest.mark.parametrize("page", sorted(generate.MADE))
def test_committed_page_is_what_the_code_makes(page: str) -> None:
    committed = (ROOT / "docs" / "reference" / page).read_text(encoding="utf-8")
    assert committed == generate.MADE[page](), "run: make docs"


def test_every_setting_and_verb_has_a_line() -> None:
    from cachehome.settings import TABLE

    settings = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    commands = (ROOT / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")
    assert [row.key for row in TABLE if f"| `{row.key}` | `{row.variable}` |" not in settings] == []
    assert [verb for verb in generate.verbs() if f"\n## {verb}\n" not in commands] == []


def test_every_setting_has_an_effect() -> None:
    code = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "cachehome").rglob("*.py"))
    used = set(re.findall(r"\.([a-z_]+)\b", code))
    assert [row.key for row in settings.TABLE if row.key not in used] == []


def test_table_of_settings_is_in_order() -> None:
    from cachehome.settings import BY_KEY, BY_VARIABLE, TABLE

    assert len(TABLE) == len(BY_KEY) == len(BY_VARIABLE)
    for row in TABLE:
        assert row.meaning
        assert row.allowed
        assert not row.meaning.endswith("."), row.key


def test_every_reason_in_the_code_is_explained() -> None:
    text = (ROOT / "docs" / "reference" / "outcomes.md").read_text(encoding="utf-8")
    assert sorted(reason for reason in _reasons() if f"`{reason}`" not in text) == []


def _reasons() -> set[str]:
    """The words that reach a record's `reason`: the arguments of the calls that make records and errors."""
    place = {"record": 1, "Record": 2, "_done": 1, "_reject": 2, "stop": 0}
    found: set[ast.expr] = set()
    for path in (ROOT / "cachehome").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            found |= {keyword.value for keyword in node.keywords if keyword.arg == "reason"}
            called = getattr(node.func, "attr", None) or getattr(node.func, "id", "")
            number = place.get(called, 99)
            found |= set(node.args[number : number + 1])
    constants = (part for value in found for part in ast.walk(value) if isinstance(part, ast.Constant))
    words = {part.value for part in constants if isinstance(part.value, str)}
    return {word for word in words if re.fullmatch(r"[a-z]+(_[a-z]+)*", word)} - {"reason", "damaged"}
