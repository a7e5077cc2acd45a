// How fibers take turns, and what is known of shared memory: compiled once, linked to every emulated kernel.
// A turn ends where a thread waits for others: at a barrier of its block, or where the lanes of its warp do
// something together. The order of turns, and when copies land, is early (threads in order, at once), late
// (backwards, at the wait) or random. Races are found in all of them.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { AT_EARLY, AT_LATE, AT_RANDOM };
enum { AT_MOST = 1024, AT_STACK = 1 << 16, AT_WARP = 32, AT_POISONED = 2048 };
enum at_state { AT_READY, AT_AT_BARRIER, AT_WITH_WARP, AT_ENDED };

at_ids threadIdx, blockIdx, blockDim, gridDim;

// -- fibers ------------------------------------------------------------------------------------------------
#if defined(__ELF__) && defined(__x86_64__) && !defined(AT_UCONTEXT)
// at_switch(&from, to): keep this stack, go on with that one. A system call less than swapcontext.
typedef char *at_context;
asm(R"(
.pushsection .text
.hidden at_switch
.globl at_switch
.type at_switch, @function
at_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size at_switch, . - at_switch
.popsection
)");
enum { AT_RETURN = 6, AT_FRAME = 8 };  // words: of the address to go on at, and of all
#elif defined(__ELF__) && defined(__aarch64__) && !defined(AT_UCONTEXT)
typedef char *at_context;
asm(R"(
.pushsection .text
.hidden at_switch
.globl at_switch
.type at_switch, %function
at_switch:
  sub sp, sp, #160
  stp x19, x20, [sp]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size at_switch, . - at_switch
.popsection
)");
enum { AT_RETURN = 11, AT_FRAME = 20 };
#else
#include <ucontext.h>
#define AT_CONTEXTS
typedef ucontext_t at_context;
#endif

static at_context at_main, at_fibers[AT_MOST];
static char *at_stacks;

static void at_thread();
#ifdef AT_CONTEXTS
static void at_goto(at_context &from, at_context &to) { swapcontext(&from, &to); }
static void at_begin_fiber(at_context &fiber, char *stack) {
  getcontext(&fiber);
  fiber.uc_stack.ss_sp = stack;
  fiber.uc_stack.ss_size = AT_STACK;
  makecontext(&fiber, at_thread, 0);
}
#else
AT_RUNTIME void at_switch(at_context *from, at_context to);
static void at_goto(at_context &from, at_context &to) { at_switch(&from, to); }
static void at_begin_fiber(at_context &fiber, char *stack) {
  void **frame = (void **)(stack + AT_STACK) - AT_FRAME;
  memset(frame, 0, AT_FRAME * sizeof *frame);
  frame[AT_RETURN] = (void *)at_thread;
  fiber = (char *)frame;
}
#endif

// -- a block -----------------------------------------------------------------------------------------------
static char at_message[512];
static bool at_failed;
static int at_now, at_threads, at_block, at_phase, at_order;
static unsigned at_dice;
static at_state at_states[AT_MOST];
static int at_line[AT_MOST];
static const at_launched *at_what;

static unsigned at_random() {  // xorshift
  at_dice ^= at_dice << 13;
  at_dice ^= at_dice >> 17;
  at_dice ^= at_dice << 5;
  return at_dice;
}

// The whole run ends: nothing after a fault means anything.
void at_fault(const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(at_message, sizeof at_message, format, args);
  va_end(args);
  at_failed = true;
  at_goto(at_fibers[at_now], at_main);
}

static void at_misaligned(int bytes) {
  at_fault("thread %d of block %d: %d bytes at a misaligned address", at_now, at_block, bytes);
}

// Whether global memory may be read or written there: in one of the arrays of the kernel, where these are told.
// Arrays of a GPU begin where vectors may (`strict`); those of a CPU, which checks of candidates use, need not.
void at_reach(const void *from, int bytes, int strict) {
  if (strict && (uintptr_t)from % bytes) at_misaligned(bytes);
  for (int i = 0; i < at_what->count; ++i) {
    int64_t at = (const char *)from - (const char *)at_what->regions[i].begin;
    if (at < 0 || at + bytes > at_what->regions[i].bytes) continue;
    if (at % bytes) at_misaligned(bytes);
    return;
  }
  if (at_what->count)
    at_fault("thread %d of block %d reaches for %d bytes outside of all arrays", at_now, at_block, bytes);
}

