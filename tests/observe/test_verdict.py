"""Verdicts on logs as processes write them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cachehome.observe import history, runs
from cachehome.observe.page import page
from cachehome.observe.verdict import judge, require

GROUPS = ("fx", "aot", "bundles", "benchmarks", "tuning", "compilers", "triton")
WARM = {"fx_hits": 2, "aot_hits": 2, "autotuners_loaded": 22, "compile_seconds": 5.0}
COLD = {
    "fx_misses": 2,
    "aot_misses": 2,
    "triton_misses": 9,
    "triton_puts": 9,
    "kernels_tuned": 3,
    "benchmarks": 7,
}
HIT = {"outcome": "hit", "reason": "restored", "details": {"directories": {"inductor": "/live"}}}

Write = Callable[..., str]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    number = 0

    def log(
        counts: dict[str, float], *events: dict[str, Any], run: str = "r", role: str = "",
        unknown: tuple[str, ...] = (), groups: tuple[str, ...] = GROUPS, live: str = "/live", rank: str = "",
    ) -> str:  # fmt: skip
        nonlocal number
        number += 1
        rows = [
            {
                "event": "process",
                "t": number,
                "pid": number,
                "run": run,
                "role": role,
                "rank": rank,
                "torch": "2.13",
            },
            *({"event": "watched", "what": group} for group in groups if group not in unknown),
            *({"event": "unknown", "what": group, "why": "another torch"} for group in unknown),
            {"event": "directories", "inductor": live, "triton": f"{live}/triton"},
            {"event": "counts", "add": counts},
            *events,
        ]
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (tmp_path / f"activity-{number}.jsonl").write_text(text + '{"event": "cou')
        return str(tmp_path)

    return log


def verdict_of(directory: str, record: dict[str, Any] | None = None) -> Any:
    return judge(history.total(history.logs(directory)), record)


def kinds(found: Any) -> set[str]:
    return {cause.kind for cause in found.causes}


def test_warm(write: Write) -> None:
    found = verdict_of(write(WARM | {"saved_aot_seconds": 36.3}), HIT)
    assert (found.state, found.causes, found.saved_seconds, found.saved_partly) == ("warm", (), 36.3, False)
    assert found.line() == "warm, 36.3 s of compiling saved"
    assert found.families == {"inductor": "warm", "triton": "warm"}


def test_cold(write: Write) -> None:
    found = verdict_of(write(COLD), {"outcome": "miss", "reason": "no_published_generation", "details": {}})
    assert found.state == "cold"
    assert kinds(found) == {"restore_miss", "graphs_missed", "kernels_missed", "tuned"}
    assert found.saved_seconds is None


def test_partly_warm_says_what_and_why(write: Write) -> None:
    missed = {
        "event": "missed",
        "what": "fx",
        "key": "k",
        "name": "input 1: int64[1, 16] became int64[3, 16]",
    }
    found = verdict_of(write(WARM | {"fx_misses": 1, "aot_misses": 1}, missed), HIT)
    assert found.state == "partly warm"
    assert "1 graphs were compiled: input 1: int64[1, 16] became int64[3, 16]" in found.line()


@pytest.mark.parametrize("counts", [COLD, {}])
def test_restored_and_unused_is_inert(write: Write, counts: dict[str, float]) -> None:
    found = verdict_of(write(counts, live="/engine"), HIT)
    assert found.state == "inert"
    assert "restored to /live, but inductor used /engine" in found.line()


def test_a_first_start_from_another_profile_is_cold(write: Write) -> None:
    """Nobody has said that this profile's graphs would be there."""
    record = {"outcome": "hit", "details": {"profile_fallback": "serve", "directories": {}}}
    found = verdict_of(write({"fx_hits": 0, "fx_misses": 1}), record)
    assert found.state == "cold"
    assert "borrowed" in kinds(found)
    assert "restored from the profile serve" in found.line()


def test_an_engine_that_replaces_the_variable_is_named(write: Write) -> None:
    moved = {"event": "directories", "inductor": "/vllm/inductor", "triton": "/live/triton"}
    found = verdict_of(write(COLD, moved), HIT)
    assert "the inductor directory was replaced while it ran: /live -> /vllm/inductor" in found.line()


@pytest.mark.parametrize(
    ("counter", "kind"),
    [("kernels_tuned", "tuned"), ("cxx_kernels", "cxx"), ("triton_misses", "kernels_missed"),
     ("ptxas", "kernels_assembled"), ("fx_bypasses", "bypassed"), ("aot_misses", "aot_missed")],
)  # fmt: skip
def test_each_kind_of_work_makes_it_partly_warm(write: Write, counter: str, kind: str) -> None:
    found = verdict_of(write(WARM | {counter: 1}))
    assert (found.state, kinds(found)) == ("partly warm", {kind})


def test_what_is_not_known_is_not_zero(write: Write) -> None:
    activity = history.total(history.logs(write(WARM, unknown=("triton", "tuning"))))
    assert (activity["triton_misses"], activity["kernels_tuned"], activity["fx_hits"]) == (None, None, 2)
    assert judge(activity).state == "unknown"
    assert judge(None).state == "unknown"


