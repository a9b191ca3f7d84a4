#include "engine/blueprint/blueprint.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/key.h"
#include "offload/tier.h"
#include "stages/stage.h"

#define STAGE "zero_optimization.stage"
#define OPTIMIZER_DEVICE "zero_optimization.offload_optimizer.device"
#define PARAM_DEVICE "zero_optimization.offload_param.device"
#define GRAD_DEVICE "zero_optimization.offload_gradients.device"
#define SLOTS "zero_optimization.offload_optimizer.buffer_count"
#define CHUNK "zero_optimization.sub_group_size"
#define DEPTH "comm.prefetch_depth"

enum { KEYS_MAX = 4, ADVICE_MAX = 3, TOGETHER = 7, VALUE_BYTES = 32 };

/* First values that stand for one of each row: the stages that shard gradients, those that shard parameters, and the tiers beyond the
 * device. */
static const char grad_stages[] = "grads", param_stages[] = "params", offloads[] = "offloads";

/* The changes that are tried: keys with values. The advice is the first change of a `kind` that fits. Kinds that change little come
 * first. TOGETHER: only if no other kind fits. */
static const struct change {
    int kind;
    const char *key[KEYS_MAX], *value[KEYS_MAX];
} changes[] = {
    {0, {STAGE}, {grad_stages}},
    {1, {OPTIMIZER_DEVICE}, {offloads}},
    {1, {OPTIMIZER_DEVICE}, {"\"tiered\""}},
    {1, {OPTIMIZER_DEVICE}, {"\"none\""}},
    {2, {DEPTH}, {"0"}},
    {3, {SLOTS}, {"3"}},
    {3, {SLOTS}, {"2"}},
    {3, {SLOTS}, {"1"}},
    {4, {CHUNK}, {"1048576"}},
    {4, {CHUNK}, {"262144"}},
    {4, {CHUNK}, {"65536"}},
    {4, {CHUNK}, {"16384"}},
    {4, {CHUNK}, {"1024"}},
    {5, {PARAM_DEVICE}, {offloads}},
    {5, {PARAM_DEVICE}, {"\"none\""}},
    {6, {GRAD_DEVICE}, {offloads}},
    {TOGETHER, {STAGE, OPTIMIZER_DEVICE}, {grad_stages, "\"cpu\""}},
    {TOGETHER, {STAGE, OPTIMIZER_DEVICE}, {param_stages, "\"nvme\""}},
    {TOGETHER, {STAGE, OPTIMIZER_DEVICE, PARAM_DEVICE}, {param_stages, "\"cpu\"", "\"cpu\""}},
    {TOGETHER, {STAGE, OPTIMIZER_DEVICE, PARAM_DEVICE}, {param_stages, "\"nvme\"", "\"cpu\""}},
    {TOGETHER, {STAGE, OPTIMIZER_DEVICE, PARAM_DEVICE}, {param_stages, "\"nvme\"", "\"nvme\""}},
    {TOGETHER, {OPTIMIZER_DEVICE, GRAD_DEVICE}, {"\"nvme\"", "\"nvme\""}},
    {TOGETHER, {STAGE, OPTIMIZER_DEVICE, GRAD_DEVICE}, {param_stages, "\"nvme\"", "\"nvme\""}},
    {TOGETHER,
     {STAGE, OPTIMIZER_DEVICE, PARAM_DEVICE, GRAD_DEVICE},
     {param_stages, "\"nvme\"", "\"nvme\"", "\"nvme\""}},
};

/* Writes the first value of a change, as a table's row gives it; nothing, if this row has none. Returns false past the last row. */
static bool write_first(const char *value, uint32_t row, char out[VALUE_BYTES]) {
    *out = 0;
    if (value == offloads) {
        const struct tier_ops *tier = tier_table[TIER_CPU + row];
        if (tier) snprintf(out, VALUE_BYTES, "\"%s\"", tier->choice);
        return tier != NULL;
    }
    if (value != grad_stages && value != param_stages) {
        snprintf(out, VALUE_BYTES, "%s", value);
        return row == 0;
    }
    const struct stage *stage = stages[row];
    if (!stage) return false;
    bool shards = value == grad_stages ? stage_shards_grads(stage) : stage_shards_params(stage);
    if (shards && stage->reshard == RESHARD_ALL) snprintf(out, VALUE_BYTES, "%" PRIu32, stage->number);
    return true;
}

/* One budget check: the blueprint that exceeds a budget, and its configuration. */
struct check {
    const struct blueprint *blueprint;
    struct config *config;
    uint64_t need[TIERS]; /* planned and reserved, per tier */
};

static const char *entry_text(const struct config *config, const char *path) {
    return config->entries[config_key_index(config_key_find(path))].text;
}

static bool set_all(struct check *c, const char *const *keys, const char *const *values) {
    struct zero_error error = ERROR_NONE;
    for (int k = 0; k < KEYS_MAX && keys[k]; k++)
        if (config_set(c->config, keys[k], values[k], &error)) return false;
    return config_resolve(c->config, c->blueprint->ranks, &error) == ZERO_OK;
}

/* Derives again the values that the configuration derived. */
static void set_back(struct check *c, const char *const *keys, const char *const *values,
                     const enum config_source *sources) {
    struct zero_error error = ERROR_NONE;
    for (int k = 0; k < KEYS_MAX && keys[k]; k++) {
        config_set(c->config, keys[k], values[k], &error);
        c->config->entries[config_key_index(config_key_find(keys[k]))].source = sources[k];
    }
    config_resolve(c->config, c->blueprint->ranks, &error);
}

