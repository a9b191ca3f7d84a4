/* The search of what a configuration leaves to the planner: which rows there are, and which is taken, against an enumeration of
 * its own. */
#include "tools/plan/space.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include "tools/plan/choice.h"
#include "tools/plan/print/table.h"

static int layers = 3;
static const char *model_more = ""; /* more members of the model block, each with a comma before it */
#define ALL                                                                                                  \
    "\"zero_optimization\": {\"stage\": \"auto\", \"stage3_param_persistence_threshold\": 0, "               \
    "\"offload_optimizer\": \"auto\"}"
#define ALL_DRIVE                                                                                            \
    "\"zero_optimization\": {\"stage\": \"auto\", \"stage3_param_persistence_threshold\": 0, "               \
    "\"offload_optimizer\": "                                                                                \
    "{\"device\": \"auto\", \"nvme_path\": \"/d\"}}"

static struct machine desk(void) {
    return (struct machine){
        .device = {.name = "desk",
                   .memory_bytes = 1e10,
                   .memory_per_s = 1e10,
                   .flops = {1e11, NAN, NAN},
                   .memory_achieved = 1,
                   .flops_achieved = {1, 1, 1},
                   .price_per_hour = NAN,
                   .is_host = true,
                   .shares_cores = true},
        .host = {.memory_bytes = 4e10, .memory_per_s = 4e10, .devices = 4, .device_per_s = 1e10},
        .inside = {.per_s = 2e9, .reduce_per_s = 2e9, .latency_s = 1e-6},
        .drive = {.name = "d", .bytes = 1e12, .read_per_s = 1e9, .write_per_s = 1e9, .mixed_per_s = 1e9},
        .node_ranks = 4};
}

struct searched {
    struct config config;
    struct space space;
    struct scenario scenario;
    char *text;
    struct table table;
};

static zero_status search(const char *keys, uint32_t ranks, struct searched *s, struct zero_error *error) {
    char text[2000];
    snprintf(text, sizeof text,
             "{%s, \"model\": {\"n_layer\": %d, \"n_embd\": 128, \"n_head\": 2, \"n_positions\": 32, "
             "\"vocab_size\": 256%s}}",
             keys, layers, model_more);
    *s = (struct searched){.scenario = {.machine = desk(), .ranks = ranks, .nodes = 1, .threads = 1}};
    error_clear(error);
    zero_status status = config_read(text, &s->config, error);
    if (!status) CHECK(config_unchosen(&s->config) != NULL);
    if (!status) status = choice_model(NULL, 0, &s->config, &s->scenario.shapes, error);
    if (!status) status = space_of(&s->config, text, ranks, &s->space, &s->text, error);
    s->scenario.space = &s->space;
    s->scenario.checkpoints = choice_checkpoints(&s->config);
    s->scenario.config = s->text;
    return status ? status : table_make(&s->scenario, &s->table, error);
}

static void close_search(struct searched *s) {
    config_free(&s->config);
    table_free(&s->table);
    free(s->text);
}

static const struct price *best(const struct searched *s) { return &s->table.row[s->table.best]; }

static void check_cell(const char *name, const struct cell *got, const struct cell *expected) {
    if (cell_equal(got, expected)) return;
    CHECK_STRING(name, "as expected");
    fprintf(stderr, "%s: stage %u state %d params %d grads %u tiered %d recompute %u micro %" PRIu64 "\n",
            name, got->stage, (int)got->optimizer, (int)got->params, got->grads, got->tiered, got->recompute,
            got->micro_batch);
}

/* ---- what is taken ---- */

enum { DEVICE = 1 + ZERO_DEVICE };

