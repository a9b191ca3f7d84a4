#include "tests/executor/virtual_rank.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/executor_internal.h"

enum { IDLE_ROUNDS_MAX = 20000, SLACK_BYTES = 1 << 16, SHARD_ELEMENTS_MAX = 1024 };

/* What a rank's host does next. */
enum next {
    NEXT_FILL,
    NEXT_PASS,
    NEXT_BEGIN,
    NEXT_COMPUTE,
    NEXT_END,
    NEXT_AGREE,
    NEXT_APPLY,
    NEXT_FLUSH,
    NEXT_DONE
};

struct rank {
    const struct virtual_setup *setup;
    struct comm *comm;
    struct comm_group *world, *group[AXES_BOTH + 1][STREAMS];
    struct device *device;
    struct virtual_drive drive;
    struct model model;
    struct region region[4 * TOY_UNITS];
    uint16_t refresh[4 * TOY_UNITS];
    struct policy policy;
    struct plan plan;
    struct executor *executor;
    void *memory[TIERS];
    struct agreement agreement[VIRTUAL_RANKS_MAX + 1];
    zero_slot slot[TOY_PARAMS];
    zero_unit *unit[TOY_UNITS];

    enum next next;
    uint32_t step, micro, position;
    bool evaluating, evaluated, fresh[USE_REGIONS_MAX];
    struct point agreed;
    struct toy_pass pass;
    uint8_t *before; /* the parameters of the use at its start */
    uint64_t applied;
};

struct run {
    struct rank rank[VIRTUAL_RANKS_MAX];
    uint32_t ranks;
    struct sim_world *world;
    uint64_t random;
    struct zero_error error;
};

static double chance(struct run *run) {
    run->random = run->random * 6364136223846793005u + 1442695040888963407u;
    return (double)(run->random >> 33) / (double)(1u << 31);
}

/* ---- opening ---- */

static zero_status declare(struct rank *r, struct zero_error *error) {
    zero_status status = ZERO_OK;
    for (uint32_t u = 0; u < TOY_UNITS && !status; u++) {
        status = model_add_unit(&r->model, NULL, toy_units[u], &r->unit[u], error);
        for (uint32_t i = 0; i < TOY_PARAMS && !status; i++) {
            const struct toy_param *p = &toy_params[i];
            if (strcmp(p->unit, toy_units[u])) continue;
            zero_param param = {.struct_size = sizeof param,
                                .name = p->name,
                                .dims = 2,
                                .flags = p->flags,
                                .shape = {p->rows, p->columns},
                                .tied_to = p->tied_to,
                                .slot = &r->slot[i]};
            status = model_add_param(&r->model, r->unit[u], &param, error);
        }
    }
    uint32_t ranks = r->setup->mesh[0] * r->setup->mesh[1];
    return status ? status : model_lay_out(&r->model, ranks, r->setup->toy.threshold, error);
}

static void open_policy(struct rank *r, uint32_t index) {
    const struct virtual_setup *s = r->setup;
    for (uint32_t i = 0; i < r->model.regions; i++) {
        r->region[i].frozen = region_frozen(&r->model.region[i]);
        r->region[i].persistent = region_persistent(&r->model.region[i]);
        r->region[i].elements = r->model.region[i].padded;
    }
    bool differs = s->bug == BUG_DEPTH_DIFFERS && index % 2;
    r->policy =
        (struct policy){.stage = stages[s->stage],
                        .mesh = {s->mesh[0], s->mesh[1]},
                        .accumulation = strcmp(s->toy.mode, "last") ? ACCUMULATE_EVERY : ACCUMULATE_LAST,
                        .micro_steps = s->toy.micro_steps,
                        .depth = differs ? s->toy.depth + 2 : s->toy.depth,
                        .backward_depth = differs ? s->toy.depth + 2 : s->backward_depth,
                        .live_max = s->live_max,
                        .ahead_max = s->ahead_max,
                        .forward = r->model.use,
                        .uses = r->model.units,
                        .region = r->region,
                        .regions = r->model.regions,
                        .refresh = r->refresh};
    policy_open(&r->policy);
}

static zero_status open_groups(struct rank *r, uint32_t index) {
    uint32_t a = r->setup->mesh[0], ranks = a * r->setup->mesh[1];
    uint32_t all[VIRTUAL_RANKS_MAX] = {0, 1, 2, 3};
    zero_status status = comm_group_open(r->comm, all, ranks, &r->world);
    for (uint8_t axes = AXES_SHARD; axes <= AXES_BOTH; axes++)
        for (int k = 0; k < 2 && !status; k++) {
            uint32_t members[VIRTUAL_RANKS_MAX], count = 0;
            for (uint32_t m = 0; m < ranks; m++)
                if ((axes & AXES_SHARD || m % a == index % a) &&
                    (axes & AXES_REPLICATE || m / a == index / a))
                    members[count++] = m;
            status =
                comm_group_open(r->comm, members, count, &r->group[axes][k ? STREAM_REDUCE : STREAM_GATHER]);
        }
    return status;
}