def test_a_module_that_was_never_noticed_is_not_known(write: Write) -> None:
    activity = history.total(history.logs(write(WARM, groups=("fx", "aot", "triton"))))
    assert activity["kernels_tuned"] is None
    assert "built in another way" in activity.unknown["tuning"]


def test_workers_without_a_log(write: Write) -> None:
    pool = {"event": "pool", "workers": 16, "pid": 99}
    assert verdict_of(write(WARM, pool)).state == "warm"  # they got nothing to do
    assert verdict_of(write({"worker_jobs": 1}, pool)).state == "unknown"
    assert verdict_of(write({}, {"event": "worker"}, role="compile worker")).state == "warm"


def test_ranks_and_workers_are_added_up(write: Write) -> None:
    write(WARM, rank="RANK=0")
    write(WARM, rank="RANK=1")
    directory = write({"triton_misses": 2}, role="compile worker", live="/elsewhere")
    activity = history.total(history.logs(directory))
    assert (activity["fx_hits"], activity["triton_misses"], activity.processes) == (4, 2, 3)
    assert activity.ranks == ("RANK=0", "RANK=1")
    assert activity.directories["inductor"] == ["/live"]


def test_times_of_triton_kernels_come_from_older_logs(write: Write) -> None:
    write({"triton_misses": 1}, {"event": "made", "what": "triton", "key": "K", "seconds": 1.5}, run="first")
    used = [{"event": "used", "what": "triton", "key": key} for key in ("K", "L")]
    found = runs.load([write({"triton_hits": 2}, *used, run="second")])[-1].verdict
    assert (found.saved_seconds, found.saved_partly) == (1.5, True)
    assert found.line() == "warm, at least 1.5 s of compiling saved"


def test_only_required_families_are_strict(write: Write) -> None:
    found = verdict_of(write(WARM | {"triton_misses": 1}))
    assert require(found, ["inductor"]) == []
    assert require(found, ["flashinfer"]) == []
    assert [cause.text for cause in require(found, ["inductor", "triton"])] == ["triton was partly warm"]
    assert require(judge(None), ["triton"])


def test_a_repaired_relocation_is_a_note(write: Write) -> None:
    record = HIT | {"details": {"relocated": ["/old/torchinductor", "/old/torchinductor/triton"]}}
    found = verdict_of(write(WARM | {"autotuners_repaired": 22}), record)
    assert found.state == "warm"
    assert [note.text for note in found.notes] == [
        "entries were made in /old/torchinductor",
        "22 relocated autotuners were repaired",
    ]


def test_directories_that_lie_together_are_one_path(write: Write) -> None:
    record = HIT | {
        "details": {"relocated": ["/old/b/sglang", "/old/b/torchinductor", "/older/torchinductor"]}
    }
    found = verdict_of(write(WARM), record)
    assert [note.text for note in found.notes] == ["entries were made in /old/b, /older/torchinductor"]


def test_what_changed_is_said_once(write: Write) -> None:
    changed = [
        {"event": "changed", "text": text}
        for text in ("thread count: 2 became 1", "thread count: 2 became 1", "TRITON_X: unset became 1")
    ]
    harmless = verdict_of(write(WARM, *changed))
    assert [note.text for note in harmless.notes if note.kind == "changed"] == [
        "thread count: 2 became 1; nothing had to be compiled for it",
        "TRITON_X: unset became 1; nothing had to be compiled for it",
    ]
    missed = {"event": "missed", "what": "fx", "key": "k", "name": "thread count: 2 became 1"}
    found = verdict_of(write({"fx_misses": 1}, missed))
    assert [note.text for note in found.notes if note.kind == "changed"] == ["TRITON_X: unset became 1"]


def test_a_log_tells_how_its_restore_ended(write: Write) -> None:
    miss = {"event": "restored", "outcome": "miss", "reason": "x", "details": {"message": "no such build"}}
    write(COLD, miss, run="first")
    write(WARM, {"event": "restored", **HIT}, run="second")
    first, second = runs.load([write({}, miss, role="compile worker", run="second")])
    assert "nothing was restored: no such build" in first.verdict.line()
    assert second.verdict.line() == "warm"


def test_the_page_escapes_what_it_shows(write: Write) -> None:
    write(WARM)
    found = runs.load([write(COLD, {"event": "missed", "what": "triton", "name": "<script>"}, run="<b>")])
    shown = page(found, [{"worker": "w&1", "start": {"outcome": "hit", "seconds": {"fetch": 1}}}], [])
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown
    assert "w&amp;1" in shown
    assert shown.index("&lt;b&gt;") < shown.index(">r ")


def test_rubbish_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "activity-1.jsonl").write_bytes(b"\xff\x00\n[]\n7\n{}\n")
    (tmp_path / "activity-2.jsonl").mkdir()
    (tmp_path / "other.jsonl").write_text('{"event": "process"}')
    assert history.logs(str(tmp_path), "/no/such") == []
