"""Kernels as users call them: what they take, what they refuse and what they say."""

from __future__ import annotations

import ctypes
import gc
import inspect
import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from children import python_path
from kernel_cases import TWO_TEXT, add_kernel, add_loaded, add_params, buffer, target, workload

from autotune.codegen.llvm.compile import compile_module, load_object
from autotune.codegen.runtime.entry import entry
from autotune.errors import ArgumentError, AutotuneError
from autotune.run.kernel import Kernel
from schedules.model import Trace


def arrays(shape=(7, 5), dtype="float32"):
    rng = np.random.default_rng(2)
    return [rng.integers(-9, 9, shape).astype(dtype) for _ in range(2)] + [np.full(shape, -77, dtype)]


def two_kernel() -> Kernel:
    """a -> p = -a (float32), q = a (float64)."""
    params = (buffer("a", (6,)), buffer("p", (6,)), buffer("q", (6,), "float64"))
    loaded = load_object(compile_module(TWO_TEXT + entry(params, ("p", "q"), 0, 1), target()))
    return Kernel(loaded, params, ("p", "q"), workload((6,)), target())


@pytest.fixture(params=["fast", "slow"])
def kernel(request) -> Kernel:
    """The same calls must do the same with the fast path and without it."""
    k = add_kernel()
    if request.param == "slow":
        k._fast = lambda *arrays: 1
    return k


class DLPack:
    """A producer of another library, around a numpy array."""

    def __init__(self, a: np.ndarray, device=(1, 0), old: bool = False) -> None:
        self.a, self.device, self.old = a, device, old

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, **options):
        if self.old:
            if options:
                raise TypeError("__dlpack__() got an unexpected keyword argument")
            return self.a.__dlpack__()
        return self.a.__dlpack__(**options)


class Sub(np.ndarray):
    pass


class Interface:
    def __init__(self, a: np.ndarray) -> None:
        self.a = a
        self.__array_interface__ = a.__array_interface__


def buffer_of(a: np.ndarray) -> memoryview:
    return memoryview(a)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize("shape", [(), (7, 5), (3, 2, 4)])
def test_it_computes(shape, dtype):
    a, b, c = arrays(shape, dtype)
    k = add_kernel(shape, dtype)
    result = k(a, b)
    assert type(result) is np.ndarray and result.dtype == dtype
    np.testing.assert_array_equal(result, a + b)
    assert k(a, b, out=c) is c
    np.testing.assert_array_equal(c, a + b)
    assert k(a, b) is not k(a, b)


def test_several_outputs():
    k = two_kernel()
    a = np.arange(6, dtype=np.float32)
    p, q = k(a)
    np.testing.assert_array_equal(p, -a)
    np.testing.assert_array_equal(q, a.astype(np.float64))
    outs = (np.zeros(6, np.float32), np.zeros(6))
    assert k(a, out=outs) is outs
    np.testing.assert_array_equal(outs[0], -a)
    given = k(a * 3, out=list(outs))  # a list is a tuple
    assert type(given) is tuple and all(x is y for x, y in zip(given, outs, strict=True))
    np.testing.assert_array_equal(outs[0], a * -3)
    for wrong in (outs[0], list(outs[:1]), outs[:1]):
        with pytest.raises(ArgumentError, match=r"tuple of 2 arrays \(p, q\)"):
            k(a, out=wrong)
    extra = np.zeros(6, np.float32)
    with pytest.raises(ArgumentError, match="takes 1 inputs"):  # as many arrays as are right, in all
        k(a, extra, out=outs[1:])
    with pytest.raises(ArgumentError, match="takes 1 inputs"):
        k(out=(a, *outs))
    np.testing.assert_array_equal(extra, 0)
    both = np.zeros(12, np.float64)
    with pytest.raises(ArgumentError, match="'q' shares memory with output 'p'"):
        k(a, out=(both[:3].view(np.float32), both[2:8]))


@pytest.mark.parametrize("wrap", [DLPack, lambda a: DLPack(a, old=True), Interface, buffer_of, np.asarray])
def test_other_arrays_are_used_without_a_copy(kernel, wrap):
    a, b, c = arrays()
    out = wrap(c)
    assert kernel(wrap(a), wrap(b), out=out) is out
    np.testing.assert_array_equal(c, a + b)


@pytest.mark.parametrize("wrap", [DLPack, Interface, buffer_of, np.asarray])
def test_inputs_may_be_read_only(kernel, wrap):
    a, b, c = arrays()
    assert kernel(wrap(frozen(a)), wrap(frozen(b)), out=c) is c
    np.testing.assert_array_equal(c, a + b)


