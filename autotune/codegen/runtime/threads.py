"""The thread pool that compiled kernels share, as LLVM IR text for Linux on x86-64 and aarch64 (ADR 5).

`text(triple)` is one module, to be loaded once a process. It exports

- `void @at_parallel(ptr fn, ptr ctx, i32 nthreads)`, `fn = void (ptr ctx, i32 tid)`: runs fn(ctx, 0) on the
  calling thread and offers fn(ctx, tid), 1 ≤ tid < nthreads, to the workers, each tid at most once;
- `void @at_pool_reset()`: for the child after a fork, where the workers are gone;
- `i32 @at_pool_workers()`: workers that were started.

Work is claimed by chunks from atomic counters in ctx, so a late worker need not run at all. When the caller's
fn returns, every chunk is claimed and the job is closed. The caller then waits only for workers that have
entered. From then on nobody touches ctx, so it may be on the caller's stack. A second caller, from another
thread or nested in a kernel, runs fn(ctx, 0) alone; so does every caller if no thread can be started. At most
MAX_THREADS threads are used.

All coordination is in one 64-bit word, so that every decision is one compare-and-swap:

    bits 63..32 generation of the job | bit 31 open | bits 30..16 nthreads | bits 15..0 workers inside

The generation is also the futex word. Workers spin for about SPIN_NS after the last job that they could join,
then sleep. The caller makes the waking system call only if a worker that it needs is asleep. Linux often
wakes a worker on the CPU of the caller and leaves it there for milliseconds (docs/measurements/threads.md).
So a worker that sleeps may not use the CPU of its last caller, and one that finds itself beside a caller
moves before it joins.

The module calls only libc: pthread_create and its attributes, signal sets, clock_gettime, sched_yield,
sched_getcpu, sched_get/setaffinity, memcmp, syscall(futex). Its code must stay mapped until the process ends,
because workers are never joined.
"""

from __future__ import annotations

from string import Template

from autotune.codegen.runtime.affinity import AFFINITY
from schedules.errors import WorkloadError

__all__ = ["MAX_THREADS", "SPIN_NS", "SYMBOLS", "text"]

# Most threads of a job.
MAX_THREADS = 1024
# Time that a worker spins after a job (nanoseconds).
SPIN_NS = 75_000
# Functions that the module exports.
SYMBOLS = ("at_parallel", "at_pool_reset", "at_pool_workers")

# {prefix of a triple: (number of the futex system call, instruction of a spinning core, its declaration)}.
# The instruction is an intrinsic, because inline assembly needs LLVM's assembly parser. On most Arm cores
# `yield` does nothing; `isb` (15: full system) waits some tens of cycles.
_ARCHITECTURES = {
    "x86_64": (202, "call void @llvm.x86.sse2.pause()", "declare void @llvm.x86.sse2.pause()"),
    "aarch64": (98, "call void @llvm.aarch64.isb(i32 15)", "declare void @llvm.aarch64.isb(i32 immarg)"),
}


def text(triple: str) -> str:
    """IR text of the pool for a target triple such as `x86_64-unknown-linux-gnu`.

    Raises WorkloadError for another architecture or system.
    """
    architecture, _, system = triple.partition("-")
    if architecture not in _ARCHITECTURES or "linux" not in system:
        known = ", ".join(f"{name}-*-linux-*" for name in _ARCHITECTURES)
        raise WorkloadError(f"no thread pool for {triple}: it knows {known}; compile with threads=1 there")
    futex, pause, declare = _ARCHITECTURES[architecture]
    pool = _MODULE.substitute(
        triple=triple,
        futex=futex,
        pause=pause,
        declare_pause=declare,
        max_threads=MAX_THREADS,
        spin_ns=SPIN_NS,
    )
    return pool + AFFINITY


