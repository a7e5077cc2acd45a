"""The header of an object, the descriptor, and the fast path of `at_call`."""

from __future__ import annotations

import gc
import threading
import time
import weakref

import numpy as np
import pytest
from kernel_cases import LLVM_TYPES, add_loaded, add_text, buffer, target

from autotune.codegen.llvm.compile import compile_module, load_object
from autotune.codegen.runtime import entry
from schedules.expr import Hole
from schedules.ir import Buffer
from schedules.strides import MemoryLayout

DONE, SLOW, NO_MEMORY = 0, 1, 2


def arrays(shape=(7, 5), dtype="float32"):
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-9, 9, shape).astype(dtype) for _ in range(2))
    return a, b, np.full(shape, 77, dtype)


def fast(loaded):
    f = loaded.python_function()
    assert f is not None, "this interpreter and numpy are known to have the expected layout"
    return f


def test_the_header_describes_the_object():
    params = (buffer("a", (7, 5)), buffer("s", (), "int64"), buffer("c", (35,), "float64"))
    obj = compile_module(add_text(35) + entry.entry(params, ("c",), 192, 3), target())
    loaded = load_object(obj)
    assert loaded.signature == "float32[7,5] int64[] -> float64[35]"
    assert (loaded.threads, loaded.scratch_bytes) == (3, 192)
    shapes = (("float32", (7, 5)), ("int64", ()), ("float64", (35,)))
    assert entry.parse_signature(loaded.signature) == (tuple((d, MemoryLayout(s)) for d, s in shapes), 2)


@pytest.mark.parametrize("text", ["", "float32[7", "float8[2] -> float8[2]", "float32[2]"])
def test_a_malformed_signature_is_refused(text):
    with pytest.raises(ValueError, match="signature"):
        entry.parse_signature(text)


def test_entry_refuses_what_is_not_a_kernel():
    a, c = buffer("a", (4,)), buffer("c", (4,))
    with pytest.raises(ValueError, match="last of the parameters"):
        entry.entry((c, a), ("c",), 0, 1)
    with pytest.raises(ValueError, match="integers"):
        entry.entry((Buffer("a", (Hole("n"),), "float32"), c), ("c",), 0, 1)
    with pytest.raises(ValueError, match="threads"):
        entry.entry((a, c), ("c",), 0, 0)


@pytest.mark.parametrize("dtype", LLVM_TYPES)
@pytest.mark.parametrize("shape", [(), (1,), (7, 5), (2, 1, 3, 2)])
def test_the_fast_path_takes_plain_arrays(dtype, shape):
    f = fast(add_loaded(shape, dtype))
    a, b, c = arrays(shape, dtype)
    assert f(a, b, c) == DONE
    np.testing.assert_array_equal(c, a + b)
    assert f(a, a, c) == DONE, "two inputs may be one array"
    np.testing.assert_array_equal(c, a + a)


def test_a_kernel_without_inputs_or_dimensions_is_fine():
    text = "define void @kernel(ptr %args, ptr %s, i32 %n) {\n  %c = load ptr, ptr %args\n"
    text += "  store i32 7, ptr %c\n  ret void\n}\n"
    loaded = load_object(
        compile_module(text + entry.entry((buffer("c", (), "int32"),), ("c",), 0, 1), target())
    )
    c = np.zeros((), np.int32)
    assert fast(loaded)(c) == DONE
    assert c == 7


class Sub(np.ndarray):
    pass


def refused(a, b, c):
    raw = np.zeros(35 * 4 + 1, np.uint8)
    frozen = c.copy()
    frozen.flags.writeable = False
    block = np.zeros((8, 5), np.float32)
    return {
        "count": (a, b),
        "too many": (a, b, c, c),
        "not an array": (a, 3, c),
        "none": (None, b, c),
        "list": (a, b.tolist(), c),
        "subclass": (a, b.view(Sub), c),
        "rank": (a.reshape(35), b, c),
        "shape": (a.reshape(5, 7), b, c),
        "one extent": (a, np.zeros((7, 6), np.float32), c),
        "dtype": (a.astype(np.float64), b, c),
        "same size": (a.view(np.int32), b, c),
        "byte order": (a, b.astype(">f4"), c),
        "transposed": (np.zeros((5, 7), np.float32).T, b, c),
        "strided": (a, np.zeros((7, 10), np.float32)[:, ::2], c),
        "unaligned": (raw[1:].view(np.float32).reshape(7, 5), b, c),
        "read-only output": (a, b, frozen),
        "output is an input": (a, b, a),
        "output is the other input": (a, b, b),
        "output overlaps": (block[:7], b, block[1:]),
        "output overlaps from before": (block[1:], b, block[:7]),
    }


@pytest.mark.parametrize("case", sorted(refused(*arrays())))
def test_the_fast_path_refuses(case):
    f = fast(add_loaded())
    a, b, c = arrays()
    args = refused(a, b, c)[case]
    before = [x.copy() if isinstance(x, np.ndarray) else x for x in args]
    assert f(*args) == SLOW
    for x, y in zip(args, before):
        np.testing.assert_array_equal(x, y, err_msg="nothing may have run")
    assert f(a, b, c) == DONE, "a refusal leaves nothing behind"


