/* Budgets that are exceeded: each alternative that the error advises is applied on its own, and must fit and train.
 * Also tests the owners of memory. */
#include <stdlib.h>

#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_model.h"

static const struct plain_param model[] = {
    {"a", "a.w", 40000, 0, NULL}, {"b", "b.w", 80000, 0, NULL}, {"c", "c.w", 3000, ZERO_FROZEN, NULL},
    {"d", "d.w", 40000, 0, NULL}, {"e", "e.w", 40000, 0, NULL}, {"f", "f.w", 40000, 0, NULL},
    {"g", "g.w", 40000, 0, NULL}, {"h", "h.w", 40000, 0, NULL}};
enum { PARAMS = sizeof model / sizeof *model, RANKS = 2, ACTIVATIONS = 100000 };

/* ---- a configuration that keys can be put into ---- */

enum {
    STAGE,
    OPTIMIZER,
    PARAM,
    GRADIENTS,
    SLOTS,
    CHUNK,
    DEPTH,
    MEMORY_DEVICE,
    MEMORY_CPU,
    MEMORY_NVME,
    KEYS
};

static const char *const paths[KEYS] = {"zero_optimization.stage",
                                        "zero_optimization.offload_optimizer.device",
                                        "zero_optimization.offload_param.device",
                                        "zero_optimization.offload_gradients.device",
                                        "zero_optimization.offload_optimizer.buffer_count",
                                        "zero_optimization.sub_group_size",
                                        "comm.prefetch_depth",
                                        "memory.device",
                                        "memory.cpu",
                                        "memory.nvme"};

struct settings {
    char value[KEYS][24];
    const char *more;
};

static struct settings settings_make(const char *stage, const char *optimizer, const char *param,
                                     const char *more) {
    struct settings s = {
        {"", "", "", "\"none\"", "4", "1000000000", "1", "\"unlimited\"", "\"unlimited\"", "\"unlimited\""},
        more};
    strcpy(s.value[STAGE], stage), strcpy(s.value[OPTIMIZER], optimizer), strcpy(s.value[PARAM], param);
    return s;
}

static void print(const struct settings *s, char *out, size_t capacity) {
    snprintf(
        out, capacity,
        "{\"train_micro_batch_size_per_gpu\": 1, \"threads\": 1, \"zero_optimization\": {\"stage\": %s, "
        "\"stage3_param_persistence_threshold\": 0, \"sub_group_size\": %s, \"offload_optimizer\": "
        "{\"device\": %s, "
        "\"nvme_path\": \"/tmp\", \"buffer_count\": %s}, \"offload_param\": {\"device\": %s, \"nvme_path\": "
        "\"/tmp\"}, \"offload_gradients\": {\"device\": %s}}, \"comm\": {\"prefetch_depth\": %s}, "
        "\"memory\": {\"device\": %s, \"cpu\": %s, \"nvme\": "
        "%s}%s}",
        s->value[STAGE], s->value[CHUNK], s->value[OPTIMIZER], s->value[SLOTS], s->value[PARAM],
        s->value[GRADIENTS], s->value[DEPTH], s->value[MEMORY_DEVICE], s->value[MEMORY_CPU],
        s->value[MEMORY_NVME], s->more);
}

struct outcome {
    zero_status status;
    char error[1100];
    zero_plan plan;
};

static void run_rank(zero_engine *engine, uint32_t rank, void *user) {
    struct outcome *out = user;
    struct plain p;
    zero_plan plan = {.struct_size = sizeof plan};
    zero_status status = engine ? plain_declare(&p, engine, model, PARAMS) : ZERO_E_CONFIG;
    if (!status) status = zero_engine_reserve(engine, ZERO_DEVICE, ACTIVATIONS, "activations");
    if (!status) status = zero_engine_commit(engine, &plan);
    if (!status) status = zero_engine_fill(engine, toy_fill, NULL);
    if (!status) status = plain_step(&p, 1, NULL);
    if (!status) status = zero_engine_flush(engine);
    if (rank) return;
    *out = (struct outcome){.status = status, .plan = plan};
    if (status) snprintf(out->error, sizeof out->error, "%s", zero_last_error());
}

static struct outcome run(const struct settings *s) {
    struct outcome out = {0};
    char json[1024];
    print(s, json, sizeof json);
    ranks_run(RANKS, json, run_rank, &out);
    return out;
}

/* ---- taking the advice ---- */

/* "PATH VALUE"; false: no key of ours. */
static int put(struct settings *s, const char *text, size_t length) {
    for (int k = 0; k < KEYS; k++) {
        size_t path = strlen(paths[k]);
        if (length <= path + 1 || strncmp(text, paths[k], path) || text[path] != ' ') continue;
        snprintf(s->value[k], sizeof s->value[k], "%.*s", (int)(length - path - 1), text + path + 1);
        return 1;
    }
    return 0;
}

