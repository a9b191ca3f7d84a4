/* Measures the memory's speed for an optimizer's pattern: arrays updated in place, beside one array that is read and
 * one that is written, with x * keep + g * add per element. It uses the same arrays, threads and instruction set as the
 * update that it is compared with. */
#ifndef ZERO_TESTS_BENCH_STREAM_H
#define ZERO_TESTS_BENCH_STREAM_H

#include <stdint.h>

#include "kernels/isa.h"

enum { STREAM_ARRAYS_MAX = 3 };

struct stream_args {
    uint64_t count;
    float *array[STREAM_ARRAYS_MAX]; /* read and written: weights and states; the first array_count of them */
    uint32_t array_count;
    const void *source; /* read: gradients, source_bytes (4 or 2) an element */
    uint32_t source_bytes;
    uint16_t *target; /* written, or NULL */
    float keep, add;  /* 1 and 0 leave the arrays as they are */
    uint32_t threads;
};

void stream_run(const struct stream_args *args);

#endif