def test_neighbours_in_one_block_do_not_overlap():
    f = fast(add_loaded())
    block = np.arange(3 * 35, dtype=np.float32).reshape(3, 7, 5)
    expected = block[0] + block[2]
    assert f(block[0], block[2], block[1]) == DONE
    np.testing.assert_array_equal(block[1], expected)


def test_read_only_inputs_are_fine():
    a, b, c = arrays()
    a.flags.writeable = False
    assert fast(add_loaded())(a, b, c) == DONE
    np.testing.assert_array_equal(c, a + b)


def test_scratch_that_cannot_be_had():
    loaded = add_loaded(scratch_bytes=1 << 60, through_scratch=1)
    a, b, c = arrays()
    assert fast(loaded)(a, b, c) == NO_MEMORY
    assert (c == 77).all(), "nothing ran"
    pointers = [x.ctypes.data for x in (a, b, c)]
    for call in (lambda: loaded.run(pointers), lambda: loaded.bench(pointers, 1)):
        with pytest.raises(MemoryError, match="scratch"):
            call()
    assert fast(loaded)(a, b, c) == NO_MEMORY, "the lock was given back"


@pytest.mark.parametrize("scratch_bytes", [140, 4096, 5 << 20])
def test_scratch_is_aligned_and_kept(scratch_bytes):
    """The kernel stores the address of its scratch block."""
    text = """define void @kernel(ptr %args, ptr %scratch, i32 %n) {
      %c = load ptr, ptr %args
      store ptr %scratch, ptr %c
      ret void
    }"""
    params = (buffer("c", (1,), "int64"),)
    loaded = load_object(compile_module(text + entry.entry(params, ("c",), scratch_bytes, 1), target()))
    c = np.zeros(1, np.int64)
    seen = set()
    for call in (
        fast(loaded),
        lambda x: loaded.run([x.ctypes.data]),
        lambda x: loaded.bench([x.ctypes.data], 2),
    ):
        call(c)
        seen.add(int(c[0]))
    assert len(seen) == 1, "one block serves every way to run"
    assert seen.pop() % (2 << 20 if scratch_bytes >= 2 << 20 else 64) == 0


WAITING_TEXT = """define void @kernel(ptr %args, ptr %scratch, i32 %n) nounwind {
entry:
  %c = load ptr, ptr %args
  %go.at = getelementptr i64, ptr %c, i64 1
  store volatile ptr %scratch, ptr %c
  br label %wait
wait:
  %go = load volatile i64, ptr %go.at
  %stop = icmp ne i64 %go, 0
  br i1 %stop, label %done, label %wait
done:
  ret void
}"""
"""c[0] = address of the scratch block; returns once c[1] is set."""


@pytest.mark.parametrize("way", ["call", "run", "bench"])
def test_a_caller_that_finds_the_scratch_taken_gets_its_own(way):
    params = (buffer("c", (2,), "int64"),)
    loaded = load_object(compile_module(WAITING_TEXT + entry.entry(params, ("c",), 4096, 1), target()))
    f = fast(loaded)

    def call(c):
        here = [c.ctypes.data]
        {"call": lambda: f(c), "run": lambda: loaded.run(here), "bench": lambda: loaded.bench(here, 1)}[way]()

    first, second, third = np.zeros((3, 2), np.int64)
    second[1] = third[1] = 1
    holder = threading.Thread(target=call, args=(first,))
    holder.start()
    try:
        while not first[0]:
            time.sleep(1e-4)
        call(second)
    finally:
        first[1] = 1
        holder.join()
    call(third)
    assert second[0] not in (0, first[0]), "two at once must not share a block"
    assert third[0] == first[0], "the kept block is free again"


@pytest.mark.slow
def test_the_function_keeps_the_code_and_lets_go_of_it():
    loaded = add_loaded()
    gone = weakref.ref(loaded)
    f = fast(loaded)
    del loaded
    gc.collect()
    a, b, c = arrays()
    assert gone() is not None
    assert f(a, b, c) == DONE
    del f
    gc.collect()
    assert gone() is None


def test_bench_runs_n_times():
    text = """define void @kernel(ptr %args, ptr %scratch, i32 %n) {
      %c = load ptr, ptr %args
      %old = load i64, ptr %c
      %wide = sext i32 %n to i64
      %new = add i64 %old, %wide
      store i64 %new, ptr %c
      ret void
    }"""
    params = (buffer("c", (1,), "int64"),)
    loaded = load_object(compile_module(text + entry.entry(params, ("c",), 0, 4), target()))
    c = np.zeros(1, np.int64)
    assert loaded.bench([c.ctypes.data], 10) >= 0
    assert c[0] == 40
    assert loaded.bench([c.ctypes.data], 5, threads=2, cpu_clock=True) >= 0
    assert c[0] == 50
    for threads in (0, 5):
        with pytest.raises(ValueError, match="at most 4"):
            loaded.bench([c.ctypes.data], 1, threads=threads)
