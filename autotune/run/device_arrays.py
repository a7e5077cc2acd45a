"""Arrays of other libraries on a device, as far as a kernel has to know them: address, dtype, shape, strides,
device, and the stream on which they are ready.

Read are torch tensors, ``__cuda_array_interface__`` (version 3, with its ``stream``), and DLPack; nothing is
copied, nothing waits.
"""

from __future__ import annotations

import ctypes
import sys
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from autotune.errors import ArgumentError
from autotune.run.torch_calls import refuse_gradient
from schedules.dtypes import DTYPES
from schedules.strides import MemoryLayout

CPU, CUDA = 1, 2  # device types of DLPack
DEVICES = {1: "cpu", 2: "cuda", 3: "cuda_host", 4: "opencl", 7: "vulkan", 8: "metal", 10: "rocm"}
DEVICES |= {11: "rocm_host", 13: "cuda_managed", 14: "oneapi"}
MANAGED = 13
LEGACY = 1  # the default stream, as the array interface and DLPack name it
PER_THREAD = 2  # the other default stream, of which each thread has its own


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """``strides``: in elements; None: row-major. ``device``: DLPack's type and number; None: its library does
    not tell. ``stream``: where what it holds
    is written, if its library tells."""

    address: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    device: tuple[int, int] | None
    readonly: bool = False
    stream: int | None = None


def is_told(x: Any) -> bool:
    """Whether an array may offer DLPack alone, which is told a stream and names none."""
    return not hasattr(type(x), "__cuda_array_interface__")


def read(x: Any, name: str, stream: int | None) -> DeviceArray | None:
    """What there is to know of ``x``; None for an array of the host, or for what is no array. ``stream``:
    where a DLPack array is to be ready. Raises ArgumentError."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return _of_torch(x, name)
    if isinstance(x, (np.ndarray, np.generic)):
        return None
    try:
        interface = getattr(x, "__cuda_array_interface__", None)
    except (AttributeError, RuntimeError, TypeError) as err:  # as torch has it for arrays of the host
        raise ArgumentError(f"{name} does not tell where it is: {err}") from None
    if interface is not None:
        return _of_interface(x, interface, name)
    if hasattr(type(x), "__dlpack__"):
        return of_dlpack(x, name, stream)
    return None


def shown(device: tuple[int, int]) -> str:
    """Such as "cuda:0"."""
    kind, index = device
    return "the CPU" if kind == CPU else f"{DEVICES.get(kind, f'device type {kind}')}:{index}"


def handle(stream: Any) -> int:
    """The driver's handle of a stream: an int, or a stream of torch, CuPy, numba or cuda.core. Raises
    ArgumentError."""
    for name in ("cuda_stream", "ptr", "handle"):
        value = getattr(stream, name, None)
        if value is not None:
            stream = getattr(value, "value", value)
            break
    else:
        ask = getattr(stream, "__cuda_stream__", None)
        if ask is not None:
            stream = ask()[1]
    try:
        return int(stream)
    except (TypeError, ValueError):
        raise ArgumentError(
            f"stream is a {type(stream).__name__}: give the handle of a stream, or a stream of torch or CuPy"
        ) from None


def current(x: Any) -> int | None:
    """The stream on which the library of ``x`` works now, where it keeps one."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        return int(torch.cuda.current_stream(x.device).cuda_stream) if x.is_cuda else 0
    return None


def empty_like(x: Any, layout: MemoryLayout, dtype: str) -> Any:
    """A new array of the library of ``x``, on its device. None where the library has no way to say it."""
    torch, shape = sys.modules.get("torch"), layout.shape
    if torch is not None and isinstance(x, torch.Tensor):
        return torch.empty_strided(shape, layout.steps, dtype=getattr(torch, dtype), device=x.device)
    if layout.strides is not None:
        return None
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(x, cupy.ndarray):
        with x.device:  # CuPy makes arrays on the device that is current, and has no other word for it
            return cupy.empty(shape, dtype)
    space = getattr(x, "__array_namespace__", None)
    if space is None:
        return None
    library = space()
    device = getattr(x, "device", None)
    options = {} if device is None else {"device": device}
    return library.empty(shape, dtype=getattr(library, dtype), **options)


