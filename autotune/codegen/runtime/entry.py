"""The code around ``@kernel``: the header that describes an object file, and the support module, one for each
process, that runs, times and calls kernels.

The header is one constant, so that loading looks up one symbol:
``@at_header = {i32 ABI, i32 threads, i64 scratch_bytes, ptr kernel, ptr signature}``.

The functions are in the support module and work from a *descriptor* of a kernel. In every object they would
take longer to compile than the kernel (docs/measurements/code-generation.md).

A descriptor is an array of i64 words: `HEAD` words, then `RECORD` words for each parameter, then extents and
strides of each, then the sizes that the kernel takes behind the pointers, if it has open ones
(`LoadedObject.sized`).
The functions of the support module (``desc`` is its address, ``args`` an array of data pointers in the order
of the parameters):

- ``i32 at_run(desc, args)``: the kernel once; 0, or 2 if memory ran out;
- ``i64 at_bench(desc, args, nthreads, n, clock)``: total nanoseconds of ``n`` runs on ``clock`` (`MONOTONIC`,
  or `THREAD_CPU` time of the calling thread); -1 if memory ran out;
- ``void at_release(desc)``: frees the scratch block that the descriptor keeps;
- ``at_program`` and ``at_program_times``, which run many kernels: see `program`;
- ``ptr at_call(self, objects, nargs)``: METH_FASTCALL; ``self`` is a tuple of ``desc`` and the address of
  `exchange.table` as ints. It returns the int 0 (done), 1 (these arguments need the slow path) or 2 (out of
  memory). With 0 for the table it takes arrays of numpy alone.

Scratch: a descriptor keeps one block, whose pages stay warm between calls. Its lock is only tried. A caller
that finds it taken allocates its own block. So a fork while another thread holds the lock only costs the
child an allocation a call.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from autotune.codegen.runtime import program
from autotune.codegen.runtime.exchange import ROW
from autotune.codegen.runtime.open_signature import at_largest, open_text
from schedules.dtypes import DTYPES
from schedules.ir import Buffer, const
from schedules.ir.strides import given_strides
from schedules.strides import MemoryLayout, settled
from schedules.te.open_sizes import OpenSize

NOTHING: Mapping[int, tuple[int, int]] = MappingProxyType({})
# Version of the header and of what kernels expect.
ABI = 1
# Clock numbers of Linux.
MONOTONIC, THREAD_CPU = 1, 3

# Functions of the support module, and those of Python that it calls.
SUPPORT = ("at_run", "at_bench", "at_release", "at_call", *program.SYMBOLS)
PYTHON_API = (
    "PyErr_Clear",
    "PyEval_SaveThread",
    "PyEval_RestoreThread",
    "PyLong_AsLongLongAndOverflow",
    "PyLong_AsVoidPtr",
    "PyLong_FromLong",
    "PyTuple_GetItem",
)

# Words of a descriptor's head, by index; HEAD is their number. HOME: address of the descriptor that keeps the
# scratch block, 0 for this one. SIZES: their number; SIZES_AT: index of the first. PY_FLOAT ...: Python's types of
# numbers, 0 where none is taken.
KERNEL, THREADS, SCRATCH_BYTES, SCRATCH_ALIGN, BLOCK, LOCK, NARGS, NDARRAY = range(8)
HOME, SIZES, SIZES_AT, PY_FLOAT, PY_INT, PY_BOOL, HEAD = range(8, 15)
# Words of a parameter's record, by index; RECORD is their number. DIMS: index of its first extent among all
# words; its strides, in elements, follow the extents. BELOW, BYTES: of the memory before its first element,
# where it walks backwards, and from there to its end. DENSE: whether it is row-major. PERIOD, ROW_BYTES:
# bytes from a row to the next, and of a row. Of an input without dimensions, in whose place a number may be
# given, NUMBER says its kind (0: none may), SCALAR is numpy's type of its numbers, LEAST and LAST its range.
# TOGETHER: of an output that lies in the memory of an input, the number of that plus 1; APART: the bytes from
# where the input begins to where it begins.
DESCRIPTOR, NDIM, FLAGS, ALIGN_MASK, BELOW, BYTES, OUTPUT, DIMS, DLPACK, DENSE = range(10)
PERIOD, ROW_BYTES, NUMBER, SCALAR, LEAST, LAST, TOGETHER, APART, RECORD = range(10, 19)
# Kinds of NUMBER. Other floats are converted by numpy.
A_BOOL, AN_INT, A_FLOAT32, A_FLOAT64 = range(1, 5)

# Offsets (bytes) in the head of numpy's PyArrayObject on a 64-bit CPython with a two-word object head.
OB_TYPE_AT, DATA_AT, NDIM_AT, DIMENSIONS_AT, STRIDES_AT, DESCR_AT, FLAGS_AT = 8, 16, 24, 32, 40, 56, 64
# Offsets (bytes) in DLPack's DLTensor, which has DL_BYTES. The dtype is code, bits and lanes in 32 bits.
DL_DATA_AT, DL_DEVICE_AT, DL_NDIM_AT, DL_DTYPE_AT = 0, 8, 16, 20
DL_SHAPE_AT, DL_STRIDES_AT, DL_OFFSET_AT, DL_BYTES = 24, 32, 40, 48
# DLPack's number of the CPU.
DL_CPU = 1
# Offset (bytes) of the value in a number of numpy, and in a float of Python.
VALUE_AT = 16
# Length of numpy's head (bytes), and flags in it.
ARRAY_HEAD_BYTES = 72
C_CONTIGUOUS, WRITEABLE = 0x1, 0x400


def shape_of(b: Buffer) -> tuple[int, ...]:
    """Extents of a parameter in elements, as callers give it. Raises ValueError unless all are integer
    literals."""
    given = b.given or b.shape
    shape = tuple(n for n in (const(e) for e in given) if n is not None and n >= 0)
    if len(shape) != len(given):
        raise ValueError(f"parameter {b.name} has shape {given}; a compiled kernel needs integers")
    return shape


def layout_of(b: Buffer) -> MemoryLayout:
    """How a parameter lies, as callers give it. Raises ValueError as `shape_of` does."""
    shape = shape_of(b)
    return MemoryLayout(shape, None if b.strides is None else settled(shape, given_strides(b)))


def signature(params: tuple[Buffer, ...], outputs: tuple[str, ...]) -> str:
    """The parameters of a compiled kernel as text: ``float32[7,5] float32[5,9;1,5] -> float32[7,9]``, with
    strides where one is not row-major. Raises ValueError unless ``params`` are inputs, then outputs."""
    if any(b.name in outputs for b in params[: len(params) - len(outputs)]):
        raise ValueError(f"outputs {outputs} must be the last of the parameters {[b.name for b in params]}")

    def text(bs: tuple[Buffer, ...]) -> str:
        return "".join(f"{b.dtype}{layout_of(b)} " for b in bs)

    split = len(params) - len(outputs)
    return f"{text(params[:split])}-> {text(params[split:])}".strip()


def entry(
    params: tuple[Buffer, ...],
    outputs: tuple[str, ...],
    scratch_bytes: int,
    threads: int,
    sizes: tuple[OpenSize, ...] = (),
) -> str:
    """LLVM IR to append to the module that defines ``@kernel``. ``params``: inputs, then outputs, with
    integer shapes but for ``sizes``, which a call tells. ``scratch_bytes``: scratch memory that the kernel
    needs with ``threads`` threads. Raises ValueError."""
    if threads < 1 or scratch_bytes < 0:
        raise ValueError(f"threads must be >= 1 and scratch_bytes >= 0, not {threads} and {scratch_bytes}")
    text = signature(at_largest(params, sizes), outputs) + open_text(params, sizes)
    return f"""
