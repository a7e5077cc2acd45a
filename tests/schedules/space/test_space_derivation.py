"""Spaces as derived: legal, deterministic, quick, and drawn from the expression alone."""

from __future__ import annotations

import ast
import gc
import itertools
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from children import python_path
from helpers import check_compiled, check_interpreted, expected, inputs
from log_filler import host
from programs import doubling
from small_shapes import SMALL
from space_cases import BIG, big_space, library_case, own_case, target, values
from space_expressions import OWN

import autotune as at
from autotune.backends.building.from_trace import build_object
from autotune.codegen.llvm.compile import load_object
from schedules import ops, te
from schedules.errors import ScheduleError
from schedules.ir import Alloc, Loop, const, interp, walk
from schedules.ir.nest import loops_of
from schedules.ir.printer import show
from schedules.model import Trace
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.space import derive, rules
from schedules.space.gc_paused import gc_paused
from schedules.space.rules.cpu import schedule_plainly
from schedules.space.sketch_builder import SketchBuilder, enumerate_drafts
from schedules.te.compute_dag import ComputeDAG

pytestmark = pytest.mark.usefixtures("two_cpus")


@pytest.mark.fast("*-2", "*-2_*", but=["capsule_conv2d-2", "attention-2"])
@pytest.mark.parametrize(
    ("name", "threads"), [*((n, t) for n in sorted(ops.REGISTRY) for t in (1, 2)), *((n, 2) for n in OWN)]
)
def test_valid_rows_replay_and_lower(name: str, threads: int) -> None:
    rng = np.random.default_rng(7)
    case = library_case(name, rng, 40) if name in ops.REGISTRY else own_case(name, rng, 40)
    space = derive(case.dag, target(threads))
    assert len(set(space.sketches)) == len(space.sketches)
    usable = 0
    for k in range(len(space.sketches)):
        rows = space.sample(k, 48, rng)
        rows = rows[space.valid(k, rows)][:1]
        usable += bool(len(rows))
        for row in rows:
            trace = space.trace(k, row)
            assert Trace.from_json(trace.to_json()) == trace
            s = Schedule.replay(case.dag, trace, space.target)
            assert s.trace == trace
            assert lower(s.nest).outputs == case.dag.outputs  # verified after every pass
    assert usable


@pytest.mark.fast("add", "avg_pool2d", "conv3d", "matmul_bias_gelu", "permute")
@pytest.mark.parametrize("name", sorted(BIG))
def test_spaces_at_big_shapes(name: str) -> None:
    dag = ops.workload(name, BIG[name]).dag
    cost = []
    for _ in range(2):
        start = time.process_time()
        space = derive(dag, target(2))
        cost.append(time.process_time() - start)
    assert min(cost) < 5.0  # it takes half a second where nothing else runs
    rng = np.random.default_rng(3)
    good = [space.valid(k, space.sample(k, 512, rng)).mean() for k in range(len(space.sketches))]
    assert max(good) > 0.05, "nearly every sample breaks a limit"


@pytest.mark.slow
def test_stages_that_would_double_when_inlined_stay_stages() -> None:
    """Inlined into one, 40 of them would have 2**40 operations."""
    dag = doubling(40)
    start = time.process_time()
    space = derive(dag, host())
    assert time.process_time() - start < 5.0
    rows = space.sample(0, 64, np.random.default_rng(0))
    (row, *_) = rows[space.valid(0, rows)]
    s = Schedule.replay(dag, space.trace(0, row), host())
    assert 2 <= len(s.blocks()) <= 10
    data = inputs(dag)
    check_compiled(dag, s.trace, host(), data, te.evaluate(dag, data))


def test_every_library_operator_has_a_big_shape() -> None:
    assert set(BIG) == set(ops.REGISTRY)


