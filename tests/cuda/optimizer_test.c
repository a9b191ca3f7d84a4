/* Every optimizer's kernel gives the host's bits, in every format of weights and states, over numbers of every kind; and so does the kernel
 * that takes norms of whole tensors, over ordinary numbers, too: where all is NaN no order of additions shows.
 *   optimizer_test [ELEMENTS]    with a count, that many alone, of each format one form of the optimizer's parameters (on a
 *                                real GPU: 16777216) */
#include <math.h>
#include <stdlib.h>

#include "tests/check.h"
#include "tests/cuda/gpu.h"
#include "tests/kernels/optimizer_run.h"

#include "engine/base/limits.h"
#include "kernels/device_work.h"
#include "kernels/tensor_norms.h"

static const struct format {
    const char *name;
    enum dtype gradient, state, out;
    bool split, casts_out;
} formats[] = {
    {"fp32", DTYPE_F32, DTYPE_F32, DTYPE_F32, false, false},
    {"fp32, cast out to bf16", DTYPE_BF16, DTYPE_F32, DTYPE_BF16, false, true},
    {"fp32, cast out to fp16", DTYPE_F16, DTYPE_F32, DTYPE_F16, false, true},
    {"split masters", DTYPE_BF16, DTYPE_F32, DTYPE_BF16, true, true},
    {"bf16 states", DTYPE_F32, DTYPE_BF16, DTYPE_BF16, false, true},
    {"split masters, bf16 states", DTYPE_BF16, DTYPE_BF16, DTYPE_BF16, true, true},
};

struct run {
    const struct optimizer *optimizer;
    const struct format *format;
    struct pair master, state[OPTIMIZER_STATES_MAX], gradient, out, average;
};

static uint32_t master_bytes(const struct format *f) { return f->split ? 2 : 4; }

static void run_open(struct run *r, uint64_t count, uint64_t skip, uint64_t seed) {
    const struct format *f = r->format;
    r->master = pair_new(count * master_bytes(f), skip * master_bytes(f));
    r->gradient = pair_new(count * dtype_bytes(f->gradient), skip * dtype_bytes(f->gradient));
    r->out = pair_new(count * dtype_bytes(f->out), skip * dtype_bytes(f->out));
    pair_fill(&r->master, f->split ? DTYPE_BF16 : DTYPE_F32, &seed);
    pair_fill(&r->gradient, f->gradient, &seed);
    pair_fill(&r->out, f->out, &seed);
    r->average = pair_new(count * sizeof(float), skip * sizeof(float));
    pair_fill(&r->average, DTYPE_F32, &seed);
    for (int s = 0; s < OPTIMIZER_STATES_MAX; s++) {
        r->state[s] = pair_new(count * dtype_bytes(f->state), skip * dtype_bytes(f->state));
        pair_fill(&r->state[s], f->state, &seed);
    }
}

static void run_close(struct run *r) {
    pair_free(&r->master), pair_free(&r->gradient), pair_free(&r->out), pair_free(&r->average);
    for (int s = 0; s < OPTIMIZER_STATES_MAX; s++) pair_free(&r->state[s]);
}

static struct optimizer_step_argument argument_of(const struct run *r, uint64_t count, enum side side,
                                                  const struct optimizer_scalars *scalars) {
    const struct format *f = r->format;
    struct optimizer_step_argument a = {
        .args = {.count = count,
                 .state_dtype = f->state,
                 .rounding_key = 0x123456789abcdef0,
                 .first = UINT32_MAX - UINT64_C(98), /* the random bits' key changes within a thread's four */
                 .gradient = at(&r->gradient, side),
                 .gradient_dtype = f->gradient,
                 .gradient_scale = 0.37f,
                 .out = f->casts_out ? at(&r->out, side) : NULL,
                 .out_dtype = f->out,
                 .average = count % 2 ? at(&r->average, side) : NULL,
                 .average_share = count % 3 ? 0.1f : 0.75f,
                 .threads = count > 1 << 20 ? 16 : 2},
        .scalars = *scalars,
        .optimizer = r->optimizer};
    if (f->split)
        a.args.master_low = at(&r->master, side);
    else
        a.args.master = at(&r->master, side);
    if (r->optimizer->scope == SCOPE_TENSOR)
        a.args.gradient = NULL;                        /* the part that takes norms has read it */
    bool states = r->optimizer->scope != SCOPE_MATRIX; /* of matrices, the part before has them */
    for (uint32_t s = 0; s < r->optimizer->state_count && states; s++)
        a.args.state[s] = at(&r->state[s], side);
    return a;
}

