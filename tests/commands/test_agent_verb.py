"""`agent` where no agent is: each action says so in a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachehome import cli


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["renew", "--name", "nobody"], "'nobody'"),
        (["release", "--name", "nobody"], "'nobody'"),
        (["status"], "no agent has worked here"),
        (["stop"], "no agent works here"),
    ],
)
def test_nothing_to_do_is_said(
    words: list[str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CACHEHOME", str(tmp_path))
    assert cli.main(["agent", *words]) == 3
    out, err = capsys.readouterr()
    assert (out, len(err.splitlines()), told in err) == ("", 1, True)
