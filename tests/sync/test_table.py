from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachehome.sync import table
from cachehome.sync.scan import LocalFile
from cachehome.sync.table import Table

DIGEST = "ab" * 32
FILE = LocalFile("/y", 1, 2, 3, 0o600)
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


def back(known: Table) -> Table:
    return Table.read(b"".join(known.write()))


def learn(known: Table, tree: str, found: os.stat_result, suffixes: list[str]) -> bool:
    """Have *known* learn a tree of the files that it has rows of."""
    rows = [known.get(tree + suffix).split(" ") for suffix in suffixes]
    files = [LocalFile(suffix, *map(int, row[1:])) for suffix, row in zip(suffixes, rows, strict=True)]
    return known.learn(tree, found, files, [row[0] for row in rows])


def holds(known: Table, tree: str, found: os.stat_result, names: str, hashes: str) -> bool:
    """Whether a tree is as it was, and *known* tells this and nothing else of it."""
    other = [known.tells(tree, names + "/x", hashes), known.tells(tree, names, hashes[:-1])]
    return known.unchanged(tree, found) and known.tells(tree, names, hashes) and not any(other)


def test_a_row_holds_as_long_as_its_file_is_the_same() -> None:
    known = Table({"x/y": table.row(DIGEST, *FILE[1:])})
    assert known.known("x/y", FILE) == DIGEST
    assert table.sha256_of(known.get("x/y")) == DIGEST
    for changed in (
        FILE._replace(size=9),
        FILE._replace(mtime_ns=9),
        FILE._replace(inode=9),
        FILE._replace(mode=9),
    ):
        assert known.known("x/y", changed) == ""
    assert known.known("x/z", FILE) == ""


@given(st.dictionaries(NAMES, st.integers(0)))
def test_what_is_written_is_read(sizes: dict[str, int]) -> None:
    """But for names with a tab or a line's end in them, which cost a hash."""
    rows = {path: table.row(DIGEST, size, 2, 3, 0o600) for path, size in sizes.items()}
    assert back(Table(rows)).rows() == {path: row for path, row in rows.items() if not {*path} & {*"\t\n"}}


@given(
    st.dictionaries(
        NAMES.map(lambda name: name.replace("/", "")).filter(bool),
        st.sets(NAMES.map(lambda name: "/" + name.replace("/", "")), min_size=1),
    ),
    st.dictionaries(NAMES, st.integers(0)),
    st.data(),
)
def test_trees_are_as_good_as_rows(
    trees: dict[str, set[str]], sizes: dict[str, int], data: st.DataObject
) -> None:
    """Whatever is learnt, written, read, asked for and learnt again, in whatever order."""
    rows = {path: table.row(DIGEST, size, 2, 3, 0o600) for path, size in sizes.items() if path not in trees}
    for number, (tree, suffixes) in enumerate(trees.items()):
        rows |= {tree + s: table.row(f"{number:064x}", len(s), number, 3, 0o600) for s in suffixes}
    known = Table(rows)
    found = Path("/").stat()
    for _ in range(2):
        for tree in data.draw(st.lists(st.sampled_from(sorted(trees)), unique=True)) if trees else []:
            names = sorted(trees[tree])
            if all(known.get(tree + name) for name in names) and learn(known, tree, found, names):
                hashes = "".join(rows[tree + name][:64] for name in names)
                assert holds(known, tree, found, "".join(names), hashes)
        known = back(known)
        for path in data.draw(st.lists(st.sampled_from(sorted(rows)))) if rows else []:
            assert known.get(path) == ("" if {*path} & {*"\t\n"} else rows[path])
    assert known.rows() == {path: row for path, row in rows.items() if not {*path} & {*"\t\n"}}


def test_names_that_are_no_text_come_back(tmp_path: Path) -> None:
    rows = {"a\udcff b/c": table.row(DIGEST, 1, 2, 3, 0o600)}
    known = Table(rows)
    assert back(known).rows() == rows
    assert learn(known, "a\udcff b", tmp_path.stat(), ["/c"])
    assert holds(back(known), "a\udcff b", tmp_path.stat(), "/c", DIGEST)
    assert back(known).rows() == rows


@pytest.mark.parametrize("data", [b"{}", b"a b c", b"x\ty\nz", b"\n\nno tree", b"x\ty\n\nz"])
def test_what_is_no_table_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"zip\(\)|subsection"):
        Table.read(data)


@pytest.mark.parametrize("line", [b"x\t", b"x\tnonsense", b"x\t" + b"a" * 64, b"x\t" + b"a" * 64 + b" 1 2"])
def test_a_damaged_row_is_not_known(line: bytes) -> None:
    assert Table.read(line).known("x", FILE) == ""


