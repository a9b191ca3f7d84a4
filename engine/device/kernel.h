/* clang-format off */
/* A kernel: arithmetic on memory that one plain argument describes. It gives the same bits on the host and on a GPU.
 *
 * A new kernel needs these files:
 *
 *   NAME.h             struct NAME_argument (sizes, scalars, pointers; at most DEVICE_ARGUMENT_BYTES), and
 *                      `extern const struct kernel NAME;`
 *   NAME.c             the row, with the host's function
 *   NAME.cu            KERNEL(NAME, ...) (engine/device/cuda/entry.h)
 *   BUILD              a cuda_fatbin (tools/build/cuda.bzl), in the deps of the row's library by if_cuda
 *   tests/cuda/BUILD   a line that lets the stand-in driver run the kernel
 *
 * The fatbin is declared weak: in a build without CUDA it is NULL, and no code reads it. */
/* clang-format on */
#pragma once

#include <stdint.h>

struct kernel_grid {
    uint32_t blocks, threads; /* 0 blocks: nothing is launched */
    uint32_t shared_bytes;    /* of dynamic shared memory */
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

/* A grid for `count` elements: blocks of `threads` threads, `each` elements per thread. */
static inline struct kernel_grid kernel_grid_of(uint64_t count, uint32_t threads, uint32_t each) {
    uint64_t block = (uint64_t)threads * each;
    return (struct kernel_grid){.blocks = (uint32_t)((count + block - 1) / block), .threads = threads};
}