@pytest.mark.slow
def test_a_space_is_the_same_in_another_process() -> None:
    program = (
        "from space_cases import BIG, big_space\n"
        "for n in ('conv2d_bias_relu', 'softmax', 'matmul'):\n"
        "    s = big_space(n, 2)\n"
        "    print(s.sketches, [s.holes(k) for k in range(len(s.sketches))])\n"
        "    print([s.sketch(k).trace.digest for k in range(len(s.sketches))])\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": python_path(__file__), "PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    want = ""
    for n in ("conv2d_bias_relu", "softmax", "matmul"):
        s = big_space(n, 2)
        want += f"{s.sketches} {[s.holes(k) for k in range(len(s.sketches))]}\n"
        want += f"{[s.sketch(k).trace.digest for k in range(len(s.sketches))]}\n"
    assert out == want


def test_no_rule_knows_an_operator() -> None:
    words = {w for name in ops.REGISTRY for w in name.split("_")} - {"add", "sum", "reduce", "max", "batch"}
    words |= {"conv", "gemm", "pool", "relu"}
    words -= {"layer", "multiply", "fused", "bias", "weight", "only"}
    for path in sorted(Path(rules.__file__).parent.parent.rglob("*.py")):
        tree = ast.parse(path.read_text())
        docs = {
            id(n.body[0].value)
            for n in ast.walk(tree)
            if isinstance(n, (ast.Module, ast.ClassDef, ast.FunctionDef)) and n.body
            and isinstance(n.body[0], ast.Expr)
        }  # fmt: skip
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                assert "schedules.ops" not in ast.unparse(node), path.name
            named = [getattr(node, f, "") for f in ("id", "attr", "name", "arg")]
            if isinstance(node, ast.Constant) and id(node) not in docs:
                named.append(node.value)
            for text in named:
                if isinstance(text, str):
                    found = words & set(text.lower().replace(".", "_").split("_"))
                    assert not found, f"{path.name}: {text!r} names an operator"


def test_the_last_resort_schedules_anything() -> None:
    rng = np.random.default_rng(1)
    for name in OWN:
        case = own_case(name, rng, 20)
        (draft,) = enumerate_drafts(case.dag, target(2), schedule_plainly)
        lower(draft.s.nest)


def test_what_no_rule_can_schedule_has_a_plain_space(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(d: SketchBuilder) -> None:
        raise ScheduleError("no")

    module = sys.modules["schedules.space.derive"]  # the package's `derive` is the function
    monkeypatch.setattr(module, "CPU", replace(module.CPU, rules=refuse))
    a = te.placeholder((5, 9), name="a")
    dag = te.dag([a, te.compute((5, 9), lambda i, j: a[i, j] * 2, "c")])
    space = derive(dag, target(2))
    assert space.sketches == ("separate",)
    assert space.valid(0, space.sample(0, 3, rng=np.random.default_rng(0))).all()


def test_names_of_stages_may_start_alike() -> None:
    """Rules find a block's loops by structure: ``c_r`` below is no part of ``c``."""
    a, b = te.placeholder((13, 11), name="c_local"), te.placeholder((11, 37), name="c_rf")
    k = te.reduce_axis(11, "k")
    c = te.compute((13, 37), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "c")
    dag = te.dag([a, b, te.compute((13, 37), lambda i, j: te.maximum(c[i, j], 0), "c_r")])
    space = derive(dag, target(2))
    plain = ops.workload("matmul", {"m": 13, "n": 37, "k": 11}).dag
    assert len(space.sketches) == len(derive(plain, target(2)).sketches)
    row = space.sample(0, 1, np.random.default_rng(0))[0]
    lower(Schedule.replay(dag, space.trace(0, row), space.target).nest)


@pytest.mark.parametrize(
    "names", [("c_rf", "x"), ("c_init", "c_local"), ("c_rf_init", "c_ax0"), ("c_k", "c_i")]
)
def test_inputs_may_have_the_names_that_primitives_give(names: tuple[str, str]) -> None:
    a, b = (te.placeholder((3, 19), name=n) for n in names)
    k = te.reduce_axis(19, "k")
    dag = te.dag([a, b, te.compute((3,), lambda i: te.sum(a[i, k] * b[i, k], axis=k), "c")])
    space = derive(dag, target(2))
    rng = np.random.default_rng(0)
    x, y = (rng.integers(-4, 5, (3, 19)).astype(np.float32) for _ in names)
    for k in range(len(space.sketches)):
        nest = Schedule.replay(dag, space.trace(k, space.sample(k, 1, rng)[0]), space.target).nest
        for program in (nest, lower(nest)):
            out = np.full(3, np.nan, np.float32)
            interp.run(program, {names[0]: x, names[1]: y, "c": out})
            assert np.array_equal(out, (x * y).sum(1))


@pytest.mark.fast("1-reduce_sum", "1-rms_norm", "3-norm2", "3-rms_norm")
@pytest.mark.parametrize("op", ["reduce_sum", "norm2", "softmax", "layer_norm", "rms_norm"])
@pytest.mark.parametrize("m", [1, 3])
def test_few_long_rows_are_reduced_in_parts_by_the_threads(op: str, m: int) -> None:
    workload = ops.workload(op, {"b": m, "m": 211, "n": 157} if op == "norm2" else {"m": m, "n": 32771})
    here = host(2)
    space = derive(workload.dag, here)
    rng = np.random.default_rng(m)
    inputs = [rng.integers(-4, 5, t.shape).astype(np.float32) for t in workload.dag.inputs]
    (want,) = ops.reference(workload, inputs)
    for k, name in enumerate(space.sketches):
        assert name != "separate" and any(h.endswith(".parts") for h in space.holes(k))
        rows = space.sample(k, 16, rng)
        for row in rows[space.valid(k, rows)][:4]:
            kernel = load_object(build_object(workload.dag, space.trace(k, row), here))
            out = np.full_like(want, np.nan)
            kernel.run([a.ctypes.data for a in (*inputs, out)])
            np.testing.assert_allclose(out, want, rtol=2e-4, atol=1e-5)


def whole_sums(*shape: int) -> ComputeDAG:
    """Of each element of the first axis."""
    x = te.placeholder(shape, name="x")
    axes = tuple(te.reduce_axis(n, f"r{k}") for k, n in enumerate(shape[1:]))
    return te.dag([x, te.compute(shape[:1], lambda i: te.sum(x[(i, *axes)], axis=axes), "y")])


@pytest.mark.parametrize("shape", [(2, 3, 150, 160), (1, 3, 5, 4001), (1, 40, 30, 41)])
def test_the_threads_share_an_axis_that_is_long_enough(shape: tuple[int, ...]) -> None:
    dag = whole_sums(*shape)
    space = derive(dag, target(2))
    rows = space.sample(0, 64, np.random.default_rng(0))
    rows = rows[space.valid(0, rows)]
    assert set(rows[:, space.holes(0).index("y.parts")]) == {2, 8, 32}
    data = inputs(dag)
    for row in rows[:4]:
        check_compiled(dag, space.trace(0, row), space.target, data, te.evaluate(dag, data))


@pytest.mark.fast("2-shape3")
@pytest.mark.parametrize("shape", [(7, 7, 7), (5, 9, 8), (6, 3, 4, 3), (4, 50, 1)])
@pytest.mark.parametrize("threads", [1, 2])
def test_axes_shorter_than_a_vector_are_reduced_together(shape: tuple[int, ...], threads: int) -> None:
    dag = whole_sums(*shape)
    space = derive(dag, target(threads, vector_bytes=64))
    rows = space.sample(0, 64, np.random.default_rng(0))
    rows = rows[space.valid(0, rows)]
    assert set(rows[:, space.holes(0).index("y.lanes")]) >= {16, 32}
    data = inputs(dag)
    for row in rows[:4]:
        s = Schedule.replay(dag, space.trace(0, row), space.target)
        check_interpreted(s.nest, dag, data, expected(dag, data))
        check_compiled(dag, s.trace, space.target, data, expected(dag, data))


def test_axes_apart_in_memory_are_not_reduced_together() -> None:
    """Rows of 4 of 9 columns; and those that would still be shorter than a vector."""
    x, i, j = te.placeholder((8, 30, 9), name="x"), te.reduce_axis(30, "i"), te.reduce_axis(4, "j")
    apart = te.dag([x, te.compute((8,), lambda z: te.sum(x[z, i, j], axis=(i, j)), "y")])
    for dag in (apart, whole_sums(8, 3, 5)):
        steps = derive(dag, target(vector_bytes=64)).sketch(0).trace.steps
        assert "fuse" not in {x.primitive for x in steps}


def test_parts_of_a_reduction_copy_the_rows_that_every_tile_reads() -> None:
    """Rows of the caller's may lie a power of two apart: a tile that walks several would evict itself."""
    space = derive(ops.workload("matmul", {"m": 16, "n": 512, "k": 1024}).dag, target())
    n = space.sketches.index("c.pack=none c.k=blocks")
    rows = space.sample(n, 256, np.random.default_rng(0))
    row = rows[space.valid(n, rows)][0]
    func = lower(Schedule.replay(space.dag, space.trace(n, row), space.target).nest)
    part = int(row[space.holes(n).index("c_r0.block")])
    copies = [x.buffer for x in walk(func.body) if isinstance(x, Alloc) and x.buffer.name == "a_global"]
    assert [const(d) for b in copies for d in b.shape[1:]] == [part]
    # where few tiles would read the copy, it is not made
    narrow = derive(ops.workload("matmul", {"m": 512, "n": 64, "k": 1024}).dag, target())
    s = narrow.sketch(narrow.sketches.index("c.pack=none c.k=blocks"))
    assert "cache_read" not in {step.primitive for step in s.trace.steps}


def test_a_short_contiguous_axis_lets_another_one_fill_the_vectors() -> None:
    """Planes of 7x7: a vector of channels, whose weights are packed and whose sums lie side by side."""
    params = {"h": 7, "w": 7, "ci": 64, "co": 64, "k": 3, "padding": 1}
    space = derive(ops.workload("conv2d", params, layout="NCHW").dag, target())
    n = space.sketches.index("y.lanes=x1 y.pack=root pad.at=root")
    assert "y.k=whole pad.at=root" in space.sketches, "a name tells of what is unusual only"
    rows = space.sample(n, 256, np.random.default_rng(0))
    row = rows[space.valid(n, rows)][0]
    vec = int(row[space.holes(n).index("y.vec")])
    func = lower(Schedule.replay(space.dag, space.trace(n, row), space.target).nest)
    sums = next(x.buffer for x in walk(func.body) if isinstance(x, Alloc) and x.buffer.scope == "local")
    assert const(sums.shape[-1]) == vec
    # long rows fill vectors themselves
    long = derive(ops.workload("conv2d", params | {"h": 56, "w": 56}, layout="NCHW").dag, target())
    assert not any("lanes" in name for name in long.sketches)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_few_channels_let_columns_of_a_padded_copy_fill_the_vectors(threads: int) -> None:
    """Two channels fill two lanes: the copy is stored with its columns innermost, and read by vectors."""
    params = {"h": 3, "w": 33, "ci": 5, "co": 2, "k": 3, "padding": 1}
    workload = ops.workload("conv2d", params)
    space = derive(workload.dag, host(threads))
    inputs = [
        (np.arange(np.prod(t.shape)) % 7 - 3).reshape(t.shape).astype(t.dtype) for t in workload.dag.inputs
    ]
    (want,) = ops.reference(workload, inputs)
    rng = np.random.default_rng(0)
    turned = [n for n, name in enumerate(space.sketches) if ".lanes=" in name]
    assert turned and len(turned) < len(space.sketches)
    for n in turned:
        rows = space.sample(n, 64, rng)
        for row in rows[space.valid(n, rows)][:4]:
            s = Schedule.replay(space.dag, space.trace(n, row), space.target)
            assert "reorder_storage" in {x.primitive for x in s.trace.steps}
            columns = params["w"] + 2 * params["padding"]
            pad = next(b for b in s.nest.buffers if b.name == "pad")
            assert columns - 1 <= (const(pad.shape[-1]) or 0) <= columns + 1
            np.testing.assert_array_equal(at.build(s, target=space.target)(*inputs), want)
    # enough channels fill vectors themselves
    many = derive(ops.workload("conv2d", params | {"co": 32}).dag, host(threads))
    assert not any(".lanes=" in name for name in many.sketches)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("channels", "depth"), [(2, 3), (5, 3), (8, 3), (8, 24)])
def test_few_channels_let_columns_of_an_argument_fill_the_vectors(
    channels: int, depth: int, dtype: str
) -> None:
    """Channels are last and fewer than lanes. The image is copied with its columns last. A tile has all
    channels, and is stored by them. Long sums may be done in parts."""
    x, w = te.placeholder((2, 5, 38, depth), dtype, "x"), te.placeholder((3, 4, depth, channels), dtype, "w")
    u, v, c = (te.reduce_axis(n) for n in (3, 4, depth))
    y = te.compute(
        (2, 3, 35, channels),
        lambda n, i, j, k: te.sum(x[n, i + u, j + v, c] * w[u, v, c, k], axis=(u, v, c)),
        "y",
    )
    dag = te.dag([x, w, te.compute(y.shape, lambda *i: y[i] + 1.0, "z")])
    space = derive(dag, host(1))
    lanes = space.target.limit("vector_bytes") // (4 if dtype == "float32" else 8)
    turned = [n for n, name in enumerate(space.sketches) if ".lanes=" in name]
    assert bool(turned) == (channels < lanes and 35 >= 2 * lanes)
    inputs = [(np.arange(np.prod(t.shape)) % 7 - 3).reshape(t.shape).astype(dtype) for t in dag.inputs]
    (want,) = te.evaluate(dag, inputs)
    for n in turned:
        rows = space.sample(n, 64, np.random.default_rng(n))
        for row in rows[space.valid(n, rows)][:2]:
            s = Schedule.replay(space.dag, space.trace(n, row), space.target)
            copy = next(b for b in s.nest.buffers if b.name == "x_global")
            assert const(copy.shape[-1]) == 38
            last = loops_of(s.nest, "z")[-1]
            assert "k=blocks" in space.sketches[n] or (last.kind, const(last.extent)) == (
                "vectorize",
                channels,
            )
            np.testing.assert_array_equal(at.build(s, target=space.target)(*inputs), want)


def test_scores_of_attention_are_kept_a_block_of_rows_at_a_time() -> None:
    space = big_space("attention")
    n = space.sketches.index("y.by=blocks")
    rows = space.sample(n, 256, np.random.default_rng(0))
    row = rows[space.valid(n, rows)][0]
    taken = int(row[space.holes(n).index("y.rows")])
    func = lower(Schedule.replay(space.dag, space.trace(n, row), space.target).nest)
    kept = {x.buffer.name: int(np.prod([const(d) for d in x.buffer.shape])) for x in walk(func.body)
            if isinstance(x, Alloc)}  # fmt: skip
    seq = dict(BIG["attention"])["seq"]
    assert kept["dot"] == kept["e"] == taken * seq < 12 * seq * seq
    unrolled = [x for x in walk(func.body) if isinstance(x, Loop) and x.kind == "unroll"]
    assert unrolled, "the products are tiled for registers"


@pytest.mark.parametrize("threads", [1, 2])
def test_a_reduction_may_read_more_than_registers_hold(threads: int) -> None:
    """The norm of the residual of a stencil of 27 points, on a target of 16 registers."""
    n = 20
    x, f = te.placeholder((n + 2,) * 3, name="x"), te.placeholder((n,) * 3, name="f")
    near = list(itertools.product(range(3), repeat=3))
    v = te.compute((n,) * 3, lambda i, j, k: sum((x[i + p, j + q, k + r] for p, q, r in near), -f[i, j, k]))
    a = tuple(te.reduce_axis(n, name) for name in "abc")
    dag = te.dag([x, f, te.compute((), lambda: te.sum(v[a] * v[a], axis=a), "norm")])
    data = values(dag, np.random.default_rng(0))
    want = sum(data[0][p : p + n, q : q + n, r : r + n] for p, q, r in near) - data[1]
    space = derive(dag, target(threads))
    for k in range(len(space.sketches)):
        rows = space.sample(k, 64, np.random.default_rng(0))
        ok = space.valid(k, rows)
        assert ok.any() and not ok.all()
        check_compiled(dag, space.trace(k, rows[ok][0]), space.target, data, [np.sum(want * want)])


@pytest.mark.fast(but=["conv3d", "capsule_conv2d", "attention"])
@pytest.mark.parametrize("name", sorted(ops.REGISTRY))
def test_every_sketch_can_be_read(name: str) -> None:
    """Printed with its holes, and as a candidate, scheduled and lowered."""
    workload = ops.workload(name, SMALL[name])
    space = derive(workload.dag, target())
    rng = np.random.default_rng(0)
    for n, sketch in enumerate(space.sketches):
        assert "block" in show(space.sketch(n).nest), sketch
        rows = space.sample(n, 64, rng)
        for row in rows[space.valid(n, rows)][:1]:
            schedule = Schedule.replay(workload.dag, space.trace(n, row), target())
            assert "block" in str(schedule) and "] = " in show(lower(schedule.nest)), sketch


@pytest.mark.parametrize("on", [True, False])
def test_garbage_is_collected_after_a_derivation_if_it_was_before(on: bool) -> None:
    states = []

    @gc_paused()
    def fails() -> None:
        states.append(gc.isenabled())
        raise ZeroDivisionError

    (gc.enable if on else gc.disable)()
    try:
        space = derive(ops.workload("matmul", {"m": 8, "n": 8, "k": 8}).dag, target())
        space.features(0, space.sample(0, 2, np.random.default_rng(0)))
        states.append(gc.isenabled())
        with pytest.raises(ZeroDivisionError):
            fails()
        states.append(gc.isenabled())
    finally:
        gc.enable()
    assert states == [on, False, on]
