"""Indices that are read from tensors: what they mean, what is refused, and what else looks at expressions."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from gather_cases import EXACT, embedding, take
from helpers import inputs, interpret, same
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.measure.inputs import draws, random_inputs
from schedules import affine, ops, te
from schedules.errors import WorkloadError
from schedules.expr import INDEX, Binary, Cast, Const, Load, Var
from schedules.ir.nest import initial
from schedules.model import Workload
from schedules.te.compute_dag import Axis, ComputeDAG, Stage, Tensor
from schedules.te.flops import count_flops
from schedules.te.gathers import indexed_extents, most_read
from schedules.te.part import part
from schedules.te.rounding import evaluate_with_bounds
from schedules.te.structure import structure

W = te.placeholder((7, 3), name="W")
IDS = te.placeholder((5,), "int32", name="ids")
TABLE = np.arange(21, dtype=np.float32).reshape(7, 3)


# --- meaning ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXACT)
def test_the_reference_and_the_interpreter_agree_with_numpy(name: str) -> None:
    for seed in range(3):
        c = EXACT[name](np.random.default_rng(seed))
        same(te.evaluate(c.dag, c.inputs), c.expected, "the reference")
        same(interpret(initial(c.dag), c.dag, c.inputs), c.expected, "the interpreter")
        same(evaluate_with_bounds(c.dag, c.inputs).values, c.expected, "the reference with bounds")
        assert ComputeDAG.from_json(json.loads(json.dumps(c.dag.to_json()))) == c.dag
        workload = Workload(c.dag)
        assert Workload.from_json(workload.json, names=workload.names).digest == workload.digest


EXTREMES = {
    dtype: [0, 6, 7, 100, *([-1, np.iinfo(dtype).min] if dtype != "uint8" else []), np.iinfo(dtype).max]
    for dtype in ("int8", "uint8", "int32", "int64")
}


@pytest.mark.parametrize("dtype", EXTREMES)
def test_an_index_outside_is_the_nearest_inside(dtype: str) -> None:
    at = np.array(EXTREMES[dtype], dtype)
    w, ids = te.placeholder((7, 3), name="W"), te.placeholder(at.shape, dtype, name="ids")
    dag = te.dag([w, ids, te.compute((len(at), 3), lambda i, j: w[ids[i], j], "y")])
    want = [take(TABLE, at)]
    same(te.evaluate(dag, [TABLE, at]), want, "the reference")
    same(interpret(initial(dag), dag, [TABLE, at]), want, "the interpreter")


def test_no_bits_of_64_are_lost_before_the_end_is_found() -> None:
    """2**32 is 0 in 32 bits, and 2**63 - 1 is -1."""
    at = np.array([2**32, 2**32 + 1, -(2**32), 2**63 - 1])
    dag = embedding(np.random.default_rng(0), 4, (7, 3)).dag
    same(te.evaluate(dag, [TABLE, at]), [TABLE[[6, 6, 0, 6]]], "the reference")


def test_arithmetic_on_indices_wraps_as_their_dtype_does_and_stays_inside() -> None:
    y = te.compute((5, 3), lambda i, j: W[IDS[i] + 2, j], "y")
    at = np.array([2**31 - 1, 0, 4, 5, -3], np.int32)  # the first becomes -2**31 + 1
    want = [TABLE[[0, 2, 6, 6, 0]]]
    dag = te.dag([W, IDS, y])
    same(te.evaluate(dag, [TABLE, at]), want, "the reference")
    same(interpret(initial(dag), dag, [TABLE, at]), want, "the interpreter")


def test_an_index_beyond_its_dtype_needs_no_other_end() -> None:
    """No int8 reaches the last row of 300; it is held at 0 alone."""
    big = te.placeholder((300,), name="big")
    ids = te.placeholder((4,), "int8", name="ids")
    dag = te.dag([big, ids, te.compute((4,), lambda i: big[ids[i]], "y")])
    x = np.arange(300, dtype=np.float32)
    same(te.evaluate(dag, [x, np.array([127, -128, 5, 0], np.int8)]), [x[[127, 0, 5, 0]]], "the reference")


def test_results_without_axes_and_indices_from_them() -> None:
    where, k = te.placeholder((), "int32", name="where"), te.reduce_axis(7, "k")
    row = te.compute((3,), lambda j: W[where[()], j], "row")
    total = te.compute((), lambda: te.sum(W[k, where[()]], axis=k), "total")
    dag = te.dag([W, where, row, total])
    for n in (-4, 1, 99):
        data = [TABLE, np.array(n, np.int32)]
        want = [TABLE[np.clip(n, 0, 6)], np.asarray(TABLE[:, np.clip(n, 0, 2)].sum())]
        same(te.evaluate(dag, data), want, "the reference")
        same(interpret(initial(dag), dag, data), want, "the interpreter")


def test_an_output_may_be_read_and_gathered_from() -> None:
    half = te.compute((7, 3), lambda i, j: W[i, j] / 2.0, "half")
    out = te.compute((5, 3), lambda i, j: half[IDS[i], j] + 1.0, "out")
    dag = te.dag([W, IDS, half, out])
    assert dag.outputs == ("half", "out")
    at = np.array([3, -1, 9, 0, 6], np.int32)
    want = [TABLE / 2, take(TABLE / 2, at) + 1]
    same(te.evaluate(dag, [TABLE, at]), want, "the reference")
    same(interpret(initial(dag), dag, [TABLE, at]), want, "the interpreter")


def test_a_size_that_varies_gives_the_expression_of_that_number() -> None:
    from autotune import dim

    n, m = dim(1, 40), dim(1, 9)

    def dag(rows: Any, count: Any, sizes: dict[Any, int]) -> ComputeDAG:
        w, ids = te.placeholder((rows, 3), name="W"), te.placeholder((count,), "int64", name="ids")
        return te.dag([w, ids, te.compute((count, 3), lambda i, j: w[ids[i], j], "y")], sizes)

    assert dag(n, m, {n: 7, m: 5}) == dag(7, 5, {})


@settings(max_examples=60)
@given(st.data())
def test_random_gathers(data: st.DataObject) -> None:
    """Any dimension of a table, at indices of any rank, of any dtype, of a table that is computed or not."""
    rank = data.draw(st.integers(1, 3))
    shape = tuple(data.draw(st.integers(1, 5)) for _ in range(rank))
    axis, inner = data.draw(st.integers(0, rank - 1)), data.draw(st.integers(0, 2))
    dtype = data.draw(st.sampled_from(["int8", "uint8", "int32", "int64"]))
    at = tuple(data.draw(st.integers(1, 4)) for _ in range(inner))
    w, ids = te.placeholder(shape, name="W"), te.placeholder(at, dtype, name="ids")
    computed, turned = data.draw(st.booleans()), data.draw(st.booleans())
    table = te.compute(shape, lambda *i: w[i] * 2.0 - 1.0, "table") if computed else w
    full = (*shape[:axis], *at, *shape[axis + 1 :])

    def value(*i: te.Expr) -> te.Expr:
        n = ids[i[axis : axis + inner]]
        n = te.select(n < 0, n + shape[axis], n) if turned else n
        return table[(*i[:axis], n, *i[axis + inner :])]

    dag = te.dag([w, ids, te.compute(full, value, "y")])
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    x, found = inputs(dag)[0], rng.integers(-9, 9, at)
    found = np.asarray(found.clip(np.iinfo(dtype).min, None), dtype)
    wide = found.astype(np.int64)
    wide = np.where(wide < 0, wide + shape[axis], wide) if turned else wide
    want = [take(x * 2 - 1 if computed else x, wide, axis)]
    same(te.evaluate(dag, [x, found]), want, "the reference")
    same(interpret(initial(dag), dag, [x, found]), want, "the interpreter")


# --- what is refused --------------------------------------------------------------------------

F = te.placeholder((5,), "float32", name="f")
B = te.placeholder((5,), "bool", name="b")
REFUSED = {
    "a float": (
        lambda i, j: W[F[i], j],
        r"tensor W\[7, 3\] float32 is indexed by f\[i\] of dtype float32; an index is arithmetic over axes "
        r"and integers, or an integer that is read from tensors: "
        r'compute an integer, e.g. te.cast\(x, "int32"',
    ),
    "a condition": (
        lambda i, j: W[B[i], j],
        r"indexed by b\[i\] of dtype bool; .*: choose between integers, e.g. te.select\(x, 1, 0\)",
    ),
    "a comparison": (lambda i, j: W[IDS[i] > 2, j], r"indexed by 2 < ids\[i\] of dtype bool"),
    "an axis and an element": (
        lambda i, j: W[IDS[i] + i, j],
        r"operands have different dtypes, int32 and index; convert one with te.cast\(x, 'int32'\)",
    ),
    "an index out of bounds": (lambda i, j: W[IDS[i + 1], j], r"of ids\[i \+ 1\] is 5 at i=4, outside 0..4"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_index_is_named(case: str) -> None:
    fn, message = REFUSED[case]
    with pytest.raises(WorkloadError, match=message):
        te.compute((5, 3), fn, "y")


def test_an_index_tensor_that_is_not_listed_is_named() -> None:
    y = te.compute((5, 3), lambda i, j: W[IDS[i], j], "y")
    with pytest.raises(
        WorkloadError, match=r"tensor ids\[5\] int32 is read but not listed; list every input"
    ):
        te.dag([W, y])
    other = te.placeholder((5,), "int32", name="other")
    with pytest.raises(WorkloadError, match=r"input tensor other\[5\] int32 is read by no listed output"):
        te.dag([W, IDS, other, y])


def gathered(index: Any, dtype: str = "int32", rows: int = 7) -> ComputeDAG:
    """What somebody else may have written: ``W[index, j]``."""
    stage = Stage(
        (Tensor("y", (5, 3), "float32"),), (Axis("i", 5), Axis("j", 3)), (),
        (Load("W", (index, Var("j")), "float32"),),
    )  # fmt: skip
    return ComputeDAG((Tensor("W", (rows, 3), "float32"), Tensor("ids", (5,), dtype)), (stage,), ("y",))


def loaded(dtype: str = "int32") -> Load:
    return Load("ids", (Var("i"),), dtype)


def clamped(low: int, high: int, dtype: str = "int32") -> Cast:
    inner = Binary("max", loaded(dtype), Const(low, dtype))
    return Cast(INDEX, Binary("min", inner, Const(high, dtype)))


HOSTILE = {
    "no clamp": (lambda: gathered(Cast(INDEX, loaded())), "cannot be proved inside 0..6 of W"),
    "no end": (
        lambda: gathered(Cast(INDEX, Binary("max", loaded(), Const(0, "int32")))),
        "cannot be proved inside 0..6",
    ),
    "no beginning": (
        lambda: gathered(Cast(INDEX, Binary("min", loaded(), Const(6, "int32")))),
        "cannot be proved inside 0..6",
    ),
    "one too far": (lambda: gathered(clamped(0, 7)), "cannot be proved inside 0..6"),
    "one before": (lambda: gathered(clamped(-1, 6)), "cannot be proved inside 0..6"),
    "moved out": (lambda: gathered(clamped(0, 6) + 1), "cannot be proved inside 0..6"),
    "wraps in its dtype": (
        lambda: gathered(Cast(INDEX, Binary("+", clamped(0, 6).a, Const(0, "int32")))),
        "cannot be proved inside",
    ),
    "wraps in 64 bits": (
        lambda: gathered((Cast(INDEX, loaded("int64")) + 5) % 7, "int64"), "may leave 64 bits",
    ),
    "narrowed after the clamp": (
        lambda: gathered(Cast(INDEX, Cast("int32", clamped(2**32, 2**32 + 6, "int64").a)) - 2**32, "int64"),
        "cannot be proved inside 0..6",
    ),
    "of a float": (lambda: gathered(Cast(INDEX, loaded("float32")), "float32"), "makes an index of float32"),
    "of a condition": (lambda: gathered(Cast(INDEX, loaded("bool")), "bool"), "computes in bool"),
    "of bytes": (lambda: gathered(Cast(INDEX, loaded("uint8")), "uint8"), "computes in uint8"),
    "under a condition on data": (
        lambda: gathered(te.select(te.all(loaded() >= 0, loaded() < 7), Cast(INDEX, loaded()), 0)),
        "cannot be proved inside 0..6",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_what_is_not_held_inside_is_refused(case: str) -> None:
    make, message = HOSTILE[case]
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("case", ["no clamp", "one too far", "moved out"])
def test_a_workload_of_a_log_is_held_to_it_too(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as m:
        m.setattr("schedules.te.compute_dag.check_loads", lambda *_: None)
        text = json.dumps(HOSTILE[case][0]().to_json())
    with pytest.raises(ValueError, match="cannot be proved inside"):
        ComputeDAG.from_json(json.loads(text))


def test_what_a_dtype_or_a_remainder_holds_inside_is_accepted() -> None:
    assert gathered(clamped(0, 6)).outputs == gathered(clamped(2, 3)).outputs
    gathered(Cast(INDEX, Cast("int32", loaded("uint8"))), "uint8", rows=256)
    gathered(Cast(INDEX, loaded()) % 7)
    with pytest.raises(ValueError, match="cannot be proved inside 0..254"):
        gathered(Cast(INDEX, Cast("int32", loaded("uint8"))), "uint8", rows=255)


def test_code_that_counts_in_32_bits_is_told_of_longer_indices() -> None:
    assert affine.leaves(Cast(INDEX, loaded("int64")), {}, 2**31 - 1) == Cast(INDEX, loaded("int64"))
    assert affine.leaves(clamped(0, 6, "int64"), {}, 2**31 - 1) is None
    assert affine.leaves(Cast(INDEX, loaded("int32")), {}, 2**31 - 1) is None
    assert affine.leaves(Cast(INDEX, loaded("int64")), {}, 2**63 - 1) is None


@pytest.mark.slow
@given(st.data())
@settings(max_examples=200)
def test_bounds_of_integers_hold(data: st.DataObject) -> None:
    """`affine.value_bounds` of random arithmetic, on all values that a tensor of int8 may hold."""
    here = te.cast(loaded("int8"), "int32")

    def draw(depth: int) -> te.Expr:
        leaves, others = ["load", "const"], ["min", "max", "+", "-", "*", "%", "&", ">>", "select"]
        kind = data.draw(st.sampled_from(others if depth else leaves))
        if kind == "load":
            return here
        if kind == "const":
            return Const(data.draw(st.integers(-200, 200)), "int32")
        a, b = draw(depth - 1), draw(depth - 1)
        if kind == "%" and b == Const(0, "int32"):
            return b  # a divisor that is written as 0 is refused; of one that is data the remainder is 0
        return te.select(a < b, b, a) if kind == "select" else Binary(kind, a, b)

    e = draw(data.draw(st.integers(0, 3)))
    low, high = affine.value_bounds(e, {}) or (1, 0)
    stage = Stage((Tensor("y", (256,), "int32"),), (Axis("i", 256),), (), (e + here * 0,))
    dag = ComputeDAG((Tensor("ids", (256,), "int8"),), (stage,), ("y",))
    (y,) = te.evaluate(dag, [np.arange(-128, 128, dtype=np.int8)])
    assert low <= y.min() and y.max() <= high


# --- what else looks at expressions -------------------------------------------------------------


def test_inputs_that_are_indices_are_drawn_over_all_that_they_index() -> None:
    rng = np.random.default_rng(0)
    assert indexed_extents(embedding(rng).dag) == {"ids": 7}
    assert indexed_extents(EXACT["twice"](rng).dag) == {"via": 7, "ids": 5}  # via: by way of a stage
    assert indexed_extents(EXACT["from_the_end"](rng).dag) == {"ids": 7}
    assert indexed_extents(EXACT["with_axes"](rng).dag) == {"first": 21}
    assert indexed_extents(EXACT["of_the_largest"](rng).dag) == {}
    assert indexed_extents(ops.workload("matmul", {"m": 2, "n": 2, "k": 2}, "int32").dag) == {}
    ids = random_inputs(embedding(rng, 4000, (50_000, 2)).dag)[1]
    inside = (ids >= 0) & (ids < 50_000)
    assert 0.95 < inside.mean() < 1 and ids.min() < 0 and ids.max() >= 50_000
    assert len(np.unique(ids[inside])) > 3500 and ids[inside].std() > 10_000
    small = random_inputs(embedding(rng, 99, (300, 2), "int8").dag)[1]
    assert small.dtype == np.int8 and len(np.unique(small)) > 30 and (small == 127).any()


def test_every_draw_of_a_reduction_has_such_indices() -> None:
    found = draws(EXACT["summed"](np.random.default_rng(0)).dag)
    assert len(found) > 1
    assert all((x.inputs[1] == found[0].inputs[1]).all() for x in found)


def test_a_part_needs_all_rows_of_a_table_but_few_indices() -> None:
    c = embedding(np.random.default_rng(3), 9, (7, 8))
    found = part(c.dag, [((2, 5), (1, 4))])
    assert found.inputs == (((0, 7), (1, 4)), ((2, 5),))
    cut = [x[tuple(slice(*d) for d in b)] for x, b in zip(c.inputs, found.inputs, strict=True)]
    same(te.evaluate(found.dag, cut), [c.expected[0][2:5, 1:4]], "a part")
    c = EXACT["of_a_stage"](np.random.default_rng(3))  # the whole table is computed, of a few columns
    found = part(c.dag, [((1, 2), (0, 2), (3, 9))])
    cut = [x[tuple(slice(*d) for d in b)] for x, b in zip(c.inputs, found.inputs, strict=True)]
    same(te.evaluate(found.dag, cut), [c.expected[0][1:2, 0:2, 3:9]], "a part")


def test_arithmetic_on_indices_is_no_work_and_no_structure() -> None:
    c = embedding(np.random.default_rng(0))
    assert count_flops(c.dag) == 0
    other = EXACT["of_each_point"](np.random.default_rng(0)).dag
    assert count_flops(other) == 6 * 13
    assert structure(c.dag).key == structure(embedding(np.random.default_rng(0), 9, (8, 4), "int32").dag).key
    assert structure(c.dag).key != structure(other).key
    for _, _, operations, _ in structure(c.dag).key:
        assert operations == ()


def test_bytes_are_those_of_the_rows_that_may_be_read() -> None:
    dag = embedding(np.random.default_rng(0), 5, (1000, 3)).dag
    assert most_read(dag) == {"W": 5 * 3 * 4, "ids": 5 * 8}
    assert ops.compulsory_bytes(dag) == 60 + 40 + 60
    assert most_read(embedding(np.random.default_rng(0), 50, (7, 3)).dag)["W"] == 7 * 3 * 4
    plain = ops.workload("matmul", {"m": 4, "n": 5, "k": 6}).dag
    assert ops.compulsory_bytes(plain) == sum(t.nbytes for t in plain.params)


def test_an_uncertain_index_allows_any_element() -> None:
    """A sum that is 3 but for rounding has the floor 2 or 3. Floors of other sums are certain."""
    x, k = te.placeholder((4, 2), name="x"), te.reduce_axis(2, "k")
    total = te.compute((4,), lambda i: te.sum(x[i, k] * 0.1, axis=k), "total")
    out = te.compute((4, 3), lambda i, j: W[te.cast(te.floor(total[i] * 10.0), "int32"), j], "out")
    dag = te.dag([W, x, out])
    data = np.array([[1, 2], [0.4, 0.2], [2.5, 2.7], [0, 0]], np.float32)
    found = evaluate_with_bounds(dag, [TABLE, data])
    assert np.isinf(found.bounds[0][0]).all()
    assert (found.bounds[0][1:] == 0).all()
    assert np.array_equal(found.values[0][1:], TABLE[[0, 5, 0]])


def test_what_is_gathered_has_the_errors_of_its_row() -> None:
    made = te.compute((7, 3), lambda i, j: W[i, j] * 0.1, "made")
    out = te.compute((5, 3), lambda i, j: made[IDS[i], j], "out")
    at = np.array([3, -1, 9, 0, 5], np.int32)
    table, rows = evaluate_with_bounds(te.dag([W, IDS, made, out]), [TABLE, at]).bounds
    assert len(np.unique(table)) > 9 and np.array_equal(rows, take(table, at))
