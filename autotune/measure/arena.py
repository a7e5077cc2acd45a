"""Memory for a kernel's arrays, between spans that no access survives.

Every array lies in a region of its own with inaccessible pages on both sides. A *placement* says where in
its region each array lies; the checks run a kernel once in each, and every draw of inputs lies in one at
least:

- ``end``: each array ends exactly where the inaccessible pages begin;
- ``begin``: each array begins exactly behind them (both at once where all sizes are whole pages);
- ``shifted``: each array begins one element after a 64-byte boundary, so that code which assumes more than
  element alignment faults. Left out where ``end`` has already misaligned every array.

Times are taken with each array 16 bytes after a page begins, as large arrays of numpy lie, behind what malloc
writes of itself: half of the vectors cross a cache line there, and a tile may touch twice the lines. A
kernel that is fast there is fast on arrays that lie better, not the other way round.

Inputs are filled once and made read-only. Memory is anonymous and, from 4 MiB on, asks for huge pages as
numpy does, so that timings are those of numpy arrays. Built before the workers fork, which share the inputs
and have outputs of their own: Linux makes small pages of a huge one that is written to while another process
has it too, and writing would take up to twice the time that it takes in a numpy array.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import prod

import numpy as np

from schedules.model import LINE

PAGE = mmap.PAGESIZE
GUARD = 4 << 20  # bytes on each side of a region: more than a row of most arrays, and costs no memory
SCRATCH_SPAN = 1 << 30  # most scratch a kernel may have
MALLOC_HEADER = 16  # bytes between the beginning of a page and a large array of numpy
_NONE, _READ, _WRITE = 0, 1, 2
_PRIVATE, _ANONYMOUS, _NORESERVE = 0x02, mmap.MAP_ANONYMOUS, getattr(mmap, "MAP_NORESERVE", 0)
_HUGE = 14  # MADV_HUGEPAGE

# Quiet NaNs with a payload that no arithmetic starts from, and integers that few results equal. The number
# of the placement is added, so that a value which is right by chance in one check is not in the next. The
# halves of 64 bits are alike: devices fill memory by 32 at most.
POISON = {
    "float16": (np.uint16, 0x7E50),
    "bfloat16": (np.uint16, 0x7FC5),
    "float32": (np.uint32, 0x7FC5A5A0),
    "float64": (np.uint64, 0x7FFCA5A07FFCA5A0),
    "int8": (np.uint8, 0x5A),
    "uint8": (np.uint8, 0x5A),
    "int32": (np.uint32, 0x5AC3A5A0),
    "int64": (np.uint64, 0x5AC3A5A05AC3A5A0),
    "bool": (np.uint8, 0x5A),
}


@dataclass(frozen=True, slots=True)
class Param:
    """A parameter of a kernel."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * np.dtype(self.dtype).itemsize


@dataclass(frozen=True, slots=True)
class Span:
    """Addresses of an array (``first`` to ``last``) and of its region, inaccessible pages included
    (``low`` to ``high``): what a faulting address is looked up in."""

    name: str
    kind: str  # "input", "output" or "scratch"
    dtype: str
    low: int
    first: int
    last: int
    high: int


@dataclass(frozen=True)
class Placement:
    """Where the arrays lie in one check: ``pointers`` in parameter order, ``outputs`` as numpy views.
    ``draw``: which of the inputs lie there."""

    name: str
    pointers: ctypes.Array[ctypes.c_void_p]
    outputs: tuple[np.ndarray, ...]
    draw: int = 0


