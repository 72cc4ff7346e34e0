"""Tests of the tests: a store without one step of the protocol is caught, by a schedule or by the stress program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import broken
import pytest
import test_gc
import test_store
from faults import MemoryBackend
from lab import Lab

from cachehome.errors import StoreError

# step -> the schedule that a store without it does not pass
SCHEDULES: dict[str, Callable[..., None]] = {
    "no_list_again": test_store.test_a_number_freed_by_prune_is_no_commit,
    "no_look_at_the_base": test_store.test_the_base_must_still_be_there_where_listings_lag,
    "no_nonce": lambda lab, **_: test_store.test_a_lost_reply_is_a_commit(lab, "after"),
    "no_rebase": test_store.test_a_rival_is_built_upon,
    "no_deadline": test_store.test_the_deadline_ends_it,
    "no_look_at_the_packs": test_store.test_a_pack_that_goes_before_the_commit_is_stored_again,
    "marks_stay_on_what_is_named": test_store.test_a_mark_on_what_is_named_is_taken_off,
    "condemned_packs_are_named": test_store.test_a_condemned_pack_is_not_named,
    "no_patience_with_listings": (
        test_store.test_a_generation_that_is_listed_and_not_yet_to_be_seen_is_waited_for
    ),
    "no_probing_beyond_the_listing": test_store.test_a_listing_that_does_not_show_the_winner,
    "no_second_read": test_store.test_one_read_that_is_cut_short_does_not_make_a_generation_damaged,
    "count_only_retention": test_gc.test_a_reader_under_way_is_safe,
    "descending_deletion": test_gc.test_generations_go_in_ascending_order,
    "no_grace_for_packs": test_gc.test_packs_go_two_graces_after_their_last_generation,
    "no_look_before_packs_go": test_gc.test_a_pack_that_is_named_between_plan_and_deletion_stays,
    "marks_keep_their_age": test_gc.test_an_old_mark_does_not_count,
    "no_manifest_check": test_store.test_one_read_that_is_cut_short_does_not_make_a_generation_damaged,
    "forgets_the_base": test_store.test_each_publication_adds_to_the_one_before,
}
# step -> what the stress program reports of it
STRESS = {
    "no_rebase": "lost",
    "rename_instead_of_link": "twice",
    "look_then_rename": "lost",
    "no_grace_for_packs": "hole",
    "manifest_before_packs": "lost",
}


def arguments(schedule: Callable[..., None]) -> dict[str, Any]:
    memory = MemoryBackend()
    everything = {"lab": Lab(memory), "memory": memory}
    wanted = schedule.__code__.co_varnames[: schedule.__code__.co_argcount]
    return {name: everything[name] for name in wanted}


def test_every_step_is_looked_at() -> None:
    assert set(broken.STEPS) == set(SCHEDULES) | set(STRESS)


@pytest.mark.parametrize("step", SCHEDULES)
def test_a_schedule_catches_a_store_without_a_step(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = SCHEDULES[step]
    schedule(**arguments(schedule))
    broken.STEPS[step](monkeypatch.setattr)
    with pytest.raises((AssertionError, StoreError, TimeoutError, pytest.fail.Exception)):
        schedule(**arguments(schedule))


def stress(step: str, directory: Path, seconds: float) -> dict[str, Any]:
    directory.chmod(0o700)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(Path(broken.__file__)), step, str(directory), str(seconds)],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ,
        timeout=100,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("step", STRESS)
def test_the_stress_program_catches_a_store_without_a_step(step: str, tmp_path: Path) -> None:
    for seconds in (3.0, 8.0, 16.0):  # it is not the store that may be lucky, but a machine that is busy
        report = stress(step, tmp_path, seconds)
        if report[STRESS[step]]:
            break
    assert report[STRESS[step]], report
    assert not report["sound"], report


def test_a_whole_store_passes(tmp_path: Path) -> None:
    for seconds in (8.0, 30.0):
        report = stress("none", tmp_path, seconds)
        assert report["sound"], json.dumps(report)
        if report["killed"] and report["deleted"]:
            break
    assert report["killed"], report
    assert report["deleted"], report
    assert list(tmp_path.iterdir()) == []


def test_a_second_host_takes_part(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    words = [
        sys.executable,
        "-m",
        "cachehome",
        "doctor",
        str(tmp_path),
        "--json",
        "--writers",
        "3",
        "--readers",
        "2",
    ]
    first = subprocess.Popen([*words, "--stress", "7"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    members = tmp_path / "cachehome-stress" / "members"
    until = time.monotonic() + 30
    while not (members.is_dir() and list(members.iterdir())) and time.monotonic() < until:
        time.sleep(0.05)
    second = subprocess.run(
        [*words, "--stress", "4", "--join"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=False,
        timeout=90,
    )
    out, _ = first.communicate(timeout=90)
    for report in map(json.loads, (out, second.stdout)):
        assert report["sound"], report
        assert report["stress"]["published"]
    assert (first.returncode, second.returncode) == (0, 0)
    assert list(tmp_path.iterdir()) == []
