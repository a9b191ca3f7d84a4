/* The turn from a backward to the next forward, where the host updates for a discrete device: what a step waits for, which state is on the
 * device, and how many threads update. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "engine/api/inside.h"
#include "engine/blueprint/blueprint.h"
#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_trainer.h"

#define CPU "\"offload_optimizer\": {\"device\": \"cpu\"}"
#define RATIO "\"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 1.0}"
#define NVME                                                                                                 \
    "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"/tmp\"}, \"sub_group_size\": 1024"

/* ---- a copy that stands still ---- */

enum { POLLS_MAX = 5000, FIRST = 0 /* the region whose gradient comes last */ };

/* Guarded by the engine's lock. */
static struct {
    struct device_ops ops;
    const struct device_ops *real;
    zero_engine *engine;
    uint64_t ticket; /* of the copy of the first region's gradient to the host */
    uint32_t copies, polls;
    bool still;
} hold;

static zero_status hold_copy(struct device *device, enum device_stream stream, void *target,
                             const void *source, uint64_t bytes, uint64_t *out_ticket,
                             struct zero_error *error) {
    zero_status status = hold.real->copy(device, stream, target, source, bytes, out_ticket, error);
    bool last = hold.still && stream == DEVICE_OUT &&
                target == executor_grad_shard(engine_running(hold.engine)->executor, FIRST);
    if (last) hold.ticket = *out_ticket, hold.copies++;
    return status;
}

/* An agreement that waits for the copy ends after so many polls. */
static zero_status hold_test(struct device *device, uint64_t ticket, bool *out_done,
                             struct zero_error *error) {
    zero_status status = hold.real->test(device, ticket, out_done, error);
    if (!hold.still || !hold.ticket || ticket != hold.ticket) return status;
    hold.polls += !executor_agreed(engine_running(hold.engine)->executor);
    *out_done &= hold.polls >= POLLS_MAX;
    return status;
}

static zero_status stand_still(zero_engine *engine, uint32_t steps, void *user) {
    struct running *run = engine_running(engine);
    if (!run->discrete) return ZERO_OK;
    fair_lock_take(&run->ranks->lock);
    if (steps == 0) {
        hold.real = run->device->ops, hold.ops = *hold.real;
        hold.ops.copy = hold_copy, hold.ops.test = hold_test;
        run->device->ops = &hold.ops;
        hold.engine = engine, hold.still = true;
        hold.ticket = 0, hold.copies = hold.polls = 0;
    }
    if (steps == 1) hold.still = false;
    fair_lock_give(&run->ranks->lock);
    return ZERO_OK;
}

/* A step ends while the last gradient is on its way to the host; its update waits for it. Where no reduction is known to be the step's
 * last one, as by_program from stage 2 on, the norm is taken from the host's memory, so that the step waits. */
static void agreement(void) {
    static struct toy_result expected, got;
    for (uint32_t row = 0; row < 6; row++) {
        struct toy_setup s = toy_setup_default();
        uint32_t stage = 1 + row % 3;
        bool by_program = row >= 3;
        s.stage = stage, s.ranks = 1, s.steps = 3, s.tiers = CPU, s.between = stand_still;
        if (by_program) s.extra = ", \"gradient_accumulation_by_program\": true";
        toy_train(&s, &expected);
        s.device = "sim", s.seed = 1;
        toy_train(&s, &got);
        int good = CHECK_STRING(got.error, "") & CHECK_STRING(got.hash, expected.hash);
        good &= CHECK_INT(hold.copies, 1) & CHECK_INT(hold.polls < POLLS_MAX, !by_program || stage == 1);
        for (uint32_t i = 0; i < s.steps; i++) good &= CHECK_DOUBLE(got.norm[i], expected.norm[i], 0);
        if (!good) fprintf(stderr, "in row %u\n", row);
    }
}

/* ---- state on the device ---- */

struct placed {
    uint64_t device_state, first; /* bytes of state on the device; chunks of the first region there */
    uint64_t to_host;             /* bytes that crossed */
};

static void read_placed(zero_engine *engine, void *user) {
    struct placed *out = user;
    const struct plan *plan = &engine_blueprint(engine)->plan;
    CHECK_INT(zero_engine_flush(engine), ZERO_OK);
    if (zero_engine_rank(engine)) return;
    *out = (struct placed){plan->layout.device_bytes, plan->layout.region[FIRST].device,
                           executor_traffic(engine_running(engine)->executor).to_host_bytes};
}