@pytest.mark.parametrize("shape", [(7, 5), (1024, 1024)])  # the second lies in memory that is used again
def test_other_libraries_take_results_without_a_copy(shape):
    a, b, _ = arrays(shape)
    k = add_kernel(shape)
    result = k(a, b)
    taken = np.from_dlpack(DLPack(result))
    assert np.shares_memory(taken, result) and taken.flags.writeable
    del result  # what was taken keeps the memory
    np.testing.assert_array_equal(k(taken, b, out=taken.copy()), a + b + b)
    np.testing.assert_array_equal(taken, a + b)


def test_subclasses_and_mapped_files(kernel, tmp_path):
    a, b, _ = arrays()
    mapped = np.memmap(tmp_path / "c", np.float32, "w+", shape=(7, 5))
    assert kernel(a.view(np.matrix), b, out=mapped) is mapped
    np.testing.assert_array_equal(mapped, a + b)
    assert type(kernel(a.view(np.matrix), b)) is np.ndarray


def test_scalars_are_arrays_without_dimensions():
    k = add_kernel((), "int64")
    assert k(np.int64(3), np.array(4)) == 7
    assert k(ctypes.c_int64(3), np.array(5)) == 8
    with pytest.raises(ArgumentError, match="read-only"):
        k(np.int64(3), np.int64(4), out=np.int64(5))


def test_a_dtype_that_is_equal_but_not_identical(kernel):
    """longlong and int64 are two dtype objects of one meaning on Linux."""
    k = add_kernel((4,), "int64")
    a = np.arange(4, dtype=np.longlong)
    np.testing.assert_array_equal(k(a, a), 2 * a)


def frozen(a):
    a = a.copy()
    a.flags.writeable = False
    return a


def misaligned(a):
    raw = np.zeros(a.nbytes + 1, np.uint8)
    view = raw[1:].view(a.dtype).reshape(a.shape)
    view[...] = a
    return view


WRONG = {
    "too few": (lambda a, b, c: ((a,), c), r"add takes 2 inputs \(a, b\), got 1"),
    "out by position": (lambda a, b, c: ((a, b, c), None), "got 3; give outputs by out="),
    "none": (lambda a, b, c: ((), c), "got 0"),
    "shape": (lambda a, b, c: ((a.T.copy(), b), c), r"input 'a' has shape \(5, 7\).*\(7, 5\)"),
    "rank": (lambda a, b, c: ((a, b.reshape(35)), c), r"input 'b' has shape \(35,\)"),
    "dtype": (lambda a, b, c: ((a, b.astype("f8")), c), r"'b' is float64.*float32.*\.astype\('float32'\)"),
    "output dtype": (lambda a, b, c: ((a, b), c.view("i4")), "output 'c' is int32.*takes float32"),
    "byte order": (lambda a, b, c: ((a.astype(">f4"), b), c), "byte order '>f4'.*native float32"),
    "object": (lambda a, b, c: ((a.astype(object), b), c), "is object"),
    "complex": (lambda a, b, c: ((a, b * 1j), c), r"'b' is complex64.*takes float32: .*\.view\('float32'\)"),
    "wide complex": (lambda a, b, c: ((a, b.astype("c16")), c), r"\.view\('float64'\).*, as float32$"),
    "complex out": (lambda a, b, c: ((a, b), c * 1j), r"'c' is complex64.*\.view\('float32'\)"),
    "transposed": (lambda a, b, c: ((np.asfortranarray(a), b), c), "C-contiguous.*np.ascontiguousarray"),
    "strided": (lambda a, b, c: ((a, np.repeat(b, 2, 1)[:, ::2]), c), r"are \(10, 2\) in.* for \(5, 1\): "),
    "strided out": (lambda a, b, c: ((a, b), np.zeros((7, 9), "f4")[:, :5]), "output 'c' is not C-contig"),
    "backwards": (lambda a, b, c: ((a[::-1], b), c), r"are \(-5, 1\) in.*with strides=\{'a': \(-5, 1\)\}$"),
    "backwards out": (lambda a, b, c: ((a, b), c[::-1]), r"\(-5, 1\) in.*: give a C-contiguous array$"),
    "misaligned": (lambda a, b, c: ((misaligned(a), b), c), "not aligned to 4 bytes"),
    "misaligned out": (lambda a, b, c: ((a, b), misaligned(c)), "output 'c' is not aligned"),
    "read-only out": (lambda a, b, c: ((a, b), frozen(c)), "output 'c' is read-only"),
    "read-only DLPack out": (lambda a, b, c: ((a, b), DLPack(frozen(c))), "read-only"),
    "bytes out": (lambda a, b, c: ((a, b), memoryview(frozen(c))), "read-only"),
    "in place": (lambda a, b, c: ((a, b), b), "output 'c' shares memory with input 'b'"),
    "overlap": (lambda a, b, c: ((c2 := np.zeros((8, 5), "f4"))[:7], b) and ((c2[:7], b), c2[1:]), "'a'"),
    "list of one": (lambda a, b, c: ((a, b), [c]), "output 'c' is a list, .*buffer: give the array itself"),
    "list": (lambda a, b, c: ((a.tolist(), b), c), "'a' is a list, which offers neither.*give a numpy array"),
    "number": (lambda a, b, c: ((a, 3.0), c), "'b' is a float"),
    "bad out": (lambda a, b, c: ((a, b), "c"), "output 'c' is a str"),
    "masked": (lambda a, b, c: ((np.ma.masked_less(a, 0), b), c), "masked array.*filled"),
    "cuda": (lambda a, b, c: ((DLPack(a, (2, 1)), b), c), "'a' is on cuda:1.*CPU: move it"),
    "enum-like device": (lambda a, b, c: ((DLPack(a, (99, 0)), b), c), "device type 99:0"),
    "cuda out": (lambda a, b, c: ((a, b), DLPack(c, (2, 0))), "output 'c' is on cuda:0"),
    "old cuda": (lambda a, b, c: ((SimpleNamespace(__cuda_array_interface__={}), b), c), "CUDA device"),
}  # fmt: skip


