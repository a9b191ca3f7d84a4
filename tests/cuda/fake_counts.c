/* Counts the calls of the driver, for tests that check them. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/cuda/fake_internal.h"

static struct fake_cuda_counts counts;

void count_kernel(bool recorded) {
    if (recorded)
        counts.recorded++;
    else
        counts.kernels++;
}

void count_graph(void) { counts.graphs++; }
void count_copy(void) { counts.copies++; }
void count_load(void) { counts.late_loads += counts.kernels + counts.recorded > 0; }

/* cuBLASLt's stand-in calls it without the driver's lock, from the threads of several ranks. */
__attribute__((visibility("default"))) void fake_cuda_count_product(bool rounds_again) {
    __atomic_fetch_add(&counts.products, 1, __ATOMIC_RELAXED);
    __atomic_fetch_add(&counts.roundings, rounds_again, __ATOMIC_RELAXED);
}

__attribute__((visibility("default"))) void fake_cuda_counts(struct fake_cuda_counts *out) { *out = counts; }

__attribute__((destructor)) static void write_counts(void) {
    const char *path = getenv("FAKE_CUDA_COUNTS");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (!file) return;
    fprintf(file, "kernels %llu recorded %llu copies %llu late loads %llu graphs %llu\n", counts.kernels,
            counts.recorded, counts.copies, counts.late_loads, counts.graphs);
    fclose(file);
}
