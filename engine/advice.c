#include "engine/advice.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/key.h"
#include "engine/owners.h"

#define STAGE "zero_optimization.stage"
#define OPTIMIZER_DEVICE "zero_optimization.offload_optimizer.device"
#define PARAM_DEVICE "zero_optimization.offload_param.device"
#define SLOTS "zero_optimization.offload_optimizer.buffer_count"
#define CHUNK "zero_optimization.sub_group_size"
#define DEPTH "comm.prefetch_depth"

static const char *const tier_names[TIERS] = {
    [TIER_DEVICE] = "device", [TIER_CPU] = "cpu", [TIER_NVME] = "nvme"};

enum { KEYS_MAX = 3, ADVICE_MAX = 3 };

/* Keys with the values that are tried. The first of a `kind` that fits is the advice; one kind after another, those that
 * change least first. */
static const struct change {
    int kind;
    const char *key[KEYS_MAX], *value[KEYS_MAX];
} changes[] = {
    {0, {STAGE}, {"1"}},
    {0, {STAGE}, {"2"}},
    {0, {STAGE}, {"3"}},
    {1, {OPTIMIZER_DEVICE}, {"\"cpu\""}},
    {1, {OPTIMIZER_DEVICE}, {"\"nvme\""}},
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
    {5, {PARAM_DEVICE}, {"\"cpu\""}},
    {5, {PARAM_DEVICE}, {"\"nvme\""}},
    {5, {PARAM_DEVICE}, {"\"none\""}},
    {6, {STAGE, OPTIMIZER_DEVICE}, {"1", "\"cpu\""}},
    {6, {STAGE, OPTIMIZER_DEVICE}, {"2", "\"cpu\""}},
    {6, {STAGE, OPTIMIZER_DEVICE}, {"3", "\"cpu\""}},
    {6, {STAGE, OPTIMIZER_DEVICE}, {"3", "\"nvme\""}},
    {6, {STAGE, OPTIMIZER_DEVICE, PARAM_DEVICE}, {"3", "\"cpu\"", "\"cpu\""}},
    {6, {STAGE, OPTIMIZER_DEVICE, PARAM_DEVICE}, {"3", "\"nvme\"", "\"cpu\""}},
    {6, {STAGE, OPTIMIZER_DEVICE, PARAM_DEVICE}, {"3", "\"nvme\"", "\"nvme\""}},
};

static const char *entry_text(const zero_engine *e, const char *path) {
    return e->config.entries[config_key_index(config_key_find(path))].text;
}

static bool set_all(zero_engine *e, const char *const *keys, const char *const *values) {
    struct zero_error error;
    error_clear(&error);
    for (int k = 0; k < KEYS_MAX && keys[k]; k++)
        if (config_set(&e->config, keys[k], values[k], &error)) return false;
    return config_resolve(&e->config, e->size, &error) == ZERO_OK;
}

static bool fits(const zero_engine *e, const uint64_t need[TIERS]) {
    for (int t = 0; t < TIERS; t++)
        if (need[t] > e->config.budget_bytes[t]) return false;
    return true;
}

/* Every key is a change: what is there already is no advice. */
static bool changes_all(const zero_engine *e, const struct change *c) {
    for (int k = 0; k < KEYS_MAX && c->key[k]; k++)
        if (strcmp(entry_text(e, c->key[k]), c->value[k]) == 0) return false;
    return true;
}

static bool would_fit(zero_engine *e, const struct change *c) {
    char *before[KEYS_MAX] = {0};
    uint64_t need[TIERS];
    struct zero_error error;
    error_clear(&error);
    bool good = changes_all(e, c);
    for (int k = 0; k < KEYS_MAX && c->key[k] && good; k++) {
        before[k] = strdup(entry_text(e, c->key[k]));
        good = before[k] != NULL;
    }
    /* Other groups than those that are open would be another plan. */
    bool fit = good && set_all(e, c->key, c->value) && e->config.shard_ranks == e->policy.mesh[AXIS_SHARD] &&
               !commit_try(e, need, &error) && fits(e, need);
    if (good) set_all(e, c->key, (const char *const *)before);
    for (int k = 0; k < KEYS_MAX; k++) free(before[k]);
    return fit;
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

static void write_budgets(const zero_engine *e, const uint64_t need[TIERS], char *out, size_t capacity) {
    const char *before = *out ? "; or with " : "it fits with ";
    for (int t = 0; t < TIERS; t++)
        if (need[t] > e->config.budget_bytes[t]) {
            append(out, capacity, "%smemory.%s %" PRIu64, before, tier_names[t], need[t]);
            before = " and ";
        }
}

void advice_write(zero_engine *e, const uint64_t need[TIERS], char *out, size_t capacity) {
    uint64_t again[TIERS];
    struct zero_error error;
    int found = -1, count = 0;
    *out = 0;
    for (size_t i = 0; i < sizeof changes / sizeof *changes && count < ADVICE_MAX; i++) {
        if (changes[i].kind == found || (changes[i].kind == 6 && count) || !would_fit(e, &changes[i]))
            continue;
        found = changes[i].kind;
        count++;
        write_change(&changes[i], out, capacity);
    }
    error_clear(&error);
    commit_try(e, again, &error);
    write_budgets(e, need, out, capacity);
}

void advice_owners(const zero_engine *e, int tier, char *out, size_t capacity) {
    enum { SHOWN = 3 };
    zero_memory_owner *list;
    uint32_t count = owners_list(e, &list);
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
