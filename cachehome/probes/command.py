"""stub"""
from __future__ import annotations
import os
from collections.abc import Mapping, Sequence

class Job:
    def __init__(self, python: str | None, options: Sequence[str], environ: Mapping[str, str], argv: Sequence[str], notes: dict[str, str]) -> None:
        self.python = python; self.options = options; self.environ = environ; self.argv = argv; self.notes = notes

    @classmethod
    def of_this_process(cls, environ: Mapping[str, str]) -> Job:
        return cls(None, (), environ, (), {})

def resolve(command: Sequence[str], environ: Mapping[str, str]) -> Job:
    return Job(None, (), environ, list(command), {})
