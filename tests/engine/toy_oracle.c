/* Serial data parallelism with the stated order of additions: the ranks of a shard group in order, then the groups
 * in order; micro-steps add before the sum over a group's ranks (last) or after it (every). Narrow types are fp32
 * values, rounded where the engine's numbers are in that type: weights as compute sees them, a rank's gradients,
 * messages, sums. AdamW by its scalar reference. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/state/loss_scale.h"
#include "kernels/optimizer.h"
#include "kernels/state_format.h"
#include "tests/engine/toy_number.h"
#include "tests/engine/toy_trainer.h"

enum { SIZE = TOY_VOCAB * TOY_WIDTH };

typedef float gradients[TOY_PARAMS][SIZE];

static uint32_t owner(const struct toy_setup *s, uint32_t i) { /* of a tied parameter: the first one */
    return toy_tied_to(s, i) ? 0 : i;
}

static uint64_t elements(uint32_t i) { return toy_params[i].rows * toy_params[i].columns; }

static bool frozen(const struct toy_setup *s, uint32_t i) {
    return toy_params[owner(s, i)].flags & ZERO_FROZEN || s->frozen >> owner(s, i) & 1;
}

/* Of the parameter's sums. */
static zero_dtype communication(const struct toy_setup *s, uint32_t i) {
    static const char *const names[] = {[ZERO_F32] = "fp32", [ZERO_BF16] = "bf16", [ZERO_F16] = "fp16"};
    int dtype = ZERO_F32;
    while (s->communication && strcmp(names[dtype], s->communication)) dtype++;
    if (toy_dtype(s, i, s->compute) != s->compute) return ZERO_F32; /* kept */
    return s->communication ? (zero_dtype)dtype : s->compute;
}

/* Adds the gradient of parameter `i` from a unit's backward, as a host does that keeps the gradient in the compute
 * type. */
static void take(const struct toy_setup *s, gradients sum, const gradients made, uint32_t i, int fresh,
                 float scale) {
    zero_dtype dtype = toy_dtype(s, i, s->compute);
    float *to = sum[owner(s, i)];
    for (uint64_t k = 0; k < elements(i); k++) {
        float g = toy_round(dtype, made[i][k] * scale);
        to[k] = fresh ? g : toy_round(dtype, to[k] + g);
    }
}

/* Adds one rank's gradient of one micro-step to `sum` as its backward does: the first write overwrites. */
static double micro_step(const struct toy_setup *s, gradients weights, gradients sum, int fresh[TOY_PARAMS],
                         uint32_t step, uint32_t micro, uint32_t rank, float scale) {
    static gradients made;
    struct toy_pass *pass = calloc(1, sizeof *pass);
    double loss = 0;
    toy_batch(pass, step, micro, rank);
    for (int phase = 0; phase < 2; phase++)
        for (uint32_t n = 0; n < TOY_UNITS; n++) {
            uint32_t u = phase ? TOY_UNITS - 1 - n : n;
            if (micro == 0 && (int)u == s->skip_unit) {
                if (!phase) memcpy(pass->h[u], pass->h[u - 1], sizeof pass->h[u]);
                continue;
            }
            struct toy_arrays a;
            for (uint32_t i = 0; i < TOY_PARAMS; i++) {
                a.param[i] = weights[owner(s, i)], a.grad[i] = made[i];
                a.add[i] = 0;
            }
            if (!phase) loss = toy_forward(pass, u, &a);
            if (phase) toy_backward(pass, u, &a);
            for (uint32_t i = 0; i < TOY_PARAMS && phase; i++) {
                if (strcmp(toy_params[i].unit, toy_units[u]) || frozen(s, i)) continue;
                take(s, sum, made, i, fresh[owner(s, i)], scale);
                fresh[owner(s, i)] = 0;
            }
        }
    free(pass);
    return loss;
}

/* Sums are of fp32: what is sent then is what a backward wrote. */
static zero_dtype message(const struct toy_setup *s, uint32_t i) {
    return communication(s, i) == ZERO_F32 ? toy_dtype(s, i, s->compute) : communication(s, i);
}

static zero_dtype fp32(const struct toy_setup *s, uint32_t i) { return ZERO_F32; }

/* The type of what is added or rounded, by parameter. */
typedef zero_dtype type_fn(const struct toy_setup *s, uint32_t i);

static void round_all(const struct toy_setup *s, gradients x, type_fn *type) {
    for (uint32_t i = 0; i < TOY_PARAMS; i++) {
        zero_dtype dtype = type(s, i);
        for (uint64_t k = 0; k < elements(i); k++) x[i][k] = toy_round(dtype, x[i][k]);
    }
}

