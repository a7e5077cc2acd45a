"""`Program`: kernels, weights and what lies between them, in one memory: of the host, or of a device.

What lies between kernels has a place in an arena, where the scratch memory of all kernels lies too. Each call
that runs has a context of its own, with an arena and tables of arguments. Between the kernels of two islands
there is no Python.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from numpy.typing import NDArray

from autotune.errors import ModelError
from autotune.models.device_memory import DeviceContext, DeviceMemory
from autotune.models.host_memory import HostContext, HostMemory
from autotune.models.kept_states import CallNumbers, refuse_states
from autotune.models.outline import KernelCall, Outline, arena, nbytes
from autotune.models.places import WEIGHT, ArgumentPlace, place_of, place_read, segments, start_of
from autotune.models.row_counts import rows_of_calls
from autotune.models.state import ModelState
from autotune.models.weights import KeptOnce, Use, place, recover, use_of, uses
from autotune.run.kernel import Kernel
from schedules.graph.graph import Island
from schedules.te.compute_dag import Tensor

Array = NDArray[Any]
RunIsland = Callable[[Island, Sequence[Array]], Sequence[Array]]
NO_STATES: Mapping[str, Array] = MappingProxyType({})
NO_CODES: Mapping[int, Any] = MappingProxyType({})


class Program:
    """A model that runs. It does not change: other weights make another program (`with_weights`), which
    shares those that stay.

    ``kernels``: one for each task of the outline, all in one ``memory``. ``run_island``: runs an island on
    arrays.
    """

    def __init__(
        self,
        outline: Outline,
        kernels: Sequence[Kernel],
        weights: Mapping[Use, Any],
        run_island: RunIsland,
        memory: HostMemory | DeviceMemory,
        initial: Mapping[str, Array] = NO_STATES,
        codes: Mapping[int, Any] = NO_CODES,
    ) -> None:
        """``weights``: each in all the ways in which it is read (`place`), as ``memory`` keeps it.
        ``initial``: values of states before the first call, by users' names; zeros of others. ``codes``:
        {number of a call: code of its kernel}, where it is not that of the kernel of its task."""
        self.outline, self.kernels, self.run_island = outline, tuple(kernels), run_island
        self.memory, self.weights, self.initial, self.codes = memory, dict(weights), initial, codes
        self.plan = arena(outline, memory.alignment)
        self.arguments = [self._arguments(call) for call in outline.calls]
        self.told, self._rows = CallNumbers(outline), rows_of_calls(outline)
        self.layout = memory.layout(self)
        self._segments = segments(outline)
        self._own: ModelState | None = None
        self.state_names = tuple(outline.states)
        self._keeps = bool(outline.states or self.told.moves)
        # of states that are replaced whole: the number, and what takes its place
        self.replaced = [
            (n, s.new) for n, s in enumerate(outline.states.values()) if outline.root(s.new) != s.tensor
        ]
        self._largest = tuple(s.most for s in outline.sizes)
        self._idle: list[HostContext | DeviceContext] = []

    @staticmethod
    def of(
        outline: Outline,
        kernels: Sequence[Kernel],
        value_of: Callable[[str], Array],
        run_island: RunIsland,
        *,
        mine: bool = False,
        initial: Mapping[str, Array] = NO_STATES,
        once: KeptOnce | None = None,
    ) -> Program:
        """A program of weights in the layout of the graph, in the memory that its kernels run on: that of one
        device, or this process's, where emulated kernels run too. ``value_of``: gives a weight's value; it is
        asked once for each, the largest first, as packing has it twice for a while. Where it forgets what it
        gave, or reads it from a file, memory has little more than what the program keeps. ``mine``: nobody
        else has these arrays, so that they may be kept. ``initial``: as of `Program`. ``once``: of programs
        beside this one. Raises `ModelError` for
        kernels of several places, and DeviceError where a device has no room."""
        memory, ways = _memory_of(outline, kernels), uses(outline, kernels)
        weights: dict[Use, Any] = {}
        for name in sorted(outline.constants, key=lambda n: -nbytes(outline.tensors[n])):
            weights |= _kept(memory, kernels, ways[name], value_of(name), mine, once)
        return Program(outline, kernels, weights, run_island, memory, initial)

    def with_weights(self, values: Mapping[str, Array], once: KeptOnce | None = None) -> Program:
        """The program with other values of some weights. ``once``: of programs beside this one."""
        ways = uses(self.outline, self.kernels)
        weights = dict(self.weights)
        for name, value in values.items():
            weights |= _kept(self.memory, self.kernels, ways[name], value, once=once)
        return self._with(weights, self.codes)

    def with_codes(self, codes: Mapping[int, Any]) -> Program:
        """The program with code of their own for some calls, by number."""
        return self._with(self.weights, codes)

    def _with(self, weights: Mapping[Use, Any], codes: Mapping[int, Any]) -> Program:
        return Program(self.outline, self.kernels, weights, self.run_island, self.memory, self.initial, codes)

    def with_kernels(
        self, others: Mapping[int, Kernel], value_of: Callable[[str], Array] | None = None
    ) -> Program:
        """The program with other kernels of some tasks. ``value_of``: gives values of weights, where they
        need not be found again in what was packed."""
        kernels = [others.get(i, k) for i, k in enumerate(self.kernels)]
        ways = uses(self.outline, kernels)
        weights = dict(self.weights)
        for name in self.outline.constants:
            before = [u for u in weights if u.weight == name]
            if any(u.task in others for u in (*before, *ways[name])):
                value = self.weight(name) if value_of is None else value_of(name)
                for use in before:
                    del weights[use]
                weights |= _kept(self.memory, kernels, ways[name], value)
        return Program(self.outline, kernels, weights, self.run_island, self.memory, self.initial)

    def weight(self, name: str) -> Array:
        """The value of a weight, in the layout of the graph."""
        t = self.outline.tensors[name]
        have = {u: self.memory.value(a) for u, a in self.weights.items() if u.weight == name}
        return recover(self.kernels, have, t.shape, t.dtype)

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights, as they are kept."""
        return sum(a.nbytes for a in self.weights.values())

    @property
    def arena_bytes(self) -> int:
        """Bytes of an arena with its scratch memory; on a device with inputs and outputs too. There is one
        for each call that runs at the same time."""
        return self.layout.nbytes

    def _arguments(self, call: KernelCall) -> list[ArgumentPlace]:
        """The places of what a call reads and writes."""
        ol, found = self.outline, []
        for i, a in enumerate(call.reads):
            if a.tensor in ol.constants:
                use = use_of(self.kernels, call, i)
                start = 0 if use.packed else start_of(ol, a)
                found.append(ArgumentPlace(WEIGHT, start, weight=self.weights[use]))
            else:
                found.append(place_read(ol, self.plan, a))
        return [*found, *(place_of(ol, self.plan, name) for name in call.writes)]

    def run(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        times: Times | None = None,
        sizes: Sequence[int] = (),
        states: Sequence[Array] = (),
    ) -> None:
        """Run the model once. ``inputs``, ``outputs``, ``states``: arrays of the host with aligned elements,
        of the shapes, dtypes and strides of the outline, which are not looked at. ``sizes``: the numbers of
        `Outline.sizes`, by default the largest; inputs and outputs then lie as `sizes.layout_at` has them.
        ``times``: adds up how long each step takes. On a device each step then runs alone, and is timed by
        the device's clock as tuning does, with nothing in the second cache. Raises DeviceError, and
        ArgumentError where rows of a state would not be inside of it, before anything is written."""
        if self._keeps:
            states = self._states(states)
            sizes = sizes or self._largest
            arrays = [*inputs, *states, *sizes]
            kept: tuple[Any, ...] = (states, self.told.of_call(arrays))
            sizes = (*sizes, *(n(arrays) for n in self._rows))
        else:
            kept = ()
        with self.memory.turn:
            try:
                context = self._idle.pop()
            except IndexError:
                context = self.layout.context()
            try:
                context.begin(inputs, outputs, sizes or self._largest, *kept)
                for segment in self._segments:
                    if isinstance(segment, Island):
                        begin = time.perf_counter_ns()
                        self._island(segment, context)
                        if times is not None:
                            times.islands[segment.name] += time.perf_counter_ns() - begin
                    elif times is None:
                        context.run(*segment)
                    else:
                        context.time(*segment, times.calls, times.cpu_clock)
                for n, name in self.replaced:
                    states[n][...] = context.read(name)
                context.end(outputs)
            finally:
                if len(self._idle) < self.memory.contexts:
                    self._idle.append(context)

    def _states(self, states: Sequence[Array]) -> Sequence[Array]:
        """The states of a call. One without has some of the program, as to be timed."""
        if states or not self.outline.states:
            return states
        self._own = self._own or self.new_state()
        return self._own.in_order(self.state_names)

    @cached_property
    def kept(self) -> tuple[Tensor, ...]:
        """What calls keep, by users' names and in their order."""
        ol = self.outline
        return tuple(replace(ol.tensors[ol.states[n].tensor], name=n) for n in sorted(ol.states))

    def new_state(self) -> ModelState:
        """What calls keep, as it is before the first one."""
        return ModelState(self.kept, self.initial)

    def _island(self, island: Island, context: HostContext | DeviceContext) -> None:
        ol = self.outline
        arrays = [
            self.memory.value(self.weights[Use(n)]).reshape(ol.tensors[n].shape)
            if n in ol.constants
            else context.read(n)
            for n in island.reads
        ]
        for t, x in zip(island.writes, self.run_island(island, arrays), strict=True):
            context.write(t.name, x)


