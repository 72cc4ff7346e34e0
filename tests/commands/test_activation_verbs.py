"""env, path and status: what they print, and that a shell can take it over. (enable, disable: tests/boot.)"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
INDUCTOR, TRITON = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"


def cachehome(home: Path | str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "cachehome", *arguments],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(home), **variables},
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        encoding="utf-8",
        errors="surrogateescape",
    )


def status(home: Path | str, **variables: str) -> dict[str, object]:
    done = cachehome(home, "status", "--json", **variables)
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)


# --- env ---


@pytest.mark.parametrize("shell", ["sh", "bash", "dash", "zsh"])
@pytest.mark.parametrize("name", ["plain", "a$b`c;d&é", "a(b)*?", "%3B;="])
def test_a_shell_takes_it_over(tmp_path: Path, shell: str, name: str) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    home = tmp_path / name
    home.mkdir()
    script = (
        f'eval "$({sys.executable} -m cachehome env)" && printf "%s\\n" "$TORCHINDUCTOR_CACHE_DIR" "$TRITON_CACHE_DIR"'
        f" && {sys.executable} -m cachehome env --json"
    )
    done = subprocess.run(
        [shell, "-c", script],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), "HOME": str(home), "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    inductor, triton, document = done.stdout.split("\n", 2)
    assert inductor.startswith(f"{home}/.cache/cachehome/cp3")
    assert triton == f"{inductor}/triton"
    again = json.loads(document)  # what was exported is ours, not the user's
    assert again["kept"] == {}
    assert again["variables"][INDUCTOR] == inductor


def test_fish(tmp_path: Path) -> None:
    done = cachehome(tmp_path, "env", "--shell", "fish", CACHEHOME=f"{tmp_path}/a$b")
    assert done.returncode == 0
    assert done.stdout.splitlines()[0].startswith(f"set -gx {INDUCTOR} '{tmp_path}/a$b/cp3")
    fish = shutil.which("fish")
    if fish is not None:
        script = f"{done.stdout}\necho ${INDUCTOR}"
        shown = subprocess.run([fish, "-c", script], capture_output=True, text=True, check=True, timeout=60)
        assert shown.stdout.startswith(f"{tmp_path}/a$b/cp3")


@pytest.mark.parametrize(
    ("value", "line"),
    [("it's", r"set -gx X 'it\'s'"), ("a\\b", r"set -gx X 'a\\b'"), ("a'\\", r"set -gx X 'a\'\\'")],
)
def test_fish_quotes(value: str, line: str) -> None:
    from cachehome.commands import env

    assert env._export("fish", "X", value) == line


def test_nothing_to_set(tmp_path: Path) -> None:
    done = cachehome("/dev/null/x", "env", **{INDUCTOR: " ", TRITON: ""})
    assert done.returncode == 3
    assert done.stdout == f"unset {INDUCTOR}\nunset {TRITON}\n"
    assert done.stderr == (
        "cachehome: no usable directory (/dev/null/x/.cache/cachehome: /dev/null is not a directory),"
        " so torch's own defaults apply: set CACHEHOME to a directory that you may write to\n"
    )
    done = cachehome(tmp_path, "env", "--json", CACHEHOME="0")
    assert done.returncode == 3
    assert json.loads(done.stdout)["variables"] == {}
    assert "switched off by CACHEHOME" in done.stderr


def test_env_json(tmp_path: Path) -> None:
    for arguments in (["--json"], ["--shell", "json"]):
        done = cachehome(tmp_path, "env", *arguments, **{TRITON: "rel"})
        document = json.loads(done.stdout)
        assert set(document) == {
            *("variables", "unset", "kept", "root", "live", "source", "reason", "skipped", "notes"),
        }
        assert document["variables"][TRITON] == "/rel"
        assert document["kept"] == {TRITON: "rel"}
        assert "is relative, so it is /rel" in done.stderr


def test_names_that_are_not_text(tmp_path: Path) -> None:
    done = cachehome(tmp_path, "env", **{INDUCTOR: "/x\udcff"})
    assert "/x\udcff/triton" in done.stdout


# --- path ---


def test_path(tmp_path: Path) -> None:
    live = cachehome(tmp_path, "path").stdout.strip()
    assert live.startswith(f"{tmp_path}/.cache/cachehome/cp3")
    assert cachehome(tmp_path, "path", "inductor").stdout == f"{live}/torchinductor\n"
    assert cachehome(tmp_path, "path", "triton").stdout == f"{live}/torchinductor/triton\n"
    assert cachehome(tmp_path, "path", "triton", **{INDUCTOR: "/x"}).stdout == "/x/triton\n"
    document = json.loads(cachehome(tmp_path, "path", "triton", "--json").stdout)
    assert document["path"] == f"{live}/torchinductor/triton"
    done = cachehome(tmp_path, "path", "triton", TRITON_HOME="/t")
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "cachehome: TRITON_HOME is set\n")
    done = cachehome(tmp_path, "path", "made-up")
    assert done.returncode == 2
    assert "inductor, triton" in done.stderr
    assert cachehome("/dev/null/x", "path").returncode == 3


def test_a_slot_by_option(tmp_path: Path) -> None:
    assert cachehome(tmp_path, "path", "--slot", "decode-{N}", N="7").stdout.endswith("/local/decode-7\n")


# --- status ---


def test_status_when_nothing_is_set(tmp_path: Path) -> None:
    document = status(tmp_path)
    assert document["active"] == {"on": False, "wish": "", "by": "", "told": ""}
    assert document["hook"]["ran"] is False
    assert document["root"] == f"{tmp_path}/.cache/cachehome"
    assert {row["set_by"] for row in document["families"].values()} == {"nobody"}
    text = cachehome(tmp_path, "status").stdout
    assert "off (CACHEHOME is not set)" in text
    assert "not made yet" in text


def test_status_says_who_set_what_and_how_large_it_is(tmp_path: Path) -> None:
    exported = json.loads(cachehome(tmp_path, "env", "--json", **{TRITON: str(tmp_path / "mine")}).stdout)
    inductor = Path(exported["variables"][INDUCTOR])
    (inductor / "ab").mkdir(parents=True)
    (inductor / "ab" / "x.py").write_bytes(b"x" * 1000)
    (inductor / "triton").mkdir()
    (inductor / ".cachehome").mkdir()
    (inductor / ".cachehome" / "stamp").write_text("not counted")
    variables = exported["variables"] | {TRITON: str(tmp_path / "mine")}
    families = status(tmp_path, **variables)["families"]
    assert families["inductor"] == {
        "variable": INDUCTOR,
        "directory": str(inductor),
        "set_by": "cachehome",
        "exists": True,
        "files": 1,
        "bytes": 1000,
    }
    assert families["triton"]["set_by"] == "the user"
    assert (
        "1 files, 1.0 kB; TORCHINDUCTOR_CACHE_DIR set by cachehome"
        in cachehome(tmp_path, "status", **variables).stdout
    )


def test_sizes_of_nested_families_are_not_counted_twice(tmp_path: Path) -> None:
    live = Path(cachehome(tmp_path, "path", "triton").stdout.strip())
    live.mkdir(parents=True)
    (live / "kernel").write_bytes(b"x" * 10)
    families = status(tmp_path)["families"]
    assert families["inductor"]["bytes"] == 0
    assert families["triton"]["bytes"] == 10


def test_torchs_own_default_is_named(tmp_path: Path) -> None:
    families = status(tmp_path, USER="me", **{INDUCTOR: "/tmp/torchinductor_me"})["families"]
    assert families["inductor"]["set_by"] == "torch"


def test_status_shows_what_is_wrong(tmp_path: Path) -> None:
    variables = {
        "CACHEHOME": "yes!",
        "CACHEHOME_SLIMM": "1",
        "CACHEHOME_FAMILIES": "made-up",
        "CACHEHOME_SLOT": "{NONE}",
    }
    document = status(tmp_path, XDG_CACHE_HOME="~/.cache", **variables)
    assert len(document["problems"]) == 2
    assert "CACHEHOME_SLIMM" in document["problems"][1]
    notes = "\n".join(document["notes"])
    for word in ("yes!", "made-up", "NONE is not set"):
        assert word in notes
    assert {"what": "XDG_CACHE_HOME=~/.cache", "why": "is not an absolute path"} in document["skipped"]


def test_status_warns_of_exported_directories_that_will_not_do(tmp_path: Path) -> None:
    notes = status(tmp_path, **{INDUCTOR: "/dev/null/x", TRITON: "/a b"})["notes"]
    assert notes[0] == f"{INDUCTOR}=/dev/null/x: /dev/null is not a directory; used as told"
    assert "blank" in notes[1]


@pytest.mark.parametrize("home", ["/dev/null/x", "/proc/1/x"])
def test_status_where_nothing_is_usable(home: str) -> None:
    document = status(home)
    assert document["root"] is None
    assert "torch's own defaults apply" in document["reason"]
    assert "torch's own default" in cachehome(home, "status").stdout


def test_the_file_of_settings_counts_too(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(f"[compiler_cache]\nenabled = '{tmp_path}/root'\nslot = 'a'\n")
    done = cachehome(tmp_path, "path", CACHEHOME_CONFIG=str(config))
    assert done.stdout.startswith(f"{tmp_path}/root/cp3")
    assert done.stdout.endswith("/local/a\n")


def test_what_was_passed_over_is_told_after_the_hook_has_run_too(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    unusable = str(tmp_path / "file" / "x")
    code = (
        "import cachehome, os, sys; cachehome._hook();"
        " os.execv(sys.executable, [sys.executable, '-m', 'cachehome', 'status', '--json'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "XDG_CACHE_HOME": unusable, "CACHEHOME": "1"},
        capture_output=True,
        check=True,
        timeout=60,
    )
    found = json.loads(done.stdout)
    assert found["root"] == str(tmp_path / ".cache" / "cachehome")
    assert found["families"]["inductor"]["set_by"] == "cachehome"
    assert [row["what"] for row in found["skipped"]] == [unusable + "/cachehome"]


def test_a_place_of_the_kernel_is_none(tmp_path: Path) -> None:
    found = status(tmp_path, CACHEHOME="/proc/x")
    assert found["root"] != "/proc/x"
    assert any(row["what"] == "/proc/x" for row in found["skipped"])


def test_a_wish_that_means_nothing_and_one_that_no_hook_reads(tmp_path: Path) -> None:
    done = cachehome(tmp_path, "status", CACHEHOME="yes")
    assert "off (CACHEHOME 'yes' means nothing)" in done.stdout
    told = tmp_path / "told.toml"
    told.write_text("[compiler_cache]\nenabled = true\n")
    (note,) = status(tmp_path, CACHEHOME_CONFIG=str(told))["notes"]
    assert str(told) in note
    assert "CACHEHOME=1" in note


@pytest.mark.parametrize(
    ("text", "unread"),
    [
        ("[compiler-cache]\nstore = '/s'\n", "[compiler-cache]"),
        ("store = '/s'\n[[job]]\na = 1\n[compiler_cache]\nslot = 'a'\n", "store, [job]"),
        ("[compiler_cache]\nslot = 'a'\n", ""),
    ],
)
def test_the_file_that_was_read_and_what_of_it_is_nobodys(tmp_path: Path, text: str, unread: str) -> None:
    config = tmp_path / "c.toml"
    config.write_text(text)
    line = f"{config}: nobody reads {unread}: settings lie in the section [compiler_cache]"
    document = status(tmp_path, CACHEHOME_CONFIG=str(config))
    assert document["config"]["file"] == str(config)
    assert (line in document["notes"]) == bool(unread)
    told = cachehome(tmp_path, "doctor", CACHEHOME_CONFIG=str(config)).stdout
    assert f"ok    config       {config} was read" in told
    assert (line in told) == bool(unread)
    assert status(tmp_path)["config"] == {"file": None, "unread": []}
