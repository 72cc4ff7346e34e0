"""`cachehome report` on logs: what it prints, and the gate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cachehome.cli import main


def write(directory: Path, number: int, **counts: float) -> None:
    directory.mkdir(exist_ok=True)
    rows = [
        {"event": "process", "t": number, "pid": number, "run": f"run{number}"},
        *(
            {"event": "watched", "what": group}
            for group in ("fx", "aot", "bundles", "benchmarks", "tuning", "compilers", "triton")
        ),
        {"event": "counts", "add": counts},
    ]
    (directory / f"activity-{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_the_last_run_decides(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reports = tmp_path / "reports"
    write(reports, 1, fx_misses=2, aot_misses=2)
    assert main(["report", str(reports)]) == 0
    assert main(["report", str(reports), "--assert-warm"]) == 1
    assert "not warm: cold" in capsys.readouterr().err
    write(reports, 2, fx_hits=2, aot_hits=2, saved_aot_seconds=12.5)
    assert main(["report", str(reports), "--assert-warm"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[1].split()[:2] == ["run1", "cold"]
    assert out[-1].split() == ["run2", "warm", "12.5", "2/2", "2/2", "0/0", "0", "0"]


def test_required_families_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reports = tmp_path / "reports"
    write(reports, 1, fx_hits=2, triton_misses=1)
    assert main(["report", str(reports), "--assert-warm", "--require-warm", "inductor"]) == 0
    assert main(["report", str(reports), "--assert-warm", "--require-warm", "inductor,triton"]) == 1
    assert "triton was cold" in capsys.readouterr().err


def test_json_and_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    reports = tmp_path / "reports"
    write(reports, 1, fx_hits=1)
    assert main(["report", str(reports), "--json", "--html", str(tmp_path / "page.html")]) == 0
    [run] = json.loads(capsys.readouterr().out)["runs"]
    assert run["verdict"]["state"] == "warm"
    assert run["counts"]["fx_hits"] == 1
    assert "<h2>run1" in (tmp_path / "page.html").read_text()
    assert main(["report", str(reports), "--html", str(tmp_path / "no" / "page.html")]) == 1


def test_nothing_was_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "live"))
    assert main(["report"]) == 3
    assert main(["report", "--assert-warm"]) == 1
    write_to = tmp_path / "live" / ".cachehome" / "activity"
    write_to.parent.mkdir(parents=True)
    write(write_to, 1, fx_hits=1)
    assert main(["report"]) == 0
    assert "run1" in capsys.readouterr().out


@pytest.mark.parametrize(
    "details", [[1], {"directories": ["a"]}, {"relocated": [1]}, {"directories": {"inductor": "\0"}}]
)
@pytest.mark.parametrize("outcome", ["hit", "miss"])
def test_a_restore_of_other_types_is_no_reason_to_fall_over(
    outcome: str, details: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, 1, fx_hits=1)
    with open(tmp_path / "activity-1.jsonl", "a") as file:
        file.writelines(
            json.dumps(row) + "\n"
            for row in (
                {"event": "directories", "inductor": "/a", "triton": "/b"},
                {"event": "restored", "outcome": outcome, "reason": "x", "details": details},
                {"event": "changed", "text": "TORCHINDUCTOR_NOTE: caf\udce9 became 1"},
            )
        )
    page = tmp_path / "page.html"
    assert main(["report", str(tmp_path), "--html", str(page)]) == 0
    assert "caf? became 1" in capsys.readouterr().out
    assert "caf? became 1" in page.read_text()
