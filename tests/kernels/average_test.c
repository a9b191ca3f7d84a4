/* Averaged weights: the formula, with every instruction set, over numbers of every kind; and within an update, in every format of the
 * weights and cut. */
#include "kernels/average.h"

#include "kernels/state_format.h"
#include "tests/check.h"
#include "tests/kernels/optimizer_run.h"

enum { COUNT = 5003, LONG = 500003 };

static const float shares[] = {1, 0.75f, 0.5f, 0.4999f, 0.1f, 0.001f, 1e-7f};

/* One operation of fp32 after another. */
static float expected(float average, float weight, float share) {
    volatile float distance = weight - average, back = share - 1;
    float moved = share < 0.5f ? fmaf(share, distance, average) : fmaf(back, distance, weight);
    return isnan(moved) ? float_of(0x7fc00000) : moved;
}

static void formula(enum kernel_isa isa) {
    static float average[COUNT], weight[COUNT], got[COUNT];
    for (uint64_t seed = 1; seed <= 20; seed++)
        for (size_t s = 0; s < sizeof shares / sizeof *shares; s++) {
            uint64_t state = seed;
            for (int i = 0; i < COUNT; i++) {
                average[i] = seed % 2 ? random_uniform(&state) : random_f32(&state);
                weight[i] = seed % 2 ? random_uniform(&state) : random_f32(&state);
            }
            uint64_t skip = seed % 5; /* nothing is aligned */
            memcpy(got, average, sizeof got);
            average_move_isa(isa, got + skip, weight + skip, shares[s], COUNT - skip);
            for (uint64_t i = skip; i < COUNT; i++) average[i] = expected(average[i], weight[i], shares[s]);
            if (!CHECK_BYTES(got, average, sizeof got))
                fprintf(stderr, "  %s, share %g\n", kernel_isa_name(isa), (double)shares[s]);
        }
}

/* What lies at the weight stays there, a share of 1 gives the weight, and the average goes to where the weights are. */
static void properties(void) {
    uint64_t seed = 3;
    for (int i = 0; i < 1000; i++) {
        float weight = random_uniform(&seed), average = random_uniform(&seed);
        CHECK(average_of(average, weight, 1) == weight);
        CHECK(average_of(weight, weight, 0.001f) == weight);
        for (int k = 0; k < 200; k++) average = average_of(average, weight, 0.1f);
        CHECK(fabsf(average - weight) <= 1e-6f);
    }
}

static struct optimizer_args args_of(const struct shard *s, const struct optimizer_scalars *scalars) {
    return (struct optimizer_args){.count = s->count,
                                   .master = s->master,
                                   .state = {s->state[0], s->state[1]},
                                   .gradient = s->gradient,
                                   .gradient_dtype = DTYPE_BF16,
                                   .gradient_scale = 0.37f,
                                   .out = s->out,
                                   .out_dtype = DTYPE_BF16,
                                   .average_share = 0.9f,
                                   .scalars = scalars,
                                   .threads = 1};
}

/* An update moves the average to the masters that are kept, and changes nothing else. */
static void updates(enum kernel_isa isa, int split, enum dtype out) {
    const struct optimizer *adamw = optimizer_find("adamw");
    struct shard with = shard_new(LONG, 0), without = shard_new(LONG, 0);
    float *average = malloc(LONG * sizeof *average), *serial = malloc(LONG * sizeof *serial);
    uint16_t *low = malloc(LONG * sizeof *low);
    uint64_t seed = 17;
    shard_fill(&with, 6, DTYPE_BF16, 0), shard_fill(&without, 6, DTYPE_BF16, 0);
    for (int i = 0; i < LONG; i++) average[i] = serial[i] = random_uniform(&seed);
    if (split) master_split(with.out, low, with.master, LONG), master_keep(without.master, LONG);
    for (uint64_t step = 1; step <= 3; step++) {
        struct optimizer_params params = params_of(adamw, 1);
        struct optimizer_scalars scalars;
        optimizer_prepare(adamw, &params, step, &scalars);
        struct optimizer_args a = args_of(&with, &scalars), b = args_of(&without, &scalars);
        a.threads = 3, a.average = average;
        a.out_dtype = b.out_dtype = out;
        if (split) a.master = NULL, a.master_low = low;
        if (out == DTYPE_F32) a.out = b.out = NULL;
        optimizer_update_isa(adamw, isa, &a);
        optimizer_update_isa(adamw, KERNEL_SCALAR, &b);
        for (int i = 0; i < LONG; i++) serial[i] = expected(serial[i], without.master[i], 0.9f);
        CHECK_BYTES(average, serial, LONG * sizeof *serial);
    }
    if (split) master_join(with.master, with.out, low, LONG);
    int good = CHECK_BYTES(with.master, without.master, LONG * sizeof *serial) &
               CHECK_BYTES(with.out, without.out, LONG * dtype_bytes(out)) &
               CHECK_BYTES(with.state[1], without.state[1], LONG * sizeof *serial);
    if (!good) fprintf(stderr, "  %s, split %d, out %s\n", kernel_isa_name(isa), split, dtype_name(out));
    free(average), free(serial), free(low);
    shard_free(&with), shard_free(&without);
}

int main(void) {
    for (enum kernel_isa isa = 0; isa < KERNEL_ISAS; isa++) {
        if (!kernel_isa_present(isa)) continue;
        formula(isa);
        updates(isa, 0, DTYPE_F32), updates(isa, 0, DTYPE_F16), updates(isa, 0, DTYPE_BF16);
        updates(isa, 1, DTYPE_BF16);
    }
    properties();
    return check_end();
}
