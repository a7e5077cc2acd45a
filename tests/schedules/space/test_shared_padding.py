"""A padded copy that several products read is made once, before all of them."""

from __future__ import annotations

import numpy as np
import pytest
from helpers import expected, inputs, interpret
from space_cases import target

from schedules import te
from schedules.ops.axes import named
from schedules.ops.window import pad
from schedules.schedule import Schedule
from schedules.space.derive import derive
from schedules.te.compute_dag import ComputeDAG


def two_windows() -> ComputeDAG:
    x = te.placeholder((1, 3, 4, 2), "float32", "x")
    z = pad(x, [(1, 1), (1, 1)], 0, "NHWC", "hw")
    outs = []
    for k in (2, 3):
        w = te.placeholder((k, k, 2, 8), "float32", f"w{k}")
        r, s, c = (te.reduce_axis(n, t) for n, t in ((k, "r"), (k, "s"), (2, "c")))
        shape = (1, 6 - k, 7 - k, 8)

        def value(n, p, q, o, w=w, r=r, s=s, c=c):
            return te.sum(z[n, p + r, q + s, c] * w[r, s, c, o], axis=(r, s, c))

        outs.append(te.compute(shape, named("npqo", value), f"y{k}"))
    return te.dag([*te.inputs(outs), *outs])


@pytest.mark.slow
def test_products_share_a_padded_copy() -> None:
    dag = two_windows()
    space = derive(dag, target())
    copied = [k for k, name in enumerate(space.sketches) if "pad=copy" in name]
    data = inputs(dag)
    want = expected(dag, data)
    for k in copied[:1] + copied[-1:]:
        rows = space.sample(k, 8, np.random.default_rng(0))
        s = Schedule.replay(dag, space.trace(k, rows[space.valid(k, rows)][0]), space.target)
        assert s.blocks().count("pad") == 1
        for got, w in zip(interpret(s.nest, dag, data), want, strict=True):
            np.testing.assert_array_equal(got, w)
    assert copied


@pytest.mark.slow
def test_products_of_one_weight_each_pack_it() -> None:
    x, y = (te.placeholder((17, 24), "float32", name) for name in "xy")
    w = te.placeholder((24, 32), "float32", "w")
    k, r = te.reduce_axis(24, "k"), te.reduce_axis(24, "r")
    a = te.compute((17, 32), lambda i, j: te.sum(x[i, k] * w[k, j], axis=k), "a")
    b = te.compute((17, 32), lambda i, j: te.sum(y[i, r] * w[r, j], axis=r), "b")
    dag = te.dag([x, y, w, te.compute((17, 32), lambda i, j: a[i, j] + b[i, j], "c")])
    space = derive(dag, target())
    packed = [k for k, name in enumerate(space.sketches) if "pack=root" in name]
    assert packed
    data = inputs(dag)
    for k in packed:
        rows = space.sample(k, 8, np.random.default_rng(0))
        s = Schedule.replay(dag, space.trace(k, rows[space.valid(k, rows)][0]), space.target)
        for got, want in zip(interpret(s.nest, dag, data), expected(dag, data), strict=True):
            np.testing.assert_array_equal(got, want)