static const struct {
    const char *name, *keys;
    uint32_t ranks;
    struct cell expected;
} cases[] = {
    {"one rank with room for all", "\"train_batch_size\": 4, " ALL, 1, {.stage = 0, .grads = DEVICE}},
    {"four ranks with room for all: each updates a part",
     "\"train_batch_size\": 4, " ALL,
     4,
     {.stage = 1, .grads = DEVICE}},
    {"the offload alone",
     "\"train_batch_size\": 4, \"zero_optimization\": {\"stage\": 2, \"offload_optimizer\": \"auto\"}",
     4,
     {.stage = 2, .grads = DEVICE}},
    {"the stage alone",
     "\"train_batch_size\": 4, \"zero_optimization\": {\"stage\": \"auto\"}",
     4,
     {.stage = 1}},
    {"parameters that are cut",
     "\"train_batch_size\": 4, \"zero_optimization\": {\"stage\": \"auto\", \"offload_param\": {\"device\": "
     "\"cpu\"}, "
     "\"offload_optimizer\": {\"device\": \"cpu\"}}",
     4,
     {.stage = 3, .optimizer = ZERO_CPU, .params = ZERO_CPU}},
    {"a shadow",
     "\"train_batch_size\": 4, \"nvme\": {\"shadow\": true}, " ALL_DRIVE,
     1,
     {.stage = 0, .optimizer = ZERO_NVME, .grads = DEVICE}},
    {"gradients on the drive",
     "\"train_batch_size\": 4, \"zero_optimization\": {\"stage\": \"auto\", \"offload_optimizer\": "
     "{\"device\": "
     "\"auto\", \"nvme_path\": \"/d\"}, \"offload_gradients\": {\"device\": \"nvme\"}}",
     1,
     {.stage = 1, .optimizer = ZERO_NVME, .grads = 1 + ZERO_NVME}},
    {"coded weights",
     "\"train_batch_size\": 4, \"zero_optimization\": {\"stage\": \"auto\", \"zero_quantized_weights\": "
     "true}",
     4,
     {.stage = 3}},
    {"weights coded by pattern",
     "\"train_batch_size\": 4, \"zero_optimization\": {\"stage\": \"auto\"}, \"param_groups\": [{\"match\": "
     "\"*mlp*\", \"zero_quantized_weights\": \"fp8_e4m3\"}]",
     4,
     {.stage = 3}},
    {"a second shard",
     "\"train_batch_size\": 4, \"zero_optimization\": {\"stage\": \"auto\", "
     "\"zero_hpz_partition_size\": 2}",
     4,
     {.stage = 3}},
    {"units that stay whole",
     "\"train_batch_size\": 4, \"comm\": {\"reshard_after_forward\": false}, "
     "\"zero_optimization\": {\"stage\": \"auto\"}",
     4,
     {.stage = 3}},
    {"the old key for state in host memory",
     "\"train_batch_size\": 4, \"zero_optimization\": {\"stage\": \"auto\", \"cpu_offload\": true, "
     "\"offload_optimizer\": \"auto\"}",
     4,
     {.stage = 1, .optimizer = ZERO_CPU}},
    {"the micro-batch, with room for all",
     "\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": \"auto\", " ALL,
     4,
     {.stage = 1, .grads = DEVICE, .micro_batch = 8}},
    {"recomputation, with room for all",
     "\"train_batch_size\": 4, \"activation_checkpointing\": {\"interval\": \"auto\"}",
     1,
     {.stage = 0}},
};

static void takes_what_is_expected(void) {
    static struct searched s;
    struct zero_error error;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (!CHECK_INT(search(cases[i].keys, cases[i].ranks, &s, &error), ZERO_OK))
            fprintf(stderr, "%s: %s\n", cases[i].name, error.message);
        else
            check_cell(cases[i].name, &best(&s)->cell, &cases[i].expected);
        CHECK(s.table.rows && best(&s)->fits);
        close_search(&s);
    }
}

/* ---- what else there is ---- */

