"""OpenCL C: its dialect, and whole sources for a program."""

from __future__ import annotations

from functools import partial

from autotune.codegen.simt import atomics, emit
from autotune.codegen.simt.dialect import SWIZZLE, Dialect
from autotune.codegen.simt.expr import FUNCTIONS, TF32, with_conversions
from schedules.dtypes import DTYPES, STORED_FLOATS
from schedules.ir.grid import GridKernel

_PRELUDE = (
    """\
#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#define AT_GROUP_x get_group_id(0)
#define AT_GROUP_y get_group_id(1)
#define AT_GROUP_z get_group_id(2)
#define AT_LOCAL_x ((int)get_local_id(0))
#define AT_LOCAL_y ((int)get_local_id(1))
#define AT_LOCAL_z ((int)get_local_id(2))
#define AT_AS_FLOAT(bits) as_float(bits)
#define AT_AS_UINT(f) as_uint(f)
// Without cl_khr_fp16 there are pointers to half, and conversions of what they point to.
#ifndef POCL_DEVICE_ADDRESS_BITS  // PoCL's: 3.0 gives all work-items one's address of a variable
static inline float at_widen_float16(ushort h) { return vload_half(0, (const half *)&h); }
static inline ushort at_round_float16(float f) {
  ushort h;
  vstore_half_rte(f, 0, (half *)&h);
  return h;
}
#endif
#define AT_INLINE static inline
typedef long at_long;
typedef ulong at_ulong;
#pragma OPENCL FP_CONTRACT ON  // in this function only: PoCL's mad rounds twice, and fma may be slow
#define AT_FMA(a, b, c) ((a) * (b) + (c))
"""
    + f"""\
{FUNCTIONS}#ifdef cl_khr_fp64
AT_FLOAT(double, float64)
#endif
#pragma OPENCL FP_CONTRACT OFF
"""
)


def _head(name: str, params: str, kernel: GridKernel) -> str:
    x, y, z = kernel.block
    return f"__kernel __attribute__((reqd_work_group_size({x}, {y}, {z}))) void {name}({params})"


def _parameter(kind: str, name: str, written: bool) -> str:
    return f"__global {'' if written else 'const '}{kind} *restrict {name}"


# The dialect OpenCL C.
OPENCL = with_conversions(
    Dialect(
        name="OpenCL C",
        prelude=_PRELUDE,
        types={
            **{name: "ushort" if DTYPES[name].itemsize == 2 else "uchar" for name in STORED_FLOATS},
            "float32": "float",
            "float64": "double",
            "int8": "char",
            "uint8": "uchar",
            "int16": "short",
            "uint16": "ushort",
            "uint32": "uint",
            "int32": "int",
            "int64": "long",
            "bool": "uchar",
        },
        head=_head,
        parameter=_parameter,
        shared="__local {type} {name}[{count}] __attribute__((aligned(16)));",
        block_id="AT_GROUP_{axis}",
        thread_id="AT_LOCAL_{axis}",
        barrier="barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);",
        load="vload{n}(0, &{buffer}[{at}])",
        store="vstore{n}({value}, 0, &{buffer}[{at}])",
        atomics=atomics.of_opencl,
        float_suffix="",
        without_half="POCL_DEVICE_ADDRESS_BITS",
        shuffles=False,
        aligned=False,
        where_used=(SWIZZLE, *TF32),
    )
)
generate, source = partial(emit.generate, OPENCL), partial(emit.source, OPENCL)
