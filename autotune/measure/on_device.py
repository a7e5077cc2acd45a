"""A candidate on a device with memory of its own.

The workload's arrays lie on the device, the same for all candidates of a worker. Inputs are copied there
once. Of each candidate only the outputs come back. Copying all arrays for each took seconds at 64 million
elements.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from autotune.backends.drivers.object import DeviceObject, give_back
from autotune.backends.drivers.protocol import Device, DeviceError, Memory
from autotune.errors import CompileError
from autotune.measure import timing
from autotune.measure.arena import POISON, Arena, Placement, memory_of


class DeviceArrays:
    """The arrays of an arena on a device, for the life of the process. Raises DeviceError if the device has
    too little memory."""

    def __init__(self, device: Device, arena: Arena) -> None:
        self.device = device
        count = 1 + max(x.draw for x in arena.placements)
        own, self._outputs = arena.params[: arena.n_inputs], arena.params[arena.n_inputs :]
        self._inputs = [[*map(memory_of, arena.inputs(draw), own)] for draw in range(count)]
        made: list[Memory] = []
        try:
            for p in (*self._outputs, *own * count):
                made.append(device.allocate(p.nbytes))
        except DeviceError:
            give_back(device, made)
            raise
        self._results, rest, n = made[: len(self._outputs)], made[len(self._outputs) :], arena.n_inputs
        self._drawn = [rest[i * n : (i + 1) * n] for i in range(count)]
        self.renew()

    def renew(self) -> None:
        """Copy the inputs there again: a candidate that is wrong may have written to them."""
        for held, inputs in zip(self._drawn, self._inputs, strict=True):
            for memory, x in zip(held, inputs, strict=True):
                self.device.upload(memory, x)
        self.fresh = True  # until a candidate runs

    def memory(self, draw: int = 0) -> list[Memory]:
        """The memory of the parameters, with the inputs of a draw."""
        return [*self._drawn[draw], *self._results]

    def poison(self) -> None:
        """Fill the outputs as `Arena.poison` does."""
        for memory, p in zip(self._results, self._outputs, strict=True):
            _, value = POISON[p.dtype]
            width = min(4, np.dtype(p.dtype).itemsize)
            self.device.fill(memory, value & (1 << 8 * width) - 1, width, p.nbytes)

    def fetch(self, placement: Placement) -> None:
        """Copy the outputs into those of a placement."""
        for memory, x, p in zip(self._results, placement.outputs, self._outputs, strict=True):
            self.device.download(memory_of(x, p), memory)


class OnDevice:
    """The program of one candidate, loaded. Raises CompileError if it is not of this workload or the device's
    compiler refuses it."""

    scratch_bytes = 0  # of the host's memory

    def __init__(self, arena: Arena, arrays: DeviceArrays, data: bytes) -> None:
        self._object = DeviceObject(data, arrays.device, arrays.memory())
        wanted = [(p.dtype, p.layout) for p in arena.params]
        if [(a.dtype, a.layout) for a in self._object.code.params] != wanted:
            raise CompileError("the code takes other arrays than this workload")
        self.placements = arena.placements
        self._arrays = arrays
        self._warm = self._first = False

    def run(self, placement: Placement, number: int) -> float:
        """Run once on poisoned outputs and copy them into those of a placement. Returns seconds on the
        device."""
        self._first = self._arrays.fresh
        self._arrays.poison()
        self._begin()
        scratch = self._object.memory[len(self._object.code.params) :]
        seconds = self._object.program.seconds([*self._arrays.memory(placement.draw), *scratch], 1)
        self._arrays.fetch(placement)
        return seconds

    def again(self) -> bool:
        """Whether a wrong candidate should run again, because an earlier one may have written to the
        inputs."""
        if self._first:
            return False
        self._arrays.renew()
        return True

    def overrun(self, placement: Placement) -> str:
        """Empty: accesses out of bounds are not seen on a device. Emulation finds them."""
        return ""

    def facts(self) -> dict[str, Any]:
        """What the compiler reports of it, and the device's clocks just after it was timed."""
        return self._object.facts()

    def timer(self) -> timing.Run:
        self._begin()
        return self._object.seconds

    def _begin(self) -> None:
        self._arrays.fresh = False
        if not self._warm:  # a driver prepares at the first launch
            self._object.program.run(self._object.memory)
            self._warm = True

    def close(self) -> None:
        """Free what the device holds for this candidate alone. A worker meets hundreds of them."""
        self._object.close()
