// CUDA C on a CPU: the threads of a block as fibers that take turns, each up to the next barrier. What a GPU
// lets pass is an error here: a barrier that some threads do not reach, an access outside of a shared array,
// a shared element that one thread writes and another uses with no barrier between them.
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

#define AT_EMULATED
#define AT_FMA(a, b, c) ((a) * (b) + (c))
#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __syncthreads() at_wait(__LINE__, true)
#define __shfl_xor_sync(mask, value, distance) at_exchange(value, distance, __LINE__)
#define AT_SHARED(type, name, count) static at_shared<type, count> name; name.what = #name
#define AT_SHARED_AT(type, name, count, at) at_within(#name, (at) + sizeof(type) * (count)); AT_SHARED(type, name, count)
#define AT_LOAD(type, n, p) at_load<type##n>(p)
#define AT_STORE(type, n, p, v) at_store(p, v)

static float AT_AS_FLOAT(unsigned bits) {
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}
static unsigned AT_AS_UINT(float f) {
  unsigned bits;
  memcpy(&bits, &f, sizeof f);
  return bits;
}
#define __align__(bytes)

struct at_ids { int x, y, z; };
template <class T> struct at_two { T x, y; };
template <class T> struct at_four { T x, y, z, w; };
typedef at_two<float> float2;
typedef at_four<float> float4;
typedef at_two<int> int2;
typedef at_four<int> int4;
typedef at_two<double> double2;
static at_ids threadIdx, blockIdx, blockDim, gridDim;

static const int at_most = 1024, at_stack = 1 << 16, at_warp = 32;
static ucontext_t at_main, at_fibers[at_most];
static char *at_stacks, at_message[256];
static int at_now, at_line[at_most], at_phase, at_block;
static int64_t at_register[at_most];
static bool at_synchronises[at_most], at_failed;
static void (*at_body)(void **);
static void **at_args;

// The whole run ends: nothing after a fault means anything.
static void at_fault(const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(at_message, sizeof at_message, format, args);
  va_end(args);
  at_failed = true;
  swapcontext(&at_fibers[at_now], &at_main);
}

static void at_wait(int line, bool synchronises) {
  at_line[at_now] = line;
  at_synchronises[at_now] = synchronises;
  swapcontext(&at_fibers[at_now], &at_main);
}

template <class T> static T at_exchange(T value, int distance, int line) {
  memcpy(&at_register[at_now], &value, sizeof value);
  at_wait(line, false);
  int other = at_now / at_warp * at_warp + ((at_now % at_warp) ^ distance);
  memcpy(&value, &at_register[other], sizeof value);
  at_wait(-line, false);
  return value;
}

static size_t at_asked = SIZE_MAX;  // bytes of shared memory that a launch asks for, where one says
static void at_within(const char *what, size_t end) {
  if (end > at_asked) at_fault("%s ends at byte %zu of shared memory, and the launch asks for %zu", what, end, at_asked);
}

struct at_use { int block, written, writer, read, reader; };  // phases, and threads; reader -2: several

template <class T, int N> struct at_shared;
template <class T, int N> struct at_element {
  at_shared<T, N> &array;
  int at;
  operator T() const { array.uses(at, false); return array.value[at]; }
  at_element &operator=(T v) { array.uses(at, true); array.value[at] = v; return *this; }
};

template <class T, int N> struct at_shared {
  T value[N];
  at_use use[N];
  const char *what;
  at_element<T, N> operator[](int64_t at) { return {*this, (int)at}; }
  void uses(int at, bool writes) {
    if (at < 0 || at >= N) at_fault("thread %d of block %d uses %s[%d] of %d", at_now, at_block, what, at, N);
    at_use &u = use[at];
    if (u.block != at_block) {
      u = {at_block, -1, -1, -1, -1};
      memset(&value[at], 0xff, sizeof(T));  // NaN
    }
    bool written = u.written == at_phase && u.writer != at_now;
    bool read = u.read == at_phase && u.reader != at_now;
    if (written || (writes && read))
      at_fault("race on %s[%d]: thread %d of block %d uses what another has %s, with no barrier between them",
               what, at, at_now, at_block, written ? "written" : "read");
    if (writes) {
      u.written = at_phase;
      u.writer = at_now;
    } else {
      u.reader = u.read == at_phase && u.reader != at_now ? -2 : at_now;
      u.read = at_phase;
    }
  }
};

// Arrays of a GPU begin where vectors may; those of a CPU, which checks of candidates use, need not.
#ifdef AT_STRICT
#define AT_ALIGNED(p, V)                                                                                    \
  if ((uintptr_t)(p) % sizeof(V))                                                                           \
  at_fault("thread %d of block %d: %d bytes at a misaligned address", at_now, at_block, (int)sizeof(V))
