"""CUDA C: its dialect, and whole sources for a program."""

from __future__ import annotations

from functools import partial

from autotune.codegen.simt import atomics, emit
from autotune.codegen.simt.dialect import SWIZZLE, Dialect
from autotune.codegen.simt.expr import FUNCTIONS, TF32, with_conversions
from schedules.dtypes import DTYPES, STORED_FLOATS
from schedules.ir.grid import GridKernel

_PRELUDE = (
    """\
#ifndef AT_EMULATED
#define AT_SHARED(type, name, count) __shared__ __align__(16) type name[count]
#define AT_LOAD(type, n, p) (*reinterpret_cast<const type##n*>(&p))
#define AT_STORE(type, n, p, v) (*reinterpret_cast<type##n*>(&p) = v)
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
#define AT_FMA(a, b, c) fma(a, b, c)  // for the rest, --fmad=false keeps what is written
#endif
#define AT_INLINE static __device__ __forceinline__
typedef long long at_long;
typedef unsigned long long at_ulong;
typedef unsigned short at_bits16;  // floats of storage are their bits; NVRTC has no cuda_fp16.h of its own
typedef short at_short;
typedef signed char at_char;
typedef unsigned char at_uchar, at_bool, at_bits8;
#define AT_VECTORS(T, size) \\
  struct __align__(2 * size) T##2 { T s0, s1; }; \\
  struct __align__(4 * size) T##4 { T s0, s1, s2, s3; }; \\
  struct __align__(8 * size) T##8 { T s0, s1, s2, s3, s4, s5, s6, s7; }
#define AT_BYTES(T) \\
  AT_VECTORS(T, 1); \\
  struct __align__(16) T##16 { T s0, s1, s2, s3, s4, s5, s6, s7, s8, s9, sa, sb, sc, sd, se, sf; }
AT_VECTORS(at_bits16, 2);
AT_VECTORS(at_short, 2);
AT_BYTES(at_bits8);
AT_BYTES(at_char);
AT_BYTES(at_uchar);
AT_BYTES(at_bool);
#ifndef AT_EMULATED
#define AT_AS_FLOAT(bits) __uint_as_float(bits)
#define AT_AS_UINT(f) __float_as_uint(f)
AT_INLINE float at_widen_float16(at_bits16 h) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
  return f;
}
AT_INLINE at_bits16 at_round_float16(float f) {
  at_bits16 h;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
  return h;
}
#endif
"""
    + f"""\
{FUNCTIONS}AT_FLOAT(double, float64)
"""
)
_ASKED = """\
#ifndef AT_EMULATED
#define AT_SHARED_AT(type, name, count, at) \\
  extern __shared__ __align__(1024) unsigned char at_asked[]; \\
  type (&name)[count] = reinterpret_cast<type (&)[count]>(at_asked[at])
#endif
"""
_UINT = """\
typedef unsigned int at_uint;
struct __align__(8) at_uint2 { at_uint x, y; };
struct __align__(16) at_uint4 { at_uint x, y, z, w; };
"""
# Asynchronous copies; before sm_80, which has none, they are done at once. ``present``: 0 writes zeros.
_COPIES = """\
#ifndef AT_EMULATED
template <int N> struct __align__(N) at_words { unsigned w[N / 4]; };
template <int N> AT_INLINE void at_copy(void *to, const void *from, bool present) {
#if __CUDA_ARCH__ >= 800
  const unsigned at = (unsigned)__cvta_generic_to_shared(to), bytes = present ? N : 0;
#define AT_COPY_BY(cache) \\
  asm volatile("cp.async." cache ".shared.global [%0], [%1], %2, %3;" ::"r"(at), "l"(from), "n"(N), \\
               "r"(bytes) : "memory")
  if (N == 16) AT_COPY_BY("cg");  // around the first cache, for 16 bytes only
  else AT_COPY_BY("ca");
#else
  *(at_words<N> *)to = present ? *(const at_words<N> *)from : at_words<N>{};
#endif
}
#if __CUDA_ARCH__ >= 800
#define AT_SIGNAL() asm volatile("cp.async.commit_group;" ::: "memory")
#define AT_AWAIT(n) asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory")
#else
#define AT_SIGNAL() (void)0
#define AT_AWAIT(n) (void)0
#endif
#define AT_COPY(bytes, to, from, present) at_copy<bytes>(&(to), &(from), present)
#endif
"""


