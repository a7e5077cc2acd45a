"""Placeholders, stages and reductions of tensor expressions. `schedules.te` exports them."""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from schedules import affine
from schedules import expr as E
from schedules.dtypes import DTYPES
from schedules.errors import WorkloadError
from schedules.expr import INDEX, Const, Expr, ExprLike, Load, Var, numpys
from schedules.te.any_order import check_any_order
from schedules.te.bounded_axes import bounded, check_order, conditions, conjuncts
from schedules.te.compute_dag import Reducer, operand
from schedules.te.dims import MAX_EXTENT, Dim, dims_of
from schedules.te.extent import Extent
from schedules.te.inside import check_loads
from schedules.te.scalars import cast, check_dtype, const, element_of, limit
from schedules.te.size import check_size, too_deep
from schedules.te.tensors import IterVar, Op, Reduction, Tensor, TensorLoad
from schedules.te.unique import Taken

# --- placeholders and stages ------------------------------------------------------------------


def placeholder(
    shape: int | Sequence[int],
    dtype: str = "float32",
    name: str | None = None,
    strides: int | Sequence[int] | None = None,
) -> Tensor:
    """An input of ``shape`` (elements) and ``dtype``: float16, bfloat16, float8_e4m3fn, float8_e5m2, float32,
    float64, int8, uint8, int16, uint16, int32, uint32, int64 or bool. Some are for storage: floats of 16
    and 8 bits are computed with as float32, int8, uint8, int16, uint16 and bool as int32, uint32 as int64.
    `cast` makes them.

    ``strides``: elements of memory from an index to the next, one for each dimension. None: row-major. 0
    repeats an element, a negative one walks backwards. The stride of an extent of 1 says nothing.

    Raises `WorkloadError` for a shape that has no elements, a dtype that is none of these, or strides that
    are not as many integers as there are dimensions.

    >>> te.placeholder((8, 16), name="x").shape
    (8, 16)
    >>> te.placeholder((8, 16), name="x", strides=(1, 8)).strides  # as numpy and torch have x.T
    (1, 8)
    """
    what = f"placeholder {name}" if name else "placeholder"
    extents = shape_of(shape, what)
    steps = None if strides is None else _strides(strides, len(extents), what)
    return Tensor(extents, check_dtype(dtype, what), check_name(name), strides=steps)


def reduce_axis(extent: Any, name: str | None = None, where: Any = None) -> IterVar:
    """An axis to reduce over: an extent, or ``(first, end)``.

    The ends may be affine in other axes, those of the compute's shape and reduction axes before it: integers
    times axes, added up. Then the axis is made inside the function of the compute. Of several lower ends
    `maximum` takes the greatest, of upper ones `minimum` the least. A range without points gives the identity
    of the reduction. ``where``: affine conditions of other axes, or a function of this axis that gives some,
    as in ``where=lambda k: k + j <= i``: terms for which one does not hold are left out, and where none holds
    nothing is computed.

    Raises `WorkloadError` for ends and conditions that depend on data, or are not affine.

    >>> x = te.placeholder((8, 8), name="x")
    >>> def below(i):
    ...     k = te.reduce_axis((0, i + 1), "k")
    ...     return te.sum(x[i, k], axis=k)
    >>> y = te.compute((8,), below, name="y")
    """
    label = f"reduce_axis {name}" if name else "reduce_axis"
    own = _identifier(name or "r")
    if not isinstance(extent, (tuple, list)):
        if isinstance(extent, Expr) and any(isinstance(x, (IterVar, Load)) for x in E.walk(extent)):
            extent = (0, extent)
        else:
            extent = (0, _extent(extent, label))
    if len(extent) != 2:
        raise WorkloadError(f"{label}: {extent!r} is not (first, end)")
    lo, hi = extent
    box = bounded(lo, hi, label)
    start: Any = box.start if box.start != Const(0) else 0
    n, ends = _extent(box.extent, label), (box.least, box.most)
    plain = isinstance(hi, Extent) and start == 0
    axis = IterVar(own, hi if plain else n, True, start, (), ends)
    known = conditions(axis, box)
    if where is not None:
        known += conjuncts(where, axis, label)
    # the conditions speak of the axis, so that it is there before them
    object.__setattr__(axis, "where", known)
    return axis


