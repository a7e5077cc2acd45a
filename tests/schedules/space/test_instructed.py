"""Sums of products by an instruction of the target: where it is offered, and that every sketch is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from helpers import backwards, check_compiled, interpret, same
from space_cases import target

import autotune
from autotune.codegen.llvm.compile import host_arch
from autotune.targets import from_name
from schedules import ops, te
from schedules.instructions import INSTRUCTIONS
from schedules.instructions.match import fits
from schedules.ir import Intrinsic, Loop, blocks, walk
from schedules.ir.nest import find_block, loops_of
from schedules.model import Target
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.space.rules.cpu import instructed
from schedules.te.compute_dag import ComputeDAG

FEATURES = ("amx-bf16", "amx-int8", "amx-tile", "avx512bf16", "avx512vnni")


def with_features(*features: str) -> Target:
    """A CPU with vectors of 64 bytes and these instructions, whatever CPU this is."""
    return replace(target(vector_bytes=64), features=tuple(sorted(features)))


ALL = with_features(*FEATURES)


def product(m: int, n: int, k: int, a: str, b: str, turned: str = "") -> ComputeDAG:
    """c = a b of any dtypes; ``turned``: operands that are transposed."""
    x = te.placeholder((k, m) if "a" in turned else (m, k), a, "a")
    y = te.placeholder((n, k) if "b" in turned else (k, n), b, "b")
    r = te.reduce_axis(k, "k")

    def term(i: Any, j: Any) -> Any:
        return (x[r, i] if "a" in turned else x[i, r]) * (y[j, r] if "b" in turned else y[r, j])

    return te.dag([x, y, te.compute((m, n), lambda i, j: te.sum(term(i, j), axis=r), "c")])


def requantised(m: int, n: int, k: int) -> ComputeDAG:
    """uint8 times int8, scaled and rounded to uint8."""
    x, y = te.placeholder((m, k), "uint8", "x"), te.placeholder((k, n), "int8", "w")
    scale, r = te.placeholder((n,), "float32", "scale"), te.reduce_axis(k, "k")
    c = te.compute((m, n), lambda i, j: te.sum(x[i, r] * y[r, j], axis=r), "c")
    q = te.compute(
        (m, n), lambda i, j: te.cast(te.maximum(te.cast(c[i, j], "float32") * scale[j], 0.0), "uint8"), "q"
    )
    return te.dag([x, y, scale, q])


def attended(rows: int, columns: int, dim: int) -> ComputeDAG:
    """Two products with a stage over rows between them, as attention has, in whole numbers."""
    q, k, v = (
        te.placeholder((n, dim), "bfloat16", x) for n, x in ((rows, "q"), (columns, "k"), (columns, "v"))
    )
    r, j = te.reduce_axis(dim, "r"), te.reduce_axis(columns, "j")
    s = te.compute((rows, columns), lambda i, j: te.sum(q[i, r] * k[j, r], axis=r), "s")
    m = te.compute((rows,), lambda i: te.max(s[i, j], axis=j), "m")
    e = te.compute(
        (rows, columns), lambda i, j: te.cast(te.maximum(s[i, j] - m[i] + 9.0, 0.0), "bfloat16"), "e"
    )
    o = te.compute((rows, dim), lambda i, d: te.sum(e[i, j] * v[j, d], axis=j), "o")
    y = te.compute((rows, dim), lambda i, d: o[i, d] + m[i], "y")
    return te.dag([q, k, v, y])


@dataclass(frozen=True)
class Case:
    """A workload, and what runs in each of its instructed sketches, by instruction."""

    op: str
    params: Mapping[str, Any]
    offered: tuple[str, ...]
    dtype: str = "bfloat16"
    layout: str | None = None
    constants: tuple[str, ...] = field(default=())

    @property
    def dag(self) -> ComputeDAG:
        if self.op == "product":
            return product(**self.params)
        if self.op == "requantised":
            return requantised(**self.params)
        if self.op == "attended":
            return attended(**self.params)
        dag = ops.workload(self.op, self.params, dtype=self.dtype, layout=self.layout).dag
        return replace(dag, constants=self.constants)

    def __str__(self) -> str:
        return "-".join([self.op, *(f"{k}{v}" for k, v in self.params.items()), self.layout or ""])


def mm(m: int, n: int, k: int, *offered: str, op: str = "matmul", **more: Any) -> Case:
    return Case(op, {"m": m, "n": n, "k": k, **more}, offered)


def q8(m: int, n: int, k: int, a: str, b: str, *offered: str, turned: str = "") -> Case:
    return Case("product", {"m": m, "n": n, "k": k, "a": a, "b": b, "turned": turned}, offered)


DOTS, TILES = "vdpbf16ps", "tdpbf16ps"
SMALL = [
    mm(7, 50, 12, DOTS),
    mm(5, 33, 10, DOTS, transpose_b=1),
    mm(9, 33, 12, DOTS, transpose_a=1),
    Case("matmul", {"m": 1, "n": 40, "k": 16}, (DOTS,), constants=("b",)),
    mm(5, 33, 13, DOTS),
    mm(5, 33, 7, DOTS, transpose_a=1, transpose_b=1),
    Case("conv2d", {"h": 2, "w": 4, "ci": 3, "co": 6, "k": 3, "padding": 1}, (DOTS,)),
    Case("conv2d", {"h": 2, "w": 17, "ci": 3, "co": 3, "k": 3, "padding": 1}, (DOTS,), layout="NCHW"),
    q8(5, 17, 7, "uint8", "int8", "vpdpbusd"),
    mm(3, 6, 16, DOTS),
    mm(5, 16, 32, DOTS, TILES),
    mm(5, 33, 10, DOTS, op="matmul_bias_relu"),
    mm(3, 33, 8, DOTS, op="batch_matmul", b=2),
    mm(3, 33, 8, DOTS, op="batch_matmul", b=2, transpose_b=1),
    Case("conv2d", {"h": 2, "w": 4, "ci": 4, "co": 6, "k": 3, "padding": 1}, (DOTS,)),
    Case("conv2d", {"h": 2, "w": 4, "ci": 4, "co": 6, "k": 3, "padding": 1}, (DOTS,), constants=("w",)),
    Case("conv2d_bias_relu", {"h": 4, "w": 5, "ci": 2, "co": 17, "k": 2, "stride": 2}, (DOTS,)),
    Case("conv2d", {"h": 2, "w": 17, "ci": 4, "co": 3, "k": 3, "padding": 1}, (DOTS,), layout="NCHW"),
    Case("conv2d", {"h": 2, "w": 5, "ci": 2, "co": 18, "k": 3, "padding": 1}, (DOTS,), layout="NCHW"),
    Case("conv1d", {"l": 9, "ci": 4, "co": 18, "k": 3, "padding": 1}, (DOTS,)),
    Case("conv3d", {"d": 2, "h": 2, "w": 5, "ci": 2, "co": 18, "k": 2}, (DOTS,)),
    q8(5, 33, 8, "uint8", "int8", "vpdpbusd"),
    q8(5, 33, 8, "int8", "uint8", "vpdpbusd_turned"),
    q8(5, 33, 12, "uint8", "int8", "vpdpbusd", turned="ab"),
    q8(5, 16, 64, "int8", "int8", "tdpbssd"),
    Case("requantised", {"m": 5, "n": 33, "k": 8}, ("vpdpbusd",)),
    Case("attended", {"rows": 5, "columns": 16, "dim": 16}, (DOTS,)),
    Case("attention", {"heads": 1, "seq": 16, "dim": 2}, (DOTS,)),
]  # fmt: skip
LARGER = [
    mm(19, 33, 32, DOTS, TILES, transpose_a=1, transpose_b=1),
    mm(33, 40, 64, DOTS, TILES),
    mm(5, 40, 64, DOTS, TILES),
    mm(18, 34, 32, DOTS, TILES, op="matmul_bias_relu"),
    Case("conv2d", {"h": 3, "w": 20, "ci": 32, "co": 20, "k": 3, "padding": 1}, (DOTS, TILES)),
    Case("conv2d", {"h": 3, "w": 20, "ci": 32, "co": 20, "k": 3, "padding": 1}, (DOTS, TILES), layout="NCHW"),
    Case("conv2d", {"h": 1, "w": 17, "ci": 32, "co": 16, "k": 1}, (DOTS, TILES), layout="NCHW"),
    q8(17, 33, 64, "uint8", "int8", "vpdpbusd", "tdpbusd"),
    q8(17, 33, 57, "uint8", "int8", "vpdpbusd", "tdpbusd"),
    q8(17, 33, 127, "int8", "int8", "tdpbssd", turned="b"),
    mm(33, 40, 27, DOTS, TILES),
    mm(33, 20, 275, DOTS, TILES),
    q8(17, 33, 64, "int8", "int8", "tdpbssd"),
    Case("requantised", {"m": 17, "n": 33, "k": 64}, ("vpdpbusd", "tdpbusd")),
    Case("conv2d", {"h": 3, "w": 16, "ci": 64, "co": 16, "k": 3, "padding": 1}, ("tdpbssd",), dtype="int8"),
    Case("attended", {"rows": 17, "columns": 32, "dim": 32}, (DOTS, TILES)),
]  # fmt: skip


EVERY = [*SMALL, *(pytest.param(c, marks=pytest.mark.slow) for c in LARGER)]


def data(dag: ComputeDAG, seed: int = 0) -> list[np.ndarray]:
    """Small whole numbers; integers of their whole range."""
    rng = np.random.default_rng(seed)
    ends = {"uint8": (0, 256), "int8": (-128, 128)}
    return [rng.integers(*ends.get(x.dtype, (-4, 5)), x.shape).astype(x.dtype) for x in dag.inputs]


def sketches(case: Case, t: Target) -> dict[str, list[int]]:
    """{instruction: sketches with it}."""
    out: dict[str, list[int]] = {}
    for n, name in enumerate(derive(case.dag, t).sketches):
        for word in name.split():
            what, _, way = word.partition("=")
            if what.endswith(".with"):
                out.setdefault(way, []).append(n)
    return out


@pytest.mark.parametrize("case", EVERY, ids=str)
def test_every_sketch_is_right(case: Case) -> None:
    """By the interpreter, with the instruction in it, from the first sketch on."""
    dag, rng = case.dag, np.random.default_rng(1)
    found, space = sketches(case, ALL), derive(dag, ALL)
    assert set(found) == set(case.offered)
    assert any(0 in ns for ns in found.values())
    inputs = data(dag)
    want = te.evaluate(replace(dag, constants=()), inputs)
    for name, numbers in found.items():
        for n in numbers:
            s = Schedule.replay(dag, space.trace(n, space.sample(n, 1, rng)[0]), ALL)
            f = lower(s.nest)
            assert name in {x.instruction.name for x in walk(f.body) if isinstance(x, Intrinsic)}
            same(interpret(f, replace(dag, constants=()), inputs), want, space.sketches[n])


@pytest.mark.slow
@pytest.mark.parametrize("case", EVERY, ids=str)
def test_every_sketch_is_right_compiled(case: Case) -> None:
    """Where this CPU has the instructions, two candidates of each sketch."""
    here = replace(ALL, features=host_arch()[1])
    dag, rng = case.dag, np.random.default_rng(2)
    found, space = sketches(case, here), derive(dag, here)
    if not found:
        pytest.skip("this CPU has none of its instructions")
    inputs = data(dag)
    dag = replace(dag, constants=())
    want = te.evaluate(dag, inputs)
    for numbers in found.values():
        for n in numbers:
            for row in space.sample(n, 2, rng):
                check_compiled(dag, space.trace(n, row), here, inputs, want)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        mm(7, 50, 12, DOTS),
        mm(9, 33, 13, DOTS, transpose_a=1),
        mm(5, 40, 16, DOTS, op="batch_matmul", b=2),
        pytest.param(mm(33, 40, 90, DOTS, TILES), marks=pytest.mark.slow),
        Case("conv2d", {"h": 2, "w": 4, "ci": 6, "co": 6, "k": 3, "padding": 1}, (DOTS,)),
    ],
    ids=str,
)
def test_parts_of_a_sum_are_right(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Added over blocks of tiles that stay in a buffer meanwhile. A tile is in registers during a part."""
    monkeypatch.setattr(instructed, "PARTS_OF_CACHE", 0)
    dag, rng = case.dag, np.random.default_rng(3)
    space, inputs = derive(dag, ALL), data(dag)
    want = te.evaluate(dag, inputs)
    parts = [n for n, name in enumerate(space.sketches) if "k=blocks" in name]
    assert parts
    held = False
    for n in parts:
        for row in space.sample(n, 3, rng):
            f = lower(Schedule.replay(dag, space.trace(n, row), ALL).nest)
            same(interpret(f, dag, inputs), want, space.sketches[n])
            runs = [x for x in walk(f.body) if isinstance(x, Intrinsic) and x.instruction.name == DOTS]
            held |= bool(runs) and all("_reg" in x.operands[-1].buffer for x in runs)
    assert held


