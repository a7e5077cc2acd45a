"""Text of the functions around ``@kernel``: timing loops and the entry that Python calls.

An object file describes itself and offers (all addresses are of the module's own symbols):

- ``at_abi`` i32, ``at_threads`` i32, ``at_scratch_bytes`` i64, ``at_signature`` NUL-terminated text;
- ``i64 at_bench(args, scratch, nthreads, n)``: total nanoseconds of ``n`` runs on the monotonic clock;
  ``at_bench_cpu`` the same on the calling thread's CPU time;
- ``ptr at_scratch_get()`` / ``void at_scratch_put(ptr)``: the module keeps one block, whose pages stay warm between
  calls; a caller that finds it taken gets a block of its own. Null when malloc failed or no scratch is needed;
- ``i32 at_run(args)``: scratch, kernel with ``at_threads`` threads; 0, or 2 when memory ran out;
- ``void at_release()``: frees the kept block; nothing may run afterwards;
- ``ptr at_call(self, args, nargs)``: a METH_FASTCALL function. It returns the int 0 (done), 1 (these arguments
  need the slow path) or 2 (out of memory). It reads the heads of the array objects directly, so the
  loader fills `at_py_table` (`TABLE`) only after it has verified their layout; left empty, every
  call returns 1.
"""

from __future__ import annotations

from math import prod

from schedules.ir import Buffer, const

ABI = 1
ITEMSIZE = {"float32": 4, "float64": 8, "int32": 4, "int64": 8}
TABLE = ("ndarray", *ITEMSIZE)
"""What `at_py_table` points to, in order: the type numpy.ndarray, then the dtype singletons."""

# Offsets in the head of numpy's PyArrayObject on a 64-bit CPython with a two-word object head.
OB_TYPE, DATA, NDIM, DIMENSIONS, DESCR, FLAGS = 8, 16, 24, 32, 56, 64
ARRAY_HEAD_BYTES = 72
C_CONTIGUOUS, WRITEABLE = 0x1, 0x400

SYMBOLS = (
    "kernel",
    "at_abi",
    "at_threads",
    "at_scratch_bytes",
    "at_signature",
    "at_bench",
    "at_bench_cpu",
    "at_scratch_get",
    "at_scratch_put",
    "at_run",
    "at_release",
    "at_call",
    "at_py_table",
)


def shape_of(b: Buffer) -> tuple[int, ...]:
    """Extents of a parameter in elements. Raises ValueError unless all are integer literals."""
    shape = tuple(const(e) for e in b.shape)
    if any(n is None or n < 0 for n in shape):
        raise ValueError(f"parameter {b.name} has shape {b.shape}; a compiled kernel needs integers")
    return tuple(n for n in shape if n is not None)


def signature(params: tuple[Buffer, ...], outputs: tuple[str, ...]) -> str:
    """What a compiled kernel takes, as text: ``float32[7,5] float32[7,5] -> float32[7,5]``."""
    def one(b: Buffer) -> str:
        return f"{b.dtype}[{','.join(map(str, shape_of(b)))}]"

    ins = " ".join(one(b) for b in params if b.name not in outputs)
    return f"{ins} -> {' '.join(one(b) for b in params if b.name in outputs)}".strip()


def entry(params: tuple[Buffer, ...], outputs: tuple[str, ...], scratch_bytes: int, threads: int) -> str:
    """LLVM IR to append to the module that defines ``@kernel``. ``params``: inputs, then outputs,
    with integer shapes; ``scratch_bytes``: what the kernel needs with ``threads`` threads."""
    text = signature(params, outputs)
    return "\n".join(
        [
            f"@at_abi = constant i32 {ABI}",
            f"@at_threads = constant i32 {threads}",
            f"@at_scratch_bytes = constant i64 {scratch_bytes}",
            f'@at_signature = constant [{len(text) + 1} x i8] c"{text}\\00"',
            f"@at_py_table = global [{len(TABLE)} x ptr] zeroinitializer",
            _EXTERNALS,
            _bench("at_bench", clock=1),  # CLOCK_MONOTONIC
            _bench("at_bench_cpu", clock=3),  # CLOCK_THREAD_CPUTIME_ID
            _SCRATCH.format(bytes=scratch_bytes, align=2 << 20 if scratch_bytes >= 2 << 20 else 64)
            if scratch_bytes
            else _NO_SCRATCH,
            _RUN.format(threads=threads, missing="true" if scratch_bytes else "false"),
            _call(params, outputs),
        ]
    )