def compute(
    shape: int | Sequence[int],
    fn: Callable[..., Any],
    name: str | Sequence[str] | None = None,
) -> Any:
    """A stage: ``out[axes] = fn(*axes)`` for every point of ``shape``. The parameters of ``fn`` name the
    axes. Returns a tensor, or a tuple of them if ``fn`` returns a tuple or a reduction over tuples; ``name``
    may then be a sequence.

    Every load must be proved inside its tensor. The condition of a `select` around it counts if axes decide
    it, not tensors. Raises `WorkloadError`.

    >>> x = te.placeholder((8, 16), name="x")
    >>> doubled = te.compute((8, 16), lambda i, j: x[i, j] * 2.0, name="doubled")
    >>> doubled.shape, doubled.dtype
    ((8, 16), 'float32')
    """
    label = name if isinstance(name, str) else "_".join(name) if name else "(unnamed)"
    dims = shape_of(shape, f"stage {label}")
    taken = Taken()
    ivars = [IterVar(n, e, False) for n, e in zip(parameters(fn, len(dims), label), dims, strict=True)]
    own = {v: taken.add(v.name) for v in ivars}
    env: dict[IterVar, Expr] = {v: Var(n) for v, n in own.items()}
    body = called(fn, ivars, label)
    if isinstance(body, Reduction):
        many, values, reducer, raxes = len(body.values) > 1, body.values, body.reducer, body.axes
    else:
        many = isinstance(body, (tuple, list))
        values = tuple(value_of(x, label) for x in (body if many else (body,)))
        reducer, raxes = None, ()
    if not values:
        raise WorkloadError(f"stage {label} computes nothing; return at least one value")
    check_size(values, f"stage {label}")
    names = {r: taken.add(r.name) for r in raxes}
    for r in raxes:
        at = E.binary("+", bind_axes(E.wrap(r.start), env, label), Var(names[r]))
        env[r] = affine.simplify(at, {})
    values = tuple(bind_axes(v, env, label) for v in values)
    where = tuple(bind_axes(c, env, label) for r in raxes for c in r.where)
    op = Op(
        tuple((own[v], v.extent) for v in ivars),
        tuple((names[r], r.extent) for r in raxes),
        values,
        reducer,
        output_names(name, len(values)),
        tuple(dict.fromkeys(where)),
    )
    for v in values:
        if E.dtype_of(v) not in DTYPES:
            raise WorkloadError(
                f"stage {label}: the value {E.show(v)} has dtype {E.dtype_of(v)}; convert it, "
                'e.g. te.cast(value, "int32")'
            )
    shapes = (n for t in op.reads() for n in t.shape)
    if not dims_of([*op.parts(), *shapes]):  # else each DAG of a size checks itself
        extents = {v: int(n) for v, n in (*op.axes, *op.reduce_axes)}
        check_loads(label, values, extents, lambda e: tuple(map(int, e.tensor.shape)), op.where)  # type: ignore[attr-defined]
    outs = tuple(Tensor(dims, E.dtype_of(v), op.names[i], op, i) for i, v in enumerate(values))
    return outs if many else outs[0]


def called(fn: Callable[..., Any], axes: Sequence[IterVar], label: str) -> Any:
    """What the function of a stage gives for its axes."""
    try:
        return fn(*axes)
    except (TypeError, ZeroDivisionError, AttributeError) as err:
        said: Exception = err
        if isinstance(err, AttributeError):
            if not isinstance(err.obj, (Expr, Tensor)):
                raise  # a mistake in the function
            said = numpys.refused(err.name or "")
        elif "real number" in str(err):  # what math and float say
            said = TypeError(f"{err}; {numpys.NUMBERS}")
        raise WorkloadError(f"stage {label}: {said}") from err
    except RecursionError:
        raise too_deep(f"stage {label}") from None


def value_of(x: Any, label: str) -> Expr:
    if isinstance(x, Reduction):
        raise WorkloadError(
            f"stage {label}: a tuple holds a reduction; reduce several values together with te.reducer, "
            "or write one stage for each"
        )
    if isinstance(x, Expr):
        return x
    if isinstance(x, float):
        return Const(float(x), "float32")  # numpy's float64 is a float too, but prints differently
    if isinstance(x, Tensor):
        raise WorkloadError(f"stage {label}: the value is the whole {x!r}; index it with the axes")
    raise WorkloadError(
        f"stage {label}: the value is {x!r} ({type(x).__name__}); return an expression, "
        'e.g. te.const(0, "int32")'
    )


