"""Every instruction: its meaning, its layouts, the loops that are it, and those that are refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from dot_products import DOTS, interleaving, product, tensorized
from hypothesis import given, settings
from hypothesis import strategies as st

from schedules import te
from schedules.errors import ScheduleError
from schedules.expr import Const
from schedules.instructions import INSTRUCTIONS, Instruction
from schedules.instructions.match import NoMatch
from schedules.ir import Intrinsic, Loop, LoweredFunc, Stmt, walk, with_body
from schedules.ir.interp import InterpError, run
from schedules.model import Trace
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG
from schedules.te.evaluator import evaluate


def whole(dag: ComputeDAG, seed: int = 0) -> list[np.ndarray]:
    """Small whole numbers, whose sums are exact in any order; integers up to their ends."""
    rng = np.random.default_rng(seed)
    ends = {"uint8": (0, 256), "int8": (-128, 128)}
    return [rng.integers(*ends.get(t.dtype, (-8, 9)), t.shape).astype(t.dtype) for t in dag.inputs]


def interpreted(f: LoweredFunc, inputs: list[np.ndarray]) -> np.ndarray:
    (out,) = f.outputs
    b = next(b for b in f.params if b.name == out)
    shape = tuple(n.value for n in b.shape if isinstance(n, Const))
    arrays = dict(zip([p.name for p in f.params if p.name != out], inputs, strict=True))
    arrays[out] = np.full(shape, 77, b.dtype)
    run(f, arrays)
    return arrays[out]


def calls(f: LoweredFunc) -> list[Intrinsic]:
    return [x for x in walk(f.body) if isinstance(x, Intrinsic)]


def alone(ins: Instruction, order: list[str] | None = None) -> Schedule:
    """The instruction's own meaning as a program, all of it one instruction. Sums start before it."""
    s = Schedule(ins.meaning)
    (name,) = s.blocks()
    loops = s.loops(name)
    if order is not None:
        s.reorder(*order)
        loops = order
    if ins.meaning.stages[0].reducer is not None:
        s.decompose_reduction(name, loops[0])
    s.tensorize(s.loops(name)[0], ins)
    return s


# -- every instruction -------------------------------------------------------------------------------------


@pytest.mark.fast(but=("tdp*",))
@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_an_instruction_is_its_meaning(name: str) -> None:
    ins = INSTRUCTIONS[name]
    assert ins.name == name and ins.doc
    s = alone(ins)
    f = lower(s.nest)
    assert [x.instruction for x in calls(f)] == [ins]
    inputs = whole(ins.meaning)
    (want,) = evaluate(ins.meaning, inputs)
    assert (interpreted(f, inputs) == want).all()
    assert all(o.strides[-1] == 1 for o in calls(f)[0].operands)


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_a_trace_names_it(name: str) -> None:
    s = alone(INSTRUCTIONS[name])
    data = s.trace.to_json()
    again = Schedule.replay(s.dag, Trace.from_json(data))
    assert again.nest == s.nest and again.trace == s.trace
    assert f"# tensorize={name}" in str(s)


@pytest.mark.fast(but=("tdp*",))
@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_its_loops_may_stand_in_any_order(name: str) -> None:
    ins = INSTRUCTIONS[name]
    f = lower(alone(ins, list(reversed(Schedule(ins.meaning).loops(ins.result.name)))).nest)
    inputs = whole(ins.meaning)
    assert len(calls(f)) == 1
    assert (interpreted(f, inputs) == evaluate(ins.meaning, inputs)[0]).all()


@pytest.mark.fast(but=("tdp*",))
@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_an_operand_that_lies_elsewhere_is_found(name: str) -> None:
    """Of every operand: one element further it gives another result, or leaves its buffer."""
    ins = INSTRUCTIONS[name]
    f = lower(alone(ins).nest)
    inputs = whole(ins.meaning)
    (want,) = evaluate(ins.meaning, inputs)

    for number in range(len(ins.operands)):

        def moved(s: Stmt, number: int = number) -> Stmt:
            if isinstance(s, Intrinsic):
                xs = list(s.operands)
                at = xs[number].indices
                xs[number] = replace(xs[number], indices=(*at[:-1], at[-1] + 1))
                return replace(s, operands=tuple(xs))
            return with_body(s, moved)

        try:
            assert (interpreted(replace(f, body=moved(f.body)), inputs) != want).any()
        except InterpError as err:
            assert "leaves" in str(err) or "never written" in str(err)


