"""Arguments that lie in any order, with gaps, repeated, overlapping or backwards: what the nest means, what
every pass makes of it, what compiled kernels and emulated code for a GPU do are one thing. Gaps of outputs
stay as they were, and nothing beyond the first and the last element is touched (`helpers.run_object`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from dot_products import product, tensorized
from grid_cases import SMALL, TARGET, case, need_cxx, program
from grid_cases import space as grid_space
from helpers import check_interpreted, checker, expected, host, inputs, interpret, lies, run_object, same
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import PROGRAMS, make
from random_schedules import random_schedule
from strided import with_views

from autotune.backends.building.from_trace import check_legal, emit_module, module_of
from autotune.codegen.llvm.compile import compile_module
from autotune.codegen.runtime.laid import laid, settled_values
from autotune.codegen.simt import emulator
from schedules import ops, te
from schedules.constants import split_constants
from schedules.dtypes import COMPUTED
from schedules.errors import ScheduleError, WorkloadError
from schedules.expr import Const
from schedules.instructions import INSTRUCTIONS
from schedules.ir import Intrinsic, walk
from schedules.ir.strides import given_strides
from schedules.model import Workload
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.te.compute_dag import ComputeDAG
from schedules.te.strided import with_strides

seeds = st.integers(0, 2**32 - 1)


def check_schedule(seed: int) -> None:
    """A random schedule of a random program."""
    rng = Random(seed)
    plain = make(rng.choice(list(PROGRAMS)), rng.choice(COMPUTED))
    dag = with_views(plain, rng)
    nest = random_schedule(dag, rng, rng.randint(2, 9)).nest
    data, target = inputs(dag, seed % 1000), host(rng.choice((1, 2)))
    want = expected(plain, data)
    check_interpreted(nest, dag, data, want)
    obj = compile_module(module_of(lower(nest), target).text, target)
    for place, got in run_object(obj, dag, target, data).items():
        same(got, want, f"compiled, arrays at {place}")


def held(dag: ComputeDAG, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Inputs as the arguments of a DAG can hold them."""
    return [settled_values(x, lies(t)) for t, x in zip(dag.inputs, arrays, strict=True)]


def check_sampled(op: str, rng: Random) -> None:
    """A candidate of the search for an operator."""
    c, target = case(op), host(rng.choice((1, 2)))
    dag = with_views(c.dag, rng)
    data = held(dag, c.inputs)
    judge, found = checker(c.dag, data), derive(dag, target)
    number = rng.randrange(len(found.sketches))
    rows = found.sample(number, 200, np.random.default_rng(rng.getrandbits(32)))
    assert np.isfinite(found.features(number, rows)).all()
    for row in rows[found.valid(number, rows)][:1]:
        text = emit_module(dag, found.trace(number, row), target).text
        for place, got in run_object(compile_module(text, target), dag, target, data).items():
            verdict = judge.check(got, 0)
            assert not verdict.reason, f"{op} at {place}: {verdict.reason}, {dag.params}"


def check_emulated(op: str, rng: Random) -> None:
    """A candidate of the search for a GPU."""
    c = case(op)
    dag = with_views(c.dag, rng, least=0)
    data, found = held(dag, c.inputs), grid_space(dag)
    number = rng.randrange(len(found.sketches))
    rows = found.sample(number, 200, np.random.default_rng(rng.getrandbits(32)))
    for row in rows[found.valid(number, rows)][:1]:
        p = program(dag, found.trace(number, row))
        outputs = [dag.tensors[n] for n in dag.outputs]
        made = [laid(x, lies(t)) for t, x in zip(outputs, c.poisoned(), strict=True)]
        given = [laid(x, lies(t)) for t, x in zip(dag.inputs, data, strict=True)]
        assert emulator.run(emulator.build(p), p, [*given, *made]) is None
        verdict = checker(c.dag, data).check([x.copy() for x in made], 0)
        assert not verdict.reason, f"{op}: {verdict.reason}, {dag.params}"


@pytest.mark.parametrize("seed", range(4))
def test_random_schedules(seed: int) -> None:
    check_schedule(seed)


@pytest.mark.fuzz
@given(seeds)
@settings(max_examples=400)
def test_many_random_schedules(seed: int) -> None:
    check_schedule(seed)


@pytest.mark.fast("matmul", "softmax", "permute")
@pytest.mark.parametrize("op", SMALL)
def test_candidates_of_every_operator(op: str) -> None:
    check_sampled(op, Random(op))


@pytest.mark.fuzz
@given(st.sampled_from(list(SMALL)), seeds)
@settings(max_examples=400)
def test_many_candidates(op: str, seed: int) -> None:
    check_sampled(op, Random(seed))


