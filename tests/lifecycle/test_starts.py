"""Failed starts: the decisions without processes, and crash loops of real commands with a store."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachehome.lifecycle import starts
from cachehome.lifecycle.starts import Start, State, failed, told, verdict, went_well

# -- decisions ---------------------------------------------------------------------------------------------


def play(
    *events: str, limit: int = 2, introduced: tuple[int, ...] = (3, 2), state: State | None = None
) -> State:
    """The state after starts that follow each other, from line "x", generation 3."""
    state, now = state or State(), state.failed + 10.0 if state else 10.0
    for event in events:
        left = tuple(n for n in introduced if n not in state.without and n > state.below)
        start = Start(now, "x", 3, left, command="c")
        now += 5
        state = went_well(state, start) if event == "good" else failed(state, start, now, limit)
        now += 5
    return state


@pytest.mark.parametrize(
    ("events", "without", "below"),
    [
        ("", (), 0),
        ("bad", (), 0),
        ("bad bad", (3,), 0),
        ("bad good bad", (), 0),
        ("bad bad bad", (3,), 0),
        ("bad bad bad bad", (2, 3), 0),
        ("bad bad bad bad bad bad", (2, 3), 3),
        ("bad bad bad bad bad bad bad bad", (), 0),
        ("bad bad good", (3,), 0),
        ("bad bad good bad", (3,), 0),
        ("bad bad good bad bad", (2, 3), 0),
        ("bad bad bad bad good", (2, 3), 0),
        ("bad bad bad bad bad bad good", (), 3),
    ],
)
def test_what_is_left_out_after(events, without, below):
    state = play(*events.split())
    assert (state.without, state.below) == (without, below)
    assert bool(state.arguments()) is bool(without or below)


def test_one_generation_is_left_out_and_then_everything():
    state = play("bad", "bad", introduced=(1,))
    assert (state.without, state.cold) == ((1,), False)
    assert play("bad", "bad", introduced=(1,), state=state).cold


def test_only_what_the_first_failed_start_got_is_a_suspect():
    state = failed(State(), Start(1, "x", 3, (3, 2)), 2, 2)
    assert failed(state, Start(3, "x", 4, (4, 3)), 4, 2).without == (3,)


def test_starts_that_overlap_are_one_attempt():
    state = failed(State(), Start(10, "x", 3, (3, 2)), 20, 2)
    for began in (10, 12, 19):
        assert failed(state, Start(began, "x", 3, (3, 2)), 21, 2) == state
        assert went_well(state, Start(began, "x", 3, (3, 2))) == state
    assert failed(state, Start(20, "x", 3, (3, 2)), 21, 2).without == (3,)


def test_without_anything_to_blame_nothing_counts():
    assert failed(State(), Start(1, restored=False), 2, 1) == State()


def test_numbers_belong_to_a_line():
    state = play("bad", "bad")
    other = failed(state, Start(100, "y", 1, (1,)), 101, 2)
    assert (other.line, other.failures, other.without) == ("y", 1, ())
    assert went_well(state, Start(100, "y", 1, (1,))).without == ()


def test_a_start_that_could_not_leave_it_out_proves_nothing():
    state = play("bad", "bad", "bad")
    after = went_well(state, Start(100, obeyed=False, command="c"))
    assert (after.failures, after.steps, after.proved) == (0, 1, ())
    assert starts.to_deny(after, Start(100, obeyed=False, command="c")) == ()


def test_denied_is_only_what_the_same_command_failed_with():
    state = play("bad", "bad", "good")
    start = Start(100, "x", 3, (2,), command="c")
    assert starts.to_deny(state, start) == (3,)
    assert starts.to_deny(state, start._replace(command="another")) == ()
    assert starts.to_deny(state._replace(denied=(3,)), start) == ()
    assert starts.to_deny(play("bad", "bad"), start) == ()
    cold = play(*["bad"] * 6, "good")
    assert cold.below == 3
    assert starts.to_deny(cold, start) == ()


@given(st.lists(st.sampled_from(["good", "bad"]), max_size=40), st.integers(1, 3))
def test_it_never_gets_stuck(events, limit):
    """Whatever was before: in so many failures in a row it tries everything, a cold start among it."""
    state = play(*events, limit=limit)
    seen = []
    for _ in range(8 * limit):
        before = state
        state = play("bad", limit=limit, state=state)
        seen.append(state.cold)
        told(before, state, limit)
    assert any(seen)
    assert not all(seen)


@pytest.mark.parametrize(
    ("code", "how"),
    [
        (0, "good"),
        (1, "failed"),
        (3, "failed"),
        (255, "failed"),
        (2, "neither"),
        (64, "neither"),
        (126, "neither"),
        (127, "neither"),
        *[(128 + n, "failed") for n in starts.CRASHES],
        *[
            (128 + n, "neither")
            for n in (
                signal.SIGTERM,
                signal.SIGINT,
                signal.SIGHUP,
                signal.SIGKILL,
                signal.SIGQUIT,
                signal.SIGPIPE,
            )
        ],
    ],
)
def test_what_an_end_shows(code, how):
    assert verdict(code) == how
    assert verdict(code, told_to_end=True) == ("good" if code == 0 else "neither")
    assert verdict(code, out_of_memory=True) == ("good" if code == 0 else "neither")


# -- what is remembered ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "{}", '{"failures": "two"}', b"\xff\xfe", json.dumps({"line": 1}), "[" * 10_000],
)
def test_what_can_not_be_read_is_nothing(tmp_path, text):
    path = tmp_path / "state.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert starts.read(str(path)) == State()
    assert starts.read(str(tmp_path)) == State()


def test_a_value_of_the_wrong_type_is_nothing(tmp_path):
    path = tmp_path / "state.json"
    whole = play("bad", "bad")._asdict()
    path.write_text(json.dumps(whole))
    assert starts.read(str(path)) == play("bad", "bad")
    for name in whole:
        for value in (None, True, {}, "7", [["x"]]):
            if isinstance(value, str) and isinstance(whole[name], str):
                continue
            path.write_text(json.dumps(whole | {name: value}))
            assert starts.read(str(path)) == State()


def test_how_often_memory_ran_out_is_read_or_unknown():
    kills = starts.oom_kills()
    assert kills is None or kills >= 0


# -- real commands -----------------------------------------------------------------------------------------

JOB = """
import os, signal, sys
from pathlib import Path
here = Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
found = sorted(p.stem for p in here.glob("ab/*.best_config"))
print(*found)
sys.stdout.flush()
for name in {poison!r}:
    path = here / f"ab/{{name}}.best_config"
    if path.exists() and "poison" in path.read_text():
        {end}
