/* What a shared object of a whole model runs beside its kernels (ADR 118): weights that all instances share,
 * instances with memory of their own, and calls. `tables.h` has the model itself, as `model_tables.py` writes
 * it. It calls libc alone. */
#define _DEFAULT_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { LINE = 64, HUGE_PAGE = 2 << 20 }; /* bytes */

/* Where a kernel finds an argument: `offset` from a base on, and further by the `moves` from `first_move` on.
 * Bases are weights, memory, where numbers of the call are, inputs, outputs, states, each size, each number. */
typedef struct { int32_t base, first_move, moves; int64_t offset; } at_word;
/* By bytes, times a number of the call. */
typedef struct { int32_t number; int64_t bytes; } at_move;
typedef void at_kernel(void *args, void *scratch, int32_t threads);
typedef struct { at_kernel *run; int32_t first_word, words, threads; } at_step;
/* A number of the call is from least to most; else the call ends with a status. */
typedef struct { int32_t number, status; int64_t least, most; } at_check;
/* An array that steps have with room for the largest sizes, in memory from `offset` on. Callers have it
 * dense. Its extents are `rank` numbers of the call. */
typedef struct { int32_t base, written, rank, first_number; int64_t item, offset, strides[8]; } at_room;
/* The new value of a state lies apart, and is copied when the call ends. */
typedef struct { int32_t to, base; int64_t offset, bytes; } at_copy;
/* Weights of the file as this code reads them: packed by a function, or as they are where there is none. */
typedef struct { at_kernel *run; int64_t from, to, bytes; } at_pack;
/* The first value of a state lies among the weights. */
typedef struct { int64_t state, weight, bytes; } at_start;
typedef struct { int64_t least, most; } at_range;
/* The steps of calls of certain sizes, -1 for any. `numbers`: 0 to 2 steps that compute numbers of the call:
 * first extents of its sizes, then, when arrays have their room, the others. */
typedef struct {
    const int64_t *sizes;
    const at_word *words;
    const at_move *moves;
    const at_step *numbers, *steps;
    const at_check *checks;
    const at_room *rooms;
    const at_copy *copies;
    int32_t n_numbers, n_steps, n_checks, n_rooms, n_copies;
    int64_t scratch;
} at_program;

#include "tables.h"

enum {
    WEIGHTS, MEMORY, TOLD, FIRST_ARRAY,
    FIRST_STATE = FIRST_ARRAY + INPUTS + OUTPUTS,
    FIRST_SIZE = FIRST_STATE + STATES,
    FIRST_NUMBER = FIRST_SIZE + SIZES,
    BASES = FIRST_NUMBER + NUMBERS
};

/* What calls of one instance have for themselves. */
struct INSTANCE {
    char *memory; /* what lies between steps, scratch, states */
    int busy;
    int64_t numbers[NUMBERS + 1];
    int64_t words[MOST_WORDS];
};

/* The weights, which all instances have. */
static struct {
    pthread_mutex_t turn;
    int64_t users;
    char *block;
} kept = {PTHREAD_MUTEX_INITIALIZER, 0, NULL};

/* A child of a fork has no thread that could end a turn. What a turn leaves undone is none of the child's. */
static void begin_anew(void) {
    static const pthread_mutex_t fresh = PTHREAD_MUTEX_INITIALIZER;
    memcpy(&kept.turn, &fresh, sizeof fresh);
}

__attribute__((constructor)) static void watch_forks(void) { (void)pthread_atfork(NULL, NULL, begin_anew); }

static char *memory_of(int64_t bytes) {
    void *found = NULL;
    int huge = bytes >= HUGE_PAGE;
    if (posix_memalign(&found, huge ? HUGE_PAGE : LINE, bytes ? (size_t)bytes : 1)) return NULL;
#ifdef MADV_HUGEPAGE
    if (huge) (void)madvise(found, (size_t)bytes, MADV_HUGEPAGE); /* fails where there are none */
#endif
    return found;
}

#if BESIDE
/* CRC-32 as zlib has it, eight bytes at a time. */
static uint32_t crc_of(const unsigned char *at, int64_t n) {
    static uint32_t table[8][256]; /* whoever is here has the turn */
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = c & 1 ? c >> 1 ^ 0xEDB88320u : c >> 1;
        table[0][i] = c;
    }
    for (int t = 1; t < 8; t++)
        for (int i = 0; i < 256; i++) table[t][i] = table[t - 1][i] >> 8 ^ table[0][table[t - 1][i] & 255];
    uint32_t c = 0xFFFFFFFFu;
    for (; n >= 8; n -= 8, at += 8) {
        c ^= at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
        c = table[7][c & 255] ^ table[6][c >> 8 & 255] ^ table[5][c >> 16 & 255] ^ table[4][c >> 24]
            ^ table[3][at[4]] ^ table[2][at[5]] ^ table[1][at[6]] ^ table[0][at[7]];
    }
    for (; n > 0; n--) c = c >> 8 ^ table[0][(c ^ *at++) & 255];
    return ~c;
}