# Rows of two tiles and columns of two: what is copied inside the loops is copied for a part of them.
INSIDE = [
    mm(7, 50, 12, DOTS),
    mm(9, 33, 13, DOTS, transpose_a=1),
    mm(7, 50, 12, DOTS, transpose_b=1),
    mm(3, 33, 8, DOTS, op="batch_matmul", b=2),
    mm(5, 33, 10, DOTS, op="matmul_bias_relu"),
    q8(5, 33, 12, "uint8", "int8", "vpdpbusd", turned="ab"),
    Case("conv2d", {"h": 2, "w": 4, "ci": 6, "co": 18, "k": 3, "padding": 1}, (DOTS,)),
    pytest.param(mm(33, 40, 90, DOTS, TILES), marks=pytest.mark.slow),
    pytest.param(q8(17, 33, 128, "int8", "int8", "tdpbssd", turned="ab"), marks=pytest.mark.slow),
]


def copied_inside(names: Sequence[str], *by: str) -> list[int]:
    """Sketches whose instruction reads operands that are copied inside the loops, or that have one of the
    words ``by`` for it."""
    words = [name.split() for name in names]
    return [
        n
        for n, has in enumerate(words)
        for x in has
        if ".with=" in x and any(f"{x.partition('.with=')[0]}.{w}" in has for w in ("at=tile", *by))
    ]