_EXTERNALS = """
declare i32 @clock_gettime(i32, ptr) nounwind
declare i32 @posix_memalign(ptr, i64, i64) nounwind
declare void @free(ptr) nounwind
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare ptr @PyLong_FromLong(i64)
"""


def _bench(name: str, clock: int) -> str:
    return f"""
define i64 @{name}(ptr %args, ptr %scratch, i32 %nthreads, i64 %n) nounwind {{
entry:
  %t0 = alloca [2 x i64]
  %t1 = alloca [2 x i64]
  %r0 = call i32 @clock_gettime(i32 {clock}, ptr %t0)
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %body, label %done
body:
  call void @kernel(ptr %args, ptr %scratch, i32 %nthreads) noinline
  %next = add i64 %i, 1
  br label %head
done:
  %r1 = call i32 @clock_gettime(i32 {clock}, ptr %t1)
  %n0 = getelementptr i64, ptr %t0, i64 1
  %n1 = getelementptr i64, ptr %t1, i64 1
  %s0 = load i64, ptr %t0
  %s1 = load i64, ptr %t1
  %ns0 = load i64, ptr %n0
  %ns1 = load i64, ptr %n1
  %s = sub i64 %s1, %s0
  %ns = sub i64 %ns1, %ns0
  %scaled = mul i64 %s, 1000000000
  %total = add i64 %scaled, %ns
  ret i64 %total
}}
"""


# The lock is only ever tried, never waited for, so a fork while another thread holds it costs the
# child an allocation a call and nothing else.
_SCRATCH = """
@at_block = internal global ptr null
@at_lock = internal global i32 0
define ptr @at_scratch_get() nounwind {{
entry:
  %out = alloca ptr
  %was = atomicrmw xchg ptr @at_lock, i32 1 acquire
  %mine = icmp eq i32 %was, 0
  br i1 %mine, label %kept, label %fresh
kept:
  %old = load atomic ptr, ptr @at_block monotonic, align 8
  %empty = icmp eq ptr %old, null
  br i1 %empty, label %fresh, label %have
have:
  ret ptr %old
fresh:
  %rc = call i32 @posix_memalign(ptr %out, i64 {align}, i64 {bytes})
  %ok = icmp eq i32 %rc, 0
  br i1 %ok, label %new, label %fail
new:
  %p = load ptr, ptr %out
  br i1 %mine, label %keep, label %give
keep:
  store atomic ptr %p, ptr @at_block monotonic, align 8
  br label %give
give:
  ret ptr %p
fail:
  br i1 %mine, label %unlock, label %none
unlock:
  store atomic i32 0, ptr @at_lock release, align 4
  br label %none
none:
  ret ptr null
}}
define void @at_scratch_put(ptr %p) nounwind {{
  %kept = load atomic ptr, ptr @at_block monotonic, align 8
  %mine = icmp eq ptr %p, %kept
  br i1 %mine, label %unlock, label %drop
unlock:
  store atomic i32 0, ptr @at_lock release, align 4
  ret void
drop:
  call void @free(ptr %p)
  ret void
}}
define void @at_release() nounwind {{
  %p = load ptr, ptr @at_block
  store ptr null, ptr @at_block
  call void @free(ptr %p)
  ret void
}}
"""

_NO_SCRATCH = """
define ptr @at_scratch_get() nounwind {
  ret ptr null
}
define void @at_scratch_put(ptr %p) nounwind {
  ret void
}
define void @at_release() nounwind {
  ret void
}
"""

_RUN = """
define i32 @at_run(ptr %args) nounwind {{
  %s = call ptr @at_scratch_get()
  %null = icmp eq ptr %s, null
  %failed = and i1 %null, {missing}
  br i1 %failed, label %fail, label %go
go:
  call void @kernel(ptr %args, ptr %s, i32 {threads}) noinline
  call void @at_scratch_put(ptr %s)
  ret i32 0
fail:
  ret i32 2
}}
"""


