/* Tests that are specific to transport sim: poison, buffers that are touched too early, calls without data, many ranks
 * in this thread. */
#include "engine/comm/local/sim.h"

#include <math.h>
#include <stdlib.h>

#include "engine/comm/comm.h"
#include "kernels/quantize.h"
#include "tests/check.h"

enum { PAIR = 2, MANY = 1000, COUNT = 8 };

struct ranks {
    struct sim_world *world;
    uint32_t count;
    struct comm *comms[MANY];
    struct comm_group *groups[MANY];
    struct comm_work *works[MANY];
};

static struct ranks r;

static void start_world(uint32_t count, const struct sim_options *options) {
    uint32_t members[MANY];
    struct zero_error error;
    r.count = count;
    r.world = sim_world_create(options);
    for (uint32_t i = 0; i < count; i++) members[i] = i;
    for (uint32_t i = 0; i < count; i++) {
        error_clear(&error);
        CHECK_INT(comm_open(&comm_sim_ops, &(struct comm_options){.rank = i, .size = count, .sim = r.world},
                            &r.comms[i], &error),
                  ZERO_OK);
        CHECK_INT(comm_group_open(r.comms[i], members, count, &r.groups[i]), ZERO_OK);
    }
}

static void start(uint32_t count, double completion, bool without_data) {
    start_world(count,
                &(struct sim_options){
                    .ranks = count, .seed = 3, .completion = completion, .without_data = without_data});
}

static void end(void) {
    for (uint32_t i = 0; i < r.count; i++) comm_group_close(r.groups[i]), comm_close(r.comms[i]);
    sim_world_destroy(r.world);
}

/* Tests all until all are done or one fails. */
static zero_status finish(void) {
    bool done[MANY] = {false};
    for (uint32_t left = r.count; left;)
        for (uint32_t i = 0; i < r.count; i++) {
            if (done[i]) continue;
            zero_status status = comm_test(r.works[i], &done[i]);
            if (status != ZERO_OK) return status;
            left -= done[i];
        }
    return ZERO_OK;
}

static float buffers[PAIR][PAIR * COUNT], staging[PAIR][PAIR * COUNT];

static struct comm_call in_place_gather(uint32_t rank) {
    return (struct comm_call){.kind = COMM_ALL_GATHER,
                              .count = COUNT,
                              .what = "h.0",
                              .source = buffers[rank] + rank * COUNT,
                              .target = buffers[rank]};
}

static void post_gathers(void) {
    for (uint32_t rank = 0; rank < PAIR; rank++) {
        for (int i = 0; i < COUNT; i++) buffers[rank][rank * COUNT + i] = (float)(rank + 1);
        struct comm_call call = in_place_gather(rank);
        CHECK_INT(comm_post(r.groups[rank], &call, &r.works[rank]), ZERO_OK);
    }
}

static void poisons_outputs(void) {
    start(PAIR, 0.2, false);
    post_gathers();
    CHECK(isnan(buffers[0][COUNT]) && isnan(buffers[1][0]));
    CHECK_DOUBLE(buffers[0][0], 1, 0);
    CHECK_DOUBLE(buffers[1][COUNT], 2, 0);
    CHECK_INT(finish(), ZERO_OK);
    CHECK_DOUBLE(buffers[0][2 * COUNT - 1], 2, 0);
    CHECK_DOUBLE(buffers[1][0], 1, 0);
    end();
}

static void keeps_targets_of_add(void) {
    float target[PAIR][COUNT] = {{5, 5}, {5, 5}};
    start(PAIR, 0.2, false);
    for (uint32_t rank = 0; rank < PAIR; rank++) {
        for (int i = 0; i < PAIR * COUNT; i++) buffers[rank][i] = 1;
        struct comm_call call = {.kind = COMM_REDUCE_SCATTER,
                                 .count = COUNT,
                                 .source = buffers[rank],
                                 .target = target[rank],
                                 .staging = staging[rank],
                                 .add = true};
        CHECK_INT(comm_staging_bytes(r.groups[rank], &call), sizeof staging[rank]);
        CHECK_INT(comm_post(r.groups[rank], &call, &r.works[rank]), ZERO_OK);
    }
    CHECK_DOUBLE(target[0][0], 5, 0);
    CHECK(isnan(staging[0][0]));
    CHECK_INT(finish(), ZERO_OK);
    CHECK_DOUBLE(target[0][1], 7, 0);
    CHECK_DOUBLE(target[1][COUNT - 1], 2, 0);
    end();
}

static void finds_touched_buffers(void) {
    for (int which = 0; which < 2; which++) {
        start(PAIR, 0.2, false);
        post_gathers();
        buffers[0][which ? COUNT : 0] = 9; /* the target, or the source, which is part of it */
        CHECK_INT(finish(), ZERO_E_INTERNAL);
        CHECK_CONTAINS(comm_error(r.comms[0])->message,
                       "buffer of all-gather of h.0 (8 x fp32), call 0 of group 0 was "
                       "overwritten between post and completion");
        end();
    }
}

