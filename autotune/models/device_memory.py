"""The memory of a device, as programs use it: weights are uploaded once, and one block has all the rest.

A call uploads inputs, begins every kernel, and downloads outputs. Where the device can capture (`Capturing`),
the first call captures the launches between two islands, and later calls begin all of them at once. Elsewhere
they are launched one after the other. One call at a time runs; others wait for it.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from autotune.backends.drivers.object import give_back
from autotune.backends.drivers.protocol import Addressed, Captured, Capturing, Device, DeviceError, Memory
from autotune.codegen.runtime.laid import over
from autotune.models.outline import nbytes
from autotune.models.places import ARENA, INPUT, OUTPUT, WEIGHT, ArgumentPlace, place_of, up
from schedules.dtypes import DTYPES
from schedules.strides import MemoryLayout

if TYPE_CHECKING:
    from autotune.backends.drivers.object import DeviceObject
    from autotune.models.program import Program

Array = NDArray[Any]


class DeviceBlock:
    """Memory of a device, which it gets back when nobody has it any more."""

    def __init__(self, device: Device, nbytes: int, shape: tuple[int, ...] = (), dtype: Any = None) -> None:
        self.memory, self.nbytes, self.shape, self.dtype = device.allocate(nbytes), nbytes, shape, dtype
        weakref.finalize(self, give_back, device, [self.memory]).atexit = False


@dataclass(frozen=True)
class _Part:
    """A part of a ``block``, or of the program's own, that begins at byte ``start``."""

    block: DeviceBlock | None
    start: int
    nbytes: int


@dataclass(frozen=True)
class _Step:
    """A call of a kernel: its loaded program, the arrays of that, and which of them (by number) are copied
    from elsewhere before, and back there after it."""

    program: Any
    arrays: tuple[_Part, ...]
    copied: tuple[tuple[int, _Part], ...]
    returned: tuple[tuple[int, _Part], ...]


class DeviceLayout:
    """What is where in the block of a program: the arena, inputs and outputs, then for one call of a kernel
    at a time its scratch memory, and copies of what it cannot read where it is. ``nbytes``: of the block."""

    def __init__(self, program: Program) -> None:
        outline, plan = program.outline, program.plan
        self.memory, self.outline = cast(DeviceMemory, program.memory), outline
        at = up(plan.nbytes, self.memory.alignment)
        self.starts = {ARENA: [0], INPUT: [], OUTPUT: []}
        for base, names in ((INPUT, outline.inputs), (OUTPUT, dict.fromkeys(outline.outputs))):
            for name in names:
                self.starts[base].append(at)
                at += up(nbytes(outline.tensors[name]), self.memory.alignment)
        self.nbytes = self._own_at = at
        self.steps = [
            self._step(cast("DeviceObject", program.kernels[call.task].code), places)
            for call, places in zip(outline.calls, program.arguments, strict=True)
        ]
        self.parts = {
            name: self._part(place_of(outline, plan, name), nbytes(outline.tensors[name]))
            for name in (*outline.inputs, *plan.offsets, *outline.outputs)
        }

    def _part(self, place: ArgumentPlace, nbytes: int) -> _Part:
        if place.base == WEIGHT:
            return _Part(place.weight, place.offset, nbytes)
        return _Part(None, self.starts[place.base][place.number] + place.offset, nbytes)

    def _step(self, loaded: DeviceObject, places: Sequence[ArgumentPlace]) -> _Step:
        device, at = self.memory.device, self._own_at

        def own(nbytes: int) -> _Part:
            nonlocal at
            part = _Part(None, at, nbytes)
            at += up(nbytes, device.alignment)
            return part

        arrays = [self._part(p, a.nbytes) for p, a in zip(places, loaded.code.params, strict=True)]
        copied, returned = [], []
        first_written = len(arrays) - len(loaded.code.outputs)
        given = list(arrays)
        for i, (p, a) in enumerate(zip(places, loaded.code.params)):
            # where the kernel, or the device, can begin an array
            beside = p.offset % (a.align if isinstance(device, Addressed) else device.alignment)
            # parts of memory that overlap are not written, but where they are addresses
            woven = i >= first_written and any(_overlap(given[i], x) for x in (*given[:i], *given[i + 1 :]))
            if beside or (woven and not isinstance(device, Addressed)):
                copied.append((i, arrays[i]))
                returned += copied[-1:] if i >= first_written else []
                arrays[i] = own(a.nbytes)
        arrays += [own(a.nbytes) for a in loaded.code.scratch]
        self.nbytes = max(self.nbytes, at)
        return _Step(loaded.program, tuple(arrays), tuple(copied), tuple(returned))

    def context(self) -> DeviceContext:
        return DeviceContext(self)