/* Every row by nested loops; the fastest that fits. */
static double fastest(const struct searched *s, bool micro, uint32_t *out_rows) {
    static const uint64_t micros[] = {8, 4, 2, 1};
    double best = 0;
    *out_rows = 0;
    for (int m = 0; m < (micro ? 4 : 1); m++)
        for (uint32_t stage = 0; stage <= 3; stage++)
            for (int state = 0; state < ZERO_TIERS; state++)
                for (int params = 0; params <= (stage == 3 ? state : 0); params++)
                    for (int grads = 0; grads <= (stage ? state : 0); grads++)
                        for (int tiered = 0; tiered <= (s->space.tiered && state); tiered++) {
                            struct cell cell = {stage,  (zero_tier)state,     (zero_tier)params,    0,
                                                tiered, 1u + (uint32_t)grads, micro ? micros[m] : 0};
                            struct price p;
                            struct zero_error error;
                            error_clear(&error);
                            if (price_cell(&s->scenario, &cell, &p, &error)) continue;
                            ++*out_rows;
                            if (p.fits && p.tokens_per_s > best) best = p.tokens_per_s;
                        }
    return best;
}

/* The budgets of a row: what is left fits no row that needs more. */
static void set_budgets(const struct price *p, uint64_t more, char *out, size_t size) {
    snprintf(out, size, "\"memory\": {\"device\": %" PRIu64 ", \"cpu\": %" PRIu64 "}, ",
             p->tier_bytes[ZERO_DEVICE] + more, p->tier_bytes[ZERO_CPU] + more);
}

static const struct price *row_of(const struct table *t, uint32_t stage, zero_tier state, zero_tier params) {
    for (uint32_t i = 0; i < t->rows; i++) {
        const struct cell *c = &t->row[i].cell;
        if (c->stage == stage && c->optimizer == state && c->params == params && !c->tiered &&
            c->grads == 1u + state)
            return &t->row[i];
    }
    return NULL;
}

/* With the budgets of each row the search takes one that is as fast as any that fits, and it is never larger than that row. */
static void takes_the_fastest_that_fits(void) {
    static const struct {
        uint32_t stage;
        zero_tier state, params;
    } rows[] = {{0, ZERO_DEVICE, ZERO_DEVICE}, {1, ZERO_DEVICE, ZERO_DEVICE}, {3, ZERO_DEVICE, ZERO_DEVICE},
                {2, ZERO_NVME, ZERO_DEVICE},   {3, ZERO_NVME, ZERO_CPU},      {3, ZERO_NVME, ZERO_NVME}};
    static struct searched whole, s;
    struct zero_error error;
    for (int micro = 0; micro < 2; micro++) {
        char batch[100], budgets[200], keys[1000];
        snprintf(batch, sizeof batch, "\"train_batch_size\": 32, %s",
                 micro ? "\"train_micro_batch_size_per_gpu\": \"auto\", " : "");
        snprintf(keys, sizeof keys, "%s" ALL_DRIVE, batch);
        CHECK_INT(search(keys, 4, &whole, &error), ZERO_OK);
        for (size_t i = micro ? 3 : 0; i < sizeof rows / sizeof *rows; i += 1 + micro) {
            const struct price *row = row_of(&whole.table, rows[i].stage, rows[i].state, rows[i].params);
            if (!CHECK(row != NULL)) continue;
            set_budgets(row, 0, budgets, sizeof budgets);
            snprintf(keys, sizeof keys, "%s%s" ALL_DRIVE, batch, budgets);
            if (!CHECK_INT(search(keys, 4, &s, &error), ZERO_OK)) fprintf(stderr, "%s\n", error.message);
            uint32_t count;
            double speed = fastest(&s, micro, &count);
            CHECK(best(&s)->fits);
            CHECK(best(&s)->tokens_per_s * 1.0201 >= speed);
            CHECK(best(&s)->tier_bytes[ZERO_DEVICE] <= row->tier_bytes[ZERO_DEVICE]);
            CHECK(micro ? s.table.rows <= count : s.table.rows == count);
            close_search(&s);
        }
        close_search(&whole);
    }
}