# Constants of Linux and of its C libraries in the text: SIG_SETMASK 2, PTHREAD_CREATE_DETACHED 1,
# CLOCK_MONOTONIC 1, SIGILL 4, SIGTRAP 5, SIGBUS 7, SIGFPE 8, SIGSEGV 11; FUTEX_WAIT_BITSET and
# FUTEX_WAKE_BITSET with FUTEX_PRIVATE 137 and 138; sigset_t has 128 bytes and pthread_attr_t at most 64, in
# glibc and musl. The generation is the upper half of the word: both targets are little-endian, so it lies
# 4 bytes in.
_MODULE = Template(
    """\
target triple = "$triple"

; state, fn and ctx share a cache line (a pair, for the adjacent-line prefetcher): who sees a job has it all.
@at_pool = internal global { i64, ptr, ptr } zeroinitializer, align 128
; busy: 1 while a caller owns the pool. It alone writes fn, ctx, workers, refused and opens and closes jobs.
@at_busy = internal global i32 0, align 128
@at_workers = internal global i32 0, align 4
; The CPU that the last caller was on.
@at_home = internal global i32 -1, align 4
; The generation at which pthread_create last failed, or -1: then growing is tried again only after 1024 jobs.
@at_refused = internal global i64 -1, align 8
; asleep[tid] is 1 while worker tid may be waiting in the kernel.
@at_asleep = internal global [$max_threads x i8] zeroinitializer, align 128

declare i32 @pthread_create(ptr, ptr, ptr, ptr)
declare i32 @pthread_attr_init(ptr)
declare i32 @pthread_attr_setdetachstate(ptr, i32)
declare i32 @pthread_attr_setstacksize(ptr, i64)
declare i32 @pthread_attr_destroy(ptr)
declare i32 @pthread_sigmask(i32, ptr, ptr)
declare i32 @sigfillset(ptr)
declare i32 @sigdelset(ptr, i32)
declare i32 @clock_gettime(i32, ptr)
declare i32 @sched_yield()
declare i32 @sched_getcpu()
declare i64 @syscall(i64, ...)
$declare_pause
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
declare i32 @llvm.umin.i32(i32, i32)

define void @at_parallel(ptr %fn, ptr %ctx, i32 %asked) nounwind {
entry:
  %single = icmp sle i32 %asked, 1
  br i1 %single, label %alone, label %look

look:
  %n = call i32 @llvm.umin.i32(i32 %asked, i32 $max_threads)
  ; A plain look first: a failing cmpxchg would take the cache line from the owner.
  %busy = load atomic i32, ptr @at_busy monotonic, align 4
  %free = icmp eq i32 %busy, 0
  br i1 %free, label %lock, label %alone

lock:
  ; acquire: pairs with the release store in `unlock`; what the last owner wrote is visible to this one.
  %claim = cmpxchg ptr @at_busy, i32 0, i32 1 acquire monotonic
  %owned = extractvalue { i32, i1 } %claim, 1
  br i1 %owned, label %own, label %alone

alone:
  call void %fn(ptr %ctx, i32 0)
  ret void

own:
  ; Only owners change a closed state, so a monotonic load under the lock reads the latest value.
  %old = load atomic i64, ptr @at_pool monotonic, align 8
  %old.generation = lshr i64 %old, 32
  %workers = load i32, ptr @at_workers, align 4
  %wanted = sub i32 %n, 1
  %enough = icmp uge i32 %workers, %wanted
  br i1 %enough, label %publish, label %grow

grow:
  call void @at_grow(i32 %wanted, i64 %old.generation)
  br label %publish

publish:
  %home = call i32 @sched_getcpu()
  store atomic i32 %home, ptr @at_home monotonic, align 4
  store ptr %fn, ptr getelementptr inbounds ({ i64, ptr, ptr }, ptr @at_pool, i32 0, i32 1), align 8
  store ptr %ctx, ptr getelementptr inbounds ({ i64, ptr, ptr }, ptr @at_pool, i32 0, i32 2), align 8
  %new.generation = add i64 %old.generation, 1
  %generation.bits = shl i64 %new.generation, 32
  %n.wide = zext i32 %n to i64
  %n.bits = shl i64 %n.wide, 16
  %opened = or i64 %n.bits, 2147483648
  %new = or i64 %generation.bits, %opened
  ; seq_cst: as a release it hands fn, ctx and *ctx to those who enter; and against the sleepers (Dekker): we
  ; write state then read asleep, a worker writes asleep then the kernel reads state, so one sees the other.
  store atomic i64 %new, ptr @at_pool seq_cst, align 8
  %here = load i32, ptr @at_workers, align 4
  %last = call i32 @llvm.umin.i32(i32 %here, i32 %wanted)
  br label %look.asleep

look.asleep:
  %tid = phi i32 [ 1, %publish ], [ %tid.next, %awake ]
  %more = icmp ule i32 %tid, %last
  br i1 %more, label %test.asleep, label %run

test.asleep:
  %flag = getelementptr i8, ptr @at_asleep, i32 %tid
  %sleeps = load atomic i8, ptr %flag seq_cst, align 1
  %is.asleep = icmp ne i8 %sleeps, 0
  br i1 %is.asleep, label %wake, label %awake

awake:
  %tid.next = add i32 %tid, 1
  br label %look.asleep

wake:
  ; One call wakes all that this job may use: bit tid mod 32 of the mask stands for worker tid.
  %all = icmp ugt i32 %n, 31
  %bit = shl i32 1, %n
  %below = sub i32 %bit, 2
  %mask = select i1 %all, i32 -1, i32 %below
  %woken = call i64 (i64, ...) @syscall(i64 $futex, ptr getelementptr inbounds (i8, ptr @at_pool, i64 4),
    i32 138, i32 2147483647, ptr null, ptr null, i32 %mask)
  br label %run

run:
  call void %fn(ptr %ctx, i32 0)
  ; acq_rel: nobody enters after this; acquire pairs with the release of those who left already.
  %closing = atomicrmw and ptr @at_pool, i64 -2147483649 acq_rel
  %inside = and i64 %closing, 65535
  %none = icmp eq i64 %inside, 0
  br i1 %none, label %unlock, label %drain

drain:
  ; acquire: pairs with the workers' release decrement; what they wrote is visible before we return.
  %spins = phi i32 [ 0, %run ], [ %spins.next, %drain.again ]
  %seen = load atomic i64, ptr @at_pool acquire, align 8
  %still = and i64 %seen, 65535
  %drained = icmp eq i64 %still, 0
  br i1 %drained, label %unlock, label %drain.wait

drain.wait:
  ; A worker that was descheduled within a chunk may need our core.
  %patient = icmp ult i32 %spins, 1024
  br i1 %patient, label %drain.pause, label %drain.yield

drain.pause:
  $pause
  %spins.more = add i32 %spins, 1
  br label %drain.again

drain.yield:
  %yielded = call i32 @sched_yield()
  br label %drain.again

drain.again:
  %spins.next = phi i32 [ %spins.more, %drain.pause ], [ %spins, %drain.yield ]
  br label %drain

unlock:
  store atomic i32 0, ptr @at_busy release, align 4
  ret void
}

; One worker: its argument is tid (low 16 bits) and the generation before its first job.
define internal ptr @at_worker(ptr %argument) nounwind {
entry:
  %time = alloca { i64, i64 }, align 8
  ; The CPU that this worker may not use now, or -1; the CPUs that it might use before, and may now.
  %avoided = alloca i32, align 4
  %cpus = alloca [128 x i8], align 8
  %others = alloca [128 x i8], align 8
  store i32 -1, ptr %avoided, align 4
  %packed = ptrtoint ptr %argument to i64
  %tid.wide = and i64 %packed, 65535
  %tid = trunc i64 %tid.wide to i32
  %first = lshr i64 %packed, 16
  %flag = getelementptr i8, ptr @at_asleep, i64 %tid.wide
  %tid.bit = and i32 %tid, 31
  %mask = shl i32 1, %tid.bit
  br label %restart

; Spin anew from now on. %known is the generation last looked at: one more job is open to us when it changes.
restart:
  %known = phi i64 [ %first, %entry ], [ %generation, %joined ], [ %generation, %missed ],
    [ %relax.known, %awoken ]
  %start = call i64 @at_now(ptr %time)
  br label %poll

poll:
  %spin.known = phi i64 [ %known, %restart ], [ %relax.known, %relax ], [ %relax.known, %time.left ],
    [ %spin.known, %lost ]
  %count = phi i32 [ 0, %restart ], [ %count.next, %relax ], [ 0, %time.left ], [ %count, %lost ]
  ; monotonic: the cmpxchg below acquires, and nothing but the word itself is used before it.
  %state = load atomic i64, ptr @at_pool monotonic, align 8
  %generation = lshr i64 %state, 32
  %old = icmp eq i64 %generation, %spin.known
  br i1 %old, label %relax, label %fresh

fresh:
  %shifted = lshr i64 %state, 16
  %nthreads = and i64 %shifted, 32767
  %included = icmp ult i64 %tid.wide, %nthreads
  ; A job of fewer threads is as good as none: the clock of our spinning runs on.
  br i1 %included, label %ours, label %relax

ours:
  %cpu = call i32 @sched_getcpu()
  %home = load atomic i32, ptr @at_home monotonic, align 4
  %shares = icmp eq i32 %cpu, %home
  br i1 %shares, label %move, label %look.open

move:
  call void @at_free(ptr %avoided, ptr %cpus, ptr %others)
  %moved = call i1 @at_move(i32 %cpu)
  br i1 %moved, label %lost, label %look.open

look.open:
  %open.bit = and i64 %state, 2147483648
  %open = icmp ne i64 %open.bit, 0
  br i1 %open, label %enter, label %missed

; Closed before we came: jobs do come in, so stay awake for the next.
missed:
  br label %restart

enter:
  ; The word holds generation, open and nthreads, so success means that this very job is open to us now, and
  ; it stays in place until we leave. acquire: pairs with the publishing store; fn, ctx and *ctx are visible.
  %entered = add i64 %state, 1
  %attempt = cmpxchg weak ptr @at_pool, i64 %state, i64 %entered acquire monotonic
  %in = extractvalue { i64, i1 } %attempt, 1
  br i1 %in, label %joined, label %lost

; Another worker came or left, or the job was closed: look again.
lost:
  br label %poll

joined:
  %fn = load ptr, ptr getelementptr inbounds ({ i64, ptr, ptr }, ptr @at_pool, i32 0, i32 1), align 8
  %ctx = load ptr, ptr getelementptr inbounds ({ i64, ptr, ptr }, ptr @at_pool, i32 0, i32 2), align 8
  call void %fn(ptr %ctx, i32 %tid)
  ; release: our writes, and our last read of ctx, come before the caller sees the count fall.
  %left = atomicrmw sub ptr @at_pool, i64 1 release
  br label %restart

relax:
  %relax.known = phi i64 [ %spin.known, %poll ], [ %generation, %fresh ]
  $pause
  %count.next = add i32 %count, 1
  %check = icmp uge i32 %count.next, 64
  br i1 %check, label %check.time, label %poll

check.time:
  %now = call i64 @at_now(ptr %time)
  %spent = sub i64 %now, %start
  %tired = icmp ugt i64 %spent, $spin_ns
  br i1 %tired, label %sleep, label %time.left

time.left:
  br label %poll

sleep:
  ; Woken on the caller's CPU it would wait there for milliseconds, until it is moved or the caller rests.
  %caller = load atomic i32, ptr @at_home monotonic, align 4
  %still = load i32, ptr %avoided, align 4
  %same = icmp eq i32 %still, %caller
  br i1 %same, label %check.cpus, label %avoid

check.cpus:
  %kept = call i1 @at_may_use(ptr %others)
  br i1 %kept, label %doze, label %avoid

avoid:
  call void @at_free(ptr %avoided, ptr %cpus, ptr %others)
  call void @at_avoid(i32 %caller, ptr %avoided, ptr %cpus, ptr %others)
  br label %doze

doze:
  ; seq_cst store before the kernel's comparison of the generation, which it does under its own lock with full
  ; barriers: see `publish`. If a job was opened meanwhile, the comparison fails and the call returns at once.
  store atomic i8 1, ptr %flag seq_cst, align 1
  %expected = trunc i64 %relax.known to i32
  %waited = call i64 (i64, ...) @syscall(i64 $futex, ptr getelementptr inbounds (i8, ptr @at_pool, i64 4),
    i32 137, i32 %expected, ptr null, ptr null, i32 %mask)
  br label %awoken

; A stale flag would only cost a caller one needless system call, so monotonic will do.
awoken:
  store atomic i8 0, ptr %flag monotonic, align 1
  br label %restart
}

; Nanoseconds of the monotonic clock, for differences.
define internal i64 @at_now(ptr %time) nounwind {
  %status = call i32 @clock_gettime(i32 1, ptr %time)
  %seconds = load i64, ptr %time, align 8
  %fraction.at = getelementptr i8, ptr %time, i64 8
  %fraction = load i64, ptr %fraction.at, align 8
  %whole = mul i64 %seconds, 1000000000
  %sum = add i64 %whole, %fraction
  ret i64 %sum
}

; Start workers up to %wanted, as far as the system lets us. The caller owns the pool and no job is open.
define internal void @at_grow(i32 %wanted, i64 %generation) noinline nounwind {
entry:
  %attributes = alloca [128 x i8], align 16
  %set = alloca [128 x i8], align 16
  %saved = alloca [128 x i8], align 16
  %id = alloca i64, align 8
  %refused = load i64, ptr @at_refused, align 8
  %since = sub i64 %generation, %refused
  %recent = icmp ult i64 %since, 1024
  %ever = icmp ne i64 %refused, -1
  %skip = and i1 %recent, %ever
  br i1 %skip, label %done, label %prepare

prepare:
  ; Workers inherit the mask: signals are the business of the application's threads. Faults stay deliverable,
  ; for a blocked one would kill the process before any crash handler could speak.
  %s0 = call i32 @sigfillset(ptr %set)
  %s1 = call i32 @sigdelset(ptr %set, i32 4)
  %s2 = call i32 @sigdelset(ptr %set, i32 5)
  %s3 = call i32 @sigdelset(ptr %set, i32 7)
  %s4 = call i32 @sigdelset(ptr %set, i32 8)
  %s5 = call i32 @sigdelset(ptr %set, i32 11)
  %s6 = call i32 @pthread_sigmask(i32 2, ptr %set, ptr %saved)
  %a0 = call i32 @pthread_attr_init(ptr %attributes)
  %a1 = call i32 @pthread_attr_setdetachstate(ptr %attributes, i32 1)
  %a2 = call i32 @pthread_attr_setstacksize(ptr %attributes, i64 8388608)
  %present = load i32, ptr @at_workers, align 4
  %argument.high = shl i64 %generation, 16
  br label %next

next:
  %count = phi i32 [ %present, %prepare ], [ %tid, %started ]
  %more = icmp ult i32 %count, %wanted
  br i1 %more, label %start, label %finish

start:
  %tid = add i32 %count, 1
  %tid.wide = zext i32 %tid to i64
  %packed = or i64 %argument.high, %tid.wide
  %argument = inttoptr i64 %packed to ptr
  %status = call i32 @pthread_create(ptr %id, ptr %attributes, ptr @at_worker, ptr %argument)
  %ok = icmp eq i32 %status, 0
  br i1 %ok, label %started, label %failed

started:
  store atomic i32 %tid, ptr @at_workers monotonic, align 4
  br label %next

failed:
  store i64 %generation, ptr @at_refused, align 8
  br label %finish

finish:
  %a3 = call i32 @pthread_attr_destroy(ptr %attributes)
  %s7 = call i32 @pthread_sigmask(i32 2, ptr %saved, ptr null)
  br label %done

done:
  ret void
}

define i32 @at_pool_workers() nounwind {
  %workers = load atomic i32, ptr @at_workers monotonic, align 4
  ret i32 %workers
}

; Only for a child after fork, which has one thread: order does not matter.
define void @at_pool_reset() nounwind {
  store { i64, ptr, ptr } zeroinitializer, ptr @at_pool, align 8
  store i32 0, ptr @at_busy, align 4
  store i32 0, ptr @at_workers, align 4
  store i64 -1, ptr @at_refused, align 8
  call void @llvm.memset.p0.i64(ptr @at_asleep, i8 0, i64 $max_threads, i1 false)
  ret void
}
"""
)
