#include "kernels/optimizer.h"

#include <stddef.h>
#include <strings.h>
#if defined(_OPENMP)
#include <omp.h>
#endif

#include "engine/base/numbers/float_env.h"
#include "engine/base/race.h"
#include "kernels/average.h"
#include "kernels/cast.h"
#include "kernels/state_format.h"

enum {
    STEP_ELEMENTS = 512,            /* elements per step; they stay in the first-level cache */
    THREAD_ELEMENTS_MIN = 64 * 1024 /* with fewer elements, a thread costs more to wake than it saves */
};

const struct optimizer *optimizer_find(const char *name) {
    for (const struct optimizer *const *each = optimizers; name && *each; each++)
        if (strcasecmp(name, (*each)->name) == 0) return *each;
    return NULL;
}

uint32_t optimizer_states_used(const struct optimizer *optimizer, const struct optimizer_params *params) {
    return optimizer->states_used ? optimizer->states_used(params) : optimizer->state_count;
}

void optimizer_prepare(const struct optimizer *optimizer, const struct optimizer_params *params,
                       uint64_t step, struct optimizer_scalars *out_scalars) {
    float_env saved = float_env_enter();
    optimizer->prepare(params, step, out_scalars);
    float_env_leave(saved);
}

void optimizer_trust(const struct optimizer *optimizer, const struct tensor_norms *norms,
                     struct optimizer_scalars *scalars) {
    float_env saved = float_env_enter();
    optimizer->trust(norms, scalars);
    float_env_leave(saved);
}

static void *at(void *base, enum dtype dtype, uint64_t first) {
    return base ? (char *)base + first * dtype_bytes(dtype) : NULL;
}

/* The arrays of one step as fp32: the arrays themselves, or copies on the stack of arrays of other types. */
struct step {
    float *master, *state[OPTIMIZER_STATES_MAX];
    const float *gradient;
    uint16_t *low; /* the lower halves of split masters */
    void *out;
    float copy[OPTIMIZER_STATES_MAX + 2][STEP_ELEMENTS] __attribute__((aligned(64)));
};

static void open_step(struct step *s, enum kernel_isa isa, const struct optimizer_args *args, uint64_t first,
                      uint64_t count) {
    static const float none[STEP_ELEMENTS]; /* the loops read an array */
    const void *gradient = at((void *)args->gradient, args->gradient_dtype, first);
    s->gradient = gradient ? gradient : none;
    if (gradient && args->gradient_dtype != DTYPE_F32) {
        cast_isa(isa, s->copy[0], DTYPE_F32, gradient, args->gradient_dtype, count);
        s->gradient = s->copy[0];
    }
    s->out = at(args->out, args->out_dtype, first);
    s->master = at(args->master, DTYPE_F32, first);
    if (args->master_low) {
        s->low = args->master_low + first;
        s->master = s->copy[1];
        master_join_isa(isa, s->master, s->out, s->low, count);
    }
    for (int k = 0; k < OPTIMIZER_STATES_MAX; k++) {
        s->state[k] = at(args->state[k], args->state_dtype, first);
        if (!s->state[k] || args->state_dtype == DTYPE_F32) continue;
        cast_isa(isa, s->copy[2 + k], DTYPE_F32, s->state[k], args->state_dtype, count);
        s->state[k] = s->copy[2 + k];
    }
}

static void close_step(struct step *s, enum kernel_isa isa, const struct optimizer_args *args, uint64_t first,
                       uint64_t count) {
    if (s->out && args->out_dtype == DTYPE_BF16 && (!args->master_low || args->average))
        master_keep_isa(isa, s->master, count); /* a split keeps them, too, but the average comes before it */
    if (args->average) average_move_isa(isa, args->average + first, s->master, args->average_share, count);
    if (args->master_low)
        master_split_isa(isa, s->out, s->low, s->master, count);
    else if (s->out)
        cast_isa(isa, s->out, args->out_dtype, s->master, DTYPE_F32, count);
    for (int k = 0; k < OPTIMIZER_STATES_MAX && args->state_dtype != DTYPE_F32; k++)
        if (args->state[k] && args->gradient)
            bf16_stochastic_isa(isa, at(args->state[k], args->state_dtype, first), s->state[k], count,
                                args->rounding_key + (uint64_t)k, args->first + first);
}

/* Updates elements first .. first + count - 1 on this thread. Must run in the kernels' floating-point environment. */
static void update_range(const struct optimizer *optimizer, enum kernel_isa isa,
                         const struct optimizer_args *args, uint64_t first, uint64_t count) {
    struct step s;
    open_step(&s, isa, args, first, count);
    race_read(s.gradient, count * sizeof(float));
    race_write(s.master, count * sizeof(float));
    for (int k = 0; k < OPTIMIZER_STATES_MAX; k++) race_write(s.state[k], count * sizeof(float));
    optimizer->update[isa](s.master, s.state[0], s.state[1], s.gradient, args->gradient_scale, args->scalars,
                           count);
    close_step(&s, isa, args, first, count);
}

static void update_steps(const struct optimizer *optimizer, enum kernel_isa isa,
                         const struct optimizer_args *args, uint64_t first, uint64_t end) {
    float_env saved = float_env_enter();
    for (uint64_t i = first; i < end; i += STEP_ELEMENTS)
        update_range(optimizer, isa, args, i, end - i < STEP_ELEMENTS ? end - i : STEP_ELEMENTS);
    float_env_leave(saved);
}

#if defined(_OPENMP)
/* Each thread updates whole steps. The OpenMP runtime may grant fewer threads than asked. */
static void update_threads(const struct optimizer *optimizer, enum kernel_isa isa,
                           const struct optimizer_args *args, uint32_t threads) {
    uint64_t steps = (args->count + STEP_ELEMENTS - 1) / STEP_ELEMENTS;
#pragma omp parallel num_threads(threads)
    {
        uint64_t granted = (uint64_t)omp_get_num_threads(), me = (uint64_t)omp_get_thread_num();
        uint64_t first = steps * me / granted * STEP_ELEMENTS,
                 end = steps * (me + 1) / granted * STEP_ELEMENTS;
        update_steps(optimizer, isa, args, first, end < args->count ? end : args->count);
    }
}
#endif

void optimizer_update_isa(const struct optimizer *optimizer, enum kernel_isa isa,
                          const struct optimizer_args *args) {
    uint64_t useful = args->count / THREAD_ELEMENTS_MIN;
    uint32_t threads = args->threads < useful ? args->threads : (uint32_t)useful;
#if defined(_OPENMP)
    if (threads > 1) {
        update_threads(optimizer, isa, args, threads);
        return;
    }
#endif
    update_steps(optimizer, isa, args, 0, args->count);
}

void optimizer_update(const struct optimizer *optimizer, const struct optimizer_args *args) {
    optimizer_update_isa(optimizer, kernel_isa(), args);
}