/* Host memory for the parameters alone, and nothing beside them: all has to go to the drive. */
static void only_the_drive(void) {
    static struct searched s;
    struct zero_error error;
    char budgets[200], keys[1000];
    layers = 12;
    CHECK_INT(search("\"train_batch_size\": 4, " ALL_DRIVE, 4, &s, &error), ZERO_OK);
    const struct price *row = row_of(&s.table, 3, ZERO_NVME, ZERO_NVME),
                       *in_memory = row_of(&s.table, 3, ZERO_NVME, ZERO_CPU);
    if (!CHECK(row && in_memory)) return;
    snprintf(budgets, sizeof budgets, "\"memory\": {\"device\": %" PRIu64 ", \"cpu\": %" PRIu64 "}, ",
             row->tier_bytes[ZERO_DEVICE], in_memory->param_bytes);
    close_search(&s);
    snprintf(keys, sizeof keys, "\"train_batch_size\": 4, %s" ALL_DRIVE, budgets);
    CHECK_INT(search(keys, 4, &s, &error), ZERO_OK);
    CHECK_INT(best(&s)->cell.stage, 3);
    CHECK_INT(best(&s)->cell.optimizer, ZERO_NVME);
    CHECK_INT(best(&s)->cell.params, ZERO_NVME);
    /* the others: why not */
    uint32_t others[TABLE_OTHERS], count = table_others(&s.table, others);
    char why[TABLE_NAME_BYTES];
    CHECK_INT(count, TABLE_OTHERS);
    table_reason(&s.table, others[TABLE_OTHERS - 1], why);
    CHECK(strstr(why, "short on") != NULL);
    close_search(&s);
    /* without a path there is no drive, and nothing fits */
    snprintf(keys, sizeof keys, "\"train_batch_size\": 4, %s" ALL, budgets);
    CHECK_INT(search(keys, 4, &s, &error), ZERO_OK);
    CHECK(!best(&s)->fits);
    CHECK(strstr(s.table.advice, "Nothing fits") != NULL);
    CHECK(strstr(s.table.advice, "short of") != NULL);
    for (uint32_t i = 0; i < s.table.rows; i++) CHECK(s.table.row[i].cell.optimizer != ZERO_NVME);
    close_search(&s);
    layers = 3;
}

/* Half a micro-batch fits where a whole one does not, without moving state. */
static void a_smaller_micro_batch(void) {
    static struct searched s;
    struct zero_error error;
    char keys[1000];
    static const char batch[] = "\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": \"auto\", "
                                "\"zero_optimization\": {\"stage\": \"auto\"}";
    CHECK_INT(search(batch, 1, &s, &error), ZERO_OK);
    CHECK_INT(best(&s)->cell.micro_batch, 32);
    CHECK_INT(s.table.rows, 4); /* smaller ones are not tried */
    uint64_t bytes = best(&s)->tier_bytes[ZERO_DEVICE] + best(&s)->tier_bytes[ZERO_CPU];
    close_search(&s);
    snprintf(keys, sizeof keys, "\"memory\": {\"device\": %" PRIu64 "}, %s", bytes - 1000, batch);
    CHECK_INT(search(keys, 1, &s, &error), ZERO_OK);
    CHECK(best(&s)->fits);
    CHECK_INT(best(&s)->cell.micro_batch, 16);
    close_search(&s);
}