/* Gathered units that share bytes, and waits that do not know of it. */
static void break_plan(struct plan *plan) {
    for (uint32_t i = 0; i < plan->buffers; i++) {
        if (plan->buffer[i].row == MEMORY_GATHERED) plan->buffer[i].offset = 0;
        plan->overlap_first[i + 1] = 0;
    }
}

static zero_status open_rank(struct run *run, uint32_t index, const struct virtual_setup *s) {
    struct rank *r = &run->rank[index];
    r->setup = s;
    struct comm_options comm = {.rank = index, .size = run->ranks, .timeout_s = 60, .sim = run->world};
    struct device_options device = {.seed = s->seed * 31 + index, .probability = s->completion};
    zero_status status = comm_open(COMM_SIM, &comm, &r->comm, &run->error);
    if (!status) status = device_table[DEVICE_SIM]->open(&device, &r->device, &run->error);
    if (!status) status = declare(r, &run->error);
    if (!status) status = open_groups(r, index);
    if (status) return status;
    open_policy(r, index);
    const struct optimizer *adamw = optimizer_find("adamw");
    struct executor_options o = {.policy = &r->policy,
                                 .model = &r->model,
                                 .plan = &r->plan,
                                 .comm = r->comm,
                                 .world = r->world,
                                 .device = r->device,
                                 .optimizer = adamw,
                                 .state_count = adamw->state_count,
                                 .rank = index,
                                 .threads = 1,
                                 .param_bits = s->param_bits,
                                 .gradient_bits = s->gradient_bits,
                                 .agreements = r->agreement};
    memcpy(o.group, r->group, sizeof o.group);
    uint64_t staging = executor_staging_bytes(&o);
    r->policy.stagings = staging ? 2 : 0;
    r->policy.gather_stagings = s->param_bits ? 2 : 0;
    struct plan_options plan = {.model = &r->model,
                                .policy = &r->policy,
                                .state_count = adamw->state_count,
                                .staging_bytes = staging,
                                .gather_staging_bytes = executor_gather_staging_bytes(&o)};
    virtual_drive_plan(&s->drive, &plan);
    status = plan_make(&r->plan, &plan, &run->error);
    if (status) return status;
    if (s->bug == BUG_OVERLAPPING_PLAN) break_plan(&r->plan);
    for (int t = 0; t < TIER_NVME; t++) {
        r->memory[t] = aligned_alloc(4096, r->plan.tier_bytes[t]); /* whole pages */
        memset(r->memory[t], 0xff, r->plan.tier_bytes[t]);
    }
    status = virtual_drive_open(&r->drive, &r->plan, s->seed * 31 + index, &run->error);
    if (status) return status;
    o.drive = r->drive.tier;
    r->before = malloc(SLACK_BYTES);
    memcpy(o.memory, r->memory, sizeof o.memory);
    return executor_open(&o, &r->executor, &run->error);
}

static void close_rank(struct rank *r) {
    executor_close(r->executor);
    plan_free(&r->plan);
    model_free(&r->model);
    for (int axes = 0; axes <= AXES_BOTH; axes++)
        for (int s = 0; s < STREAMS; s++)
            if (r->group[axes][s]) comm_group_close(r->group[axes][s]);
    if (r->world) comm_group_close(r->world);
    comm_close(r->comm);
    if (r->device) r->device->ops->close(r->device);
    virtual_drive_close(&r->drive);
    for (int t = 0; t < TIER_NVME; t++) free(r->memory[t]);
    free(r->before);
}

/* ---- planted bugs: waits taken out of operations that have not started ---- */

static void forget(struct rank *r, enum stream of, enum operation_kind kind, enum stream on) {
    struct timeline *line = &r->executor->stream[of];
    for (uint64_t i = line->tasks_started; i < line->tasks_emitted; i++) {
        struct operation *op = &line->task[i & line->task_mask].op;
        if (op->kind == kind) op->after[on] = 0;
    }
}

/* The same of runs of chunks, which wait item by item. */
static void forget_pipe(struct rank *r, enum stream of) {
    struct timeline *line = &r->executor->stream[of];
    for (uint64_t i = line->tasks_started; i < line->tasks_emitted; i++)
        line->task[i & line->task_mask].op.pipe.value = INT32_MIN;
}

