/* The bit-exact contract over tiers: the same weights and moments wherever state and parameters live, however
 * chunks are cut, in every type of compute, with clipping, a skipped step, evaluation and state that is read
 * and written in between.
 * offload_test [STAGE [whole]]: in fp32 each row on every number of ranks, and with every chunk; whole: each with each
 * offload_test matrices: whole matrices are updated, in chunks that cut them; on fewer meshes
 * offload_test tensors: the same where norms of whole tensors are needed, whose bits are the same, too
 * offload_test matrices own, offload_test tensors own: the same by a host's own optimizer, on fewer meshes yet */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/api/inside.h"
#include "kernels/checksum.h"
#include "tests/check.h"
#include "tests/device/discrete.h"
#include "tests/engine/own_scopes.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_model.h"
#include "tests/engine/toy_number.h"
#include "tests/seeds.h"

/* So many steps that each event of `train` is followed by a flush and a step. */
enum { STEPS = 6, MIDDLE = 9000 };

/* Sizes that nothing divides; a frozen parameter, one without decay, one that is persistent, two groups in one region, one
 * that stays fp32 beside them. */
static const struct plain_param model[] = {{"a", "a.w", 13015, 0, NULL},
                                           {"a", "a.b", 17, ZERO_NO_DECAY, NULL},
                                           {"b", "b.w", 33003, 0, NULL},
                                           {"b", "e.w", MIDDLE, 0, NULL},
                                           {"b", "b.r", 7007, ZERO_KEEP_FP32, NULL},
                                           {"c", "c.w", 5, 0, NULL},
                                           {"d", "d.w", 2600, ZERO_FROZEN, NULL}};

enum { PARAMS = sizeof model / sizeof *model };

/* Muon updates those that have columns, and AdamW the others; or Lamb all but a few. Few rows: Muon's products take time by the square of
 * their number. */
static enum { ELEMENTS, MATRICES, TENSORS } whole;
static const zero_optimizer *own; /* in their place; or NULL */
static const uint64_t columns[PARAMS] = {2603, 0, 3667, 1800, 1001, 0, 65};

static const char adamw[] = "{\"type\": \"AdamW\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1}}",
                  muon[] = "{\"type\": \"Muon\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1}}",
                  lamb[] = "{\"type\": \"Lamb\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1}}",
                  other_group[] = ", {\"match\": [\"*.b\", \"c.*\"], \"optimizer\": \"AdamW\", \"lr\": 0.01}";

enum { ALL_STAGES = -1, SHARDED_GRADIENTS = -2 };

struct placing {
    const char *name, *json; /* of zero_optimization, after the stage; %s: the directory */
    const char *more;        /* other keys */
    int stage;               /* the only one; ALL_STAGES, SHARDED_GRADIENTS: not 0 */
};

/* Gradients are where the state is. */
#define STATE "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%1$s/a\"}"

#define NVME STATE ", \"offload_gradients\": {\"device\": \"none\"}"
#define TIERED "\"offload_optimizer\": {\"device\": \"tiered\", \"nvme_path\": \"%1$s/a\"}"
#define PARAMS_ON_NVME "\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%1$s/a\"}, "

