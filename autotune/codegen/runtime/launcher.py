"""Launches the kernels of a program in machine code, so that a call costs little beside the driver's own
work.

One function for all programs, compiled once a process: ``at_launch(self, objects, nargs)`` (METH_FASTCALL)
takes the addresses of the arrays as ints, then the stream. ``self`` is a tuple whose first item is the
address of a *descriptor*, an array of i64 words: `HEAD` words, then `RECORD` words for each launch, then for
each launch the numbers of the arrays that it takes. It returns the driver's status, 0 for success, and stops
at the first other one.

Parameters are on the stack and nothing is allocated, so that threads may call at the same time. The GIL is
released, because a driver with a full queue waits. The driver's function is given by its address:
``cuLaunchKernel``, or any function with its signature, such as emulation's. Blocks in clusters are launched
by ``cuLaunchKernelEx``, whose configuration (`CUlaunchConfig`, with one attribute) is written on the stack.
So are tensor maps: copies of what was encoded once, with the address of this call
(``cuTensorMapReplaceAddress``).
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from functools import cache
from math import prod
from typing import NamedTuple

from autotune.codegen.grid_code import Launch
from autotune.codegen.llvm.compile import Builtin
from autotune.codegen.runtime.entry import word
from autotune.errors import CompileError

# Words of a descriptor's head, and of a launch's record, by index; HEAD and RECORD are their numbers.
LAUNCH, COUNT, ARRAYS, LAUNCH_EX, REPLACE, MAPS, FIRST_MAP, HEAD = range(8)
FUNCTION, GRID, BLOCK, SHARED, CLUSTER, NPARAMS, FIRST, RECORD = 0, 1, 4, 7, 8, 11, 12, 13
CLUSTER_DIMENSION = 4  # of CUlaunchAttributeID
MAP = 16  # words of a tensor map
_API = ("PyEval_SaveThread", "PyEval_RestoreThread", "PyLong_AsVoidPtr", "PyLong_FromLong", "PyTuple_GetItem")

# (handle of a kernel, its launch, numbers of its arrays and, behind all arrays, of its tensor maps).
Prepared = tuple[int, Launch, Sequence[int]]
# (number of an array, the 128 bytes of a tensor map of it at any address).
Encoded = tuple[int, bytes]


class DriverFunctions(NamedTuple):
    """Addresses of what a driver has: it launches a kernel, launches one in clusters, and gives a tensor map
    another address. 0 where it has none."""

    launch: int
    launch_ex: int = 0
    replace: int = 0


def bind(
    driver: DriverFunctions, launches: Sequence[Prepared], arrays: int, maps: Sequence[Encoded] = ()
) -> Callable[..., int]:
    """A builtin function of ``arrays`` addresses and a stream that launches in order. It returns the driver's
    status, or -1 for another number of arguments. Raises CompileError for clusters and tensor maps that the
    driver does not have."""
    size = HEAD + RECORD * len(launches) + sum(len(used) for _, _, used in launches)
    head = [driver.launch, len(launches), arrays, driver.launch_ex, driver.replace, len(maps), size]
    records: list[int] = []
    numbers: list[int] = []
    for handle, x, used in launches:
        if prod(x.cluster) > 1 and not driver.launch_ex:
            raise CompileError(f"{x.kernel} runs blocks in clusters, which this driver does not launch")
        if max(used, default=0) >= arrays and not driver.replace:
            raise CompileError(f"{x.kernel} takes tensor maps, which this driver does not have")
        first = HEAD + RECORD * len(launches) + len(numbers)
        records += [handle, *x.grid, *x.block, x.shared, *x.cluster, len(used), first]
        numbers += used
    encoded = [w for n, made in maps for w in (n, *struct.unpack(f"<{MAP}q", made))]
    words = [*head, *records, *numbers, *encoded]
    descriptor = (ctypes.c_int64 * len(words))(*words)
    return _support().bind((ctypes.addressof(descriptor), descriptor))


@cache
def _support() -> Builtin:
    return Builtin(TEXT, ("at_launch",), "at_launch", "launch", _API)


# (name in the text, word of a launch's record) of what a launch says.
_ASKED = [
    *((f"{of}{a}", first + i) for of, first in (("g", GRID), ("b", BLOCK)) for i, a in enumerate("xyz")),
    ("shared", SHARED),
]
_CLUSTER = [(f"c{a}", CLUSTER + i) for i, a in enumerate("xyz")]


def _stores(values: Sequence[tuple[str, str, int]], to: str) -> str:
    """IR that stores (type, value, at which byte) behind a pointer."""
    return "".join(
        f"  {to}.{at} = getelementptr i8, ptr {to}, i64 {at}\n  store {kind} {value}, ptr {to}.{at}\n"
        for kind, value, at in values
    )


# What CUlaunchConfig and CUlaunchAttribute have at which byte.
_CONFIG = [
    *(("i32", f"%{name}", 4 * i) for i, (name, _) in enumerate(_ASKED)),
    ("ptr", "%stream", 32), ("ptr", "%attribute", 40), ("i32", "1", 48),
]  # fmt: skip
_ATTRIBUTE = [
    ("i32", str(CLUSTER_DIMENSION), 0),
    *(("i32", f"%{name}", 8 + 4 * i) for i, (name, _) in enumerate(_CLUSTER)),
]  # fmt: skip

# IR text of the launcher.
TEXT = f"""
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare ptr @PyLong_AsVoidPtr(ptr)
declare ptr @PyLong_FromLong(i64)
declare ptr @PyTuple_GetItem(ptr, i64)