static void many_ranks_without_data(void) {
    struct comm_call call = {.kind = COMM_REDUCE_SCATTER, .count = 1 << 20, .what = "h.5"};
    start(MANY, 0.5, true);
    for (int round = 0; round < 3; round++) {
        for (uint32_t i = 0; i < MANY; i++) CHECK_INT(comm_post(r.groups[i], &call, &r.works[i]), ZERO_OK);
        CHECK_INT(finish(), ZERO_OK);
    }
    call.count = 7;
    CHECK_INT(comm_post(r.groups[0], &call, &r.works[0]), ZERO_OK);
    call.count = 8;
    CHECK_INT(comm_post(r.groups[MANY - 1], &call, &r.works[1]), ZERO_E_DIVERGED);
    CHECK_CONTAINS(comm_error(r.comms[MANY - 1])->message,
                   "rank 0 posted reduce-scatter of h.5 (7 x fp32), call 3 of group 0, where rank 999 posted "
                   "reduce-scatter of h.5 (8 x fp32), call 3 of group 0");
    end();
}

/* Two ranks post to two groups in different orders; a third rank, which is in one of them, may post when it wants. */
static void finds_another_order(void) {
    enum { THREE = 3 };
    static const uint32_t members[THREE] = {0, 1, 2};
    static const uint32_t order[2][2][2] = {{{0, 1}, {0, 1}}, {{0, 1}, {1, 0}}}; /* of the pair's ranks */
    for (int wrong = 0; wrong < 2; wrong++) {
        struct comm *comms[THREE];
        struct comm_group *groups[THREE][2] = {{NULL}};
        struct comm_work *work;
        struct zero_error error;
        struct sim_world *world = sim_world_create(&(struct sim_options){
            .ranks = THREE, .seed = 3, .completion = 1, .without_data = true, .one_order = true});
        error_clear(&error);
        for (uint32_t i = 0; i < THREE; i++) {
            struct comm_options options = {.rank = i, .size = THREE, .sim = world};
            CHECK_INT(comm_open(&comm_sim_ops, &options, &comms[i], &error), ZERO_OK);
            CHECK_INT(comm_group_open(comms[i], members, THREE, &groups[i][0]), ZERO_OK);
            if (i < PAIR) CHECK_INT(comm_group_open(comms[i], members, PAIR, &groups[i][1]), ZERO_OK);
        }
        struct comm_call call = {.kind = COMM_BARRIER, .what = "h.7"};
        zero_status status = comm_post(groups[2][0], &call, &work);
        for (uint32_t i = 0; i < PAIR; i++)
            for (int k = 0; k < 2 && !status; k++)
                status = comm_post(groups[i][order[wrong][i][k]], &call, &work);
        CHECK_INT(status, wrong ? ZERO_E_DIVERGED : ZERO_OK);
        for (uint32_t i = 0; i < THREE; i++) {
            comm_group_close(groups[i][1]), comm_group_close(groups[i][0]);
            comm_close(comms[i]);
        }
        sim_world_destroy(world);
    }
}

/* Four ranks of two nodes. */
static void tells_codes_apart(void) {
    struct comm_call call = {.kind = COMM_REDUCE_SCATTER,
                             .dtype = DTYPE_U8,
                             .target_dtype = DTYPE_F32,
                             .count = COUNT,
                             .code = CODE_INT8,
                             .what = "h.8"};
    for (int native = 0; native < 2; native++) {
        start_world(4, &(struct sim_options){
                           .ranks = 4, .seed = 3, .completion = 1, .without_data = true, .levels = true});
        for (uint32_t i = 0; i < r.count; i++) comm_group_place(r.groups[i], 2, 1);
        call.code = CODE_INT8, call.native = native;
        CHECK_INT(comm_post(r.groups[0], &call, &r.works[0]), native ? ZERO_E_ARGUMENT : ZERO_OK);
        call.code = CODE_INT4, call.native = false;
        if (!native) {
            CHECK_INT(comm_post(r.groups[1], &call, &r.works[1]), ZERO_E_DIVERGED);
            CHECK_CONTAINS(comm_error(r.comms[1])->message, "(8 x int4 into fp32)");
        }
        end();
    }
}

static void refuses_a_blocking_call(void) {
    start(PAIR, 1, true);
    CHECK_INT(comm_run(r.groups[0], &(struct comm_call){.kind = COMM_BARRIER}), ZERO_E_UNSUPPORTED);
    end();
}

/* The first to post a call has closed its group, and another member waits in the call for a third one. */
static void stuck_after_a_close(void) {
    const struct comm_call barrier = {.kind = COMM_BARRIER, .what = "a barrier"};
    start(3, 1, false);
    for (uint32_t i = 0; i < 2; i++) {
        CHECK_INT(comm_post(r.groups[i], &barrier, &r.works[i]), ZERO_OK);
        if (!i) comm_group_close(r.groups[0]), r.groups[0] = NULL;
    }
    CHECK(!sim_raise_stuck(r.comms[2], 1, 1));
    CHECK(!sim_raise_stuck(r.comms[1], 0, 1));
    CHECK(sim_raise_stuck(r.comms[1], 2, 1));
    bool done;
    CHECK_INT(comm_test(r.works[1], &done), ZERO_E_PEER);
    CHECK_CONTAINS(comm_error(r.comms[1])->message, "rank 2");
    end();
}

int main(void) {
    poisons_outputs();
    keeps_targets_of_add();
    finds_touched_buffers();
    many_ranks_without_data();
    finds_another_order();
    tells_codes_apart();
    refuses_a_blocking_call();
    stuck_after_a_close();
    return check_end();
}