class DeviceContext:
    """The block of a program, what each call of a kernel is given there, and what was captured."""

    def __init__(self, layout: DeviceLayout) -> None:
        self._memory, self._layout, self._device = layout.memory, layout, layout.memory.device
        self._block = DeviceBlock(self._device, layout.nbytes)
        self._parts = {name: self._at(part) for name, part in layout.parts.items()}
        self.steps = [(s, [*map(self._at, s.arrays)]) for s in layout.steps]
        self._captured: dict[int, Captured] = {}  # by the first call
        weakref.finalize(self, _close, self._captured).atexit = False

    def _at(self, part: _Part) -> Memory:
        return self._device.part((part.block or self._block).memory, part.start, part.nbytes)

    def begin(self, inputs: Sequence[Array], outputs: Sequence[Array], sizes: Sequence[int] = ()) -> None:
        """Upload the inputs. Programs of devices have no ``sizes``."""
        for name, x in zip(self._layout.outline.inputs, inputs, strict=True):
            self.write(name, x)

    def run(self, first: int, n: int) -> None:
        """Run calls of kernels one after the other, and do not wait."""
        steps = range(first, first + n)
        if not self._memory.captures:
            for i in steps:
                self._copy(i, 0)
                self.steps[i][0].program.begin(self.steps[i][1])
                self._return(i, 0)
            return
        if first not in self._captured:
            self._captured[first] = cast(Capturing, self._device).captured(partial(self._launch, steps))
        self._captured[first].launch(0)

    def time(self, first: int, n: int, ns: ctypes.Array[ctypes.c_int64], cpu_clock: bool) -> None:
        """Run calls of kernels one after the other, each alone, and add to ``ns`` how long each takes."""
        for i in range(first, first + n):
            self._copy(i, 0)
            ns[i] += round(float(self.steps[i][0].program.seconds(self.steps[i][1], 1)) * 1e9)
            self._return(i, 0)

    def read(self, name: str) -> Array:
        """A copy of a tensor that is no weight."""
        t = self._layout.outline.tensors[name]
        return _downloaded(self._device, self._parts[name], t.shape, DTYPES[t.dtype].numpy)

    def write(self, name: str, value: Array) -> None:
        """Give a tensor its value."""
        t = self._layout.outline.tensors[name]
        if t.strides is not None:
            memory = np.zeros(t.nbytes // value.itemsize, value.dtype)
            over(memory, MemoryLayout(t.shape, t.strides))[...] = value
            value = memory
        self._device.upload(self._parts[name], _flat(np.ascontiguousarray(value)))

    def end(self, outputs: Sequence[Array]) -> None:
        """Download the outputs."""
        for name, x in zip(dict.fromkeys(self._layout.outline.outputs), outputs, strict=True):
            self._device.download(_flat(x), self._parts[name])

    def _launch(self, steps: Sequence[int], stream: int) -> None:
        device = cast(Addressed, self._device)
        for i in steps:
            self._copy(i, stream)
            step, memory = self.steps[i]
            launch = partial(device.launcher(step.program), *memory, stream)
            if status := launch():
                device.mend(status, launch)
            self._return(i, stream)

    def _copy(self, number: int, stream: int) -> None:
        """Begin to copy what a call of a kernel cannot read where it is."""
        step, memory = self.steps[number]
        for i, source in step.copied:
            whole = (source.block or self._block).memory
            self._device.copy(memory[i], whole, source.start, source.nbytes, stream)

    def _return(self, number: int, stream: int) -> None:
        """Begin to copy what a call of a kernel could not write where it belongs."""
        step, memory = self.steps[number]
        for i, target in step.returned:
            whole = (target.block or self._block).memory
            self._device.copy(whole, memory[i], 0, target.nbytes, stream, target.start)


class DeviceMemory:
    """``captures``: whether launches are captured, where the device can. Others: as of `HostMemory`. Its
    kernels pack no weights."""

    contexts, copies = 1, True
    layout = DeviceLayout

    def __init__(self, device: Device, captures: bool = True) -> None:
        self.device, self.alignment = device, device.alignment
        self.captures = captures and isinstance(device, Capturing)
        self.turn = Lock()

    def kept(self, weight: Array) -> DeviceBlock:
        """A weight as this memory has it. Raises DeviceError where there is no room."""
        block = DeviceBlock(self.device, weight.nbytes, weight.shape, weight.dtype)
        self.device.upload(block.memory, _flat(weight))
        return block

    def value(self, kept: DeviceBlock) -> Array:
        """Inverse of `kept`."""
        return _downloaded(self.device, kept.memory, kept.shape, kept.dtype)


def _overlap(a: _Part, b: _Part) -> bool:
    """Whether two parts share bytes, or gaps between their elements."""
    return a.block is b.block and a.start < b.start + b.nbytes and b.start < a.start + a.nbytes


def _downloaded(device: Device, memory: Memory, shape: tuple[int, ...], dtype: Any) -> Array:
    out = np.empty(shape, dtype)
    device.download(_flat(out), memory)
    return out


def _close(captured: dict[int, Captured]) -> None:
    for one in captured.values():
        with suppress(DeviceError):
            one.close()


def _flat(x: Array) -> NDArray[np.uint8]:
    """The bytes of a row-major array, in place."""
    return x.reshape(-1).view(np.uint8)