static int64_t at_asked = INT64_MAX;  // bytes of shared memory that a launch asks for, where one says
void at_within(const char *what, int64_t end) {
  if (end > at_asked)
    at_fault("%s ends at byte %lld of shared memory, and the launch asks for %lld", what, (long long)end,
             (long long)at_asked);
}

static void at_stop(at_state state, int line) {
  at_states[at_now] = state, at_line[at_now] = line;
  at_goto(at_fibers[at_now], at_main);
}

// -- shared memory -----------------------------------------------------------------------------------------
static at_use &at_known(at_array &a, int64_t at) {
  at_use &u = a.use[at];
  if (u.block != at_block) {
    u = {at_block, -1, -1, -1, -1, 0};
    memset((char *)a.value + at * a.item, 0xff, a.item);  // NaN
  }
  return u;
}

static void at_inside(const at_array &a, int64_t at, int count, int thread) {
  if (at < 0 || at + count > a.count)
    at_fault("thread %d of block %d uses %s[%lld] of %d", thread, at_block, a.what,
             (long long)(at < 0 ? at : at + count - 1), a.count);
}

static void at_race(const at_array &a, int64_t at, int thread, const char *done) {
  at_fault("race on %s[%lld]: thread %d of block %d uses what another has %s, with no barrier between them",
           a.what, (long long)at, thread, at_block, done);
}

static void at_use_of(at_array &a, int64_t at, int thread, bool writes) {
  at_use &u = at_known(a, at);
  if (u.copied_by)
    at_fault("race on %s[%lld]: thread %d of block %d %s what thread %d is copying: await the copy first",
             a.what, (long long)at, thread, at_block, writes ? "writes" : "reads", u.copied_by - 1);
  if (u.written == at_phase && u.writer != thread) at_race(a, at, thread, "written");
  if (writes && u.read == at_phase && u.reader != thread) at_race(a, at, thread, "read");
  if (writes) {
    u.written = at_phase;
    u.writer = thread;
  } else {
    u.reader = u.read == at_phase && u.reader != thread ? -2 : thread;
    u.read = at_phase;
  }
}

void at_uses(at_array *a, int64_t at, int count, int writes) {
  at_inside(*a, at, count, at_now);
  if (count > 1 && at % count)
    at_fault("thread %d: a vector of %d at %s[%lld] is not aligned", at_now, count, a->what, (long long)at);
  for (int i = 0; i < count; ++i) at_use_of(*a, at + i, at_now, writes);
}

// -- copies in the background ------------------------------------------------------------------------------
struct at_flying {
  at_array *to;
  int64_t at;
  const void *from;  // 0: zeros
  int bytes, group;
  bool landed;
};
struct at_copies {  // of a thread, in order; `group` is the next to be signalled
  at_flying *all;
  int first, end, room, group;
};
static at_copies at_pending[AT_MOST];

static void at_land(at_flying &c) {
  char *to = (char *)c.to->value + c.at * c.to->item;
  if (c.from) memcpy(to, c.from, c.bytes);
  else memset(to, 0, c.bytes);
  c.landed = true;
}

static void at_some_land() {
  at_copies &p = at_pending[at_now];
  for (int i = p.first; at_order == AT_RANDOM && i < p.end; ++i)
    if (!p.all[i].landed && at_random() % 4 == 0) at_land(p.all[i]);
}

void at_copy(at_array *to, int64_t at, const void *from, int bytes, int present, int strict) {
  int count = bytes / to->item;
  if ((bytes != 4 && bytes != 8 && bytes != 16) || !count)
    at_fault("thread %d: a copy of %d bytes to %s: they are 4, 8 or 16", at_now, bytes, to->what);
  at_inside(*to, at, count, at_now);
  if (at % count)
    at_fault("thread %d: a copy of %d bytes to %s[%lld] is not aligned", at_now, bytes, to->what, (long long)at);
  if (present) at_reach(from, bytes, strict);
  for (int i = 0; i < count; ++i) {
    at_use_of(*to, at + i, at_now, true);
    at_known(*to, at + i).copied_by = at_now + 1;
  }
  at_copies &p = at_pending[at_now];
  if (p.end == p.room) {
    memmove(p.all, p.all + p.first, (p.end - p.first) * sizeof *p.all);
    p.end -= p.first, p.first = 0;
    if (2 * p.end >= p.room) p.all = (at_flying *)realloc(p.all, (p.room = 2 * p.room + 16) * sizeof *p.all);
  }
  at_flying &c = p.all[p.end++] = {to, at, present ? from : 0, bytes, p.group, false};
  if (at_order == AT_EARLY || (at_order == AT_RANDOM && at_random() % 2)) at_land(c);
}