/* "KEY VALUE and KEY VALUE" */
static void apply(struct settings s, const char *text, size_t length) {
    const char *end = text + length;
    for (const char *at = text; at < end;) {
        const char *next = strstr(at, " and ");
        size_t bytes = next && next < end ? (size_t)(next - at) : (size_t)(end - at);
        if (!CHECK(put(&s, at, bytes))) fprintf(stderr, "in %.*s\n", (int)bytes, at);
        at += bytes + 5;
    }
    struct outcome out = run(&s);
    if (!CHECK_STRING(out.error, "")) fprintf(stderr, "with %.*s\n", (int)length, text);
}

/* How many alternatives there were. */
static int take_advice(const struct settings *s, const char *error) {
    static const char begin[] = "it fits with ", more[] = "; or with ", end[] = ". The largest: ";
    const char *at = strstr(error, begin), *stop = strstr(error, end);
    int count = 0;
    if (!CHECK(at && stop)) return fprintf(stderr, "%s\n", error), 0;
    for (at += strlen(begin); at < stop; count++) {
        const char *next = strstr(at, more);
        if (!next || next > stop) next = stop;
        apply(*s, at, (size_t)(next - at));
        at = next + strlen(more);
    }
    return count;
}

#define NONE "\"none\""
#define CPU "\"cpu\""
#define NVME "\"nvme\""
#define BF16 ", \"bf16\": {\"enabled\": true}"

static const struct {
    const char *stage, *optimizer, *param, *more;
    int memory;   /* which budget */
    double share; /* of what the plan takes without it */
    int alternatives;
} cases[] = {
    {"0", NONE, NONE, "", MEMORY_DEVICE, 0.95, 3},  {"0", NONE, NONE, "", MEMORY_DEVICE, 0.6, 2},
    {"0", NONE, NONE, BF16, MEMORY_DEVICE, 0.8, 3}, {"1", NONE, NONE, "", MEMORY_DEVICE, 0.8, 2},
    {"2", NONE, NONE, "", MEMORY_DEVICE, 0.7, 2},   {"3", NONE, NONE, "", MEMORY_DEVICE, 0.95, 3},
    {"3", NONE, NONE, "", MEMORY_DEVICE, 0.5, 2},  /* only keys together */
    {"0", NONE, NONE, "", MEMORY_DEVICE, 0.45, 2}, /* only keys together */
    {"0", NONE, NONE, "", MEMORY_DEVICE, 0.05, 1}, /* the activations alone are more: no key helps */
    {"1", CPU, NONE, "", MEMORY_CPU, 0.99, 2},      {"3", CPU, CPU, "", MEMORY_CPU, 0.9, 4},
    {"1", NVME, NONE, "", MEMORY_NVME, 0.9, 2},     {"3", NVME, NVME, BF16, MEMORY_NVME, 0.9, 4},
    {"3", NVME, NVME, "", MEMORY_DEVICE, 0.8, 2},   {"2", NVME, NONE, "", MEMORY_DEVICE, 0.8, 2},
};

static void advice_is_true(void) {
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct settings s = settings_make(cases[i].stage, cases[i].optimizer, cases[i].param, cases[i].more);
        struct outcome whole = run(&s);
        CHECK_STRING(whole.error, "");
        uint64_t need = whole.plan.bytes[cases[i].memory - MEMORY_DEVICE];
        snprintf(s.value[cases[i].memory], sizeof s.value[0], "%.0f", (double)need * cases[i].share);
        struct outcome out = run(&s);
        CHECK_INT(out.status, ZERO_E_BUDGET);
        CHECK_CONTAINS(out.error, paths[cases[i].memory]);
        if (!CHECK_INT(take_advice(&s, out.error), cases[i].alternatives))
            fprintf(stderr, "case %zu: %s\n", i, out.error);
    }
}

/* Neither the device nor the host's memory has room for all state, and the drive has none: both together have. */
static void tiered_is_advised(void) {
    struct settings s = settings_make("3", NONE, NONE, "");
    strcpy(s.value[SLOTS], "1"), strcpy(s.value[CHUNK], "1024");
    struct outcome whole = run(&s);
    uint64_t state = whole.plan.state_bytes;
    snprintf(s.value[MEMORY_DEVICE], sizeof s.value[0], "%.0f",
             (double)(whole.plan.bytes[ZERO_DEVICE] - state / 2));
    snprintf(s.value[MEMORY_CPU], sizeof s.value[0], "%.0f", (double)state * 0.9);
    strcpy(s.value[MEMORY_NVME], "4096");
    struct outcome out = run(&s);
    CHECK_INT(out.status, ZERO_E_BUDGET);
    CHECK_CONTAINS(out.error, "it fits with zero_optimization.offload_optimizer.device \"tiered\"");
    take_advice(&s, out.error);
}

