"""Refuses a reducer of a user's own that gives other results in another order or grouping, and a combine of a
scan that does so in another grouping.

Three values that the reduction may meet are reduced in several ways, on a few small whole numbers. That finds
most mistakes, and proves nothing. Equal numbers are not tried: of equals any may be the largest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from schedules import expr as E
from schedules.errors import WorkloadError
from schedules.expr import Expr, Load, Var
from schedules.loads import outside
from schedules.te.compute_dag import Reducer
from schedules.te.evaluator import BlockEvaluator, parts_of_value

Array = NDArray[Any]
Values = list[Array]  # a tuple that is reduced, in many cases at once
# Cases that are tried, and the largest number in them.
CASES, LARGEST = 64, 4
# How far results may be apart by rounding, as a part of the largest number of a case.
ROUNDING = 1e-6
# How the numbers of one value are ordered among each other. A reducer may rely on one of these orders: of a
# least and a largest, or of the two largest. It is refused if it fails with all of them.
ORDERS: tuple[Callable[[Array], Array], ...] = (
    lambda x: x,
    lambda x: np.sort(x, 0),
    lambda x: np.sort(x, 0)[::-1],
    lambda x: np.broadcast_to(x[:1], x.shape),
)


def check_any_order(reducer: Reducer, values: Sequence[Expr], axes: Sequence[Var]) -> None:
    """Raise `WorkloadError` if a reduction of ``values`` over ``axes`` depends on order or grouping."""
    fault = ""
    for ordered in ORDERS:
        try:
            with np.errstate(all="ignore"):
                fault = _fault(reducer, _met(values, axes, ordered))
        except WorkloadError:  # what has no value here
            return
        if not fault:
            return
    raise WorkloadError(
        f"te.{reducer.name} depends on order: {fault}. Schedules reduce parts in any order, each from the "
        "identity: let combine commute and be associative, break ties by values, and give an identity that "
        "changes nothing; what needs an order is no reduction: write a stage for each step"
    )


def check_associative(combine: Reducer) -> None:
    """Raise `WorkloadError` if a scan of values that are combined in this order depends on grouping."""
    rng = np.random.default_rng(0)
    fault = ""
    for ordered in ORDERS:
        drawn = [
            rng.permuted(np.tile(np.arange(1, LARGEST + 1), (CASES, 1)), axis=1).T for _ in combine.identity
        ]
        met = [
            [_number(ordered(x[:3])[n], c.dtype) for x, c in zip(drawn, combine.identity, strict=True)]
            for n in range(3)
        ]
        try:
            with np.errstate(all="ignore"):
                fault = _fault(combine, met, in_order=True)
        except WorkloadError:  # what has no value here
            return
        if not fault:
            return
    raise WorkloadError(
        f"te.{combine.name} depends on grouping: {fault}. Blocks are combined apart, and then together: let "
        "combine be associative, and give an identity that changes nothing on either side; what must be "
        "done step by step is te.scan"
    )


def _fault(reducer: Reducer, abc: list[Values], in_order: bool = False) -> str:
    """A case in which another way to reduce gives another result, or nothing. ``in_order``: ways that keep
    the order of the values."""
    a, b, c = abc
    start = [np.broadcast_to(_wide(x.value, x.dtype), (CASES,)) for x in reducer.identity]

    def join(x: Values, y: Values) -> Values:
        env = {f"{p}{n}": v for p, xs in (("x", x), ("y", y)) for n, v in enumerate(xs)}
        scope = BlockEvaluator(reducer.name, {}, env, wide=True)
        return [np.broadcast_to(scope.value(e), (CASES,)) for e in reducer.combine]

    def of(*xs: Values) -> Values:
        out = start
        for x in xs:
            out = join(out, x)
        return out

    def ways() -> Iterator[tuple[str, Values, str, Values]]:
        if in_order:
            yield "a", a, "joined with the identity before it", of(a)
            yield "a", a, "joined with the identity behind it", join(a, start)
            yield (
                "a joined with b, then with c,",
                join(join(a, b), c),
                "a joined with b and c",
                join(a, join(b, c)),
            )
            return
        want = of(a, b, c)
        yield "", want, "in the order b, a, c", of(b, a, c)
        yield "", want, "in the order c, b, a", of(c, b, a)
        yield "", want, "a joined with b and c", join(of(a), of(b, c))
        yield "", want, "b and c joined with a", join(of(b, c), of(a))

    for first, want, how, got in ways():
        n = _first_apart(want, got, [*a, *b, *c])
        if n is not None:
            shown = ", ".join(f"{name} = {_shown(x, n)}" for name, x in zip("abc", abc, strict=True))
            said = f"{shown}: {first} gives" if first else f"{shown} give"
            return f"{said} {_shown(want, n)}, but {how} {_shown(got, n)}"
    return ""


def _first_apart(want: Values, got: Values, given: Values) -> int | None:
    """The first case in which results differ by more than rounding, among those that are finite."""
    every = np.stack([np.broadcast_to(x, (CASES,)).astype(np.float64) for x in (*want, *got, *given)])
    usable = np.isfinite(every).all(0)
    near = ROUNDING * (1 + np.abs(np.where(usable, every, 0)).max(0))
    apart = np.zeros(CASES, bool)
    for x, y in zip(want, got, strict=True):
        same = np.abs(x.astype(np.float64) - y) <= near if x.dtype.kind == "f" else x == y
        apart |= usable & ~same
    return int(np.argmax(apart)) if apart.any() else None


def _met(values: Sequence[Expr], axes: Sequence[Var], ordered: Callable[[Array], Array]) -> list[Values]:
    """Three values of one reduction. They differ in its axes and in what is read along these."""
    rng = np.random.default_rng(0)
    reduced = {a.name for a in axes}
    loads = list(dict.fromkeys(x for v in values for x in outside(v) if isinstance(x, Load)))
    names = {x.name for v in values for x in E.walk(v) if isinstance(x, Var)} | reduced
    still = dict(zip(loads, rng.integers(1, LARGEST + 1, (len(loads), CASES)), strict=True))
    place = dict.fromkeys(names, rng.integers(1, LARGEST + 1, CASES))
    # No place is met twice, and no number of one load.
    turns = rng.permuted(np.tile(np.arange(3), (CASES, 1)), axis=1).T
    drawn = rng.permuted(np.tile(np.arange(1, LARGEST + 1), (len(loads), CASES, 1)), axis=2)
    out = []
    for n, turn in enumerate(turns):
        moving = dict(zip(loads, ordered(drawn[:, :, n]), strict=True))
        found = {x: (moving if E.variables(x) & reduced else still)[x] for x in loads}
        scope = _Drawn(place | dict.fromkeys(reduced, turn), found)
        out.append([np.broadcast_to(scope.value(v), (CASES,)) for v in values])
    return out


def _drawn_parts(e: Expr) -> tuple[Expr, ...]:
    return () if isinstance(e, Load) else parts_of_value(e)


class _Drawn(BlockEvaluator):
    """Evaluates an expression whose loads have numbers that were drawn, wherever they read."""

    parts = staticmethod(_drawn_parts)

    def __init__(self, points: dict[str, Array], found: dict[Load, Array]) -> None:
        super().__init__("reducer", points, {}, wide=True)
        self.found = found

    def load(self, e: Load, at: tuple[Any, ...]) -> Array:
        return _number(self.found[e], e.dtype)


def _number(x: Array, dtype: str) -> Array:
    """What was drawn, in a dtype."""
    return x % 2 == 1 if dtype == "bool" else _wide(x, dtype)


def _wide(x: Any, dtype: str) -> Array:
    return np.asarray(x).astype(np.float64 if E.is_float(dtype) else dtype)


def _shown(x: Values, n: int) -> str:
    numbers = [f"{float(np.broadcast_to(v, (CASES,))[n]):.6g}" for v in x]
    return numbers[0] if len(numbers) == 1 else f"({', '.join(numbers)})"
