"""A candidate on a device of its own memory: arrays are copied there and back for every check."""

from __future__ import annotations

from typing import Any

from autotune.devices.object import DeviceObject
from autotune.errors import CompileError
from autotune.measure import protocol
from autotune.measure.arena import Arena, Placement


class OnDevice:
    """The program of one candidate, loaded. Raises CompileError where it is not of this workload, or the
    device's compiler refuses it."""

    scratch_bytes = 0  # of the host's memory

    def __init__(self, arena: Arena, data: bytes) -> None:
        self._object = DeviceObject(data)
        wanted = [(p.dtype, p.shape) for p in arena.params]
        if [(a.dtype, a.shape) for a in self._object.code.params] != wanted:
            raise CompileError("the code takes other arrays than this workload")
        self._timing = arena.timing
        self._warm = False

    def run(self, placement: Placement) -> float:
        """Run once on the arrays of a placement; seconds on the device, results in its outputs."""
        pointers = [p or 0 for p in placement.pointers]
        # drivers make ready what they can at the first launch only
        seconds = self._object.bench(pointers, 1, warm=not self._warm) * 1e-9
        self._warm = True
        return seconds

    def overrun(self, placement: Placement) -> str:
        """Nothing is seen here of accesses out of bounds: emulation finds those."""
        return ""

    def facts(self) -> dict[str, Any]:
        """What the compiler says of it, and the device's clocks just after it was timed."""
        return self._object.facts()

    def timer(self) -> protocol.Run:
        if not self._warm:  # on the inputs: what a GPU computes with changes its power, and so its clocks
            self.run(self._timing)
        return self._object.seconds

    def close(self) -> None:
        """Give back what the device holds of it: a worker meets hundreds of candidates."""
        self._object.close()
