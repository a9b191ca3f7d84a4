/* Ten steps of every optimizer against the papers' formulas written here in double precision.
 *
 * Tolerance: the kernels round each of about ten operations a step to fp32 (2^-24 = 6e-8 relative), scalars
 * included; weights start below 1 and move by about lr = 1e-2 a step, so ten steps of a weight are off by no
 * more than 10 * (6e-8 + 1e-2 * 10 * 6e-8) < 1e-6 absolute, which CHECK_DOUBLE's scale of 1 takes as is. The
 * states, sums of terms of size 1, are off by at most 10 steps * 3 roundings * 6e-8 < 2e-6. A wrong formula
 * is off by lr * wd = 1e-3 or more. Lion's sign is discontinuous: its gradients keep the mixed value's sign
 * clear of rounding. */
#include "kernels/optimizer.h"

#include <math.h>

#include "tests/check.h"
#include "tests/kernels/optimizer_run.h"

enum { COUNT = 1003, STEPS = 10 };

static const double scale = (double)0.37f; /* as in shard_update */

typedef void reference(const struct optimizer_params *p, double t, double *w, double *a, double *b, double g);

static void adam_by_paper(const struct optimizer_params *p, double t, double *w, double *m, double *v,
                          double g) {
    *m = p->beta1 * *m + (1 - p->beta1) * g;
    *v = p->beta2 * *v + (1 - p->beta2) * g * g;
    double m_hat = *m, v_hat = *v;
    if (p->bias_correction) m_hat /= 1 - pow(p->beta1, t), v_hat /= 1 - pow(p->beta2, t);
    *w -= p->lr * m_hat / (sqrt(v_hat) + p->eps);
}

static void adamw(const struct optimizer_params *p, double t, double *w, double *m, double *v, double g) {
    *w *= 1 - p->lr * p->weight_decay;
    adam_by_paper(p, t, w, m, v, g);
}

static void adam(const struct optimizer_params *p, double t, double *w, double *m, double *v, double g) {
    adam_by_paper(p, t, w, m, v, g + p->weight_decay * *w);
}

static void sgd(const struct optimizer_params *p, double t, double *w, double *buffer, double *none,
                double g) {
    g += p->weight_decay * *w;
    if (p->momentum != 0) {
        *buffer = t == 1 ? g : p->momentum * *buffer + (1 - p->dampening) * g;
        g = p->nesterov ? g + p->momentum * *buffer : *buffer;
    }
    *w -= p->lr * g;
}

static void lion(const struct optimizer_params *p, double t, double *w, double *m, double *none, double g) {
    double mixed = p->beta1 * *m + (1 - p->beta1) * g;
    *w *= 1 - p->lr * p->weight_decay;
    *w -= p->lr * (mixed > 0 ? 1 : mixed < 0 ? -1 : 0);
    *m = p->beta2 * *m + (1 - p->beta2) * g;
}

static void adagrad(const struct optimizer_params *p, double t, double *w, double *sum, double *none,
                    double g) {
    g += p->weight_decay * *w;
    *sum += g * g;
    *w -= p->lr / (1 + (t - 1) * p->lr_decay) * g / (sqrt(*sum) + p->eps);
}

/* Along the direction, which takes the gradient's place; orthogonalize_test has the rest. */
static void muon(const struct optimizer_params *p, double t, double *w, double *none0, double *none1,
                 double g) {
    *w = *w * (1 - p->lr * p->weight_decay) - p->lr * g;
}

static const struct {
    const char *name;
    reference *step;
} references[] = {{"adamw", adamw}, {"adam", adam},       {"sgd", sgd},
                  {"lion", lion},   {"adagrad", adagrad}, {"muon", muon}};

/* Away from zero, so that signs are clear and 1 / sqrt(v) does not magnify rounding. */
static void clear_of_zero(float *x, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) x[i] = copysignf(0.1f + 0.9f * fabsf(x[i]), i % 2 ? -1.0f : 1.0f);
}

static void ten_steps(const struct optimizer *optimizer, reference *step_by_paper, int form,
                      enum dtype gradient) {
    struct optimizer_params params = params_of(optimizer, form);
    params.lr = 1e-2;
    struct shard s = shard_new(COUNT, 1);
    shard_fill(&s, 23, DTYPE_F32, 0);
    memset(s.state[0], 0, (COUNT + 1) * 4), memset(s.state[1], 0, (COUNT + 1) * 4);
    double w[COUNT], a[COUNT] = {0}, b[COUNT] = {0};
    for (int i = 0; i < COUNT; i++) w[i] = s.master[1 + i];
    static float g[COUNT];
    for (uint64_t t = 1; t <= STEPS; t++) {
        uint64_t seed = 100 + t;
        for (int i = 0; i < COUNT; i++) g[i] = random_uniform(&seed);
        clear_of_zero(g, COUNT);
        cast((char *)s.gradient + dtype_bytes(gradient), gradient, g, DTYPE_F32, COUNT);
        cast(g, DTYPE_F32, (char *)s.gradient + dtype_bytes(gradient), gradient, COUNT);
        struct optimizer_scalars scalars;
        optimizer_prepare(optimizer, &params, t, &scalars);
        shard_update(&s, optimizer, kernel_isa(), &scalars, gradient, DTYPE_BF16, 0, COUNT, 1);
        for (int i = 0; i < COUNT; i++)
            step_by_paper(&params, (double)t, &w[i], &a[i], &b[i], scale * (double)g[i]);
    }
    uint32_t states = optimizer_states_used(optimizer, &params);
    int good = 1;
    for (int i = 0; i < COUNT && good; i++) {
        good &= CHECK_DOUBLE(s.master[1 + i], w[i], 1e-6);
        if (states > 0 && optimizer->scope == SCOPE_ELEMENT)
            good &= CHECK_DOUBLE(s.state[0][1 + i], a[i], 2e-6);
        if (states > 1) good &= CHECK_DOUBLE(s.state[1][1 + i], b[i], 2e-6);
    }
    if (!good) fprintf(stderr, "  %s, form %d, gradient %s\n", optimizer->name, form, dtype_name(gradient));
    shard_free(&s);
}

/* The weights that are cast out are the new master, in each type. */
static void out_is_the_master(const struct optimizer *optimizer, enum dtype out) {
    struct optimizer_scalars scalars;
    struct shard s = shard_new(COUNT, 0);
    shard_fill(&s, 5, DTYPE_F32, 0);
    optimizer_prepare(optimizer, &optimizer->defaults, 1, &scalars);
    shard_update(&s, optimizer, kernel_isa(), &scalars, DTYPE_F32, out, 0, COUNT, 1);
    static float expected[COUNT];
    cast(expected, out, s.master, DTYPE_F32, COUNT);
    CHECK_BYTES(s.out, expected, COUNT * dtype_bytes(out));
    shard_free(&s);
}

int main(void) {
    static const enum dtype dtypes[] = {DTYPE_F32, DTYPE_BF16, DTYPE_F16};
    for (size_t r = 0; r < sizeof references / sizeof *references; r++) {
        const struct optimizer *optimizer = optimizer_find(references[r].name);
        if (!CHECK(optimizer)) continue;
        for (int d = 0; d < 3; d++) {
            for (int form = 0; form < PARAM_FORMS; form++)
                ten_steps(optimizer, references[r].step, form, dtypes[d]);
            out_is_the_master(optimizer, dtypes[d]);
        }
    }
    return check_end();
}
