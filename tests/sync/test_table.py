from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachehome.sync import table
from cachehome.sync.scan import LocalFile

DIGEST = "ab" * 32
FILE = LocalFile("/y", 1, 2, 3, 0o600)


def test_a_row_holds_as_long_as_its_file_is_the_same() -> None:
    known = {"x/y": table.row(DIGEST, *FILE[1:])}
    assert table.known(known, "x/y", FILE) == DIGEST
    assert table.sha256_of(known["x/y"]) == DIGEST
    for changed in (
        FILE._replace(size=9),
        FILE._replace(mtime_ns=9),
        FILE._replace(inode=9),
        FILE._replace(mode=9),
    ):
        assert table.known(known, "x/y", changed) == ""
    assert table.known(known, "x/z", FILE) == ""


@given(
    st.dictionaries(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])), st.integers(0)
    )
)
def test_what_is_written_is_read(sizes: dict[str, int]) -> None:
    """But for names with a tab or a line's end in them, which cost a hash."""
    known = {path: table.row(DIGEST, size, 2, 3, 0o600) for path, size in sizes.items()}
    assert table.read(b"".join(table.write(known))) == {
        path: row for path, row in known.items() if not {*path} & {*"\t\n"}
    }


def test_names_that_are_no_text_come_back() -> None:
    known = {"a\udcff b": table.row(DIGEST, 1, 2, 3, 0o600)}
    assert table.read(b"".join(table.write(known))) == known


@pytest.mark.parametrize("data", [b"{}", b"a b c", b"x\ty\nz"])
def test_what_is_no_table_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"zip\(\)"):
        table.read(data)


@pytest.mark.parametrize("line", [b"x\t", b"x\tnonsense", b"x\t" + b"a" * 64, b"x\t" + b"a" * 64 + b" 1 2"])
def test_a_damaged_row_is_not_known(line: bytes) -> None:
    assert table.known(table.read(line), "x", FILE) == ""


def test_a_tree_is_unchanged_as_long_as_its_directory_is(tmp_path: Path) -> None:
    found = tmp_path.stat()
    known = {"KEY": table.tree_row(found, ["/a b.json", "/c.cubin"])}
    assert table.unchanged(known, "KEY", found) == ["/a b.json", "/c.cubin"]
    assert table.unchanged(known, "OTHER", found) == []
    (tmp_path / "new").write_text("")
    assert table.unchanged(known, "KEY", tmp_path.stat()) == []


@pytest.mark.parametrize("row", ["", "1 2", "1 2 ", "1 2 /", "nonsense /a", DIGEST + " 1 2 3 384"])
def test_what_is_no_row_of_a_tree_is_looked_at(tmp_path: Path, row: str) -> None:
    assert table.unchanged({"KEY": row}, "KEY", tmp_path.stat()) == []
