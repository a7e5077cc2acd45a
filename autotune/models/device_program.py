"""`DeviceProgram`: a model on a device, with its weights, one arena, and its launches captured once.

Weights are uploaded when the program is made. One block of memory has the places of the plan, scratch memory
of all kernels, inputs and outputs. A call uploads inputs, begins every kernel, and downloads outputs. Where
the device can capture (`Capturing`), the first call captures the launches between two islands, and later
calls begin all of them at once. Elsewhere they are launched one after the other.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from autotune.backends.drivers.object import give_back
from autotune.backends.drivers.protocol import Addressed, Captured, Capturing, Device, DeviceError, Memory
from autotune.models.outline import KernelCall, Outline, arena, nbytes
from autotune.models.places import INPUT, OUTPUT, place_of, segments, start_of
from autotune.run.kernel import Kernel
from schedules.dtypes import DTYPES
from schedules.graph.graph import Argument, Island
from schedules.te.compute_dag import Tensor

if TYPE_CHECKING:
    from autotune.backends.drivers.object import DeviceObject
    from autotune.models.program import RunIsland, Times

Array = NDArray[Any]


class DeviceProgram:
    """A model that runs on a device. It does not change: other weights make another program, which shares
    those that stay. One call at a time runs; others wait for it.

    ``kernels``: one for each task of the outline, all for one device.
    """

    def __init__(
        self,
        outline: Outline,
        kernels: Sequence[Kernel],
        weights: Mapping[str, _Block],
        run_island: RunIsland,
        captures: bool = True,
    ) -> None:
        """``weights``: as the graph has them. Kernels for devices pack none. ``captures``: whether launches
        are captured, where the device can."""
        self.captures = captures
        self.outline, self.kernels, self.run_island = outline, tuple(kernels), run_island
        self.device: Device = _object(self.kernels[0]).device
        self._weights = dict(weights)
        self._segments = segments(outline)
        self._turn = Lock()
        self._ready: _Ready | None = None
        self._lay_out()

    @staticmethod
    def of(
        outline: Outline,
        kernels: Sequence[Kernel],
        value_of: Callable[[str], Array],
        run_island: RunIsland,
    ) -> DeviceProgram:
        """A program of weights on the host. ``value_of``: gives a weight's value; it is asked once for each.
        Raises DeviceError where the device has no room."""
        device = _object(kernels[0]).device
        weights = {n: _uploaded(device, outline.tensors[n], value_of(n)) for n in outline.constants}
        return DeviceProgram(outline, kernels, weights, run_island)

    def with_weights(self, values: Mapping[str, Array]) -> DeviceProgram:
        """The program with other values of some weights. It captures its launches again."""
        fresh = {n: _uploaded(self.device, self.outline.tensors[n], v) for n, v in values.items()}
        return self._with(weights={**self._weights, **fresh})

    def with_kernels(
        self, others: Mapping[int, Kernel], value_of: Callable[[str], Array] | None = None
    ) -> DeviceProgram:
        """The program with other kernels of some tasks. ``value_of`` is not needed: weights stay."""
        kernels = [others.get(i, k) for i, k in enumerate(self.kernels)]
        return self._with(kernels=kernels)

    def plain(self) -> DeviceProgram:
        """The program that launches one kernel after the other: what capturing gains is told beside it."""
        return self._with(captures=False)

    def _with(
        self,
        kernels: Sequence[Kernel] | None = None,
        weights: Mapping[str, _Block] | None = None,
        captures: bool | None = None,
    ) -> DeviceProgram:
        return DeviceProgram(
            self.outline,
            self.kernels if kernels is None else kernels,
            self._weights if weights is None else weights,
            self.run_island,
            self.captures if captures is None else captures,
        )

    def weight(self, name: str) -> Array:
        """The value of a weight, in the layout of the graph."""
        return self._downloaded(self.outline.tensors[name], self._weights[name].memory)

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights."""
        return sum(w.nbytes for w in self._weights.values())

    @property
    def arena_bytes(self) -> int:
        """Bytes of the device beside the weights: what lies between steps, scratch memory, inputs and
        outputs."""
        return self._bytes

    # -- layout ------------------------------------------------------------------------------

    def _lay_out(self) -> None:
        ol, align = self.outline, self.device.alignment
        self.plan = arena(ol, align)
        at = self._scratch_at = _up(self.plan.nbytes, align)
        codes = [_object(k).code for k in self.kernels]
        at += max((sum(_up(a.nbytes, align) for a in c.scratch) for c in codes), default=0)
        self._moved_at = at  # where parts of tensors are copied that no kernel can read where they are
        at += max((self._moved_bytes(c) for c in ol.calls), default=0)
        self._inputs_at: list[int] = []
        self._outputs_at: list[int] = []
        for places, names in ((self._inputs_at, ol.inputs), (self._outputs_at, dict.fromkeys(ol.outputs))):
            for name in names:
                places.append(at)
                at += _up(nbytes(ol.tensors[name]), align)
        self._bytes = at

    def _offset(self, name: str) -> int:
        """Where a tensor that is no weight begins in the program's block."""
        found = place_of(self.outline, self.plan, name)
        if found.base == INPUT:
            return self._inputs_at[found.number]
        return self._outputs_at[found.number] if found.base == OUTPUT else found.offset

    def _is_moved(self, call: KernelCall, argument: int) -> bool:
        """Whether an argument begins where the kernel, or the device, can begin no array."""
        p = _object(self.kernels[call.task]).code.params[argument]
        least = p.align if isinstance(self.device, Addressed) else self.device.alignment
        return start_of(self.outline, call.reads[argument]) % least != 0

    def _moved_bytes(self, call: KernelCall) -> int:
        params = _object(self.kernels[call.task]).code.params
        moved = [i for i in range(len(call.reads)) if self._is_moved(call, i)]
        return sum(_up(params[i].nbytes, self.device.alignment) for i in moved)

    # -- calls -------------------------------------------------------------------------------

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], times: Times | None = None) -> None:
        """Run the model once, on arrays of the host: row-major, of the shapes and dtypes of the outline,
        which are not looked at. ``times``: adds up how long each step takes; then each runs alone, and is
        timed by the device's clock as tuning does, with nothing in the second cache. Raises DeviceError."""
        with self._turn:
            ready = self._ready = self._ready or _Ready(self)
            for name, x in zip(self.outline.inputs, inputs, strict=True):
                self.device.upload(ready.at(name), _flat(x))
            for segment in self._segments:
                if isinstance(segment, Island):
                    begin = time.perf_counter_ns()
                    self._island(segment, ready)
                    if times is not None:
                        times.islands[segment.name] += time.perf_counter_ns() - begin
                elif times is None:
                    ready.begin(*segment)
                else:
                    for n in range(segment[0], segment[0] + segment[1]):
                        times.calls[n] += round(ready.seconds(n) * 1e9)
            for name, x in zip(dict.fromkeys(self.outline.outputs), outputs, strict=True):
                self.device.download(_flat(x), ready.at(name))

    def _island(self, island: Island, ready: _Ready) -> None:
        tensors = self.outline.tensors
        arrays = [
            self.weight(n) if n in self._weights else self._downloaded(tensors[n], ready.at(n))
            for n in island.reads
        ]
        for t, x in zip(island.writes, self.run_island(island, arrays), strict=True):
            made = np.empty(t.shape, DTYPES[t.dtype].numpy)
            made[...] = x
            self.device.upload(ready.at(t.name), _flat(made))

    def _downloaded(self, t: Tensor, memory: Memory) -> Array:
        out = np.empty(t.shape, DTYPES[t.dtype].numpy)
        self.device.download(_flat(out), memory)
        return out