_CACHED = """\
#ifdef AT_EMULATED
#define AT_READ_AS(cache, p) (p)
#define AT_WRITE_AS(cache, p, v) p = v
#define AT_STORE_AS(cache, type, n, p, v) AT_STORE(type, n, p, v)
#else
#define AT_READ_AS(cache, p) at_read_##cache(p)
#define AT_WRITE_AS(cache, p, v) at_write_##cache(p, v)
#define AT_STORE_AS(cache, type, n, p, v) at_write_##cache(*reinterpret_cast<type##n*>(&p), (v))
template <int bytes> struct at_word;
template <> struct at_word<1> { typedef unsigned char type; };
template <> struct at_word<2> { typedef unsigned short type; };
template <> struct at_word<4> { typedef unsigned type; };
template <> struct at_word<8> { typedef uint2 type; };
template <> struct at_word<16> { typedef uint4 type; };
#define AT_CACHED(cache, load, store) \\
  template <class T> AT_INLINE T at_read_##cache(const T &p) { \\
    typename at_word<sizeof(T)>::type word = load((const typename at_word<sizeof(T)>::type*)&p); \\
    return reinterpret_cast<T&>(word); \\
  } \\
  template <class T, class V> AT_INLINE void at_write_##cache(T &p, const V &value) { \\
    T v = value; \\
    store((typename at_word<sizeof(T)>::type*)&p, reinterpret_cast<typename at_word<sizeof(T)>::type&>(v)); \\
  }
AT_CACHED(ca, __ldca, __stwb)
AT_CACHED(cg, __ldcg, __stcg)
AT_CACHED(cs, __ldcs, __stcs)
#endif
"""


def _head(name: str, params: str, kernel: GridKernel) -> str:
    together = next((v for x in kernel.blocks for k, v in x.annotations if k == "min_blocks"), 1)
    bounds = f"{kernel.threads}, {together}" if together != 1 else kernel.threads
    return f'extern "C" __global__ void __launch_bounds__({bounds}) {name}({params})'


def _parameter(kind: str, name: str, written: bool) -> str:
    return f"{'' if written else 'const '}{kind}* __restrict__ {name}"


# The dialect CUDA C.
CUDA = with_conversions(
    Dialect(
        name="CUDA C",
        prelude=_PRELUDE,
        types={
            **{name: f"at_bits{8 * DTYPES[name].itemsize}" for name in STORED_FLOATS},
            "float32": "float",
            "float64": "double",
            "int8": "at_char",
            "uint8": "at_uchar",
            "int16": "at_short",
            "uint16": "at_ushort",
            "uint32": "at_uint",
            "int32": "int",
            "int64": "long long",
            "bool": "at_bool",
        },
        head=_head,
        parameter=_parameter,
        shared="AT_SHARED({type}, {name}, {count});",
        block_id="blockIdx.{axis}",
        thread_id="threadIdx.{axis}",
        barrier="__syncthreads();",
        load="AT_LOAD({type}, {n}, {buffer}[{at}])",
        store="AT_STORE({type}, {n}, {buffer}[{at}], {value})",
        atomics=atomics.of_cuda,
        float_suffix="f",
        without_half="AT_EMULATED",
        shuffles=True,
        calls="cuda",
        aligned=True,
        asked="AT_SHARED_AT({type}, {name}, {count}, {at});",
        caches=True,
        copies=True,
        where_used=(
            ("at_ushort", "typedef unsigned short at_ushort;\nAT_VECTORS(at_ushort, 2);\n"),
            ("at_uint", _UINT),
            ("AT_SHARED_AT", _ASKED),
            ("AT_SIGNAL", _COPIES),
            ("_AS(", _CACHED),
            SWIZZLE,
            *TF32,
        ),
    )
)
PRELUDE = CUDA.prelude
generate, source = partial(emit.generate, CUDA), partial(emit.source, CUDA)
