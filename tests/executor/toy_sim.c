#include "tests/executor/toy_sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/executor/executor_internal.h"

enum { MICROS_MAX = 4 };

struct toy_host {
    struct toy_pass pass[TOY_SIM_RANKS_MAX][MICROS_MAX];
    uint32_t micro[TOY_SIM_RANKS_MAX]; /* in use */
    uint32_t last[TOY_SIM_RANKS_MAX];  /* unit whose forward was computed */
    float *weights[TOY_PARAMS];
};

/* ---- the model ---- */

static struct sim_unit units[TOY_UNITS];
static struct sim_param params[TOY_PARAMS];

static uint32_t unit_of(const struct toy_param *p) {
    uint32_t u = 0;
    while (strcmp(p->unit, toy_units[u])) u++;
    return u;
}

static struct sim_model toy_sim_model(const struct toy_setup *setup) {
    for (uint32_t u = 0; u < TOY_UNITS; u++) {
        units[u].flops = 1000;
        strcpy(units[u].name, toy_units[u]);
    }
    for (uint32_t i = 0; i < TOY_PARAMS; i++) {
        const struct toy_param *p = &toy_params[i];
        params[i] = (struct sim_param){.tied_to = toy_tied_to(setup, i),
                                       .unit = unit_of(p),
                                       .flags = p->flags,
                                       .count = (uint64_t)p->rows * p->columns};
        strcpy(params[i].name, p->name);
    }
    return (struct sim_model){units, TOY_UNITS, params, TOY_PARAMS};
}

/* ---- who computes ---- */

static void begin_micro(void *user, uint32_t rank, uint32_t step, uint32_t micro) {
    struct toy_host *host = user;
    host->micro[rank] = micro;
    toy_batch(&host->pass[rank][micro], step, micro, rank);
}

static struct toy_pass *in_use(struct toy_host *host, uint32_t rank) {
    return &host->pass[rank][host->micro[rank]];
}

/* A unit that is left out hands on what it got. Units are left out in horizontal order. */
static void hand_on(struct toy_host *host, uint32_t rank, uint32_t unit) {
    struct toy_pass *pass = in_use(host, rank);
    for (uint32_t u = host->last[rank] + 1; u < unit; u++)
        memcpy(pass->h[u], pass->h[u - 1], sizeof pass->h[u]);
    host->last[rank] = unit;
}

static void compute(void *user, uint32_t rank, uint32_t unit, bool backward,
                    const struct sim_arrays *arrays) {
    struct toy_host *host = user;
    struct toy_arrays a = {0};
    for (uint32_t i = 0; i < TOY_PARAMS; i++)
        a.param[i] = arrays->param[i], a.grad[i] = arrays->grad[i], a.add[i] = 1;
    if (backward) {
        toy_backward(in_use(host, rank), unit, &a);
        return;
    }
    hand_on(host, rank, unit);
    toy_forward(in_use(host, rank), unit, &a);
}

/* ---- planted bugs: waits taken out of operations that have not started ---- */

/* Calls `edit` for each operation of the stream that was emitted and has not started. */
static void edit_stream(struct executor *e, enum stream stream,
                        void (*edit)(struct operation *op, void *user), void *user) {
    struct timeline *line = &e->stream[stream];
    for (uint64_t i = line->tasks_started; i < line->tasks_emitted; i++) edit(&task_at(line, i)->op, user);
}

struct forgotten {
    enum operation_kind kind;
    enum stream on;
};

static void forget_wait(struct operation *op, void *user) {
    const struct forgotten *f = user;
    if (op->kind == f->kind) op->after[f->on] = 0;
}

static void forget(struct executor *e, enum stream of, enum operation_kind kind, enum stream on) {
    edit_stream(e, of, forget_wait, &(struct forgotten){kind, on});
}

/* The same of runs of chunks, which wait item by item. */
static void forget_item(struct operation *op, void *user) { op->pipe.value = INT32_MIN; }

static void forget_pipe(struct executor *e, enum stream of) { edit_stream(e, of, forget_item, NULL); }

