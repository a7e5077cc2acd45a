"""The operators of terms: for which kinds and extents each is defined, its value, and its stage in `te`.

Kinds of tensors: a ``matrix`` (m, n); an ``image`` (batch, channels, rows, columns); a ``kernel`` (outputs,
channels, rows, columns); a ``row`` (n,), which lies along axis 1 of these three; a ``column`` (m,), along
axis 0; a ``number`` ().
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from schedules import te
from schedules.expr import Expr
from schedules.substitutions.sizes import Numbers, Solver, Undefined
from schedules.substitutions.terms import GraphTerm

Array = NDArray[Any]
RANKS = MappingProxyType({"matrix": 2, "image": 4, "kernel": 4, "row": 1, "column": 1, "number": 0})
POINT = "point"  # what a kernel of 1 x 1 is called where it is told from others
# {kind of a vector: the axis of what is larger along which it lies}.
_ALONG = {"row": 1, "column": 0}


@dataclass(frozen=True)
class TensorKind:
    """What a term is: a kind of `RANKS`, and an extent for each of its axes, numbers or symbols."""

    name: str
    shape: tuple[Any, ...]


@dataclass(frozen=True)
class Arithmetic:
    """How values are computed: of float64, or of objects that stand for expressions."""

    add: Callable[[Any, Any], Any]
    mul: Callable[[Any, Any], Any]
    top: Callable[[Any, Any], Any]  # the greater
    dot: Callable[[Array, Array], Array]  # (..., k) with (k, n)
    total: Callable[[Array, int], Array]  # sums along an axis
    greatest: Callable[[Array, int], Array]
    filled: Callable[[tuple[int, ...], Any], Array]  # of a shape with one value
    zero: Any = 0
    one: Any = 1


def fractions(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Numbers between -4 and 4, no 0, of one sign or of both, and of one scale: sums and products of few are
    exact in float64. They are no integers, of which x * x is never below x."""
    signs = ((-1, 1), (-1, 1), (1, 1), (-1, -1))[int(rng.integers(4))]
    made = rng.integers(1, 17, shape) * rng.choice(signs, shape) * rng.choice((0.25, 1.0, 4.0)) / 16
    return np.asarray(made)


def _filled(shape: tuple[int, ...], value: int) -> Array:
    return np.full(shape, float(value))


NUMBERS = Arithmetic(np.add, np.multiply, np.maximum, np.matmul, np.sum, np.max, _filled)
Shapes = Callable[..., TensorKind]  # (solver, kind of each operand)


@dataclass(frozen=True)
class TermOperator:
    """``kind``: of its result; raises `Undefined`. ``value``: of arrays. ``stage``: in `te`, of tensors, with
    the kinds of the operands. ``commutes``: whether its two operands may be swapped."""

    name: str
    arity: int
    kind: Callable[..., TensorKind]
    value: Callable[..., Array]
    stage: Callable[..., te.Tensor]
    commutes: bool = False


def _mismatch(name: str, kinds: Sequence[TensorKind]) -> Undefined:
    return Undefined(f"{name} is not defined for {' and '.join(k.name for k in kinds)}")


# -- elementwise ----------------------------------------------------------------------------------------


def _elementwise_kind(s: Solver[Any], a: TensorKind, b: TensorKind) -> TensorKind:
    if len(a.shape) < len(b.shape):
        a, b = b, a
    if a.name == b.name:
        return TensorKind(a.name, tuple(map(s.equal, a.shape, b.shape)))
    if b.name == "number":
        return a
    if b.name not in _ALONG or a.name in _ALONG or (a.name, b.name) == ("image", "column"):
        raise _mismatch("an elementwise operator", (a, b))
    shape = list(a.shape)
    shape[_ALONG[b.name]] = s.equal(shape[_ALONG[b.name]], b.shape[0])
    return TensorKind(a.name, tuple(shape))


def _along(x: Array, kind: TensorKind, rank: int) -> Array:
    """A vector as it lies along an axis of what has more axes."""
    if kind.name not in _ALONG or rank < 2:
        return x
    shape = [1] * rank
    shape[_ALONG[kind.name]] = -1
    return x.reshape(shape)


