// A CUDA driver of one GPU whose memory is this process's own, and whose modules are shared libraries of emulation
// (autotune.codegen.emulator.driver): what the driver does beside computing, for tests without a GPU. Built as
// libcuda.so.1. Streams follow one another. AT_FAKE_LOG names a file that gets a line for each call that matters. A
// context of another GPU (at_fake_other) can be current, where nothing of the first one runs.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <elf.h>
#include <functional>
#include <map>
#include <string>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

typedef int R;
typedef unsigned long long Ptr;
enum { OK = 0, INVALID = 1, NO_MEMORY = 2, NOT_FOUND = 500, BAD_IMAGE = 200, NO_CONTEXT = 201, BAD_HANDLE = 400, FAULT = 719,
  UNSUPPORTED = 900, INVALIDATED = 901 };

static const int ALWAYS_SHARED = 49152, OPT_IN = 232448;  // bytes of a block
static std::map<Ptr, size_t> memory;
static int gpu, other_gpu;  // their addresses stand for the primary contexts
static thread_local std::vector<void *> contexts;  // of the thread; the last one is current
static int fault;  // sticky, as a GPU's
static thread_local int capture_mode;  // 0 global, 2 relaxed
static bool capturing;  // a stream of another library
// What a stream was given since its capture began; ended by nothing but cuStreamEndCapture. Of one thread at a time.
typedef std::vector<std::function<void()>> Work;
struct Capture { Work work; int mode; bool invalid; };
static std::map<void *, Capture> captures;
struct Graph { void *context; Work work; };

struct Module { void *context, *library; };
struct Function { void *context, *kernel; int arrays; unsigned may_share; R (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **); };
struct Event { void *context; double at; };

static void note(const char *what, long long a = 0, long long b = 0) {
  if (const char *path = getenv("AT_FAKE_LOG"))
    if (FILE *f = fopen(path, "a")) { fprintf(f, "%s %lld %lld\n", what, a, b); fclose(f); }
}
static double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
static void *current() { return contexts.empty() ? 0 : contexts.back(); }
static R state() { return fault ? fault : current() ? OK : NO_CONTEXT; }
// Whether a call that no graph can hold is refused, which spoils every capture that minds it.
static bool refused() {
  if (capture_mode == 2) return false;
  bool any = capturing;
  for (auto &c : captures)
    if (c.second.mode != 2) any = c.second.invalid = true;
  return any;
}
static Capture *capture_of(void *stream) {
  auto found = captures.find(stream);
  return found == captures.end() ? 0 : &found->second;
}
static R state_for(void *context) { R bad = state(); return bad ? bad : context == current() ? OK : BAD_HANDLE; }

