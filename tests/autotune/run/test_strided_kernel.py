"""Kernels on views: what they are compiled for is taken as it lies, without a copy, and all else is refused
with both strides and the remedy."""

from __future__ import annotations

import copy
import ctypes
import json
import pickle
import subprocess
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import ml_dtypes
import needs
import numpy as np
import pytest
from cli_runner import run
from grid_cases import need_cxx
from log_filler import fill_workloads

import autotune as at
from autotune import te
from autotune.backends import parse
from autotune.codegen.simt import cxx
from autotune.measure.compare.bench import arrays_for
from autotune.measure.compare.peers import PeerError
from autotune.run import new_arrays, torch_calls
from autotune.run.kernel import Kernel
from autotune.run.kernels import kernel_of
from autotune.run.workloads import as_workload
from schedules.space import derive
from schedules.strides import MemoryLayout

torch = needs.imported("torch")
SHAPE = (6, 10)


@cache
def kernel_with(
    strides: tuple[tuple[str, tuple[int, ...]], ...], dtype: str = "float32", target: str = "cpu"
) -> Kernel:
    """z = x + 2 y."""
    x, y = (te.placeholder(SHAPE, dtype, n) for n in "xy")
    one = te.cast(te.const(2, "float32"), "float32")
    made = te.compute(SHAPE, lambda i, j: te.cast(te.cast(x[i, j], "float32") + one * y[i, j], dtype), "z")
    dag = te.with_strides(te.dag([x, y, made]), dict(strides))
    return at.build(at.Schedule(dag), target=target, threads=1)


def kernel(**strides: tuple[int, ...]) -> Kernel:
    return kernel_with(tuple(strides.items()))