(here / "ab").mkdir(parents=True, exist_ok=True)
for name in {names!r}:
    (here / f"ab/{{name}}.best_config").write_text('{{"rebuilt": 1}}')
"""
SEGV = "os.kill(os.getpid(), signal.SIGSEGV)"


def entry(name: str, text: str) -> list[str]:
    directory = '"$TORCHINDUCTOR_CACHE_DIR/ab"'
    return ["sh", "-c", f'mkdir -p {directory}; echo \'{{"is": "{text}"}}\' >{directory}/{name}.best_config']


@pytest.fixture
def poisoned(node):
    """A store whose generation 1 brought `good`, and generation 2 `bad`, on a host that has seen neither."""
    for name, text in (("good", "fine"), ("bad", "poison")):
        ended = node.run("run", "--", *entry(name, text))
        assert "publish: hit" in ended.stderr, ended.stderr
        node.wipe()
    assert node.published() == {"ab/good.best_config", "ab/bad.best_config"}
    return node


def job(node, *, poison=("bad",), end=SEGV, names=()):
    script = node.script(JOB.format(poison=poison, end=end, names=names))
    return [sys.executable, script]


def state_of(node) -> State:
    found = list(node.home.glob(".cache/*/.node/starts/*.json"))
    return starts.read(str(found[0])) if found else State()


def aside(node) -> list[str]:
    return sorted(path.name for path in node.home.rglob(".cachehome/aside-*/*"))


def test_a_crash_loop_ends_and_the_rest_stays_warm(poisoned):
    node, command = poisoned, job(poisoned)
    for _ in range(2):
        ended = node.run("run", "--", *command)
        assert (ended.returncode, ended.stdout) == (-signal.SIGSEGV, "bad good\n")
    assert "failed starts: 2; the next one does without what generation 2 brought" in ended.stderr
    third = node.run("run", "--", *command)
    assert (third.returncode, third.stdout) == (0, "good\n")
    assert "without what generation 2 brought" in third.stderr
    assert f"rm {node.home}" in third.stderr
    assert "went well: this host goes on so" in third.stderr
    assert aside(node) == ["bad.best_config"]
    fourth = node.run("run", "--", *command)
    assert (fourth.returncode, fourth.stdout) == (0, "good\n")
    # nobody else was told, and nothing was published
    assert not list(node.store.glob("cachehome-v1/*/denied/*"))
    shown = json.loads(node.run("show", "--json").stdout)
    assert shown["number"] == 2


def test_what_it_did_without_is_in_the_report(poisoned):
    command = job(poisoned)
    for _ in range(3):
        poisoned.run("run", "--", *command)
    workers = json.loads((poisoned.reports / "compiler-cache.json").read_text())["workers"]
    messages = [worker["start"]["message"] for worker in workers]
    assert "without what generation 2 brought" in messages


def test_an_error_status_counts_like_a_crash(poisoned):
    command = job(poisoned, end="sys.exit(1)")
    assert [poisoned.run("run", "--", *command).returncode for _ in range(3)] == [1, 1, 0]


@pytest.mark.parametrize(
    "end",
    [
        "sys.exit(2)",
        *[f"os.kill(os.getpid(), signal.{n})" for n in ("SIGTERM", "SIGINT", "SIGHUP", "SIGKILL")],
    ],
)
def test_what_does_not_count(poisoned, end):
    command = job(poisoned, end=f"signal.signal(signal.SIGINT, signal.SIG_DFL); {end}")
    for _ in range(3):
        ended = poisoned.run("run", "--", *command)
        assert ended.returncode not in (0, 1)
        assert ended.stdout == "bad good\n"
    assert state_of(poisoned) == State()


def test_a_typo_does_not_count(poisoned):
    for command in (["pyhton", "x.py"], ["/tmp"], [sys.executable, "no-such-script.py"]):
        for _ in range(3):
            assert poisoned.run("run", "--", *command).returncode in (2, 126, 127)
    assert state_of(poisoned) == State()


def test_being_told_to_end_does_not_count(poisoned, wait_for):
    marker = poisoned.directory / "there"
    end = f"open({str(marker)!r}, 'w'); signal.signal(signal.SIGTERM, lambda *_: sys.exit(1)); signal.pause()"
    command = job(poisoned, end=end)
    process = poisoned.start("run", "--", *command, CACHEHOME_MAX_FAILED_STARTS="1")
    wait_for(marker.exists)
    wait_for(lambda: "SigCgt" in Path(f"/proc/{process.pid}/status").read_text())
    process.terminate()
    process.communicate(timeout=60)
    assert process.returncode in (1, -signal.SIGTERM)
    assert state_of(poisoned) == State()


def test_a_good_start_resets_the_count(poisoned):
    bad, good = job(poisoned), ["true"]
    for command in (bad, good, bad, good, bad):
        poisoned.run("run", "--", *command)
    assert (state_of(poisoned).failures, state_of(poisoned).without) == (1, ())


@pytest.mark.parametrize("how", ["mark", "seconds"])
def test_what_fails_later_has_started_well(poisoned, how):
    mark = poisoned.directory / "mark"
    mark.write_text("of an earlier start")
    end = f"import time; open({str(mark)!r}, 'w').close(); time.sleep(1); sys.exit(1)"
    environ = {"CACHEHOME_START_MARK": str(mark)} if how == "mark" else {"CACHEHOME_START_SECONDS": "0.2"}
    for _ in range(3):
        ended = poisoned.run("run", "--", *job(poisoned, end=end), **environ)
        assert (ended.returncode, ended.stdout) == (1, "bad good\n")
    assert state_of(poisoned) == State()


def test_an_older_mark_says_nothing(poisoned):
    mark = poisoned.directory / "mark"
    mark.write_text("of an earlier start")
    poisoned.run("run", "--", *job(poisoned), CACHEHOME_START_MARK=str(mark))
    assert state_of(poisoned).failures == 1


def test_all_poisoned_is_a_cold_start_that_is_not_undone(poisoned):
    node = poisoned
    command = job(node, poison=("good", "bad", "own"), names=("good", "bad", "own"))
    environ = {"CACHEHOME_MAX_FAILED_STARTS": "1"}
    first = node.run("run", "--", *command, **environ)
    # a copy that no store has, and that breaks the job as well
    directory = next(
        path.parent for path in node.home.rglob("good.best_config") if ".cachehome" not in str(path)
    )
    (directory / "own.best_config").write_text('{"is": "poison"}')
    second, third, fourth = (node.run("run", "--", *command, **environ) for _ in range(3))
    assert [first.stdout, second.stdout, third.stdout, fourth.stdout] == [
        "bad good\n",
        "good own\n",
        "own\n",
        "\n",
    ]
    assert [e.returncode for e in (first, second, third, fourth)] == [-signal.SIGSEGV] * 3 + [0]
    assert "the next one is cold" in third.stderr
    assert "a cold start, after failed ones" in fourth.stderr
    assert aside(node) == ["bad.best_config", "good.best_config", "own.best_config"]
    # what the cold start compiled is used, though the store's copies are not
    fifth = node.run("run", "--", *command, **environ)
    assert (fifth.returncode, fifth.stdout) == (0, "bad good own\n")
    assert "rebuilt" in (directory / "bad.best_config").read_text()


def test_a_job_that_fails_cold_too_gets_its_cache_back(poisoned):
    command = job(poisoned, poison=(), end="pass")
    Path(command[1]).write_text(Path(command[1]).read_text() + "\nsys.exit(1)\n")
    seen = [poisoned.run("run", "--", *command, CACHEHOME_MAX_FAILED_STARTS="1") for _ in range(5)]
    assert [ended.stdout for ended in seen] == ["bad good\n", "good\n", "\n", "\n", "bad good\n"]
    assert "cold starts fail, too" in seen[3].stderr


def test_0_switches_it_off(poisoned):
    for _ in range(4):
        ended = poisoned.run("run", "--max-failed-starts", "0", "--", *job(poisoned))
        assert ended.stdout == "bad good\n"
    assert not list(poisoned.home.glob(".cache/*/.node/starts/*"))


def test_an_exported_directory_is_cleaned_as_well(poisoned):
    own = poisoned.directory / "own"
    for _ in range(2):
        poisoned.run("run", "--", *job(poisoned), TORCHINDUCTOR_CACHE_DIR=str(own))
    assert (own / "ab/bad.best_config").exists()
    ended = poisoned.run("run", "--", *job(poisoned), TORCHINDUCTOR_CACHE_DIR=str(own))
    assert (ended.returncode, ended.stdout) == (0, "good\n")


def test_a_store_that_is_away_still_ends_in_a_cold_start(poisoned):
    command, environ = job(poisoned), {"CACHEHOME_MAX_FAILED_STARTS": "1"}
    assert poisoned.run("run", "--", *command, **environ).returncode == -signal.SIGSEGV
    poisoned.store.rename(poisoned.directory / "away")
    codes = [poisoned.run("run", "--", *command, **environ).returncode for _ in range(4)]
    assert codes[-1] == 0
    assert codes.count(0) <= 2


def test_denied_for_everybody_only_when_told_to_and_after_a_good_start(poisoned):
    node, command = poisoned, job(poisoned, names=("bad",))
    environ = {"CACHEHOME_DENY_FAILED": "on"}
    denied = lambda: [path.name for path in node.store.glob("cachehome-v1/*/denied/*")]  # noqa: E731
    for _ in range(2):
        node.run("run", "--", *command, **environ)
        assert denied() == []
    third = node.run("run", "--", *command, **environ)
    assert (third.returncode, third.stdout) == (0, "good\n")
    assert "deny: hit, denied" in third.stderr
    assert denied() == ["quarantine-test-2"]
    assert state_of(node).denied == (2,)
    # its own rebuild healed the line: another host starts well at once
    node.wipe()
    other = node.run("run", "--", *command)
    assert (other.returncode, other.stdout) == (0, "bad good\n")


def test_another_command_denies_nothing(poisoned):
    for command in (job(poisoned), job(poisoned), ["true"]):
        poisoned.run("run", "--deny-failed", "on", "--", *command)
    assert state_of(poisoned).proved == (2,)
    assert not list(poisoned.store.glob("cachehome-v1/*/denied/*"))


def test_a_reader_denies_nothing(poisoned):
    for _ in range(3):
        ended = poisoned.run("run", "--deny-failed", "on", "--publish", "off", "--", *job(poisoned))
    assert ended.returncode == 0
    assert not list(poisoned.store.glob("cachehome-v1/*/denied/*"))


def test_what_was_left_out_and_rebuilt_alike_is_not_published_as_new(poisoned):
    """The job makes the very bytes again: they are the store's already."""
    command = job(poisoned)
    for _ in range(2):
        poisoned.run("run", "--", *command)
    again = ["sh", "-c", entry("bad", "poison")[2]]
    assert poisoned.run("run", "--", *again).returncode == 0
    assert json.loads(poisoned.run("show", "--json").stdout)["number"] == 2


