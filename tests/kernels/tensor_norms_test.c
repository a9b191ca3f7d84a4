/* An optimizer of whole tensors. Lamb's steps against the paper's formulas in double precision; norms do not depend on threads or cuts,
 * are sums of the stated blocks, and are those of the weights and states that are stored, in every format.
 *
 * Tolerance: as in optimizer_formula_test. A direction is of size 1, and its fp32 is off by less than 1e-6; a ratio of norms by 1e-6 of
 * itself, of at most 10; ten steps of lr = 1e-3 move a weight by less than 1e-1, so the weight is off by less than 1e-6. */
#include "kernels/tensor_norms.h"

#include <math.h>

#include "engine/base/limits.h"
#include "kernels/norm.h"
#include "kernels/state_format.h"
#include "tests/check.h"
#include "tests/kernels/optimizer_run.h"

enum { COUNT = 2 * NORM_BLOCK_ELEMENTS + 1803, STEPS = 10, LONG = 100 * NORM_BLOCK_ELEMENTS + 5 };

static struct tensor_cut cut; /* of one block at a time */

static const struct optimizer *lamb(void) { return optimizer_find("lamb"); }

static struct optimizer_args args_of(const struct shard *s, const struct optimizer_scalars *scalars,
                                     enum dtype gradient) {
    return (struct optimizer_args){.count = s->count,
                                   .master = s->master,
                                   .state = {s->state[0], s->state[1]},
                                   .gradient = s->gradient,
                                   .gradient_dtype = gradient,
                                   .gradient_scale = 0.37f,
                                   .scalars = scalars,
                                   .threads = 1};
}

/* ---- the formula ---- */

static double ratio_of(const struct optimizer_params *p, double weights, double direction) {
    if (weights == 0 || direction == 0) return 1;
    return fmin(fmax(sqrt(weights) / sqrt(direction), p->min_coeff), p->max_coeff);
}

static double by_paper(const struct optimizer_params *p, double t, double w[COUNT], double m[COUNT],
                       double v[COUNT], const float *g) {
    static double u[COUNT];
    double weights = 0, direction = 0, c1 = 1, c2 = 1;
    if (p->bias_correction) c1 = 1 - pow(p->beta1, t), c2 = 1 - pow(p->beta2, t);
    for (int i = 0; i < COUNT; i++) {
        double gradient = (double)0.37f * (double)g[i];
        m[i] = p->beta1 * m[i] + (1 - p->beta1) * gradient;
        v[i] = p->beta2 * v[i] + (1 - p->beta2) * gradient * gradient;
        u[i] = m[i] / c1 / (sqrt(v[i] / c2) + p->eps) + p->weight_decay * w[i];
        weights += w[i] * w[i], direction += u[i] * u[i];
    }
    double ratio = ratio_of(p, weights, direction);
    for (int i = 0; i < COUNT; i++) w[i] -= p->lr * ratio * u[i];
    return ratio;
}

/* `size`: of the first weights. Returns the last step's ratio. */
static double ten_steps(struct optimizer_params params, float size) {
    static double w[COUNT], m[COUNT], v[COUNT];
    struct shard s = shard_new(COUNT, 0);
    double ratio = 0;
    shard_fill(&s, 23, DTYPE_F32, 0);
    memset(s.state[0], 0, COUNT * 4), memset(s.state[1], 0, COUNT * 4);
    memset(m, 0, sizeof m), memset(v, 0, sizeof v);
    for (int i = 0; i < COUNT; i++) w[i] = s.master[i] *= size;
    for (uint64_t t = 1; t <= STEPS; t++) {
        uint64_t seed = 100 + t;
        float *g = s.gradient;
        for (int i = 0; i < COUNT; i++) /* away from zero: 1 / sqrt(v) magnifies rounding */
            g[i] = copysignf(0.1f + 0.9f * fabsf(random_uniform(&seed)), i % 2 ? -1.0f : 1.0f);
        struct optimizer_scalars scalars;
        struct tensor_norms norms = {0};
        optimizer_prepare(lamb(), &params, t, &scalars);
        struct optimizer_args args = args_of(&s, &scalars, DTYPE_F32);
        tensor_norms_measure(lamb(), &args, 0, true, &cut, &norms);
        optimizer_trust(lamb(), &norms, &scalars);
        args.gradient = NULL;
        optimizer_update(lamb(), &args);
        ratio = by_paper(&params, (double)t, w, m, v, g);
    }
    int good = 1;
    for (int i = 0; i < COUNT && good; i++) {
        good &= CHECK_DOUBLE(s.master[i], w[i], 1e-6);
        good &= CHECK_DOUBLE(s.state[0][i], m[i], 2e-6) & CHECK_DOUBLE(s.state[1][i], v[i], 2e-6);
    }
    if (!good) fprintf(stderr, "  decay %g, weights of size %g\n", params.weight_decay, (double)size);
    shard_free(&s);
    return ratio;
}

