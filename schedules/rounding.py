"""What a compute DAG gives on numpy arrays, and how far a right kernel may be from it.

Every value is computed in float64, with a bound on what rounding in the stated dtype can change: a running
error analysis (N. Higham, *Accuracy and Stability of Numerical Algorithms*, chapter 3). ``u`` is the unit
roundoff of the dtype.

- An operation hands on what its operands may be off by, and adds ``u`` times the size of its result. Where
  the result needs no rounding, as of small whole numbers, nothing is added.
- A function adds as many ``u`` as `FUNCTION_ERROR` says.
- A sum of K terms adds ``growth(K) * u * Σ|terms|``, in any order: what counts is the size of its operands,
  not that of its result. Of whole numbers whose sizes add up to less than 1/u it adds nothing.
- A step (floor, a cast to an integer or to float16, a comparison) is taken at both ends of what its operand
  may be. Where these differ, both results are inside the bound.

A kernel whose result is outside the bound leaves something out, counts it twice, or sums in an order that is
far less accurate than sums of parts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedules import expr as E
from schedules.contraction import contract, factors, size
from schedules.dag import ComputeDAG, Stage
from schedules.dtypes import HALF
from schedules.errors import WorkloadError
from schedules.evaluate import BINARY, CALL, Scope, blocks, cast, grid
from schedules.expr import INDEX, Binary, Call, Cast, Compare, Const, Expr, Load, Logic, Select, Var
from schedules.passes.partial_sums import LIMIT as CHAIN

Array = NDArray[Any]
POINTS = 2**15  # of a block: its temporaries stay in the second cache
# Of each function, in units of u: ours on CPUs, and what OpenCL allows where devices compute them.
FUNCTION_ERROR = {"exp": 6.0, "log": 6.0, "sqrt": 6.0, "tanh": 10.0, "erf": 32.0, "sigmoid": 12.0}
SIGNED = 8.0  # growth of a sum of terms of random signs
_SQRT_PI = 2 / math.sqrt(math.pi)


@dataclass(frozen=True)
class Bounded:
    """Outputs in the dtype of each tensor, and for each element how far a right result may be from it
    (float32; integers too; inf where anything is right)."""

    values: tuple[Array, ...]
    bounds: tuple[Array, ...]


def growth(terms: int, steady: bool = False) -> float:
    """How many ``u * Σ|terms|`` a sum of so many terms may be off by, whatever its order, as long as no more
    than `CHAIN` terms are added one after another.

    Errors of random values have both signs: a chain of n is off by ``λ sqrt(n)`` of them but for a
    negligible probability (N. Higham and T. Mary, *A new approach to probabilistic rounding error analysis*,
    2019). ``steady``: the terms have few values. What each is rounded by is the same time after time, so that
    a chain of n may be off by n."""
    chain, levels = min(terms, CHAIN), math.ceil(math.log(max(2, terms), CHAIN))
    return 4 + levels * (chain if steady else 3 * math.sqrt(chain))


def evaluate_with_bounds(
    dag: ComputeDAG, inputs: Sequence[Array], *, signs: bool = False, steady: bool = False
) -> Bounded:
    """The outputs of ``dag`` for ``inputs`` (in its order), and how far a right kernel may be from them.

    ``signs``: the inputs are drawn independently, with random signs. Then the parts of a sum of their
    products are of the size of its root, and whatever its length it is off by no more than `SIGNED`
    ``u * Σ|terms|`` (N. Higham and T. Mary, *Sharper probabilistic backward error analysis for basic linear
    algebra kernels with random data*, 2020). ``steady``: the inputs have few different
    elements (see `growth`).
    Raises `WorkloadError` where the expression reads out of bounds.
    """
    known = _Known(
        {t.name: _wide(np.asarray(x)) for t, x in zip(dag.inputs, inputs, strict=True)},
        {},
        frozenset(t.name for t in dag.inputs) if signs else frozenset(),
        steady,
    )
    values, bounds = [], []
    with np.errstate(all="ignore"):
        for stage in dag.stages:
            for t, (v, e) in zip(stage.outputs, _stage(stage, known), strict=True):
                known.values[t.name] = v
                if e is not None:
                    known.errors[t.name] = e
        for n in dag.outputs:
            value, bound = _stored(known.values[n], known.errors.get(n), dag.tensors[n].dtype)
            values.append(value)
            bounds.append(bound)
    return Bounded(tuple(values), tuple(bounds))


@dataclass(frozen=True)
class _Known:
    """Tensors so far; one without errors is exact. ``signs``: inputs of random signs."""

    values: dict[str, Array]
    errors: dict[str, Array]
    signs: frozenset[str]
    steady: bool


_Value = tuple[Any, Any]  # the value, and how far it may be off or None; of a condition: where it may flip


def _wide(x: Array) -> Array:
    return x.astype(np.float64) if x.dtype.kind == "f" else x


def _unit(dtype: str) -> float:
    """Half the distance between 1 and the next number; float16 is computed in float32."""
    return float(np.finfo("float32" if dtype == HALF else dtype).eps) / 2


def _stored(v: Array, e: Array | None, dtype: str) -> tuple[Array, Array]:
    """A tensor in its dtype, and the bound of each element, what storing may change included."""
    value = v.astype(dtype)
    if value.dtype.kind != "f":
        return value, np.zeros(v.shape, np.float32) if e is None else e.astype(np.float32)
    bound = np.empty(v.shape, np.float32)
    most = float(np.finfo(dtype).max)
    flat, stored, into = v.reshape(-1), value.reshape(-1), bound.reshape(-1)
    errors = None if e is None else e.reshape(-1)
    for at in range(0, flat.size, POINTS):
        part, out = flat[at : at + POINTS], into[at : at + POINTS]
        np.abs(np.subtract(stored[at : at + POINTS], part, dtype=np.float64), out=out, casting="same_kind")
        if errors is not None:
            out += errors[at : at + POINTS]
        out *= np.float32(1 + 1e-6)
        largest = np.abs(part).max()
        if not largest + out.max() <= most:  # it may overflow, or is no number: then it is what it is
            out[~np.isfinite(part)] = 0
            if errors is not None:
                out[np.isinf(errors[at : at + POINTS])] = np.inf
            out[np.isnan(out) | ((np.abs(part) + out > most) & np.isfinite(part) & (out > 0))] = np.inf
    return value, bound


def _stage(stage: Stage, known: _Known) -> list[_Value]:
    if stage.reducer is None:
        return _elementwise(stage, known)
    if not stage.reducer.apart:
        return _fold(stage, known)
    if len(stage.outputs) == 1 and stage.reducer.operation(0) == "+":
        found = _contracted(stage, known)
        if found is not None:
            return [found]
    return [_reduce(stage, known, n) for n in range(len(stage.outputs))]


class _Out:
    """Results of a stage, filled block by block; errors are kept only where there are some."""

    def __init__(self, stage: Stage) -> None:
        self.values = [
            np.empty(t.shape, np.float64 if E.is_float(t.dtype) else t.dtype) for t in stage.outputs
        ]
        self.errors: list[Array | None] = [None] * len(self.values)

    def put(self, i: int, at: tuple[slice, ...], value: _Value) -> None:
        v, e = value
        self.values[i][at] = v
        if e is not None:
            errors = self.errors[i]
            if errors is None:
                errors = self.errors[i] = np.zeros(self.values[i].shape, np.float32)
            errors[at] = e

    def all(self) -> list[_Value]:
        return list(zip(self.values, self.errors, strict=True))


def _elementwise(stage: Stage, known: _Known) -> list[_Value]:
    out = _Out(stage)
    for block in blocks(stage.axes, POINTS):
        scope = _Bounds(stage.name, grid(stage.axes, block), known)
        at = tuple(slice(*b) for b in block)
        for i, v in enumerate(stage.values):
            out.put(i, at, scope.value(v))
    return out.all()


def _contracted(stage: Stage, known: _Known) -> _Value | None:
    """A sum of products whose indices are affine, and its bound from the sizes of its operands."""
    loads = factors(stage)
    dtype = stage.outputs[0].dtype
    if loads is None:
        return None
    arrays = [known.values[x.buffer] for x in loads]
    v = contract(stage, arrays)
    if v is None or not E.is_float(dtype):
        return None if v is None else (v, None)
    errors = [known.errors.get(x.buffer) for x in loads]
    total = contract(stage, arrays, size)
    assert total is not None
    terms = math.prod(a.extent for a in stage.reduce_axes)
    unit = _unit(dtype)
    whole = not any(e is not None for e in errors) and all(_whole(a) for a in arrays)
    names = [x.buffer for x in loads]
    signs = known.signs >= set(names) and len(set(names)) == len(names)
    if whole:
        most = math.prod(float(np.abs(a).max(initial=0)) for a in arrays)
        largest = float(total.max(initial=0))
        if min(largest, 16 * math.sqrt(terms) * most if signs else largest) < 1 / unit:
            return v, None
    e = (SIGNED if signs else growth(terms, known.steady)) * unit * total
    sizes = [np.abs(a) for a in arrays]
    for i, own in enumerate(errors):
        if own is not None:  # the operands before it with what they may be off by, those behind it without
            more = contract(stage, [*sizes[:i], own.astype(np.float64), *sizes[i + 1 :]], size)
            assert more is not None
            e += more
            sizes[i] = sizes[i] + own
    return _rounded(v, e, dtype)


def _whole(a: Array) -> bool:
    flat = a.reshape(-1)
    return all(bool((p == np.rint(p)).all()) for p in np.array_split(flat, -(-flat.size // POINTS) or 1))


def _reduce(stage: Stage, known: _Known, number: int) -> _Value:
    """The component of this number of a reduction, by one numpy ufunc."""
    assert stage.reducer is not None
    op = stage.reducer.operation(number)
    assert op is not None
    t, rank = stage.outputs[number], len(stage.axes)
    ufunc: Any = BINARY[op]
    floats = E.is_float(t.dtype)
    dtype = np.dtype(np.float64 if floats else t.dtype)
    identity = stage.reducer.identity[number].value
    out = np.full(t.shape, identity, dtype)
    # Σ|terms| of a sum, of a product Π(|terms| + errors); Σ of errors, or the largest; all terms whole
    total = np.full(t.shape, 1.0 if op == "*" else 0.0)
    error = np.zeros(t.shape)
    whole = exact = True
    axes = stage.axes + stage.reduce_axes
    over = tuple(range(rank, len(axes)))
    for block in blocks(axes, POINTS):
        v, e = _Bounds(stage.name, grid(axes, block), known).value(stage.values[number])
        full = tuple(hi - lo for lo, hi in block)
        v = np.broadcast_to(v, full)
        at = tuple(slice(*b) for b in block[:rank])
        out[at] = ufunc(out[at], ufunc.reduce(v, axis=over, dtype=dtype))
        if e is not None:
            exact = False
            e = np.broadcast_to(e, full)
        if op == "+":
            total[at] += np.abs(v).sum(axis=over)
            whole = whole and floats and bool((v == np.rint(v)).all())
            if e is not None:
                error[at] += e.sum(axis=over)
        elif op == "*":
            total[at] *= (np.abs(v) + (0 if e is None else e)).prod(axis=over)
        elif e is not None:
            error[at] = np.maximum(error[at], e.max(axis=over))
    terms = math.prod(a.extent for a in stage.reduce_axes)
    if not floats:
        return out, None if exact else (total - np.abs(out) if op == "*" else error)
    unit = _unit(t.dtype)
    if op in ("min", "max"):
        return out, None if exact else error
    if op == "*":
        return _rounded(out, total * (1 + terms * unit) - np.abs(out), t.dtype)
    if whole and exact and float(np.max(total, initial=0)) < 1 / unit:
        return out, None
    return _rounded(out, error + growth(terms, known.steady) * unit * total, t.dtype)


def _fold(stage: Stage, known: _Known) -> list[_Value]:
    """Any reduction over tuples: neighbours are combined pairwise, which keeps their order. Each level counts
    for as many roundings as a kernel's chain may have in its place."""
    assert stage.reducer is not None
    reducer, rank, n = stage.reducer, len(stage.axes), len(stage.outputs)
    terms = math.prod(a.extent for a in stage.reduce_axes)
    scale = growth(terms, known.steady) / max(1, math.ceil(math.log2(max(2, terms))))

    def join(x: list[_Value], y: list[_Value]) -> list[_Value]:
        parts = {f"{p}{i}": a for p, xs in (("x", x), ("y", y)) for i, a in enumerate(xs)}
        own = _Known(
            {k: v for k, (v, _) in parts.items()},
            {k: e for k, (_, e) in parts.items() if e is not None},
            frozenset(),
            known.steady,
        )
        scope = _Bounds(stage.name, {}, own, scale)
        made = [scope.value(c) for c in reducer.combine]
        shape = x[0][0].shape
        return [
            (np.broadcast_to(v, shape), None if e is None else np.broadcast_to(e, shape)) for v, e in made
        ]

    def cut(xs: list[_Value], part: slice) -> list[_Value]:
        return [(v[..., part], None if e is None else e[..., part]) for v, e in xs]

    out = _Out(stage)
    for t, c, v in zip(stage.outputs, reducer.identity, out.values, strict=True):
        v[...] = np.asarray(c.value).astype(v.dtype)
        assert t.shape == v.shape
    axes = stage.axes + stage.reduce_axes
    for block in blocks(axes, POINTS):
        scope = _Bounds(stage.name, grid(axes, block), known)
        full = tuple(hi - lo for lo, hi in block)
        xs: list[_Value] = []
        for value in stage.values:
            v, e = scope.value(value)
            flat = (*full[:rank], -1)
            xs.append(
                (
                    np.broadcast_to(v, full).reshape(flat),
                    None if e is None else np.broadcast_to(e, full).reshape(flat),
                )
            )
        while (length := xs[0][0].shape[-1]) > 1:
            pairs = join(cut(xs, slice(0, length - 1, 2)), cut(xs, slice(1, None, 2)))
            xs = _beside(pairs, cut(xs, slice(length - 1, None))) if length % 2 else pairs
        at = tuple(slice(*b) for b in block[:rank])
        before: list[_Value] = [
            (v[at], None if e is None else e[at]) for v, e in zip(out.values, out.errors, strict=True)
        ]
        new = join(before, [(v[..., 0], None if e is None else e[..., 0]) for v, e in xs])
        for i in range(n):
            out.put(i, at, new[i])
    return out.all()


