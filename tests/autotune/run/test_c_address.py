"""Kernels as functions of C: what `Kernel.address` is, called by ctypes, numba, cffi and Cython."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from children import python_path
from kernel_cases import AROUND_A_FORK, K, M, N, add_kernel, product, that_packs
from needs import imported, missing

import autotune as at
from autotune import te
from autotune.backends import parse
from autotune.codegen.simt import cxx
from autotune.run.dynamic_kernel import DynamicKernel
from autotune.run.dynamic_workload import as_dynamic
from autotune.run.kernels import default_kernel
from autotune.run.workloads import as_workload

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "addresses.md"


def called(kernel: at.Kernel, *given: Any) -> int:
    """The status of a call of the address: arrays, then sizes."""
    types = [ctypes.c_void_p if isinstance(x, np.ndarray) else ctypes.c_int64 for x in given]
    f = ctypes.CFUNCTYPE(ctypes.c_int, *types)(kernel.address)
    return f(*(x.ctypes.data if isinstance(x, np.ndarray) else x for x in given))


def whole(*shape: int, dtype: str = "float32", seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-4, 5, shape).astype(dtype)


@pytest.mark.usefixtures("two_cpus")
def test_calls_from_several_threads_are_right() -> None:
    kernel = product(2)
    assert kernel.code.scratch_bytes
    a, b = whole(M, K), whole(K, N, seed=1)
    expected = kernel(a, b)

    def call(_: int) -> bool:
        mine = np.full((M, N), 99, np.float32)
        return called(kernel, a, b, mine) == 0 and np.array_equal(mine, expected)

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(call, range(60)))


def test_a_kernel_has_one_address_whoever_asks() -> None:
    kernel, start = add_kernel(), threading.Barrier(4)

    def ask(_: int) -> int:
        start.wait()
        return kernel.address

    with ThreadPoolExecutor(4) as pool:
        assert len({*pool.map(ask, range(4)), kernel.address}) == 1


def test_it_is_another_way_into_the_same_code() -> None:
    """No memory for scratch is told, and scratch that is kept is that of other calls."""
    a, b, c = whole(7, 5), whole(7, 5, seed=1), np.zeros((7, 5), np.float32)
    assert called(add_kernel(through_scratch=1, scratch_bytes=1 << 60), a, b, c) == 2
    assert not c.any()
    assert called(add_kernel(through_scratch=1), a, b, c) == 0
    np.testing.assert_array_equal(c, a + b)


def test_types_of_several_outputs_numbers_and_odd_names() -> None:
    x, flag = te.placeholder((6,), "float16", "int"), te.placeholder((), "bool", "main")
    k = te.placeholder((), "int64", "k")
    y = te.compute((6,), lambda i: te.cast(te.if_then_else(flag[()], x[i] * 2.0, x[i]), "float16"), "y")
    z = te.compute((6,), lambda i: te.cast(k[()] + te.cast(i, "int64"), "int64"), "z")
    kernel = at.build(at.Schedule([x, flag, k, y, z]), threads=1)
    assert kernel.c_type == (
        "int (*)(const uint16_t *x0_int, const uint8_t *x1_main, const int64_t *k, uint16_t *y, int64_t *z)"
    )
    given, out = whole(6, dtype="float16"), np.empty(6, np.float16)
    places = np.empty(6, np.int64)
    assert called(kernel, given, np.array(True), np.array(40), out, places) == 0
    np.testing.assert_array_equal(out, 2 * given)
    np.testing.assert_array_equal(places, 40 + np.arange(6))


def test_an_array_that_lies_as_it_was_tuned() -> None:
    """Its pointer is to its first element, which is its last in memory."""
    a = te.placeholder((7, 5), "float32", "a", strides=(-5, 1))
    b = te.compute((7, 5), lambda i, j: a[i, j] + 1.0, "b")
    kernel, x, out = at.build(at.Schedule([a, b]), threads=1), whole(7, 5), np.empty((7, 5), np.float32)
    assert called(kernel, x[::-1], out) == 0
    np.testing.assert_array_equal(out, x[::-1] + 1)


def open_product() -> at.OpenKernel:
    a = te.placeholder((at.dim(3, 40, "m", open=True), 5), "float32", "a")
    b, r = te.placeholder((5, 16), "float32", "b"), te.reduce_axis(5, "r")
    c = te.compute((a.shape[0], 16), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "c")
    kernel = at.build(at.Schedule([a, b, c]), threads=1)
    assert isinstance(kernel, at.OpenKernel)
    return kernel


@pytest.mark.parametrize("m", [3, 17, 40])
def test_a_call_tells_an_open_size(m: int) -> None:
    kernel = open_product()
    assert kernel.c_type == "int (*)(const float *a, const float *b, float *c, int64_t m)"
    a, b = whole(m, 5), whole(5, 16, seed=1)
    out = np.full((40, 16), 99, np.float32)
    assert called(kernel, a, b, out, m) == 0
    np.testing.assert_array_equal(out[:m], a @ b)
    assert (out[m:] == 99).all()
    one = kernel.at(m=m)  # whose function takes no size
    assert one.c_type == "int (*)(const float *a, const float *b, float *c)" and one.address != kernel.address
    out[...] = 99
    assert called(one, a, b, out) == 0
    np.testing.assert_array_equal(out[:m], a @ b)
    assert (out[m:] == 99).all()


@pytest.mark.parametrize("m", [2, 41, -1, 0, -(1 << 63)])
def test_a_size_outside_of_its_range_computes_nothing(m: int) -> None:
    out = np.full((40, 16), 99, np.float32)
    assert called(open_product(), whole(40, 5), whole(5, 16), out, m) == 1
    assert (out == 99).all()


def test_an_output_that_is_an_input() -> None:
    """With vectors: what was not made for it would read what it overwrote."""
    n = 37
    x = te.placeholder((n,), "float64", "x")
    y = te.compute((n,), lambda i: x[i] + x[te.minimum(i + 1, n - 1)], "y")
    s = at.Schedule([x, y])
    s.vectorize(s.split("y_i", 8, tail="shift")[1])
    kernel, given = at.build(s, threads=1, in_place={"y": "x"}), whole(n, dtype="float64")
    expected, apart = kernel(given), np.empty(n)
    assert called(kernel, given, apart) == 0
    np.testing.assert_array_equal(apart, expected)
    assert called(kernel, given, given) == 0
    np.testing.assert_array_equal(given, expected)


def test_weights_are_as_they_are_packed() -> None:
    kernel = that_packs()
    a, b, out = whole(5, 7), whole(7, 40, seed=1), np.empty((5, 40), np.float32)
    packed = kernel.pack_weights(b)
    assert packed is not b and called(kernel, a, packed, out) == 0
    np.testing.assert_array_equal(out, a @ b)


def test_a_kernel_of_many_sizes_names_that_of_one() -> None:
    sizes = as_dynamic("add", {"n": at.dim(8, 16, open=False)})
    kernel = DynamicKernel(sizes, lambda w: default_kernel(w, parse("cpu", 1)), ())
    for ask in (lambda: kernel.address, lambda: kernel.c_type):
        with pytest.raises(at.ArgumentError, match=r"is many kernels; .*kernel\.at\(n=16\)$"):
            ask()
    assert kernel.at(n=9).address


def test_a_kernel_of_a_device_has_none() -> None:
    if cxx.command() is None:
        missing("c++")
    kernel = default_kernel(as_workload("add", {"n": 64}), parse("cuda-emulator"))
    for ask in (lambda: kernel.address, lambda: kernel.c_type):
        with pytest.raises(at.ArgumentError, match="add runs on a device, .* load one for the CPU$"):
            ask()


AFTER_A_FORK = f"""
import ctypes, os
import numpy as np
import autotune as at
x = at.te.placeholder((64,), "float32", "x")
s = at.Schedule([x, at.te.compute((64,), lambda i: x[i] * 2.0, "y")])
s.parallel("y_i")
kernel = at.build(s, threads=2)
f = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)(kernel.address)
a, out = np.ones(64, "f4"), np.zeros(64, "f4")
def call():
    out[...] = 0
    assert f(a.ctypes.data, out.ctypes.data) == 0 and (out == 2).all()
{AROUND_A_FORK}"""


@pytest.mark.slow
@pytest.mark.usefixtures("two_cpus")
def test_calls_after_a_fork() -> None:
    env = {**os.environ, "PYTHONPATH": python_path(__file__)}
    command = [sys.executable, "-W", "ignore", "-c", AFTER_A_FORK]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


# -- what others call it with ------------------------------------------------------------------


def blocks() -> list[tuple[str, str]]:
    """(what stands before it, code) of each marked block of the page."""
    return re.findall(r"<!-- (.+?) -->\n```\w+\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:no tuned kernel of")
@pytest.mark.parametrize("library", ["numba", "cffi", "Cython"])
def test_the_page_runs_with_a_library(library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imported(library)
    monkeypatch.setenv("AUTOTUNE_DB", str(tmp_path / "tuning.db"))
    found = dict(reversed(blocks()))  # the first of each
    if library == "Cython":
        compile_pyx(tmp_path, found["products.pyx"])
        monkeypatch.syspath_prepend(tmp_path)
    names: dict[str, Any] = {}
    for code in (found["runs"], found[f"runs with {library}"]):
        exec(compile(code, PAGE.name, "exec"), names)
    monkeypatch.delitem(sys.modules, "products", raising=False)


def compile_pyx(folder: Path, code: str) -> None:
    if cxx.command(("cc", "gcc", "clang"), "cc") is None:
        missing("cc")
    imported("setuptools")
    (folder / "products.pyx").write_text(code)
    command = [sys.executable, "-m", "Cython.Build.Cythonize", "-i", "products.pyx"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
