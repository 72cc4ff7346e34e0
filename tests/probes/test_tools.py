"""Programs that are asked: what they answer, and each way in which they do not."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from cachehome import probes
from cachehome.probes import ProbeError, Tool, failure, is_failure, value
from cachehome.probes.packages import Installed, describe, find, search_path, torch_build
from cachehome.probes.toolchain import Toolchain

ENVIRON = {"PATH": os.environ.get("PATH", os.defpath)}


def _script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_failures_of_a_program_differ_and_repeat(tmp_path: Path) -> None:
    failing = {
        "code": "exit 3",
        "message": "echo cannot load libx.so >&2; exit 3",
        "killed": "kill -9 $$",
        "not executable": None,
        "not there": None,
    }
    found = []
    for name, text in failing.items():
        path = tmp_path / "tool"
        path.unlink(missing_ok=True)
        if text is not None:
            _script(path, text)
        elif name == "not executable":
            path.write_text("")
            path.chmod(0o644)
        answers = {value(Tool([str(path)], ENVIRON).text) for _ in range(2)}
        assert len(answers) == 1
        found += answers
    assert len(set(found)) == len(failing)
    assert all(is_failure(text) for text in found)


def test_a_message_holds_nothing_that_changes(tmp_path: Path) -> None:
    answers = set()
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        path = _script(tmp_path / str(number) / "tool", "echo $0: pid $$ at 10.0.0.1; exit 1")
        answers.add(value(Tool([path], ENVIRON).text))
    assert answers == {"error: tool: exit 1: tool: pid # at <address>"} or len(answers) == 1


def test_a_program_that_hangs_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _script(tmp_path / "tool", "sleep 60 & wait")
    begin = time.monotonic()
    assert value(Tool([path], ENVIRON, seconds=0.3).text) == "error: tool: no answer within 0 s"
    assert time.monotonic() - begin < 30


def test_failure_values() -> None:
    assert failure(ProbeError("x")) == "error: x"
    assert failure(PermissionError(13, "no", "/secret/path")) == "error: EACCES"
    first = value(lambda: {}["a"])
    second = value(lambda: int("x"))
    assert first != second
    assert first.startswith("error: KeyError at test_tools.py:")


def test_clang(tmp_path: Path) -> None:
    clang = _script(
        tmp_path / "clang++",
        """case "$*" in
--version) echo 'Debian clang version 14.0.6'; echo 'Target: x86_64-pc-linux-gnu';;
*-###*) echo ' "clang" "-cc1" "-target-cpu" "znver4" "-target-feature" "+avx2" "-target-feature" "-sse4a"' \
  ' "-target-feature" "+avx"';;
*) echo /usr/lib/libstdc++.so.6;; esac""",
    )
    found = Toolchain({**ENVIRON, "CXX": clang}, []).answers()
    assert (found["cxx"], found["march"], found["isa"]) == (
        "Debian clang version 14.0.6",
        "znver4",
        "avx avx2",
    )


def test_a_compiler_with_options(tmp_path: Path) -> None:
    log = tmp_path / "log"
    cxx = _script(tmp_path / "g++", f'echo "$*" >> {log}; echo "g++ (X) 1.0"')
    Toolchain({**ENVIRON, "CXX": f"{cxx} -mno-avx512f"}, []).answers()
    assert "-mno-avx512f -march=native -Q --help=target" in log.read_text()


def test_no_compiler(tmp_path: Path) -> None:
    found = Toolchain({"PATH": str(tmp_path)}, []).answers()
    assert {found[name] for name in ("cxx", "cc", "march", "isa", "ptxas", "libstdcxx")} == {"absent"}


def test_this_machine() -> None:
    """Where there is a g++, it says what it makes of -march=native, the same each time."""
    if probes.find_program("g++", ENVIRON) is None:
        pytest.skip("no g++")
    one, two = Toolchain(ENVIRON, search_path()).answers(), Toolchain(ENVIRON, search_path()).answers()
    assert one == two
    assert one["cxx"].startswith("gcc ")
    assert "sse2" in one["isa"].split() or one["isa"] == "absent" or "arm" in one["march"]


# --- packages -------------------------------------------------------------------------------------------------------


def _package(site: Path, name: str, **files: str) -> Path:
    metadata = site / name
    metadata.mkdir(parents=True)
    for file, text in files.items():
        (metadata / file.replace("_json", ".json")).write_text(text)
    return metadata


def test_the_first_on_the_path_counts(tmp_path: Path) -> None:
    _package(tmp_path / "a", "triton-1.0.dist-info")
    _package(tmp_path / "b", "triton-2.0.dist-info")
    _package(tmp_path / "b", "requests-1.dist-info")
    found = find([str(tmp_path / "missing"), str(tmp_path / "a"), str(tmp_path / "b")])
    assert [(package.name, package.version) for package in found] == [("triton", "1.0")]


def test_more_packages_than_the_table_has(tmp_path: Path) -> None:
    _package(tmp_path, "My_Kernels-3.dist-info")
    assert find([str(tmp_path)]) == []
    assert [package.name for package in find([str(tmp_path)], ["my.kernels"])] == ["my-kernels"]


@pytest.mark.parametrize(
    "name",
    [
        "pytorch_triton-3.0+git.dist-info",
        "pytorch_triton_rocm-3.0.dist-info",
        "nvidia_cudnn_cu12-9.dist-info",
        "Megatron_Core-0.1.dist-info",
        "vllm-0.1-py3.11.egg-info",
    ],
)
def test_spellings(name: str, tmp_path: Path) -> None:
    _package(tmp_path, name)
    assert len(find([str(tmp_path)])) == 1


def test_editable(tmp_path: Path) -> None:
    _package(
        tmp_path,
        "vllm-0.1.dist-info",
        direct_url_json='{"url": "file:///src/my%20vllm", "dir_info": {"editable": true}}',
    )
    _package(tmp_path, "sglang-0.1.dist-info", direct_url_json='{"url": "file:///src/x", "dir_info": {}}')
    _package(tmp_path, "apex-0.1.dist-info", direct_url_json="broken")
    (tmp_path / "deepspeed.egg-link").write_text("/src/deepspeed\n.\n")
    found = {package.name: package.checkout for package in find([str(tmp_path)])}
    assert found == {"vllm": "/src/my vllm", "sglang": None, "apex": None, "deepspeed": "/src/deepspeed"}


def test_a_package_without_a_record(tmp_path: Path) -> None:
    package = Installed("x", "1", str(_package(tmp_path, "x-1.dist-info")), None)
    assert describe(package, []) == {"version": "1", "record": "absent"}


def test_this_torch() -> None:
    torch = torch_build(search_path())
    if not torch:
        pytest.skip("no torch")
    assert {"version", "git_version", "cuda"} <= torch.keys()