@at_signature = private constant [{len(text) + 1} x i8] c"{text}\\00"
@at_header = constant {{ i32, i32, i64, ptr, ptr }} {{
  i32 {ABI}, i32 {threads}, i64 {scratch_bytes}, ptr @kernel, ptr @at_signature
}}
"""


def parse_signature(text: str) -> tuple[tuple[tuple[str, MemoryLayout], ...], int]:
    """((dtype, layout) of each parameter, number of inputs) of a `signature`. Raises ValueError."""
    ins, arrow, outs = text.partition("->")
    sides = [_PARAM.findall(side) for side in (ins, outs)]
    params = tuple((d, MemoryLayout(_numbers(n), _numbers(s) or None)) for side in sides for d, n, s in side)
    if not arrow or any(
        d not in DTYPES or (x.strides is not None and len(x.strides) != len(x.shape)) for d, x in params
    ):
        raise ValueError(f"malformed kernel signature {text!r}")
    return params, len(sides[0])


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(","))) if text else ()


# A parameter in a signature: dtype, extents and strides.
_PARAM = re.compile(r"(\w+)\[([\d,]*)(?:;([-\d,]*))?\]")


def descriptor(
    kernel: int,
    threads: int,
    scratch_bytes: int,
    text: str,
    table: dict[str, int],
    home: int = 0,
    sizes: Sequence[int] = (),
    together: Mapping[int, tuple[int, int]] = NOTHING,
) -> list[int]:
    """The words of a descriptor of the kernel at address ``kernel`` with signature ``text``. ``table``:
    addresses of numpy's array type ("ndarray") and of the dtype singletons by name, and of types of numbers:
    Python's ("a float", "an int", "a bool") and numpy's ("float32()" and so on), where they may be given; if empty,
    `at_call` refuses every call. ``home``, ``sizes``: see `HOME` and `SIZES`. ``together``:
    {number of an output: (that of the input in whose memory it lies, the bytes between)}."""
    params, inputs = parse_signature(text)
    # Large blocks begin at a page of 2 MiB, so that the system may use such pages for them.
    align = 2 << 20 if scratch_bytes >= 2 << 20 else 64
    head = [kernel, threads, scratch_bytes, align, 0, 0, len(params), table.get("ndarray", 0)]
    head += [home, len(sizes), 0, *(table.get(name, 0) for name in ("a float", "an int", "a bool"))]
    records: list[int] = []
    extents: list[int] = []
    for k, (dtype, layout) in enumerate(params):
        written, dense, item = k >= inputs, layout.strides is None, DTYPES[dtype].itemsize
        before, after = layout.reach
        records += [
            table.get(dtype, 0),
            len(layout.shape),
            (C_CONTIGUOUS if dense else 0) | (WRITEABLE if written else 0),
            item - 1,
            before * item,
            after * item,
            int(written),
            HEAD + RECORD * len(params) + len(extents),
            DTYPES[dtype].dlpack,
            int(dense),
            *(n * item for n in layout.rows),
            *(_number(dtype, table) if not layout.shape and not written else (0, 0, 0, 0)),
            together[k][0] + 1 if k in together else 0,
            together[k][1] if k in together else 0,
        ]
        extents += [*layout.shape, *layout.steps]
    head[SIZES_AT] = HEAD + len(records) + len(extents)
    return [*head, *records, *extents, *sizes]


def _number(dtype: str, table: dict[str, int]) -> tuple[int, int, int, int]:
    """The words NUMBER to LAST of an input without dimensions."""
    row = DTYPES[dtype]
    kinds = {"bool": A_BOOL, "float32": A_FLOAT32, "float64": A_FLOAT64}
    kind = AN_INT if row.kind == "int" and row.range[-1] < 1 << 63 else kinds.get(dtype, 0)
    ends = (row.range[0], row.range[-1]) if kind in (A_BOOL, AN_INT) else (0, 0)
    return kind if "an int" in table else 0, table.get(f"{dtype}()", 0), *ends


def word(name: str, base: str, index: int | str, kind: str = "i64") -> str:
    """IR that reads word ``index`` of an array of i64 as ``%name``."""
    at = f"  %{name}.at = getelementptr i64, ptr {base}, i64 {index}\n"
    return f"{at}  %{name} = load {kind}, ptr %{name}.at\n"


def _field(name: str, offset: int, kind: str, of: str = "%o") -> str:
    at = f"  %{name}.at = getelementptr i8, ptr {of}, i64 {offset}\n"
    return f"{at}  %{name} = load {kind}, ptr %{name}.at\n"


def support() -> str:
    """LLVM IR of the support module."""
    return running() + program.TEXT + _CALL


def running() -> str:
    """The part of the support module that knows no Python: `at_run`, `at_bench` and `at_release`."""
    return _SCRATCH + _RUN


# IR text of the support module: scratch memory.
_SCRATCH = f"""
declare i32 @clock_gettime(i32, ptr) nounwind
declare i32 @posix_memalign(ptr, i64, i64) nounwind
declare void @free(ptr) nounwind