def test_several_at_once_are_one_attempt_and_leave_a_whole_record(poisoned):
    command = job(poisoned, end=f"import time; time.sleep(3); {SEGV}")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: poisoned.run("run", "--publish", "off", "--", *command), range(4)))
    assert state_of(poisoned).failures == 1
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda _: poisoned.run("run", "--publish", "off", "--", *command), range(2)))
    assert state_of(poisoned).without == (2,)


def test_slots_are_all_cleaned(poisoned):
    command = job(poisoned)
    slots = [{"CACHEHOME_SLOT": name} for name in ("a", "b")]
    for _ in range(2):
        for slot in slots:
            poisoned.run("run", "--", *command, **slot)
    for slot in slots:
        assert poisoned.run("run", "--", *command, **slot).stdout == "good\n"


def test_a_broken_local_copy_does_not_loop(poisoned):
    """What a killed run left empty is replaced by the store's copy at the next start."""
    command = job(poisoned, poison=("never",))
    assert poisoned.run("run", "--", *command).stdout == "bad good\n"
    for path in poisoned.home.rglob("ab/good.best_config"):
        os.truncate(path, 0)
    ended = poisoned.run("run", "--", *command)
    assert (ended.returncode, ended.stdout) == (0, "bad good\n")
    assert [path.stat().st_size > 0 for path in poisoned.home.rglob("ab/good.best_config")] == [True]


