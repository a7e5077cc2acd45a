"""Pools with channels first."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from autotune.models.operators.base import Array, cast, number, stage
from autotune.models.operators.convolution import window_axes
from autotune.models.operators.movement import pad, padded
from autotune.models.operators.node import OnnxNode, TorchNode
from autotune.models.operators.reduction import mean, reduce
from autotune.models.operators.table import Floats, aten, onnx_op
from autotune.models.operators.windows import Windows, aten_windows, batched, onnx_windows, spatial
from schedules import te
from schedules.dtypes import computed
from schedules.expr import Expr, ExprLike
from schedules.expr import minimum as index_minimum
from schedules.te.scalars import limit


def _folded(
    x: te.Tensor,
    z: te.Tensor,
    at: Windows,
    fold: Callable[..., te.Reduction],
    of: Callable[[Expr], Any],
    name: str,
) -> te.Tensor:
    """The reduction of every window of the padded ``z``."""
    taps, over = window_axes(at.kernel, "rstuvw")

    def value(n: Expr, c: Expr, *place: Expr) -> Any:
        own = of(z[(n, c, *at.places(place, taps))])
        return fold(own, axis=over) if over else own

    return stage((*x.shape[:2], *at.out), value, name)


def max_pool(x: te.Tensor, at: Windows) -> te.Tensor:
    """The largest element of every window of (n, c, sizes…)."""
    lowest = limit(x.dtype, -1)
    z = pad(x, ((0, 0), (0, 0), *at.padding), fill=lowest)
    return cast(_folded(x, z, at, te.max, lambda v: v, "max_pool"), x.dtype)


def _same(a: Expr, b: Expr) -> Expr:
    """Whether two are equal, where NaN is equal to NaN."""
    return te.any(te.equal(a, b), te.all(te.not_equal(a, a), te.not_equal(b, b)))


def _flat(index: Sequence[Expr], sizes: Sequence[int]) -> ExprLike:
    """The place of an element among all, the last axis the fastest."""
    flat: ExprLike = 0
    for i, m in zip(index, sizes, strict=True):
        flat = flat * m + i
    return flat


def max_places(
    x: te.Tensor, top: te.Tensor, at: Windows, by_column: bool = False, nan_last: bool = False
) -> te.Tensor:
    """Where the largest element ``top`` of every window lies among the elements of its channel, as int64: of
    equals the first one. ``by_column``: they are counted with the first spatial axis the fastest.
    ``nan_last``: of several NaN the last one."""
    taps, over = window_axes(at.kernel, "rstuvw")
    none = math.prod(at.sizes)

    def value(n: Expr, c: Expr, *place: Expr) -> te.Reduction | Expr:
        index: list[Expr] = []
        inside: list[Expr] = []
        for d, i in enumerate(at.places(place, taps)):
            lo, hi = at.padding[d]
            own = i - lo
            inside += [own >= 0] * (lo > 0) + [own < at.sizes[d]] * (hi > 0)
            index.append(own)
        way = -1 if by_column else 1
        flat = _flat(index[::way], at.sizes[::way])
        own = x[(n, c, *index)]
        key = _key(own, te.cast(flat, "int32")) if nan_last else te.cast(flat, "int32")
        found = te.select(_same(own, top[(n, c, *place)]), key, te.const(none, "int32"))
        found = te.select(te.all(*inside), found, te.const(none, "int32")) if inside else found
        return te.min(found, axis=over) if over else found

    made = stage(top.shape, value, "place")
    return _of_keys(made) if nan_last else cast(made, "int64")


def _key(v: Expr, flat: Expr) -> Expr:
    """What is least for the place that torch takes among equals: the first one, of NaN the last one."""
    return te.select(te.not_equal(v, v), -1 - flat, flat)


def _of_keys(keys: te.Tensor) -> te.Tensor:
    """The places of keys, as int64."""

    def value(*at: Expr) -> Expr:
        k = keys[at]
        return te.cast(te.select(k < 0, -1 - k, k), "int64")

    return stage(keys.shape, value, "place")


def unequal_pool(x: te.Tensor, out: Sequence[int], average: bool) -> tuple[te.Tensor, te.Tensor | None]:
    """(the average, or the largest element, of each of ``out`` parts of the axes after two; the place of that
    element among those of its channel, as int64). Part i of m goes from ⌊i n / m⌋ to before ⌈(i + 1) n / m⌉:
    parts may overlap."""
    sizes = x.shape[2:]
    longest = [
        max(-(-(i + 1) * n // m) - i * n // m for i in range(m)) for n, m in zip(sizes, out, strict=True)
    ]
    taps, over = window_axes(longest, "rstuvw")
    wide = computed(x.dtype)

    def bounds(place: Sequence[Expr]) -> list[tuple[Expr, Expr]]:
        every = zip(place, sizes, out, strict=True)
        return [(i * n // m, ((i + 1) * n + m - 1) // m) for i, n, m in every]

    def element(n: Expr, c: Expr, place: Sequence[Expr]) -> tuple[Expr, list[Expr], list[Expr]]:
        """(an element of a part, conditions for it to be in it, where it lies)."""
        index, inside = [], []
        for d, (first, last) in enumerate(bounds(place)):
            i = first + taps[d]
            inside += [i < last] if longest[d] > 1 else []
            index.append(i)
        # Beyond the last part nothing is: what is not inside is not read from there.
        clipped = [index_minimum(i, m - 1) for i, m in zip(index, sizes, strict=True)]
        return x[(n, c, *clipped)], inside, index

    def total(n: Expr, c: Expr, *place: Expr) -> te.Reduction | Expr:
        v, inside, _ = element(n, c, place)
        other = number(0, wide) if average else limit(x.dtype, -1)
        v = te.select(te.all(*inside), v, other) if inside else v
        return ((te.sum if average else te.max)(v, axis=over)) if over else v

    shape = (*x.shape[:2], *out)
    made = stage(shape, total, "total" if average else "max_pool")
    if average:

        def mean(n: Expr, c: Expr, *place: Expr) -> Expr:
            count: ExprLike = 1
            for first, last in bounds(place):
                count = count * (last - first)
            return te.cast(made[(n, c, *place)] / te.cast(count, wide), x.dtype)

        return stage(shape, mean, "average_pool"), None
    top = cast(made, x.dtype)
    none = te.const(math.prod(sizes), "int32")

    def value(n: Expr, c: Expr, *place: Expr) -> te.Reduction | Expr:
        v, inside, index = element(n, c, place)
        same = _same(v, top[(n, c, *place)])
        found = te.select(te.all(*inside, same), _key(v, te.cast(_flat(index, sizes), "int32")), none)
        return te.min(found, axis=over) if over else found

    return top, _of_keys(stage(shape, value, "place"))


def average_pool(x: te.Tensor, at: Windows, count_padding: bool) -> te.Tensor:
    """The average of every window. What lies around the input is 0, and counts or not; what a last window has
    beyond that never counts."""
    total = _folded(x, padded(x, 2, at.padding), at, te.sum, lambda v: v, "total")
    ranges, counts = [], []
    for d, (lo, hi) in enumerate(at.sides):
        first, last = (0, at.sizes[d] + lo + hi) if count_padding else (lo, lo + at.sizes[d])
        ranges.append((first, last))
        counts.append(_counts(np.arange(at.out[d]) * at.stride[d], at.kernel[d], at.dilation[d], first, last))

    def mean(n: Expr, c: Expr, *place: Expr) -> Expr:
        same = math.prod(min(k) for k in counts if len(k) == 1)
        various: list[Expr] = []
        for d, i in enumerate(place):
            if len(counts[d]) == 1:
                continue
            start, far = i * at.stride[d], at.dilation[d]
            first, last = ranges[d]
            # Taps t with first <= start + far t < last.
            low = te.maximum(first - start + far - 1, 0) // far
            high = te.minimum((last - start + far - 1) // far, at.kernel[d])
            various.append(high - low)
        y = total[(n, c, *place)]
        if not various:
            return te.cast(y / float(same), x.dtype)
        count: ExprLike = math.prod(various, start=same)
        return te.cast(y / te.cast(count, y_dtype), x.dtype)

    y_dtype = total.dtype
    return stage(total.shape, mean, "average_pool")


def _counts(start: Array, kernel: int, dilation: int, first: int, last: int) -> set[int]:
    """How many taps of windows lie in ``first`` to ``last``: the numbers that occur."""
    low = np.maximum(-(-(first - start) // dilation), 0)
    high = np.minimum(-(-(last - start) // dilation), kernel)
    return set(map(int, np.unique(high - low)))


def lp_pool(x: te.Tensor, at: Windows, p: int) -> te.Tensor:
    """(Σ |x|ᵖ)^(1/p) of every window."""

    def powered(v: Expr) -> Expr:
        return v * v if p == 2 else te.pow(te.abs(v), float(p))

    total = _folded(x, padded(x, 2, at.padding), at, te.sum, powered, "total")

    def root(*i: Expr) -> Expr:
        y = total[i]
        return te.cast(te.sqrt(y) if p == 2 else te.pow(y, 1.0 / p), x.dtype)

    return stage(total.shape, root, "lp_pool")


# --- rows -------------------------------------------------------------------------------------


def _onnx_windows(node: OnnxNode, x: te.Tensor) -> Windows:
    given = node.attributes
    return onnx_windows(node, spatial(x), given["kernel_shape"], bool(given.get("ceil_mode")))


@onnx_op("MaxPool")
def _onnx_max_pool(node: OnnxNode, x: te.Tensor, *, storage_order: bool = False) -> list[te.Tensor]:
    at = _onnx_windows(node, x)
    y = max_pool(x, at)
    if 1 not in node.used:
        return [y]
    place = max_places(x, y, at, storage_order)
    channels, size = x.shape[1], math.prod(x.shape[2:])

    def through_all(n: Expr, c: Expr, *at: Expr) -> Expr:
        """ONNX counts through the whole tensor."""
        return place[(n, c, *at)] + te.cast((n * channels + c) * size, "int64")

    return [y, stage(place.shape, through_all, "place")]


@onnx_op("AveragePool")
def _onnx_average_pool(node: OnnxNode, x: te.Tensor, *, count_include_pad: bool = False) -> te.Tensor:
    return average_pool(x, _onnx_windows(node, x), count_include_pad)


@onnx_op("LpPool", since=2)
def _lp_pool(node: OnnxNode, x: te.Tensor, *, p: int = 2) -> te.Tensor:
    return lp_pool(x, _onnx_windows(node, x), p)


@onnx_op("GlobalLpPool", since=2)
def _global_lp(x: te.Tensor, *, p: int = 2) -> te.Tensor:
    sizes = spatial(x)
    return lp_pool(x, aten_windows(sizes, sizes, 1), p)


@onnx_op("GlobalMaxPool")
def _global_max(x: te.Tensor) -> te.Tensor:
    return reduce(x, range(2, len(x.shape)), True, te.max, name="global_max")


@onnx_op("GlobalAveragePool")
def _global_average(x: te.Tensor) -> te.Tensor:
    return mean(x, range(2, len(x.shape)), True)


@aten("max_pool2d_with_indices.default", "max_pool3d_with_indices.default", shaped=True)
def _max_pool(
    node: TorchNode, x: te.Tensor, kernel: Any, stride: Any = (), padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False,
) -> list[te.Tensor | None]:  # fmt: skip
    x = batched(x, 2 if "2d" in node.name else 3)
    return _with_places(node, x, aten_windows(x.shape[2:], kernel, stride, padding, dilation, ceil_mode))


def _with_places(node: TorchNode, x: te.Tensor, at: Windows) -> list[te.Tensor | None]:
    """The largest elements of windows, and where they lie if that is used."""
    y = max_pool(x, at)
    return [y, max_places(x, y, at, nan_last=True) if 1 in node.used else None]


@aten("avg_pool1d.default", "avg_pool2d.default", "avg_pool3d.default", shaped=True)
def _average_pool(
    node: TorchNode, x: Floats, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
    count_include_pad: bool = True, divisor_override: int | None = None,
) -> te.Tensor:  # fmt: skip
    x = batched(x, int(node.name[-2]))
    at = aten_windows(x.shape[2:], kernel, stride, padding, 1, ceil_mode)
    if divisor_override is not None:
        total = _folded(x, padded(x, 2, at.padding), at, te.sum, lambda v: v, "total")
        by = number(1.0 / divisor_override, x.dtype)
        return stage(total.shape, lambda *i: te.cast(total[i] * by, x.dtype), "sum_pool")
    return average_pool(x, at, count_include_pad)


@aten(
    "_adaptive_avg_pool2d.default", "_adaptive_avg_pool3d.default", "adaptive_avg_pool1d.default",
    "adaptive_avg_pool2d.default", "adaptive_avg_pool3d.default", shaped=True,
)  # fmt: skip
def _adaptive_average(node: TorchNode, x: Floats, size: Sequence[int]) -> te.Tensor:
    rank = int(node.name[-2])
    x, out = batched(x, rank), node.shape[-rank:]
    at = _equal_parts(x.shape[2:], out)
    return unequal_pool(x, out, True)[0] if at is None else average_pool(x, at, True)


@aten(
    "adaptive_max_pool2d.default", "adaptive_max_pool3d.default", "adaptive_max_pool1d.default", shaped=True
)
def _adaptive_max(node: TorchNode, x: te.Tensor, size: Sequence[int]) -> list[te.Tensor | None]:
    rank = int(node.name[-2])
    x, out = batched(x, rank), node.shape[-rank:]
    if (at := _equal_parts(x.shape[2:], out)) is not None:
        return _with_places(node, x, at)
    y, places = unequal_pool(x, out, False)
    return [y, places if 1 in node.used else None]


def _equal_parts(sizes: Sequence[int], out: Sequence[int]) -> Windows | None:
    """Windows side by side that all have one size; None where there are none such."""
    if any(n % m for n, m in zip(sizes, out, strict=True)):
        return None
    return aten_windows(sizes, [n // m for n, m in zip(sizes, out, strict=True)])