def _of_torch(x: Any, name: str) -> DeviceArray | None:
    if x.requires_grad and sys.modules["torch"].is_grad_enabled():
        raise refuse_gradient(name)
    if x.is_neg() or x.is_conj() or x.layout.__repr__() != "torch.strided":
        raise ArgumentError(f"{name} is no plain tensor ({x.layout}): give x.resolve_neg().contiguous()")
    kind = {"cpu": CPU, "cuda": CUDA}.get(x.device.type, 0)
    return DeviceArray(
        x.data_ptr(), str(x.dtype).removeprefix("torch."), tuple(x.shape), tuple(x.stride()),
        (kind, x.device.index or 0),
    )  # fmt: skip


def _of_interface(x: Any, interface: Any, name: str) -> DeviceArray:
    try:
        shape = tuple(map(int, interface["shape"]))
        dtype, item = _dtype(interface["typestr"])
        address, readonly = interface["data"]
        strides, stream = interface.get("strides"), interface.get("stream")
        mask = interface.get("mask")
    except (KeyError, TypeError, ValueError) as err:
        raise ArgumentError(f"{name} has a damaged __cuda_array_interface__: {err!r}") from None
    if mask is not None:
        raise ArgumentError(f"{name} has a mask, which the kernel cannot see: give a filled array")
    if stream == 0:
        raise ArgumentError(
            f"{name} names stream 0, which its interface does not allow: 1 is the default one"
        )
    known = getattr(x, "__dlpack_device__", None)
    device = tuple(map(int, known())) if known is not None else None
    steps = None if strides is None else tuple(s / item if s % item else s // item for s in strides)
    return DeviceArray(
        int(address or 0), dtype, shape, steps, device, bool(readonly),  # type: ignore[arg-type]
        None if stream is None else int(stream),
    )  # fmt: skip


@cache
def _dtype(typestr: str) -> tuple[str, int]:
    """Its name, and bytes of an element. Raises TypeError."""
    dtype = np.dtype(typestr)
    return dtype.name if dtype.isnative else dtype.str, dtype.itemsize


# The heads of DLPack's capsules, of both its protocols.
class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_READ_ONLY = 1
_DTYPES = {row.dlpack: name for name, row in DTYPES.items()}
_CODES = {0: "int", 1: "uint", 2: "float", 5: "complex"}  # of other dtypes


def of_dlpack(x: Any, name: str, stream: int | None) -> DeviceArray:
    """An array that offers DLPack, on any device. Raises ArgumentError."""
    try:
        kind, index = map(int, x.__dlpack_device__())
    except Exception as err:  # producers raise what they like
        raise ArgumentError(f"{name} does not tell its device: {err}") from None
    # a producer of CUDA arrays makes them ready on the stream that it is told, without waiting
    options: dict[str, Any] = {"stream": stream or LEGACY} if kind in (CUDA, MANAGED) else {}
    try:
        try:
            capsule = x.__dlpack__(max_version=(1, 0), **options)
        except TypeError:  # a producer from before DLPack 1.0
            capsule = x.__dlpack__(**options)
    except Exception as err:
        raise ArgumentError(f"{name} could not be read by DLPack: {err}") from None
    get = ctypes.pythonapi["PyCapsule_GetPointer"]
    get.argtypes, get.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p
    valid = ctypes.pythonapi["PyCapsule_IsValid"]
    valid.argtypes, valid.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_int
    readonly = False
    if valid(capsule, b"dltensor_versioned"):
        head = _Versioned.from_address(get(capsule, b"dltensor_versioned"))
        t, readonly = head.tensor, bool(head.flags & _READ_ONLY)
    else:
        t = _Tensor.from_address(get(capsule, b"dltensor"))
    shape = tuple(t.shape[: t.ndim])
    strides = tuple(t.strides[: t.ndim]) if t.strides else None
    dtype = _DTYPES.get(t.code | t.bits << 8 | t.lanes << 16)
    if dtype is None:
        dtype = f"{_CODES.get(t.code, 'other')}{t.bits}{'' if t.lanes == 1 else 'xN'}"
    # the capsule, not used up, gives the array back when it goes; its owner has it meanwhile
    return DeviceArray(
        (t.data or 0) + t.byte_offset, dtype, shape, strides, (kind, index), readonly,
    )  # fmt: skip
