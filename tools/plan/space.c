#include "tools/plan/space.h"

#include <inttypes.h>
#include <stdio.h>

#include "engine/config/resolve/resolve.h"
#include "offload/tier.h"
#include "stages/stage.h"
#include "tools/plan/choice.h"

#define MICRO_BATCH "train_micro_batch_size_per_gpu"
#define STEPS "gradient_accumulation_steps"
#define INTERVAL "activation_checkpointing.interval"
#define HPZ "zero_optimization.zero_hpz_partition_size"
#define RESHARD "comm.reshard_after_forward"
#define OFFLOAD(of) "zero_optimization.offload_" of ".device"

const struct space space_all = {
    .stage = true, .state = true, .params = true, .recompute = true, .fixed.recompute = 1, .micros = 1};

static const struct {
    zero_tier optimizer, params;
} tiers[] = {{ZERO_DEVICE, ZERO_DEVICE}, {ZERO_CPU, ZERO_DEVICE}, {ZERO_NVME, ZERO_DEVICE},
             {ZERO_CPU, ZERO_CPU},       {ZERO_NVME, ZERO_CPU},   {ZERO_NVME, ZERO_NVME}};

enum { TIER_PAIRS = sizeof tiers / sizeof *tiers };

/* ---- rows ---- */

/* Keys that are not searched have the value of the configuration. */
static bool is_fixed(const struct space *s, const struct cell *c) {
    const struct cell *f = &s->fixed;
    return (s->stage || c->stage == f->stage) && (s->state || c->optimizer == f->optimizer) &&
           (s->params || c->params == f->params);
}

static bool possible(const struct space *s, const struct cell *c) {
    bool drives = c->optimizer == ZERO_NVME || c->params == ZERO_NVME;
    if (c->params != ZERO_DEVICE && !cell_shards_params(c)) return false;
    if (!s->open) return true;
    if (s->cut && !cell_shards_params(c)) return false;
    if (s->on_drive && (c->optimizer != ZERO_NVME || c->tiered)) return false;
    if (c->tiered && c->optimizer == ZERO_DEVICE) return false;
    if (c->grads > 1u + ZERO_DEVICE && (!cell_shards_grads(c) || c->grads > 1u + c->optimizer)) return false;
    return !drives || !s->no_drive;
}

/* Takes the last digit of a mixed number. */
static uint32_t digit(uint32_t *number, uint32_t base) {
    uint32_t value = *number % base;
    *number /= base;
    return value;
}

bool space_row(const struct space *s, uint32_t number, struct cell *out, bool *out_exists) {
    uint32_t stage_count = 0;
    while (stages[stage_count]) stage_count++;
    uint32_t recompute = digit(&number, s->recompute ? 2 : 1),
             nearer = digit(&number, s->grads ? ZERO_TIERS : 1), tiered = digit(&number, s->tiered ? 2 : 1),
             pair = digit(&number, TIER_PAIRS), stage = digit(&number, stage_count);
    if (number >= s->micros) return false;
    *out = (struct cell){.stage = stages[stage]->number,
                         .optimizer = tiers[pair].optimizer,
                         .params = tiers[pair].params,
                         .recompute = s->recompute ? recompute * s->fixed.recompute : s->fixed.recompute,
                         .tiered = s->tiered ? tiered : s->fixed.tiered,
                         .grads = s->fixed.grads,
                         .micro_batch = s->micro[number]};
    /* gradients where the state is, then nearer to the device */
    bool beyond = s->grads && nearer > (uint32_t)tiers[pair].optimizer;
    if (s->grads && !beyond) out->grads = 1u + (uint32_t)tiers[pair].optimizer - nearer;
    if (s->grads && !cell_shards_grads(out)) out->grads = 1 + ZERO_DEVICE, beyond = nearer > 0;
    *out_exists = !beyond && stages[stage]->reshard == RESHARD_ALL && is_fixed(s, out) && possible(s, out);
    return true;
}

bool cell_equal(const struct cell *a, const struct cell *b) {
    return a->stage == b->stage && a->optimizer == b->optimizer && a->params == b->params &&
           a->tiered == b->tiered && a->grads == b->grads && a->micro_batch == b->micro_batch &&
           a->recompute == b->recompute;
}

bool space_find(const struct space *s, const struct cell *cell, struct cell *out_row) {
    struct cell row;
    bool exists;
    for (uint32_t i = 0; space_row(s, i, &row, &exists); i++) {
        struct cell same = *cell;
        if (!row.grads) same.grads = 0;
        if (!row.micro_batch) same.micro_batch = 0;
        if (!exists || !cell_equal(&row, &same)) continue;
        *out_row = row;
        return true;
    }
    return false;
}

/* ---- of a configuration ---- */

/* The tier of a row of tier_table; the row after them is tiered. */
static zero_tier tier_of(const struct config *c, int device) {
    if (tier_table[device]) return (zero_tier)tier_table[device]->kind;
    return c->optimizer_paths.count ? ZERO_NVME : ZERO_CPU;
}

static struct cell fixed_cell(const struct config *c, bool searches_stage) {
    bool cuts = searches_stage || config_shards_params(c); /* else offload_param has no effect */
    bool writes_grads = config_written(c, OFFLOAD("gradients"));
    return (struct cell){.stage = (uint32_t)c->stage,
                         .optimizer = c->cpu_offload ? ZERO_CPU : tier_of(c, c->optimizer_device),
                         .params = !cuts                  ? ZERO_DEVICE
                                   : c->cpu_offload_param ? ZERO_CPU
                                                          : tier_of(c, c->param_device),
                         .recompute = choice_recompute(c, c->model.layers),
                         .tiered = !tier_table[c->optimizer_device],
                         .grads = writes_grads ? 1u + (uint32_t)tier_of(c, c->grad_device) : 0};
}