@pytest.mark.parametrize("name", ["tdpbf16ps", "tdpbusd", "tdpbssd", "tdpbsud", "tdpbuud"])
def test_a_product_of_tiles_is_one_of_matrices(name: str) -> None:
    ins = INSTRUCTIONS[name]
    a, b = whole(ins.meaning)
    terms = ins.iterations["t"]
    (got,) = evaluate(ins.meaning, [a, b])
    left = a.astype("int64").reshape(16, 16 * terms)
    right = b.astype("int64").transpose(0, 2, 1).reshape(16 * terms, 16)
    assert (got == left @ right).all()
    signs = {"uint8": "u", "int8": "s"}
    if terms == 4:
        assert name == "tdpb" + signs[str(a.dtype)] + signs[str(b.dtype)] + "d"
    assert ins.registers is not None and (ins.registers.count, ins.registers.bytes) == (8, 1024)
    assert ins.start is not None and ins.start.result.dtype == ins.result.dtype


# -- dot products in a schedule ------------------------------------------------------------------------------


@pytest.mark.fast("vdpbf16ps")
@pytest.mark.parametrize("name", DOTS)
@given(st.integers(1, 4), st.integers(1, 2), st.integers(1, 3), st.integers(1, 3), st.integers(1, 3))
@settings(max_examples=12, deadline=None)
def test_tiles_are_what_they_were(name: str, rows: int, vectors: int, i: int, j: int, k: int) -> None:
    ins = INSTRUCTIONS[name]
    lanes = ins.result.shape[0]
    dag = product(ins, i * rows, lanes * j * vectors, 2 * k * ins.iterations["t"])
    f = lower(tensorized(dag, ins, rows, vectors, 2).nest)
    packing = interleaving(dag.inputs[1].dtype, lanes)
    assert {x.instruction.name for x in calls(f)} == {name, packing}
    inputs = whole(dag)
    assert (interpreted(f, inputs) == evaluate(dag, inputs)[0]).all()


@pytest.mark.parametrize("name", DOTS)
def test_tails_stay_loops(name: str) -> None:
    """Rows and columns that no tile covers: the tiles are instructions all the same."""
    ins = INSTRUCTIONS[name]
    dag = product(ins, 7, 16 * 3, 4 * ins.iterations["t"])
    s = tensorized(dag, ins, 4, 1, 2, partition=True)
    f = lower(s.nest)
    assert any(x.instruction is ins for x in calls(f))
    inputs = whole(dag)
    assert (interpreted(f, inputs) == evaluate(dag, inputs)[0]).all()


# -- refusals ------------------------------------------------------------------------------------------------


def dot(a: str, b: str, terms: int = 2, turned: bool = False, op: str = "*") -> Instruction:
    x = te.placeholder((terms,), a, "a")
    y = te.placeholder((terms, 16) if turned else (16, terms), b, "b")
    t = te.reduce_axis(terms, "t")

    def term(i: te.Expr) -> te.Expr:
        at = y[t, i] if turned else y[i, t]
        return x[t] * at if op == "*" else x[t] + at

    return Instruction("unit", "", te.dag([x, y, te.compute((16,), lambda i: te.sum(term(i), axis=t), "c")]))


BF16 = INSTRUCTIONS["vdpbf16ps"]


@pytest.mark.parametrize(
    ("unit", "packed", "message"),
    [
        (BF16, False, r"operand b of vdpbf16ps needs step \d+ along \w; b has \d+ along c_\w+: pack it so "
                      r"that \[i: 16, t: 2\] is innermost"),
        (dot("bfloat16", "bfloat16", turned=True), True,
         r"operand b of unit needs step 16 along t; b_global has 1"),
    ],
)  # fmt: skip
def test_operands_that_lie_otherwise_are_refused(unit: Instruction, packed: bool, message: str) -> None:
    s = tensorized(product(BF16, 4, 32, 16), unit, 2, 1, 2, pack=packed)
    with pytest.raises(NoMatch, match=message):
        lower(s.nest)


@pytest.mark.parametrize(
    ("unit", "message"),
    [
        (dot("bfloat16", "bfloat16", terms=3), r"the loops \[c_\w+: 16, c_\w+: 2\] are not the axes "
         r"\[i: 16, t: 3\] of unit; split and reorder so that its axes are innermost"),
        (dot("float16", "bfloat16"), "operand a of unit is float16, a is bfloat16"),
        (dot("bfloat16", "bfloat16", op="+"), r"stands where unit has "),
        (INSTRUCTIONS["interleave2_bfloat16"], "stands where interleave2_bfloat16 has x"),
    ],
)  # fmt: skip
def test_what_is_another_computation_is_refused_at_once(unit: Instruction, message: str) -> None:
    with pytest.raises(NoMatch, match=f"tensorize c_\\w+: .*({message})"):
        tensorized(product(BF16, 4, 32, 16), unit, 2, 1, 2)


