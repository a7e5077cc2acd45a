"""The thread pool: every chunk runs exactly once, whoever takes part; nobody touches a job after its end."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import dataclass
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest
from children import folders

from autotune.codegen.runtime.threads import MAX_THREADS, SYMBOLS, text
from schedules.errors import WorkloadError

# A job in ctx: { i64 next chunk, i64 chunks, i64 work, ptr times[chunk], ptr entries[tid], i32 nested }.
# `run` keeps ctx on its stack and overwrites it on return: a late worker would write through null and crash.
KERNEL = """
%job = type { i64, i64, i64, ptr, ptr, i32 }
declare void @at_parallel(ptr, ptr, i32)

define internal void @body(ptr %ctx, i32 %tid) nounwind {
entry:
  %entries.at = getelementptr %job, ptr %ctx, i32 0, i32 4
  %entries = load ptr, ptr %entries.at
  %entry.at = getelementptr i32, ptr %entries, i32 %tid
  %was = atomicrmw add ptr %entry.at, i32 1 monotonic
  %chunks.at = getelementptr %job, ptr %ctx, i32 0, i32 1
  %chunks = load i64, ptr %chunks.at
  %work.at = getelementptr %job, ptr %ctx, i32 0, i32 2
  %work = load i64, ptr %work.at
  %times.at = getelementptr %job, ptr %ctx, i32 0, i32 3
  %times = load ptr, ptr %times.at
  %nested.at = getelementptr %job, ptr %ctx, i32 0, i32 5
  %nested = load i32, ptr %nested.at
  br label %claim
claim:
  %chunk = atomicrmw add ptr %ctx, i64 1 monotonic
  %mine = icmp slt i64 %chunk, %chunks
  br i1 %mine, label %work.loop, label %done
work.loop:
  %i = phi i64 [ 0, %claim ], [ %i.next, %work.loop ]
  %i.next = add i64 %i, 1
  %slow = load volatile i64, ptr %work.at
  %again = icmp slt i64 %i.next, %work
  br i1 %again, label %work.loop, label %worked
worked:
  %is.nested = icmp ne i32 %nested, 0
  br i1 %is.nested, label %inner, label %count
inner:
  %slot = getelementptr i32, ptr %times, i64 %chunk
  call void @inner(ptr %slot, i32 %nested)
  br label %claim
count:
  %time.at = getelementptr i32, ptr %times, i64 %chunk
  %old = load i32, ptr %time.at
  %new = add i32 %old, 1
  store i32 %new, ptr %time.at
  br label %claim
done:
  ret void
}

define internal void @inner(ptr %times, i32 %nthreads) nounwind noinline {
  %scrap = alloca [1024 x i32]
  call void @run(ptr %times, i64 1, i64 1, ptr %scrap, i32 %nthreads, i32 0)
  ret void
}

define void @run(ptr %times, i64 %chunks, i64 %work, ptr %entries, i32 %nthreads, i32 %nested) noinline {
  %ctx = alloca %job, align 64
  store i64 0, ptr %ctx
  %chunks.at = getelementptr %job, ptr %ctx, i32 0, i32 1
  store i64 %chunks, ptr %chunks.at
  %work.at = getelementptr %job, ptr %ctx, i32 0, i32 2
  store i64 %work, ptr %work.at
  %times.at = getelementptr %job, ptr %ctx, i32 0, i32 3
  store ptr %times, ptr %times.at
  %entries.at = getelementptr %job, ptr %ctx, i32 0, i32 4
  store ptr %entries, ptr %entries.at
  %nested.at = getelementptr %job, ptr %ctx, i32 0, i32 5
  store i32 %nested, ptr %nested.at
  call void @at_parallel(ptr @body, ptr %ctx, i32 %nthreads)
  store volatile i64 -1000000, ptr %ctx
  store volatile ptr null, ptr %times.at
  store volatile ptr null, ptr %entries.at
  ret void
}

