#include "engine/config/resolve/resolve.h"

#include <stdio.h>
#include <string.h>

#include "engine/config/key.h"
#include "engine/config/value.h"
#include "kernels/optimizer.h"

#define PARAMS "scheduler.params."

static const char *leaf(const char *path) { return path + strlen(PARAMS); }

static zero_status no_such_param(const struct lr_schedule *row, const char *path, struct zero_error *error) {
    char has[400];
    size_t length = 0;
    if (!row)
        return error_set(error, ZERO_E_CONFIG, "%s: there is no scheduler.type that would read it: add one",
                         path);
    for (int i = 0; i < LR_KEYS_MAX && row->keys[i].name && length < sizeof has; i++)
        length +=
            (size_t)snprintf(has + length, sizeof has - length, "%s%s", i ? ", " : "", row->keys[i].name);
    return error_set(error, ZERO_E_CONFIG, "%s: %s has no such parameter: remove it; it has %s", path,
                     row->name, has);
}

static void leave_out(struct config *config, const struct config_key *key) {
    void *field = (char *)config + key->offset;
    if (key->type == KEY_NUMBERS)
        *(struct lr_numbers *)field = (struct lr_numbers){0};
    else if (key->type == KEY_REAL)
        *(double *)field = -1;
    else
        *(int64_t *)field = -1;
}

static zero_status resolve_param(struct config *config, const struct lr_schedule *row,
                                 const struct config_key *key, struct zero_error *error) {
    const struct lr_key *own = lr_schedule_key(row, leaf(key->path));
    bool given = config_written(config, key->path);
    if (given && !own) return no_such_param(row, key->path, error);
    if (given || config_automatic(config, key->path) || !own) return ZERO_OK;
    if (!own->fallback)
        return error_set(error, ZERO_E_CONFIG, "%s: it is missing, and %s needs it: write it", key->path,
                         row->name);
    if (*own->fallback) return config_store_text(config, key, own->fallback, CONFIG_DEFAULT, error);
    leave_out(config, key);
    return ZERO_OK;
}

/* Records the values of "auto". For warmup_max_lr, "auto" is each group's own lr, as without a number. */
static zero_status resolve_auto(struct config *config, struct zero_error *error) {
    static const char max_lr[] = PARAMS "warmup_max_lr";
    char text[32];
    zero_status status = ZERO_OK;
    if (config_automatic(config, max_lr))
        status = config_entry_set(config, config_key_find(max_lr), CONFIG_AUTO,
                                  config_number_text(config->optimizer.lr, text), error);
    const char *length = config_schedule_length(config);
    if (status || !length) return status;
    const struct config_key *key = config_key_find(length);
    *(uint64_t *)(void *)((char *)config + key->offset) = config->planned_steps;
    if (!config->planned_steps) return ZERO_OK;
    snprintf(text, sizeof text, "%llu", (unsigned long long)config->planned_steps);
    return config_entry_set(config, key, CONFIG_AUTO, text, error);
}

const char *config_schedule_length(const struct config *config) {
    static const char *const lengths[] = {PARAMS "total_num_steps", PARAMS "total_iters", PARAMS "T_max",
                                          PARAMS "total_steps", PARAMS "num_training_steps"};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        if (lr_schedule_key(config->schedule_row, leaf(lengths[i])) && config_automatic(config, lengths[i]))
            return lengths[i];
    return NULL;
}

/* If an optimizer has no betas, PyTorch's schedules cycle its momentum instead; a schedule here sets only lr and betas, so this
 * is refused. DeepSpeed's OneCycle does not cycle the momentum, so it needs no refusal. */
static zero_status check_momentum(const struct config *config, const struct lr_schedule *schedule,
                                  struct zero_error *error) {
    const struct optimizer *row = optimizers[config->optimizer.type];
    if (!lr_schedule_key(schedule, "base_momentum") || !config->schedule.cycle_momentum) return ZERO_OK;
    for (uint32_t g = 0; g < config->groups.count && row->defaults.beta1 > 0; g++)
        if (config->groups.item[g].optimizer) row = config->groups.item[g].optimizer;
    if (row->defaults.beta1 > 0) return ZERO_OK;
    return error_set(error, ZERO_E_CONFIG,
                     "%s: %s cycles beta1, also by default, and %s has no betas: set it to false",
                     PARAMS "cycle_momentum", schedule->name, row->title);
}

/* Transformers' schedules take one of two keys. */
static zero_status resolve_either(struct config *config, const struct lr_schedule *row,
                                  struct zero_error *error) {
    static const char *const either[][2] = {{PARAMS "min_lr", PARAMS "min_lr_rate"},
                                            {PARAMS "num_stable_steps", PARAMS "num_training_steps"}};
    struct lr_schedule_params *s = &config->schedule;
    for (size_t i = 0; i < sizeof either / sizeof *either; i++) {
        if (!lr_schedule_key(row, leaf(either[i][0]))) continue;
        int given = 0;
        for (int k = 0; k < 2; k++)
            given += config_written(config, either[i][k]) || config_automatic(config, either[i][k]);
        if (given != 1)
            return error_set(error, ZERO_E_CONFIG, "%s and %s: %s needs one of them: %s", either[i][0],
                             leaf(either[i][1]), row->name, given ? "remove the other" : "write it");
    }
    if (lr_schedule_key(row, "min_lr") && s->min_lr >= 0)
        s->min_lr_rate = config->optimizer.lr > 0 ? s->min_lr / config->optimizer.lr : 0;
    return ZERO_OK;
}

zero_status config_resolve_scheduler(struct config *config, struct zero_error *error) {
    bool there = config_entry(config, "scheduler.type")->source != CONFIG_DEFAULT;
    const struct lr_schedule *row = there ? lr_schedules[config->scheduler] : NULL;
    zero_status status = ZERO_OK;
    config->schedule_row = row;
    for (uint32_t i = 0; i < config_key_count() && !status; i++)
        if (strncmp(config_key_at(i)->path, PARAMS, strlen(PARAMS)) == 0)
            status = resolve_param(config, row, config_key_at(i), error);
    if (status || !row) return status;
    if (!lr_schedule_key(row, "last_batch_iteration")) config->schedule.last_batch_iteration = -1;
    status = check_momentum(config, row, error);
    if (!status) status = resolve_either(config, row, error);
    return status ? status : resolve_auto(config, error);
}
