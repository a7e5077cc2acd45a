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


def _updated(
    x: te.Tensor, shape: Sequence[int], inside: Callable[[Sequence[Expr]], Sequence[Expr]],
    updates: Sequence[int], found: Found, written: Written, fold: Fold,
) -> te.Tensor:  # fmt: skip
    """``x`` with updates. ``shape``: of the part of ``x`` that may be updated. ``inside``: conditions for an
    element to be in it. ``updates``: extents of what every element asks."""
    afford(math.prod(shape), math.prod(updates))
    wide = computed(x.dtype) if x.dtype != "bool" else "int32"
    over = [te.reduce_axis(n, f"r{d}") for d, n in enumerate(updates) if n > 1]
    rest = iter(over)
    u: list[ExprLike] = [next(rest) if n > 1 else 0 for n in updates]
    one, none = te.const(1, "int32"), te.const(0, "int32")

    def folded(value: Callable[..., te.Reduction], plain: Callable[..., Expr], name: str) -> te.Tensor:
        return stage(shape, value if over else plain, name)

    def finish(
        value: Callable[[Sequence[Expr]], Expr], there: Callable[[Sequence[Expr]], Expr | None]
    ) -> te.Tensor:
        def out(*at: Expr) -> Expr:
            made = te.cast(value(at), x.dtype)
            if (cond := there(at)) is not None:
                made = te.select(cond, made, x[at])
            part = inside(at)
            return te.select(te.all(*part), made, x[at]) if part else made

        return stage(x.shape, out, "scatter")

    if fold.kind == "last":
        number_of: ExprLike = 0
        for i, n in zip(u, updates, strict=True):
            number_of = number_of * n + i if n > 1 else number_of

        def last(*at: Expr) -> te.Reduction:
            chosen = te.select(found(at, u), te.cast(number_of, "int32"), te.const(-1, "int32"))
            return te.max(chosen, axis=tuple(over))

        if not over:
            return finish(lambda at: te.cast(written(at, u), computed_of(x)), lambda at: found(at, u))
        latest = stage(shape, last, "latest")

        def of_latest(at: Sequence[Expr]) -> Expr:
            flat = te.maximum(latest[tuple(at)], 0)
            index: list[ExprLike] = [0] * len(updates)
            for d in reversed([d for d, n in enumerate(updates) if n > 1]):
                index[d], flat = flat % updates[d], flat // updates[d]
            return te.cast(written(at, index), computed_of(x))

        return finish(of_latest, lambda at: latest[tuple(at)] >= 0)

    def all_of(*at: Expr) -> te.Reduction:
        return fold.of(te.cast(written(at, u), wide), found(at, u), over, wide)

    def one_of(*at: Expr) -> Expr:
        neutral = {"add": 0, "mean": 0, "mul": 1}.get(fold.kind)
        other = number(neutral, wide) if neutral is not None else limit(wide, -1 if fold.kind == "max" else 1)
        return te.select(found(at, u), te.cast(written(at, u), wide), other)

    total = folded(all_of, one_of, fold.kind)
    counts = None
    if fold.kind == "mean" or not fold.own:
        counts = folded(
            lambda *at: te.sum(te.select(found(at, u), one, none), axis=tuple(over)),
            lambda *at: te.select(found(at, u), one, none),
            "count",
        )

    def value(at: Sequence[Expr]) -> Expr:
        own = te.cast(x[tuple(at)], wide)
        t = total[tuple(at)]
        made = fold.with_own(own, t) if fold.own else t
        if fold.kind == "mean":
            assert counts is not None
            n = counts[tuple(at)] + (1 if fold.own else 0)
            made = made / te.cast(te.maximum(n, 1), wide)
        return made

    def there(at: Sequence[Expr]) -> Expr | None:
        return None if counts is None else counts[tuple(at)] > 0

    return finish(value, there)


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