/* Weights that move little, so that the ratio of the last step is clear. */
static void as_in_the_paper(void) {
    struct optimizer_params p = lamb()->defaults;
    double ratio = ten_steps(p, 1);
    CHECK(ratio > p.min_coeff && ratio < p.max_coeff);
    p.weight_decay = 0.1;
    ratio = ten_steps(p, 0.3f);
    CHECK(ratio > p.min_coeff && ratio < p.max_coeff);
    p.bias_correction = false;
    ten_steps(p, 1);
    p.max_coeff = 0.05;
    CHECK_DOUBLE(ten_steps(p, 1), 0.05, 0);
    p.max_coeff = 10, p.min_coeff = 2;
    CHECK_DOUBLE(ten_steps(p, 1), 2, 0);
    p = lamb()->defaults, p.lr = 0; /* the weights stay zero */
    CHECK_DOUBLE(ten_steps(p, 0), 1, 0);
}

static void norms_of_zero_say_nothing(void) {
    static const struct tensor_norms norms[] = {{0, 0}, {0, 4}, {4, 0}, {NAN, 4}, {4, NAN}, {4, 1}};
    for (size_t i = 0; i < sizeof norms / sizeof *norms; i++) {
        struct optimizer_scalars as_it_is, trusted;
        optimizer_prepare(lamb(), &lamb()->defaults, 3, &as_it_is);
        trusted = as_it_is;
        optimizer_trust(lamb(), &norms[i], &trusted);
        CHECK_INT(memcmp(&trusted, &as_it_is, sizeof trusted) == 0, i + 1 < sizeof norms / sizeof *norms);
    }
}

/* ---- bits ---- */

struct measured {
    struct shard shard;
    struct tensor_norms norms;
};

/* As a device takes elements: block by block. What it cuts goes to the other place, unless it only adds to it. */
static void take_blocks(const struct optimizer_args *args, uint64_t skip, bool ends,
                        struct tensor_norms *norms) {
    static double sums[2 * (LONG / NORM_BLOCK_ELEMENTS + 2)];
    static struct tensor_cut other;
    uint64_t behind = (skip + args->count) % NORM_BLOCK_ELEMENTS, held = cut.count,
             rest = ends                   ? 0
                    : behind < args->count ? behind
                                           : args->count,
             blocks = tensor_norms_blocks(skip, args->count) - (rest > 0);
    struct tensor_cut *to = blocks ? &other : &cut;
    tensor_norms_measure_blocks(lamb(), args, skip, held ? &cut : NULL, held, rest ? to : NULL, sums);
    for (uint64_t k = 0; k < blocks; k++) norms->weights += sums[k], norms->direction += sums[blocks + k];
    if (blocks) cut = other;
    cut.count = rest + (blocks ? 0 : held);
}

/* In calls of `most` elements; threads 0: two of three are a device's. */
static struct measured measured(uint64_t first, uint64_t most, uint32_t threads) {
    struct measured out = {.shard = shard_new(LONG, 0)};
    struct optimizer_params params = params_of(lamb(), 1);
    struct optimizer_scalars scalars;
    shard_fill(&out.shard, 7, DTYPE_BF16, 0);
    optimizer_prepare(lamb(), &params, 3, &scalars);
    const struct optimizer_args whole = args_of(&out.shard, &scalars, DTYPE_BF16);
    for (uint64_t at = 0; at < LONG; at += most) {
        struct optimizer_args part = whole;
        bool ends, device = !threads && at / most % 3 < 2;
        part.threads = threads ? threads : 1;
        part.count = LONG - at < most ? LONG - at : most;
        part.master += at, part.first += at;
        for (int k = 0; k < 2; k++) part.state[k] = (float *)whole.state[k] + at;
        part.gradient = (const uint16_t *)whole.gradient + at;
        ends = at + part.count == LONG;
        if (device)
            take_blocks(&part, (first + at) % NORM_BLOCK_ELEMENTS, ends, &out.norms);
        else
            tensor_norms_measure(lamb(), &part, first + at, ends, &cut, &out.norms);
    }
    CHECK_INT(cut.count, 0);
    return out;
}

static void compare(struct measured got, const struct measured *expected) {
    CHECK_BYTES(&got.norms, &expected->norms, sizeof got.norms);
    for (int k = 0; k < 2; k++) CHECK_BYTES(got.shard.state[k], expected->shard.state[k], LONG * 4);
    CHECK_BYTES(got.shard.master, expected->shard.master, LONG * 4);
    shard_free(&got.shard);
}

static void threads_and_cuts_do_not_matter(void) {
    static const uint64_t firsts[] = {0, 1, NORM_BLOCK_ELEMENTS - 3, 9 * NORM_BLOCK_ELEMENTS + 40};
    for (size_t i = 0; i < sizeof firsts / sizeof *firsts; i++) {
        uint64_t first = firsts[i], to_block = NORM_BLOCK_ELEMENTS - first % NORM_BLOCK_ELEMENTS;
        const uint64_t most[] = {to_block,
                                 to_block + 70 * NORM_BLOCK_ELEMENTS,
                                 3 * NORM_BLOCK_ELEMENTS - 1,
                                 NORM_BLOCK_ELEMENTS + 16,
                                 1024,
                                 777};
        struct measured one = measured(first, LONG, 1);
        for (uint32_t threads = 2; threads <= 3; threads++) compare(measured(first, LONG, threads), &one);
        for (size_t k = 0; k < sizeof most / sizeof *most; k++)
            for (uint32_t device = 0; device < 2; device++)
                compare(measured(first, most[k], device ? 0 : 1 + (uint32_t)k % 3), &one);
        compare(measured(first, LONG, 0), &one);
        shard_free(&one.shard);
    }
}