def numbers(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(-9, 10, shape).astype("float32")


# Views of numpy of SHAPE, by name.
VIEWS = {
    "rows": lambda: numbers((6, 32))[:, :10],
    "a slice of columns": lambda: numbers((6, 32))[:, 5:15],
    "every second column": lambda: numbers((6, 20))[:, ::2],
    "transposed": lambda: numbers((10, 6)).T,
    "backwards": lambda: numbers((6, 10))[::-1, ::-1],
    "rows backwards": lambda: numbers((6, 10))[::-1],
    "one row": lambda: np.broadcast_to(numbers((10,)), SHAPE),
    "one number": lambda: np.broadcast_to(numbers(()), SHAPE),
    "windows": lambda: np.lib.stride_tricks.sliding_window_view(numbers((15,)), 10),
    "a part of four dimensions": lambda: numbers((6, 3, 2, 10))[:, 1, 1],
}


def steps(x: np.ndarray) -> tuple[int, ...]:
    return tuple(s // x.itemsize for s in x.strides)


@pytest.mark.parametrize("name", VIEWS)
def test_views_of_numpy_are_taken_as_they_lie(name: str) -> None:
    x, y = VIEWS[name](), numbers(SHAPE, 1)
    k = kernel(x=steps(x))
    out = np.empty(SHAPE, "float32")
    assert k._fast(x, y, out) == 0, "in machine code"
    assert np.array_equal(out, x + 2 * y) and np.array_equal(k(x, y), out)
    k._slow((x, y), (out := np.empty(SHAPE, "float32"),))
    assert np.array_equal(out, x + 2 * y)


@pytest.mark.parametrize(
    ("name", "view"),
    {
        "t()": lambda: torch.arange(60.0).reshape(10, 6).t(),
        "a slice": lambda: torch.arange(240.0).reshape(6, 40)[:, 3:13],
        "q of q, k, v": lambda: torch.arange(180.0).reshape(6, 3, 10)[:, 0],
        "expand": lambda: torch.arange(10.0).expand(6, 10),
        "unfold": lambda: torch.arange(15.0).unfold(0, 10, 1),
    }.items(),
)
def test_views_of_torch_are_taken_as_they_lie(name: str, view: Any) -> None:
    x, y = view(), torch.from_numpy(numbers(SHAPE, 1))
    k = kernel(x=x.stride())
    made = k(x, y)
    assert type(made) is torch.Tensor and torch.equal(made, x + 2 * y) and made.is_contiguous()
    assert k._torch.fast(x, y, made) == 0, "in machine code"


def test_q_k_v_of_one_array() -> None:
    qkv = torch.from_numpy(numbers((6, 3, 10)))
    q, k, _ = qkv.unbind(1)
    f = kernel(x=(30, 1), y=(30, 1))
    assert torch.equal(f(q, k), q + 2 * k) and torch.equal(f(q, q), 3 * q)


def test_outputs_lie_as_they_are_compiled_and_their_gaps_stay() -> None:
    x, y = numbers(SHAPE), numbers(SHAPE, 1)
    k = kernel(z=(16, 1))
    made = k(x, y)
    assert steps(made) == (16, 1) and np.array_equal(made, x + 2 * y)
    memory = np.full((6, 16), 7, "float32")
    assert k(x, y, out=memory[:, :10]) is not None
    assert np.array_equal(memory[:, :10], x + 2 * y) and (memory[:, 10:] == 7).all()
    t = k(torch.from_numpy(x), torch.from_numpy(y))
    assert t.stride() == (16, 1) and np.array_equal(t.numpy(), x + 2 * y)
    turned = kernel(z=(1, 6))
    assert steps(turned(x, y)) == (1, 6) and np.array_equal(turned(x, y), x + 2 * y)


def test_large_outputs_lie_so_too() -> None:
    n = new_arrays.LARGE // 4 // 16
    lies = MemoryLayout((n, 8), (24, 1))
    made = new_arrays.maker_of(lies, np.dtype("float32"))()
    assert made.shape == (n, 8) and steps(made) == (24, 1) and not made.flags.owndata
    t = torch_calls._maker(torch, lies, torch.float32)()
    assert t.shape == (n, 8) and t.stride() == (24, 1)
    made[...] = 1
    t.fill_(1)


REFUSED = {
    "contiguous": (
        {"x": (1, 6)},
        lambda x, y: (x, y),
        r"input 'x' has strides \(10, 1\) in elements, but the kernel is compiled for \(1, 6\): give an arr"
        "ay that lies so, or tune and load the kernel without strides of 'x'",
    ),
    "others": (
        {"x": (1, 6)},
        lambda x, y: (np.zeros((6, 12), "f4")[:, :10], y),
        r"'x' has strides \(12, 1\) in elements.* for \(1, 6\): .* tune and load the kernel with "
        r"strides=\{'x': \(12, 1\)\}",
    ),
    "none": (
        {"x": (1, 6)},
        lambda x, y: (x.T.copy().T, y.T.copy().T),
        r"input 'y' is not C-contiguous: its strides are \(1, 6\) in elements, but the kernel is compiled "
        r"for \(10, 1\): give np.ascontiguousarray of it, or tune and load .* strides=\{'y': \(1, 6\)\}",
    ),
    "bytes": (
        {"x": (1, 6)},
        lambda x, y: (np.zeros((6, 10), "i1,f4")["f1"], y),
        r"input 'x' has strides \(50, 5\) in bytes, but the kernel is compiled for \(1, 6\): give an array",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_other_strides_are_refused(case: str, library: str) -> None:
    strides, change, says = REFUSED[case]
    x, y = change(numbers(SHAPE), numbers(SHAPE))
    if library == "torch":
        if case == "bytes":
            pytest.skip("torch has no such strides")
        x, y = torch.from_numpy(x), torch.from_numpy(y)
        says = says.replace("np.ascontiguousarray of it", r"its \.contiguous\(\)")
    with pytest.raises(at.ArgumentError, match=says):
        kernel(**strides)(x, y)


def test_other_strides_of_an_output_are_refused() -> None:
    x = numbers(SHAPE)
    with pytest.raises(at.ArgumentError, match=r"output 'z' has strides \(10, 1\).* compiled for \(16, 1\)"):
        kernel(z=(16, 1))(x, x, out=np.empty(SHAPE, "f4"))
    frozen = np.empty((6, 16), "f4")[:, :10]
    frozen.flags.writeable = False
    with pytest.raises(at.ArgumentError, match="output 'z' is read-only"):
        kernel(z=(16, 1))(x, x, out=frozen)


def test_a_view_that_begins_between_elements_is_refused() -> None:
    raw = np.zeros(4 * 60 + 1, np.uint8)[1:].view("f4")
    with pytest.raises(at.ArgumentError, match="input 'x' is not aligned to 4 bytes"):
        kernel(x=(1, 6))(raw.reshape(10, 6).T, numbers(SHAPE))


def test_strides_of_an_extent_of_one_are_arbitrary() -> None:
    x = te.placeholder((3, 1, 4), name="x", strides=(8, 99, 1))
    k = at.build(at.Schedule([x, te.compute((3, 1, 4), lambda i, j, n: x[i, j, n] + 1.0, "z")]), threads=1)
    memory = numbers((3, 8))
    for step in (0, 4, 5, 1 << 40, -12):
        view = np.lib.stride_tricks.as_strided(memory, (3, 1, 4), (32, step, 4))
        out = np.empty((3, 1, 4), "float32")
        assert k._fast(view, out) == 0 and np.array_equal(out, view + 1)
        assert k._slow((view,), (out,)) == 0
        if step >= 0:
            t = torch.from_numpy(memory).as_strided((3, 1, 4), (8, step, 1))
            assert torch.equal(k(t), t + 1) and k._torch.fast(t, torch.empty(3, 1, 4)) == 0


# -- memory that is shared -------------------------------------------------------------------------


def test_an_output_between_the_rows_of_an_input() -> None:
    """They share no element: this is found, and given to the kernel."""
    memory = np.full((6, 20), 7, "float32")
    memory[:, :10] = numbers(SHAPE)
    x, y, z = memory[:, :10], numbers(SHAPE, 1), memory[:, 10:]
    k, want = kernel(x=(20, 1), z=(20, 1)), x + 2 * y
    assert k(x, y, out=z) is z and np.array_equal(z, want)
    assert k._fast(x, y, z) == 0 and k._fast(z, y, x) == 0, "in machine code"
    memory[:, :10] = numbers(SHAPE)
    given, out = torch.from_numpy(memory)[:, :10], torch.from_numpy(memory)[:, 10:]
    out.zero_()
    assert torch.equal(k(given, torch.from_numpy(y), out=out), torch.from_numpy(want))


@pytest.mark.parametrize("width", [20, 23])
def test_rows_are_between_each_other_where_no_element_is_shared(width: int) -> None:
    """At every distance of two arrays with rows of one distance, forwards and backwards."""
    memory, y = np.zeros(30 * width, "float32"), numbers(SHAPE, 1)
    z = np.lib.stride_tricks.as_strided(memory[10 * width :], SHAPE, (4 * width, 4))
    for step in (width, -width):
        k = kernel(x=(step, 1), z=(width, 1))
        for first in range(2 * width, 20 * width):
            x = np.lib.stride_tricks.as_strided(memory[first:], SHAPE, (4 * step, 4))
            if first + 5 * step >= 0:
                assert k._fast(x, y, z) == int(np.shares_memory(x, z)), first


def test_arrays_that_interleave_in_other_ways() -> None:
    """Rows at another distance, or within each other's gaps: numpy tells."""
    memory = np.zeros((6, 40), "float32")
    x, z, y = memory[:, 0:20:2], memory[:, 1:21:2], numbers(SHAPE, 1)
    x[...] = numbers(SHAPE)
    k, want = kernel(x=(40, 2), z=(40, 2)), x + 2 * y
    assert k._fast(x, y, z) == 1 and k(x, y, out=z) is z and np.array_equal(z, want)


@pytest.mark.parametrize("first", [9, 5, 1])
def test_an_output_that_shares_an_element_is_refused(first: int) -> None:
    memory = np.zeros((6, 20), "float32")
    k = kernel(x=(20, 1), z=(20, 1))
    with pytest.raises(
        at.ArgumentError, match=r"output 'z' shares memory with input 'x': z\[z_i, z_j\] is written bef"
    ):
        k(memory[:, :10], numbers(SHAPE), out=memory[:, first : first + 10])
    for _ in range(2):
        with pytest.raises(at.ArgumentError, match="output 'z' shares memory with input 'x'"):
            x, y = torch.from_numpy(memory)[:, :10], torch.from_numpy(numbers(SHAPE))
            k(x, y, out=torch.from_numpy(memory)[:, 1:11])


def test_memory_before_the_first_element_counts() -> None:
    """What walks backwards has its memory before its pointer."""
    memory = numbers((18, 10))
    k = kernel(x=(-10, 1))
    x, y = memory[6:12][::-1], numbers(SHAPE, 1)
    with pytest.raises(at.ArgumentError, match="output 'z' shares memory with input 'x'"):
        k(x, y, out=memory[6:12])
    want = x + 2 * y
    for first in (1, 11):  # the row that both have is read in the iteration that writes it
        other = memory.copy()
        out = other[first : first + 6]
        assert np.array_equal(k(other[6:12][::-1], y, out=out), want)
    for out in (memory[:6], memory[12:]):  # just beside it
        assert k._fast(x, y, out) == 0 and np.array_equal(out, want)


# -- other libraries and dtypes --------------------------------------------------------------------


def test_floats_that_numpy_has_from_another_library() -> None:
    k = kernel_with((("x", (1, 6)), ("z", (16, 1))), "bfloat16")
    x = torch.arange(60.0).bfloat16().reshape(10, 6).t()
    y = torch.ones(SHAPE, dtype=torch.bfloat16)
    made = k(x, y)
    assert made.stride() == (16, 1) and torch.equal(made, x + 2 * y)
    k._torch = None  # by DLPack
    arrays = [np.arange(60).astype(ml_dtypes.bfloat16).reshape(10, 6).T, np.ones(SHAPE, ml_dtypes.bfloat16)]
    assert np.array_equal(k(*arrays).astype("f4"), made.float().numpy())
    memory = np.zeros((6, 16), ml_dtypes.bfloat16)
    status = k._slow((x, y), (memory[:, :10],))
    assert status == 0 and np.array_equal(memory[:, :10].astype("f4"), made.float().numpy())
    with pytest.raises(at.ArgumentError, match=r"input 'x' has strides \(10, 1\) in elements"):
        k(x.contiguous(), y)


@pytest.mark.slow
def test_torch_compile_takes_views() -> None:
    k = kernel(x=(1, 6), z=(16, 1))
    x, y = torch.arange(60.0).reshape(10, 6), torch.ones(SHAPE)
    f = torch.compile(lambda x, y: k(x.t(), y) * 2, backend="eager", fullgraph=True)
    assert torch.equal(f(x, y), (x.t() + 2 * y) * 2)
    op = at.torch.op(k)
    assert op(x.t(), y).stride() == (16, 1)
    with pytest.raises(Exception, match=r"has strides \(10, 1\) in elements, but the kernel is compiled for"):
        torch.compile(lambda x, y: k(x, y), backend="eager", fullgraph=True)(torch.ones(SHAPE), y)


def test_gradients_of_views_are_row_major() -> None:
    """A kernel of gradients is given them so, and inputs as they lie."""
    forward = kernel(x=(1, 6), z=(16, 1))
    dz, x = te.placeholder(SHAPE, "float32", "dz"), te.placeholder(SHAPE, "float32", "x", strides=(1, 6))
    dx = te.compute(SHAPE, lambda i, j: dz[i, j] + 0.0 * x[i, j], "dx")
    dy = te.compute(SHAPE, lambda i, j: 2.0 * dz[i, j], "dy")
    op = at.torch.op(forward, at.build(at.Schedule([dz, x, dx, dy]), threads=1), "strided_gradient")
    base, y = torch.ones(10, 6, requires_grad=True), torch.ones(SHAPE, requires_grad=True)
    op(base.t(), y).sum().backward()
    assert torch.equal(base.grad, torch.ones(10, 6)) and torch.equal(y.grad, 2 * torch.ones(SHAPE))
    plain = te.placeholder(SHAPE, "float32", "x")
    other = te.compute(SHAPE, lambda i, j: dz[i, j] + 0.0 * plain[i, j], "dx")
    with pytest.raises(at.ArgumentError, match=r"must take.*float32\[6,10;1,6\]"):
        at.torch.op(forward, [at.build(at.Schedule([dz, plain, other]), threads=1), None], "refused_gradient")


def test_kernels_of_gpus_take_views() -> None:
    need_cxx()
    k = kernel_with((("x", (1, 6)), ("z", (16, 1))), target="cuda-emulator")
    x, y = numbers((10, 6)).T, numbers(SHAPE, 1)
    memory = np.full((6, 16), 7, "float32")
    k(x, y, out=memory[:, :10])
    assert np.array_equal(memory[:, :10], x + 2 * y) and (memory[:, 10:] == 7).all()
    assert steps(k(x, y)) == (16, 1)
    with pytest.raises(at.ArgumentError, match=r"input 'x' has strides \(10, 1\)"):
        k(x.copy(), y)


# -- what is told of them --------------------------------------------------------------------------


def test_a_kernel_tells_its_strides() -> None:
    k = kernel(x=(1, 6), z=(16, 1))
    assert "x: float32[6,10;1,6], y: float32[6,10]" in repr(k)
    assert k._loaded.signature == "float32[6,10;1,6] float32[6,10] -> float32[6,10;16,1]"
    assert k.__signature__.return_annotation == "float32[6,10;16,1]"
    assert k.time(repeat=1) > 0
    again = pickle.loads(pickle.dumps(k))
    assert again.workload.digest == k.workload.digest != kernel().workload.digest
    assert copy.copy(k) is k


def test_packed_weights_are_read_as_they_lie() -> None:
    strides = {"b": (1, 7)}
    workload = as_workload("matmul", {"m": 5, "n": 40, "k": 7}, constant_weights=True, strides=strides)
    target = parse("cpu", 1)
    space = derive(workload.dag, target)
    found = 0
    for sketch in range(len(space.sketches)):
        rows = space.sample(sketch, 8, np.random.default_rng(0))
        k = kernel_of(workload, target, space.trace(sketch, rows[space.valid(sketch, rows)][0]))
        found += 1 in k.packed
        a, b = numbers((5, 7)), numbers((40, 7)).T
        assert np.array_equal(k(a, k.pack_weights(b)), a @ b)
        if 1 in k.packed:
            with pytest.raises(at.ArgumentError, match=r"input 'b' has strides \(40, 1\).* for \(1, 7\)"):
                k.pack_weights(b.copy())
    assert found


def test_an_exported_kernel_takes_views(tmp_path: Path) -> None:
    if cxx.command() is None:
        needs.missing("c++")
    k = kernel(x=(-10, 1), y=(1, 6), z=(16, 1))
    files = at.export(k, tmp_path, "views")
    contract = json.loads(files.contract.read_text())["arguments"]
    told = [(a["order"], a.get("strides"), a.get("bytes_before"), a["bytes"]) for a in contract]
    assert told == [
        ("strided", [-10, 1], 200, 240), ("strided", [1, 6], 0, 240), ("strided", [16, 1], 0, 360)
    ]  # fmt: skip
    header = files.header.read_text()
    assert "#define views_z_elements ((size_t)90)" in header and "Where strides are told" in header
    assert "x: float32[6][10], strides -10, 1, 50 elements before the pointer" in header
    x, y, z = numbers(SHAPE)[::-1], numbers((10, 6)).T, np.full((6, 16), 7, "float32")
    library = ctypes.CDLL(files.library)
    assert library.views_run(*(ctypes.c_void_p(a.ctypes.data) for a in (x, y, z))) == 0
    assert np.array_equal(z[:, :10], x + 2 * y) and (z[:, 10:] == 7).all()
    compiler = cxx.command(("cc", "gcc", "clang"), "cc")
    assert compiler is not None
    command = [*compiler, "-std=c99", "-Wall", "-Wextra", "-Werror", "views_example.c", "./views.so"]
    subprocess.run([*command, "-Wl,-rpath,.", "-o", "program"], cwd=tmp_path, check=True)
    said = subprocess.run(["./program"], cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    memory = np.arange(60, dtype="float32") % 7
    want = memory.reshape(SHAPE)[::-1] + 2 * memory.reshape(10, 6).T
    assert said == f"status 0, sum of z {want.sum():.9g}\n"


# -- from where they come --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("strides", "says"),
    [
        ({"q": (1, 8)}, "'q' is no argument; the arguments are a, b, c"),
        ({"c": (0, 1)}, "tensor c: stride 0 of dimension 0: it is written"),
        ({"a": (1,)}, "tensor a: 1 strides for 2 dimensions"),
        ([(1, 8)], "strides: list has no names; give a dictionary, such as"),
        ("a=1x8", "strides: str has no names"),
    ],
)
def test_strides_are_checked_where_they_are_given(strides: Any, says: str) -> None:
    for ask in (at.load, at.best, at.tune, at.explain):
        with pytest.raises(at.WorkloadError, match=says):
            ask("matmul", m=8, n=4, k=2, strides=strides)
    with pytest.raises(at.WorkloadError, match=r"task 1 \(matmul\): .*" + says):
        task = at.ops.workload("matmul", {"m": 8, "n": 4, "k": 2})
        at.tune_suite([task, task], strides=[None, strides])


@pytest.mark.parametrize("strides", [[None], {"a": (1, 8)}, "a"])
def test_a_suite_takes_strides_for_each_task(strides: Any) -> None:
    task = at.ops.workload("matmul", {"m": 8, "n": 4, "k": 2})
    with pytest.raises(at.WorkloadError, match="for 2 tasks; give a list that has a dictionary or None"):
        at.tune_suite([task, task], strides=strides)


def test_a_size_that_varies_may_be_a_stride() -> None:
    from autotune.run.dynamic_workload import as_dynamic

    m = at.dim(1, 8, open=False)
    dynamic = as_dynamic("matmul", {"m": m, "n": 4, "k": 2}, strides={"a": (1, m + 3), "b": None})
    assert dynamic is not None
    assert [dynamic.at((n,)).dag.inputs[0].strides for n in (2, 5)] == [(1, 5), (1, 8)]
    with pytest.raises(at.WorkloadError, match="tensor a: 1 strides for 2 dimensions"):
        as_dynamic("matmul", {"m": m, "n": 4, "k": 2}, strides={"a": 5})  # type: ignore[dict-item]
    with pytest.raises(at.WorkloadError, match="strides: .* is no size of the program"):
        as_dynamic("matmul", {"m": m, "n": 4, "k": 2}, strides={"a": (1, at.dim(2, 3, open=False))})


SIZES = {"m": 6, "n": 10, "k": 4}
STRIDES = {"a": (1, 6), "c": (16, 1)}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A log of a product with these strides, and of the row-major one."""
    db = tmp_path / "t.db"
    some = [as_workload("matmul", SIZES, strides=x) for x in (STRIDES, None)]
    fill_workloads(db, [(w, 1e-4) for w in some])
    return db


def test_load_finds_kernels_by_their_strides(log: Path) -> None:
    a, b = numbers((4, 6)).T, numbers((4, 10))
    for strides in (STRIDES, {**STRIDES, "b": None}, {**STRIDES, "b": [10, 1]}):
        k = at.load("matmul", **SIZES, strides=strides, threads=1, db=log)
        c = k(a, b)
        assert steps(c) == (16, 1) and np.array_equal(c, a @ b)
    plain = at.load("matmul", **SIZES, threads=1, db=log)
    assert np.array_equal(plain(a.copy(), b), a @ b) and plain.workload.digest != k.workload.digest
    assert at.best("matmul", **SIZES, strides=STRIDES, threads=1, db=log).record.time_s == 1e-4
    x, y = te.placeholder((6, 4), name="p", strides=(1, 6)), te.placeholder((4, 10), name="q")
    r = te.reduce_axis(4)
    own = te.compute((6, 10), lambda i, j: te.sum(x[i, r] * y[r, j], axis=r), "s")
    same = at.load([x, y, own], strides={"s": (16, 1)}, threads=1, db=log)  # whatever the names are
    assert same.workload.digest == k.workload.digest and np.array_equal(same(a, b), a @ b)


def test_what_is_stored_with_other_strides_is_told(log: Path) -> None:
    with pytest.raises(at.KernelNotFound) as info:
        at.load("matmul", **SIZES, strides={"a": (1, 9)}, threads=1, db=log)
    said = str(info.value)
    assert "matmul m=6 n=10 k=4 float32 strides a=1x9 for" in said and "stored there row-major" in said
    assert "autotune tune matmul --shape m=6,n=10,k=4 --dtype float32 --strides a=1x9 --threads 1" in said


def test_commands_know_strides(log: Path) -> None:
    listed = run("log", "list", "--db", log, "--json").json["tasks"]
    assert sorted(t["strides"] for t in listed) == ["", "a=1x6,c=16x1"]
    assert "m=6 n=10 k=4 strides a=1x6,c=16x1" in run("log", "list", "--db", log).out
    words = ("--shape", "m=6,n=10,k=4", "--threads", 1, "--db", log)
    found = run("best", "matmul", *words, "--strides", "a=1x6,c=16x1", "--ir")
    assert found.status == 0 and "a: float32[6, 4] strides [1, 6]" in found.out
    missing = run("best", "matmul", *words, "--strides", "a=-6x1")
    assert missing.status and "strides a=-6x1" in missing.err
    for text, says in (("a=1x", "cannot read 'a=1x'"), ("a=1,a=1", "a is given twice"), ("6", "cannot read")):
        wrong = run("best", "matmul", *words, "--strides", text)
        assert wrong.status and says in wrong.err


@pytest.mark.slow
def test_peers_are_given_the_same_views(log: Path) -> None:
    words = ("--shape", "m=6,n=10,k=4", "--strides", "a=1x6,c=16x1", "--threads", 1, "--db", log)
    measured = run("bench", "matmul", *words, "--against", "numpy,torch", "--duration", "200ms", "--json")
    assert measured.status == 0 and len(measured.json["rows"]) == 3
    workload = as_workload("matmul", SIZES, strides={"a": (-4, 1), "c": (16, 1)})
    arrays = arrays_for(workload, 0)
    for name, says in (("torch", "walk backwards"), ("tvm", "there are strides for a, c; leave tvm")):
        prepare = import_module(f"autotune.measure.compare.peers.with_{name}").prepare
        with pytest.raises(PeerError, match=says), prepare(workload, *arrays, 1):
            pass


@pytest.mark.slow
def test_tuning_with_strides(tmp_path: Path) -> None:
    words = ("matmul", "--shape", "m=24,n=20,k=16", "--threads", 1, "--db", tmp_path / "t.db")
    lie = ("--strides", "a=1x32,b=0x1,c=48x2")
    tuned = run("tune", *words, *lie, "--trials", 2, "--budget", "300s", "--json")
    assert tuned.status == 0 and "strides" in run("log", "list", "--db", tmp_path / "t.db").out
    strides = {"a": (1, 32), "b": (0, 1), "c": (48, 2)}
    k = at.load("matmul", m=24, n=20, k=16, strides=strides, threads=1, db=tmp_path / "t.db")
    a, b = numbers((16, 32)).T[:24], np.broadcast_to(numbers((20,)), (16, 20))
    c = k(a, b)
    assert steps(c) == (48, 2) and np.array_equal(c, a @ b)
