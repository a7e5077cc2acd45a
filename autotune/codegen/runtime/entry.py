"""The code around ``@kernel``: the header that describes an object file, and the support module, one for each
process, that runs, times and calls kernels.

The header is one constant, so that loading looks up one symbol:
``@at_header = {i32 ABI, i32 threads, i64 scratch_bytes, ptr kernel, ptr signature}``.

The functions are in the support module and work from a *descriptor* of a kernel. In every object they would
take longer to compile than the kernel (docs/measurements/code-generation.md).

A descriptor is an array of i64 words: `HEAD` words, then `RECORD` words for each parameter, then extents and
strides of each, then the sizes that the kernel takes behind the pointers, if it has open ones
(`LoadedObject.sized`), then `MORE` words for each parameter.
The functions of the support module (``desc`` is its address, ``args`` an array of data pointers in the order
of the parameters):

- ``i32 at_run(desc, args)``: the kernel once; 0, or 2 if memory ran out;
- ``i64 at_bench(desc, args, nthreads, n, clock)``: total nanoseconds of ``n`` runs on ``clock`` (of
  `autotune.platform.clocks`: `MONOTONIC`, or `THREAD_CPU` time of the calling thread); -1 if memory ran out;
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
from autotune.codegen.runtime.open_signature import at_largest, open_text
from schedules.dtypes import DTYPES
from schedules.ir import Buffer, const
from schedules.ir.strides import given_strides
from schedules.strides import MemoryLayout, settled
from schedules.te.open_sizes import OpenSize

NOTHING: Mapping[int, tuple[int, int]] = MappingProxyType({})
# Version of the header and of what kernels expect.
ABI = 1

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
# scratch block, 0 for this one. SIZES: their number; SIZES_AT: index of the first.
KERNEL, THREADS, SCRATCH_BYTES, SCRATCH_ALIGN, BLOCK, LOCK, NARGS, NDARRAY = range(8)
HOME, SIZES, SIZES_AT, HEAD = range(8, 12)
# Words of a parameter's record, by index; RECORD is their number. DIMS: index of its first extent among all
# words; its strides, in elements, follow the extents. BELOW, BYTES: of the memory before its first element,
# where it walks backwards, and from there to its end. DENSE: whether it is row-major. PERIOD, ROW_BYTES:
# bytes from a row to the next, and of a row.
DESCRIPTOR, NDIM, FLAGS, ALIGN_MASK, BELOW, BYTES, OUTPUT, DIMS, DLPACK, DENSE = range(10)
PERIOD, ROW_BYTES, RECORD = range(10, 13)
# Words of each parameter behind the sizes; MORE is their number. Of an input without dimensions, in whose
# place a number may be given: NUMBER is its kind (0: none may), SCALAR numpy's type of its numbers, FLOAT and
# WHOLE Python's (0: none), LEAST and LAST its range. Of an output that lies in the memory of an input:
# TOGETHER is the number of that plus 1, APART the bytes from where the input begins to where it begins.
NUMBER, SCALAR, FLOAT, WHOLE, LEAST, LAST, TOGETHER, APART, MORE = range(9)
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


def nbytes_of(b: Buffer) -> int:
    """Bytes of a parameter as callers give it, from its first element to its last. Raises ValueError as
    `shape_of` does."""
    return layout_of(b).span * DTYPES[b.dtype].itemsize


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
    Python's ("a float", "an int", "a bool") and numpy's ("float32()" and so on), where they may be given; if
    empty, `at_call` refuses every call. ``home``, ``sizes``: see `HOME` and `SIZES`. ``together``:
    {number of an output: (that of the input in whose memory it lies, the bytes between)}."""
    params, inputs = parse_signature(text)
    # Large blocks begin at a page of 2 MiB, so that the system may use such pages for them.
    align = 2 << 20 if scratch_bytes >= 2 << 20 else 64
    head = [kernel, threads, scratch_bytes, align, 0, 0, len(params), table.get("ndarray", 0)]
    head += [home, len(sizes), 0]
    records: list[int] = []
    extents: list[int] = []
    more: list[int] = []
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
        ]
        lies = (together[k][0] + 1, together[k][1]) if k in together else (0, 0)
        more += [*(_number(dtype, table) if not layout.shape and not written else (0,) * 6), *lies]
        extents += [*layout.shape, *layout.steps]
    head[SIZES_AT] = HEAD + len(records) + len(extents)
    return [*head, *records, *extents, *sizes, *more]


def _number(dtype: str, table: dict[str, int]) -> tuple[int, ...]:
    """The words NUMBER to LAST of an input without dimensions."""
    row = DTYPES[dtype]
    kinds = {"bool": A_BOOL, "float32": A_FLOAT32, "float64": A_FLOAT64}
    kind = AN_INT if row.kind == "int" and row.range[-1] < 1 << 63 else kinds.get(dtype, 0)
    ends = (row.range[0], row.range[-1]) if kind in (A_BOOL, AN_INT) else (0, 0)
    a_float = table.get("a float", 0) if kind in (A_FLOAT32, A_FLOAT64) else 0
    whole = table.get("a bool" if kind == A_BOOL else "an int", 0) if kind else 0
    return kind, table.get(f"{dtype}()", 0), a_float, whole, *ends


def word(name: str, base: str, index: int | str, kind: str = "i64") -> str:
    """IR that reads word ``index`` of an array of i64 as ``%name``."""
    at = f"  %{name}.at = getelementptr i64, ptr {base}, i64 {index}\n"
    return f"{at}  %{name} = load {kind}, ptr %{name}.at\n"
