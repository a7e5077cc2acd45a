"""Chains of numbers, each with the largest error of a right kernel: scans whose steps make one number each.

A step costs a call of numpy for each of its operations, and a chain has as many steps as elements. So what
reads no earlier step is evaluated ahead, for many steps at once. What is left is done with Python's floats,
which are float64. An operation whose result is no plain number is left to `rounding_expr`, and so are those
that chains have seldom.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
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
from schedules.te.rounding_expr import ComputedTensors, ErrorScope, Value, kept, unit_roundoff, wide
from schedules.te.scan_steps import PLACES, wave_of

Array = NDArray[Any]
# Does an operation of the step of this number.
Operation = Callable[[int], None]
# Numbers and their errors.
Column = tuple[list[Any], list[Any]]
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


def run_chain(
    stages: Sequence[Stage], known: ComputedTensors, stage: Callable[[Stage], Sequence[Value]]
) -> bool:
    """Add what the stages of a scan make, if its steps make one number each; else False. ``stage``: evaluates
    one."""
    chain = chain_of(stages)
    if chain is None:
        return False
    shapes = {name: x.shape for name, x in known.values.items()}
    ahead = [_in_tensors(s, shapes) for s in chain.ahead]
    (_, step), count = stages[0].scan[0], int(stages[0].axes[0].extent)
    made: dict[str, Column] = {s.name: ([0.0] * count, [0.0] * count) for s in stages}
    program = _Program(known, made)
    for s, value in zip(stages, chain.values, strict=True):
        program.add(s, value)
    every = range(count)[::step]
    for begin in range(0, count, STEPS):
        points = every[begin : begin + STEPS]
        known.values[f"{PLACES}0"] = np.array(points)
        program.run(points, {k: v for s in ahead for k, v in _ahead(s, len(points), stage)})
    for s in stages:
        t, (values, errors) = s.outputs[0], made[s.name]
        known.values[t.name] = np.array(values)
        if any(errors):
            known.errors[t.name] = kept(np.array(errors), t.dtype)
    return True


def _ahead(
    s: Stage, count: int, stage: Callable[[Stage], Sequence[Value]]
) -> Iterator[tuple[str, Column]]:
    """What a stage makes for so many steps, by name."""
    for o, (v, e) in zip(s.outputs, stage(wave_of(s, count)), strict=True):
        yield o.name, (v.tolist(), [0.0] * count if e is None else e.tolist())


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

    def __init__(self, known: ComputedTensors, made: Mapping[str, Column]) -> None:
        self.known, self.made = known, made
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
        first, scope = len(self.numbers), ErrorScope(s.name, {}, self.known)
        for x in steps_of(value, _parts):
            n, at = len(self.numbers), [first + k for k in x.operands]
            self.numbers.append(0.0)
            self.errors.append(0.0)
            match x.node:
                case Const(value=v, dtype=d):
                    self.numbers[n] = wide(np.asarray(v).astype(DTYPES[d].numpy)).item()
                case Load(buffer=name) if name in self.made:
                    self.operations.append(self._read(n, name, _distance(x.node, s) or 0))
                case Load(buffer=name):
                    self.early.append((n, name))
                case e:
                    self.operations.append(self._operation(n, at, e, self._any(n, at, e, scope)))
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
        of, (a, b), rounds = _PLAIN[e.op], at, e.op in "+-*/"
        most, unit = float(np.finfo(dtype).max), unit_roundoff(dtype)
        least, single = unit * float(np.finfo(dtype).tiny), dtype == "float32"

        def operation(point: int) -> None:
            v, off = of(numbers[a], numbers[b], errors[a], errors[b])
            if not (abs(v) <= most and off == off):
                return any_number(point)
            if rounds and (off or v != (float(np.float32(v)) if single else round(v))):
                off += abs(v) * unit + least
            numbers[n], errors[n] = v, off
            return None

        return operation

    def _any(self, n: int, at: Sequence[int], e: Expr, scope: ErrorScope) -> Operation:
        """An operation as `rounding_expr` does it."""
        numbers, errors = self.numbers, self.errors
        dtypes = [E.dtype_of(x) for x in _parts(e)]
        wides = [np.dtype(np.float64) if E.is_float(d) else DTYPES[d].numpy for d in dtypes]

        def operation(point: int) -> None:
            operands = [
                (np.asarray(numbers[k], d), np.asarray(errors[k]) if errors[k] else None)
                for k, d in zip(at, wides, strict=True)
            ]
            v, off = scope.of(e, operands)
            numbers[n] = np.asarray(v).item()
            errors[n] = 0.0 if off is None else np.asarray(off).item()

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


# {operator: (number, error) of two numbers and their errors}, as `ErrorScope` has them before rounding.
_PLAIN: dict[str, Callable[[float, float, float, float], tuple[float, float]]] = {
    "+": lambda a, b, ea, eb: (a + b, ea + eb),
    "-": lambda a, b, ea, eb: (a - b, ea + eb),
    "*": lambda a, b, ea, eb: (a * b, ea * abs(b) + eb * abs(a) + ea * eb),
    "/": _quotient,
    "min": lambda a, b, ea, eb: (_extreme(min, a, b), max(ea, eb)),
    "max": lambda a, b, ea, eb: (_extreme(max, a, b), max(ea, eb)),
}
