"""The reference pages say what the code says: the committed ones are those that docs/generate.py makes."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

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


def test_table_of_settings_is_in_order() -> None:
    from cachehome.settings import BY_KEY, BY_VARIABLE, TABLE

    assert len(TABLE) == len(BY_KEY) == len(BY_VARIABLE)
    for row in TABLE:
        assert row.meaning
        assert row.allowed
        assert not row.meaning.endswith("."), row.key
