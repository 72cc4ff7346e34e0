"""Growing files: what the store has stays, and a start that brings nothing new publishes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cachehome.identity import Identity
from cachehome.settings import Settings
from cachehome.sync.growing import LARGEST, merged, same
from cachehome.sync.publish import publish
from cachehome.sync.restore import restore


@pytest.mark.timeout(120)
def test_two_hosts_that_timed_the_same_do_not_take_turns(
    settings: Settings, identity: Identity, tmp_path: Path
) -> None:
    hosts = []
    for name, seconds in (("a", 1.0), ("b", 2.0), ("c", float("nan"))):
        directory = tmp_path / name
        (directory / "cache").mkdir(parents=True)
        timed = {"K": [seconds, {"thread count": "2"}], "mm": {"x": seconds}, "only": 1}
        (directory / "cache" / "0ab").write_text(json.dumps(timed))
        hosts.append({"inductor": str(directory)})
    assert publish(settings, identity, hosts[2], adopt=True).reason == "published"
    for _ in range(2):
        for host in hosts:
            restore(settings, identity, host)
            record = publish(settings, identity, host, adopt=True)
            assert (record.reason, record.generation) == ("unchanged", 1)


def test_theirs_stays_and_ours_is_added() -> None:
    def union(ours: object, theirs: object) -> object:
        found = merged(json.dumps(ours).encode(), json.dumps(theirs).encode())
        return found and json.loads(found)

    assert union({"a": 1, "b": 2}, {"a": 3}) == {"a": 3, "b": 2}
    assert union({"a": {"x": 1, "y": 2}}, {"a": {"x": 3}}) == {"a": {"x": 3, "y": 2}}
    assert union({"a": 1}, {"a": {"x": 3}}) == {"a": {"x": 3}}
    assert union([1], {"a": 1}) is None
    assert merged(b"model", b"{}") is None
    assert merged(b'{"a":' * 99_999, b"{}") is None
    for depth in (500, 900, 5000):
        deep = b'{"a":' * depth + b"1" + b"}" * depth
        found = merged(deep, deep)
        assert found is None or same(found, deep)


def test_a_union_does_not_grow_too_large() -> None:
    one, two = ((b'{"%s": 1}' % (letter * (LARGEST * 2 // 3))) for letter in (b"a", b"b"))
    assert merged(one, two) == two
    huge = b'{"%s": 1}' % (b"a" * LARGEST)
    assert merged(huge, b'{"b": 1}') == b'{"b": 1}'
    assert merged(b'{"b": 1}', huge) == huge


@pytest.mark.parametrize(("theirs", "ours"), [(30_000, 1), (1, 30_000)])
def test_a_union_that_is_longer_than_a_frame(
    settings: Settings, identity: Identity, tmp_path: Path, theirs: int, ours: int
) -> None:
    """More of them than fit the largest frame that a reader takes; and ours may be longer than one itself."""
    names = [f"{number:02}" * 20 for number in range(12)]
    for host, count in (("a", theirs), ("b", ours)):
        timed = json.dumps({f"{host}{number}": "x" * 200 for number in range(count)})
        (tmp_path / host / "cache").mkdir(parents=True)
        for name in names:
            (tmp_path / host / "cache" / name).write_text(timed)
        publish(settings, identity, {"inductor": str(tmp_path / host)}, adopt=True)
    record = restore(settings, identity, {"inductor": str(tmp_path / "copy")})
    assert (record.outcome, record.generation) == ("hit", 2)
    for name in names:
        assert len(json.loads((tmp_path / "copy" / "cache" / name).read_bytes())) == 30_001