#else
#define AT_ALIGNED(p, V) (void)0
#endif
template <class V, class T> static V at_load(const T &p) {
  AT_ALIGNED(&p, V);
  V v;
  memcpy(&v, &p, sizeof v);
  asm volatile("" : : "m"(v));  // here, not where a lane is asked for: it may fault
  return v;
}
template <class V, class T> static void at_store(T &p, const V &v) {
  AT_ALIGNED(&p, V);
  memcpy((void *)&p, &v, sizeof v);
}
template <class V, class T, int N> static V at_load(const at_element<T, N> &p) {
  const int n = sizeof(V) / sizeof(T);
  if (p.at % n) at_fault("thread %d: a vector of %d at %s[%d] is not aligned", at_now, n, p.array.what, p.at);
  T part[n];
  for (int i = 0; i < n; ++i) part[i] = at_element<T, N>{p.array, p.at + i};
  V v;
  memcpy(&v, part, sizeof v);
  return v;
}
template <class V, class T, int N> static void at_store(at_element<T, N> p, const V &v) {
  const int n = sizeof(V) / sizeof(T);
  if (p.at % n) at_fault("thread %d: a vector of %d at %s[%d] is not aligned", at_now, n, p.array.what, p.at);
  T part[n];
  memcpy(part, &v, sizeof v);
  for (int i = 0; i < n; ++i) at_element<T, N>{p.array, p.at + i} = part[i];
}

static void at_thread() {
  at_body(at_args);
  at_line[at_now] = 0;
  swapcontext(&at_fibers[at_now], &at_main);
}

static void at_enter(int thread) {
  at_now = thread;
  threadIdx = {thread % blockDim.x, thread / blockDim.x % blockDim.y, thread / (blockDim.x * blockDim.y)};
  swapcontext(&at_main, &at_fibers[thread]);
}

static void at_run_block(int threads) {
  for (int t = 0; t < threads; ++t) {
    getcontext(&at_fibers[t]);
    at_fibers[t].uc_stack.ss_sp = at_stacks + (size_t)t * at_stack;
    at_fibers[t].uc_stack.ss_size = at_stack;
    makecontext(&at_fibers[t], at_thread, 0);
  }
  for (bool more = true; more && !at_failed; ++at_phase) {
    bool synchronises = false;
    // a warp's exchange is no barrier of the block: it ends no phase
    do {
      for (int t = 0; t < threads && !at_failed; ++t) at_enter((at_block & 1) ? threads - 1 - t : t);
      for (int t = 1; t < threads && !at_failed; ++t)
        if (at_line[t] != at_line[0]) {
          snprintf(at_message, sizeof at_message, "a barrier in block %d that not all threads reach: thread %d is elsewhere", at_block, t);
          at_failed = true;
        }
      more = at_line[0] != 0;
      synchronises = at_synchronises[0];
    } while (more && !synchronises && !at_failed);
  }
}

static void at_launch(void (*body)(void **), void **args, at_ids grid, at_ids block) {
  if (at_failed) return;
  at_body = body, at_args = args, gridDim = grid, blockDim = block;
  for (int z = 0; z < grid.z; ++z)
    for (int y = 0; y < grid.y; ++y)
      for (int x = 0; x < grid.x && !at_failed; ++x) {
        blockIdx = {x, y, z};
        ++at_block;
        at_phase = 0;
        at_run_block(block.x * block.y * block.z);
      }
}

// What an object of a CPU has: its entry, and the header by which it describes itself.
struct at_head {
  int abi, threads;
  long long scratch;
  void (*kernel)(void **, void *, int);
  const char *signature;
};

static bool at_begin() {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  at_stacks = (char *)mmap(0, (size_t)at_most * at_stack, PROT_READ | PROT_WRITE, flags, -1, 0);
  at_failed = at_stacks == MAP_FAILED;
  if (at_failed) strcpy(at_message, "no memory for the stacks of the threads");
  return !at_failed;
}

static void at_end() { munmap(at_stacks, (size_t)at_most * at_stack); }

static const char *at_run(void (*program)(void **, void *), void **args, void *scratch) {
  if (!at_begin()) return at_message;
  program(args, scratch);
  at_end();
  return at_failed ? at_message : 0;
}

// What a driver has: cuLaunchKernel, whose handles are functions of the addresses of parameters, and words
// for the last fault.
#define AT_DRIVER                                                                                           \
  extern "C" int at_cuLaunchKernel(void *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx,         \
                                   unsigned by, unsigned bz, unsigned shared, void *, void **params,         \
                                   void **) {                                                               \
    at_asked = shared;                                                                                      \
    if (!at_begin()) return 2;                                                                              \
    at_launch((void (*)(void **))kernel, params, {(int)gx, (int)gy, (int)gz}, {(int)bx, (int)by, (int)bz}); \
    at_end();                                                                                               \
    return at_failed ? 719 : 0;                                                                             \
  }                                                                                                         \
  extern "C" const char *at_fault_text() { return at_message; }

#define AT_ENTRY(abi, bytes, signature)                                              \
  extern "C" const char *at_emulate(int which, void **args, void *scratch) {          \
    return at_run(at_programs[which], args, scratch);                                 \
  }                                                                                   \
  static void at_kernel(void **args, void *scratch, int) {                            \
    const char *fault = at_run(at_programs[0], args, scratch);                        \
    if (!fault) return;                                                               \
    fprintf(stderr, "%s\n", fault);                                                   \
    abort();                                                                          \
  }                                                                                   \
  extern "C" const at_head at_header;                                                 \
  const at_head at_header = {abi, 1, bytes, at_kernel, signature};
