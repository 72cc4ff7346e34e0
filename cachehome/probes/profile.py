"""stub"""
from __future__ import annotations
import os
from typing import Any

def of(settings: Any, job: Any, *, named: str, has_command: bool) -> tuple[dict[str, Any], dict[str, str]]:
    if named and named != "auto":
        return {"name": named}, {}
    if not has_command:
        return {"name": "default"}, {}
    return {"command": [os.path.basename(a) for a in job.argv]}, {}