; Jobs without Python between; returns how many chunks did not run exactly once.
define i64 @burst(ptr %times, i64 %chunks, i64 %work, ptr %entries, i32 %nthreads, i64 %jobs) nounwind {
entry:
  br label %next
next:
  %j = phi i64 [ 0, %entry ], [ %j.next, %counted ]
  %wrong = phi i64 [ 0, %entry ], [ %wrong.sum, %counted ]
  %j.next = add i64 %j, 1
  call void @run(ptr %times, i64 %chunks, i64 %work, ptr %entries, i32 %nthreads, i32 0)
  %expected = trunc i64 %j.next to i32
  br label %check
check:
  %c = phi i64 [ 0, %next ], [ %c.next, %check.one ]
  %wrong.sum = phi i64 [ %wrong, %next ], [ %wrong.new, %check.one ]
  %more = icmp slt i64 %c, %chunks
  br i1 %more, label %check.one, label %counted
check.one:
  %at = getelementptr i32, ptr %times, i64 %c
  %n = load i32, ptr %at
  %bad = icmp ne i32 %n, %expected
  %bad.wide = zext i1 %bad to i64
  %wrong.new = add i64 %wrong.sum, %bad.wide
  %c.next = add i64 %c, 1
  br label %check
counted:
  %left = icmp slt i64 %j.next, %jobs
  br i1 %left, label %next, label %done
done:
  ret i64 %wrong.sum
}
"""


@dataclass(frozen=True)
class Pool:
    run: Any
    burst: Any
    reset: Any
    workers: Any

    def check(self, chunks: int, nthreads: int, work: int = 1, nested: int = 0) -> int:
        """Run one job; every chunk ran once and every tid at most once. Returns how many threads came."""
        times = np.zeros(chunks + 1, np.int32)
        entries = np.zeros(MAX_THREADS, np.int32)
        self.run(times.ctypes.data, chunks, work, entries.ctypes.data, nthreads, nested)
        np.testing.assert_array_equal(times[:chunks], 1)
        assert times[chunks] == 0
        assert entries[0] == 1 and entries.max() == 1
        assert not entries[max(nthreads, 1) :].any()
        return int(entries.sum())

    def worker_comes(self, nthreads: int = 2, jobs: int = 1000) -> bool:
        """Whether a worker joins one of `jobs` long jobs: a busy machine may bring none to the first."""
        return any(self.check(100, nthreads, work=50_000) > 1 for _ in range(jobs))

    def check_burst(self, chunks: int, nthreads: int, jobs: int, work: int = 1) -> int:
        times = np.zeros(chunks, np.int32)
        entries = np.zeros(MAX_THREADS, np.int32)
        wrong = self.burst(times.ctypes.data, chunks, work, entries.ctypes.data, nthreads, jobs)
        assert wrong == 0
        assert entries[0] == jobs and entries.max() == jobs
        return int(entries[1:].sum())


def load_pool() -> Pool:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    triple = llvm.get_process_triple()
    machine = llvm.Target.from_triple(triple).create_target_machine(
        cpu=llvm.get_host_cpu_name(), opt=2, reloc="pic", codemodel="default", jit=True
    )
    jit = llvm.create_lljit_compiler(machine)
    builder = llvm.JITLibraryBuilder().add_ir(text(triple)).add_ir(KERNEL)
    for symbol in (*SYMBOLS, "run", "burst"):
        builder.export_symbol(symbol)
    library = builder.add_current_process().link(jit, "threads")
    # The workers never end, so their code must outlive the interpreter.
    for owner in (machine, jit, library):
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(owner))
    pointer, i32, i64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
    return Pool(
        run=ctypes.CFUNCTYPE(None, pointer, i64, i64, pointer, i32, i32)(library["run"]),
        burst=ctypes.CFUNCTYPE(i64, pointer, i64, i64, pointer, i32, i64)(library["burst"]),
        reset=ctypes.CFUNCTYPE(None)(library["at_pool_reset"]),
        workers=ctypes.CFUNCTYPE(i32)(library["at_pool_workers"]),
    )


@pytest.fixture(scope="module")
def pool() -> Pool:
    return load_pool()


@pytest.mark.parametrize("nthreads", [-1, 0, 1, 2, 3, 5, 40])
@pytest.mark.parametrize("chunks", [0, 1, 2, 3, 7, 64, 1000])
def test_every_chunk_runs_once(pool: Pool, chunks: int, nthreads: int) -> None:
    for _ in range(20):
        pool.check(chunks, nthreads)


def test_workers_take_part_in_long_jobs(pool: Pool) -> None:
    assert pool.worker_comes()


def test_workers_are_started_once_and_as_needed(pool: Pool) -> None:
    pool.check(4, 3)
    before = pool.workers()
    assert before >= 2
    pool.check(4, 2)
    assert pool.workers() == before
    pool.check(4, before + 2)
    assert pool.workers() == before + 1


def test_thousands_of_jobs_back_to_back(pool: Pool) -> None:
    pool.check_burst(3, 2, 20_000)
    pool.check_burst(16, 3, 5_000, work=50)
    assert any(pool.check_burst(8, 2, 2_000, work=2_000) > 0 for _ in range(50))


def test_sleeping_workers_are_woken(pool: Pool) -> None:
    for pause in [0.0, 0.00005, 0.0001, 0.0002, 0.001, 0.005] * 5:
        time.sleep(pause)
        pool.check(32, 2, work=20_000)
    for _ in range(3):
        time.sleep(0.01)
        assert pool.worker_comes()


def test_nested_jobs_run_alone(pool: Pool) -> None:
    for _ in range(50):
        pool.check(16, 2, nested=4)


def test_several_callers_at_once(pool: Pool) -> None:
    failures: list[BaseException] = []

    def caller(seed: int) -> None:
        rng = np.random.default_rng(seed)
        try:
            for _ in range(150):
                pool.check(int(rng.integers(0, 50)), int(rng.integers(1, 5)), work=int(rng.integers(1, 3000)))
                pool.check_burst(4, 2, 50)
        except BaseException as err:
            failures.append(err)

    callers = [threading.Thread(target=caller, args=(seed,)) for seed in range(4)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join(60)
    assert not any(thread.is_alive() for thread in callers)
    assert not failures, failures[0]


def _in_child(script: str) -> None:
    """Run a script that has the names of this file; a fork or a limit must not touch pytest's process."""
    prelude = f"import sys; sys.path[:0] = {folders(__file__)!r}\nfrom test_threads import *\n"
    done = subprocess.run(
        [sys.executable, "-c", prelude + textwrap.dedent(script)], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr


FORK = """
    pool = load_pool()
    {register}
    pool.check(64, 3, work=1000)
    for _ in range(6):
        child = os.fork()
        if child == 0:
            {in_child}
            assert pool.workers() == {left}
            for _ in range(50):
                pool.check(64, 3, work=1000)
            assert pool.workers() == 2
            os._exit(0 if pool.worker_comes(jobs={jobs}) == {came} else 9)
        pool.check(64, 3, work=1000)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert pool.workers() == 2
"""


@pytest.mark.slow
def test_a_forked_child_starts_anew() -> None:
    _in_child(FORK.format(register="", in_child="pool.reset()", left=0, jobs=1000, came=True))
    _in_child(
        FORK.format(
            register="os.register_at_fork(after_in_child=pool.reset)",
            in_child="pass",
            left=0,
            jobs=1000,
            came=True,
        )
    )


@pytest.mark.slow
def test_a_child_without_reset_still_computes() -> None:
    _in_child(FORK.format(register="", in_child="pass", left=2, jobs=3, came=False))


@pytest.mark.slow
def test_without_threads_the_caller_does_all_work() -> None:
    """The address space has no room for stacks, so pthread_create fails; once there is room, workers come."""
    _in_child(
        """
        import resource
        pool = load_pool()
        used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        limits = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 20), limits[1]))
        for _ in range(100):
            pool.check(16, 3)
        assert pool.workers() == 0
        resource.setrlimit(resource.RLIMIT_AS, limits)
        pool.check_burst(4, 3, 1100)
        assert pool.workers() == 2
        pool.check_burst(4, 3, 1100)
        """
    )


@pytest.mark.slow
def test_workers_block_signals_and_the_caller_keeps_its_own() -> None:
    _in_child(
        """
        import signal
        pool = load_pool()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
        others = set(os.listdir("/proc/self/task"))
        pool.check(16, 2)
        assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before
        tasks = set(os.listdir("/proc/self/task")) - others
        assert len(tasks) == pool.workers() == 1
        masks = {open(f"/proc/self/task/{t}/status").read().split("SigBlk:")[1].split()[0] for t in tasks}
        # SIGUSR1 (10), SIGINT (2), SIGTERM (15) blocked; SIGSEGV (11) not.
        blocked = {s: all(int(m, 16) >> (s - 1) & 1 for m in masks) for s in (2, 10, 15, 11)}
        assert blocked == {2: True, 10: True, 15: True, 11: False}, (masks, blocked)
        """
    )


@pytest.mark.slow
def test_the_process_ends_while_workers_spin() -> None:
    for _ in range(2):
        _in_child("load_pool().check_burst(4, 3, 100)")


@pytest.mark.parametrize("triple", ["x86_64-unknown-linux-gnu", "aarch64-unknown-linux-gnu"])
def test_text_compiles_and_calls_only_libc(triple: str) -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()
    module = llvm.parse_assembly(text(triple))
    module.verify()
    declared = {f.name for f in module.functions if f.is_declaration and not f.name.startswith("llvm.")}
    assert declared == {
        *("pthread_create", "pthread_attr_init", "pthread_attr_setdetachstate", "pthread_attr_setstacksize"),
        *("pthread_attr_destroy", "pthread_sigmask", "sigfillset", "sigdelset", "clock_gettime"),
        *("sched_yield", "sched_getcpu", "sched_getaffinity", "sched_setaffinity", "memcmp", "syscall"),
    }
    machine = llvm.Target.from_triple(triple).create_target_machine(reloc="pic", codemodel="default")
    assembly = machine.emit_assembly(module)
    assert re.search(r"\bpause\b", assembly) is not None if triple.startswith("x86") else "isb" in assembly


ON_ONE_CPU = """
import os, threading, time
import numpy as np
import autotune as at

te = at.te
x = te.placeholder((8, 64), "float32", name="x")
s = at.Schedule([x, te.compute((8, 64), lambda i, j: te.exp(te.exp(x[i, j])), name="y")])
s.parallel(s.loops("y")[0])
kernel = at.build(s, threads=2)
data = np.zeros((8, 64), "f4")
before = {int(t) for t in os.listdir("/proc/self/task")}
kernel(data)
(worker,) = {int(t) for t in os.listdir("/proc/self/task")} - before
every = os.sched_getaffinity(0)
here = sorted(every)[0]
stat = lambda tid: open(f"/proc/self/task/{tid}/stat").read().rsplit(")", 1)[1].split()
cpu = lambda tid: int(stat(tid)[36])
def rest():  # until the worker sleeps: it may be on its way to another CPU
    while stat(worker)[0] != "S":
        time.sleep(0.001)
    time.sleep(0.002)
os.sched_setaffinity(0, {here})
rest()
kernel(data)  # so that it rests elsewhere
os.sched_setaffinity(0, every)  # threads are counted by the CPUs of who builds
rows = (16, 1 << 18)
x = te.placeholder(rows, "float32", name="x")
s = at.Schedule([x, te.compute(rows, lambda i, j: te.exp(-te.exp(-te.exp(x[i, j]))), name="y")])
s.parallel(s.loops("y")[0])
long = at.build(s, threads=2)
os.sched_setaffinity(0, {here})
many, out = np.zeros(rows, "f4"), np.zeros(rows, "f4")
moved = 0
for alone in [True] * 3 + [False] * 20:  # the worker may use the caller's CPU only, then any
    rest()
    os.sched_setaffinity(worker, {here})
    if not alone:
        os.sched_setaffinity(worker, every)
    assert np.allclose(kernel(data), np.exp(1.0), rtol=1e-5)
    rest()
    # asleep it may not use the caller's CPU, unless it has no other
    asleep = every - {here} if AVOIDS else every
    assert os.sched_getaffinity(worker) == ({here} if alone else asleep)
    moved += not alone and cpu(worker) != here
print("moved", moved)
"""
NEVER_AVOIDS = """
from string import Template
from autotune.codegen.runtime import threads
avoid = "  call void @at_avoid(i32 %caller, ptr %avoided, ptr %cpus, ptr %others)\\n"
assert threads._MODULE.template.count(avoid) == 1
threads._MODULE = Template(threads._MODULE.template.replace(avoid, ""))
"""


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
@pytest.mark.parametrize("avoids", [True, False])
def test_a_worker_leaves_the_cpu_of_its_caller(avoids: bool) -> None:
    """Before it joins, even where it may be woken there."""
    script = f"AVOIDS = {avoids}\n" + ("" if avoids else NEVER_AVOIDS) + ON_ONE_CPU
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[1]) >= 10, done.stdout


CALLER_MOVES = """
there = sorted(every)[1]
met = 0
for k in range(20):
    rest()
    assert os.sched_getaffinity(worker) == every - {here}
    here, there = there, here
    os.sched_setaffinity(0, {here})
    long(many, out=out)
    met += cpu(worker) == here
print("moved", 20 - met)
"""


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_a_worker_that_sleeps_avoids_the_cpu_of_its_last_caller() -> None:
    script = ON_ONE_CPU[: ON_ONE_CPU.index("moved = 0")] + CALLER_MOVES
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[1]) >= 10, done.stdout  # also where the caller has come to it


@pytest.mark.parametrize(
    "triple", ["riscv64-unknown-linux-gnu", "x86_64-apple-darwin", "x86_64-pc-windows-msvc"]
)
def test_other_systems_are_refused_by_name(triple: str) -> None:
    with pytest.raises(WorkloadError, match=triple):
        text(triple)