def _elementwise(name: str, element: Callable[[Expr, Expr], Expr]) -> TermOperator:
    def value(r: Arithmetic, kinds: Sequence[TensorKind], a: Array, b: Array) -> Array:
        rank = max(a.ndim, b.ndim)
        made: Array = getattr(r, name)(_along(a, kinds[0], rank), _along(b, kinds[1], rank))
        return made

    def stage(kinds: Sequence[TensorKind], a: te.Tensor, b: te.Tensor) -> te.Tensor:
        shape = max(a.shape, b.shape, key=len)

        def read(x: te.Tensor, kind: TensorKind, at: Sequence[Expr]) -> Expr:
            if len(x.shape) == len(at):
                return x[tuple(at)]
            return x[()] if kind.name == "number" else x[at[_ALONG[kind.name]]]

        return te.compute(shape, lambda *at: element(read(a, kinds[0], at), read(b, kinds[1], at)), name)

    return TermOperator(name, 2, _elementwise_kind, value, stage, commutes=True)


def _same_kind(s: Solver[Any], a: TensorKind) -> TensorKind:
    return a


def _relu_value(r: Arithmetic, kinds: Sequence[TensorKind], a: Array) -> Array:
    made: Array = r.top(a, r.zero)
    return made


def _relu_stage(kinds: Sequence[TensorKind], a: te.Tensor) -> te.Tensor:
    return te.compute(a.shape, lambda *at: te.maximum(a[at], 0.0), "relu")


# -- products -------------------------------------------------------------------------------------------


def _product_kind(s: Solver[Any], a: TensorKind, b: TensorKind) -> TensorKind:
    match a.name, b.name:
        case "matrix", "matrix":
            s.equal(a.shape[1], b.shape[0])
            return TensorKind("matrix", (a.shape[0], b.shape[1]))
        case "matrix", "column":
            s.equal(a.shape[1], b.shape[0])
            return TensorKind("column", a.shape[:1])
        case "row", "matrix":
            s.equal(a.shape[0], b.shape[0])
            return TensorKind("row", b.shape[1:])
    raise _mismatch("product", (a, b))


def _product_value(r: Arithmetic, kinds: Sequence[TensorKind], a: Array, b: Array) -> Array:
    made = r.dot(a if a.ndim > 1 else a[None], b if b.ndim > 1 else b[:, None])
    return made if a.ndim == b.ndim else made.reshape(-1)


def _product_stage(kinds: Sequence[TensorKind], a: te.Tensor, b: te.Tensor) -> te.Tensor:
    k = te.reduce_axis(b.shape[0], "k")

    def value(*at: Expr) -> te.Reduction:
        rows, columns = at[: len(a.shape) - 1], at[len(a.shape) - 1 :]
        return te.sum(a[(*rows, k)] * b[(k, *columns)], axis=k)

    return te.compute((*a.shape[:-1], *b.shape[1:]), value, "product")


def _conv_kind(s: Solver[Any], x: TensorKind, k: TensorKind) -> TensorKind:
    if (x.name, k.name) != ("image", "kernel"):
        raise _mismatch("conv", (x, k))
    s.equal(x.shape[1], k.shape[1])
    sizes = (s.checked(n - m + 1) for n, m in zip(x.shape[2:], k.shape[2:]))
    return TensorKind("image", (x.shape[0], k.shape[0], *sizes))


def _conv_value(r: Arithmetic, kinds: Sequence[TensorKind], x: Array, k: Array) -> Array:
    windows = sliding_window_view(x, k.shape[2:], (2, 3))
    n, _, h, w = windows.shape[:4]
    taken = windows.transpose(0, 2, 3, 1, 4, 5).reshape(n, h, w, -1)
    return r.dot(taken, k.reshape(k.shape[0], -1).T).transpose(0, 3, 1, 2)


def _conv_stage(kinds: Sequence[TensorKind], x: te.Tensor, k: te.Tensor) -> te.Tensor:
    axes = [
        te.reduce_axis(k.shape[d], name) if k.shape[d] > 1 else 0
        for d, name in ((1, "c"), (2, "r"), (3, "s"))
    ]
    c, u, v = axes
    over = [a for a in axes if not isinstance(a, int)]
    n, m = (x.shape[d] - k.shape[d] + 1 for d in (2, 3))

    def value(b: Expr, o: Expr, i: Expr, j: Expr) -> Any:
        one = x[b, c, i + u, j + v] * k[o, c, u, v]
        return te.sum(one, axis=over) if over else one

    return te.compute((x.shape[0], k.shape[0], n, m), value, "conv")


