"""bfloat16, int8, uint8 and bool: loaded, stored, cast, compared and selected, on every back end.

float16, which has conversions of the processor's own, has tests of its own (test_float16.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from grid_cases import Case, need_cxx, program, sampled
from helpers import check_compiled, host
from needs import missing

from autotune.backends.drivers import opencl
from autotune.backends.drivers.object import DeviceObject
from autotune.codegen.grid_code import grid_code
from autotune.codegen.simt import emulator
from autotune.codegen.simt.opencl import generate
from schedules import expr as E
from schedules import te
from schedules.dtypes import DTYPES
from schedules.ir.interp import run
from schedules.schedule import Schedule
from schedules.te.compute_dag import ComputeDAG
from schedules.te.evaluator import evaluate

STORED = ("bfloat16", "int8", "uint8", "bool")
BF16 = DTYPES["bfloat16"].numpy


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


def numbers(dtype: str) -> np.ndarray:
    """What casts to a dtype are tried on."""
    if dtype == "bfloat16":
        return near_bfloat16()
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


@pytest.mark.fast("uint8", "bool")
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
