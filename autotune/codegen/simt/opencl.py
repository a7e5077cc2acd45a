"""OpenCL C: its dialect, and whole sources for a program."""

from __future__ import annotations

from autotune.codegen.simt import emit
from autotune.codegen.simt.dialect import Dialect
from autotune.codegen.simt.emit import Generated
from autotune.codegen.simt.expr import FUNCTIONS
from schedules.ir.grid import GridKernel, GridProgram

PRELUDE = """\
#ifdef cl_khr_fp64
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif
#define AT_GROUP_x get_group_id(0)
#define AT_GROUP_y get_group_id(1)
#define AT_GROUP_z get_group_id(2)
#define AT_LOCAL_x ((int)get_local_id(0))
#define AT_LOCAL_y ((int)get_local_id(1))
#define AT_LOCAL_z ((int)get_local_id(2))
typedef ushort at_half, at_bfloat;  // their bits
typedef ushort2 at_half2, at_bfloat2;
typedef ushort4 at_half4, at_bfloat4;
typedef ushort8 at_half8, at_bfloat8;
#define AT_AS_FLOAT(bits) as_float(bits)
#define AT_AS_UINT(f) as_uint(f)
// Without cl_khr_fp16 there are pointers to half, and conversions of what they point to.
#ifdef POCL_DEVICE_ADDRESS_BITS  // PoCL's: 3.0 gives all work-items one's address of a variable
static inline float at_widen_float16(at_half h) {
  const uint bits = h & 0x7fffu, sign = (h & 0x8000u) << 16;
  const float small = (float)bits * 0x1p-24f;  // subnormal, and zero
  const uint large = (bits << 13) + (bits < 0x7c00u ? 112u << 23 : 224u << 23);
  return as_float(sign | (bits < 0x0400u ? as_uint(small) : large));
}
static inline at_half at_round_float16(float f) {
  const uint bits = as_uint(f) & 0x7fffffffu, sign = (as_uint(f) & 0x80000000u) >> 16;
  const uint small = (uint)rint(fmin(as_float(bits), 1.0f) * 0x1p24f);  // in units of the least half
  const uint large = (bits + 0xfffu + (bits >> 13 & 1u) - (112u << 23)) >> 13;  // to even
  const uint most = bits > 0x7f800000u ? 0x7e00u : 0x7c00u;
  return (at_half)(sign | (bits < 0x38800000u ? small : bits < 0x477ff000u ? large : most));
}
#else
static inline float at_widen_float16(at_half h) { return vload_half(0, (const half *)&h); }
static inline at_half at_round_float16(float f) {
  at_half h;
  vstore_half_rte(f, 0, (half *)&h);
  return h;
}
#endif
#define AT_INLINE static inline
typedef long at_long;
typedef ulong at_ulong;
#pragma OPENCL FP_CONTRACT ON  // in this function only: PoCL's mad rounds twice, and fma may be slow
#define AT_FMA(a, b, c) ((a) * (b) + (c))
""" + f"""\
{FUNCTIONS}#ifdef cl_khr_fp64
AT_FLOAT(double, float64)
#endif
#pragma OPENCL FP_CONTRACT OFF
"""


def _head(name: str, params: str, kernel: GridKernel) -> str:
    x, y, z = kernel.block
    return f"__kernel __attribute__((reqd_work_group_size({x}, {y}, {z}))) void {name}({params})"


def _parameter(kind: str, name: str, written: bool) -> str:
    return f"__global {'' if written else 'const '}{kind} *restrict {name}"


# The dialect OpenCL C.
OPENCL = Dialect(
    name="OpenCL C",
    prelude=PRELUDE,
    types={
        "float16": "at_half",
        "bfloat16": "at_bfloat",
        "float32": "float",
        "float64": "double",
        "int8": "char",
        "uint8": "uchar",
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
    float_suffix="",
    shuffles=False,
    aligned=False,
)


def generate(program: GridProgram) -> Generated:
    """OpenCL C of all kernels of a program, with the alignment that it needs of its arrays."""
    return emit.generate(program, OPENCL)


def source(program: GridProgram) -> str:
    """The OpenCL C of all kernels of a program."""
    return generate(program).text
