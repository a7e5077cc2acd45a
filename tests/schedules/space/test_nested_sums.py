"""Reductions of reductions, such as products whose weights are scaled by groups: their spaces, and that every
sketch is right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers import check_compiled, interpret, same
from space_cases import target

import autotune as at
from autotune.codegen.llvm.compile import host_arch
from schedules import ops, te
from schedules.dtypes import DTYPES
from schedules.expr import Const, Expr
from schedules.ir import Intrinsic, Loop, blocks, walk
from schedules.model import Target
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.space import DerivedSpace, derive
from schedules.space.estimate.cpu.facts import analyse
from schedules.space.rules.cpu.prefetching import ON_THE_WAY
from schedules.te.compute_dag import ComputeDAG
from schedules.te.evaluator import evaluate

# Features of which instructions for products are.
STRIPPED = ("amx", "avx512bf16", "avx512vnni", "avx512bw", "avxvnni", "avx2", "dotprod", "i8mm", "bf16")


def with_features(*features: str) -> Target:
    """This machine's code generator with these of the features for products alone."""
    t = target(vector_bytes=64)
    return replace(
        t, features=tuple(sorted({f for f in t.features if not f.startswith(STRIPPED)} | {*features}))
    )


VNNI = with_features("avx512vnni")
WIDE = with_features()
NESTED, DOTS = "y.sums=nested", "p.with=vpdpbusd_turned"
Code = Callable[[Any, Expr, Expr], Expr]  # weights, output, index of the sum: the number


