"""Terms of an instruction out of several axes of a sum, and operands that are unfolded for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from helpers import check_compiled, interpret, same
from test_instructed import ALL, DOTS, TILES, Case, data, sketches, with_features

from autotune.codegen.llvm.compile import host_arch
from schedules import ops, te
from schedules.ir import Intrinsic, walk
from schedules.model import Target
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.space import derive
from schedules.space.rules.cpu import groups, instructed
from schedules.te.compute_dag import ComputeDAG


def conv(layout: str, dtype: str = "bfloat16", **p: int) -> Case:
    return Case("conv2d", p, (), dtype, layout)


def some(*quick: Case, slow: Sequence[Case]) -> list[Any]:
    return [*quick, *(pytest.param(c, marks=pytest.mark.slow) for c in slow)]


FIRST = {"h": 3, "w": 5, "ci": 3, "co": 6, "k": 3, "stride": 2, "padding": 1}
MERGED = some(
    conv("NHWC", **FIRST),
    conv("NHWC", "int8", **FIRST),
    Case("conv1d", {"l": 9, "ci": 1, "co": 18, "k": 5, "padding": 2}, ()),
    slow=[
        conv("NHWC", **{**FIRST, "k": 5, "padding": 2}),
        conv("NHWC", h=5, w=6, ci=5, co=17, k=3, padding=1),
        conv("NHWC", "int8", h=5, w=6, ci=5, co=17, k=3, padding=1),
        conv("NHWC", h=6, w=5, ci=3, co=17, k=2, stride=2),
        conv("NHWC", h=4, w=6, ci=3, co=17, k=3, dilation=2, padding=2),
        conv("NCHW", **{**FIRST, "co": 18}),
        conv("NCHW", "int8", **{**FIRST, "co": 18}),
    ],
)
UNFOLDED = some(
    conv("NHWC", h=2, w=5, ci=6, co=16, k=2, groups=2),
    conv("NHWC", "int8", h=2, w=5, ci=6, co=16, k=2, groups=2),
    conv("NCHW", h=2, w=5, ci=6, co=16, k=2, groups=2),
    slow=[
        conv("NHWC", h=3, w=5, ci=8, co=32, k=3, padding=1, groups=2),
        conv("NCHW", h=3, w=17, ci=10, co=32, k=3, padding=1, groups=2),
        conv("NCHW", "int8", h=3, w=5, ci=8, co=32, k=3, padding=1, groups=2),
        conv("NCHW", h=3, w=35, ci=4, co=17, k=3, stride=2, padding=1),
    ],
)
DOTS_OF = {"bfloat16": DOTS, "int8": "vpdpbusd"}


def products(k1: int, k2: int, turned: bool, ungapped: bool = True) -> ComputeDAG:
    """A sum over two axes, which go on in memory in one operand or in none."""
    a = te.placeholder((9, k1, k2) if ungapped else (k1, 9, k2), "bfloat16", "a")
    b = te.placeholder((k2, k1, 33) if turned else (k1, k2, 33), "bfloat16", "b")
    r, s = te.reduce_axis(k1, "r"), te.reduce_axis(k2, "s")

    def term(i: Any, j: Any) -> Any:
        return (a[i, r, s] if ungapped else a[r, i, s]) * (b[s, r, j] if turned else b[r, s, j])

    return te.dag([a, b, te.compute((9, 33), lambda i, j: te.sum(term(i, j), axis=(r, s)), "c")])


def primitives(dag: ComputeDAG, t: Target, n: int = 0) -> list[str]:
    space = derive(dag, t)
    return [x.primitive for x in space.trace(n, space.sample(n, 1, np.random.default_rng(0))[0]).steps]


def check(dag: ComputeDAG, t: Target, n: int, name: str, samples: int = 1) -> None:
    """By the interpreter, with the instruction, without tails; and compiled where this CPU has it."""
    space, inputs, rng = derive(dag, t), data(dag), np.random.default_rng(1)
    want = te.evaluate(dag, inputs)
    for row in space.sample(n, samples, rng):
        s = Schedule.replay(dag, space.trace(n, row), t)
        f = lower(s.nest)
        assert name in {x.instruction.name for x in walk(f.body) if isinstance(x, Intrinsic)}
        same(interpret(f, dag, inputs), want, space.sketches[n])
        if set(t.features) <= set(host_arch()[1]):
            check_compiled(dag, s.trace, t, inputs, want)


@pytest.mark.parametrize("case", MERGED, ids=str)
def test_terms_of_merged_axes_are_right(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instructed, "COPY", 0.0)  # these are too small to be copied for
    t = with_features("avx512bf16", "avx512vnni")
    steps = primitives(case.dag, t)
    assert "unfold" in steps or case.params["stride"] == case.params["k"]
    for name, numbers in sketches(case, t).items():
        assert name.startswith(DOTS_OF[case.dtype])
        for n in numbers:
            check(case.dag, t, n, name)


@pytest.mark.parametrize("case", UNFOLDED, ids=str)
def test_operands_that_are_unfolded_are_right(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instructed, "COPY", 0.0)
    t = with_features("avx512bf16", "avx512vnni")
    found = sketches(case, t)
    assert found
    for name, numbers in found.items():
        for n in numbers:
            check(case.dag, t, n, name)


@pytest.mark.slow
def test_tiles_of_merged_axes_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(instructed, "COPY", 0.0)
    t = with_features("amx-bf16", "amx-tile")
    case = conv("NHWC", **{**FIRST, "h": 5, "w": 18, "co": 16})
    (numbers,) = sketches(case, t).values()
    for n in numbers:
        check(case.dag, t, n, TILES)


@pytest.mark.parametrize("sizes", [(3, 3, False), (3, 3, True), (2, 5, True)], ids=str)
@pytest.mark.parametrize("ungapped", [True, False])
def test_sums_over_two_axes_are_right(sizes: tuple[int, int, bool], ungapped: bool) -> None:
    dag, t = products(*sizes, ungapped), with_features("avx512bf16")
    found = [n for n, name in enumerate(derive(dag, t).sketches) if f"with={DOTS}" in name]
    assert found
    for n in found:
        check(dag, t, n, DOTS)


def test_a_row_of_a_window_fills_an_instruction() -> None:
    """Of a first convolution: 21 terms of 32 in a row, where an image has 3 channels."""
    case = Case("conv2d", {"h": 224, "w": 224, "ci": 3, "co": 64, "k": 7, "stride": 2, "padding": 3}, ())
    assert set(sketches(case, ALL)) == {DOTS, TILES}
    steps = primitives(case.dag, ALL)
    assert steps.count("unfold") == 1 and "merge_dims" in steps, "weights are not unfolded"


# -- attention ----------------------------------------------------------------------------------------------


def test_both_products_of_attention_run_by_it() -> None:
    """The exponentials are rounded to bfloat16 in the expression. float32 has the stages that it had."""
    dag = ops.workload("attention", {"heads": 1, "seq": 16, "dim": 16}, dtype="bfloat16").dag
    t = with_features("avx512bf16")
    space = derive(dag, t)
    n = next(k for k, name in enumerate(space.sketches) if f"dot.with={DOTS} mixed.with={DOTS}" in name)
    s = Schedule.replay(dag, space.trace(n, space.sample(n, 1, np.random.default_rng(0))[0]), t)
    f = lower(s.nest)
    runs = [x for x in walk(f.body) if isinstance(x, Intrinsic) and x.instruction.name == DOTS]
    assert {x.operands[-1].buffer.removesuffix("_reg") for x in runs} == {"dot", "mixed"}
    same(interpret(f, dag, data(dag)), te.evaluate(dag, data(dag)), space.sketches[n])
    for dtype, stored in (("bfloat16", "bfloat16"), ("float16", "float32"), ("float32", "float32")):
        other = ops.workload("attention", {"heads": 1, "seq": 16, "dim": 16}, dtype=dtype).dag
        assert next(x.outputs[0].dtype for x in other.stages if x.outputs[0].name == "e") == stored


def test_rows_that_are_rounded_to_bfloat16_are_not_reduced_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative to the maximum of a part, an exponential rounds to another number than the expression says."""
    monkeypatch.setattr(groups, "rows_outgrow_cache", lambda d: True)
    for dtype, parts in (("bfloat16", False), ("float16", True), ("float32", True)):
        dag = ops.workload("attention", {"heads": 1, "seq": 300, "dim": 16}, dtype=dtype).dag
        assert any("by=parts" in name for name in derive(dag, ALL).sketches) == parts