/* Read the file of weights into `to`. A file that shrinks or grows meanwhile has another length. */
static int read_weights(const char *path, char *to) {
    struct stat about;
    int status = UNREADABLE;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) return status;
    if (fstat(file, &about) || !S_ISREG(about.st_mode)) goto end;
    status = OTHER_LENGTH;
    if (about.st_size != WEIGHTS_BYTES) goto end;
    for (int64_t have = 0; have < WEIGHTS_BYTES;) {
        int64_t left = WEIGHTS_BYTES - have;
        ssize_t n = read(file, to + have, left < 1 << 30 ? (size_t)left : (size_t)1 << 30);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) status = UNREADABLE;
        if (n <= 0) goto end;
        have += n;
    }
    status = crc_of((unsigned char *)to, WEIGHTS_BYTES) == WEIGHTS_CRC ? DONE : DAMAGED;
end:
    close(file);
    return status;
}
#endif

#if PACKS
/* A block of what this code reads, made of the file's weights. */
static char *packed(const char *given) {
    char *block = memory_of(BLOCK_BYTES), *scratch = memory_of(PACK_SCRATCH);
    for (int32_t i = 0; block && scratch && i < PACKS; i++) {
        const at_pack *p = &packs[i];
        const void *args[2] = {given + p->from, block + p->to};
        if (p->run) memset(block + p->to, 0, (size_t)p->bytes);
        if (p->run) p->run(args, scratch, 1);
        else memcpy(block + p->to, given + p->from, (size_t)p->bytes);
    }
    if (!scratch) {
        free(block);
        block = NULL;
    }
    free(scratch);
    return block;
}
#endif

/* Have the weights in memory, for one more instance. */
static int take_weights(const char *path) {
    int status = DONE;
    (void)path;
    pthread_mutex_lock(&kept.turn);
    if (!kept.users) {
#if BESIDE
        char *found = path ? memory_of(WEIGHTS_BYTES) : NULL;
        status = !path ? NO_POINTER : !found ? NO_MEMORY : read_weights(path, found);
#else
        char *found = (char *)at_inside;
#endif
        kept.block = found;
#if PACKS
        kept.block = status ? NULL : packed(found);
        if (!status && !kept.block) status = NO_MEMORY;
#endif
#if BESIDE
        if (status || PACKS) free(found);
#endif
    }
    if (!status) kept.users++;
    pthread_mutex_unlock(&kept.turn);
    return status;
}

static void give_weights(void) {
    pthread_mutex_lock(&kept.turn);
    if (!--kept.users) {
#if BESIDE || PACKS
        free(kept.block);
#endif
        kept.block = NULL;
    }
    pthread_mutex_unlock(&kept.turn);
}

/* States as they are before the first call. */
static void start(struct INSTANCE *x) {
    if (STATES_BYTES) memset(x->memory + STATES_AT, 0, STATES_BYTES);
    for (int32_t i = 0; i < N_STARTS; i++)
        memcpy(x->memory + STATES_AT + starts[i].state, kept.block + starts[i].weight, (size_t)starts[i].bytes);
}

int FUNCTION(_make)(struct INSTANCE **made, const char *weights) {
    if (!made) return NO_POINTER;
    *made = NULL;
#if TILES
    if (syscall(TILES, TILES_REQUEST, TILES_STATE)) return NO_TILES;
#endif
    struct INSTANCE *x = calloc(1, sizeof *x);
    if (!x) return NO_MEMORY;
    x->memory = memory_of(MEMORY_BYTES);
    int status = x->memory ? take_weights(weights) : NO_MEMORY;
    if (status) {
        free(x->memory);
        free(x);
        return status;
    }
    start(x);
    *made = x;
    return DONE;
}

void FUNCTION(_free)(struct INSTANCE *x) {
    if (!x) return;
    give_weights();
    free(x->memory);
    free(x);
}

static void run_step(struct INSTANCE *x, const at_program *p, const at_step *s, const int64_t *bases) {
    const int64_t *numbers = bases + FIRST_NUMBER;
    for (int32_t i = s->first_word; i < s->first_word + s->words; i++) {
        const at_word *w = &p->words[i];
        int64_t at = bases[w->base] + w->offset;
        for (int32_t k = w->first_move; k < w->first_move + w->moves; k++)
            at += numbers[p->moves[k].number] * p->moves[k].bytes;
        x->words[i] = at;
    }
    s->run(x->words + s->first_word, x->memory + p->scratch, s->threads);
}

