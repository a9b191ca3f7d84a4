/* Which ranks share a copy of the parameters: the keys that say so, and those that contradict each other. */
#include "engine/config/config.h"
#include "tests/check.h"

#define STAGE3(more) "\"zero_optimization\": {\"stage\": 3" more "}"
#define HPZ(ranks) ", \"zero_hpz_partition_size\": " ranks
#define MICS(ranks) ", \"mics_shard_size\": " ranks
#define RESHARD(group) ", \"comm\": {\"reshard_after_forward\": " group "}"

static const struct {
    const char *json;
    uint32_t ranks, nodes; /* nodes: found_node_ranks */
    uint64_t shard_ranks;
    int reshard;
    const char *message;
} meshes[] = {
    {STAGE3(""), 8, 0, 8, RESHARD_ALL, NULL},
    {STAGE3(MICS("-1")), 8, 4, 8, RESHARD_ALL, NULL},
    {STAGE3(MICS("2")), 8, 4, 2, RESHARD_ALL, NULL},
    {STAGE3(MICS("1")), 8, 4, 1, RESHARD_ALL, NULL},
    {STAGE3(MICS("8")), 8, 4, 8, RESHARD_ALL, NULL},
    {STAGE3(MICS("\"auto\"")), 8, 4, 4, RESHARD_ALL, NULL},
    {STAGE3(MICS("\"auto\"")), 8, 0, 8, RESHARD_ALL, NULL},
    {STAGE3(MICS("\"auto\"")) ", \"comm\": {\"node_ranks\": 2}", 8, 4, 2, RESHARD_ALL, NULL},
    /* Of nodes with 4 and 2 ranks, groups of 2 lie in one. */
    {STAGE3(MICS("\"auto\"")) ", \"comm\": {\"node_ranks\": 4}", 6, 0, 2, RESHARD_ALL, NULL},
    {"\"zero_optimization\": {\"stage\": 1" MICS("2") "}", 4, 0, 2, RESHARD_ALL, NULL},
    {STAGE3(HPZ("1")), 8, 4, 8, RESHARD_ALL, NULL},
    {STAGE3(HPZ("2")), 8, 4, 2, RESHARD_GROUP, NULL},
    {STAGE3(HPZ("8")), 8, 4, 8, RESHARD_ALL, NULL},
    {STAGE3(HPZ("\"auto\"")), 8, 4, 4, RESHARD_GROUP, NULL},
    {STAGE3(HPZ("\"auto\"")), 8, 1, 8, RESHARD_ALL, NULL},
    {"\"zero_optimization\": {\"stage\": 2" HPZ("1") "}", 4, 0, 4, RESHARD_ALL, NULL},
    {"\"zero_optimization\": {\"stage\": 2" HPZ("\"auto\"") "}", 4, 2, 4, RESHARD_ALL, NULL},
    {STAGE3("") RESHARD("true"), 8, 4, 8, RESHARD_ALL, NULL},
    {STAGE3("") RESHARD("false"), 8, 4, 8, RESHARD_NONE, NULL},
    {STAGE3("") RESHARD("1"), 1, 0, 1, RESHARD_NONE, NULL},
    {STAGE3("") RESHARD("2"), 8, 4, 2, RESHARD_GROUP, NULL},
    {STAGE3("") RESHARD("8"), 8, 4, 8, RESHARD_ALL, NULL},
    {STAGE3(HPZ("2")) RESHARD("2"), 8, 4, 2, RESHARD_GROUP, NULL},
    {STAGE3(MICS("4")) RESHARD("false"), 8, 4, 4, RESHARD_NONE, NULL},
    {STAGE3(MICS("3")), 8, 4, 0, 0,
     "zero_optimization.mics_shard_size: groups of 3 do not divide 8 ranks: choose a divisor of them, as 2"},
    {STAGE3(MICS("16")), 8, 4, 0, 0,
     "zero_optimization.mics_shard_size: groups of 16 do not divide 8 ranks: choose a divisor of them, as 8"},
    {STAGE3(MICS("0")), 8, 4, 0, 0,
     "zero_optimization.mics_shard_size: a shard group of 0 ranks: give a divisor of the 8 ranks, or -1 for "
     "all of "
     "them"},
    {STAGE3(HPZ("3")), 8, 4, 0, 0,
     "zero_optimization.zero_hpz_partition_size: groups of 3 do not divide 8 ranks: choose a divisor of "
     "them, as 2"},
    {STAGE3("") RESHARD("5"), 8, 4, 0, 0,
     "comm.reshard_after_forward: groups of 5 do not divide 8 ranks: choose a divisor of them, as 4"},
    {STAGE3(HPZ("2")) RESHARD("4"), 8, 4, 0, 0,
     "comm.reshard_after_forward: it contradicts zero_optimization.zero_hpz_partition_size 2: remove one of "
     "them"},
    {STAGE3(HPZ("2") MICS("4")), 8, 4, 0, 0,
     "zero_optimization.zero_hpz_partition_size: a second shard in groups of 2 needs parameters that rest on "
     "all 8 "
     "ranks: remove it, or zero_optimization.mics_shard_size"},
    {"\"zero_optimization\": {\"stage\": 1" HPZ("2") "}", 4, 0, 0, 0,
     "zero_optimization.zero_hpz_partition_size: parameters are whole on every rank at stage 1: set "
     "zero_optimization.stage to 3, or remove it"},
    {"\"zero_optimization\": {\"stage\": 2}" RESHARD("true"), 4, 0, 0, 0,
     "comm.reshard_after_forward: parameters are whole on every rank at stage 2: set zero_optimization.stage "
     "to 3, or "
     "remove it"},
};

static void groups_of_ranks(void) {
    for (size_t i = 0; i < sizeof meshes / sizeof meshes[0]; i++) {
        struct config config;
        struct zero_error error;
        char json[512];
        error_clear(&error);
        snprintf(json, sizeof json, "{\"train_micro_batch_size_per_gpu\": 1, %s}", meshes[i].json);
        CHECK_INT(config_read(json, &config, &error), ZERO_OK);
        config.found_node_ranks = meshes[i].nodes;
        int same = 1;
        for (int again = 0; again < 2 && same; again++) {
            zero_status expected = meshes[i].message ? ZERO_E_CONFIG : ZERO_OK;
            same = CHECK_INT(config_resolve(&config, meshes[i].ranks, &error), expected);
            same &= CHECK_STRING(error.message, meshes[i].message ? meshes[i].message : "");
            if (meshes[i].message) break;
            same &= CHECK_INT(config.shard_ranks, meshes[i].shard_ranks);
            same &= CHECK_INT(config.reshard, meshes[i].reshard);
        }
        if (!same) fprintf(stderr, "in %s on %u ranks\n", json, meshes[i].ranks);
        config_free(&config);
    }
}

static void a_group_is_a_switch_or_a_number(void) {
    static const char *const wrong[] = {"0", "-2", "2.5", "\"true\"", "\"auto\"", "65537", "[2]"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        struct config config;
        struct zero_error error;
        char json[128];
        error_clear(&error);
        snprintf(json, sizeof json, "{\"comm\": {\"reshard_after_forward\": %s}}", wrong[i]);
        if (!CHECK_INT(config_read(json, &config, &error), ZERO_E_CONFIG)) fprintf(stderr, "in %s\n", json);
        CHECK_CONTAINS(error.message, "true, false or a number of ranks");
        config_free(&config);
    }
}

int main(void) {
    groups_of_ranks();
    a_group_is_a_switch_or_a_number();
    return check_end();
}
