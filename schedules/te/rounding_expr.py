"""Evaluates expressions on numpy arrays, each value with the largest error of a right kernel: see
`rounding`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedules import expr as E
from schedules.distance import distance
from schedules.dtypes import DTYPES, computed, is_storage
from schedules.errors import WorkloadError
from schedules.expr import INDEX, Binary, Call, Cast, Compare, Const, Expr, Fma, Load, Logic, Select
from schedules.functions import FUNCTIONS, unbounded
from schedules.te.evaluator import BINARY, BlockEvaluator, cast
from schedules.te.node_order import Outside, either, refuse, run, within
from schedules.te.places import Choice

Array = NDArray[Any]


@dataclass(frozen=True)
class ComputedTensors:
    """Tensors computed so far. A tensor without errors is exact. ``signs``: inputs of random signs.
    ``waiting``: called at each block; what it raises ends the evaluation."""

    values: dict[str, Array]
    errors: dict[str, Array]
    signs: frozenset[str] = frozenset()
    steady: bool = False
    places: Mapping[str, Choice] = field(default_factory=dict)  # of stages that find the place of an extreme
    waiting: Callable[[], None] = lambda: None


# (value, its largest error or None); of a condition: (truth, where it may flip).
Value = tuple[Any, Any]


def wide(x: Array) -> Array:
    """Floating point as float64, anything else as it is."""
    return x.astype(np.float64) if x.dtype.kind == "f" else x


def unit_roundoff(dtype: str) -> float:
    """Half the distance between 1 and the next number; what is stored is computed with as another dtype."""
    return DTYPES[computed(dtype)].epsilon / 2


def rounded(v: Any, e: Any, dtype: str, times: float = 1.0, anything: Any = False) -> Value:
    """``v`` as a result in ``dtype``, with the error of rounding added. ``times``: number of roundings; if it
    is not 1 their order is open, so that only whole numbers are exact. ``anything``: where a right kernel may
    have any number or NaN, although ``v`` is an infinity or NaN."""
    if not E.is_float(dtype):
        return v, wrapped(v, e)
    v = np.asarray(v)
    narrow = "float64" if dtype == "float64" else "float32"
    inexact = v != (np.rint(v) if dtype == "float64" or times != 1 else v.astype(narrow))
    if times != 1:
        inexact |= np.abs(v) >= 1 / unit_roundoff(dtype)
    if e is None and not inexact.any():
        return v, None
    info = np.finfo(narrow)
    own = np.abs(v)
    finite = own.max(initial=0) <= info.max
    own *= times * unit_roundoff(dtype)
    own += times * unit_roundoff(dtype) * float(info.tiny)  # gradual underflow
    own *= inexact if e is None else inexact | (e > 0)  # what is off by its operands is rounded too
    e = own if e is None else e + own
    if finite:
        return v, e
    with np.errstate(all="ignore"):
        over = np.isinf(v.astype(narrow))
        near = over & np.isfinite(v) & (np.abs(v) - e <= float(info.max))
        v = np.where(over, np.copysign(np.inf, v), v)
    return v, np.where(near | anything, np.inf, np.where(np.isfinite(v), e, 0))


def wrapped(v: Any, e: Any) -> Any:
    """The error of integers. If they may wrap, anything is right."""
    if e is None:
        return None
    v = np.asarray(v)
    if v.dtype.kind not in "iu":
        return e
    ends, at = np.iinfo(v.dtype), v.astype(np.float64)
    return np.where((e > 0) & ((at + e >= float(ends.max)) | (at - e <= float(ends.min))), np.inf, e)


def kept(e: Any, dtype: str) -> Array:
    """Errors of values of ``dtype`` as they are stored: float64 for float64, else float32, rounded up by more
    than a denormal's rounding."""
    if dtype == "float64":
        return np.asarray(e, np.float64)
    e = np.asarray(e)
    narrow = np.array(e, np.float32)
    np.add(narrow, np.finfo(np.float32).smallest_subnormal, out=narrow, where=e > 0)
    return narrow


def ends(v: Any, e: Any) -> tuple[Any, Any]:
    """(least, largest) that a value may be."""
    v = np.asarray(v, np.float64)
    if e is None:
        return v, v
    infinite = np.isinf(e)
    return np.where(infinite, -np.inf, v - e), np.where(infinite, np.inf, v + e)