def pairs(w: Any, n: Expr, k: Expr) -> Expr:
    """Codes of 4 bits, the first of a byte in its lower half; 8 stands for 0."""
    return (w[n, k // 2] >> (4 * te.cast(k % 2, "int32")) & 15) - 8


def four_bits(w: Any, n: Expr, k: Expr) -> Expr:
    """As `pairs`, from 0 to 15."""
    return w[n, k // 2] >> (4 * te.cast(k % 2, "int32")) & 15


def two_bits(w: Any, n: Expr, k: Expr) -> Expr:
    return w[n, k // 4] >> (2 * te.cast(k % 4, "int32")) & 3


def halves(w: Any, n: Expr, k: Expr) -> Expr:
    """Codes of 4 bits in groups of 16, those of a byte 8 apart."""
    return w[n, k // 16 * 8 + k % 8] >> (4 * te.cast(k % 16 // 8, "int32")) & 15


def e2m1(w: Any, n: Expr, k: Expr) -> Expr:
    """Floats of 4 bits: 0, 0.5, 1, 1.5, 2, 3, 4, 6, and their negatives."""
    code = four_bits(w, n, k)
    two = code >> 1 & 3
    size = te.select(two > 0, (code & 1 | 2) << te.maximum(two - 1, 0), code & 1)
    return te.cast(te.select(code > 7, 0 - size, size), "float32") * 0.5


def whole(w: Any, n: Expr, k: Expr) -> Expr:
    return w[n, k]


# {kind: (dtype of weights, numbers in an element, what they are)}.
KINDS: dict[str, tuple[str, int, Code]] = {
    "int4": ("uint8", 2, pairs),
    "int4 in halves": ("uint8", 2, halves),
    "uint2": ("uint8", 4, two_bits),
    "int8": ("int8", 1, whole),
    "fp4": ("uint8", 2, e2m1),
    "fp8": ("float8_e4m3fn", 1, whole),
    "bf16": ("bfloat16", 1, whole),
    "f32": ("float32", 1, whole),
}
# {kind: (numbers in a byte, what they are)}.
CODES: dict[str, tuple[int, Code]] = {
    "four bits": (2, four_bits),
    "halves": (2, halves),
    "two bits": (4, two_bits),
    "bytes": (1, whole),
}


def by_groups(
    kind: str,
    m: int,
    n: int,
    k: int,
    group: int,
    act: str = "float32",
    *,
    known: bool = True,
    bias: bool = False,
) -> ComputeDAG:
    """x times weights that have a scale for each ``group`` along the sum."""
    dtype, each, code = KINDS[kind]
    x, w = te.placeholder((m, k), act, "x"), te.placeholder((n, k // each), dtype, "w")
    s, t, g = (
        te.placeholder((n, k // group), name="s"),
        te.reduce_axis(group, "t"),
        te.reduce_axis(k // group, "g"),
    )

    def term(i: Any, j: Any, b: Any) -> Any:
        at = b * group + t
        return te.cast(x[i, at], "float32") * te.cast(code(w, j, at), "float32")

    p = te.compute((m, n, k // group), lambda i, j, b: te.sum(term(i, j, b), axis=t), "p")
    y = te.compute((m, n), lambda i, j: te.sum(p[i, j, g] * s[j, g], axis=g), "y")
    tensors = [x, w, s]
    if bias:
        b = te.placeholder((n,), name="bias")
        y, tensors = te.compute((m, n), lambda i, j: te.maximum(y[i, j] + b[j], 0.0), "z"), [*tensors, b]
    dag = te.dag([*tensors, y])
    return replace(dag, constants=("w", "s")) if known else dag


def of_integers(
    kind: str, m: int, n: int, k: int, group: int, dtype: str = "uint8", act: str = "int8"
) -> ComputeDAG:
    """int8 times codes: sums of integers, less their zero point 8, scaled by both."""
    each, code = CODES[kind]
    x, w = te.placeholder((m, k), act, "x"), te.placeholder((n, k // each), dtype, "w")
    sx, s = te.placeholder((m, k // group), name="sx"), te.placeholder((n, k // group), name="s")
    t, u, g = te.reduce_axis(group, "t"), te.reduce_axis(group, "u"), te.reduce_axis(k // group, "g")

    def term(i: Any, j: Any, b: Any) -> Any:
        at = b * group + t
        return te.cast(x[i, at], "int32") * te.cast(code(w, j, at), "int32")

    z = te.compute(
        (m, k // group), lambda i, b: te.sum(te.cast(x[i, b * group + u], "int32") * 8, axis=u), "z"
    )
    p = te.compute((m, n, k // group), lambda i, j, b: te.sum(term(i, j, b), axis=t), "p")
    y = te.compute(
        (m, n),
        lambda i, j: te.sum(te.cast(p[i, j, g] - z[i, g], "float32") * sx[i, g] * s[j, g], axis=g),
        "y",
    )
    return replace(te.dag([x, sx, w, s, y]), constants=("w", "s"))


def data(dag: ComputeDAG, seed: int = 0) -> list[np.ndarray]:
    """Small whole numbers, and integers of their whole range."""
    rng = np.random.default_rng(seed)
    ends = {"uint8": (0, 256), "int8": (-128, 128)}
    return [
        rng.integers(*ends.get(x.dtype, (-2, 3)), x.shape).astype(DTYPES[x.dtype].numpy) for x in dag.inputs
    ]


def nested(space: DerivedSpace) -> list[int]:
    return [s for s, name in enumerate(space.sketches) if NESTED in name]


def check(dag: ComputeDAG, t: Target, each: int = 2, *, compiled: bool = True, more: str = "") -> list[str]:
    """Candidates of all nested sketches, or of those with ``more`` in their names. Returns these."""
    values, rng, space = data(dag), np.random.default_rng(1), derive(dag, t)
    want = evaluate(dag, values)
    found = [s for s, name in enumerate(space.sketches) if (more or NESTED) in name]
    for s in found:
        rows = space.sample(s, 64, rng)
        rows = rows[space.valid(s, rows)]
        assert len(rows), space.sketches[s]
        for row in rows[:each]:
            trace = space.trace(s, row)
            nest = Schedule.replay(dag, trace, t).nest
            same(interpret(lower(nest), dag, values), want, space.sketches[s])
            if compiled:
                check_compiled(replace(dag, constants=()), trace, t, values, want)
    return [space.sketches[s] for s in found]


@pytest.mark.parametrize("m", [1, 4])
@pytest.mark.parametrize("kind", KINDS)
def test_the_space_does_not_collapse(kind: str, m: int) -> None:
    space = derive(by_groups(kind, m, 512, 1024, 32), WIDE)
    assert len(space.sketches) > 1
    (s,) = nested(space)
    rows = space.sample(s, 256, np.random.default_rng(0))
    assert len(np.unique(rows[space.valid(s, rows)], axis=0)) >= 12, "vectors together, and steps"
    assert {"y.vec", "p.steps"} | ({"y.x0"} if m > 1 else set()) <= set(space.holes(s))
    best = [float(space.features(i, space.sample(i, 64, np.random.default_rng(1)))[
        :, space.feature_names.index("est_time_s")].min()) for i in range(len(space.sketches))]  # fmt: skip
    assert min(best) == best[s], "the estimate puts it first"


def test_fewer_vectors_together_take_longer() -> None:
    """Vectors of a tile that are summed one after another wait for their own sum: an unrolled loop around a
    sum repeats it. Their code counts still."""
    space = derive(by_groups("int4", 1, 512, 1024, 128), WIDE)
    (s,) = nested(space)
    rows = np.array([[vec, 4] for vec in (64, 32, 16)])
    columns = {n: space.features(s, rows)[:, k] for k, n in enumerate(space.feature_names)}
    assert list(columns["block0.vectors"]) == [32, 16, 8]
    chains = columns["block0.compute_cycles"]
    assert chains[2] > 1.9 * chains[1] > 3.6 * chains[0], "twice, and twice again"
    nest = Schedule.replay(space.dag, space.trace(s, rows[2]), WIDE).nest
    (p,) = (b for b in analyse(nest) if b.name == "p")
    assert p.copies == Const(4)


@pytest.mark.fast("int4-1-19")
@pytest.mark.parametrize(("m", "n"), [(1, 19), (3, 37)])
@pytest.mark.parametrize("kind", KINDS)
def test_candidates_are_right(kind: str, m: int, n: int) -> None:
    assert check(by_groups(kind, m, n, 48, 16), WIDE) == [NESTED]


@pytest.mark.parametrize("kind", ["int4", "int8"])
def test_activations_of_sixteen_bits(kind: str) -> None:
    assert check(by_groups(kind, 2, 35, 32, 16, "bfloat16"), WIDE)


def test_an_epilogue_is_in_the_tile() -> None:
    dag = by_groups("int4", 2, 37, 32, 16, bias=True)
    assert check(dag, WIDE)
    space = derive(dag, WIDE)
    (s,) = nested(space)
    trace = space.trace(s, space.sample(s, 1, np.random.default_rng(0))[0])
    nest = Schedule.replay(dag, trace, WIDE).nest
    assert [b for b in (x.name for x in nest.buffers) if b.startswith("y")] == ["y"], "no copy of the sums"


def test_weights_that_are_not_known_ahead() -> None:
    assert check(by_groups("int4", 2, 37, 32, 16, known=False), WIDE)


def test_threads_share_the_tiles() -> None:
    t = replace(WIDE, threads=2)
    dag = by_groups("int8", 2, 70, 32, 16)
    assert check(dag, t)
    space = derive(dag, t)
    (s,) = nested(space)
    nest = Schedule.replay(dag, space.trace(s, space.sample(s, 1, np.random.default_rng(0))[0]), t).nest
    assert any(isinstance(x, Loop) and x.kind == "parallel" for x in walk(nest.body))


def test_other_reductions_of_reductions() -> None:
    """The mean of maxima; three levels; a sum over all but the outputs' last axis."""
    x, g, t = te.placeholder((3, 6, 8, 20), name="x"), te.reduce_axis(6, "g"), te.reduce_axis(8, "t")
    most = te.compute((3, 6, 20), lambda i, b, j: te.max(x[i, b, t, j], axis=t), "p")
    dag = te.dag([x, te.compute((3, 20), lambda i, j: te.sum(most[i, g, j] * 0.5, axis=g), "y")])
    assert check(dag, WIDE)
    u, w, s = (
        te.reduce_axis(4, "u"),
        te.placeholder((35, 2, 4, 8), name="w"),
        te.placeholder((2, 4, 35), name="s"),
    )
    x, h = te.placeholder((2, 2, 4, 8), name="x"), te.reduce_axis(2, "h")
    q = te.compute((2, 35, 2, 4), lambda i, j, a, b: te.sum(x[i, a, b, t] * w[j, a, b, t], axis=t), "q")
    p = te.compute((2, 35, 2), lambda i, j, a: te.max(q[i, j, a, u] * s[a, u, j], axis=u), "p")
    dag = te.dag([x, w, s, te.compute((2, 35), lambda i, j: te.sum(p[i, j, h], axis=h), "y")])
    assert check(replace(dag, constants=("w", "s")), WIDE)


def test_not_offered_where_results_are_used_otherwise() -> None:
    """Where a second stage reads the inner results, where the outer one reads them at other places, or where
    no vector of outputs is full."""
    x, g, t = te.placeholder((40, 6, 8), name="x"), te.reduce_axis(6, "g"), te.reduce_axis(8, "t")
    p = te.compute((40, 6), lambda i, b: te.sum(x[i, b, t], axis=t), "p")
    y = te.compute((40,), lambda i: te.sum(p[i, g], axis=g), "y")
    twice = te.dag([x, y, te.compute((40, 6), lambda i, b: p[i, b] + 1.0, "z")])
    turned = te.dag([x, te.compute((40,), lambda i: te.sum(p[i, 5 - g], axis=g), "y")])
    places = te.dag([x, te.compute((40,), lambda i: te.sum(p[i, g] + p[i, 0], axis=g), "y")])
    few = te.dag([x, te.compute((1,), lambda i: te.sum(p[i, g], axis=g), "y")])
    for dag in (twice, turned, places, few):
        assert not nested(derive(dag, WIDE))
    assert nested(derive(te.dag([x, y]), WIDE))


@pytest.mark.fast("four bits-1-19")
@pytest.mark.parametrize(("m", "n"), [(1, 19), (3, 37)])
@pytest.mark.parametrize("kind", CODES)
def test_sums_of_integers_are_dot_products(kind: str, m: int, n: int) -> None:
    """Whole steps of the instruction's terms, by the interpreter; compiled where this CPU has it."""
    dag = of_integers(kind, m, n, 64, 32 if kind != "halves" else 16)
    here = "avx512vnni" in host_arch()[1]
    assert check(dag, VNNI, compiled=here, more=DOTS) == [f"{NESTED} {DOTS}"]
    space = derive(dag, VNNI)
    s = space.sketches.index(f"{NESTED} {DOTS}")
    nest = Schedule.replay(dag, space.trace(s, space.sample(s, 1, np.random.default_rng(0))[0]), VNNI).nest
    assert any(
        isinstance(x, Intrinsic) and x.instruction.name == "vpdpbusd_turned" for x in walk(lower(nest).body)
    )


def test_the_estimate_sees_vectors_of_unpacked_codes() -> None:
    """A fused loop over lanes and terms goes on in memory, though both are dimensions of their own."""
    space = derive(of_integers("four bits", 1, 512, 1024, 32), VNNI)
    at = space.feature_names.index("est_time_s")
    best = {
        space.sketches[s]: space.features(s, space.sample(s, 64, np.random.default_rng(0)))[:, at].min()
        for s in nested(space)
    }
    assert best[f"{NESTED} {DOTS}"] < 0.8 * best[NESTED]


def test_the_cheapest_instruction_is_offered() -> None:
    """With VNNI signs are changed; without, terms are widened as they are."""
    dag = of_integers("bytes", 2, 37, 64, 32, "int8")
    words, both = with_features("avx512bw"), with_features("avx512bw", "avx512vnni")
    here = "avx512bw" in host_arch()[1]
    widened = f"{NESTED} p.with=vpmaddwd_s8s8_zmm"
    assert check(dag, words, 1, compiled=here, more="p.with") == [widened]
    assert [x for x in derive(dag, both).sketches if "p.with" in x] == [f"{NESTED} {DOTS}"]


SIGNS = [("int8", "int8", "vpdpbusd_turned"), ("uint8", "uint8", "vpdpbusd"), ("uint8", "int8", "vpdpbusd")]


@pytest.mark.slow
@pytest.mark.parametrize(("x", "w", "name"), SIGNS)
def test_signs_that_an_instruction_lacks(x: str, w: str, name: str) -> None:
    """Weights are offset while they are packed, and what that adds is taken off the sum of a group."""
    here = "avx512vnni" in host_arch()[1]
    dag = of_integers("bytes", 2, 37, 64, 32, w, x)
    assert check(dag, VNNI, compiled=here, more="p.with") == [f"{NESTED} p.with={name}"]
    offset = w == x
    space = derive(dag, VNNI)
    s = space.sketches.index(f"{NESTED} p.with={name}")
    nest = Schedule.replay(dag, space.trace(s, space.sample(s, 1, np.random.default_rng(0))[0]), VNNI).nest
    assert ("w_compensation_p" in {b.name for b in blocks(nest.body)}) is offset
    assert check(dag, WIDE, 1) == [NESTED]


def shared(strides: tuple[int, int] | None, group: int = 8, *, walks: bool = True) -> ComputeDAG:
    """Groups of uint8 times int8, of x that lies anyhow. ``walks``: else x is one number for each group."""
    m, n, g = 2, 19, 3
    x, w = te.placeholder((m, g * group), "uint8", "x", strides), te.placeholder((n, g * group), "int8", "w")
    s, t, u = te.placeholder((n, g), name="s"), te.reduce_axis(group, "t"), te.reduce_axis(g, "u")

    def term(i: Any, j: Any, b: Any) -> Any:
        at = b * group + t
        return te.cast(x[i, at if walks else b], "int32") * te.cast(w[j, at], "int32")

    p = te.compute((m, n, g), lambda i, j, b: te.sum(term(i, j, b), axis=t), "p")
    y = te.compute((m, n), lambda i, j: te.sum(te.cast(p[i, j, u], "float32") * s[j, u], axis=u), "y")
    return te.dag([x, w, s, y])


@pytest.mark.parametrize("strides", [None, (80, 2), (40, -1), (1, 3)], ids=str)
def test_terms_of_what_lanes_share_lie_anyhow(strides: tuple[int, int] | None) -> None:
    """They are copied where they are not side by side."""
    here = "avx512vnni" in host_arch()[1]
    found = check(shared(strides), VNNI, compiled=here)
    assert found == [NESTED, f"{NESTED} p.with=vpdpbusd"]


def test_groups_as_short_as_an_instruction() -> None:
    here = "avx512vnni" in host_arch()[1]
    assert check(shared(None, 4), VNNI, compiled=here, more="p.with") == [f"{NESTED} p.with=vpdpbusd"]


def test_one_number_for_all_terms_is_no_dot_product() -> None:
    assert check(shared(None, walks=False), VNNI) == [NESTED]


def test_dot_products_only_where_they_are_the_sum() -> None:
    def offered(dag: ComputeDAG, t: Target = VNNI) -> bool:
        return any("p.with" in name for name in derive(dag, t).sketches)

    assert offered(of_integers("four bits", 1, 32, 64, 32))
    assert not offered(of_integers("four bits", 1, 32, 64, 32), WIDE)
    assert not offered(of_integers("four bits", 1, 32, 48, 4)), "half an instruction"
    assert not offered(by_groups("int4", 1, 32, 64, 32)), "of floats"
    floats = by_groups("int8", 1, 32, 64, 32, "int8")
    assert not offered(floats) and nested(derive(floats, VNNI)), "integers added up as floats"


# -- one sum ------------------------------------------------------------------------------------------------


def in_one(kind: str, m: int, n: int, k: int, group: int = 0, act: str = "float32") -> ComputeDAG:
    """x times weights known ahead, each with its scale, or with one for each output."""
    dtype, each, code = KINDS[kind]
    x, w = te.placeholder((m, k), act, "x"), te.placeholder((n, k // each), dtype, "w")
    s = te.placeholder((n, k // group) if group else (n,), name="s")
    r = te.reduce_axis(k, "r")

    def term(i: Any, j: Any) -> Any:
        number = te.cast(code(w, j, r), "float32")
        return te.cast(x[i, r], "float32") * (number * s[j, r // group] if group else number)

    c = te.compute((m, n), lambda i, j: te.sum(term(i, j), axis=r), "y")
    dag = te.dag([x, w, s, c if group else te.compute((m, n), lambda i, j: c[i, j] * s[j], "z")])
    return replace(dag, constants=("w", "s"))


def of_bytes(m: int, n: int, k: int) -> ComputeDAG:
    """int8 times codes of 4 bits, in one sum."""
    x, w, r = (
        te.placeholder((m, k), "int8", "x"),
        te.placeholder((n, k // 2), "uint8", "w"),
        te.reduce_axis(k, "r"),
    )

    def term(i: Any, j: Any) -> Any:
        return te.cast(x[i, r], "int32") * four_bits(w, j, r)

    c = te.compute((m, n), lambda i, j: te.sum(term(i, j), axis=r), "p")
    z = te.compute((m, n), lambda i, j: te.cast(c[i, j], "float32") * 0.5, "z")
    return replace(te.dag([x, w, z]), constants=("w",))


@pytest.mark.slow
@pytest.mark.parametrize("group", [0, 16])
@pytest.mark.parametrize("kind", ["int4", "int8", "fp8", "bf16"])
def test_one_sum_in_panels(kind: str, group: int) -> None:
    for m, n in ((1, 19), (3, 37)):
        assert check(in_one(kind, m, n, 48, group), WIDE, more="y.sums=panels") == ["y.sums=panels"]


def test_one_sum_of_integers_in_panels() -> None:
    here = "avx512vnni" in host_arch()[1]
    found = check(of_bytes(2, 37, 64), VNNI, compiled=here, more="p.sums=panels")
    assert found == ["p.sums=panels", f"p.sums=panels {DOTS}"]


def test_panels_only_for_stored_weights_of_few_rows() -> None:
    def offered(dag: ComputeDAG) -> bool:
        return any("panels" in name for name in derive(dag, WIDE).sketches)

    assert offered(in_one("int8", 8, 64, 64)) and offered(in_one("bf16", 1, 64, 64))
    assert not offered(in_one("int8", 9, 64, 64)), "many rows"
    assert not offered(in_one("f32", 1, 64, 64)), "no fewer bits than it is computed in"
    assert not offered(replace(in_one("int8", 1, 64, 64), constants=())), "not known ahead"
    assert not offered(in_one("int8", 1, 8, 64)), "no full vector"


@pytest.mark.parametrize("m", [1, 11])
@pytest.mark.parametrize("weights", ["int4", "int8"])
def test_a_scale_a_channel_keeps_the_instruction(weights: str, m: int) -> None:
    """What the zero of codes adds is a sum of each row of activations. It is a stage apart, so that the
    product stays one of panels, with as many rows as there are."""
    sizes = {"m": m, "n": 21, "k": 32, "group": 32, "weights": weights}
    dag = replace(ops.workload("weight_only_matmul", sizes, "int8").dag, constants=("w", "s"))
    found = check(dag, VNNI, 1, more="part.sums=panels")
    assert any("vpdpbusd_turned" in name for name in found) == (m == 1 or weights == "int4")


def test_codes_serve_any_number_of_rows() -> None:
    sizes = {"m": 9, "n": 21, "k": 32, "group": 32, "weights": "float4_e2m1"}
    dag = replace(ops.workload("weight_only_matmul", sizes).dag, constants=("w", "s"))
    assert check(dag, WIDE, 1, more="part.sums=panels") == ["part.sums=panels"]


@pytest.mark.parametrize("kind", ["int4", "fp8"])
@pytest.mark.parametrize("n", [64, 4096])
def test_weights_of_few_bits_are_always_asked_for_ahead(kind: str, n: int) -> None:
    """A tuner has them in a cache, where asking gains nothing. A model reads them from memory, all of them as
    one stream, however few each product has."""
    space = derive(by_groups(kind, 1, n, 4096, 32), WIDE)
    (s,) = nested(space)
    row = space.sample(s, 1, np.random.default_rng(0))[0]
    nest = Schedule.replay(space.dag, space.trace(s, row), WIDE).nest
    groups = [x for x in walk(nest.body) if isinstance(x, Loop) and x.annotations]
    assert [dict(x.annotations) for x in groups if x.extent == Const(4096 // 32)] == [
        {"prefetch_bytes": ON_THE_WAY}
    ]


def test_floats_may_be_asked_for_ahead() -> None:
    space = derive(by_groups("f32", 1, 4096, 4096, 32), WIDE)
    (s,) = nested(space)
    rows = space.sample(s, 256, np.random.default_rng(0))
    assert set(rows[:, space.holes(s).index("y.ahead")]) == {0, 1, 2, 4}


def test_one_row_and_many_read_the_same_panels() -> None:
    """So that a program for each can share weights."""
    of_rows = []
    for m in (1, 64):
        space = derive(of_integers("four bits", m, 512, 256, 32), VNNI)
        s = space.sketches.index(f"{NESTED} {DOTS}")
        rows = space.sample(s, 16, np.random.default_rng(0))
        nests = [Schedule.replay(space.dag, space.trace(s, row), VNNI).nest for row in rows]
        packed = [x.buffer("w_global") for x in nests]
        of_rows += [(x.shape, x.dtype) for x in packed]
    assert len(set(of_rows)) == 1 and of_rows[0][0][0] == Const(8), "eight panels of 64"
    few = derive(of_integers("four bits", 1, 512, 256, 32), replace(VNNI, threads=8))
    s = few.sketches.index(f"{NESTED} {DOTS}")
    assert "y.panel" in few.holes(s), "eight threads want more"


@pytest.mark.parametrize(("threads", "first", "other"), [(1, "x1", "x1"), (2, "x1", "x1"), (16, "x1", "x0")])
def test_tiles_of_rows_are_inside_of_panels(threads: int, first: str, other: str) -> None:
    """All rows read a panel before the next one is read. Where a call tells how many rows there are, threads
    share panels alone, if these are enough."""
    t = replace(VNNI, threads=threads)
    for m, axis in ((64, first), (at.dim(1, 64, "rows"), other)):
        dag = of_integers("four bits", m, 512, 64, 32)  # type: ignore[arg-type]  # a size or a dimension
        space = derive(dag, t)
        s = space.sketches.index(f"{NESTED} {DOTS}")
        trace = space.trace(s, space.sample(s, 1, np.random.default_rng(0))[0])
        body = lower(Schedule.replay(dag, trace, t).nest).body
        tiles = next(x for x in walk(body) if isinstance(x, Loop) and x.var.startswith("y_write_x"))
        assert tiles.var.startswith(f"y_write_{axis}")
        assert tiles.kind == ("parallel" if threads > 1 else "serial")


@pytest.mark.parametrize(
    ("features", "name"),
    [(("avx2",), "vpmaddwd_s8u8"), (("avx2", "avxvnni"), "vpdpbusd_ymm_turned")],
    ids=["avx2", "avxvnni"],
)
def test_cpus_with_vectors_of_32_bytes(features: tuple[str, ...], name: str) -> None:
    here = set(features) <= set(host_arch()[1])
    t = replace(target(vector_bytes=32), features=with_features(*features).features)
    dag = of_integers("four bits", 2, 37, 64, 32)
    assert check(dag, t, compiled=here, more="p.with") == [f"{NESTED} p.with={name}"]