@pytest.mark.parametrize("case", sorted(WRONG))
def test_what_does_not_fit_is_explained(kernel, case):
    make, says = WRONG[case]
    a, b, c = arrays()
    inputs, out = make(a, b, c)
    with pytest.raises(ArgumentError, match=says) as caught:
        kernel(*inputs, out=out)
    assert isinstance(caught.value, AutotuneError) and isinstance(caught.value, ValueError)
    assert (c == -77).all(), "nothing ran"
    np.testing.assert_array_equal(kernel(a, b, out=c), a + b)


def test_a_producer_that_fails_is_an_argument_error(kernel):
    class Broken(DLPack):
        def __dlpack__(self, **options):
            raise BufferError("needs gradient; detach() it")

    a, b, _ = arrays()
    with pytest.raises(ArgumentError, match="detach"):
        kernel(Broken(a), b)


def test_no_memory_for_scratch():
    k = add_kernel(through_scratch=1, scratch_bytes=1 << 60)
    a, b, c = arrays()
    with pytest.raises(MemoryError, match="scratch"):
        k(a, b)
    with pytest.raises(MemoryError, match="scratch"):
        k(a.view(np.matrix), b, out=c)


def test_threads_at_once_do_not_share_scratch():
    """Each thread's sum goes through the scratch block; a shared block would mix them."""
    n = 1 << 14
    k = add_kernel((n,), through_scratch=2)
    wrong: list[int] = []
    start = threading.Barrier(4)

    def work(t: int) -> None:
        a, b, c = np.full(n, t, np.float32), np.full(n, 0.5, np.float32), np.zeros(n, np.float32)
        first = a.view(Sub) if t % 2 else a
        start.wait()
        for _ in range(50):
            c[:] = -1
            k(first, DLPack(b) if t % 2 else b, out=c)
            if (c != t + 0.5).any():
                wrong.append(t)

    workers = [threading.Thread(target=work, args=(t,)) for t in range(4)]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    assert not wrong


@pytest.mark.parametrize("wrap", [np.asarray, DLPack])
def test_the_gil_is_released(wrap):
    """Another thread runs Python while the kernel works."""
    n = 1 << 16
    k = add_kernel((n,), through_scratch=1000)
    a = np.ones(n, np.float32)
    running, ticks = threading.Event(), []

    def count() -> None:
        running.wait()
        while running.is_set():
            ticks.append(1)
            time.sleep(1e-4)  # gives the GIL back

    t = threading.Thread(target=count)
    t.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1000)  # from here on the other thread gets the GIL only where it is released
    try:
        running.set()
        before = len(ticks)
        k(wrap(a), a)
        during = len(ticks) - before
    finally:
        sys.setswitchinterval(interval)
        running.clear()
        t.join()
    assert during > 0


