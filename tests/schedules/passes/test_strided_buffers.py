"""Buffers of a kernel's own that lie in any order, with gaps: what the nest means, what every pass makes of
it, what the compiled kernel does and what emulated code for a GPU does are one thing."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from unittest.mock import patch

import numpy as np
import pytest
from grid_cases import TARGET, case, need_cxx, space
from helpers import check_interpreted, expected, host, inputs, interpret, run_object, same
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import PROGRAMS, make
from random_schedules import random_schedule
from strided import with_strided_stages, with_strides

from autotune.backends.building.from_trace import emit_module, module_of
from autotune.codegen.grid_code import grid_code
from autotune.codegen.llvm import emit
from autotune.codegen.llvm.compile import compile_module
from autotune.codegen.simt import cuda, emulator
from autotune.codegen.simt.emit import Generated
from schedules import te
from schedules.constants import split_constants
from schedules.dtypes import COMPUTED
from schedules.expr import Const
from schedules.ir import Alloc, Nest, nbytes, walk
from schedules.ir.interp_grid import run_grid
from schedules.ir.nest import initial
from schedules.passes.lower import lower
from schedules.passes.simt import lower_simt
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.te.compute_dag import ComputeDAG, Tensor

seeds = st.integers(0, 2**32 - 1)
# Operators whose schedules for GPUs keep something, in shared memory or in registers.
ON_GRIDS = (
    "matmul", "batch_matmul", "matmul_bias_relu", "softmax", "layer_norm", "reduce_sum", "argmax", "norm2",
    "conv1d", "conv2d", "conv2d_bn_relu", "depthwise_conv2d", "attention",
)  # fmt: skip


@pytest.mark.slow
@given(seeds)
@settings(max_examples=30)
def test_random_schedules_with_strided_buffers(seed: int) -> None:
    rng = Random(seed)
    dag = make(rng.choice(list(PROGRAMS)), rng.choice(COMPUTED))
    if rng.random() < 0.5:  # before the schedule, which may pack and reorder what lies with strides
        nest = random_schedule(with_strided_stages(dag, rng), rng, rng.randint(2, 9)).nest
    else:  # after it, its copies too
        nest = with_strides(random_schedule(dag, rng, rng.randint(2, 9)).nest, rng)
    data, target = inputs(dag, seed % 1000), host(rng.choice((1, 2)))
    want = expected(dag, data)
    check_interpreted(nest, dag, data, want)
    # small buffers too in scratch memory, at times
    with patch.object(emit, "STACK_BYTES", rng.choice((64, 16384))):
        obj = compile_module(module_of(lower(nest), target).text, target)
    for place, got in run_object(obj, dag, target, data).items():
        same(got, want, f"compiled, arrays at {place}")


def grid_nest(op: str, rng: Random) -> Nest:
    """The nest of a sampled schedule for a GPU, its buffers with strides."""
    dag = case(op).dag
    found, columns = space(dag), np.random.default_rng(rng.getrandbits(32))
    number = rng.randrange(len(found.sketches))
    rows = found.sample(number, 200, columns)
    rows = rows[found.valid(number, rows)]
    return with_strides(Schedule.replay(dag, found.trace(number, rows[0]), TARGET).nest, rng)


@pytest.mark.slow
@given(seeds)
@settings(max_examples=6)
def test_emulated_grids_with_strided_buffers(seed: int) -> None:
    need_cxx()
    rng = Random(seed)
    names = rng.sample(ON_GRIDS, 3)
    programs = [lower_simt(grid_nest(op, rng)) for op in names]
    plain = rng.choice(("softmax", "layer_norm"))  # of one thread, each stage a kernel
    names.append(plain)
    programs.append(lower_simt(with_strides(initial(case(plain).dag), rng)))
    obj = emulator.build(*programs)
    for n, (op, p) in enumerate(zip(names, programs, strict=True)):
        c = case(op)
        outputs = c.poisoned()
        assert emulator.run(obj, p, [*c.inputs, *outputs], n) is None
        c.check(outputs, op)


@pytest.mark.fast("norm2")
@pytest.mark.parametrize("op", ["batch_matmul", "norm2", "argmax"])
def test_grids_of_strided_buffers_mean_what_their_nest_does(op: str) -> None:
    c, rng = case(op), Random(op)
    for _ in range(2):
        nest = grid_nest(op, rng)
        same(interpret(nest, c.dag, c.inputs), interpret(initial(c.dag), c.dag, c.inputs), op)
        arrays = dict(zip((t.name for t in c.dag.params), [*c.inputs, *c.poisoned()], strict=True))
        run_grid(lower_simt(nest), arrays)
        c.check([arrays[n] for n in c.dag.outputs], op)


STAGED = ["matmul_bias_relu", "softmax", "conv2d", "attention", "conv2d_transpose", "norm2"]


@pytest.mark.fast("1-matmul_bias_relu", "1-softmax", "1-norm2", "2-matmul_bias_relu", "2-conv2d_transpose")
@pytest.mark.parametrize("op", STAGED)
@pytest.mark.parametrize("threads", [1, 2])
def test_spaces_of_dags_with_strided_stages(op: str, threads: int) -> None:
    """Rules see where the elements of a stage lie: every sketch is legal, and what it gives is right."""
    c, rng, target = case(op), Random(op), host(threads)
    dag = with_strided_stages(c.dag, rng)
    assert dag != c.dag and ComputeDAG.from_json(dag.to_json()) == dag
    found, columns = derive(dag, target), np.random.default_rng(0)
    for number in range(len(found.sketches)):
        rows = found.sample(number, 100, columns)
        row = rows[found.valid(number, rows)][0]
        trace = found.trace(number, row)
        assert np.isfinite(found.features(number, rows)).all()
        obj = compile_module(emit_module(dag, trace, target).text, target)
        for got in run_object(obj, dag, target, c.inputs).values():
            c.check(got, f"{found.sketches[number]} {row}")


def strided_dag(**strides: tuple[int, ...]) -> ComputeDAG:
    """z = 2 x + 1 by way of y, all of shape (6, 10), those named with these strides."""
    x = te.placeholder((6, 10), "float32", "x")
    y = te.compute((6, 10), lambda i, j: x[i, j] * 2.0, "y")
    dag = te.dag([x, te.compute((6, 10), lambda i, j: y[i, j] + 1.0, "z")])

    def lie(t: Tensor) -> Tensor:
        return replace(t, strides=strides.get(t.name))

    stages = tuple(replace(s, outputs=tuple(map(lie, s.outputs))) for s in dag.stages)
    return replace(dag, inputs=tuple(map(lie, dag.inputs)), stages=stages)


def parts(dag: ComputeDAG) -> Schedule:
    """y computed for three rows of z at a time."""
    s = Schedule(dag)
    s.compute_at("y", s.split(s.loops("z")[0], (None, 3))[0])
    return s


def test_a_part_of_a_strided_buffer_lies_as_all_of_it() -> None:
    func = lower(parts(strided_dag(y=(1, 8))).nest)  # columns of 6, with a gap of 2
    (b,) = (x.buffer for x in walk(func.body) if isinstance(x, Alloc))
    assert b.shape == (Const(3), Const(10)) and b.strides == (Const(1), Const(5))
    text = emit.emit(func, host()).text
    assert "alloca [50 x float]" in text and "mul nsw i64 %" in text


def test_memory_that_a_grid_shares_lies_as_is_asked() -> None:
    rng = Random(3)
    programs = [lower_simt(grid_nest(op, rng)) for op in ("matmul", "conv2d", "batch_matmul")]
    programs.append(lower_simt(initial(strided_dag(y=(1, 8)))))  # two kernels
    made = [x.buffer for p in programs for k in p.kernels for x in walk(k.body) if isinstance(x, Alloc)]
    assert all(b.strides is not None for b in made if b.scope == "shared")
    assert any(b.scope == "shared" for b in made)
    scratch = [b for p in programs for b in p.scratch]
    assert scratch and all(b.strides is not None for b in scratch)
    arrays = [a for p in programs for a in grid_code(p, "cuda", Generated("", {})).scratch]
    assert [a.nbytes for a in arrays] == [nbytes(b) for b in scratch]
    text = cuda.generate(programs[-1]).text
    assert "v_y[((v_y_j * 8) + v_y_i)] =" in text and "= (v_y[((v_z_j * 8) + v_z_i)] + " in text


def test_storing_dimensions_in_another_order_is_row_major_again() -> None:
    s = Schedule(strided_dag(y=(1, 8)))
    s.reorder_storage("y", [1, 0])
    y = s.nest.buffer("y")
    assert y.shape == (Const(10), Const(6)) and y.strides is None


def test_packing_that_lies_with_strides_is_not_split_off() -> None:
    """What is packed ahead becomes an argument, and these are row-major."""
    x, w = te.placeholder((4, 6), "float32", "x"), te.placeholder((6, 5), "float32", "w")
    r = te.reduce_axis(6, "r")
    c = te.compute((4, 5), lambda i, j: te.sum(x[i, r] * w[r, j], axis=r), "c")
    s = Schedule(replace(te.dag([x, w, c]), constants=("w",)))
    s.pack(s.cache_read("c", "w", "global"), [0, 4], [1, 0, 2])
    left, packing = split_constants(s.nest, ("w",))
    assert left.params != s.nest.params and list(packing) == ["w"]
    strided = with_strides(s.nest, Random(0))
    assert split_constants(strided, ("w",)) == (strided, {})