static struct placed placed_with(struct toy_setup s, const char *tiers, uint64_t device_bytes,
                                 struct toy_result *out) {
    struct placed placed = {0};
    char extra[200] = "";
    if (device_bytes)
        snprintf(extra, sizeof extra, ", \"memory\": {\"device\": \"%llu\"}",
                 (unsigned long long)device_bytes);
    s.tiers = tiers, s.extra = extra, s.after = read_placed, s.user = &placed;
    toy_train(&s, out);
    CHECK_STRING(out->error, "");
    return placed;
}

/* The state of the first units fills the budget of the device, and the bits stay. */
static void state_fills_the_budget(void) {
    static struct toy_result plain, filled, all;
    static const char *const tiers[] = {CPU, NVME};
    for (uint32_t i = 0; i < 8; i++) {
        struct toy_setup s = toy_setup_default();
        s.stage = 2 + i % 2, s.ranks = 2, s.steps = 3, s.device = "sim", s.seed = 1;
        s.compute = i / 2 % 2 ? ZERO_BF16 : ZERO_F32, s.updates = i % 2, s.clip = s.updates ? 0 : s.clip;
        const char *where = tiers[i / 4];
        struct placed none = placed_with(s, where, 0, &plain);
        uint64_t budget = plain.planned[ZERO_DEVICE] + 60000;
        struct placed some = placed_with(s, where, budget, &filled);
        struct placed whole = i / 4 ? none : placed_with(s, RATIO, budget, &all);
        int good = CHECK_INT(none.device_state, 0) & CHECK_INT(whole.device_state, 0);
        good &= CHECK(some.device_state > 0) & CHECK(some.first > 0);
        good &= CHECK(filled.planned[ZERO_DEVICE] <= budget);
        good &= CHECK(some.to_host < none.to_host) & CHECK_STRING(filled.hash, plain.hash);
        for (int t = 0; t < ZERO_TIERS; t++) good &= CHECK_INT(filled.measured[t], filled.planned[t]);
        if (!good) fprintf(stderr, "in row %u\n", i);
    }
}

/* Elements of a parameter, two of which are a unit: larger than what the fill leaves for alignment. */
enum { BIG_UNITS = 4, BIG = 200000 };

