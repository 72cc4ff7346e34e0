"""Numbers on the command line: what is refused, and in whose words."""

from __future__ import annotations

import pytest

from cachehome import cli


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["doctor", "--stress", "-1"], "--stress: '-1' is not allowed: seconds, 0 or more"),
        (["doctor", "--stress", "nan"], "--stress: 'nan' is not allowed"),
        (["doctor", "--stress", "1", "--writers", "0"], "--writers: '0' is not allowed: a whole number, 1"),
        (["doctor", "--stress", "1", "--grace", "x"], "--grace: 'x' is not allowed"),
        (["agree", "there", "--nodes", "x"], "--nodes: 'x' is not allowed: a whole number, 1 or more"),
        (["agree", "there", "--nodes", "0"], "--nodes: '0' is not allowed: a whole number, 1 or more"),
        (["agree", "there", "--nodes", "1", "--timeout", "-1"], "--timeout: '-1' is not allowed: seconds"),
    ],
)
def test_wrong_usage(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err.splitlines()[-1]
