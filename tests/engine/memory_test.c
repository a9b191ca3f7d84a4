/* Memory: what is planned, what is allocated, and what budgets refuse. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_trainer.h"
#include "tests/sanitized.h"

/* 10.4 million parameters; a tenth under a sanitizer, where only their number differs. */
enum { BLOCK = (SANITIZED ? 130 : 1300) * 1000, MIB = 1 << 20, RESERVED = 3 * MIB + 1 };

static const struct plain_param blocks[] = {{"a", "a", BLOCK, 0, NULL}, {"b", "b", BLOCK, 0, NULL},
                                            {"c", "c", BLOCK, 0, NULL}, {"d", "d", BLOCK, 0, NULL},
                                            {"e", "e", BLOCK, 0, NULL}, {"f", "f", BLOCK, 0, NULL},
                                            {"g", "g", BLOCK, 0, NULL}, {"h", "h", BLOCK, 0, NULL}};

/* Sizes that are whole for 2 ranks: no padding, so that bytes can be written out. */
enum { GIANT = 64 * 1024, SMALL = 1024 };
static const struct plain_param giant[] = {{"embedding", "e", GIANT, 0, NULL},
                                           {"a", "a", SMALL, 0, NULL},
                                           {"b", "b", SMALL, 0, NULL},
                                           {"c", "c", SMALL, 0, NULL}};
static const struct plain_param equal[] = {{"a", "a", SMALL, 0, NULL},
                                           {"b", "b", SMALL, 0, NULL},
                                           {"c", "c", SMALL, 0, NULL},
                                           {"d", "d", SMALL, 0, NULL}};

struct commit {
    const struct plain_param *param;
    uint32_t params;
    uint64_t reserved; /* on the device */
    int train;
    zero_status expected;
    zero_plan plan;
    char error[512];
};

/* Rows add up to the plan, and to what was allocated. */
static void check_rows(zero_engine *engine, const zero_plan *plan) {
    uint64_t planned[ZERO_TIERS] = {0}, measured[ZERO_TIERS] = {0};
    zero_memory_row row = {.struct_size = sizeof row};
    for (uint32_t i = 0; zero_engine_memory(engine, i, &row) == ZERO_OK; i++) {
        CHECK(row.name && row.name[0]);
        CHECK_INT(row.measured, row.planned);
        if (!strcmp(row.name, "reduction staging"))
            CHECK_INT(row.planned, 0); /* ranks that are threads read each other's memory */
        planned[row.tier] += row.planned;
        measured[row.tier] += row.measured;
    }
    for (int t = 0; t < ZERO_TIERS; t++) {
        CHECK_INT(planned[t], plan->bytes[t]);
        CHECK_INT(measured[t], plan->bytes[t]);
    }
}

static void commit_rank(zero_engine *engine, uint32_t rank, void *user) {
    struct commit *c = user;
    if (!CHECK(engine)) {
        fprintf(stderr, "%s\n", zero_last_error());
        return;
    }
    struct plain p;
    zero_plan plan = {.struct_size = sizeof plan};
    zero_memory_row row = {.struct_size = sizeof row};
    CHECK_INT(zero_engine_memory(engine, 0, &row), ZERO_E_ORDER);
    zero_status status = plain_declare(&p, engine, c->param, c->params);
    if (!status && c->reserved) status = zero_engine_reserve(engine, ZERO_DEVICE, c->reserved, "activations");
    if (!status) status = zero_engine_commit(engine, &plan);
    if (!CHECK_INT(status, c->expected)) fprintf(stderr, "%s\n", zero_last_error());
    if (status && rank == 0) snprintf(c->error, sizeof c->error, "%s", zero_last_error());
    if (status) return;
    check_rows(engine, &plan);
    if (c->train && !zero_engine_fill(engine, toy_fill, NULL)) CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
    if (rank == 0) c->plan = plan;
}

static void commit(const struct toy_setup *s, struct commit *c) {
    char json[2048];
    toy_config(s, json, sizeof json);
    ranks_run(s->ranks, json, commit_rank, c);
}

static struct toy_setup setup(uint32_t stage, uint32_t ranks) {
    struct toy_setup s = toy_setup_default();
    s.stage = stage, s.ranks = ranks;
    s.threshold = s.depth = 0;
    return s;
}

/* Rajbhandari et al. 2020, figure 1, with 4 bytes of weights and gradients and 8 of state: what is at rest.
 */
