"""A quotient of a quotient is one division, and what it was."""

from __future__ import annotations

import numpy as np

from schedules import expr as E
from schedules import te
from schedules.expr import Const, Expr, Var
from schedules.ir.interp_grid import run_grid
from schedules.passes.nested_divisions import divided_once
from schedules.passes.simt import lower_simt
from schedules.schedule import Schedule

T = Var("t")


def at(e: Expr, t: int) -> int:
    x = E.substitute(e, {"t": Const(t)})
    assert isinstance(x, Const)
    return int(x.value)


def test_quotients_of_quotients_are_one() -> None:
    e = T // 2 // 3 // 4 % 5 * 64 + T // 2
    assert E.show(divided_once(e)) == "t // 24 % 5 * 64 + t // 2"
    assert all(at(e, t) == at(divided_once(e), t) for t in range(-300, 300, 7))


def test_what_may_be_below_zero_stays() -> None:
    for e in (T // -2 // -3, T // 2 // Var("n"), T // 2 % 3 // 2):
        assert divided_once(e) == e


def test_kernels_of_several_fused_axes_compute_the_same() -> None:
    x = te.placeholder((3, 4, 5, 6), "float32", name="x")
    s = Schedule(te.dag([x, te.compute((3, 4, 5, 6), lambda a, b, c, d: x[a, b, c, d] * 2.0, name="y")]))
    block, *rest = s.loops("y")
    s.bind(block, "blockIdx.x")
    s.bind(s.fuse(*rest), "threadIdx.x")
    p = lower_simt(s.nest)
    data = np.arange(360, dtype="float32").reshape(3, 4, 5, 6)
    arrays = {"x": data, "y": np.full_like(data, np.nan)}
    run_grid(p, arrays)
    assert np.array_equal(arrays["y"], data * 2)
