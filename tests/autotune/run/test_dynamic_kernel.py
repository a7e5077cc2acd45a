"""Kernels of sizes that vary: each size is right, and found by what a call gives."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autotune as at
from autotune import backends
from autotune.run.dynamic_kernel import DynamicKernel
from autotune.run.dynamic_workload import DynamicWorkload, Sizes, as_dynamic
from autotune.run.kernels import default_kernel
from schedules import te
from schedules.model import Workload

TARGET = backends.parse("cpu", 1)


def kernel_of(dynamic: DynamicWorkload, tuned: Sequence[Sizes] = ()) -> DynamicKernel:
    """Every size with plain loops, made when it is called."""
    return DynamicKernel(dynamic, lambda w: default_kernel(w, TARGET), tuned)


def whole(*shape: int) -> Any:
    """Small integers: sums of them are exact."""
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape) % 7 - 3


def test_every_size_of_a_range_is_right() -> None:
    kernel = kernel_of(as_dynamic("matmul", {"m": at.dim(3, 19), "n": 4, "k": 5}))
    b = whole(5, 4)
    for m in [*range(3, 20), 11, 3]:
        assert np.array_equal(kernel(whole(m, 5), b), whole(m, 5) @ b)
        out = np.empty((m, 4), np.float32)
        assert kernel(a=whole(m, 5), b=b, out=out) is out
        assert np.array_equal(out, whole(m, 5) @ b)


def test_a_size_is_made_once() -> None:
    made: list[Workload] = []

    def load(w: Workload) -> at.Kernel:
        made.append(w)
        return default_kernel(w, TARGET)

    kernel = DynamicKernel(as_dynamic("softmax", {"m": at.dim(1, 8), "n": 2}), load, ())
    for _ in range(3):
        kernel(whole(5, 2))
    kernel.prepare(m=5)
    assert [w.dag.inputs[0].shape[0] for w in made] == [8, 5]
    assert kernel.at(m=5) is kernel.at(m=5)


@pytest.mark.slow
def test_a_range_of_which_nothing_is_stored_needs_fallback(tmp_path: Path) -> None:
    m = at.dim(1, 4, open=False)
    asked: dict[str, Any] = {"m": m, "n": 3, "k": 2, "threads": 1, "db": tmp_path / "t.db"}
    with pytest.raises(at.KernelNotFound, match="no tuned kernel of matmul"):
        at.load("matmul", **asked)
    kernel = at.load("matmul", **asked, fallback=True)
    assert isinstance(kernel, DynamicKernel)  # each size is made when it is asked for


def test_two_sizes_of_a_reduction() -> None:
    kernel = kernel_of(as_dynamic("matmul", {"m": at.dim(1, 4), "n": 3, "k": at.dim(2, 5)}))
    for m in range(1, 5):
        for k in range(2, 6):
            assert np.array_equal(kernel(whole(m, k), whole(k, 3)), whole(m, k) @ whole(k, 3))
    with pytest.raises(at.ArgumentError, match=r"input 'b' has shape \(4, 3\)"):
        kernel(whole(2, 5), whole(4, 3))


def test_one_size_in_two_places() -> None:
    n = at.dim(1, 6)
    kernel = kernel_of(as_dynamic("matmul", {"m": n, "n": 2, "k": n}))
    assert np.array_equal(kernel(whole(4, 4), whole(4, 2)), whole(4, 4) @ whole(4, 2))
    with pytest.raises(at.ArgumentError):
        kernel(whole(4, 5), whole(5, 2))


def test_a_size_among_several_numbers() -> None:
    dynamic = as_dynamic("permute", {"shape": (3, at.dim(1, 6), 2), "axes": (2, 0, 1)}, "float32")
    kernel = kernel_of(dynamic)
    for n in (1, 4, 6):
        assert np.array_equal(kernel(whole(3, n, 2)), whole(3, n, 2).transpose(2, 0, 1))
    assert kernel.at(shape1=4).workload.dag.inputs[0].shape == (3, 4, 2)


def windows(m: Any) -> list[te.Tensor]:
    x = te.placeholder((2 * m + 1,), name="x")
    k = te.reduce_axis(3, "k")
    return [x, te.compute((m,), lambda i: te.sum(x[2 * i + k], axis=k), "y")]


def test_a_size_is_read_from_an_extent_made_of_it() -> None:
    kernel = kernel_of(as_dynamic(windows(at.dim(2, 7, "m")), {}))
    for m in range(2, 8):
        x = whole(2 * m + 1)
        assert np.array_equal(kernel(x), [x[2 * i : 2 * i + 3].sum() for i in range(m)])
    for extent in (3, 6, 17):
        with pytest.raises(at.ArgumentError, match=rf"x\[{extent}\] do not fit .* with m=2..7"):
            kernel(whole(extent))


def test_what_is_no_size_is_named() -> None:
    kernel = kernel_of(as_dynamic("softmax", {"m": at.dim(2, 8), "n": 2}))
    with pytest.raises(at.ArgumentError, match=r"x\[9, 2\] do not fit softmax m=2..8 n=2"):
        kernel(whole(9, 2))
    with pytest.raises(at.ArgumentError, match="takes 1 inputs"):
        kernel(whole(4, 2), whole(4, 2))
    with pytest.raises(at.ArgumentError, match="a str has no shape"):
        kernel("x")
    with pytest.raises(at.WorkloadError, match="m=9 is outside 2..8"):
        kernel.at(m=9)
    with pytest.raises(at.WorkloadError, match="sizes that vary are m; 'n' was given"):
        kernel.at(n=3)
    assert kernel(memoryview(whole(4, 2))).shape == (4, 2)  # type: ignore[arg-type]


def test_it_shows_itself_as_the_kernel_of_its_largest_size() -> None:
    kernel = kernel_of(as_dynamic("softmax", {"m": at.dim(2, 8), "n": 2}), [(8,)])
    assert repr(kernel) == f"<DynamicKernel softmax m=2..8 n=2 float32, 1 sizes tuned, on {TARGET.arch} x1>"
    assert kernel.workload.dag.inputs[0].shape == (8, 2)
    assert (kernel.record, kernel.chosen_by, kernel.target) == (None, "default", TARGET)
    assert kernel.time(whole(3, 2), repeat=1) > 0 and kernel.time(repeat=1) > 0
    assert "define" in kernel.source() and kernel.trace == at.Trace()


def test_it_is_no_kernel_that_could_go_elsewhere(tmp_path: Path) -> None:
    kernel = kernel_of(as_dynamic("matmul", {"m": at.dim(3, 19), "n": 4, "k": 5}))
    says = r"a kernel of matmul m=3\.\.19 .* is many kernels; .*Take that of one size: kernel\.at\(m=19\)"
    with pytest.raises(TypeError, match=says):
        pickle.dumps(kernel)
    with pytest.raises(at.ArgumentError, match=says):
        at.export(kernel, tmp_path)
    other = pickle.loads(pickle.dumps(kernel.at(m=7)))
    assert np.array_equal(other(whole(7, 5), whole(5, 4)), whole(7, 5) @ whole(5, 4))


def test_weights_that_are_known_ahead_are_packed_for_each_size() -> None:
    dynamic = as_dynamic("matmul", {"m": at.dim(1, 9), "n": 8, "k": 6}, constant_weights=True)

    def packing(w: Workload) -> at.Kernel:
        """Blocks of two columns, or of four where the size is even."""
        s = at.Schedule(w.dag)
        s.cache_read("c", "b")
        s.pack("b_global", [0, 4 - 2 * (w.dag.inputs[0].shape[0] % 2)], [1, 0, 2])
        return at.build(s, threads=1)

    kernel = DynamicKernel(dynamic, packing, ())
    b = whole(6, 8)
    weights = kernel.pack_weights(b)
    for m in (9, 4, 5, 4, 9):
        assert np.array_equal(kernel(whole(m, 6), weights), whole(m, 6) @ b)
    with pytest.raises(at.ArgumentError, match="pack_weights takes b; 2 arrays"):
        kernel.pack_weights(b, b)
