"""Kernels as functions of C, for shared objects that need no Python.

The IR text appended to a kernel's module defines ``int f(in0, ..., out0, ...)``, with pointers to row-major
arrays, and ``void f_release(void)``. A function keeps its scratch memory between calls, as one in a process
with Python does (`autotune.codegen.runtime.support`, whose `running` and, for threads, whose pool go into the
same shared object).
"""

from __future__ import annotations

from collections.abc import Sequence

from autotune.codegen.runtime import entry
from autotune.codegen.runtime.by_cpu import NO_CODE
from autotune.codegen.runtime.open_signature import at_largest
from autotune.platform import amx
from schedules.ir import Buffer
from schedules.te.open_sizes import OpenSize

# What a function returns, and beside that one that takes sizes, and one that is chosen.
STATUS = {0: "done", 2: "no memory for scratch", 3: "the operating system refuses AMX to the process"}
OUTSIDE = {1: "a size is outside of its range, and nothing was computed"}
NOWHERE = {NO_CODE: "this processor runs none of the code, and nothing was computed"}


def c_entry(
    function: str,
    params: tuple[Buffer, ...],
    outputs: tuple[str, ...],
    scratch_bytes: int,
    threads: int,
    sizes: tuple[OpenSize, ...] = (),
) -> str:
    """IR text of the functions ``function`` and ``function_release``. ``params``: inputs, then outputs.
    ``sizes``: those that a call tells, which the function takes as int64 after the pointers, and checks."""
    text = entry.signature(at_largest(params, sizes), outputs)
    words = entry.descriptor(0, threads, scratch_bytes, text, {})[: entry.HEAD]
    items = ["i64 ptrtoint (ptr @kernel to i64)", *(f"i64 {w}" for w in words[1:])]
    return f"""
@descriptor = internal global [{entry.HEAD} x i64] [{", ".join(items)}], align 64
declare i32 @at_run(ptr, ptr)
declare void @at_release(ptr)

{c_function(function, len(params), sizes)}
define void @{function}_release() nounwind {{
  call void @at_release(ptr @descriptor)
  ret void
}}
"""


def c_function(function: str, pointers: int, sizes: Sequence[OpenSize] = (), told: Sequence[int] = ()) -> str:
    """IR text of ``int function(pointers ..., sizes ...)``, which runs what ``@descriptor`` describes, by
    ``@at_run``. ``sizes``: those that a call tells, as int64, and it checks. ``told``: numbers that it gives
    to the kernel in place of them."""
    types = ["ptr"] * pointers + ["i64"] * len(sizes)
    takes = ", ".join(f"{t} %p{i}" for i, t in enumerate(types))
    given = [f"{t} %p{i}" for i, t in enumerate(types)] + [f"i64 {n}" for n in told]
    stores = "\n".join(
        f"  %at{i} = getelementptr ptr, ptr %args, i64 {i}\n  store {x}, ptr %at{i}"
        for i, x in enumerate(given)
    )
    return f"""\
define i32 @{function}({takes}) nounwind {{
{_checks(sizes, pointers)}  %args = alloca [{len(given)} x ptr]
{stores}
  %status = call i32 @at_run(ptr @descriptor, ptr %args)
  ret i32 %status
}}
"""


def _checks(sizes: Sequence[OpenSize], first: int) -> str:
    """Lines that return 1 for a size outside of its range, as parameter ``first`` and those behind it are."""
    lines = []
    for i, s in enumerate(sizes, first):
        lines += [
            f"  %above{i} = sub i64 %p{i}, {s.least}",
            f"  %far{i} = icmp ugt i64 %above{i}, {s.most - s.least}",
            f"  br i1 %far{i}, label %outside{i}, label %inside{i}",
            f"outside{i}:",
            "  ret i32 1",
            f"inside{i}:",
        ]
    return "".join(f"{line}\n" for line in lines)


def copying(function: str, nbytes: int) -> str:
    """IR text of the functions ``function`` and ``function_release``: for code that reads as it is what other
    code reads packed. The first copies so many bytes."""
    return f"""
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define i32 @{function}(ptr %given, ptr %packed) nounwind {{
  call void @llvm.memcpy.p0.p0.i64(ptr %packed, ptr %given, i64 {nbytes}, i1 false)
  ret i32 0
}}

define void @{function}_release() nounwind {{
  ret void
}}
"""


def fork_handler() -> str:
    """IR text of a module that has the thread pool begin anew in the child after a fork."""
    return """
declare void @at_pool_reset()
declare i32 @pthread_atfork(ptr, ptr, ptr)
@at_start = internal global ptr @watch, section ".init_array", align 8
@llvm.used = appending global [1 x ptr] [ptr @at_start], section "llvm.metadata"

define internal void @watch() nounwind {
  %status = call i32 @pthread_atfork(ptr null, ptr null, ptr @at_pool_reset)
  ret void
}
"""


def tiles() -> str:
    """IR text of a module that asks for the tile registers of AMX when it is loaded
    (`autotune.platform.amx`). Its ``at_run_tiles`` is `support.running`'s ``at_run`` where they were
    granted."""
    return f"""
@refused = internal global i32 0
declare i32 @at_run(ptr, ptr)
declare i64 @syscall(i64, ...)
@at_start = internal global ptr @ask, section ".init_array", align 8
@llvm.used = appending global [1 x ptr] [ptr @at_start], section "llvm.metadata"

define internal void @ask() nounwind {{
  %failed = call i64 (i64, ...) @syscall(i64 {amx.ARCH_PRCTL}, i64 {amx.REQUEST}, i64 {amx.TILE_DATA})
  %no = icmp ne i64 %failed, 0
  %status = select i1 %no, i32 3, i32 0
  store i32 %status, ptr @refused
  ret void
}}

define i32 @at_run_tiles(ptr %descriptor, ptr %args) nounwind {{
  %status = load i32, ptr @refused
  %no = icmp ne i32 %status, 0
  br i1 %no, label %refuse, label %run
refuse:
  ret i32 %status
run:
  %done = call i32 @at_run(ptr %descriptor, ptr %args)
  ret i32 %done
}}
"""
