"""Owns the talk with NVML, by ctypes: driver, and each device's name, compute capability and number of SMs.

NVML makes no context and does not count as use of CUDA, so that a process may fork after it. It has no call for the
number of SMs of a whole device; that is its number of cores by the cores in an SM, which the capability says.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from cachehome.probes import ABSENT, ProbeError, value

if TYPE_CHECKING:
    import ctypes

LIBRARIES = ("libnvidia-ml.so.1",)
_CORES_PER_SM = {
    (5, 0): 128, (5, 2): 128, (5, 3): 128, (6, 0): 64, (6, 1): 128, (6, 2): 128, (7, 0): 64, (7, 2): 64, (7, 5): 64,
    (8, 0): 64, (8, 6): 128, (8, 7): 128, (8, 9): 128, (9, 0): 128, (10, 0): 128, (10, 3): 128, (11, 0): 128,
    (12, 0): 128, (12, 1): 128,
}  # fmt: skip
_ERRORS = {
    1: "uninitialized", 2: "invalid argument", 3: "not supported", 4: "no permission", 6: "not found",
    9: "driver not loaded", 10: "timeout", 12: "library not found", 13: "function not found", 15: "GPU is lost",
    17: "operating system", 18: "driver and library differ in version", 999: "unknown",
}  # fmt: skip
_NOT_SUPPORTED, _NO_DRIVER, _NOT_FOUND = 3, 9, 6
_NAME_LENGTH = 96


class NoLibraryError(Exception):
    """NVML is not installed: there is no NVIDIA driver here, or none for this container."""


class NvmlError(ProbeError):
    """NVML answered with an error."""

    def __init__(self, function: str, code: int) -> None:
        super().__init__(f"NVML {function}: {_ERRORS.get(code, code)}")
        self.code = code


class Device:
    """One device, or one MIG instance. `kind` is all of it that machine code depends on."""

    __slots__ = ("kind", "uuid")

    def __init__(self, uuid: str, kind: str) -> None:
        self.uuid = uuid
        self.kind = kind


class Report:
    """What NVML says of this machine."""

    __slots__ = ("devices", "driver")

    def __init__(self, driver: str, devices: list[Device]) -> None:
        self.driver = driver
        self.devices = devices


def read() -> Report:
    """Ask NVML. `NoLibraryError` where there is none, `NvmlError` where it can't answer."""
    import ctypes

    library = _load()
    call = _Caller(library)
    try:
        call("nvmlInit_v2")
    except NvmlError as error:
        if error.code == _NO_DRIVER:
            raise NoLibraryError from None  # a library without its kernel module, as in many images
        raise
    try:
        driver = call.text("nvmlSystemGetDriverVersion")
        count = ctypes.c_uint()
        call("nvmlDeviceGetCount_v2", ctypes.byref(count))
        devices = []
        for index in range(count.value):
            handle = ctypes.c_void_p()
            call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
            devices += _device(call, handle)
        return Report(driver, devices)
    finally:
        call.function("nvmlShutdown")()


def kernel_driver(root: str = "/") -> str:
    """The version of NVIDIA's kernel module, `absent` if it is not loaded."""
    try:
        with open(
            os.path.join(root, "proc/driver/nvidia/version"), encoding="ascii", errors="replace"
        ) as file:
            match = re.search(r"Module\s+(?:for \S+\s+)?(\d[\d.]+)", file.read())
    except OSError:
        return ABSENT
    return match[1] if match else "error: no version in /proc/driver/nvidia/version"


def _load() -> ctypes.CDLL:
    import ctypes

    for name in LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise NoLibraryError


class _Caller:
    """Calls functions of the library by name; an error code becomes an `NvmlError`."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def function(self, name: str) -> ctypes._NamedFuncPointer:
        try:
            return getattr(self._library, name)  # type: ignore[no-any-return]
        except AttributeError:
            raise ProbeError(f"NVML has no {name}") from None

    def __call__(self, name: str, *arguments: object) -> None:
        code = self.function(name)(*arguments)
        if code:
            raise NvmlError(name, code)

    def text(self, name: str, *arguments: object) -> str:
        import ctypes

        buffer = ctypes.create_string_buffer(_NAME_LENGTH)
        self(name, *arguments, buffer, ctypes.c_uint(_NAME_LENGTH))
        return buffer.value.decode(errors="replace")


def _device(call: _Caller, handle: ctypes.c_void_p) -> list[Device]:
    """The device, or its MIG instances where it is cut into such."""
    major, minor = _capability(call, handle)
    instances = _instances(call, handle)
    if instances:
        return [
            Device(
                value(call.text, "nvmlDeviceGetUUID", instance),
                _kind(call, instance, major, minor, value(_instance_sms, call, instance)),
            )
            for instance in instances
        ]
    uuid = value(call.text, "nvmlDeviceGetUUID", handle)
    return [Device(uuid, _kind(call, handle, major, minor, value(_sms, call, handle, major, minor)))]


def _kind(call: _Caller, handle: ctypes.c_void_p, major: int, minor: int, sms: object) -> str:
    name = value(call.text, "nvmlDeviceGetName", handle)
    return f"{name}, sm_{major}{minor}, {sms} SMs"


def _capability(call: _Caller, handle: ctypes.c_void_p) -> tuple[int, int]:
    import ctypes

    major, minor = ctypes.c_int(), ctypes.c_int()
    call("nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor))
    return major.value, minor.value


def _sms(call: _Caller, handle: ctypes.c_void_p, major: int, minor: int) -> int | str:
    import ctypes

    cores = ctypes.c_uint()
    call("nvmlDeviceGetNumGpuCores", handle, ctypes.byref(cores))
    per_sm = _CORES_PER_SM.get((major, minor))
    # A capability that this table does not know yet: the cores tell two devices apart as well.
    return cores.value // per_sm if per_sm else f"{cores.value} cores in unknown"


def _instances(call: _Caller, handle: ctypes.c_void_p) -> list[ctypes.c_void_p]:
    import ctypes

    current, pending, count = ctypes.c_uint(), ctypes.c_uint(), ctypes.c_uint()
    try:
        call("nvmlDeviceGetMigMode", handle, ctypes.byref(current), ctypes.byref(pending))
        if not current.value:
            return []
        call("nvmlDeviceGetMaxMigDeviceCount", handle, ctypes.byref(count))
    except NvmlError as error:
        if error.code == _NOT_SUPPORTED:
            return []
        raise
    found = []
    for index in range(count.value):
        instance = ctypes.c_void_p()
        try:
            call("nvmlDeviceGetMigDeviceHandleByIndex", handle, ctypes.c_uint(index), ctypes.byref(instance))
        except NvmlError as error:
            if error.code == _NOT_FOUND:
                continue
            raise
        found.append(instance)
    return found


def _instance_sms(call: _Caller, handle: ctypes.c_void_p) -> int:
    import ctypes

    # nvmlDeviceAttributes_t: multiprocessorCount comes first, eight more of its size, then memorySizeMB.
    attributes = (ctypes.c_ulonglong * 16)()
    call("nvmlDeviceGetAttributes_v2", handle, ctypes.byref(attributes))
    return int(ctypes.cast(attributes, ctypes.POINTER(ctypes.c_uint))[0])
