"""Small hand-written kernels for the tests of the compiler and the runtime."""

from __future__ import annotations

from functools import cache

import numpy as np

import autotune as at
from autotune import te
from autotune.backends import parse
from autotune.codegen.llvm.compile import LoadedObject, compile_module, host_arch, load_object
from autotune.codegen.runtime.entry import entry
from autotune.run.kernel import Kernel
from autotune.run.kernels import kernel_of
from autotune.run.workloads import as_workload
from schedules.expr import Cast, Const, Load, Var, dtype_of
from schedules.ir import Buffer
from schedules.model import Target, Workload
from schedules.space import derive
from schedules.te.compute_dag import Axis, ComputeDAG, Stage, Tensor

M, N, K = 24, 20, 9  # of `product`
# The end of a program that has a function `call`: it is called before a fork, in the child, and after it.
AROUND_A_FORK = """call()
child = os.fork()
if child == 0:
    call()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
call()
"""
LLVM_TYPES = {
    "float16": "half", "float32": "float", "float64": "double",
    "int8": "i8", "uint8": "i8", "int32": "i32", "int64": "i64",
}  # fmt: skip


def target(threads: int = 1) -> Target:
    arch, features, triple = host_arch()
    return Target("cpu", arch, triple, features, threads)


def buffer(name: str, shape: tuple[int, ...], dtype: str = "float32") -> Buffer:
    return Buffer(name, tuple(Const(n) for n in shape), dtype)


def add_text(n: int, dtype: str = "float32", *, through_scratch: int = 0) -> str:
    """c = a + b over n elements; with ``through_scratch`` the sum is first written to the scratch
    block, that many times over, and copied from there."""
    t = LLVM_TYPES[dtype]
    op = "fadd" if dtype.startswith("float") else "add"
    sum_to = "%scratch" if through_scratch else "%c"
    head = f"""
define void @kernel(ptr %args, ptr %scratch, i32 %nthreads) nounwind {{
entry:
  %b.at = getelementptr ptr, ptr %args, i64 1
  %c.at = getelementptr ptr, ptr %args, i64 2
  %a = load ptr, ptr %args
  %b = load ptr, ptr %b.at
  %c = load ptr, ptr %c.at
  br label %again
again:
  %round = phi i64 [ 0, %entry ], [ %round.next, %rounds ]
  br label %head
head:
  %i = phi i64 [ 0, %again ], [ %i.next, %body ]
  %more = icmp slt i64 %i, {n}
  br i1 %more, label %body, label %rounds
body:
  %x.at = getelementptr {t}, ptr %a, i64 %i
  %y.at = getelementptr {t}, ptr %b, i64 %i
  %z.at = getelementptr {t}, ptr {sum_to}, i64 %i
  %x = load {t}, ptr %x.at
  %y = load {t}, ptr %y.at
  %z = {op} {t} %x, %y
  store volatile {t} %z, ptr %z.at
  %i.next = add i64 %i, 1
  br label %head
rounds:
  %round.next = add i64 %round, 1
  %rounds.left = icmp slt i64 %round.next, {max(through_scratch, 1)}
  br i1 %rounds.left, label %again, label %copy
"""
    if not through_scratch:
        return head + "copy:\n  ret void\n}\n"
    return (
        head
        + f"""
copy:
  %j = phi i64 [ 0, %rounds ], [ %j.next, %copying ]
  %j.more = icmp slt i64 %j, {n}
  br i1 %j.more, label %copying, label %done
copying:
  %s.at = getelementptr {t}, ptr %scratch, i64 %j
  %d.at = getelementptr {t}, ptr %c, i64 %j
  %s = load volatile {t}, ptr %s.at
  store {t} %s, ptr %d.at
  %j.next = add i64 %j, 1
  br label %copy
done:
  ret void
}}
"""
    )


PARALLEL_TEXT = """
declare void @at_parallel(ptr, ptr, i32)
define internal void @worker(ptr %ctx, i32 %tid) nounwind {
entry:
  %out = load ptr, ptr %ctx
  %counter = getelementptr i64, ptr %ctx, i64 1
  br label %claim
claim:
  %i = atomicrmw add ptr %counter, i64 1 monotonic
  %more = icmp slt i64 %i, 64
  br i1 %more, label %work, label %done
work:
  %at = getelementptr i64, ptr %out, i64 %i
  store i64 %i, ptr %at
  br label %claim
done:
  ret void
}
define void @kernel(ptr %args, ptr %scratch, i32 %nthreads) nounwind {
  %ctx = alloca [2 x i64]
  %out = load ptr, ptr %args
  store ptr %out, ptr %ctx
  %counter = getelementptr i64, ptr %ctx, i64 1
  store i64 0, ptr %counter
  call void @at_parallel(ptr @worker, ptr %ctx, i32 %nthreads)
  ret void
}
"""
"""Writes 0..63 to its only parameter, 64 int64, from several threads."""