def bind_axes(e: Expr, env: Mapping[IterVar, Expr], label: str) -> Expr:
    """``e`` over the stage's own variables. Raises `WorkloadError` for axes of other stages."""

    def visit(x: Expr) -> Expr | None:
        if isinstance(x, IterVar):
            if x not in env:
                kind = "a reduction axis" if x.reduce else "an axis of another stage"
                raise WorkloadError(
                    f"stage {label}: {x.name!r} is {kind} and has no meaning here; "
                    + (
                        "name it in the axis= of the reduction"
                        if x.reduce
                        else "use the parameters of this stage's function"
                    )
                )
            return env[x]
        if isinstance(x, TensorLoad):
            return TensorLoad(x.buffer, tuple(E.rewrite(i, visit) for i in x.indices), x.dtype, x.tensor)
        return None

    return E.rewrite(e, visit)


# --- reductions -------------------------------------------------------------------------------

ReduceAxes = IterVar | Sequence[IterVar] | None


def reducer(
    identity: Callable[..., Any] | Sequence[int | float],
    combine: Callable[[tuple[Expr, ...], tuple[Expr, ...]], Any],
    name: str = "reducer",
) -> Callable[..., Reduction]:
    """An associative, commutative reduction over tuples, for use like `sum`: ``r(values, axis=k)``.

    ``identity``: the neutral tuple, or a function of the values' dtypes that returns it. It must lose to
    every value, infinities too: `max_value` and `min_value` of floats are finite, ``te.inf`` is not.
    ``combine(x, y)``: returns the tuple that joins two. Schedules join parts in any order, so ties must be
    broken by values, not by order. NaN is what is not equal to itself. Example: the largest value and its
    first place, NaN before all numbers, as numpy has it:

        def join(x, y):
            (i, u), (j, v) = x, y
            both_nan = te.all(te.not_equal(u, u), te.not_equal(v, v))
            tie = te.any(te.equal(u, v), both_nan)
            above = te.any(u > v, te.all(te.not_equal(u, u), te.equal(v, v)))
            wins = te.any(above, te.all(tie, i < j))
            return te.select(wins, i, j), te.select(wins, u, v)

        argmax = te.reducer(lambda i, v: (te.max_value(i), -te.inf), join, "argmax")
        place, value = te.compute((m,), lambda i: argmax((te.cast(k, "int32"), A[i, k]), axis=k))

    Where it is used, it is tried on a few small numbers in several orders and groupings. Raises
    `WorkloadError` if results differ: the message shows the values.
    """
    return _reducer(identity, combine, name, check_any_order)


def _reducer(
    identity: Callable[..., Any] | Sequence[int | float],
    combine: Callable[[tuple[Expr, ...], tuple[Expr, ...]], Any],
    name: str,
    check: Callable[[Reducer, Sequence[Expr], Sequence[IterVar]], None] = lambda *_: None,
) -> Callable[..., Reduction]:
    """`reducer`, with what else is checked where it is used."""

    def reduce(values: Any, axis: ReduceAxes = None) -> Reduction:
        exprs = tuple(values) if isinstance(values, (tuple, list)) else (values,)
        for v in exprs:
            if isinstance(v, Reduction):
                raise WorkloadError(repr(v))
            if isinstance(v, Tensor):
                axes = axis if isinstance(axis, (tuple, list)) else (axis,)
                names = [a.name for a in axes if isinstance(a, IterVar)]
                over = "..." if not names else names[0] if len(names) == 1 else f"({', '.join(names)})"
                raise WorkloadError(
                    f"te.{name} reduces elements, and {v!r} is a tensor; index it with axes, those that are "
                    f"reduced too, as in te.{name}({element_of(v, names)}, axis={over})"
                )
            if not isinstance(v, Expr) or E.dtype_of(v) not in DTYPES:
                got = E.dtype_of(v) if isinstance(v, Expr) else repr(v)
                raise WorkloadError(
                    f"te.{name} reduces expressions of {', '.join(DTYPES)}, got {got}; "
                    f"use te.{'cast' if isinstance(v, Expr) else 'const'}"
                )
        exprs = tuple(E.widen(v) for v in exprs)  # of storage none is added up
        found = reducer_of(name, tuple(E.dtype_of(v) for v in exprs), identity, combine)
        made = Reduction(found, exprs, _axes(axis, name))
        check(made.reducer, made.values, made.axes)
        return made

    return reduce