def _infinite(*errors: Any) -> Any:
    """Where one of the errors is infinite."""
    found: Any = False
    for e in errors:
        found = found | (False if e is None else np.isinf(e))
    return found


def _flips(near: Any) -> Any:
    """Where a condition may flip."""
    return False if near is None else near


def _anywhere(parts: Sequence[Any]) -> Any:
    """Where one of some masks holds; None, also of these: nowhere."""
    known = [x for x in parts if x is not None]
    return np.logical_or.reduce(np.broadcast_arrays(*known)) if known else None


def _sum_of(a: Any, b: Any) -> Any:
    return b if a is None else a if b is None else a + b


def _some(e: Any) -> Any:
    return 0.0 if e is None else e


def _parts(e: Expr) -> tuple[Expr, ...]:
    """What the error of a node depends on: of a table its index alone, of a load what makes its indices
    uncertain. Indices have none."""
    table = E.lookup_of(e) if isinstance(e, Select) else None
    return _parts_of_choices(e) if table is None else (table.index,)


def _parts_of_choices(e: Expr) -> tuple[Expr, ...]:
    """The same, of a table its comparisons."""
    if E.dtype_of(e) == INDEX:
        return ()
    if isinstance(e, Load):
        return tuple(x for i in e.indices for x in _uncertain(i))
    if isinstance(e, Compare) and e.a == e.b:
        return (e.a,)
    return E.children(e)


def _uncertain(index: Expr) -> tuple[Expr, ...]:
    """What is read for an index and may make it another one."""
    if not E.loads(index):
        return ()
    if isinstance(index, Cast):
        return (index.a,)
    conds = (index.cond,) if isinstance(index, Select) else ()
    return (*conds, *(y for x in E.children(index) if E.dtype_of(x) == INDEX for y in _uncertain(x)))


