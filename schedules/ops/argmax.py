"""argmax and argmin, as numpy's: of equal elements the first, and NaN beats all numbers.

The first reduction finds the extreme of a row, the second the least place where it stands. Each is a
reduction of one value, which runs in vectors and gives the same in any order. The second finds the row in the
cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from schedules import te
from schedules.expr import Expr
from schedules.ops.base import Array, Operator, Param, Params, Types


def _operator(name: str, doc: str, extreme: Callable[..., te.Reduction]) -> Operator:
    def build(p: Params, types: Types, layout: str | None) -> list[te.Tensor]:
        m, n = p["m"], p["n"]
        x = te.placeholder((m, n), types.input, "x")
        k, r = te.reduce_axis(n, "k"), te.reduce_axis(n, "k")
        end = te.compute((m,), lambda i: extreme(x[i, k], axis=k), f"row_{extreme.__name__}")

        def place(i: Expr) -> Expr:
            """The place of an element if it is the extreme. If the extreme is NaN, of each element that is
            NaN."""
            v = x[i, r]
            found = te.any(te.equal(v, end[i]), te.not_equal(v, v))
            return te.select(found, te.cast(r, "int32"), te.max_value("int32"))

        return [x, te.compute((m,), lambda i: te.min(place(i), axis=r), "y")]

    def reference(p: Params, types: Types, layout: str | None, inputs: Sequence[Array]) -> list[Array]:
        return [getattr(np, name)(inputs[0], axis=1).astype(np.int32)]

    return Operator(
        name,
        doc,
        (Param("m", "rows"), Param("n", "columns, searched", maximum=2**31 - 1)),
        build,
        reference,
        lambda p: int(p["m"] * p["n"]),
    )


ARGMAX = _operator(
    "argmax",
    "x(m,n) → int32 (m,): the place of each row's largest element, of equals the first; of NaN the first",
    te.max,
)
ARGMIN = _operator(
    "argmin",
    "x(m,n) → int32 (m,): the place of each row's least element, of equals the first; of NaN the first",
    te.min,
)