extern "C" {
R cuInit(unsigned) { return OK; }
R cuDriverGetVersion(int *v) { const char *old = getenv("AT_FAKE_VERSION"); *v = old ? atoi(old) : 13000; return OK; }
R cuDeviceGetCount(int *n) { *n = 1; return OK; }
R cuDeviceGet(int *d, int) { *d = 0; return OK; }
R cuDeviceGetName(char *name, int n, int) { strncpy(name, "Fake GPU", n); return OK; }
R cuDeviceGetPCIBusId(char *name, int n, int) { strncpy(name, "0000:01:00.0", n); return OK; }
R cuDeviceTotalMem_v2(size_t *n, int) { *n = 1u << 30; return OK; }
R cuDeviceComputeCapability(int *major, int *minor, int) { *major = 9; *minor = 0; return OK; }
R cuDeviceGetAttribute(int *v, int which, int) {
  static const std::map<int, int> known = {{1, 1024}, {8, 49152}, {10, 32}, {12, 65536}, {13, 1980000}, {16, 132},
    {36, 2619000}, {37, 5120}, {38, 1 << 16}, {39, 2048}, {75, 9}, {76, 0}, {81, 233472}, {106, 32}};
  auto found = known.find(which);
  *v = found == known.end() ? 0 : found->second;
  return OK;
}
R cuDevicePrimaryCtxRetain(void **c, int) { *c = &gpu; note("retain"); return OK; }
R cuDevicePrimaryCtxRelease_v2(int) { return OK; }
R cuCtxSetCurrent(void *c) {
  if (!contexts.empty()) contexts.pop_back();
  if (c) contexts.push_back(c);
  return OK;
}
R cuCtxGetCurrent(void **c) { *c = current(); return OK; }
R cuCtxPushCurrent_v2(void *c) { contexts.push_back(c); note("push"); return OK; }
R cuCtxPopCurrent_v2(void **c) {
  if (contexts.empty()) return NO_CONTEXT;
  if (c) *c = current();
  contexts.pop_back();
  return OK;
}
R cuCtxDetach(void *) { return OK; }
R cuCtxGetDevice(int *d) { *d = 0; return state(); }
R cuCtxSynchronize() { note("synchronize"); return state(); }
R cuStreamSynchronize(void *) { note("synchronize"); return state(); }
R cuModuleLoadData(void **m, const void *image) {
  auto head = (const Elf64_Ehdr *)image;
  if (R bad = state()) return bad;
  if (memcmp(head->e_ident, ELFMAG, SELFMAG)) return BAD_IMAGE;
  size_t size = head->e_shoff + (size_t)head->e_shnum * head->e_shentsize;
  int fd = memfd_create("module", 0);
  if (write(fd, image, size) != (ssize_t)size) return NO_MEMORY;
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);  // the file stays open, so that each has its own name
  if (!library) return BAD_IMAGE;
  *m = new Module{current(), library};
  note("load");
  return OK;
}
R cuModuleLoadDataEx(void **m, const void *image, unsigned, void *, void **) { return cuModuleLoadData(m, image); }
R cuModuleUnload(void *m) { if (R bad = state()) return bad; delete (Module *)m; note("unload"); return OK; }
R cuModuleGetFunction(void **f, void *m, const char *name) {
  void *library = ((Module *)m)->library, *kernel = dlsym(library, (std::string("at_") + name).c_str());
  if (!kernel) return NOT_FOUND;
  auto arrays = (const int *)dlsym(library, (std::string("at_") + name + "_count").c_str());
  *f = new Function{((Module *)m)->context, kernel, arrays ? *arrays : 0, ALWAYS_SHARED, (decltype(Function::launch))dlsym(library, "at_cuLaunchKernel")};
  return OK;
}
R cuFuncSetBlockShape(void *, int, int, int) { return state(); }
R cuFuncSetAttribute(void *f, int which, int v) {  // MAX_DYNAMIC_SHARED_SIZE_BYTES
  if (R bad = state()) return bad;
  if (which != 8 || v < 0 || v > OPT_IN) return INVALID;
  note("share", v);
  ((Function *)f)->may_share = v;
  return OK;
}
R cuFuncGetAttribute(int *v, int, void *) { *v = 0; return OK; }
R cuLaunchKernel(void *f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                 void *stream, void **params, void **extra) {
  if (R bad = state_for(((Function *)f)->context)) return bad;
  if (shared > ((Function *)f)->may_share) return INVALID;
  note(capture_of(stream) ? "record_launch" : "launch", (long long)stream, gx);
  void *places[64];
  if (!params) {  // packed end to end, as PyCUDA does: all of ours are pointers
    auto packed = (Ptr *)extra[1];
    for (int i = 0; i < 64; ++i) places[i] = packed + i;
    params = places;
  }
  auto x = (Function *)f;
  if (Capture *c = capture_of(stream)) {  // recorded with its parameters; how many there are, a launch does not say
    if (c->invalid) return INVALIDATED;
    int n = x->arrays;
    std::vector<Ptr> values;
    for (int i = 0; i < n; ++i) values.push_back(*(Ptr *)params[i]);
    c->work.push_back([=]() {
      std::vector<Ptr> own = values;
      std::vector<void *> at;
      for (auto &v : own) at.push_back(&v);
      if (x->launch(x->kernel, gx, gy, gz, bx, by, bz, shared, stream, at.data(), 0)) fault = FAULT;
    });
    return OK;
  }
  if (x->launch(x->kernel, gx, gy, gz, bx, by, bz, shared, stream, params, 0)) fault = FAULT;
  return OK;  // a GPU's fault is met later
}
struct Attribute { int id; char pad[4]; unsigned x, y, z; char rest[52]; };
struct Config { unsigned g[3], b[3], shared; void *stream; Attribute *attributes; unsigned count; };
static_assert(sizeof(Attribute) == 72 && sizeof(Config) == 56, "CUlaunchAttribute and CUlaunchConfig");
R cuLaunchKernelEx(const Config *c, void *f, void **params, void **extra) {
  for (unsigned i = 0; i < c->count; ++i) {
    const Attribute &a = c->attributes[i];
    if (a.id != 4 || !a.x || !a.y || !a.z || a.x * a.y * a.z > 8) return INVALID;  // a cluster that is portable
    if (c->g[0] % a.x || c->g[1] % a.y || c->g[2] % a.z) return INVALID;
    note("cluster", a.x, a.y * a.z);
  }
  return cuLaunchKernel(f, c->g[0], c->g[1], c->g[2], c->b[0], c->b[1], c->b[2], c->shared, c->stream, params, extra);
}
// A tensor map holds what it was encoded from: address, dtype, rank, swizzle, then dimensions and boxes, inner ones first.
R cuTensorMapEncodeTiled(Ptr *map, int dtype, unsigned rank, Ptr address, const Ptr *dims, const Ptr *strides, const unsigned *box,
                         const unsigned *steps, int interleave, int swizzle, int, int) {
  static const int sizes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2};
  if ((uintptr_t)map % 64 || address % 16 || rank < 1 || rank > 5 || dtype < 0 || dtype > 9 || interleave || swizzle < 0 || swizzle > 3) return INVALID;
  unsigned row = box[0] * sizes[dtype];
  if (row % 16 || (swizzle && row > 16u << swizzle)) return INVALID;
  Ptr made[16] = {address, (Ptr)dtype, rank, (Ptr)swizzle};
  for (unsigned i = 0; i < rank; ++i) {
    if (!dims[i] || box[i] < 1 || box[i] > 256 || steps[i] != 1 || (i && strides[i - 1] % 16)) return INVALID;
    made[4 + i] = dims[i], made[10 + i] = box[i];
  }
  made[9] = rank > 1 ? strides[0] : 0;
  memcpy(map, made, sizeof made);
  note("encode", rank, swizzle);
  return OK;
}
R cuTensorMapReplaceAddress(Ptr *map, Ptr address) {
  if ((uintptr_t)map % 64 || address % 16) return INVALID;
  map[0] = address;
  return OK;
}
R cuMemAlloc_v2(Ptr *p, size_t n) {
  if (R bad = state()) return bad;
  if (refused()) return UNSUPPORTED;
  if (n > (size_t)1 << 34) return NO_MEMORY;
  *p = (Ptr)aligned_alloc(256, (n + 255) / 256 * 256);
  memory[*p] = n;
  note("allocate", (long long)n);
  return OK;
}
R cuMemFree_v2(Ptr p) {
  if (R bad = state()) return bad;
  if (refused()) return UNSUPPORTED;
  if (!memory.erase(p)) return INVALID;
  free((void *)p);
  note("free");
  return OK;
}
R cuMemGetInfo_v2(size_t *a, size_t *b) { *a = *b = 1u << 30; return OK; }
R cuMemcpyHtoD_v2(Ptr to, const void *from, size_t n) { if (R bad = state()) return bad; memcpy((void *)to, from, n); note("copy", n); return OK; }
R cuMemcpyDtoH_v2(void *to, Ptr from, size_t n) { if (R bad = state()) return bad; memcpy(to, (void *)from, n); note("copy", n); return OK; }
R cuMemcpyDtoDAsync_v2(Ptr to, Ptr from, size_t n, void *stream) {
  if (R bad = state()) return bad;
  if (Capture *c = capture_of(stream)) {
    if (c->invalid) return INVALIDATED;
    c->work.push_back([=]() { memcpy((void *)to, (void *)from, n); });
    return OK;
  }
  memcpy((void *)to, (void *)from, n);
  note("copy_inside", n);
  return OK;
}
R cuMemcpyDtoD_v2(Ptr to, Ptr from, size_t n) { return cuMemcpyDtoDAsync_v2(to, from, n, nullptr); }
R cuStreamCreate(void **s, unsigned flags) { if (R bad = state()) return bad; *s = new char; note("stream", flags); return OK; }
R cuStreamDestroy_v2(void *s) { if (R bad = state()) return bad; captures.erase(s); delete (char *)s; note("stream_end"); return OK; }
R cuStreamBeginCapture_v2(void *s, int mode) {
  if (R bad = state()) return bad;
  if (!s) return UNSUPPORTED;  // the default stream
  if (capture_of(s)) return INVALID;
  captures[s] = Capture{{}, mode, false};
  note("capture", mode);
  return OK;
}
R cuStreamEndCapture(void *s, void **graph) {
  if (R bad = state()) return bad;
  *graph = 0;
  Capture *c = capture_of(s);
  if (!c) return INVALID;
  bool invalid = c->invalid;
  if (!invalid) *graph = new Graph{current(), c->work};
  captures.erase(s);
  note("capture_end", invalid);
  return invalid ? INVALIDATED : OK;
}
R cuStreamIsCapturing(void *s, int *status) { Capture *c = capture_of(s); *status = !c ? 0 : c->invalid ? 2 : 1; return state(); }
R cuGraphInstantiateWithFlags(void **exec, void *graph, unsigned long long) {
  if (R bad = state()) return bad;
  *exec = new Graph(*(Graph *)graph);
  note("instantiate", ((Graph *)graph)->work.size());
  return OK;
}
R cuGraphLaunch(void *exec, void *stream) {
  auto x = (Graph *)exec;
  if (R bad = state_for(x->context)) return bad;
  note("replay", x->work.size());
  for (auto &run : x->work) run();
  return OK;
}
R cuGraphDestroy(void *graph) { delete (Graph *)graph; note("graph_end"); return OK; }
R cuGraphExecDestroy(void *exec) { if (R bad = state()) return bad; delete (Graph *)exec; note("exec_end"); return OK; }
R cuMemsetD8_v2(Ptr p, unsigned char v, size_t n) { if (R bad = state()) return bad; if (memory.at(p) < n) return INVALID; memset((void *)p, v, n); return OK; }
R cuMemsetD16_v2(Ptr p, unsigned short v, size_t n) { if (R bad = state()) return bad; if (memory.at(p) < 2 * n) return INVALID; std::fill_n((unsigned short *)p, n, v); return OK; }
R cuMemsetD32_v2(Ptr p, unsigned v, size_t n) { if (R bad = state()) return bad; if (memory.at(p) < 4 * n) return INVALID; std::fill_n((unsigned *)p, n, v); return OK; }
R cuMemsetD8Async(Ptr p, unsigned char v, size_t n, void *) { if (R bad = state()) return bad; if (memory.at(p) < n) return INVALID; memset((void *)p, v, n); note("flush", n); return OK; }
R cuEventCreate(void **e, unsigned flags) { if (R bad = state()) return bad; *e = new Event{current(), 0}; note("event", flags); return OK; }
R cuEventDestroy_v2(void *e) { delete (Event *)e; return OK; }
R cuEventRecord(void *e, void *stream) {
  if (R bad = state_for(((Event *)e)->context)) return bad;
  ((Event *)e)->at = now();
  note("record", (long long)stream);
  return OK;
}
R cuEventQuery(void *) { return state(); }
R cuEventSynchronize(void *) { note("synchronize"); return state(); }
R cuEventElapsedTime(float *ms, void *a, void *b) { *ms = (((Event *)b)->at - ((Event *)a)->at) * 1e3; return OK; }
R cuEventElapsedTime_v2(float *ms, void *a, void *b) { return cuEventElapsedTime(ms, a, b); }
R cuStreamWaitEvent(void *stream, void *, unsigned) { note("wait", (long long)stream); return state(); }
R cuThreadExchangeStreamCaptureMode(int *mode) { int old = capture_mode; capture_mode = *mode; *mode = old; return OK; }
R cuPointerGetAttribute(void *v, int, Ptr p) {
  if (R bad = state()) return bad;
  auto after = memory.upper_bound(p);
  if (after == memory.begin()) return INVALID;
  --after;
  if (p >= after->first + (after->second ? after->second : 1)) return INVALID;
  *(int *)v = 0;
  return OK;
}
R cuGetErrorString(int status, const char **text) {
  static const std::map<int, const char *> words = {{INVALID, "invalid argument"}, {NO_MEMORY, "out of memory"}, {BAD_IMAGE, "device kernel image is invalid"},
    {NO_CONTEXT, "invalid device context"}, {NOT_FOUND, "named symbol not found"}, {BAD_HANDLE, "invalid resource handle"}, {FAULT, "unspecified launch failure"}, {UNSUPPORTED, "operation not permitted when stream is capturing"},
    {INVALIDATED, "operation failed due to a previous error during capture"}};
  auto found = words.find(status);
  *text = found == words.end() ? "unknown" : found->second;
  return found == words.end() ? INVALID : OK;
}
R cuGetErrorName(int status, const char **text) { return cuGetErrorString(status, text); }
void at_fake_capture(int on) { capturing = on; }
void *at_fake_other() { return &other_gpu; }
R cuGetProcAddress_v2(const char *name, void **f, int, unsigned long long, int *found) {
  std::string base = name;
  for (auto suffix : {"_v2", ""})
    if ((*f = dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD), (base + suffix).c_str()))) break;
  if (found) *found = *f ? 0 : 1;
  return *f ? OK : NOT_FOUND;
}
R cuGetProcAddress(const char *name, void **f, int v, unsigned long long flags) { return cuGetProcAddress_v2(name, f, v, flags, 0); }
}
