/* A simulation is a function of its setup; the effects of faults; and a run of a thousand ranks. */
#include <stdlib.h>

#include "engine/executor/executor_internal.h"
#include "tests/check.h"
#include "tools/sim/sim.h"

/* RING_BYTES: they took 216 KiB for so many units, whatever was on a drive. */
enum { UNITS = 6, RING_BYTES = 96 << 10 };

static struct sim_model model;

static struct sim_setup setup(uint32_t ranks, uint32_t faults) {
    struct speeds_link inside = {100000000000, 100000000000, 5000},
                       between = {10000000000, 10000000000, 20000};
    struct sim_setup s = {.model = &model,
                          .terms = {.stage = &stage_zero3,
                                    .mesh = {ranks, 1},
                                    .accumulation = ACCUMULATE_EVERY,
                                    .micro_steps = 1,
                                    .depth = 1,
                                    .backward_depth = 1,
                                    .live_max = UINT64_MAX,
                                    .ahead_max = UINT64_MAX},
                          .steps = 6,
                          .optimizer = optimizer_find("adamw"),
                          .skip_unit = -1,
                          .seed = 11,
                          .speeds = {1000000000000, 1000000000000, 100000000000, 100000000000, 0, inside,
                                     between, 5000000000, 3000000000, 3000000000, 100000, 8, 0},
                          .chaos_events = UINT64_MAX,
                          .faults = faults,
                          .timeout_ns = 60000000000};
    s.params[0] = s.params[1] = s.optimizer->defaults;
    return s;
}

static struct sim_result run(const struct sim_setup *s) {
    struct sim_result result = {0};
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(sim_run(s, &result, &error), ZERO_OK);
    CHECK_STRING(error.message, "");
    CHECK_STRING(result.error.message, "");
    return result;
}

static uint64_t communication(const struct sim_result *r) {
    return r->wait_ns[WAIT_GATHER] + r->wait_ns[WAIT_REDUCE] + r->wait_ns[WAIT_AGREE];
}

static void the_seed_decides(void) {
    struct sim_setup s = setup(16, 1u << SIM_REORDER | 1u << SIM_DELAY);
    struct sim_result first = run(&s), again = run(&s);
    CHECK(first.schedule == again.schedule && first.end_ns == again.end_ns && first.events == again.events);
    s.seed = 12;
    struct sim_result other = run(&s);
    CHECK(first.schedule != other.schedule);
    CHECK(first.operations == other.operations); /* what is emitted does not depend on what happens when */
    s.terms.depth = s.terms.backward_depth = 2;
    CHECK(run(&s).operations != first.operations);
}

/* Time by hand: one unit, one rank, no communication. */
static void times_add_up(void) {
    struct sim_model one = {0};
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(sim_model_uniform(1, 1000, 500, &one, &error),
              ZERO_OK); /* 1e6 operations forward, 2e6 backward */
    struct sim_setup s = setup(1, 0);
    s.model = &one;
    s.steps = 1;
    s.speeds.device_bytes_per_s = UINT64_MAX / 2;
    struct sim_result r = run(&s);
    CHECK_INT(r.compute_ns, 3000);
    s.faults = 1u << SIM_STRAGGLER;
    r = run(&s);
    CHECK_INT(r.compute_ns, 3000 * r.faults.straggler_percent / 100);
    sim_model_free(&one);
}

/* The step of a GPU whose memory moves a byte in a nanosecond; all else takes next to no time. */
static double step_bytes(uint32_t shard_ranks, uint32_t replicas, uint32_t elements) {
    struct sim_model one = {0};
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(sim_model_uniform(1, elements, 0, &one, &error), ZERO_OK);
    struct sim_setup s = setup(shard_ranks * replicas, 0);
    s.model = &one;
    s.terms.stage = &stage_zero2;
    s.terms.mesh[AXIS_SHARD] = shard_ranks, s.terms.mesh[AXIS_REPLICATE] = replicas;
    s.terms.discrete = true;
    s.speeds.device_bytes_per_s = 1000000000;
    s.speeds.bus_bytes_per_s = s.speeds.update_bytes_per_s = s.speeds.host_bytes_per_s = UINT64_MAX / 64;
    s.speeds.inside = s.speeds.between = (struct speeds_link){UINT64_MAX / 64, UINT64_MAX / 64, 0};
    struct sim_result r = run(&s);
    sim_model_free(&one);
    return (double)r.step_ns / elements;
}

/* By hand, in bytes of an element. The update moves 28: it reads and writes the weight and two moments, and reads the gradient. One rank
 * also sums: 4 read, 4 written. The time of the sum of several ranks is the link's. The norm is taken in that kernel; over replicas it is not
 * that of the first sum, and another kernel reads the shard. */