/* True if every key changes a value: a value that the configuration already has is no advice. */
static bool changes_all(const struct config *config, const struct change *change) {
    for (int k = 0; k < KEYS_MAX && change->key[k]; k++)
        if (strcmp(entry_text(config, change->key[k]), change->value[k]) == 0) return false;
    return true;
}

static bool terms_fit(const struct check *c, const struct terms *terms) {
    struct blueprint trial;
    struct blueprint_options options = c->blueprint->o;
    struct zero_error error = ERROR_NONE;
    options.state_count -= c->blueprint->terms.precision.average; /* blueprint_make adds it again */
    bool fits = !blueprint_make(&trial, terms, &options, &error) && !blueprint_fit(&trial, &error);
    for (int t = 0; t < TIERS && fits; t++) fits = blueprint_bytes(&trial, t) <= c->config->budget_bytes[t];
    blueprint_free(&trial);
    return fits;
}

/* Plans with the configuration as it is now; without updates that wait, if they are not written there. */
static bool plan_fits(const struct check *c) {
    struct terms terms = c->config->terms;
    if (terms_fit(c, &terms)) return true;
    terms.waiting_share = 0;
    return c->config->chooses_waiting && terms_fit(c, &terms);
}

static bool would_fit(struct check *c, const struct change *change) {
    char *before[KEYS_MAX] = {0};
    enum config_source source[KEYS_MAX];
    bool good = changes_all(c->config, change);
    for (int k = 0; k < KEYS_MAX && change->key[k] && good; k++) {
        source[k] = c->config->entries[config_key_index(config_key_find(change->key[k]))].source;
        before[k] = strdup(entry_text(c->config, change->key[k]));
        good = before[k] != NULL;
    }
    /* Skips changes of the mesh: they need other groups of ranks, which are not open. */
    bool fits = good && set_all(c, change->key, change->value) &&
                c->config->shard_ranks == c->blueprint->policy.mesh[AXIS_SHARD] && plan_fits(c);
    if (good) set_back(c, change->key, (const char *const *)before, source);
    for (int k = 0; k < KEYS_MAX; k++) free(before[k]);
    return fits;
}

static void append(char *out, size_t capacity, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void append(char *out, size_t capacity, const char *format, ...) {
    size_t length = strlen(out);
    va_list args;
    va_start(args, format);
    vsnprintf(out + length, capacity - length, format, args);
    va_end(args);
}

static void write_change(const struct change *c, char *out, size_t capacity) {
    for (int k = 0; k < KEYS_MAX && c->key[k]; k++)
        append(out, capacity, "%s%s %s",
               k      ? " and "
               : *out ? "; or with "
                      : "it fits with ",
               c->key[k], c->value[k]);
}

static void write_budgets(const struct check *c, char *out, size_t capacity) {
    const char *before = *out ? "; or with " : "it fits with ";
    for (int t = 0; t < TIERS; t++)
        if (c->need[t] > c->config->budget_bytes[t]) {
            append(out, capacity, "%smemory.%s %" PRIu64, before, tier_table[t]->name, c->need[t]);
            before = " and ";
        }
}

static void write_advice(struct check *c, char *out, size_t capacity) {
    int found = -1, count = 0;
    *out = 0;
    for (size_t i = 0; i < sizeof changes / sizeof *changes && count < ADVICE_MAX; i++) {
        struct change change = changes[i];
        char first[VALUE_BYTES];
        change.value[0] = first;
        for (uint32_t row = 0; write_first(changes[i].value[0], row, first); row++) {
            if (change.kind == found || (change.kind == TOGETHER && count)) break;
            if (!*first || !would_fit(c, &change)) continue;
            found = change.kind;
            count++;
            write_change(&change, out, capacity);
        }
    }
    write_budgets(c, out, capacity);
}

static void write_owners(const struct blueprint *b, int tier, char *out, size_t capacity) {
    enum { SHOWN = 3 };
    zero_memory_owner *list;
    uint32_t count = memory_owners(b, &list);
    *out = 0;
    for (uint32_t i = 0, shown = 0; i < count && shown < SHOWN; i++) {
        if ((int)list[i].tier != tier) continue;
        append(out, capacity, "%s%s%s%s%s, %" PRIu64, shown ? "; " : "", list[i].what,
               list[i].unit ? " of unit \"" : "", list[i].unit ? list[i].unit : "", list[i].unit ? "\"" : "",
               list[i].bytes);
        shown++;
    }
    free(list);
}

zero_status budget_check(const struct blueprint *blueprint, struct config *config, struct zero_error *error) {
    struct check c = {.blueprint = blueprint, .config = config};
    char owners[320], advice[420];
    for (int t = 0; t < TIERS; t++) c.need[t] = blueprint_bytes(blueprint, t);
    for (int t = 0; t < TIERS; t++) {
        uint64_t budget = config->budget_bytes[t];
        if (c.need[t] <= budget) continue;
        write_owners(blueprint, t, owners, sizeof owners);
        write_advice(&c, advice, sizeof advice);
        return error_set(error, ZERO_E_BUDGET,
                         "memory.%s: the plan needs %" PRIu64 " bytes per rank, %" PRIu64
                         " more than the budget of %" PRIu64 "; %s. The largest: %s",
                         tier_table[t]->name, c.need[t], c.need[t] - budget, budget, advice, owners);
    }
    return ZERO_OK;
}
