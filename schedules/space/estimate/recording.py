"""Records formulas over the holes of a sketch once, and runs them over any number of rows.

A formula is ordinary arithmetic on numpy columns. Called once with a `Recorded` for each column, it leaves a
list of numpy operations: equal ones once, constants worked out, and no other Python. Rows run through that
list a few thousand at a time, because fewer cost more calls a row and more leave the cache. Reasons: ADR 27.

Holes are float64 here. Sums and products of integers are exact below 2**53, and so are quotients that are
rounded down. Float division is several times as fast as integer division.
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
# Dtype of all columns.
REAL = np.dtype(np.float64)
# Rows that are run at a time.
CHUNK = 4096
# Cost of one step (microseconds): of a numpy call, of each row in it, of compiling it. Compiling begins when
# the counted cost of calls reaches its own. Costs are counted and not timed, so that runs repeat.
CALL_US, ROW_US, COMPILE_US = 0.7, 0.0015, 30.0
# Operations whose two arguments may be swapped.
SWAPPABLE = (np.add, np.multiply, np.minimum, np.maximum, np.bitwise_and, np.bitwise_or)


@cache
def _result(f: Operation, dtypes: tuple[np.dtype[Any], ...]) -> np.dtype[Any]:
    """The dtype of an operation's result on columns of these dtypes."""
    return f(*(np.ones(1, t) for t in dtypes)).dtype


def to_integer(x: np.ndarray) -> np.ndarray:
    """A column as int64."""
    return x.astype(np.int64)


def to_real(x: np.ndarray) -> np.ndarray:
    """A column as float64."""
    return x.astype(np.float64)


class Recorded(np.lib.mixins.NDArrayOperatorsMixin):
    """A column that is not known yet. Operations on it are added to the recording."""

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
            if not isinstance(args[0], Recorded):  # a constant condition
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
    """The operations so far, as (operation, arguments). Arguments are numbers of columns, or constants."""

    def __init__(self, holes: Sequence[str]) -> None:
        self.columns = Columns((h, Recorded(self, n, REAL)) for n, h in enumerate(holes))
        self.steps: list[tuple[Operation, tuple[Any, ...]] | None] = [None] * len(holes)
        self.dtypes = [REAL] * len(holes)
        self.used: list[frozenset[int]] = [frozenset()] * len(holes)  # the columns behind each column
        self._known: dict[Hashable, Recorded] = {}

    def ufunc(self, f: np.ufunc, args: tuple[Any, ...]) -> Any:
        """Record an operation, in simpler form if possible, or not at all if it does nothing. Values are
        finite."""
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
        """The column that ``f`` makes of ``args``."""
        real = f is np.where or any(isinstance(x, Recorded) and x.dtype == REAL for x in args)
        inputs: list[Any] = []
        keys: list[Any] = []
        for x in args:
            if isinstance(x, Recorded):
                keys.append(x.number)
            else:  # an array without dimensions, as numpy would convert a number at every call
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
        """The arguments of ``f`` if ``x`` is its result, else None."""
        step = self.steps[x.number] if isinstance(x, Recorded) else None
        return step[1] if step is not None and step[0] is f else None

    def behind(self, results: Sequence[Any]) -> set[int]:
        """The numbers of these columns and of all columns behind them."""
        found: set[int] = set()
        left = [x.number for x in results if isinstance(x, Recorded)]
        while left:
            n = left.pop()
            if n not in found:
                found.add(n)
                left += self.used[n]
        return found

    def forget(self) -> None:
        """Drop all columns. Each refers to its recording, so that only the garbage collector would free
        them."""
        self.columns.clear()
        self.columns.known.clear()
        self.steps.clear()
        self._known.clear()


# (operation, result, arguments, arguments to free), by numbers of columns.
Step = tuple[Operation, int, tuple[int, ...], tuple[int, ...]]
# float64 [quantities, rows].
Values = npt.NDArray[np.float64]
# (number of a group) -> its values.
Group = Callable[[int], Values]
# (rows) -> for each chunk: its slice, values of the first group, and the values of others on demand.
Run = Callable[[npt.NDArray[np.int64]], Iterator[tuple[slice, Values, Group]]]


@dataclass(frozen=True)
class Listing:
    """The steps of a program on numbered columns. ``holes``: number of given columns, which come first.
    ``constants``: the value of each column known beforehand, None for others. ``kinds``: kind of dtype of
    each. ``steps``: of each group, see `Step`. ``results``: of each group, the numbers of its columns."""

    holes: int
    constants: list[Any]
    kinds: list[str]
    steps: list[list[Step]]
    results: list[list[int]]


Compiler = Callable[[Listing], Run | None]


def _listed(recording: Recording, groups: Sequence[Sequence[Any]]) -> Listing:
    """The listing of groups of recorded quantities, with steps in the order of the recording."""
    constants: list[Any] = [None] * len(recording.steps)
    kinds: list[str] = [t.kind for t in recording.dtypes]

    def place(x: Any) -> int:
        if isinstance(x, Recorded):
            return x.number
        constants.append(x)
        kinds.append(np.asarray(x).dtype.kind)
        return len(constants) - 1

    def plan(wanted: set[int], kept: set[int]) -> list[Step]:
        """The steps that make ``wanted``. Columns that are neither ``kept`` nor used again are freed."""
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
    given = first.union(range(len(recording.columns)))  # what the first group leaves to others
    steps = [plan(first, asked.union(*(recording.used[n] for n in later)))]
    steps += [plan(group - first, asked | given) for group in others]
    return Listing(len(recording.columns), constants, kinds, steps, results)


class RecordedProgram:
    """Evaluates ``formulas``, from the columns of holes to groups of quantities, on rows. The first group is
    always evaluated, others on demand. ``compiler``: makes a faster function of a listing, or returns None;
    it is asked once rows have taken as long as compiling would (`COMPILE_US`)."""

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
        """For each chunk of rows: (its slice, quantities of the first group, function for another group).
        Values are floats, truths 0 or 1, and valid until the next chunk."""
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
        with np.errstate(divide="ignore", invalid="ignore"):  # rows outside the space
            for f, out, inputs, freed in self.listing.steps[group]:
                values[out] = f(*[values[i] for i in inputs])
                for i in freed:  # the next result may reuse memory that is in the cache
                    values[i] = None
        results = self.listing.results[group]
        found = np.empty((len(results), count))
        for k, i in enumerate(results):
            found[k] = values[i]
        return found