static void norms_cost_time(void) {
    enum { ELEMENTS = 1 << 20 };
    CHECK_DOUBLE(step_bytes(1, 1, ELEMENTS), 28 + 4 + 4, 0.01);
    CHECK_DOUBLE(step_bytes(2, 1, ELEMENTS), 28.0 / 2, 0.01);
    CHECK_DOUBLE(step_bytes(2, 2, ELEMENTS), (28.0 + 4) / 2, 0.01);
}

/* The step of a GPU whose host updates, in milliseconds per unit. A forward takes 4, a backward 8, an update `update_ms`; all else takes
 * next to no time. An update moves 28 bytes of an element, as above. */
static double window_ms(double share, double update_ms) {
    enum { LAYERS = 24, ELEMENTS = 1 << 18 };
    struct sim_model layers = {0};
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(sim_model_uniform(LAYERS, LAYERS * ELEMENTS, 1, &layers, &error), ZERO_OK);
    struct sim_setup s = setup(1, 0);
    s.model = &layers;
    s.terms.stage = &stage_zero2;
    s.terms.discrete = true, s.terms.state_tier = s.terms.grad_tier = TIER_CPU;
    s.terms.update_in_backward = true, s.terms.waiting_share = share;
    s.speeds.flops_per_s = (uint64_t)(2 * ELEMENTS / 4e-3);
    s.speeds.device_bytes_per_s = UINT64_MAX / 64;
    s.speeds.host_bytes_per_s = (uint64_t)(28 * ELEMENTS / (update_ms * 1e-3));
    s.speeds.inside = s.speeds.between = (struct speeds_link){UINT64_MAX / 64, UINT64_MAX / 64, 0};
    struct sim_result r = run(&s);
    sim_model_free(&layers);
    return (double)r.step_ns / LAYERS * 1e-6;
}

/* Updates in the backward: F + max(B, U), because the first unit's gradient comes last. If a part of them waits for the next forward:
 * nearly max(F + B, U). Where updates are faster than the backward, nothing is gained. */
static void updates_wait_for_the_forward(void) {
    static const double ms[] = {4, 12, 15, 24};
    for (int i = 0; i < 4; i++) {
        double u = ms[i], busy = 4 + (u > 8 ? u : 8), best = u > 12 ? u : 12;
        double all = window_ms(0, u), some = window_ms(u > 8 ? 1 - 8 / u : 0, u);
        CHECK_DOUBLE(all, busy, 0.06);
        CHECK_DOUBLE(some, best, 0.16);
        CHECK(u <= 8 || some < 0.95 * all);
    }
}

static void faults_cost_time(void) {
    struct sim_setup s = setup(16, 0);
    struct sim_result even = run(&s);
    s.faults = 1u << SIM_STRAGGLER;
    struct sim_result late = run(&s);
    CHECK(late.step_ns > even.step_ns * 3 / 2);
    CHECK(communication(&late) > communication(&even)); /* the others wait in collectives */
    s.faults = 1u << SIM_SLOW;
    struct sim_result slow = run(&s);
    CHECK_INT(slow.compute_ns, even.compute_ns);
    CHECK(communication(&slow) > communication(&even));
    s.faults = 1u << SIM_DELAY;
    CHECK(run(&s).step_ns > even.step_ns);
    CHECK_INT(even.ended, 0);
}

static void faults_end_ranks(void) {
    static const struct {
        enum sim_fault fault;
        uint32_t ended; /* of 16 ranks on two nodes */
        uint64_t within_s;
        const char *name;
    } rows[] = {{SIM_LOST, 15, 61, "rank %u has been silent for 60.0 s"},
                {SIM_NODE, 8, 61, "rank %u has been silent for 60.0 s"},
                {SIM_STUCK, 15, 601, "rank %u is alive but did not take its part in "}};
    struct sim_setup s = setup(16, 0);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        for (s.seed = 1; s.seed <= 10; s.seed++) {
            s.faults = 1u << rows[i].fault;
            struct sim_result r = run(&s);
            char name[64];
            snprintf(name, sizeof name, rows[i].name, r.faults.rank[rows[i].fault]);
            CHECK_INT(r.faulted, s.faults);
            CHECK_INT(r.ended, rows[i].ended);
            CHECK_CONTAINS(r.ending, name);
            CHECK_CONTAINS(r.ending, " of h.");
            CHECK(r.ended_ns - r.fault_ns < rows[i].within_s * 1000000000);
        }
    s.faults = 1u << SIM_DRIVE;
    s.terms.state_tier = TIER_NVME;
    s.seed = 3;
    struct sim_result r = run(&s);
    CHECK_INT(r.faulted, 1u << SIM_DRIVE);
    CHECK_INT(r.ended, 16);
    CHECK_CONTAINS(r.ending, "virtual drive of rank ");
}

