"""`Program`: kernels, packed weights and one arena, run in one native call.

What lies between kernels has a place in the arena, where the scratch memory of all kernels lies too. Inputs
are read where the caller has them, outputs are written where the caller wants them. Each call that runs has
a context of its own: an arena and tables of arguments. So calls from several threads do not wait for each
other. Between native calls there is Python only where an island stands.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from autotune.codegen.llvm.compile import run_program, time_program
from autotune.codegen.runtime.program import STEP
from autotune.models.outline import KernelCall, Outline, arena, nbytes
from autotune.models.places import (
    ARENA,
    FIXED,
    INPUT,
    OUTPUT,
    ArgumentPlace,
    place_of,
    place_read,
    segments,
    start_of,
)
from autotune.models.weights import Use, place, recover, use_of, uses
from autotune.run.kernel import Kernel
from autotune.targets import usable_cpus
from schedules.dtypes import DTYPES
from schedules.graph.graph import Island
from schedules.graph.plan import ALIGNMENT

if TYPE_CHECKING:
    from autotune.codegen.llvm.compile import LoadedObject

Array = NDArray[Any]
RunIsland = Callable[[Island, Sequence[Array]], Sequence[Array]]
HUGE = 2 << 20  # bytes of a huge page: where an arena of such a size begins


class Program:
    """A model that runs. It does not change: other weights make another program (`with_weights`).

    ``kernels``: one for each task of the outline. ``run_island``: runs an island on arrays.
    """

    def __init__(
        self,
        outline: Outline,
        kernels: Sequence[Kernel],
        weights: Mapping[Use, Array],
        run_island: RunIsland,
    ) -> None:
        """``weights``: each in all the ways in which it is read (`place`)."""
        self.outline, self.kernels, self.run_island = outline, tuple(kernels), run_island
        self.plan = arena(outline)
        self.scratch_bytes = max((_code(k).scratch_bytes for k in kernels), default=0)
        self._weights = dict(weights)
        self._idle: list[_Context] = []
        self._most_idle = usable_cpus()  # more could not run at the same time
        self._lay_out()

    @staticmethod
    def of(
        outline: Outline,
        kernels: Sequence[Kernel],
        value_of: Callable[[str], Array],
        run_island: RunIsland,
        *,
        mine: bool = False,
    ) -> Program:
        """A program of weights in the layout of the graph. ``value_of``: gives a weight's value; it is asked
        once for each, the largest first, as packing has it twice for a while. Where it forgets what it gave,
        or reads it from a file, memory has little more than what the program keeps. ``mine``: nobody else has
        these arrays, so that they may be kept."""
        ways = uses(outline, kernels)
        weights: dict[Use, Array] = {}
        for name in sorted(outline.constants, key=lambda n: -nbytes(outline.tensors[n])):
            weights |= place(kernels, ways[name], value_of(name), mine)
        return Program(outline, kernels, weights, run_island)

    def with_weights(self, values: Mapping[str, Array]) -> Program:
        """The program with other values of some weights."""
        ways = uses(self.outline, self.kernels)
        weights = dict(self._weights)
        for name, value in values.items():
            weights |= place(self.kernels, ways[name], value)
        return Program(self.outline, self.kernels, weights, self.run_island)

    def with_kernels(
        self, others: Mapping[int, Kernel], value_of: Callable[[str], Array] | None = None
    ) -> Program:
        """The program with other kernels of some tasks. ``value_of``: gives values of weights, where they
        need not be found again in what was packed."""
        kernels = [others.get(i, k) for i, k in enumerate(self.kernels)]
        ways = uses(self.outline, kernels)
        weights = dict(self._weights)
        for name in self.outline.constants:
            before = [u for u in weights if u.weight == name]
            if any(u.task in others for u in (*before, *ways[name])):
                value = self.weight(name) if value_of is None else value_of(name)
                for use in before:
                    del weights[use]
                weights |= place(kernels, ways[name], value)
        return Program(self.outline, kernels, weights, self.run_island)

    def weight(self, name: str) -> Array:
        """The value of a weight, in the layout of the graph."""
        t = self.outline.tensors[name]
        have = {u: a for u, a in self._weights.items() if u.weight == name}
        return recover(self.kernels, have, t.shape, t.dtype)

    @property
    def weights_bytes(self) -> int:
        """Bytes of all weights, as they are kept."""
        return sum(a.nbytes for a in self._weights.values())

    @property
    def arena_bytes(self) -> int:
        """Bytes of an arena with its scratch memory. There is one for each call that runs at the same
        time."""
        return self._scratch_at + self.scratch_bytes

    def _lay_out(self) -> None:
        """What all contexts have in common."""
        ol = self.outline
        self._scratch_at = -(-self.plan.nbytes // ALIGNMENT) * ALIGNMENT
        self._segments = segments(ol)
        self._args: list[ArgumentPlace] = []
        self._starts: list[int] = []  # of each call's arguments
        for call in ol.calls:
            self._starts.append(len(self._args))
            self._args += [self._read(call, i) for i in range(len(call.reads))]
            self._args += [place_of(ol, self.plan, name) for name in call.writes]

    def _read(self, call: KernelCall, argument: int) -> ArgumentPlace:
        a = call.reads[argument]
        if a.tensor in self.outline.constants:
            use = use_of(self.kernels, call, argument)
            array = self._weights[use]
            return ArgumentPlace(FIXED, array.ctypes.data + (0 if use.packed else start_of(self.outline, a)))
        return place_read(self.outline, self.plan, a)

    # -- calls -------------------------------------------------------------------------------

    def run(self, inputs: Sequence[Array], outputs: Sequence[Array], times: Times | None = None) -> None:
        """Run the model once. ``inputs``, ``outputs``: row-major arrays with aligned elements, of the shapes
        and dtypes of the outline, which are not looked at. ``times``: adds up how long each step takes."""
        context = self._take()
        try:
            for place, slots in ((inputs, context.input_slots), (outputs, context.output_slots)):
                at = [x.ctypes.data for x in place]
                for slot, number, offset in slots:
                    context.args[slot] = at[number] + offset
            for segment in self._segments:
                if isinstance(segment, Island):
                    begin = time.perf_counter_ns()
                    self._island(segment, context, inputs, outputs)
                    if times is not None:
                        times.islands[segment.name] += time.perf_counter_ns() - begin
                elif times is None:
                    run_program(context.steps, *segment, context.scratch)
                else:
                    time_program(
                        context.steps, *segment, context.scratch, times.calls, cpu_clock=times.cpu_clock
                    )
        finally:
            if len(self._idle) < self._most_idle:
                self._idle.append(context)

    def _take(self) -> _Context:
        try:
            return self._idle.pop()
        except IndexError:
            return _Context(self)

    def _island(
        self, island: Island, context: _Context, inputs: Sequence[Array], outputs: Sequence[Array]
    ) -> None:
        def array(name: str) -> Array:
            if name in self.outline.constants:
                return self._weights[Use(name)].reshape(self.outline.tensors[name].shape)
            at = place_of(self.outline, self.plan, name)
            if at.base != ARENA:
                return (inputs if at.base == INPUT else outputs)[at.number]
            return context.array(at.offset, self.outline, name)

        made = self.run_island(island, [array(name) for name in island.reads])
        for t, x in zip(island.writes, made, strict=True):
            array(t.name)[...] = x


class _Context:
    """An arena and the tables of arguments of one call at a time."""

    def __init__(self, program: Program) -> None:
        size = program.arena_bytes
        align = HUGE if size >= HUGE else ALIGNMENT
        raw = np.empty(size + align, np.uint8)
        first = -raw.ctypes.data % align
        self._arena = raw[first : first + size]
        base = self._arena.ctypes.data
        self.scratch = base + program._scratch_at
        args = program._args
        self.args = (ctypes.c_int64 * max(len(args), 1))()
        for slot, a in enumerate(args):
            self.args[slot] = a.offset + (base if a.base == ARENA else 0)
        self.input_slots = [(i, a.number, a.offset) for i, a in enumerate(args) if a.base == INPUT]
        self.output_slots = [(i, a.number, a.offset) for i, a in enumerate(args) if a.base == OUTPUT]
        word = ctypes.sizeof(ctypes.c_int64)
        self.steps = (ctypes.c_int64 * max(STEP * len(program._starts), 1))()
        for n, call in enumerate(program.outline.calls):
            code = _code(program.kernels[call.task])
            table = ctypes.addressof(self.args) + word * program._starts[n]
            self.steps[STEP * n : STEP * (n + 1)] = [code.address, table, code.threads]

    def array(self, offset: int, outline: Outline, name: str) -> Array:
        """A tensor in the arena."""
        t = outline.tensors[name]
        dtype = DTYPES[t.dtype].numpy
        flat = self._arena[offset : offset + prod(t.shape) * dtype.itemsize].view(dtype)
        return cast(Array, flat.reshape(t.shape))


class Times:
    """Nanoseconds by step, added up. ``cpu_clock``: of kernels, in CPU time of the calling thread."""

    def __init__(self, outline: Outline, cpu_clock: bool) -> None:
        self.calls = (ctypes.c_int64 * max(len(outline.calls), 1))()
        self.islands = {s.name: 0 for s in outline.steps if isinstance(s, Island)}
        self.cpu_clock = cpu_clock


def _code(kernel: Kernel) -> LoadedObject:
    return cast("LoadedObject", kernel.code)
