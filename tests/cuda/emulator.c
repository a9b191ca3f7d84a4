/* Fibers: each has its own stack; the scheduler uses the caller's stack. A thread that waits returns to the scheduler,
 * which picks another ready thread at random. */
#include "tests/cuda/emulator.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { THREADS_MAX = 1024, WARP = 32, WARPS_MAX = THREADS_MAX / WARP, STACK_BYTES = 256 * 1024 };
enum { LINE_BYTES = 64, APART = 17 }; /* lines between the tops of two stacks, beside their distance */

struct emulator_here emulator_here;

static struct emulated_kernel *kernels;

void emulator_register(struct emulated_kernel *kernel) {
    kernel->next = kernels;
    kernels = kernel;
}

const struct emulated_kernel *emulator_find(const char *name) {
    const struct emulated_kernel *k = kernels;
    while (k && strcmp(k->name, name) != 0) k = k->next;
    return k;
}

uint64_t emulator_random(uint64_t *state) { /* splitmix64 */
    uint64_t z = (*state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* ---- one block ---- */

struct warp {
    uint32_t waiting, mask; /* lanes that have arrived, and for whom they wait */
    struct emulator_place place;
    uint64_t slot[WARP];
};

static struct {
    const struct emulated_kernel *kernel;
    const void *argument;
    const struct emulator_shape *shape;
    uint32_t threads, done;
    uint32_t at_barrier, votes, votes_of_last;
    struct emulator_place barrier;
    uint16_t ready[THREADS_MAX], waits_for_block[THREADS_MAX];
    uint32_t place[THREADS_MAX][3]; /* threadIdx of each */
    uint32_t ready_count;
    struct warp warp[WARPS_MAX];
    void *scheduler;                  /* its stack pointer, while a thread runs */
    void *stack_pointer[THREADS_MAX]; /* NULL: not begun */
    uint32_t running;
} block;

static unsigned char *stacks; /* one per thread number, kept from launch to launch */

/* Saves the registers that a call must keep, changes the stack, restores them: System V, x86-64. */
__attribute__((naked, noinline)) static void change_stack(void **save, void *load) {
    __asm__("pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
            "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
            "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret\n");
}

void emulator_fail(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fprintf(stderr, "emulated kernel %s, block %u %u %u, thread %u: ",
            block.kernel ? block.kernel->name : "(none yet)", emulator_here.block[0], emulator_here.block[1],
            emulator_here.block[2], block.running);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    abort();
}

static void give_back(void) { change_stack(&block.stack_pointer[block.running], block.scheduler); }

static void make_ready(uint32_t thread) { block.ready[block.ready_count++] = (uint16_t)thread; }

static void release_block(void) {
    for (uint32_t k = 0; k < block.at_barrier; k++) make_ready(block.waits_for_block[k]);
    block.votes_of_last = block.votes;
    block.at_barrier = block.votes = 0;
}

static void release_block_if_all(void) {
    if (block.at_barrier && block.at_barrier + block.done == block.threads) release_block();
}

static void need_same(struct emulator_place mine, struct emulator_place theirs) {
    bool same = mine.file == theirs.file || strcmp(mine.file, theirs.file) == 0; /* mostly one text */
    if (!same || mine.line != theirs.line)
        emulator_fail("waits at %s:%d, others at %s:%d", mine.file, mine.line, theirs.file, theirs.line);
}

uint32_t emulator_sync_block(struct emulator_place place, int vote) {
    if (block.at_barrier) need_same(place, block.barrier);
    block.barrier = place;
    block.votes += (uint32_t)vote;
    block.waits_for_block[block.at_barrier++] = (uint16_t)block.running;
    release_block_if_all();
    give_back();
    return block.votes_of_last;
}

void emulator_sync_warp(struct emulator_place place, uint32_t mask) {
    uint32_t first = block.running / WARP * WARP;
    struct warp *w = &block.warp[block.running / WARP];
    uint32_t lanes = block.threads - first, present = lanes >= WARP ? ~0u : (1u << lanes) - 1;
    uint32_t wanted = mask & present;
    if (!(wanted >> emulator_here.lane & 1)) emulator_fail("a lane is not in the mask that it waits with");
    if (w->waiting && w->mask != wanted) emulator_fail("lanes of a warp wait with different masks");
    if (w->waiting) need_same(place, w->place);
    w->mask = wanted, w->place = place;
    w->waiting |= 1u << emulator_here.lane;
    if (w->waiting == wanted) {
        for (uint32_t k = 0; k < WARP; k++)
            if (wanted >> k & 1) make_ready(first + k);
        w->waiting = 0;
    }
    give_back();
}

uint64_t emulator_exchange(struct emulator_place place, uint32_t mask, uint64_t mine, uint32_t lane) {
    struct warp *w = &block.warp[block.running / WARP];
    w->slot[emulator_here.lane] = mine;
    emulator_sync_warp(place, mask);
    uint64_t theirs = lane < WARP ? w->slot[lane] : mine;
    emulator_sync_warp(place, mask); /* no lane gives its next value before all have read this one */
    return theirs;
}

/* The thread sanitizer would remember the call of a function that never returns, until its memory is full. */
#if defined(__has_attribute) && __has_attribute(disable_sanitizer_instrumentation)
#define UNINSTRUMENTED __attribute__((disable_sanitizer_instrumentation))
#else
#define UNINSTRUMENTED
#endif

UNINSTRUMENTED static void thread_main(void) {
    block.kernel->start(block.argument);
    block.done++;
    release_block_if_all();
    static void *never; /* on the stack, the address sanitizer would guard it for ever */
    change_stack(&never, block.scheduler);
}

/* A stack on which change_stack's `ret` begins thread_main, aligned as after a call. Stacks begin in different lines of a cache: tops
 * whose distance is a power of two would share a few, and each change of threads would miss them. */
static void *fresh_stack(uint32_t thread) {
    size_t skipped = (size_t)(thread * APART % THREADS_MAX) * LINE_BYTES;
    void **top = (void **)(void *)(stacks + (size_t)(thread + 1) * STACK_BYTES - skipped);
    *--top = NULL;
    *--top = (void *)thread_main;
    for (int k = 0; k < 6; k++) *--top = NULL;
    return top;
}

static void enter(uint32_t thread) {
    block.running = thread;
    memcpy(emulator_here.thread, block.place[thread], sizeof block.place[thread]);
    emulator_here.lane = thread % WARP;
    if (!block.stack_pointer[thread]) block.stack_pointer[thread] = fresh_stack(thread);
    change_stack(&block.scheduler, block.stack_pointer[thread]);
}

static void run_block(uint64_t *random) {
    block.done = block.ready_count = block.at_barrier = block.votes = 0;
    memset(block.warp, 0, sizeof block.warp);
    memset(block.stack_pointer, 0, sizeof block.stack_pointer);
    for (uint32_t k = 0; k < block.threads; k++) make_ready(k);
    while (block.ready_count) {
        uint32_t pick = (uint32_t)((emulator_random(random) >> 32) * block.ready_count >> 32);
        uint32_t thread = block.ready[pick];
        block.ready[pick] = block.ready[--block.ready_count];
        enter(thread);
    }
    if (block.done != block.threads) emulator_fail("threads wait for others that never come");
}

/* ---- the grid ---- */

static uint64_t common_divisor(uint64_t a, uint64_t b) {
    while (b) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static void place_block(uint64_t index) {
    const uint32_t *n = block.shape->blocks;
    emulator_here.block[0] = (uint32_t)(index % n[0]);
    emulator_here.block[1] = (uint32_t)(index / n[0] % n[1]);
    emulator_here.block[2] = (uint32_t)(index / n[0] / n[1]);
}

static void place_threads(const uint32_t n[3]) {
    block.threads = n[0] * n[1] * n[2];
    for (uint32_t t = 0; t < block.threads; t++) {
        block.place[t][0] = t % n[0];
        block.place[t][1] = t / n[0] % n[1];
        block.place[t][2] = t / n[0] / n[1];
    }
}

/* NULL: the launch has no dynamic shared memory. It begins among the window's first bytes. */
enum { WINDOW_SKIPPED = 1024 };
static void *window_of(size_t shared_bytes) {
    void *window = NULL;
    if (shared_bytes && posix_memalign(&window, EMULATOR_WINDOW, WINDOW_SKIPPED + shared_bytes)) abort();
    return window;
}

void emulator_launch(const struct emulated_kernel *kernel, const struct emulator_shape *shape,
                     const void *argument, uint64_t *random) {
    if (!stacks) {
        stacks = mmap(NULL, (size_t)THREADS_MAX * STACK_BYTES, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (stacks == MAP_FAILED) abort();
    }
    block.kernel = kernel, block.argument = argument, block.shape = shape;
    place_threads(shape->threads);
    memcpy(emulator_here.threads, shape->threads, sizeof shape->threads);
    memcpy(emulator_here.blocks, shape->blocks, sizeof shape->blocks);
    void *window = window_of(shape->shared_bytes);
    unsigned char *shared = window;
    if (window) shared += emulator_random(random) % (WINDOW_SKIPPED / 16) * 16;
    emulator_here.dynamic_shared = shared, emulator_here.dynamic_bytes = (uint32_t)shape->shared_bytes;
    uint64_t count = (uint64_t)shape->blocks[0] * shape->blocks[1] * shape->blocks[2];
    uint64_t stride = emulator_random(random) % count + 1, at = emulator_random(random) % count;
    while (common_divisor(stride, count) != 1) stride++;
    for (uint64_t k = 0; k < count; k++, at = (at + stride) % count) {
        place_block(at);
        if (shared) memset(shared, 0xff, shape->shared_bytes);
        run_block(random);
    }
    free(window);
}