def _beside(pairs: list[_Value], rest: list[_Value]) -> list[_Value]:
    out: list[_Value] = []
    for (v, e), (w, f) in zip(pairs, rest, strict=True):
        both = None
        if e is not None or f is not None:
            both = np.concatenate(
                [np.zeros(v.shape) if e is None else e, np.zeros(w.shape) if f is None else f], -1
            )
        out.append((np.concatenate([v, w], -1), both))
    return out


def _rounded(v: Any, e: Any, dtype: str, times: float = 1.0) -> _Value:
    """``v`` as a result in ``dtype``: what rounding may change is added to its error. ``times``, where it is
    not 1: so many roundings in an order that is open. What is not whole may be exact in one order only."""
    if not E.is_float(dtype):
        return v, e
    v = np.asarray(v)
    narrow = "float64" if dtype == "float64" else "float32"
    inexact = v != (np.rint(v) if dtype == "float64" or times != 1 else v.astype(narrow))
    if times != 1:
        inexact |= np.abs(v) >= 1 / _unit(dtype)
    if e is None and not inexact.any():
        return v, None
    info = np.finfo(narrow)
    own = np.abs(v)
    finite = own.max(initial=0) <= info.max
    own *= times * _unit(dtype)
    own += times * _unit(dtype) * float(info.tiny)  # gradual underflow
    own *= inexact
    e = own if e is None else e + own
    if finite:
        return v, e
    with np.errstate(all="ignore"):
        over = np.isinf(v.astype(narrow))
        near = over & np.isfinite(v) & (np.abs(v) - e <= float(info.max))
        v = np.where(over, np.copysign(np.inf, v), v)
    return v, np.where(near, np.inf, np.where(np.isfinite(v), e, 0))


