"""Owns the `gpu` part of a build: which accelerators the job sees, and by which driver. Never makes a context.

    {"vendor": "nvidia", "driver": "570.86.15", "models": ["NVIDIA H200, sm_90, 132 SMs"]}
    {"vendor": "amd", "driver": "6.10.5", "rocm": "6.3.1", "models": ["gfx942, 304 CUs"]}
    {"vendor": "none"}

Models are a set: two pods with other devices of one kind are the same build, whatever the index, order or number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cachehome.probes import ABSENT, failure, kfd, nvml

if TYPE_CHECKING:
    from collections.abc import Mapping

NONE = {"vendor": "none"}


def probe(environ: Mapping[str, str], root: str = "/") -> tuple[dict[str, Any], dict[str, str]]:
    """The part, and what was left out of it. *root* holds proc, sys and opt."""
    try:
        found = _nvidia(environ, root)
        if found[0] == NONE and not found[1]:
            found = _amd(environ, root)
        return found
    except Exception as error:  # a driver in an odd state is a value of its own
        return {"vendor": failure(error)}, {}


def visible(wanted: str | None, devices: list[nvml.Device]) -> list[nvml.Device] | None:
    """The *devices* that `CUDA_VISIBLE_DEVICES` lets CUDA see; None if it can't be told which.

    CUDA counts the fastest first, NVML by bus, so an index can be placed only where all devices are of one kind (the
    caller then has its answer whatever we say) or the order is by bus, too.
    """
    if wanted is None:
        return devices
    chosen: list[nvml.Device] = []
    for item in wanted.split(","):
        name = item.strip()
        if name.isdigit() and int(name) < len(devices):
            chosen.append(devices[int(name)])
            continue
        named = [
            device for device in devices if name.startswith(("GPU-", "MIG-")) and device.uuid.startswith(name)
        ]
        if len(named) != 1:
            break  # CUDA stops at the first that it does not know
        chosen.append(named[0])
    return chosen


def _nvidia(environ: Mapping[str, str], root: str) -> tuple[dict[str, Any], dict[str, str]]:
    try:
        report = nvml.read()
    except nvml.NoLibraryError:
        driver = nvml.kernel_driver(root)
        if driver == ABSENT:
            return NONE, {}
        # The kernel module is there without its library: a container that was started without the GPU's files.
        return {
            "vendor": "nvidia",
            "driver": driver,
            "models": "error: libnvidia-ml.so.1 is not installed",
        }, {}
    if not report.devices:
        return NONE, {}
    wanted = environ.get("CUDA_VISIBLE_DEVICES")
    kinds = {device.kind for device in report.devices}
    seen = report.devices
    left_out = {}
    if wanted is not None:
        by_index = any(item.strip().isdigit() for item in wanted.split(","))
        ordered = environ.get("CUDA_DEVICE_ORDER", "") == "PCI_BUS_ID"
        chosen = visible(wanted, report.devices) or []
        left_out["gpu.index"] = "which devices are visible is not in the key, only of which kinds they are"
        if not chosen:
            return NONE, {"gpu.hidden": "CUDA_VISIBLE_DEVICES hides every device"}
        if len(kinds) > 1 and by_index and not ordered:
            left_out["gpu.index"] = (
                "an index does not say which of several kinds is visible: all kinds are in the key;"
                " CUDA_DEVICE_ORDER=PCI_BUS_ID mends that"
            )
        else:
            seen = chosen
    models = sorted({device.kind for device in seen})
    return {"vendor": "nvidia", "driver": report.driver, "models": models}, left_out


def _amd(environ: Mapping[str, str], root: str) -> tuple[dict[str, Any], dict[str, str]]:
    nodes = kfd.nodes(root)
    if not nodes:
        return NONE, {}
    wanted = next(
        (
            environ[name]
            for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
            if name in environ
        ),
        None,
    )
    seen = nodes
    left_out = {}
    if wanted is not None:
        left_out["gpu.index"] = "which devices are visible is not in the key, only of which kinds they are"
        chosen = []
        for item in wanted.split(","):
            name = item.strip()
            if name.isdigit() and int(name) < len(nodes):
                chosen.append(nodes[int(name)])
            elif name.startswith("GPU-"):
                chosen = nodes
            else:
                break
        if not chosen:
            return NONE, {"gpu.hidden": "every device is hidden"}
        seen = chosen
    part = {
        "vendor": "amd",
        "driver": kfd.driver(root),
        "rocm": kfd.rocm(environ, root),
        "models": sorted(set(seen)),
    }
    return part, left_out
