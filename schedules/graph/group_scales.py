"""Scales of groups leave the sums of products: weights of few bits of every front end are one expression.

Files have a weight as ``(code - zero) * scale``, where neighbours along the sum share a scale and a zero:
MatMulNBits and DequantizeLinear of ONNX, packed products of torch. Which it is does not matter here. A known
matrix is found that is ``factor * integer + shift``, where the factor and the shift are the same in each
group. Its integers become codes, its factors scales (`schedules.ops.few_bits`), and the sum of a group is
scaled once. So the sum is of what instructions multiply.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from schedules import affine
from schedules import expr as E
from schedules.dtypes import DTYPES, is_integer
from schedules.expr import Binary, Cast, Const, Expr, Load, Var
from schedules.graph.coded_products import Coded, CodedProducts, as_matrix
from schedules.graph.constant_products import ConstantProduct, KnownTensors, constant_products
from schedules.graph.edit import is_map, ranges
from schedules.graph.graph import Array, Graph
from schedules.graph.maps import MAX_NODES
from schedules.graph.scale import affine_in
from schedules.loads import with_loads
from schedules.ops.rounded_weights import paired
from schedules.te.compute_dag import Axis, Stage, Tensor

# Least numbers of a group that is summed apart.
LEAST = 8


def scale_sums_of_groups(graph: Graph) -> Graph:
    """The graph in which products with known integers, scaled by groups along the sum, are sums of scaled
    sums."""
    made = CodedProducts(graph)
    stages = {t.name: s for s in graph.dag.stages for t in s.outputs}
    for p in constant_products(graph, made.known):
        if isinstance(p, ConstantProduct) and p.weight.buffer in stages:
            found = _scaled(p, stages, made.known)
            if found is not None:
                made.code(p, found.coded)
    return made.made()


@dataclass(frozen=True)
class _ScaledIntegers:
    """A matrix that is ``factor * whole + shift``. ``stage`` makes it. ``depth``: its axis along the sum, in
    groups of ``group``."""

    known: KnownTensors
    stage: Stage
    depth: Axis
    group: int
    whole: Expr
    factor: Expr | None
    shift: Expr | None

    def coded(self, p: ConstantProduct) -> Coded | str:
        """The integers as codes; why they are none."""
        codes = as_matrix(self._value(self.whole, E.dtype_of(self.whole)), p)
        least, most = int(codes.min()), int(codes.max())
        if 0 <= least <= most <= 15:
            middle = 8
        else:
            middle = 0 if -128 <= least <= most <= 127 else 128
        if least - middle < -128 or most - middle > 127:
            return "its integers have more than 8 bits"
        codes = codes.astype("int32") - np.int32(middle)
        scales = as_matrix(self._by_group(self.factor, 1.0), p)
        offsets = as_matrix(self._by_group(self.shift, 0.0), p)
        offsets = offsets + np.float32(middle) * scales
        few = least - middle >= -8 and most - middle <= 7 and self.group % 2 == 0
        parts = {
            "codes": paired(codes + 8, self.group) if few else np.ascontiguousarray(codes.astype(np.int8)),
            "scales": _narrow(scales),
        }
        if offsets.any():
            parts["offsets"] = np.ascontiguousarray(offsets)
        return Coded("int4_halves" if few else "int8", self.group, parts)

    def _by_group(self, e: Expr | None, default: float) -> Array:
        """A factor or a shift, one a group."""
        k, g = Var(self.depth.var), Axis(self.depth.var, self.depth.extent // self.group)

        def number(x: Expr) -> Expr | None:
            match x:
                case Binary(op="//", a=a, b=Const(value=n)) if a == k:
                    return k // (int(n) // self.group) if n != self.group else k
            return None

        value = Const(default, "float32") if e is None else E.rewrite(e, number)
        return self._value(value, "float32", g)

    def _value(self, e: Expr, dtype: str, depth: Axis | None = None) -> Array:
        axes = tuple(depth if depth and a.var == self.depth.var else a for a in self.stage.axes)
        out = Tensor(self.stage.name, tuple(a.extent for a in axes), dtype)
        value = e if E.dtype_of(e) == dtype else Cast(dtype, e)
        return self.known.made(out.name, [Stage((out,), axes, (), (value,))])


def _narrow(scales: Array) -> Array:
    """Scales in the fewest bits that have all of them."""
    for dtype in ("float16", "bfloat16"):
        with np.errstate(over="ignore"):
            few = scales.astype(DTYPES[dtype].numpy)
        if (few.astype(np.float32) == scales).all():
            return np.ascontiguousarray(few)
    return np.ascontiguousarray(scales)


def _scaled(p: ConstantProduct, stages: dict[str, Stage], known: KnownTensors) -> _ScaledIntegers | None:
    """The weights of a product as scaled integers; None where they are none."""
    s = _whole(stages[p.weight.buffer], stages, known)
    if s is None:
        return None
    depth = s.axes[p.weight.indices.index(Var(p.depth.var))]
    for core in _integers(s.values[0], depth.var):
        found = affine_in(s.values[0], core)
        if found is None:
            continue
        parts = [e for e in (found.factor, found.shift) if e is not None]
        group = _group(parts, depth)
        if group is not None and group >= LEAST:
            return _ScaledIntegers(known, s, depth, group, core.a, found.factor, found.shift)
    return None


def _whole(s: Stage, stages: dict[str, Stage], known: KnownTensors) -> Stage | None:
    """A map of constants alone, with the maps that it reads in it; None where it is none, or is too large."""

    def inside(x: Load) -> Expr | None:
        if x.buffer in known.graph.values:
            return None
        by = stages[x.buffer]
        if not is_map(by) or len(by.values) > 1:
            return x
        return with_loads(
            E.substitute(by.values[0], {a.var: i for a, i in zip(by.axes, x.indices, strict=True)}), inside
        )

    if not is_map(s) or len(s.values) > 1:
        return None
    value = with_loads(s.values[0], inside)
    if E.size(value)[0] > MAX_NODES or any(x.buffer not in known.graph.values for x in E.loads(value)):
        return None
    return replace(s, values=(affine.simplify(value, ranges(s)),))


def _integers(e: Expr, depth: str) -> Iterator[Cast]:
    """Integers that become floats and move along the sum, the largest first."""
    for x in E.walk(e):
        if isinstance(x, Cast) and x.dtype == "float32" and is_integer(E.dtype_of(x.a)) and E.loads(x.a):
            if depth in E.variables(x.a):
                yield x


def _group(parts: list[Expr], depth: Axis) -> int | None:
    """How many neighbours along the sum have the same parts; None where they change one by one."""
    by: list[int] = []

    def quotient(x: Expr) -> Expr | None:
        match x:
            case Binary(op="//", a=Var(name=n), b=Const(value=c)) if n == depth.var:
                by.append(int(c))
                return Const(0)
        return None

    left = [E.rewrite(e, quotient) for e in parts]
    if any(depth.var in E.variables(e) for e in left):
        return None
    return gcd(int(depth.extent), *by) if by else int(depth.extent)
