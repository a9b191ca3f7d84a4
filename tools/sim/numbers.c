/* Numbers for a simulation with data: a gradient that is a function of step, micro-step, rank, parameter, element and
 * weight; and the result of serial training with it. Serial training knows no stages, shards or streams: it adds the ranks of
 * each node in order, then the nodes, and micro-steps before or after the ranks, as the accumulation mode says. In fp32. */
#include "tools/sim/sim.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/limits.h"
#include "kernels/optimizer.h"
#include "kernels/tensor_norms.h"
#include "tools/sim/random.h"

struct numbers_place {
    uint32_t step, micro;
};

struct numbers {
    const struct sim_setup *setup;
    float **weights;             /* per parameter that is not tied to another */
    struct numbers_place *place; /* index: rank; the rank's step and micro-step */
    struct sim_host host;
};

/* ---- the numbers ---- */

static float fraction(uint64_t draw) { return (float)(draw >> 40) * 0x1p-24f - 0.5f; }

static void fill(void *user, const char *param, uint64_t first, uint64_t count, float *out) {
    const struct numbers *n = user;
    uint64_t name = 0;
    for (const char *c = param; *c; c++) name = name * 131 + (uint8_t)*c;
    for (uint64_t i = 0; i < count; i++)
        out[i] = fraction(random_draw(n->setup->seed, RANDOM_WEIGHT, name, first + i));
}

static float gradient(const struct sim_setup *s, uint32_t rank, struct numbers_place at, uint32_t param,
                      uint64_t i, float weight) {
    uint64_t key = (((uint64_t)at.step * 64 + at.micro) * 4096 + rank) * 4096 + param;
    return fraction(random_draw(s->seed, RANDOM_GRADIENT, key, i)) + 0.3f * weight;
}

static void begin_micro(void *user, uint32_t rank, uint32_t step, uint32_t micro) {
    struct numbers *n = user;
    n->place[rank] = (struct numbers_place){step, micro};
}

static void compute(void *user, uint32_t rank, uint32_t unit, bool backward, const struct sim_arrays *a) {
    const struct numbers *n = user;
    const struct sim_model *m = n->setup->model;
    for (uint32_t p = 0; p < m->params; p++)
        for (uint64_t i = 0; i < m->param[p].count && a->grad[p]; i++)
            a->grad[p][i] += gradient(n->setup, rank, n->place[rank], p, i, a->param[p][i]);
}

/* ---- serial training ---- */

static uint32_t owner_of(const struct sim_model *m, uint32_t param) {
    uint32_t owner = 0;
    if (!m->param[param].tied_to) return param;
    while (strcmp(m->param[owner].name, m->param[param].tied_to)) owner++;
    return owner_of(m, owner);
}

static bool skips(const struct sim_setup *s, uint32_t param, uint32_t micro) {
    return (micro == 0 || s->terms.vertical) && (int32_t)s->model->param[param].unit == s->skip_unit;
}

/* The use `index` of an owner's values in the backward; UINT32_MAX: there is none. Vertical order skips a use as a whole. */
static uint32_t use_at(const struct sim_setup *s, uint32_t owner, uint32_t index) {
    for (uint32_t p = s->model->params; p-- > owner;)
        if (owner_of(s->model, p) == owner && !(s->terms.vertical && skips(s, p, 0)) && index-- == 0)
            return p;
    return UINT32_MAX;
}

static uint32_t uses_of(const struct sim_setup *s, uint32_t owner) {
    uint32_t uses = 0;
    while (use_at(s, owner, uses) != UINT32_MAX) uses++;
    return uses;
}

/* Adds one rank's gradient number `index` of a step: use after use of each micro-step, or micro-step after micro-step of each use. */
static void add_one(const struct sim_setup *s, uint32_t owner, uint32_t rank, uint32_t step, uint32_t index,
                    const float *weights, float *sum) {
    uint32_t micros = s->terms.micro_steps, uses = uses_of(s, owner);
    bool vertical = s->terms.vertical;
    struct numbers_place at = {step, vertical ? index % micros : index / uses};
    uint32_t p = use_at(s, owner, vertical ? index / micros : index % uses);
    for (uint64_t i = 0; !skips(s, p, at.micro) && i < s->model->param[p].count; i++)
        sum[i] += gradient(s, rank, at, p, i, weights[i]);
}

