"""`cachehome run`: the command behaves as if nobody stood in front of it, and finds its caches warm."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

RUN = [sys.executable, "-m", "cachehome", "run"]
WRITE = 'd="${TORCHINDUCTOR_CACHE_DIR:?}/ab"; mkdir -p "$d"; echo "{\\"n\\": %s}" >"$d/c%s.best_config"; '


def write(number: int) -> str:
    """Shell that leaves a complete entry in Inductor's directory."""
    return WRITE % (number, number)


COUNT = """
import os, signal, sys, time
seen = []
def note(number, frame):
    seen.append(signal.Signals(number).name)
for name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGINT", "SIGQUIT", "SIGRTMIN"):
    signal.signal(getattr(signal, name), note)
print("ready", os.getpid(), flush=True)
while True:
    time.sleep(0.05)
    if seen:
        time.sleep(0.4)
        got = list(seen)
        del seen[: len(got)]
        print(*got, flush=True)
        if "SIGTERM" in got:
            sys.exit(9)
"""


def test_the_second_start_finds_what_the_first_one_left(node):
    first = node.run("run", "--", "sh", "-c", write(1) + "exit 3")
    assert (first.returncode, first.stdout) == (3, "")
    assert "restore: miss, no_published_generation" in first.stderr
    assert "publish: hit" in first.stderr
    node.wipe()
    second = node.run("run", "--", "sh", "-c", 'cat "$TORCHINDUCTOR_CACHE_DIR/ab/c1.best_config"')
    assert (second.returncode, second.stdout) == (0, '{"n": 1}\n')
    assert "restore: hit" in second.stderr


def test_it_says_one_line_before_and_one_after_or_none(node):
    assert len(node.run("run", "--", "true").stderr.splitlines()) == 2
    assert node.run("run", "--quiet", "--", "true").stderr == ""


def test_directories_bear_the_build(node):
    from cachehome.identity import Identity

    build8 = Identity.load(node.environ["CACHEHOME_IDENTITY"]).build8
    told = node.run(
        "run", "--", "sh", "-c", 'echo "$TORCHINDUCTOR_CACHE_DIR"; echo "$TRITON_CACHE_DIR"'
    ).stdout.split()
    assert f"/{build8}/" in told[0]
    assert told[1] == told[0] + "/triton"


def test_children_are_handed_the_identity(node):
    told = node.run("run", "--", "sh", "-c", 'cat "$CACHEHOME_IDENTITY"').stdout
    assert told == Path(node.environ["CACHEHOME_IDENTITY"]).read_text()


@pytest.mark.parametrize("how", ["unset", "off"])
def test_without_a_store_the_command_just_runs(node, how):
    environ = {"CACHEHOME_STORE": "-"} if how == "unset" else {"CACHEHOME": "off"}
    ended = node.run(
        "run",
        "--",
        "sh",
        "-c",
        "echo out; echo err >&2; echo ${TORCHINDUCTOR_CACHE_DIR:+set}; exit 5",
        **environ,
    )
    assert ended.returncode == 5
    assert ended.stdout == "out\n" + ("set\n" if how == "unset" else "\n")
    lines = ended.stderr.splitlines()
    assert lines.pop() == "err"
    assert ["no store is set" in line for line in lines] == ([True] if how == "unset" else [])


@pytest.mark.parametrize(
    ("store", "said"),
    [
        ("relative/store", "store"),
        ("/nowhere/at/all", "unavailable"),
        ("/etc/passwd", "unavailable"),
    ],
)
def test_a_bad_store_costs_one_line(node, store, said):
    ended = node.run("run", "--", "sh", "-c", "echo ran", CACHEHOME_STORE=store)
    assert (ended.returncode, ended.stdout) == (0, "ran\n")
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("variable", ["CACHEHOME_RESTORE", "CACHEHOME_PUBLISH"])
def test_each_direction_can_be_switched_off(node, variable):
    node.run("run", "--", "sh", "-c", write(1))
    node.wipe()
    ended = node.run(
        "run", "--", "sh", "-c", write(2) + 'ls "$TORCHINDUCTOR_CACHE_DIR/ab"', **{variable: "off"}
    )
    restores = variable == "CACHEHOME_PUBLISH"
    assert ("c1.best_config" in ended.stdout) is restores
    assert ("ab/c2.best_config" in node.published()) is not restores


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["no-such-command-anywhere"], 127),
        (["/no/such/file"], 127),
        (["/etc/passwd/x"], 127),
        (["/tmp"], 126),
        (["/etc/passwd"], 126),
        (["sh", "-c", "exit 42"], 42),
        (["sh", "-c", "kill -TERM $$"], -signal.SIGTERM),
        (["sh", "-c", "kill -KILL $$"], -signal.SIGKILL),
        (["sh", "-c", "kill -SEGV $$"], -signal.SIGSEGV),
    ],
)
def test_it_ends_as_the_command_ends(node, command, status):
    assert node.run("run", "--", *command).returncode == status


