"""The options of `run`. (What it does: tests/lifecycle/test_run.py.)"""

from __future__ import annotations

import pytest

from cachehome import cli


def test_stdout_is_the_commands_own(capsys: pytest.CaptureFixture[str]) -> None:
    """So there is no --json, which every verb that reports has."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["run", "--json", "--", "true"])
    assert ended.value.code == 2
    assert "  --json " not in cli.parser_of("run").format_help()