def reducer_of(
    name: str,
    dtypes: Sequence[str],
    identity: Callable[..., Any] | Sequence[int | float],
    combine: Callable[[tuple[Expr, ...], tuple[Expr, ...]], Any],
) -> Reducer:
    """How tuples of values of ``dtypes`` are joined. Raises `WorkloadError`."""
    neutral = _tuple(
        identity(*dtypes) if callable(identity) else identity, len(dtypes), f"identity of {name}"
    )
    consts = tuple(
        const(x.value if isinstance(x, Const) else x, d) for x, d in zip(neutral, dtypes, strict=True)
    )
    xs, ys = (tuple(operand(f"{p}{i}", d) for i, d in enumerate(dtypes)) for p in "xy")
    joined = _tuple(combine(xs, ys), len(dtypes), f"combine of {name}")
    out = tuple(E.wrap(x, d) for x, d in zip(joined, dtypes, strict=True))
    check_size(out, f"combine of {name}")
    for x, d in zip(out, dtypes, strict=True):
        if E.dtype_of(x) != d or E.variables(x) or any(o not in xs + ys for o in E.loads(x)):
            raise WorkloadError(
                f"combine of {name} returned {E.show(x)} of dtype {E.dtype_of(x)}; it must have the "
                f"dtype {d} of its operand and use nothing but its operands"
            )
    return Reducer(name, consts, out)


def sum(value: ExprLike, axis: ReduceAxes = None, dtype: str | None = None) -> Reduction:
    """Σ ``value`` over the reduction axes, added up in ``dtype``: by default that of ``value``, or what it is
    computed with where that is for storage (float32 for bfloat16, int32 for int8 and bool).

    >>> x, k = te.placeholder((8, 16), name="x"), te.reduce_axis(16, name="k")
    >>> y = te.compute((8,), lambda i: te.sum(x[i, k], axis=k, dtype="float64"), name="y")
    >>> y.dtype
    'float64'
    """
    return _reducer((0,), lambda x, y: (x[0] + y[0],), "sum")(_accumulated(value, dtype), axis)


def prod(value: ExprLike, axis: ReduceAxes = None, dtype: str | None = None) -> Reduction:
    """Π ``value`` over the reduction axes, multiplied up in ``dtype`` as in `sum`.

    >>> x, k = te.placeholder((8, 16), name="x"), te.reduce_axis(16, name="k")
    >>> y = te.compute((8,), lambda i: te.prod(x[i, k], axis=k), name="y")
    """
    return _reducer((1,), lambda x, y: (x[0] * y[0],), "prod")(_accumulated(value, dtype), axis)


def _accumulated(value: ExprLike, dtype: str | None) -> ExprLike:
    return value if dtype is None else cast(value, dtype)


def max(value: ExprLike, axis: ReduceAxes = None) -> Reduction:
    """The largest ``value`` over the reduction axes.

    NaN where one of them is. ``axis``: one reduction axis or several. Raises `WorkloadError` without one.

    >>> x, k = te.placeholder((8, 16), name="x"), te.reduce_axis(16, name="k")
    >>> y = te.compute((8,), lambda i: te.max(x[i, k], axis=k), name="y")
    """
    return _reducer(lambda d: (limit(d, -1),), lambda x, y: (E.maximum(x[0], y[0]),), "max")(value, axis)


def min(value: ExprLike, axis: ReduceAxes = None) -> Reduction:
    """The smallest ``value`` over the reduction axes.

    NaN where one of them is. ``axis``: one reduction axis or several. Raises `WorkloadError` without one.

    >>> x, k = te.placeholder((8, 16), name="x"), te.reduce_axis(16, name="k")
    >>> y = te.compute((8,), lambda i: te.min(x[i, k], axis=k), name="y")
    """
    return _reducer(lambda d: (limit(d, 1),), lambda x, y: (E.minimum(x[0], y[0]),), "min")(value, axis)


def _axes(axis: ReduceAxes, name: str) -> tuple[IterVar, ...]:
    axes = tuple(axis) if isinstance(axis, (tuple, list)) else () if axis is None else (axis,)
    if not axes:
        raise WorkloadError(f"te.{name} needs axis=: one te.reduce_axis, or a tuple of them")
    for a in axes:
        if not isinstance(a, IterVar) or not a.reduce:
            raise WorkloadError(
                f"te.{name}: axis {a!r} is not a reduction axis; make it with te.reduce_axis(extent)"
            )
    if len(set(axes)) != len(axes):
        raise WorkloadError(f"te.{name}: an axis stands twice in {axes}")
    check_order(axes, name)
    return axes


