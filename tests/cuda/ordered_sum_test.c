/* Sums over ranks in their order, over nodes first for even counts, added or not, and the norm of what is written: the host's bits. */
#include <sys/mman.h>

#include "tests/check.h"
#include "tests/cuda/gpu.h"

#include "engine/base/limits.h"
#include "kernels/ordered_sum.h"

struct form {
    enum dtype dtype, target_dtype;
    bool add, strided, norms, in_place;
};

static struct ordered_sum_argument argument_of(const struct form *f, uint32_t ranks, uint64_t count,
                                               const struct pair *inputs, const struct pair *target,
                                               const struct pair *sums, enum side side) {
    struct ordered_sum_argument a = {.count = count,
                                     .target = at(target, side),
                                     .sums = f->norms ? at(sums, side) : NULL,
                                     .input_count = ranks,
                                     .node_inputs = ranks > 2 && count % 2 == 0 ? (ranks + 6) / 5 : 0,
                                     .dtype = f->dtype,
                                     .target_dtype = f->target_dtype,
                                     .add = f->add};
    uint64_t stride = count * dtype_bytes(f->dtype);
    if (f->strided) {
        a.input[0] = at(inputs, side);
        a.input_stride = stride;
    }
    for (uint32_t r = 0; r < ranks && !f->strided; r++) a.input[r] = (char *)at(inputs, side) + r * stride;
    if (f->in_place) a.target = (void *)a.input[0];
    return a;
}

static void compare(const struct form *f, uint32_t ranks, uint64_t count, uint64_t skip) {
    uint64_t seed = count + ranks, blocks = (count + NORM_BLOCK_ELEMENTS - 1) / NORM_BLOCK_ELEMENTS;
    struct pair inputs = pair_new(count * ranks * dtype_bytes(f->dtype), skip * dtype_bytes(f->dtype)),
                target = pair_new(count * dtype_bytes(f->target_dtype), skip * dtype_bytes(f->target_dtype)),
                sums = pair_new(blocks * sizeof(double), 0);
    check_seed(seed);
    pair_fill(&inputs, f->dtype, &seed), pair_fill(&target, f->target_dtype, &seed);
    pair_fill(&sums, DTYPE_U8, &seed);
    for (int side = ON_GPU; side >= ON_HOST; side--) {
        struct ordered_sum_argument a =
            argument_of(f, ranks, count, &inputs, &target, &sums, (enum side)side);
        run_on((enum side)side, &kernel_ordered_sum, &a);
    }
    if (!(pair_same(&target, "target") & pair_same(&inputs, "inputs") & pair_same(&sums, "sums")))
        fprintf(stderr, "  %s to %s, add %d, %d ranks, %d elements at %d\n", dtype_name(f->dtype),
                dtype_name(f->target_dtype), f->add, (int)ranks, (int)count, (int)skip);
    pair_free(&inputs), pair_free(&target), pair_free(&sums);
}

/* The sum of one array in its own place, without NaN, writes nothing: on the stand-in, a write into this memory ends the test. */
static void writes_nothing_alone(void) {
    enum { PAGE_BYTES = 4096 };
    const uint64_t count = PAGE_BYTES / sizeof(float);
    void *memory = NULL;
    struct pair sums = pair_new(sizeof(double), 0);
    gpu_must(gpu_driver()->cuMemHostAlloc(&memory, 2 * PAGE_BYTES, 0), "pinned memory");
    float *page = (float *)(((uintptr_t)memory + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES);
    for (uint64_t i = 0; i < count; i++) page[i] = (float)i - 7.5f;
    CHECK_INT(mprotect(page, PAGE_BYTES, PROT_READ), 0);
    for (int side = ON_GPU; side >= ON_HOST; side--) {
        struct ordered_sum_argument a = {.input = {page},
                                         .count = count,
                                         .target = page,
                                         .sums = at(&sums, (enum side)side),
                                         .input_count = 1,
                                         .dtype = DTYPE_F32,
                                         .target_dtype = DTYPE_F32};
        if (side == ON_HOST) CHECK_INT(mprotect(page, PAGE_BYTES, PROT_READ | PROT_WRITE), 0);
        run_on((enum side)side, &kernel_ordered_sum, &a);
        gpu_wait();
    }
    CHECK(pair_same(&sums, "sums"));
    pair_free(&sums);
    gpu_must(gpu_driver()->cuMemFreeHost(memory), "freeing pinned memory");
}

int main(void) {
    static const uint64_t counts[] = {1, 6, 4096, 9001};
    static const struct form forms[] = {
        {DTYPE_F32, DTYPE_F32, false, false, true, false},
        {DTYPE_F32, DTYPE_F32, true, true, true, false},
        {DTYPE_F32, DTYPE_F32, false, false, false, true},
        {DTYPE_BF16, DTYPE_F32, true, false, false, false},
        {DTYPE_BF16, DTYPE_BF16, false, true, true, false},
        {DTYPE_BF16, DTYPE_BF16, false, true, true, true},
        {DTYPE_F16, DTYPE_F16, false, false, true, false},
        {DTYPE_F16, DTYPE_F32, true, true, true, false},
        {DTYPE_BF16, DTYPE_BF16, true, true, true, false},
        {DTYPE_F16, DTYPE_F16, true, false, true, false},
    };
    static const uint32_t ranks[] = {1, 2, 4, ORDERED_INPUTS_MAX};
    gpu_open();
    for (size_t f = 0; f < sizeof forms / sizeof *forms; f++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
            for (size_t r = 0; r < sizeof ranks / sizeof *ranks; r++)
                compare(&forms[f], ranks[r], counts[c], (f + c + r) % 3);
    writes_nothing_alone();
    gpu_close();
    return check_end();
}
