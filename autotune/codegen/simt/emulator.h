// CUDA C on a CPU: what a kernel includes. The threads of a block are fibers that take turns, each up to where
// it waits (`emulator_runtime.cpp`). What a GPU lets pass is an error here: a barrier that some threads do not
// reach, an access outside of a shared array, a shared element that one thread writes and another uses with no
// barrier between them, a copy under way that anyone touches.
#include <math.h>
#include <stdint.h>
#include <string.h>

#define AT_EMULATED
#define AT_FMA(a, b, c) ((a) * (b) + (c))
#define AT_RUNTIME extern "C" __attribute__((visibility("hidden")))
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(bytes)
#define __syncthreads() at_barrier(__LINE__)
#define __shfl_xor_sync(mask, value, distance) at_exchange(value, distance, __LINE__)
#define AT_SHARED(type, name, count)                           \
  static type name##_value[count] __attribute__((aligned(128))); \
  static at_use name##_use[count];                             \
  static at_shared<type> name = {{name##_value, name##_use, #name, count, sizeof(type)}}
#define AT_SHARED_AT(type, name, count, at)         \
  at_within(#name, (at) + sizeof(type) * (count)); \
  AT_SHARED(type, name, count)
#define AT_LOAD(type, n, p) at_load<type##n>(p)
#define AT_STORE(type, n, p, v) at_store(p, v)
// Copies to shared memory in the background.
#define AT_COPY(bytes, to, from, present) at_copy_to(to, &(from), bytes, present)
#define AT_SIGNAL() at_signal()
#define AT_AWAIT(pending) at_await(pending)
// What the lanes of a warp do together. Operands: what registers begin at.
#define at_ldmatrix_x1(words, at) at_matrices(__LINE__, 1, 0, at_first(words), at)
#define at_ldmatrix_x2(words, at) at_matrices(__LINE__, 2, 0, at_first(words), at)
#define at_ldmatrix_x4(words, at) at_matrices(__LINE__, 4, 0, at_first(words), at)
#define at_ldmatrix_x1_trans(words, at) at_matrices(__LINE__, 1, 1, at_first(words), at)
#define at_ldmatrix_x2_trans(words, at) at_matrices(__LINE__, 2, 1, at_first(words), at)
#define at_ldmatrix_x4_trans(words, at) at_matrices(__LINE__, 4, 1, at_first(words), at)
#define AT_MMA(kind, c, a, b) at_mma(__LINE__, kind, at_first(c), at_first(a), at_first(b))
#define at_mma_m16n8k16_float32_float16(c, a, b) AT_MMA(AT_F16, c, a, b)
#define at_mma_m16n8k16_float16_float16(c, a, b) AT_MMA(AT_F16_SUMS, c, a, b)
#define at_mma_m16n8k16_float32_bfloat16(c, a, b) AT_MMA(AT_BF16, c, a, b)
#define at_mma_m16n8k8_float32_tf32(c, a, b) AT_MMA(AT_TF32, c, a, b)
#define at_mma_m16n8k32_int32_int8_int8(c, a, b) AT_MMA(AT_S8, c, a, b)
#define at_mma_m16n8k32_int32_uint8_uint8(c, a, b) AT_MMA(AT_U8, c, a, b)
#define at_mma_m16n8k32_int32_int8_uint8(c, a, b) AT_MMA(AT_S8_U8, c, a, b)
#define at_mma_m16n8k32_int32_uint8_int8(c, a, b) AT_MMA(AT_U8_S8, c, a, b)
enum at_product { AT_F16, AT_F16_SUMS, AT_BF16, AT_TF32, AT_S8, AT_U8, AT_S8_U8, AT_U8_S8 };

static inline float AT_AS_FLOAT(unsigned bits) {
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}
static inline unsigned AT_AS_UINT(float f) {
  unsigned bits;
  memcpy(&bits, &f, sizeof f);
  return bits;
}

struct at_ids { int x, y, z; };
template <class T> struct at_two { T x, y; };
template <class T> struct at_four { T x, y, z, w; };
typedef at_two<float> float2;
typedef at_four<float> float4;
typedef at_two<int> int2;
typedef at_four<int> int4;
typedef at_two<double> double2;

// -- the runtime -------------------------------------------------------------------------------------------
// Who used an element last, in which phase of which block; reader -2: several; copied_by: the thread whose copy
// to it is under way, plus 1.
struct at_use { int block, written, writer, read, reader, copied_by; };
struct at_array { void *value; at_use *use; const char *what; int count, item; };
// A global array that a kernel may read.
struct at_region { const void *begin; int64_t bytes; };
typedef void (*at_kernel_function)(void **);
struct at_launched { const char *name; at_kernel_function body; void **args; const at_region *regions; int count; };
// What an object of a CPU has: its entry, and the header by which it describes itself.
struct at_head {
  int abi, threads;
  long long scratch;
  void (*kernel)(void **, void *, int);
  const char *signature;
};
AT_RUNTIME at_ids threadIdx, blockIdx, blockDim, gridDim;
AT_RUNTIME void at_fault(const char *format, ...);
AT_RUNTIME void at_reach(const void *at, int bytes, int strict);
AT_RUNTIME void at_within(const char *what, int64_t end);
AT_RUNTIME void at_barrier(int line);
AT_RUNTIME int64_t at_exchange_bits(int64_t value, int distance, int line);
AT_RUNTIME void at_uses(at_array *array, int64_t at, int count, int writes);
AT_RUNTIME void at_copy(at_array *to, int64_t at, const void *from, int bytes, int present, int strict);
AT_RUNTIME void at_signal();
AT_RUNTIME void at_await(int pending);
AT_RUNTIME void at_ldmatrix(int line, int count, int trans, void *words, at_array *array, int64_t at);
AT_RUNTIME void at_mma(int line, int kind, void *c, void *a, void *b);
AT_RUNTIME void at_launch(const at_launched *what, at_ids grid, at_ids block);
AT_RUNTIME const char *at_run(void (*program)(void **, void *), void **args, void *scratch, int order, unsigned seed);
AT_RUNTIME void at_run_or_abort(void (*program)(void **, void *), void **args, void *scratch);
AT_RUNTIME int at_drive(void *kernel, at_ids grid, at_ids block, int64_t shared, void **params);
AT_RUNTIME const char *at_text();

// -- what kernels use of it --------------------------------------------------------------------------------
#ifdef AT_STRICT
static const bool at_strict = true;
#else
static const bool at_strict = false;
#endif

template <class T> static T at_exchange(T value, int distance, int line) {
  int64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  bits = at_exchange_bits(bits, distance, line);
  memcpy(&value, &bits, sizeof value);
  return value;
}

template <class T> struct at_element {
  at_array &array;
  int64_t at;
  T *here() const { return (T *)array.value + at; }
  operator T() const { at_uses(&array, at, 1, false); return *here(); }
  at_element &operator=(T v) { at_uses(&array, at, 1, true); *here() = v; return *this; }
};

template <class T> struct at_shared {
  at_array array;
  at_element<T> operator[](int64_t at) { return {array, at}; }
};

template <class T> static void at_copy_to(at_element<T> to, const void *from, int bytes, bool present) {
  at_copy(&to.array, to.at, from, bytes, present, at_strict);
}

// Where registers begin: an array, a pointer, or the first of them.
template <class T> static void *at_first(T *x) { return (void *)x; }
template <class T> static void *at_first(T &x) { return (void *)&x; }
template <class T> static void at_matrices(int line, int count, int trans, void *words, at_element<T> at) {
  at_ldmatrix(line, count, trans, words, &at.array, at.at);
}

template <class V, class T> static V at_load(const T &p) {
  at_reach(&p, sizeof(V), at_strict);
  V v;
  memcpy(&v, &p, sizeof v);
  asm volatile("" : : "m"(v));  // here, not where a lane is asked for: it may fault
  return v;
}
template <class V, class T> static void at_store(T &p, const V &v) {
  at_reach(&p, sizeof(V), at_strict);
  memcpy((void *)&p, &v, sizeof v);
}
template <class V, class T> static V at_load(const at_element<T> &p) {
  at_uses(&p.array, p.at, sizeof(V) / sizeof(T), false);
  V v;
  memcpy(&v, p.here(), sizeof v);
  return v;
}
template <class V, class T> static void at_store(at_element<T> p, const V &v) {
  at_uses(&p.array, p.at, sizeof(V) / sizeof(T), true);
  memcpy((void *)p.here(), &v, sizeof v);
}

// What a driver has: cuLaunchKernel, whose handles are functions of the addresses of parameters, and words
// for the last fault.
#define AT_DRIVER                                                                                          \
  extern "C" int at_cuLaunchKernel(void *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx,       \
                                   unsigned by, unsigned bz, unsigned shared, void *, void **params,       \
                                   void **) {                                                              \
    return at_drive(kernel, {(int)gx, (int)gy, (int)gz}, {(int)bx, (int)by, (int)bz}, shared, params);     \
  }                                                                                                        \
  extern "C" const char *at_fault_text() { return at_text(); }

#define AT_ENTRY(abi, bytes, signature)                                                                    \
  extern "C" const char *at_emulate(int which, void **args, void *scratch, int order, unsigned seed) {      \
    return at_run(at_programs[which], args, scratch, order, seed);                                         \
  }                                                                                                        \
  static void at_kernel(void **args, void *scratch, int) { at_run_or_abort(at_programs[0], args, scratch); } \
  extern "C" const at_head at_header;                                                                      \
  const at_head at_header = {abi, 1, bytes, at_kernel, signature};
