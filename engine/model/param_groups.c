#include "engine/model/param_groups.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/base/limits.h"

_Static_assert((int)CONFIG_GROUPS_MAX + 1 == (int)GROUP_MAX, "the configuration's groups fit");
_Static_assert((int)CONFIG_MATCH_MAX <= 64, "a word has a bit for each pattern");

/* ---- patterns of parameter names: * is any text, also none and with dots in it; ? is one character ---- */

/* On a mismatch the last star takes one character more. */
static bool matches(const char *pattern, const char *name) {
    const char *star = NULL, *taken = NULL;
    while (*name) {
        if (*pattern == '*') {
            star = pattern++, taken = name;
        } else if (*pattern == '?' || *pattern == *name) {
            pattern++, name++;
        } else if (star) {
            pattern = star + 1, name = ++taken;
        } else {
            return false;
        }
    }
    while (*pattern == '*') pattern++;
    return !*pattern;
}

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* The number of characters to change, insert or delete until the name matches the pattern; 0: it matches. Only the
 * first 127 bytes of each count. Wagner and Fischer 1974, with a star that takes characters for nothing. */
static uint32_t distance_of(const char *pattern, const char *name) {
    size_t n = strnlen(pattern, NAME_BYTES_MAX - 1), m = strnlen(name, NAME_BYTES_MAX - 1);
    uint32_t rows[2][NAME_BYTES_MAX];
    for (size_t j = 0; j <= m; j++) rows[0][j] = (uint32_t)j;
    for (size_t i = 1; i <= n; i++) {
        const uint32_t *above = rows[(i - 1) % 2];
        uint32_t *row = rows[i % 2];
        char c = pattern[i - 1];
        bool star = c == '*';
        row[0] = above[0] + !star;
        for (size_t j = 1; j <= m; j++) {
            uint32_t changed = above[j - 1] + (c != '?' && c != name[j - 1]);
            row[j] = star ? least(above[j], row[j - 1]) : least(changed, least(above[j], row[j - 1]) + 1);
        }
    }
    return rows[n % 2][m];
}

/* ---- groups ---- */

static void add_group(struct param_groups *groups, double lr, double weight_decay) {
    struct optimizer_params *p = &groups->params[groups->count++];
    *p = groups->params[0];
    if (lr >= 0) p->lr = lr;
    if (weight_decay >= 0) p->weight_decay = weight_decay;
}

/* A group with its own optimizer has the defaults of that optimizer, but the lr of the run. */
static void take_other(struct param_groups *groups, const struct config_group *group) {
    struct optimizer_params *p = &groups->params[groups->count], *first = &groups->params[0];
    *p = group->optimizer->defaults;
    p->lr = group->lr >= 0 ? group->lr : first->lr;
    if (group->weight_decay >= 0) p->weight_decay = group->weight_decay;
    if (group->betas[0] >= 0) p->beta1 = group->betas[0], p->beta2 = group->betas[1];
    groups->other = group->optimizer;
    groups->uses_other[groups->count++] = true;
}

void groups_open(struct param_groups *groups, const struct config_groups *config,
                 const struct optimizer_params *first) {
    *groups = (struct param_groups){.config = config, .params = {*first}, .count = 1};
    for (uint32_t g = 0; g < config->count; g++)
        if (config->item[g].optimizer)
            take_other(groups, &config->item[g]);
        else
            add_group(groups, config->item[g].lr, config->item[g].weight_decay);
}

/* Groups of the host program have no codes of their own. */
static enum code_format code_of(const struct config_groups *config, uint32_t group, enum code_format run) {
    bool own = group && group <= config->count && config->item[group - 1].weight_code >= 0;
    return own ? (enum code_format)config->item[group - 1].weight_code : run;
}

void groups_mark(const struct param_groups *groups, enum code_format code, struct model *model) {
    for (uint32_t i = 0; i < model->params; i++) {
        uint32_t group = model->param[model->param[i].owner].scalars / 2;
        model->param[i].other = groups->uses_other[group];
        model->param[i].code = code_of(groups->config, group, code);
    }
}

zero_status groups_add(struct param_groups *groups, const zero_group *group, int *out,
                       struct zero_error *error) {
    if (isnan(group->lr) || isinf(group->lr) || isnan(group->weight_decay) || isinf(group->weight_decay))
        return error_set(error, ZERO_E_ARGUMENT,
                         "zero_engine_add_group: lr %g and weight_decay %g must be finite", group->lr,
                         group->weight_decay);
    if (groups->count == GROUP_MAX)
        return error_set(error, ZERO_E_ARGUMENT,
                         "zero_engine_add_group: there are %d already, group 0 and param_groups included",
                         GROUP_MAX);
    *out = (int)groups->count;
    add_group(groups, group->lr, group->weight_decay);
    return ZERO_OK;
}

