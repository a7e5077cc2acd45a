"""An operand of integer products is offset while it is copied, and what that adds is taken off the sum."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from helpers import check_interpreted, expected
from hypothesis import given, settings
from hypothesis import strategies as st

from schedules import te
from schedules.errors import ScheduleError
from schedules.expr import Expr
from schedules.ir import Block
from schedules.ir.nest import find_block
from schedules.model import Trace, Workload
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG
from schedules.trace_names import to_canonical, to_named


def product(
    a: str = "int8", b: str = "int8", out: str = "int32", m: int = 3, n: int = 5, k: int = 7
) -> ComputeDAG:
    x, w, r = te.placeholder((m, k), a, "A"), te.placeholder((k, n), b, "B"), te.reduce_axis(k, "k")
    value = lambda i, j: te.sum(te.cast(x[i, r], out) * te.cast(w[r, j], out), axis=r)  # noqa: E731
    return te.dag([x, w, te.compute((m, n), value, "C")])


def convolution() -> ComputeDAG:
    """Padded by its zero point, with bias; an output channel at a time has a zero point of the weights."""
    h, c, f = 4, 3, 2
    x, w = te.placeholder((h, h, c), "uint8", "X"), te.placeholder((3, 3, c, f), "int8", "W")
    z, bias = te.placeholder((f,), "int32", "z"), te.placeholder((f,), "int32", "bias")

    def padded(i: Expr, j: Expr, q: Expr) -> Expr:
        return te.select(te.all(i > 0, i < h + 1, j > 0, j < h + 1), x[i - 1, j - 1, q], 9)

    p = te.compute((h + 2, h + 2, c), padded, "P")
    u, v, q = te.reduce_axis(3, "u"), te.reduce_axis(3, "v"), te.reduce_axis(c, "q")

    def value(i: Expr, j: Expr, o: Expr) -> te.Reduction:
        a, b = te.cast(p[i + u, j + v, q], "int32") - 9, te.cast(w[u, v, q, o], "int32") - z[o]
        return te.sum(a * b, axis=(u, v, q))

    s = te.compute((h, h, f), value, "S")
    return te.dag([x, w, z, bias, te.compute((h, h, f), lambda i, j, o: s[i, j, o] + bias[o], "Y")])


def batched() -> ComputeDAG:
    """Three factors, of which one is the same for a column."""
    x, w = te.placeholder((2, 3, 4), "int8", "A"), te.placeholder((2, 5, 4), "int8", "B")
    t, r = te.placeholder((5,), "int32", "T"), te.reduce_axis(4, "r")
    value = lambda b, i, j: te.sum(x[b, i, r] * t[j] * w[b, j, r], axis=r)  # noqa: E731
    return te.dag([x, w, t, te.compute((2, 3, 5), value, "C")])


def any_numbers(dag: ComputeDAG, seed: int = 0) -> list[np.ndarray]:
    """Of the whole range of each dtype, with its ends."""
    rng, out = np.random.default_rng(seed), []
    for t in dag.inputs:
        ends = np.iinfo(t.dtype)
        x = rng.integers(ends.min, ends.max, t.shape, t.dtype, endpoint=True)
        out.append(
            np.where(rng.random(t.shape) < 0.3, rng.choice([ends.min, ends.max], t.shape), x).astype(t.dtype)
        )
    return out


def check(s: Schedule, seed: int = 0) -> None:
    data = any_numbers(s.dag, seed)
    check_interpreted(s.nest, s.dag, data, expected(s.dag, data))
    again = Trace.from_json(s.trace.to_json())
    assert again == s.trace and Schedule.replay(s.dag, again).nest == s.nest
    w = Workload(s.dag)
    renamed, _ = to_canonical(w, s.trace)
    Schedule.replay(w.canonical, renamed)
    assert to_named(w, renamed) == s.trace


def value_of(s: Schedule, block: str) -> str:
    return te_text(find_block(s.nest, block))


def te_text(b: Block) -> str:
    from schedules import expr as E

    return E.show(b.values[0])


def test_int8_becomes_the_uint8_that_an_instruction_takes() -> None:
    s = Schedule(product())
    made = s.cache_read_offset("C", "A", 128)
    assert made == ["A_offset_C", "A_compensation_C", "A_compensated_C", "A_product_C"]
    assert s.blocks() == ["A_offset_C", "A_compensation_C", "C", "A_compensated_C"]
    assert s.nest.buffer("A_offset_C").dtype == "uint8"
    assert value_of(s, "C") == "int32(A_offset_C[i, k]) * int32(B[k, j])"
    assert value_of(s, "A_compensation_C") == "int32(B[k, j])"
    assert value_of(s, "A_compensated_C") == "A_product_C[i, j] - 128 * A_compensation_C[j]"
    check(s)


@given(
    st.sampled_from(["int8", "uint8"]), st.sampled_from(["int8", "uint8"]),
    st.sampled_from(["int32", "int64"]), st.integers(1, 4), st.integers(1, 4), st.integers(1, 5),
    st.sampled_from("AB"), st.integers(0, 99),
)  # fmt: skip
@settings(max_examples=15, deadline=None)
def test_either_operand_of_any_bytes(
    a: str, b: str, out: str, m: int, n: int, k: int, which: str, seed: int
) -> None:
    s = Schedule(product(a, b, out, m, n, k))
    old = {"A": a, "B": b}[which]
    s.cache_read_offset("C", which, 128 if old == "int8" else -128)
    assert s.nest.buffer(f"{which}_offset_C").dtype == ("uint8" if old == "int8" else "int8")
    check(s, seed)


def test_extremes_that_wrap() -> None:
    """All -128: the offset operand is 0. All 127: sums of 255 · 127."""
    s = Schedule(product(m=1, n=2, k=40))
    s.cache_read_offset("C", "A", 128)
    for x, y in ((-128, -128), (127, 127), (-128, 127), (127, -128)):
        data = [np.full((1, 40), x, np.int8), np.full((40, 2), y, np.int8)]
        want = expected(s.dag, data)
        assert (want[0] == 40 * x * y).all()
        check_interpreted(s.nest, s.dag, data, want)


def test_zero_points_are_taken_out_of_both_operands() -> None:
    s = Schedule(convolution())
    s.cache_read_offset("S", "P", 0)
    s.cache_read_offset("S", "W", 0)
    assert value_of(s, "S") == "int32(P_offset_S[i + u, j + v, q]) * int32(W_offset_S[u, v, q, o])"
    assert value_of(s, "P_compensated_S") == "P_product_S[i, j, o] - 9 * P_compensation_S[o]"
    assert value_of(s, "W_compensated_S") == "W_product_S[i, j, o] - z[o] * W_compensation_S[i, j]"
    check(s)


def test_an_offset_and_a_zero_point_together() -> None:
    s = Schedule(convolution())
    s.cache_read_offset("S", "P", -128)
    assert value_of(s, "P_compensated_S") == "P_product_S[i, j, o] - -119 * P_compensation_S[o]"
    s.inline("P")
    s.inline("P_compensated_S")
    check(s)


def test_more_factors_and_batches() -> None:
    for buffer in "AB":
        s = Schedule(batched())
        s.cache_read_offset("C", buffer, 128)
        check(s)


def test_a_tiled_product_of_packed_operands() -> None:
    """What a rule makes of it: padded copies in the layout of an instruction, a tile at a time."""
    s = Schedule(product(m=5, n=9, k=10))
    copy, _, out, sums = s.cache_read_offset("C", "A", 128)
    s.pack(copy, [0, 4], [0, 1, 2])
    s.cache_read("C", "B")
    s.pack("B_global", [4, 4], [1, 0, 3, 2])
    s.set_scope(sums, "local")
    i, j = s.loops(out)
    (io, ii), (jo, ji) = s.split(i, [None, 2]), s.split(j, [None, 4])
    s.reorder(io, jo, ii, ji)
    s.compute_at("C", jo)
    s.split(s.loops("C")[-1], [None, 4])
    check(s)


def refuses(dag: Callable[[], ComputeDAG], do: Callable[[Schedule], object], match: str) -> None:
    s = Schedule(dag())
    with pytest.raises(ScheduleError, match=match):
        do(s)


def of(fn: Callable[..., object], *tensors: te.Tensor, shape: tuple[int, ...] = (3, 3)) -> ComputeDAG:
    return te.dag([*tensors, te.compute(shape, fn, "C")])


A8, B8 = te.placeholder((3, 4), "int8", "A"), te.placeholder((4, 3), "int8", "B")
G8 = te.placeholder((4,), "int32", "G")
R = te.reduce_axis(4, "k")


def test_what_is_no_product_of_integers_is_refused() -> None:
    offset = lambda s: s.cache_read_offset("C", "A", 128)  # noqa: E731
    a, b = te.placeholder((3, 4), "float32", "A"), te.placeholder((4, 3), "float32", "B")
    floats = lambda: of(lambda i, j: te.sum(a[i, R] * b[R, j], axis=R), a, b)  # noqa: E731
    refuses(floats, offset, "cache_read_offset A: block C adds up float32, which rounds; .*integers only")
    alone = lambda: of(lambda i: te.sum(te.cast(A8[i, R], "int32"), axis=R), A8, shape=(3,))  # noqa: E731
    refuses(alone, offset, "not one factor beside others; use cache_read_part")
    square = lambda: of(lambda i, j: te.sum(A8[i, R] * A8[j, R], axis=R), A8)  # noqa: E731
    refuses(square, offset, "not one factor beside others; use cache_read_part")
    largest = lambda: of(lambda i, j: te.max(A8[i, R] * B8[R, j], axis=R), A8, B8)  # noqa: E731
    refuses(largest, offset, "block C adds nothing up")
    copied = lambda: of(lambda i, j: A8[i, j], A8, shape=(3, 4))  # noqa: E731
    refuses(copied, offset, "block C adds nothing up")
    groups = lambda: of(lambda i, j: te.sum((A8[i, R] - G8[R]) * B8[R, j], axis=R), A8, B8, G8)  # noqa: E731
    refuses(groups, offset, r"G\[k\] is added to it, which differs along the reduction")
    masked = lambda: of(lambda i, j: te.sum((A8[i, R] & 15) * B8[R, j], axis=R), A8, B8)  # noqa: E731
    refuses(masked, offset, "is no element of it with something added")
    narrowed = lambda: of(  # noqa: E731
        lambda i, j: te.sum(te.cast(te.cast(G8[R] * 1, "int8"), "int32") * B8[R, j], axis=R), G8, B8
    )
    refuses(narrowed, lambda s: s.cache_read_offset("C", "G", 0), "is no element of it")


def test_offsets_without_a_dtype_are_refused() -> None:
    refuses(
        product,
        lambda s: s.cache_read_offset("C", "A", 5),
        "int8 with 5 added is no dtype of as many bytes; give 128 for uint8, 0 to take out",
    )
    refuses(
        product, lambda s: s.cache_read_offset("C", "A", 0), "an offset of 0 adds nothing; use cache_read"
    )
    refuses(
        lambda: of(lambda i, j: te.sum(G8[R] * B8[R, j], axis=R), B8, G8),
        lambda s: s.cache_read_offset("C", "G", 128),
        "int32 with 128 added is no dtype",
    )


def test_what_is_scheduled_already_is_refused() -> None:
    def twice(s: Schedule) -> None:
        s.cache_read_offset("C", "A", 128)
        s.cache_read_offset("C", "A", 128)

    def decomposed(s: Schedule) -> None:
        s.decompose_reduction("C", s.loops("C")[-1])
        s.cache_read_offset("C", "A", 128)

    def inside(s: Schedule) -> None:
        s.compute_at("S", s.loops("Y")[0])
        s.cache_read_offset("S", "W", 0)

    refuses(product, twice, "block C does not read it")
    refuses(product, decomposed, "decompose_reduction")
    refuses(
        convolution, inside, "Y reads S inside a loop around both.*use cache_read_offset before compute_at"
    )
    refuses(product, lambda s: s.cache_read_offset("C", "A", 128, "far"), "scope 'far' is not one of")