class Reserve:
    """Address space between inaccessible pages, of which as much is opened as a kernel needs."""

    def __init__(self, base: int) -> None:
        self.base, self._room = base, 0

    def open(self, nbytes: int, where: str) -> int:
        """64-byte-aligned address of poisoned memory, which ends (``where`` = "end", up to the alignment) or
        begins at inaccessible pages. Raises MemoryError above `SCRATCH_SPAN`."""
        if nbytes > SCRATCH_SPAN:
            raise MemoryError(f"{nbytes} bytes of scratch; at most {SCRATCH_SPAN} are given")
        room = _pages(nbytes)
        if room > self._room:
            _protect(self.base, room, _READ | _WRITE)
        elif room < self._room:
            _protect(self.base + room, self._room - room, _NONE)
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
    """All memory of a workload's kernels: ``scratch`` for what a kernel wants beside its arrays, ``packed``
    for the packed form of each constant input, by its number. ``inputs`` are copied in, and so is each of
    ``more``: other draws of them; times are taken on the first. Raises MemoryError. Whoever runs kernels in
    it calls `fill_outputs` first. ``elsewhere``: they run in a device's memory, and one place here is as good
    as another.
    """

    def __init__(
        self,
        params: Sequence[Param],
        inputs: Sequence[np.ndarray],
        constants: Sequence[int] = (),
        elsewhere: bool = False,
        more: Sequence[Sequence[np.ndarray]] = (),
    ) -> None:
        self.params = tuple(params)
        self.n_inputs = len(inputs)
        self.spans: list[Span] = []
        self._free: list[tuple[int, int]] = []
        sizes = [p.nbytes for p in params]
        pages = all(n % PAGE == 0 for n in sizes)
        draws = [inputs, *more]
        names = ["begin"]
        if not elsewhere:
            ends = [] if pages else ["end"]
            shifted = ["shifted"] if any(n % LINE == 0 for n in sizes) else []
            names = [*ends, "begin", *shifted]
        names += ["begin"] * (len(draws) - len(names))
        places = [(name, number % len(draws)) for number, name in enumerate(names)]
        if not elsewhere:
            places.append(("timing", 0))
        self.placements: list[Placement] = []
        self._written: dict[int, int] = {}  # regions of outputs and their bytes
        regions: dict[tuple[object, ...], int] = {}
        for name, draw in places:
            pointers = []
            for i, (p, n) in enumerate(zip(params, sizes)):
                is_input = i < self.n_inputs
                after = {"shifted": np.dtype(p.dtype).itemsize, "timing": MALLOC_HEADER}.get(name, 0)
                room = _pages(n + after)
                # Outputs share one region. A read-only input needs one for each place and draw, but where it
                # is whole pages, which begin and end at inaccessible pages at once.
                whole = after == 0 and n % PAGE == 0
                key = (i, draw, "" if whole else name) if is_input else (i, after)
                filled = key in regions
                if not filled:
                    regions[key] = self._region(room)
                base = regions[key]
                at = base + room - n if name == "end" else base + after
                self.spans.append(
                    Span(p.name, "input" if is_input else "output", p.dtype, base - GUARD, at, at + n,
                         base + room + GUARD)
                )  # fmt: skip
                pointers.append(at)
                if filled:
                    continue
                if is_input:
                    ctypes.memset(base, 0xFF, room)  # NaN, in every float type, around the array
                    a = np.ascontiguousarray(draws[draw][i], dtype=p.dtype)
                    ctypes.memmove(at, a.ctypes.data, n)
                    _protect(base, room, _READ)
                else:
                    self._written[base] = room
            outputs = tuple(
                _view(at, p) for at, p in zip(pointers[self.n_inputs :], self.params[self.n_inputs :])
            )
            held = (ctypes.c_void_p * len(pointers))(*pointers)
            self.placements.append(Placement(name, held, outputs, draw))
        self.timing = self.placements[0] if elsewhere else self.placements.pop()
        self.scratch = self._opened_on_demand("scratch")
        self.packed = {i: self._opened_on_demand(f"packed {params[i].name}") for i in constants}

    def inputs(self, draw: int = 0) -> list[np.ndarray]:
        """The inputs of a draw; of the first, what candidates are timed on."""
        places = (self.timing, *self.placements)
        pointers = next(x.pointers for x in places if x.draw == draw)
        return [_view(at or 0, p) for at, p in zip(pointers, self.params[: self.n_inputs])]

    def fill_outputs(self) -> None:
        """Fill outputs, and what is around them, with NaN of every float type: their memory is ours then."""
        for base, room in self._written.items():
            ctypes.memset(base, 0xFF, room)

    def poison(self, placement: Placement, number: int) -> None:
        """Fill the outputs of a placement with what no kernel would write (see `POISON`)."""
        for p, out in zip(self.params[self.n_inputs :], placement.outputs):
            kind, value = POISON[p.dtype]
            out.view(kind).fill(value + number)

    def close(self) -> None:
        """Give all memory back; the views of placements are dead after it."""
        for address, size in self._free:
            _libc().munmap(address, size)
        self._free.clear()
        self._written.clear()
        self.placements.clear()

    def _opened_on_demand(self, name: str) -> Reserve:
        base = self._reserve(SCRATCH_SPAN)
        self.spans.append(
            Span(name, "scratch", "", base - GUARD, base, base, base + SCRATCH_SPAN + GUARD)
        )
        return Reserve(base)

    def _reserve(self, room: int) -> int:
        """Address of ``room`` inaccessible bytes with `GUARD` on each side."""
        libc, size = _libc(), room + 2 * GUARD
        flags = _PRIVATE | _ANONYMOUS | _NORESERVE
        base = libc.mmap(None, size, _NONE, flags, -1, 0)
        if base is None or base == ctypes.c_void_p(-1).value:
            raise MemoryError(f"cannot map {size} bytes for a kernel's arrays")
        self._free.append((base, size))
        return int(base) + GUARD

    def _region(self, room: int) -> int:
        base = self._reserve(room)
        _protect(base, room, _READ | _WRITE)
        if room >= 4 << 20:
            _libc().madvise(base, room, _HUGE)
        return base


def locate(spans: Sequence[Span], address: int) -> Span | None:
    """The array whose region holds an address; of several placements, the one that it is nearest to."""

    def distance(s: Span) -> int:
        return max(s.first - address, address - s.last + 1, 0)

    return min((s for s in spans if s.low <= address < s.high), key=distance, default=None)


@cache
def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None)
    pointer, size, word = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.mmap.argtypes, libc.mmap.restype = [pointer, size, word, word, word, ctypes.c_long], pointer
    libc.munmap.argtypes = [pointer, size]
    libc.mprotect.argtypes = libc.madvise.argtypes = [pointer, size, word]
    return libc


def _pages(n: int) -> int:
    return -(-n // PAGE) * PAGE


def _protect(address: int, size: int, mode: int) -> None:
    if size and _libc().mprotect(address, size, mode):
        raise MemoryError(f"cannot change the protection of {size} bytes")


def _view(address: int, p: Param) -> np.ndarray:
    buffer = (ctypes.c_byte * p.nbytes).from_address(address)
    return np.frombuffer(memoryview(buffer), dtype=p.dtype).reshape(p.shape)