/* The blocks are those of the shard, in ascending order; the weights stay. */
static void norms_are_sums_of_blocks(void) {
    const uint64_t first = 5 * NORM_BLOCK_ELEMENTS + 1000;
    static float direction[LONG];
    struct measured got = measured(first, LONG, 2);
    struct shard untouched = shard_new(LONG, 0);
    struct tensor_norms sum = {0};
    struct optimizer_params params = params_of(lamb(), 1);
    struct optimizer_scalars scalars;
    shard_fill(&untouched, 7, DTYPE_BF16, 0);
    CHECK_BYTES(got.shard.master, untouched.master, LONG * 4);
    optimizer_prepare(lamb(), &params, 3, &scalars);
    struct optimizer_args args = args_of(&got.shard, &scalars, DTYPE_F32);
    memcpy(direction, got.shard.master, sizeof direction);
    args.master = direction, args.gradient = NULL;
    optimizer_update(lamb()->direction, &args);
    for (uint64_t i = 0; i < LONG;) {
        uint64_t n = NORM_BLOCK_ELEMENTS - (first + i) % NORM_BLOCK_ELEMENTS;
        if (n > LONG - i) n = LONG - i;
        sum.weights += norm_block(got.shard.master + i, DTYPE_F32, n);
        sum.direction += norm_block(direction + i, DTYPE_F32, n);
        i += n;
    }
    CHECK_BYTES(&got.norms, &sum, sizeof sum);
    shard_free(&got.shard), shard_free(&untouched);
}

static void parts_are_added_in_order(void) {
    const struct tensor_norms part[] = {{1, 2}, {7, 7}, {0x1p-53, 3}, {7, 7}, {0x1p-53, 4}};
    struct tensor_norms sum = tensor_norms_total(part, 3, 2);
    CHECK_DOUBLE(sum.weights, 1, 0); /* the other way round it is more */
    CHECK_DOUBLE(sum.direction, 9, 0);
}

/* ---- formats ---- */

/* Split masters and bf16 states: the norms are those of what is stored, as if it were stored in fp32. */
static void formats_are_those_that_are_stored(void) {
    enum { FEW = NORM_BLOCK_ELEMENTS + 99 };
    static uint16_t weight[FEW], low[FEW], kept[2][FEW], state[2][FEW], gradient[FEW];
    static float master[FEW], wide[2][FEW];
    struct optimizer_params params = params_of(lamb(), 1);
    struct optimizer_scalars scalars;
    struct tensor_norms split = {0}, stored = {0};
    uint64_t seed = 9;
    for (int i = 0; i < FEW; i++)
        master[i] = random_uniform(&seed), gradient[i] = (uint16_t)(i % 77 + 0x3e00);
    for (int i = 0; i < FEW; i++) state[0][i] = state[1][i] = 0;
    master_keep(master, FEW);
    master_split(weight, low, master, FEW);
    memcpy(kept[0], weight, sizeof weight), memcpy(kept[1], low, sizeof low);
    optimizer_prepare(lamb(), &params, 1, &scalars);
    struct optimizer_args args = {.count = FEW,
                                  .master_low = low,
                                  .out = weight,
                                  .out_dtype = DTYPE_BF16,
                                  .state = {state[0], state[1]},
                                  .state_dtype = DTYPE_BF16,
                                  .rounding_key = 77,
                                  .gradient = gradient,
                                  .gradient_dtype = DTYPE_BF16,
                                  .gradient_scale = 1,
                                  .scalars = &scalars,
                                  .threads = 1};
    tensor_norms_measure(lamb(), &args, 0, true, &cut, &split);
    CHECK_BYTES(weight, kept[0], sizeof weight);
    CHECK_BYTES(low, kept[1], sizeof low);
    for (int k = 0; k < 2; k++) cast(wide[k], DTYPE_F32, state[k], DTYPE_BF16, FEW);
    CHECK(wide[0][5] != 0 && wide[1][5] != 0);
    args = (struct optimizer_args){
        .count = FEW, .master = master, .state = {wide[0], wide[1]}, .scalars = &scalars, .threads = 1};
    stored.weights = norm_more(0, master, DTYPE_F32, FEW);
    optimizer_update(lamb()->direction, &args);
    stored.direction = norm_more(0, master, DTYPE_F32, FEW);
    CHECK_BYTES(&split, &stored, sizeof split);
}

int main(void) {
    as_in_the_paper();
    norms_of_zero_say_nothing();
    threads_and_cuts_do_not_matter();
    norms_are_sums_of_blocks();
    parts_are_added_in_order();
    formats_are_those_that_are_stored();
    return check_end();
}
