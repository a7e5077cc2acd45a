"""bfloat16, float8, int8, uint8 and bool: loaded, stored, cast, compared and selected, on every back end.

float16, which has conversions of the processor's own, has tests of its own (test_float16.py).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from grid_cases import Case, need_cxx, program, sampled
from helpers import check_compiled, host
from needs import imported, missing

from autotune.backends.drivers import opencl
from autotune.backends.drivers.object import DeviceObject
from autotune.codegen.grid_code import grid_code
from autotune.codegen.llvm.compile import assembly
from autotune.codegen.llvm.emit import emit
from autotune.codegen.simt import emulator
from autotune.codegen.simt.opencl import generate
from autotune.targets import from_name
from schedules import conversions, te
from schedules import expr as E
from schedules.dtypes import DTYPES, STORED_FLOATS
from schedules.errors import WorkloadError
from schedules.expr_json import from_json, to_json
from schedules.ir.interp import run
from schedules.passes.lower import lower
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG
from schedules.te.evaluator import BlockEvaluator, evaluate

FLOATS = ("bfloat16", "float8_e4m3fn", "float8_e5m2")
STORED = (*FLOATS, "int8", "uint8", "bool")


def every(dtype: str) -> np.ndarray:
    """Every value, in no order."""
    row = DTYPES[dtype]
    if dtype == "bool":
        return np.array([True, False, False, True, True] * 13)
    bits = np.arange(1 << 8 * row.itemsize, dtype=f"u{row.itemsize}")
    return np.random.default_rng(0).permutation(bits).view(row.numpy)


def near_bfloat16() -> np.ndarray:
    """Of every bfloat16 the float32, the ties between neighbours, and the numbers next to both. Then what
    conversions get wrong: the largest numbers, and NaN whose payload lies in the lower half."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    bits = np.concatenate([upper + np.uint32(d) for d in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)])
    traps = [0x3F808000, 0x3F818000, 0x7F7F7FFF, 0x7F7FFFFF, 0x7F800001, 0xFF800001, 0x007FFFFF]
    return np.concatenate([bits, np.uint32(traps)]).astype(np.uint32).view(np.float32)


def near_float8(dtype: str) -> np.ndarray:
    """Of every number the float32, the ties between neighbours, and the numbers next to both. Then every
    bfloat16, and float32 of random bits."""
    every = np.arange(256, dtype=np.uint8).view(DTYPES[dtype].numpy).astype(np.float64)
    finite = np.sort(every[np.isfinite(every)])
    gap = finite[-1] - finite[-2]  # beyond the largest, as far as a next number would be
    ties = np.append((finite[1:] + finite[:-1]) / 2, [finite[-1] + gap / 2, -finite[-1] - gap / 2, 1e30])
    x = np.concatenate([finite, ties]).astype(np.float32)
    up, down = np.nextafter(x, np.float32(np.inf)), np.nextafter(x, np.float32(-np.inf))
    upper = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    drawn = np.random.default_rng(0).integers(0, 1 << 32, 1 << 14, np.uint32).view(np.float32)
    return np.concatenate([x, up, down, upper, drawn])


def numbers(dtype: str) -> np.ndarray:
    """What casts to a dtype are tried on."""
    if dtype == "bfloat16":
        return near_bfloat16()
    if dtype in FLOATS:
        return near_float8(dtype)
    near = np.arange(-700, 700, dtype=np.int32)
    return np.append(near, np.int32([2**31 - 1, -(2**31), 1 << 16, -(1 << 16), 128 << 8])).astype(np.int32)


def of(f: Callable[..., Any], *inputs: np.ndarray, into: tuple[int, ...] | None = None) -> ComputeDAG:
    """y[i] = f(i, x0, x1, …)."""
    xs = [te.placeholder(x.shape, x.dtype.name, f"x{n}") for n, x in enumerate(inputs)]
    return te.dag([*xs, te.compute(into or inputs[0].shape, lambda i: f(i, *xs), "y")])