def _call(params: tuple[Buffer, ...], outputs: tuple[str, ...]) -> str:
    """The fast path. A field is read only where the checks before it make that safe: the type first, then the
    head of the array, then its dimensions (whose number is then known)."""
    n = len(params)
    types = _Block()
    types += "%ndarray = load ptr, ptr @at_py_table"
    for k in range(n):
        types += f"%slot{k} = getelementptr ptr, ptr %args, i64 {k}"
        types += f"%o{k} = load ptr, ptr %slot{k}"
        types.field(f"type{k}", k, OB_TYPE, "ptr")
        types.require(f"icmp eq ptr %type{k}, %ndarray")
    heads = _Block()
    for name in dict.fromkeys(b.dtype for b in params):
        heads += f"%at_{name} = getelementptr ptr, ptr @at_py_table, i64 {TABLE.index(name)}"
        heads += f"%dtype_{name} = load ptr, ptr %at_{name}"
    for k, b in enumerate(params):
        heads.field(f"ndim{k}", k, NDIM, "i32")
        heads.require(f"icmp eq i32 %ndim{k}, {len(b.shape)}")
        heads.field(f"descr{k}", k, DESCR, "ptr")
        heads.require(f"icmp eq ptr %descr{k}, %dtype_{b.dtype}")
        need = C_CONTIGUOUS | (WRITEABLE if b.name in outputs else 0)
        heads.field(f"flags{k}", k, FLAGS, "i32")
        heads += f"%needed{k} = and i32 %flags{k}, {need}"
        heads.require(f"icmp eq i32 %needed{k}, {need}")
        heads.field(f"data{k}", k, DATA, "ptr")
        heads += f"%p{k} = ptrtoint ptr %data{k} to i64"
        heads += f"%low{k} = and i64 %p{k}, {ITEMSIZE[b.dtype] - 1}"
        heads.require(f"icmp eq i64 %low{k}, 0")
    ranges = _Block()
    for k, b in enumerate(params):
        for axis, extent in enumerate(shape_of(b)):
            if axis == 0:
                ranges.field(f"dims{k}", k, DIMENSIONS, "ptr")
            ranges += f"%at{k}.{axis} = getelementptr i64, ptr %dims{k}, i64 {axis}"
            ranges += f"%dim{k}.{axis} = load i64, ptr %at{k}.{axis}"
            ranges.require(f"icmp eq i64 %dim{k}.{axis}, {extent}")
    size = [prod(shape_of(b)) * ITEMSIZE[b.dtype] for b in params]
    for k in range(n):
        ranges += f"%end{k} = add i64 %p{k}, {size[k]}"
    for k, b in enumerate(params):
        for j, other in enumerate(params):
            if b.name in outputs and not (other.name in outputs and j <= k) and size[k] and size[j]:
                ranges += f"%after{k}.{j} = icmp uge i64 %p{k}, %end{j}"
                ranges += f"%before{k}.{j} = icmp uge i64 %p{j}, %end{k}"
                ranges.require(f"or i1 %after{k}.{j}, %before{k}.{j}")
    fill = "\n".join(
        f"  %arg{k} = getelementptr ptr, ptr %argv, i64 {k}\n  store ptr %data{k}, ptr %arg{k}" for k in range(n)
    )
    return f"""
define ptr @at_call(ptr %self, ptr %args, i64 %nargs) nounwind {{
entry:
  %argv = alloca [{max(n, 1)} x ptr]
  %count = icmp eq i64 %nargs, {n}
  br i1 %count, label %types, label %slow
types:
{types.end("t")}, label %heads, label %slow
heads:
{heads.end("h")}, label %ranges, label %slow
ranges:
{ranges.end("r")}, label %go, label %slow
go:
{fill}
  %state = call ptr @PyEval_SaveThread()
  %rc = call i32 @at_run(ptr %argv)
  call void @PyEval_RestoreThread(ptr %state)
  %rc64 = sext i32 %rc to i64
  %result = call ptr @PyLong_FromLong(i64 %rc64)
  ret ptr %result
slow:
  %refused = call ptr @PyLong_FromLong(i64 1)
  ret ptr %refused
}}
"""


class _Block:
    """Lines of one basic block that ends in a branch on all of its conditions."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.conditions: list[str] = []

    def __iadd__(self, line: str) -> _Block:
        self.lines.append("  " + line)
        return self

    def field(self, name: str, k: int, offset: int, kind: str) -> None:
        """``%name`` = a field of the head of object ``k``."""
        self += f"%{name}.at = getelementptr i8, ptr %o{k}, i64 {offset}"
        self += f"%{name} = load {kind}, ptr %{name}.at"

    def require(self, condition: str) -> None:
        self.conditions.append(condition)

    def end(self, prefix: str) -> str:
        """The text up to the branch's targets."""
        value = "true"
        for i, c in enumerate(self.conditions):
            self += f"%{prefix}{i} = {c}"
            self += f"%{prefix}all{i} = and i1 {value}, %{prefix}{i}"
            value = f"%{prefix}all{i}"
        return "\n".join([*self.lines, f"  br i1 {value}"])