/* The bits of the group's patterns that match. */
static uint64_t matching(const struct config_group *group, const char *name, const char *alias) {
    uint64_t bits = 0;
    for (uint32_t i = 0; i < group->match_count; i++)
        if (matches(group->match[i], name) || (alias && matches(group->match[i], alias)))
            bits |= (uint64_t)1 << i;
    return bits;
}

/* Of a group that has no patterns: bit 0 for a parameter that it takes, and bit 1 where the name says so. */
static uint64_t implied_bits(const zero_param *param) {
    bool named, also = false;
    bool takes = config_takes_implied(param->tensor ? param->tensor : param->name, param->dims, &named);
    if (param->alias && !config_takes_implied(param->alias, param->dims, &also)) takes = false;
    return (uint64_t)takes | (uint64_t)(named || also) << 1;
}

/* A tied parameter has its owner's group and flags, whatever its own name says. */
static void assign_tied(const struct model *model, zero_param *param) {
    const struct model_param *owner = model_find(model, param->tied_to);
    param->group = 0;
    if (owner && param->flags) param->flags |= owner->flags & (ZERO_FROZEN | ZERO_KEEP_FP32);
}

zero_status groups_assign(struct param_groups *groups, const struct model *model, zero_param *param,
                          struct zero_error *error) {
    const struct config_groups *config = groups->config;
    bool taken = false;
    if (param->group >= groups->count)
        return error_set(error, ZERO_E_ARGUMENT,
                         "parameter \"%s\": there is no group %" PRIu32 "; there are %" PRIu32 ", from 0",
                         param->name ? param->name : "", param->group, groups->count);
    if (param->tied_to) return assign_tied(model, param), ZERO_OK;
    for (uint32_t g = 0; g < config->count && param->name; g++) {
        uint64_t bits = matching(&config->item[g], param->tensor ? param->tensor : param->name, param->alias);
        groups->matched[g] |= bits;
        if (config->item[g].implied) groups->matched[g] |= bits = implied_bits(param);
        if (!bits || taken) continue;
        taken = true;
        param->group = g + 1;
        if (config->item[g].frozen) param->flags |= ZERO_FROZEN;
        if (config->item[g].keeps_fp32) param->flags |= ZERO_KEEP_FP32;
    }
    return ZERO_OK;
}

/* ---- what must hold at commit ---- */

static zero_status unmatched(const struct param_groups *groups, const struct model *model, uint32_t g,
                             uint32_t index, struct zero_error *error) {
    const char *pattern = groups->config->item[g].match[index], *nearest = "";
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < model->params; i++) {
        const struct model_param *p = &model->param[i];
        uint32_t distance = distance_of(pattern, p->tensor);
        if (!distance) /* the pattern would match, but the parameter has its owner's group */
            return error_set(error, ZERO_E_CONFIG,
                             "param_groups[%" PRIu32 "].match: \"%s\" is tied to \"%s\": write that name", g,
                             p->name, model->param[p->owner].tensor);
        if (p->owner == i && distance < best) best = distance, nearest = p->tensor;
    }
    return error_set(error, ZERO_E_CONFIG,
                     "param_groups[%" PRIu32
                     "].match: no parameter's name matches \"%s\"; the nearest is \"%s\"",
                     g, pattern, nearest);
}

/* Names that follow no convention, such as a host's own, do not say which parameter is an embedding. */
static zero_status check_implied(const struct param_groups *groups, struct zero_error *error) {
    if (groups->matched[0] >> 1 & 1) return ZERO_OK;
    return error_set(
        error, ZERO_E_CONFIG,
        "optimizer.type: Muon updates matrices but embeddings and head, and no parameter's name has "
        "\"embed\" or \"lm_head\": say in the configuration what AdamW updates, by this model's names, as "
        "\"param_groups\": [{\"match\": [\"*embed*\", \"*norm*\", \"*.bias\"], \"optimizer\": \"AdamW\"}]");
}

