"""The support module, one for each process, as LLVM IR text: it runs, times and calls kernels. `entry` says
what its functions do, and what the words of a descriptor are."""

from __future__ import annotations

from autotune.codegen.runtime import program
from autotune.codegen.runtime.entry import (
    A_FLOAT32,
    A_FLOAT64,
    ALIGN_MASK,
    APART,
    BELOW,
    BLOCK,
    BYTES,
    DATA_AT,
    DENSE,
    DESCR_AT,
    DESCRIPTOR,
    DIMENSIONS_AT,
    DIMS,
    DL_BYTES,
    DL_CPU,
    DL_DATA_AT,
    DL_DEVICE_AT,
    DL_DTYPE_AT,
    DL_NDIM_AT,
    DL_OFFSET_AT,
    DL_SHAPE_AT,
    DL_STRIDES_AT,
    DLPACK,
    FLAGS,
    FLAGS_AT,
    FLOAT,
    HEAD,
    HOME,
    KERNEL,
    LAST,
    LEAST,
    LOCK,
    MORE,
    NARGS,
    NDARRAY,
    NDIM,
    NDIM_AT,
    NUMBER,
    OB_TYPE_AT,
    OUTPUT,
    PERIOD,
    RECORD,
    ROW_BYTES,
    SCALAR,
    SCRATCH_ALIGN,
    SCRATCH_BYTES,
    SIZES,
    SIZES_AT,
    STRIDES_AT,
    THREADS,
    TOGETHER,
    VALUE_AT,
    WHOLE,
    word,
)
from autotune.codegen.runtime.exchange import ROW


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

# An array of numpy, or of a type in the table of `exchange`, is compared with its parameter (%record). A
# number lies in its own object, or, converted, on the stack.
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
{word("sizes", "%desc", SIZES)}{word("sizes.first", "%desc", SIZES_AT)}
  %more.at = add i64 %sizes.first, %sizes
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
  %m.words = mul i64 %k, {MORE}
  %m.start = add i64 %m.words, %more.at
  %more.k = getelementptr i64, ptr %desc, i64 %m.start
{word("w.number", "%more.k", NUMBER)}{word("w.scalar", "%more.k", SCALAR, "ptr")}
  %o.value = getelementptr i8, ptr %o, i64 {VALUE_AT}
  %n.slot = getelementptr i64, ptr %numbers, i64 %k
  %is.scalar = icmp eq ptr %type, %w.scalar
  br i1 %is.scalar, label %accept, label %number.python
number.python:
{word("w.python.float", "%more.k", FLOAT, "ptr")}{word("w.python.whole", "%more.k", WHOLE, "ptr")}
  %w.double = icmp eq i64 %w.number, {A_FLOAT64}
  %w.float = icmp sge i64 %w.number, {A_FLOAT32}
  %n.is.float = icmp eq ptr %type, %w.python.float
  %n.is.whole = icmp eq ptr %type, %w.python.whole
  br i1 %n.is.float, label %of.float, label %number.whole
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
  br i1 %n.is.whole, label %of.int, label %others.known
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
{word("w.least", "%more.k", LEAST)}{word("w.last", "%more.k", LAST)}
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
  %place = phi ptr [ %data, %extents ], [ %t.place, %t.extents ], [ %o.value, %number ], [ %o.value, %of.float
  ],
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
  %mw.words = mul i64 %w, {MORE}
  %mw.start = add i64 %mw.words, %more.at
  %more.w = getelementptr i64, ptr %desc, i64 %mw.start
  ; One that may lie in the memory of an input lies where its code expects it.
{word("w.with", "%more.w", TOGETHER)}{word("w.apart", "%more.w", APART)}
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