/* Adds x, rounded to its type, in fp32. */
static void add(const struct toy_setup *s, gradients into, gradients x, int first, type_fn *type) {
    for (uint32_t i = 0; i < TOY_PARAMS; i++) {
        zero_dtype dtype = type(s, i);
        for (uint64_t k = 0; k < elements(i); k++) {
            float rounded = toy_round(dtype, x[i][k]);
            into[i][k] = first ? rounded : into[i][k] + rounded;
        }
    }
}

/* The gradients of the ranks of one shard group, added in their order and rounded to `sums`. */
static double group_sum(const struct toy_setup *s, gradients weights, gradients out, uint32_t step,
                        uint32_t first, uint32_t micro, uint32_t micro_steps, float scale, type_fn *sums) {
    static gradients one;
    double loss = 0;
    uint32_t ranks = s->shard_ranks ? s->shard_ranks : s->ranks;
    for (uint32_t r = 0; r < ranks; r++) {
        int fresh[TOY_PARAMS];
        for (uint32_t i = 0; i < TOY_PARAMS; i++) fresh[i] = 1;
        memset(one, 0, sizeof one);
        for (uint32_t m = 0; m < micro_steps; m++)
            loss += micro_step(s, weights, one, fresh, step, micro + m, first + r, scale);
        for (uint32_t i = 0; i < TOY_PARAMS; i++)
            for (uint64_t k = 0; k < elements(i) && s->factor != 0; k++) one[i][k] *= s->factor;
        add(s, out, one, r == 0, message);
    }
    round_all(s, out, sums);
    return loss;
}

/* A shard group's sum over the step's micro-steps, then the sum over the groups in their order. */
static double reduced(const struct toy_setup *s, gradients weights, gradients total, uint32_t step,
                      float scale) {
    int every = !strcmp(s->mode, "every") || (!strcmp(s->mode, "auto") && s->stage >= 2);
    uint32_t outer = every ? s->micro_steps : 1, inner = every ? 1 : s->micro_steps;
    uint32_t ranks = s->shard_ranks ? s->shard_ranks : s->ranks;
    type_fn *sums = outer > 1 ? fp32 : communication;
    double loss = 0;
    for (uint32_t first = 0; first < s->ranks; first += ranks) {
        static gradients group, one;
        for (uint32_t o = 0; o < outer; o++) {
            loss += group_sum(s, weights, one, step, first, every ? o : 0, inner, scale, sums);
            add(s, group, one, o == 0, fp32);
        }
        add(s, total, group, first == 0, fp32);
    }
    round_all(s, total, sums);
    return loss / s->micro_steps / s->ranks;
}

/* Masters beside bf16 weights. */
static void keep_masters(const struct toy_setup *s, struct toy_result *out) {
    for (uint32_t i = 0; i < TOY_PARAMS && s->compute == ZERO_BF16; i++)
        if (!frozen(s, i) && toy_dtype(s, i, s->compute) == ZERO_BF16)
            master_keep(out->weights[i], elements(i));
}

/* Muon on a whole matrix, part by part as in kernels/optimizer.h. */
static void update_matrix(uint32_t i, uint32_t step, float scale, float *weights, float *momentum,
                          const float *gradient) {
    static float direction[SIZE];
    static _Alignas(64) float scratch[4 * SIZE + 128];
    const struct optimizer *muon = optimizer_find("muon");
    struct optimizer_params p = muon->defaults;
    struct optimizer_scalars scalars;
    uint64_t count = elements(i);
    p.lr = 0.05, p.weight_decay = toy_params[i].flags & ZERO_NO_DECAY ? 0 : 0.1;
    optimizer_prepare(muon, &p, step, &scalars);
    struct optimizer_args before = {.count = count,
                                    .master = direction,
                                    .state = {momentum},
                                    .gradient = gradient,
                                    .gradient_scale = scale,
                                    .scalars = &scalars,
                                    .threads = 1};
    struct optimizer_args after = {.count = count,
                                   .master = weights,
                                   .gradient = direction,
                                   .gradient_scale = 1,
                                   .scalars = &scalars,
                                   .threads = 1};
    optimizer_update_isa(muon->before, KERNEL_SCALAR, &before);
    muon->matrix(direction, toy_params[i].rows, toy_params[i].columns, &scalars, scratch, 1);
    optimizer_update_isa(muon, KERNEL_SCALAR, &after);
}

/* Lamb on a whole tensor. The norms are added here in another order than the engine's: what that changes is far below the last bit of an
 * fp32 ratio. */
