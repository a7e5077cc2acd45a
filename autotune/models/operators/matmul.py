"""Matrix products and what generalises them, as sums of products."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from autotune.models.operators.axes import reshape
from autotune.models.operators.base import Operand, UnsupportedForm, cast, read, stage
from autotune.models.operators.known import Scalar, Value
from autotune.models.operators.movement import transpose
from autotune.models.operators.node import OnnxNode, TorchNode
from autotune.models.operators.table import Floats, aten, onnx_op
from schedules import te
from schedules.dtypes import computed, is_float
from schedules.expr import Expr
from schedules.ops.axes import broadcast


def matmul(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """numpy's matmul: the last two axes are matrices, those before broadcast, vectors are rows or columns.
    The result has the dtype that is computed with."""
    if not a.shape or not b.shape:
        raise ValueError("a matrix product of numbers")
    left, right = a.shape[:-2], b.shape[:-2]
    rows, columns = a.shape[-2:-1], b.shape[-1:] if len(b.shape) > 1 else ()
    depth = a.shape[-1]
    if depth != b.shape[-2 if len(b.shape) > 1 else 0]:
        raise ValueError(f"{list(a.shape)} times {list(b.shape)}: inner extents differ")
    outer = np.broadcast_shapes(left, right)
    k = te.reduce_axis(depth, "k")

    def value(*at: Expr) -> te.Reduction:
        batch, rest = at[: len(outer)], at[len(outer) :]
        row, column = rest[: len(rows)], rest[len(rows) :]
        x = a[(*broadcast(left, batch), *row, k)]
        y = b[(*broadcast(right, batch), k, *column)]
        return te.sum(x * y, axis=k)

    return stage((*outer, *rows, *columns), value, "dot")


@onnx_op("Gemm")
def gemm(
    node: OnnxNode, a: te.Tensor, b: te.Tensor, c: Operand | None = None, *, alpha: float = 1.0,
    beta: float = 1.0, transA: bool = False, transB: bool = False,
) -> te.Tensor:  # fmt: skip
    """alpha · A · B + beta · C, each of A and B transposed or not."""
    if node.version < 7 and node.attributes.get("broadcast"):
        raise UnsupportedForm(
            f"version {node.version} broadcasts by attributes; convert the model to opset 13"
        )
    if len(a.shape) != 2 or len(b.shape) != 2:
        raise ValueError(f"{list(a.shape)} and {list(b.shape)} are not both matrices")
    (m, k), (k_, n) = (x.shape[:: -1 if t else 1] for x, t in ((a, transA), (b, transB)))
    if k != k_:
        raise ValueError(f"inner extents differ: {k} and {k_}")
    r = te.reduce_axis(k, "k")

    def value(i: Expr, j: Expr) -> te.Reduction:
        return te.sum((a[r, i] if transA else a[i, r]) * (b[j, r] if transB else b[r, j]), axis=r)

    if (c is None or beta == 0) and alpha == 1:
        return cast(stage((m, n), value, "dot"), a.dtype)
    return scaled(stage((m, n), value, "dot"), c, alpha, beta, a.dtype)


def scaled(dot: te.Tensor, c: Operand | None, alpha: float, beta: float, dtype: str) -> te.Tensor:
    """alpha · dot + beta · C in ``dtype``; C broadcasts to ``dot``."""
    wide = dot.dtype

    def times(x: Expr, by: float) -> Expr:
        return x if by == 1 else x * te.const(by, wide)

    def epilogue(*at: Expr) -> Expr:
        y = times(dot[at], alpha)
        if c is not None:
            y = y + times(te.cast(read(c, at), wide), beta)
        return te.cast(y, dtype)

    return stage(dot.shape, epilogue, "gemm")


@aten("linear.default")
def linear(x: te.Tensor, w: te.Tensor, bias: te.Tensor | None = None) -> te.Tensor:
    """The last axis of ``x`` times the rows of ``w`` (out, in), plus a number a row."""
    if x.shape[-1:] != w.shape[-1:]:
        raise ValueError(f"{list(x.shape)} times rows of {list(w.shape)}: inner extents differ")
    k = te.reduce_axis(w.shape[-1], "k")

    def value(*at: Expr) -> te.Reduction:
        return te.sum(x[(*at[:-1], k)] * w[at[-1], k], axis=k)

    dot = stage((*x.shape[:-1], w.shape[0]), value, "dot")
    if bias is None:
        return cast(dot, x.dtype)
    return stage(dot.shape, lambda *at: te.cast(dot[at] + bias[at[-1]], x.dtype), "linear")


# Most points of the loops of one product, and most elements of what lies between two.
MOST_POINTS, MOST_ELEMENTS = 2**48, 2**31


def einsum(xs: Sequence[te.Tensor], equation: str) -> te.Tensor:
    """numpy's einsum without spaces; "..." stands for axes that broadcast. More than two tensors are
    multiplied two at a time. Raises ValueError for what is no equation of these tensors, or has too large
    loops."""
    terms, _, result = equation.replace(" ", "").partition("->")
    inputs = terms.split(",")
    if len(inputs) != len(xs):
        raise ValueError(f"equation {equation!r} is not one of {len(xs)} inputs")
    many = max((len(x.shape) - len(t.replace("...", "")) for t, x in zip(inputs, xs, strict=True)), default=0)
    dots = [f"#{d}" for d in range(many)]

    def letters(term: str, rank: int) -> list[str]:
        plain = term.replace("...", "")
        if "..." not in term:
            return list(plain)
        before = term.index("...")
        return [*plain[:before], *dots[many - (rank - len(plain)) :], *plain[before:]]

    named = [letters(t, len(x.shape)) for t, x in zip(inputs, xs, strict=True)]
    sizes: dict[str, int] = {}
    for names, x in zip(named, xs, strict=True):
        if len(names) != len(x.shape):
            raise ValueError(f"equation {equation!r} does not name the axes of {list(x.shape)}")
        for n, size in zip(names, x.shape, strict=True):
            if sizes.get(n, 1) not in (1, size) and size != 1:
                raise ValueError(f"equation {equation!r}: axis {n} is of {sizes[n]} and of {size}")
            sizes[n] = max(size, sizes.get(n, 1))
    if "->" in equation:
        out = letters(result, len(result.replace("...", "")) + many)
    else:
        counted = "".join(inputs)
        out = [*dots, *sorted(n for n in sizes if n not in dots and counted.count(n) == 1)]
    if any(n not in sizes for n in out) or len(set(out)) != len(out):
        raise ValueError(f"equation {equation!r} has a result that its inputs do not make")
    left = list(zip(named, xs, strict=True))
    while len(left) > 2:
        first = left.pop(0)
        second = min(left, key=lambda other: _points(sizes, {*first[0], *other[0]}))
        left.remove(second)
        needed = {*out, *(n for names, _ in left for n in names)}
        kept = [n for n in dict.fromkeys((*first[0], *second[0])) if n in needed]
        left.insert(0, (kept, _contracted([first, second], kept, sizes)))
    return cast(_contracted(left, out, sizes), xs[0].dtype)


def _points(sizes: Mapping[str, int], axes: Iterable[str]) -> int:
    return math.prod(sizes[n] for n in axes)


def _contracted(
    xs: Sequence[tuple[Sequence[str], te.Tensor]], out: Sequence[str], sizes: Mapping[str, int]
) -> te.Tensor:
    """The product of tensors with named axes, summed over all but those of ``out``, in the dtype that is
    computed with."""
    axes = dict.fromkeys(n for names, _ in xs for n in names)
    if _points(sizes, axes) > MOST_POINTS or _points(sizes, out) > MOST_ELEMENTS:
        raise ValueError(
            f"a product over {len(axes)} axes has loops of {_points(sizes, axes):.1e} points; at most "
            f"{MOST_POINTS:.1e} are taken: write it as several products"
        )
    summed = {n: te.reduce_axis(sizes[n], f"r{i}") for i, n in enumerate(axes) if n not in out}

    def value(*at: Expr) -> te.Reduction | Expr:
        where: dict[str, Expr] = {**dict(zip(out, at, strict=True)), **summed}
        product = None
        for names, x in xs:
            own = x[tuple(0 if n == 1 else where[d] for d, n in zip(names, x.shape, strict=True))]
            product = own if product is None else product * own
        assert product is not None
        if summed:
            return te.sum(product, axis=tuple(summed.values()))
        return te.cast(product, computed(xs[0][1].dtype))

    return stage([sizes[n] for n in out], value, "dot")


@aten("_grouped_mm.default", "transformers::grouped_mm_fallback.default")
def _grouped(
    node: TorchNode, x: Floats, w: te.Tensor, ends: te.Tensor | None = None, bias: Value | None = None,
    dtype: Any = None,
) -> te.Tensor:  # fmt: skip
    """Mixtures of experts: rows of ``x`` (rows, k), each times the matrix of its group, of ``w`` (groups, k,
    n). Group g has the rows from where the one before it ends to before ``ends[g]``. A row after the last one
    is 0."""
    if bias is not None or len(x.shape) != 2 or len(w.shape) != 3 or ends is None:
        raise UnsupportedForm("only rows of one matrix, times a matrix for each group, are supported")
    last = ends
    groups, depth, columns = w.shape
    if x.shape[1:] != (depth,) or ends.shape != (groups,):
        raise ValueError(f"{list(x.shape)} times {list(w.shape)} in groups that end at {list(ends.shape)}")
    g, k = te.reduce_axis(groups, "g"), te.reduce_axis(depth, "k")
    one, none = te.const(1, "int32"), te.const(0, "int32")

    def ended(i: Expr) -> te.Reduction:
        return te.sum(te.select(last[g] <= te.cast(i, last.dtype), one, none), axis=g)

    before = stage(x.shape[:1], ended, "group")

    def value(i: Expr, j: Expr) -> te.Reduction:
        return te.sum(x[i, k] * w[te.minimum(before[i], groups - 1), k, j], axis=k)

    dot = stage((x.shape[0], columns), value, "dot")

    def kept(i: Expr, j: Expr) -> Expr:
        return te.cast(te.select(before[i] < groups, dot[i, j], te.const(0, dot.dtype)), x.dtype)

    return cast(stage(dot.shape, kept, "grouped"), node.dtype)


@aten("_cdist_forward.default", "cdist.default")
def distances(a: Floats, b: Floats, order: float = 2.0, mode: int | None = None) -> te.Tensor:
    """The norm of ``order`` of the differences of all rows of ``a`` (…, m, k) and of ``b`` (…, n, k), to
    (…, m, n). Order 0 counts the elements that differ."""
    if order < 0:
        raise UnsupportedForm(f"p={order} is not supported")
    left, right = a.shape[:-2], b.shape[:-2]
    outer = np.broadcast_shapes(left, right)
    k = te.reduce_axis(a.shape[-1], "k")

    def value(*at: Expr) -> te.Reduction:
        batch, (i, j) = at[: len(outer)], at[len(outer) :]
        d = te.abs(a[(*broadcast(left, batch), i, k)] - b[(*broadcast(right, batch), j, k)])
        if order == math.inf:
            return te.max(d, axis=k)
        if order == 0:
            return te.sum(te.select(d > 0, te.const(1, wide), te.const(0, wide)), axis=k)
        return te.sum(d if order == 1 else d * d if order == 2 else te.pow(d, float(order)), axis=k)

    wide = computed(a.dtype)
    total = stage((*outer, a.shape[-2], b.shape[-2]), value, "distance")
    if order in (0, 1, math.inf):
        return cast(total, a.dtype)

    def root(*at: Expr) -> Expr:
        y = total[at]
        return te.cast(te.sqrt(y) if order == 2 else te.pow(y, 1.0 / order), a.dtype)

    return stage(total.shape, root, "norm")


@aten("bilinear.default")
def bilinear(a: Floats, b: Floats, w: te.Tensor, bias: te.Tensor | None = None) -> te.Tensor:
    """aᵀ·W·b of the last axes of ``a`` and ``b``, for every matrix of ``w`` (out, in a, in b), plus a number
    for each."""
    i, j = te.reduce_axis(w.shape[1], "r"), te.reduce_axis(w.shape[2], "s")

    def half(*at: Expr) -> te.Reduction:
        return te.sum(a[(*at[:-2], i)] * w[at[-2], i, at[-1]], axis=i)

    left = stage((*a.shape[:-1], w.shape[0], w.shape[2]), half, "half")

    def value(*at: Expr) -> te.Reduction:
        return te.sum(left[(*at, j)] * b[(*at[:-1], j)], axis=j)

    dot = stage((*a.shape[:-1], w.shape[0]), value, "dot")
    if bias is None:
        return cast(dot, a.dtype)
    return stage(dot.shape, lambda *at: te.cast(dot[at] + bias[at[-1]], a.dtype), "bilinear")


# --- rows -------------------------------------------------------------------------------------


@onnx_op("MatMul")
@aten("mm.default", "bmm.default", "matmul.default", "mv.default", "dot.default", "linalg_matmul.default")
def _matmul(a: te.Tensor, b: te.Tensor) -> te.Tensor:
    return cast(matmul(a, b), a.dtype)


@aten("addmm.default", "baddbmm.default", "addmv.default")
def _addmm(
    node: TorchNode, c: Value, a: te.Tensor, b: te.Tensor, beta: Scalar = 1, alpha: Scalar = 1
) -> te.Tensor:
    bias = None if beta == 0 else node.operand(c)
    by = float if is_float(node.dtype) else int  # as torch makes numbers of integers
    return scaled(matmul(a, b), bias, by(alpha), by(beta), a.dtype)


@aten("addbmm.default")
def _addbmm(
    node: TorchNode, c: Value, a: te.Tensor, b: te.Tensor, beta: Scalar = 1, alpha: Scalar = 1
) -> te.Tensor:
    """The sum of the products of a batch is one product."""
    n, rows, inner = a.shape
    a = reshape(transpose(a, (1, 0, 2)), (rows, n * inner))
    return _addmm(node, c, a, reshape(b, (n * inner, b.shape[2])), beta, alpha)


@aten("_int_mm.default")
def _int_matmul(node: TorchNode, a: te.Tensor, b: te.Tensor) -> te.Tensor:
    """Of int8, as int32."""
    return cast(matmul(a, b), node.dtype)


@onnx_op("Einsum")
def _einsum(*xs: te.Tensor, equation: str) -> te.Tensor:
    return einsum(xs, equation)


@aten("einsum.default")
def _einsum_of(node: TorchNode, equation: str, xs: Sequence[Value], path: Any = None) -> te.Tensor:
    return einsum([node.tensor(x) for x in xs], equation)
