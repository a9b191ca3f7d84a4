/* Parameter groups: which parameters are in which group, and what each group's update is given. Group 0 has every parameter
 * that no other group takes; the configuration's groups follow, then the host program's. */
#pragma once

#include "engine/config/config.h"
#include "engine/model/model.h"
#include "kernels/optimizer.h"

struct param_groups {
    const struct config_groups *config;
    struct optimizer_params params[GROUP_MAX]; /* as given, before any schedule */
    /* The optimizer of the groups that name one in place of the run's; all these groups have the same. NULL: no group
     * names one. */
    const struct optimizer *other;
    bool uses_other[GROUP_MAX];
    uint32_t count;
    uint64_t matched[GROUP_MAX]; /* by group of the configuration: the patterns that a parameter matched */
    uint64_t elsewhere;          /* a bit for each group that has a parameter on another model rank */
};

/* `first`: what group 0 is given; the other groups are given it too, unless the configuration says otherwise. */
void groups_open(struct param_groups *groups, const struct config_groups *config,
                 const struct optimizer_params *first);

/* Adds a group of the host program. */
zero_status groups_add(struct param_groups *groups, const zero_group *group, int *out,
                       struct zero_error *error);

/* Sets the group and the flags of a parameter that the host declares, by the configuration's patterns. */
zero_status groups_assign(struct param_groups *groups, const struct model *model, zero_param *param,
                          struct zero_error *error);

/* Marks the parameters that the other optimizer updates, and sets the codes of each parameter's gathers: `code`, or the group's
 * own. Call it after groups_check, before model_lay_out. */
void groups_mark(const struct param_groups *groups, enum code_format code, struct model *model);

/* Call it once all parameters are declared. Checks that every pattern matches a parameter, every group has a parameter,
 * the groups name at most one other optimizer, and every list of the scheduler has a number for each group. */
zero_status groups_check(const struct param_groups *groups, const struct model *model,
                         const struct config *config, struct zero_error *error);

/* A hash of the settings, beside the model, that must be equal on all ranks. lr and betas are not in it, because all
 * ranks use those of rank 0. */
uint64_t groups_hash(const struct param_groups *groups, const struct model *model, uint64_t hash);
/* The part of this hash that must also be equal on model ranks, which have other parameters. */
uint64_t groups_settings_hash(const struct param_groups *groups, uint64_t hash);
