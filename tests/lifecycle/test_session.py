"""Session: a driver that knows its rounds."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import cachehome
from cachehome.errors import NotWarm, StoreError
from cachehome.settings import Settings


@pytest.fixture
def session(node):
    """Makes sessions in the environment of the node, and ends them."""
    made = []

    def make(**options):
        environ = {**node.environ} | options.pop("variables", {})
        made.append(cachehome.Session(environ=environ, handlers=False, **options))
        return made[-1]

    yield make
    for one in made:
        one.finish(success=False)


def leave(directory: str, number: int) -> None:
    """What a compiler leaves."""
    path = Path(directory) / "ab" / f"c{number}.best_config"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"n": number}))


def inductor(session, slot: str = "") -> str:
    return session.environ(slot)["TORCHINDUCTOR_CACHE_DIR"]


def entries(*numbers: int) -> set[str]:
    return {f"ab/c{number}.best_config" for number in numbers}


def join(session) -> None:
    thread = session._thread
    if thread:
        thread.join()


def test_it_sets_the_variables_and_restores(node, session):
    first = session()
    with first:
        assert first._environ["TORCHINDUCTOR_CACHE_DIR"] == inductor(first)
        assert first._environ["CACHEHOME_IDENTITY"]
        leave(inductor(first), 1)
    assert first.records[0].reason == "no_published_generation"
    node.wipe()
    with session() as second:
        assert second.records[0].outcome == "hit"
        assert Path(inductor(second), "ab/c1.best_config").read_text() == '{"n": 1}'


def test_rounds(node, session):
    """The first publishes, later ones once the interval is over and only if something changed; the end always."""
    with session(variables={"CACHEHOME_PUBLISH_INTERVAL_SECONDS": "600"}) as one:
        leave(inductor(one), 1)
        assert one.round_completed()
        join(one)
        assert node.published() == entries(1)
        leave(inductor(one), 2)
        assert not one.round_completed()
        one._last -= 600
        assert one.round_completed()
        join(one)
        assert node.published() == entries(1, 2)
        one._last -= 600
        assert not one.round_completed(), "nothing changed"
        leave(inductor(one), 3)
    assert node.published() == entries(1, 2, 3)
    assert [round_.kind for round_ in one.rounds] == ["first", "interval", "final"]


def test_after_a_failure_nothing_more_is_published(node, session):
    def job():
        with session() as one:
            leave(inductor(one), 1)
            one.round_completed()
            join(one)
            leave(inductor(one), 2)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        job()
    assert node.published() == entries(1)


def test_it_never_raises_into_the_job(node, session, caplog):
    for variables in (
        {"CACHEHOME_STORE": "relative"},
        {"CACHEHOME_STORE": "/no/such/store"},
        {"CACHEHOME_SLIM": "?"},
    ):
        with session(variables=variables) as one:
            one.round_completed()
            leave(inductor(one), 1)
    with session(variables={"CACHEHOME_IDENTITY": "/no/such/file"}) as one:
        one.round_completed()
        assert one.environ()
    assert "/no/such/file" in caplog.text


def test_unless_asked(node, session):
    with pytest.raises(StoreError):
        session(variables={"CACHEHOME_STORE": "/no/such/store"}, strict=True).start()
    with pytest.raises(ValueError, match="slim"):
        session(variables={"CACHEHOME_SLIM": "?"}, strict=True).start()
    with pytest.raises(NotWarm):
        session(variables={"CACHEHOME_REQUIRE_WARM": "inductor"}).start()


def test_off_and_without_a_store(node, session):
    with session(variables={"CACHEHOME": "off"}) as one:
        assert not one.round_completed()
        assert "TORCHINDUCTOR_CACHE_DIR" not in one.environ()
    with session(variables={"CACHEHOME_STORE": ""}) as one:
        assert not one.round_completed()
        assert "TORCHINDUCTOR_CACHE_DIR" in one.environ()
    assert one.records == []


def test_from_asyncio(node, session):
    async def job():
        async with session() as one:
            leave(inductor(one), 1)
            assert one.round_completed()
            await asyncio.sleep(0)
        return one

    one = asyncio.run(job())
    assert node.published() == entries(1)
    assert [round_.kind for round_ in one.rounds] == ["first", "final"]


def test_from_many_threads(node, session):
    with session() as one:
        leave(inductor(one), 1)
        began = []
        threads = [threading.Thread(target=lambda: began.append(one.round_completed())) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(began) == [False] * 7 + [True]


def test_settings_and_identity_can_be_given(node, tmp_path):
    from cachehome.identity import Identity

    settings = Settings(store=(str(node.store),), enabled=str(tmp_path / "root"))
    identity = Identity({"schema": 1, "mine": True}, {"name": "given"})
    with cachehome.Session(
        settings, identity=identity, environ={"HOME": str(node.home)}, handlers=False
    ) as one:
        assert inductor(one).startswith(str(tmp_path / "root"))
        assert f"/{identity.build8}/" in inductor(one)
        leave(inductor(one), 1)
    assert (node.store / "cachehome-v1" / identity.build_key / "profiles" / "given").is_dir()


def test_the_profile_is_what_the_driver_says_of_itself(node):
    """As `run` would have it; a name that is set is taken instead."""
    script = node.script(
        "import cachehome; print(cachehome.Session(handlers=False).start().records[0].profile)"
    )

    def profile(*arguments: str, **environ: str) -> str:
        variables = {**node.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2]), **environ}
        del variables["CACHEHOME_IDENTITY"]
        found = subprocess.run(
            [sys.executable, script, *arguments], env=variables, capture_output=True, text=True, check=True
        )  # fmt: skip
        return found.stdout.strip()

    one = profile("--layers", "8")
    assert len(one) == 64
    assert profile("--layers", "8") == one
    assert profile("--layers", "9") != one
    assert profile("--layers", "8", CACHEHOME_PROFILE="train") == "train"


def test_require_warm_without_a_store(node):
    with pytest.raises(NotWarm, match="no store is set"):
        cachehome.Session(
            Settings(require_warm=("inductor",)), environ={"HOME": str(node.home)}, handlers=False
        ).start()


# -- slots


def test_slots_are_private_and_published_together(node, session):
    slots = [f"rank{number}" for number in range(4)]
    with session(slots=slots) as one:
        directories = [inductor(one, slot) for slot in slots]
        assert len(set(directories)) == 4
        assert "TORCHINDUCTOR_CACHE_DIR" not in one._environ
        for number, directory in enumerate(directories):
            leave(directory, 0)
            leave(directory, number)
        assert one.environ("rank2")["CACHEHOME_SLOT"] == "rank2"
        with pytest.raises(KeyError):
            one.environ("rank9")
    assert node.published() == entries(0, 1, 2, 3)
    assert not any(os.path.exists(directory) for directory in directories), "private copies are removed"
    with session(slots=slots) as two:
        assert [inductor(two, slot) for slot in slots] == directories, "paths are stable"
        assert {record.outcome for record in two.records} == {"hit"}
        for directory in directories:
            assert {path.name for path in Path(directory, "ab").iterdir()} == {
                f"c{n}.best_config" for n in range(4)
            }


def test_private_copies_stay_where_they_could_not_be_published(node, session):
    one = session(slots=["a", "b"]).start()
    for slot in "ab":
        leave(inductor(one, slot), 1)
    one.finish(success=False)
    assert Path(inductor(one, "a"), "ab").is_dir()


def test_one_slot_fetches_and_the_others_clone(node, session):
    with session() as one:
        for number in range(20):
            leave(inductor(one), number)
    with session(slots=[f"rank{number}" for number in range(8)]) as many:
        reasons = [record.reason for record in many.records]
    assert sorted(reasons) == ["cloned"] * 7 + ["restored"]
    assert sum(record.fetched_bytes > 0 for record in many.records) == 1


# -- ends that nobody announced

SCRIPT = """
import cachehome, json, os, signal, sys, time
session = cachehome.Session().start()
path = os.path.join(os.environ["TORCHINDUCTOR_CACHE_DIR"], "ab")
os.makedirs(path, exist_ok=True)
open(os.path.join(path, "c1.best_config"), "w").write(json.dumps({"n": 1}))
if sys.argv[1] == "fork" and os.fork() == 0:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
print("ready", flush=True)
if sys.argv[1] == "error":
    1 / 0