def test_signs_are_not_taken_for_each_other() -> None:
    dag = product(INSTRUCTIONS["vpdpbusd"], 4, 32, 16)
    with pytest.raises(NoMatch, match="operand a of unit is int8, a is uint8"):
        tensorized(dag, dot("int8", "int8", terms=4), 2, 1, 2)


def test_a_block_that_starts_its_sum_is_refused() -> None:
    s = Schedule(BF16.meaning)
    with pytest.raises(ScheduleError, match="block c starts its sum inside of it, and vdpbf16ps adds"):
        s.tensorize("c_i", "vdpbf16ps")


def test_several_blocks_are_refused() -> None:
    x = te.placeholder((16,), "float32", "x")
    y = te.compute((16,), lambda i: x[i] + 1.0, "y")
    s = Schedule([x, te.compute((16,), lambda i: y[i] * 2.0, "z")])
    s.compute_at("y", "z_i")
    with pytest.raises(ScheduleError, match="it holds the blocks y, z; an instruction is one block"):
        s.tensorize("z_i", BF16)


def test_names_that_are_none_are_refused() -> None:
    s = Schedule(BF16.meaning)
    with pytest.raises(ScheduleError, match="tensorize c_i: no instruction 'evil'; there are interleave2"):
        s.tensorize("c_i", "evil")
    with pytest.raises(ScheduleError, match=r"'ldmatrix_float16' \(did you mean 'ldmatrix_float16_\w'"):
        s.tensorize("c_i", "ldmatrix_float16")
    text = alone(BF16).trace.to_json().replace("vdpbf16ps", "evil")
    with pytest.raises(ScheduleError, match="no instruction 'evil'; this version knows interleave2"):
        Schedule.replay(BF16.meaning, Trace.from_json(text))


def test_a_meaning_of_two_stages_is_no_instruction() -> None:
    x = te.placeholder((16,), "float32", "x")
    y = te.compute((16,), lambda i: x[i] + 1.0, "y")
    with pytest.raises(ValueError, match="instruction twice: its meaning has to be one stage"):
        Instruction("twice", "", te.dag([x, te.compute((16,), lambda i: y[i] * 2.0, "z")]))


# -- a unit that exists nowhere, as a user describes it ------------------------------------------------------


def unit() -> tuple[Instruction, Instruction]:
    x = te.placeholder((8, 8), "float32", "x")
    copy = Instruction(
        "dma_copy2d", "y = x, 8 by 8; rows of x lie any distance apart",
        te.dag([x, te.compute((8, 8), lambda i, j: x[i, j], "y")]), free=frozenset({("x", 0), ("y", 0)}),
    )  # fmt: skip
    a, b = (te.placeholder((8, 8), "float32", n) for n in "ab")
    k = te.reduce_axis(8, "k")
    c = te.compute((8, 8), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "c")
    return copy, Instruction("fused_gemm8x8_add", "c += a b, of 8 by 8", te.dag([a, b, c]))


def test_a_unit_that_exists_nowhere_runs() -> None:
    copy, gemm = unit()
    a, b = te.placeholder((16, 24), "float32", "a"), te.placeholder((24, 16), "float32", "b")
    k = te.reduce_axis(24, "k")
    dag = te.dag([a, b, te.compute((16, 16), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "c")])
    s = Schedule(dag)
    s.cache_write("c", "local")
    for n in "ab":
        s.cache_read("c", n, "local")
    (io, ii), (jo, ji) = s.split("c_write_x0", (None, 8)), s.split("c_write_x1", (None, 8))
    s.reorder(io, jo, ii, ji)
    s.tensorize(ii, copy)
    s.compute_at("c", jo)
    i, j, r = (x for x in s.loops("c") if x not in (io, jo))
    ko, ki = s.split(r, (None, 8))
    s.reorder(ko, i, j, ki)
    for n in "ab":
        s.compute_at(f"{n}_local", ko)
        s.tensorize(next(x for x in s.loops(f"{n}_local") if x not in (io, jo, ko)), copy)
    s.decompose_reduction("c", ko)
    s.tensorize(i, gemm)
    f = lower(s.nest)
    assert sorted(x.instruction.name for x in calls(f)) == ["dma_copy2d"] * 3 + ["fused_gemm8x8_add"]
    inputs = whole(dag)
    assert (interpreted(f, inputs) == evaluate(dag, inputs)[0]).all()
    assert not any(isinstance(x, Loop) and x.var == i for x in walk(f.body) if not calls(f))
