"""Retention and compaction."""

from __future__ import annotations

import contextlib
import time

import pytest
from memory import MemoryBackend

from cachehome.errors import NotInStore, StoreError, StoreUnavailable, Untrusted
from cachehome.settings import Settings
from cachehome.store import gc, marks
from cachehome.store.compact import compact, survey
from cachehome.store.lab import BUILD, Lab, check
from cachehome.store.scripted import Fault, Scripted
from cachehome.store.store import Store

DAY = 86_400.0
RULES = gc.Rules(keep_generations=2, keep_seconds=100.0, keep_idle_seconds=1000.0)
ROOT = f"cachehome-v1/{BUILD}"


def many(lab: Lab, count: int, profile: str = "p") -> None:
    for number in range(count):
        lab.publish(profile=profile, **{f"{profile}{number}": "x" * number})


def test_a_grace_period_outlasts_a_publication_and_a_restore() -> None:
    """Else a collector might delete what somebody is about to name, or is reading."""
    assert gc.Rules.of(Settings()) == gc.Rules(2, 86_400.0, 2_592_000.0, 3600.0)
    short = {"keep_seconds": 1.0, "keep_idle_seconds": 2.0}
    assert gc.Rules.of(Settings(**short)) == gc.Rules(2, 1.0, 2.0, 3600.0)  # as told
    assert gc.Rules.of(Settings(**short), at_least=gc.longest(Settings())) == gc.Rules(
        2, 600.0, 600.0, 3600.0
    )
    for key in ("publish_budget_seconds", "exit_timeout_seconds", "store_timeout_seconds"):
        settings = Settings(**short, **{key: 7000.0})
        rules = gc.Rules.of(settings, at_least=gc.longest(settings))
        assert rules == gc.Rules(2, 7000.0, 7000.0, 14_000.0)


def test_young_generations_stay_whatever_their_number(lab: Lab) -> None:
    many(lab, 5)
    assert gc.plan(lab.store, BUILD, RULES).empty


def test_the_newest_stay_whatever_their_age(lab: Lab, memory: MemoryBackend) -> None:
    many(lab, 5)
    memory.now += 200
    plan = gc.plan(lab.store, BUILD, RULES)
    assert [item.name[-8:] for item in plan.generations] == ["00000001", "00000002", "00000003"]
    assert lab.numbers() == [1, 2, 3, 4, 5]  # a plan is only a plan
    gc.apply(lab.store, plan)
    assert lab.numbers() == [4, 5]
    lab.whole()


def test_a_young_stray_below_keeps_what_is_above_it(lab: Lab, memory: MemoryBackend) -> None:
    many(lab, 6)
    memory.delete(f"{ROOT}/profiles/p/generations/00000002")
    memory.now += 200
    memory.put(f"{ROOT}/profiles/p/generations/00000002", b"a stray")
    gc.prune(lab.store, BUILD, RULES)
    assert lab.numbers() == [2, 3, 4, 5, 6]


def test_generations_that_can_not_be_read_do_not_count(lab: Lab, memory: MemoryBackend) -> None:
    many(lab, 5)
    for number in (4, 5):
        memory.names[f"{ROOT}/profiles/p/generations/{number:08d}"] = (b"?", 0.0)
    memory.now += 200
    gc.prune(lab.store, BUILD, RULES)
    assert lab.numbers() == [2, 3, 4, 5]
    lab.whole()


def test_a_mark_on_a_named_pack_is_taken_off(lab: Lab, memory: MemoryBackend) -> None:
    lab.publish(a="1")
    memory.put(f"{ROOT}/condemned/{lab.pack('p', 'a')}", b"")
    memory.now += 200
    gc.prune(lab.store, BUILD, RULES)
    assert memory.list(f"{ROOT}/condemned") == []
    lab.whole()


def test_another_profile_or_a_pin_keeps_a_pack(lab: Lab, memory: MemoryBackend) -> None:
    lab.publish(a="1")
    lab.publish(profile="q", a="1")
    pack = lab.pack("p", "a")
    lab.publish(profile="r", z="9")
    pinned = lab.pack("r", "z")
    assert lab.store.pin(BUILD, "r", 1, "release")
    lab.publish(profile="r", b="2", lost=(pinned,))
    for _ in range(5):
        memory.now += 400
        memory.put(f"{ROOT}/profiles/q/used", b"")
        gc.prune(lab.store, BUILD, RULES)
    assert lab.store.profiles(BUILD) == ["q"]
    assert lab.store.packs(BUILD) == {pack, pinned}
    check(lab.store, lab.store.pins(BUILD)["release"].manifest)
    assert lab.store.find(BUILD, "r", 1).number == 1
    lab.store.unpin(BUILD, "release")
    for _ in range(2):
        memory.now += 400
        memory.put(f"{ROOT}/profiles/q/used", b"")
        gc.prune(lab.store, BUILD, RULES)
    assert lab.store.packs(BUILD) == {pack}


