"""What a user can change, noted where something is compiled and compared where it is found."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import Python

from cachehome.observe import history
from cachehome.observe.circumstances import changes, now
from cachehome.observe.verdict import judge


def test_what_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {
        "TORCHINDUCTOR_COMPILE_THREADS": "4",
        "TRITON_DEFAULT_FP_FUSION": "0",
        "TORCHINDUCTOR_CACHE_DIR": "/live",
        "OMP_NUM_THREADS": "3",
        "TRITON_API_TOKEN": "abc",
        "TORCHINDUCTOR_FILE": __file__,
        "TRITON_LIBDEVICE_PATH": __file__,
        "TORCHINDUCTOR_OTHER": "hf_" + "aB3" * 8,
        "SHELL_OPTION": "1",
    }.items():
        monkeypatch.setenv(name, text)
    found = now()
    assert found is not None
    named = {
        name: text for name, text in found.items() if name.startswith(("TORCH", "TRITON", "OMP", "SHELL"))
    }
    assert named == {
        "TORCHINDUCTOR_COMPILE_THREADS": "4",
        "TRITON_DEFAULT_FP_FUSION": "0",
        "TORCHINDUCTOR_FILE": Path(__file__).name,
    }


def test_changes_in_words() -> None:
    before = {"thread count": "16", "TRITON_A": "1", "TRITON_B": "1"}
    assert changes(before, before) == []
    assert changes(before, {"thread count": "3", "TRITON_B": "0", "TORCH_C": "x"}) == [
        "thread count: 16 became 3",
        "TORCH_C: unset became x",
        "TRITON_A: 1 became unset",
        "TRITON_B: 1 became 0",
    ]
    assert changes({"TRITON_B": "1"}, {"thread count": "3", "TRITON_B": "1"}) == [], (
        "torch was not imported there"
    )


@pytest.mark.slow
def test_triton_alone(python: Python, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    code = "from cachehome.demo.kernels import KERNELS\nfor k in KERNELS[:2]: k.compile()"

    def start(name: str, **environ: str) -> list[str]:
        reports = tmp_path / name
        done = python(
            code,
            CACHEHOME_DIAGNOSTICS="1", CACHEHOME_REPORT_DIR=str(reports), TRITON_CACHE_DIR=str(tmp_path / "triton"),
            **environ,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        found = judge(history.total(history.logs(str(reports))))
        return [found.state, *(note.text for note in found.notes if note.kind == "changed")]

    assert start("cold") == ["cold"]
    assert start("same") == ["warm"]
    harmless = "TORCHINDUCTOR_COMPILE_THREADS: unset became 3; nothing had to be compiled for it"
    assert start("harmless", TORCHINDUCTOR_COMPILE_THREADS="3") == ["warm", harmless]
    assert start("missed", TRITON_DISABLE_LINE_INFO="1") == [
        "cold",
        "TRITON_DISABLE_LINE_INFO: unset became 1",
    ]
    assert start("known", TRITON_DISABLE_LINE_INFO="1") == ["warm"]