static void at_rest(void) {
    for (uint32_t n = 1; n <= 4; n++) {
        uint64_t unit = 16 * n, padded = 8 * ((BLOCK + unit - 1) / unit * unit), slot = padded / 8 * 4;
        const struct {
            uint64_t params, grads, state, gathered;
        } stages[] = {{4 * padded, 4 * padded, 8 * padded, 0},
                      {4 * padded, 4 * padded / n, 8 * padded / n, slot},
                      {4 * padded, 4 * padded / n, 8 * padded / n, slot},
                      {4 * padded / n, 4 * padded / n, 8 * padded / n, 2 * slot}};
        for (uint32_t stage = 0; stage <= 3; stage++) {
            struct toy_setup s = setup(stage, n);
            struct commit c = {.param = blocks, .params = 8};
            commit(&s, &c);
            CHECK_INT(c.plan.params, 8 * BLOCK);
            CHECK_INT(c.plan.params_padded, padded);
            int same = CHECK_INT(c.plan.param_bytes, stages[stage].params);
            same &= CHECK_INT(c.plan.grad_bytes, stages[stage].grads);
            same &= CHECK_INT(c.plan.state_bytes, stages[stage].state);
            same &= CHECK_INT(c.plan.gathered_bytes, stages[stage].gathered);
            if (stage == 3)
                CHECK_INT(c.plan.param_bytes + c.plan.grad_bytes + c.plan.state_bytes, 16 * padded / n);
            uint64_t rows = c.plan.param_bytes + c.plan.grad_bytes + c.plan.state_bytes +
                            c.plan.gathered_bytes + c.plan.staging_bytes;
            CHECK(c.plan.bytes[ZERO_DEVICE] >= rows && c.plan.bytes[ZERO_DEVICE] - rows < MIB);
            CHECK_INT(c.plan.bytes[ZERO_CPU] + c.plan.bytes[ZERO_NVME], 0);
            CHECK_INT(c.plan.master_bytes, 0); /* the parameters are the masters */
            if (!same) fprintf(stderr, "in stage %" PRIu32 " on %" PRIu32 " ranks\n", stage, n);
        }
    }
}

/* Parameters and a backward's gradients of 2 bytes, masters and moments of 4 each: what is at rest, by stage
 * and by the type of reduced gradients. Units are padded to whole cache lines of 32 elements. */