def _unit_kind(s: Solver[Any], a: TensorKind) -> TensorKind:
    if a.name == "matrix":
        return TensorKind("matrix", (a.shape[1], a.shape[1]))
    if a.name == "image":
        one = a.shape[1] - a.shape[1] + 1
        return TensorKind("kernel", (a.shape[1], a.shape[1], one, one))
    raise _mismatch("unit", (a,))


def _unit_value(r: Arithmetic, kinds: Sequence[TensorKind], a: Array) -> Array:
    n = a.shape[1]
    made = r.filled((n, n), r.zero)
    for i in range(n):
        made[i, i] = r.one
    return made if a.ndim == 2 else made.reshape(n, n, 1, 1)


def _unit_stage(kinds: Sequence[TensorKind], a: te.Tensor) -> te.Tensor:
    n = a.shape[1]

    def value(i: Expr, j: Expr, *rest: Expr) -> Expr:
        return te.select(te.equal(i, j), te.const(1, a.dtype), te.const(0, a.dtype))

    shape = (n, n) if len(a.shape) == 2 else (n, n, 1, 1)
    return te.compute(shape, value if len(shape) == 2 else lambda i, j, u, v: value(i, j), "unit")


# -- movement -------------------------------------------------------------------------------------------

_TURNED = {"matrix": "matrix", "row": "column", "column": "row"}


def _transpose_kind(s: Solver[Any], a: TensorKind) -> TensorKind:
    if a.name not in _TURNED:
        raise _mismatch("transpose", (a,))
    return TensorKind(_TURNED[a.name], a.shape[::-1])


def _transpose_value(r: Arithmetic, kinds: Sequence[TensorKind], a: Array) -> Array:
    return a.T


def _transpose_stage(kinds: Sequence[TensorKind], a: te.Tensor) -> te.Tensor:
    return te.compute(a.shape[::-1], lambda *at: a[at[::-1]], "transpose")


def _pad_kind(s: Solver[Any], a: TensorKind) -> TensorKind:
    if a.name not in ("image", "kernel"):
        raise _mismatch("pad", (a,))
    return TensorKind(a.name, (*a.shape[:2], *(n + 2 for n in a.shape[2:])))


def _pad_value(r: Arithmetic, kinds: Sequence[TensorKind], a: Array) -> Array:
    made = r.filled((*a.shape[:2], a.shape[2] + 2, a.shape[3] + 2), r.zero)
    made[:, :, 1:-1, 1:-1] = a
    return made


def _pad_stage(kinds: Sequence[TensorKind], a: te.Tensor) -> te.Tensor:
    (h, w), zero = a.shape[2:], te.const(0, a.dtype)

    def value(n: Expr, c: Expr, i: Expr, j: Expr) -> Expr:
        inside = te.all(i >= 1, i < h + 1, j >= 1, j < w + 1)
        return te.select(inside, a[n, c, i - 1, j - 1], zero)

    return te.compute((*a.shape[:2], h + 2, w + 2), value, "pad")


def _dimension(axis: int, kind: TensorKind, name: str) -> int:
    """Where an axis of a matrix is in a kind: vectors have one of both."""
    if kind.name == "number" or _ALONG.get(kind.name, axis) != axis:
        raise _mismatch(name, (kind,))
    return 0 if kind.name in _ALONG else axis


def _join(axis: int) -> TermOperator:
    name = f"join{axis}"

    def kind(s: Solver[Any], a: TensorKind, b: TensorKind) -> TensorKind:
        d = _dimension(axis, a, name)
        if a.name != b.name:
            raise _mismatch(name, (a, b))
        shape = [m + n if i == d else s.equal(m, n) for i, (m, n) in enumerate(zip(a.shape, b.shape))]
        return TensorKind(a.name, tuple(shape))

    def value(r: Arithmetic, kinds: Sequence[TensorKind], a: Array, b: Array) -> Array:
        return np.concatenate((a, b), _dimension(axis, kinds[0], name))

    def stage(kinds: Sequence[TensorKind], a: te.Tensor, b: te.Tensor) -> te.Tensor:
        d = _dimension(axis, kinds[0], name)
        n = a.shape[d]

        def joined(*at: Expr) -> Expr:
            return te.select(at[d] < n, a[at], b[(*at[:d], at[d] - n, *at[d + 1 :])])

        return te.compute((*a.shape[:d], n + b.shape[d], *a.shape[d + 1 :]), joined, name)

    return TermOperator(name, 2, kind, value, stage)


