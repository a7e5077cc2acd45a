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
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from schedules.space.holes import Columns

Operation = Callable[..., Any]
REAL = np.dtype(np.float64)
CHUNK = 4096  # rows at a time
SWAPPABLE = (np.add, np.multiply, np.minimum, np.maximum, np.bitwise_and, np.bitwise_or)


@cache
def _result(f: Operation, dtypes: tuple[np.dtype[Any], ...]) -> np.dtype[Any]:
    """The dtype of what an operation makes of columns of these."""
    return f(*(np.ones(1, t) for t in dtypes)).dtype


def _to_integer(x: np.ndarray) -> np.ndarray:
    return x.astype(np.int64)


def _to_real(x: np.ndarray) -> np.ndarray:
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
        return self.recording.add({"i": _to_integer, "f": _to_real}[wanted.kind], (self,))


class Recording:
    """The operations so far, as (operation, arguments): numbers of columns, or constants."""

    def __init__(self, holes: Sequence[str]) -> None:
        self.columns = Columns((h, Recorded(self, n, REAL)) for n, h in enumerate(holes))
        self.steps: list[tuple[Operation, tuple[Any, ...]] | None] = [None] * len(holes)
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
        return known

    def _made_by(self, f: Operation, x: Any) -> tuple[Any, ...] | None:
        """The arguments of the operation ``f`` that ``x`` is the result of."""
        step = self.steps[x.number] if isinstance(x, Recorded) else None
        return step[1] if step is not None and step[0] is f else None


class Program:
    """``formulas``: from the columns of the holes to quantities. Those of rows are then `run`."""

    def __init__(self, holes: Sequence[str], formulas: Callable[[Columns], Sequence[Any]]) -> None:
        recording = Recording(holes)
        results = formulas(recording.columns)
        self._holes = len(holes)
        self._start: list[Any] = [None] * len(recording.steps)  # values before the first step: constants

        def place(x: Any) -> int:
            if isinstance(x, Recorded):
                return x.number
            self._start.append(x)
            return len(self._start) - 1

        self._results = [place(x) for x in results]
        self.count = len(self._results)  # of quantities
        needed = set(self._results)
        self._steps: list[tuple[Operation, int, tuple[int, ...], tuple[int, ...]]] = []
        for n, step in reversed(list(enumerate(recording.steps))):
            if step is None or n not in needed:
                continue
            f, args = step
            inputs = tuple(place(x) for x in args)
            freed = tuple({x.number for x in args if isinstance(x, Recorded)} - needed)
            needed.update(inputs)
            self._steps.append((f, n, inputs, freed))
        self._steps.reverse()

    def run(self, rows: npt.NDArray[np.int64]) -> Iterator[tuple[slice, list[Any]]]:
        """The quantities of some rows after the other: columns, or numbers where they depend on no hole."""
        for begin in range(0, len(rows), CHUNK):
            part = slice(begin, min(begin + CHUNK, len(rows)))
            values = self._start.copy()
            values[: self._holes] = np.ascontiguousarray(rows[part].T, dtype=np.float64)
            with np.errstate(divide="ignore", invalid="ignore"):  # of rows outside of the space
                for f, out, inputs, freed in self._steps:
                    values[out] = f(*[values[i] for i in inputs])
                    for i in freed:  # its memory is in the cache: the next result may have it
                        values[i] = None
            yield part, [values[i] for i in self._results]