def test_a_tree_is_unchanged_as_long_as_its_directory_is(tmp_path: Path) -> None:
    suffixes = ["/a b.json", "/c.cubin"]
    known = Table({f"KEY{suffix}": table.row(DIGEST, *FILE[1:]) for suffix in suffixes})
    assert not known.unchanged("KEY", tmp_path.stat())
    assert learn(known, "KEY", tmp_path.stat(), suffixes)
    known = back(known)
    assert holds(known, "KEY", tmp_path.stat(), "/a b.json/c.cubin", 2 * DIGEST)
    assert not known.unchanged("OTHER", tmp_path.stat())
    (tmp_path / "new").write_text("")
    assert not known.unchanged("KEY", tmp_path.stat())
    assert known.known("KEY/a b.json", FILE) == DIGEST, "but its files are"


def test_what_is_newer_than_a_tree_counts(tmp_path: Path) -> None:
    known = Table({"KEY/a": table.row(DIGEST, *FILE[1:]), "KEY/b": table.row(DIGEST, *FILE[1:])})
    assert learn(known, "KEY", tmp_path.stat(), ["/a", "/b"])
    known = Table.read(b"".join(known.write(["KEY/a\t" + table.row("cd" * 32, *FILE[1:])])))
    assert (known.known("KEY/b", FILE), known.known("KEY/a", FILE)) == (DIGEST, "cd" * 32)


@pytest.mark.parametrize("suffixes", [["/a/b"], ["/a\nb"], ["/a\tb"]])
def test_a_tree_that_lines_can_not_hold_is_not_learnt(tmp_path: Path, suffixes: list[str]) -> None:
    known = Table({"KEY" + suffix: table.row(DIGEST, *FILE[1:]) for suffix in suffixes})
    assert not learn(known, "KEY", tmp_path.stat(), suffixes)
    assert known.known("KEY" + suffixes[0], FILE) == DIGEST


@pytest.mark.parametrize("cut", ["state", "names", "hashes", "files"])
def test_a_damaged_tree_is_looked_at(tmp_path: Path, cut: str) -> None:
    found = tmp_path.stat()
    fields = {"state": f"{found.st_ctime_ns} {found.st_ino}", "names": "/a/b", "hashes": 2 * DIGEST}
    files = ["1 2 3 384"] * 2
    if cut == "files":
        files.pop()
    else:
        fields[cut] = fields[cut][:-1] if cut != "names" else "/a"
    lines = "\n".join(["\t".join(["KEY", *fields.values()]), *files])
    known = Table.read(f"\n\n{lines}".encode())
    assert not known.unchanged("KEY", found)
    known.rows()


def test_a_tree_without_files_is_none(tmp_path: Path) -> None:
    found = tmp_path.stat()
    for lines in ("KEY\t{} {}\t\t", "KEY\t{} {}\t\tX", "KEY\t{} {}\t/a\t" + DIGEST):
        known = Table.read(("\n\n" + lines.format(found.st_ctime_ns, found.st_ino)).encode())
        assert not known.unchanged("KEY", found)


def test_a_look_at_a_file_leaves_its_tree(tmp_path: Path) -> None:
    known = Table({"KEY/a": table.row(DIGEST, *FILE[1:]), "KEY/b": table.row(DIGEST, *FILE[1:])})
    assert learn(known, "KEY", tmp_path.stat(), ["/a", "/b"])
    assert known.known("KEY/a", FILE) == DIGEST
    assert back(known).unchanged("KEY", tmp_path.stat())
    known["KEY/a"] = table.row("cd" * 32, *FILE[1:])
    assert not known.unchanged("KEY", tmp_path.stat()), "what is new is not what was learnt"
    assert (known.known("KEY/a", FILE), known.known("KEY/b", FILE)) == ("cd" * 32, DIGEST)


def test_a_tree_of_the_version_before_is_forgotten_once_it_is_learnt(tmp_path: Path) -> None:
    rows = {"KEY/a": table.row(DIGEST, *FILE[1:]), "KEY": "1 2 /a"}
    known = Table(rows)
    assert not known.unchanged("KEY", tmp_path.stat())
    assert learn(known, "KEY", tmp_path.stat(), ["/a"])
    assert back(known).rows() == {"KEY/a": rows["KEY/a"]}


def test_names_that_no_file_can_have_here(tmp_path: Path) -> None:
    """Another machine published them; this one has no UTF-8 in its locale."""
    code = "from cachehome.sync.table import Table; t = Table.read(b'a\\tb\\n\\nKEY\\t1 2\\t/a\\t'); "
    code += "print(t.tells('KEY', '/\\u65e5.json', 'ab' * 32), t.tells('KEY', '/a', ''))"
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("False False\n", "")