/* The gradients from number `from` to before the result are reduced together. Vertical order reduces the last micro-step of a use
 * together with the first one of the next use. */
static uint32_t reduction_end(const struct sim_setup *s, uint32_t uses, uint32_t from) {
    uint32_t micros = s->terms.micro_steps, all = uses * micros, end = from + 1;
    if (s->terms.accumulation != ACCUMULATE_EVERY) return all;
    if (!s->terms.vertical) return from + uses;
    while (end < all && end % micros == 0) end++;
    return end;
}

static void add(float *into, const float *x, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) into[i] += x[i];
}

/* A sum over members, `step` ranks apart. They follow one another; those of each node are added first. */
struct levels {
    uint32_t each, members; /* of a node; added so far */
    float *node, *sum;
};

static struct levels levels_begin(const struct sim_setup *s, uint32_t members, uint32_t step, float *node,
                                  float *sum, uint64_t count) {
    uint32_t each = s->terms.node_ranks % step ? 1 : s->terms.node_ranks / step;
    memset(node, 0, count * sizeof *node);
    memset(sum, 0, count * sizeof *sum);
    return (struct levels){each && members % each == 0 ? each : members, 0, node, sum};
}

static void levels_add(struct levels *l, const float *x, uint64_t count) {
    add(l->node, x, count);
    if (++l->members % l->each) return;
    add(l->sum, l->node, count);
    memset(l->node, 0, count * sizeof *l->node);
}

/* Sums gradients [from, until) as one reduction over `width` ranks from `first` on does. scratch: two times the parameter. */
static void add_ranks(const struct sim_setup *s, uint32_t owner, uint32_t step, uint32_t from, uint32_t until,
                      uint32_t first, uint32_t width, const float *weights, float *scratch, float *sum) {
    uint64_t count = s->model->param[owner].count;
    float *own = scratch, *node = own + count;
    struct levels levels = levels_begin(s, width, 1, node, sum, count);
    for (uint32_t r = first; r < first + width; r++) {
        memset(own, 0, count * sizeof *own);
        for (uint32_t k = from; k < until; k++) add_one(s, owner, r, step, k, weights, own);
        levels_add(&levels, own, count);
    }
}

/* If the gradient is not reduced over both axes at once, each group of ranks that shares one copy makes its sum first;
 * then the groups' sums are added. `scratch`: five times the parameter. */

static void sum_gradient(const struct sim_setup *s, uint32_t owner, uint32_t step, const float *weights,
                         float *scratch, float *total) {
    uint64_t count = s->model->param[owner].count;
    float *reduced = scratch + 2 * count, *row = reduced + count, *rows = row + count;
    bool whole = s->terms.stage->grad_step.axis[AXIS_REPLICATE] == SHARD;
    uint32_t ranks = s->terms.mesh[AXIS_SHARD] * s->terms.mesh[AXIS_REPLICATE],
             width = whole ? ranks : s->terms.mesh[AXIS_SHARD];
    uint32_t uses = uses_of(s, owner), all = uses * s->terms.micro_steps;
    struct levels levels = levels_begin(s, ranks / width, width, rows, total, count);
    for (uint32_t first = 0; first < ranks; first += width) {
        memset(row, 0, count * sizeof *row);
        for (uint32_t from = 0, end; from < all; from = end) {
            end = reduction_end(s, uses, from);
            add_ranks(s, owner, step, from, end, first, width, weights, scratch, reduced);
            add(row, reduced, count);
        }
        levels_add(&levels, row, count);
    }
}

struct trained { /* of one parameter that is not tied to another */
    float *weights, *state[OPTIMIZER_STATES_MAX], *total, *scratch;
};