def cases() -> dict[str, Case]:
    out: dict[str, Case] = {}

    def add(name: str, f: Callable[..., Any], want: np.ndarray, *inputs: np.ndarray) -> None:
        out[name] = Case(of(f, *inputs, into=want.shape), inputs, (want,))

    with np.errstate(all="ignore"):
        for d in STORED:
            x, wide, row = every(d), numbers(d), DTYPES[d]
            add(f"{d} widened", lambda i, x: te.cast(x[i], row.computed), x.astype(row.computed), x)  # noqa: B023
            add(f"{d} made", lambda i, x: te.cast(x[i], d), wide.astype(row.numpy), wide)  # noqa: B023
            n = len(x)
            add(f"{d} turned", lambda i, x: x[n - 1 - i], x[::-1].copy(), x)  # noqa: B023
            add(f"{d} in steps", lambda i, x: x[2 * i], x[: 2 * (n // 2) : 2].copy(), x)
            add(f"{d} repeated", lambda i, x: x[i // 5], np.repeat(x, 5)[:n].copy(), x)
            add(
                f"{d} padded",
                lambda i, x: te.select(te.all(i >= 3, i < n - 4), x[te.maximum(i - 3, 0)], 0),  # noqa: B023
                np.concatenate([np.zeros(3, row.numpy), x[: n - 7], np.zeros(4, row.numpy)]), x,
            )  # fmt: skip
            other = np.roll(x, 7)
            add(f"{d} less", lambda i, x, y: x[i] < y[i], x < other, x, other)
            add(f"{d} equal", lambda i, x, y: te.equal(x[i], y[i]), x == other, x, other)
            add(f"{d} chosen", lambda i, x, y: te.select(x[i] <= y[i], y[i], x[i]),
                np.where(x <= other, other, x), x, other)  # fmt: skip
            add(f"{d} to float64", lambda i, x: te.cast(x[i], "float64"), x.astype(np.float64), x)
            whole = np.where(np.isfinite(x.astype(np.float64)), x.astype(np.float64), 0)
            f32 = np.clip(whole, -(2.0**31), 2.0**31 - 129)
            add(f"{d} to int64", lambda i, x: te.cast(te.select(te.abs(te.cast(x[i], "float32")) < 2e9,
                te.cast(x[i], "float32"), 0.0), "int64"),
                np.where(np.abs(f32) < 2e9, f32, 0).astype(np.int64), x)  # fmt: skip
        a, b = every("int8"), np.roll(every("int8"), 100)
        add("int8 sums", lambda i, a, b: a[i] + b[i], a.astype(np.int32) + b, a, b)
        add("int8 products wrap", lambda i, a, b: te.cast(a[i] * b[i], "int8"),
            (a.astype(np.int32) * b).astype(np.int8), a, b)  # fmt: skip
        u = every("uint8")
        add("int8 from uint8", lambda i, x: te.cast(x[i], "int8"), u.view(np.int8), u)
        m, k = every("bool"), np.roll(every("bool"), 1)
        add("bool and", lambda i, m, k: te.all(m[i], k[i]), m & k, m, k)
        add("bool or not", lambda i, m, k: te.any(m[i], te.logical_not(k[i])), m | ~k, m, k)
        add("bool counts", lambda i, m, k: m[i] + k[i] * 2, m.astype(np.int32) + k + k, m, k)
        add("bool of a float", lambda i, x: te.cast(x[i], "bool"),
            np.array([True, False, False, True] * 9), np.float32([0.5, 0.0, -0.0, np.nan] * 9))  # fmt: skip
        v = np.arange(65, dtype=np.float32)
        add("bool chooses", lambda i, m, x: te.select(m[i], x[i], 1.5), np.where(m, v, np.float32(1.5)), m, v)
    return out


CASES = cases()


# By hand: what IEEE 754 and the OCP's specification of 8-bit floats say of them.
E4M3FN = [(0x00, 0.0), (0x01, 2.0**-9), (0x07, 7 * 2.0**-9), (0x08, 2.0**-6), (0x38, 1.0), (0x7E, 448.0),
          (0x80, -0.0), (0xB9, -1.125), (0xFE, -448.0), (0x7F, math.nan), (0xFF, math.nan)]  # fmt: skip
E5M2 = [(0x00, 0.0), (0x01, 2.0**-16), (0x03, 3 * 2.0**-16), (0x04, 2.0**-14), (0x3C, 1.0), (0x7B, 57344.0),
        (0x7C, math.inf), (0x80, -0.0), (0xBD, -1.25), (0xFB, -57344.0), (0xFC, -math.inf), (0x7D, math.nan),
        (0x7F, math.nan), (0xFE, math.nan)]  # fmt: skip
# Between two numbers the even one; what becomes of numbers beyond the largest.
ROUNDED = {
    "float8_e4m3fn": [(1.0625, 1.0), (1.1875, 1.25), (2.0**-10, 0.0), (3 * 2.0**-10, 2.0**-8), (464.0, 448.0),
                      (464.1, math.nan), (-1e9, math.nan), (math.inf, math.nan), (-(2.0**-11), -0.0)],
    "float8_e5m2": [(1.125, 1.0), (1.375, 1.5), (2.0**-17, 0.0), (3 * 2.0**-17, 2.0**-15),
                    (61439.0, 57344.0), (61440.0, math.inf), (-1e9, -math.inf), (-(2.0**-18), -0.0)],
}  # fmt: skip


@pytest.mark.parametrize(("dtype", "table"), [("float8_e4m3fn", E4M3FN), ("float8_e5m2", E5M2)])
def test_a_float8_is_what_its_specification_says(dtype: str, table: list[tuple[int, float]]) -> None:
    bits, numbers = np.array([b for b, _ in table], np.uint8), np.float32([v for _, v in table])
    x = bits.view(DTYPES[dtype].numpy)
    equal(evaluate(of(lambda i, x: te.cast(x[i], "float32"), x), [x])[0], numbers)
    before, after = (np.float32(v) for v in zip(*ROUNDED[dtype], strict=True))
    made = of(lambda i, x: te.cast(te.cast(x[i], dtype), "float32"), before)
    equal(evaluate(made, [before])[0], after)
    s = Schedule(made)
    check_compiled(made, s.trace, host(), (before,), (after,))


@pytest.mark.parametrize("dtype", STORED_FLOATS)
def test_the_expressions_of_a_row_are_what_its_library_does(dtype: str) -> None:
    def value(e: E.Expr, x: np.ndarray) -> np.ndarray:
        return BlockEvaluator("y", {}, {".x": x}).value(e)

    x, near = every(dtype), near_bfloat16() if dtype.endswith("16") else near_float8(dtype)
    with np.errstate(all="ignore"):
        equal(value(conversions.widened(dtype), x), x.astype(np.float32))
        equal(value(conversions.narrowed(dtype), near), near.astype(DTYPES[dtype].numpy))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_torch_rounds_to_the_same_up_to_the_largest(dtype: str) -> None:
    """Beyond it torch has the largest number of a dtype that has no infinity."""
    torch = imported("torch")
    near = near_float8(dtype)
    near = near[np.abs(near) <= (464.0 if dtype == "float8_e4m3fn" else np.inf)]
    got = evaluate(of(lambda i, x: te.cast(x[i], dtype), near), [near])[0]
    want = torch.from_numpy(near).to(getattr(torch, dtype)).view(torch.uint8).numpy().view(got.dtype)
    equal(got, want)


def test_bits_are_in_no_file() -> None:
    with pytest.raises(TypeError, match="not an expression"):
        to_json(conversions.widened("bfloat16"))
    with pytest.raises(ValueError, match="unknown expression tag"):
        from_json(["bits_as_int32", 1])


def test_no_infinity_is_made_of_a_dtype_without() -> None:
    x = te.placeholder((4,), "float8_e4m3fn", "x")
    with pytest.raises(WorkloadError, match=r"has no infinity; use te.min_value\(\"float8_e4m3fn\"\)"):
        te.compute((5,), lambda i: te.select(i < 4, x[te.minimum(i, 3)], -te.inf), "y")
    with pytest.raises(WorkloadError, match=r"its end is te.max_value"):
        te.const(te.inf, "float8_e4m3fn")


def equal(got: np.ndarray, want: np.ndarray, name: str = "") -> None:
    """Bit for bit, the sign of 0 too; any NaN equals any NaN."""
    assert got.dtype == want.dtype
    bits = f"u{want.itemsize}"
    same = got.view(bits) == want.view(bits)
    if E.is_float(got.dtype.name):
        with np.errstate(invalid="ignore"):  # ml_dtypes warns of NaN that signals
            same |= np.isnan(got) & np.isnan(want)
    assert same.all(), (name, got[~same][:5], want[~same][:5], np.flatnonzero(~same)[:5])


@pytest.mark.parametrize("name", CASES)
def test_the_reference_does_what_numpy_does(name: str) -> None:
    c = CASES[name]
    equal(evaluate(c.dag, c.inputs)[0], c.expected[0])


@pytest.mark.fast("int8 *", "uint8 *", "bool *", "bfloat16 made")
@pytest.mark.parametrize("name", CASES)
def test_the_interpreter_does_what_numpy_does(name: str) -> None:
    c = CASES[name]
    if len(c.inputs[0]) > 1 << 16:  # slow: the traps, and one in ten of the others
        some = np.concatenate([np.arange(0, len(c.inputs[0]), 10), np.arange(-7, 0)])
        x, y = c.inputs[0][some], c.expected[0][some]
        c = Case(of(lambda i, x: te.cast(x[i], y.dtype.name), x), (x,), (y,))
    outputs = c.poisoned()
    run(Schedule(c.dag).nest, dict(zip([t.name for t in c.dag.params], (*c.inputs, *outputs), strict=True)))
    equal(outputs[0], c.expected[0])


@pytest.mark.fast("*-16")
@pytest.mark.parametrize("lanes", [1, 16, 11])
@pytest.mark.parametrize("name", CASES)
def test_code_for_cpus_does_what_numpy_does(name: str, lanes: int) -> None:
    """In scalars, in whole vectors, and behind masks."""
    c = CASES[name]
    s = Schedule(c.dag)
    _, inner = s.split(s.loops("y")[-1], [None, lanes])
    s.vectorize(inner)
    check_compiled(c.dag, s.trace, host(), c.inputs, c.expected)


@pytest.mark.parametrize("lanes", [8, 24, 32, 80])
def test_vectors_of_any_size_are_rounded_alike(lanes: int) -> None:
    """By one instruction, by the one of two registers, by several, and in a part of one."""
    c = CASES["bfloat16 made"]
    s = Schedule(c.dag)
    _, inner = s.split(s.loops("y")[-1], [None, lanes])
    s.vectorize(inner)
    check_compiled(c.dag, s.trace, host(), c.inputs, c.expected)


@pytest.mark.parametrize(
    ("lanes", "instruction"),
    [(4, None), (8, "vcvtneps2bf16"), (16, "vcvtneps2bf16"), (24, "vcvtneps2bf16"), (32, "vcvtne2ps2bf16")],
)
def test_a_processor_rounds_where_it_can(lanes: int, instruction: str | None) -> None:
    x = te.placeholder((960,), "float32", "x")
    dag = te.dag([x, te.compute((960,), lambda i: te.cast(x[i], "bfloat16"), "y")])
    s = Schedule(dag)
    _, inner = s.split(s.loops("y")[-1], [None, lanes])
    s.vectorize(inner)
    func = lower(s.nest)
    plain = from_name("x86-64-v4")
    for more, has in ((("avx512bf16",), True), ((), False)):
        target = replace(plain, features=(*plain.features, *more))
        found = set(re.findall(r"vcvtne\w+|vfpclassps", assembly(emit(func, target).text, target)))
        assert found == ({instruction, "vfpclassps"} if has and instruction else set())


@pytest.mark.fast("bool")
@pytest.mark.parametrize("dtype", STORED)
def test_code_for_gpus_does_what_numpy_does(dtype: str) -> None:
    """All cases of a dtype in one object: starting a compiler takes as long as compiling some of them."""
    need_cxx()
    made = [
        (name, program(CASES[name].dag, trace))
        for name in CASES
        if name.startswith(f"{dtype} ")
        for _, trace in sampled(CASES[name].dag, 1)
    ]
    obj = emulator.build(*(p for _, p in made))
    for n, (name, p) in enumerate(made):
        c = CASES[name]
        outputs = c.poisoned()
        assert emulator.run(obj, p, [*c.inputs, *outputs], n) is None, name
        equal(outputs[0], c.expected[0], name)


@pytest.mark.fast("bfloat16 made", "int8 *")
@pytest.mark.parametrize("name", CASES)
def test_opencl_does_what_numpy_does(name: str) -> None:
    if opencl.context() is None:
        missing("opencl")
    c = CASES[name]
    p = program(c.dag, next(sampled(c.dag, 1))[1])
    loaded = DeviceObject(grid_code(p, "opencl", generate(p)).to_bytes())
    outputs = c.poisoned()
    loaded.run([x.ctypes.data for x in (*c.inputs, *outputs)])
    loaded.close()
    equal(outputs[0], c.expected[0])