if sys.argv[1] == "own":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
if sys.argv[1] in ("term", "own"):
    time.sleep(60)
if sys.argv[1] == "fork":
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.parametrize(
    ("how", "status", "published"),
    [
        ("exit", 0, True),
        ("error", 1, False),
        ("term", -signal.SIGTERM, True),
        ("own", 3, True),
        ("fork", 0, True),
    ],
)
def test_it_ends_in_order(node, how, status, published):
    process = subprocess.Popen(
        [sys.executable, node.script(SCRIPT), how],
        env=node.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdout.readline() == "ready\n"
    if how in ("term", "own"):
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
    out, err = process.stdout.read(), process.communicate(timeout=60)[1]
    assert process.returncode == status, err
    if how == "fork":
        assert out == f"{-signal.SIGTERM}\n", "a forked child dies as it would without a session"
    assert node.published() == (entries(1) if published else set())


# -- a store that hangs


@pytest.mark.parametrize("hung", [True, False], indirect=True, ids=["killable", "unkillable"])
def test_a_store_that_hangs_in_the_middle_of_a_round(node, session, hung, wait_for):
    variables = {"CACHEHOME_PUBLISH_BUDGET_SECONDS": "2", "CACHEHOME_EXIT_TIMEOUT_SECONDS": "2"}
    variables["CACHEHOME_PUBLISH_INTERVAL_SECONDS"] = "0"
    with session(variables=variables) as one:
        hung.begin()
        leave(inductor(one), 1)
        assert one.round_completed()
        assert not one.round_completed(), "the loop goes on"
        wait_for(lambda: one.rounds)
        assert one.rounds[0].records[0].reason == "time_limit"
        leave(inductor(one), 2)
        wait_for(one.round_completed)
    assert [record.reason for record in one.rounds[-1].records] == ["time_limit"]


def test_late_slots_are_cancelled_under_one_budget(node, session, hung):
    variables = {"CACHEHOME_PUBLISH_BUDGET_SECONDS": "3", "CACHEHOME_PUBLISH_TASKS_PER_NODE": "2"}
    one = session(slots=["a", "b", "c", "d", "e"], variables=variables).start()
    hung.begin()
    for slot in "abcde":
        leave(inductor(one, slot), 1)
    assert one.round_completed()
    join(one)
    assert [record.reason for record in one.rounds[0].records] == ["time_limit"] * 5
    assert (
        sum(
            "waited_for" in record.details or record.seconds.get("wait") is None
            for record in one.rounds[0].records
        )
        >= 3
    )


def test_what_it_says(node, session, caplog):
    caplog.set_level(logging.INFO, "cachehome")
    with session(slots=["a"]):
        pass
    lines = [line for line in caplog.messages if line.startswith("cachehome: a: restore: ")]
    assert len(lines) == 1, "one line a worker"
