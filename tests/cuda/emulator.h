/* The scheduler below emulation.h: blocks of fibers. Not for tests; one launch at a time in a process. */
#ifndef ZERO_TESTS_CUDA_EMULATOR_H
#define ZERO_TESTS_CUDA_EMULATOR_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct emulated_kernel { /* static; registered before main */
    const char *name;
    void (*start)(const void *argument);
    size_t argument_bytes;
    uint32_t threads_max;
    struct emulated_kernel *next;
};

void emulator_register(struct emulated_kernel *kernel);
const struct emulated_kernel *emulator_find(const char *name); /* NULL: no such kernel is linked */

struct emulator_shape {
    uint32_t blocks[3], threads[3];
    size_t shared_bytes;
};

/* Runs the whole grid. *random is the state of a generator that determines the order. */
void emulator_launch(const struct emulated_kernel *kernel, const struct emulator_shape *shape,
                     const void *argument, uint64_t *random);

uint64_t emulator_random(uint64_t *state);

/* Ends the process with a message about the current thread. */
void emulator_fail(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));

/* What a GPU addresses as shared memory: addresses are offsets in it. It begins at a multiple of its size. */
enum { EMULATOR_WINDOW = 1 << 18 };

/* The place of the current thread. */
struct emulator_here {
    uint32_t thread[3], block[3], threads[3], blocks[3];
    uint32_t lane, dynamic_bytes;
    void *dynamic_shared; /* in a window of EMULATOR_WINDOW bytes, at a multiple of 16 bytes */
};
extern struct emulator_here emulator_here;

/* The place where a thread waits. Threads that wait for each other must wait at the same place; on a GPU anything else
 * is undefined. */
struct emulator_place {
    const char *file;
    int line;
};

/* Waits for all threads of the block; returns the number of threads that voted 1. */
uint32_t emulator_sync_block(struct emulator_place place, int vote);
void emulator_sync_warp(struct emulator_place place, uint32_t mask);
/* Waits for all lanes of the mask; returns the value of lane `lane`. */
uint64_t emulator_exchange(struct emulator_place place, uint32_t mask, uint64_t mine, uint32_t lane);

#ifdef __cplusplus
}
#endif
#endif
