"""A store that hangs for ten minutes in the middle of a round, with the default time limits.

Takes as long: LONG_HANG=600 pytest -n4 -rA tests/lifecycle/test_long_hang.py
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import pytest

SECONDS = float(os.environ.get("LONG_HANG", "0"))
DEFAULTS = {
    f"CACHEHOME_{name}_SECONDS": "-" for name in ("PUBLISH_INTERVAL", "STORE_TIMEOUT", "EXIT_TIMEOUT")
}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2 * SECONDS + 600),
    pytest.mark.skipif(not SECONDS, reason="opt-in: LONG_HANG=600 hangs for so many seconds"),
]
# Prints a line a second (the longest step of it), a line for each round, and what the end took.
DRIVER = """
import cachehome, json, os, signal, sys, time
ended = []
signal.signal(signal.SIGUSR1, lambda *_: ended.append(1))
with cachehome.Session() as session:
    directory = os.path.join(os.environ["TORCHINDUCTOR_CACHE_DIR"], "ab")
    os.makedirs(directory, exist_ok=True)
    for number in range(6000):
        with open(os.path.join(directory, f"c{number}.best_config"), "w") as file:
            file.write(json.dumps({"n": number, "noise": os.urandom(6000).hex()}))
    told, longest, begun = 0, 0.0, time.monotonic()
    print(json.dumps({"ready": True}), flush=True)
    while not ended:
        step = time.monotonic()
        time.sleep(0.02)
        if session.round_completed():
            print(json.dumps({"round": time.monotonic() - begun}), flush=True)
        longest = max(longest, time.monotonic() - step)
        for done in session.rounds[told:]:
            print(json.dumps({"ended": time.monotonic() - begun, "took": done.ended - done.began,
                              "reasons": [record.reason for record in done.records]}), flush=True)
            told += 1
    print(json.dumps({"longest": longest}), flush=True)
    end = time.monotonic()
print(json.dumps({"end": time.monotonic() - end, "reasons": [r.reason for r in session.rounds[-1].records]}))
"""


@pytest.mark.parametrize("when", ["after", "amid"])
@pytest.mark.parametrize("hung", [True, False], indirect=True, ids=["killable", "unkillable"])
def test_the_loop_goes_on_and_the_end_comes(node, hung, when):
    """The driver ends *after* the store answers again, or *amid* the hang."""
    process = subprocess.Popen(
        [sys.executable, node.script(DRIVER)],
        env={name: value for name, value in {**node.environ, **DEFAULTS}.items() if value != "-"},
        cwd=node.directory, stdout=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    node.processes.append(process)

    def told(key: str) -> dict:
        for line in process.stdout:
            print(line, end="")
            if key in (found := json.loads(line)):
                return found
        raise AssertionError(f"it ended before it told of {key}")

    told("ready")
    told("round")
    time.sleep(0.3)  # it packs; what it stores comes later
    hung.begin()
    began = time.monotonic()
    first = told("ended")
    assert first["reasons"][0] in ("no_answer", "time_limit")
    assert first["took"] <= 240 + 10, "the budget, and the time that it takes to give a process up"
    if when == "after":
        time.sleep(max(0.0, SECONDS - (time.monotonic() - began)))
        hung.end()
    process.send_signal(signal.SIGUSR1)
    assert told("longest")["longest"] < 5, "no step waits for the store"
    end = told("end")
    assert process.wait(60) == 0
    assert end["end"] <= 600 + 10
    if when == "after":
        assert end["reasons"][0] in ("published", "unchanged")  # unchanged: the interval was over first
        assert len(node.published()) == 6000
    else:
        assert end["reasons"][0] in ("no_answer", "time_limit")
        assert time.monotonic() - began < SECONDS or SECONDS < 300, "the end did not wait for the store"
