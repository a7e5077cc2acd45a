"""Parallel loops: each thread has its share of the iterations, then what others left; none runs twice."""

from __future__ import annotations

import ctypes
import threading
from concurrent.futures import ThreadPoolExecutor

import llvmlite.binding as llvm
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.codegen.llvm.driver import ROOT_TOKEN, SHARE, THREAD_TOKEN, driver
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

    def __init__(self, n: int, chunk: int, shares: int) -> None:
        self.n, self.shares = n, shares
        text = driver("loop", n, chunk, shares, [Buffer("log", (1,), "int64")], [], "i", "")
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
        self.log = np.zeros(1 + 2 * (self.n + 1) * (self.shares + 1), np.int64)  # even if all run all
        self.args = np.array([self.log.ctypes.data], np.int64)
        self.ctx = np.zeros(self.shares * SHARE + 2, np.int64)
        self.ctx[-2:] = self.args.ctypes.data, 1 << 20  # arguments, and scratch that nobody writes

    def run(self, tid: int) -> None:
        self.enter(self.ctx.ctypes.data, tid)

    @property
    def done(self) -> list[tuple[int, int]]:
        """(thread, iteration) in the order in which they ran."""
        count = int(self.log[0])
        return [(int(t), int(i)) for t, i in self.log[1 : 1 + 2 * count].reshape(-1, 2)]


def test_a_thread_begins_with_its_own_share_and_goes_on_with_the_next_ones() -> None:
    loop = ParallelLoop(10, 2, 3)  # shares 0..3, 4..6, 7..9
    for _ in range(2):
        loop.begin()
        loop.run(1)
        assert loop.done == [(1, i) for i in (4, 5, 6, 7, 8, 9, 0, 1, 2, 3)]
        loop.run(0)
        loop.run(2)
        assert len(loop.done) == 10  # who comes late finds nothing


def test_threads_without_a_share_help() -> None:
    loop = ParallelLoop(4, 1, 2)
    loop.run(3)  # of four threads
    assert loop.done == [(3, i) for i in (2, 3, 0, 1)]


def test_chunks_end_with_the_share() -> None:
    loop = ParallelLoop(10, 4, 2)
    loop.ctx[SHARE] = 3  # the other thread is at its last two iterations
    loop.run(0)
    assert loop.done == [(0, i) for i in (0, 1, 2, 3, 4, 8, 9)]


@pytest.mark.slow
@given(n=st.integers(0, 40), chunk=st.integers(1, 9), shares=st.integers(1, 6), data=st.data())
def test_every_iteration_runs_once_whoever_comes(
    n: int, chunk: int, shares: int, data: st.DataObject
) -> None:
    """Others have claimed some chunks of every share, which they run later."""
    bounds = [-(-n * t // shares) for t in range(shares + 1)]
    sizes = np.diff(bounds)
    assert sizes.max() == sizes[0] and sizes.max() - sizes.min() <= 1
    claimed = [data.draw(st.integers(0, -(-int(x) // chunk))) * chunk for x in sizes]
    loop = ParallelLoop(n, chunk, shares)
    loop.ctx[: shares * SHARE : SHARE] = claimed
    for tid in data.draw(st.lists(st.integers(0, shares), min_size=1, unique=True)):
        loop.run(tid)
    theirs = [
        b + k for b, size, c in zip(bounds[:-1], sizes, claimed, strict=True) for k in range(min(size, c))
    ]
    assert sorted([i for _, i in loop.done] + theirs) == list(range(n))


@pytest.mark.parametrize("threads", [2, 3, 8])
def test_every_iteration_runs_once_with_all_at_once(threads: int) -> None:
    n = 1_000_000
    loop = ParallelLoop(n, 1, threads)
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(100):
            loop.begin()
            start = threading.Barrier(threads)
            list(pool.map(lambda tid, start=start: (start.wait(), loop.run(tid)), range(threads)))
            assert loop.log[0] == n
            who, what = loop.log[1 : 1 + 2 * n].reshape(-1, 2).T
            np.testing.assert_array_equal(np.sort(what), np.arange(n))
            if len(np.unique(who)) > 1:
                return
    raise AssertionError("no two threads ever took part")
