"""A state machine: publishers, collectors, people and crashes in any order and at any call, against a model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from memory import MemoryBackend

from cachehome.errors import StoreError
from cachehome.store import gc, marks
from cachehome.store.compact import compact
from cachehome.store.lab import BUILD, Lab, check
from cachehome.store.manifest import Manifest
from cachehome.store.scripted import Fault, Scripted
from cachehome.store.store import Store

RULES = gc.Rules(keep_generations=2, keep_seconds=100.0, keep_idle_seconds=10_000.0, writer_seconds=50.0)
FOREVER = 1e12

profiles = st.sampled_from(["p", "q"])
files = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from("123"), min_size=1, max_size=3)
places = st.integers(0, 25)


def content(store: Store, manifest: Manifest) -> dict[str, str]:
    """name -> value, by the sha256 of what `files` may hold."""
    import hashlib

    values = {hashlib.sha256(value.encode()).hexdigest(): value for value in "123"}
    return {entry.name: values[entry.files[0].sha256] for entry in manifest.entries.values()}


class Model(RuleBasedStateMachine):
    """`held`: what each profile's newest generation must hold, at least. `denied`: by label, (name, value)."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = MemoryBackend()
        self.lab = Lab(self.memory)
        self.held: dict[str, dict[str, str]] = {"p": {}, "q": {}}
        self.seen: dict[str, int] = {"p": 0, "q": 0}
        self.nonces: dict[tuple[str, str, int], str] = {}
        self.reading: list[tuple[float, Manifest]] = []
        self.denied: dict[str, set[tuple[str, str]]] = {}
        self.pinned: dict[str, Manifest] = {}

    # -- what people and processes do --------------------------------------------------------------------------

    @rule(profile=profiles, added=files)
    def publish(self, profile: str, added: dict[str, str]) -> None:
        self._publish(profile, added)

    @rule(profile=profiles, added=files, rival=files, at=places)
    def publish_beside_a_rival(
        self, profile: str, added: dict[str, str], rival: dict[str, str], at: int
    ) -> None:
        self._publish(profile, added, Fault("call", at, "", lambda: self._publish(profile, rival)))

    @rule(profile=profiles, added=files, at=places, apart=places)
    def publish_beside_a_collector(self, profile: str, added: dict[str, str], at: int, apart: int) -> None:
        plan = gc.plan(self.lab.store, BUILD, RULES)
        self._publish(profile, added, Fault("call", at, "", lambda: gc.apply(self.lab.store, plan)))

    @rule(profile=profiles, added=files, at=places, how=st.sampled_from(["before", "after", "lost"]))
    def publish_and_fail(self, profile: str, added: dict[str, str], at: int, how: str) -> None:
        before = dict(self.held[profile])
        try:
            self._publish(profile, added, Fault(how, at))
        except StoreError:
            self._may_hold(profile, before, added)

    @rule(at=places)
    def prune_and_fail(self, at: int) -> None:
        with contextlib.suppress(StoreError):
            gc.prune(Store(Scripted(self.memory, Fault("before", at))), BUILD, RULES)

    @rule(profile=profiles, added=files, at=places)
    def prune_beside_a_publisher(self, profile: str, added: dict[str, str], at: int) -> None:
        fault = Fault("call", at, "", lambda: self._publish(profile, added))
        gc.prune(Store(Scripted(self.memory, fault)), BUILD, RULES)

    @rule(profile=profiles, added=files, at=places)
    def compact_beside_a_publisher(self, profile: str, added: dict[str, str], at: int) -> None:
        fault = Fault("call", at, "", lambda: self._publish(profile, added))
        compact(Store(Scripted(self.memory, fault)), BUILD, deadline=FOREVER)
        # It leaves behind what is denied, unless that has come since.
        for name, values in self.held.items():
            now = self._newest(name)
            for key in [
                key for key, value in values.items() if key not in now and self._is_denied(key, value)
            ]:
                del values[key]

    @rule(seconds=st.sampled_from([1.0, 60.0, 110.0]))
    def time_passes(self, seconds: float) -> None:
        self.memory.now += seconds
        for profile in self.held:  # in use
            if self.lab.numbers(profile):
                self.memory.put(f"cachehome-v1/{BUILD}/profiles/{profile}/used", b"")

    @rule()
    def everybody_is_away_for_long(self) -> None:
        self.memory.now += 50_000
        for _ in range(3):
            gc.prune(self.lab.store, BUILD, RULES)
            self.memory.now += 150
        for profile in self.held:
            assert self.lab.numbers(profile) == []
            self.held[profile] = {}
            self.seen[profile] = 0
        assert self.lab.store.packs(BUILD) == {p.sha256 for m in self.pinned.values() for p in m.packs}

    @rule(profile=profiles, data=st.data())
    def pin(self, profile: str, data: st.DataObject) -> None:
        numbers = self.lab.numbers(profile)
        if numbers:
            label = next(f"pin{n}" for n in range(len(self.pinned) + 1) if f"pin{n}" not in self.pinned)
            number = data.draw(st.sampled_from(numbers))
            try:
                assert self.lab.store.pin(BUILD, profile, number, label)
            except StoreError:
                return  # damaged
            self.pinned[label] = self.lab.store.read(BUILD, profile, number).manifest

    @precondition(lambda self: self.pinned)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        label = data.draw(st.sampled_from(sorted(self.pinned)))
        self.lab.store.unpin(BUILD, label)
        del self.pinned[label]

    @rule(profile=profiles, data=st.data(), later=st.booleans())
    def deny(self, profile: str, data: st.DataObject, later: bool) -> None:
        generations = list(self.lab.store.generations(BUILD, profile))
        if not generations:
            return
        number = data.draw(st.sampled_from([generation.number for generation in generations]))
        manifests = [generation.manifest for generation in generations]
        chosen: Callable[..., Any] = marks.after if later else marks.introduced
        rows = chosen(manifests, number)
        label = f"list{len(self.denied)}"
        self.lab.store.deny(BUILD, marks.Denied(label, marks.QUARANTINE, rows))
        values = {
            (name, content(self.lab.store, manifest)[name])
            for manifest in manifests
            for (_, name), entry in manifest.entries.items()
            if (entry.since > number if later else entry.since == number)
        }
        self.denied[label] = values

    @precondition(lambda self: any(self.denied.values()))
    @rule(data=st.data())
    def allow(self, data: st.DataObject) -> None:
        label = data.draw(st.sampled_from(sorted(self.denied)))
        self.lab.store.allow(BUILD, label)
        self.denied[label] = set()

    @rule(profile=profiles)
    def begin_to_read(self, profile: str) -> None:
        found = self.lab.store.newest(BUILD, profile)
        if found is not None:
            self.reading.append((self.memory.now, found.manifest))

    @rule(profile=profiles)
    def lose_current(self, profile: str) -> None:
        self.memory.delete(f"cachehome-v1/{BUILD}/profiles/{profile}/CURRENT")

    @rule()
    def a_killed_writer_leaves_something(self) -> None:
        self.memory.put(f"cachehome-v1/{BUILD}/packs/.tmp-{len(self.memory.names)}", b"x")

    # -- what must hold ----------------------------------------------------------------------------------------

    @invariant()
    def nothing_acknowledged_is_lost_and_readers_never_go_back(self) -> None:
        for profile, held in self.held.items():
            now = self._newest(profile)
            assert held.items() <= now.items(), profile
            numbers = self.lab.numbers(profile)
            assert max(numbers, default=0) >= self.seen[profile]
            self.seen[profile] = max(numbers, default=0)
            for number in numbers:
                manifest = self.lab.store.read(BUILD, profile, number).manifest
                key = (profile, manifest.line, number)
                assert self.nonces.setdefault(key, manifest.nonce) == manifest.nonce, (
                    "a number was used twice"
                )

    @invariant()
    def who_began_to_read_can_end_it(self) -> None:
        self.reading = [(t, m) for t, m in self.reading if self.memory.now - t < RULES.keep_seconds]
        for _, manifest in self.reading:
            check(self.lab.store, manifest)

    @invariant()
    def pins_are_whole(self) -> None:
        for manifest in self.pinned.values():
            check(self.lab.store, manifest)

    # -- the model ---------------------------------------------------------------------------------------------

    def _newest(self, profile: str) -> dict[str, str]:
        found = self.lab.store.newest(BUILD, profile)
        if found is None:
            return {}
        check(self.lab.store, found.manifest)
        return content(self.lab.store, found.manifest)

    def _is_denied(self, name: str, value: str) -> bool:
        return any((name, value) in values for values in self.denied.values())

    def _publish(self, profile: str, added: dict[str, str], *faults: Fault) -> None:
        before = dict(self.held[profile])
        store = Store(Scripted(self.memory, *faults))
        self.lab.publish(store, profile, seconds=FOREVER, **added)
        self._may_hold(profile, before, added)
        now = self.held[profile]
        for name, value in added.items():
            assert name in now or self._is_denied(name, value), "what was acknowledged is not there"

    def _may_hold(self, profile: str, before: dict[str, str], added: dict[str, str]) -> None:
        """Look at what is there, allow what can be, and hold it to that from now on."""
        now = self._newest(profile)
        for name, value in {**before, **self.held[profile]}.items():
            if self._is_denied(name, value):
                self.held[profile].pop(name, None)  # may have been replaced
            else:
                assert now.get(name) == value, f"{name} was lost or replaced"
        self.held[profile].update(now)


TestModel = Model.TestCase
TestModel.settings = settings(
    max_examples=60,
    stateful_step_count=25,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