static void update_tensor(uint32_t i, uint32_t step, float scale, float *weights, float *m, float *v,
                          const float *gradient) {
    static float direction[SIZE];
    const struct optimizer *lamb = optimizer_find("lamb");
    struct optimizer_params p = lamb->defaults;
    struct optimizer_scalars scalars;
    struct tensor_norms norms = {0};
    uint64_t count = elements(i);
    p.lr = 0.02, p.weight_decay = toy_params[i].flags & ZERO_NO_DECAY ? 0 : 0.1;
    optimizer_prepare(lamb, &p, step, &scalars);
    struct optimizer_args args = {.count = count,
                                  .master = direction,
                                  .state = {m, v},
                                  .gradient = gradient,
                                  .gradient_scale = scale,
                                  .scalars = &scalars,
                                  .threads = 1};
    memcpy(direction, weights, count * sizeof *weights);
    optimizer_update_isa(lamb->before, KERNEL_SCALAR, &args);
    args.gradient = NULL;
    optimizer_update_isa(lamb->direction, KERNEL_SCALAR, &args);
    for (uint64_t k = 0; k < count; k++) {
        norms.weights += (double)weights[k] * (double)weights[k];
        norms.direction += (double)direction[k] * (double)direction[k];
    }
    optimizer_trust(lamb, &norms, &scalars);
    args.master = weights;
    optimizer_update_isa(lamb, KERNEL_SCALAR, &args);
}

void toy_oracle(const struct toy_setup *s, struct toy_result *out) {
    static gradients total, state[2], seen;
    struct loss_scale loss_scale = {.value = 1};
    if (s->compute == ZERO_F16)
        loss_scale = (struct loss_scale){.value = ldexp(1, (int)s->scale_power),
                                         .dynamic = true,
                                         .min = 1,
                                         .window = s->scale_window,
                                         .hysteresis = 2,
                                         .allowed = 2};
    uint32_t applied = 0;
    memset(out, 0, sizeof *out);
    memset(state, 0, sizeof state);
    for (uint32_t i = 0; i < TOY_PARAMS; i++)
        toy_fill(NULL, toy_params[owner(s, i)].name, 0, elements(i), out->weights[i]);
    for (uint32_t i = 0; i < TOY_PARAMS; i++) /* frozen parameters have no masters */
        for (uint64_t k = 0; frozen(s, i) && k < elements(i); k++)
            out->weights[i][k] = toy_round(toy_dtype(s, i, s->compute), out->weights[i][k]);
    keep_masters(s, out);
    const struct optimizer *adamw = optimizer_find("adamw");
    for (uint32_t step = 0; step < s->steps; step++) {
        for (uint32_t i = 0; i < TOY_PARAMS; i++) {
            zero_dtype dtype = toy_dtype(s, i, s->compute);
            for (uint64_t k = 0; k < elements(i); k++) seen[i][k] = toy_round(dtype, out->weights[i][k]);
        }
        out->scale[step] = loss_scale.value;
        out->loss[step] = reduced(s, seen, total, step, (float)loss_scale.value);
        double squares = 0, sent = s->factor != 0 ? s->factor : 1,
               mean = 1.0 / ((s->sum ? 1.0 : s->ranks) * s->micro_steps * loss_scale.value * sent),
               scale = mean;
        for (uint32_t i = 0; i < TOY_PARAMS; i++)
            for (uint64_t k = 0; owner(s, i) == i && !frozen(s, i) && k < elements(i); k++)
                squares += (double)total[i][k] * total[i][k];
        out->norm[step] = (int)step == s->nan_step ? NAN : sqrt(squares) * mean;
        bool overflow = !isfinite(out->norm[step]);
        loss_scale_update(&loss_scale, overflow);
        out->skipped += overflow;
        if (overflow) continue;
        applied++;
        if (s->clip > 0 && s->clip / (out->norm[step] + 1e-6) < 1)
            scale *= s->clip / (out->norm[step] + 1e-6);
        for (uint32_t i = 0; i < TOY_PARAMS; i++) {
            if (owner(s, i) != i || frozen(s, i)) continue;
            if (s->muon && toy_params[i].columns > 1) {
                update_matrix(i, applied, (float)scale, out->weights[i], state[0][i], total[i]);
                continue;
            }
            if (s->lamb && (s->lamb == 1 || toy_params[i].columns > 1)) {
                update_tensor(i, applied, (float)scale, out->weights[i], state[0][i], state[1][i], total[i]);
                continue;
            }
            struct optimizer_params p = adamw->defaults;
            p.lr = 0.02, p.beta1 = 0.9, p.beta2 = 0.95,
            p.weight_decay = toy_params[i].flags & ZERO_NO_DECAY ? 0 : 0.1;
            if (s->update) s->update(i, applied - 1, &p);
            struct optimizer_scalars scalars;
            optimizer_prepare(adamw, &p, applied, &scalars);
            struct optimizer_args a = {.count = elements(i),
                                       .master = out->weights[i],
                                       .state = {state[0][i], state[1][i]},
                                       .gradient = total[i],
                                       .gradient_scale = (float)scale,
                                       .scalars = &scalars,
                                       .threads = 1};
            optimizer_update_isa(adamw, KERNEL_SCALAR, &a);
        }
        keep_masters(s, out);
    }
    for (uint32_t i = 0; i < TOY_PARAMS; i++)
        memcpy(out->weights[i], out->weights[owner(s, i)], sizeof out->weights[i]);
}