define ptr @at_launch(ptr %self, ptr %objects, i64 %nargs) nounwind {{
entry:
  %item = call ptr @PyTuple_GetItem(ptr %self, i64 0)
  %desc = call ptr @PyLong_AsVoidPtr(ptr %item)
{word("launch", "%desc", LAUNCH, "ptr")}{word("count", "%desc", COUNT)}{word("arrays", "%desc", ARRAYS)}
{word("launch_ex", "%desc", LAUNCH_EX, "ptr")}{word("replace", "%desc", REPLACE, "ptr")}
{word("nmaps", "%desc", MAPS)}{word("first_map", "%desc", FIRST_MAP)}
  %expected = add i64 %arrays, 1
  %fits = icmp eq i64 %nargs, %expected
  br i1 %fits, label %alloc, label %misfit
misfit:
  %minus = call ptr @PyLong_FromLong(i64 -1)
  ret ptr %minus
alloc:
  %args = alloca ptr, i64 %nargs
  %most = add i64 %nargs, %nmaps
  %slots = alloca ptr, i64 %most
  %maps = alloca [{MAP} x i64], i64 %nmaps, align 64
  %config = alloca [7 x i64]
  %attribute = alloca [9 x i64]
  br label %convert
convert:
  %i = phi i64 [ 0, %alloc ], [ %i.next, %convert ]
{word("object", "%objects", "%i", "ptr")}
  %address = call ptr @PyLong_AsVoidPtr(ptr %object)
  %arg = getelementptr ptr, ptr %args, i64 %i
  store ptr %address, ptr %arg
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i.next, %nargs
  br i1 %more, label %convert, label %go
go:
  %state = call ptr @PyEval_SaveThread()
  br label %map
map:
  %m = phi i64 [ 0, %go ], [ %m.next, %encoded ]
  %mapped = phi i32 [ 0, %go ], [ %replaced, %encoded ]
  %unmapped = icmp slt i64 %m, %nmaps
  %possible = icmp eq i32 %mapped, 0
  %another = and i1 %unmapped, %possible
  br i1 %another, label %encoded, label %head
encoded:
  %far = mul i64 %m, {MAP + 1}
  %at = add i64 %first_map, %far
  %of = getelementptr i64, ptr %desc, i64 %at
{word("whose", "%of", 0)}{word("made", "%of", 1, f"[{MAP} x i64]")}
  %own = getelementptr [{MAP} x i64], ptr %maps, i64 %m
  store [{MAP} x i64] %made, ptr %own
{word("address_now", "%args", "%whose")}
  %replaced = call i32 %replace(ptr %own, i64 %address_now)
  %m.next = add i64 %m, 1
  br label %map
head:
  %k = phi i64 [ 0, %map ], [ %k.next, %next ]
  %rc = phi i32 [ %mapped, %map ], [ %status, %next ]
  %left = icmp slt i64 %k, %count
  %well = icmp eq i32 %rc, 0
  %on = and i1 %left, %well
  br i1 %on, label %prepare, label %done
prepare:
  %skip = mul i64 %k, {RECORD}
  %start = add i64 %skip, {HEAD}
  %record = getelementptr i64, ptr %desc, i64 %start
{word("nparams", "%record", NPARAMS)}{word("first", "%record", FIRST)}
  br label %fill
fill:
  %j = phi i64 [ 0, %prepare ], [ %j.next, %slot ]
  %unfilled = icmp slt i64 %j, %nparams
  br i1 %unfilled, label %slot, label %call
slot:
  %place = add i64 %first, %j
{word("number", "%desc", "%place")}
  %plain.at = getelementptr ptr, ptr %args, i64 %number
  %behind = sub i64 %number, %arrays
  %map.at = getelementptr [{MAP} x i64], ptr %maps, i64 %behind
  %is_map = icmp sge i64 %number, %arrays
  %source = select i1 %is_map, ptr %map.at, ptr %plain.at
  %to = getelementptr ptr, ptr %slots, i64 %j
  store ptr %source, ptr %to
  %j.next = add i64 %j, 1
  br label %fill
call:
{word("function", "%record", FUNCTION, "ptr")}\
{"".join(word(n, "%record", at, "i32") for n, at in [*_ASKED, *_CLUSTER])}
  %stream = load ptr, ptr %arg
  %cxy = mul i32 %cx, %cy
  %together = mul i32 %cxy, %cz
  %clustered = icmp ugt i32 %together, 1
  br i1 %clustered, label %ex, label %plain
plain:
  %usual = call i32 %launch(ptr %function, i32 %gx, i32 %gy, i32 %gz, i32 %bx, i32 %by, i32 %bz, i32 %shared,
    ptr %stream, ptr %slots, ptr null)
  br label %next
ex:
{_stores(_CONFIG, "%config")}{_stores(_ATTRIBUTE, "%attribute")}
  %extended = call i32 %launch_ex(ptr %config, ptr %function, ptr %slots, ptr null)
  br label %next
next:
  %status = phi i32 [ %usual, %plain ], [ %extended, %ex ]
  %k.next = add i64 %k, 1
  br label %head
done:
  call void @PyEval_RestoreThread(ptr %state)
  %rc64 = sext i32 %rc to i64
  %result = call ptr @PyLong_FromLong(i64 %rc64)
  ret ptr %result
}}
"""
