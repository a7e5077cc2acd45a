"""Arrays of the host as numpy reads them, and the words for what does not fit.

They are numpy's, or anything with DLPack, ``__array_interface__`` or the buffer protocol. Nothing is copied.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from math import inf, isfinite
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.codegen.runtime.entry import layout_of, shape_of
from autotune.codegen.runtime.laid import over
from autotune.errors import ArgumentError
from autotune.run import device_arrays, torch_calls
from schedules.dtypes import DTYPES, FLOATS
from schedules.ir import Buffer
from schedules.strides import MemoryLayout, flaw

if TYPE_CHECKING:
    from autotune.codegen.grid_code import GridArray

_READABLE_HERE = (1, 3, 11, 13)  # memory that the CPU can read
# {kind of dtype: Python's numbers that it takes}.
_PYTHONS: dict[str, tuple[type, ...]] = {"bool": (bool,), "int": (int, float), "float": (float, int)}
# What takes arrays: what makes it take another shape.
_OTHERWISE = {"kernel": "tune the kernel", "model": "import the model"}


def view(x: Any, b: Buffer, written: bool) -> np.ndarray:
    """``x`` as a numpy array over the same memory that fits ``b``, the parameter of a kernel. Raises
    ArgumentError."""
    a, readonly = fitting(x, b, written, "kernel")
    name, lies = name_of(b, written), layout_of(b)
    if lies.strides is not None or not a.flags.c_contiguous:
        strides = in_elements(a)
        if strides is None or not lies.lies_as(strides):
            whole, copy = strides is not None, _copied(x, written)
            raise lies_otherwise(name, b.name, strides or a.strides, lies, whole, copy, written)
    if not is_aligned(a):
        raise ArgumentError(f"{name} is not aligned to {a.itemsize} bytes: give a copy of it")
    if written and readonly:
        raise ArgumentError(f"{name} is read-only: give an array that may be written")
    return a


def _copied(x: Any, written: bool) -> str:
    """What a caller gives in place of an array that is not row-major."""
    copy = "its .contiguous()" if torch_calls.is_tensor(x) else "np.ascontiguousarray of it"
    return "a C-contiguous array" if written else copy


def in_elements(a: np.ndarray) -> tuple[int, ...] | None:
    """The strides of an array in elements; None where one is no whole number of them. Those of extents of 1
    say nothing."""
    if any(s % a.itemsize for n, s in zip(a.shape, a.strides, strict=True) if n != 1):
        return None
    return tuple(s // a.itemsize for s in a.strides)


def lies_otherwise(
    name: str,
    argument: str,
    got: Sequence[int],
    wanted: MemoryLayout,
    whole: bool,
    copy: str,
    written: bool = False,
) -> ArgumentError:
    """The error for an array with other strides than the kernel is compiled for. ``got``: in elements, or,
    where they are not ``whole``, in bytes. ``copy``: what may be given in its place."""
    unit = "elements" if whole else "bytes"
    tune = f", or tune and load the kernel with strides={{{argument!r}: {tuple(got)}}}" if whole else ""
    if written and flaw(wanted.shape, got, written=True):  # no kernel writes so
        tune = ""
    if wanted.strides is not None and MemoryLayout(wanted.shape).lies_as(got):
        tune = f", or tune and load the kernel without strides of {argument!r}"
    if wanted.strides is None:
        return ArgumentError(
            f"{name} is not C-contiguous: its strides are {tuple(got)} in {unit}, but the kernel is compiled "
            f"for {wanted.steps}: give {copy}{tune}"
        )
    return ArgumentError(
        f"{name} has strides {tuple(got)} in {unit}, but the kernel is compiled for {wanted.steps}: give an "
        f"array that lies so{tune}"
    )


def is_aligned(a: np.ndarray) -> bool:
    """Whether an array begins at a multiple of its elements' size."""
    return not a.size or a.ctypes.data % a.itemsize == 0