static const struct placing tiers[] = {
    {"device", "\"offload_optimizer\": {\"device\": \"none\"}", "", ALL_STAGES},
    {"cpu", "\"offload_optimizer\": {\"device\": \"cpu\"}", "", ALL_STAGES},
    {"nvme", NVME, "", ALL_STAGES},
    {"nvme, part resident", NVME, "", ALL_STAGES},
    {"nvme, 2 paths",
     "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": [\"%1$s/a\", \"%1$s/b\"], "
     "\"buffer_count\": 1}",
     ", \"aio\": {\"block_size\": 8192, \"queue_depth\": 3}", ALL_STAGES},
    {"nvme, no io_uring",
     "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%1$s/a\", \"buffer_count\": 7}",
     ", \"nvme\": {\"io_uring\": \"never\"}", ALL_STAGES},
    {"nvme, fp32 masters", NVME, ", \"nvme\": {\"masters\": \"fp32\"}", ALL_STAGES},
    {"tiered, part resident", TIERED ", \"offload_gradients\": {\"device\": \"none\"}", "", ALL_STAGES},
    {"cpu, a ratio", "\"offload_optimizer\": {\"device\": \"cpu\", \"ratio\": 0.6}", "", ALL_STAGES},
    {"parameters on cpu", "\"offload_param\": {\"device\": \"cpu\"}", "", 3},
    {"parameters on cpu, state on nvme", "\"offload_param\": {\"device\": \"cpu\"}, " NVME, "", 3},
    {"parameters on nvme", "\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%1$s/a\"}", "", 3},
    {"all on nvme", "\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%1$s/a\"}, " NVME, "", 3},
    {"all on nvme, part resident",
     "\"offload_param\": {\"device\": \"nvme\", \"nvme_path\": \"%1$s/a\"}, " NVME, "", 3},
    {"gradients on cpu, state on nvme", STATE ", \"offload_gradients\": {\"device\": \"cpu\"}", "", 2},
    {"gradients on nvme", STATE, "", SHARDED_GRADIENTS},
    {"gradients on nvme, part resident", STATE, "", SHARDED_GRADIENTS},
    {"all and gradients on nvme", PARAMS_ON_NVME STATE, "", 3},
    {"all and gradients tiered, part resident", PARAMS_ON_NVME TIERED, "", 3},
    {"on a device, nvme", STATE, "", ALL_STAGES},
    {"on a device, tiered, part resident", TIERED, "", ALL_STAGES},
    {"on a device, all on nvme", PARAMS_ON_NVME STATE, "", 3},
    {"on a device, all tiered, part resident", PARAMS_ON_NVME TIERED, "", 3},
};

struct result {
    char hash[33], error[512];
    double norm;
    uint64_t skipped;
    float first[MIDDLE], second[MIDDLE]; /* moments of e.w */
    zero_plan plan;
    uint64_t on_device; /* state that is there while other state is not */
    uint64_t norms;     /* of whole tensors: a checksum of all parts of them, after the last step */
};

struct run {
    struct result result;
    const char *name;
};

/* The rows add up to the plan, and to what was allocated, in every tier. */
static void check_memory(zero_engine *engine, struct result *r) {
    const zero_plan *plan = &r->plan;
    uint64_t planned[ZERO_TIERS] = {0}, measured[ZERO_TIERS] = {0};
    zero_memory_row row = {.struct_size = sizeof row};
    for (uint32_t i = 0; zero_engine_memory(engine, i, &row) == ZERO_OK; i++) {
        planned[row.tier] += row.planned;
        measured[row.tier] += row.measured;
        if (!strncmp(row.name, "optimizer state", 15) && strstr(row.name, "on the device"))
            r->on_device += row.planned;
    }
    for (int t = 0; t < ZERO_TIERS; t++) {
        CHECK_INT(planned[t], plan->bytes[t]);
        CHECK_INT(measured[t], plan->bytes[t]);
    }
}

/* Between two flushes, one step moves what is planned. */
static zero_status check_traffic(struct plain *p, const zero_plan *plan) {
    zero_counters before = {.struct_size = sizeof before}, after = before;
    zero_status status = ZERO_OK;
    for (int step = 0; step < 3 && !status; step++) {
        zero_engine_counters(p->engine, &before);
        status = plain_step(p, 1, NULL);
        if (!status) status = zero_engine_flush(p->engine);
    }
    zero_engine_counters(p->engine, &after);
    CHECK_INT(after.drive_read_bytes - before.drive_read_bytes, plan->drive_read_bytes);
    CHECK_INT(after.drive_write_bytes - before.drive_write_bytes, plan->drive_write_bytes);
    return status;
}

/* A gradient of the last rank is infinite. */
static zero_status bad_step(struct plain *p, uint32_t rank, uint32_t ranks) {
    zero_status status = zero_micro_begin(p->engine, ZERO_TRAIN);
    for (uint32_t u = 0; u < p->units && !status; u++) status = plain_forward(p, u);
    for (uint32_t u = p->units; u-- > 0 && !status;) {
        status = zero_backward_begin(p->unit[u]);
        for (uint32_t i = 0; i < p->params && !status; i++) {
            if (p->unit_of[i] != u || !p->slot[i].grad) continue;
            zero_dtype dtype = zero_param_dtype(zero_engine_param(p->engine, p->param[i].name));
            discrete_enter();
            for (uint64_t k = 0; k < p->param[i].count; k++) toy_store(dtype, p->slot[i].grad, k, 1);
            if (rank == ranks - 1) toy_store(dtype, p->slot[i].grad, 0, INFINITY);
            discrete_leave();
        }
        if (!status) status = zero_backward_end(p->unit[u]);
    }
    zero_step_info info = {.struct_size = sizeof info};
    if (!status) status = zero_engine_step(p->engine, &info);
    if (!status) CHECK(info.skipped);
    return status;
}

/* Moments and weights are read, changed and written back: a third of e.w. */
static zero_status meddle(zero_engine *engine) {
    static const zero_kind kinds[] = {ZERO_STATE0, ZERO_STATE1, ZERO_PARAM};
    static _Thread_local float piece[MIDDLE];
    zero_status status = ZERO_OK;
    for (int k = 0; k < 3 && !status; k++) {
        status = zero_engine_get(engine, "e.w", kinds[k], piece, MIDDLE / 3, MIDDLE / 3);
        for (int i = 0; i < MIDDLE / 3; i++) piece[i] *= 0.5f;
        if (!status) status = zero_engine_put(engine, "e.w", kinds[k], piece, MIDDLE / 3, MIDDLE / 3);
    }
    return status;
}

static uint64_t norms_checksum(zero_engine *engine) {
    const struct executor *e = engine_running(engine)->executor;
    const struct plan *plan = &engine_blueprint(engine)->plan;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < plan->policy->regions; i++) {
        struct buffer_ref ref = {BUFFER_TENSOR_NORMS, (uint16_t)i};
        uint32_t buffer = plan_fixed(plan, ref);
        if (buffer != NO_BUFFER)
            sum = 31 * sum + checksum(executor_address(e, ref), plan->buffer[buffer].bytes);
    }
    return sum;
}

