"""Associative scans: each element combined with all before it, in one chain or in blocks. `schedules.te`
exports `associative_scan`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from schedules import expr as E
from schedules.errors import WorkloadError
from schedules.expr import Const, Expr
from schedules.te import language
from schedules.te.any_order import check_associative
from schedules.te.compute_dag import Reducer
from schedules.te.extent import written
from schedules.te.language import compute, output_names, reduce_axis, reducer_of
from schedules.te.recurrences import axes_of, scan, state
from schedules.te.scalars import cast, const, limit, select
from schedules.te.tensors import Tensor

Values = tuple[Expr, ...]
# Operations that are known to be associative: their sums over an axis, and what changes nothing in a dtype.
KNOWN: dict[str, tuple[Callable[..., Any], Callable[[str], Any]]] = {
    "+": (language.sum, lambda d: 0),
    "*": (language.prod, lambda d: 1),
    "max": (language.max, lambda d: limit(d, -1).value),
    "min": (language.min, lambda d: limit(d, 1).value),
}


def associative_scan(
    combine: Callable[[Any, Any], Any], values: Any, axis: int = 0, reverse: bool = False,
    exclusive: bool = False, identity: Any = None, block: int | None = None,
    name: str | Sequence[str] | None = None,
) -> Any:  # fmt: skip
    """The elements of ``values`` along ``axis``, each combined with all before it:
    ``y[t] = combine(y[t - 1], values[t])``, in this order.

    ``values``: a tensor, or a tuple of tensors of one shape. ``combine(x, y)``: joins two elements, or two
    tuples of them, to one. It must be associative, and need not commute. It is tried on a few small numbers.
    ``identity``: what changes nothing on either side, a number or a tuple of them; None stands for that of
    ``+``, ``*``, `maximum` and `minimum`. ``reverse``: from the last element to the first. ``exclusive``:
    without the element itself, so that the first is the identity. Returns a tensor or a tuple of them, of the
    shape of ``values`` and the dtypes that these are computed with.

    ``block``: how many elements are combined one after another. What each block is as a whole is combined
    before, so that blocks run in parallel: elements are read twice, and floats are rounded in another order.
    None: all of them are one block.

    Raises `WorkloadError` for a combine that is not associative: the message shows the values.

    A linear recurrence, ``y[t] = a[t] * y[t - 1] + b[t]``, is a scan of pairs:

    >>> a, b = te.placeholder((6,), name="a"), te.placeholder((6,), name="b")
    >>> def then(x, y):
    ...     return x[0] * y[0], x[1] * y[0] + y[1]
    >>> _, y = te.associative_scan(then, (a, b), identity=(1.0, 0.0), block=3)
    >>> te.evaluate(te.dag([a, b, y]), [np.full(6, 0.5, "float32"), np.ones(6, "float32")])[0][:3]
    array([1.  , 1.5 , 1.75], dtype=float32)
    """
    order = Order(axis, reverse, exclusive)
    return scan_of("associative_scan", combine, values, order, identity, block, name or "scan")


def scan_of(
    what: str, combine: Callable[[Any, Any], Any], values: Any, order: Order, identity: Any,
    block: int | None, name: str | Sequence[str], dtype: str | None = None,
) -> Any:  # fmt: skip
    """`associative_scan` under the name ``te.what``, of values as ``dtype``."""
    many = isinstance(values, (tuple, list))
    given = tuple(values) if many else (values,)
    for x in given:
        if not isinstance(x, Tensor) or x.carry is not None:
            raise WorkloadError(f"te.{what} takes a tensor, got {x!r}; of elements make one with te.compute")
    if not given or any(list(map(repr, x.shape)) != list(map(repr, given[0].shape)) for x in given):
        shapes = " and ".join(str(list(x.shape)) for x in given) or "none"
        raise WorkloadError(f"te.{what} takes tensors of one shape, got {shapes}; make them with te.compute")
    shape = given[0].shape
    (d,) = axes_of(order.axis, len(shape), f"te.{what}")

    def join(x: Values, y: Values) -> Any:
        return combine(x, y) if many else combine(x[0], y[0])

    def element(*at: Any) -> Values:
        return tuple(E.widen(v if dtype is None else cast(v, dtype)) for v in (E.widen(x[at]) for x in given))

    dtypes = [E.dtype_of(v) for v in element(*(Const(0) for _ in shape))]
    f = _reducer(what, dtypes, identity if many or identity is None else (identity,), join)
    names = tuple(map(str, output_names(name, len(given))))
    order = replace(order, axis=d)
    if block is not None and (isinstance(block, bool) or not isinstance(block, int) or block < 1):
        raise WorkloadError(f"te.{what}: block={block!r} is no number of elements; give one from 1 on")
    if block is not None and not isinstance(shape[d], int):
        raise WorkloadError(f"te.{what}: block={block} along an axis that varies; leave block out there")
    if block is None or block >= shape[d]:
        made = _along(f, shape, element, order, names)
    else:
        made = _in_blocks(f, shape, element, order, block, names)
    return made if many else made[0]


# --- parts ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Order:
    """Along which dimension elements are combined, from which end, and whether with the element itself."""

    axis: int
    reverse: bool
    exclusive: bool

    def end(self, extent: Any) -> Any:
        """The first index that is combined."""
        return written(extent) - 1 if self.reverse else 0


def _reducer(
    what: str, dtypes: Sequence[str], identity: Any, join: Callable[[Values, Values], Any]
) -> Reducer:
    """How values of ``dtypes`` are joined, tried where it is no operation that is known."""
    f = reducer_of(what, dtypes, [0] * len(dtypes) if identity is None else identity, join)
    if identity is None:
        if not f.apart:
            raise WorkloadError(
                f"te.{what}: what combine does is none of +, *, maximum and minimum; say with identity= what "
                "changes nothing on either side"
            )
        return replace(f, identity=tuple(const(KNOWN[f.operation(n)][1](d), d) for n, d in enumerate(dtypes)))
    check_associative(f)
    return f


def _along(
    f: Reducer, shape: Sequence[Any], element: Callable[..., Values], order: Order, names: Sequence[str],
    start: Callable[..., Values] | None = None, together: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Elements combined one after another. ``start``: what comes before the first, of the indices; by default
    what changes nothing. ``together``: whether all values are wanted, else each that can be is a scan of its
    own."""
    d, step = order.axis, -1 if order.reverse else 1
    first: Callable[..., Values] = start or (lambda *_: f.identity)
    found: dict[int, Tensor] = {}
    for part in [tuple(range(len(names)))] if together else parts(f):
        states = {
            n: state(shape, f.identity[n].dtype, lambda *at, n=n: first(*at)[n], d, names[n], order.reverse)
            for n in part
        }

        def value(*at: Any) -> Any:
            before = (*at[:d], at[d] - step, *at[d + 1 :])
            own = {n: x[before] for n, x in states.items()}  # noqa: B023
            earlier = tuple(own.get(n, c) for n, c in enumerate(f.identity))
            joined = f.apply(earlier, element(*(before if order.exclusive else at)))
            if not order.exclusive:
                return _one([joined[n] for n in part])  # noqa: B023
            begins = E.compare("==", at[d], order.end(shape[d]))
            return _one([select(begins, first(*at)[n], joined[n]) for n in part])  # noqa: B023

        made = compute(shape, value, [names[n] for n in part])
        stored = scan(list(states.values()), made if isinstance(made, tuple) else (made,))
        found |= zip(part, stored, strict=True)
    return tuple(found[n] for n in range(len(names)))