@pytest.mark.slow
@pytest.mark.parametrize("op", ["matmul", "softmax", "conv2d"])
def test_emulated_grids(op: str) -> None:
    need_cxx()
    check_emulated(op, Random(op))


@pytest.mark.fuzz
@given(st.sampled_from(list(SMALL)), seeds)
@settings(max_examples=60)
def test_many_emulated_grids(op: str, seed: int) -> None:
    need_cxx()
    check_emulated(op, Random(seed))


# -- what is refused, and what is not written ------------------------------------------------------


def shifted(**strides: tuple[int, ...]) -> ComputeDAG:
    """z = x + 1 of shape (6, 10)."""
    x = te.placeholder((6, 10), "float32", "x")
    return with_strides(te.dag([x, te.compute((6, 10), lambda i, j: x[i, j] + 1.0, "z")]), strides)


def test_a_gpu_takes_no_array_backwards() -> None:
    dag = shifted(x=(-10, 1))
    with pytest.raises(ScheduleError, match=r"argument x has strides \[-10, 1\].* none below 0; give"):
        check_legal(dag, Schedule(dag).trace, TARGET)
    check_legal(dag, Schedule(dag).trace, host())


@pytest.mark.parametrize(
    ("strides", "says"),
    [
        ({"z": (0, 1)}, "tensor z: stride 0 of dimension 0: it is written, and only what is read may repeat"),
        ({"z": (10, -1)}, "tensor z: stride -1 of dimension 1: it is written.* walk backwards"),
        ({"z": (5, 1)}, "tensor z: stride 5 of dimension 0.* two may lie in one place; make the stride 10"),
        ({"x": (10,)}, "tensor x: 1 strides for 2 dimensions; give one stride for each dimension"),
        ({"x": 10}, "tensor x: 1 strides for 2 dimensions"),
        ({"x": (10, 0.5)}, "x has stride 0.5, which is no integer"),
        ({"x": (1 << 60, 1)}, "tensor x: it has more than .* bytes"),
        ({"y": (10, 1)}, "'y' is no argument; the arguments are x, z"),
    ],
)
def test_strides_that_do_not_fit_are_refused(strides: dict[str, tuple[int, ...]], says: str) -> None:
    with pytest.raises(WorkloadError, match=says):
        shifted(**strides)


def test_only_arguments_are_given_strides() -> None:
    c = case("softmax")
    between = next(s.name for s in c.dag.stages if s.name not in c.dag.outputs)
    with pytest.raises(WorkloadError, match=f"'{between}' is computed on the way; the arguments are x, y"):
        with_strides(c.dag, {between: (1,)})


@pytest.mark.parametrize(
    ("strides", "says"),
    [
        ((10,), "placeholder x: 1 strides for 2 dimensions; give one stride for each dimension"),
        ((10, True), "placeholder x: stride True is not an integer; give a number of elements"),
        ((10, "1"), "placeholder x: stride '1' is not an integer"),
        ((10, 1 << 50), "placeholder x: stride .* is outside"),
    ],
)
def test_placeholders_check_their_strides(strides: tuple[object, ...], says: str) -> None:
    with pytest.raises(WorkloadError, match=says):
        te.placeholder((6, 10), name="x", strides=strides)  # type: ignore[arg-type]


def test_strides_have_one_spelling() -> None:
    plain = shifted()
    assert shifted(x=(10, 1), z=None) == plain and "strides" not in str(plain.to_json())
    x = te.placeholder((6, 1), name="x", strides=(1, 99))
    assert te.dag([x, te.compute((6, 1), lambda i, j: x[i, j] + 1.0, "z")]).inputs[0].strides is None
    lying = shifted(x=(1, 6))
    assert ComputeDAG.from_json(lying.to_json()) == lying != plain
    assert lying.to_json()["inputs"] == [["x", [6, 10], "float32", [1, 6]]]


def test_a_dimension_that_varies_may_be_a_stride() -> None:
    from autotune import dim

    m = dim(1, 8)
    x = te.placeholder((m, 4), name="x", strides=(1, m + 2))
    z = te.compute((m, 4), lambda i, j: x[i, j] + 1.0, "z")
    assert te.dag([x, z], {m: 5}).inputs[0].strides == (1, 7)


