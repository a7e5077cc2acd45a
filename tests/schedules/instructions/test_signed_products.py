"""int8 by int8 on an instruction of uint8 by int8: an operand is offset while it is copied."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers import check_compiled, check_interpreted, expected, host

from autotune.codegen.llvm.emit import emit
from autotune.run.kernels import kernel_of
from schedules import te
from schedules.constants import split_constants
from schedules.instructions import INSTRUCTIONS
from schedules.model import Target, Workload
from schedules.passes.lower import lower
from schedules.schedule import Schedule

VNNI = Target("cpu", "cascadelake", "x86_64-unknown-linux-gnu", ("avx512f", "avx512vl", "avx512vnni", "sse2"))


def scheduled(m: int, n: int, k: int, rows: int = 2, vectors: int = 2, steps: int = 2) -> Schedule:
    """Tiles of ``rows`` by ``vectors`` registers, whose sums are compensated where they are stored."""
    a, b = te.placeholder((m, k), "int8", "a"), te.placeholder((k, n), "int8", "b")
    r = te.reduce_axis(k, "k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "c")
    s = Schedule(replace(te.dag([a, b, c]), constants=("b",)))
    copy, _, out, sums = s.cache_read_offset("c", "a", 128)
    s.vectorize(s.split(s.loops(copy)[1], (None, 64))[1])
    s.set_scope(sums, "local")
    s.cache_read("c", "b")
    s.pack("b_global", (4, vectors * 16), (1, 0, 3, 2))
    s.tensorize(s.split(s.loops("b_global")[2], (None, 16))[1], INSTRUCTIONS["interleave4_int8"])
    i, j = s.loops(out)
    (io, ii), (jo, ji) = s.split(i, (None, rows)), s.split(j, (None, vectors * 16))
    s.reorder(jo, io, ii, ji)
    s.unroll(ii)
    s.vectorize(ji)
    s.compute_at("c", io)
    i, j, k = (x for x in s.loops("c") if x not in (jo, io))
    j0, j1 = s.split(j, (None, 16))
    ko, ku, ki = s.split(k, (None, steps, 4))
    s.reorder(ko, ku, i, j0, j1, ki)
    for loop in (i, j0, ku):
        s.unroll(loop)
    init = s.decompose_reduction("c", ko)
    s.vectorize([x for x in s.loops(init) if x not in (jo, io)][-1])
    s.tensorize(j1, INSTRUCTIONS["vpdpbusd"])
    return s


def numbers(s: Schedule) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.choice([-128, 127, *range(-128, 128)], t.shape).astype(np.int8) for t in s.dag.inputs]


def test_signed_products_on_an_unsigned_instruction() -> None:
    s = scheduled(1, 16, 8, 1, 1, 1)
    data = numbers(s)
    check_interpreted(s.nest, s.dag, data, expected(s.dag, data))
    nest, packing = split_constants(s.nest, s.dag.constants)
    assert packing["b"].joined and "b" not in nest.params
    assert "vpdpbusd" in emit(lower(nest), VNNI).text


def test_a_schedule_for_the_instruction_runs_without_it() -> None:
    s = scheduled(2, 32, 24)
    data = numbers(s)
    plain = replace(host(), features=tuple(f for f in host().features if "vnni" not in f))
    for target in (host(), plain):
        check_compiled(replace(s.dag, constants=()), s.trace, target, data, expected(s.dag, data))


@pytest.mark.parametrize("k", [16, 1024])
def test_the_least_numbers(k: int) -> None:
    """All -128: the offset operand is 0, and all of the result is compensation."""
    s = scheduled(4, 64, k)
    kernel = kernel_of(Workload(s.dag), host(), s.trace)
    a, b = (np.full(t.shape, -128, np.int8) for t in s.dag.inputs)
    assert (kernel(a, kernel.pack_weights(b)) == k * 16384).all()
