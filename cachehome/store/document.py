"""JSON as it stands in a store and in our notes: written in one way, read strictly.

Written: no blanks, UTF-8. Read: only what RFC 8259 allows, so neither NaN nor half a surrogate pair, nor what is
nested so deep that the reader would fall over it. The standard library's, since another costs a start 20 ms.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn


def write(document: Any) -> bytes:
    """The bytes of *document*. Raises ValueError, TypeError for what JSON can't say."""
    return _ENCODER.encode(document).encode()


def pieces(columns: Mapping[str, Any], digits: str | None = None) -> Iterator[bytes]:
    """The same of an object whose members are long, piece by piece, in a fraction of the memory. *digits*: the member
    that is a text with nothing to escape in it."""
    yield b"{"
    for number, (name, column) in enumerate(columns.items()):
        yield (b"," if number else b"") + write(name) + b":"
        if name == digits:
            yield from (b'"', column.encode("ascii"), b'"')
        elif type(column) is list and set(map(type, column)) == {int}:
            yield repr(column).replace(" ", "").encode()
        else:
            yield write(column)
    yield b"}"


def read(data: bytes | bytearray | memoryview) -> Any:
    """The document in *data*. Raises ValueError."""
    text = str(data, "utf-8")
    try:
        document = _DECODER.decode(text)
        if "\\" in text and ("\\ud" in text or "\\uD" in text):  # one letter is found much faster
            write(document)  # half a pair can't be encoded
    except RecursionError:
        raise ValueError("nested too deep") from None
    return document


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_DECODER = json.JSONDecoder(parse_constant=_no_constant)