define internal ptr @home_of(ptr %desc) nounwind {{
{word("home", "%desc", HOME, "ptr")}
  %own = icmp eq ptr %home, null
  %found = select i1 %own, ptr %desc, ptr %home
  ret ptr %found
}}

define internal ptr @scratch_get(ptr %of) nounwind {{
entry:
  %out = alloca ptr
  %desc = call ptr @home_of(ptr %of)
  %block = getelementptr i64, ptr %desc, i64 {BLOCK}
  %lock = getelementptr i64, ptr %desc, i64 {LOCK}
{word("bytes", "%desc", SCRATCH_BYTES)}{word("align", "%desc", SCRATCH_ALIGN)}
  %was = atomicrmw xchg ptr %lock, i64 1 acquire
  %mine = icmp eq i64 %was, 0
  br i1 %mine, label %kept, label %fresh
kept:
  %old = load atomic ptr, ptr %block monotonic, align 8
  %empty = icmp eq ptr %old, null
  br i1 %empty, label %fresh, label %have
have:
  ret ptr %old
fresh:
  %rc = call i32 @posix_memalign(ptr %out, i64 %align, i64 %bytes)
  %ok = icmp eq i32 %rc, 0
  br i1 %ok, label %new, label %fail
new:
  %p = load ptr, ptr %out
  br i1 %mine, label %keep, label %give
keep:
  store atomic ptr %p, ptr %block monotonic, align 8
  br label %give
give:
  ret ptr %p
fail:
  br i1 %mine, label %unlock, label %none
unlock:
  store atomic i64 0, ptr %lock release, align 8
  br label %none
none:
  ret ptr null
}}

