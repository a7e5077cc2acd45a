"""Integers at the ends of their range, and literals, mean on every backend what they mean to numpy."""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import sys
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from backends import results
from children import python_path
from grid_cases import need_cxx, program
from grid_cases import sampled as sampled_on_grid
from helpers import expected, same
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.codegen.simt import cuda, nvrtc
from schedules import expr as E
from schedules import te
from schedules.dtypes import DTYPES, computed, is_float, is_storage
from schedules.expr import Expr
from schedules.te.compute_dag import ComputeDAG

BITS = ["<<", ">>", "&", "|", "^"]
OPS = ["+", "-", "*", "//", "%", "ceildiv", "min", "max", *BITS]
INTEGERS = ["int32", "int64"]


def extremes(dtype: str) -> list[int]:
    info = np.iinfo(dtype)
    least, most = int(info.min), int(info.max)
    small = [-7, -3, -2, -1, 0, 1, 2, 3, 8, info.bits - 1, info.bits]
    return [least, least + 1, least // 2, *small, most // 2, most - 1, most]


def meaning(op: str, a: int, b: int, dtype: str) -> int:
    """By the integers of Python, which have no ends, and wrapped then."""
    bits = np.iinfo(dtype).bits
    if op in ("<<", ">>"):
        by = b if 0 <= b < bits else bits
        exact = a << by if op == "<<" else a >> by
    elif op in BITS:
        exact = {"&": a & b, "|": a | b, "^": a ^ b}[op]
    elif op in ("//", "%", "ceildiv"):
        exact = 0 if b == 0 else a // b if op == "//" else a % b if op == "%" else -(-a // b)
    else:
        exact = {"+": a + b, "-": a - b, "*": a * b, "min": min(a, b), "max": max(a, b)}[op]
    half = 1 << (bits - 1)
    return (exact + half) % (2 * half) - half


def check(dag: ComputeDAG, data: Sequence[np.ndarray], want: Sequence[np.ndarray], **kw: bool) -> None:
    for what, got in results(dag, data, **kw):
        for name, x, y in zip(dag.outputs, got, want, strict=True):
            if is_float(y.dtype.name):
                x, y = x.astype("float64"), y.astype("float64")  # numpy's own, whose NaN equal each other
            np.testing.assert_array_equal(x, y, err_msg=f"{name} by {what}")
    compiles_for_gpus(dag)


def compiles_for_gpus(dag: ComputeDAG) -> None:
    if nvrtc.available():
        nvrtc.compile_cubin(cuda.source(program(dag, next(sampled_on_grid(dag, 1))[1])), "sm_80")


def outputs(dtype: str, bodies: Sequence[Callable[..., Expr]], n: int, inputs: int = 2) -> ComputeDAG:
    """Each body of one element of every input, as an output."""
    xs = [te.placeholder((n,), dtype, f"x{k}") for k in range(inputs)]
    outs = [te.compute((n,), lambda i, f=f: f(*(x[i] for x in xs)), f"o{k}") for k, f in enumerate(bodies)]
    return te.dag([*xs, *outs])


def pairs(dtype: str) -> list[np.ndarray]:
    return [np.array(v, dtype) for v in zip(*itertools.product(extremes(dtype), repeat=2), strict=True)]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", INTEGERS)
def test_every_operator_at_the_extremes(dtype: str) -> None:
    """The least integer by -1 killed the emulator, and was left undefined on GPUs; so were sums that wrap."""
    a, b = pairs(dtype)
    bodies: list[Callable[..., Expr]] = [lambda x, y, op=op: E.binary(op, x, y) for op in OPS]
    bodies += [lambda x, y: te.abs(x), lambda x, y: 0 - x]
    bodies += [lambda x, y, op=op: te.select(E.compare(op, x, y), x, y) for op in ("<", "<=", "==", "!=")]
    both = list(zip(a.tolist(), b.tolist(), strict=True))
    want = [np.array([meaning(op, *p, dtype) for p in both], dtype) for op in OPS]
    with np.errstate(all="ignore"):
        numpys = {"+": np.add, "-": np.subtract, "*": np.multiply, "//": np.floor_divide, "%": np.remainder}
        numpys |= {"<<": np.left_shift, ">>": np.right_shift}
        for op, f in numpys.items():
            np.testing.assert_array_equal(want[OPS.index(op)], f(a, b))
        want += [np.abs(a), -a]
    want += [np.where(c, a, b) for c in (a < b, a <= b, a == b, a != b)]
    check(outputs(dtype, bodies, len(a)), [a, b], want)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", INTEGERS)
def test_every_operator_by_a_literal_at_the_extremes(dtype: str) -> None:
    least, most = extremes(dtype)[0], extremes(dtype)[-1]
    sides = [(op, c, False) for op in ("//", "%", "ceildiv") for c in (least, -3, -1, 1, 3, 8, most)]
    sides += [(op, c, True) for op in ("//", "%", "ceildiv") for c in (least, -1, 0, most)]
    sides += [(op, c, False) for op in ("+", "-", "*", "min", "max") for c in (least, -1, most)]
    sides += [(op, c, False) for op in ("<<", ">>") for c in (-1, 3)]
    sides += [("<<", 3, True), ("&", 3, False), ("|", 0, True), ("^", 0, False)]

    def body(op: str, c: int, left: bool) -> Callable[..., Expr]:
        return lambda x: E.binary(op, te.const(c, dtype), x) if left else E.binary(op, x, te.const(c, dtype))

    def value(op: str, c: int, left: bool, x: int) -> int:
        return meaning(op, c, x, dtype) if left else meaning(op, x, c, dtype)

    data = np.array(extremes(dtype), dtype)
    want = [np.array([value(*s, x) for x in data.tolist()], dtype) for s in sides]
    check(outputs(dtype, [body(*s) for s in sides], len(data), 1), [data], want)


@pytest.mark.slow
@settings(max_examples=15)
@given(st.data())
def test_expressions_of_integers_mean_one_thing(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(INTEGERS))
    number = st.one_of(st.sampled_from(extremes(dtype)), st.integers(-9, 9))
    leaf = st.one_of(st.sampled_from(["x", "y"]), number)
    tree = st.recursive(leaf, lambda t: st.tuples(st.sampled_from(OPS), t, t), max_leaves=6)
    trees = [("+", "x", "y"), *data.draw(st.lists(tree, min_size=3, max_size=3))]
    xs, ys = (data.draw(st.lists(number, min_size=9, max_size=9)) for _ in "xy")

    def refused(op: str, by: Expr) -> bool:
        return op in ("//", "%", "ceildiv") and isinstance(by, E.Const) and by.value == 0

    def build(t: object, x: Expr, y: Expr) -> Expr:
        match t:
            case "x" | "y":
                return x if t == "x" else y
            case (str(op), a, b):
                left, right = build(a, x, y), build(b, x, y)
                return left if refused(op, right) else E.binary(op, left, right)
        assert isinstance(t, int)
        return te.const(t, dtype)

    def value(t: object, x: int, y: int) -> int:
        match t:
            case "x" | "y":
                return x if t == "x" else y
            case (str(op), a, b):
                left = value(a, x, y)
                return left if refused(op, build(b, X, Y)) else meaning(op, left, value(b, x, y), dtype)
        assert isinstance(t, int)
        return t

    X, Y = (E.Load(c, (), dtype) for c in "xy")
    dag = outputs(dtype, [lambda x, y, t=t: build(t, x, y) for t in trees], 9)
    a, b = np.array(xs, dtype), np.array(ys, dtype)
    want = [np.array([value(t, x, y) for x, y in zip(xs, ys, strict=True)], dtype) for t in trees]
    for what, got in results(dag, [a, b], devices=False):
        same(got, want, f"{what}: {trees}")


@pytest.mark.slow
def test_integers_that_no_device_may_compute_do_not_end_the_process() -> None:
    """The emulator runs in the caller's process: signal 8 took it along."""
    need_cxx()
    text = (
        "import numpy as np; from backends import results; from schedules import te\n"
        "x, y = (te.placeholder((1,), 'int64', c) for c in 'xy')\n"
        "dag = te.dag([x, y, te.compute((1,), lambda i: x[i] // y[i] + x[i] % y[i], 'z')])\n"
        "least = np.array([-2**63])\n"
        "print({int(o[0][0]) for _, o in results(dag, [least, np.array([-1])])})"
    )
    done = subprocess.run(
        [sys.executable, "-c", text],
        env=os.environ | {"PYTHONPATH": python_path(__file__)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout.strip()) == (0, f"{{{-(2**63)}}}"), done.stderr


# -- conversions -----------------------------------------------------------------------------------


def numbers(dtype: str) -> np.ndarray:
    """Extremes of a dtype, and of those that it may become."""
    if is_storage(dtype) and not is_float(dtype):
        every = DTYPES[dtype].range
        some = [*every[:3], 2**24 + 1, 2**31 - 1, 2**31, 2**31 + 1, *every[-3:]]
        return np.array(every if len(every) <= 2**16 else some).astype(dtype)
    if dtype in INTEGERS:
        far = [16777217, -16777217, 2**31 - 1, -(2**31), 65519, 65520, 2049]
        far += [9007199254740993, 2**32 + 5, 2**62 + 1] if dtype == "int64" else []
        return np.array([*extremes(dtype), *far], dtype)
    sizes = [0.0, 0.5, 1.9, 2.5, 2.0**31, 2.0**31 - 1, 2.0**63, 65519.0, 65520.0]
    ends = [*sizes, *(-v for v in sizes)]
    ends += [1e-45, 6e-8, 1e-40, 3e38, -3e38, 1e39, 1e300, -1e300, math.inf, -math.inf, math.nan]
    with np.errstate(over="ignore"):
        return np.array(ends, dtype)


def converted(x: np.ndarray, dtype: str) -> np.ndarray:
    """numpy's, but what no integer is near is cut off. What is stored is made of what it is computed with,
    and becomes that first."""
    way = [computed(x.dtype.name), computed(dtype), dtype] if dtype != "bool" else [dtype]
    with np.errstate(all="ignore"):
        for d in way:
            if x.dtype.kind == "f" and d in INTEGERS:
                ends = DTYPES[d].range
                x = np.array([0 if v != v else int(min(max(v, ends[0]), ends[-1])) for v in x.tolist()], d)
            x = x.astype(d)
        return x


@pytest.mark.fast("bool")
@pytest.mark.parametrize("source", DTYPES)
def test_casts_at_the_extremes(source: str) -> None:
    data = numbers(source)
    others = [d for d in DTYPES if d not in (source, "float16")]
    dag = outputs(source, [lambda x, d=d: te.cast(x, d) for d in others], len(data), 1)
    check(dag, [data], [converted(data, d) for d in others])


def test_casts_to_float16_at_the_extremes() -> None:
    """Not on OpenCL here: a driver that many have computes float16 wrongly."""
    for source in ("float32", "float64", "int32", "int64"):
        data = numbers(source)
        dag = outputs(source, [lambda x: te.cast(x, "float16")], len(data), 1)
        check(dag, [data], [converted(data, "float16")], devices=False)


# -- literals --------------------------------------------------------------------------------------

LITERALS = [-1e40, 1e40, 1e39, math.inf, -math.inf, math.nan, 0.0, -0.0, 1e-45, 1e-40, 0.1, -0.1, 3.4e38]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_literals_of_floats(dtype: str) -> None:
    """-1e40 was written ``inff`` for GPUs."""
    every = [*LITERALS, *([1e308, -1e308, 5e-324] if dtype == "float64" else [])]
    dag = outputs(dtype, [lambda x, v=v: te.maximum(x, te.const(v, dtype)) for v in every], 5, 1)
    data = np.array([-np.inf, -1e30, 0.5, 1e30, np.inf], dtype)
    with np.errstate(over="ignore"):
        check(dag, [data], [np.maximum(data, np.array(v).astype(dtype)) for v in every])


def test_literals_of_float16() -> None:
    every = [65504.0, 65519.9, 65520.0, -70000.0, 1e-7, math.inf, -math.inf, math.nan]
    bodies = [lambda x, v=v: te.select(x < 1.0, te.const(v, "float16"), x) for v in every]
    dag = outputs("float16", bodies, 3, 1)
    data = np.array([0, 2, -3], "float16")
    with np.errstate(over="ignore"):
        want = [np.where(data < 1, np.float16(v), data) for v in every]
    check(dag, [data], want, devices=False)


@pytest.mark.slow
@settings(max_examples=30)
@given(st.integers(-9, 9), st.integers(1, 5), st.sampled_from([2, 3, 4, 7]))
def test_indices_below_zero_divide_downwards(offset: int, step: int, by: int) -> None:
    """Also where a divisor is a power of two, and where bounds are known."""
    x = te.placeholder((40,), "int32", "x")
    at = [
        (lambda i: ((i * step + offset) // by) % 40),
        (lambda i: (i * step + offset) % by),
        (lambda i: (offset - i * step) % by + 1),
        (lambda i: te.maximum((offset - i * step) // by, -20) + 20),
    ]
    dag = te.dag([x, *(te.compute((6,), lambda i, f=f: x[f(i)], f"o{k}") for k, f in enumerate(at))])
    data = np.arange(40, dtype="int32")
    i = np.arange(6)
    want = [
        data[(i * step + offset) // by % 40],
        data[(i * step + offset) % by],
        data[(offset - i * step) % by + 1],
        data[np.maximum((offset - i * step) // by, -20) + 20],
    ]
    same(expected(dag, [data]), want, "the interpreter")
    for what, got in results(dag, [data], devices=False):
        same(got, want, what)


@pytest.mark.fast("<lambda>0")
@pytest.mark.parametrize(
    "index",
    [
        lambda i, j: i // -3 * 2**30,
        lambda i, j: i // (j - 3) * 2**40,
        lambda i, j: i % -3 * 2**40,
        lambda i, j: E.ceildiv(i, j - 3) * 2**40,
        lambda i, j: E.ceildiv(i + (2**31 - 12), 7),
        lambda i, j: (i - 5) % (2**31 - 1),
        lambda i, j: (i * 2**29 - 2**30) + (j * 2**29 - 2**30),
    ],
)
def test_arithmetic_on_axes_that_leaves_32_bits_does_so_on_every_backend(
    index: Callable[[Expr, Expr], Expr],
) -> None:
    """Where an operation has no known bounds, too, or only a step on the way to its result is large."""
    x = te.placeholder((11, 7), "int64", name="x")
    dag = te.dag([x, te.compute((11, 7), lambda i, j: te.cast(index(i, j), "int64") + x[i, j], "y")])
    data = [np.zeros((11, 7), np.int64)]
    check(dag, data, expected(dag, data))