void at_signal() {
  ++at_pending[at_now].group;
  at_some_land();
}

// Only groups that were signalled are awaited. What landed is as if this thread had written it here.
void at_await(int pending) {
  at_copies &p = at_pending[at_now];
  at_some_land();
  for (; p.first < p.end && p.all[p.first].group < p.group - pending; ++p.first) {
    at_flying &c = p.all[p.first];
    if (!c.landed) at_land(c);
    for (int i = 0; i < c.bytes / c.to->item; ++i) {
      c.to->use[c.at + i].copied_by = 0;
      at_use_of(*c.to, c.at + i, at_now, true);
    }
  }
}

// -- what lanes do together --------------------------------------------------------------------------------
struct at_lane { void *a, *b, *c; int64_t at; };
typedef void (*at_operation)(at_lane *lanes, int first);  // first: the thread that is lane 0
struct at_warp { int here, line; const char *what; at_lane lanes[AT_WARP]; };
static at_warp at_warps[AT_MOST / AT_WARP];

// The last lane to come does it for all, whose registers stay where they are meanwhile.
static void at_together(const char *what, int line, at_operation operation, at_lane lane) {
  at_warp &w = at_warps[at_now / AT_WARP];
  int first = at_now / AT_WARP * AT_WARP;
  if (at_threads - first < AT_WARP)
    at_fault("%s at line %d of %s is done by 32 threads together, and block %d has %d", what, line,
             at_what->name, at_block, at_threads);
  if (w.here && (w.line != line || w.what != what))
    at_fault("warp %d of block %d parts: thread %d is at %s of line %d of %s, others are at %s of line %d",
             at_now / AT_WARP, at_block, at_now, what, line, at_what->name, w.what, w.line);
  w.what = what, w.line = line, w.lanes[at_now - first] = lane;
  if (++w.here < AT_WARP) return at_stop(AT_WITH_WARP, line);
  operation(w.lanes, first);
  w.here = 0;
  for (int t = first; t < first + AT_WARP; ++t) at_states[t] = AT_READY;
}

static void at_exchanged(at_lane *lanes, int) {
  int64_t values[AT_WARP];
  for (int i = 0; i < AT_WARP; ++i) values[i] = *(int64_t *)lanes[i].a;
  for (int i = 0; i < AT_WARP; ++i) *(int64_t *)lanes[i].a = values[i ^ lanes[i].at];
}

int64_t at_exchange_bits(int64_t value, int distance, int line) {
  at_together("a shuffle", line, at_exchanged, {&value, 0, 0, distance});
  return value;
}

void at_barrier(int line) {
  at_some_land();
  at_stop(AT_AT_BARRIER, line);
}

// -- turns -------------------------------------------------------------------------------------------------
static void __attribute__((noinline)) at_poison_registers() {
  char below[AT_POISONED];
  memset(below, 0xff, sizeof below);
  asm volatile("" : : "r"(below) : "memory");
}

static void at_thread() {
  at_poison_registers();
  at_what->body(at_what->args);
  at_copies &p = at_pending[at_now];
  if (p.first < p.end)
    at_fault("thread %d of block %d ends before its copy to %s[%lld] is done: await it", at_now, at_block,
             p.all[p.first].to->what, (long long)p.all[p.first].at);
  at_stop(AT_ENDED, 0);
}

static void at_enter(int thread) {
  at_now = thread;
  threadIdx = {thread % blockDim.x, thread / blockDim.x % blockDim.y, thread / (blockDim.x * blockDim.y)};
  at_goto(at_main, at_fibers[thread]);
}

// Who waits where, of those that nobody lets go on.
static void at_told(char *to, size_t room) {
  size_t n = 0;
  for (int t = 0, last; t < at_threads && n < room; t = last + 1) {
    for (last = t; last + 1 < at_threads && at_states[last + 1] == at_states[t] && at_line[last + 1] == at_line[t];) ++last;
    n += snprintf(to + n, room - n, t == last ? "%sthread %d" : "%sthreads %d to %d", n ? "; " : "", t, last);
    if (n >= room) return;
    if (at_states[t] == AT_ENDED) n += snprintf(to + n, room - n, t == last ? " has ended" : " have ended");
    else
      n += snprintf(to + n, room - n, " wait%s at line %d for %s", t == last ? "s" : "", at_line[t],
                    at_states[t] == AT_AT_BARRIER ? "all" : "the warp");
  }
}

