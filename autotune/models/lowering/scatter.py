"""Writes to places that are data, stated as reads: every element asks which of the updates are for it.

So nothing is written twice, and results do not depend on an order. Work is the number of elements times that
of the updates that each asks. Of several updates of one place the last one stays, unless they are folded.
An update whose place is outside is dropped; a place below 0 counts from the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from autotune.models.lowering.base import UnsupportedForm, cast, number, stage
from autotune.models.lowering.indexing import from_end
from autotune.models.lowering.movement import reshape
from autotune.models.lowering.reduction import cumulative
from schedules import te
from schedules.dtypes import computed
from schedules.expr import Expr, ExprLike
from schedules.ops.axes import broadcast
from schedules.te.scalars import limit
from schedules.te.tensors import IterVar

# Most comparisons of elements with updates.
MOST = 2**32


@dataclass(frozen=True)
class Fold:
    """What is made of the updates of one place. ``kind``: "last", "add", "mul", "max", "min" or "mean".
    ``own``: the element that was there is one of them."""

    kind: str
    own: bool = True

    def of(self, value: Expr, found: Expr, axis: Sequence[IterVar], dtype: str) -> te.Reduction:
        """Of the updates that are found."""
        if self.kind in ("add", "mean"):
            return te.sum(te.select(found, value, number(0, dtype)), axis=tuple(axis))
        if self.kind == "mul":
            return te.prod(te.select(found, value, number(1, dtype)), axis=tuple(axis))
        if self.kind == "max":
            return te.max(te.select(found, value, limit(dtype, -1)), axis=tuple(axis))
        return te.min(te.select(found, value, limit(dtype, 1)), axis=tuple(axis))

    def with_own(self, own: Expr, all_: Expr) -> Expr:
        """What was there and the updates together."""
        match self.kind:
            case "add" | "mean":
                return own + all_
            case "mul":
                return own * all_
            case "max":
                return te.maximum(own, all_)
        return te.minimum(own, all_)


LAST = Fold("last")
# found(index of an element, index of an update): whether the update is for the element.
Found = Callable[[Sequence[Expr], Sequence[ExprLike]], Expr]
# value(index of an element, index of an update): what the update writes there.
Written = Callable[[Sequence[Expr], Sequence[ExprLike]], Expr]


def afford(elements: int, updates: int) -> None:
    """Raise UnsupportedForm for more comparisons than an expression has."""
    if elements * updates > MOST:
        raise UnsupportedForm(
            f"its {elements} elements would each be compared with {updates} updates, more than {MOST} "
            "comparisons"
        )


@dataclass(frozen=True)
class _Updates:
    """Updates of ``x``. ``shape``: of the part of it that may be updated. ``inside``: conditions for an
    element to be in it. ``extents``: of what every element asks, with reduction axes ``over`` and the index
    ``u`` of an update."""

    x: te.Tensor
    shape: Sequence[int]
    inside: Callable[[Sequence[Expr]], Sequence[Expr]]
    extents: Sequence[int]
    found: Found
    written: Written
    over: Sequence[IterVar]
    u: Sequence[ExprLike]

    def value(self, at: Sequence[Expr], index: Sequence[ExprLike], dtype: str) -> Expr:
        """What an update writes."""
        return te.cast(self.written(at, index), dtype)

    def finish(
        self, value: Callable[[Sequence[Expr]], Expr], there: Callable[[Sequence[Expr]], Expr | None]
    ) -> te.Tensor:
        """``x`` with new values where they are there, everywhere for None."""

        def out(*at: Expr) -> Expr:
            made = te.cast(value(at), self.x.dtype)
            if (cond := there(at)) is not None:
                made = te.select(cond, made, self.x[at])
            part = self.inside(at)
            return te.select(te.all(*part), made, self.x[at]) if part else made

        return stage(self.x.shape, out, "scatter")


def _updated(
    x: te.Tensor, shape: Sequence[int], inside: Callable[[Sequence[Expr]], Sequence[Expr]],
    updates: Sequence[int], found: Found, written: Written, fold: Fold,
) -> te.Tensor:  # fmt: skip
    """``x`` with updates; the arguments are those of `_Updates`."""
    afford(math.prod(shape), math.prod(updates))
    over = [te.reduce_axis(n, f"r{d}") for d, n in enumerate(updates) if n > 1]
    rest = iter(over)
    u: list[ExprLike] = [next(rest) if n > 1 else 0 for n in updates]
    all_ = _Updates(x, shape, inside, updates, found, written, over, u)
    return _with_last(all_) if fold.kind == "last" else _with_folded(all_, fold)


def _with_last(us: _Updates) -> te.Tensor:
    """Of the updates of a place the last one."""
    dtype = computed_of(us.x)
    if not us.over:
        return us.finish(lambda at: us.value(at, us.u, dtype), lambda at: us.found(at, us.u))
    flat: ExprLike = 0
    for i, n in zip(us.u, us.extents, strict=True):
        flat = flat * n + i if n > 1 else flat

    def last(*at: Expr) -> te.Reduction:
        chosen = te.select(us.found(at, us.u), te.cast(flat, "int32"), te.const(-1, "int32"))
        return te.max(chosen, axis=tuple(us.over))

    latest = stage(us.shape, last, "latest")

    def of_latest(at: Sequence[Expr]) -> Expr:
        place = te.maximum(latest[tuple(at)], 0)
        index: list[ExprLike] = [0] * len(us.extents)
        for d in reversed([d for d, n in enumerate(us.extents) if n > 1]):
            index[d], place = place % us.extents[d], place // us.extents[d]
        return us.value(at, index, dtype)

    return us.finish(of_latest, lambda at: latest[tuple(at)] >= 0)


def _with_folded(us: _Updates, fold: Fold) -> te.Tensor:
    """All updates of a place as one."""
    wide = computed(us.x.dtype) if us.x.dtype != "bool" else "int32"
    one, none = te.const(1, "int32"), te.const(0, "int32")

    def all_of(*at: Expr) -> te.Reduction:
        return fold.of(us.value(at, us.u, wide), us.found(at, us.u), us.over, wide)

    def one_of(*at: Expr) -> Expr:
        neutral = {"add": 0, "mean": 0, "mul": 1}.get(fold.kind)
        other = number(neutral, wide) if neutral is not None else limit(wide, -1 if fold.kind == "max" else 1)
        return te.select(us.found(at, us.u), us.value(at, us.u, wide), other)

    def counted(*at: Expr) -> Expr | te.Reduction:
        mine = te.select(us.found(at, us.u), one, none)
        return te.sum(mine, axis=tuple(us.over)) if us.over else mine

    total = stage(us.shape, all_of if us.over else one_of, fold.kind)
    counts = stage(us.shape, counted, "count") if fold.kind == "mean" or not fold.own else None

    def value(at: Sequence[Expr]) -> Expr:
        t = total[tuple(at)]
        made = fold.with_own(te.cast(us.x[tuple(at)], wide), t) if fold.own else t
        if fold.kind == "mean":
            assert counts is not None
            n = counts[tuple(at)] + (1 if fold.own else 0)
            made = made / te.cast(te.maximum(n, 1), wide)
        return made

    return us.finish(value, lambda at: None if counts is None else counts[tuple(at)] > 0)


def computed_of(x: te.Tensor) -> str:
    return x.dtype if x.dtype == "bool" else computed(x.dtype)


def scatter_elements(
    x: te.Tensor, ids: te.Tensor, src: te.Tensor | Expr, axis: int, fold: Fold = LAST
) -> te.Tensor:
    """Each element of ``src`` goes to the same place in ``x``, but for the place along an axis, which ``ids``
    has: numpy's put_along_axis. ``src`` may be one number. Raises ValueError for shapes that do not fit."""
    if len(ids.shape) != len(x.shape) or any(
        n > m for d, (n, m) in enumerate(zip(ids.shape, x.shape, strict=True)) if d != axis
    ):
        raise ValueError(f"indices of {list(ids.shape)} for data of {list(x.shape)} along axis {axis}")
    shape = [x.shape[axis] if d == axis else n for d, n in enumerate(ids.shape)]

    def inside(at: Sequence[Expr]) -> list[Expr]:
        return [at[d] < n for d, n in enumerate(shape) if n < x.shape[d]]

    def index(at: Sequence[Expr], u: Sequence[ExprLike]) -> tuple[ExprLike, ...]:
        return (*at[:axis], u[0], *at[axis + 1 :])

    def found(at: Sequence[Expr], u: Sequence[ExprLike]) -> Expr:
        return te.equal(from_end(ids[index(at, u)], x.shape[axis]), te.cast(at[axis], ids.dtype))

    def written(at: Sequence[Expr], u: Sequence[ExprLike]) -> Expr:
        return src[index(at, u)] if isinstance(src, te.Tensor) else src

    return _updated(x, shape, inside, [ids.shape[axis]], found, written, fold)


