/* A kernel: arithmetic on memory that is described by one plain argument; the same bits on the host and on a GPU.
 *
 * A new one is
 *   NAME.h     struct NAME_argument (sizes, scalars, pointers; at most DEVICE_ARGUMENT_BYTES) and `extern const struct kernel NAME;`
 *   NAME.c     the row, with the host's function
 *   NAME.cu    KERNEL(NAME, ...) (engine/device/cuda/entry.h)
 * and in BUILD a cuda_fatbin (tools/build/cuda.bzl) that the row's library has in deps by if_cuda, and a line in
 * tests/cuda/BUILD, which lets the stand-in driver run it.
 *
 * The fatbin is declared weak: it is NULL in a build without CUDA, where nothing looks at it. */
#ifndef ZERO_ENGINE_DEVICE_KERNEL_H
#define ZERO_ENGINE_DEVICE_KERNEL_H

#include <stdint.h>

struct kernel_grid {
    uint32_t blocks, threads; /* 0 blocks: nothing to do, nothing is launched */
    uint32_t shared_bytes;    /* dynamic */
};

struct kernel {
    const char *name;            /* the entry in the fatbin */
    const unsigned char *fatbin; /* 64-byte aligned; holds its own length */
    void (*run)(void *argument); /* on the host, at once */
    struct kernel_grid (*grid)(const void *argument);
    uint32_t argument_bytes;
};

/* Declares NAME_fatbin for a row. */
#define KERNEL_FATBIN(symbol) extern const unsigned char symbol[] __attribute__((weak))

/* Blocks of `threads` for `count` elements, `each` a thread. */
static inline struct kernel_grid kernel_grid_of(uint64_t count, uint32_t threads, uint32_t each) {
    uint64_t block = (uint64_t)threads * each;
    return (struct kernel_grid){.blocks = (uint32_t)((count + block - 1) / block), .threads = threads};
}

#endif
