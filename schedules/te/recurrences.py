"""Recurrences: `state` and `scan`. `schedules.te` exports them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

from schedules import expr as E
from schedules.errors import WorkloadError
from schedules.expr import Binary, Const, Expr, Var
from schedules.te.dims import MAX_EXTENT
from schedules.te.extent import written
from schedules.te.infeasible import interval
from schedules.te.language import check_name, compute, parameters, shape_of
from schedules.te.scalars import check_dtype, select
from schedules.te.tensors import Carry, IterVar, Tensor, TensorLoad

Init = Callable[..., Any] | int | float | bool | None


def state(
    shape: int | Sequence[int],
    dtype: str = "float32",
    init: Init = None,
    axis: int | Sequence[int] = 0,
    name: str | None = None,
    reverse: bool = False,
) -> Tensor:
    """What the steps of a scan carry on: ``shape`` elements of ``dtype``. A step reads what earlier ones
    stored: ``h[t - 1, k]``. `scan` says what a step stores.

    ``axis``: the dimension along which steps run one after another, or several, the outermost first.
    ``reverse``: from the last point to the first, so that ``h[t + 1, k]`` is the step before. ``init``: what
    is read before the first step, a number, or a function of the indices, of which that along ``axis`` is
    outside of the shape there. Other stages of a step are plain ones with the same axis in the same place.

    Raises `WorkloadError` for an axis that the shape has not.

    >>> x, w = te.placeholder((9, 4), name="x"), te.placeholder((4, 4), name="w")
    >>> h, k = te.state((9, 4), init=0.0, name="h"), te.reduce_axis(4, name="k")
    >>> g = te.compute((9, 4), lambda t, j: te.sum(w[j, k] * h[t - 1, k], axis=k), name="g")
    >>> out = te.scan(h, te.compute((9, 4), lambda t, j: te.tanh(g[t, j] + x[t, j])))
    >>> [s.name for s in te.dag([x, w, out]).stages]
    ['g', 'h']
    """
    what = f"state {name}" if name else "state"
    extents = shape_of(shape, what)
    axes = axes_of(axis, len(extents), what)
    if not (init is None or callable(init) or hasattr(init, "__float__")):
        found: Any = init
        how = f"; index it: init=lambda *at: {found.name or 'x'}[...]" if isinstance(found, Tensor) else ""
        raise WorkloadError(f"{what}: init={init!r} is neither a number nor a function of the indices{how}")
    if callable(init):
        parameters(init, len(extents), what, of=("the shape", "init"))

    def read(t: Tensor, at: tuple[Expr, ...]) -> Expr:
        return _element(t, at, init)

    carry = Carry(axes, -1 if reverse else 1, read, [])
    return Tensor(extents, check_dtype(dtype, what), check_name(name), carry=carry)


def scan(
    states: Any,
    fn: Any,
    init: Any = None,
    axis: int | Sequence[int] = 0,
    reverse: bool = False,
    name: str | Sequence[str] | None = None,
    dtype: str | Sequence[str] | None = None,
) -> Any:
    """A recurrence: ``y[axes] = fn(y, *axes)``, where ``fn`` may read ``y`` at earlier points of ``axis``.

    ``states``: the shape of the result, or a list of shapes, for several results of one step. ``fn``: then a
    function of as many states and of the axes, which its parameters name. ``init``, ``axis`` and ``reverse``:
    as in `state`; ``init`` of several states is a list. ``dtype``: of the states; found by trying if None.

    For steps of several stages, ``states`` is a `state` or a list of them, and ``fn`` the tensor that each
    step stores, or a list of them. Returns the tensors that have all steps: one, or a tuple of them.

    Every read of a state is proved to be of an earlier step when a DAG is made of it. Other axes may run in
    any order, in parallel and in vectors. Raises `WorkloadError`.

    >>> x = te.placeholder((8, 4), name="x")
    >>> y = te.scan((8, 4), lambda y, t, i: 0.5 * y[t - 1, i] + x[t, i], init=0.0, name="y")
    >>> te.evaluate(te.dag([x, y]), [np.ones((8, 4), "float32")])[0][:3, 0]
    array([1.  , 1.5 , 1.75], dtype=float32)
    """
    many = isinstance(states, (list, tuple)) and bool(states) and not all(map(_is_extent, states))
    given = list(states) if many else [states]
    if any(isinstance(s, Tensor) for s in given):
        values = list(fn) if isinstance(fn, (list, tuple)) else [fn]
        made = _stored(given, values)
        return tuple(made) if isinstance(fn, (list, tuple)) else made[0]
    made = _short(given, fn, init, axis, reverse, name, dtype)
    return tuple(made) if many else made[0]


# --- parts ------------------------------------------------------------------------------------


def _short(
    given: Sequence[Any], fn: Any, init: Any, axis: Any, reverse: bool, name: Any, dtype: Any
) -> list[Tensor]:
    """The stage of a step that is one function of its states, of shapes ``given``."""
    label = name if isinstance(name, str) else "_".join(name) if name else "(unnamed)"
    shapes = [shape_of(s, f"scan {label}") for s in given]
    if any(list(map(repr, s)) != list(map(repr, shapes[0])) for s in shapes):
        raise WorkloadError(
            f"scan {label}: states of shapes {', '.join(str(list(s)) for s in shapes)} are no outputs of one "
            "stage; make each with te.state, and say what a step stores with te.scan(states, values)"
        )
    starts = list(init) if isinstance(init, (list, tuple)) else [init] * len(shapes)
    if len(starts) != len(shapes):
        raise WorkloadError(f"scan {label}: {len(starts)} init for {len(shapes)} states; give one for each")
    names = _names(name, len(shapes))
    wrong: Exception | None = None
    for dtypes in _dtypes(dtype, len(shapes), shapes, starts, label):
        own = [
            state(s, d, i, axis, n, reverse) for s, d, i, n in zip(shapes, dtypes, starts, names, strict=True)
        ]
        axes = parameters(fn, len(shapes[0]), label, len(own))
        try:
            made = compute(shapes[0], _body(fn, own, axes), name)
        except WorkloadError as err:
            wrong = wrong or err
            continue
        values = list(made) if isinstance(made, tuple) else [made]
        if len(values) != len(own):
            raise WorkloadError(
                f"scan {label}: {len(values)} values for {len(own)} states; return one for each"
            )
        if dtype is not None or [v.dtype for v in values] == list(dtypes):
            return _stored(own, values)
        wrong = wrong or WorkloadError(
            f"scan {label}: a step makes {', '.join(v.dtype for v in values)} of states of "
            f"{', '.join(dtypes)}; use te.cast"
        )
    assert wrong is not None
    raise wrong


def _element(t: Tensor, at: tuple[Expr, ...], init: Init) -> Expr:
    """An element of a state, or what stands for it before the first step."""
    assert t.carry is not None
    load = TensorLoad(t.name or "state", at, t.dtype, t)
    conditions = []
    for n, d in enumerate(t.carry.axes):
        lo, hi = interval(at[d], _ranges(at[d]))
        extent = written(t.shape[d])
        if lo < 0 and (n or t.carry.step == 1):
            conditions.append(E.compare("<=", 0, at[d]))
        if (not isinstance(t.shape[d], int) or hi >= t.shape[d]) and (n or t.carry.step == -1):
            conditions.append(E.compare("<", at[d], extent))
    _check_direction(t, load)
    cond = E.all_of(*conditions)
    if cond == E.TRUE:
        return load
    if init is None:
        raise WorkloadError(
            f"{t!r}: {E.show(load)} is read before the first step; say what stands there with init="
        )
    start = init(*at) if callable(init) else init
    if not isinstance(start, Expr):
        start = E.wrap(float(start) if E.is_float(t.dtype) else start, t.dtype)
    elif E.dtype_of(start) != t.dtype:
        raise WorkloadError(
            f"{t!r}: init gives {E.show(start)} of dtype {E.dtype_of(start)}; use te.cast(value, {t.dtype!r})"
        )
    return select(cond, load, start)


def _check_direction(t: Tensor, load: TensorLoad) -> None:
    """Raise `WorkloadError` where the index along the outermost axis is that of a later step, by a number."""
    assert t.carry is not None
    d, step = t.carry.axes[0], t.carry.step
    i = load.indices[d]
    if not (
        isinstance(i, Binary) and i.op in ("+", "-") and isinstance(i.a, IterVar) and isinstance(i.b, Const)
    ):
        return
    if i.a.reduce or i.a.extent != t.shape[d] or step * (i.b.value if i.op == "+" else -i.b.value) <= 0:
        return
    way, turn = ("first step to the last", "with") if step == 1 else ("last step to the first", "without")
    raise WorkloadError(
        f"{t!r}: {E.show(load)} is of a later step, as the scan goes from the {way}; read an earlier one, or "
        f"go the other way, {turn} reverse=True"
    )


def _ranges(e: Expr) -> dict[str, tuple[int, int]]:
    found: dict[str, tuple[int, int]] = {}
    for x in E.walk(e):
        if isinstance(x, IterVar):
            last = int(x.extent) - 1 if isinstance(x.extent, int) else MAX_EXTENT
            found[x.name] = (0, max(last, found.get(x.name, (0, 0))[1]))
        elif isinstance(x, Var):
            found[x.name] = (0, MAX_EXTENT)
    return found


def _stored(states: Sequence[Any], values: Sequence[Any]) -> list[Tensor]:
    """The values, known from now on as what the states are at each step."""
    if len(states) != len(values):
        raise WorkloadError(f"te.scan: {len(values)} values for {len(states)} states; give one for each")
    for s, v in zip(states, values, strict=True):
        if not isinstance(s, Tensor) or s.carry is None:
            raise WorkloadError(f"te.scan: {s!r} is no state; make it with te.state(shape, dtype, init)")
        if not isinstance(v, Tensor) or v.op is None:
            raise WorkloadError(f"te.scan: {v!r} is stored in {s!r}, and is no tensor of a te.compute")
        if list(map(repr, v.shape)) != list(map(repr, s.shape)) or v.dtype != s.dtype:
            raise WorkloadError(
                f"te.scan: {v!r} is stored in {s!r}; give them the same shape and dtype, with te.cast"
            )
        if s.carry.stored:
            raise WorkloadError(f"te.scan: {s!r} is stored already; make a state for each scan")
    for s, v in zip(states, values, strict=True):
        s.carry.stored.append(v)
    return list(values)


def _body(fn: Callable[..., Any], states: Sequence[Tensor], axes: Sequence[str]) -> Callable[..., Any]:
    """``fn`` of the axes alone, under their names."""

    def body(*at: Any) -> Any:
        return fn(*states, *at)

    own = [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in axes]
    body.__signature__ = inspect.Signature(own)  # type: ignore[attr-defined]
    return body


def _is_extent(x: Any) -> bool:
    return not isinstance(x, (Tensor, list, tuple))


def _names(name: str | Sequence[str] | None, n: int) -> list[str | None]:
    if name is None:
        return [None] * n
    if isinstance(name, str):
        return [name, *(f"{name}_{i}" for i in range(1, n))]
    return [*name, *[None] * n][:n]


def _dtypes(dtype: Any, n: int, shapes: Any, starts: Sequence[Any], label: str) -> list[tuple[str, ...]]:
    """The dtypes that states are tried in: those given, or what ``init`` says, or each."""
    if dtype is not None:
        each = (dtype,) * n if isinstance(dtype, str) else tuple(dtype)
        if len(each) != n:
            raise WorkloadError(f"te.scan: {len(each)} dtypes for {n} states; give one for each")
        return [each]
    said = []
    for shape, start in zip(shapes, starts, strict=True):
        if callable(start):
            parameters(start, len(shape), label, of=("the shape", "init"))
        v = start(*(IterVar(f"i{k}", e, False) for k, e in enumerate(shape))) if callable(start) else start
        known = isinstance(v, Expr) and E.dtype_of(v) != E.INDEX and E.loads(v)
        said.append(E.dtype_of(v) if isinstance(v, Expr) and known else None)
    every = ("float32", "float64", "int32", "int64", "float16", "bfloat16", "int8", "uint8", "bool")
    return list(dict.fromkeys(tuple(x or d for x in said) for d in every))


def axes_of(axis: Any, rank: int, what: str) -> tuple[int, ...]:
    """One axis or several as numbers from 0 on. Raises `WorkloadError`."""
    axes = tuple(axis) if isinstance(axis, (tuple, list)) else (axis,)
    if not axes or any(isinstance(a, bool) or not hasattr(a, "__index__") for a in axes):
        raise WorkloadError(f"{what}: axis={axis!r} is no axis; give a number, or several")
    if any(not -rank <= a < rank for a in axes):
        raise WorkloadError(f"{what}: axis={axis!r} is outside the {rank} dimensions")
    axes = tuple(int(a) % rank for a in axes)
    if len(set(axes)) != len(axes):
        raise WorkloadError(f"{what}: an axis stands twice in {axes}")
    return axes
