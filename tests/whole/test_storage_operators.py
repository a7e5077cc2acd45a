"""Operators of bfloat16, int8, uint8 and bool: their types, their candidates, and the check of these."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from grid_cases import SMALL, case, emulate
from helpers import check_compiled, checker, execute, expected
from needs import imported
from space_cases import target

import autotune as at
from autotune.measure.arena import POISON
from autotune.measure.inputs import draws, random_inputs
from schedules import expr as E
from schedules import ops, te
from schedules.dtypes import DTYPES, FLOATS
from schedules.errors import WorkloadError
from schedules.ops.base import Types
from schedules.space import derive
from schedules.te.compute_dag import ComputeDAG
from schedules.te.evaluator import evaluate

BF16 = DTYPES["bfloat16"].numpy
MIXED = [
    ("matmul", "float8_e4m3fn"), ("max_pool2d", "float8_e4m3fn"), ("conv2d", "float8_e5m2"),
    ("add", "bfloat16"), ("softmax", "bfloat16"), ("matmul", "bfloat16"), ("matmul", "int8"),
    ("matmul", "uint8"), ("reduce_sum", "int8"), ("permute", "bool"), ("permute", "uint8"),
    ("conv2d", "uint8"), ("quantized_matmul", "uint8"), ("quantized_conv2d", "int8"),
    ("depthwise_conv2d", "int8"), ("max_pool2d", "int8"), ("max_pool2d", "uint8"), ("argmax", "uint8"),
]  # fmt: skip


def product(a: str, b: str, m: int, n: int, k: int, acc: str | None = None) -> ComputeDAG:
    """c = a b of two dtypes."""
    x, y, r = te.placeholder((m, k), a, "a"), te.placeholder((k, n), b, "b"), te.reduce_axis(k, "k")
    return te.dag([x, y, te.compute((m, n), lambda i, j: te.sum(x[i, r] * y[r, j], axis=r, dtype=acc), "c")])


# -- types ------------------------------------------------------------------------------------------------


def test_operators_state_their_types() -> None:
    matmul, pool = ops.get("matmul"), ops.get("max_pool2d")
    assert matmul.types("bfloat16") == Types("bfloat16", "float32", "bfloat16")
    assert matmul.types("int8") == Types("int8", "int32", "int8")
    assert matmul.types("int8", {"out_dtype": "int32"}) == Types("int8", "int32", "int32")
    assert matmul.types("bfloat16", {"accumulator": "float64"}) == Types("bfloat16", "float64", "bfloat16")
    assert matmul.types("int64") == Types("int64", "int64", "int64")
    assert pool.types("uint8") == Types("uint8", "int32", "uint8")
    for op in ops.OPERATORS:
        if op.name == "weight_only_matmul":
            continue
        quantized = op.name.startswith("quantized_")
        assert op.dtypes == ("uint8", "int8") if quantized else set(op.dtypes) >= set(FLOATS), op.name
        for d in op.dtypes:
            dag = ops.workload(op.name, SMALL[op.name], d).dag
            kinds = {op.types(d).input, *(("int8", "float32") if quantized else ())}
            assert {t.dtype for t in dag.inputs} == kinds
            if op.name not in ("argmax", "argmin"):  # places
                assert dag.tensors[dag.outputs[0]].dtype == op.types(d).output, (op.name, d)


@pytest.mark.parametrize("activations", ["float32", "bfloat16", "float16", "int8"])
def test_few_bits_are_multiplied_with_other_types(activations: str) -> None:
    """Integers are scaled, so that the result is float32."""
    dag = ops.workload("weight_only_matmul", SMALL["weight_only_matmul"], activations).dag
    assert activations in ops.get("weight_only_matmul").dtypes and dag.inputs[0].dtype == activations
    assert dag.tensors[dag.outputs[0]].dtype == ("float32" if activations == "int8" else activations)


def test_sums_may_be_stored_as_another_dtype() -> None:
    shape = {"m": 3, "n": 5, "k": 7}
    w = ops.workload("matmul", shape | {"out_dtype": "int32"}, "int8")
    assert [t.dtype for t in w.dag.params] == ["int8", "int8", "int32"]
    assert dict(w.params)["out_dtype"] == "int32"
    assert ops.makes(w) and w.digest != ops.workload("matmul", shape, "int8").digest
    x = random_inputs(w.dag)
    sums = x[0].astype(np.int32) @ x[1].astype(np.int32)
    assert (ops.reference(w, x)[0] == sums).all()
    assert (ops.reference(ops.workload("matmul", shape, "int8"), x)[0] == sums.astype(np.int8)).all()
    usual = ops.workload("matmul", shape | {"out_dtype": "float16", "accumulator": "float32"}, "float16")
    assert usual == ops.workload("matmul", shape, "float16")
    assert ops.parse_shape("m=3,n=5,k=7,out_dtype=int32") == shape | {"out_dtype": "int32"}
    with pytest.raises(WorkloadError, match="softmax has no parameter 'out_dtype'"):
        ops.workload("softmax", {"m": 2, "n": 3, "out_dtype": "float32"}, "float16")
    for given, dtype, text in (
        ({"out_dtype": "int4"}, "int8", "matmul: out_dtype: dtype 'int4' is not one of"),
        ({"accumulator": "float32"}, "int8", "accumulator float32 does not fit int8; use int32 or int64"),
        ({"accumulator": "float16"}, "float16", "accumulator float16 does not fit float16; use float32 or"),
    ):
        with pytest.raises(WorkloadError, match=text):
            ops.workload("matmul", shape | given, dtype)


def test_what_an_operator_has_no_use_for_is_refused() -> None:
    with pytest.raises(
        WorkloadError, match="softmax: dtype int8 is not supported; choose one of float16, bf"
    ):
        ops.workload("softmax", SMALL["softmax"], "int8")
    with pytest.raises(WorkloadError, match="matmul: dtype bool is not supported"):
        ops.workload("matmul", SMALL["matmul"], "bool")


def test_a_sum_is_made_in_the_dtype_that_it_names() -> None:
    x, k = te.placeholder((4, 9), "float32", "x"), te.reduce_axis(9, "k")
    assert te.compute((4,), lambda i: te.sum(x[i, k], axis=k, dtype="float64"), "y").dtype == "float64"
    b = te.placeholder((4, 9), "int8", "b")
    assert te.compute((4,), lambda i: te.sum(b[i, k], axis=k), "y").dtype == "int32"
    assert te.compute((4,), lambda i: te.prod(b[i, k], axis=k, dtype="int64"), "y").dtype == "int64"
    assert te.compute((4,), lambda i: te.sum(b[i, k] > 0, axis=k), "y").dtype == "int32"  # how many


@pytest.mark.parametrize(
    ("dtype", "value", "text"),
    [
        ("int8", ["+", ["load", "A", "int8", ["var", "i"]], ["load", "A", "int8", ["var", "i"]]], "int8"),
        ("bfloat16", ["call", "exp", ["load", "A", "bfloat16", ["var", "i"]]], "bfloat16"),
        ("uint8", ["cast", "float32", ["load", "A", "uint8", ["var", "i"]]], "uint8"),
        ("uint8", ["cast", "bool", ["cast", "int32", ["load", "A", "uint8", ["var", "i"]]]], "bool"),
        ("bool", ["<", ["load", "A", "bool", ["var", "i"]], ["load", "A", "bool", ["var", "i"]]], "bool"),
    ],
)
def test_a_dag_that_computes_in_what_is_stored_is_refused(dtype: str, value: list[Any], text: str) -> None:
    """Of a log, say: no back end has to know of it."""
    x = te.placeholder((4,), dtype, name="A")
    data = te.dag([x, te.compute((4,), lambda i: x[i], "y")]).to_json()
    data["stages"][0]["values"] = [value]
    with pytest.raises(ValueError, match=f"stage y: .* computes in {text}, a dtype for storage only"):
        ComputeDAG.from_json(data)


def test_whether_conditions_are_equal_needs_no_number() -> None:
    m = te.placeholder((4,), "bool", "m")
    dag = te.dag([m, te.compute((4,), lambda i: te.equal(m[i], i < 2), "y")])
    assert ComputeDAG.from_json(dag.to_json()).to_json() == dag.to_json()
    assert not any(isinstance(x, E.Cast) for v in dag.stages[0].values for x in E.walk(v))


# -- candidates -------------------------------------------------------------------------------------------


@pytest.mark.fast(but=["conv2d-uint8", "depthwise_conv2d-int8", "matmul-*"])
@pytest.mark.parametrize(("op", "dtype"), MIXED)
def test_compiled_candidates_are_what_the_interpreter_computes(op: str, dtype: str) -> None:
    c = case(op, dtype)
    space = derive(c.dag, target(1, 32))
    rng = np.random.default_rng(0)
    inputs = c.inputs if dtype == "bfloat16" else random_inputs(c.dag)  # of integers all that there are
    want = c.expected if op == "softmax" else expected(c.dag, inputs)
    if op != "softmax":
        for got, right in zip(want, ops.reference(ops.workload(op, SMALL[op], dtype), inputs), strict=True):
            assert (got == right).all()
    for number in range(len(space.sketches)):
        rows = space.sample(number, 200, rng)
        for row in rows[space.valid(number, rows)][:1]:
            if op != "softmax":
                check_compiled(c.dag, space.trace(number, row), target(1, 32), inputs, want)
                continue
            for got in execute(c.dag, space.trace(number, row), target(1, 32), inputs).values():
                c.check(got, op)


@pytest.mark.fast("add-bfloat16")
@pytest.mark.parametrize(("op", "dtype"), MIXED)
def test_candidates_for_gpus_are_right(op: str, dtype: str) -> None:
    emulate(case(op, dtype), 3)


@pytest.mark.slow
@pytest.mark.parametrize(("a", "b"), [("uint8", "int8"), ("int8", "uint8")])
def test_unsigned_by_signed(a: str, b: str) -> None:
    dag = product(a, b, 5, 40, 64)
    x = [random_inputs(dag)[0], random_inputs(dag)[1]]
    want = x[0].astype(np.int32) @ x[1].astype(np.int32)
    space = derive(dag, target(1, 32))
    for number in range(len(space.sketches)):
        rows = space.sample(number, 200, np.random.default_rng(0))
        for row in rows[space.valid(number, rows)][:1]:
            check_compiled(dag, space.trace(number, row), target(1, 32), x, [want])


def test_sums_neither_saturate_nor_stop() -> None:
    """Of int8 each product has 15 bits; in bfloat16, 256 + 1 would be 256."""
    a, b = np.full((1, 1024), -128, np.int8), np.full((1024, 1), -128, np.int8)
    assert evaluate(product("int8", "int8", 1, 1, 1024), [a, b])[0] == 16777216
    a, b = np.full((1, 1 << 17), 100, np.int8), np.full((1 << 17, 1), 127, np.int8)
    assert evaluate(product("int8", "int8", 1, 1, 1 << 17), [a, b])[0] == 1664614400
    u = np.array([[255, 255, 255, 255]], np.uint8), np.array([[127]] * 4, np.int8)
    assert evaluate(product("uint8", "int8", 1, 1, 4), u)[0] == 129540
    ones = np.ones((1, 1024), BF16), np.ones((1024, 1), BF16)
    assert evaluate(product("bfloat16", "bfloat16", 1, 1, 1024), ones)[0] == 1024


# -- what is right ----------------------------------------------------------------------------------------


def test_integers_are_drawn_from_all_that_there_are() -> None:
    dag = product("uint8", "int8", 64, 64, 64)
    u, s = draws(dag)[0].inputs
    assert (u.min(), u.max(), s.min(), s.max()) == (0, 255, -128, 127)
    for mistaken in ((u.view(np.int8), s), (u, s.view(np.uint8)), (np.minimum(u, 127), s)):
        wrong = mistaken[0].astype(np.int32) @ mistaken[1].astype(np.int32)
        assert "elements wrong" in checker(dag, [u, s]).check([wrong], 0).reason


@pytest.mark.parametrize("dtype", ["int8", "uint8", "bool"])
def test_elements_that_are_left_out_are_found(dtype: str) -> None:
    x = te.placeholder((40,), dtype, "x")
    dag = te.dag([x, te.compute((40,), lambda i: x[i], "y")])
    kind, value = POISON[dtype]
    for number in range(2):
        for draw in draws(dag):
            out = draw.reference[0].copy()
            assert not checker(dag, draw.inputs).check([out], number).reason
            out.view(kind)[7] = value + number
            if out.view(np.uint8)[7] != draw.reference[0].view(np.uint8)[7]:
                reason = checker(dag, draw.inputs).check([out], number).reason
                assert "1 of 40 elements never written, first at [7]" in reason


def test_a_condition_that_rounding_may_flip_may_be_either() -> None:
    x = te.placeholder((64,), "float32", "x")
    third = te.compute((64,), lambda i: x[i] * 3.0, "third")
    near = te.compute((64,), lambda i: te.cast(third[i] * 1.1, "float32") < 3.3, "near")
    counted = te.compute((64,), lambda i: near[i] * te.cast(i, "int32"), "y")
    dag = te.dag([x, near, counted])
    a = np.full(64, 1.0, np.float32)
    a[:32] = 2.0
    flags, numbers = evaluate(dag, [a])
    check = checker(dag, [a]).check
    assert not check([flags, numbers], 0).reason
    assert not check(
        [~flags & (a == 1.0), np.where(~flags & (a == 1.0), np.arange(64), 0).astype(np.int32)], 0
    ).reason
    assert "wrong" in check([~flags, numbers], 0).reason  # 6.6 is not near 3.3


def test_what_may_be_too_large_for_a_dtype_without_an_infinity_may_be_nan() -> None:
    x = te.placeholder((5,), "float32", "x")
    dag = te.dag([x, te.compute((5,), lambda i: te.cast(te.exp(x[i]), "float8_e4m3fn"), "y")])
    inputs = [np.log(np.float32([100, 463.9999, 464.0001, 470, 1e6]))]
    check = checker(dag, inputs).check
    number = np.array([104, 448, np.nan, np.nan, np.nan]).astype(DTYPES["float8_e4m3fn"].numpy)
    for at_end in (448, np.nan):
        number[1] = number[2] = at_end
        assert not check([number], 0).reason
    for n, wrong in ((0, np.nan), (3, 448)):
        other = number.copy()
        other[n] = wrong
        assert "1 of 5 elements wrong" in check([other], 0).reason


# -- tuned, loaded, called --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int8"])
def test_tune_then_load(tmp_path: Path, dtype: str) -> None:
    db, shape = tmp_path / "tuning.db", {"m": 9, "n": 40, "k": 33}
    shape |= {"out_dtype": "int32"} if dtype == "int8" else {}
    result = at.tune("matmul", dtype=dtype, threads=1, trials=6, budget_s=30, db=db, **shape)
    assert result.best is not None and not set(result.failed) - {"slow"}
    kernel = at.load("matmul", dtype=dtype, threads=1, db=db, **shape)
    workload = ops.workload("matmul", shape, dtype)
    a, b = random_inputs(workload.dag, 1)
    c = kernel(a, b)
    assert c.dtype == (np.int32 if dtype == "int8" else DTYPES[dtype].numpy)
    assert not checker(workload.dag, [a, b]).check([c], 0).reason
    with pytest.raises(at.ArgumentError, match=f"'a' is float32, but the kernel takes {dtype}: .*'{dtype}'"):
        kernel(a.astype("float32"), b)
    torch = imported("torch")
    if dtype == "int8":
        np.testing.assert_array_equal(kernel(torch.from_numpy(a), torch.from_numpy(b)), c)
        return
    bits, kind = f"int{8 * c.itemsize}", getattr(torch, dtype)
    x, y = (torch.from_numpy(v.view(bits)).view(kind) for v in (a, b))
    out = torch.empty((9, 40), dtype=kind)
    kernel(x, y, out=out)
    for told in (out, kernel(x, y)):
        np.testing.assert_array_equal(told.view(getattr(torch, bits)).numpy(), c.view(bits))
    with pytest.raises(at.ArgumentError, match="'a' is not C-contiguous"):
        kernel(x.T.contiguous().T, y)
    with pytest.raises(at.ArgumentError, match=f"'a' is float16, but the kernel takes {dtype}"):
        kernel(x.to(torch.float16), y)
