"""`DeviceKernel`: a kernel for a GPU, called on arrays that lie there.

It launches in place, on the caller's stream: no copy, no wait, and nothing is allocated but outputs that were
not given, by the library of the inputs; so a call can be captured into a CUDA graph.
"""

from __future__ import annotations

import inspect
import itertools
import sys
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from threading import Lock, local
from typing import Any

from autotune.backends.drivers.object import DeviceObject, give_back
from autotune.backends.drivers.protocol import Addressed, Device
from autotune.codegen.grid_code import GridArray
from autotune.errors import ArgumentError
from autotune.run.device_arrays import (
    CPU,
    CUDA,
    LEGACY,
    MANAGED,
    PER_THREAD,
    DeviceArray,
    current,
    empty_like,
    handle,
    is_told,
    read,
    shown,
)
from autotune.run.host_arrays import check_apart, lies_otherwise, name_of, overlap
from autotune.run.kernel import CallSignature, Kernel
from autotune.run.torch_calls import written
from autotune.run.torch_operator import traced_as, traced_on_device
from schedules.strides import row_major


class _WithStream(CallSignature):
    def __get__(self, kernel: Kernel | None, owner: type) -> inspect.Signature:
        plain = super().__get__(kernel, owner)
        stream = inspect.Parameter("stream", inspect.Parameter.KEYWORD_ONLY, default=None)
        return plain.replace(parameters=[*plain.parameters.values(), stream])