def test_no_command_is_wrong_usage(node):
    assert node.run("run").returncode == 2
    assert node.run("run", "--").returncode == 2


def test_a_script_without_an_interpreter_line_goes_to_the_shell(node):
    script = node.directory / "plain"
    script.write_text("echo $1; exit 4\n")
    script.chmod(0o755)
    ended = node.run("run", "--", str(script), "argument")
    assert (ended.returncode, ended.stdout) == (4, "argument\n")


def test_streams_and_files_are_the_commands_own(node):
    read, written = os.pipe()
    environ = node.environ
    process = subprocess.Popen(
        [*RUN, "--", "sh", "-c", f"cat; echo extra >/dev/fd/{written}"],
        env=environ, cwd=node.directory, pass_fds=[written],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(written)
    assert process.communicate(b"\0binary\xff" * 100_000, timeout=60)[0] == b"\0binary\xff" * 100_000
    assert os.read(read, 100) == b"extra\n"
    os.close(read)


def test_a_reader_sees_the_end_of_the_output_before_the_last_publication(node, hung):
    """What `run ... | head` waits for is the command, not us."""
    hung.begin()
    process = node.start(
        "run", "--", "echo", "done", CACHEHOME_RESTORE="off", CACHEHOME_EXIT_TIMEOUT_SECONDS="600"
    )
    assert process.stdout.read() == "done\n"
    assert process.poll() is None
    # Its streams are closed a moment before a process has ended: a signal in between is the command's.
    until = time.monotonic() + 60
    while not _publishing(process.pid) and time.monotonic() < until:
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)  # cuts the last publication short; the end stays the command's
    assert process.wait(60) == 0


def _publishing(pid: int) -> bool:
    """Whether a publication runs."""
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        children = file.read().split()
    for child in children:
        with contextlib.suppress(OSError), open(f"/proc/{child}/cmdline") as file:
            if "cachehome.lifecycle.child" in file.read():
                return True
    return False


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGINT, signal.SIGQUIT, signal.SIGRTMIN]
)
@pytest.mark.parametrize("whom", ["us", "group"])
def test_a_signal_reaches_the_command_once(node, number, whom):
    process = node.start("run", "--", sys.executable, node.script(COUNT))
    assert process.stdout.readline().startswith("ready")
    (os.kill if whom == "us" else os.killpg)(process.pid, number)
    assert process.stdout.readline().split() == [number.name]
    if number != signal.SIGTERM:
        os.kill(process.pid, signal.SIGTERM)
    assert process.wait(60) == 9


def test_the_same_signal_twice_reaches_it_twice(node):
    process = node.start("run", "--", sys.executable, node.script(COUNT))
    process.stdout.readline()
    for _ in range(2):
        os.killpg(process.pid, signal.SIGUSR1)
        assert process.stdout.readline() == "SIGUSR1\n"
        os.kill(process.pid, signal.SIGUSR1)
        assert process.stdout.readline() == "SIGUSR1\n"
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(60) == 9


def test_stop_and_continue_reach_the_command(node, wait_for):
    # Not in a session of its own: the kernel spares orphaned groups the signals of job control.
    process = node.start("run", "--", sys.executable, node.script(COUNT), session=False)
    command = int(process.stdout.readline().split()[1])
    os.kill(process.pid, signal.SIGTSTP)
    wait_for(lambda: state(command) == "T")
    os.kill(process.pid, signal.SIGCONT)
    wait_for(lambda: state(command) != "T")
    os.kill(process.pid, signal.SIGTERM)
    assert process.wait(60) == 9