def test_dimensions_without_gaps_are_merged_and_split() -> None:
    """As q of q, k, v in one array is: its heads lie one after another, its rows do not."""
    x = te.placeholder((5, 2, 6), name="x", strides=(36, 6, 1))
    y = te.compute((5, 2, 6), lambda i, h, j: x[i, h, j] * 2.0, "y")
    dag = te.with_strides(te.dag([x, y]), {"y": (20, 6, 1)})
    s = Schedule(dag)
    s.merge_axes("y_h", "y_j")
    for name in "xy":
        s.merge_dims(name, 1, 2)
    merged = s.nest.buffer("x")
    assert (merged.shape, merged.strides) == ((Const(5), Const(12)), (Const(36), Const(1)))
    assert given_strides(merged) == (36, 6, 1) and given_strides(s.nest.buffer("y")) == (20, 6, 1)
    s.split_dim("x", 1, 3)
    again = s.nest.buffer("x")
    assert (again.shape[1:], again.strides) == ((Const(4), Const(3)), (Const(36), Const(3), Const(1)))
    assert given_strides(again) == (36, 6, 1)
    (data,) = inputs(dag)
    check_interpreted(s.nest, dag, [data], [2 * data])
    obj = compile_module(module_of(lower(s.nest), host()).text, host())
    for got in run_object(obj, dag, host(), [data]).values():
        same(got, [2 * data], "compiled")


def test_instructions_take_operands_of_views() -> None:
    """Rows of a and c have gaps between them: an instruction has any step there."""
    ins = INSTRUCTIONS["vdpbf16ps"]
    plain = product(ins, 8, 32, 16)
    a, c = plain.inputs[0].name, plain.outputs[0]
    dag = te.with_strides(plain, {a: (24, 1), c: (48, 1)})
    f = lower(tensorized(dag, ins, 4, 1, 2).nest)
    assert any(isinstance(x, Intrinsic) and x.instruction is ins for x in walk(f.body))
    data = inputs(dag)
    want = expected(plain, data)
    same(interpret(f, dag, data), want, "interpreted")
    obj = compile_module(module_of(f, host()).text, host())
    for got in run_object(obj, dag, host(), data).values():
        same(got, want, "compiled")


def test_rules_merge_what_goes_on_in_views() -> None:
    """An elementwise stage over q of q, k, v has one long axis for each row."""
    x = te.placeholder((5, 3, 8), name="x", strides=(72, 8, 1))
    dag = te.dag([x, te.compute((5, 3, 8), lambda i, h, j: x[i, h, j] * 2.0, "y")])
    found = derive(dag, host())
    rows = found.sample(0, 1, np.random.default_rng(0))
    steps = {s.primitive for s in found.trace(0, rows[0]).steps}
    assert {"merge_axes", "merge_dims"} <= steps


def test_workloads_of_row_major_arguments_keep_their_digests() -> None:
    """Logs have them."""
    known = {
        "matmul": ({"m": 64, "n": 32, "k": 16}, "bf148d405cf2c392bcd3d77d25dc1b09"),
        "softmax": ({"m": 8, "n": 64}, "93ae4d656b2539798a7b730402deff13"),
    }
    for op, (sizes, digest) in known.items():
        w = ops.workload(op, sizes)
        assert w.digest == digest
        name, shape = w.dag.inputs[0].name, w.dag.inputs[0].shape
        lying = replace(w, dag=te.with_strides(w.dag, {name: (1, shape[0])}))
        assert lying.digest != digest and ops.makes(lying) and ops.makes(w)
        same = replace(w, dag=te.with_strides(w.dag, {name: (shape[1], 1)}))
        assert same.digest == digest
        assert Workload.from_json(lying.json).digest == lying.digest


def test_packing_reads_a_strided_constant() -> None:
    x, w = te.placeholder((4, 6), name="x"), te.placeholder((6, 5), name="w", strides=(1, 8))
    r = te.reduce_axis(6, "r")
    c = te.compute((4, 5), lambda i, j: te.sum(x[i, r] * w[r, j], axis=r), "c")
    dag = replace(te.dag([x, w, c]), constants=("w",))
    s = Schedule(dag)
    s.pack(s.cache_read("c", "w", "global"), [0, 4], [1, 0, 2])
    left, packing = split_constants(s.nest, ("w",))
    assert packing["w"].buffer("w").strides is not None
    assert all(left.buffer(n).strides is None for n in left.params)


def test_a_write_into_a_gap_is_seen() -> None:
    """A kernel of all the memory writes where rows have gaps."""
    x = te.placeholder((70,), "float32", "x")
    flat = te.dag([x, te.compute((70,), lambda i: x[i] + 1.0, "z")])
    obj = compile_module(emit_module(flat, Schedule(flat).trace, host()).text, host())
    rows, data = shifted(x=(12, 1), z=(12, 1)), [np.ones((6, 10), "float32")]
    with pytest.raises(AssertionError, match="writes 10 elements into gaps of z, first 10 elements behind"):
        run_object(obj, rows, host(), data)
