"""A builder of hand-written kernels for C[i] = A[i] + B[i]: right ones and every way to be wrong.

A trace of one step ("fake", kind=…) chooses; what a kind does is said where its text is made.
"""

from __future__ import annotations

import os
import time

from autotune.codegen.llvm.compile import compile_module
from autotune.codegen.runtime import entry
from autotune.errors import CompileError
from schedules import te
from schedules.dtypes import DTYPES
from schedules.errors import ScheduleError
from schedules.ir.nest import tensor_buffer
from schedules.model import Step, Target, Trace
from schedules.te.compute_dag import ComputeDAG

NAME = f"{__name__}:build"
SCRATCH = 200  # bytes, not a multiple of 64


def addition(shape: tuple[int, ...] = (37, 41), dtype: str = "float32") -> ComputeDAG:
    a, b = (te.placeholder(shape, dtype, name=n) for n in "AB")
    return te.dag([a, b, te.compute(shape, lambda *i: a[i] + b[i], name="C")])


def trace(kind: str, number: int = 0) -> Trace:
    return Trace((Step("fake", (("kind", kind), ("number", number))),))


def build(dag: ComputeDAG, trace: Trace, target: Target) -> bytes:
    args = dict(trace.steps[0].args)
    kind = args["kind"]
    if kind == "illegal":
        raise ScheduleError("split: loop i is gone; split i_0 instead")
    if kind == "refused":
        raise CompileError("LLVM refused the generated code")
    if kind == "builder bug":
        raise KeyError("lost")
    if kind == "builder dies":
        os.write(2, b"LLVM ERROR: cannot select\n")
        os.abort()
    if kind == "builder hangs":
        time.sleep(1000)
    if kind == "builds slowly":
        time.sleep(1.2)
        kind = "right"
    if kind == "builder eats memory":
        bytearray(64 << 30)
    if kind == "not an object":
        return b"\x7fELF and nothing else"
    buffers = tuple(map(tensor_buffer, dag.params))
    first = dag.params[0]
    # with strides all memory that an array has, gaps too
    text = kernel_text(kind, first.nbytes // DTYPES[first.dtype].itemsize, first.dtype, int(args["number"]))
    return compile_module(
        text + entry.entry(buffers, dag.outputs, SCRATCH, target.threads), target, optimize=False
    )


def kernel_text(kind: str, n: int, dtype: str, number: int) -> str:
    """A loop from ``first`` to ``last``, with ``extra`` instructions before it."""
    t = {"float32": "float", "float64": "double", "int32": "i32", "int64": "i64"}[dtype]
    add = "fadd" if t in ("float", "double") else "add"
    one = "1.0" if add == "fadd" else "1"
    at = lambda array, i: f"  %x = getelementptr {t}, ptr %{array}, i64 {i}\n"  # noqa: E731
    read, write = f"  %v = load volatile {t}, ptr %x\n", f"  store volatile {t} {one}, ptr %x\n"
    byte = lambda i: f"  %x = getelementptr i8, ptr %scratch, i64 {i}\n  store volatile i8 1, ptr %x\n"  # noqa: E731
    vec = f"<8 x {t}>"
    extra = {
        "reads past": at("A", n) + read,
        "reads before": at("B", -1) + read,
        "writes past": at("C", n) + write,
        "writes before": at("C", -1) + write,
        "writes input": at("A", 5) + write,
        "scratch past": byte(SCRATCH),
        "scratch far": byte(256),
        "scratch before": byte(-1),
        "assumes alignment": f"  %v = load volatile {vec}, ptr %A, align 32\n",
        "null store": "  store volatile i32 1, ptr null\n",
        "wild store": "  store volatile i32 1, ptr inttoptr (i64 1311768467463790320 to ptr)\n",
        "illegal instruction": "  call void @llvm.trap()\n",
        "divides by zero": '  %z = call i32 asm sideeffect "xor %ecx, %ecx; mov $$1, %eax; cltd; idiv %ecx", '
        '"={eax},~{ecx},~{edx}"()\n',
        "exits": "  call void @_exit(i32 7)\n",
        "forks": "  %pid = call i32 @fork()\n  %child = icmp eq i32 %pid, 0\n"
        "  br i1 %child, label %spin, label %begin\n",
        "eats memory": "  %m = call ptr @malloc(i64 68719476736)\n  store volatile i32 1, ptr %m\n",
        "overflows the stack": "  %d = call i64 @deep(i64 1)\n",
        "hangs": "  br label %spin\n",
    }.get(kind, "")
    last = n - 1 if kind == "leaves one" else n
    turns = {"slow": 300, "steady": 1 + number}.get(kind, 1)
    wrong = (
        f"  %w = getelementptr {t}, ptr %C, i64 {n - 2}\n  store {t} {one}, ptr %w\n"
        if kind == "wrong"
        else ""
    )
    if kind == "accumulates":  # relies on what the output held before
        value = f"  %c = load {t}, ptr %Cp\n  %ab = {add} {t} %a, %b\n  %s = {add} {t} %ab, %c\n"
    else:
        value = f"  %s = {add} {t} %a, %b\n"
    enter = "" if extra.rstrip().endswith(("%spin", "%begin")) else "  br label %begin\n"
    return f"""
declare void @llvm.trap()
declare void @_exit(i32)
declare i32 @fork()
declare ptr @malloc(i64)
define internal i64 @deep(i64 %k) noinline {{
  %buffer = alloca [4096 x i8]
  store volatile i8 1, ptr %buffer
  %next = add i64 %k, 1
  %r = call i64 @deep(i64 %next)
  %s = add i64 %r, 1
  %v = load volatile i8, ptr %buffer
  ret i64 %s
}}
define void @kernel(ptr %args, ptr %scratch, i32 %nthreads) {{
entry:
  %Bat = getelementptr ptr, ptr %args, i64 1
  %Cat = getelementptr ptr, ptr %args, i64 2
  %A = load ptr, ptr %args
  %B = load ptr, ptr %Bat
  %C = load ptr, ptr %Cat
  store volatile i64 1, ptr %scratch
{extra}{enter}spin:
  call void asm sideeffect "", ""()
  br label %spin
begin:
  br label %outer
outer:
  %turn = phi i64 [ 0, %begin ], [ %turn1, %outer.end ]
  br label %loop
loop:
  %i = phi i64 [ 0, %outer ], [ %i1, %loop ]
  %Ap = getelementptr {t}, ptr %A, i64 %i
  %Bp = getelementptr {t}, ptr %B, i64 %i
  %Cp = getelementptr {t}, ptr %C, i64 %i
  %a = load {t}, ptr %Ap
  %b = load {t}, ptr %Bp
{value}  store {t} %s, ptr %Cp
  call void asm sideeffect "", "~{{memory}}"()
  %i1 = add i64 %i, 1
  %more = icmp slt i64 %i1, {last}
  br i1 %more, label %loop, label %outer.end
outer.end:
  %turn1 = add i64 %turn, 1
  %again = icmp slt i64 %turn1, {turns}
  br i1 %again, label %outer, label %done
done:
{wrong}  ret void
}}
"""
