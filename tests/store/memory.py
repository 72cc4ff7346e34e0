"""A backend in memory, with a clock of its own."""

from __future__ import annotations

from cachehome.errors import NotInStore


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