static double squares(const struct sim_setup *s, const struct trained *t) {
    double sum = 0;
    for (uint32_t p = 0; p < s->model->params; p++)
        for (uint64_t i = 0; t[p].total && i < s->model->param[p].count; i++)
            sum += (double)t[p].total[i] * t[p].total[i];
    return sum;
}

/* Of the whole tensor. Ranks add parts of it: that changes bits far below the last one of an fp32 ratio. */
static void update_tensor(const struct optimizer *optimizer, const struct optimizer_args *args) {
    static _Thread_local struct tensor_cut cut;
    struct optimizer_scalars scalars = *args->scalars;
    struct optimizer_args after = *args;
    struct tensor_norms norms = {0};
    tensor_norms_measure(optimizer, args, 0, true, &cut, &norms);
    optimizer_trust(optimizer, &norms, &scalars);
    after.gradient = NULL, after.scalars = &scalars;
    optimizer_update_isa(optimizer, KERNEL_SCALAR, &after);
}

/* As kernels/optimizer.h says: the direction, the whole matrix, the weights. */
static void update_matrix(const struct optimizer *optimizer, const struct optimizer_args *args,
                          uint64_t columns, float *direction, float *scratch) {
    struct optimizer_args before = *args, after = *args;
    scratch += (ALIGN_BYTES - (uintptr_t)scratch % ALIGN_BYTES) / sizeof *scratch;
    before.master = direction;
    optimizer_update_isa(optimizer->before, KERNEL_SCALAR, &before);
    optimizer->matrix(direction, args->count / columns, columns, args->scalars, scratch, 1);
    after.gradient = direction, after.gradient_scale = 1;
    optimizer_update_isa(optimizer, KERNEL_SCALAR, &after);
}

static void train_step(const struct sim_setup *s, uint32_t step, uint32_t applied, struct trained *t) {
    for (uint32_t p = 0; p < s->model->params; p++)
        if (t[p].total) sum_gradient(s, p, step, t[p].weights, t[p].scratch, t[p].total);
    double mean = 1.0 /
                  ((double)s->terms.mesh[AXIS_SHARD] * s->terms.mesh[AXIS_REPLICATE] * s->terms.micro_steps),
           scale = mean;
    double norm = sqrt(squares(s, t)) * mean;
    if (s->clip > 0 && s->clip / (norm + 1e-6) < 1) scale *= s->clip / (norm + 1e-6);
    for (uint32_t p = 0; p < s->model->params; p++) {
        if (!t[p].total) continue;
        struct optimizer_scalars scalars;
        bool decays = !(s->model->param[p].flags & ZERO_NO_DECAY),
             other = s->other && s->model->param[p].other;
        const struct optimizer *optimizer = other ? s->other : s->optimizer;
        optimizer_prepare(optimizer, &(other ? s->other_params : s->params)[!decays], applied + 1, &scalars);
        struct optimizer_args args = {.count = s->model->param[p].count,
                                      .master = t[p].weights,
                                      .state = {t[p].state[0], t[p].state[1]},
                                      .gradient = t[p].total,
                                      .gradient_scale = (float)scale,
                                      .scalars = &scalars,
                                      .threads = 1};
        if (optimizer->scope == SCOPE_ELEMENT)
            optimizer_update_isa(optimizer, KERNEL_SCALAR, &args);
        else if (optimizer->scope == SCOPE_TENSOR)
            update_tensor(optimizer, &args);
        else
            update_matrix(optimizer, &args, s->model->param[p].columns, t[p].scratch,
                          t[p].scratch + args.count);
    }
}

/* Beside the parameter, its states and sums: what an optimizer of whole matrices needs. */
static uint64_t matrix_scratch(const struct sim_setup *s, const struct sim_param *p) {
    bool whole = s->optimizer->scope == SCOPE_MATRIX && p->columns && !p->other;
    return whole ? s->optimizer->matrix_scratch(p->count / p->columns, p->columns) + ALIGN_BYTES : 0;
}

