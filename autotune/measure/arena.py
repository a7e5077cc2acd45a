"""Memory for a kernel's arrays, with inaccessible pages on both sides of each array.

A *placement* says where in its region each array lies. The checks run a kernel once in each placement:

- ``end``: each array ends where the inaccessible pages begin.
- ``begin``: each array begins where they end. The same as ``end`` where all sizes are whole pages.
- ``shifted``: each array begins one element after a 64-byte boundary, so that code which assumes more than
  element alignment faults. Left out where ``end`` has already misaligned every array.

Each draw of inputs lies in one placement or more. Times are taken with each array 16 bytes after a page
begins, where malloc puts numpy's large arrays. A kernel that is fast there is also fast on better aligned
arrays.

Inputs are filled once and made read-only. Memory is anonymous and asks for huge pages from 4 MiB on, as
numpy's does. The arena is made before the workers fork. They share the inputs, but each touches its outputs
first: Linux splits a huge page that is written to while another process has it (ADR 21).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.codegen.runtime.laid import over
from autotune.platform import pages
from autotune.platform.pages import PAGE
from schedules.dtypes import DTYPES, DType, is_float
from schedules.model import LINE
from schedules.strides import MemoryLayout

# Inaccessible bytes on each side of a region: more than a row of most arrays. They cost no memory.
GUARD = 4 << 20
# Most bytes of scratch that a kernel may have.
SCRATCH_SPAN = 1 << 30
# Bytes between the beginning of a page and a large array of numpy: malloc's header.
MALLOC_HEADER = 16


def _pattern(row: DType) -> int:
    bits = min(32, 8 * row.itemsize)
    word = 0x5AC3A5A0 >> 32 - bits
    if has_rare_nan(row.name):
        payload = bits - 2 - row.exponent  # its bits, without the one that makes NaN quiet
        word = (1 << row.exponent + 1) - 1 << payload | 0x5A5A0 & (1 << payload) - 1
    return word | word << 32 if row.itemsize == 8 else word


def has_rare_nan(dtype: str) -> bool:
    """Whether a dtype has NaNs that no arithmetic makes."""
    return is_float(dtype) and DTYPES[dtype].itemsize > 1


# {dtype: (integer type, pattern)} of unwritten outputs: quiet NaNs that no arithmetic makes, and rare numbers
# where there are none.
# The number of the check is added, so that a value that is right by chance in one check is wrong in the next.
# Both halves of a pattern of 64 bits are alike, because devices fill memory by 32 bits at most.
POISON = {n: (np.dtype(f"u{row.itemsize}").type, _pattern(row)) for n, row in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class KernelParam:
    """A parameter of a kernel: an array with a name, a shape and a dtype. ``strides``: in elements; None:
    row-major."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None

    @property
    def layout(self) -> MemoryLayout:
        """Its shape and strides."""
        return MemoryLayout(self.shape, self.strides)

    @property
    def before(self) -> int:
        """Bytes of memory before its first element."""
        return self.layout.reach[0] * np.dtype(self.dtype).itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of memory from the first element to the last."""
        return self.layout.span * np.dtype(self.dtype).itemsize

    def elements_in(self) -> np.ndarray:
        """Of each element of its memory, whether the array has it: the others are gaps."""
        found = np.zeros(self.layout.span, bool)
        over(found, self.layout)[...] = True
        return found


@dataclass(frozen=True, slots=True)
class Span:
    """Addresses of an array (``first`` to ``last``) and of its region with inaccessible pages (``low`` to
    ``high``). A fault's address is looked up in them."""

    name: str
    kind: str  # "input", "output" or "scratch"
    dtype: str
    low: int
    first: int
    last: int
    high: int


@dataclass(frozen=True)
class Placement:
    """Where the arrays lie in one check. ``pointers``: one a parameter. ``outputs``: numpy views.
    ``draw``: the number of the inputs that lie there."""

    name: str
    pointers: ctypes.Array[ctypes.c_void_p]
    outputs: tuple[np.ndarray, ...]
    draw: int = 0


