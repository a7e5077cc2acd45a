"""Parallel loops: each thread has its share of the iterations, then what others left; none runs twice."""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor

import llvmlite.binding as llvm
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.codegen.llvm_driver import ROOT_TOKEN, SHARE, THREAD_TOKEN, driver, first_of
from schedules.ir import Buffer

THREAD_BYTES = 64  # of scratch memory, by which the body tells who runs it

# What a thread runs of an iteration: args[0] is [claimed, (thread, iteration)...]
BODY = f"""
define internal void @loop_body(ptr %log, ptr %scratch, ptr %thread, i64 %i) nounwind {{
  %at = atomicrmw add ptr %log, i64 1 monotonic
  %k = mul i64 %at, 2
  %k1 = add i64 %k, 1
  %k2 = add i64 %k, 2
  %who = getelementptr i64, ptr %log, i64 %k1
  %what = getelementptr i64, ptr %log, i64 %k2
  %a = ptrtoint ptr %scratch to i64
  %b = ptrtoint ptr %thread to i64
  %bytes = sub i64 %b, %a
  %tid = udiv i64 %bytes, {THREAD_BYTES}
  store i64 %tid, ptr %who
  store i64 %i, ptr %what
  ret void
}}
define void @enter(ptr %ctx, i32 %tid) {{
  call void @loop(ptr %ctx, i32 %tid)
  ret void
}}
"""


class ParallelLoop:
    """A compiled driver; threads enter a job of it in the order in which the test sends them."""

    def __init__(self, n: int, chunk: int, threads: int) -> None:
        self.n, self.threads = n, threads
        text = driver("loop", n, chunk, threads, [Buffer("log", (1,), "int64")], [], "i", "")
        text = text.replace(THREAD_TOKEN, str(THREAD_BYTES)).replace(ROOT_TOKEN, "0")
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(jit=True)
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(text + BODY), machine)
        self.engine.finalize_object()
        address = self.engine.get_function_address("enter")
        self.enter = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int32)(address)
        self.begin()

    def begin(self) -> None:
        """A new job."""
        self.log = np.zeros(1 + 2 * (self.n + 1), np.int64)
        self.args = np.array([self.log.ctypes.data], np.int64)
        counters = self.threads * SHARE
        self.ctx = np.zeros(counters + 2, np.int64)
        self.ctx[:counters:SHARE] = [first_of(t, self.n, self.threads) for t in range(self.threads)]
        self.ctx[counters:] = self.args.ctypes.data, 1 << 20  # arguments, and scratch that nobody writes

    def run(self, tid: int) -> None:
        self.enter(self.ctx.ctypes.data, tid)

    @property
    def done(self) -> list[tuple[int, int]]:
        """(thread, iteration) in the order in which they ran."""
        count = int(self.log[0])
        return [(int(t), int(i)) for t, i in self.log[1 : 1 + 2 * count].reshape(-1, 2)]


def test_a_thread_begins_with_its_own_share_and_goes_on_with_the_next_ones() -> None:
    loop = ParallelLoop(10, 2, 3)  # shares 0..2, 3..5, 6..9
    for _ in range(2):
        loop.begin()
        loop.run(1)
        assert loop.done == [(1, i) for i in (3, 4, 5, 6, 7, 8, 9, 0, 1, 2)]
        loop.run(0)
        loop.run(2)
        assert len(loop.done) == 10  # who comes late finds nothing


def test_chunks_end_with_the_share() -> None:
    loop = ParallelLoop(10, 4, 2)
    loop.ctx[SHARE] = 8  # the other thread is at its last two iterations
    loop.run(0)
    assert loop.done == [(0, i) for i in (0, 1, 2, 3, 4, 8, 9)]


@given(n=st.integers(0, 40), chunk=st.integers(1, 9), threads=st.integers(1, 6), data=st.data())
def test_every_iteration_runs_once_whoever_comes(
    n: int, chunk: int, threads: int, data: st.DataObject
) -> None:
    come = data.draw(st.lists(st.integers(0, threads - 1), min_size=1, unique=True))
    loop = ParallelLoop(n, chunk, threads)
    for tid in come:
        loop.run(tid)
    assert sorted(i for _, i in loop.done) == list(range(n))


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_every_iteration_runs_once_with_all_at_once(threads: int) -> None:
    loop = ParallelLoop(20_000, 1, threads)
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(10):
            loop.begin()
            list(pool.map(loop.run, range(threads)))
            assert sorted(i for _, i in loop.done) == list(range(20_000))


@given(n=st.integers(0, 10_000), threads=st.integers(1, 200))
def test_shares_are_as_even_as_can_be(n: int, threads: int) -> None:
    bounds = [first_of(t, n, threads) for t in range(threads + 1)]
    sizes = np.diff(bounds)
    assert bounds[0] == 0 and bounds[-1] == n
    assert sizes.min() >= 0 and sizes.max() - sizes.min() <= 1