static zero_status train(struct plain *p, uint32_t rank, struct result *r) {
    zero_step_info info = {.struct_size = sizeof info};
    zero_status status = ZERO_OK;
    for (int step = 0; step < STEPS && !status; step++) {
        if (step == 1) status = bad_step(p, rank, zero_engine_size(p->engine));
        if (step == 4) status = meddle(p->engine);
        if (!status) status = plain_step(p, 1, &info);
        double values[2] = {info.grad_norm, 1};
        if (!status) status = zero_engine_sum(p->engine, values, 2);
        if (step == 1 && !status) status = plain_pass(p, ZERO_EVAL, 0);
        if ((step == 2 || step == 4) && !status) status = zero_engine_flush(p->engine);
    }
    r->norm = info.grad_norm;
    r->skipped = info.skipped_total;
    if (!status) status = zero_engine_hash(p->engine, r->hash);
    r->norms = status ? 0 : norms_checksum(p->engine);
    CHECK(status || (r->norms != 0) == (whole == TENSORS));
    if (!status) status = zero_engine_get(p->engine, "e.w", ZERO_STATE0, r->first, 0, MIDDLE);
    if (!status) status = zero_engine_get(p->engine, "e.w", ZERO_STATE1, r->second, 0, MIDDLE);
    return status;
}

static void body(zero_engine *engine, uint32_t rank, void *user) {
    struct run *run = user;
    static _Thread_local struct result mine;
    memset(&mine, 0, sizeof mine);
    mine.plan.struct_size = sizeof mine.plan;
    struct plain p;
    zero_status status = engine ? ZERO_OK : ZERO_E_CONFIG;
    if (!status && own) status = zero_engine_set_optimizer(engine, own);
    if (!status) status = plain_declare_matrices(&p, engine, model, PARAMS, whole ? columns : NULL);
    if (!status) status = zero_engine_commit(engine, &mine.plan);
    if (!status) status = zero_engine_fill(engine, toy_fill, NULL);
    if (!status) check_memory(engine, &mine);
    if (!status) status = train(&p, rank, &mine);
    if (!status) status = check_traffic(&p, &mine.plan);
    if (status) snprintf(mine.error, sizeof mine.error, "%s", zero_last_error());
    if (rank == 0 || status) run->result = mine;
}

enum format { FORMAT_F32, FORMAT_BF16, FORMAT_F16, FORMAT_BF16_STATES, FORMATS };

static const char *const formats[FORMATS] = {
    [FORMAT_F32] = "",
    [FORMAT_BF16] = ", \"bf16\": {\"enabled\": true}", /* on nvme masters are split, but for one row */
    [FORMAT_F16] = ", \"fp16\": {\"enabled\": true}",
    [FORMAT_BF16_STATES] = ", \"bf16\": {\"enabled\": true, \"bf16_optimizer_states\": true}"};

static bool is_discrete(const struct placing *tier) { return strstr(tier->name, "on a device"); }