static void at_stuck() {
  char who[400];
  at_told(who, sizeof who);
  int wait = 0;
  for (int t = 0; t < at_threads; ++t) wait += at_states[t] == AT_WITH_WARP;
  snprintf(at_message, sizeof at_message, "%s in block %d that not all threads reach (%s): %s",
           wait ? "an instruction of warps" : "a barrier", at_block, at_what->name, who);
  at_failed = true;
}

// Whether all threads wait at one barrier.
static bool at_all_wait() {
  for (int t = 0; t < at_threads; ++t)
    if (at_states[t] != AT_AT_BARRIER || at_line[t] != at_line[0]) return false;
  return true;
}

static bool at_turns(const int *order) {  // whether anyone went on
  bool any = false;
  for (int i = 0; i < at_threads && !at_failed; ++i)
    if (at_states[order[i]] == AT_READY) at_enter(order[i]), any = true;
  return any;
}

static void at_run_block() {
  static int order[AT_MOST];
  for (int t = 0; t < at_threads; ++t) {
    at_begin_fiber(at_fibers[t], at_stacks + (size_t)t * AT_STACK);
    at_states[t] = AT_READY, at_pending[t].first = at_pending[t].end = at_pending[t].group = 0;
    order[t] = at_order == AT_LATE ? at_threads - 1 - t : t;
  }
  for (int w = 0; w < AT_MOST / AT_WARP; ++w) at_warps[w].here = 0;
  for (at_phase = 0; !at_failed; ++at_phase) {
    do
      for (int i = at_threads - 1; i > 0 && at_order == AT_RANDOM; --i) {
        int j = at_random() % (i + 1), held = order[i];
        order[i] = order[j], order[j] = held;
      }
    while (at_turns(order) && !at_failed);
    if (at_failed) return;
    bool ended = true;
    for (int t = 0; t < at_threads; ++t) ended = ended && at_states[t] == AT_ENDED;
    if (ended) return;
    if (!at_all_wait()) return at_stuck();
    for (int t = 0; t < at_threads; ++t) at_states[t] = AT_READY;
  }
}

void at_launch(const at_launched *what, at_ids grid, at_ids block) {
  at_what = what, gridDim = grid, blockDim = block, at_threads = block.x * block.y * block.z;
  if (!at_failed && at_threads > AT_MOST) {
    snprintf(at_message, sizeof at_message, "a block of %d threads, at most %d", at_threads, AT_MOST);
    at_failed = true;
  }
  for (int z = 0; z < grid.z; ++z)
    for (int y = 0; y < grid.y; ++y)
      for (int x = 0; x < grid.x && !at_failed; ++x) {
        blockIdx = {x, y, z};
        ++at_block;
        at_run_block();
      }
}

static bool at_begin(int order, unsigned seed) {
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  at_stacks = (char *)mmap(0, (size_t)AT_MOST * AT_STACK, PROT_READ | PROT_WRITE, flags, -1, 0);
  at_failed = at_stacks == MAP_FAILED;
  if (at_failed) strcpy(at_message, "no memory for the stacks of the threads");
  at_order = order, at_dice = seed * 2654435761u | 1;
  return !at_failed;
}

static void at_end() {
  munmap(at_stacks, (size_t)AT_MOST * AT_STACK);
  for (int t = 0; t < AT_MOST; ++t) free(at_pending[t].all), at_pending[t] = {};
}

const char *at_run(void (*program)(void **, void *), void **args, void *scratch, int order, unsigned seed) {
  if (!at_begin(order, seed)) return at_message;
  program(args, scratch);
  at_end();
  return at_failed ? at_message : 0;
}

void at_run_or_abort(void (*program)(void **, void *), void **args, void *scratch) {
  static unsigned runs;
  const char *fault = at_run(program, args, scratch, AT_RANDOM, ++runs);
  if (!fault) return;
  fprintf(stderr, "%s\n", fault);
  abort();
}

int at_drive(void *kernel, at_ids grid, at_ids block, int64_t shared, void **params) {
  at_asked = shared;
  if (!at_begin(AT_RANDOM, 1)) return 2;
  at_launched what = {"the kernel", (at_kernel_function)kernel, params, 0, 0};
  at_launch(&what, grid, block);
  at_end();
  return at_failed ? 719 : 0;
}

const char *at_text() { return at_message; }
