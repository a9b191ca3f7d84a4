#include "engine/groups.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/glob.h"

_Static_assert((int)CONFIG_GROUPS_MAX + 1 == (int)GROUP_MAX, "the configuration's groups fit");
_Static_assert((int)CONFIG_MATCH_MAX <= 64, "a word has a bit for each pattern");

static void add_group(zero_engine *e, double lr, double weight_decay) {
    struct optimizer_params *p = &e->params[e->groups++];
    *p = e->params[0];
    if (lr >= 0) p->lr = lr;
    if (weight_decay >= 0) p->weight_decay = weight_decay;
}

void groups_open(zero_engine *e) {
    const struct config_groups *groups = &e->config.groups;
    e->groups = 1;
    for (uint32_t g = 0; g < groups->count; g++)
        add_group(e, groups->item[g].lr, groups->item[g].weight_decay);
}

zero_status zero_engine_add_group(zero_engine *e, const zero_group *group, int *out) {
    zero_status status = engine_check_declaring(e, "zero_engine_add_group");
    if (status) return status;
    if (!group || !out) return refuse(ZERO_E_ARGUMENT, "zero_engine_add_group: group or out is NULL");
    zero_group given = {0};
    memcpy(&given, group, group->struct_size < sizeof given ? group->struct_size : sizeof given);
    if (isnan(given.lr) || isinf(given.lr) || isnan(given.weight_decay) || isinf(given.weight_decay))
        return refuse(ZERO_E_ARGUMENT, "zero_engine_add_group: lr %g and weight_decay %g must be finite",
                      given.lr, given.weight_decay);
    if (e->groups == GROUP_MAX)
        return refuse(ZERO_E_ARGUMENT,
                      "zero_engine_add_group: there are %d already, group 0 and param_groups included",
                      GROUP_MAX);
    *out = (int)e->groups;
    add_group(e, given.lr, given.weight_decay);
    return ZERO_OK;
}

/* The bits of the group's patterns that match. */
static uint64_t matching(const struct config_group *group, const char *name) {
    uint64_t bits = 0;
    for (uint32_t i = 0; i < group->match_count; i++)
        bits |= (uint64_t)glob_matches(group->match[i], name) << i;
    return bits;
}

/* A tied parameter has its owner's group and flags, whatever its own name says. */
static void assign_tied(const zero_engine *e, zero_param *param) {
    const struct model_param *owner = model_find(&e->model, param->tied_to);
    param->group = 0;
    if (owner && param->flags) param->flags |= owner->flags & ZERO_FROZEN;
}

zero_status groups_assign(zero_engine *e, zero_param *param) {
    const struct config_groups *groups = &e->config.groups;
    bool taken = false;
    if (param->group >= e->groups)
        return refuse(ZERO_E_ARGUMENT,
                      "parameter \"%s\": there is no group %" PRIu32 "; there are %" PRIu32 ", from 0",
                      param->name ? param->name : "", param->group, e->groups);
    if (param->tied_to) return assign_tied(e, param), ZERO_OK;
    for (uint32_t g = 0; g < groups->count && param->name; g++) {
        uint64_t bits = matching(&groups->item[g], param->name);
        e->matched[g] |= bits;
        if (!bits || taken) continue;
        taken = true;
        param->group = g + 1;
        if (groups->item[g].frozen) param->flags |= ZERO_FROZEN;
    }
    return ZERO_OK;
}

/* ---- what must hold at commit ---- */

static zero_status unmatched(const zero_engine *e, uint32_t g, uint32_t index, struct zero_error *error) {
    const char *pattern = e->config.groups.item[g].match[index], *nearest = "";
    uint32_t best = UINT32_MAX;
    for (uint32_t i = 0; i < e->model.params; i++) {
        const struct model_param *p = &e->model.param[i];
        uint32_t distance = glob_distance(pattern, p->name);
        if (!distance) /* it would have matched, were the name not another's */
            return error_set(error, ZERO_E_CONFIG,
                             "param_groups[%" PRIu32 "].match: \"%s\" is tied to \"%s\": write that name", g,
                             p->name, e->model.param[p->owner].name);
        if (p->owner == i && distance < best) best = distance, nearest = p->name;
    }
    return error_set(error, ZERO_E_CONFIG,
                     "param_groups[%" PRIu32
                     "].match: no parameter's name matches \"%.200s\"; the nearest is \"%s\"",
                     g, pattern, nearest);
}

