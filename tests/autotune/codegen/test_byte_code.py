"""Bytes that are shifted, masked and stored stay bytes: a vector has four times as many as of int32."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from helpers import check_compiled, expected, host

from autotune.codegen.llvm.compile import assembly
from autotune.codegen.llvm.emit import emit
from autotune.targets import from_name
from schedules import te
from schedules.expr import Expr
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG

FORMS: dict[str, Callable[[Expr, Expr], Expr]] = {
    "low code": lambda x, y: x & 15,
    "high code": lambda x, y: x >> 4,
    "signed code": lambda x, y: (x >> 4) - 8,
    "two codes a byte": lambda x, y: (x & 15) | ((y & 15) << 4),
    "sign turned": lambda x, y: x ^ 128,
    "sum": lambda x, y: x + y * 3,
}


def bytewise(form: str, dtype: str, n: int) -> ComputeDAG:
    x, y = (te.placeholder((n,), dtype, name) for name in "xy")

    def value(i: Expr) -> Expr:
        return te.cast(FORMS[form](x[i], y[i]), dtype)

    z = te.compute((n,), value, "z")
    return te.dag([*te.inputs(z), z])


def in_lanes(dag: ComputeDAG, lanes: int) -> Schedule:
    s = Schedule(dag)
    (i,) = s.loops("z")
    s.vectorize(s.split(i, (None, lanes))[1])
    return s


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_bytes_of_any_value(dtype: str, form: str) -> None:
    every = np.arange(256, dtype=np.uint8).view(dtype)
    dag = bytewise(form, dtype, 256)
    data = [every, np.random.default_rng(0).permutation(every)][: len(dag.inputs)]
    want = expected(dag, data)
    np.testing.assert_array_equal(te.evaluate(dag, data)[0], want[0])
    for lanes in (8, 64):
        check_compiled(dag, in_lanes(dag, lanes).trace, host(), data, want)


@pytest.mark.parametrize("form", [x for x in FORMS if x != "sum"])
def test_no_byte_is_widened(form: str) -> None:
    target = from_name("x86-64-v3")
    module = emit(lower(in_lanes(bytewise(form, "uint8", 256), 64).nest), target)
    assert "vpmov" not in assembly(module.text, target)
