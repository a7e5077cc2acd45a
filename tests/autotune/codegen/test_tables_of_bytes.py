"""Tables with a byte for each value of a byte: four registers of AVX512-VBMI, elsewhere memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers import check_compiled, expected, host, in_lanes

from autotune.codegen.llvm.compile import assembly
from autotune.codegen.llvm.emit import emit
from autotune.targets import from_name
from schedules import te
from schedules.expr import Expr
from schedules.model import Target
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG
from schedules.te.tensors import held_inside

STORED = ("uint8", "int8")


def mapped(dtype: str, out: str, n: int = 256, entries: int = 256) -> ComputeDAG:
    """y[i] = table[x[i] - least], or the last entry."""
    x, t = te.placeholder((n,), dtype, "x"), te.placeholder((entries,), out, "t")

    def value(i: Expr) -> Expr:
        return t[held_inside(te.cast(x[i], "int32") + (128 if dtype == "int8" else 0), entries)]

    return te.dag([x, t, te.compute((n,), value, "y")])


def with_registers(name: str = "") -> Target:
    """A target with AVX512-VBMI; this machine, or one by name."""
    target = from_name(name) if name else host()
    return replace(target, arch="", features=(*target.features, "avx512vbmi"))


def without_registers() -> Target:
    target = host()
    return replace(target, arch="", features=tuple(f for f in target.features if f != "avx512vbmi"))


def data(dag: ComputeDAG) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    every = []
    for t in dag.inputs:
        ends = np.iinfo(t.dtype)
        order = rng.permutation(np.arange(ends.min, ends.max + 1))
        every.append(np.resize(order, t.shape).astype(t.dtype))
    return every


@pytest.mark.parametrize("entries", [2, 255, 256, 300])
@pytest.mark.parametrize("out", STORED)
@pytest.mark.parametrize("dtype", STORED)
def test_every_byte_of_every_table(dtype: str, out: str, entries: int) -> None:
    dag = mapped(dtype, out, entries=entries)
    given = data(dag)
    low = np.iinfo(dtype).min
    want = given[1][np.minimum(given[0].astype(int) - low, entries - 1)]
    (plain,) = expected(dag, given)
    np.testing.assert_array_equal(plain, want)
    for target in (host(), without_registers()):
        for lanes in (1, 16, 64, 128):
            check_compiled(dag, in_lanes(dag, lanes).trace, target, given, [want])


def test_lanes_side_by_side_are_loaded_whatever_the_tensor_has() -> None:
    """A tensor of as many bytes as a table has is one where its index is a byte, not where it is copied."""
    x = te.placeholder((256,), "uint8", "x")
    dag = te.dag([x, te.compute((256,), lambda i: x[i], "y")])
    text = emit(lower(in_lanes(dag, 256).nest), with_registers()).text
    assert "vpermi2var" not in text


@pytest.mark.parametrize("n", [33, 70, 200])
def test_lanes_that_are_masked(n: int) -> None:
    dag = mapped("uint8", "uint8", n)
    s = Schedule(dag)
    _, inner = s.split(s.loops("y")[0], (None, 64), "guard")
    s.vectorize(inner)
    given = data(dag)
    check_compiled(dag, s.trace, host(), given, expected(dag, given))


def code(target: Target, **how: int) -> str:
    func = lower(in_lanes(mapped("uint8", "int8", **how), 64).nest)
    return assembly(emit(func, target).text, target)


def test_the_table_stays_in_registers() -> None:
    text = code(with_registers("x86-64-v4"), n=1024)
    assert text.count("vpermi2b") + text.count("vpermt2b") == 2 and "vpmovzx" not in text
    assert "vpermi2b" not in code(from_name("x86-64-v4"))


def test_what_lies_behind_a_shorter_table_is_not_read() -> None:
    for entries in (255, 100):
        text = code(with_registers("x86-64-v4"), entries=entries)
        assert "vpermi2b" not in text and "vpermt2b" not in text
    apart = te.with_strides(mapped("uint8", "int8"), {"t": (2,)})
    target = with_registers("x86-64-v4")
    text = assembly(emit(lower(in_lanes(apart, 64).nest), target).text, target)
    assert "vpermi2b" not in text and "vpermt2b" not in text