static void plant(struct rank *r) {
    switch (r->setup->bug) {
    case BUG_GATHER_IGNORES_READERS:
        forget(r, STREAM_GATHER, OP_GATHER, STREAM_COMPUTE);
        break;
    case BUG_GATHER_IGNORES_UPDATE:
        forget(r, STREAM_GATHER, OP_GATHER, STREAM_UPDATE);
        break;
    case BUG_COMPUTE_IGNORES_GATHER:
        forget(r, STREAM_COMPUTE, OP_COMPUTE, STREAM_GATHER);
        break;
    case BUG_AGREE_IGNORES_REDUCE:
        forget(r, STREAM_CONTROL, OP_AGREE, STREAM_REDUCE);
        break;
    case BUG_BACKWARD_IGNORES_REDUCE:
        forget(r, STREAM_COMPUTE, OP_COMPUTE, STREAM_REDUCE);
        break;
    case BUG_STORE_IGNORES_UPDATE:
        forget_pipe(r, STREAM_STORE);
        break;
    case BUG_UPDATE_IGNORES_FETCH:
        forget_pipe(r, STREAM_UPDATE);
        break;
    case BUG_FETCH_IGNORES_STORE:
        forget_pipe(r, STREAM_FETCH);
        break;
    case BUG_GATHER_IGNORES_FETCH:
        forget(r, STREAM_GATHER, OP_GATHER, STREAM_PARAM);
        break;
    case BUG_PARAMS_IGNORE_STORE:
        forget(r, STREAM_PARAM, OP_FETCH, STREAM_STORE);
        break;
    default:
        break;
    }
}

/* ---- what the host does ---- */

static struct buffer_ref param_ref(uint32_t region) {
    return (struct buffer_ref){BUFFER_PARAM_FULL, (uint16_t)region};
}
static struct buffer_ref grad_ref(uint32_t region) {
    return (struct buffer_ref){BUFFER_GRAD_FULL, (uint16_t)region};
}

/* Elements [first, first + count) of the region. */
static void fill_shard(const struct rank *r, uint32_t region, uint64_t first, uint64_t count, float *out) {
    memset(out, 0, count * sizeof *out);
    for (uint32_t k = 0; k < r->model.region[region].params; k++) {
        const struct model_param *p = &r->model.param[r->model.region[region].param[k]];
        for (uint64_t e = 0; e < p->count; e++)
            if (p->offset + e >= first && p->offset + e < first + count)
                toy_fill(NULL, p->name, e, 1, out + (p->offset + e - first));
    }
}

static void fill(struct rank *r) {
    const struct swap *swap = &r->plan.swap;
    float shard[SHARD_ELEMENTS_MAX];
    for (uint32_t i = 0; i < r->model.regions; i++) {
        const struct model_region *region = &r->model.region[i];
        struct placement cut = r->region[i].state;
        uint64_t count = region->padded / placement_parts(cut, r->policy.mesh);
        uint64_t first = placement_part(cut, r->policy.mesh, r->executor->o.rank) * count;
        float *full = executor_address(r->executor, param_ref(i));
        float *at = full
                        ? full + first
                        : executor_address(r->executor, (struct buffer_ref){BUFFER_PARAM_SHARD, (uint16_t)i});
        fill_shard(r, i, first, count, at ? at : shard);
        if (!at) virtual_drive_write(r->executor, swap, i, count, shard);
        for (uint32_t k = 0; k < 2 && !r->region[i].frozen; k++)
            memset(executor_state(r->executor, i, k), 0, swap_resident_elements(swap, i) * sizeof *at);
    }
    executor_written(r->executor);
}

static const struct use *current_use(const struct rank *r) { return policy_use(&r->policy, r->position); }
static uint32_t current_unit(const struct rank *r) {
    return r->position < r->policy.uses ? r->position : 2 * r->policy.uses - 1 - r->position;
}

static bool skips(const struct rank *r) {
    bool first = r->evaluating ? false : r->micro == 0;
    return first && (int)current_unit(r) == r->setup->toy.skip_unit;
}

static struct toy_arrays arrays(const struct rank *r) {
    struct toy_arrays a = {0};
    for (uint32_t i = 0; i < TOY_PARAMS; i++) {
        const struct model_param *p = &r->model.param[i];
        if (p->unit != current_unit(r)) continue;
        a.param[i] = (float *)executor_address(r->executor, param_ref(p->region)) + p->offset;
        float *grad = executor_address(r->executor, grad_ref(p->region));
        if (grad) a.grad[i] = grad + p->offset;
        a.add[i] = 1;
    }
    return a;
}