def test_an_idle_build_goes_whole(lab: Lab, memory: MemoryBackend) -> None:
    lab.store.add_identity(BUILD, "p", b"{}", b"{}")
    many(lab, 3)
    lab.store.touch(BUILD, "p")
    lab.store.deny(BUILD, marks.Denied("x", marks.QUARANTINE, frozenset({("f", "n", "d")})))
    memory.put(f"{ROOT}/packs/.tmp-1", b"left")
    for _ in range(3):
        memory.now += 5000
        gc.prune(lab.store, BUILD, RULES)
    assert memory.names == {}


def test_a_profile_in_use_stays(lab: Lab, memory: MemoryBackend) -> None:
    many(lab, 1)
    for _ in range(5):
        memory.now += 900
        lab.store.backend.put(f"{BUILD}/profiles/p/used", b"")
        gc.prune(lab.store, BUILD, RULES)
    assert lab.numbers() == [1]
    lab.whole()


def test_a_profile_that_is_used_again_after_the_plan_stays(lab: Lab, memory: MemoryBackend) -> None:
    many(lab, 2)
    memory.now += 5000
    plan = gc.plan(lab.store, BUILD, RULES)
    assert plan.idle == ("p",)
    lab.store.touch(BUILD, "p")
    gc.apply(lab.store, plan)
    assert lab.numbers() == [1, 2]
    lab.whole()


def test_uses_are_noted_once_a_day(lab: Lab, memory: MemoryBackend) -> None:
    backend = Scripted(memory)
    store = Store(backend)
    for _ in range(100):
        memory.now += DAY / 100
        store.touch(BUILD, "p")
    assert 1 <= backend.count("put") <= 3


def test_a_reader_that_may_not_write_goes_on(lab: Lab, memory: MemoryBackend) -> None:
    store = Store(Scripted(memory, Fault("before", 0, "put")))
    store.touch(BUILD, "p")


def test_what_killed_writers_left_goes(lab: Lab, memory: MemoryBackend) -> None:
    lab.publish(a="1")
    memory.put(f"{ROOT}/packs/.tmp-old", b"x" * 1000)
    memory.put(f"{ROOT}/profiles/p/generations/.tmp-old", b"x")
    memory.now += 4000
    memory.put(f"{ROOT}/packs/.tmp-young", b"x")
    lab.store.touch(BUILD, "p")
    plan = gc.plan(lab.store, BUILD, RULES)
    assert sum(item.bytes for item in plan.temporaries) == 1001
    gc.apply(lab.store, plan)
    assert memory.temporaries("") == {f"{ROOT}/packs/.tmp-young"}


def test_expired_lists_go(lab: Lab, memory: MemoryBackend) -> None:
    lab.publish(a="1")
    rows = frozenset({("f", "n", "d")})
    lab.store.deny(BUILD, marks.Denied("old", marks.EVICTED, rows, expires=time.time() - 1))
    lab.store.deny(BUILD, marks.Denied("new", marks.EVICTED, rows, expires=time.time() + 1000))
    memory.put(f"{ROOT}/denied/broken", b"?")
    gc.prune(lab.store, BUILD, RULES)
    assert sorted(memory.list(f"{ROOT}/denied")) == ["broken", "new"]


def test_manifests_that_we_may_not_read_stop_the_collection_of_packs(lab: Lab, memory: MemoryBackend) -> None:
    many(lab, 3)
    memory.now += 200

    def refuse(_: bytes) -> bytes:
        raise Untrusted("cannot read", reason="unreadable")

    private = Scripted(memory, Fault("answer", 0, "get", refuse, part="00000003", times=1000))
    plan = gc.plan(Store(private), BUILD, RULES)
    assert plan.condemn == ()


def test_two_collectors_at_once(lab: Lab, memory: MemoryBackend) -> None:
    many(lab, 6)
    memory.now += 200
    plans = [gc.plan(lab.store, BUILD, RULES) for _ in range(2)]
    for plan in plans:
        gc.apply(lab.store, plan)
    assert lab.numbers() == [5, 6]
    lab.whole()


def test_publishers_take_turns_once_a_day(lab: Lab, memory: MemoryBackend) -> None:
    many(lab, 5)
    assert not lab.store.take_turn_to_prune(BUILD)
    memory.now += 2 * DAY
    assert [lab.store.take_turn_to_prune(BUILD) for _ in range(2)] == [True, False]


def test_a_failing_prune_fails_as_a_store_does(lab: Lab, memory: MemoryBackend) -> None:
    """Then the publication that it is a part of goes on."""
    many(lab, 5)
    assert not lab.store.take_turn_to_prune(BUILD)
    memory.now += 2 * DAY
    for at in range(40):
        store = Store(Scripted(memory, Fault("before", at)))
        with contextlib.suppress(StoreError):
            if store.take_turn_to_prune(BUILD):
                gc.prune(store, BUILD, RULES)
    lab.whole()


# -- compaction -------------------------------------------------------------------------------------------------


def run(lab: Lab, **options: object) -> object:
    return compact(lab.store, BUILD, deadline=time.monotonic() + 30, **options)


