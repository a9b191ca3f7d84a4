/* Every optimizer's kernel gives the host's bits, in every format of weights and states, over numbers of every kind.
 *   optimizer_test [ELEMENTS]    with a count, that many alone, of each format one form of the optimizer's parameters (on a
 *                                real GPU: 16777216) */
#include <stdlib.h>

#include "tests/check.h"
#include "tests/cuda/gpu.h"
#include "tests/kernels/optimizer_run.h"

#include "kernels/work.h"

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
                 .threads = 2},
        .scalars = *scalars,
        .optimizer = r->optimizer};
    if (f->split)
        a.args.master_low = at(&r->master, side);
    else
        a.args.master = at(&r->master, side);
    bool states = r->optimizer->scope == SCOPE_ELEMENT; /* of matrices, the part before has them */
    for (uint32_t s = 0; s < r->optimizer->state_count && states; s++)
        a.args.state[s] = at(&r->state[s], side);
    return a;
}

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
        if ((*each)->before) all_formats((*each)->before, one);
    }
    gpu_close();
    return check_end();
}
