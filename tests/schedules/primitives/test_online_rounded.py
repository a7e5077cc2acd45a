"""online_rounded: a maximum and its sums in one pass, where weights are rounded to bfloat16."""

from __future__ import annotations

import numpy as np
import pytest

from schedules import ops, te
from schedules.errors import ScheduleError
from schedules.expr import Call, Cast, Const, Load
from schedules.ir import interp
from schedules.rescaling import degree
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG


def weights(dtype: str) -> ComputeDAG:
    """``o[i] = sum over j of dtype(exp(x[i, j] - max of row i)) * v[j]``."""
    x, v = te.placeholder((4, 24), "float32", "x"), te.placeholder((24,), "float32", "v")
    k, j = te.reduce_axis(24, "k"), te.reduce_axis(24, "j")
    m = te.compute((4,), lambda i: te.max(x[i, k], axis=k), "m")
    e = te.compute((4, 24), lambda i, j: te.cast(te.exp(x[i, j] - m[i]), dtype), "e")
    return te.dag([x, v, te.compute((4,), lambda i: te.sum(e[i, j] * v[j], axis=j), "o")])


@pytest.mark.parametrize(("dtype", "found"), [("bfloat16", 1.0), ("float16", None), ("int8", None)])
def test_what_is_rounded_is_proportional_within_its_rounding(dtype: str, found: float | None) -> None:
    """float16 has fewer exponents than float32: small weights would be lost relative to another maximum."""
    x, m = (Load(n, (Const(0),), "float32") for n in "xm")
    assert degree(Cast(dtype, Call("exp", (x - m,))), m, x, lambda e: e == m, rounded=True) == found


def test_rounded_weights_are_summed_in_parts() -> None:
    dag = weights("bfloat16")
    with pytest.raises(ScheduleError, match="online m: the terms of o, .* are not proved"):
        Schedule(dag).online("m", ["o"], 8)
    s = Schedule(dag)
    assert s.online_rounded("m", ["o"], 8) == "m_part"
    rng = np.random.default_rng(2)
    x, v = rng.normal(size=(4, 24)).astype("f4") * 4, rng.normal(size=24).astype("f4")
    arrays = {"x": x, "v": v, "o": np.full(4, np.nan, "f4")}
    interp.run(s.nest, arrays)
    e = np.exp(x.astype("f8") - x.max(1, keepdims=True))
    assert np.all(np.abs(arrays["o"] - e @ v) <= 2**-8 * (e @ np.abs(v)))
    assert Schedule.replay(dag, s.trace).nest == s.nest


def test_fewer_exponents_are_refused() -> None:
    with pytest.raises(ScheduleError, match="online_rounded m: the terms of o, .* are not proved"):
        Schedule(weights("float16")).online_rounded("m", ["o"], 8)


def test_rules_for_cpus_do_not_use_it() -> None:
    """The check of candidates takes weights that are rounded relative to the final maximum."""
    w = ops.workload("attention", {"heads": 1, "seq": 64, "dim": 8}, "bfloat16")
    s = Schedule(w.dag)
    s.inline("scores")
    with pytest.raises(ScheduleError, match="online row_max"):
        s.online("row_max", ["row_sum", "mixed"], 16)