/* The least change is named first. A tier without room gives way to the next one. */
static const struct {
    const char *stage, *optimizer, *cpu; /* cpu: its budget */
    double device;                       /* its budget, of what the plan takes without one */
    const char *says[2];
} changes[] = {
    {"0",
     NONE,
     "\"unlimited\"",
     0.95,
     {"it fits with zero_optimization.stage 1; or", "offload_optimizer.device \"cpu\""}},
    {"0",
     NONE,
     "300000",
     0.8,
     {"it fits with zero_optimization.stage 1; or", "offload_optimizer.device \"nvme\""}},
    {"3", NVME, "300000", 0.8, {"offload_param.device \"nvme\"", "offload_gradients.device \"nvme\""}},
};

static void the_least_change_comes_first(void) {
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        struct settings s = settings_make(changes[i].stage, changes[i].optimizer, NONE, "");
        strcpy(s.value[SLOTS], "1"), strcpy(s.value[CHUNK], "1024");
        struct outcome whole = run(&s);
        snprintf(s.value[MEMORY_DEVICE], sizeof s.value[0], "%.0f",
                 (double)whole.plan.bytes[ZERO_DEVICE] * changes[i].device);
        strcpy(s.value[MEMORY_CPU], changes[i].cpu);
        struct outcome out = run(&s);
        CHECK_INT(out.status, ZERO_E_BUDGET);
        for (int k = 0; k < 2; k++) CHECK_CONTAINS(out.error, changes[i].says[k]);
        take_advice(&s, out.error);
    }
}

/* A change whose plan takes the budget to the last byte is advised, averaged weights included. */
static void advice_needs_no_slack(void) {
    static const char *const more[] = {"", ", \"ema\": {\"decay\": 0.5}"};
    for (int i = 0; i < 2; i++) {
        struct settings s = settings_make("1", NONE, NONE, more[i]);
        snprintf(s.value[MEMORY_DEVICE], sizeof s.value[0], "%.0f", (double)run(&s).plan.bytes[ZERO_DEVICE]);
        strcpy(s.value[STAGE], "0");
        struct outcome out = run(&s);
        CHECK_INT(out.status, ZERO_E_BUDGET);
        CHECK_CONTAINS(out.error, "it fits with zero_optimization.stage 1; or");
    }
}

static void the_owners_are_named(void) {
    struct settings s = settings_make("0", NONE, NONE, "");
    strcpy(s.value[MEMORY_DEVICE], "1000");
    struct outcome out = run(&s);
    /* 80,000 elements of 4 bytes; of three equal rows the names are in order */
    CHECK_CONTAINS(out.error,
                   "The largest: gradients of unit \"b\", 320000; optimizer state 0 of unit \"b\", 320000; "
                   "optimizer state 1 of unit \"b\", 320000");
}

static void own_rank(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    zero_plan plan = {.struct_size = sizeof plan};
    zero_memory_owner owner = {.struct_size = sizeof owner}, before = {.bytes = UINT64_MAX};
    zero_memory_row row = {.struct_size = sizeof row};
    int64_t sum[ZERO_TIERS] = {0};
    int frozen = 0, activations = 0;
    if (!CHECK(engine != NULL)) return;
    CHECK_INT(zero_engine_memory_owner(engine, 0, &owner), ZERO_E_ORDER);
    CHECK_INT(plain_declare(&p, engine, model, PARAMS), ZERO_OK);
    CHECK_INT(zero_engine_reserve(engine, ZERO_DEVICE, ACTIVATIONS, "activations"), ZERO_OK);
    CHECK_INT(zero_engine_commit(engine, &plan), ZERO_OK);
    for (uint32_t i = 0; zero_engine_memory_owner(engine, i, &owner) == ZERO_OK; i++) {
        CHECK(owner.bytes > 0 && owner.bytes <= before.bytes);
        sum[owner.tier] += (int64_t)owner.bytes;
        frozen += owner.unit && !strcmp(owner.unit, "c");
        activations += !owner.unit && !strcmp(owner.what, "activations") && owner.bytes == ACTIVATIONS;
        before = owner;
    }
    for (uint32_t i = 0; zero_engine_memory(engine, i, &row) == ZERO_OK; i++)
        if (strcmp(row.name, "alignment")) sum[row.tier] -= (int64_t)row.planned;
    for (int t = 0; t < ZERO_TIERS; t++) CHECK_INT(sum[t], 0);
    CHECK_INT(frozen, 1); /* parameters, and nothing else */
    CHECK_INT(activations, 1);
}

static void owners_add_up(void) {
    static const char *const devices[] = {NONE, CPU, NVME, "\"tiered\""};
    for (int stage = 0; stage <= 3; stage++)
        for (int d = 0; d < 4; d++) {
            char number[2] = {(char)('0' + stage), 0}, json[1024];
            struct settings s =
                settings_make(number, devices[d], stage == 3 && d < 3 ? devices[d] : NONE, d ? BF16 : "");
            print(&s, json, sizeof json);
            ranks_run(RANKS, json, own_rank, NULL);
        }
}

int main(void) {
    advice_is_true();
    tiered_is_advised();
    the_least_change_comes_first();
    advice_needs_no_slack();
    the_owners_are_named();
    owners_add_up();
    return check_end();
}
