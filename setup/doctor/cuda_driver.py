"""Reads the version and the devices of NVIDIA's driver, through its library libcuda (CUDA driver API).

torch uses the same library. But torch reports one error for a missing driver, an old driver and a driver
without devices, and the checks must report which of these is the case.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

LIBRARY = "libcuda.so.1"
# Values of the enum CUdevice_attribute in cuda.h.
_COMPUTE_MODE, _MAJOR, _MINOR = 20, 75, 76
_NAME_BYTES = 96
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
COMPUTE_MODES = {0: "default", 2: "prohibited", 3: "exclusive"}


class DriverError(Exception):
    """The driver is missing or does not work. The message says why."""


@dataclass(frozen=True)
class Device:
    """A GPU.

    Attributes:
        name: the name of the product.
        capability: the compute capability, such as (9, 0).
        memory_bytes: size of its memory.
        compute_mode: one of COMPUTE_MODES.
    """

    name: str
    capability: tuple[int, int]
    memory_bytes: int
    compute_mode: str


@dataclass(frozen=True)
class Driver:
    """The driver of this machine.

    Attributes:
        cuda: the newest version of CUDA that the driver supports, such as (13, 0).
        devices: the GPUs that this process may use.
    """

    cuda: tuple[int, int]
    devices: tuple[Device, ...]


def read_driver(library: str = LIBRARY) -> Driver:
    """Returns the driver's CUDA version and its devices.

    Raises:
        DriverError: there is no driver, or it does not work.
    """
    try:
        cuda = ctypes.CDLL(library)
    except OSError as error:
        raise DriverError(f"{library} cannot be loaded: {error}") from error
    version = ctypes.c_int()
    _call(cuda, "cuDriverGetVersion", ctypes.byref(version))
    devices: list[Device] = []
    if _status(cuda, "cuInit", 0) != _NO_DEVICE:
        _call(cuda, "cuInit", 0)
        count = ctypes.c_int()
        _call(cuda, "cuDeviceGetCount", ctypes.byref(count))
        devices = [_device(cuda, ordinal) for ordinal in range(count.value)]
    return Driver((version.value // 1000, version.value % 1000 // 10), tuple(devices))


def _device(cuda: ctypes.CDLL, ordinal: int) -> Device:
    device, total = ctypes.c_int(), ctypes.c_size_t()
    _call(cuda, "cuDeviceGet", ctypes.byref(device), ordinal)
    name = ctypes.create_string_buffer(_NAME_BYTES)
    _call(cuda, "cuDeviceGetName", name, _NAME_BYTES, device)
    _call(cuda, "cuDeviceTotalMem_v2", ctypes.byref(total), device)

    def attribute(number: int) -> int:
        value = ctypes.c_int()
        _call(cuda, "cuDeviceGetAttribute", ctypes.byref(value), number, device)
        return value.value

    return Device(
        name.value.decode(errors="replace"),
        (attribute(_MAJOR), attribute(_MINOR)),
        total.value,
        COMPUTE_MODES.get(attribute(_COMPUTE_MODE), "unknown"),
    )


def _status(cuda: ctypes.CDLL, function: str, *arguments: object) -> int:
    return int(getattr(cuda, function)(*arguments))


def _call(cuda: ctypes.CDLL, function: str, *arguments: object) -> None:
    if (status := _status(cuda, function, *arguments)) != 0:
        text = ctypes.c_char_p()
        cuda.cuGetErrorString(status, ctypes.byref(text))
        reason = text.value.decode(errors="replace") if text.value else "unknown"
        raise DriverError(f"{function} of the driver returned {status}: {reason}")