def fitting(x: Any, b: Buffer, written: bool, taker: str) -> tuple[np.ndarray, bool]:
    """(``x`` as a numpy array over the same memory, with the shape and dtype of ``b``; whether it is
    read-only). It may lie in memory as it likes. ``taker``: what takes it, "kernel" or "model". Raises
    ArgumentError."""
    name = name_of(b, written)
    shape = shape_of(b)
    if not written and not shape and is_number(x):
        return number(x, b, taker), True
    a, readonly = _as_numpy(x, name, written, shape)
    if a.dtype != np.dtype(b.dtype):
        if a.dtype.newbyteorder("=") == np.dtype(b.dtype):
            raise ArgumentError(
                f"{name} has byte order {a.dtype.str!r}; the {taker} takes native {b.dtype}: "
                f"convert it with .astype({b.dtype!r})"
            )
        torch_s = torch_calls.is_tensor(x)
        convert = f".to(torch.{b.dtype})" if torch_s else f".astype({b.dtype!r})"
        remedy = f"give an array of {b.dtype}" if written else f"convert it with {convert}"
        if a.dtype.kind == "c":  # a conversion would drop its imaginary part
            pairs = "torch.view_as_real" if torch_s else f".view({a.real.dtype.name!r})"
            remedy = f"give its real and imaginary parts side by side, which {pairs} has without a copy"
            if a.real.dtype != np.dtype(b.dtype):
                remedy += f", as {b.dtype}"
        raise ArgumentError(f"{name} is {a.dtype}, but the {taker} takes {b.dtype}: {remedy}")
    if a.shape != shape:
        raise ArgumentError(
            f"{name} has shape {a.shape}, but the {taker} is compiled for {shape}: give that shape"
            + (f", or {_OTHERWISE[taker]} for {a.shape}" if a.ndim == len(shape) and a.size else "")
        )
    return a, readonly


def is_number(x: Any) -> bool:
    """Whether it is a number of Python's or one of numpy's."""
    return isinstance(x, (int, float, np.generic))


def number(x: Any, b: Buffer, taker: str = "kernel") -> np.ndarray:
    """A number, of Python or of numpy, as what ``b``, an input without dimensions, takes. An integer must be
    in the input's range. A float is rounded for a float, and must be whole for an integer. Truth values
    are for bool alone. Raises ArgumentError."""
    row, plain = DTYPES[b.dtype], x
    if isinstance(x, np.generic):
        if x.dtype == np.dtype(b.dtype):
            return np.asarray(x)
        plain = _plain(x)
    name, kind = name_of(b, False), type(plain)
    if kind not in _PYTHONS[row.kind]:
        give = f"give {' or '.join(k.__name__ for k in _PYTHONS[row.kind])}"
        raise ArgumentError(
            f"{name} is the {type(x).__name__} {x!r}, but the {taker} takes {b.dtype}: {give}"
        )
    if row.kind == "float":
        if row.largest < abs(plain) != inf:
            raise ArgumentError(f"{name} is outside the range of {b.dtype}: give a number inside it")
        return np.array(float(plain), b.dtype)
    if kind is float and not (isfinite(plain) and plain.is_integer()):
        raise ArgumentError(
            f"{name} is {plain!r}, but the {taker} takes {b.dtype}, which has whole numbers alone: "
            "give round(x)"
        )
    if int(plain) not in row.range:
        raise ArgumentError(f"{name} is outside the range of {b.dtype}: give a number inside it")
    return np.array(int(plain), b.dtype)


def _plain(x: np.generic) -> Any:
    """A number of numpy as Python has it, or itself where Python has none."""
    if isinstance(x, np.bool_):
        return bool(x)
    if isinstance(x, np.integer):
        return int(x)
    return float(x) if isinstance(x, np.floating) or x.dtype.name in FLOATS else x


def _as_numpy(x: Any, name: str, written: bool, shape: tuple[int, ...]) -> tuple[np.ndarray, bool]:
    """(``x`` viewed by numpy without a copy, whether it is read-only). Raises ArgumentError."""
    if isinstance(x, np.ma.MaskedArray):
        raise ArgumentError(f"{name} is a masked array, whose mask the kernel cannot see: give x.filled()")
    if isinstance(x, np.ndarray):
        return x.view(np.ndarray), not x.flags.writeable
    if hasattr(type(x), "__dlpack__") and not isinstance(x, np.generic):
        return _from_dlpack(x, name)
    if hasattr(x, "__cuda_array_interface__"):
        raise ArgumentError(f"{name} is on a CUDA device: move it to the CPU first")
    try:
        if isinstance(x, np.generic):
            a = np.asarray(x)  # a copy, which is as good for reading
        elif hasattr(x, "__array_interface__"):
            a = np.asarray(x)
        else:
            a = np.asarray(memoryview(x))
    except (TypeError, ValueError, BufferError, AttributeError) as err:
        why = "" if isinstance(err, TypeError) and not hasattr(x, "__array_interface__") else f" ({err})"
        give = "a numpy array" if shape or written else "a number, or a numpy array of no dimensions"
        if written and isinstance(x, (list, tuple)):
            give = "the array itself"
        raise ArgumentError(
            f"{name} is a {type(x).__name__}, which offers neither DLPack nor the array interface nor a "
            f"buffer{why}: give {give}"
        ) from None
    return a, isinstance(x, np.generic) or not a.flags.writeable


