"""Evaluates a compute DAG on numpy arrays, with a bound on the error of a right kernel (ADR 35).

Every value is computed in float64, with a bound on what rounding in the stated dtype can change: a running
error analysis (N. Higham, *Accuracy and Stability of Numerical Algorithms*, chapter 3). ``u``: unit roundoff
of the dtype.

- An operation propagates the errors of its operands, and adds ``u`` times the size of its result. Nothing is
  added if the result needs no rounding, as for small whole numbers.
- A function adds as many ``u`` as its row of `schedules.functions` says.
- A sum of K terms adds ``growth(K) * u * Σ|terms|``, in any order: what counts is the size of its operands,
  not that of its result. Of whole numbers whose sizes add up to less than 1/u it adds nothing.
- A product of K factors is off by ``growth(K) * u`` of its size. Where a part of a sum or a product may
  overflow or vanish in some order, and the whole need not, anything is right.
- An extreme lies between those of its elements' lower and upper ends. Where something looks for its place,
  that of an element near it is right (`places`).
- A step (floor, a comparison, a cast to an integer or to what is stored) is taken at both ends of what its
  operand may be. Where these differ, both results are inside the bound.

A kernel outside the bound misses something, counts something twice, or sums in an order that is far less
accurate than sums of parts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedules import expr as E
from schedules.dtypes import DTYPES, bound_dtype, computed
from schedules.errors import WorkloadError
from schedules.functions import unbounded
from schedules.loads import with_loads
from schedules.te import factored
from schedules.te.chains import CHAIN
from schedules.te.compute_dag import ComputeDAG, Stage
from schedules.te.contraction import Terms, contract, factors, part_read, product_of, size
from schedules.te.domains import masked, narrowed
from schedules.te.evaluator import BINARY, blocks, grid, without_terms
from schedules.te.number_chains import Arithmetic, Rounds, run_chain
from schedules.te.places import Extremes, place
from schedules.te.rounding_expr import (
    ComputedTensors,
    ErrorScope,
    Value,
    ends,
    kept,
    rounded,
    unit_roundoff,
    wide,
    wrapped,
)
from schedules.te.rounding_scatter import scattered
from schedules.te.scan_steps import accumulated, cumulative_of, first_of, run_scan, step_of
from schedules.te.scans import groups

Array = NDArray[Any]
# Points of a block: its temporaries stay in the second cache.
POINTS = 2**15
# Growth of a sum of terms of random signs. Source: `evaluate_with_bounds`.
SIGNED = 8.0


@dataclass(frozen=True)
class Bounded:
    """``values``: outputs in the dtype of each tensor. ``bounds``: for each element the largest error of a
    right result (float64 for outputs in float64, else float32; inf if anything is right)."""

    values: tuple[Array, ...]
    bounds: tuple[Array, ...]


def growth(terms: int, steady: bool = False) -> float:
    """Largest error of a sum of ``terms`` terms in any order, in ``u * Σ|terms|``, if at most `CHAIN` terms
    are added in one chain.

    Errors of random values have both signs: except with negligible probability, a chain of n has an error of
    ``λ sqrt(n)`` (N. Higham and T. Mary, *A new approach to probabilistic rounding error analysis*, 2019).
    ``steady``: the terms have few different values. Their roundings then repeat, so that a chain of n may
    have an error of n."""
    chain, levels = min(terms, CHAIN), math.ceil(math.log(max(2, terms), CHAIN))
    return 4 + levels * (chain if steady else 3 * math.sqrt(chain))


def evaluate_with_bounds(
    dag: ComputeDAG,
    inputs: Sequence[Array],
    *,
    signs: bool = False,
    steady: bool = False,
    waiting: Callable[[], None] = lambda: None,
) -> Bounded:
    """The outputs of ``dag`` for ``inputs`` (in its order), and the largest error of a right kernel.

    ``signs``: the inputs are drawn independently with random signs. Parts of a sum of their products then
    have the size of the sum's root, and a sum of any length has an error of at most `SIGNED` ``u * Σ|terms|``
    (N. Higham and T. Mary, *Sharper probabilistic backward error analysis for basic linear algebra kernels
    with random data*, 2020). ``steady``: the inputs have few different elements (see `growth`). ``waiting``:
    called many times a second; what it raises ends the evaluation. Raises `WorkloadError` if the expression
    reads out of bounds.
    """
    known = ComputedTensors(
        {t.name: wide(np.asarray(x)) for t, x in zip(dag.inputs, inputs, strict=True)},
        {},
        frozenset(t.name for t in dag.inputs) if signs else frozenset(),
        steady,
        {s.name: found for s in dag.stages if (found := place(dag, s)) is not None},
        waiting,
    )
    values, bounds = [], []
    with np.errstate(all="ignore"):
        together = {n: range(a, b + 1) for a, b in groups(dag) for n in range(a, b + 1)}
        for n, stage in enumerate(dag.stages):
            if n in together:
                if n == together[n][0]:
                    _scan(dag.stages[n : together[n][-1] + 1], known)
                continue
            for t, (v, e) in zip(stage.outputs, _stage(stage, known), strict=True):
                known.values[t.name] = v
                if e is not None:
                    known.errors[t.name] = e
        for name in dag.outputs:
            value, bound = _stored(known.values[name], known.errors.get(name), dag.tensors[name].dtype)
            values.append(value)
            bounds.append(bound)
    return Bounded(tuple(values), tuple(bounds))


def _stored(v: Array, e: Array | None, dtype: str) -> tuple[Array, Array]:
    """(a tensor in its dtype, bound of each element, with the rounding of the store)."""
    value = v.astype(dtype)
    if not E.is_float(dtype):
        return value, np.zeros(v.shape, np.float32) if e is None else kept(e * (1 + 1e-6), dtype)
    bound = np.empty(v.shape, bound_dtype(dtype))
    most = DTYPES[dtype].largest
    flat, stored, into = v.reshape(-1), value.reshape(-1), bound.reshape(-1)
    errors = None if e is None else e.reshape(-1)
    for at in range(0, flat.size, POINTS):
        part, out = flat[at : at + POINTS], into[at : at + POINTS]
        np.abs(np.subtract(stored[at : at + POINTS], part, dtype=np.float64), out=out, casting="same_kind")
        if errors is not None:
            out += errors[at : at + POINTS]
        out *= 1 + 1e-6
        largest = np.abs(part).max()
        if not largest + out.max() <= most:  # it may overflow or is NaN: then only its own value is right
            out[~np.isfinite(part)] = 0
            if errors is not None:
                out[np.isinf(errors[at : at + POINTS])] = np.inf
            out[np.isnan(out) | ((np.abs(part) + out > most) & np.isfinite(part) & (out > 0))] = np.inf
    return value, bound


def _scan(stages: Sequence[Stage], known: ComputedTensors) -> None:
    """Add what the stages of a scan make. The error of a step is handed on to the next one."""
    for s in stages:
        for t in s.outputs:
            known.values[t.name] = np.zeros(t.shape, np.float64 if E.is_float(t.dtype) else t.dtype)

    def put(s: Stage, at: tuple[Any, ...], made: Sequence[Value]) -> None:
        for t, (v, e) in zip(s.outputs, made, strict=True):
            known.values[t.name][at] = v
            if e is not None:
                if t.name not in known.errors:
                    known.errors[t.name] = np.zeros(t.shape, bound_dtype(t.dtype))
                known.errors[t.name][at] = kept(e, t.dtype)

    found = cumulative_of(stages)
    if found is None or found.op == "*":  # errors of products grow with their factors
        chain = run_chain(stages, known.values, _with_errors(known), lambda s: _stage(s, known))
        if chain is not None:
            for t in (o for s in stages for o in s.outputs):
                known.values[t.name], errors = chain[t.name]
                if errors.any():
                    known.errors[t.name] = kept(errors, t.dtype)
            return
        run_scan(stages, known.values, lambda s: _stage(s, known), put)
        return
    (s,), t = stages, stages[0].outputs[0]
    first = first_of(s, found)
    (start, e0), (term, e) = _stage(step_of(s, (first,)), known)[0], _stage(found.term, known)[0]
    known.values[t.name] = v = accumulated(found, start, term, BINARY[found.op])
    own = rounded(v, None, t.dtype)[1] if found.op == "+" else None
    if e0 is None and e is None and own is None:
        return
    zero = np.zeros(term.shape)
    joined = np.add if found.op == "+" else np.maximum
    e = accumulated(found, 0.0 if e0 is None else e0, zero if e is None else e, joined)
    if found.op == "+" and E.is_float(t.dtype):
        every = np.abs(v) * unit_roundoff(t.dtype)
        e = e + accumulated(found, np.take(every, first, found.axis), every, np.add)
    known.errors[t.name] = kept(wrapped(v, e), t.dtype)


def _with_errors(known: ComputedTensors) -> Arithmetic:
    """The arithmetic of numbers with errors."""

    def rounds(dtype: str) -> Rounds:
        unit, single = unit_roundoff(dtype), dtype == "float32"
        least = unit * float(np.finfo(dtype).tiny)

        def once(v: float, e: float) -> tuple[float, float]:
            if e or v != (float(np.float32(v)) if single else round(v)):
                e += abs(v) * unit + least
            return v, e

        return once

    return Arithmetic(lambda s: ErrorScope(s.name, {}, known).of, rounds, wide=True)


def _stage(stage: Stage, known: ComputedTensors) -> list[Value]:
    left = narrowed(stage)
    if left is None:
        return [(wide(x), None) for x in without_terms(stage)]
    stage = masked(left)
    if stage.reducer is None:
        return _elementwise(stage, known)
    if stage.places:
        return [scattered(stage, known, n) for n in range(len(stage.outputs))]
    if not stage.reducer.apart:
        return _fold(stage, known)
    if len(stage.outputs) == 1 and stage.reducer.operation(0) == "+":
        found = _contracted(stage, known) or _by_factors(stage, known)
        if found is not None:
            return [found]
    return [_reduce(stage, known, n) for n in range(len(stage.outputs))]


class _Out:
    """Results of a stage, collected block by block. Errors are kept only if there are some."""

    def __init__(self, stage: Stage) -> None:
        self.values = [
            np.empty(t.shape, np.float64 if E.is_float(t.dtype) else t.dtype) for t in stage.outputs
        ]
        self.errors: list[Array | None] = [None] * len(self.values)
        self._dtypes = [t.dtype for t in stage.outputs]

    def put(self, i: int, at: tuple[slice, ...], value: Value) -> None:
        v, e = value
        self.values[i][at] = v
        if e is not None:
            errors = self.errors[i]
            if errors is None:
                errors = self.errors[i] = np.zeros(self.values[i].shape, bound_dtype(self._dtypes[i]))
            errors[at] = kept(e, self._dtypes[i])

    def all(self) -> list[Value]:
        return list(zip(self.values, self.errors, strict=True))


def _elementwise(stage: Stage, known: ComputedTensors) -> list[Value]:
    out = _Out(stage)
    for block in blocks(stage.axes, POINTS):
        scope = ErrorScope(stage.name, grid(stage.axes, block), known)
        at = tuple(slice(*b) for b in block)
        for i, v in enumerate(stage.values):
            out.put(i, at, scope.value(v))
    return out.all()


def _contracted(stage: Stage, known: ComputedTensors) -> Value | None:
    """A sum of products with affine indices, with a bound from the sizes of its operands; None for other
    stages."""
    loads = factors(stage)
    dtype = stage.outputs[0].dtype
    if loads is None:
        return None
    names = [x.buffer for x in loads]
    extents = {a.var: int(a.extent) for a in (*stage.axes, *stage.reduce_axes)}
    cuts = [part_read(x, known.values[x.buffer].shape, extents) for x in loads]
    places = [at for at, _ in cuts]
    arrays = [known.values[name][at] for name, at in zip(names, places, strict=True)]
    part = {x: y for x, (_, y) in zip(loads, cuts, strict=True)}
    rows = replace(stage, values=tuple(with_loads(v, part.get) for v in stage.values))
    v = contract(rows, arrays)
    if v is None:
        return None
    errors = [
        None if name not in known.errors else known.errors[name][at]
        for name, at in zip(names, places, strict=True)
    ]
    if not E.is_float(dtype):
        return rounded(v, _handed_on(rows, arrays, errors), dtype)
    total = contract(rows, arrays, size)
    assert total is not None
    whole = not any(e is not None for e in errors) and all(_whole(a) for a in arrays)
    most = math.prod(float(np.abs(a).max(initial=0)) for a in arrays) if whole else None
    more = _handed_on(rows, arrays, errors)
    return _summed(stage, known, v, total, more, names, most)


def _summed(
    stage: Stage,
    known: ComputedTensors,
    v: Array,
    total: Array,
    more: Array | None,
    names: Sequence[str],
    most: float | None,
) -> Value:
    """A sum of products ``v`` in floating point with its bound. ``total``: the size of its terms together;
    ``more``: the error that its operands have; ``names``: the tensors that these are; ``most``: the largest
    term if all operands are exact and whole."""
    dtype = stage.outputs[0].dtype
    terms = math.prod(a.extent for a in stage.reduce_axes)
    unit = unit_roundoff(dtype)
    signs = bool(names) and known.signs >= set(names) and len(set(names)) == len(names)
    if most is not None:
        largest = float(total.max(initial=0))
        if min(largest, 16 * math.sqrt(terms) * most if signs else largest) < 1 / unit:
            return v, None
    e = (SIGNED if signs else growth(terms, known.steady)) * unit * total
    anything: Any = False
    if not float(total.max(initial=0)) <= DTYPES[computed(dtype)].largest:
        anything = _overflows(v, total, dtype)
        e = np.where(anything, np.inf, e)
    return rounded(v, e if more is None else e + more, dtype, anything=anything)


def _by_factors(stage: Stage, known: ComputedTensors) -> Value | None:
    """A sum of products of any factors (`schedules.te.factored`), with a bound from their sizes; None for
    other stages."""
    parts = factored.split_sum(stage)
    if parts is None:
        return None
    t = stage.outputs[0]
    floats = E.is_float(t.dtype)
    out = np.zeros(t.shape, np.float64 if floats else t.dtype)
    total, more = np.zeros(t.shape), np.zeros(t.shape)
    exact = whole = True
    most = [0.0] * len(parts)
    free = factored.free_labels(stage, parts)
    for ranges in factored.blocks(stage, parts):
        terms: Terms = []
        errors: list[Array | None] = []
        for n, f in enumerate(parts):
            scope = ErrorScope(stage.name, grid(f.axes, f.block(ranges)), known)
            try:
                x, e = scope.value(f.value)
            except WorkloadError:  # another factor guards it, or it is out of bounds: the general path says
                return None
            x = factored.filled(f, ranges, x).astype(out.dtype)
            errors.append(None if e is None else factored.filled(f, ranges, e).astype(np.float64))
            finite = np.isfinite(x).all() and (e is None or np.isfinite(e).all())
            if factored.is_guarded(stage) and not finite:
                return None
            terms.append((x, f.labels))
            whole = whole and (not floats or _whole(x))
            most[n] = max(most[n], float(np.abs(x).max(initial=0)))
        factored.add(out, stage, ranges, free, product_of(terms, free))
        sizes: Terms = [(np.abs(x.astype(np.float64)), labels) for x, labels in terms]
        if floats:
            factored.add(total, stage, ranges, free, size(sizes, free))
        for n, own in enumerate(errors):
            if own is None:
                continue
            exact = False
            changed = [*sizes[:n], (own, sizes[n][1]), *sizes[n + 1 :]]
            factored.add(more, stage, ranges, free, size(changed, free))
            sizes[n] = sizes[n][0] + own, sizes[n][1]
    handed_on = None if exact else np.asarray(unbounded(more))
    if not floats:
        return rounded(out, handed_on, t.dtype)
    names = [name for f in parts for name in _loaded(f.value)]
    largest = math.prod(most) if whole and exact else None
    return _summed(stage, known, out, total, handed_on, names, largest)


def _loaded(e: E.Expr) -> list[str]:
    """The tensor that a factor is, where a condition holds or everywhere. Empty strings for other factors,
    whose values have no random signs."""
    while isinstance(e, E.Select) and isinstance(e.b, E.Const):
        e = e.a
    return [e.buffer] if isinstance(e, E.Load) else [""]


def _handed_on(stage: Stage, arrays: Sequence[Array], errors: Sequence[Array | None]) -> Array | None:
    """Error of a sum of products that comes from errors of its operands; None if these have none."""
    if all(e is None for e in errors):
        return None
    sizes = list(arrays)
    out: Any = 0.0
    last = max(i for i, e in enumerate(errors) if e is not None)
    for i, own in enumerate(errors):
        if own is not None:  # earlier operands count with their errors, later ones without
            more = contract(stage, [*sizes[:i], own, *sizes[i + 1 :]], size)
            assert more is not None
            out = out + more
            if i < last:
                sizes[i] = np.abs(sizes[i].astype(np.float64)) + own
    return np.asarray(unbounded(out))


def _whole(a: Array) -> bool:
    flat = a.reshape(-1)
    return all(bool((p == np.rint(p)).all()) for p in np.array_split(flat, -(-flat.size // POINTS) or 1))


def _reduce(stage: Stage, known: ComputedTensors, number: int) -> Value:
    """The component of this number of a reduction, by one numpy ufunc."""
    assert stage.reducer is not None
    op = stage.reducer.operation(number)
    t, rank = stage.outputs[number], len(stage.axes)
    ufunc: Any = BINARY[op]
    floats = E.is_float(t.dtype)
    dtype = np.dtype(np.float64 if floats else t.dtype)
    identity = stage.reducer.identity[number].value
    out = np.full(t.shape, identity, dtype)
    sizes = _Sizes(op, t.shape)
    exact = True
    extremes = Extremes(t.shape, op) if op in ("min", "max") else None
    sought = known.places.get(stage.name)
    axes = stage.axes + stage.reduce_axes
    over = tuple(range(rank, len(axes)))
    for block in blocks(axes, POINTS):
        scope = ErrorScope(stage.name, grid(axes, block), known)
        v, e = scope.value(stage.values[number])
        full = tuple(hi - lo for lo, hi in block)
        v = np.broadcast_to(v, full)
        at = tuple(slice(*b) for b in block[:rank])
        part = ufunc.reduce(v, axis=over, dtype=dtype)
        out[at] = ufunc(out[at], part)
        if extremes is not None:
            if e is None:
                extremes.add_certain(at, part)
            else:
                chosen = isinstance(stage.values[number], E.Select)
                low, high = scope.ends(stage.values[number]) if chosen else ends(v, e)
                extremes.add(at, over, np.broadcast_to(low, full), np.broadcast_to(high, full))
            if sought is not None:
                cond, value = sought
                low, high = (np.broadcast_to(x, full) for x in scope.ends(value))
                extremes.add_met(at, over, (low, high), np.broadcast_to(scope.may(cond), full))
        if e is not None:
            exact = False
            e = np.broadcast_to(e, full)
        sizes.add(at, over, v, e)
    terms = math.prod(a.extent for a in stage.reduce_axes)
    if extremes is not None:
        return out, None if exact else extremes.bound(out)
    if not floats:
        if exact:
            return out, None
        # The largest size of a product less its value, which may have wrapped.
        off = sizes.total + np.abs(out, dtype=np.float64) if op == "*" else sizes.error
        return out, wrapped(out, off)
    if op == "*":
        steps = terms if known.steady else growth(terms)
        return _bounded_product(out, sizes, terms, steps, t.dtype)
    unit = unit_roundoff(t.dtype)
    if sizes.whole and exact and float(np.max(sizes.total, initial=0)) < 1 / unit:
        return out, None
    anything = np.isinf(sizes.error) | _overflows(out, sizes.total, t.dtype)
    e = np.where(anything, np.inf, sizes.error + growth(terms, known.steady) * unit * sizes.total)
    return rounded(out, e, t.dtype, anything=anything)


class _Sizes:
    """What bounds the error of a sum or a product. ``total``: Σ|terms| of a sum, Π(|terms| + errors) of a
    product; ``error``: Σ of errors; ``above``, ``below``: the largest product of some factors, and the least;
    ``whole``: whether all terms of a sum are whole."""

    def __init__(self, op: str, shape: tuple[int, ...]) -> None:
        self.op = op
        self.total = np.full(shape, 1.0 if op == "*" else 0.0)
        self.error = np.zeros(shape)
        self.above, self.below = np.ones(shape), np.ones(shape)
        self.whole = True

    def add(self, at: tuple[slice, ...], over: tuple[int, ...], v: Array, e: Array | None) -> None:
        """More terms with their errors, for the elements ``at``. ``over``: the dimensions to reduce."""
        if self.op == "+":
            self.total[at] += np.abs(v).sum(axis=over)
            self.whole = self.whole and bool((v == np.rint(v)).all())
            if e is not None:
                self.error[at] += e.sum(axis=over)
        elif self.op == "*":
            sizes = np.abs(v) + (0 if e is None else e)
            self.total[at] *= sizes.prod(axis=over)
            finite = np.where(np.isfinite(sizes), sizes, 1)
            self.above[at] *= np.maximum(finite, 1).prod(axis=over)
            self.below[at] *= np.minimum(finite, 1).prod(axis=over)


def _bounded_product(out: Array, sizes: _Sizes, terms: int, steps: float, dtype: str) -> Value:
    """A product of ``terms`` factors with its bound, that of ``steps`` roundings."""
    total, above, below = sizes.total, sizes.above, sizes.below
    unit, tiny, most = unit_roundoff(dtype), DTYPES[computed(dtype)].tiny, DTYPES[computed(dtype)].largest
    some_below = below < 1  # a part of the product may then be denormal or infinite, where all is not
    anything = np.isnan(total) | (some_below & (above > most)) | (np.isinf(out) & (below < tiny))
    e = total * (1 + steps * unit) - np.abs(out)
    e += np.where(some_below, terms * unit * tiny * above, 0)
    return rounded(out, np.where(anything, np.inf, unbounded(e)), dtype, anything=anything)


def _overflows(out: Array, total: Array, dtype: str) -> Any:
    """Where a part of a sum may overflow although the whole does not for certain, as terms have both
    signs. Beside very large terms those of the other sign are not seen."""
    most = DTYPES[computed(dtype)].largest
    both = (total * (1 - 1e-9) > np.abs(out)) | (total * 1e-9 > most)
    return np.isfinite(total) & (total > most) & both


def _fold(stage: Stage, known: ComputedTensors) -> list[Value]:
    """Any reduction over tuples. Neighbours are combined pairwise, which keeps their order. Each level counts
    as many roundings as a chain of a kernel may have instead."""
    assert stage.reducer is not None
    reducer, rank, n = stage.reducer, len(stage.axes), len(stage.outputs)
    terms = math.prod(a.extent for a in stage.reduce_axes)
    scale = growth(terms, known.steady) / max(1, math.ceil(math.log2(max(2, terms))))

    def join(x: list[Value], y: list[Value]) -> list[Value]:
        parts = {f"{p}{i}": a for p, xs in (("x", x), ("y", y)) for i, a in enumerate(xs)}
        own = ComputedTensors(
            {k: v for k, (v, _) in parts.items()},
            {k: e for k, (_, e) in parts.items() if e is not None},
            steady=known.steady,
        )
        scope = ErrorScope(stage.name, {}, own, scale)
        made = [scope.value(c) for c in reducer.combine]
        shape = x[0][0].shape
        return [
            (np.broadcast_to(v, shape), None if e is None else np.broadcast_to(e, shape)) for v, e in made
        ]

    def cut(xs: list[Value], part: slice) -> list[Value]:
        return [(v[..., part], None if e is None else e[..., part]) for v, e in xs]

    out = _Out(stage)
    for c, v in zip(reducer.identity, out.values, strict=True):
        v[...] = np.asarray(c.value).astype(v.dtype)
    axes = stage.axes + stage.reduce_axes
    for block in blocks(axes, POINTS):
        scope = ErrorScope(stage.name, grid(axes, block), known)
        full = tuple(hi - lo for lo, hi in block)
        xs: list[Value] = []
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
        before: list[Value] = [
            (v[at], None if e is None else e[at]) for v, e in zip(out.values, out.errors, strict=True)
        ]
        new = join(before, [(v[..., 0], None if e is None else e[..., 0]) for v, e in xs])
        for i in range(n):
            out.put(i, at, new[i])
    return out.all()


def _beside(pairs: list[Value], rest: list[Value]) -> list[Value]:
    out: list[Value] = []
    for (v, e), (w, f) in zip(pairs, rest, strict=True):
        both = None
        if e is not None or f is not None:
            both = np.concatenate(
                [np.zeros(v.shape) if e is None else e, np.zeros(w.shape) if f is None else f], -1
            )
        out.append((np.concatenate([v, w], -1), both))
    return out