def test_a_home_that_can_not_be_written_costs_nothing_but_this(poisoned):
    command = job(poisoned, poison=())
    poisoned.run("run", "--", *command)
    node_directory = next(poisoned.home.glob(".cache/*/.node"))
    (node_directory / "starts").write_text("not a directory")
    failing = ["sh", "-c", "exit 1"]
    for _ in range(3):
        ended = poisoned.run("run", "--", *failing)
        assert ended.returncode == 1
        assert "Traceback" not in ended.stderr


def test_for_people_there_is_an_option_of_restore(poisoned):
    """`cachehome restore --leave-out 2` does once what `run` does by itself."""
    own = {"TORCHINDUCTOR_CACHE_DIR": str(poisoned.directory / "own")}
    poisoned.run("restore", **own)
    assert (poisoned.directory / "own/ab/bad.best_config").exists()
    ended = poisoned.run("restore", "--leave-out", "2", "--json", **own)
    record = json.loads(ended.stdout)
    assert (ended.returncode, record["details"]["skipped"]["left_out"]) == (0, 1)
    assert record["details"]["without"]["generations"] == [2]
    assert not (poisoned.directory / "own/ab/bad.best_config").exists()
    assert poisoned.run("restore", "--leave-out", "..2", **own).returncode == 3
    assert poisoned.run("restore", "--leave-out", "two", **own).returncode == 2