static zero_status check_patterns(const zero_engine *e, uint32_t g, struct zero_error *error) {
    const struct config_group *group = &e->config.groups.item[g];
    for (uint32_t i = 0; i < group->match_count; i++)
        if (!(e->matched[g] >> i & 1)) return unmatched(e, g, i, error);
    for (uint32_t i = 0; i < e->model.params; i++)
        if (e->model.param[i].scalars / 2 == g + 1) return ZERO_OK;
    return error_set(error, ZERO_E_CONFIG,
                     "param_groups[%" PRIu32
                     "]: earlier groups have all parameters that it matches: move it up, or remove it",
                     g);
}

/* A number for all groups would take the place of what this group was given. */
static zero_status check_own_lr(const zero_engine *e, const char *path, struct zero_error *error) {
    for (uint32_t g = 0; g < e->config.groups.count; g++)
        if (e->config.groups.item[g].lr >= 0)
            return error_set(error, ZERO_E_CONFIG,
                             "param_groups[%" PRIu32
                             "].lr: scheduler.params.%s sets the lr of all groups: give it a "
                             "list of %" PRIu32 " numbers, group 0's first, or remove lr",
                             g, path, e->groups);
    return ZERO_OK;
}

static zero_status check_numbers(const zero_engine *e, const char *path, const struct lr_numbers *numbers,
                                 struct zero_error *error) {
    if (!numbers->each || numbers->count == e->groups) return ZERO_OK;
    return error_set(error, ZERO_E_CONFIG,
                     "scheduler.params.%s: %" PRIu32 " numbers for %" PRIu32
                     " parameter groups: give one for each, group 0's first, or one number",
                     path, numbers->count, e->groups);
}

static zero_status check_schedule(const zero_engine *e, struct zero_error *error) {
    const struct lr_schedule_params *p = &e->schedule;
    const struct {
        const char *path;
        const struct lr_numbers *numbers;
        bool sets_lr;
    } lists[] = {
        {"warmup_min_lr", &p->warmup_min_lr, false},      {"warmup_max_lr", &p->warmup_max_lr, true},
        {"lr_range_test_min_lr", &p->range_min_lr, true}, {"cycle_min_lr", &p->cycle_min_lr, false},
        {"cycle_max_lr", &p->cycle_max_lr, true},         {"cycle_min_mom", &p->cycle_min_mom, false},
        {"cycle_max_mom", &p->cycle_max_mom, false}};
    zero_status status = ZERO_OK;
    for (size_t i = 0; i < sizeof lists / sizeof *lists && !status && e->config.schedule_kind != LR_NONE;
         i++) {
        status = check_numbers(e, lists[i].path, lists[i].numbers, error);
        if (!status && lists[i].sets_lr && lists[i].numbers->count && !lists[i].numbers->each)
            status = check_own_lr(e, lists[i].path, error);
    }
    return status;
}

zero_status groups_check(const zero_engine *e, struct zero_error *error) {
    zero_status status = ZERO_OK;
    for (uint32_t g = 0; g < e->config.groups.count && !status; g++) status = check_patterns(e, g, error);
    return status ? status : check_schedule(e, error);
}

/* Not lr and betas, which are rank 0's on all ranks. */
uint64_t groups_hash(const zero_engine *e, uint64_t hash) {
    hash = hash_string(hash, e->optimizer->name);
    for (uint32_t g = 0; g < e->groups; g++)
        hash = hash_bytes(hash, &e->params[g].weight_decay, sizeof e->params[g].weight_decay);
    for (uint32_t i = 0; i < e->model.params; i++)
        hash = hash_bytes(hash, &e->model.param[i].scalars, sizeof e->model.param[i].scalars);
    return hash;
}
