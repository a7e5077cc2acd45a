"""Tables of at most 16 numbers: their meaning, and the register that CPUs keep them in."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from helpers import check_compiled, expected, host, in_lanes

from autotune.codegen.llvm.compile import assembly
from autotune.codegen.llvm.emit import emit
from autotune.targets import from_name
from schedules import expr as E
from schedules import te
from schedules.errors import WorkloadError
from schedules.expr import Const, Expr, Var
from schedules.expr_json import from_json, to_json
from schedules.model import Target
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG
from schedules.te.rounding import evaluate_with_bounds

NF4 = tuple(np.float32(np.linspace(-1, 1, 16)).tolist())
CODES = tuple(range(-8, 8))


def looked_up(values: tuple[float, ...], dtype: str, to: str, index: str, n: int = 256) -> ComputeDAG:
    """y[i] = table[some bits of x[i]]."""
    x = te.placeholder((n,), "int32" if index == "any" else "uint8", "x")
    bits = {"low": lambda e: e & 15, "high": lambda e: e >> 4, "any": lambda e: e}[index]
    return te.dag([x, te.compute((n,), lambda i: te.cast(te.lookup(values, bits(x[i]), dtype), to), "y")])


def without(target: Target, *parts: str) -> Target:
    """This machine, had it none of the extensions that begin so."""
    return replace(target, arch="", features=tuple(f for f in target.features if not f.startswith(parts)))


CASES = [
    (te.FLOAT4_E2M1, "float32", "float32"),
    (NF4, "float32", "bfloat16"),
    (NF4, "float64", "float64"),
    (CODES, "int32", "int8"),
    (tuple(range(240, 256)), "int32", "uint8"),
    (CODES, "int32", "int32"),
    (CODES, "int64", "int64"),
    ((3, 1, 4, 1, 5), "int32", "int8"),
    ((3.0, 1.0, 4.0, 1.0, 5.0, 9.0, 2.0, 6.0, 5.0), "float32", "float32"),
    ((2, 7), "int32", "int8"),
]


@pytest.mark.parametrize("index", ["low", "high", "any"])
@pytest.mark.parametrize(("values", "dtype", "to"), CASES)
def test_a_table_is_its_comparisons(values: tuple[float, ...], dtype: str, to: str, index: str) -> None:
    dag = looked_up(values, dtype, to, index)
    x = np.arange(256, dtype=np.uint8) if index != "any" else np.arange(-100, 156, dtype=np.int32)
    x[:2] = [0, 255] if index != "any" else [-(2**31), 2**31 - 1]
    picked = {"low": x & 15, "high": x >> 4, "any": x}[index]
    want = np.array(values)[np.clip(picked, 0, len(values) - 1)]
    want = want.astype(dag.stages[0].outputs[0].dtype) if to != "bfloat16" else want
    (plain,) = expected(dag, [x])
    np.testing.assert_array_equal(plain, want.astype(plain.dtype))
    found = evaluate_with_bounds(dag, [x])
    for got in (te.evaluate(dag, [x])[0], found.values[0]):
        np.testing.assert_array_equal(got, plain)
        assert np.array_equal(np.signbit(got.astype("f8")), np.signbit(plain.astype("f8")))
    targets = [host()]
    if "avx512f" in host().features and "avx2" in host().features:
        targets.append(without(host(), "avx512", "avx10", "evex"))
    for target in targets:
        for lanes in (1, 4, 32, 64) if to in ("int8", "uint8") else (1, 8, 32):
            check_compiled(dag, in_lanes(dag, lanes).trace, target, [x], [plain])


def code(values: tuple[float, ...], dtype: str, to: str, lanes: int, target: Target) -> str:
    func = lower(in_lanes(looked_up(values, dtype, to, "high"), lanes).nest)
    return assembly(emit(func, target).text, target)


def test_the_table_stays_in_a_register() -> None:
    v3, v4 = from_name("x86-64-v3"), from_name("x86-64-v4")
    assert "vperm" in code(te.FLOAT4_E2M1, "float32", "float32", 16, v4)
    assert "vperm" in code(CODES, "int32", "int32", 16, v4)
    assert "vperm" in code(te.FLOAT4_E2M1, "float32", "float32", 8, v3)
    for target in (v3, v4):
        text = code(CODES, "int32", "int8", 64, target)
        assert "vpshufb" in text and "vpmovzx" not in text
    for text in (code(te.FLOAT4_E2M1, "float32", "float32", 16, v4), code(CODES, "int32", "int8", 64, v4)):
        assert "vpcmp" not in text and "vpgather" not in text


def test_the_mask_of_a_code_is_left_out() -> None:
    """vpermps looks at the lowest four bits alone."""
    target = from_name("x86-64-v4")
    func = lower(in_lanes(looked_up(NF4, "float32", "float32", "low"), 16).nest)
    text = assembly(emit(func, target).text, target)
    assert "vperm" in text and "vpand" not in text


def test_a_pair_of_codes_with_scales() -> None:
    """int4 in groups, and float4 in blocks: two codes a byte, the first in the lower half."""
    n, group = 64, 16
    w, s = te.placeholder((n // 2,), "uint8", "w"), te.placeholder((n // group,), "float32", "s")

    def value(i: Expr) -> Expr:
        bits = te.select(te.equal(i % 2, 0), w[i // 2] & 15, w[i // 2] >> 4)
        return te.lookup(te.FLOAT4_E2M1, bits) * s[i // group]

    dag = te.dag([w, s, te.compute((n,), value, "y")])
    rng = np.random.default_rng(0)
    data = [rng.integers(0, 256, n // 2).astype(np.uint8), np.float32([0.5, 2, 1, 4])]
    codes = np.stack([data[0] & 15, data[0] >> 4], 1).reshape(-1)
    want = np.float32(te.FLOAT4_E2M1)[codes] * np.repeat(data[1], group)
    np.testing.assert_array_equal(te.evaluate(dag, data)[0], want)
    for lanes in (1, 16):
        check_compiled(dag, in_lanes(dag, lanes).trace, host(), data, [want])


def test_a_table_is_an_expression_like_others() -> None:
    x = te.placeholder((4,), "uint8", "x")
    dag = te.dag([x, te.compute((4,), lambda i: te.lookup(NF4, x[i] & 15), "y")])
    (value,) = dag.stages[0].values
    found = E.lookup_of(from_json(to_json(value)))
    assert found is not None and found.values == tuple(Const(v, "float32") for v in NF4)
    assert ComputeDAG.from_json(dag.to_json()) == dag


@pytest.mark.parametrize("changed", ["order", "index", "comparison", "leaf"])
def test_other_selects_are_no_tables(changed: str) -> None:
    i = E.Load("x", (Var("k"),), "int32")
    one, two, three = (Const(n, "int32") for n in (1, 2, 3))
    other = E.Load("x", (Var("m"),), "int32")
    inner = E.Compare("<=" if changed == "comparison" else "<", other if changed == "index" else i, two)
    high = E.Select(inner, two, other if changed == "leaf" else three)
    first = Const(3 if changed == "order" else 1, "int32")
    assert E.lookup_of(E.Select(E.Compare("<", i, first), one, high)) is None


def test_what_is_no_table_is_refused() -> None:
    x, y = te.placeholder((4,), "uint8", "x"), te.placeholder((4,), "float32", "y")
    for values, index, dtype, match in (
        (NF4, y[0], "float32", "needs an index of integers of a tensor, got float32; cast it"),
        (NF4, Var("i"), "float32", "got index; cast it"),
        ((1,), x[0], "float32", "takes 2 to 16 values, got 1; read a larger table from a tensor"),
        (range(17), x[0], "float32", "takes 2 to 16 values, got 17"),
        (CODES, x[0], "int8", "int8 is stored; cast the result"),
        (NF4, x[0], "int32", "is not a value of int32"),
    ):
        with pytest.raises(WorkloadError, match=match):
            te.lookup(values, index, dtype)  # type: ignore[arg-type]


def test_the_two_codes_of_a_byte_need_no_branch() -> None:
    """Both are of one element, whichever is asked for; where their loop is unrolled nothing is asked."""
    w = te.placeholder((8, 16), "uint8", "w")
    r, p = te.reduce_axis(8, "r"), te.reduce_axis(2, "p")

    def value(j: Expr) -> te.Reduction:
        bits = te.select(te.equal(p, 0), w[r, j] & 15, w[r, j] >> 4)
        return te.sum(te.lookup(NF4, bits), axis=(r, p))

    dag = te.dag([w, te.compute((16,), value, "y")])
    target = from_name("x86-64-v4")
    data = [np.random.default_rng(0).integers(0, 256, (8, 16)).astype(np.uint8)]
    for unrolled in (False, True):
        s = Schedule(dag)
        j, rows, pair = s.loops("y")
        s.reorder(rows, pair, j)
        s.vectorize(j)
        if unrolled:
            s.unroll(pair)
        text = emit(lower(s.nest), target).text
        assert "then" not in text and ("select" not in text) == unrolled
        check_compiled(dag, s.trace, host(), data, expected(dag, data))