static void run_tier(const struct placing *tier, enum format format, uint32_t stage, uint32_t ranks,
                     uint64_t chunk, const uint64_t budget[2], struct result *out) {
    char json[2560], path[600], zero[1024];
    snprintf(path, sizeof path, "%s/swap", getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp");
    snprintf(zero, sizeof zero, tier->json, path);
    snprintf(json, sizeof json,
             "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_clipping\": 1.0, \"threads\": 1, "
             "\"optimizer\": %s, "
             "\"param_groups\": [{\"match\": \"e.*\", \"lr\": 0.02, \"weight_decay\": 0.01}%s], "
             "\"zero_optimization\": {\"stage\": %u, \"stage3_param_persistence_threshold\": 100, "
             "\"sub_group_size\": %llu, %s}%s%s}",
             whole == MATRICES  ? muon
             : whole == TENSORS ? lamb
                                : adamw,
             whole ? other_group : "", stage, (unsigned long long)chunk, zero, tier->more, formats[format]);
    struct run run = {.name = tier->name};
    if (budget && budget[ZERO_CPU])
        snprintf(json + strlen(json) - 1, sizeof json - strlen(json),
                 ", \"memory\": {\"device\": %llu, \"cpu\": %llu}}", (unsigned long long)budget[ZERO_DEVICE],
                 (unsigned long long)budget[ZERO_CPU]);
    (is_discrete(tier) ? ranks_run_discrete : ranks_run)(ranks, json, body, &run);
    *out = run.result;
}

/* Where a row is the one before it with part of the state in memory: room for two fifths; tiered: for a third
 * on the device, and for a fifth in host memory. Momenta of matrices fill their pages less, so that what they take in memory counts;
 * with gradients on the device, half as much more. */
static void set_budget(const struct placing *tier, const struct result *before,
                       const struct result *in_memory, uint64_t out[2]) {
    const zero_plan *p = &before->plan;
    bool part = strstr(tier->name, "part resident"), tiered = strstr(tier->name, "tiered");
    uint64_t state = whole ? in_memory->plan.state_bytes : p->state_bytes,
             grads = whole && strstr(tier->name, "gradients") ? state / 2 : 0;
    out[ZERO_DEVICE] = tiered ? p->bytes[ZERO_DEVICE] + state / 3 + grads + 40000 : 1u << 30;
    out[ZERO_CPU] = part ? p->bytes[ZERO_CPU] + state * (tiered ? 1 : 2) / 5 + 40000 : 0;
}

/* All rows, or a third; half of those on a device, which have two of the three chunks. Those that look at the row before go with it. */
enum { ALL_ROWS = -1 };
static bool is_taken(size_t t, int turn) {
    if (strstr(tiers[t].name, "part resident")) t--;
    return turn == ALL_ROWS || (t + (size_t)turn) % (is_discrete(&tiers[t]) ? 2 : 3) == 0;
}

static void compare(enum format format, uint32_t stage, uint32_t ranks, uint64_t chunk, int turn,
                    const struct result *expected) {
    for (size_t t = 1; t < sizeof tiers / sizeof *tiers; t++) {
        static struct result got;
        static zero_plan before; /* of the row before */
        if (tiers[t].stage >= 0 && tiers[t].stage != (int)stage) continue;
        if (tiers[t].stage == SHARDED_GRADIENTS && !stage) continue;
        if (whole == MATRICES && is_discrete(&tiers[t])) continue; /* devices_test has some */
        if (own && is_discrete(&tiers[t]) && strstr(tiers[t].name, "tiered"))
            continue; /* the host has all of it */
        if (!is_taken(t, turn)) continue;
        /* Two ranks, or three, and small chunks are enough. One rank runs ahead of its device, and this model's gradients are made by
         * the host at once. */
        if (is_discrete(&tiers[t]) && (ranks != (whole && format ? 3 : 2) || chunk > 1 << 20)) continue;
        uint64_t budget[2], cpu;
        set_budget(&tiers[t], &got, expected, budget);
        cpu = budget[ZERO_CPU];
        run_tier(&tiers[t], format, stage, ranks, chunk, budget, &got);
        int same = CHECK_STRING(got.error, "") && CHECK_STRING(got.hash, expected->hash) &&
                   CHECK_DOUBLE(got.norm, expected->norm, 0) && CHECK_INT(got.skipped, 1) &&
                   CHECK(got.norms == expected->norms) &&
                   CHECK_BYTES(got.first, expected->first, sizeof got.first) &&
                   CHECK_BYTES(got.second, expected->second, sizeof got.second);
        uint64_t kept = got.plan.resident_state_bytes, state = got.plan.state_bytes;
        bool gradients = strstr(tiers[t].name, "gradients");
        bool tiered =
            strstr(tiers[t].name, "tiered"); /* with few large chunks all fit where the slots were */
        if (cpu && !gradients) same &= CHECK(kept > 0 && (kept < state || (tiered && chunk > 1 << 20)));
        if (cpu && gradients) same &= CHECK(got.plan.drive_write_bytes < before.drive_write_bytes);
        if (tiered) same &= CHECK(got.on_device > 0 && got.on_device < state);
        before = got.plan;
        if (!same)
            fprintf(stderr,
                    "in %s, format %d, stage %u, ranks %u, chunks of %llu; of %llu bytes %llu in memory, "
                    "%llu on the "
                    "device\n",
                    tiers[t].name, format, stage, ranks, (unsigned long long)chunk, (unsigned long long)state,
                    (unsigned long long)kept, (unsigned long long)got.on_device);
    }
}

/* The same weights as at stage 0 with all in memory, on all tiers; in a short run, on a third. */
static void compare_all(enum format format, uint32_t stage, uint32_t ranks, uint64_t chunk) {
    static struct result expected, plain;
    run_tier(&tiers[0], format, 0, ranks, 1000000000, NULL, &plain);
    run_tier(&tiers[0], format, stage, ranks, 1000000000, NULL, &expected);
    CHECK_STRING(expected.error, "");
    CHECK_STRING(expected.hash, plain.hash);
    CHECK(expected.norms == plain.norms);
    int turn = (int)(format + ranks / 2 + stage) % 3;
    compare(format, stage, ranks, chunk, seeds_divisor() == 1 ? ALL_ROWS : turn, &expected);
}

static const uint64_t chunks[] = {1024, 3 * 1024, 1000000000};

/* Each stage with two numbers of ranks and one narrow type. equality_test has the others, with tensors that no chunk cuts. */
static void all_whole(void) {
    for (uint32_t stage = 0; stage <= 3; stage++) {
        for (uint32_t ranks = 1 + stage % 2; ranks <= 4; ranks += 2)
            if (seeds_divisor() == 1 || ranks == 1 + stage)
                compare_all(FORMAT_F32, stage, ranks, chunks[(stage + ranks / 2) % 3]);
        if (seeds_divisor() == 1 || stage > 1)
            compare_all(FORMAT_BF16 + stage % (FORMATS - FORMAT_BF16), stage, 3, chunks[stage % 2]);
    }
}

static void all_own(void) {
    for (uint32_t stage = 0; stage <= 3; stage++)
        if (seeds_divisor() == 1 || stage % 2)
            compare_all(stage == 2 ? FORMAT_BF16_STATES : FORMAT_F32, stage, 1 + stage,
                        chunks[(stage + 1) % 2]);
}

int main(int argc, char **argv) {
    static const uint32_t worlds[] = {1, 2, 4};
    static struct result expected, plain;
    uint32_t first = argc > 1 ? (uint32_t)atoi(argv[1]) : 0, last = argc > 1 ? first : 3;
    char path[600];
    snprintf(path, sizeof path, "mkdir -p %s/swap", getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp");
    CHECK_INT(system(path), 0);
    if (argc > 1)
        whole = !strcmp(argv[1], "matrices") ? MATRICES : !strcmp(argv[1], "tensors") ? TENSORS : ELEMENTS;
    bool each = argc > 2 && !strcmp(argv[2], "whole");
    if (argc > 2 && !each) own = whole == MATRICES ? &own_balanced : &own_trusting;
    if (whole) {
        (own ? all_own : all_whole)();
        return check_end();
    }
    for (uint32_t stage = first; stage <= last; stage++)
        for (int w = 0; w < 3; w++) {
            run_tier(&tiers[0], FORMAT_F32, 0, worlds[w], 1000000000, NULL, &plain);
            run_tier(&tiers[0], FORMAT_F32, stage, worlds[w], 1000000000, NULL, &expected);
            CHECK_STRING(expected.error, "");
            CHECK_STRING(expected.hash, plain.hash);
            for (int c = 0; c < 3; c++) /* a short run: each once */
                if (seeds_divisor() == 1 || c == w)
                    compare(FORMAT_F32, stage, worlds[w], chunks[c], each ? ALL_ROWS : (w + c) % 3,
                            &expected);
        }
    for (uint32_t stage = first; stage <= last; stage++)
        for (enum format format = FORMAT_BF16; format < FORMATS; format++)
            compare_all(format, stage, 2, 3 * 1024);
    return check_end();
}