/* The parameters of the use, one after another: at its start kept, at its end compared. */
static bool look(struct rank *r, bool keep) {
    uint8_t *at = r->before;
    bool same = true;
    for (uint8_t i = 0; i < current_use(r)->count; i++) {
        uint32_t region = current_use(r)->region[i];
        uint64_t bytes = r->model.region[region].padded * sizeof(float);
        float *params = executor_address(r->executor, param_ref(region));
        same &= keep || memcmp(at, params, bytes) == 0;
        if (keep) memcpy(at, params, bytes);
        at += bytes;
    }
    return same;
}

static void start_compute(struct rank *r) {
    look(r, true);
    for (uint8_t i = 0; i < current_use(r)->count; i++) {
        uint32_t region = current_use(r)->region[i];
        if (r->fresh[i])
            memset(executor_address(r->executor, grad_ref(region)), 0,
                   r->model.region[region].padded * sizeof(float));
    }
}

static void compute(struct rank *r, struct run *run) {
    if (!look(r, false))
        error_set(&run->error, ZERO_E_INTERNAL, "parameters of %s changed under compute",
                  toy_units[current_unit(r)]);
    struct toy_arrays a = arrays(r);
    if (r->position < r->policy.uses)
        toy_forward(&r->pass, current_unit(r), &a);
    else
        toy_backward(&r->pass, current_unit(r), &a);
}

static void next_position(struct rank *r) {
    for (r->position++; r->position < r->policy.positions && skips(r); r->position++) {
        uint32_t u = current_unit(r);
        if (r->position < r->policy.uses) memcpy(r->pass.h[u], r->pass.h[u - 1], sizeof r->pass.h[u]);
    }
    if (r->position < r->policy.positions) {
        r->next = NEXT_BEGIN;
        return;
    }
    bool more = r->setup->toy.evaluate && !r->evaluating;
    if (!r->evaluating) r->micro++;
    r->evaluating = more;
    r->next = more || r->micro < r->setup->toy.micro_steps ? NEXT_PASS : NEXT_AGREE;
}

static void begin_pass(struct rank *r) {
    if (!r->evaluating) toy_batch(&r->pass, r->step, r->micro, r->executor->o.rank);
    executor_pass(r->executor, r->evaluating, r->micro + !r->evaluating == r->setup->toy.micro_steps);
    r->position = 0;
    r->next = NEXT_BEGIN;
}

static void begin_use(struct rank *r) {
    for (uint8_t i = 0; i < current_use(r)->count; i++) {
        const struct region *region = &r->region[current_use(r)->region[i]];
        r->fresh[i] = r->position >= r->policy.uses && !region->frozen && !region->partial;
    }
    executor_begin(r->executor, r->position);
    r->next = NEXT_COMPUTE;
}

static void apply(struct rank *r, struct run *run) {
    const struct agreement *all = executor_agreements(r->executor);
    const struct toy_setup *s = &r->setup->toy;
    bool both = r->policy.stage->grad_step.axis[AXIS_REPLICATE] == SHARD;
    uint32_t row = r->executor->o.rank / r->policy.mesh[0];
    double sum = 0, mean = 1.0 / (run->ranks * s->micro_steps), scale = mean;
    for (uint32_t k = 0; k < run->ranks; k++) {
        if (both || k / r->policy.mesh[0] == row) sum += all[k].norm_squared;
        if (all[k].trace != all[0].trace || all[k].fingerprint != all[0].fingerprint)
            error_set(&run->error, ZERO_E_DIVERGED, "rank %u did something else than rank 0", k);
    }
    double norm = sqrt(sum) * mean;
    if (s->clip > 0 && s->clip / (norm + 1e-6) < 1) scale *= s->clip / (norm + 1e-6);
    struct optimizer_params p = r->executor->o.optimizer->defaults;
    p.lr = 0.02, p.beta1 = 0.9, p.beta2 = 0.95, p.weight_decay = 0.1;
    struct optimizer_scalars scalars[2];
    optimizer_prepare(r->executor->o.optimizer, &p, ++r->applied, &scalars[0]);
    p.weight_decay = 0;
    optimizer_prepare(r->executor->o.optimizer, &p, r->applied, &scalars[1]);
    executor_apply(r->executor, false, (float)scale, scalars, 2, 0);
    r->micro = 0;
    r->step++;
    r->evaluating = s->evaluate;
    r->next = r->step == s->steps ? NEXT_FLUSH : NEXT_PASS;
}