@pytest.mark.parametrize("case", INSIDE, ids=str)
def test_operands_copied_inside_the_loops_are_right(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first loop that reads the same again: panels of columns outside of the loop over rows, those
    of rows inside of it. Also where threads share the loops outside."""
    monkeypatch.setattr(instructed, "SHARE_OF_SECOND", 0)
    dag, rng, both = case.dag, np.random.default_rng(6), replace(ALL, threads=2)
    space, inputs = derive(dag, both), data(dag)
    want = te.evaluate(dag, inputs)
    inside = copied_inside(space.sketches, "pack=all")
    assert inside
    for n in inside:
        nest = Schedule.replay(dag, space.trace(n, space.sample(n, 1, rng)[0]), both).nest
        copies = [b for b in blocks(nest.body) if b.name.endswith("_global")]
        assert any(len(loops_of(nest, b.name)) > len(b.iters) for b in copies)
        same(interpret(backwards(nest), dag, inputs), want, space.sketches[n])


@pytest.mark.parametrize("case", INSIDE, ids=str)
def test_operands_copied_inside_the_loops_are_right_compiled(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instructed, "SHARE_OF_SECOND", 0)
    here = replace(ALL, features=host_arch()[1])
    dag, rng = case.dag, np.random.default_rng(7)
    space, inputs = derive(dag, here), data(dag)
    found = copied_inside(space.sketches, "pack=all")
    if not found:
        pytest.skip("this CPU has none of its instructions")
    want = te.evaluate(dag, inputs)
    for n in found:
        check_compiled(dag, space.trace(n, space.sample(n, 1, rng)[0]), here, inputs, want)


def test_only_large_copies_of_a_call_are_made_inside_the_loops() -> None:
    """b has 5 KiB, a 4.1: more and less than half of this second cache."""
    few = replace(ALL, limits=tuple(sorted({**dict(ALL.limits), "l2_bytes": 9 << 10}.items())))
    case = mm(33, 40, 64, DOTS, TILES)
    assert "c.with=vdpbf16ps c.at=tile" in derive(case.dag, few).sketches
    assert not copied_inside(derive(replace(case.dag, constants=("b",)), few).sketches)
    assert not copied_inside(derive(case.dag, ALL).sketches)


@pytest.mark.parametrize(
    "case", [mm(7, 50, 13, DOTS), mm(5, 33, 10, DOTS, transpose_b=1), *SMALL[-9:-7]], ids=str
)
def test_threads_share_tiles_and_copies(case: Case) -> None:
    """Also where iterations of parallel loops run in another order."""
    both = replace(ALL, threads=2)
    dag, rng = case.dag, np.random.default_rng(4)
    space, inputs = derive(dag, both), data(dag)
    want = te.evaluate(dag, inputs)
    for numbers in sketches(case, both).values():
        nest = Schedule.replay(dag, space.trace(numbers[0], space.sample(numbers[0], 1, rng)[0]), both).nest
        assert any(isinstance(x, Loop) and x.kind == "parallel" for x in walk(nest.body))
        same(interpret(backwards(nest), dag, inputs), want, space.sketches[numbers[0]])


@pytest.mark.parametrize("case", [mm(7, 50, 13, DOTS), mm(33, 40, 90, DOTS, TILES)], ids=str)
def test_weights_known_ahead_are_packed_ahead(case: Case) -> None:
    here = replace(ALL, features=host_arch()[1])
    dag = replace(case.dag, constants=("b",))
    space, inputs = derive(dag, here), data(dag)
    (want,) = te.evaluate(case.dag, inputs)
    found = [n for n, name in enumerate(space.sketches) if "with" in name]
    if not found:
        pytest.skip("this CPU has none of its instructions")
    for n in found:
        row = space.sample(n, 1, np.random.default_rng(5))[0]
        kernel = autotune.build(Schedule.replay(dag, space.trace(n, row), here), here)
        assert np.array_equal(kernel(inputs[0], kernel.pack_weights(inputs[1])), want)


# -- where it is offered ------------------------------------------------------------------------------------


def offered(case: Case, t: Target) -> set[str]:
    return set(sketches(case, t))


def test_a_target_without_it_has_other_sketches() -> None:
    case = mm(33, 40, 64, DOTS, TILES)
    assert offered(case, ALL) == {DOTS, TILES}
    assert offered(case, with_features("avx512bf16")) == {DOTS}
    assert offered(case, with_features("amx-tile", "amx-bf16")) == {TILES}
    assert offered(case, with_features("avx512vnni", "amx-tile")) == set()
    without = derive(case.dag, with_features("avx512bf16")).sketches
    plain = [x for x in derive(case.dag, with_features()).sketches if "copies=wide" not in x]
    assert [x for x in without if "with" not in x] == plain
    assert offered(case, from_name("x86-64-v4")) == set()


def test_not_offered_for_other_numbers() -> None:
    for dtype in ("float32", "float16"):
        assert offered(Case("matmul", {"m": 64, "n": 64, "k": 64}, (), dtype=dtype), ALL) == set()
    assert offered(q8(16, 32, 64, "int32", "int8"), with_features("avx512vnni")) == set()
    assert offered(q8(15, 32, 64, "int8", "int8"), with_features("avx2")) == {"vpmaddwd_s8s8"}


def test_not_offered_where_most_of_it_would_be_wasted() -> None:
    assert offered(mm(64, 3, 64), with_features("avx512bf16")) == {DOTS}, "lanes are rows"
    assert offered(mm(3, 3, 64), with_features("avx512bf16")) == set()
    assert offered(mm(3, 64, 64), with_features("amx-tile", "amx-bf16")) == set()
    assert offered(mm(2, 64, 64), with_features("avx512bf16")) == set(), "b is copied to be used twice"
    known = Case("matmul", {"m": 1, "n": 64, "k": 64}, (), constants=("b",))
    assert offered(known, with_features("avx512bf16")) == {DOTS}


def test_one_that_is_another_with_its_operands_turned_is_offered_once() -> None:
    """uint8 times int8 is tdpbusd, and with its operands turned tdpbsud."""
    assert offered(q8(64, 64, 64, "uint8", "int8"), ALL) == {"vpdpbusd", "tdpbusd"}
    assert offered(q8(64, 64, 64, "int8", "uint8"), ALL) == {"vpdpbusd_turned", "tdpbsud"}


@pytest.mark.parametrize("shape", [(64, 48, 32), (5, 7, 9)])
def test_float32_is_scheduled_as_before(shape: tuple[int, int, int]) -> None:
    dag = product(*shape, "float32", "float32")
    mine, plain = (derive(dag, t) for t in (ALL, with_features()))
    assert mine.sketches == plain.sketches
    for n in range(len(plain.sketches)):
        assert mine.sketch(n).trace.to_json() == plain.sketch(n).trace.to_json()


def test_instructions_of_arm_are_offered() -> None:
    """Their lanes are fewer. Results of matrix products would have to lie in squares."""
    arm = from_name("neoverse-v1")
    assert offered(mm(5, 9, 12), arm) == {"bfdot"}
    assert offered(q8(5, 9, 12, "int8", "int8"), arm) == {"sdot"}
    case = q8(5, 9, 12, "uint8", "int8")
    assert offered(case, arm) == {"usdot"}
    space, inputs = derive(case.dag, arm), data(case.dag)
    (n,) = sketches(case, arm)["usdot"]
    s = Schedule.replay(case.dag, space.trace(n, space.sample(n, 1, np.random.default_rng(0))[0]), arm)
    f = lower(s.nest)
    assert "usdot" in {x.instruction.name for x in walk(f.body) if isinstance(x, Intrinsic)}
    same(interpret(f, case.dag, inputs), te.evaluate(case.dag, inputs), "by usdot")


# -- which axes are whose -----------------------------------------------------------------------------------


def ways(dag: ComputeDAG, name: str, block: str = "c") -> list[tuple[dict[str, str], dict[str, str]]]:
    found = fits(find_block(Schedule(dag).nest, block), INSTRUCTIONS[name])
    return [(dict(f.axes), {n: x.buffer for n, x in f.reads.items()}) for f in found]


def test_a_block_is_unified_by_its_expression() -> None:
    dag = product(32, 48, 64, "bfloat16", "bfloat16")
    assert ways(dag, "vdpbf16ps") == [
        ({"i": "j", "t": "k"}, {"a": "a", "b": "b"}),
        ({"i": "i", "t": "k"}, {"a": "b", "b": "a"}),
    ]
    assert ways(dag, "tdpbf16ps") == [
        ({"i": "i", "j": "j", "q": "k", "t": "k"}, {"a": "a", "b": "b"}),
        ({"i": "j", "j": "i", "q": "k", "t": "k"}, {"a": "b", "b": "a"}),
    ]
    signed = product(32, 48, 64, "int8", "uint8")
    assert ways(signed, "vpdpbusd") == [({"i": "i", "t": "k"}, {"a": "b", "b": "a"})]


def test_what_computes_something_else_is_none() -> None:
    x, y = te.placeholder((8, 8), "bfloat16", "x"), te.placeholder((8, 8), "bfloat16", "y")
    r = te.reduce_axis(8, "r")

    def of(term: Any, reduce: Any = te.sum) -> ComputeDAG:
        return te.dag([x, y, te.compute((8, 8), lambda i, j: reduce(term(i, j), axis=r), "c")])

    assert ways(of(lambda i, j: x[i, r] * y[r, j]), "vdpbf16ps")
    for term in (
        lambda i, j: x[i, r] + y[r, j],
        lambda i, j: x[i, r] * y[r, j] * 2.0,
        lambda i, j: x[i, r] * y[j, j],
        lambda i, j: x[i, j] * y[i, j] + 0.0 * r,
        lambda i, j: te.select(i < 4, x[i, r] * y[r, j], 0.0),
    ):
        assert not ways(of(term), "vdpbf16ps")
    assert not ways(of(lambda i, j: x[i, r] * y[r, j], te.max), "vdpbf16ps")


def test_padding_by_a_zero_point_that_is_loaded_leaves_the_instruction() -> None:
    sizes = {"h": 6, "w": 6, "ci": 16, "co": 16, "k": 3}
    for padding in (0, 1):
        dag = ops.workload("quantized_conv2d", {**sizes, "padding": padding}).dag
        assert any("dot.with=vpdpbusd" in name for name in derive(dag, ALL).sketches), padding
