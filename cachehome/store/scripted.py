"""A backend that does what a script says at chosen calls: fail, lose the answer, let others go first, be killed.

Drills and tests wrap the real backend in it, one wrapper for each party.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from cachehome.errors import NotInStore, StoreUnavailable
from cachehome.store.backend import Backend


class Fault:
    """What is to happen at call number *at* (from 0) of *verb* ("": of all verbs) on names that hold *part*.

    before   raise, and do nothing
    after    do it, and raise
    lost     do it, and say no (put_new), nothing (list), or that it is not there (get, size, age)
    call     call *then* before it is done: another party, at this very moment
    answer   do it, and answer what *then* makes of the answer
    kill     this process ends at once, before it is done

    *times*: so many calls in a row.
    """

    def __init__(
        self,
        how: str,
        at: int = 0,
        verb: str = "",
        then: Callable[..., Any] | None = None,
        *,
        part: str = "",
        times: int = 1,
    ) -> None:
        self.how, self.at, self.verb, self.then, self.part, self.times = how, at, verb, then, part, times
        self.seen = 0

    def __repr__(self) -> str:
        return f"{self.verb or 'call'} {self.at} {self.how}"

    def hits(self, verb: str, name: str) -> bool:
        """Count a call; whether it is the one."""
        if self.verb not in ("", verb) or self.part not in name:
            return False
        self.seen += 1
        return self.at < self.seen <= self.at + self.times

    def apply(self, verb: str, name: str, act: Callable[[], Any]) -> Any:
        """Do it."""
        if self.how == "before":
            raise StoreUnavailable(f"injected: {verb} {name}", name=name, errno=5)
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.how == "call" and self.then:
            self.then()
            return act()
        result = act()
        if self.how == "after":
            raise StoreUnavailable(f"injected after: {verb} {name}", name=name, errno=5)
        if self.how == "answer" and self.then:
            return self.then(result)
        if verb == "put_new":
            return False
        if verb in ("get", "size", "age"):
            raise NotInStore(f"injected: {name}", name=name)
        return type(result)() if verb in ("list", "temporaries") else result


class Scripted:
    """*backend*, with *faults*. `calls` logs (verb, name)."""

    def __init__(self, backend: Backend, *faults: Fault) -> None:
        self.backend = backend
        self.url = backend.url
        self.faults = list(faults)
        self.calls: list[tuple[str, str]] = []

    def count(self, verb: str = "") -> int:
        return sum(verb in ("", called) for called, _ in self.calls)

    def _call(self, verb: str, name: str, *args: Any) -> Any:
        self.calls.append((verb, name))
        hit = [fault for fault in self.faults if fault.hits(verb, name)]
        act: Callable[[], Any] = lambda: getattr(self.backend, verb)(name, *args)  # noqa: E731
        return hit[0].apply(verb, name, act) if hit else act()

    def get(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        data: bytes = self._call("get", name, offset, length)
        return data

    def put(self, name: str, source: str | bytes) -> None:
        self._call("put", name, source)

    def put_new(self, name: str, data: bytes) -> bool:
        return bool(self._call("put_new", name, data))

    def list(self, prefix: str) -> list[str]:
        found: list[str] = self._call("list", prefix)
        return found

    def delete(self, name: str) -> None:
        self._call("delete", name)

    def size(self, name: str) -> int:
        return int(self._call("size", name))

    def age(self, name: str) -> float:
        return float(self._call("age", name))

    def usage(self, prefix: str) -> tuple[int, int]:
        found: tuple[int, int] = self._call("usage", prefix)
        return found

    def temporaries(self, prefix: str) -> set[str]:
        found: set[str] = self._call("temporaries", prefix)
        return found


class Clock(Scripted):
    """*backend* by a clock that can be put forward: `now` seconds have passed that nobody waited for."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.now = 0.0
        self._made: dict[str, float] = {}

    def put(self, name: str, source: str | bytes) -> None:
        self.backend.put(name, source)
        self._made[name] = self.now

    def put_new(self, name: str, data: bytes) -> bool:
        made = self.backend.put_new(name, data)
        if made:
            self._made[name] = self.now
        return made

    def age(self, name: str) -> float:
        return self.backend.age(name) + self.now - self._made.get(name, 0.0)