class Times:
    """Nanoseconds by step, added up. ``cpu_clock``: of kernels, in CPU time of the calling thread."""

    def __init__(self, outline: Outline, cpu_clock: bool) -> None:
        self.calls = (ctypes.c_int64 * max(len(outline.calls), 1))()
        self.islands = {s.name: 0 for s in outline.steps if isinstance(s, Island)}
        self.cpu_clock = cpu_clock


def _kept(
    memory: HostMemory | DeviceMemory,
    kernels: Sequence[Kernel],
    ways: Sequence[Use],
    value: Array,
    mine: bool = False,
    once: KeptOnce | None = None,
) -> dict[Use, Any]:
    """A weight in each of the ways in which it is read."""
    return {u: memory.kept(x) for u, x in place(kernels, ways, value, mine or memory.copies, once).items()}


def _memory_of(outline: Outline, kernels: Sequence[Kernel]) -> HostMemory | DeviceMemory:
    """Where kernels run, all together. Raises `ModelError`."""
    devices = {id(d): d for d in (getattr(k.code, "device", None) for k in kernels)}
    if len(devices) > 1:
        kinds = ", ".join(sorted({f"{k.target.kind} {k.target.arch}" for k in kernels}))
        raise ModelError(
            f"the kernels of this model are for several devices ({kinds}), and a model runs on one: tune it "
            "for that one, or compile it with fallback=True"
        )
    device = next(iter(devices.values()), None)
    if device is not None and outline.sizes:
        names = ", ".join(f"{s.name} ({s.least} to {s.most})" for s in outline.sizes)
        raise ModelError(
            f"the model has open sizes, {names}, and programs of a GPU run at one size: give numbers for "
            "these, or compile the model for the CPU"
        )
    refuse_states(outline.states, device is not None)
    return HostMemory() if device is None else DeviceMemory(device)
