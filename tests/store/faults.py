"""Backends for tests: one in memory with a clock of its own, and one that wraps any other and misbehaves on command."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from cachehome.errors import NotInStore, StoreUnavailable
from cachehome.store.backend import Backend

VERBS = ("get", "put", "put_new", "list", "delete", "size", "age", "usage", "temporaries")


class MemoryBackend:
    """Names in a dict. `now` is its clock; nothing passes by itself."""

    url = "memory:"

    def __init__(self) -> None:
        self.names: dict[str, tuple[bytes, float]] = {}
        self.now = 0.0

    def _found(self, name: str) -> tuple[bytes, float]:
        try:
            return self.names[name]
        except KeyError:
            raise NotInStore(f"{name} is not in the store", name=name) from None

    def get(self, name: str, offset: int = 0, length: int | None = None) -> bytes:
        data = self._found(name)[0]
        return data[offset:] if length is None else data[offset : offset + length]

    def put(self, name: str, source: str | bytes) -> None:
        if isinstance(source, str):
            with open(source, "rb") as file:
                source = file.read()
        self.names[name] = (source, self.now)

    def put_new(self, name: str, data: bytes) -> bool:
        if name in self.names:
            return False
        self.names[name] = (data, self.now)
        return True

    def list(self, prefix: str) -> list[str]:
        start = f"{prefix}/" if prefix else ""
        below = {name[len(start) :].partition("/")[0] for name in self.names if name.startswith(start)}
        return [name for name in below if not name.startswith(".")]

    def delete(self, name: str) -> None:
        self.names.pop(name, None)

    def size(self, name: str) -> int:
        return len(self._found(name)[0])

    def age(self, name: str) -> float:
        return self.now - self._found(name)[1]

    def usage(self, prefix: str) -> tuple[int, int]:
        sizes = [len(data) for name, (data, _) in self.names.items() if name.startswith(f"{prefix}/")]
        return len(sizes), sum(sizes)

    def temporaries(self, prefix: str) -> set[str]:
        start = f"{prefix}/" if prefix else ""
        return {
            name
            for name in self.names
            if name.startswith(start) and name.rpartition("/")[2].startswith(".tmp-")
        }


class Fault:
    """What is to happen at call number *at* (from 0) of *verb* ("" counts all verbs).

    before   raise, and do nothing
    after    do it, and raise
    lost     do it, and say no (put_new), or say that it is not there (reads)
    call     call *then* before it is done: another process, at this very moment
    """

    def __init__(self, how: str, at: int = 0, verb: str = "", then: Callable[[], Any] | None = None) -> None:
        self.how, self.at, self.verb, self.then = how, at, verb, then

    def __repr__(self) -> str:
        return f"{self.verb or 'call'} {self.at} {self.how}"


class Faulty:
    """*backend*, with *faults*. `calls` logs (verb, name)."""

    def __init__(self, backend: Backend, *faults: Fault) -> None:
        self.backend = backend
        self.faults = list(faults)
        self.calls: list[tuple[str, str]] = []
        self.delay = 0.0

    def count(self, verb: str = "") -> int:
        return sum(verb in ("", called) for called, _ in self.calls)

    def __getattr__(self, verb: str) -> Any:
        target = getattr(self.backend, verb)
        if verb not in VERBS:
            return target

        def call(name: str, *args: Any) -> Any:
            hit = next((f for f in self.faults if f.verb in ("", verb) and f.at == self.count(f.verb)), None)
            self.calls.append((verb, name))
            if self.delay:
                time.sleep(self.delay)
            if hit is None:
                return target(name, *args)
            if hit.how == "call":
                assert hit.then is not None
                hit.then()
                return target(name, *args)
            if hit.how == "before":
                raise StoreUnavailable(f"injected: {verb} {name}", name=name, errno=5)
            result = target(name, *args)
            if hit.how == "after":
                raise StoreUnavailable(f"injected after: {verb} {name}", name=name, errno=5)
            if verb == "put_new":
                return False
            if verb in ("get", "size", "age"):
                raise NotInStore(f"injected: {name}", name=name)
            return type(result)() if verb in ("list", "temporaries") else result

        return call
