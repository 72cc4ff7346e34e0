"""A live directory as entries: which files of a family's directory belong together, by the catalogue's rules.

Files that fit no rule, symbolic links, and names that are never carried are not seen. Nothing is opened here:
what a file holds is portable.py's matter.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from typing import NamedTuple

from cachehome import threads
from cachehome.families import Family
from cachehome.sync import parallel
from cachehome.sync.table import Table

OWN = ".cachehome"


_Fields = tuple[str, int, int, int, int]  # of a LocalFile, as it comes from another process
_SHARE = 100  # trees that are looked at in one go


class LocalFile(NamedTuple):
    """A file of an entry. Its path below the family's directory is the entry's name + `suffix`."""

    suffix: str
    size: int
    mtime_ns: int
    inode: int
    mode: int


class LocalEntry(NamedTuple):
    """An entry as it lies in a live directory. `growing`: the last one published wins."""

    family: str
    name: str
    growing: bool
    files: tuple[LocalFile, ...]

    @property
    def key(self) -> tuple[str, str]:
        return (self.family, self.name)

    @property
    def newest_ns(self) -> int:
        return max(file.mtime_ns for file in self.files)


class Rules:
    """The patterns of a family, compiled once."""

    def __init__(self, family: Family) -> None:
        def joined(*kinds: str) -> re.Pattern[str] | None:
            patterns = [pattern for kind, pattern in family.entries if kind in kinds]
            return re.compile("|".join(f"(?:{pattern})" for pattern in patterns)) if patterns else None

        self.tree = joined("tree")
        self.file = joined("file")
        self.growing = joined("growing")
        self.stems = [re.compile(pattern) for kind, pattern in family.entries if kind == "stem"]
        self.never = re.compile("|".join(f"(?:{pattern})" for pattern in family.never) or r"(?!)")
        self.known: dict[str, str] = {}
        """What `carried` has said of names below a tree: the name, "" if it is not carried. Thousands of files then
        share one string."""
        self._fitting: set[tuple[str, ...]] = set()

    def carried(self, path: str, tree: str | None) -> bool:
        """Whether a file may be carried, given the *tree* that holds it. Kernels have names that recur: what was said
        of one file of a tree holds for the same name in every other."""
        if tree is None:
            return not self.never.fullmatch(path)
        suffix = path[len(tree) :]
        told = self.known.get(suffix)
        if told is None:
            told = self.known[suffix] = "" if self.never.fullmatch(path) else suffix
        return bool(told)

    def entry_of(self, path: str) -> tuple[str, bool]:
        """(name of the entry, growing) of a file that no tree holds; ("", False) if it belongs to none."""
        for stem in self.stems:
            found = stem.fullmatch(path)
            if found:
                return found.group(1), False
        if self.file and self.file.fullmatch(path):
            return path, False
        if self.growing and self.growing.fullmatch(path):
            return path, True
        return "", False

    def fit(self, name: str, suffixes: tuple[str, ...]) -> bool:
        """Whether a scan would find files with these *suffixes* as the entry *name*. A manifest may say anything."""
        if self.tree and self.tree.fullmatch(name) and not self._within(name):
            if suffixes not in self._fitting:
                if not all(self._found_below(name, suffix) for suffix in suffixes):
                    return False
                self._fitting.add(suffixes)
            return True
        for suffix in suffixes:
            path = name + suffix
            tree, parents = "", path
            while parents := parents.rpartition("/")[0]:
                if self.never.fullmatch(parents):
                    return False
                tree = parents if self.tree and self.tree.fullmatch(parents) else tree
            if (tree or self.entry_of(path)[0]) != name or self.never.fullmatch(path):
                return False
        return True

    def _within(self, name: str) -> bool:
        """Whether a scan would not reach *name*, or find it inside another tree."""
        parents = name
        while parents := parents.rpartition("/")[0]:
            if self.never.fullmatch(parents) or (self.tree and self.tree.fullmatch(parents)):
                return True
        return bool(self.never.fullmatch(name))

    def _found_below(self, tree: str, suffix: str) -> bool:
        path = tree + suffix
        parents = path
        while (parents := parents.rpartition("/")[0]) != tree:
            if len(parents) < len(tree) or not self.carried(parents, tree):
                return False
        return suffix[:1] == "/" and self.carried(path, tree)


def scan(family: Family, directory: str, trees: Trees | None = None) -> dict[str, LocalEntry]:
    """Entries of *family* in its live *directory*, by name; {} if there is none. Those that *trees* settle
    are left to them.

    Files may vanish while it looks: what is gone is not there. Raises OSError if *directory* can't be read.
    """
    rules = Rules(family)
    files: dict[str, list[_Fields]] = {}
    growing: set[str] = set()
    below: list[str] = []
    for path, found in _walk(directory, "", rules, below, trees):
        entry, grows = rules.entry_of(path)
        if not entry or rules.never.fullmatch(path):
            continue
        if grows:
            growing.add(entry)
        files.setdefault(entry, []).append(_fields(path[len(entry) :], found))
    for tree, members in zip(below, _members(rules, directory, below), strict=True):
        files.setdefault(tree, []).extend(members)
    make = partial(tuple.__new__, LocalFile)
    return {
        name: LocalEntry(family.name, name, name in growing, tuple(map(make, sorted(members))))
        for name, members in files.items()
        if members
    }


def look(rules: Rules, directory: str, tree: str) -> tuple[LocalFile, ...]:
    """The files of one *tree* of a live *directory*; none if it is gone."""
    return tuple(map(LocalFile._make, sorted(_below(f"{directory}/{tree}", tree, "/", rules))))


def _fields(suffix: str, found: os.stat_result) -> _Fields:
    return suffix, found.st_size, found.st_mtime_ns, found.st_ino, found.st_mode & 0o777


def _members(rules: Rules, directory: str, trees: list[str]) -> Iterator[list[_Fields]]:
    """The files of each of *trees*, looked at by all cores where there are many."""

    def look_at(share: list[str]) -> list[list[_Fields]]:
        return [_below(f"{directory}/{tree}", tree, "/", rules) for tree in share]

    shares = [trees[at : at + _SHARE] for at in range(0, len(trees), _SHARE)]
    looked = (
        parallel.each(look_at, shares) if len(shares) > 2 and threads.may_fork() else map(look_at, shares)
    )
    return chain.from_iterable(looked)


class Trees:
    """What a *table* knows of trees, and what it is to know the next time. Made before they are looked at."""

    def __init__(self, table: Table) -> None:
        self.settled: set[str] = set()
        """Trees that are as the table tells."""
        self._table = table
        self._began_ns = time.monotonic_ns()
        self._looked_at: dict[str, os.stat_result] = {}

    def settle(self, tree: str, found: os.stat_result) -> bool:
        """Whether a *tree* with the status *found* need not be looked at."""
        if self._table.unchanged(tree, found):
            self.settled.add(tree)
            return True
        self._looked_at[tree] = found
        return False

    def learn(
        self, entries: Mapping[str, LocalEntry], fresh: Mapping[str, Mapping[str, str]], now_ns: int
    ) -> set[str]:
        """Have the table know trees that were looked at, if all of their hashes are known; which of them it does.

        *fresh*: by tree, hashes by suffix, of files as they were looked at.

        *now_ns*: the file system's time. What changed just before a look may have changed again after it, within the
        same tick of that clock, so that nothing would tell.
        """
        until = now_ns - (time.monotonic_ns() - self._began_ns) - _TICK
        learnt = set()
        for tree, found in self._looked_at.items():
            # A directory in it, even an empty one, may get files without a change of the tree.
            if tree not in entries or found.st_nlink > 2 or found.st_ctime_ns >= until:
                continue
            files, new = entries[tree].files, fresh.get(tree, {})
            hashes = [new.get(file[0]) or self._table.known(tree + file[0], file) for file in files]
            if all(hashes) and self._table.learn(tree, found, files, hashes):
                learnt.add(tree)
        return learnt


_MODES = list(range(0o1000))  # the same few objects for all files
_TICK = 2_000_000_000  # ns; no file system has a coarser clock


def _walk(
    directory: str,
    prefix: str,
    rules: Rules,
    below: list[str],
    trees: Trees | None,
) -> Iterator[tuple[str, os.stat_result]]:
    """(path, its status) of each regular file below that no tree holds; trees are added to *below*."""
    for entry in _listing(directory):
        path = prefix + entry.name
        try:
            if entry.is_dir(follow_symlinks=False):
                if rules.never.fullmatch(path):
                    continue
                if rules.tree and rules.tree.fullmatch(path):
                    if trees is None or not trees.settle(path, entry.stat(follow_symlinks=False)):
                        below.append(path)
                else:
                    yield from _walk(entry.path, path + "/", rules, below, trees)
            elif entry.is_file(follow_symlinks=False):
                yield path, entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue


def _below(directory: str, tree: str, prefix: str, rules: Rules) -> list[_Fields]:
    """The files of a *tree*: most files of a cache are found here, so every microsecond counts."""
    members: list[_Fields] = []
    known, mode_of = rules.known.get, _MODES.__getitem__
    for entry in _listing(directory):
        suffix = prefix + entry.name
        try:
            if entry.is_file(follow_symlinks=False):
                told = known(suffix)
                if told or (told is None and rules.carried(tree + suffix, tree)):
                    st = entry.stat(follow_symlinks=False)
                    mode = mode_of(st.st_mode & 0o777)
                    members.append((told or suffix, st.st_size, st.st_mtime_ns, st.st_ino, mode))
            elif entry.is_dir(follow_symlinks=False) and not rules.never.fullmatch(tree + suffix):
                members += _below(entry.path, tree, suffix + "/", rules)
        except FileNotFoundError:
            continue
    return members


def _listing(directory: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as listing:
            return [entry for entry in listing if entry.name[0] != "."]
    except (FileNotFoundError, NotADirectoryError):
        return []