/* *out_share: of the state, on the device. */
static uint64_t planned(const char *keys, uint64_t budget, double *out_share) {
    static const struct plain_param param[2 * BIG_UNITS] = {
        {"a", "a1", BIG, 0, NULL}, {"a", "a2", BIG / 2, ZERO_KEEP_FP32, NULL},
        {"b", "b1", BIG, 0, NULL}, {"b", "b2", BIG, ZERO_KEEP_FP32, NULL},
        {"c", "c1", BIG, 0, NULL}, {"c", "c2", BIG / 4, ZERO_KEEP_FP32, NULL},
        {"d", "d1", BIG, 0, NULL}, {"d", "d2", BIG, ZERO_KEEP_FP32, NULL}};
    char json[700], memory[100] = "";
    zero_runtime runtime = {.struct_size = sizeof runtime, .plan_ranks = 2, .cuda = 1};
    zero_plan plan = {.struct_size = sizeof plan};
    zero_engine *engine = NULL;
    struct plain plain;
    if (budget)
        snprintf(memory, sizeof memory, ", \"memory\": {\"device\": %llu}", (unsigned long long)budget);
    snprintf(
        json, sizeof json,
        "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_clipping\": 0, \"bf16\": {\"enabled\": "
        "true}, \"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": {\"device\": \"cpu\"}%s}%s}",
        keys, memory);
    zero_status status = zero_engine_open(json, &runtime, &engine);
    if (!status) status = plain_declare(&plain, engine, param, 2 * BIG_UNITS);
    if (!status) status = zero_engine_plan(engine, &plan);
    if (!CHECK_INT(status, ZERO_OK)) fprintf(stderr, "%s\n", zero_last_error());
    const struct chunk_layout *layout = status ? NULL : &engine_blueprint(engine)->plan.layout;
    *out_share = layout ? (double)layout->device_bytes / (double)layout->state_bytes : 0;
    zero_engine_destroy(engine);
    return plan.bytes[ZERO_DEVICE];
}

/* Whatever the budget, the plan with the state that fills it stays within it: the shards that live for one use count, too. */
static void the_fill_stays_within_the_budget(void) {
    static const char *const keys[] = {"", ", \"update_in_backward\": true",
                                       ", \"update_in_backward\": true, \"update_in_forward\": 0.5"};
    for (int i = 0; i < 3; i++) {
        double share, most = 0;
        uint64_t base = planned(keys[i], 0, &share);
        CHECK_DOUBLE(share, 0, 0);
        for (uint64_t more = 0; more < 60 * BIG; more += BIG / 2) {
            uint64_t bytes = planned(keys[i], base + more, &share);
            if (!CHECK(bytes <= base + more))
                fprintf(stderr, "%s: %llu bytes in a budget of %llu\n", keys[i], (unsigned long long)bytes,
                        (unsigned long long)(base + more));
            CHECK(share >= most);
            most = share;
        }
        CHECK_DOUBLE(most, 1, 0);
    }
}

/* ---- updates that wait ---- */

struct shares {
    uint64_t reserved[2]; /* by rank */
    double share[2];      /* of the updates that wait */
    uint64_t bytes;       /* of rank 0's host memory */
    zero_status status[2];
};

static void commit_shares(zero_engine *engine, uint32_t rank, void *user) {
    static const struct plain_param param[] = {{"a", "a", BIG, 0, NULL},
                                               {"b", "b", BIG, 0, NULL},
                                               {"c", "c", BIG, 0, NULL},
                                               {"d", "d", BIG, 0, NULL}};
    struct shares *s = user;
    struct plain plain;
    zero_plan plan = {.struct_size = sizeof plan};
    zero_status status = plain_declare(&plain, engine, param, 4);
    if (!status) status = zero_engine_reserve(engine, ZERO_CPU, s->reserved[rank], "the program's");
    if (!status) status = zero_engine_commit(engine, &plan);
    s->status[rank] = status;
    s->share[rank] = status ? -1 : engine_blueprint(engine)->policy.waiting_share;
    if (!rank) s->bytes = plan.bytes[ZERO_CPU];
}

static struct shares shares_of(const char *zero, const char *memory, uint64_t reserved) {
    struct shares s = {.reserved = {0, reserved}};
    char json[500];
    snprintf(
        json, sizeof json,
        "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_clipping\": 0, \"bf16\": {\"enabled\": true}, "
        "\"comm\": {\"timeout_s\": 20}, \"zero_optimization\": {\"stage\": 2, " CPU
        ", \"update_in_backward\": true%s}, \"memory\": {%s}}",
        zero, memory);
    ranks_run_discrete(2, json, commit_shares, &s);
    for (int r = 0; r < 2; r++) CHECK_INT(s.status[r], ZERO_OK);
    return s;
}

/* All ranks let the same updates wait: by default a quarter, if each has room for them in memory.cpu. What the device takes frees room. */
static void ranks_wait_alike(void) {
    static const char quarter[] = ", \"update_in_forward\": 0.25", device[] = "\"device\": \"64MiB\"";
    const struct row {
        const char *memory;
        uint64_t reserved;
        double expected;
    } rows[] = {{"", 0, 0.25}, {"", 4096, 0}, {device, 0, 0.25}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct shares most = shares_of(quarter, rows[i].memory, 0), got;
        char memory[100];
        snprintf(memory, sizeof memory, "%s%s\"cpu\": %llu", rows[i].memory, *rows[i].memory ? ", " : "",
                 (unsigned long long)most.bytes);
        got = shares_of("", memory, rows[i].reserved);
        int good = CHECK_DOUBLE(got.share[0], rows[i].expected, 0);
        good &= CHECK_DOUBLE(got.share[1], rows[i].expected, 0);
        if (!good) fprintf(stderr, "in row %zu\n", i);
    }
}

/* ---- threads ---- */

static void threads_stay_free(void) {
    static struct toy_result host, device;
    struct toy_setup s = toy_setup_default();
    s.steps = 1, s.ranks = 1;
    s.config = "{\"train_micro_batch_size_per_gpu\": 3, \"zero_optimization\": {\"stage\": 2, " CPU "}}";
    toy_train(&s, &host);
    s.device = "sim", s.seed = 1;
    toy_train(&s, &device);
    uint32_t half = host.threads / 2;
    CHECK_STRING(device.hash, host.hash);
    CHECK_INT(device.threads, host.threads - (half < 2 ? half : 2));
}

int main(void) {
    agreement();
    state_fills_the_budget();
    the_fill_stays_within_the_budget();
    ranks_wait_alike();
    threads_stay_free();
    return check_end();
}