static void at_rest_in_bf16(void) {
    enum { N = 2, P = 8 * ((BLOCK + 63) / 64 * 64), SLOT = P / 8 * 2 };
    static const struct {
        const char *communication;
        uint32_t stage;
        uint64_t params, grads, masters, gathered;
    } cases[] = {
        {NULL, 0, 2 * P, 2 * P, 4 * P, 0},
        {NULL, 1, 2 * P, 2 * P / N, 4 * P / N, SLOT},
        {NULL, 2, 2 * P, 2 * P / N, 4 * P / N, SLOT},
        {NULL, 3, 2 * P / N, 2 * P / N, 4 * P / N, 2 * SLOT},
        /* Reduced in fp32: a shard beside what the backward writes; at stage 0 also gathered back. */
        {"fp32", 0, 2 * P, 4 * P + 4 * P / N, 4 * P, 0},
        {"fp32", 1, 2 * P, 4 * P / N, 4 * P / N, SLOT},
        {"fp32", 3, 2 * P / N, 4 * P / N, 4 * P / N, 2 * SLOT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct toy_setup s = setup(cases[i].stage, N);
        struct commit c = {.param = blocks, .params = 8, .train = 1};
        s.compute = ZERO_BF16;
        s.communication = cases[i].communication;
        commit(&s, &c);
        int same = CHECK_INT(c.plan.param_bytes, cases[i].params);
        same &= CHECK_INT(c.plan.grad_bytes, cases[i].grads);
        same &= CHECK_INT(c.plan.master_bytes, cases[i].masters);
        same &= CHECK_INT(c.plan.state_bytes, 2 * cases[i].masters);
        same &= CHECK_INT(c.plan.gathered_bytes, cases[i].gathered);
        if (!same) fprintf(stderr, "in stage %" PRIu32 ", case %zu\n", cases[i].stage, i);
    }
}

/* Masters go where the optimizer state goes; frozen parameters have none. */
static void masters_are_state(void) {
    static const struct plain_param frozen[] = {{"a", "a", SMALL, 0, NULL},
                                                {"b", "b", SMALL, ZERO_FROZEN, NULL}};
    struct toy_setup s = setup(3, 2);
    struct commit device = {.param = frozen, .params = 2, .train = 1}, cpu = device;
    s.compute = ZERO_F16;
    commit(&s, &device);
    s.offload = "cpu";
    commit(&s, &cpu);
    CHECK_INT(device.plan.master_bytes, 4 * SMALL / 2);
    CHECK_INT(device.plan.bytes[ZERO_CPU], 0);
    CHECK_INT(cpu.plan.master_bytes, device.plan.master_bytes);
    CHECK(cpu.plan.bytes[ZERO_CPU] >= cpu.plan.master_bytes + cpu.plan.state_bytes);
    CHECK_INT(cpu.plan.param_bytes, 2 * 2 * SMALL / 2);
}

static void offload_moves_state(void) {
    struct toy_setup s = setup(3, 2);
    struct commit device = {.param = blocks, .params = 8}, cpu = device;
    commit(&s, &device);
    s.offload = "cpu";
    commit(&s, &cpu);
    CHECK_INT(cpu.plan.state_bytes, device.plan.state_bytes);
    /* The gradients go with it. The rows' stagger within an extent is below a page each. */
    uint64_t moved = cpu.plan.state_bytes + cpu.plan.grad_bytes;
    CHECK_INT(cpu.plan.grad_bytes, device.plan.grad_bytes);
    CHECK(cpu.plan.bytes[ZERO_CPU] >= moved && cpu.plan.bytes[ZERO_CPU] < moved + 3 * 4096 + 4096);
    CHECK(device.plan.bytes[ZERO_DEVICE] - cpu.plan.bytes[ZERO_DEVICE] + 5 * 4096 > moved);
}

static uint64_t resident_bytes(void) {
    unsigned long long size = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    if (!CHECK(file)) return 0;
    CHECK_INT(fscanf(file, "%llu %llu", &size, &resident), 2);
    fclose(file);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void resident_rank(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    zero_plan plan = {.struct_size = sizeof plan};
    uint64_t before = resident_bytes();
    if (!CHECK_INT(plain_open(&p, engine, blocks, 8, &plan), ZERO_OK)) return;
    CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
    uint64_t used = resident_bytes() - before, planned = plan.bytes[ZERO_DEVICE];
    /* Pages may be huge: an extent's last one rounds up. */
    if (!CHECK(used + 4 * MIB > planned && used < planned + 8 * MIB))
        fprintf(stderr, "resident %" PRIu64 ", planned %" PRIu64 "\n", used, planned);
}

/* Compares the plan with the memory that the kernel reports after a step has touched everything; sanitizers use
 * more. */
static void planned_is_resident(void) {
    char json[2048];
    struct toy_setup s = setup(3, 1);
    toy_config(&s, json, sizeof json);
    if (!SANITIZED) ranks_run(1, json, resident_rank, NULL);
}

/* Gathered units and full gradients, by hand. A unit of S bytes needs S for its parameters from its begin
 * (earlier by `depth` units) to its end, and S for its gradient from its backward's begin to its end; with
 * prefetching until the end of the next unit's backward, under which the reduction runs. */
static void intervals(void) {
    enum { S = 4 * SMALL, G = 4 * GIANT };
    static const struct {
        const struct plain_param *param;
        uint32_t depth;
        uint64_t bytes;
    } cases[] = {
        {equal, 0, 2 * S}, /* a unit and its gradient */
        {equal, 1, 4 * S}, /* a unit and the next, the gradient and the previous one */
        {equal, 2, 5 * S}, /* a unit and the next two, two gradients */
        {giant, 0, 2 * G}, /* the embedding and its gradient; the blocks fit below */
        /* At the embedding's backward: itself, its gradient, and the gradient of "a", which is being reduced.
         * At the blocks': the gathered embedding and four small ones. Slots as large as the largest unit
         * would be 4 G. */
        {giant, 1, 2 * G + S},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct toy_setup s = setup(3, 2);
        s.depth = cases[i].depth;
        struct commit c = {.param = cases[i].param, .params = 4, .train = 1};
        commit(&s, &c);
        if (!CHECK_INT(c.plan.gathered_bytes, cases[i].bytes)) fprintf(stderr, "in case %zu\n", i);
    }
}

static void reservations(void) {
    struct toy_setup s = setup(2, 2);
    struct commit bare = {.param = equal, .params = 4}, reserved = bare;
    reserved.reserved = RESERVED;
    commit(&s, &bare);
    commit(&s, &reserved);
    CHECK_INT(reserved.plan.reserved_bytes, RESERVED);
    CHECK_INT(reserved.plan.bytes[ZERO_DEVICE], bare.plan.bytes[ZERO_DEVICE] + RESERVED);
}

static void budgets(void) {
    static const struct {
        const char *offload, *tier;
        int index;
        uint32_t stage;
    } cases[] = {{"none", "device", ZERO_DEVICE, 0},
                 {"none", "device", ZERO_DEVICE, 3},
                 {"cpu", "device", ZERO_DEVICE, 1},
                 {"cpu", "cpu", ZERO_CPU, 3}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct toy_setup s = setup(cases[i].stage, 2);
        s.offload = cases[i].offload;
        struct commit c = {.param = equal, .params = 4, .reserved = RESERVED, .train = 1};
        commit(&s, &c);
        uint64_t need = c.plan.bytes[cases[i].index];
        char extra[128], text[128];
        s.extra = extra;
        snprintf(extra, sizeof extra, ", \"memory\": {\"%s\": %" PRIu64 "}", cases[i].tier, need);
        commit(&s, &c);
        snprintf(extra, sizeof extra, ", \"memory\": {\"%s\": %" PRIu64 "}", cases[i].tier, need - 1);
        c.expected = ZERO_E_BUDGET;
        commit(&s, &c);
        snprintf(text, sizeof text, "memory.%s: the plan needs %" PRIu64 " bytes per rank, 1 more than",
                 cases[i].tier, need);
        CHECK_CONTAINS(c.error, text);
        snprintf(text, sizeof text, "memory.%s %" PRIu64, cases[i].tier, need); /* what to change */
        CHECK_CONTAINS(c.error, text);
    }
}

int main(void) {
    at_rest();
    at_rest_in_bf16();
    masters_are_state();
    offload_moves_state();
    planned_is_resident();
    intervals();
    reservations();
    budgets();
    return check_end();
}