def test_killing_us_kills_the_command(node, wait_for):
    process = node.start("run", "--", sys.executable, node.script(COUNT))
    command = int(process.stdout.readline().split()[1])
    process.kill()
    wait_for(lambda: not os.path.exists(f"/proc/{command}") or state(command) == "Z")


def test_an_ignored_signal_stays_ignored(node):
    """As nohup does it."""
    script = "import signal; print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)"
    process = subprocess.run(
        ["sh", "-c", 'trap "" HUP; exec "$@"', "sh", *RUN, "-q", "--", sys.executable, "-c", script],
        env=node.environ, cwd=node.directory, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert process.stdout == "True\n"


def test_ctrl_c_at_a_terminal(node):
    """The terminal tells the whole group: the command gets it once, cleans up, and its end is ours."""
    script = node.script(
        "import sys, time\n"
        "try:\n    print('ready', sys.stdin.isatty(), flush=True)\n    time.sleep(60)\n"
        "except KeyboardInterrupt:\n    time.sleep(0.5)\n    print('cleaned up', flush=True)\n    sys.exit(6)\n"
    )
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(node.directory)
        os.execve(
            sys.executable,
            [sys.executable, "-m", "cachehome", "run", "-q", "--", sys.executable, script],
            node.environ,
        )
    read_until(terminal, b"ready True")
    os.write(terminal, b"\x03")
    read_until(terminal, b"cleaned up")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 6
    os.close(terminal)


def test_job_control_at_a_terminal(node):
    """Ctrl-Z gives the shell its terminal back; fg goes on."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(node.directory)
        os.execve(
            "/bin/bash", ["bash", "--norc", "-i"], {**node.environ, "PS1": "$ ", "HISTFILE": "/dev/null"}
        )
    command = f"{sys.executable} -m cachehome run -q -- sh -c 'echo go; read x; echo got $x; exit 5'\n"
    os.write(terminal, command.encode())
    read_until(terminal, b"\rgo")
    os.write(terminal, b"\x1a")
    read_until(terminal, b"Stopped")
    os.write(terminal, b"fg\n")
    read_until(terminal, b"cachehome run")
    os.write(terminal, b"word\n")
    read_until(terminal, b"got word")
    os.write(terminal, b"echo status=$?\n")
    read_until(terminal, b"status=5")
    os.write(terminal, b"exit\n")
    os.close(terminal)
    os.waitpid(pid, 0)


def test_it_publishes_while_the_command_runs(node, wait_for):
    """First when it has turned quiet, then by interval."""
    script = write(1) + "read x; " + write(2) + "read x"
    process = subprocess.Popen(
        [*RUN, "--", "sh", "-c", script],
        env=node.environ, cwd=node.directory, stdin=subprocess.PIPE, text=True,
    )  # fmt: skip
    wait_for(lambda: "ab/c1.best_config" in node.published())
    process.stdin.write("\n")
    process.stdin.flush()
    wait_for(lambda: "ab/c2.best_config" in node.published())
    assert process.poll() is None
    process.communicate("\n", timeout=60)
    assert process.returncode == 0


def test_what_a_killed_run_left_is_published_by_the_next(node, wait_for):
    process = node.start(
        "run", "--", "sh", "-c", write(1) + "echo; sleep 60", CACHEHOME_PUBLISH_INTERVAL_SECONDS="3600"
    )
    process.stdout.readline()
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert node.published() == set()
    assert node.run("run", "--", "true").returncode == 0
    assert node.published() == {"ab/c1.best_config"}


def test_a_crash_publishes_nothing_more(node):
    ended = node.run(
        "run", "--", "sh", "-c", write(1) + "kill -SEGV $$", CACHEHOME_PUBLISH_INTERVAL_SECONDS="3600"
    )
    assert ended.returncode == -signal.SIGSEGV
    assert node.published() == set()


def test_a_failed_command_publishes(node):
    """What it compiled is right all the same, and a preempted job ends like this."""
    node.run("run", "--", "sh", "-c", write(1) + "exit 1", CACHEHOME_PUBLISH_INTERVAL_SECONDS="3600")
    assert node.published() == {"ab/c1.best_config"}


@pytest.mark.parametrize("hung", [True, False], indirect=True, ids=["killable", "unkillable"])
def test_a_store_that_hangs_costs_only_its_time_limits(node, hung):
    hung.begin()
    ended = node.run(
        "run", "--", "sh", "-c", write(1) + "sleep 2; exit 7",
        CACHEHOME_STORE_TIMEOUT_SECONDS="1", CACHEHOME_PUBLISH_BUDGET_SECONDS="1", CACHEHOME_EXIT_TIMEOUT_SECONDS="1",
    )  # fmt: skip
    assert ended.returncode == 7
    assert "restore: unavailable, time_limit" in ended.stderr
    assert "publish: unavailable, time_limit" in ended.stderr


def test_a_store_that_is_silent_is_given_up_before_its_time_limit(node, hung):
    hung.begin()
    environ = {"CACHEHOME_STORE_TIMEOUT_SECONDS": "3600", "CACHEHOME_PUBLISH": "off"}
    assert "restore: unavailable, no_answer" in node.run("run", "--", "true", **environ).stderr


def test_a_store_that_hangs_while_the_command_runs(node, hung, wait_for):
    process = node.start(
        "run", "--", "sh", "-c", write(1) + "echo; sleep 3; exit 7", CACHEHOME_EXIT_TIMEOUT_SECONDS="1"
    )
    process.stdout.readline()
    hung.begin()
    _, said = process.communicate(timeout=60)
    assert process.returncode == 7
    assert "publish: unavailable, time_limit" in said


@pytest.mark.parametrize("hung", [True, False], indirect=True, ids=["killable", "unkillable"])
def test_sigterm_while_it_restores_ends_it(node, hung, wait_for):
    hung.begin()
    process = node.start("run", "--", "echo", "never")
    wait_for(lambda: any("lifecycle.child" in commandline(pid) for pid in children(process.pid)))
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert (out, process.returncode) == ("", -signal.SIGTERM)


@pytest.mark.parametrize("variable", ["IDENTITY", "CONFIG", "IMAGE"])
@pytest.mark.parametrize("kind", ["fifo", "device"])
def test_a_named_file_that_is_none_costs_one_line(node, variable, kind):
    path = "/dev/zero" if kind == "device" else str(node.directory / "fifo")
    if kind == "fifo":
        os.mkfifo(path)
    environ = {"CACHEHOME_IDENTITY": "-"} if variable == "IMAGE" else {}
    environ[f"CACHEHOME_{variable}"] = path
    ended = node.run("run", "--", sys.executable, "-c", "print('ran')", CACHEHOME_STORE="-", **environ)
    assert (ended.stdout, ended.returncode) == ("ran\n", 0)
    assert sum(path in line and "not a regular file" in line for line in ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("hung", [True, False], indirect=True, ids=["killable", "unkillable"])
@pytest.mark.parametrize("variable", ["IDENTITY", "CONFIG"])
def test_a_named_file_on_a_dead_server_costs_a_few_seconds(node, hung, variable):
    hung.begin()
    environ = {f"CACHEHOME_{variable}": str(node.store / "file"), "CACHEHOME_STORE": "-"}
    ended = node.run("run", "--", "echo", "ran", **environ)
    assert (ended.stdout, ended.returncode) == ("ran\n", 0)
    assert sum("no answer within 10 s" in line for line in ended.stderr.splitlines()) == 1


@pytest.mark.parametrize("hung", [True, False], indirect=True, ids=["killable", "unkillable"])
def test_sigterm_while_it_finds_out_who_it_is_ends_it(node, hung, wait_for):
    hung.begin()
    environ = {"CACHEHOME_IDENTITY": "-", "CACHEHOME_SOURCES": str(node.store / "tree")}
    process = node.start("run", "--store-timeout-seconds", "3600", "--", sys.executable, "-c", "1", **environ)
    wait_for(lambda: len(children(process.pid)) > 1)  # the witness, and the process that probes
    time.sleep(1)
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert (out, process.returncode) == ("", -signal.SIGTERM)


def test_a_dead_server_under_the_sources_costs_the_time_of_a_restore(node, hung):
    hung.begin()
    environ = {"CACHEHOME_IDENTITY": "-", "CACHEHOME_SOURCES": str(node.store / "tree")}
    ended = node.run(
        "run", "--store-timeout-seconds", "2", "--", sys.executable, "-c", "print('ran')", **environ
    )
    assert (ended.stdout, ended.returncode) == ("ran\n", 0)
    assert "no warm start: identity: not known within 2 s" in ended.stderr


@pytest.mark.parametrize("closed", ["<&- >&-", "<&-", ">&-", "<&- >&- 2>&-"])
def test_closed_streams_stay_closed_and_disturb_nothing(node, closed):
    probe = node.script(
        "import os, sys\nopen = []\n"
        "for end in range(3):\n    try:\n        os.fstat(end)\n        open.append(end)\n"
        "    except OSError:\n        pass\n"
        "os.write(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT), repr(open).encode())\n"
    )
    out = node.directory / "out"
    words = [sys.executable, "-m", "cachehome", "run", "--", sys.executable, probe, str(out)]
    ended = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *words],
        env=node.environ, cwd=node.directory, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert ended.returncode == 0
    expected = [end for end, how in enumerate(("<&-", ">&-", "2>&-")) if how not in closed.split()]
    assert out.read_text() == repr(expected)
    assert "Exception ignored" not in ended.stderr
    assert all(line.startswith("cachehome: ") for line in ended.stderr.splitlines()), ended.stderr


@pytest.mark.parametrize("given", [True, False], ids=["identity given", "probed"])
def test_more_files_than_select_can_name(node, given):
    """The command is warm, has them all, and gets its signals."""
    node.run("run", "--", "sh", "-c", write(1))
    node.wipe()
    if not given:
        del node.environ["CACHEHOME_IDENTITY"]
    job = node.script(COUNT.replace("seen = []", "os.stat(f'/proc/self/fd/{sys.argv[1]}')\nseen = []"))
    starter = node.script(
        "import os, resource, sys\n"
        "most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]\n"
        "try:\n    resource.setrlimit(resource.RLIMIT_NOFILE, (3000, max(3000, most)))\n"
        "except (OSError, ValueError):\n    sys.exit(77)\n"
        "last = [os.open(os.devnull, os.O_RDONLY) for _ in range(2000)][-1]\n"
        "for end in range(3, last + 1):\n    os.set_inheritable(end, True)\n"
        "os.execv(sys.executable, [*sys.argv[1:], str(last)])\n",
        "starter.py",
    )
    process = subprocess.Popen(
        [sys.executable, starter, *RUN, "--", sys.executable, job],
        env=node.environ, cwd=node.directory, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    node.processes.append(process)
    assert process.stdout
    if not process.stdout.readline().startswith("ready"):
        out, err = process.communicate(timeout=100)
        if process.returncode == 77:
            pytest.skip("may not open so many files")
        raise AssertionError(out + err)
    process.send_signal(signal.SIGUSR1)
    assert process.stdout.readline() == "SIGUSR1\n"
    os.killpg(process.pid, signal.SIGTERM)
    out, err = process.communicate(timeout=100)
    assert (process.returncode, out) == (9, "SIGTERM\n"), err
    assert ("restore: hit" if given else "restore: miss") in err


def test_an_option_that_is_not_allowed_is_wrong_usage(node):
    ended = node.run("run", "--store-timeout-seconds", "0", "--", "echo", "never")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert "store_timeout_seconds" in ended.stderr
    assert node.run("run", "--", "echo", "ran", CACHEHOME_STORE_TIMEOUT_SECONDS="0").stdout == "ran\n"


def test_many_wrappers_on_one_node_fetch_once(node):
    """As `srun cachehome run -- ...` starts them."""
    node.run("run", "--", "sh", "-c", write(1))
    node.wipe()
    started = [
        node.start("run", "--", "sh", "-c", 'cat "$TORCHINDUCTOR_CACHE_DIR/ab/c1.best_config"')
        for _ in range(4)
    ]
    ended = [process.communicate(timeout=100) for process in started]
    assert [out for out, _ in ended] == ['{"n": 1}\n'] * 4, ended
    assert sum("restore: hit" in err for _, err in ended) == 4


def test_require_warm(node):
    ended = node.run("run", "--", "echo", "ran", CACHEHOME_REQUIRE_WARM="inductor")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "require_warm" in ended.stderr
    node.run("run", "--", "sh", "-c", write(1))
    node.wipe()
    assert node.run("run", "--", "echo", "ran", CACHEHOME_REQUIRE_WARM="inductor").stdout == "ran\n"


@pytest.mark.parametrize(
    "why",
    [{"CACHEHOME_STORE": "-"}, {"CACHEHOME_STORE": "-", "CACHEHOME_STROE": "/s"}, {"CACHEHOME_RESTORE": "off"},
     {"CACHEHOME": "0"}],
)  # fmt: skip
def test_require_warm_where_nothing_can_be_restored(node, why):
    """A gate that a misspelt variable opens is none."""
    ended = node.run("run", "--", "echo", "ran", CACHEHOME_REQUIRE_WARM="inductor", **why)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "require_warm: inductor: no warm start (" in ended.stderr


@pytest.mark.parametrize("option", ["--families", "--require-warm"])
def test_a_family_that_no_catalogue_has_is_wrong_usage(node, option):
    ended = node.run("run", option, "tritn", "--", "echo", "ran")
    assert (ended.returncode, ended.stdout) == (2, "")
    assert f"{option}: 'tritn' is not in the catalogue: " in ended.stderr


def test_a_switch_that_is_ignored_is_ignored_by_all(node):
    node.run("run", "--", "sh", "-c", write(1))
    node.wipe()
    ended = node.run("run", "--", "echo", "ran", CACHEHOME="yes")
    assert (ended.returncode, ended.stdout) == (0, "ran\n")
    assert ended.stderr.count("ignored: ") == 1, ended.stderr
    assert "restore: hit" in ended.stderr


def test_a_job_whose_identity_cannot_be_known_keeps_its_home(node):
    ended = node.run("run", "--", "sh", "-c", 'echo "$TRITON_CACHE_DIR"', CACHEHOME_IDENTITY="/no/such/file")
    assert "/local/torchinductor/triton" in ended.stdout
    assert "no warm start" in ended.stderr
    environ = {"CACHEHOME_IDENTITY": "/no/such/file", "CACHEHOME_REQUIRE_WARM": "triton"}
    ended = node.run("run", "--", "true", **environ)
    assert ended.returncode == 1
    assert ended.stderr.count("/no/such/file") == 1, ended.stderr


@pytest.mark.parametrize(
    ("environ", "command", "said"),
    [
        ({"RAY_ADDRESS": "ray://head:10001"}, ["true"], True),
        ({"RAY_ADDRESS": "local"}, ["true"], False),
        ({}, ["true"], False),
    ],
)
def test_it_says_that_a_remote_ray_cluster_is_out_of_reach(node, environ, command, said):
    assert ("Ray cluster" in node.run("run", "--", *command, **environ).stderr) is said


@pytest.mark.skipif(shutil.which("unshare") is None, reason="needs unshare")
def test_as_the_first_process_of_a_container(node):
    """It buries orphans, passes signals on, and gives a status although the kernel spares it their effect."""
    script = node.script(
        "import os, signal, sys, time\n"
        "if os.fork() == 0:\n    if os.fork() == 0:\n        time.sleep(0.3); os._exit(0)\n    os._exit(0)\n"
        "os.wait()\n"
        "time.sleep(1.5)\n"
        "all = [open(f'/proc/{p}/stat').read() for p in os.listdir('/proc') if p.isdigit()]\n"
        "states = [stat.rpartition(')')[2].split()[0] for stat in all]\n"
        "print(states.count('Z'), os.getppid(), flush=True)\n"
        "signal.signal(signal.SIGTERM, lambda *_: os.kill(os.getpid(), signal.SIGKILL))\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen(
        ["unshare", "-Urpf", "--mount-proc", *RUN, "-q", "--", sys.executable, script],
        env=node.environ, cwd=node.directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    line = process.stdout.readline()
    if not line:
        pytest.skip(f"no namespaces here: {process.communicate()[1]}")
    assert line == "0 1\n"
    os.kill(int(children(process.pid)[0]), signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGKILL


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def commandline(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def read_until(terminal: int, text: bytes) -> bytes:
    seen = b""
    until = time.monotonic() + 60
    while text not in seen:
        assert select.select([terminal], [], [], max(0, until - time.monotonic()))[0], seen
        seen += os.read(terminal, 4096)
    return seen
