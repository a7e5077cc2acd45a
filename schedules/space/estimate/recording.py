"""Formulas over the holes of a sketch, recorded once and then run over any number of rows.

A formula is ordinary arithmetic on numpy columns. Called once with a `Recorded` in place of each column it
leaves a list of numpy operations: each different one once, what depends on no hole worked out beforehand, and
none of the Python around them. That is what rows are then run through, a few thousand at a time: fewer cost
more calls a row, more would leave the cache.

Holes are float64 here: sums and products of integers are exact below 2**53, quotients rounded down too, and
float division is several times as fast as that of integers.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from schedules.space.holes import Columns

Operation = Callable[..., Any]
REAL = np.dtype(np.float64)
CHUNK = 4096  # rows at a time
# Of one step: what numpy takes for a call and for each row, and what it takes to compile it. Counted and not
# timed, so that runs repeat.
CALL_US, ROW_US, COMPILE_US = 0.7, 0.0015, 30.0
SWAPPABLE = (np.add, np.multiply, np.minimum, np.maximum, np.bitwise_and, np.bitwise_or)


@cache
def _result(f: Operation, dtypes: tuple[np.dtype[Any], ...]) -> np.dtype[Any]:
    """The dtype of what an operation makes of columns of these."""
    return f(*(np.ones(1, t) for t in dtypes)).dtype


def to_integer(x: np.ndarray) -> np.ndarray:
    return x.astype(np.int64)


def to_real(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64)


class Recorded(np.lib.mixins.NDArrayOperatorsMixin):
    """A column that is not known yet: what is done with it goes to the recording."""

    __slots__ = ("dtype", "number", "recording")
    shape = ("rows",)  # tells `evaluate` that this is a column

    def __init__(self, recording: Recording, number: int, dtype: np.dtype[Any]) -> None:
        self.recording, self.number, self.dtype = recording, number, dtype

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options:
            return NotImplemented
        return self.recording.ufunc(ufunc, inputs)

    def __array_function__(self, function: Any, types: Any, args: Any, options: Any) -> Any:
        if function in (np.zeros_like, np.ones_like):
            return np.dtype(options.get("dtype", self.dtype)).type(function is np.ones_like)
        if function is np.where:
            if not isinstance(args[0], Recorded):  # decided already
                return args[1] if args[0] else args[2]
            return self.recording.add(np.where, args)
        if function is np.clip:
            x, low, high = args
            return np.minimum(np.maximum(x, low), high)
        return NotImplemented

    def astype(self, dtype: npt.DTypeLike) -> Any:
        wanted = np.dtype(dtype)
        if wanted == self.dtype:
            return self
        return self.recording.add({"i": to_integer, "f": to_real}[wanted.kind], (self,))


class Recording:
    """The operations so far, as (operation, arguments): numbers of columns, or constants."""

    def __init__(self, holes: Sequence[str]) -> None:
        self.columns = Columns((h, Recorded(self, n, REAL)) for n, h in enumerate(holes))
        self.steps: list[tuple[Operation, tuple[Any, ...]] | None] = [None] * len(holes)
        self.dtypes = [REAL] * len(holes)
        self.used: list[frozenset[int]] = [frozenset()] * len(holes)  # the columns that each is made of
        self._known: dict[Hashable, Recorded] = {}

    def ufunc(self, f: np.ufunc, args: tuple[Any, ...]) -> Any:
        """Records in simpler words, or not at all where nothing is to be done. Values are finite."""
        if f is np.floor_divide:
            return np.floor(args[0] / args[1])
        if f is np.remainder:
            return args[0] - np.floor(args[0] / args[1]) * args[1]
        if f is np.negative:  # ceildiv is -(-a // b)
            inner = self._made_by(np.floor, args[0])
            quotient = self._made_by(np.divide, inner[0]) if inner else None
            above = self._made_by(np.negative, quotient[0]) if quotient else None
            if quotient and above:
                return np.ceil(above[0] / quotient[1])
        if f in (np.add, np.multiply):
            for x, y in (args, args[::-1]):
                if isinstance(x, Recorded) and not isinstance(y, Recorded) and x.dtype == REAL:
                    if y == (f is np.multiply):
                        return x
                    if f is np.multiply and y == 0:
                        return np.float64(0)
        return self.add(f, args)

    def add(self, f: Operation, args: tuple[Any, ...]) -> Recorded:
        """The column that ``f`` makes of these."""
        real = f is np.where or any(isinstance(x, Recorded) and x.dtype == REAL for x in args)
        inputs: list[Any] = []
        keys: list[Any] = []
        for x in args:
            if isinstance(x, Recorded):
                keys.append(x.number)
            else:  # an array without dimensions: a number would be made into one every time
                x = np.asarray(x, REAL if real else None)
                keys.append((x.dtype.char, x.item()))
            inputs.append(x)
        if f in SWAPPABLE:
            keys.sort(key=hash)
        key = (f, *keys)
        known = self._known.get(key)
        if known is None:
            dtype = _result(f, tuple(x.dtype for x in inputs))
            known = self._known[key] = Recorded(self, len(self.steps), dtype)
            self.steps.append((f, tuple(inputs)))
            self.dtypes.append(dtype)
            self.used.append(frozenset(x.number for x in inputs if isinstance(x, Recorded)))
        return known

    def _made_by(self, f: Operation, x: Any) -> tuple[Any, ...] | None:
        """The arguments of the operation ``f`` that ``x`` is the result of."""
        step = self.steps[x.number] if isinstance(x, Recorded) else None
        return step[1] if step is not None and step[0] is f else None

    def behind(self, results: Sequence[Any]) -> set[int]:
        """The numbers of the columns that these are made of, and their own."""
        found: set[int] = set()
        left = [x.number for x in results if isinstance(x, Recorded)]
        while left:
            n = left.pop()
            if n not in found:
                found.add(n)
                left += self.used[n]
        return found

    def forget(self) -> None:
        """Drop all columns. Each knows its recording, so that only the garbage collector would."""
        self.columns.clear()
        self.columns.known.clear()
        self.steps.clear()
        self._known.clear()


Step = tuple[Operation, int, tuple[int, ...], tuple[int, ...]]
Values = npt.NDArray[np.float64]  # [quantities, rows]
Group = Callable[[int], Values]
Run = Callable[[npt.NDArray[np.int64]], Iterator[tuple[slice, Values, Group]]]


@dataclass(frozen=True)
class Listing:
    """What a program does with its columns, which have numbers: the first ``holes`` are given, ``constants``
    are what is known beforehand, by number, None for columns; ``kinds``: of the dtypes of both. Of each group
    the ``steps``: an operation, its result, its arguments, and of these the ones to free; and the
    ``results``."""

    holes: int
    constants: list[Any]
    kinds: list[str]
    steps: list[list[Step]]
    results: list[list[int]]


Compiler = Callable[[Listing], Run | None]


def _listed(recording: Recording, groups: Sequence[Sequence[Any]]) -> Listing:
    """The listing of groups of recorded quantities, each in the order of the recording."""
    constants: list[Any] = [None] * len(recording.steps)
    kinds: list[str] = [t.kind for t in recording.dtypes]

    def place(x: Any) -> int:
        if isinstance(x, Recorded):
            return x.number
        constants.append(x)
        kinds.append(np.asarray(x).dtype.kind)
        return len(constants) - 1

    def plan(wanted: set[int], kept: set[int]) -> list[Step]:
        """Freed is what is neither ``kept`` nor used again."""
        steps, kept = [], set(kept)
        for n in sorted(wanted, reverse=True):
            step = recording.steps[n]
            if step is not None:
                used = recording.used[n]
                steps.append((step[0], n, tuple(place(x) for x in step[1]), tuple(used - kept)))
                kept |= used
        return steps[::-1]

    results = [[place(x) for x in group] for group in groups]
    asked = set().union(*results)
    first, *others = (recording.behind(group) for group in groups)
    later = set().union(*others) - first
    given = first.union(range(len(recording.columns)))  # to all others
    steps = [plan(first, asked.union(*(recording.used[n] for n in later)))]
    steps += [plan(group - first, asked | given) for group in others]
    return Listing(len(recording.columns), constants, kinds, steps, results)


class Program:
    """``formulas``: from the columns of the holes to groups of quantities. Those of rows are then `run`: of
    the first group always, of another one where it is asked for. ``compiler``: makes something faster of a
    listing, or nothing; it is asked once the rows have taken as long as it would."""

    def __init__(
        self,
        holes: Sequence[str],
        formulas: Callable[[Columns], Sequence[Sequence[Any]]],
        compiler: Compiler | None = None,
    ) -> None:
        recording = Recording(holes)
        self.listing = _listed(recording, formulas(recording.columns))
        self._compiler, self._spent_us = compiler, 0.0
        self._compiled: Run | None = None
        recording.forget()

    def run(self, rows: npt.NDArray[np.int64]) -> Iterator[tuple[slice, Values, Group]]:
        """Some rows after the other: which, the first group of their quantities, and what gives another one:
        real numbers, truths 0 or 1, until the next rows."""
        if self._compiler is not None:
            self._spent_us += CALL_US + ROW_US * len(rows)
            if self._spent_us > COMPILE_US:
                self._compiled, self._compiler = self._compiler(self.listing), None
        return self._interpret(rows) if self._compiled is None else self._compiled(rows)

    def _interpret(self, rows: npt.NDArray[np.int64]) -> Iterator[tuple[slice, Values, Group]]:
        for begin in range(0, len(rows), CHUNK):
            part = slice(begin, min(begin + CHUNK, len(rows)))
            values = self.listing.constants.copy()
            values[: self.listing.holes] = np.ascontiguousarray(rows[part].T, dtype=np.float64)
            run = partial(self._group, values, part.stop - begin)
            yield part, run(0), run

    def _group(self, values: list[Any], count: int, group: int) -> Values:
        with np.errstate(divide="ignore", invalid="ignore"):  # of rows outside of the space
            for f, out, inputs, freed in self.listing.steps[group]:
                values[out] = f(*[values[i] for i in inputs])
                for i in freed:  # its memory is in the cache: the next result may have it
                    values[i] = None
        results = self.listing.results[group]
        found = np.empty((len(results), count))
        for k, i in enumerate(results):
            found[k] = values[i]
        return found
