#include <math.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "tests/engine/ranks.h"
#include "tests/engine/schedule.h"
#include "tests/engine/toy_number.h"
#include "tests/engine/toy_trainer.h"

struct runner {
    const struct schedule *schedule;
    zero_engine *engine;
    struct schedule_result *out;
    uint32_t rank, step, pass;
    zero_unit *unit[SCHEDULE_UNITS_MAX];
    zero_slot slot[SCHEDULE_PARAMS_MAX];
    zero_dtype type[SCHEDULE_PARAMS_MAX];
    float weights[SCHEDULE_COUNT_MAX];
};

static uint64_t mix(uint64_t x) {
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* All NaNs are alike: which of two comes out of a sum is not defined. */
static void see(struct runner *r, const float *x, uint64_t count) {
    for (uint64_t i = 0; i < count; i++) {
        uint32_t bits = 0x7fc00000;
        if (!isnan(x[i])) memcpy(&bits, &x[i], sizeof bits);
        r->out->seen = mix(r->out->seen + bits + 1);
    }
}

static int32_t root(const struct schedule *s, int32_t param) {
    while (s->param[param].tied_to >= 0) param = s->param[param].tied_to;
    return param;
}

static const char *name_of(const struct schedule *s, int32_t param, char out[16]) {
    if (param < 0) return NULL;
    snprintf(out, 16, "p%d", param);
    return out;
}

static zero_status declare(struct runner *r) {
    const struct schedule *s = r->schedule;
    zero_status status = ZERO_OK;
    for (uint32_t u = 0; u < s->units && !status; u++) {
        char name[16], owner[16];
        snprintf(name, sizeof name, "u%u", u);
        status = zero_engine_add_unit(r->engine, name, &r->unit[u]);
        for (uint32_t i = 0; i < s->params && !status; i++) {
            if (s->param[i].unit != u) continue;
            zero_param param = {.struct_size = sizeof param,
                                .name = name_of(s, (int32_t)i, name),
                                .dims = 1,
                                .shape = {s->param[i].count},
                                .flags = s->param[i].flags,
                                .tied_to = name_of(s, s->param[i].tied_to, owner),
                                .slot = &r->slot[i]};
            status = zero_unit_add_param(r->unit[u], &param);
            if (!status) r->type[i] = zero_param_dtype(zero_engine_param(r->engine, param.name));
        }
    }
    return status;
}

/* Depends on rank, step, pass and weight. */
static void write_gradient(struct runner *r, uint32_t param) {
    const struct schedule_step *step = &r->schedule->step[r->step];
    const zero_slot *slot = &r->slot[param];
    zero_dtype type = r->type[param];
    bool nan = step->nan_pass == (int32_t)r->pass && r->rank == r->schedule->ranks - 1;
    uint64_t key = mix(((r->step * 64 + r->pass) * 64 + r->rank) * 64 + param + 1);
    for (uint32_t j = 0; j < r->schedule->param[param].count; j++) {
        float noise = (float)(mix(key + j) >> 40) * 0x1p-24f - 0.5f;
        float g = nan && j == 0 ? NAN : noise + 0.3f * toy_load(type, slot->param, j);
        toy_store(type, slot->grad, j, slot->add ? toy_load(type, slot->grad, j) + g : g);
    }
}

static zero_status use(struct runner *r, uint32_t unit, bool backward) {
    const struct schedule *s = r->schedule;
    zero_status status = backward ? zero_backward_begin(r->unit[unit]) : zero_forward_begin(r->unit[unit]);
    if (status) return status;
    for (uint64_t n = mix(s->seed + r->out->seen + r->rank) % 32; n > 0; n--) sched_yield();
    for (uint32_t i = 0; i < s->params; i++) {
        if (s->param[i].unit != unit) continue;
        for (uint32_t k = 0; k < s->param[i].count; k++)
            r->weights[k] = toy_load(r->type[i], r->slot[i].param, k);
        see(r, r->weights, s->param[i].count);
        if (r->slot[i].grad) write_gradient(r, i);
    }
    return backward ? zero_backward_end(r->unit[unit]) : zero_forward_end(r->unit[unit]);
}

static zero_status run_pass(struct runner *r, const struct schedule_pass *pass) {
    uint32_t units = r->schedule->units;
    zero_status status = zero_micro_begin(r->engine, pass->mode);
    for (uint32_t u = 0; u < units && !status; u++)
        if (pass->forward >> u & 1) status = use(r, u, false);
    for (uint32_t u = units; u-- > 0 && !status;)
        if (pass->backward >> u & 1) status = use(r, u, true);
    if (!status && pass->flush) status = zero_engine_flush(r->engine);
    double sum = 1 + r->rank;
    if (!status && pass->sum) status = zero_engine_sum(r->engine, &sum, 1);
    see(r, &(float){(float)sum}, 1);
    return status;
}

static zero_status inspect(struct runner *r, int32_t param) {
    char name[16];
    uint32_t count = r->schedule->param[param].count;
    zero_status status =
        zero_engine_get(r->engine, name_of(r->schedule, param, name), ZERO_GRAD, r->weights, 0, count);
    if (!status) see(r, r->weights, count);
    return status;
}

static zero_status scale(struct runner *r, const char *name, zero_kind kind, uint32_t count) {
    zero_status status = zero_engine_get(r->engine, name, kind, r->weights, 0, count);
    if (status) return status;
    see(r, r->weights, count);
    for (uint32_t i = 0; i < count; i++) r->weights[i] *= 1.5f;
    return zero_engine_put(r->engine, name, kind, r->weights, 0, count);
}

static zero_status put(struct runner *r, int32_t param) {
    char name[16];
    uint32_t count = r->schedule->param[param].count;
    bool frozen = r->schedule->param[root(r->schedule, param)].flags & ZERO_FROZEN;
    zero_status status = scale(r, name_of(r->schedule, param, name), ZERO_PARAM, count);
    return status || frozen ? status : scale(r, name, ZERO_STATE0, count);
}

static zero_status run_step(struct runner *r, const struct schedule_step *step) {
    zero_status status = ZERO_OK;
    for (r->pass = 0; r->pass < step->passes && !status; r->pass++)
        status = run_pass(r, &step->pass[r->pass]);
    if (!status && step->inspect >= 0) status = inspect(r, step->inspect);
    zero_step_info info = {.struct_size = sizeof info};
    if (!status) status = zero_engine_step(r->engine, &info);
    r->out->norm[r->step] = info.grad_norm;
    r->out->skipped[r->step] = info.skipped;
    if (!status && step->put >= 0) status = put(r, step->put);
    if (!status && step->lr > 0) status = zero_engine_set_lr(r->engine, 0, step->lr + r->rank);
    if (!status && step->refill) status = zero_engine_fill(r->engine, toy_fill, NULL);
    return status;
}

struct run {
    const struct schedule *schedule;
    struct schedule_result *out;
};

static void run_rank(zero_engine *engine, uint32_t rank, void *user) {
    const struct run *run = user;
    struct runner r = {.schedule = run->schedule, .engine = engine, .out = &run->out[rank], .rank = rank};
    *r.out = (struct schedule_result){.status = engine ? ZERO_OK : ZERO_E_CONFIG};
    if (!r.out->status) r.out->status = declare(&r);
    if (!r.out->status) r.out->status = zero_engine_commit(engine, NULL);
    if (!r.out->status) r.out->status = zero_engine_fill(engine, toy_fill, NULL);
    for (; r.step < SCHEDULE_STEPS && !r.out->status; r.step++)
        r.out->status = run_step(&r, &r.schedule->step[r.step]);
    if (!r.out->status) r.out->status = zero_engine_hash(engine, r.out->hash);
    if (r.out->status) snprintf(r.out->error, sizeof r.out->error, "%s", zero_last_error());
}

static void write_tiers(const struct schedule *s, enum schedule_tier tier, char *out, size_t capacity) {
    const char *directory = getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp";
    bool param = tier >= SCHEDULE_PARAM_CPU, state = !param || tier == SCHEDULE_ALL_NVME;
    const char *device = tier == SCHEDULE_DEVICE                              ? "none"
                         : tier == SCHEDULE_CPU || tier == SCHEDULE_PARAM_CPU ? "cpu"
                                                                              : "nvme";
    char path[2048] = "", where[2400];
    if (!strcmp(device, "nvme"))
        snprintf(path, sizeof path,
                 tier == SCHEDULE_NVME_TWO ? ", \"buffer_count\": %u, \"nvme_path\": [\"%s/a\", \"%s/b\"]"
                                           : ", \"buffer_count\": %u, \"nvme_path\": \"%s/a\"",
                 s->slots, directory, directory);
    snprintf(where, sizeof where, "{\"device\": \"%s\"%s}", device, path);
    snprintf(out, capacity, "\"sub_group_size\": 1024%s%s%s%s", state ? ", \"offload_optimizer\": " : "",
             state ? where : "", param ? ", \"offload_param\": " : "", param ? where : "");
}

/* Which ranks share, and when they gather: keys of zero_optimization, and of comm. */
static void write_groups(const struct schedule *s, uint32_t stage, char *zero, size_t zero_bytes, char *comm,
                         size_t comm_bytes) {
    size_t used = strlen(zero);
    used += (size_t)snprintf(zero + used, zero_bytes - used, ", \"mics_shard_size\": %d",
                             s->shard_ranks == s->ranks ? -1 : (int)s->shard_ranks);
    *comm = 0;
    if (stage != 3) return;
    if (s->live_max)
        used += (size_t)snprintf(zero + used, zero_bytes - used, ", \"stage3_max_live_parameters\": %u",
                                 s->live_max);
    if (s->ahead_max)
        snprintf(zero + used, zero_bytes - used, ", \"stage3_prefetch_bucket_size\": %u", s->ahead_max);
    char group[16] = "true";
    if (s->reshard_ranks) snprintf(group, sizeof group, "%u", s->reshard_ranks);
    snprintf(comm, comm_bytes, ", \"backward_prefetch_depth\": %u, \"reshard_after_forward\": %s",
             s->backward_depth, group);
}

void schedule_run(const struct schedule *s, uint32_t stage, enum schedule_tier tier,
                  struct schedule_result *out) {
    struct toy_setup setup = toy_setup_default();
    setup.stage = stage;
    setup.ranks = s->ranks;
    setup.micro_steps = s->micro_steps;
    setup.depth = s->depth[stage];
    setup.threshold = s->threshold;
    setup.mode = s->mode;
    setup.clip = 1;
    setup.compute = s->narrow ? ZERO_BF16 : ZERO_F32;
    char json[8192], zero[5400], comm[128];
    write_tiers(s, tier, zero, sizeof zero);
    write_groups(s, stage, zero, sizeof zero, comm, sizeof comm);
    setup.tiers = zero, setup.comm = comm;
    toy_config(&setup, json, sizeof json);
    ranks_run(s->ranks, json, run_rank, &(struct run){s, out});
}