class ErrorScope:
    """Evaluates expressions on one block, each value with its error. ``times``: roundings of each
    operation."""

    def __init__(
        self, stage: str, points: Mapping[str, Array], known: ComputedTensors, times: float = 1.0
    ) -> None:
        self.stage, self.known, self.times = stage, known, times
        self.scope = BlockEvaluator(stage, points, known.values)
        known.waiting()

    def value(self, e: Expr, mask: Any = True) -> Value:
        """The value of ``e`` at every point. Only points of ``mask`` must be valid. Raises
        `WorkloadError`."""
        v, error, outside = run(e, _parts, self._node)
        refuse(outside, mask)
        return v, error

    def _node(self, e: Expr, operands: list[tuple[Any, Any, Outside]]) -> tuple[Any, Any, Outside]:
        """(value, error, where it has none) of a node, of those of its parts."""
        values: list[Value] = [(v, error) for v, error, _ in operands]
        outside = either(o for _, _, o in operands)
        if E.dtype_of(e) == INDEX:  # what is read through one that is uncertain may be any element
            v, beyond = self.scope.anywhere(e)
            return v, None, beyond
        if isinstance(e, Load):
            return self._load(e, _anywhere([None if x is None else x > 0 for _, x in values]), outside)
        if isinstance(e, Select) and len(operands) == 1:
            return self._table(e, values[0][1])
        if isinstance(e, Select):
            if outside:
                c, flips = values[0][0], _flips(values[0][1])
                outside = either(
                    (operands[0][2], within(operands[1][2], c | flips), within(operands[2][2], ~c | flips))
                )
            return *self._select(*values), outside
        return *self._computed(e, values), outside

    def of(self, e: Expr, values: list[Value]) -> Value:
        """A node that loads nothing, of those of its operands."""
        return self._select(*values) if isinstance(e, Select) else self._computed(e, values)

    def _computed(self, e: Expr, values: list[Value]) -> Value:
        """A node that neither loads nor chooses."""
        match e:
            case Const(value=v, dtype=d):
                return wide(np.asarray(v).astype(DTYPES[d].numpy)), None
            case Binary(op=op, a=a):
                return self._binary(op, E.dtype_of(a), *values)
            case Compare(op=op):
                if len(values) == 1:  # the same value, whatever its error: only NaN differs from itself
                    return BINARY[op](values[0][0], values[0][0]), None
                return self._compare(op, *values)
            case Logic(op=op):
                return self._logic(op, values)
            case Call(fn=fn):
                return self._call(fn, E.dtype_of(e), values)
            case Fma(a=a):  # the product may be rounded or not
                d = E.dtype_of(a)
                return self._binary("+", d, self._binary("*", d, *values[:2]), values[2])
            case Cast(dtype=d, a=a):
                return self._cast(E.dtype_of(a), d, values[0])
        raise WorkloadError(f"stage {self.stage}: {E.show(e)} cannot be evaluated")

    def _load(self, e: Load, open_: Any, outside: Outside) -> tuple[Any, Any, Outside]:
        """What is loaded. Indices are values, not errors. ``open_``: where a load may read another element,
        as one of its indices is uncertain; None: nowhere."""
        found = [self.scope.anywhere(i) for i in e.indices]
        at, beyond = self.scope.places(e, [i for i, _ in found])
        known = self.known.errors.get(e.buffer)
        if known is not None and e.indices:
            known = np.asarray(known[at])
        if open_ is not None:
            known = np.where(open_, np.inf, _some(known))
        if known is not None and e.dtype == "bool":
            known = known > 0
        return self.scope.load(e, at), known, either((outside, *(o for _, o in found), beyond))

    def moves(self, places: Sequence[Expr]) -> Any:
        """Where one of some indices may be another, as it is read from what is uncertain; None: nowhere."""
        found = [self.value(x)[1] for i in places for x in _uncertain(i)]
        return _anywhere([None if e is None else e > 0 for e in found])

    def _table(self, e: Expr, uncertain: Any) -> tuple[Any, Any, Outside]:
        """A table whose index is certain; else it is what its comparisons tell."""
        if uncertain is None:
            v, outside = self.scope.anywhere(e)
            return wide(v), None, outside
        found: tuple[Any, Any, Outside] = run(e, _parts_of_choices, self._node)
        return found

    def _binary(self, op: str, dtype: str, x: Value, y: Value) -> Value:
        (a, ea), (b, eb) = x, y
        v = BINARY[op](a, b)
        if ea is None and eb is None:
            return rounded(v, None, dtype, self.times) if op in "+-*/" else (v, None)
        e: Any
        if op in ("+", "-"):
            e = _sum_of(ea, eb)
        elif op == "*":
            ea, eb = _some(ea), _some(eb)
            e = unbounded(ea * np.abs(b) + eb * np.abs(a) + ea * eb)
        elif op == "/":
            least = np.abs(b) - _some(eb)
            e = unbounded(np.where(least > 0, (_some(ea) + _some(eb) * np.abs(v)) / least, np.inf))
        elif op in ("min", "max"):
            return v, np.maximum(_some(ea), _some(eb))
        elif op in ("//", "ceildiv") and eb is None:
            return v, np.where(ea > 0, ea // np.maximum(np.abs(b), 1) + 1, 0)
        elif op in ("<<", ">>") and eb is None:
            factor = np.ldexp(1.0, np.where((b >= 0) & (b < 64), b, 64))
            return v, wrapped(v, ea * factor if op == "<<" else np.where(ea > 0, ea // factor + 1, 0))
        elif op == "%" and eb is None:
            return v, np.where(ea > 0, np.abs(b), 0)
        else:  # the divisor is uncertain
            return v, np.where((_some(ea) > 0) | (_some(eb) > 0), np.inf, 0)
        return rounded(v, e, dtype, self.times, _infinite(ea, eb))

    def _compare(self, op: str, x: Value, y: Value) -> Value:
        (a, ea), (b, eb) = x, y
        v = BINARY[op](a, b)
        if ea is None and eb is None:
            return v, None
        off = _some(ea) + _some(eb)
        near = ((distance(a, b) <= off) | np.isinf(off)) & (off > 0)
        return v, near if near.any() else None

    def _logic(self, op: str, parts: list[Value]) -> Value:
        if op == "not":
            return np.logical_not(parts[0][0]), parts[0][1]
        # Certain if one part decides it.
        decides = op == "or"
        v = parts[0][0]
        near: Any = False
        settled: Any = False
        for x, e in parts:
            v = np.logical_or(v, x) if op == "or" else np.logical_and(v, x)
            sure = (x == decides) if e is None else (x == decides) & ~e
            settled = settled | sure
            near = near | _flips(e)
        near = np.asarray(near) & ~np.asarray(settled)
        return v, near if near.any() else None

    def _select(self, chosen: Value, one: Value, other: Value) -> Value:
        (cond, near), (x, ex), (y, ey) = chosen, one, other
        open_ = _flips(near)
        v: Any = np.where(cond, x, y)
        if v.dtype == bool:
            flips = np.where(cond, _flips(ex), _flips(ey)) | (open_ & ((x != y) | _flips(ex) | _flips(ey)))
            return v, flips if flips.any() else None
        e = None if ex is None and ey is None else np.where(cond, _some(ex), _some(ey))
        if near is None:
            return v, e
        same = (x == y) | (np.isnan(x) & np.isnan(y)) if v.dtype.kind == "f" else x == y
        apart = np.where(same, 0, distance(x, y))
        off = np.where(cond, _some(ey), _some(ex)) + np.where(np.isnan(apart), np.inf, apart)
        return v, np.where(near, np.maximum(_some(e), off), _some(e))

    def ends(self, e: Expr, mask: Any = True) -> tuple[Any, Any]:
        """(least, largest) that ``e`` may be; of an uncertain select, of both of its values."""
        if not isinstance(e, Select):
            return ends(*self.value(e, mask))
        cond, near = self.value(e.cond, mask)
        near = _flips(near)
        a, b = self.ends(e.a, mask & (cond | near)), self.ends(e.b, mask & (~cond | near))
        low, high = (np.where(cond, x, y) for x, y in zip(a, b, strict=True))
        return np.where(near, np.minimum(a[0], b[0]), low), np.where(near, np.maximum(a[1], b[1]), high)

    def may(self, cond: Expr) -> Any:
        """Where a condition holds or may hold."""
        holds, near = self.value(cond)
        return holds if near is None else holds | near

    def _call(self, fn: str, dtype: str, args: Sequence[Value]) -> Value:
        f = FUNCTIONS[fn]
        values = [v for v, _ in args]
        v = f.of(*values)
        if f.change is None:
            return _step(f.of, v, *args[0])
        certain = all(e is None for _, e in args)
        if f.whole and certain:
            return rounded(v, None, dtype, f.error)
        own = self.times * f.error * unit_roundoff(dtype) * np.abs(v) if f.error else 0.0
        if certain:
            return rounded(v, own, dtype) if f.error else (v, None)
        errors = [_some(e) for _, e in args]
        anything = f.open(*values, *errors)
        e = np.where(anything, np.inf, f.change(*values, *errors, v))
        if not f.error:
            return v, e
        return rounded(v, e + own, dtype, anything=anything)

    def _cast(self, old: str, new: str, x: Value) -> Value:
        a, e = x
        if not E.is_float(new):
            v = cast(np.asarray(a), new)
            if e is None or not E.is_float(old):
                return v, wrapped(v, e)
            return _step(lambda y: cast(np.asarray(y), new), v, a, e)
        v = np.asarray(a).astype(np.float64)
        if is_storage(new):
            f = partial(_rounded_to, new)
            return _step(f, f(v), v, e)
        if is_storage(old):
            return v, e
        return rounded(v, e, new) if old != new else (v, e)


def _rounded_to(dtype: str, x: Array) -> Array:
    """``x`` rounded to a storage dtype."""
    return np.asarray(x, DTYPES[dtype].numpy).astype(np.float64)


def _step(f: Any, v: Any, a: Any, e: Any) -> Value:
    """A step function at both ends of its argument."""
    if e is None:
        return v, None
    off: Any = 0.0
    for at in ends(a, e):
        end = f(at)
        apart = np.where(end == v, 0, distance(end, v))
        becomes = np.where(np.isnan(end) == np.isnan(v), 0, np.inf)  # NaN, of dtypes without an infinity
        off = np.maximum(off, np.where(np.isnan(apart), becomes, apart))
    return v, np.where(np.isnan(a) & np.isinf(e), np.inf, off)