/* Copy an array between how callers have it and how steps have it. Gives the end of the first. */
static char *copied(const at_room *r, const int64_t *extents, int32_t d, char *dense, char *roomy) {
    int64_t n = d == r->rank - 1 ? extents[d] * r->item : r->item;
    if (d >= r->rank - 1) {
        memcpy(r->written ? dense : roomy, r->written ? roomy : dense, (size_t)n);
        return dense + n;
    }
    for (int64_t i = 0; i < extents[d]; i++, roomy += r->strides[d] * r->item)
        dense = copied(r, extents, d + 1, dense, roomy);
    return dense;
}

static void copy_rooms(struct INSTANCE *x, const at_program *p, int32_t written, void *const *arrays, const int64_t *numbers) {
    for (int32_t i = 0; i < p->n_rooms; i++) {
        const at_room *r = &p->rooms[i];
        if (r->written == written)
            copied(r, numbers + r->first_number, 0, arrays[r->base - FIRST_ARRAY], x->memory + r->offset);
    }
}

static int run_program(struct INSTANCE *x, const at_program *p, void *const *arrays, const int64_t *sizes) {
    int64_t bases[BASES + 1], *numbers = x->numbers;
    bases[WEIGHTS] = (intptr_t)kept.block;
    bases[MEMORY] = (intptr_t)x->memory;
    bases[TOLD] = (intptr_t)numbers;
    for (int32_t i = 0; i < INPUTS + OUTPUTS; i++) bases[FIRST_ARRAY + i] = (intptr_t)arrays[i];
    for (int32_t i = 0; i < STATES; i++) bases[FIRST_STATE + i] = (intptr_t)(x->memory + STATES_AT + states[i]);
    for (int32_t i = 0; i < SIZES; i++) bases[FIRST_SIZE + i] = sizes[i];
    for (int32_t i = 0; i < p->n_rooms; i++) bases[p->rooms[i].base] = (intptr_t)(x->memory + p->rooms[i].offset);
    for (int32_t i = 0; i < p->n_numbers; i++) {
        run_step(x, p, &p->numbers[i], bases);
        if (!i) copy_rooms(x, p, 0, arrays, numbers);
    }
    for (int32_t i = 0; i < NUMBERS; i++) bases[FIRST_NUMBER + i] = numbers[i];
    for (int32_t i = 0; i < p->n_checks; i++) {
        const at_check *c = &p->checks[i];
        if (numbers[c->number] < c->least || numbers[c->number] > c->most) return c->status;
    }
    for (int32_t i = 0; i < p->n_steps; i++) run_step(x, p, &p->steps[i], bases);
    for (int32_t i = 0; i < p->n_copies; i++) {
        const at_copy *c = &p->copies[i];
        memcpy(x->memory + STATES_AT + states[c->to], (char *)(intptr_t)(bases[c->base] + c->offset), (size_t)c->bytes);
    }
    copy_rooms(x, p, 1, arrays, numbers);
    return DONE;
}

/* Runs the first of the programs that is for these sizes. The last is for all. */
static int call(struct INSTANCE *x, void *const *arrays, const int64_t *sizes) {
    if (!x) return NO_POINTER;
    for (int32_t i = 0; i < INPUTS + OUTPUTS; i++)
        if (!arrays[i]) return NO_POINTER;
    for (int32_t i = 0; i < SIZES; i++)
        if (sizes[i] < ranges[i].least || sizes[i] > ranges[i].most) return OUTSIDE;
    const at_program *p = programs;
    for (;; p++) {
        int32_t i = 0;
        while (i < SIZES && (p->sizes[i] < 0 || p->sizes[i] == sizes[i])) i++;
        if (i == SIZES) break;
    }
    if (__atomic_exchange_n(&x->busy, 1, __ATOMIC_ACQUIRE)) return BUSY;
    int status = run_program(x, p, arrays, sizes);
    __atomic_store_n(&x->busy, 0, __ATOMIC_RELEASE);
    return status;
}

#if STATES
int FUNCTION(_reset)(struct INSTANCE *x) {
    if (!x) return NO_POINTER;
    if (__atomic_exchange_n(&x->busy, 1, __ATOMIC_ACQUIRE)) return BUSY;
    start(x);
    __atomic_store_n(&x->busy, 0, __ATOMIC_RELEASE);
    return DONE;
}

void *FUNCTION(_state)(struct INSTANCE *x, int number) {
    return x && number >= 0 && number < STATES ? x->memory + STATES_AT + states[number] : NULL;
}
#endif
