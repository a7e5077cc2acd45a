"""Strides: which are told, which are refused, and what follows from them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from programs import matmul_relu
from strided import random_strides

from schedules import te
from schedules.expr import Const, Expr, Load, Var, evaluate
from schedules.ir import Alloc, Buffer, Store, nbytes, rows_are_lines
from schedules.ir.interp import InterpError, new_array, run
from schedules.ir.nest import initial
from schedules.ir.printer import show
from schedules.ir.strides import (
    as_row_major,
    buffer_strides,
    contiguous_dimension,
    elements,
    region_elements,
    resized,
    row_elements,
)
from schedules.ir.verify import VerifyError, verify
from schedules.model import Workload
from schedules.passes.storage_align import storage_align
from schedules.schedule import Schedule
from schedules.space.estimate.cpu import facts as cpu_facts
from schedules.space.estimate.gpu import facts as gpu_facts
from schedules.space.rules.patterns import unit_stride_vars
from schedules.strides import flaw, inner_first, refitted, row_major, settled, span, strides_of
from schedules.te.compute_dag import ComputeDAG, Tensor

shapes = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)
seeds = st.integers(0, 2**32 - 1)


def buffer(shape: Sequence[int], strides: Sequence[int] | None, scope: str = "global") -> Buffer:
    wrapped = None if strides is None else tuple(map(Const, strides))
    return Buffer("t", tuple(map(Const, shape)), "float32", scope, wrapped)


def places(shape: Sequence[int], strides: Sequence[int]) -> list[int]:
    """Where every element lies, in the order of the indices."""
    every = itertools.product(*map(range, shape))
    return [sum(i * s for i, s in zip(at, strides, strict=True)) for at in every]


# -- the one that tells them -------------------------------------------------------------------


def test_an_array_that_names_none_is_row_major() -> None:
    assert strides_of(Tensor("x", (4, 3, 8), "float32")) == (24, 8, 1)
    assert strides_of(Tensor("x", (4, 3), "float32", (1, 5))) == (1, 5)
    assert strides_of(Tensor("x", (), "float32")) == ()
    assert buffer_strides(buffer((4, 3, 8), None)) == (Const(24), Const(8), Const(1))


@given(shapes, seeds)
def test_strides_have_one_spelling(shape: tuple[int, ...], seed: int) -> None:
    strides = random_strides(shape, Random(seed))
    one = settled(shape, strides) or row_major(shape)
    assert places(shape, one) == places(shape, strides)
    other = tuple(s if n > 1 else s + 7 for n, s in zip(shape, strides, strict=True))
    assert Tensor("x", shape, "float32", other) == Tensor("x", shape, "float32", strides)
    assert Tensor("x", shape, "float32", row_major(shape)) == Tensor("x", shape, "float32")


def test_bytes_of_a_tensor_end_with_its_last_element() -> None:
    assert Tensor("x", (3, 4), "float32").nbytes == 48
    assert Tensor("x", (3, 4), "float32", (6, 1)).nbytes == 4 * (2 * 6 + 4)
    assert Tensor("x", (3, 4), "float32", (0, 1)).nbytes == 16
    assert span((3, 4), (-4, 1)) == 12


# -- what is refused ---------------------------------------------------------------------------


@given(shapes, st.lists(st.integers(1, 12), min_size=4, max_size=4))
def test_what_passes_has_no_two_elements_in_one_place(shape: tuple[int, ...], steps: list[int]) -> None:
    strides = steps[: len(shape)]
    found = places(shape, strides)
    if len(set(found)) < len(found):
        assert "two may lie in one place" in flaw(shape, strides, written=True)
    assert not flaw(shape, strides, written=False)


@given(shapes, seeds)
def test_nested_strides_pass(shape: tuple[int, ...], seed: int) -> None:
    assert not flaw(shape, random_strides(shape, Random(seed)), written=True)


REFUSED = [
    ((4, 3), (3,), "1 strides for 2 dimensions; give one stride for each dimension"),
    ((4, 3), (0, 1), "stride 0 of dimension 0: it is written, .* make the stride 1 or more"),
    ((4, 3), (3, -1), "stride -1 of dimension 1: it is written, .* make the stride 1 or more"),
    ((4, 3), (2, 1), "stride 2 of dimension 0: .* reach 2 elements far, .* make the stride 3 or more"),
]


@pytest.mark.parametrize(("shape", "strides", "reason"), REFUSED)
def test_the_verifier_names_buffer_reason_and_remedy(
    shape: tuple[int, ...], strides: tuple[int, ...], reason: str
) -> None:
    store = Store("t", (Const(1), Const(1)), Const(1.0, "float32"))
    with pytest.raises(VerifyError, match=f"after compact: buffer t: {reason}"):
        verify(Alloc(buffer(shape, strides), store), (), "compact")
    with pytest.raises(VerifyError, match=f"after compact: buffer t: {reason}"):
        verify(store, (buffer(shape, strides),), "compact")  # an argument


def test_what_is_read_only_may_repeat_and_walk_backwards() -> None:
    x = replace(buffer((4, 3), (0, -1)), name="x")
    verify(Store("t", (), Load("x", (Const(0), Const(0)), "float32")), (x, buffer((), None)), "compact")


def test_the_verifier_refuses_strides_with_holes() -> None:
    odd = replace(buffer((4, 3), None), strides=(Var("n"), Const(1)))
    with pytest.raises(VerifyError, match=r"buffer t: .*\(4, 3, n, 1\) are no numbers; fill the holes"):
        verify(Alloc(odd, Store("t", (Const(0), Const(0)), Const(1.0, "float32"))), (), "compact")


def strided_dag(strides: tuple[int, ...] | None) -> ComputeDAG:
    """z = 2 x + 1 by way of y: float32[6, 10], which lies with these strides."""
    x = te.placeholder((6, 10), "float32", "x")
    y = te.compute((6, 10), lambda i, j: x[i, j] * 2.0, "y")
    dag = te.dag([x, te.compute((6, 10), lambda i, j: y[i, j] + 1.0, "z")])
    first, last = dag.stages
    return replace(dag, stages=(replace(first, outputs=(replace(first.outputs[0], strides=strides),)), last))


@pytest.mark.parametrize(("strides", "reason"), [(s[1], s[2]) for s in REFUSED[:3]])
def test_a_dag_names_tensor_reason_and_remedy(strides: tuple[int, ...], reason: str) -> None:
    with pytest.raises(ValueError, match=f"tensor y: {reason}"):
        strided_dag(strides)


def test_strides_are_written_to_json_only_where_there_are_some() -> None:
    plain, strided = strided_dag(None), strided_dag((1, 8))
    assert plain.to_json()["stages"][0]["outputs"] == [["y", [6, 10], "float32"]]
    assert strided.to_json()["stages"][0]["outputs"] == [["y", [6, 10], "float32", [1, 8]]]
    assert ComputeDAG.from_json(strided.to_json()) == strided != plain
    assert Workload(strided).digest != Workload(plain).digest == Workload(strided_dag((10, 1))).digest
    broken = strided.to_json()
    broken["stages"][0]["outputs"][0].append([1, 8])
    with pytest.raises(ValueError, match="these and strides"):
        ComputeDAG.from_json(broken)


# -- the interpreter and the printer ------------------------------------------------------------


def test_the_interpreter_gives_a_buffer_an_array_that_lies_so() -> None:
    a = new_array(buffer((4, 3), (1, 6)))
    assert a.shape == (4, 3) and a.strides == (4, 24) and np.isnan(a).all()
    assert a.base is not None


def test_the_interpreter_wants_arguments_that_lie_as_they_should() -> None:
    dag = strided_dag(None)
    nest = initial(replace(dag, inputs=(replace(dag.inputs[0], strides=(1, 6)),)))
    x, z = np.arange(60, dtype="f4").reshape(10, 6).T, np.full((6, 10), np.nan, "f4")
    run(nest, {"x": x, "z": z})
    assert (z == 2 * x + 1).all()
    with pytest.raises(InterpError, match=r"x: expected strides \[1, 6\] in elements, got \[10.0, 1.0\]"):
        run(nest, {"x": x.copy(), "z": z})


def test_the_printer_shows_strides() -> None:
    assert "y: float32[6, 10] strides [1, 8]  # intermediate" in show(initial(strided_dag((1, 8))))
    assert "strides" not in show(initial(strided_dag(None)))


# -- what follows from them ----------------------------------------------------------------------


@given(shapes, seeds)
def test_memory_holds_every_element(shape: tuple[int, ...], seed: int) -> None:
    strides = random_strides(shape, Random(seed))
    assert max(places(shape, strides)) < elements(buffer(shape, strides))
    assert elements(buffer(shape, None)) * 4 == nbytes(buffer(shape, None)) == 4 * len(places(shape, strides))


@example((2, 2), 1048574)  # steps that are less than the dimensions further in take
@given(shapes, seeds)
def test_another_shape_keeps_order_and_gaps(shape: tuple[int, ...], seed: int) -> None:
    rng = Random(seed)
    strides, new = random_strides(shape, rng), [rng.randint(1, 7) for _ in shape]
    found = refitted(shape, strides, new)
    assert not flaw(new, found, written=True)
    long = [d for d in inner_first(strides) if shape[d] > 1 and new[d] > 1]
    assert [d for d in inner_first(found) if shape[d] > 1 and new[d] > 1] == long
    assert places(shape, refitted(shape, strides, shape)) == places(shape, strides)
    wanted = evaluate(region_elements(buffer(shape, strides), tuple(map(Const, new)), Const(0)), {})
    assert wanted == elements(resized(buffer(shape, strides), tuple(map(Const, new))))


def test_gaps_are_kept_exactly() -> None:
    assert refitted((6, 10), (12, 1), (3, 4)) == (6, 1)
    assert refitted((6, 10), (1, 6), (3, 4)) == (1, 3)
    assert refitted((3, 4, 512), row_major((3, 4, 512)), (3, 4, 512), 16) == row_major((3, 4, 528))


@given(shapes, seeds)
def test_as_row_major_is_at_the_same_place(shape: tuple[int, ...], seed: int) -> None:
    """Where each stride is a multiple of the next: whole steps, as slices of row-major arrays have them."""
    rng = Random(seed)
    order, out, size = rng.sample(range(len(shape)), len(shape)), dict[int, int](), 1
    for d in order:
        out[d] = size * (rng.choice((1, 1, 2)) if d == order[0] else 1)
        size = out[d] * (shape[d] + rng.choice((0, 0, 1, 3)))
    strides = tuple(out[d] for d in range(len(shape)))
    names = [f"i{d}" for d in range(len(shape))]
    b, at = as_row_major(buffer(shape, strides), tuple(map(Var, names)))
    assert b.strides is None
    place: Expr = Const(0)
    for i, s in zip(at, buffer_strides(b), strict=True):
        place = place + i * s
    every = [dict(zip(names, ix, strict=True)) for ix in itertools.product(*map(range, shape))]
    assert [evaluate(place, env) for env in every] == places(shape, strides)


def test_as_row_major_leaves_out_what_repeats_and_turns_what_walks_backwards() -> None:
    i, j, k = Var("i"), Var("j"), Var("k")
    b, at = as_row_major(buffer((4, 3, 5), (0, 1, -6)), (i, j, k))
    assert b.shape == (Const(5), Const(6)) and at == (4 - k, j)


@pytest.mark.parametrize(
    ("shape", "strides", "along", "row", "lines"),
    [
        ((4, 32), None, 1, 32, True),
        ((4, 30), None, 1, 30, False),
        ((4, 30), (32, 1), 1, 32, True),
        ((32, 4), (1, 32), 0, 32, True),
        ((4, 32), (1, 6), 0, 6, False),
        ((4, 32), (64, 2), None, 64, False),
    ],
)
def test_rows(
    shape: tuple[int, ...], strides: tuple[int, ...] | None, along: int | None, row: int, lines: bool
) -> None:
    b = buffer(shape, strides)
    assert (contiguous_dimension(b), row_elements(b), rows_are_lines(b)) == (along, row, lines)


def test_columns_that_share_the_sets_of_a_cache_are_spread_as_rows_are() -> None:
    s = Alloc(buffer((1024, 16), (1, 1024)), Store("t", (Const(0), Const(0)), Const(0.0, "float32")))
    out = storage_align(s)
    assert isinstance(out, Alloc) and buffer_strides(out.buffer) == (Const(1), Const(1040))


def test_rules_ask_which_elements_are_neighbours() -> None:
    nest, i, j = initial(strided_dag((1, 8))), Var("i"), Var("j")
    assert unit_stride_vars(nest, Load("y", (i, j), "float32")) == {"i"}
    assert unit_stride_vars(nest, Load("x", (i, j), "float32")) == {"j"}
    assert unit_stride_vars(initial(strided_dag((40, 2))), Load("y", (i, j), "float32")) == set()


@pytest.mark.parametrize("facts", [cpu_facts, gpu_facts], ids=["cpu", "gpu"])
def test_columns_have_the_facts_of_rows_turned_over(facts: object) -> None:
    """A column-major buffer is to the estimates what `reorder_storage` makes of a row-major one."""
    dag = matmul_relu()

    def turned(by_strides: bool) -> Schedule:
        s = Schedule(dag)
        for name in "CD":
            if not by_strides:
                s.reorder_storage(name, [1, 0])
        i, j, k = s.loops("C")
        i0, i1 = s.split(i, (None, 4))
        s.reorder(i0, j, k, i1)
        s.vectorize(i1)
        return s

    want = turned(False).nest
    got = turned(True).nest
    column = {n: (Const(1), got.buffer(n).shape[0]) for n in "CD"}
    got = replace(got, buffers=tuple(replace(b, strides=column.get(b.name)) for b in got.buffers))
    assert facts.analyse(got) == facts.analyse(want)  # type: ignore[attr-defined]
    assert facts.analyse(got) != facts.analyse(turned(True).nest)  # type: ignore[attr-defined]