def test_help_names_the_settings():
    shown = subprocess.run(
        [sys.executable, "-m", "cachehome", "run", "--help"], capture_output=True, text=True, check=True
    )
    for flag in ("--max-failed-starts", "--start-seconds", "--start-mark", "--deny-failed"):
        assert flag in shown.stdout


# -- drivers that nobody stands beside -----------------------------------------------------------------------

DRIVER = """
import cachehome, os, signal, sys, time
session = cachehome.Session().start()
{before}
exec(open({job!r}).read())
session.round_completed()
session.finish()
"""


def drive(node, command: list[str], before: str = "") -> subprocess.CompletedProcess[str]:
    script = node.script(DRIVER.format(job=command[1], before=before), "driver.py")
    return subprocess.run(
        [sys.executable, script], env=node.environ, cwd=node.directory,
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


def opened(node) -> list[str]:
    return [str(path) for path in node.home.glob(".cache/*/.node/starts/*.open/*")]


@pytest.mark.parametrize(
    ("end", "status"),
    [(SEGV, -signal.SIGSEGV), ("raise ZeroDivisionError", 1), ("os.abort()", -signal.SIGABRT)],
)
def test_a_session_whose_driver_dies_before_its_first_round(poisoned, end, status):
    node, command = poisoned, job(poisoned, end=end)
    for _ in range(2):
        ended = drive(node, command)
        assert (ended.returncode, ended.stdout) == (status, "bad good\n"), ended.stderr
    third = drive(node, command)
    assert (third.returncode, third.stdout) == (0, "good\n"), third.stderr
    assert "went well: this host goes on so" in third.stderr
    assert drive(node, command).stdout == "good\n"
    assert opened(node) == []


@pytest.mark.parametrize(
    ("end", "before"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", ""),
        ("os.kill(os.getpid(), signal.SIGTERM)", ""),
        (SEGV, "session.round_completed()"),  # it had started well
    ],
    ids=["killed", "told to end", "later"],
)
def test_ends_of_a_session_that_show_nothing(poisoned, end, before):
    command = job(poisoned, end=end)
    for _ in range(3):
        assert drive(poisoned, command, before).stdout == "bad good\n"
    assert state_of(poisoned) == State()


def test_who_ends_a_claim_says_how_the_driver_ended(poisoned):
    node, command = poisoned, job(poisoned)

    def start() -> str:
        told = json.loads(node.run("agent", "start", "--json").stdout)
        ended = subprocess.run(
            command, env=node.environ | told["variables"], capture_output=True, text=True, timeout=60, check=False
        )  # fmt: skip
        code = ended.returncode if ended.returncode >= 0 else 128 - ended.returncode
        released = node.run("agent", "release", "--status", str(code), "--wait")
        assert released.returncode == 0, released.stderr
        return ended.stdout + released.stderr

    assert start().startswith("bad good\n")
    assert "failed starts: 2; the next one does without what generation 2 brought" in start()
    said = start()
    assert said.startswith("good\n")
    assert "went well: this host goes on so" in said
