/* What a GPU's compiler made of kernels, read from an ELF image of a fatbin: registers, memory, threads. */
#ifndef ZERO_TESTS_CUDA_KERNEL_FACTS_H
#define ZERO_TESTS_CUDA_KERNEL_FACTS_H

#include <stdint.h>

enum { KERNEL_NAME_BYTES = 64 };

struct kernel_facts {
    char name[KERNEL_NAME_BYTES];
    uint32_t threads;      /* the most of a block */
    uint32_t registers;    /* of a thread */
    uint32_t shared_bytes; /* of a block, without dynamic shared memory */
    uint32_t stack_bytes;  /* of a thread: arrays, and registers that are spilled */
};

/* Reads the kernels of an image of `bytes` bytes into `out`. Returns their number; 0: the image is damaged, or has more
 * than `most` kernels. */
uint32_t kernel_facts_read(const unsigned char *image, uint64_t bytes, struct kernel_facts *out,
                           uint32_t most);

#endif