static void forget_item_on(struct operation *op, void *user) {
    if (op->pipe.stream == *(enum stream *)user) op->pipe.value = INT32_MIN;
}

static void forget_pipe_on(struct executor *e, enum stream of, enum stream on) {
    edit_stream(e, of, forget_item_on, &on);
}

static void plant(void *user, uint32_t rank, struct executor *e) {
    const struct toy_sim *toy = user;
    switch (toy->bug) {
    case BUG_GATHER_IGNORES_READERS:
        forget(e, STREAM_GATHER, OP_GATHER, STREAM_COMPUTE);
        break;
    case BUG_GATHER_IGNORES_UPDATE:
        forget(e, STREAM_GATHER, OP_GATHER, STREAM_UPDATE);
        break;
    case BUG_COMPUTE_IGNORES_GATHER:
        forget(e, STREAM_COMPUTE, OP_COMPUTE, STREAM_GATHER);
        break;
    case BUG_AGREE_IGNORES_REDUCE:
        forget(e, STREAM_CONTROL, OP_AGREE, STREAM_REDUCE);
        break;
    case BUG_BACKWARD_IGNORES_REDUCE:
        forget(e, STREAM_COMPUTE, OP_COMPUTE, STREAM_REDUCE);
        break;
    case BUG_STORE_IGNORES_UPDATE:
        forget_pipe(e, STREAM_STORE);
        break;
    case BUG_UPDATE_IGNORES_FETCH:
        forget_pipe(e, STREAM_UPDATE);
        break;
    case BUG_FETCH_IGNORES_STORE:
        forget_pipe(e, STREAM_FETCH);
        break;
    case BUG_GATHER_IGNORES_FETCH:
        forget_pipe(e, STREAM_GATHER);
        break;
    case BUG_PARAMS_IGNORE_STORE:
        forget(e, STREAM_PARAM, OP_FETCH, STREAM_STORE);
        break;
    case BUG_UPDATE_IGNORES_GRADIENT:
        forget(e, STREAM_FETCH, OP_FETCH, STREAM_GRAD);
        break;
    case BUG_REDUCE_IGNORES_STORE:
        forget_pipe_on(e, STREAM_REDUCE, STREAM_GRAD);
        break;
    case BUG_SUM_IGNORES_FETCH:
        forget_pipe_on(e, STREAM_REDUCE, STREAM_PARAM);
        break;
    case BUG_PARAMS_IGNORE_GATHER:
        forget_pipe_on(e, STREAM_PARAM, STREAM_GATHER);
        break;
    case BUG_PARAMS_IGNORE_READERS:
        forget(e, STREAM_PARAM, OP_FETCH, STREAM_COMPUTE);
        break;
    case BUG_SHORT_LIST:
        e->list.capacity = 2;
        break;
    case BUG_SHORT_EXPANSION:
        e->expanded.capacity = 1;
        break;
    default:
        break;
    }
}

static void agree_again(void *user, uint32_t rank, struct operation_list *list) {
    const struct toy_sim *toy = user;
    if (toy->bug != BUG_TOO_MANY_AGREEMENTS || !list->count) return;
    if (list->item[list->count - 1].kind != OP_AGREE) return;
    while (list->count < list->capacity) {
        list->item[list->count] = list->item[list->count - 1];
        list->count++;
    }
}

/* Gathered units that share bytes, and waits that do not know of it. */
static void break_plan(void *user, struct plan *plan) {
    const struct toy_sim *toy = user;
    for (uint32_t i = 0; i < plan->buffers && toy->bug == BUG_OVERLAPPING_PLAN; i++) {
        if (plan->buffer[i].row == MEMORY_GATHERED) plan->buffer[i].offset = 0;
        plan->span[i] = (struct hazard_span){0};
    }
}

/* ---- running ---- */

