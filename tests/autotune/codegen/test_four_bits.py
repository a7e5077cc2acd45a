"""Functions of four bits, of which tables are made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from helpers import check_compiled
from space_cases import target

from autotune.codegen.llvm import four_bits
from autotune.codegen.llvm.emit import emit
from schedules import te
from schedules.expr import Expr, Load
from schedules.model import Target
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG
from schedules.te.evaluator import evaluate

LOOKUP = "llvm.x86.avx512.permvar.sf.512"
AVX512 = Target("cpu", "x86-64-v4", "", ("avx512f",), 1, (("vector_bytes", 64),))


def wide(x: Expr) -> Expr:
    return te.cast(x, "int32")


def number(x: Expr) -> Expr:
    return te.cast(x, "float32")


def e2m1(x: Expr) -> Expr:
    code = wide(x) >> 4
    two = code >> 1 & 3
    size = te.select(two > 0, (code & 1 | 2) << te.maximum(two - 1, 0), code & 1)
    return number(te.select(code > 7, 0 - size, size)) * 0.5


# {name: (what is made of a byte, entry 0 and entry 13 of its table; None: it is none)}.
FORMS: dict[str, tuple[Callable[[Expr], Expr], tuple[float, float] | None]] = {
    "lower half": (lambda x: number((wide(x) & 15) - 8), (-8.0, 5.0)),
    "upper half": (lambda x: number((wide(x) >> 4) - 8) * 2.0, (-16.0, 10.0)),
    "masked upper half": (lambda x: number((wide(x) >> 4 & 15) - 8), (-8.0, 5.0)),
    "three bits": (lambda x: number((wide(x) >> 2 & 7) * 3), (0.0, 39.0)),
    "float of four bits": (e2m1, (0.0, -3.0)),
    "chosen": (lambda x: te.select((wide(x) & 15) < 3, 1.5, number(wide(x) & 15)), (1.5, 13.0)),
    "five bits": (lambda x: number((wide(x) & 31) - 8), None),
    "a conversion alone": (lambda x: number(wide(x) & 15), None),
    "of two codes": (lambda x: number((wide(x) & 15) - (wide(x) >> 4)), None),
    "signed": (lambda x: number(te.cast(x, "int8") & -2) + 1.0, None),
}


@pytest.mark.parametrize("name", FORMS)
def test_what_is_a_table(name: str) -> None:
    make, ends = FORMS[name]
    found = four_bits.table_of(make(Load("x", (), "uint8")))
    assert (found is None) is (ends is None)
    if found is not None:
        assert tuple(found.values[n].value for n in (0, 13)) == ends and len(found.values) == 16


def numbers(make: Callable[[Expr], Expr], n: int) -> ComputeDAG:
    x, y = te.placeholder((n,), "uint8", "x"), te.placeholder((n,), name="y")
    return te.dag([x, y, te.compute((n,), lambda i: make(x[i]) * y[i], "z")])


@pytest.mark.parametrize("lanes", [16, 32, 64])
@pytest.mark.parametrize("name", FORMS)
def test_compiled_is_what_is_written(name: str, lanes: int) -> None:
    """On every byte, and in a tail."""
    dag = numbers(FORMS[name][0], 261)
    s = Schedule(dag)
    s.vectorize(s.split("z_i", (None, lanes), "guard")[1])
    data: list[Any] = [np.arange(261).astype("uint8"), np.full(261, 1.25, "float32")]
    check_compiled(dag, s.trace, target(1, 64), data, evaluate(dag, data))


def test_only_where_the_target_has_the_instruction() -> None:
    s = Schedule(numbers(FORMS["lower half"][0], 64))
    s.vectorize(s.split("z_i", (None, 16))[1])
    func = lower(s.nest)
    assert LOOKUP in emit(func, AVX512).text
    without = Target("cpu", "x86-64-v3", "", ("avx2",), 1, (("vector_bytes", 32),))
    assert LOOKUP not in emit(func, without).text