def _sum_of(a: Any, b: Any) -> Any:
    return b if a is None else a if b is None else a + b


def _some(e: Any) -> Any:
    return 0.0 if e is None else e


class _Bounds:
    """Evaluates expressions on one block, each value with its error; ``times`` the roundings of each."""

    def __init__(self, stage: str, points: Mapping[str, Array], known: _Known, times: float = 1.0) -> None:
        self.stage, self.known, self.times = stage, known, times
        self.scope = Scope(stage, points, known.values)
        self.errors = Scope(stage, points, known.errors)

    def value(self, e: Expr, mask: Any = True) -> _Value:
        """The value of ``e`` at every point; only points of ``mask`` count."""
        if E.dtype_of(e) == INDEX:
            return self.scope.value(e, mask), None
        match e:
            case Const(value=v, dtype=d):
                x = np.asarray(v).astype(d)
                return _wide(x), None
            case Binary(op=op, a=a, b=b):
                return self._binary(op, E.dtype_of(a), self.value(a, mask), self.value(b, mask))
            case Compare(op=op, a=a, b=b):
                return self._compare(op, self.value(a, mask), self.value(b, mask))
            case Logic(op=op, args=args):
                return self._logic(op, [self.value(x, mask) for x in args])
            case Call(fn=fn, arg=a):
                return self._call(fn, E.dtype_of(a), self.value(a, mask))
            case Cast(dtype=d, a=a):
                return self._cast(E.dtype_of(a), d, self.value(a, mask))
            case Select(cond=c, a=a, b=b):
                return self._select(c, a, b, mask)
            case Load(buffer=name):
                known = self.errors.load(e, mask) if name in self.known.errors else None
                return self.scope.load(e, mask), known
            case Var():
                return self.scope.value(e), None
        raise WorkloadError(f"stage {self.stage}: {E.show(e)} cannot be evaluated")

    def _binary(self, op: str, dtype: str, x: _Value, y: _Value) -> _Value:
        (a, ea), (b, eb) = x, y
        v = BINARY[op](a, b)
        if ea is None and eb is None:
            return _rounded(v, None, dtype, self.times) if op in "+-*/" else (v, None)
        e: Any
        if op in ("+", "-"):
            e = _sum_of(ea, eb)
        elif op == "*":
            ea, eb = _some(ea), _some(eb)
            e = ea * np.abs(b) + eb * np.abs(a) + ea * eb
        elif op == "/":
            least = np.abs(b) - _some(eb)
            e = np.where(least > 0, (_some(ea) + _some(eb) * np.abs(v)) / least, np.inf)
        elif op in ("min", "max"):
            return v, np.maximum(_some(ea), _some(eb))
        elif op in ("//", "ceildiv") and eb is None:
            return v, np.where(ea > 0, ea // np.maximum(np.abs(b), 1) + 1, 0)
        elif op == "%" and eb is None:
            return v, np.where(ea > 0, np.abs(b), 0)
        else:  # by a divisor that is not known for certain
            return v, np.where((_some(ea) > 0) | (_some(eb) > 0), np.inf, 0)
        return _rounded(v, e, dtype, self.times)

    def _compare(self, op: str, x: _Value, y: _Value) -> _Value:
        (a, ea), (b, eb) = x, y
        v = BINARY[op](a, b)
        if ea is None and eb is None:
            return v, None
        off = _some(ea) + _some(eb)
        near = (np.abs(a - b) <= off) & (off > 0)
        return v, near if near.any() else None

    def _logic(self, op: str, parts: list[_Value]) -> _Value:
        if op == "not":
            return np.logical_not(parts[0][0]), parts[0][1]
        # decided where a part decides it for certain
        decides = op == "or"
        v = parts[0][0]
        near: Any = False
        settled: Any = False
        for x, e in parts:
            v = np.logical_or(v, x) if op == "or" else np.logical_and(v, x)
            sure = (x == decides) if e is None else (x == decides) & ~e
            settled = settled | sure
            near = near | (False if e is None else e)
        near = np.asarray(near) & ~np.asarray(settled)
        return v, near if near.any() else None

    def _select(self, c: Expr, a: Expr, b: Expr, mask: Any) -> _Value:
        cond, near = self.value(c, mask)
        open_ = False if near is None else near
        (x, ex), (y, ey) = self.value(a, mask & (cond | open_)), self.value(b, mask & (~cond | open_))
        v: Any = np.where(cond, x, y)
        if v.dtype == bool:
            raise WorkloadError(f"stage {self.stage}: a select of conditions cannot be evaluated")
        e = None if ex is None and ey is None else np.where(cond, _some(ex), _some(ey))
        if near is None:
            return v, e
        same = (x == y) | (np.isnan(x) & np.isnan(y)) if v.dtype.kind == "f" else x == y
        apart = np.where(same, 0, np.abs(np.subtract(x, y, dtype=np.float64)))
        other = np.where(cond, _some(ey), _some(ex)) + np.where(np.isnan(apart), np.inf, apart)
        return v, np.where(near, np.maximum(_some(e), other), _some(e))

    def _call(self, fn: str, dtype: str, x: _Value) -> _Value:
        a, e = x
        v = CALL[fn](a)
        if fn == "abs":
            return v, e
        if fn == "floor":
            return _step(CALL[fn], v, a, e)
        if e is not None:
            e = _through(fn, a, v, e)
        unit = _unit(dtype)
        if fn == "sqrt" and e is None:
            v, e = _rounded(v, None, dtype, FUNCTION_ERROR[fn])
            return v, e
        v, e = _rounded(v, _some(e) + self.times * FUNCTION_ERROR[fn] * unit * np.abs(v), dtype)
        return v, e

    def _cast(self, old: str, new: str, x: _Value) -> _Value:
        a, e = x
        if not E.is_float(new):
            v = cast(np.asarray(a), new)
            if e is None or not E.is_float(old):
                return v, e
            return _step(lambda y: cast(np.asarray(y), new), v, a, e)
        v = np.asarray(a).astype(np.float64)
        if new == HALF:
            return _step(_half, _half(v), v, e)
        if old == HALF:
            return v, e
        return _rounded(v, e, new) if old != new else (v, e)


def _half(x: Array) -> Array:
    return np.asarray(x, np.float16).astype(np.float64)


def _step(f: Any, v: Any, a: Any, e: Any) -> _Value:
    """A function that jumps, at both ends of where its argument may be."""
    if e is None:
        return v, None
    off: Any = 0.0
    for end in (f(a - e), f(a + e)):
        apart = np.abs(np.subtract(end, v, dtype=np.float64))
        off = np.maximum(off, np.where((end == v) | np.isnan(apart), 0, apart))
    return v, off


def _through(fn: str, a: Any, v: Any, e: Any) -> Any:
    """How far ``fn(a)``, which is ``v``, is moved at most by ``e`` in its argument."""
    if fn == "exp":
        return np.where(e > 0, v * np.expm1(e), 0)
    if fn == "sqrt":
        low = np.sqrt(np.maximum(a - e, 0))
        return np.where(e > 0, np.maximum(v - low, np.sqrt(a + e) - v), 0)
    if fn == "log":
        return np.where(e > 0, np.where(a > e, e / (a - e), np.inf), 0)
    if fn == "sigmoid":  # its slope s (1 - s) changes by at most exp(e)
        return v * CALL["sigmoid"](-np.asarray(a)) * np.exp(np.minimum(e, 50)) * e
    if fn == "tanh":
        s = CALL["sigmoid"](2 * np.asarray(a))
        return np.minimum(4 * s * CALL["sigmoid"](-2 * np.asarray(a)) * np.exp(np.minimum(2 * e, 50)), 1) * e
    assert fn == "erf"
    return _SQRT_PI * np.exp(-np.square(np.maximum(np.abs(a) - e, 0))) * e