define internal void @scratch_put(ptr %of, ptr %p) nounwind {{
  %desc = call ptr @home_of(ptr %of)
  %block = getelementptr i64, ptr %desc, i64 {BLOCK}
  %lock = getelementptr i64, ptr %desc, i64 {LOCK}
  %kept = load atomic ptr, ptr %block monotonic, align 8
  %mine = icmp eq ptr %p, %kept
  br i1 %mine, label %unlock, label %drop
unlock:
  store atomic i64 0, ptr %lock release, align 8
  ret void
drop:
  call void @free(ptr %p)
  ret void
}}

define void @at_release(ptr %desc) nounwind {{
{word("p", "%desc", BLOCK, "ptr")}
  store ptr null, ptr %p.at
  call void @free(ptr %p)
  ret void
}}
"""

# IR text of a function: nanoseconds on a clock.
NOW = f"""
define internal i64 @now(i32 %clock) nounwind {{
  %t = alloca [2 x i64]
  %rc = call i32 @clock_gettime(i32 %clock, ptr %t)
{word("s", "%t", 0)}{word("ns", "%t", 1)}
  %scaled = mul i64 %s, 1000000000
  %total = add i64 %scaled, %ns
  ret i64 %total
}}
"""
# IR text of the support module: running and timing.
_RUN = f"""{NOW}
define i64 @at_bench(ptr %desc, ptr %args, i32 %nthreads, i64 %n, i32 %clock) nounwind {{
entry:
{word("kernel", "%desc", KERNEL, "ptr")}{word("bytes", "%desc", SCRATCH_BYTES)}
  %needed = icmp ne i64 %bytes, 0
  br i1 %needed, label %get, label %start
get:
  %got = call ptr @scratch_get(ptr %desc)
  %missing = icmp eq ptr %got, null
  br i1 %missing, label %fail, label %start
start:
  %scratch = phi ptr [ null, %entry ], [ %got, %get ]
  %t0 = call i64 @now(i32 %clock)
  br label %head
head:
  %i = phi i64 [ 0, %start ], [ %next, %body ]
  %more = icmp slt i64 %i, %n
  br i1 %more, label %body, label %done
body:
  call void %kernel(ptr %args, ptr %scratch, i32 %nthreads)
  %next = add i64 %i, 1
  br label %head
done:
  %t1 = call i64 @now(i32 %clock)
  %total = sub i64 %t1, %t0
  br i1 %needed, label %put, label %end
put:
  call void @scratch_put(ptr %desc, ptr %scratch)
  br label %end
end:
  ret i64 %total
fail:
  ret i64 -1
}}