/* Nothing fits, so that no micro-batch is the last: the table has every row. */
static void a_table_has_every_row(void) {
    static struct searched s;
    struct zero_error error;
    uint32_t rows = 0;
    struct cell cell;
    bool exists;
    layers = 1;
    CHECK_INT(search("\"train_batch_size\": 512, \"train_micro_batch_size_per_gpu\": \"auto\", \"memory\": "
                     "{\"device\": 1000}, \"activation_checkpointing\": {\"interval\": \"auto\"}, " ALL_DRIVE,
                     1, &s, &error),
              ZERO_OK);
    for (uint32_t i = 0; space_row(&s.space, i, &cell, &exists); i++) rows += exists;
    CHECK_INT(rows, 1080);
    CHECK_INT(s.table.rows, rows);
    CHECK(!best(&s)->fits);
    CHECK_INT(s.table.row[s.table.rows - 1].cell.stage, 3);
    CHECK_INT(s.table.row[s.table.rows - 1].cell.micro_batch, 1);
    close_search(&s);
    layers = 3;
}

/* ---- beside keys of recomputation ---- */

static const struct {
    const char *name, *checkpointing, *model;
    bool offload_path; /* "/d" */
    const char *path;  /* of checkpoints; NULL: they are not on the drive */
    uint32_t blocks;
} recomputations[] = {
    {"on the drive, own path", "\"nvme_checkpointing\": true, \"nvme_path\": \"/a\"", "", false, "/a", 1},
    {"on the drive, the offload's path", "\"nvme_checkpointing\": true", "", true, "/d", 1},
    {"on the drive, both", "\"nvme_checkpointing\": true, \"nvme_path\": \"/d\"", "", true, "/d", 1},
    {"in host memory", "\"cpu_checkpointing\": true", "", true, NULL, 1},
    {"two checkpoints", "\"number_checkpoints\": 2", "", true, NULL, 2},
    {"by the model", "", ", \"gradient_checkpointing\": true", true, NULL, 1},
};

/* The configuration that is written out has the checkpoints where the user wants them, and is found again. */
static void check_recomputation(const struct searched *s, size_t which) {
    struct edit_changes changes = {.recompute = EDIT_RECOMPUTE_KEPT, .ranks = 2};
    struct zero_error error;
    struct config c;
    error_clear(&error);
    for (uint32_t i = 0; i < s->table.rows; i++) {
        struct cell back, again;
        char *text = edit_run(s->text, &s->table.row[i].cell, &s->scenario.shapes, &changes);
        if (!CHECK_INT(config_read(text, &c, &error) || config_resolve(&c, 2, &error), 0))
            fprintf(stderr, "%s: %s\n%s\n", recomputations[which].name, error.message, text);
        const struct config_paths *paths = config_scratch_paths(&c);
        const char *path = recomputations[which].path;
        CHECK_INT(c.recompute.blocks, recomputations[which].blocks);
        CHECK_INT(c.recompute.on_drive, path != NULL);
        if (path && CHECK_INT(paths->count, 1)) CHECK_STRING(paths->items[0], path);
        back = space_cell_of(&c);
        if (CHECK(space_find(&s->space, &back, &again)))
            check_cell(recomputations[which].name, &again, &s->table.row[i].cell);
        config_free(&c);
        free(text);
    }
}

static void keys_of_recomputation_hold(void) {
    static struct searched s;
    struct zero_error error;
    for (size_t i = 0; i < 2 * sizeof recomputations / sizeof *recomputations; i++) {
        size_t which = i / 2;
        const char *given = recomputations[which].checkpointing;
        char keys[1000];
        snprintf(keys, sizeof keys, "\"train_batch_size\": 2, \"activation_checkpointing\": {%s%s%s}, %s",
                 given, *given && i % 2 ? ", " : "", i % 2 ? "\"interval\": \"auto\"" : "",
                 recomputations[which].offload_path ? ALL_DRIVE : ALL);
        model_more = recomputations[which].model;
        if (!CHECK_INT(search(keys, 2, &s, &error), ZERO_OK))
            fprintf(stderr, "%s: %s\n", recomputations[which].name, error.message);
        else if (CHECK(best(&s)->fits && !s.space.recompute))
            check_recomputation(&s, which);
        close_search(&s);
    }
    model_more = "";
}

