"""Owns the `python` and `machine` parts of a build: interpreter ABI, operating system, C library, class of CPU."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from cachehome.probes import ABSENT, ProbeError, value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def python() -> dict[str, str]:
    """Which extension modules and which bytecode this interpreter can use. Its patch level changes neither."""
    import _imp  # what importlib.machinery asks, at no cost

    suffixes = _imp.extension_suffixes()
    return {
        "implementation": sys.implementation.name,
        "version": f"{sys.version_info[0]}.{sys.version_info[1]}",
        "abi": suffixes[0].strip(".") if suffixes else ABSENT,
    }


def machine() -> dict[str, str]:
    """What native code is built against, the toolchain apart."""
    return {
        "system": sys.platform,
        "architecture": value(_architecture),
        "libc": value(_libc),
        "cpu": value(_cpu),
    }


def _architecture() -> str:
    if hasattr(os, "uname"):
        return os.uname().machine
    return os.environ.get("PROCESSOR_ARCHITECTURE", ABSENT)


def _libc() -> str:
    try:
        version = os.confstr("CS_GNU_LIBC_VERSION")
    except (AttributeError, ValueError, OSError):  # musl has no such name; macOS and Windows no such function
        version = None
    if version:
        return version
    loaders = (
        [name for name in os.listdir("/lib") if name.startswith("ld-musl-")] if os.path.isdir("/lib") else []
    )
    return "musl" if loaders else ABSENT


def _cpu() -> str:
    from cachehome import place

    features = place.cpu_features()
    if not features:
        raise ProbeError("nothing tells the features of this CPU")
    return place.cpu_class(features)


def host_tag(environ: Mapping[str, str], lent: Sequence[str] | None) -> str:
    """The host tag that this interpreter's own hook computes.

    *lent* is where this interpreter finds packages, if ours was lent to it: the torch beside ours is not its own.
    """
    from cachehome import place

    tag = place.host_tag(environ)
    if lent is None:
        return tag
    return f"{tag.partition('/')[0]}/torch-{place.plain(place.torch_version(lent))}"