static void wrong_setups_are_refused(void) {
    struct sim_setup s = setup(16, 1u << SIM_DRIVE);
    struct sim_result result;
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(sim_run(&s, &result, &error), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(error.message, "there is no drive to fail");
    s = setup(0, 0);
    error_clear(&error);
    CHECK_INT(sim_run(&s, &result, &error), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(error.message, "a mesh of 0 x 1 ranks");
}

static void a_thousand_ranks(void) {
    struct sim_setup s = setup(1024, 0);
    s.steps = 2;
    struct sim_result full = run(&s);
    s.terms.mesh[AXIS_SHARD] = 8, s.terms.mesh[AXIS_REPLICATE] = 128;
    struct sim_result hybrid = run(&s);
    CHECK(hybrid.planned_bytes[TIER_DEVICE] > full.planned_bytes[TIER_DEVICE]);
    CHECK(hybrid.wait_ns[WAIT_GATHER] < full.wait_ns[WAIT_GATHER]); /* gathers stay inside nodes */
}

struct overlap {
    uint32_t reductions, both; /* the most at a time: reductions; reductions, while a gather was under way */
};

static uint32_t under_way(const struct executor *e, enum stream stream, enum operation_kind kind) {
    const struct timeline *line = &e->stream[stream];
    uint32_t count = 0;
    for (uint64_t i = line->retired; i < line->started; i++) {
        const struct item *item = item_at(line, i);
        count += item->task->op.kind == kind && !item->done && !item->waits;
    }
    return count;
}

static void watch_overlap(void *user, uint32_t rank, struct executor *executor) {
    struct overlap *o = user;
    uint32_t reductions = under_way(executor, STREAM_REDUCE, OP_REDUCE);
    uint32_t gathers = under_way(executor, STREAM_GATHER, OP_GATHER);
    if (reductions > o->reductions) o->reductions = reductions;
    if (gathers && reductions > o->both) o->both = reductions;
}

/* There are two staging buffers, so two reductions are under way at a time, and a gather of a gradient beside them. */
static void collectives_overlap(void) {
    static const struct {
        const struct stage *stage;
        enum accumulation accumulation;
    } rows[] = {{&stage_zero0, ACCUMULATE_LAST},
                {&stage_zero0, ACCUMULATE_EVERY},
                {&stage_zero2, ACCUMULATE_EVERY},
                {&stage_zero3, ACCUMULATE_EVERY}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct overlap overlap = {0};
        struct sim_sabotage watch = {.user = &overlap, .polled = watch_overlap};
        struct sim_setup s = setup(4, 0);
        s.terms.stage = rows[i].stage, s.terms.accumulation = rows[i].accumulation;
        s.speeds.flops_per_s *= 100000; /* the network is slower than the computing */
        s.staging = true;
        s.sabotage = &watch;
        run(&s);
        CHECK_INT(overlap.reductions, 2);
        if (rows[i].stage == &stage_zero0) CHECK_INT(overlap.both, 2);
    }
}

/* ---- what a rank takes ---- */

struct taken {
    uint64_t ring_bytes;
    const uint32_t *members; /* of the last executor's gathers */
    uint32_t lists;          /* how often it was another list than before */
};

static void take(void *user, uint32_t rank, struct executor *e) {
    struct taken *t = user;
    const struct comm_group *group = e->o.shape.group[AXES_SHARD][STREAM_GATHER];
    t->lists += comm_group_ranks(group) != t->members;
    t->members = comm_group_ranks(group);
    t->ring_bytes = 0;
    for (int s = 0; s < STREAMS; s++)
        t->ring_bytes +=
            e->stream[s].tasks * sizeof(struct task) + e->stream[s].capacity * sizeof(struct item);
}

/* Rings have room for what comes to them: without a drive little for its streams. All ranks of a group have one list of its members,
 * so that the lists of N ranks take no N x N bytes. */
static void ranks_take_little(void) {
    struct taken memory = {0}, drive = {0};
    struct sim_setup s = setup(8, 0);
    s.sabotage = &(struct sim_sabotage){.user = &memory, .polled = take};
    run(&s);
    CHECK_INT(memory.lists, 1);
    if (!CHECK(memory.ring_bytes < RING_BYTES)) fprintf(stderr, "%d bytes\n", (int)memory.ring_bytes);
    s.sabotage = &(struct sim_sabotage){.user = &drive, .polled = take};
    s.terms.state_tier = TIER_NVME;
    run(&s);
    CHECK(drive.ring_bytes > memory.ring_bytes);
}

int main(void) {
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(sim_model_uniform(UNITS, 60000000, 2000, &model, &error), ZERO_OK);
    the_seed_decides();
    times_add_up();
    norms_cost_time();
    updates_wait_for_the_forward();
    faults_cost_time();
    faults_end_ranks();
    wrong_setups_are_refused();
    collectives_overlap();
    ranks_take_little();
    a_thousand_ranks();
    sim_model_free(&model);
    return check_end();
}