/* Checkpoints on a drive that the machine does not have. */
static void says_that_no_drive_is_described(void) {
    static struct searched s;
    struct zero_error error;
    CHECK_INT(search("\"train_batch_size\": 2, \"activation_checkpointing\": {\"nvme_checkpointing\": true, "
                     "\"nvme_path\": \"/a\"}, " ALL,
                     2, &s, &error),
              ZERO_OK);
    s.scenario.machine.drive.name[0] = 0;
    s.scenario.machine.drive.bytes = 0;
    table_free(&s.table);
    CHECK_INT(table_make(&s.scenario, &s.table, &error), ZERO_OK);
    CHECK(strstr(s.table.advice, "Nothing fits: nearest is stage ") != NULL);
    CHECK(strstr(s.table.advice, " on the drive, and no drive is described.") != NULL);
    close_search(&s);
}

/* ---- which keys open it ---- */

static void hugging_face_keeps_its_meaning(void) {
    struct config c;
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(config_read("{\"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": \"auto\", "
                          "\"gradient_accumulation_steps\": \"auto\", \"zero_optimization\": {\"stage\": 2}}",
                          &c, &error),
              ZERO_OK);
    CHECK(config_unchosen(&c) == NULL);
    CHECK_INT(config_resolve(&c, 2, &error), ZERO_OK);
    CHECK_INT(c.micro_batch, 8);
    config_free(&c);
    /* beside a stage that is "auto": the batch is Hugging Face's, its division is chosen */
    static struct searched s;
    CHECK_INT(
        search("\"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": \"auto\", "
               "\"gradient_accumulation_steps\": \"auto\", \"zero_optimization\": {\"stage\": \"auto\"}",
               2, &s, &error),
        ZERO_OK);
    CHECK_INT(best(&s)->cell.micro_batch, 8);
    CHECK(strstr(s.text, "\"train_batch_size\":16") != NULL);
    close_search(&s);
    /* with the steps given nothing is left */
    CHECK_INT(search("\"train_batch_size\": 16, \"train_micro_batch_size_per_gpu\": \"auto\", "
                     "\"gradient_accumulation_steps\": 4, \"zero_optimization\": {\"stage\": \"auto\"}",
                     2, &s, &error),
              ZERO_OK);
    CHECK_INT(best(&s)->cell.micro_batch, 0);
    CHECK_INT(best(&s)->micro_batch, 2);
    close_search(&s);
}

static void says_what_is_wrong(void) {
    static struct searched s;
    struct zero_error error;
    CHECK_INT(search("\"train_batch_size\": 5, " ALL, 2, &s, &error), ZERO_E_CONFIG);
    CHECK(strstr(error.message, "train_batch_size: 5 is not a multiple of") != NULL);
    close_search(&s);
    CHECK_INT(search("\"train_batch_size\": 4, \"zero_optimization\": {\"stage\": 1, \"offload_param\": "
                     "{\"device\": \"cpu\"}, "
                     "\"offload_optimizer\": \"auto\"}",
                     2, &s, &error),
              ZERO_OK); /* offload_param is without effect */
    CHECK_INT(best(&s)->cell.params, ZERO_DEVICE);
    close_search(&s);
    CHECK_INT(search("\"train_batch_size\": 4, \"zero_optimization\": {\"stage\": 0, \"offload_gradients\": "
                     "{\"device\": \"cpu\"}, "
                     "\"offload_optimizer\": \"auto\"}",
                     2, &s, &error),
              ZERO_E_CONFIG);
    CHECK(strstr(error.message, "leave nothing to choose") != NULL);
    close_search(&s);
    CHECK_INT(search("\"train_batch_size\": 4, \"zero_optimization\": {\"stage\": 1, "
                     "\"zero_hpz_partition_size\": 2, \"offload_optimizer\": \"auto\"}",
                     2, &s, &error),
              ZERO_E_CONFIG);
    CHECK(strstr(error.message, "parameters are whole on every rank at stage 1") != NULL);
    close_search(&s);
    CHECK_INT(search("\"train_batch_size\": 4, \"activation_checkpointing\": {\"nvme_checkpointing\": true, "
                     "\"nvme_path\": \"/a\"}, " ALL_DRIVE,
                     2, &s, &error),
              ZERO_E_CONFIG);
    CHECK_STRING(error.message,
                 "activation_checkpointing.nvme_path: a rank has one set of drives: give it the paths of "
                 "zero_optimization's offload, or remove it");
    close_search(&s);
}