def _tuple(x: Any, n: int, what: str) -> tuple[Any, ...]:
    items = tuple(x) if isinstance(x, (tuple, list)) else (x,)
    if len(items) != n:
        raise WorkloadError(f"{what} has {len(items)} values for {n} that are reduced; give one for each")
    return items


# --- names and shapes -------------------------------------------------------------------------


def shape_of(shape: Any, what: str) -> tuple[Any, ...]:
    dims = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    return tuple(_extent(n, what) for n in dims)


def _extent(n: Any, what: str) -> Any:
    if isinstance(n, Expr) and E.dtype_of(n) == INDEX and not E.loads(n):
        if all(isinstance(x, Dim) for x in E.walk(n) if isinstance(x, Var)):
            if not isinstance(n, Const):
                return n
            n = n.value
    if isinstance(n, bool) or not hasattr(n, "__index__"):
        raise WorkloadError(
            f"{what}: extent {n!r} is not an integer; one that varies is autotune.dim(least, largest)"
        )
    if not 1 <= int(n) <= MAX_EXTENT:
        raise WorkloadError(f"{what}: extent {n} is outside 1..{MAX_EXTENT}")
    return n if isinstance(n, Extent) else int(n)


def _strides(strides: Any, rank: int, what: str) -> tuple[Any, ...]:
    steps = tuple(strides) if isinstance(strides, (tuple, list)) else (strides,)
    if len(steps) != rank:
        raise WorkloadError(
            f"{what}: {len(steps)} strides for {rank} dimensions; give one stride for each dimension"
        )
    return tuple(_stride(s, what) for s in steps)


def _stride(s: Any, what: str) -> Any:
    if isinstance(s, Expr) and E.dtype_of(s) == INDEX and not E.loads(s):
        if all(isinstance(x, Dim) for x in E.walk(s) if isinstance(x, Var)):
            return s
    if isinstance(s, bool) or not hasattr(s, "__index__"):
        raise WorkloadError(f"{what}: stride {s!r} is not an integer; give a number of elements")
    if abs(int(s)) > MAX_EXTENT:
        raise WorkloadError(f"{what}: stride {s} is outside -{MAX_EXTENT}..{MAX_EXTENT}")
    return int(s)


def check_name(name: Any) -> str | None:
    if name is None:
        return None
    if not isinstance(name, str) or _identifier(name) != name:
        raise WorkloadError(f"tensor name {name!r} is not an identifier; use letters, digits and _")
    return name


def output_names(name: str | Sequence[str] | None, n: int) -> tuple[str | None, ...]:
    if name is None:
        return (None,) * n
    if isinstance(name, str):
        return (check_name(name), *(check_name(f"{name}_{i}") for i in range(1, n)))
    if len(name) != n:
        raise WorkloadError(
            f"{len(name)} names {tuple(name)} for {n} outputs; give one for each, or one string"
        )
    return tuple(check_name(x) for x in name)


def _identifier(name: str) -> str:
    """``name`` made of ASCII letters, digits and _, starting with no digit, no keyword."""
    text = re.sub(r"[^A-Za-z0-9_]", "_", name) or "_"
    text = f"_{text}" if text[0].isdigit() else text
    return f"{text}_" if keyword.iskeyword(text) else text


def parameters(
    fn: Callable[..., Any],
    n: int,
    label: str,
    first: int = 0,
    of: tuple[str, str] = ("the shape", "the function"),
) -> list[str]:
    """Axis names from the parameters of ``fn``, without the ``first`` ones, which are states; ``*args``
    stands for any number. ``of``: what has ``n`` dimensions, and what ``fn`` is."""
    names: list[str] = []
    for p in list(inspect.signature(fn).parameters.values())[first:]:
        if p.kind is p.VAR_POSITIONAL:
            names += [f"i{d}" for d in range(len(names), n)]
        elif p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) and p.default is p.empty:
            names.append(_identifier(p.name))
    if len(names) != n:
        raise WorkloadError(
            f"stage {label}: {of[0]} has {n} dimensions but {of[1]} takes {len(names)} axes"
            f"{f' after {first} states' if first else ''}; give it one parameter for each "
            f"{'state, then one for each ' if first else ''}dimension"
        )
    return names