class DeviceKernel(Kernel):
    """``kernel(*inputs, out=None, stream=None)`` runs compiled code on arrays of a GPU, where they are.

    Inputs: torch tensors, CuPy arrays, or anything with ``__cuda_array_interface__`` or DLPack;
    C-contiguous, or with the strides that it was tuned for, of exactly the kernel's shapes and dtypes,
    and aligned as its vectors need (16 bytes at most: arrays begin so, slices of them may not). ``out``:
    an array to write, or a tuple of them; without it, new arrays of the library of the first input.
    ``stream``: a stream or its handle; without it torch's current stream, or the one that an array's
    interface names, or the default one. Where arrays name other streams, these are waited for on the
    device, and wait in turn; tensors of torch name none when they are given, and its current stream when
    they are made here. The call returns when the work is queued.

    Arrays of the host are taken too, if all are: they are copied there and back, and the call waits.

    A kernel of several steps has memory between them, one block for each stream, made when a stream is first
    met. Two graphs that were captured on one stream share it: replay them one after the other. A graph holds
    addresses of the kernel: keep the kernel for as long.

    Raises `ArgumentError`, and `DeviceError` for what the driver reports.
    """

    __slots__ = ("__weakref__", "_array_names", "_launch", "_nbytes", "_on", "_params", "_scratch", "_short")
    __signature__ = _WithStream()

    _loaded: DeviceObject

    def __init__(self, loaded: DeviceObject, *args: Any, **options: Any) -> None:
        super().__init__(loaded, *args, **options)
        device = loaded.device
        assert isinstance(device, Addressed)
        self._on: Addressed = device
        self._launch: Callable[..., int] = device.launcher(loaded.program)
        if loaded.code.scratch:
            self._launch = _in_turn(self._launch)
        self._params = loaded.code.params
        self._nbytes = [p.nbytes for p in self._params]
        outputs = len(loaded.code.outputs)
        inputs = len(self._params) - outputs
        self._array_names = [name_of(a, i >= inputs) for i, a in enumerate(self._params)]
        self._scratch: dict[tuple[int, int], list[int]] = {}  # of a stream, and a thread where it matters
        self._short: _Torch | None = None
        weakref.finalize(self, _give_back, device, self._scratch).atexit = False

    @traced_as(traced_on_device)
    def __call__(self, /, *inputs: Any, out: Any = None, stream: Any = None, **named: Any) -> Any:
        if named:
            inputs = self.placed(inputs, named)
        torch = sys.modules.get("torch")
        if (
            torch is not None
            and stream is None
            and len(inputs) == len(self._ins)
            and type(inputs[0]) is torch.Tensor
        ):
            if self._short is None:
                self._short = _Torch(torch, self._params, self._on.arrays_on, len(self._ins))
            ready = self._short.ready(inputs, out)
            if ready is not None:
                result, addresses, at = ready
                self._run(addresses, at)
                if out is not None:
                    written(out if type(out) is tuple else (out,))
                return result
        return self._checked(inputs, out, stream)

    def _run(self, addresses: Sequence[int], stream: int) -> None:
        scratch: Sequence[int] = ()
        if self._loaded.code.scratch:
            at = (stream, _thread.number if stream == PER_THREAD else 0)
            scratch = self._scratch.get(at) or self._between(at)
        status = self._launch(*addresses, *scratch, stream)
        if status:
            self._on.mend(status, partial(self._launch, *addresses, *scratch, stream))

    def _between(self, at: tuple[int, int]) -> Sequence[int]:
        """Memory of a stream for what steps pass on."""
        device = self._loaded.device
        made = [device.allocate(a.nbytes) for a in self._loaded.code.scratch]
        kept = self._scratch.setdefault(at, made)
        if kept is not made:  # another thread has met the stream meanwhile
            give_back(device, made)
        return kept

    def _checked(self, inputs: Sequence[Any], out: Any, stream: Any) -> Any:
        """The call on arrays of any library, with everything explained that does not fit."""
        many = len(self._outs) != 1
        outs = () if out is None else out if many else (out,)
        self._check_counts(inputs, self._outs if out is None else outs)
        at = None if stream is None else handle(stream)
        if at is None:
            at = next((s for s in map(current, (*inputs, *outs)) if s is not None), None)
        given, at = self._known((*inputs, *outs), at)  # outputs may be missing
        if not any(self._is_there(a) for a in given):
            if stream is not None:
                raise ArgumentError(
                    "stream is for arrays of the device; arrays of the host are copied, and waited for"
                )
            return super().__call__(*inputs, out=out)
        made: tuple[Any, ...] = ()
        if out is None:
            first = next(x for x, a in zip(inputs, given) if self._is_there(a))
            outs = made = tuple(self._empty(first, p) for p in self._params[len(inputs) :])
            given += [read(x, n, at) for x, n in zip(outs, self._array_names[len(inputs) :], strict=True)]
        arrays = [
            self._fit(a, p, n, i >= len(inputs))
            for i, (a, p, n) in enumerate(zip(given, self._params, self._array_names, strict=True))
        ]
        spans = [(a.address, n) for a, n in zip(arrays, self._nbytes, strict=True)]
        check_apart(spans, self._array_names.__getitem__, len(inputs))
        # torch's memory is of its current stream: what ran there may use it still, what will run may again
        named = dict.fromkeys([*(a.stream for a in arrays), *map(current, made)])
        others = [s for s in named if s not in (None, at) and {s, at} != {0, LEGACY}]
        for other in others:
            self._on.wait(at, other)
        self._run([a.address for a in arrays], at)
        for other in others:
            self._on.wait(other, at)
        if out is not None:
            written(outs)
        return tuple(outs) if many else next(iter(outs))

    def _known(self, arrays: Sequence[Any], at: int | None) -> tuple[list[DeviceArray | None], int]:
        """What there is to know of arrays, and the stream: ``at``, or the first that one of them names."""
        known: list[DeviceArray | None] = [None] * len(arrays)
        # those that are told the stream come last: others may name it
        for i in sorted(range(len(arrays)), key=lambda i: is_told(arrays[i])):
            known[i] = a = read(arrays[i], self._array_names[i], at)
            if at is None and a is not None:
                at = a.stream
        return known, at or 0

    def _is_there(self, a: DeviceArray | None) -> bool:
        """Whether an array is to be used in place: all that is not of the host."""
        return a is not None and (a.device is None or a.device[0] != CPU or self._on.arrays_on[0] == CPU)

    def _empty(self, x: Any, p: GridArray) -> Any:
        made = empty_like(x, p.layout, p.dtype)
        if made is None:
            raise ArgumentError(
                f"the library of {type(x).__name__} does not tell how to make an array{_with_strides(p)}: "
                "give outputs by out="
            )
        return made

    def _fit(self, a: DeviceArray | None, p: GridArray, name: str, written: bool) -> DeviceArray:
        """The array, if the kernel can use it. Raises ArgumentError."""
        here = self._on.arrays_on
        where = None if a is None else a.device
        if a is None or (where is not None and where[0] == CPU and here[0] != CPU):
            raise ArgumentError(
                f"{name} is not on {shown(here)}, where other arrays are: move it there first"
            )
        if where is not None and where != here and not (where[0] == MANAGED and here[0] == CUDA):
            raise ArgumentError(
                f"{name} is on {shown(where)}, but the kernel runs on {shown(here)}: move it there"
            )
        if a.dtype != p.dtype:
            remedy = f"give an array of {p.dtype}" if written else f"convert it to {p.dtype}"
            raise ArgumentError(f"{name} is {a.dtype}, but the kernel takes {p.dtype}: {remedy}")
        if a.shape != p.shape:
            raise ArgumentError(
                f"{name} has shape {a.shape}, but the kernel is compiled for {p.shape}: "
                f"give that shape, or tune the kernel for {a.shape}"
            )
        if a.strides is not None and not p.layout.lies_as(a.strides):
            raise lies_otherwise(name, p.name, a.strides, p.layout, True, "a contiguous copy of it", written)
        if a.strides is None and p.strides is not None and p.nbytes:
            raise lies_otherwise(name, p.name, row_major(a.shape), p.layout, True, "", written)
        if a.address == 0 and p.nbytes:
            raise ArgumentError(
                f"{name} has no memory, as it stands for another array in a transformation of its library: "
                "give the array itself"
            )
        if a.address % p.align and p.nbytes:
            raise ArgumentError(
                f"{name} begins at no multiple of {p.align} bytes, which this kernel's vectors need: give an "
                "array of its own rather than a slice, or a copy"
            )
        if written and a.readonly:
            raise ArgumentError(f"{name} is read-only: give an array that may be written")
        if where is None and not self._on.owns(a.address) and p.nbytes:
            raise ArgumentError(f"{name} is no memory of {shown(here)}, where the kernel runs: move it there")
        return a