/* An offload that is not given goes with the state's. */
static bool follows(const struct config *c, const char *path, bool state, bool old) {
    return !old && (config_automatic(c, path) || (state && !config_written(c, path)));
}

/* True if a key is given that only stages with sharded parameters have. */
static bool needs_cut(const struct config *c) {
    return config_codes_weights(c) || config_written(c, RESHARD) ||
           (config_written(c, HPZ) && c->hpz_ranks > 1);
}

/* A rank has one set of directories: paths that differ are refused where some row has both on the drive. */
static zero_status check_paths(const struct space *s, const struct config *c, struct zero_error *error) {
    static const struct config_paths none;
    bool cuts = s->stage || cell_shards_params(&s->fixed);
    bool state = s->state || s->fixed.optimizer == ZERO_NVME,
         params = cuts && (s->params || s->fixed.params == ZERO_NVME);
    zero_status status = config_check_scratch(c, state ? &c->optimizer_paths : &none, error);
    if (!status) status = config_check_scratch(c, params ? &c->param_paths : &none, error);
    return status || !state || !params ? status : config_check_offload(c, error);
}

/* Divisors of a rank's samples of a step, each at most half of the one before: more micro-steps, in which less is in memory. */
static void list_micros(uint64_t samples, struct space *out) {
    enum { LARGEST = 1 << (SPACE_MICROS_MAX - 1) };
    uint64_t next = samples < LARGEST ? samples : LARGEST;
    for (out->micros = 0; next && out->micros < SPACE_MICROS_MAX; next /= 2) {
        while (samples % next) next--;
        out->micro[out->micros++] = next;
    }
}

/* The value of a device in a configuration. */
static zero_status set_device(struct config *c, const char *path, zero_tier tier, bool tiered,
                              struct zero_error *error) {
    char json[32];
    snprintf(json, sizeof json, "\"%s\"", tiered ? "tiered" : tier_table[tier]->choice);
    return config_set(c, path, json, error);
}

static zero_status resolve_with(const struct space *s, const struct cell *cell, struct config *c,
                                uint32_t ranks, struct zero_error *error) {
    char number[32];
    snprintf(number, sizeof number, "%" PRIu32, cell->stage);
    zero_status status = s->stage ? config_set(c, "zero_optimization.stage", number, error) : ZERO_OK;
    snprintf(number, sizeof number, "%" PRIu32, cell->recompute);
    if (!status && s->recompute) status = config_set(c, INTERVAL, number, error);
    if (!status && s->state)
        status = set_device(c, OFFLOAD("optimizer"), cell->optimizer, cell->tiered, error);
    if (!status && s->params) status = set_device(c, OFFLOAD("param"), cell->params, false, error);
    if (!status && s->grads)
        status = set_device(c, OFFLOAD("gradients"), (zero_tier)(cell->grads - 1), false, error);
    return status ? status : config_resolve(c, ranks, error);
}

static zero_status resolve_any(const struct space *s, struct config *c, uint32_t ranks,
                               struct zero_error *error) {
    struct zero_error first = ERROR_NONE, failed;
    struct cell cell;
    bool exists;
    for (uint32_t i = 0; space_row(s, i, &cell, &exists); i++) {
        if (!exists) continue;
        error_clear(&failed);
        if (resolve_with(s, &cell, c, ranks, &failed) == ZERO_OK) return ZERO_OK;
        if (!first.code) first = failed;
    }
    return first.code
               ? error_pass(error, &first)
               : error_set(error, ZERO_E_CONFIG, "the values that are not \"auto\" leave nothing to choose");
}

zero_status space_of(struct config *c, const char *text, uint32_t ranks, struct space *out, char **out_text,
                     struct zero_error *error) {
    bool micro = config_automatic(c, MICRO_BATCH) && !config_written(c, STEPS);
    bool stage = config_automatic(c, "zero_optimization.stage");
    bool state = config_automatic(c, OFFLOAD("optimizer")) && !c->cpu_offload;
    struct space s = {.open = true,
                      .stage = stage,
                      .state = state,
                      .tiered = state && c->budget_bytes[TIER_DEVICE] != CONFIG_BYTES_UNLIMITED,
                      .params = follows(c, OFFLOAD("param"), state, c->cpu_offload_param),
                      .grads = follows(c, OFFLOAD("gradients"), state, false),
                      .recompute = config_automatic(c, INTERVAL) && !config_asks_recompute(c),
                      .fixed = fixed_cell(c, stage),
                      .on_drive = c->nvme_shadow,
                      .no_drive = !c->optimizer_paths.count && !c->param_paths.count,
                      .cut = stage && needs_cut(c),
                      .micros = 1};
    if (s.recompute) s.fixed.recompute = 1;
    zero_status status = check_paths(&s, c, error);
    if (!status && micro) status = config_resolve_batch(c, ranks, error);
    uint64_t batch = c->train_batch;
    if (micro && !status) list_micros(batch / ranks, &s);
    if (!status) status = resolve_any(&s, c, ranks, error);
    if (status) return status;
    *out_text = edit_open(text, micro ? batch : 0, (enum dtype)c->compute_dtype);
    if (!*out_text) return error_set(error, ZERO_E_MEMORY, "no memory for the configuration");
    *out = s;
    return ZERO_OK;
}

struct cell space_cell_of(const struct config *c) {
    return (struct cell){.stage = (uint32_t)c->stage,
                         .optimizer = (zero_tier)c->optimizer_tier,
                         .params = (zero_tier)c->param_tier,
                         .recompute = (uint32_t)c->recompute.blocks,
                         .tiered = c->tiered,
                         .grads = 1u + (uint32_t)c->grad_tier,
                         .micro_batch = c->micro_batch};
}
