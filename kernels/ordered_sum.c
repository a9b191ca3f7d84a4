#include "kernels/ordered_sum.h"

#include "engine/base/limits.h"
#include "engine/device/kernel.h"
#include "kernels/cast.h"
#include "kernels/norm.h"
#include "kernels/span.h"

KERNEL_FATBIN(ordered_sum_fatbin);

static const void *input_of(const struct ordered_sum_argument *a, uint32_t rank) {
    return a->input_stride ? (const uint8_t *)a->input[0] + rank * a->input_stride : a->input[rank];
}

static void sum_block(const struct ordered_sum_argument *a, uint64_t first, uint64_t count) {
    enum dtype dtype = (enum dtype)a->dtype, target_dtype = (enum dtype)a->target_dtype;
    float sum[NORM_BLOCK_ELEMENTS], node[NORM_BLOCK_ELEMENTS], next[NORM_BLOCK_ELEMENTS];
    uint8_t *target = (uint8_t *)a->target + first * dtype_bytes(target_dtype);
    uint32_t inputs = a->node_inputs ? a->node_inputs : a->input_count;
    for (uint32_t rank = 0; rank < a->input_count; rank++) {
        const uint8_t *input = (const uint8_t *)input_of(a, rank) + first * dtype_bytes(dtype);
        float *into = rank < inputs ? sum : node;
        bool begins = rank % inputs == 0;
        cast(begins ? into : next, DTYPE_F32, input, dtype, count);
        if (!begins) span_add(into, next, count);
        if (into == node && (rank + 1) % inputs == 0) span_add(sum, node, count);
    }
    if (a->add) cast(next, DTYPE_F32, target, target_dtype, count), span_add(sum, next, count);
    span_scale(sum, 1, count); /* makes every NaN the one NaN, also with a single rank */
    cast(target, target_dtype, sum, DTYPE_F32, count);
    if (a->sums) a->sums[first / NORM_BLOCK_ELEMENTS] = norm_block(target, target_dtype, count);
}

static void run(void *argument) {
    const struct ordered_sum_argument *a = argument;
    for (uint64_t first = 0; first < a->count; first += NORM_BLOCK_ELEMENTS) {
        uint64_t left = a->count - first;
        sum_block(a, first, left < NORM_BLOCK_ELEMENTS ? left : NORM_BLOCK_ELEMENTS);
    }
}

static struct kernel_grid grid(const void *argument) {
    const struct ordered_sum_argument *a = argument;
    return kernel_grid_of(a->count, 128, a->sums ? NORM_BLOCK_ELEMENTS / 16 : 4);
}

const struct kernel kernel_ordered_sum = {
    .name = "ordered_sum",
    .fatbin = ordered_sum_fatbin,
    .run = run,
    .grid = grid,
    .argument_bytes = sizeof(struct ordered_sum_argument),
};