def _from_dlpack(x: Any, name: str) -> tuple[np.ndarray, bool]:
    try:
        kind, index = x.__dlpack_device__()
    except Exception as err:
        raise ArgumentError(f"{name} does not tell its device: {err}") from None
    if int(kind) not in _READABLE_HERE:
        device = device_arrays.shown((int(kind), index))
        raise ArgumentError(f"{name} is on {device}, but the kernel runs on the CPU: move it there first")
    producer = _Producer(x)
    try:
        a = np.from_dlpack(producer)
    except Exception as err:  # producers raise what they like
        told = _of_another_library(x, name)
        if told is None:
            raise ArgumentError(f"{name} could not be read by DLPack: {err}") from None
        return told
    if a.flags.owndata and a.size:  # numpy allocates where the producer has no address
        raise ArgumentError(
            f"{name} has no memory, as it stands for another array in a transformation of its library: give "
            "the array itself, or call an operator of torch, autotune.torch.op(kernel)"
        )
    # Before DLPack 1.0 there was no read-only flag, and numpy takes such memory to be read-only.
    return a, producer.versioned and not a.flags.writeable


def _of_another_library(x: Any, name: str) -> tuple[np.ndarray, bool] | None:
    """An array of a dtype that numpy has from another library (bfloat16), which its DLPack does not know. The
    view does not keep ``x``: it is for the time of a call."""
    told = device_arrays.of_dlpack(x, name, None)
    row = DTYPES.get(told.dtype)
    if row is None or row.module == "numpy":
        return None
    lies = MemoryLayout(told.shape, told.strides)
    before = lies.reach[0] * row.itemsize
    memory = (ctypes.c_char * (lies.span * row.itemsize)).from_address((told.address or 1 + before) - before)
    return over(np.frombuffer(memoryview(memory), np.uint8).view(row.numpy), lies), told.readonly


class _Producer:
    """Passes DLPack's calls on, and notes which of its two protocols answered."""

    __slots__ = ("versioned", "x")

    def __init__(self, x: Any) -> None:
        self.x = x
        self.versioned = False

    def __dlpack_device__(self) -> Any:
        return self.x.__dlpack_device__()

    def __dlpack__(self, **options: Any) -> Any:
        try:
            capsule = self.x.__dlpack__(**options)
        except TypeError:  # a producer from before DLPack 1.0 knows no options
            capsule = self.x.__dlpack__()
        valid = ctypes.pythonapi.PyCapsule_IsValid
        self.versioned = bool(valid(ctypes.py_object(capsule), b"dltensor_versioned"))
        return capsule


def name_of(b: Buffer | GridArray, written: bool) -> str:
    """A parameter in words."""
    return f"{'output' if written else 'input'} {b.name!r}"


def overlap(at: int, nbytes: int, other: int, others_nbytes: int) -> bool:
    """Whether two arrays, each an address and its bytes, share memory."""
    return at < other + others_nbytes and other < at + nbytes and nbytes > 0 and others_nbytes > 0


# Most steps in which it is found whether two interleaved arrays share an element: views of one take a few.
_SHARE_STEPS = 10_000


def extents_at(places: Sequence[tuple[int, int]]) -> Callable[[Sequence[Any]], Any]:
    """A function from inputs to the extents at ``places`` (input, dimension): one, or a tuple of several."""
    if len(places) == 1:
        i, d = places[0]
        return lambda inputs: inputs[i].shape[d]
    return lambda inputs: tuple([inputs[i].shape[d] for i, d in places])


def memory_of(a: np.ndarray) -> tuple[int, int]:
    """The address and the bytes of the memory from the first element of an array to its last."""
    lies = MemoryLayout(a.shape, a.strides)
    before, _ = lies.reach
    return a.ctypes.data - before, lies.span - 1 + a.itemsize if a.size else 0


def may_share(a: np.ndarray, b: np.ndarray) -> bool:
    """Whether two arrays that interleave share an element, as far as that is found in a few steps."""
    shares: Any = np.may_share_memory  # whose types know two numbers of steps only
    return bool(shares(a, b, max_work=_SHARE_STEPS))


def check_apart(arrays: Sequence[tuple[int, int]], name: Callable[[int], str], inputs: int) -> None:
    """Raises ArgumentError where an output shares memory with another array. ``arrays``: address and bytes of
    each, ``inputs`` of them inputs, then the outputs. ``name``: of the argument of a number."""
    for w in range(inputs, len(arrays)):
        for other in range(w):
            if overlap(*arrays[w], *arrays[other]):
                raise ArgumentError(f"{name(w)} shares memory with {name(other)}; give it memory of its own")
