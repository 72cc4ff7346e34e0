"""How verbs are told which build, profile and generation is meant."""

from __future__ import annotations

from pathlib import Path

import pytest
from place import Place

from cachehome.commands.marking import numbered
from cachehome.commands.store_arguments import generation
from cachehome.errors import ConfigError, NotInStore
from cachehome.identity import Identity
from cachehome.store.lab import BUILD, Lab


def test_the_only_build_and_profile(lab: Lab) -> None:
    for name in "abc":
        lab.publish(**{name: name})
    for spec in ("", BUILD, BUILD[:8], "p", f"{BUILD[:5]}/p", "3", "p/3", f"{BUILD[:5]}/3", f"{BUILD}/p/3"):
        assert generation(lab.store, spec) == (BUILD, "p", 3), spec
    assert generation(lab.store, "2") == (BUILD, "p", 2)
    for spec in ("1", "p/1", f"{BUILD[:5]}/1", f"{BUILD}/p/00000001", f"/{BUILD}/p/1/"):
        assert numbered(lab.store, spec) == (BUILD, "p", 1), spec
    with pytest.raises(NotInStore, match="has no generation 99: it has 1 to 3"):
        generation(lab.store, "99")
    assert numbered(lab.store, "99") == (BUILD, "p", 99)  # it may be pinned
    with pytest.raises(ConfigError, match="does not end with the number"):
        numbered(lab.store, "p")
    for spec in ("nothing", "p/q", f"{BUILD}/p/q/1"):
        with pytest.raises(NotInStore):
            generation(lab.store, spec)


def test_several_profiles(lab: Lab) -> None:
    lab.publish(a="1")
    lab.publish(profile="2026", a="1")
    lab.publish(profile="2026", b="1")
    for spec in ("", "1", BUILD):
        with pytest.raises(NotInStore, match="2 profiles: say which one"):
            generation(lab.store, spec)
    assert generation(lab.store, "2026/1") == (BUILD, "2026", 1)
    assert generation(lab.store, "p/1") == (BUILD, "p", 1)
    assert generation(lab.store, f"{BUILD}/2026") == (BUILD, "2026", 2)


def test_an_empty_store(lab: Lab) -> None:
    for spec in ("", "1", "x/y"):
        with pytest.raises(NotInStore):
            generation(lab.store, spec)


def test_a_restore_of_a_generation_that_is_not_there(tmp_path: Path) -> None:
    from cachehome.sync.restore import restore

    place = Place(tmp_path).make()
    who = Identity({"test": 1}, {"name": "default"})
    for name in "ab":
        place.publish(name)
    for number, told in ((99, "there is 1 to 2"), (2, "")):
        record = restore(place.settings, who, {"inductor": str(place.live())}, number=number)
        assert record.outcome == ("miss" if told else "hit")
        assert told in record.line()