def parts(f: Reducer) -> list[tuple[int, ...]]:
    """The values that a scan carries on, apart from those that do not depend on them: so those that nobody
    asks for are not computed."""
    found = [{n} for n in range(len(f.combine))]
    for n, c in enumerate(f.combine):
        met = {n} | {m for m in range(len(f.combine)) if any(x.buffer == f"x{m}" for x in E.loads(c))}
        found = [x for x in found if not x & met] + [set().union(*(x for x in found if x & met))]
    return [tuple(sorted(x)) for x in sorted(found, key=min)]


def _in_blocks(
    f: Reducer, shape: Sequence[Any], element: Callable[..., Values], order: Order, block: int,
    names: Sequence[str],
) -> tuple[Tensor, ...]:  # fmt: skip
    """Each block combined from what all blocks before it are together: these are combined first."""
    d, extent = order.axis, shape[order.axis]
    count = -(-extent // block)

    def padded(*at: Any) -> Values:  # of a block and a place in it
        i = at[d] * block + at[d + 1]
        found = element(*at[:d], i, *at[d + 2 :])
        if extent % block == 0:
            return found
        return tuple(select(i < extent, v, c) for v, c in zip(found, f.identity, strict=True))

    def called(end: str) -> list[str]:
        return [f"{n}_{end}" for n in names]

    blocks = (*shape[:d], count, *shape[d + 1 :])
    cut = (*shape[:d], count, block, *shape[d + 1 :])
    within = replace(order, axis=d + 1)
    if len(names) == 1 and f.operation(0):  # in any order
        fold, k = KNOWN[f.operation(0)][0], reduce_axis(block, "k")
        totals = compute(
            blocks, lambda *at: fold(padded(*at[: d + 1], k, *at[d + 1 :])[0], axis=k), called("total")
        )
    else:
        each = _along(f, cut, padded, replace(within, exclusive=False), called("fold"), together=True)
        last = 0 if order.reverse else block - 1
        totals = compute(
            blocks, lambda *at: _one([x[(*at[: d + 1], last, *at[d + 1 :])] for x in each]), called("total")
        )
    wholes = totals if isinstance(totals, tuple) else (totals,)
    before = _along(
        f, blocks, lambda *at: tuple(x[at] for x in wholes), replace(order, exclusive=True), called("before")
    )
    inside = _along(
        f, cut, padded, within, called("block"),
        lambda *at: tuple(x[(*at[: d + 1], *at[d + 2 :])] for x in before),
    )  # fmt: skip
    return tuple(
        compute(shape, lambda *at, x=x: x[(*at[:d], at[d] // block, at[d] % block, *at[d + 1 :])], n)
        for n, x in zip(names, inside, strict=True)
    )


def _one(values: Sequence[Expr]) -> Any:
    """Values of a stage, of which one stands alone."""
    return tuple(values) if len(values) > 1 else values[0]
