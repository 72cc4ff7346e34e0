"""The table of variables: every line has a reason, and the order of lines is right."""

from __future__ import annotations

import pytest

from cachehome.probes import environment, packages


def test_every_line_has_a_treatment_and_a_reason() -> None:
    for line in environment.rows():
        assert line.treatment in ("in", "out", "file"), line
        assert line.evidence in ("-", "none", "fx", "triton", "both"), line
        assert len(line.reason) > 2, line


def test_no_line_is_written_twice_or_never_reached() -> None:
    patterns = [line.pattern for line in environment.rows()]
    assert len(patterns) == len(set(patterns))
    for line in environment.rows():
        if line.exact:
            assert environment.row(line.pattern) == line, f"{line.pattern} is decided by an earlier line"


@pytest.mark.parametrize(
    ("name", "treatment"),
    [
        ("TRITON_NEW", "in"),
        ("TORCHINDUCTOR_NEW_TIMEOUT", "in"),
        ("VLLM_NEW_TIMEOUT", "out"),
        ("VLLM_ATTENTION_BACKEND", "in"),
        ("SGLANG_CACHE_DIR", "out"),
        ("HOME", None),
        ("PATH", None),
        ("PIP_DEFAULT_TIMEOUT", None),
        ("MY_OWN_CACHE_DIR", None),
        ("NCCL_DEBUG", None),
        ("CACHEHOME_STORE", None),
        ("A", None),
        ("", None),
    ],
)
def test_what_becomes_of(name: str, treatment: str | None) -> None:
    line = environment.row(name)
    assert (line and line.treatment) == treatment


def test_pattern() -> None:
    row = environment.Row("in", "A_*_B_*", "-", "x")
    assert row.fits("A_1_B_2")
    assert row.fits("A__B_")
    assert not row.fits("A_B_")
    assert not row.fits("XA_1_B_2")


def test_variables_of_third_party_families_are_locations() -> None:
    kept, left_out = environment.probe({"TORCHINDUCTOR_CACHE_DIR": "/a/b"})
    assert kept == {}
    assert left_out == {"environment.TORCHINDUCTOR_CACHE_DIR": "location"}


def test_what_was_taken_out_of_a_value_is_told() -> None:
    kept, left_out = environment.probe({"CXXFLAGS": "-I/opt/x -O3"})
    assert kept == {"CXXFLAGS": "-Ix -O3"}
    assert left_out == {"environment.CXXFLAGS": "in the key without path"}


def test_a_variable_that_is_left_out_but_hashed_by_a_compiler_shows_its_value() -> None:
    assert environment.probe({"MLIR_ENABLE_DUMP": "1"})[1] == {
        "environment.MLIR_ENABLE_DUMP": "1: debug dump"
    }


def test_every_package_has_a_reason() -> None:
    assert all(packages.table().values())
    assert all(
        name.rstrip("*") == packages.normalise(name.rstrip("*")) or name.endswith("-*")
        for name in packages.table()
    )
