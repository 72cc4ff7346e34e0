"""Reports: what each worker wrote, against the schemas that are shipped."""

from __future__ import annotations

import json
import os
import time

import pytest

import cachehome
from cachehome.lifecycle import reports

jsonschema = pytest.importorskip("jsonschema")


def check(directory) -> dict[str, dict[str, object]]:
    found = {}
    for name in (reports.STARTS, reports.PROGRESS):
        found[name] = json.loads((directory / name).read_text())
        schema = reports.schema(name)
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.validate(found[name], schema, format_checker=jsonschema.FormatChecker())
    return found


def leave(directory: str, number: int) -> None:
    from pathlib import Path

    path = Path(directory) / "ab" / f"c{number}.best_config"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"n": number}))


def test_run_reports(node):
    node.run("run", "--", "true")
    found = check(node.reports)
    (worker,) = found[reports.STARTS]["workers"]
    assert (worker["via"], worker["start"]["reason"]) == ("run", "no_published_generation")
    assert [row["kind"] for row in found[reports.PROGRESS]["rounds"]] == ["final"]
    assert not list(node.reports.rglob("*.tmp"))


def test_session_reports_each_slot(node):
    with cachehome.Session(environ=dict(node.environ), slots=["a", "b"], handlers=False) as session:
        for slot in "ab":
            leave(session.environ(slot)["TORCHINDUCTOR_CACHE_DIR"], ord(slot))
        session.round_completed()
    found = check(node.reports)
    assert [worker["slot"] for worker in found[reports.STARTS]["workers"]] == ["a", "b"]
    rounds = found[reports.PROGRESS]["rounds"]
    assert [row["kind"] for row in rounds] == ["first"] * 2 + ["final"] * 2
    assert {phase for row in rounds for phase in row["seconds"]} >= {
        "wait",
        "scan",
        "pack",
        "upload",
        "commit",
    }


def test_agent_reports(node):
    node.run("agent", "start")
    node.run("agent", "release", "--wait")
    found = check(node.reports)
    assert {worker["via"] for worker in found[reports.STARTS]["workers"]} == {"agent"}


def test_overlaps_are_marked():
    def part(worker: str, *spans: tuple[str, str]):
        rows = [{"began": f"2026-01-01T00:00:{b}", "ended": f"2026-01-01T00:00:{e}"} for b, e in spans]
        return {"version": 1, "worker": worker, "rounds": rows}

    merged = reports.merge([part("a", ("00", "10"), ("20", "30")), part("b", ("05", "15"), ("30", "40"))])
    rows = [(row["worker"], row["overlaps"]) for row in merged[reports.PROGRESS]["rounds"]]
    assert rows == [("a", True), ("b", True), ("a", False), ("b", False)]


def test_the_verb(node):
    assert node.run("report").returncode == 3
    node.run("run", "--", "true")
    shown = node.run("report")
    assert shown.returncode == 0
    assert "no_published_generation" in shown.stdout
    told = json.loads(node.run("report", "--json", str(node.reports)).stdout)
    jsonschema.validate(told["starts"], reports.schema(reports.STARTS))
    assert (
        node.run("report", CACHEHOME_REPORT_DIR="-").returncode == 3
    )  # nobody counted in the live directories


def test_broken_parts_are_left_out(node):
    node.run("run", "--", "true")
    (node.reports / "workers" / "broken.json").write_text('{"version"')
    (node.reports / "workers" / "newer.json").write_text('{"version": 99}')
    assert len(json.loads(node.run("report", "--json").stdout)["starts"]["workers"]) == 1


@pytest.mark.parametrize("hung", [True, False], indirect=True, ids=["killable", "unkillable"])
def test_a_report_directory_that_hangs_holds_nobody_up(node, hung):
    hung.begin()
    began = time.monotonic()
    ended = node.run(
        "run", "--", "sh", "-c", "exit 5", CACHEHOME_STORE="-", CACHEHOME_REPORT_DIR=str(node.store)
    )
    assert ended.returncode == 5
    environ = dict(node.environ) | {
        "CACHEHOME_STORE": str(node.directory),
        "CACHEHOME_REPORT_DIR": str(node.store),
    }
    with cachehome.Session(environ=environ, handlers=False):
        pass
    assert time.monotonic() - began < 60


def test_parts_that_are_no_parts_are_named(node):
    node.run("run", "--", "true")
    (good,) = (node.reports / "workers").iterdir()
    part = json.loads(good.read_text())
    wrong = {
        "bare": {key: value for key, value in part.items() if key != "rounds"},
        "list": [1],
        "row": part | {"rounds": [{"kind": "final"}]},
        "seconds": part | {"start": part["start"] | {"seconds": {"scan": "long"}}},
    }
    for name, document in wrong.items():
        (node.reports / "workers" / f"{name}.json").write_text(json.dumps(document))
    shown = node.run("report", "--html", str(node.directory / "page.html"))
    assert (shown.returncode, "no_published_generation" in shown.stdout) == (0, True)
    told = [line.rpartition(": ")[2] for line in shown.stderr.splitlines()]
    assert told == [str(node.reports / "workers" / f"{name}.json") for name in sorted(wrong)]


def test_a_file_is_no_report_directory(node):
    script = node.script("pass")
    shown = node.run("report", script)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr.startswith(f"cachehome: report: {script} is not a directory")
    assert len(shown.stderr.splitlines()) == 1


def test_a_report_directory_of_somebody_else(tmp_path, capsys):
    if os.geteuid() != 0:
        pytest.skip("only root may become somebody else")
    from cachehome import cli
    from cachehome.observe import runs  # noqa: F401 - the child may not be able to read it

    tmp_path.chmod(0o700)
    os.seteuid(65534)
    try:
        code = cli.main(["report", "--report-dir", str(tmp_path)])
    finally:
        os.seteuid(0)
    assert code == 1
    assert capsys.readouterr().err == f"cachehome: report: {tmp_path} can't be read: Permission denied\n"


def test_nothing_reported_leads_on(node):
    for words in (["report"], ["report", str(node.directory)]):
        shown = node.run(*words, CACHEHOME_REPORT_DIR="-")
        lines = shown.stderr.splitlines()
        assert (shown.returncode, shown.stdout, len(lines)) == (3, "", 2)
        assert "CACHEHOME_DIAGNOSTICS=1" in lines[1]
        assert "CACHEHOME_REPORT_DIR" in lines[1]
