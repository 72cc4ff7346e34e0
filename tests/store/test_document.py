"""document.py: one way to write JSON, a strict way to read it."""

import json

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachehome.store import document

SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text()
DOCUMENTS = st.recursive(
    SCALARS,
    lambda some: st.lists(some, max_size=4) | st.dictionaries(st.text(), some, max_size=4),
    max_leaves=20,
)


@given(DOCUMENTS)
def test_what_is_written_is_read_and_is_what_others_write(content: object) -> None:
    data = document.write(content)
    assert document.read(data) == content
    assert data == orjson.dumps(content)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"{} x",
        b'{"a": NaN}',
        b"[Infinity]",
        b'["\\ud800"]',
        b'["\\uDC00 \\ud83d"]',
        b'["\xed\xa0\x80"]',
        b'["\xff"]',
        b'["a\nb"]',
        b"\xef\xbb\xbf[]",
        b"[" * 200_000,
        '["x"]'.encode("utf-16"),
        b"9" * 5000,
    ],
)
def test_what_is_no_json(data: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the library's own texts
        document.read(data)


def test_both_halves_of_a_pair() -> None:
    assert document.read(json.dumps("\U0001f600").encode()) == "\U0001f600"
    assert document.read(memoryview(b'["\\u00e9"]')) == ["é"]


@given(
    st.dictionaries(
        st.text(), st.text() | st.lists(st.integers()) | st.lists(st.text()) | st.lists(st.booleans())
    )
)
def test_columns_are_written_as_all_else_is(columns: dict[str, object]) -> None:
    assert b"".join(document.pieces(columns)) == document.write(columns)


def test_digits_are_written_as_they_are() -> None:
    columns = {"size": [1, 2], "sha256": "0a" * 64, "suffix": ["", "é"]}
    assert b"".join(document.pieces(columns, digits="sha256")) == document.write(columns)