TWO_TEXT = """
define void @kernel(ptr %args, ptr %scratch, i32 %nthreads) nounwind {
entry:
  %p.at = getelementptr ptr, ptr %args, i64 1
  %q.at = getelementptr ptr, ptr %args, i64 2
  %a = load ptr, ptr %args
  %p = load ptr, ptr %p.at
  %q = load ptr, ptr %q.at
  br label %loop
loop:
  %i = phi i64 [ 0, %entry ], [ %next, %loop ]
  %x.at = getelementptr float, ptr %a, i64 %i
  %u.at = getelementptr float, ptr %p, i64 %i
  %v.at = getelementptr double, ptr %q, i64 %i
  %x = load float, ptr %x.at
  %u = fneg float %x
  %v = fpext float %x to double
  store float %u, ptr %u.at
  store double %v, ptr %v.at
  %next = add i64 %i, 1
  %more = icmp slt i64 %next, 6
  br i1 %more, label %loop, label %done
done:
  ret void
}
"""
"""p = -a (float32) and q = a (float64) over 6 elements."""


@cache
def add_object(shape: tuple[int, ...], dtype: str, through_scratch: int, scratch_bytes: int) -> bytes:
    n = int(np.prod(shape))
    text = add_text(n, dtype, through_scratch=through_scratch)
    return compile_module(text + entry(add_params(shape, dtype), ("c",), scratch_bytes, 1), target())


def add_params(shape: tuple[int, ...], dtype: str = "float32") -> tuple[Buffer, ...]:
    return tuple(buffer(name, shape, dtype) for name in "abc")


def add_loaded(
    shape: tuple[int, ...] = (7, 5),
    dtype: str = "float32",
    through_scratch: int = 0,
    scratch_bytes: int | None = None,
) -> LoadedObject:
    needed = int(np.prod(shape)) * np.dtype(dtype).itemsize if through_scratch else 0
    obj = add_object(shape, dtype, through_scratch, needed if scratch_bytes is None else scratch_bytes)
    return load_object(obj)


def workload(shape: tuple[int, ...], dtype: str = "float32") -> Workload:
    axes = tuple(Axis(f"i{k}", n) for k, n in enumerate(shape))
    index = tuple(Var(a.var) for a in axes)
    a, b, c = (Tensor(name, shape, dtype) for name in "abc")
    total = Load("a", index, dtype) + Load("b", index, dtype)
    stage = Stage((c,), axes, (), (total if dtype_of(total) == dtype else Cast(dtype, total),))
    return Workload(ComputeDAG((a, b), (stage,), ("c",)), op="add")


def add_kernel(
    shape: tuple[int, ...] = (7, 5),
    dtype: str = "float32",
    through_scratch: int = 0,
    scratch_bytes: int | None = None,
) -> Kernel:
    """The kernel add(a, b) -> c."""
    loaded = add_loaded(shape, dtype, through_scratch, scratch_bytes)
    return Kernel(loaded, add_params(shape, dtype), ("c",), workload(shape, dtype), target())


def that_packs() -> Kernel:
    """That packs its weights ahead: a candidate of the search."""
    workload = as_workload("matmul", {"m": 5, "n": 40, "k": 7}, constant_weights=True)
    target = parse("cpu", 1)
    space = derive(workload.dag, target)
    for sketch in range(len(space.sketches)):
        rows = space.sample(sketch, 8, np.random.default_rng(0))
        kernel = kernel_of(workload, target, space.trace(sketch, rows[space.valid(sketch, rows)][0]))
        if kernel.packed == {1}:
            return kernel
    raise AssertionError("no sketch packs")


def product(threads: int = 1) -> at.Kernel:
    """With scratch memory, and a parallel loop."""
    a, b = te.placeholder((M, K), "float32", "a"), te.placeholder((K, N), "float32", "b")
    r = te.reduce_axis(K, "r")
    c = te.compute((M, N), lambda i, j: te.sum(a[i, r] * b[r, j], axis=r), "c")
    d = te.compute((M, N), lambda i, j: c[N - 1 - j, j] + c[i, j], "d")
    s = at.Schedule([a, b, d])
    s.parallel("d_i")
    return at.build(s, threads=threads)
