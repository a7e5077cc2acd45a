"""Computes sums of products as matrix products: the fast path of `evaluate`.

A stage qualifies if its value is a product of loads whose indices become ``a * axis + c`` once some axes are
fixed. Those axes (the taps of a convolution, the groups of a grouped one) are looped over. For each of their
points the operands are strided slices, and their contraction is one BLAS call.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedules import affine
from schedules import expr as E
from schedules.dtypes import is_storage
from schedules.expr import Binary, Cast, Const, Expr, Load, Var
from schedules.te.compute_dag import Axis, Stage

Array = NDArray[Any]
# Most BLAS calls: with more, the loop costs more than plain evaluation.
MAX_CALLS = 20_000
# Points of the sum a call, below which a call costs more than they do.
LEAST_POINTS = 1 << 10
# Most elements of an operand slice: 16 MB in float64.
MAX_ELEMENTS = 2**21
# Times as many products as elements of an operand that are added up one by one.
FEW = 4
# Elements of a piece that stays in the second cache.
PIECE = 2**15
# Most factors and axes that numpy's einsum takes, in every version.
MAX_OPERANDS, MAX_LABELS = 31, 52

# Integers up to this are exact in float64.
_EXACT = 2**53

# The factors of a product, each with a label for each dimension.
Terms = list[tuple[Array, list[str]]]


def factors(stage: Stage) -> list[Load] | None:
    """The loads whose product a stage sums; None if it sums anything else."""
    return _factors(stage.values[0]) if stage.plain else None


def is_contracted(stage: Stage) -> bool:
    """Whether `contract` takes a stage, unless it reads out of bounds."""
    return _plan(_undivided(stage)) is not None


def contract(
    stage: Stage,
    arrays: Mapping[str, Array] | Sequence[Array],
    product: Callable[[Terms, list[str]], Array] | None = None,
) -> Array | None:
    """The output of a sum-of-products stage, None for other stages. float32 is summed and returned in
    float64; integers wrap. ``arrays``: by name, or one for each of `factors`. ``product``: replaces the sum
    of products over all labels except the free ones, in float64 (for example `size`)."""
    whole, stage = stage, _undivided(stage)
    plan = _plan(stage)
    if plan is None:
        return None
    operands, fixed, tile, extents = plan
    if isinstance(arrays, Mapping):
        arrays = [arrays[x.buffer] for x in operands]
    product = product or product_of
    t = whole.outputs[0]
    shape = tuple(a.extent for a in stage.axes)
    out = np.zeros(shape, np.float64 if product is not product_of or t.dtype == "float32" else t.dtype)
    spatial = [a.var for a in stage.axes]
    for point in blocks_of(extents.values(), tile.values()):
        ranges = dict(zip(extents, point, strict=True))
        here = {v: Const(ranges[v][0]) for v in fixed}
        terms = []
        for x, source in zip(operands, arrays, strict=True):
            piece = _slice(E.substitute(x, here), source, ranges)
            if piece is None:
                return None  # out of bounds: the general path says where
            terms.append((piece[0].astype(out.dtype, copy=False), piece[1]))
        free = [v for v in spatial if any(v in labels for _, labels in terms)]
        got = product(terms, free)
        sizes = {v: hi - lo for v, (lo, hi) in ranges.items()}
        out[tuple(slice(*ranges[v]) for v in spatial)] += got.reshape(
            [sizes[v] if v in free else 1 for v in spatial]
        )
    return out.reshape(t.shape)


def _undivided(stage: Stage) -> Stage:
    """The stage with two axes for each that an index divides by a part of it, as the channels of groups: an
    axis that is divided would be looped over whole. Its outputs keep their shape."""
    axes = (*stage.axes, *stage.reduce_axes)
    names = {a.var for a in axes}
    for a in axes:
        divided = (e for x in stage.reads() for i in x.indices for e in E.walk(i) if _curved(e))
        by = next((n for e in divided if (n := _part(e, a))), 0)
        if not by or f"{a.var}_0" in names or f"{a.var}_1" in names:
            continue
        return _undivided(in_two(stage, a, by, f"{a.var}_0", f"{a.var}_1"))
    return stage


def in_two(stage: Stage, axis: Axis, by: int, high: str, low: str) -> Stage:
    """The stage with an axis as two of these names: its quotient and its remainder by ``by``. Outputs keep
    their shape."""
    pair = (Axis(high, axis.extent // by), Axis(low, by))
    spatial, summed = (
        tuple(y for x in old for y in (pair if x == axis else (x,)))
        for old in (stage.axes, stage.reduce_axes)
    )
    inside = {x.var: (0, int(x.extent) - 1) for x in (*spatial, *summed)}
    place = {axis.var: Var(high) * by + Var(low)}
    values = tuple(affine.simplify(E.substitute(v, place), inside) for v in stage.values)
    return replace(stage, axes=spatial, reduce_axes=summed, values=values)


def _part(e: Expr, a: Axis) -> int:
    """The divisor of an axis by which an index divides it; 0 if it does not."""
    match e:
        case Binary(op="//", a=Var(name=v), b=Const(value=n)) if v == a.var:
            return int(n) if 1 < n < a.extent and a.extent % n == 0 else 0
    return 0


def _plan(stage: Stage) -> tuple[list[Load], list[str], dict[str, int], dict[str, int]] | None:
    """(what is multiplied, the axes that are looped over, the extents of a block, those of the whole sum);
    None for a stage that is no sum of products, or one in too many blocks."""
    operands = factors(stage)
    if operands is None:
        return None
    extents = {a.var: a.extent for a in (*stage.axes, *stage.reduce_axes)}
    fixed = _stepped(operands, extents, [a.var for a in stage.reduce_axes])
    used: frozenset[str] = frozenset().union(*(E.variables(x) for x in operands))
    if fixed is None or any(a.var not in used for a in stage.reduce_axes):
        return None
    if len(operands) > MAX_OPERANDS or len(used) > MAX_LABELS:
        return None
    tile = _tile(operands, extents, fixed)
    calls = math.prod(-(-extents[v] // tile[v]) for v in extents)
    if calls > MAX_CALLS or (calls > LEAST_POINTS and math.prod(extents.values()) < LEAST_POINTS * calls):
        return None
    return operands, fixed, tile, extents


def _factors(e: Expr) -> list[Load] | None:
    """The loads whose product ``e`` is, widened from what is stored or not; None when it is anything else."""
    if isinstance(e, Cast) and isinstance(e.a, Load) and is_storage(e.a.dtype):
        e = e.a
    if isinstance(e, Load):
        return None if any(map(E.loads, e.indices)) else [e]  # what is gathered is no slice
    if isinstance(e, Binary) and e.op == "*":
        a, b = _factors(e.a), _factors(e.b)
        return None if a is None or b is None else a + b
    return None


def _stepped(operands: Sequence[Load], extents: Mapping[str, int], reduce: Sequence[str]) -> list[str] | None:
    """The axes to fix so that every index is affine in one axis: first those under // or %, then the
    smallest, for few calls: the taps of a window, also where these are the output. None if none suffice."""
    fixed: list[str] = []
    for x in operands:
        for ix in x.indices:
            while _affine(E.substitute(ix, {v: Const(0) for v in fixed})) is None:
                left = E.variables(ix) - set(fixed)
                if not left:
                    return None
                curved: frozenset[str] = frozenset().union(
                    *(E.variables(y) for y in E.walk(ix) if _curved(y))
                )
                fixed.append(min(left, key=lambda v: (v not in curved, extents[v], v not in reduce, v)))
    return fixed


def _curved(e: Expr) -> bool:
    return isinstance(e, Binary) and e.op in ("//", "%")


def _tile(operands: Sequence[Load], extents: Mapping[str, int], fixed: Sequence[str]) -> dict[str, int]:
    """Block extents: one point of ``fixed`` axes, and operand slices of bounded size."""
    tile = {v: 1 if v in fixed else n for v, n in extents.items()}
    return halved(tile, [sorted(E.variables(x)) for x in operands], MAX_ELEMENTS)


def halved(tile: dict[str, int], parts: Iterable[Sequence[str]], most: int) -> dict[str, int]:
    """Extents of a block, of which the longest are halved until all parts, which have these axes, have at
    most so many points."""
    tile = dict(tile)
    for names in parts:
        while math.prod(tile[v] for v in names) > most:
            longest = max(names, key=lambda v: tile[v])
            tile[longest] = -(-tile[longest] // 2)
    return tile


def blocks_of(extents: Iterable[int], sizes: Iterable[int]) -> Iterator[tuple[tuple[int, int], ...]]:
    """Blocks of these sizes, a half-open range for each axis, that cover all points in row-major order."""
    cuts = ([(lo, min(lo + s, n)) for lo in range(0, n, s)] for n, s in zip(extents, sizes, strict=True))
    return itertools.product(*cuts)


def _affine(e: Expr) -> tuple[str | None, int, int] | None:
    """``(axis, a, c)`` if ``e`` is ``a * axis + c``, else None."""
    match e:
        case Const(value=v):
            return None, 0, int(v)
        case Var(name=n):
            return n, 1, 0
        case Binary(op="+" | "-" | "*" as op, a=x, b=y):
            p, q = _affine(x), _affine(y)
            if p is None or q is None:
                return None
            if op == "*":
                if p[0] is not None:
                    p, q = q, p
                return (q[0], q[1] * p[2], q[2] * p[2]) if p[0] is None else None
            s = 1 if op == "+" else -1
            if p[0] is not None and q[0] is not None and p[0] != q[0]:
                return None
            return p[0] or q[0], p[1] + s * q[1], p[2] + s * q[2]
    return None


def part_read(x: Load, shape: Sequence[int], extents: Mapping[str, int]) -> tuple[tuple[Any, ...], Load]:
    """(the part of a tensor that a load reads, as numbers and slices; the same load of that part). A
    dimension whose index is not affine in one axis is whole."""
    at, left = list[Any](), list[Expr]()
    for i, n in zip(x.indices, shape, strict=True):
        var, a, c = _affine(i) or ("", 0, 0)
        if var is None and 0 <= c < n:
            at.append(c)
        elif var and a > 0 and 0 <= c and a * (extents[var] - 1) + c < n:
            at.append(slice(c, a * (extents[var] - 1) + c + 1))
            left.append(Var(var) * a)
        else:
            at.append(slice(None))
            left.append(i)
    return tuple(at), replace(x, indices=tuple(left))


def _slice(x: Expr, source: Array, ranges: Mapping[str, tuple[int, int]]) -> tuple[Array, list[str]] | None:
    """(the elements that ``x`` reads, a label for each remaining dimension); None if out of bounds."""
    assert isinstance(x, Load)
    index: list[Any] = []
    labels: list[str] = []
    for ix, n in zip(x.indices, source.shape, strict=True):
        form = _affine(ix)
        if form is None or (form[0] is not None and form[1] <= 0):
            return None
        var, a, c = form
        lo, hi = (ranges[var][0], ranges[var][1] - 1) if var is not None else (0, 0)
        first, last = a * lo + c, a * hi + c
        if first < 0 or last >= n:
            return None
        if var is None:
            index.append(c)
        else:
            index.append(slice(first, last + 1, a))
            labels.append(var)
    return source[tuple(index)], labels


def product_of(terms: Terms, free: list[str]) -> Array:
    """Σ over all labels except ``free`` of the product of the terms; dimensions as ``free``. Integers
    wrap."""
    if len(terms) == 2 and all(len(set(labels)) == len(labels) for _, labels in terms):
        floats = [(x.astype(np.float64), labels) for x, labels in terms] if _is_exact(terms, free) else terms
        got = _matmul(floats[0], floats[1], free)
        if got is not None:
            return got if floats is terms else got.astype(np.int64).astype(terms[0][0].dtype)
    number = {v: i for i, v in enumerate(dict.fromkeys(v for _, labels in terms for v in labels))}
    args: list[Any] = []
    for a, labels in terms:
        args += [a, [number[v] for v in labels]]
    return np.asarray(np.einsum(*args, [number[v] for v in free]))


def _is_exact(terms: Terms, free: list[str]) -> bool:
    """Whether float64, which BLAS has, adds up products of integers exactly: all parts of a sum are below
    2**53."""
    if any(x.dtype.kind not in "iu" or not x.size for x, _ in terms):
        return False
    summed = {v: n for x, labels in terms for v, n in zip(labels, x.shape, strict=True) if v not in free}
    largest = (max(int(x.max()), -int(x.min())) for x, _ in terms)
    return math.prod(largest) * math.prod(summed.values()) <= _EXACT


def size(terms: Terms, free: list[str]) -> Array:
    """An upper bound of Σ of the products' absolute values over all labels except ``free``. For two terms,
    neither of which is much smaller than all products together, by the inequality of Cauchy and Schwarz,
    which needs no product of them."""
    if len(terms) != 2:
        return product_of([(np.abs(a), labels) for a, labels in terms], free)
    extents = {v: n for a, labels in terms for v, n in zip(labels, a.shape, strict=True)}
    if math.prod(extents.values()) <= FEW * max(a.size for a, _ in terms):
        return _exact_size(terms, free)
    norms: Terms = []
    for a, labels in terms:
        axes = tuple(i for i, v in enumerate(labels) if v not in free)
        norms.append((np.sqrt(np.square(a).sum(axis=axes)), [v for v in labels if v in free]))
    # A summed label that a term lacks counts once for each of its points.
    shared = [{v for v in labels if v not in free} for _, labels in terms]
    times = 1.0
    for v in shared[0] ^ shared[1]:
        times *= math.sqrt(extents[v])
    return product_of(norms, free) * times


def _exact_size(terms: Terms, free: list[str]) -> Array:
    """Σ of the products' absolute values, in pieces of the largest term."""
    extents = {v: n for a, labels in terms for v, n in zip(labels, a.shape, strict=True)}
    most, along = max(terms, key=lambda t: t[0].size)
    if not along:
        return product_of([(np.abs(a), labels) for a, labels in terms], free)
    cut, step = along[0], max(1, PIECE * extents[along[0]] // most.size)
    out = np.zeros([extents[v] for v in free])
    for lo in range(0, extents[cut], step):
        here = slice(lo, lo + step)
        pieces = [
            (np.abs(a[tuple(here if v == cut else slice(None) for v in labels)]), labels)
            for a, labels in terms
        ]
        out[tuple(here if v == cut else slice(None) for v in free)] += product_of(pieces, free)
    return out


def _matmul(a: tuple[Array, list[str]], b: tuple[Array, list[str]], free: list[str]) -> Array | None:
    """Two terms as one batched matrix product; None if no label is shared and summed.

    np.einsum does not use BLAS for batched contractions.
    """
    both = [v for v in a[1] if v in b[1]]
    batch = [v for v in both if v in free]
    inner = [v for v in both if v not in free]
    rows = [v for v in a[1] if v in free and v not in both]
    cols = [v for v in b[1] if v in free and v not in both]
    if not inner or len(batch) + len(inner) + len(rows) != len(a[1]) or len(both) + len(cols) != len(b[1]):
        return None
    size = {v: n for x, labels in (a, b) for v, n in zip(labels, x.shape, strict=True)}

    def arrange(x: tuple[Array, list[str]], groups: tuple[list[str], list[str]]) -> Array:
        order = [x[1].index(v) for v in (*batch, *groups[0], *groups[1])]
        shape = [size[v] for v in batch] + [math.prod(size[v] for v in g) for g in groups]
        return x[0].transpose(order).reshape(shape)

    out = arrange(a, (rows, inner)) @ arrange(b, (inner, cols))
    order = batch + rows + cols
    return out.reshape([size[v] for v in order]).transpose([order.index(v) for v in free])