def test_many_packs_become_one_an_origin(lab: Lab, memory: MemoryBackend) -> None:
    many(lab, 8)
    many(lab, 3, "q")
    before = {profile: lab.names(profile) for profile in ("p", "q")}
    assert run(lab) is not None
    for profile, names in before.items():
        assert lab.names(profile) == names
        lab.whole(profile)
        found = lab.store.newest(BUILD, profile)
        assert found is not None
        assert len(found.manifest.packs) == 1
        assert {e.since for e in found.manifest.entries.values()} == set(range(1, len(names) + 1))
    assert survey(lab.store, BUILD) is None
    assert run(lab) is None


def test_generations_before_a_compacted_one_stay_for_their_age_only(lab: Lab, memory: MemoryBackend) -> None:
    many(lab, 5)
    run(lab)
    for _ in range(3):
        memory.now += 150
        gc.prune(lab.store, BUILD, RULES)
    assert lab.numbers() == [6]
    assert len(lab.store.packs(BUILD)) == 1
    lab.whole()


def test_a_bound_drops_what_was_used_longest_ago_and_it_does_not_come_back(
    lab: Lab, memory: MemoryBackend
) -> None:
    noise = {f"e{n}": "".join(chr(33 + (n * 37 + i * i) % 90) for i in range(3000)) for n in range(8)}
    for name, content in noise.items():
        lab.publish(**{name: content})
    lab.publish(profile="busy", e0=noise["e0"])
    memory.now += 500
    lab.store.backend.put(f"{BUILD}/profiles/busy/used", b"")
    lab.store.backend.put(f"{BUILD}/profiles/p/used", b"")
    memory.now += 100
    lab.store.backend.put(f"{BUILD}/profiles/busy/used", b"")
    total = sum(pack.size for pack in lab.store.newest(BUILD, "p").manifest.packs)  # type: ignore[union-attr]
    done = run(lab, limit=total // 2, deny_seconds=1000.0)
    left = lab.names()
    assert "e0" in left  # the busy profile uses it
    assert "e7" in left
    assert "e1" not in left  # introduced first
    dropped = {f"e{n}" for n in range(8)} - left
    assert {name for _, name, _ in done.dropped} == dropped  # type: ignore[attr-defined]
    lab.whole()
    lab.whole("busy")
    for name in dropped:  # a live directory that still holds them
        _generation, ours = lab.publish(**{name: noise[name]})
        assert not ours
    assert lab.names() == left
    lab.publish(e1="other bytes")
    assert "e1" in lab.names()
    assert not lab.store.denied(BUILD).bad(next(iter(done.dropped)))  # type: ignore[attr-defined]


def test_what_comes_while_packs_are_written_is_kept(lab: Lab, memory: MemoryBackend) -> None:
    many(lab, 4)
    store = Store(Scripted(memory, Fault("call", 0, "put_new", lambda: lab.publish(late="1"))))
    compact(store, BUILD, deadline=time.monotonic() + 30)
    assert "late" in lab.names()
    lab.whole()


def test_a_line_with_a_lost_pack_is_not_compacted(lab: Lab, memory: MemoryBackend) -> None:
    many(lab, 4)
    memory.delete(f"{ROOT}/packs/{lab.pack('p', 'p1')}.tar.zst")
    assert run(lab) is None


def test_damage_is_not_carried_on(lab: Lab, memory: MemoryBackend) -> None:
    many(lab, 4)
    name = f"{ROOT}/packs/{lab.pack('p', 'p1')}.tar.zst"
    data = bytearray(memory.get(name))
    data[-1] ^= 1
    memory.put(name, bytes(data))
    from cachehome.errors import IntegrityError

    with pytest.raises(IntegrityError):
        run(lab)
    assert lab.numbers() == [1, 2, 3, 4]


# -- faults -----------------------------------------------------------------------------------------------------


def test_every_call_of_a_prune_may_fail() -> None:
    """Whatever fails, or is done and answered with an error: what is kept can be read, and the next prune ends it."""
    cases = 0
    for how in ("before", "after"):
        at = 0
        while True:
            memory = MemoryBackend()
            lab = Lab(memory)
            many(lab, 4)
            lost = lab.pack("p", "p0")
            lab.publish(last="1", lost=(lost,))
            lab.publish(one_more="1")
            lab.publish(profile="idle", a="1")
            memory.now += 200
            gc.prune(lab.store, BUILD, RULES)
            memory.now += 950
            memory.put(f"{ROOT}/profiles/p/used", b"")
            backend = Scripted(memory, Fault(how, at))
            try:
                gc.prune(Store(backend), BUILD, RULES)
            except (StoreUnavailable, NotInStore):
                pass
            if backend.count() <= at:
                break
            cases += 1
            lab.whole()
            for _ in range(2):
                memory.now += 200
                gc.prune(lab.store, BUILD, RULES)
            assert lab.store.profiles(BUILD) == ["p"], at
            assert lost not in lab.store.packs(BUILD)
            lab.whole()
            at += 1
    assert cases > 80, cases
