"""Sums by an instruction whose terms do not divide them: they go on where both factors are zeros."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from dot_products import product
from hypothesis import given, settings
from hypothesis import strategies as st

from schedules import expr as E
from schedules import te
from schedules.constants import split_constants
from schedules.instructions import INSTRUCTIONS, Instruction
from schedules.instructions.match import NoMatch
from schedules.ir import Block, Guard, Intrinsic, Nest, Stmt, blocks, walk, with_body
from schedules.ir.interp import run
from schedules.passes.lower import lower
from schedules.passes.sums_of_zeros import sums_of_zeros
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG
from schedules.te.evaluator import evaluate

DOTS = ("vdpbf16ps", "vpdpbusd")
BF16, INT8 = (INSTRUCTIONS[name] for name in DOTS)


def scheduled(dag: ComputeDAG, ins: Instruction, rows: int = 2, packed: str = "ab") -> Schedule:
    """A product by an instruction of 16 lanes, in tiles of ``rows`` rows; the factors ``packed`` are copies
    in whole groups of terms."""
    terms = list(ins.iterations.values())[-1]
    s = Schedule(dag)
    s.cache_write("c", "local")
    for name, tiles, order in (("a", (0, terms), (0, 1, 2)), ("b", (terms, 16), (1, 0, 3, 2))):
        if name in packed:
            s.cache_read("c", name, "global")
            s.pack(f"{name}_global", tiles, order)
    io, ii = s.split("c_write_x0", (None, rows))
    jo, ji = s.split("c_write_x1", (None, 16))
    s.reorder(jo, io, ii, ji)
    s.vectorize(ji)
    s.compute_at("c", io)
    i, j, k = (x for x in s.loops("c") if x not in (jo, io))
    ko, t = s.split(k, (None, terms))
    s.reorder(ko, i, j, t)
    s.decompose_reduction("c", ko)
    s.tensorize(j, ins)
    return s


def whole(dag: ComputeDAG, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    ends = {"uint8": (0, 256), "int8": (-128, 128)}
    return [rng.integers(*ends.get(t.dtype, (-8, 9)), t.shape).astype(t.dtype) for t in dag.inputs]


def interpreted(nest: Nest, dag: ComputeDAG, inputs: list[np.ndarray]) -> np.ndarray:
    """By the lowered nest, constants being packed ahead."""
    main, packing = split_constants(nest, dag.constants)
    arrays = dict(zip((t.name for t in dag.inputs), inputs, strict=True))
    for name, made in packing.items():
        new = main.buffer(made.params[1])
        arrays[new.name] = np.zeros(tuple(n.value for n in new.shape), new.dtype)
        run(lower(made), {name: arrays[name], new.name: arrays[new.name]})
        del arrays[name]
    (out,) = dag.outputs
    arrays[out] = np.full(dag.tensors[out].shape, 77, dag.tensors[out].dtype)
    run(lower(main), arrays)
    return arrays[out]


def instructed(nest: Nest, ins: Instruction) -> bool:
    """Whether all of the sum is the instruction, without a guard."""
    f = lower(nest)
    found = [x.instruction for x in walk(f.body) if isinstance(x, Intrinsic)]
    return found == [ins] and not any(isinstance(x, Guard) and "r0" in str(x.cond) for x in walk(f.body))


@pytest.mark.fast("vdpbf16ps")
@pytest.mark.parametrize("name", DOTS)
@given(m=st.integers(1, 3), n=st.integers(16, 33), k=st.integers(1, 13), ahead=st.booleans())
@settings(max_examples=8, deadline=None)
def test_products_of_every_length_are_the_instruction(name: str, m: int, n: int, k: int, ahead: bool) -> None:
    ins = INSTRUCTIONS[name]
    dag = product(ins, m, n, k)
    nest = scheduled(dag, ins).nest
    assert instructed(nest, ins)
    inputs = whole(dag, 100 * m + k)
    dag = replace(dag, constants=("b",)) if ahead else dag
    assert (interpreted(nest, dag, inputs) == evaluate(dag, inputs)[0]).all()


def test_where_terms_divide_nothing_changes() -> None:
    nest = scheduled(product(INT8, 3, 20, 12), INT8).nest
    assert sums_of_zeros(nest) is nest


def test_a_sum_that_is_no_instruction_keeps_its_guard() -> None:
    """What is computed by ordinary loops has the code that it had."""
    a, b = te.placeholder((3, 10), name="a"), te.placeholder((10, 20), name="b")
    r = te.reduce_axis(10, "k")
    s = Schedule(te.dag([a, b, te.compute((3, 20), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "c")]))
    for name, order in (("a", (0, 1, 2)), ("b", (0, 2, 1))):
        s.cache_read("c", name, "global")
        s.pack(f"{name}_global", (0, 4) if name == "a" else (4, 0), order)
    s.split(s.loops("c")[-1], (None, 4))
    assert sums_of_zeros(s.nest) is s.nest


@pytest.mark.parametrize("packed", ["a", "b", ""])
@pytest.mark.parametrize("ins", [BF16, INT8])
def test_one_factor_that_ends_keeps_the_guard(ins: Instruction, packed: str) -> None:
    """Else elements of the next row, or of nobody, would be read."""
    nest = scheduled(
        product(ins, 3, 16, 2 * ins.iterations["t"] - 1), replace(ins, free=free(ins)), packed=packed
    )
    assert sums_of_zeros(nest.nest) is nest.nest


def free(ins: Instruction) -> frozenset[tuple[str, int]]:
    """All dimensions: operands may lie as they do where they are not packed."""
    return frozenset((t.name, d) for t in ins.operands for d in range(len(t.shape)))


def longer(dtypes: tuple[str, str], k: int, more: int) -> ComputeDAG:
    """A sum over the first ``k`` columns of an operand that has ``more``."""
    a, b = te.placeholder((2, k + more), dtypes[0], "a"), te.placeholder((k, 16), dtypes[1], "b")
    r = te.reduce_axis(k, "k")
    return te.dag([a, b, te.compute((2, 16), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "c")])


def test_zeros_times_what_may_be_nan_are_no_zeros() -> None:
    """The other factor goes on after the sum ends. Floats there may be NaN, integers are not."""
    dag = longer(("bfloat16", "bfloat16"), 3, 1)
    nest = scheduled(dag, BF16, packed="b").nest
    assert sums_of_zeros(nest) is nest
    with pytest.raises(NoMatch, match="are not the axes"):
        lower(nest)
    dag = longer(("uint8", "int8"), 6, 2)
    nest = scheduled(dag, INT8, packed="b").nest
    assert instructed(nest, INT8)
    inputs = whole(dag)
    assert (interpreted(nest, dag, inputs) == evaluate(dag, inputs)[0]).all()


def test_padding_of_other_dimensions_is_no_end_of_the_sum() -> None:
    """A copy of more rows than there are, which goes on after the sum ends."""
    s = Schedule(longer(("bfloat16", "bfloat16"), 3, 1))
    for name, tiles, order in (("a", (3, 0), (0, 2, 1)), ("b", (2, 16), (1, 0, 3, 2))):
        s.cache_read("c", name, "global")
        s.pack(f"{name}_global", tiles, order)
    i, j, k = s.loops("c")
    ko, t = s.split(k, (None, 2))
    s.reorder(i, ko, j, t)
    s.decompose_reduction("c", ko)
    s.tensorize(j, BF16)
    assert sums_of_zeros(s.nest) is s.nest


@pytest.mark.parametrize("ahead", [False, True])
def test_nan_of_another_row_does_not_leak(ahead: bool) -> None:
    dag = product(BF16, 5, 20, 7)
    inputs = whole(dag)
    for at in ((1, 0), (3, 6)):
        inputs[0][at] = np.nan
    inputs[1][6, 2] = np.inf
    nest = scheduled(dag, BF16).nest
    got = interpreted(nest, replace(dag, constants=("b",)) if ahead else dag, inputs)
    with np.errstate(invalid="ignore"):
        want = evaluate(dag, inputs)[0]
    assert np.isnan(got[[1, 3]]).all() and np.isfinite(got[[0, 2, 4], 3:]).all()
    assert np.array_equal(got, want, equal_nan=True)


def offset(zero_a: int, zero_b: int) -> tuple[ComputeDAG, Instruction]:
    """A sum of (a - zero_a) (b - zero_b), and a unit of four such terms in 16 lanes."""

    def term(x: te.Expr, y: te.Expr) -> te.Expr:
        return (te.cast(x, "int32") - zero_a) * (te.cast(y, "int32") - zero_b)

    def made(rows: tuple[int, ...], k: int, columns_first: bool) -> ComputeDAG:
        a = te.placeholder((*rows, k), "uint8", "a")
        b = te.placeholder((16, k) if columns_first else (k, 16), "int8", "b")
        r = te.reduce_axis(k, "k")

        def element(*at: te.Expr) -> te.Expr:
            *i, j = at
            return te.sum(term(a[(*i, r)], b[j, r] if columns_first else b[r, j]), axis=r)

        return te.dag([a, b, te.compute((*rows, 16), element, "c")])

    return made((3,), 6, False), Instruction("unit", "", made((), 4, True))


@pytest.mark.parametrize("zeros, dropped", [((0, 0), True), ((3, 0), True), ((0, 7), True), ((3, 7), False)])
def test_zero_points_are_zeros_where_the_product_is(zeros: tuple[int, int], dropped: bool) -> None:
    """Padding is 0 before the zero point is subtracted: (0 - 3) (0 - 0) is 0, (0 - 3) (0 - 7) is 21."""
    dag, unit = offset(*zeros)
    nest = scheduled(dag, unit).nest
    if dropped:
        assert instructed(nest, unit)
        inputs = whole(dag)
        assert (interpreted(nest, dag, inputs) == evaluate(dag, inputs)[0]).all()
    else:
        assert sums_of_zeros(nest) is nest


def test_a_maximum_keeps_its_guard() -> None:
    """0 is more than what it is the maximum of."""
    a, b = te.placeholder((3, 6), name="a"), te.placeholder((6, 16), name="b")
    r = te.reduce_axis(6, "k")
    dag = te.dag([a, b, te.compute((3, 16), lambda i, j: te.max(a[i, r] * b[r, j], axis=r), "c")])
    x, y = te.placeholder((4,), name="a"), te.placeholder((16, 4), name="b")
    t = te.reduce_axis(4, "t")
    unit = Instruction(
        "unit", "", te.dag([x, y, te.compute((16,), lambda i: te.max(x[t] * y[i, t], axis=t), "c")])
    )
    nest = scheduled(dag, unit).nest
    assert sums_of_zeros(nest) is nest


@pytest.mark.parametrize("name, loop", [("a", 1), ("b", 0), ("b", 1)])
def test_a_copy_inside_the_loops_that_is_whole_along_the_sum_is_zero_there(name: str, loop: int) -> None:
    dag = product(INT8, 4, 20, 6)
    s = scheduled(dag, INT8)
    s.compute_at(f"{name}_global", s.loops("c")[loop])
    assert instructed(s.nest, INT8)
    inputs = whole(dag)
    assert (interpreted(s.nest, dag, inputs) == evaluate(dag, inputs)[0]).all()


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_copy_of_a_part_of_the_sum_keeps_the_guard(name: str) -> None:
    """It may have only what the sum reads: nothing beyond its end."""
    s = scheduled(product(INT8, 4, 16, 6), INT8)
    s.compute_at(f"{name}_global", s.loops("c")[2])
    assert sums_of_zeros(s.nest) is s.nest


def test_a_copy_with_gaps_along_the_sum_keeps_the_guard() -> None:
    """Its loop has the length of the sum and leaves out every other group."""
    s = scheduled(product(INT8, 4, 16, 14), INT8)
    s.compute_at("a_global", s.loops("c")[1])
    (group,) = (x for x in s.loops("a_global") if x.endswith("ax1"))

    def every_other(x: Stmt) -> Stmt:
        if isinstance(x, Block) and x.name == "a_global":
            return replace(x, binds=tuple(E.substitute(e, {group: E.Var(group) * 2}) for e in x.binds))
        return with_body(x, every_other)

    nest = replace(s.nest, body=every_other(s.nest.body))
    assert sums_of_zeros(s.nest) is not s.nest
    assert sums_of_zeros(nest) is nest


@pytest.mark.parametrize("channels", [3, 5])
def test_sums_over_several_axes(channels: int) -> None:
    """A convolution: positions are padded apart from channels."""
    x, w = te.placeholder((7, channels), "uint8", "a"), te.placeholder((3, channels, 16), "int8", "b")
    padded = te.compute(
        (9, channels), lambda p, c: te.select(te.all(p >= 1, p < 8), x[p - 1, c], te.const(0, "uint8")), "p"
    )
    d, r = te.reduce_axis(3, "d"), te.reduce_axis(channels, "k")
    dag = te.dag(
        [x, w, te.compute((7, 16), lambda i, j: te.sum(padded[i + d, r] * w[d, r, j], axis=(d, r)), "c")]
    )
    s = Schedule(dag)
    s.cache_write("c", "local")
    s.cache_read("c", "p", "global")
    s.pack("p_global", (0, 4), (0, 1, 2))
    s.inline("p")
    s.cache_read("c", "b", "global")
    s.pack("b_global", (0, 4, 16), (2, 0, 1, 4, 3))
    i, j, kd, k = s.loops("c")
    ko, t = s.split(k, (None, 4))
    s.reorder(kd, ko, i, j, t)
    s.decompose_reduction("c", kd)
    s.tensorize(j, INT8)
    assert instructed(s.nest, INT8)
    inputs = whole(dag)
    assert (interpreted(s.nest, dag, inputs) == evaluate(dag, inputs)[0]).all()


@pytest.mark.parametrize("padded", ["ab", "a"])
def test_fragments_of_padded_copies_have_no_tail(padded: str) -> None:
    """What a copy on a GPU's chip has beyond the end is what the copy has that it is made of."""
    s = Schedule(_fragments_dag())
    s.set_scope("c", "fragment")
    for name in "ab":
        s.cache_read("c", name, "shared")
        if name in padded:
            s.pack(f"{name}_shared", [0, 16] if name == "a" else [16, 0], [])
        s.cache_read("c", f"{name}_shared", "fragment")
    i, j, k = s.loops("c")
    ko, kk = s.split(k, (None, 16))
    s.reorder(ko, i, j, kk)
    s.decompose_reduction("c", ko)
    for name in "ab":
        s.compute_at(f"{name}_shared_fragment", ko)
        s.compute_at(f"{name}_shared", ko)
    s.tensorize(i, "mma_m16n8k16_float32_float16")
    (c,) = (b for b in blocks(sums_of_zeros(s.nest).body) if b.name == "c")
    assert int(E.evaluate(c.iters[2].extent, {})) == (32 if padded == "ab" else 24)


def _fragments_dag() -> ComputeDAG:
    a, b = te.placeholder((16, 24), "float16", "a"), te.placeholder((24, 8), "float16", "b")
    k = te.reduce_axis(24, "k")
    c = te.compute((16, 8), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), "c")
    return te.dag([a, b, te.compute((16, 8), lambda i, j: c[i, j] + 1.0, "d")])
