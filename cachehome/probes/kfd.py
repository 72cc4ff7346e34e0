"""Owns what Linux says of AMD GPUs: `/sys/class/kfd` for the devices, `/opt/rocm` for the version of ROCm."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from cachehome.probes import ABSENT

if TYPE_CHECKING:
    from collections.abc import Mapping

_NODES = "sys/class/kfd/kfd/topology/nodes"


def nodes(root: str = "/") -> list[str]:
    """The GPUs in the kernel's order, each as `gfx942, 304 CUs`. Processors are nodes, too, and left out."""
    directory = os.path.join(root, _NODES)
    try:
        numbers = sorted((name for name in os.listdir(directory) if name.isdigit()), key=int)
    except OSError:
        return []
    found = []
    for number in numbers:
        facts = _properties(os.path.join(directory, number, "properties"))
        target = facts.get("gfx_target_version", 0)
        if not target:
            continue  # a processor, or a device that this container may not read
        units = facts.get("simd_count", 0) // max(facts.get("simd_per_cu", 4), 1)
        name = f"gfx{target // 10000}{target // 100 % 100:x}{target % 100:x}"
        found.append(f"{name}, {units} CUs")
    return found


def driver(root: str = "/") -> str:
    """The version of the kernel module; the in-tree one has none of its own."""
    return _line(os.path.join(root, "sys/module/amdgpu/version"))


def rocm(environ: Mapping[str, str], root: str = "/") -> str:
    """The version of ROCm that `ROCM_PATH` or `/opt/rocm` holds."""
    place = environ.get("ROCM_PATH") or environ.get("ROCM_HOME") or os.path.join(root, "opt/rocm")
    return _line(os.path.join(place, ".info", "version"))


def _properties(path: str) -> dict[str, int]:
    facts = {}
    for line in _text(path).splitlines():
        name, _, number = line.partition(" ")
        if number.strip().isdigit():
            facts[name] = int(number)
    return facts


def _line(path: str) -> str:
    return _text(path).strip() or ABSENT


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""