def scatter_slices(
    x: te.Tensor, ids: Sequence[tuple[int, te.Tensor]], src: te.Tensor, outer: Sequence[int], first: int,
    fold: Fold = LAST,
) -> te.Tensor:  # fmt: skip
    """numpy's ``x[..., ids, ...] = src``. ``ids`` has tensors for some axes of ``x``, which broadcast to
    ``outer``. ``src`` broadcasts to the shape of ``x`` without these axes, with ``outer`` at ``first``."""
    where = [d for d, _ in ids]
    kept = [d for d in range(len(x.shape)) if d not in where]

    def found(at: Sequence[Expr], u: Sequence[ExprLike]) -> Expr:
        return te.all(
            *(
                te.equal(from_end(t[broadcast(t.shape, u)], x.shape[d]), te.cast(at[d], t.dtype))  # type: ignore[arg-type]
                for d, t in ids
            )
        )

    def written(at: Sequence[Expr], u: Sequence[ExprLike]) -> Expr:
        rest = [at[d] for d in kept]
        return src[broadcast(src.shape, [*rest[:first], *u, *rest[first:]])]  # type: ignore[list-item]

    return _updated(x, x.shape, lambda at: [], outer, found, written, fold)


def scatter_nd(x: te.Tensor, ids: te.Tensor, src: te.Tensor, fold: Fold = LAST) -> te.Tensor:
    """ONNX's ScatterND: the last axis of ``ids`` indexes the first axes of ``x``, and ``src`` has what is
    written there. Raises ValueError for shapes that do not fit."""
    depth, outer = ids.shape[-1], ids.shape[:-1]
    if depth > len(x.shape) or src.shape != (*outer, *x.shape[depth:]):
        raise ValueError(
            f"updates of {list(src.shape)} at indices of {list(ids.shape)} for data of {list(x.shape)}"
        )

    def found(at: Sequence[Expr], u: Sequence[ExprLike]) -> Expr:
        return te.all(
            *(te.equal(from_end(ids[(*u, d)], x.shape[d]), te.cast(at[d], ids.dtype)) for d in range(depth))
        )

    def written(at: Sequence[Expr], u: Sequence[ExprLike]) -> Expr:
        return src[(*u, *at[depth:])]

    return _updated(x, x.shape, lambda at: [], outer, found, written, fold)


def masked_scatter(x: te.Tensor, mask: te.Tensor, src: te.Tensor) -> te.Tensor:
    """``x`` where the mask is not set, and the elements of ``src`` in order where it is."""
    size = math.prod(x.shape)
    flat = reshape(cast(mask, "int32"), (size,))
    before = reshape(cumulative(flat, 0, True, False, te.sum, 0), x.shape)
    row = reshape(src, (math.prod(src.shape),))

    def value(*at: Expr) -> Expr:
        return te.cast(te.select(mask[at], row[before[at]], x[at]), x.dtype)

    return stage(x.shape, value, "masked_scatter")