struct sim_setup toy_sim_setup(const struct toy_sim *t, struct sim_model *model) {
    *model = toy_sim_model(&t->toy);
    for (uint32_t i = 0; i < TOY_PARAMS; i++) model->param[i].code = t->param_code[i % 2];
    struct speeds_link link = {1000000, 1000000, 5};
    struct sim_setup s = {
        .model = model,
        .terms = {.stage = t->stage,
                  .mesh = {t->mesh[AXIS_SHARD], t->mesh[AXIS_REPLICATE]},
                  .accumulation = strcmp(t->toy.mode, "last") ? ACCUMULATE_EVERY : ACCUMULATE_LAST,
                  .micro_steps = t->toy.micro_steps,
                  .vertical = t->toy.vertical && t->toy.micro_steps > 1,
                  .update_in_backward = t->toy.updates,
                  .depth = t->toy.depth,
                  .backward_depth = t->backward_depth,
                  .live_max = t->live_max ? t->live_max : UINT64_MAX,
                  .ahead_max = t->ahead_max ? t->ahead_max : UINT64_MAX,
                  .gradient_code = t->gradient_code,
                  .state_tier = t->state_tier,
                  .param_tier = t->param_tier,
                  .grad_tier = t->grad_tier,
                  .grad_resident_bytes = t->grad_resident_bytes,
                  .chunk_elements_max = t->chunk_elements,
                  .resident_bytes = t->resident_bytes,
                  .device_share = t->device_share,
                  .device_bytes = UINT64_MAX,
                  .chunk_align_bytes = t->page_bytes,
                  .piece_bytes = t->piece_bytes,
                  .slots = t->slots},
        .steps = t->toy.steps,
        .persistence_threshold = t->toy.threshold,
        .optimizer = optimizer_find("adamw"),
        .clip = t->toy.clip,
        .staging = t->with_data,
        .evaluate = t->toy.evaluate,
        .skip_unit = t->toy.skip_unit,
        .seed = t->seed,
        .speeds = {1000000, 1000000, 1000000, 1000000, 0, link, link, 1000000, 1000000, 1000000, 100, 2, 0},
        .chaos_ns = t->chaos_ns,
        .one_order = t->one_order,
        .chaos_events = UINT64_MAX,
        .timeout_ns = 60000000000};
    s.params[0] = s.optimizer->defaults;
    s.params[0].lr = 0.02, s.params[0].beta1 = 0.9, s.params[0].beta2 = 0.95, s.params[0].weight_decay = 0.1;
    s.params[1] = s.params[0];
    s.params[1].weight_decay = 0;
    return s;
}

static void take_weights(const struct toy_setup *s, struct toy_host *host, struct toy_result *out) {
    for (uint32_t i = 0; i < TOY_PARAMS; i++) {
        const char *tied_to = toy_tied_to(s, i);
        uint32_t owner = 0;
        while (tied_to && strcmp(toy_params[owner].name, tied_to)) owner++;
        memcpy(out->weights[i], host->weights[tied_to ? owner : i], sizeof out->weights[i]);
    }
}

void toy_simulate(const struct toy_sim *t, struct toy_result *out) {
    struct toy_host *host = calloc(1, sizeof *host);
    for (uint32_t i = 0; i < TOY_PARAMS; i++) host->weights[i] = calloc(1, sizeof out->weights[i]);
    struct sim_host computes = {host, toy_fill, begin_micro, compute, host->weights};
    struct sim_sabotage sabotage = {.user = (void *)t,
                                    .polled = plant,
                                    .planned = break_plan,
                                    .listed = agree_again,
                                    .odd_depth = 2 * (t->bug == BUG_DEPTH_DIFFERS)};
    struct sim_model model;
    struct sim_setup setup = toy_sim_setup(t, &model);
    if (t->with_data) setup.host = &computes;
    if (t->bug) setup.sabotage = &sabotage;
    struct sim_result result = {0};
    struct zero_error error;
    error_clear(&error);
    memset(out, 0, sizeof *out);
    out->status = sim_run(&setup, &result, &error);
    if (!out->status) out->status = result.status, error = result.error;
    snprintf(out->error, sizeof out->error, "%.500s", error.message);
    take_weights(&t->toy, host, out);
    for (uint32_t i = 0; i < TOY_PARAMS; i++) free(host->weights[i]);
    free(host);
}
