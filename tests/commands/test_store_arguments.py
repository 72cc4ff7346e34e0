"""Verbs that look at a store: a build that is not there, and stores in which there is nothing to show."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("zstandard")

from cachehome import cli
from cachehome.identity import Identity
from cachehome.settings import Settings
from cachehome.sync.publish import publish
from cachehome.sync.restore import restore


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store that is set, and a node of its own."""
    place = tmp_path / "store"
    place.mkdir(mode=0o700)
    monkeypatch.setenv("CACHEHOME_STORE", str(place))
    monkeypatch.setenv("CACHEHOME", str(tmp_path / "node"))
    return place


def fill(store: Path, *names: str) -> list[str]:
    """A build for each name; their hashes."""
    builds = []
    for name in names:
        live = store.parent / name
        (live / "ab").mkdir(parents=True)
        (live / "ab" / "c.best_config").write_text("{}")
        who = Identity({"test": name}, {"name": "default"})
        settings = Settings(store=(str(store),), enabled=str(store.parent / "node"))
        assert publish(settings, who, {"inductor": str(live)}, adopt=True).outcome == "hit"
        builds.append(who.build_key)
    return sorted(builds)


@pytest.mark.parametrize("verb", ["ls", "verify", "prune"])
def test_no_build_begins_so(verb: str, store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    builds = fill(store, "a", "b")
    assert cli.main([verb, "zz"]) == 1
    told = capsys.readouterr()
    there = ", ".join(build[:8] for build in builds)
    assert told.out == ""
    assert told.err.splitlines()[-1] == f"cachehome: no build begins with zz (there are 2: {there})"
    assert cli.main(["ls", builds[0][:6]]) == 0
    assert builds[0][:16] in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "told"), [(["unpin"], "nothing is pinned in"), (["unquarantine"], "nothing is denied in")]
)
def test_nothing_to_list(
    words: list[str], told: str, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for filled in (False, True):
        if filled:
            fill(store, "a")
        assert cli.main(words) == 3
        assert capsys.readouterr().err == f"cachehome: {told} file://{store}\n"


def test_a_store_with_nothing_in_it(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("ls", "verify", "prune"):
        assert cli.main([verb, "zz"]) == 3
    assert "nothing in" in capsys.readouterr().err


def test_a_profile_of_several_builds(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`PROFILE/NUMBER` is enough where there is one build; where there are more, the line has a build to name."""
    one = fill(store, "a")[0]
    assert cli.main(["show", "default/1"]) == 0
    fill(store, "b")
    capsys.readouterr()
    assert cli.main(["show", "default/1"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "the store holds 2 builds, and default is a profile of " in line
    assert one[:8] in line
    assert cli.main(["show", line.rpartition(" ")[2]]) == 0


def test_all_that_is_denied_is_a_miss(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fill(store, "a")
    who = Identity({"test": "a"}, {"name": "default"})
    settings = Settings(store=(str(store),), enabled=str(store.parent / "node"))
    assert cli.main(["quarantine", "1"]) == 0
    record = restore(settings, who, {"inductor": str(store.parent / "elsewhere")})
    assert (record.outcome, record.reason, record.entries) == ("miss", "all_denied", 0)
    assert "of 1 entries 1 are denied: `cachehome unquarantine` lists the denials" in record.line()


def test_a_build_alone_differs_from_no_profile(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    document = tmp_path / "identity.json"
    document.write_text(Identity({"test": "a"}, {"name": "default"}).to_json())
    fill(store, "a")
    assert cli.main(["why", "--identity", str(document)]) == 3
    assert capsys.readouterr().err.splitlines()[-1].startswith("cachehome: one identity")