class _Torch:
    """The short way for torch tensors: everything looked up ahead that can be."""

    def __init__(self, torch: Any, params: Sequence[GridArray], on: tuple[int, int], inputs: int) -> None:
        self._tensor = torch.Tensor
        self._wanted = [(getattr(torch, p.dtype), p.shape, p.align - 1) for p in params]
        self._layouts = [None if p.strides is None else p.layout for p in params]
        self._nbytes, self._inputs = [p.nbytes for p in params], inputs
        self._device = torch.device("cuda", on[1]) if on[0] == CUDA else torch.device("cpu")
        self._index = on[1] if on[0] == CUDA else -1
        self._new = [
            partial(torch.empty, p.shape)
            if p.strides is None
            else partial(torch.empty_strided, p.shape, p.strides)
            for p in params[inputs:]
        ]
        raw = getattr(torch._C, "_cuda_getCurrentRawStream", None)
        self._stream: Callable[[int], int] = raw if raw is not None and on[0] == CUDA else lambda index: 0

    def ready(self, inputs: Sequence[Any], out: Any) -> tuple[Any, list[int], int] | None:
        """Outputs, addresses and the stream; None where something does not fit, or needs a closer look."""
        if out is None:
            outs = tuple(
                make(dtype=dtype, device=self._device)
                for make, (dtype, _, _) in zip(self._new, self._wanted[self._inputs :])
            )
        else:
            outs = out if type(out) is tuple else (out,)
        arrays = (*inputs, *outs)
        if len(arrays) != len(self._wanted):
            return None
        addresses = []
        for x, (dtype, shape, mask), layout in zip(arrays, self._wanted, self._layouts):
            if (
                type(x) is not self._tensor
                or x.dtype is not dtype
                or x.shape != shape
                or x.get_device() != self._index
                or x.requires_grad
                or not (x.is_contiguous() if layout is None else layout.lies_as(x.stride()))
                or x.is_neg()
            ):
                return None
            address = x.data_ptr()
            if address & mask or not address:
                return None
            addresses.append(address)
        if out is not None:
            size = self._nbytes
            for w in range(self._inputs, len(arrays)):
                for other in range(w):
                    if overlap(addresses[w], size[w], addresses[other], size[other]):
                        return None
        return (outs if len(outs) > 1 else outs[0]), addresses, self._stream(self._index)


def _with_strides(p: GridArray) -> str:
    return "" if p.strides is None else f" with strides {list(p.strides)}"


class _Thread(local):
    """The calling thread, by a number that no later one has: the system gives its own again."""

    _numbers = itertools.count()

    def __init__(self) -> None:
        self.number = next(self._numbers)


_thread = _Thread()


def _in_turn(launch: Callable[..., int]) -> Callable[..., int]:
    """For one thread at a time: on one stream the steps of two calls would mix, with one memory between."""
    lock = Lock()

    def launched(*args: int) -> int:
        with lock:
            return launch(*args)

    return launched


def _give_back(device: Device, scratch: dict[tuple[int, int], list[int]]) -> None:
    for blocks in scratch.values():
        give_back(device, blocks)
