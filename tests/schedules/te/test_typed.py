"""Types are looked at where a compute DAG is made: what a file says as what a user writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from dag_mutants import documents, mutated
from small_shapes import SMALL

from schedules import ops, te
from schedules.te.compute_dag import ComputeDAG

X = te.placeholder((5, 7), "float32", "X")
K = te.reduce_axis(7, "k")


def summed() -> dict[str, Any]:
    """``y[i] = sum of X[i, k]``, as JSON."""
    return te.dag([X, te.compute((5,), lambda i: te.sum(X[i, K], axis=K), "y")]).to_json()


def stage(**changes: Any) -> dict[str, Any]:
    v = summed()
    v["stages"][0].update(changes)
    return v


def value(x: Any) -> dict[str, Any]:
    """``y[i] = x`` for each i."""
    return stage(values=[x], reduce_axes=[], reducer=None)


def reduced(**changes: Any) -> dict[str, Any]:
    v = summed()
    v["stages"][0]["reducer"].update(changes)
    return v


def typed(output: str, x: Any) -> dict[str, Any]:
    v = value(x)
    v["stages"][0]["outputs"] = [["y", [5], output]]
    return v


def shaped(*shape: Any) -> dict[str, Any]:
    v = summed()
    v["inputs"][0][1] = list(shape)
    return v


AXIS, LOAD = ["var", "i"], ["load", "X", "float32", ["var", "i"], 0]
ONE = ["const", "float32", 1.0]

WRONG: dict[str, tuple[Callable[[], Any], str]] = {
    "wider than its output": (
        lambda: typed("float32", ["cast", "float64", LOAD]),
        r"the value float64\(X\[i, 0\]\) is float64, and its output y is float32; use te.cast\(value, ",
    ),
    "narrower than its output": (lambda: typed("float64", LOAD), "is float32, and its output y is float64"),
    "an axis as a value": (lambda: typed("int64", AXIS), "is index, and its output y is int64"),
    "a condition as a number": (
        lambda: typed("float32", ["<", AXIS, 3]),
        "is bool, and its output y is float32",
    ),
    "an output that widens": (lambda: stage(outputs=[["y", [5], "float64"]]), "its output y is float64"),
    "more outputs than values": (
        lambda: stage(outputs=[["y", [5], "float32"], ["z", [5], "float32"]]),
        "1 values for 2 outputs",
    ),
    "no output": (lambda: stage(outputs=[]), "no output"),
    "an output twice": (lambda: {**summed(), "outputs": ["y", "y"]}, "an output stands twice"),
    "identity of another dtype": (
        lambda: reduced(identity=[["const", "float64", 0.0]]),
        "identity 0 of sum is 0.0 of dtype float64",
    ),
    "identity of an axis": (lambda: reduced(identity=[0]), "identity 0 of sum is 0 of dtype index"),
    "identity that is none": (
        lambda: reduced(identity=[["load", "x0", "float32"]]),
        "identity 0 of sum is x0",
    ),
    "no identity": (lambda: reduced(identity=[]), "0 identities and combines 1 values"),
    "combine of another dtype": (
        lambda: reduced(combine=[["cast", "float64", ["load", "x0", "float32"]]]),
        "combine 0 of sum is .* float64",
    ),
    "combine that reads memory": (
        lambda: reduced(combine=[["load", "X", "float32", 1000, 0]]),
        "combine of sum: reads 'X'",
    ),
    "combine that reads behind an operand": (
        lambda: reduced(combine=[["load", "x0", "float32", 1000]]),
        r"x0\[1000\] does not fit x0\[\] float32",
    ),
    "combine of what is not reduced": (lambda: reduced(combine=[["load", "x1", "float32"]]), "reads 'x1'"),
    "combine that reads an axis": (
        lambda: reduced(combine=[["cast", "float32", AXIS]]),
        "axis 'i' is not an axis of this stage",
    ),
    "two combines": (
        lambda: reduced(combine=[["load", "x0", "float32"]] * 2),
        "combines 2 values, and 1 are",
    ),
    "a reduction without a reducer": (lambda: stage(reducer=None), "reduction axes and no reducer"),
    "operands of two dtypes": (
        lambda: value(["+", LOAD, ["const", "float64", 1.0]]),
        "operands of different dtypes, float32 and float64",
    ),
    "an axis and a number": (
        lambda: value(["*", LOAD, AXIS]),
        "operands of different dtypes, float32 and index",
    ),
    "remainder of floats": (lambda: value(["%", LOAD, ONE]), "operator '%' is not defined for float32"),
    "bits of floats": (lambda: value(["<<", LOAD, ONE]), "operator '<<' is not defined for float32"),
    "quotient of integers": (
        lambda: typed("int32", ["/", ["const", "int32", 1], ["const", "int32", 2]]),
        "operator '/' is not defined",
    ),
    "bits of an axis": (
        lambda: typed("int32", ["cast", "int32", ["<<", AXIS, 1]]),
        "operator '<<' is not defined for index",
    ),
    "an axis over nothing": (
        lambda: typed("int32", ["cast", "int32", ["//", AXIS, 0]]),
        "i // 0 divides by zero",
    ),
    "a number as a condition": (
        lambda: value(["select", LOAD, LOAD, ONE]),
        "needs a condition and two values",
    ),
    "sides of two dtypes": (
        lambda: value(["select", ["<", AXIS, 3], LOAD, ["const", "float64", 1.0]]),
        "two values of one dtype",
    ),
    "and of numbers": (lambda: value(["select", ["and", LOAD, LOAD], LOAD, ONE]), "needs conditions"),
    "not of two": (
        lambda: value(["select", ["not", ["<", AXIS, 3], ["<", AXIS, 3]], LOAD, ONE]),
        "needs conditions",
    ),
    "a function of an axis": (lambda: value(["call", "exp", AXIS]), "one floating-point dtype, got index"),
    "a function of two dtypes": (
        lambda: value(["call", "pow", LOAD, ["const", "float64", 1.0]]),
        "one floating-point dtype, got float32, float64",
    ),
    "fma of integers": (
        lambda: typed("int32", ["fma", *[["const", "int32", 1]] * 3]),
        "one floating-point dtype",
    ),
    "arithmetic in storage": (
        lambda: typed("int8", ["+", ["const", "int8", 1], ["const", "int8", 1]]),
        "computes in int8, a dtype for storage",
    ),
    "a byte from a float": (lambda: typed("int8", ["cast", "int8", LOAD]), "computes in int8"),
    "a condition from a number": (
        lambda: typed("bool", ["cast", "bool", ["const", "int32", 1]]),
        "computes in bool",
    ),
    "an index of a float": (
        lambda: value(["load", "X", "float32", ["cast", "index", LOAD], 0]),
        "makes an index of float32",
    ),
    "a float as an index": (
        lambda: value(["load", "X", "float32", LOAD, 0]),
        "has an index of dtype float32",
    ),
    "a load of another dtype": (lambda: value(["load", "X", "float64", AXIS, 0]), "does not fit X"),
    "a load of another rank": (lambda: value(["load", "X", "float32", AXIS]), "does not fit X"),
    "a load behind the end": (
        lambda: value(["load", "X", "float32", AXIS, 7]),
        "index 1 of X.* is 7, outside 0..6",
    ),
    "a dtype that is none": (lambda: value(["cast", "float33", LOAD]), "converts to 'float33'"),
    "a dtype that is null": (lambda: value(["cast", None, LOAD]), "expected a text, got None"),
    "a dtype that is a list": (lambda: value(["load", "X", ["float32"], AXIS, 0]), "expected a text"),
    "a literal with a fraction": (
        lambda: typed("int32", ["const", "int32", 1.5]),
        "the literal 1.5 is no value of 'int32'",
    ),
    "a literal out of range": (lambda: typed("int32", ["const", "int32", 10**50]), "is no value of 'int32'"),
    "an axis out of range": (
        lambda: typed("int32", ["cast", "int32", ["+", AXIS, 10**50]]),
        "is no value of 'index'",
    ),
    "a float out of range": (lambda: value(["const", "float32", 10**400]), "malformed expression"),
    "a literal that is null": (lambda: value(["const", "float32", None]), "the literal None is no value"),
    "a literal that is a list": (lambda: value(["const", "float32", [1]]), r"the literal \[1\] is no value"),
    "true for a number": (lambda: value(["const", "float32", True]), "the literal True is no value"),
    "a number for true": (lambda: typed("bool", ["const", "bool", 1]), "the literal 1 is no value of 'bool'"),
    "infinity of integers": (
        lambda: typed("int32", ["const", "int32", "inf"]),
        "the literal inf is no value",
    ),
    "a literal of no dtype": (lambda: value(["const", "object", 1]), "is no value of 'object'"),
    "a hole": (lambda: typed("int32", ["cast", "int32", ["hole", "h"]]), "'h' is no size that a call tells"),
    "an axis of nothing": (lambda: value(["cast", "float32", ["var", "z"]]), "axis 'z' is not an axis"),
    "no extent": (lambda: shaped(0, 7), "extent below 1"),
    "an extent below 0": (lambda: shaped(-5, 7), "extent below 1"),
    "an extent that is huge": (lambda: shaped(10**40, 7), "more than"),
    "extents that overflow together": (lambda: shaped(2**40, 2**40), "more than"),
    "an extent that is true": (lambda: shaped(True, 7), "expected an integer, got True"),
    "an extent that is a fraction": (lambda: shaped(5.0, 7), "expected an integer, got 5.0"),
    "a sum over nothing": (lambda: stage(reduce_axes=[["k", 0]]), "axis k has extent 0"),
    "a sum over too much": (lambda: stage(reduce_axes=[["k", 10**40]]), "more than"),
    "axes that are not its output's": (
        lambda: stage(axes=[["i", 4]]),
        r"output shape \(5,\) is not its axes'",
    ),
    "an axis name of code": (
        lambda: stage(axes=[["i; x()", 5]]),
        "axis name 'i; x\\(\\)' is not an identifier",
    ),
    "a tensor name of code": (lambda: stage(outputs=[["y; x()", [5], "float32"]]), "is not an identifier"),
    "a name that is none": (lambda: stage(axes=[[None, 5]]), "expected a text"),
    "strides without end": (
        lambda: {**summed(), "inputs": [["X", [5, 7], "float32", [10**50, 1]]]},
        "more than",
    ),
    "nested without end": (lambda: value(nested(5000)), "malformed expression"),
    "nested deeply": (lambda: value(nested(450)), "nests more than 420 levels"),
    "an expression without end": (lambda: value(tree(17)), "operations and operands, more than"),
}


def nested(depth: int) -> Any:
    e: Any = LOAD
    for _ in range(depth):
        e = ["+", e, ONE]
    return e


def tree(depth: int) -> Any:
    e: Any = LOAD
    for _ in range(depth):
        e = ["+", e, e]
    return e


@pytest.mark.fast(but=["an expression without end"])
@pytest.mark.parametrize("case", WRONG)
def test_an_expression_of_a_file_with_wrong_types_is_refused(case: str) -> None:
    make, message = WRONG[case]
    with pytest.raises(ValueError, match=message) as told:
        ComputeDAG.from_json(make())
    assert len(str(told.value)) < 500


@pytest.mark.parametrize("op", SMALL)
def test_what_the_library_writes_is_read_back(op: str) -> None:
    for dtype in ops.get(op).dtypes:
        dag = ops.workload(op, SMALL[op], dtype=dtype).dag
        assert ComputeDAG.from_json(json.loads(json.dumps(dag.to_json()))) == dag


def test_every_kind_of_expression_is_read_back() -> None:
    for v in documents():
        assert ComputeDAG.from_json(json.loads(json.dumps(v))).to_json() == v


@pytest.mark.slow
def test_mutants_are_refused_in_words_or_are_expressions() -> None:
    dags, refused = documents(), 0
    for seed in range(800):
        v = mutated(dags, seed)
        try:
            made = ComputeDAG.from_json(v)
        except ValueError as err:
            refused += 1
            assert len(str(err)) < 1000, seed
        else:
            assert ComputeDAG.from_json(made.to_json()) == made, seed
    assert 500 < refused < 780