static bool open_trained(const struct numbers *n, struct trained *t) {
    const struct sim_model *m = n->setup->model;
    for (uint32_t p = 0; p < m->params; p++) {
        uint64_t count = m->param[p].count;
        if (m->param[p].tied_to) continue;
        t[p].weights = calloc(9 * count + matrix_scratch(n->setup, &m->param[p]), sizeof(float));
        if (!t[p].weights) return false;
        fill((void *)n, m->param[p].name, 0, count, t[p].weights);
        if (m->param[p].flags & ZERO_FROZEN) continue;
        t[p].state[0] = t[p].weights + count, t[p].state[1] = t[p].state[0] + count;
        t[p].total = t[p].state[1] + count, t[p].scratch = t[p].total + count;
    }
    return true;
}

static zero_status compare(const struct numbers *n, const struct trained *t, struct zero_error *error) {
    const struct sim_model *m = n->setup->model;
    for (uint32_t p = 0; p < m->params; p++)
        for (uint64_t i = 0; !m->param[p].tied_to && i < m->param[p].count; i++)
            if (memcmp(&n->weights[p][i], &t[p].weights[i], sizeof(float)))
                return error_set(error, ZERO_E_DIVERGED,
                                 "element %" PRIu64 " of \"%s\" is %.9g after %" PRIu32
                                 " steps, where serial training has %.9g",
                                 i, m->param[p].name, (double)n->weights[p][i], n->setup->steps,
                                 (double)t[p].weights[i]);
    return ZERO_OK;
}

/* After the run: ZERO_E_DIVERGED if the run's weights differ in any bit from those of serial training. */
static zero_status check_numbers(const struct numbers *n, struct zero_error *error) {
    struct trained *t = calloc(n->setup->model->params, sizeof *t);
    zero_status status = ZERO_OK;
    if (!t || !open_trained(n, t)) status = error_set(error, ZERO_E_MEMORY, "no memory to train serially");
    for (uint32_t step = 0, applied = 0; step < n->setup->steps && !status; step++)
        if (!sim_step_bit(n->setup->skipped, step)) train_step(n->setup, step, applied++, t);
    if (!status) status = compare(n, t, error);
    for (uint32_t p = 0; p < n->setup->model->params && t; p++) free(t[p].weights);
    free(t);
    return status;
}

/* ---- opening ---- */

static void close_numbers(struct numbers *n) {
    for (uint32_t p = 0; p < n->setup->model->params && n->weights; p++) free(n->weights[p]);
    free(n->weights);
    free(n->place);
    n->weights = NULL, n->place = NULL;
}

static zero_status open_numbers(const struct sim_setup *setup, struct numbers *n, struct zero_error *error) {
    const struct sim_model *m = setup->model;
    *n = (struct numbers){.setup = setup};
    n->place =
        calloc((size_t)setup->terms.mesh[AXIS_SHARD] * setup->terms.mesh[AXIS_REPLICATE], sizeof *n->place);
    n->weights = calloc(m->params, sizeof *n->weights);
    bool whole = n->place && n->weights;
    for (uint32_t p = 0; p < m->params && whole; p++) {
        if (!m->param[p].tied_to) n->weights[p] = calloc(m->param[p].count, sizeof(float));
        whole = m->param[p].tied_to || n->weights[p];
    }
    n->host = (struct sim_host){n, fill, begin_micro, compute, n->weights};
    if (whole) return ZERO_OK;
    close_numbers(n);
    return error_set(error, ZERO_E_MEMORY, "no memory for a simulation's numbers");
}

zero_status numbers_run(const struct sim_setup *setup, struct sim_result *out, struct zero_error *error) {
    struct numbers numbers;
    struct sim_setup with = *setup;
    TRY(open_numbers(setup, &numbers, error));
    with.host = &numbers.host;
    with.terms.discrete = false; /* a computing host queues nothing on a device */
    zero_status status = sim_run(&with, out, error);
    if (!status && !out->status && !out->faulted) {
        error_clear(&out->error);
        out->status = check_numbers(&numbers, &out->error);
    }
    close_numbers(&numbers);
    return status;
}