@dataclass(frozen=True)
class _Step:
    """A call of a kernel. ``memory``: of its program's arrays. ``copies``: what is copied before, as
    `Device.copy` takes it."""

    program: Any
    memory: tuple[Memory, ...]
    copies: tuple[tuple[Memory, Memory, int, int], ...]


class _Ready:
    """The memory of a program, what each call is given, and what was captured."""

    def __init__(self, program: DeviceProgram) -> None:
        ol, self._device, self._captures = program.outline, program.device, program.captures
        self._block = _Block(program.device, program.arena_bytes)
        names = (*ol.inputs, *program.plan.offsets, *ol.outputs)
        self._parts = {n: self._part(program._offset(n), nbytes(ol.tensors[n])) for n in names}
        self._steps = [self._step(program, call) for call in ol.calls]
        self._captured: dict[int, Captured] = {}  # by the first call
        weakref.finalize(self, _close, self._captured).atexit = False

    def at(self, name: str) -> Memory:
        """The memory of a tensor that is no weight."""
        return self._parts[name]

    def begin(self, first: int, n: int) -> None:
        """Run calls of kernels one after the other, and do not wait."""
        steps = self._steps[first : first + n]
        if not (self._captures and isinstance(self._device, Capturing)):
            for step in steps:
                for copy in step.copies:
                    self._device.copy(*copy)
                step.program.begin(step.memory)
            return
        if first not in self._captured:
            self._captured[first] = self._device.captured(partial(self._launch, steps))
        self._captured[first].launch(0)

    def seconds(self, n: int) -> float:
        """Run a call of a kernel alone; how long it takes."""
        step = self._steps[n]
        for copy in step.copies:
            self._device.copy(*copy)
        return float(step.program.seconds(step.memory, 1))

    def _launch(self, steps: Sequence[_Step], stream: int) -> None:
        device = cast(Addressed, self._device)
        for step in steps:
            for copy in step.copies:
                self._device.copy(*copy, stream)
            launch = partial(device.launcher(step.program), *step.memory, stream)
            if status := launch():
                device.mend(status, launch)

    def _step(self, p: DeviceProgram, call: KernelCall) -> _Step:
        loaded = _object(p.kernels[call.task])
        align = self._device.alignment
        memory: list[Memory] = []
        copies: list[tuple[Memory, Memory, int, int]] = []
        moved_at = p._moved_at
        for i, a in enumerate(call.reads):
            size = loaded.code.params[i].nbytes
            if p._is_moved(call, i):
                memory.append(self._part(moved_at, size))
                copies.append((memory[-1], *self._source(p, a), size))
                moved_at += _up(size, align)
            else:
                whole, offset = self._source(p, a)
                memory.append(self._device.part(whole, offset, size))
        memory += [self.at(name) for name in call.writes]
        at = p._scratch_at
        for array in loaded.code.scratch:
            memory.append(self._part(at, array.nbytes))
            at += _up(array.nbytes, align)
        return _Step(loaded.program, tuple(memory), tuple(copies))

    def _source(self, p: DeviceProgram, a: Argument) -> tuple[Memory, int]:
        """(The memory that has an argument, its first byte there)."""
        start = start_of(p.outline, a)
        weight = p._weights.get(a.tensor)
        return (self._block.memory, p._offset(a.tensor) + start) if weight is None else (weight.memory, start)

    def _part(self, offset: int, size: int) -> Memory:
        return self._device.part(self._block.memory, offset, size)


class _Block:
    """Memory of a device, which it gets back when nobody has it any more."""

    def __init__(self, device: Device, nbytes: int) -> None:
        self.memory, self.nbytes = device.allocate(nbytes), nbytes
        weakref.finalize(self, give_back, device, [self.memory]).atexit = False


def _uploaded(device: Device, t: Tensor, value: Array) -> _Block:
    block = _Block(device, nbytes(t))
    device.upload(block.memory, _flat(np.ascontiguousarray(value)))
    return block


def _close(captured: dict[int, Captured]) -> None:
    for one in captured.values():
        with suppress(DeviceError):
            one.close()


def _flat(x: Array) -> NDArray[np.uint8]:
    """The bytes of a row-major array, in place."""
    return x.reshape(-1).view(np.uint8)


def _up(n: int, align: int) -> int:
    return -(-n // align) * align


def _object(kernel: Kernel) -> DeviceObject:
    return cast("DeviceObject", kernel.code)