#define TWO_PATHS(stage, state, params)                                                                      \
    "\"train_batch_size\": 4, \"zero_optimization\": {\"stage\": " stage                                     \
    ", \"offload_optimizer\": {\"device\": \"" state                                                         \
    "\", \"nvme_path\": \"/a\"}, \"offload_param\": {\"device\": \"" params "\", \"nvme_path\": \"/b\"}}"

/* A rank has one set of swap files, so no row has state and parameters on two drives. Rows of which one alone can be on a drive
 * are as without the other's path. */
static void state_and_parameters_have_one_set_of_drives(void) {
    static const struct {
        const char *keys;
        bool refused;
    } given[] = {{TWO_PATHS("\"auto\"", "auto", "auto"), true}, {TWO_PATHS("3", "auto", "auto"), true},
                 {TWO_PATHS("3", "nvme", "auto"), true},        {TWO_PATHS("3", "auto", "nvme"), true},
                 {TWO_PATHS("\"auto\"", "nvme", "nvme"), true}, {TWO_PATHS("2", "auto", "auto"), false},
                 {TWO_PATHS("3", "auto", "cpu"), false},        {TWO_PATHS("3", "cpu", "auto"), false}};
    static struct searched s;
    struct zero_error error;
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        bool refused = search(given[i].keys, 2, &s, &error) != ZERO_OK;
        if (!CHECK_INT(refused, given[i].refused)) fprintf(stderr, "%s\n%s\n", given[i].keys, error.message);
        if (refused)
            CHECK_STRING(error.message,
                         "zero_optimization.offload_param.nvme_path: a rank has one set of swap "
                         "files: give it the same paths as "
                         "zero_optimization.offload_optimizer.nvme_path");
        close_search(&s);
    }
}

/* Without "auto": state goes to its own path. */
static void state_has_its_own_path(void) {
    static const char text[] =
        "{\"activation_checkpointing\": {\"nvme_checkpointing\": true, \"nvme_path\": \"/a\"}, "
        "\"zero_optimization\": {\"offload_optimizer\": {\"device\": \"cpu\", \"nvme_path\": \"/b\"}}}";
    struct edit_changes changes = {.recompute = EDIT_RECOMPUTE_KEPT};
    struct shapes shapes = {0};
    struct cell cell = {.stage = 1, .optimizer = ZERO_NVME, .recompute = 1};
    char *on_drive = edit_run(text, &cell, &shapes, &changes);
    CHECK(strstr(on_drive, "\"/b\"") && !strstr(on_drive, "\"/a\""));
    free(on_drive);
    cell.optimizer = ZERO_CPU;
    char *in_memory = edit_run(text, &cell, &shapes, &changes);
    CHECK(strstr(in_memory, "\"/a\"") && !strstr(in_memory, "\"/b\""));
    free(in_memory);
}