def test_calls_after_a_fork():
    """The child inherits the code, and a scratch lock that another thread may hold."""
    program = """
import os, sys, threading, time
import numpy as np
from kernel_cases import add_kernel
n = 1 << 14
k = add_kernel((n,), through_scratch=8000)
a = np.ones(n, np.float32)
t = threading.Thread(target=k, args=(a, a))
t.start()
time.sleep(0.02)
child = os.fork()
if child == 0:
    os._exit(0 if (k(a, a) == 2).all() else 3)
_, status = os.waitpid(child, 0)
t.join()
sys.exit(0 if status == 0 and (k(a, a) == 2).all() else 4)
"""
    environment = os.environ | {"PYTHONPATH": python_path(__file__)}
    command = [sys.executable, "-W", "ignore", "-c", program]
    done = subprocess.run(command, env=environment, timeout=120, capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


@pytest.mark.slow
def test_a_call_leaks_nothing():
    k = add_kernel()
    a, b, c = arrays()
    for out in (c, DLPack(c), c[::-1]):
        counts = [sys.getrefcount(x) for x in (a, b, c, out)]
        for _ in range(5):
            try:
                k(a, b, out=out)
            except ArgumentError:
                pass
        gc.collect()
        assert [sys.getrefcount(x) for x in (a, b, c, out)] == counts


def test_time():
    k = add_kernel((100,))
    a, b, _ = arrays((100,))
    assert 0 < k.time(repeat=3) < 1
    assert 0 < k.time(a, b, repeat=1) < 1
    with pytest.raises(ArgumentError, match="takes 2 inputs"):
        k.time(a)
    with pytest.raises(ValueError, match="repeat"):
        k.time(repeat=0)


def test_it_describes_itself():
    trace = Trace()
    args = (add_loaded(), add_params((7, 5)), ("c",), workload((7, 5)), target())
    plain = Kernel(*args)
    known = Kernel(*args, SimpleNamespace(time_s=1.9e-3), trace)
    arch = target().arch
    assert repr(plain) == f"<Kernel add(a: float32[7,5], b: float32[7,5]) -> c  on {arch} x1>"
    assert repr(known) == f"<Kernel add(a: float32[7,5], b: float32[7,5]) -> c  1.9 ms on {arch} x1>"
    assert str(inspect.signature(plain)) == (
        "(a: 'float32[7,5]', b: 'float32[7,5]', *, out=None) -> 'float32[7,5]'"
    )
    assert "loaded" in inspect.signature(Kernel).parameters
    assert inspect.signature(two_kernel()).return_annotation == "(float32[6], float64[6])"
    assert "define" in known.source() and known.trace is trace and known.record.time_s == 1.9e-3
    assert plain.workload.op == "add" and plain.target == target() and plain.record is None
    with pytest.raises(ValueError, match="source"):
        plain.source()


def test_inputs_may_be_given_by_name(kernel):
    a, b, out = arrays()
    b *= 2
    for given in (
        lambda: kernel(a=a, b=b),
        lambda: kernel(b=b, a=a),
        lambda: kernel(a, b=b),
        lambda: kernel(b=b, a=a, out=out),
    ):
        np.testing.assert_array_equal(given(), a + b)
    for given, message in (
        (lambda: kernel(a, c=b), r"add takes a, b; there is no input 'c'"),
        (lambda: kernel(a=a, B=b), r"there is no input 'B' \(did you mean 'b'\?\)"),
        (lambda: kernel(b, a=a), r"add takes a, b; input 'a' is given by its place and by its name"),
        (lambda: kernel(a, b, b=b), r"input 'b' is given by its place and by its name"),
        (lambda: kernel(b=b), r"add takes a, b; a not given"),
        (lambda: kernel(a=a, b=b[:3]), r"input 'b' has shape \(3, 5\)"),
    ):
        with pytest.raises(ArgumentError, match=message):
            given()


@pytest.mark.parametrize("name", ["self", "out", "stream", "lambda", "inputs"])
def test_any_name_of_an_input_may_be_given(name):
    params = (buffer(name, (7, 5)), *add_params((7, 5))[1:])
    k = Kernel(add_loaded(), params, ("c",), workload((7, 5)), target())
    a, b, _ = arrays()
    (first, _, _) = inspect.signature(k).parameters
    np.testing.assert_array_equal(k(**{first: a, "b": b}), a + b)


def test_an_object_of_another_kernel_is_refused():
    with pytest.raises(ValueError, match=r"float32\[7,5\] float32\[7,5\] -> float32\[7,5\]"):
        Kernel(add_loaded(), add_params((5, 7)), ("c",), workload((5, 7)), target())
