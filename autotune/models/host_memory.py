"""The memory of this process, as programs use it: each call that runs has an arena, and is one native call
between islands. Inputs are read where the caller has them, outputs are written where the caller wants them.
So calls from several threads do not wait for each other."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from autotune.codegen.llvm.compile import address_reader, run_program, time_program
from autotune.codegen.runtime.program import STEP
from autotune.models.places import ARENA, INPUT, OUTPUT, STATE, WEIGHT, ArgumentPlace, place_of, up
from autotune.targets import usable_cpus
from schedules.dtypes import DTYPES
from schedules.graph.plan import ALIGNMENT

if TYPE_CHECKING:
    from autotune.models.program import Program

Array = NDArray[Any]
HUGE = 2 << 20  # bytes of a huge page: where an arena of such a size begins
WORD = ctypes.sizeof(ctypes.c_int64)


class HostLayout:
    """What all contexts of a program have in common. ``nbytes``: of an arena with its scratch memory."""

    def __init__(self, program: Program) -> None:
        self.plan, self.outline, self.moves = program.plan, program.outline, program.told.moves
        self.scratch_at = up(self.plan.nbytes, ALIGNMENT)
        codes = (*(k.code for k in program.kernels), *program.codes.values())
        self.scratch_bytes = max((code.scratch_bytes for code in codes), default=0)
        self.nbytes = self.scratch_at + self.scratch_bytes
        self.args: list[tuple[int, ArgumentPlace]] = []  # which word of the table, what it points to
        self.steps: list[tuple[Any, int]] = []  # the code of each call, and the number of its first argument
        self.sizes: list[tuple[int, int]] = []  # which word of the table is which size of the program
        numbers = {s.name: k for k, s in enumerate(self.outline.told)}
        self.words = 0
        for n, (call, places) in enumerate(zip(self.outline.calls, program.arguments, strict=True)):
            self.steps.append((program.codes.get(n, program.kernels[call.task].code), self.words))
            self.args += enumerate(places, self.words)
            self.words += len(places)
            self.sizes += enumerate((numbers[name] for name in call.sizes), self.words)
            self.words += len(call.sizes)

    def context(self) -> HostContext:
        return HostContext(self)


@dataclass(frozen=True)
class _Told:
    """Words of the table of arguments that each call tells: ``begin + step * (a number of the call)``.
    Numbers of a call are where its inputs and outputs lie, how far places move, and sizes, in this order.

    ``word``: which words, each with its ``begin``, its ``step`` and the ``number`` of the number. ``more``:
    what a word is moved by besides. ``states``: {word: (number of a state, bytes from where that begins)} of
    all words that point into one."""

    word: Array
    begin: Array
    step: Array
    number: Array
    more: tuple[tuple[int, int, int], ...]
    states: Mapping[int, tuple[int, int]]

    @staticmethod
    def of(layout: HostLayout, args: ctypes.Array[ctypes.c_int64]) -> _Told:
        """Those of a layout. ``args``: the table, of which each word points as far as is known."""
        outputs = len(layout.outline.inputs)
        moves = outputs + len(dict.fromkeys(layout.outline.outputs))
        first = {INPUT: 0, OUTPUT: outputs}
        rows: list[tuple[int, int, int, int]] = []
        more: list[tuple[int, int, int]] = []
        for word, a in layout.args:
            moved = [(moves + layout.moves.index(m), step) for m, step in a.moves]
            if a.base in first:
                moved.insert(0, (a.number + first[a.base], 1))
            if moved:
                rows.append((word, args[word], moved[0][1], moved[0][0]))
                more += [(word, *x) for x in moved[1:]]
        rows += [(word, 0, 1, moves + len(layout.moves) + number) for word, number in layout.sizes]
        words, begins, steps, numbers = np.array(rows, np.int64).reshape(-1, 4).T.copy()
        states = {i: (a.number, a.offset) for i, a in layout.args if a.base == STATE}
        return _Told(words, begins, steps, numbers, tuple(more), states)

    def take_states(self, known: Sequence[int], args: ctypes.Array[ctypes.c_int64]) -> None:
        """Point into states that lie elsewhere than before. ``known``: where each begins."""
        for word, (number, offset) in self.states.items():
            args[word] = known[number] + offset
        for n, word in enumerate(self.word):
            if int(word) in self.states:
                self.begin[n] = args[word]


class HostContext:
    """An arena and the tables of arguments of one call at a time."""

    def __init__(self, layout: HostLayout) -> None:
        align = HUGE if layout.nbytes >= HUGE else ALIGNMENT
        raw = np.empty(layout.nbytes + align, np.uint8)
        skip = -raw.ctypes.data % align
        self._layout, self._arena = layout, raw[skip : skip + layout.nbytes]
        base = self._arena.ctypes.data
        self._scratch = base + layout.scratch_at
        self._args = (ctypes.c_int64 * max(layout.words, 1))()
        for slot, a in layout.args:
            at = base if a.base == ARENA else a.weight.ctypes.data if a.base == WEIGHT else 0
            self._args[slot] = at + a.offset
        self._told = _Told.of(layout, self._args)
        self._table = np.ctypeslib.as_array(self._args)
        self._states_at: Sequence[int] = ()  # where the states lay in the last call
        self._address = address_reader()
        self._steps = (ctypes.c_int64 * max(STEP * len(layout.steps), 1))()
        for n, (code, slot) in enumerate(layout.steps):
            table = ctypes.addressof(self._args) + WORD * slot
            self._steps[STEP * n : STEP * (n + 1)] = [code.address, table, code.threads]

    def begin(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        sizes: Sequence[int] = (),
        states: Sequence[Array] = (),
        told: Sequence[int] = (),
    ) -> None:
        """Take the arrays of a call, the sizes of the program, and the numbers that the call tells."""
        self._given, address, words = (inputs, outputs, states), self._address, self._told
        if states:
            known = getattr(states, "addresses", None) or tuple(map(address, states))
            if known != self._states_at:
                words.take_states(known, self._args)
                self._states_at = known
        every = np.array([*map(address, inputs), *map(address, outputs), *told, *sizes], np.int64)
        values = every[words.number]
        values *= words.step
        values += words.begin
        self._table[words.word] = values
        for word, number, step in words.more:
            self._args[word] += int(every[number]) * step

    def run(self, first: int, n: int) -> None:
        """Run ``n`` calls of kernels from number ``first`` on."""
        run_program(self._steps, first, n, self._scratch)

    def time(self, first: int, n: int, ns: ctypes.Array[ctypes.c_int64], cpu_clock: bool) -> None:
        """`run`, and add to ``ns`` how long each of all calls takes."""
        time_program(self._steps, first, n, self._scratch, ns, cpu_clock=cpu_clock)

    def read(self, name: str) -> Array:
        """A tensor that is no weight, where it is."""
        at = place_of(self._layout.outline, self._layout.plan, name)
        if at.base != ARENA:
            return self._given[(INPUT, OUTPUT, STATE).index(at.base)][at.number]
        t = self._layout.outline.tensors[name]
        flat = self._arena[at.offset : at.offset + t.nbytes].view(DTYPES[t.dtype].numpy)
        return cast(Array, flat.reshape(t.shape))

    def write(self, name: str, value: Array) -> None:
        """Give a tensor its value."""
        self.read(name)[...] = value

    def end(self, outputs: Sequence[Array]) -> None:
        """They are where the caller wants them."""
        self._given = ((), (), ())  # which are the caller's


class HostMemory:
    """``contexts``: arenas that are kept: more could not run at the same time. ``copies``: whether `kept`
    copies what it is given."""

    alignment, copies, turn = ALIGNMENT, False, nullcontext()
    layout = HostLayout

    def __init__(self) -> None:
        self.contexts = usable_cpus()

    def kept(self, weight: Array) -> Array:
        """A weight as this memory has it."""
        return weight

    def value(self, kept: Array) -> Array:
        """Inverse of `kept`."""
        return kept