def part_of(x: te.Tensor, d: int, first: int, count: int, name: str) -> te.Tensor:
    """``count`` elements along dimension ``d`` of a tensor, from ``first`` on."""
    shape = (*x.shape[:d], count, *x.shape[d + 1 :])
    return te.compute(shape, lambda *at: x[(*at[:d], at[d] + first, *at[d + 1 :])], name)


def _half(number: int, axis: int) -> TermOperator:
    name = f"{('first', 'second')[number]}{axis}"

    def kind(s: Solver[Any], a: TensorKind) -> TensorKind:
        d = _dimension(axis, a, name)
        return TensorKind(a.name, (*a.shape[:d], s.halved(a.shape[d]), *a.shape[d + 1 :]))

    def value(r: Arithmetic, kinds: Sequence[TensorKind], a: Array) -> Array:
        return np.split(a, 2, _dimension(axis, kinds[0], name))[number]

    def stage(kinds: Sequence[TensorKind], a: te.Tensor) -> te.Tensor:
        d = _dimension(axis, kinds[0], name)
        return part_of(a, d, number * (a.shape[d] // 2), a.shape[d] // 2, name)

    return TermOperator(name, 1, kind, value, stage)


# -- reductions -----------------------------------------------------------------------------------------


def _reduction(word: str, how: str, axis: int, reduce: Callable[..., te.Reduction]) -> TermOperator:
    name = f"{word}{axis}"

    def kind(s: Solver[Any], a: TensorKind) -> TensorKind:
        d = _dimension(axis, a, name)
        if len(a.shape) > 2:
            raise _mismatch(name, (a,))
        if a.name in _ALONG:
            return TensorKind("number", ())
        return TensorKind(("row", "column")[axis], (a.shape[1 - d],))

    def value(r: Arithmetic, kinds: Sequence[TensorKind], a: Array) -> Array:
        made: Array = getattr(r, how)(a, _dimension(axis, kinds[0], name))
        return np.asarray(made)

    def stage(kinds: Sequence[TensorKind], a: te.Tensor) -> te.Tensor:
        d = _dimension(axis, kinds[0], name)
        k = te.reduce_axis(a.shape[d], "k")
        return te.compute(
            (*a.shape[:d], *a.shape[d + 1 :]), lambda *at: reduce(a[(*at[:d], k, *at[d:])], axis=k), name
        )

    return TermOperator(name, 1, kind, value, stage)


_EVERY = (
    TermOperator("product", 2, _product_kind, _product_value, _product_stage),
    TermOperator("conv", 2, _conv_kind, _conv_value, _conv_stage),
    _elementwise("add", lambda a, b: a + b),
    _elementwise("mul", lambda a, b: a * b),
    _elementwise("top", te.maximum),
    TermOperator("relu", 1, _same_kind, _relu_value, _relu_stage),
    TermOperator("transpose", 1, _transpose_kind, _transpose_value, _transpose_stage),
    TermOperator("pad", 1, _pad_kind, _pad_value, _pad_stage),
    TermOperator("unit", 1, _unit_kind, _unit_value, _unit_stage),
    *(_join(axis) for axis in (0, 1)),
    *(_half(n, axis) for axis in (0, 1) for n in (0, 1)),
    *(_reduction("sum", "total", axis, te.sum) for axis in (0, 1)),
    *(_reduction("largest", "greatest", axis, te.max) for axis in (0, 1)),
)
OPERATORS: Mapping[str, TermOperator] = MappingProxyType({o.name: o for o in _EVERY})


def kind_of(t: GraphTerm, kinds: Mapping[str, TensorKind], solver: Solver[Any]) -> TensorKind:
    """The kind of a term for kinds of its leaves. Raises `Undefined`."""
    if not t.args:
        return kinds[t.head]
    return OPERATORS[t.head].kind(solver, *(kind_of(a, kinds, solver) for a in t.args))


def value_of(
    t: GraphTerm, kinds: Mapping[str, TensorKind], values: Mapping[str, Array], r: Arithmetic
) -> Array:
    """The value of a term for values of its leaves. Raises `Undefined`."""
    done: dict[GraphTerm, tuple[TensorKind, Array]] = {}

    def visit(x: GraphTerm) -> tuple[TensorKind, Array]:
        if x not in done:
            if not x.args:
                done[x] = kinds[x.head], values[x.head]
            else:
                operator, parts = OPERATORS[x.head], [visit(a) for a in x.args]
                own = [k for k, _ in parts]
                done[x] = operator.kind(Numbers(), *own), operator.value(r, own, *(v for _, v in parts))
        return done[x]

    return visit(t)[1]
