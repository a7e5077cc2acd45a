"""Evaluates a compute DAG on numpy arrays, vectorised, in blocks of limited memory.

This is the reference for users' own operators. Sums and products of float32 accumulate in float64. All else
is computed in the dtype that the expression states. Sums of products with affine indices run as matrix
products, one for each point of the other axes, and so do those of other factors (`factored`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedules import expr as E
from schedules.dtypes import DTYPES, is_integer
from schedules.errors import WorkloadError
from schedules.expr import INDEX, Binary, Call, Cast, Compare, Const, Expr, Fma, Load, Logic, Select, Var
from schedules.functions import FUNCTIONS
from schedules.te import factored
from schedules.te.compute_dag import Axis, ComputeDAG, Stage, require_dag
from schedules.te.contraction import Terms, blocks_of, contract, product_of
from schedules.te.domains import masked, narrowed
from schedules.te.node_order import Outside, Parts, either, refuse, run, within
from schedules.te.number_chains import Arithmetic, Rounds, run_chain
from schedules.te.open_sizes import at, sizes_of
from schedules.te.scan_steps import accumulated, cumulative_of, first_of, run_scan, step_of
from schedules.te.scans import groups
from schedules.te.scattered import term_axes

Array = NDArray[Any]
# Points of a block: 4 MB for a temporary in float64.
MAX_POINTS = 2**19

# {operator: numpy function}.
BINARY: dict[str, Callable[..., Any]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "//": np.floor_divide,
    "%": np.remainder, "min": np.minimum, "max": np.maximum,
    "ceildiv": lambda a, b: np.floor_divide(a, b) + (np.remainder(a, b) != 0),
    "<<": np.left_shift, ">>": np.right_shift, "&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor,
    "<": np.less, "<=": np.less_equal, "==": np.equal, "!=": np.not_equal,
}  # fmt: skip


def evaluate(dag: ComputeDAG, inputs: Sequence[Array]) -> list[Array]:
    """The outputs of ``dag`` (in its order) for ``inputs`` (in its order), whose shapes tell its open sizes.

    Raises `WorkloadError` for inputs of another number, shape or dtype, and if the expression reads out of
    bounds.

    >>> x = te.placeholder((4,), name="x")
    >>> y = te.compute((4,), lambda i: x[i] * x[i], name="y")
    >>> te.evaluate(te.dag([x, y]), [np.arange(4, dtype="float32")])
    [array([0., 1., 4., 9.], dtype=float32)]
    """
    require_dag(dag, "te.evaluate")
    if len(inputs) != len(dag.inputs):
        names = ", ".join(t.name for t in dag.inputs)
        raise WorkloadError(f"{len(inputs)} arrays given for {len(dag.inputs)} inputs ({names})")
    arrays: dict[str, Array] = {}
    if dag.open is not None:
        dag = at(dag, sizes_of(dag, [np.shape(x) for x in inputs]))
    for t, x in zip(dag.inputs, inputs, strict=True):
        a = np.asarray(x)
        if a.shape != t.shape or a.dtype != t.dtype:
            raise WorkloadError(
                f"input {t.name} has shape {list(a.shape)} {a.dtype}; "
                f"the operator needs {list(t.shape)} {t.dtype}"
            )
        arrays[t.name] = a
    with np.errstate(all="ignore"):
        together = dict(groups(dag))
        n = 0
        while n < len(dag.stages):
            last = together.get(n, n)
            if n in together:
                _scan(dag.stages[n : last + 1], arrays)
            else:
                stage = dag.stages[n]
                arrays |= {t.name: x for t, x in zip(stage.outputs, _stage(stage, arrays), strict=True)}
            n = last + 1
    return [arrays[n] for n in dag.outputs]


def _scan(stages: Sequence[Stage], arrays: dict[str, Array]) -> None:
    """Add what the stages of a scan make."""
    arrays |= {o.name: np.zeros(o.shape, np.dtype(o.dtype)) for s in stages for o in s.outputs}

    def put(s: Stage, at: tuple[Any, ...], made: Sequence[Array]) -> None:
        for o, x in zip(s.outputs, made, strict=True):
            arrays[o.name][at] = x

    found = cumulative_of(stages)
    if found is None:
        chain = run_chain(stages, arrays, _plainly(arrays), lambda s: [(x, None) for x in _stage(s, arrays)])
        if chain is not None:
            for t in (o for s in stages for o in s.outputs):
                arrays[t.name] = chain[t.name][0].astype(t.dtype)
            return
        run_scan(stages, arrays, lambda s: _stage(s, arrays), put)
        return
    (s,) = stages
    first = first_of(s, found)
    (start,) = _stage(step_of(s, (first,)), arrays)
    arrays[s.name] = accumulated(found, start, _stage(found.term, arrays)[0], BINARY[found.op])


def _plainly(arrays: Mapping[str, Array]) -> Arithmetic:
    """The arithmetic of numbers of their dtype. A sum, a product or a quotient of two float32 in float64 is
    rounded to the same float32."""

    def of(s: Stage) -> Any:
        scope = BlockEvaluator(s.name, {}, arrays)
        return lambda e, operands: (scope.of(e, [v for v, _ in operands]), None)

    def rounds(dtype: str) -> Rounds:
        return (lambda v, e: (float(np.float32(v)), 0.0)) if dtype == "float32" else (lambda v, e: (v, 0.0))

    return Arithmetic(of, rounds, wide=False)


def _stage(stage: Stage, arrays: Mapping[str, Array]) -> list[Array]:
    left = narrowed(stage)
    if left is None:
        return without_terms(stage)
    stage = masked(left)
    if stage.places:
        return [_scattered(stage, arrays, n) for n in range(len(stage.outputs))]
    if stage.reducer is None:
        return _elementwise(stage, arrays)
    op = stage.reducer.operation(0) if len(stage.outputs) == 1 else ""
    if not op:
        return _fold(stage, arrays)
    if op == "+":
        out = contract(stage, arrays)
        if out is None:
            out = by_factors(stage, arrays)
        if out is not None:
            return [out.astype(stage.outputs[0].dtype)]
    return [_reduce(stage, arrays, op)]


def without_terms(stage: Stage) -> list[Array]:
    """The outputs of a reduction of no terms."""
    assert stage.reducer is not None
    both = zip(stage.outputs, stage.reducer.identity, strict=True)
    return [np.full(t.shape, c.value, DTYPES[t.dtype].numpy) for t, c in both]


def by_factors(stage: Stage, arrays: Mapping[str, Array]) -> Array | None:
    """The output of a stage that adds up products of any factors (`schedules.te.factored`), None for other
    stages. float32 is summed and returned in float64; integers wrap."""
    parts = factored.split_sum(stage)
    if parts is None:
        return None
    t = stage.outputs[0]
    wide = t.dtype == "float32"
    out = np.zeros(t.shape, np.float64 if wide else t.dtype)
    free = factored.free_labels(stage, parts)
    for ranges in factored.blocks(stage, parts):
        terms: Terms = []
        for f in parts:
            scope = BlockEvaluator(stage.name, grid(f.axes, f.block(ranges)), arrays, wide)
            try:
                x = factored.filled(f, ranges, scope.value(f.value)).astype(out.dtype)
            except WorkloadError:  # another factor guards it, or it is out of bounds: the general path says
                return None
            if factored.is_guarded(stage) and not np.isfinite(x).all():
                return None
            terms.append((x, f.labels))
        factored.add(out, stage, ranges, free, product_of(terms, free))
    return out


def _elementwise(stage: Stage, arrays: Mapping[str, Array]) -> list[Array]:
    outs = [np.empty(t.shape, t.dtype) for t in stage.outputs]
    for block in blocks(stage.axes, MAX_POINTS):
        scope = BlockEvaluator(stage.name, grid(stage.axes, block), arrays)
        for out, v in zip(outs, stage.values, strict=True):
            out[tuple(slice(*b) for b in block)] = scope.value(v)
    return outs


def _reduce(stage: Stage, arrays: Mapping[str, Array], op: str) -> Array:
    """A reduction by one numpy ufunc."""
    assert stage.reducer is not None
    t, rank = stage.outputs[0], len(stage.axes)
    wide = op in "+*" and t.dtype == "float32"
    ufunc: Any = BINARY[op]
    dtype = np.dtype(np.float64 if wide else t.dtype)
    out = np.full(t.shape, stage.reducer.identity[0].value, dtype)
    axes = stage.axes + stage.reduce_axes
    for block in blocks(axes, MAX_POINTS):
        v = BlockEvaluator(stage.name, grid(axes, block), arrays, wide).value(stage.values[0])
        full = np.broadcast_to(v, tuple(hi - lo for lo, hi in block))
        part = ufunc.reduce(full, axis=tuple(range(rank, len(axes))), dtype=dtype)
        at = tuple(slice(*b) for b in block[:rank])
        out[at] = ufunc(out[at], part)
    return out.astype(t.dtype)


def _scattered(stage: Stage, arrays: Mapping[str, Array], number: int) -> Array:
    """The output of this number of a stage whose terms go to places of their own."""
    assert stage.reducer is not None
    t, op = stage.outputs[number], stage.reducer.operation(number)
    wide = op == "+" and t.dtype == "float32"
    out = np.full(t.shape, stage.reducer.identity[number].value, np.float64 if wide else t.dtype)
    axes = term_axes(stage)
    for block in blocks(axes, MAX_POINTS):
        scope = BlockEvaluator(stage.name, grid(axes, block), arrays, wide)
        ufunc: Any = BINARY[op]
        full = tuple(hi - lo for lo, hi in block)
        at = tuple(np.broadcast_to(scope.value(p), full) for p in stage.places)
        ufunc.at(out, at, np.broadcast_to(scope.value(stage.values[number]), full))
    return out.astype(t.dtype)


def _fold(stage: Stage, arrays: Mapping[str, Array]) -> list[Array]:
    """Any reduction over tuples. Neighbours are combined pairwise, which keeps their order."""
    assert stage.reducer is not None
    combine = stage.reducer.combine
    rank = len(stage.axes)
    dtypes = [t.dtype for t in stage.outputs]
    outs = [
        np.full(t.shape, c.value, t.dtype) for t, c in zip(stage.outputs, stage.reducer.identity, strict=True)
    ]

    def join(x: list[Array], y: list[Array]) -> list[Array]:
        env = {f"{p}{i}": a for p, xs in (("x", x), ("y", y)) for i, a in enumerate(xs)}
        scope = BlockEvaluator(stage.name, {}, env)
        return [
            np.broadcast_to(scope.value(c), x[0].shape).astype(d)
            for c, d in zip(combine, dtypes, strict=True)
        ]

    axes = stage.axes + stage.reduce_axes
    for block in blocks(axes, MAX_POINTS):
        scope = BlockEvaluator(stage.name, grid(axes, block), arrays)
        full = tuple(hi - lo for lo, hi in block)
        xs = [
            np.broadcast_to(scope.value(v), full).reshape(*full[:rank], -1).astype(d)
            for v, d in zip(stage.values, dtypes, strict=True)
        ]
        while (n := xs[0].shape[-1]) > 1:
            pairs = join([x[..., 0 : n - 1 : 2] for x in xs], [x[..., 1::2] for x in xs])
            xs = [
                np.concatenate([p, x[..., n - 1 :]], -1) if n % 2 else p
                for p, x in zip(pairs, xs, strict=True)
            ]
        at = tuple(slice(*b) for b in block[:rank])
        for out, new in zip(outs, join([o[at] for o in outs], [x[..., 0] for x in xs]), strict=True):
            out[at] = new
    return outs


def cast(x: Array, dtype: str) -> Array:
    """Cast as kernels do: values out of an integer's range saturate, and NaN becomes 0."""
    if x.dtype.kind != "f" or not is_integer(dtype):
        return x.astype(DTYPES[dtype].numpy)
    values = DTYPES[dtype].range
    with np.errstate(invalid="ignore"):
        out = x.astype(dtype)
    end = -float(values[0])  # a power of two; the largest integer may have no float
    out = np.where(x >= end, values[-1], np.where(x < -end, values[0], out))
    return np.where(np.isnan(x), 0, out).astype(dtype)