class Reserve:
    """Address space between inaccessible pages. As much of it is opened as a kernel needs."""

    def __init__(self, base: int) -> None:
        self.base, self._room = base, 0

    def open(self, nbytes: int, where: str) -> int:
        """64-byte-aligned address of poisoned memory, which ends (``where`` = "end", up to the alignment) or
        begins at inaccessible pages. Raises MemoryError above `SCRATCH_SPAN`."""
        if nbytes > SCRATCH_SPAN:
            raise MemoryError(f"{nbytes} bytes of scratch; at most {SCRATCH_SPAN} are given")
        room = _pages(nbytes)
        if room > self._room:
            pages.protect(self.base, room, pages.READ | pages.WRITE)
        elif room < self._room:
            pages.protect(self.base + room, self._room - room, pages.NONE)
        self._room = room
        if room:
            ctypes.memset(self.base, 0xFF, room)
        return self.base if where != "end" else self.base + ((room - nbytes) & ~(LINE - 1))

    def overrun(self, nbytes: int, where: str) -> bool:
        """Whether a kernel wrote between the end of its memory and the inaccessible pages (fewer than 64
        bytes, which the alignment leaves over at "end")."""
        if where != "end" or not nbytes:
            return False
        end = self.base + self._room
        first = self.base + ((self._room - nbytes) & ~(LINE - 1)) + nbytes
        return ctypes.string_at(first, end - first) != b"\xff" * (end - first)


class Arena:
    """All memory of a workload's kernels. Whoever runs kernels in it calls `fill_outputs` first.

    ``inputs``: the first draw, on which times are taken; ``more``: the other draws. All are copied.
    ``constants``: numbers of the inputs that are known ahead; ``packed`` has memory for the packed form of
    each. ``scratch``: memory that a kernel wants beside its arrays. ``elsewhere``: kernels run in a device's
    memory, so that one placement is as good as another. Raises MemoryError.
    """

    def __init__(
        self,
        params: Sequence[KernelParam],
        inputs: Sequence[np.ndarray],
        constants: Sequence[int] = (),
        elsewhere: bool = False,
        more: Sequence[Sequence[np.ndarray]] = (),
    ) -> None:
        self.params = tuple(params)
        self.n_inputs = len(inputs)
        self.spans: list[Span] = []
        self._free: list[tuple[int, int]] = []
        self._draws = [inputs, *more]
        self._written: dict[int, int] = {}  # regions of outputs and their bytes
        self._gaps: dict[str, np.ndarray] = {}  # of outputs with strides: where their memory has none
        self._regions: dict[tuple[object, ...], int] = {}
        self.placements = [self._placed(*x) for x in _places(self.params, len(self._draws), elsewhere)]
        self.timing = self.placements[0] if elsewhere else self.placements.pop()
        del self._draws, self._regions
        self.scratch = self._opened_on_demand("scratch")
        self.packed = {i: self._opened_on_demand(f"packed {params[i].name}") for i in constants}

    def _placed(self, name: str, draw: int) -> Placement:
        pointers = [self._lay(i, p, name, draw) for i, p in enumerate(self.params)]
        both = zip(pointers[self.n_inputs :], self.params[self.n_inputs :])
        held = (ctypes.c_void_p * len(pointers))(*pointers)
        return Placement(name, held, tuple(_view(at, p) for at, p in both), draw)

    def _lay(self, i: int, p: KernelParam, name: str, draw: int) -> int:
        """The address of a parameter's first element in a placement.

        Outputs share one region. A read-only input needs one for each place and draw, but where it is whole
        pages, which begin and end at inaccessible pages at once."""
        is_input, n = i < self.n_inputs, p.nbytes
        after = {"shifted": np.dtype(p.dtype).itemsize, "timing": MALLOC_HEADER}.get(name, 0)
        room = _pages(n + after)
        whole = after == 0 and n % PAGE == 0
        key = (i, draw, "" if whole else name) if is_input else (i, after)
        filled = key in self._regions
        if not filled:
            self._regions[key] = self._region(room)
        base = self._regions[key]
        at = base + room - n if name == "end" else base + after
        kind = "input" if is_input else "output"
        self.spans.append(Span(p.name, kind, p.dtype, base - GUARD, at, at + n, base + room + GUARD))
        if not is_input:
            self._written[base] = room
        elif not filled:
            ctypes.memset(base, 0xFF, room)  # NaN, in every float type, around the array
            _view(at + p.before, p)[...] = self._draws[draw][i]
            pages.protect(base, room, pages.READ)
        return at + p.before

    def inputs(self, draw: int = 0) -> list[np.ndarray]:
        """The inputs of a draw, as numpy views. Those of draw 0 are where candidates are timed."""
        places = (self.timing, *self.placements)
        pointers = next(x.pointers for x in places if x.draw == draw)
        return [_view(at or 0, p) for at, p in zip(pointers, self.params[: self.n_inputs])]

    def fill_outputs(self) -> None:
        """Fill outputs and the memory around them with NaN. The pages become this process's own by it."""
        for base, room in self._written.items():
            ctypes.memset(base, 0xFF, room)

    def poison(self, placement: Placement, number: int) -> None:
        """Fill the outputs of a placement with `POISON` + ``number``, their gaps with what no kernel writes
        that copies those of inputs."""
        for p, out in zip(self.params[self.n_inputs :], placement.outputs):
            kind, value = POISON[p.dtype]
            if p.strides is not None:
                memory_of(out, p).view(kind).fill(_in_gaps(value))
            out.view(kind).fill(value + number)

    def spilled(self, placement: Placement) -> str:
        """What was written into the gaps between the rows of an output since `poison`; empty if nothing."""
        for p, out in zip(self.params[self.n_inputs :], placement.outputs):
            if p.strides is None:
                continue
            kind, value = POISON[p.dtype]
            memory = memory_of(out, p).view(kind)
            if p.name not in self._gaps:
                self._gaps[p.name] = ~p.elements_in()
            wrong = (memory != _in_gaps(value)) & self._gaps[p.name]
            if wrong.any():
                where = f"first {int(wrong.argmax())} elements behind its beginning"
                return f"writes {int(wrong.sum())} elements into gaps of {p.name}, {where}"
        return ""

    def close(self) -> None:
        """Give all memory back. The views of placements must not be used afterwards."""
        for address, size in self._free:
            pages.give_back(address, size)
        self._free.clear()
        self._written.clear()
        self.placements.clear()

    def _opened_on_demand(self, name: str) -> Reserve:
        base = self._reserve(SCRATCH_SPAN)
        self.spans.append(Span(name, "scratch", "", base - GUARD, base, base, base + SCRATCH_SPAN + GUARD))
        return Reserve(base)

    def _reserve(self, room: int) -> int:
        """Address of ``room`` inaccessible bytes with `GUARD` on each side."""
        size = room + 2 * GUARD
        base = pages.reserve(size)
        self._free.append((base, size))
        return base + GUARD

    def _region(self, room: int) -> int:
        base = self._reserve(room)
        pages.protect(base, room, pages.READ | pages.WRITE)
        if room >= 4 << 20:
            pages.prefer_huge(base, room)
        return base


