"""Scatters: sums, maxima and minima whose terms say themselves where they go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any

from schedules import expr as E
from schedules.dtypes import DTYPES, is_float, is_integer
from schedules.errors import WorkloadError
from schedules.expr import INDEX, Const, Expr, Var
from schedules.te.compute_dag import Reducer, operand
from schedules.te.dims import dims_of
from schedules.te.inside import check_loads, decide
from schedules.te.language import bind_axes, called, compute, output_names, parameters, shape_of, value_of
from schedules.te.scalars import cast, const, limit
from schedules.te.size import check_size
from schedules.te.tensors import IterVar, Op, Tensor, held_inside
from schedules.te.unique import Taken

Index = Callable[..., Any]
# What terms that meet become, and what an element without terms is.
_JOIN: dict[str, tuple[str, Callable[[str], Const]]] = {
    "sum": ("+", lambda d: const(0, d)),
    "max": ("max", lambda d: limit(d, -1)),
    "min": ("min", lambda d: limit(d, 1)),
}


def scatter_add(
    shape: int | Sequence[int] | None = None,
    index: Index | None = None,
    value: Callable[..., Any] | None = None,
    over: int | Sequence[int] = (),
    into: Tensor | float | None = None,
    mode: str = "drop",
    name: str | Sequence[str] | None = None,
) -> Any:
    """A tensor of ``shape`` whose elements are sums of the terms that go there: for all points of ``over``
    ``out[index(*point)] += value(*point)``.

    ``index``: a function of the point's axes that returns an index for each dimension, arithmetic over axes
    or an integer that is read from tensors; one alone for one dimension. ``value``: a function of the same
    axes; where it returns a tuple, each value has an output of its own, and a tuple of tensors is returned.
    ``over``: the extents of the points. ``into``: a tensor, or a number, that results start from; its shape
    is the default of ``shape``. Without it an element to which no term goes is 0.

    Terms that meet are added up in any order: sums of floats differ in rounding, other results do not.
    ``mode``: what becomes of a term whose index lies outside. ``"drop"`` leaves it out, as JAX's
    ``.at[].add`` does; ``"clip"`` takes the nearest element of the dimension, as gathers do. Indices below 0
    are outside.

    Returns a tensor of the dtype that values are computed with. Raises `WorkloadError`.

    >>> ids, dy = te.placeholder((100,), "int32", "ids"), te.placeholder((100, 8), name="dy")
    >>> g = te.scatter_add((50, 8), lambda n, d: (ids[n], d), lambda n, d: dy[n, d], over=(100, 8), name="g")
    >>> g.shape, g.dtype
    ((50, 8), 'float32')
    """
    return _scatter("sum", shape, index, value, over, into, mode, name)


def scatter_max(
    shape: int | Sequence[int] | None = None,
    index: Index | None = None,
    value: Callable[..., Any] | None = None,
    over: int | Sequence[int] = (),
    into: Tensor | float | None = None,
    mode: str = "drop",
    name: str | Sequence[str] | None = None,
) -> Any:
    """The largest of the terms that go to each element, NaN where one of them is: `scatter_add` with a
    maximum in place of the sum. An element to which no term goes is what ``into`` is there; without it
    -infinity, or the least integer. Raises `WorkloadError`.

    >>> ids, x = te.placeholder((100,), "int32", "ids"), te.placeholder((100,), name="x")
    >>> most = te.scatter_max((10,), lambda n: ids[n], lambda n: x[n], over=(100,), into=0.0)
    """
    return _scatter("max", shape, index, value, over, into, mode, name)


def scatter_min(
    shape: int | Sequence[int] | None = None,
    index: Index | None = None,
    value: Callable[..., Any] | None = None,
    over: int | Sequence[int] = (),
    into: Tensor | float | None = None,
    mode: str = "drop",
    name: str | Sequence[str] | None = None,
) -> Any:
    """The least of the terms that go to each element, NaN where one of them is: `scatter_add` with a minimum
    in place of the sum. An element to which no term goes is what ``into`` is there; without it infinity, or
    the largest integer. Raises `WorkloadError`.

    >>> ids, x = te.placeholder((100,), "int32", "ids"), te.placeholder((100,), name="x")
    >>> least = te.scatter_min((10,), lambda n: ids[n], lambda n: x[n], over=(100,))
    """
    return _scatter("min", shape, index, value, over, into, mode, name)


def histogram(
    x: Tensor,
    bins: int,
    range: tuple[float, float] | None = None,
    weights: Tensor | None = None,
    dtype: str = "int32",
    name: str | None = None,
) -> Tensor:
    """How many elements of ``x`` lie in each of ``bins`` bins of one width, from the least to the largest
    value of ``range``, both included. What lies outside is left out, and so is NaN. ``range`` None: ``x`` has
    integers, which are the numbers of the bins (numpy's bincount of a fixed length).

    ``weights``: a tensor of the shape of ``x`` that is added up in place of counts, in its dtype. ``dtype``:
    of counts. A value within a rounding of the border of two bins may count for either: numpy's histogram
    looks at its edges again. Raises `WorkloadError`.

    >>> x = te.placeholder((1000,), name="x")
    >>> te.histogram(x, 16, range=(0.0, 1.0)).shape
    (16,)
    """
    label = f"te.histogram {name or ''}".strip()
    _check_histogram(x, bins, range, weights, label)

    def count(*at: Any) -> Expr:
        return const(1, dtype) if weights is None else E.widen(weights[at])

    if range is None:
        counts: Tensor = _scatter("sum", (bins,), lambda *at: x[at], count, x.shape, None, "drop", name)
        return counts
    low, high = _ends(range, label)

    def element(*at: Any) -> Expr:
        v = E.widen(x[at])
        return v if is_float(E.dtype_of(v)) else cast(v, "float64")

    def place(*at: Any) -> Expr:
        v = element(*at)
        number = E.minimum(cast((v - low) * (bins / (high - low)), "int32"), bins - 1)
        inside = E.all_of(E.compare("<=", E.wrap(low, E.dtype_of(v)), v), E.compare("<=", v, high))
        return E.select(inside, number, -1)  # a comparison with NaN is false

    made: Tensor = _scatter("sum", (bins,), place, count, x.shape, None, "drop", name)
    return made


def _check_histogram(x: Tensor, bins: int, range: Any, weights: Tensor | None, label: str) -> None:
    """Raises WorkloadError."""
    given: tuple[Any, ...] = (x,) if weights is None else (x, weights)
    wrong = next((t for t in given if not isinstance(t, Tensor)), x)
    if not isinstance(wrong, Tensor):
        shown = E.show(wrong) if isinstance(wrong, Expr) else f"a {type(wrong).__name__}"
        raise WorkloadError(f"{label}: x and weights are whole tensors; got {shown}")
    number: Any = bins
    if isinstance(number, bool) or not hasattr(number, "__index__") or number < 1:
        raise WorkloadError(f"{label}: bins={bins!r} is no number of bins; give an integer of at least 1")
    if weights is not None and weights.shape != x.shape:
        raise WorkloadError(f"{label}: {weights!r} does not fit {x!r}; give a weight for each element")
    if range is None and not is_integer(x.dtype):
        raise WorkloadError(
            f"{label}: {x!r} has no integers, which could be bins; say range=(least, largest)"
        )


def _ends(range: Any, label: str) -> tuple[float, float]:
    """The least and the largest value that are counted. Raises WorkloadError."""
    if not isinstance(range, (tuple, list)) or len(range) != 2:
        raise WorkloadError(f"{label}: range {range!r} is not (least, largest)")
    low, high = map(float, range)
    if not isfinite(high - low):
        raise WorkloadError(f"{label}: range {range} has no width; give finite ends")
    if not low < high:
        raise WorkloadError(f"{label}: range {range} is empty; give (least, largest)")
    return low, high


def _scatter(how: str, shape: Any, index: Any, value: Any, over: Any, into: Any, mode: str, name: Any) -> Any:
    label = f"te.scatter_{'add' if how == 'sum' else how} {name or ''}".strip()
    if mode not in ("drop", "clip"):
        raise WorkloadError(f"{label}: mode {mode!r} is neither 'drop' nor 'clip'")
    if not callable(index) or not callable(value):
        raise WorkloadError(
            f"{label}: index and value are functions of a point: lambda n: ids[n], lambda n: x[n]"
        )
    if shape is None:
        if not isinstance(into, Tensor):
            raise WorkloadError(f"{label}: it has no shape; give shape=, or a tensor into=")
        shape = into.shape
    dims = shape_of(shape, label)
    if not dims:
        raise WorkloadError(f"{label}: a tensor of no dimensions has one place; reduce instead")
    if isinstance(into, Tensor) and into.shape != dims:
        raise WorkloadError(f"{label}: into is {into!r}, and the shape {list(dims)}; give one of that shape")
    points = shape_of(over, f"{label}: over")
    if not points:
        raise WorkloadError(f"{label}: over has no extents; give those of the points, over=(n,)")
    if dims_of([*dims, *points]):
        raise WorkloadError(f"{label}: its sizes vary; scatters have fixed sizes: give numbers")
    axes = parameters(index, len(points), label, of=("over", "index"))
    ivars = [IterVar(n, e, True) for n, e in zip(axes, points, strict=True)]
    at = called(index, ivars, label)
    at = tuple(_made_ahead(i, ivars, name) for i in (at if isinstance(at, (tuple, list)) else (at,)))
    if len(at) != len(dims):
        raise WorkloadError(
            f"{label}: {len(at)} indices for {len(dims)} dimensions; return one for each dimension"
        )
    parameters(value, len(points), label, of=("over", "value"))
    found = called(value, ivars, label)
    many = isinstance(found, (tuple, list))
    terms = tuple(E.widen(value_of(x, label)) for x in (found if many else (found,)))
    if not terms or (many and into is not None):
        raise WorkloadError(f"{label}: several values have no into=, and there is at least one")
    names = output_names(None if into is not None else name, len(terms))
    op = _op(how, dims, ivars, at, terms, mode, label, names)
    made = tuple(Tensor(dims, E.dtype_of(v), op.names[n], op, n) for n, v in enumerate(op.values))
    if into is not None:
        return _joined(how, made[0], into, label, name)
    return made if many else made[0]


def _op(
    how: str,
    dims: Any,
    ivars: Sequence[IterVar],
    at: Any,
    terms: Sequence[Expr],
    mode: str,
    label: str,
    names: tuple[str | None, ...],
) -> Op:
    """The stage: its axes, its places inside the outputs, and its terms."""
    taken = Taken()
    env = {v: Var(taken.add(v.name)) for v in ivars}
    free: dict[int, IterVar] = {}  # {dimension: its axis}
    for d, i in enumerate(at):
        if isinstance(i, IterVar) and i in env and i.extent == dims[d] and i not in free.values():
            free[d] = i
    extents = {env[v].name: int(v.extent) for v in ivars}
    places, inside = list[Expr](), list[Expr]()
    for i, n in zip(at, dims, strict=True):
        i = bind_axes(_index(i, label), env, label)
        if E.dtype_of(i) == INDEX and not E.loads(i):
            known = tuple((v, k) for v, k in extents.items() if v in E.variables(i))
            if decide(i, n, known, ()) is None:
                places.append(i)
                continue
        wide = E.widen(i)
        last = n - 1 if E.dtype_of(wide) == INDEX else min(n - 1, DTYPES[E.dtype_of(wide)].range[-1])
        inside += [E.compare("<=", E.wrap(0, E.dtype_of(wide)), wide), E.compare("<=", wide, last)]
        held = E.minimum(E.maximum(wide, 0), last) if E.dtype_of(wide) == INDEX else held_inside(wide, n)
        places.append(held)
    axes = [(env[free[d]].name if d in free else taken.add("bin"), n) for d, n in enumerate(dims)]
    values = tuple(bind_axes(x, env, label) for x in terms)
    dtypes = [E.dtype_of(x) for x in values]
    for x, kind in zip(values, dtypes, strict=True):
        if kind not in DTYPES:
            raise WorkloadError(f"{label}: the value {E.show(x)} has dtype {kind}; convert it with te.cast")
    loaded = (*values, *places)
    word, identity = _JOIN[how]
    nothing = tuple(map(identity, dtypes))
    if mode == "drop" and inside:  # what goes nowhere joins as what changes nothing
        cond = E.all_of(*inside)
        values = tuple(E.select(cond, x, none) for x, none in zip(values, nothing, strict=True))
    pairs = [(operand(f"x{n}", d), operand(f"y{n}", d)) for n, d in enumerate(dtypes)]
    reducer = Reducer(how, nothing, tuple(E.binary(word, x, y) for x, y in pairs))
    reduced = tuple((env[v].name, v.extent) for v in ivars if v not in free.values())
    if not reduced:  # each term has an element of its own
        reduced = ((taken.add("once"), 1),)
    check_size([*values, *places], label)
    op = Op(tuple(axes), reduced, values, reducer, names, (), tuple(places))
    if not dims_of(n for t in op.reads() for n in t.shape):
        check_loads(label, loaded, extents, lambda e: tuple(map(int, e.tensor.shape)))  # type: ignore[attr-defined]
    return op


def _made_ahead(i: Any, ivars: Sequence[IterVar], name: Any) -> Any:
    """An index that is computed of floats, as an element of a stage of its own: schedules compute many at
    once. Others are returned as they are."""
    if not isinstance(i, Expr) or not is_integer(E.dtype_of(i)):
        return i
    if not any(is_float(E.dtype_of(x)) for x in E.walk(i)):
        return i
    used = [v for v in ivars if any(x is v for x in E.walk(i))]
    if not used:
        return i

    def place(*p: Any) -> Expr:
        return bind_axes(i, dict(zip(used, p, strict=True)), "of places")

    what = f"{name}_place" if isinstance(name, str) else None
    made: Tensor = compute(tuple(v.extent for v in used), place, name=what)
    return made[tuple(used)]


def _index(i: Any, label: str) -> Expr:
    if isinstance(i, Expr):
        d = E.dtype_of(i)
        if d == INDEX or is_integer(d):
            return i
        raise WorkloadError(
            f"{label}: the index {E.show(i)} has dtype {d}; an index is arithmetic over axes, or an integer: "
            'te.cast(x, "int32")'
        )
    if isinstance(i, bool) or not hasattr(i, "__index__"):
        raise WorkloadError(f"{label}: the index {i!r} is no integer and no expression")
    return E.wrap(i)


def _joined(how: str, made: Tensor, into: Any, label: str, name: str | None) -> Tensor:
    """What scattered terms and a start become together."""
    if isinstance(into, Tensor) and E.dtype_of(E.widen(into[(0,) * into.ndim])) != made.dtype:
        raise WorkloadError(
            f"{label}: into is {into!r}, and values are {made.dtype}; convert one with te.cast"
        )
    word, _ = _JOIN[how]

    def join(*at: Any) -> Expr:
        start = E.widen(into[at]) if isinstance(into, Tensor) else const(into, made.dtype)
        return E.binary(word, start, made[at])

    return compute(made.shape, join, name=name)
