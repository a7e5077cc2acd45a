"""Several arrays that are made of one constant, as weights and their sums, are one argument of a call."""

from __future__ import annotations

from dataclasses import replace

import helpers
import numpy as np
import pytest

from autotune.backends.building.from_trace import build_object, programs
from autotune.codegen import bundle
from autotune.codegen.runtime.entry import shape_of
from autotune.measure import Measurer, Options
from autotune.run.kernels import kernel_of
from schedules import te
from schedules.constants import split_constants
from schedules.expr import Const
from schedules.ir import Buffer
from schedules.ir.arguments import arguments
from schedules.ir.interp import run
from schedules.model import LINE, Workload
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG


def product(dtype: str = "int8", m: int = 5, n: int = 9, k: int = 10) -> ComputeDAG:
    """``b`` is known ahead."""
    a, b = te.placeholder((m, k), dtype, "a"), te.placeholder((k, n), dtype, "b")
    r = te.reduce_axis(k, "k")
    c = te.compute((m, n), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "c")
    return replace(
        te.dag([a, b, te.compute((m, n), lambda i, j: te.maximum(c[i, j], 0), "d")]), constants=("b",)
    )


def scheduled(threads: int = 1) -> Schedule:
    """Packed weights and their sums are made of ``b`` alone."""
    s = Schedule(product())
    _, _, out, _ = s.cache_read_offset("c", "a", 128)
    s.cache_read("c", "b")
    s.pack("b_global", [0, 4], [1, 0, 2])
    s.inline(out)
    if threads > 1:
        s.parallel(s.loops("c")[0])
    return s


def numbers(dag: ComputeDAG) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.integers(-128, 128, t.shape).astype(t.dtype) for t in dag.inputs]


def test_both_arrays_are_made_ahead() -> None:
    s = scheduled()
    nest, packing = split_constants(s.nest, s.dag.constants)
    made = ("a_compensation_c", "b_global")
    assert {n: x.params for n, x in packing.items()} == {"b": ("b", *made)}
    assert nest.params == ("a", *made, "d") and nest.joined == packing["b"].joined == (made,)
    data = numbers(s.dag)
    want = helpers.expected(s.dag, data)
    arrays = {n: np.full(shape_of(nest.buffer(n)), 77, nest.buffer(n).dtype) for n in made}
    run(packing["b"], {"b": data[1], **arrays})
    out = np.full((5, 9), 77, np.int32)
    run(nest, {"a": data[0], "d": out, **arrays})
    helpers.same([out], want, "what is left")


@pytest.mark.parametrize("threads", [1, 2])
def test_a_kernel_takes_them_as_one_array(threads: int) -> None:
    s = scheduled(threads)
    data = numbers(s.dag)
    kernel = kernel_of(Workload(s.dag), helpers.host(threads), s.trace)
    packed = kernel.pack_weights(data[1])
    assert packed.dtype == np.int32 and packed.shape == ((LINE + 2 * LINE) // 4,)
    assert [b.name for b in kernel.parameters[0]] == ["a", "b"]
    want = helpers.expected(s.dag, data)
    helpers.same([kernel(data[0], packed)], want, "")
    moved = np.empty(packed.size + 1, np.int32)[1:]  # it may begin anywhere
    moved[:] = packed
    helpers.same([kernel(data[0], moved)], want, "")


def test_joined_arguments_begin_with_lines() -> None:
    def buffer(name: str, n: int, dtype: str) -> Buffer:
        return Buffer(name, (Const(n),), dtype)

    params = [
        buffer("x", 3, "float32"),
        buffer("p", 65, "int8"),
        buffer("q", 2, "int32"),
        buffer("y", 1, "int8"),
    ]
    x, joined, y = arguments(params, [("p", "q")])
    assert (x.buffer, y.buffer) == (params[0], params[3])
    assert joined.parts == ((params[1], 0), (params[2], 2 * LINE))
    assert joined.buffer == buffer("p", 3 * LINE // 4, "int32")
    assert arguments([*params[:2], buffer("q", 2, "int64")], [("p", "q")])[1].buffer.dtype == "int64"


def test_what_stays_in_the_call() -> None:
    """Floats, whose spaces and traces know it so; a constant that is read as it is too."""
    a, b = te.placeholder((4, 6)), te.placeholder((6, 3), name="b")
    k = te.reduce_axis(6, "k")
    total = te.compute((3,), lambda j: te.sum(b[k, j], axis=k), "total")
    c = te.compute((4, 3), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "c")
    e = te.compute((4, 3), lambda i, j: c[i, j] - total[j], "e")
    s = Schedule(replace(te.dag([a, b, e]), constants=("b",)))
    s.cache_read("c", "b")
    assert split_constants(s.nest, ("b",)) == (s.nest, {})
    raw = Schedule(product())
    raw.cache_read_offset("c", "a", 128)
    assert split_constants(raw.nest, ("b",)) == (raw.nest, {})


def test_a_bundle_has_the_shapes_of_both() -> None:
    s = scheduled()
    func, packing = programs(s.dag, s.trace, helpers.host())
    assert func.joined == packing[1].joined and len(func.params) == 4
    main, packs = bundle.load(build_object(s.dag, s.trace, helpers.host()))
    assert main.signature == "int8[5,10] int32[48] -> int32[5,9]"
    assert packs[1].signature == "int8[10,9] -> int32[48]"


@pytest.mark.slow
def test_candidates_are_measured_with_both() -> None:
    s = scheduled()
    with Measurer(s.dag, helpers.host(), options=Options()) as m:
        measured = list(m.measure([s.trace]))
        again = m.finalists([s.trace], 1, 3)
    assert [x.status for x in measured + again] == ["ok", "ok"]
