"""Chains of numbers: scans whose steps make one number each, evaluated without numpy.

A step costs a call of numpy for each of its operations, and a chain has as many steps as elements. So what
reads no earlier step is evaluated ahead, for many steps at once. What is left is done with Python's floats,
which are float64. An operation whose result is no plain number is left to numpy, and so are those that chains
have seldom. `evaluator` and `rounding` both run chains so, the latter with the errors of numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedules import affine
from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.expr import INDEX, Binary, Compare, Const, Expr, Load, Select, Var
from schedules.loads import with_loads
from schedules.te.compute_dag import Stage, Tensor
from schedules.te.node_order import steps_of
from schedules.te.scan_steps import PLACES, wave_of

Array = NDArray[Any]
# Does an operation of the step of this number.
Operation = Callable[[int], None]
# Numbers and their errors.
Column = tuple[list[Any], list[Any]]
# A node that loads nothing, of those of its operands, each with its error or None.
Evaluate = Callable[[Expr, list[tuple[Any, Any]]], tuple[Any, Any]]
# A number and its error, rounded.
Rounds = Callable[[float, float], tuple[float, float]]
# Steps whose parts are evaluated together.
STEPS = 1 << 12
# The beginning of the names of what is evaluated ahead.
_AHEAD = "ahead_of_step"
_FLOATS = ("float32", "float64")
_NAN = float("nan")


@dataclass(frozen=True)
class Chain:
    """``values``: of each stage, with loads of what ``ahead`` makes. ``ahead``: a stage for each that has
    some."""

    values: tuple[Expr, ...]
    ahead: tuple[Stage, ...]


@dataclass(frozen=True)
class Arithmetic:
    """How a chain computes. ``of``: evaluates a node of a stage. ``rounds``: rounds what is no more than the
    largest number of a dtype. ``wide``: whether floats are float64, whatever their dtype is."""

    of: Callable[[Stage], Evaluate]
    rounds: Callable[[str], Rounds]
    wide: bool


def run_chain(
    stages: Sequence[Stage],
    arrays: dict[str, Array],
    arithmetic: Arithmetic,
    stage: Callable[[Stage], Sequence[tuple[Array, Any]]],
) -> dict[str, tuple[Array, Array]] | None:
    """What the stages of a scan make, and the errors of that, if its steps make one number each; else None.
    ``stage``: evaluates a stage with what ``arrays`` has."""
    chain = chain_of(stages)
    if chain is None:
        return None
    shapes = {name: x.shape for name, x in arrays.items()}
    ahead = [_in_tensors(s, shapes) for s in chain.ahead]
    (_, step), count = stages[0].scan[0], int(stages[0].axes[0].extent)
    made: dict[str, Column] = {s.name: ([0.0] * count, [0.0] * count) for s in stages}
    program = _Program(arithmetic, made)
    for s, value in zip(stages, chain.values, strict=True):
        program.add(s, value)
    every = range(count)[::step]
    for begin in range(0, count, STEPS):
        points = every[begin : begin + STEPS]
        arrays[f"{PLACES}0"] = np.array(points)
        columns = (x for s in ahead for x in zip(s.outputs, stage(wave_of(s, len(points))), strict=True))
        early = {o.name: (v.tolist(), [0.0] * len(v) if e is None else e.tolist()) for o, (v, e) in columns}
        program.run(points, early)
    return {name: (np.array(values), np.array(errors)) for name, (values, errors) in made.items()}


def chain_of(stages: Sequence[Stage]) -> Chain | None:
    """What the steps of a scan do, if they make one number each."""
    own = {s.name for s in stages}
    values, ahead = list[Expr](), list[Stage]()
    for n, s in enumerate(stages):
        simple = len(s.outputs) == len(s.axes) == len(s.scan) == 1 and s.reducer is None
        if not simple or s.outputs[0].dtype not in _FLOATS:
            return None
        found: dict[Expr, Load] = {}

        def early(e: Expr) -> Expr | None:
            if isinstance(e, Const) or E.dtype_of(e) == INDEX or any(x.buffer in own for x in E.loads(e)):
                return None
            return found.setdefault(e, Load(f"{_AHEAD}{n}_{len(found)}", (), E.dtype_of(e)))  # noqa: B023

        value = E.rewrite(s.values[0], early)
        left = [x.node for x in steps_of(value, _parts)]
        if any(E.dtype_of(x) == INDEX for x in left):
            return None
        if any(_distance(x, s) is None for x in left if isinstance(x, Load) and x.buffer in own):
            return None
        values.append(value)
        if found:
            outputs = tuple(Tensor(x.buffer, s.outputs[0].shape, x.dtype) for x in found.values())
            ahead.append(replace(s, outputs=outputs, values=tuple(found)))
    return Chain(tuple(values), tuple(ahead))


def _parts(e: Expr) -> tuple[Expr, ...]:
    """The operands of what is left of a step."""
    if isinstance(e, Load):
        return ()
    return (e.a,) if isinstance(e, Compare) and e.a == e.b else E.children(e)


def _in_tensors(s: Stage, shapes: Mapping[str, Sequence[int]]) -> Stage:
    """A stage whose loads stay in their tensors where a select would have taken its other side."""

    def inside(x: Load) -> Load:
        ends = zip(x.indices, shapes[x.buffer], strict=True)
        return replace(x, indices=tuple(E.maximum(E.minimum(i, n - 1), 0) for i, n in ends))

    return replace(s, values=tuple(with_loads(v, inside) for v in s.values))


def _distance(x: Load, s: Stage) -> int | None:
    """How far from its own point a stage reads."""
    terms, rest = affine.linear(E.binary("-", x.indices[0], Var(s.axes[0].var)))
    return int(rest.value) if not terms and isinstance(rest, Const) else None


class _Program:
    """The operations of a step. A number of each, and its error, stand in a place; an error of 0 is none."""

    def __init__(self, arithmetic: Arithmetic, made: Mapping[str, Column]) -> None:
        self.arithmetic, self.made = arithmetic, made
        self.numbers, self.errors = list[Any](), list[Any]()
        self.early: list[tuple[int, str]] = []
        self.operations: list[Operation] = []

    def run(self, points: Sequence[int], ahead: Mapping[str, Column]) -> None:
        """Do the steps of ``points``. ``ahead``: what was made for these."""
        early = [(n, *ahead[name]) for n, name in self.early]
        numbers, errors = self.numbers, self.errors
        for k, point in enumerate(points):
            for n, values, own in early:
                numbers[n], errors[n] = values[k], own[k]
            for operation in self.operations:
                operation(point)

    def add(self, s: Stage, value: Expr) -> None:
        """Add the operations of a stage."""
        first, of = len(self.numbers), self.arithmetic.of(s)
        for x in steps_of(value, _parts):
            n, at = len(self.numbers), [first + k for k in x.operands]
            self.numbers.append(0.0)
            self.errors.append(0.0)
            match x.node:
                case Const(value=v, dtype=d):
                    self.numbers[n] = np.asarray(v).astype(DTYPES[d].numpy).item()
                case Load(buffer=name) if name in self.made:
                    self.operations.append(self._read(n, name, _distance(x.node, s) or 0))
                case Load(buffer=name):
                    self.early.append((n, name))
                case e:
                    self.operations.append(self._operation(n, at, e, self._any(n, at, e, of)))
        values, errors = self.made[s.name]
        numbers, own, last = self.numbers, self.errors, len(self.numbers) - 1

        def put(point: int) -> None:
            values[point], errors[point] = numbers[last], own[last]

        self.operations.append(put)

    def _read(self, n: int, name: str, distance: int) -> Operation:
        (values, own), numbers, errors = self.made[name], self.numbers, self.errors
        last = len(values) - 1

        def read(point: int) -> None:
            at = min(max(point + distance, 0), last)
            numbers[n], errors[n] = values[at], own[at]

        return read

    def _operation(self, n: int, at: Sequence[int], e: Expr, any_number: Operation) -> Operation:
        """An operation, that of plain numbers if it is a usual one. ``any_number``: that of all."""
        numbers, errors = self.numbers, self.errors
        dtype = E.dtype_of(e)
        if isinstance(e, Select):
            cond, one, other = at

            def choose(point: int) -> None:
                if errors[cond]:
                    return any_number(point)
                k = one if numbers[cond] else other
                numbers[n], errors[n] = numbers[k], errors[k]
                return None

            return choose
        if not isinstance(e, Binary) or e.op not in _PLAIN or dtype not in _FLOATS:
            return any_number
        of, (a, b), most = _PLAIN[e.op], at, float(np.finfo(dtype).max)
        rounds = self.arithmetic.rounds(dtype) if e.op in "+-*/" else None

        def operation(point: int) -> None:
            v, off = of(numbers[a], numbers[b], errors[a], errors[b])
            if not (abs(v) <= most and off == off):
                return any_number(point)
            numbers[n], errors[n] = (v, off) if rounds is None else rounds(v, off)
            return None

        return operation

    def _any(self, n: int, at: Sequence[int], e: Expr, of: Evaluate) -> Operation:
        """An operation of numpy."""
        numbers, errors = self.numbers, self.errors
        dtypes = [
            "float64" if self.arithmetic.wide and E.is_float(d) else d for d in map(E.dtype_of, _parts(e))
        ]

        def operation(point: int) -> None:
            operands = [
                (np.asarray(numbers[k], DTYPES[d].numpy), np.asarray(errors[k]) if errors[k] else None)
                for k, d in zip(at, dtypes, strict=True)
            ]
            v, off = of(e, operands)
            numbers[n], errors[n] = np.asarray(v).item(), 0.0 if off is None else np.asarray(off).item()

        return operation


def _quotient(a: float, b: float, ea: float, eb: float) -> tuple[float, float]:
    least = abs(b) - eb
    if not least > 0:
        return _NAN, _NAN
    v = a / b
    return v, (ea + eb * abs(v)) / least


def _extreme(of: Callable[[float, float], float], a: float, b: float) -> float:
    """NaN where Python may give another one than numpy: of zeros with two signs, and of NaN."""
    return of(a, b) if a < b or a > b else _NAN


# {operator: (number, error) of two numbers and their errors}, as `rounding_expr` has them before rounding.
_PLAIN: dict[str, Callable[[float, float, float, float], tuple[float, float]]] = {
    "+": lambda a, b, ea, eb: (a + b, ea + eb),
    "-": lambda a, b, ea, eb: (a - b, ea + eb),
    "*": lambda a, b, ea, eb: (a * b, ea * abs(b) + eb * abs(a) + ea * eb),
    "/": _quotient,
    "min": lambda a, b, ea, eb: (_extreme(min, a, b), max(ea, eb)),
    "max": lambda a, b, ea, eb: (_extreme(max, a, b), max(ea, eb)),
}