def _places(params: Sequence[KernelParam], draws: int, elsewhere: bool) -> list[tuple[str, int]]:
    """(name, draw of inputs) of each placement, that of times last."""
    sizes = [p.nbytes for p in params]
    if elsewhere:
        return [("begin", draw) for draw in range(draws)]
    ends = [] if all(n % PAGE == 0 for n in sizes) else ["end"]
    shifted = ["shifted"] if any(n % LINE == 0 for n in sizes) else []
    names = [*ends, "begin", *shifted]
    names += ["begin"] * (draws - len(names))
    return [*((name, number % draws) for number, name in enumerate(names)), ("timing", 0)]


def locate(spans: Sequence[Span], address: int) -> Span | None:
    """The array whose region holds an address, the nearest where several do; None if none does."""

    def distance(s: Span) -> int:
        return max(s.first - address, address - s.last + 1, 0)

    return min((s for s in spans if s.low <= address < s.high), key=distance, default=None)


def _pages(n: int) -> int:
    return -(-n // PAGE) * PAGE


def _view(address: int, p: KernelParam) -> np.ndarray:
    """The array whose first element is at an address."""
    return over(_memory(address - p.before, p), p.layout)


def _in_gaps(poison: int) -> int:
    """What the gaps of an output hold, of its pattern in `POISON`."""
    return poison - 1


def memory_of(array: np.ndarray, p: KernelParam) -> np.ndarray:
    """The memory of a parameter's array, in elements, with its gaps."""
    return _memory(array.ctypes.data - p.before, p)


def _memory(address: int, p: KernelParam) -> np.ndarray:
    return np.frombuffer(memoryview((ctypes.c_byte * p.nbytes).from_address(address)), p.dtype)