/* ---- norms of whole tensors ---- */

static void fill_ordinary(const struct pair *p, enum dtype dtype, uint64_t *seed) {
    for (uint64_t i = 0; i < p->bytes / dtype_bytes(dtype); i++) {
        float x = fabsf(random_uniform(seed)); /* so has a second moment a root */
        memcpy(p->host + i * dtype_bytes(dtype), (char *)&x + (dtype == DTYPE_F32 ? 0 : 2),
               dtype_bytes(dtype));
    }
    pair_upload(p);
}

static void make_ordinary(struct run *r, uint64_t seed) {
    const struct format *f = r->format;
    fill_ordinary(&r->master, f->split ? DTYPE_BF16 : DTYPE_F32, &seed);
    fill_ordinary(&r->gradient, f->gradient, &seed);
    fill_ordinary(&r->out, f->out, &seed);
    for (int s = 0; s < OPTIMIZER_STATES_MAX; s++) fill_ordinary(&r->state[s], f->state, &seed);
}

struct norms {
    struct pair sums, begins, ends;
    uint32_t skip, held;
    bool cuts;
};

static void measure(const struct run *r, const struct norms *n, uint64_t count,
                    const struct optimizer_scalars *scalars) {
    const struct kernel *kernel = kernel_optimizer_measure(r->optimizer);
    for (int side = ON_GPU; side >= ON_HOST; side--) {
        struct optimizer_step_argument step = argument_of(r, count, (enum side)side, scalars);
        struct optimizer_measure_argument a = {.args = step.args,
                                               .scalars = step.scalars,
                                               .optimizer = r->optimizer,
                                               .sums = at(&n->sums, (enum side)side),
                                               .begins = n->held ? at(&n->begins, (enum side)side) : NULL,
                                               .held = n->held,
                                               .skip = n->skip};
        bool alone =
            n->held && tensor_norms_blocks(n->skip, count) == 1; /* a block that is still not whole */
        if (n->cuts) a.ends = alone ? a.begins : at(&n->ends, (enum side)side);
        a.args.average = NULL, a.args.gradient = at(&r->gradient, (enum side)side);
        run_on((enum side)side, kernel, &a);
    }
}

/* `skip`: elements before the arrays; `n`: where they are in a block. Two steps: the second one reads the states of the first. */
static void compare_norms(const struct optimizer *optimizer, const struct format *format, int form,
                          uint64_t count, uint64_t skip, struct norms n) {
    struct run r = {.optimizer = optimizer, .format = format};
    struct optimizer_params params = params_of(optimizer, form);
    uint64_t seed = count * 31 + n.skip, blocks = tensor_norms_blocks(n.skip, count);
    n.sums = pair_new(2 * blocks * sizeof(double), 0), n.ends = pair_new(sizeof(struct tensor_cut), 0);
    n.begins = pair_new(sizeof(struct tensor_cut), 0);
    pair_fill(&n.sums, DTYPE_U8, &seed), pair_fill(&n.ends, DTYPE_U8, &seed);
    fill_ordinary(&n.begins, DTYPE_F32, &seed);
    check_seed(seed);
    run_open(&r, count, skip, seed);
    if (form) make_ordinary(&r, seed);
    int same = 1;
    for (uint64_t step = 1; step <= 2; step++) {
        struct optimizer_scalars scalars;
        optimizer_prepare(optimizer, &params, step, &scalars);
        measure(&r, &n, count, &scalars);
        same &= pair_same(&r.master, "master") & pair_same(&r.gradient, "gradient") &
                pair_same(&r.out, "out") & pair_same(&n.sums, "sums") & pair_same(&n.begins, "begins") &
                pair_same(&n.ends, "ends");
    }
    for (uint32_t s = 0; s < optimizer->state_count; s++)
        same &= pair_same(&r.state[s], optimizer->state_names[s]);
    double sum = *(double *)at(&n.sums, ON_HOST);
    same &= !form || blocks == n.cuts || CHECK(sum > 0 && sum < 2 * NORM_BLOCK_ELEMENTS);
    if (!same)
        fprintf(stderr, "  norms of %s, form %d, %s, %" PRIu64 " elements at %u\n", optimizer->name, form,
                format->name, count, n.skip);
    pair_free(&n.sums), pair_free(&n.begins), pair_free(&n.ends), run_close(&r);
}

