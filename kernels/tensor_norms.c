#include "kernels/tensor_norms.h"

#include <string.h>

#include "engine/base/integer.h"
#include "engine/base/numbers/float_env.h"
#include "kernels/norm.h"
#include "kernels/state_format.h"

enum {
    ROUND_BLOCKS = 64,
    THREAD_BLOCKS_MIN = 16 /* with fewer, a thread costs more to wake than it saves */
};

static void *at(void *base, enum dtype dtype, uint64_t first) {
    return base ? (char *)base + first * dtype_bytes(dtype) : NULL;
}

/* The states and the gradient of one block; its weights are a copy. */
static struct optimizer_args block_args(const struct optimizer_args *all, uint64_t first, uint64_t count,
                                        float *weights) {
    struct optimizer_args args = *all;
    args.count = count;
    args.master = weights;
    args.master_low = NULL, args.out = NULL;
    for (int k = 0; k < OPTIMIZER_STATES_MAX; k++) args.state[k] = at(all->state[k], all->state_dtype, first);
    args.gradient = at((void *)all->gradient, all->gradient_dtype, first);
    args.first = all->first + first;
    args.threads = 1;
    return args;
}

/* Updates the states; copies the weights, and makes the direction. */
static void take_elements(const struct optimizer *optimizer, const struct optimizer_args *all, uint64_t first,
                          uint64_t count, float *weights, float *direction) {
    struct optimizer_args args = block_args(all, first, count, direction);
    if (all->master_low)
        master_join(weights, (const uint16_t *)all->out + first, all->master_low + first, count);
    else
        memcpy(weights, all->master + first, count * sizeof *weights);
    memcpy(direction, weights, count * sizeof *weights);
    optimizer_update(optimizer->before, &args);
    args.gradient = NULL;
    optimizer_update(optimizer->direction, &args);
}

static struct tensor_norms norms_of(const float *weights, const float *direction, uint64_t count) {
    return (struct tensor_norms){.weights = norm_block(weights, DTYPE_F32, count),
                                 .direction = norm_block(direction, DTYPE_F32, count)};
}

static struct tensor_norms measure_block(const struct optimizer *optimizer, const struct optimizer_args *all,
                                         uint64_t first, uint64_t count) {
    float weights[NORM_BLOCK_ELEMENTS], direction[NORM_BLOCK_ELEMENTS];
    take_elements(optimizer, all, first, count, weights, direction);
    return norms_of(weights, direction, count);
}

static void take_cut(const struct optimizer *optimizer, const struct optimizer_args *args, uint64_t first,
                     uint64_t count, struct tensor_cut *cut) {
    take_elements(optimizer, args, first, count, cut->weights + cut->count, cut->direction + cut->count);
    cut->count += count;
}

static void add(struct tensor_norms *sum, const struct tensor_norms *part, uint64_t parts, uint64_t step) {
    for (uint64_t i = 0; i < parts; i++) {
        sum->weights += part[i * step].weights;
        sum->direction += part[i * step].direction;
    }
}

static void add_in_order(struct tensor_norms *sum, const struct tensor_norms *part, uint64_t parts,
                         uint64_t step) {
    void (*volatile call)(struct tensor_norms *, const struct tensor_norms *, uint64_t, uint64_t) =
        add; /* volatile: prevents inlining (float_env.h) */
    float_env saved = float_env_enter();
    call(sum, part, parts, step);
    float_env_leave(saved);
}

/* Elements [begin, end) of the call, which begins `skip` elements behind the beginning of a block. */
static void measure_blocks(const struct optimizer *optimizer, const struct optimizer_args *args,
                           uint64_t skip, uint64_t begin, uint64_t end, struct tensor_norms *norms) {
    uint64_t last = (skip + end + NORM_BLOCK_ELEMENTS - 1) / NORM_BLOCK_ELEMENTS;
    for (uint64_t done = (skip + begin) / NORM_BLOCK_ELEMENTS; done < last && begin < end;
         done += ROUND_BLOCKS) {
        struct tensor_norms block[ROUND_BLOCKS];
        uint64_t count = min64(last - done, ROUND_BLOCKS), useful = count / THREAD_BLOCKS_MIN;
        uint32_t threads = args->threads < useful ? args->threads : (uint32_t)useful;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
        for (uint64_t k = 0; k < count; k++) {
            uint64_t at = (done + k) * NORM_BLOCK_ELEMENTS, from = at > skip + begin ? at - skip : begin,
                     until = min64(at + NORM_BLOCK_ELEMENTS - skip, end);
            block[k] = measure_block(optimizer, args, from, until - from);
        }
        add_in_order(norms, block, count, 1);
    }
}

void tensor_norms_measure(const struct optimizer *optimizer, const struct optimizer_args *args,
                          uint64_t first, bool ends, struct tensor_cut *cut, struct tensor_norms *norms) {
    uint64_t skip = first % NORM_BLOCK_ELEMENTS, begin = 0, end = args->count;
    if (cut->count) {
        begin = min64(NORM_BLOCK_ELEMENTS - skip, end);
        take_cut(optimizer, args, 0, begin, cut);
        if (begin == end && !ends && skip + end < NORM_BLOCK_ELEMENTS) return;
        struct tensor_norms block = norms_of(cut->weights, cut->direction, cut->count);
        add_in_order(norms, &block, 1, 1);
        cut->count = 0;
    }
    uint64_t rest = ends ? 0 : min64((skip + end) % NORM_BLOCK_ELEMENTS, end - begin);
    measure_blocks(optimizer, args, skip, begin, end - rest, norms);
    if (rest) take_cut(optimizer, args, end - rest, rest, cut);
}

/* Of a block of which `begins` has the first elements. */
static struct tensor_norms finish_block(const struct optimizer *optimizer, const struct optimizer_args *args,
                                        uint64_t count, const struct tensor_cut *begins, uint64_t held) {
    float weights[NORM_BLOCK_ELEMENTS], direction[NORM_BLOCK_ELEMENTS];
    memcpy(weights, begins->weights, held * sizeof *weights);
    memcpy(direction, begins->direction, held * sizeof *direction);
    take_elements(optimizer, args, 0, count, weights + held, direction + held);
    return norms_of(weights, direction, held + count);
}

void tensor_norms_measure_blocks(const struct optimizer *optimizer, const struct optimizer_args *args,
                                 uint64_t skip, const struct tensor_cut *begins, uint64_t held,
                                 struct tensor_cut *ends, double *sums) {
    uint64_t blocks = tensor_norms_blocks(skip, args->count) - (ends != NULL), first = 0,
             into = ends == begins ? held : 0;
    for (uint64_t k = 0; k < blocks; k++) {
        uint64_t end = min64((k + 1) * NORM_BLOCK_ELEMENTS - skip, args->count);
        struct tensor_norms block = k == 0 && begins ? finish_block(optimizer, args, end, begins, held)
                                                     : measure_block(optimizer, args, first, end - first);
        sums[k] = block.weights, sums[blocks + k] = block.direction;
        first = end;
    }
    if (ends)
        take_elements(optimizer, args, first, args->count - first, ends->weights + into,
                      ends->direction + into);
}

struct tensor_norms tensor_norms_total(const struct tensor_norms *part, uint32_t parts, uint64_t step) {
    struct tensor_norms sum = {0};
    add_in_order(&sum, part, parts, step);
    return sum;
}
