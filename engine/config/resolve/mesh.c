/* Resolves the keys that cut the world into groups to a mesh (shard axis x replicate axis), and to the treatment of
 * gathered parameters after a forward. Several keys can give the same mesh: DeepSpeed's keys (MiCS, ZeRO++'s hpZ) and
 * FSDP's reshard_after_forward. */
#include "engine/config/resolve/resolve.h"

#include "stages/stage.h"

#define MICS "zero_optimization.mics_shard_size"
#define HPZ "zero_optimization.zero_hpz_partition_size"
#define RESHARD "comm.reshard_after_forward"
#define NODE "comm.node_ranks"

bool config_shards_params(const struct config *config) {
    return stage_shards_params(stage_find((uint32_t)config->stage, RESHARD_ALL));
}

static bool has_row(const struct config *config, enum reshard reshard) {
    return stage_find((uint32_t)config->stage, reshard) != NULL;
}

static uint32_t common_divisor(uint64_t a, uint64_t b) {
    while (b) {
        uint64_t rest = a % b;
        a = b, b = rest;
    }
    return (uint32_t)a;
}

static uint64_t divisor_below(uint32_t ranks, uint64_t group) {
    while (ranks % group) group--;
    return group;
}

static zero_status check_group(const char *path, uint64_t group, uint32_t ranks, struct zero_error *error) {
    if (ranks % group == 0) return ZERO_OK;
    return error_set(error, ZERO_E_CONFIG,
                     "%s: groups of %llu do not divide %lu ranks: choose a divisor of them, as %llu", path,
                     (unsigned long long)group, (unsigned long)ranks,
                     (unsigned long long)divisor_below(ranks, group < ranks ? group : ranks));
}

static zero_status resolve_node(struct config *config, uint32_t ranks, struct zero_error *error) {
    uint64_t of = config_written(config, NODE) ? config->comm.node_ranks : config->found_node_ranks;
    config->node_group = of ? common_divisor(ranks, of) : ranks;
    return config_derived_int(config, NODE, of ? of : ranks, error);
}

/* The number of ranks per shard group; all ranks if no key is written. */
static zero_status resolve_shards(struct config *config, uint32_t ranks, struct zero_error *error) {
    config->shard_ranks = ranks;
    if (config_automatic(config, MICS)) {
        config->shard_ranks = config->node_group;
        return config_derived_int(config, MICS, config->node_group, error);
    }
    if (!config_written(config, MICS) || config->mics_shard_size < 0) return ZERO_OK;
    if (config->mics_shard_size == 0)
        return error_set(error, ZERO_E_CONFIG,
                         MICS
                         ": a shard group of 0 ranks: give a divisor of the %lu ranks, or -1 for all of them",
                         (unsigned long)ranks);
    config->shard_ranks = (uint64_t)config->mics_shard_size;
    return check_group(MICS, config->shard_ranks, ranks, error);
}

/* *out_group: the number of ranks of hpZ's second shard; 0: there is no second shard. A group of one rank has no second
 * shard. "auto" gives none at a stage that has none: below stage 3 parameters are whole at rest. */
static zero_status resolve_hpz(struct config *config, uint64_t *out_group, struct zero_error *error) {
    uint64_t ranks = config_written(config, HPZ) ? config->hpz_ranks : 1;
    if (config_automatic(config, HPZ)) ranks = has_row(config, RESHARD_GROUP) ? config->node_group : 1;
    *out_group = ranks > 1 ? ranks : 0;
    return config_automatic(config, HPZ) ? config_derived_int(config, HPZ, ranks, error) : ZERO_OK;
}

/* The number of ranks among which parameters are cut between forward and backward. 0: as at rest; 1: not cut. */
static zero_status resolve_group(struct config *config, uint32_t ranks, struct zero_error *error) {
    uint64_t group;
    bool reshard = config_written(config, RESHARD);
    zero_status status = resolve_hpz(config, &group, error);
    if (!status && reshard && group && group != config->comm.reshard_ranks)
        status = error_set(error, ZERO_E_CONFIG, RESHARD ": it contradicts " HPZ " %llu: remove one of them",
                           (unsigned long long)group);
    const char *path = reshard ? RESHARD : HPZ;
    if (reshard) group = config->comm.reshard_ranks;
    config->reshard = RESHARD_ALL;
    if (status || (!group && !reshard)) return status;
    if (!config_shards_params(config))
        return error_set(error, ZERO_E_CONFIG,
                         "%s: parameters are whole on every rank at stage %llu: set zero_optimization.stage "
                         "to %u, or remove it",
                         path, (unsigned long long)config->stage, stage_first(stage_shards_params));
    if (group) status = check_group(path, group, ranks, error);
    if (status || !group || (group == ranks && ranks > 1)) return status;
    enum reshard wanted = group == 1 ? RESHARD_NONE : RESHARD_GROUP;
    if (!has_row(config, wanted))
        return error_set(error, ZERO_E_CONFIG, "%s: stage %llu does not support this value: remove it", path,
                         (unsigned long long)config->stage);
    config->reshard = wanted;
    if (wanted == RESHARD_NONE) return ZERO_OK;
    if (config->shard_ranks != ranks)
        return error_set(error, ZERO_E_CONFIG,
                         "%s: a second shard in groups of %llu needs parameters that rest on all %lu ranks: "
                         "remove it, or " MICS,
                         path, (unsigned long long)group, (unsigned long)ranks);
    config->shard_ranks = group;
    return ZERO_OK;
}

zero_status config_resolve_mesh(struct config *config, uint32_t ranks, struct zero_error *error) {
    zero_status status = resolve_node(config, ranks, error);
    if (!status) status = resolve_shards(config, ranks, error);
    return status ? status : resolve_group(config, ranks, error);
}