static zero_status check_patterns(const struct param_groups *groups, const struct model *model, uint32_t g,
                                  struct zero_error *error) {
    const struct config_group *group = &groups->config->item[g];
    if (group->implied) return check_implied(groups, error);
    for (uint32_t i = 0; i < group->match_count; i++)
        if (!(groups->matched[g] >> i & 1)) return unmatched(groups, model, g, i, error);
    for (uint32_t i = 0; i < model->params; i++)
        if (model->param[i].scalars / 2 == g + 1) return ZERO_OK;
    if (groups->elsewhere >> (g + 1) & 1) return ZERO_OK;
    return error_set(error, ZERO_E_CONFIG,
                     "param_groups[%" PRIu32
                     "]: earlier groups have all parameters that it matches: move it up, or remove it",
                     g);
}

/* A number that sets all groups would override the value that this group was given. */
static zero_status check_own_lr(const struct param_groups *groups, const char *path,
                                struct zero_error *error) {
    for (uint32_t g = 0; g < groups->config->count; g++)
        if (groups->config->item[g].lr >= 0)
            return error_set(error, ZERO_E_CONFIG,
                             "param_groups[%" PRIu32
                             "].lr: scheduler.params.%s sets the lr of all groups: give it a list of %" PRIu32
                             " numbers, group 0's first, or remove lr",
                             g, path, groups->count);
    return ZERO_OK;
}

static zero_status check_numbers(const struct param_groups *groups, const char *path,
                                 const struct lr_numbers *numbers, struct zero_error *error) {
    if (!numbers->each || numbers->count == groups->count) return ZERO_OK;
    return error_set(error, ZERO_E_CONFIG,
                     "scheduler.params.%s: %" PRIu32 " numbers for %" PRIu32
                     " parameter groups: give one for each, group 0's first, or one number",
                     path, numbers->count, groups->count);
}

static zero_status check_schedule(const struct param_groups *groups, const struct config *config,
                                  struct zero_error *error) {
    const struct lr_schedule_params *p = &config->schedule;
    const struct {
        const char *path;
        const struct lr_numbers *numbers;
        bool sets_lr;
    } lists[] = {{"warmup_min_lr", &p->warmup_min_lr, false},
                 {"warmup_max_lr", &p->warmup_max_lr, true},
                 {"lr_range_test_min_lr", &p->range_min_lr, true},
                 {"cycle_min_lr", &p->cycle_min_lr, false},
                 {"cycle_max_lr", &p->cycle_max_lr, true},
                 {"cycle_min_mom", &p->cycle_min_mom, false},
                 {"cycle_max_mom", &p->cycle_max_mom, false},
                 {"base_lr", &p->base_lr, false},
                 {"max_lr", &p->max_lr, true},
                 {"base_momentum", &p->base_momentum, false},
                 {"max_momentum", &p->max_momentum, false}};
    for (size_t i = 0; i < sizeof lists / sizeof *lists && config->schedule_row; i++) {
        TRY(check_numbers(groups, lists[i].path, lists[i].numbers, error));
        if (lists[i].sets_lr && lists[i].numbers->count && !lists[i].numbers->each)
            TRY(check_own_lr(groups, lists[i].path, error));
    }
    return ZERO_OK;
}

/* A region of parameters has one optimizer, and a run has room for two. */
static zero_status check_others(const struct param_groups *groups, struct zero_error *error) {
    for (uint32_t g = 0; g < groups->config->count; g++) {
        const struct optimizer *row = groups->config->item[g].optimizer;
        if (row && row != groups->other)
            return error_set(
                error, ZERO_E_CONFIG,
                "param_groups[%" PRIu32
                "].optimizer: %s is a third optimizer, as another group has %s: two are possible in a run",
                g, row->title, groups->other->title);
    }
    return ZERO_OK;
}

zero_status groups_check(const struct param_groups *groups, const struct model *model,
                         const struct config *config, struct zero_error *error) {
    zero_status status = check_others(groups, error);
    for (uint32_t g = 0; g < groups->config->count && !status; g++)
        status = check_patterns(groups, model, g, error);
    return status ? status : check_schedule(groups, config, error);
}

uint64_t groups_settings_hash(const struct param_groups *groups, uint64_t hash) {
    for (uint32_t g = 0; g < groups->count; g++)
        hash = hash_bytes(hash, &groups->params[g].weight_decay, sizeof groups->params[g].weight_decay);
    return groups->other ? hash_string(hash, groups->other->name) : hash;
}

uint64_t groups_hash(const struct param_groups *groups, const struct model *model, uint64_t hash) {
    hash = groups_settings_hash(groups, hash);
    for (uint32_t i = 0; i < model->params; i++)
        hash = hash_bytes(hash, &model->param[i].scalars, sizeof model->param[i].scalars);
    return hash;
}