/* One thing that the host can do now, if any. */
static bool advance(struct rank *r, struct run *run) {
    struct executor *e = r->executor;
    if (!executor_has_room(e)) return false;
    switch (r->next) {
    case NEXT_FILL:
        fill(r);
        r->next = NEXT_PASS;
        return true;
    case NEXT_PASS:
        begin_pass(r);
        return true;
    case NEXT_BEGIN:
        begin_use(r);
        return true;
    case NEXT_COMPUTE:
        if (!executor_computing(e)) return false;
        start_compute(r);
        r->next = NEXT_END;
        return true;
    case NEXT_END:
        compute(r, run);
        executor_end(e);
        next_position(r);
        return true;
    case NEXT_AGREE:
        executor_agree(e, &(struct agreement){0}, &r->agreed);
        r->next = NEXT_APPLY;
        return true;
    case NEXT_APPLY:
        if (!executor_reached(e, r->agreed)) return false;
        apply(r, run);
        return true;
    case NEXT_FLUSH:
        executor_flush(e);
        r->next = NEXT_DONE;
        return true;
    case NEXT_DONE:
        return false;
    }
    return false;
}

static bool finished(const struct run *run) {
    for (uint32_t k = 0; k < run->ranks; k++)
        if (run->rank[k].next != NEXT_DONE || !executor_idle(run->rank[k].executor)) return false;
    return true;
}

static void round_of(struct run *run, bool *moved) {
    struct rank *r = &run->rank[(uint32_t)(chance(run) * run->ranks)];
    if (executor_poll(r->executor, moved)) {
        error_pass(&run->error, executor_error(r->executor));
        return;
    }
    if (chance(run) < 0.5) *moved |= advance(r, run);
    plant(r);
}

static void collect(struct run *run, struct toy_result *out) {
    float shard[SHARD_ELEMENTS_MAX];
    for (uint32_t i = 0; i < TOY_PARAMS; i++) {
        for (uint32_t k = run->ranks; k-- > 0;) {
            struct rank *r = &run->rank[k];
            const struct model_param *p = &r->model.param[i];
            struct placement cut = r->region[p->region].state;
            uint64_t count = r->model.region[p->region].padded / placement_parts(cut, r->policy.mesh);
            uint64_t first = placement_part(cut, r->policy.mesh, k) * count;
            float *full = executor_address(r->executor, param_ref(p->region));
            struct buffer_ref ref = {BUFFER_PARAM_SHARD, (uint16_t)p->region};
            const float *at = full ? full : executor_address(r->executor, ref);
            if (!at && virtual_drive_read(r->executor, &r->plan.swap, p->region, count, shard))
                error_pass(&run->error, executor_error(r->executor));
            if (!full) at = (at ? at : shard) - first;
            if (full) first = 0, count = r->model.region[p->region].padded; /* every copy must be whole */
            for (uint64_t e = 0; e < p->count; e++)
                if (p->offset + e >= first && p->offset + e < first + count) {
                    if (full && k + 1 < run->ranks && memcmp(&out->weights[i][e], &at[p->offset + e], 4))
                        error_set(&run->error, ZERO_E_DIVERGED, "rank %u holds a stale copy of %s", k,
                                  p->name);
                    out->weights[i][e] = at[p->offset + e];
                }
        }
    }
}

void virtual_train(const struct virtual_setup *s, struct toy_result *out) {
    struct run *run = calloc(1, sizeof *run);
    run->ranks = s->mesh[0] * s->mesh[1];
    run->random = s->seed * 2654435761u + 1;
    error_clear(&run->error);
    memset(out, 0, sizeof *out);
    struct sim_options options = {.ranks = run->ranks, .seed = s->seed, .completion = s->completion};
    run->world = sim_world_create(&options);
    zero_status status = ZERO_OK;
    for (uint32_t k = 0; k < run->ranks && !status; k++) status = open_rank(run, k, s);
    if (status) error_set(&run->error, status, "could not open: %s", zero_status_meaning(status));
    for (uint32_t idle = 0; !run->error.code && !finished(run); idle++) {
        bool moved = false;
        round_of(run, &moved);
        if (moved) idle = 0;
        if (idle > IDLE_ROUNDS_MAX) error_set(&run->error, ZERO_E_PEER, "deadlock");
    }
    if (!run->error.code) collect(run, out);
    out->status = run->error.code;
    snprintf(out->error, sizeof out->error, "%.500s", run->error.message);
    for (uint32_t k = 0; k < run->ranks; k++) close_rank(&run->rank[k]);
    sim_world_destroy(run->world);
    free(run);
}