def blocks(axes: Sequence[Axis], limit: int) -> Iterator[tuple[tuple[int, int], ...]]:
    """Blocks (a half-open range for each axis) of at most ``limit`` points that cover the domain in row-major
    order. An axis is only cut if all axes outside it are cut to one point."""
    sizes = [a.extent for a in axes]
    for i in range(len(sizes)):
        inner = math.prod(sizes[i + 1 :])
        sizes[i] = max(1, min(sizes[i], limit // inner))
    return blocks_of([a.extent for a in axes], sizes)


def grid(axes: Sequence[Axis], block: tuple[tuple[int, int], ...]) -> dict[str, Array]:
    """The points of each axis, shaped to broadcast against the others."""
    n = len(axes)
    return {
        a.var: np.arange(lo, hi).reshape((-1,) + (1,) * (n - 1 - i))
        for i, (a, (lo, hi)) in enumerate(zip(axes, block, strict=True))
    }


def parts_of_value(e: Expr) -> tuple[Expr, ...]:
    """The operands of a node: of a table its index alone."""
    table = E.lookup_of(e) if isinstance(e, Select) else None
    return E.children(e) if table is None else (table.index,)


class BlockEvaluator:
    """Evaluates expressions on one block. ``wide``: float32 values are computed in float64."""

    parts: Parts = staticmethod(parts_of_value)

    def __init__(
        self, stage: str, points: Mapping[str, Array], arrays: Mapping[str, Array], wide: bool = False
    ):
        self.stage, self.points, self.arrays, self.wide = stage, points, arrays, wide

    def _widen(self, x: Any) -> Any:
        return x.astype(np.float64) if self.wide and x.dtype == np.float32 else x

    def value(self, e: Expr, mask: Any = True) -> Any:
        """The value of ``e`` at every point. Only points of ``mask`` must be valid. Raises
        `WorkloadError`."""
        v, outside = self.anywhere(e)
        refuse(outside, mask)
        return v

    def anywhere(self, e: Expr) -> tuple[Any, Outside]:
        """The value of ``e`` at every point, and where it has none. Raises `WorkloadError` for an expression
        that has no meaning here."""
        found: tuple[Any, Outside] = run(e, self.parts, self._node)
        return found

    def _node(self, e: Expr, operands: list[tuple[Any, Outside]]) -> tuple[Any, Outside]:
        values = [v for v, _ in operands]
        outside = either(o for _, o in operands)
        if isinstance(e, Load):
            at, beyond = self.places(e, values)
            return self._widen(self.load(e, at)), either((outside, beyond))
        if isinstance(e, Select) and len(operands) == 3:
            cond, (a, of_a), (b, of_b) = values[0], *operands[1:]
            if outside:
                outside = either((operands[0][1], within(of_a, cond), within(of_b, ~cond)))
            return np.where(cond, a, b), outside
        return self._computed(e, values), outside

    def of(self, e: Expr, values: list[Any]) -> Any:
        """A node that loads nothing, of those of its operands; of a comparison with itself one."""
        if isinstance(e, Compare) and len(values) == 1:
            values = values * 2
        return np.where(*values) if isinstance(e, Select) and len(values) == 3 else self._computed(e, values)

    def _computed(self, e: Expr, values: list[Any]) -> Any:
        """The value of a node that loads nothing, of those of its operands."""
        match e:
            case Const(value=v, dtype=d):
                return self._widen(np.asarray(v).astype(np.int64 if d == INDEX else DTYPES[d].numpy))
            case Var(name=n):
                return self.points[n]
            case Binary(op=op) | Compare(op=op):
                return BINARY[op](*values)
            case Logic(op="not"):
                return np.logical_not(values[0])
            case Logic(op=op):
                return (np.logical_and if op == "and" else np.logical_or).reduce(np.broadcast_arrays(*values))
            case Call(fn=fn):
                return FUNCTIONS[fn].of(*values)
            case Fma():
                return values[0] * values[1] + values[2]
            case Cast(dtype=d):
                return self._widen(cast(np.asarray(values[0]), "int64" if d == INDEX else d))
            case E.Bits(dtype=d):
                old, size = np.asarray(values[0]), DTYPES[d].itemsize
                return old.view(f"u{old.itemsize}").astype(f"u{size}").view(DTYPES[d].numpy)
            case Select() if (table := E.lookup_of(e)) is not None:
                entries = self._widen(np.array([x.value for x in table.values], DTYPES[E.dtype_of(e)].numpy))
                return entries[np.clip(values[0], 0, len(entries) - 1)]
        raise WorkloadError(f"stage {self.stage}: {E.show(e)} cannot be evaluated")

    def load(self, e: Load, at: tuple[Any, ...]) -> Array:
        """The loaded elements at every point, from the places ``at``."""
        source = self.arrays[e.buffer]
        return source[at] if e.indices else source

    def places(self, e: Load, indices: Sequence[Any]) -> tuple[tuple[Any, ...], Outside]:
        """Where a load reads at every point, and at which points ``indices`` leave its tensor: there another
        place is read."""
        places, outside = [], dict[str, Any]()
        for d, (i, n) in enumerate(zip(indices, self.arrays[e.buffer].shape if indices else (), strict=True)):
            bad = (i < 0) | (i >= n)
            if np.any(bad):
                what = (
                    f"stage {self.stage}: index {d} of {E.show(e)} leaves 0..{n - 1}; "
                    "correct the index or guard it with te.select"
                )
                outside[what] = bad
                i = np.clip(i, 0, n - 1)  # these points take the other side of a select
            places.append(i)
        return tuple(places), outside or None