/* Without "auto": what is on the drive alone goes to its own path, and both to the state's. */
static void each_has_its_own_path(void) {
    static const char text[] = "{" TWO_PATHS("3", "none", "nvme") "}";
    static const struct {
        zero_tier optimizer, params;
        bool a, b;
    } given[] = {{ZERO_CPU, ZERO_NVME, false, true},
                 {ZERO_DEVICE, ZERO_NVME, false, true},
                 {ZERO_NVME, ZERO_CPU, true, false},
                 {ZERO_NVME, ZERO_NVME, true, false}};
    struct edit_changes changes = {.recompute = EDIT_RECOMPUTE_KEPT};
    struct shapes shapes = {0};
    for (size_t i = 0; i < sizeof given / sizeof *given; i++) {
        struct cell cell = {.stage = 3, .optimizer = given[i].optimizer, .params = given[i].params};
        char *edited = edit_run(text, &cell, &shapes, &changes);
        CHECK_INT(strstr(edited, "\"/a\"") != NULL, given[i].a);
        CHECK_INT(strstr(edited, "\"/b\"") != NULL, given[i].b);
        free(edited);
    }
}

/* Only a stage that cuts parameters gathers them in codes: the key and its groups go, what else a group says stays. */
static void codes_are_of_stage_3(void) {
    static const char text[] =
        "{\"zero_optimization\": {\"stage\": 3, \"zero_quantized_weights\": \"fp8_e4m3\"}, "
        "\"param_groups\": [{\"match\": \"a\", \"zero_quantized_weights\": \"int4\"}, {\"match\": "
        "\"b\", \"lr\": 7}]}";
    struct edit_changes changes = {.recompute = EDIT_RECOMPUTE_KEPT};
    struct shapes shapes = {0};
    for (uint32_t stage = 0; stage <= 3; stage++) {
        struct cell cell = {.stage = stage};
        char *edited = edit_run(text, &cell, &shapes, &changes);
        CHECK_INT(strstr(edited, "quantized") != NULL, stage == 3);
        CHECK_INT(strstr(edited, "int4") != NULL, stage == 3);
        CHECK(strstr(edited, "\"lr\"") != NULL);
        free(edited);
    }
}

/* What is written out is a row again, and the row that was meant. */
static void written_out_and_found_again(void) {
    static struct searched s;
    struct zero_error error;
    CHECK_INT(search("\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": \"auto\", \"memory\": "
                     "{\"device\": 1000000000}, "
                     "\"activation_checkpointing\": {\"interval\": \"auto\"}, " ALL_DRIVE,
                     4, &s, &error),
              ZERO_OK);
    struct cell cell, again;
    bool exists;
    uint32_t rows = 0;
    for (uint32_t i = 0; space_row(&s.space, i, &cell, &exists); i++) {
        if (!exists || i % 3) continue;
        struct edit_changes changes = {.recompute = EDIT_RECOMPUTE_INTERVAL, .ranks = 4};
        char *text = edit_run(s.text, &cell, &s.scenario.shapes, &changes);
        struct config c;
        error_clear(&error);
        if (!CHECK_INT(config_read(text, &c, &error) || config_resolve(&c, 4, &error), 0))
            fprintf(stderr, "%s\n%s\n", error.message, text);
        struct cell back = space_cell_of(&c);
        CHECK(config_unchosen(&c) == NULL);
        CHECK_INT(edit_ranks(text), 4);
        CHECK(strncmp(text, EDIT_BEGINNING, strlen(EDIT_BEGINNING)) == 0);
        CHECK_INT(c.train_batch, 32);
        if (CHECK(space_find(&s.space, &back, &again))) check_cell("found again", &again, &cell);
        config_free(&c);
        free(text);
        rows++;
    }
    CHECK(rows > 20);
    close_search(&s);
}

int main(void) {
    takes_what_is_expected();
    takes_the_fastest_that_fits();
    only_the_drive();
    a_smaller_micro_batch();
    a_table_has_every_row();
    keys_of_recomputation_hold();
    says_that_no_drive_is_described();
    hugging_face_keeps_its_meaning();
    says_what_is_wrong();
    state_and_parameters_have_one_set_of_drives();
    state_has_its_own_path();
    each_has_its_own_path();
    codes_are_of_stage_3();
    written_out_and_found_again();
    return check_end();
}