static void all_norms(const struct optimizer *optimizer, uint64_t one) {
    static const uint64_t counts[] = {1, 19, NORM_BLOCK_ELEMENTS - 16, NORM_BLOCK_ELEMENTS,
                                      2 * NORM_BLOCK_ELEMENTS + 1037};
    static const uint32_t skips[] = {0, 16, 5, NORM_BLOCK_ELEMENTS - 3};
    for (int f = 0; f < (int)(sizeof formats / sizeof *formats); f++) {
        if (one)
            compare_norms(optimizer, &formats[f], f % PARAM_FORMS, one, (uint64_t)f % 3, (struct norms){0});
        for (int form = 0; form < PARAM_FORMS && !one; form++)
            for (uint32_t c = 0; c < sizeof counts / sizeof *counts; c++) {
                struct norms n = {.skip = skips[(c + (uint32_t)f) % 4], .cuts = (c + (uint32_t)form) % 2};
                n.held = n.skip / (1 + (uint32_t)form); /* the rest is of another tensor */
                compare_norms(optimizer, &formats[f], form, counts[c], (uint64_t)(f + form) % 3, n);
            }
    }
}

/* ---- updates ---- */

/* Two steps, so that what the first one wrote is read. */
static void compare(const struct optimizer *optimizer, const struct format *format, int form, uint64_t count,
                    uint64_t skip) {
    struct run r = {.optimizer = optimizer, .format = format};
    struct optimizer_params params = params_of(optimizer, form);
    const struct kernel *kernel = kernel_optimizer_step(optimizer);
    uint64_t seed = count * 31 + skip * 7 + (uint64_t)form;
    check_seed(seed);
    run_open(&r, count, skip, seed);
    for (uint64_t step = 1; step <= 2; step++) {
        struct optimizer_scalars scalars;
        optimizer_prepare(optimizer, &params, step, &scalars);
        struct optimizer_step_argument on_host = argument_of(&r, count, ON_HOST, &scalars),
                                       on_gpu = argument_of(&r, count, ON_GPU, &scalars);
        gpu_launch(kernel, &on_gpu);
        kernel->run(&on_host);
    }
    int same = pair_same(&r.master, "master") & pair_same(&r.gradient, "gradient") &
               pair_same(&r.out, "out") & pair_same(&r.average, "average");
    for (uint32_t s = 0; s < optimizer_states_used(optimizer, &params); s++)
        same &= pair_same(&r.state[s], optimizer->state_names[s]);
    if (!same)
        fprintf(stderr, "  %s, form %d, %s, %" PRIu64 " elements at %" PRIu64 "\n", optimizer->name, form,
                format->name, count, skip);
    run_close(&r);
}

static void all_sizes(const struct optimizer *optimizer, const struct format *format, int form) {
    static const uint64_t counts[] = {1, 3, 4, 257, 3001};
    for (uint64_t size = 0; size < sizeof counts / sizeof *counts; size++)
        compare(optimizer, format, form, counts[size], ((uint64_t)(format - formats + form) + size) % 3);
}

static void all_formats(const struct optimizer *optimizer, uint64_t one) {
    for (int f = 0; f < (int)(sizeof formats / sizeof *formats); f++) {
        if (one) compare(optimizer, &formats[f], f % PARAM_FORMS, one, (uint64_t)f % 3);
        for (int form = 0; form < PARAM_FORMS && !one; form++) all_sizes(optimizer, &formats[f], form);
    }
}

int main(int argc, char **argv) {
    uint64_t one = argc > 1 ? strtoull(argv[1], NULL, 10) : 0;
    gpu_open();
    for (const struct optimizer *const *each = optimizers; *each; each++) {
        all_formats(*each, one);
        if ((*each)->scope == SCOPE_MATRIX) all_formats((*each)->before, one);
        if ((*each)->scope == SCOPE_TENSOR) all_norms(*each, one);
    }
    gpu_close();
    return check_end();
}