define i32 @at_run(ptr %desc, ptr %args) nounwind {{
entry:
{word("kernel", "%desc", KERNEL, "ptr")}{word("bytes", "%desc", SCRATCH_BYTES)}
{word("threads", "%desc", THREADS)}
  %n = trunc i64 %threads to i32
  %needed = icmp ne i64 %bytes, 0
  br i1 %needed, label %get, label %plain
plain:
  call void %kernel(ptr %args, ptr null, i32 %n)
  ret i32 0
get:
  %scratch = call ptr @scratch_get(ptr %desc)
  %missing = icmp eq ptr %scratch, null
  br i1 %missing, label %fail, label %go
go:
  call void %kernel(ptr %args, ptr %scratch, i32 %n)
  call void @scratch_put(ptr %desc, ptr %scratch)
  ret i32 0
fail:
  ret i32 2
}}
"""

# An array of numpy, or of a type in the table of `exchange`, is compared with its parameter (%record). A number
# lies in its own object, or, converted, on the stack.
# A field is read only after the checks that make reading it safe: first the type, then the head of the array,
# then its extents, whose number is then known.
_CALL = f"""
declare void @PyErr_Clear()
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare ptr @PyLong_AsVoidPtr(ptr)
declare i64 @PyLong_AsLongLongAndOverflow(ptr, ptr)
declare ptr @PyLong_FromLong(i64)
declare ptr @PyTuple_GetItem(ptr, i64)
declare double @llvm.fabs.f64(double)
define ptr @at_call(ptr %self, ptr %objects, i64 %nargs) nounwind {{
entry:
  %first = call ptr @PyTuple_GetItem(ptr %self, i64 0)
  %desc = call ptr @PyLong_AsVoidPtr(ptr %first)
{word("expected", "%desc", NARGS)}{word("ndarray", "%desc", NDARRAY, "ptr")}
  %told = alloca [{DL_BYTES} x i8], align 8
  %count = icmp eq i64 %nargs, %expected
  br i1 %count, label %alloc, label %slow
alloc:
{word("sizes", "%desc", SIZES)}
  %words.all = add i64 %nargs, %sizes
  %args = alloca ptr, i64 %words.all
  %numbers = alloca i64, i64 %nargs
  %over = alloca i32
  br label %next
next:
  %k = phi i64 [ 0, %alloc ], [ %k.next, %accept ]
  %more = icmp slt i64 %k, %nargs
  br i1 %more, label %object, label %overlaps
object:
{word("o", "%objects", "%k", "ptr")}{_field("type", OB_TYPE_AT, "ptr")}
  %words = mul i64 %k, {RECORD}
  %start = add i64 %words, {HEAD}
  %record = getelementptr i64, ptr %desc, i64 %start
{word("w.ndim", "%record", NDIM)}{word("w.mask", "%record", ALIGN_MASK)}{word("w.dims", "%record", DIMS)}
{word("w.dense", "%record", DENSE)}
  %w.is.dense = icmp ne i64 %w.dense, 0
  %is.array = icmp eq ptr %type, %ndarray
  br i1 %is.array, label %heading, label %number
number:
{word("w.number", "%record", NUMBER)}{word("w.scalar", "%record", SCALAR, "ptr")}
  %o.value = getelementptr i8, ptr %o, i64 {VALUE_AT}
  %n.slot = getelementptr i64, ptr %numbers, i64 %k
  %is.scalar = icmp eq ptr %type, %w.scalar
  br i1 %is.scalar, label %accept, label %number.python
number.python:
{word("py.float", "%desc", PY_FLOAT, "ptr")}{word("py.int", "%desc", PY_INT, "ptr")}
{word("py.bool", "%desc", PY_BOOL, "ptr")}
  %n.is.float = icmp eq ptr %type, %py.float
  %n.is.int = icmp eq ptr %type, %py.int
  %n.is.bool = icmp eq ptr %type, %py.bool
  %w.double = icmp eq i64 %w.number, {A_FLOAT64}
  %w.single = icmp eq i64 %w.number, {A_FLOAT32}
  %w.whole = icmp eq i64 %w.number, {AN_INT}
  %w.bool = icmp eq i64 %w.number, {A_BOOL}
  %w.float = or i1 %w.double, %w.single
  %w.counts = or i1 %w.float, %w.whole
  %n.float = and i1 %n.is.float, %w.float
  %n.int = and i1 %n.is.int, %w.counts
  %n.bool = and i1 %n.is.bool, %w.bool
  %n.integer = or i1 %n.int, %n.bool
  br i1 %n.float, label %of.float, label %number.whole
of.float:
  %f = load double, ptr %o.value
  br i1 %w.double, label %accept, label %narrow
narrow:
  ; What float32 cannot hold is refused in words; infinity is itself.
  %f.size = call double @llvm.fabs.f64(double %f)
  %f.large = fcmp ogt double %f.size, 0x47EFFFFFE0000000
  %f.finite = fcmp one double %f.size, 0x7FF0000000000000
  %f.outside = and i1 %f.large, %f.finite
  br i1 %f.outside, label %slow, label %narrowed
narrowed:
  %f.single = fptrunc double %f to float
  store float %f.single, ptr %n.slot
  br label %accept
number.whole:
  br i1 %n.integer, label %of.int, label %others.known
of.int:
  %n = call i64 @PyLong_AsLongLongAndOverflow(ptr %o, ptr %over)
  %n.over = load i32, ptr %over
  %n.fits = icmp eq i32 %n.over, 0
  br i1 %n.fits, label %int.kind, label %slow
int.kind:
  br i1 %w.float, label %int.float, label %int.range
int.float:
  %n.double = sitofp i64 %n to double
  store double %n.double, ptr %n.slot
  br i1 %w.double, label %accept, label %int.single
int.single:
  %n.single = fptrunc double %n.double to float
  store float %n.single, ptr %n.slot
  br label %accept
int.range:
{word("w.least", "%record", LEAST)}{word("w.last", "%record", LAST)}
  %n.above = icmp sge i64 %n, %w.least
  %n.below = icmp sle i64 %n, %w.last
  %n.inside = and i1 %n.above, %n.below
  ; The lowest bytes are the number of any width.
  store i64 %n, ptr %n.slot
  br i1 %n.inside, label %accept, label %slow
others.known:
  %second = call ptr @PyTuple_GetItem(ptr %self, i64 1)
  %exchange = call ptr @PyLong_AsVoidPtr(ptr %second)
  %has.table = icmp ne ptr %exchange, null
  br i1 %has.table, label %row, label %slow
row:
  %r = phi i64 [ 0, %others.known ], [ %r.next, %row.other ]
{word("r.type", "%exchange", "%r", "ptr")}
  %r.last = icmp eq ptr %r.type, null
  br i1 %r.last, label %slow, label %row.look
row.look:
  %r.is = icmp eq ptr %r.type, %type
  br i1 %r.is, label %tell, label %row.other
row.other:
  %r.next = add i64 %r, {ROW}
  br label %row
tell:
  %r.function = add i64 %r, 1
{word("describe", "%exchange", "%r.function", "ptr")}
  %unknown = call i32 %describe(ptr %o, ptr %told)
  %known = icmp eq i32 %unknown, 0
  br i1 %known, label %told.head, label %told.not
told.not:
  call void @PyErr_Clear()
  br label %slow
told.head:
{_field("t.data", DL_DATA_AT, "i64", "%told")}{_field("t.device", DL_DEVICE_AT, "i32", "%told")}
{_field("t.ndim", DL_NDIM_AT, "i32", "%told")}{_field("t.dtype", DL_DTYPE_AT, "i32", "%told")}
{_field("t.dims", DL_SHAPE_AT, "ptr", "%told")}{_field("t.strides", DL_STRIDES_AT, "ptr", "%told")}
{_field("t.offset", DL_OFFSET_AT, "i64", "%told")}{word("w.dtype", "%record", DLPACK)}
  %t.address = add i64 %t.data, %t.offset
  %t.place = inttoptr i64 %t.address to ptr
  %t.ndim64 = sext i32 %t.ndim to i64
  %t.dtype64 = zext i32 %t.dtype to i64
  %t.cpu = icmp eq i32 %t.device, {DL_CPU}
  %t.is.ndim = icmp eq i64 %t.ndim64, %w.ndim
  %t.is.dtype = icmp eq i64 %t.dtype64, %w.dtype
  %t.low = and i64 %t.address, %w.mask
  %t.aligned = icmp eq i64 %t.low, 0
  ; Tensors that only stand for others have none.
  %t.memory = icmp ne i64 %t.data, 0
  %t.ok1 = and i1 %t.cpu, %t.is.ndim
  %t.ok2 = and i1 %t.is.dtype, %t.aligned
  %t.ok3 = and i1 %t.ok2, %t.memory
  %t.ok = and i1 %t.ok1, %t.ok3
  ; Without strides it is row-major.
  %t.dense = icmp eq ptr %t.strides, null
  %t.not.dense = xor i1 %t.dense, true
  %t.lies = or i1 %t.not.dense, %w.is.dense
  %t.fits = and i1 %t.ok, %t.lies
  br i1 %t.fits, label %t.extents, label %slow
t.extents:
  %td = phi i64 [ 0, %told.head ], [ %td.next, %t.next ]
  %t.unread = icmp slt i64 %td, %w.ndim
  br i1 %t.unread, label %t.extent, label %accept
t.extent:
  %t.at = add i64 %w.dims, %td
{word("t.have", "%t.dims", "%td")}{word("t.want", "%desc", "%t.at")}
  %t.same = icmp eq i64 %t.have, %t.want
  br i1 %t.same, label %t.order, label %slow
t.order:
  br i1 %t.dense, label %t.next, label %t.stride
t.stride:
  %t.place.step = add i64 %t.at, %w.ndim
{word("t.step", "%t.strides", "%td")}{word("t.want.step", "%desc", "%t.place.step")}
  ; The stride of an extent of 1 has no meaning.
  %t.one = icmp eq i64 %t.have, 1
  %t.is.step = icmp eq i64 %t.step, %t.want.step
  %t.steps = or i1 %t.one, %t.is.step
  br i1 %t.steps, label %t.next, label %slow
t.next:
  %td.next = add i64 %td, 1
  br label %t.extents
heading:
{_field("data", DATA_AT, "ptr")}{_field("ndim", NDIM_AT, "i32")}
{_field("dims", DIMENSIONS_AT, "ptr")}{_field("descr", DESCR_AT, "ptr")}{_field("flags", FLAGS_AT, "i32")}
{word("w.descr", "%record", DESCRIPTOR, "ptr")}{word("w.flags", "%record", FLAGS)}
  %ndim64 = zext i32 %ndim to i64
  %flags64 = zext i32 %flags to i64
  %address = ptrtoint ptr %data to i64
  %is.descr = icmp eq ptr %descr, %w.descr
  %is.ndim = icmp eq i64 %ndim64, %w.ndim
  %on = and i64 %flags64, %w.flags
  %is.flags = icmp eq i64 %on, %w.flags
  %low = and i64 %address, %w.mask
  %is.aligned = icmp eq i64 %low, 0
  %ok1 = and i1 %is.descr, %is.ndim
  %ok2 = and i1 %is.flags, %is.aligned
  %ok = and i1 %ok1, %ok2
  br i1 %ok, label %extents, label %slow
extents:
  %d = phi i64 [ 0, %heading ], [ %d.next, %fits ]
  %unread = icmp slt i64 %d, %ndim64
  br i1 %unread, label %extent, label %accept
extent:
  %at = add i64 %w.dims, %d
{word("have", "%dims", "%d")}{word("want", "%desc", "%at")}
  %same = icmp eq i64 %have, %want
  br i1 %same, label %order, label %slow
order:
  ; The flags tell of a row-major one.
  br i1 %w.is.dense, label %fits, label %stride
stride:
{_field("steps", STRIDES_AT, "ptr")}{word("step", "%steps", "%d")}
  %place.step = add i64 %at, %w.ndim
{word("want.elements", "%desc", "%place.step")}
  %item = add i64 %w.mask, 1
  %want.step = mul i64 %want.elements, %item
  %one = icmp eq i64 %have, 1
  %is.step = icmp eq i64 %step, %want.step
  %lies = or i1 %one, %is.step
  br i1 %lies, label %fits, label %slow
fits:
  %d.next = add i64 %d, 1
  br label %extents
accept:
  %place = phi ptr [ %data, %extents ], [ %t.place, %t.extents ], [ %o.value, %number ], [ %o.value, %of.float ],
    [ %n.slot, %narrowed ], [ %n.slot, %int.float ], [ %n.slot, %int.single ], [ %n.slot, %int.range ]
  %slot = getelementptr ptr, ptr %args, i64 %k
  store ptr %place, ptr %slot
  %k.next = add i64 %k, 1
  br label %next
overlaps:
  %w = phi i64 [ 0, %next ], [ %w.next, %written ]
  %w.left = icmp slt i64 %w, %nargs
  br i1 %w.left, label %check, label %go
check:
  %wa = mul i64 %w, {RECORD}
  %wb = add i64 %wa, {HEAD}
  %w.record = getelementptr i64, ptr %desc, i64 %wb
{word("w.bytes", "%w.record", BYTES)}{word("w.out", "%w.record", OUTPUT)}{word("w.p", "%args", "%w")}
  ; An output has nothing before its first element.
  %w.end = add i64 %w.p, %w.bytes
  %reads = icmp eq i64 %w.out, 0
  %stop = select i1 %reads, i64 0, i64 %w
  br label %others
others:
  %j = phi i64 [ 0, %check ], [ %j.next, %other ], [ %j.next, %interleaved ], [ %j.next, %together ]
  %j.left = icmp slt i64 %j, %stop
  br i1 %j.left, label %other, label %written
other:
  %ja = mul i64 %j, {RECORD}
  %jb = add i64 %ja, {HEAD}
  %j.record = getelementptr i64, ptr %desc, i64 %jb
{word("j.bytes", "%j.record", BYTES)}{word("j.below", "%j.record", BELOW)}{word("j.first", "%args", "%j")}
  %j.end = add i64 %j.first, %j.bytes
  %j.p = sub i64 %j.first, %j.below
  %j.next = add i64 %j, 1
  %after = icmp uge i64 %w.p, %j.end
  %before = icmp uge i64 %j.p, %w.end
  %apart = or i1 %after, %before
  br i1 %apart, label %others, label %together
together:
  ; One that may lie in the memory of an input lies where its code expects it.
{word("w.with", "%w.record", TOGETHER)}{word("w.apart", "%w.record", APART)}
  %is.with = icmp eq i64 %w.with, %j.next
  %between.firsts = sub i64 %w.p, %j.first
  %is.there = icmp eq i64 %between.firsts, %w.apart
  %is.in.place = and i1 %is.with, %is.there
  br i1 %is.in.place, label %others, label %rows
rows:
  ; Rows at one distance may lie between each other.
{word("w.period", "%w.record", PERIOD)}{word("j.period", "%j.record", PERIOD)}
  %have.rows = icmp ne i64 %w.period, 0
  %same.period = icmp eq i64 %w.period, %j.period
  %both.rows = and i1 %have.rows, %same.period
  br i1 %both.rows, label %interleaved, label %slow
interleaved:
{word("w.row", "%w.record", ROW_BYTES)}{word("j.row", "%j.record", ROW_BYTES)}
  %distance = sub i64 %j.first, %w.p
  %rest = srem i64 %distance, %w.period
  %negative = icmp slt i64 %rest, 0
  %rest.up = add i64 %rest, %w.period
  %behind = select i1 %negative, i64 %rest.up, i64 %rest
  %row.end = add i64 %behind, %j.row
  %row.after = icmp uge i64 %behind, %w.row
  %row.before = icmp ule i64 %row.end, %w.period
  %between = and i1 %row.after, %row.before
  br i1 %between, label %others, label %slow
written:
  %w.next = add i64 %w, 1
  br label %overlaps
go:
{word("first.size", "%desc", SIZES_AT)}
  br label %told.sizes
told.sizes:
  %z = phi i64 [ 0, %go ], [ %z.next, %told.size ]
  %z.left = icmp slt i64 %z, %sizes
  br i1 %z.left, label %told.size, label %run
told.size:
  %z.from = add i64 %first.size, %z
{word("z.size", "%desc", "%z.from")}
  %z.to = add i64 %nargs, %z
  %z.slot = getelementptr i64, ptr %args, i64 %z.to
  store i64 %z.size, ptr %z.slot
  %z.next = add i64 %z, 1
  br label %told.sizes
run:
  %state = call ptr @PyEval_SaveThread()
  %rc = call i32 @at_run(ptr %desc, ptr %args)
  call void @PyEval_RestoreThread(ptr %state)
  %rc64 = sext i32 %rc to i64
  %result = call ptr @PyLong_FromLong(i64 %rc64)
  ret ptr %result
slow:
  %refused = call ptr @PyLong_FromLong(i64 1)
  ret ptr %refused
}}
"""
