/* The interface answers wrong calls: NULL engines and units, calls before there are weights, a step without a gradient. And
 * it tells the host's loop what the configuration came to. */
#include <string.h>

#include "engine/zero.h"
#include "tests/check.h"

static zero_slot slot;

static void constant(void *user, const char *param, uint64_t first, uint64_t count, float *out) {
    for (uint64_t i = 0; i < count; i++) out[i] = 0.5f;
}

static void keep_line(void *user, zero_log_level level, const char *line) {
    if (strncmp(line, "optimizer ", 10) == 0) strcpy(user, line);
}

static zero_engine *open_engine(const char *json, char *line, zero_unit **unit) {
    zero_runtime runtime = {.struct_size = sizeof runtime, .log = keep_line, .log_user = line};
    zero_engine *e = zero_engine_init_with(json, &runtime);
    if (!CHECK(e)) return NULL;
    zero_param param = {.struct_size = sizeof param, .name = "w", .dims = 1, .shape = {100}, .slot = &slot};
    CHECK_INT(zero_engine_add_unit(e, "u", unit), ZERO_OK);
    CHECK_INT(zero_unit_add_param(*unit, &param), ZERO_OK);
    CHECK_INT(zero_engine_commit(e, NULL), ZERO_OK);
    return e;
}

static void refused(zero_status status, zero_status expected, const char *says) {
    CHECK_INT(status, expected);
    if (!CHECK(strstr(zero_last_error(), says))) fprintf(stderr, "%s\n", zero_last_error());
}

#define NULL_ENGINE(call) refused(call, ZERO_E_ARGUMENT, "the engine is NULL")
#define NULL_UNIT(call) refused(call, ZERO_E_ARGUMENT, "the unit is NULL")

static void a_null_engine_is_refused(void) {
    zero_unit *unit;
    zero_param param = {.struct_size = sizeof param};
    zero_group group = {.struct_size = sizeof group};
    zero_plan plan = {.struct_size = sizeof plan};
    zero_counters counters = {.struct_size = sizeof counters};
    zero_memory_row row = {.struct_size = sizeof row};
    zero_memory_owner owner = {.struct_size = sizeof owner};
    zero_optimizer optimizer = {.struct_size = sizeof optimizer};
    float x[1];
    double y[1];
    char hash[33];
    int number;
    uint64_t granted;
    NULL_ENGINE(zero_engine_add_unit(NULL, "u", &unit));
    NULL_ENGINE(zero_engine_add_group(NULL, &group, &number));
    NULL_ENGINE(zero_engine_set_optimizer(NULL, &optimizer));
    NULL_ENGINE(zero_engine_reserve(NULL, ZERO_CPU, 1, "x"));
    NULL_ENGINE(zero_engine_reserve_spare(NULL, 1, 1, "x", &granted));
    NULL_ENGINE(zero_engine_trace(NULL, 1, 1));
    NULL_ENGINE(zero_engine_commit(NULL, &plan));
    NULL_ENGINE(zero_engine_fail(NULL, "why"));
    NULL_ENGINE(zero_engine_plan(NULL, &plan));
    NULL_ENGINE(zero_engine_memory(NULL, 0, &row));
    NULL_ENGINE(zero_engine_memory_owner(NULL, 0, &owner));
    NULL_ENGINE(zero_engine_fill(NULL, constant, NULL));
    NULL_ENGINE(zero_engine_recover(NULL, constant, NULL, NULL));
    NULL_ENGINE(zero_engine_discard_shadow(NULL));
    NULL_ENGINE(zero_micro_begin(NULL, ZERO_TRAIN));
    NULL_ENGINE(zero_engine_step(NULL, NULL));
    NULL_ENGINE(zero_engine_flush(NULL));
    NULL_ENGINE(zero_engine_set_lr(NULL, 0, 1));
    NULL_ENGINE(zero_engine_set_betas(NULL, 0, 0.9, 0.9));
    NULL_ENGINE(zero_engine_set_schedule(NULL, NULL, NULL));
    NULL_ENGINE(zero_engine_get(NULL, "w", ZERO_PARAM, x, 0, 1));
    NULL_ENGINE(zero_engine_put(NULL, "w", ZERO_PARAM, x, 0, 1));
    NULL_ENGINE(zero_engine_hash(NULL, hash));
    NULL_ENGINE(zero_engine_sum(NULL, y, 1));
    NULL_ENGINE(zero_engine_broadcast(NULL, y, sizeof y));
    NULL_ENGINE(zero_engine_broadcast_from(NULL, 0, y, sizeof y));
    NULL_ENGINE(zero_engine_set_params(NULL, 0, NULL));
    NULL_ENGINE(zero_engine_params(NULL, 0, NULL));
    NULL_ENGINE(zero_engine_save(NULL, "d"));
    NULL_ENGINE(zero_engine_save_wait(NULL));
    NULL_ENGINE(zero_engine_load(NULL, "d"));
    NULL_ENGINE(zero_engine_load_weights(NULL, "d"));
    NULL_ENGINE(zero_engine_prune(NULL, "d", 1));
    NULL_ENGINE(zero_engine_set_note(NULL, "k", "v"));
    NULL_ENGINE(zero_engine_set_file(NULL, "v", 1));
    NULL_ENGINE(zero_engine_set_rank_file(NULL, "v", 1));
    NULL_ENGINE(zero_engine_counters(NULL, &counters));
    NULL_ENGINE(zero_engine_write_trace(NULL, "t"));
    NULL_UNIT(zero_unit_add_param(NULL, &param));
    NULL_UNIT(zero_engine_add_segment(NULL, NULL));
    NULL_UNIT(zero_forward_begin(NULL));
    NULL_UNIT(zero_forward_end(NULL));
    NULL_UNIT(zero_backward_begin(NULL));
    NULL_UNIT(zero_backward_end(NULL));
    NULL_UNIT(zero_unit_give_grads(NULL, NULL));
    CHECK(!zero_unit_param(NULL, 0) && !zero_engine_param(NULL, "w"));
}

/* Functions that return values return 0, and zero_last_error says why. */
static void a_null_engine_has_no_values(void) {
    CHECK_INT(zero_engine_rank(NULL), 0);
    CHECK_INT(zero_engine_size(NULL), 0);
    CHECK_INT(zero_engine_steps(NULL), 0);
    CHECK_INT(zero_engine_passes(NULL), 0);
    CHECK_INT(zero_engine_threads(NULL), 0);
    CHECK_INT(zero_engine_micro_batch(NULL), 0);
    CHECK_INT(zero_engine_accumulation_steps(NULL), 0);
    CHECK_INT(zero_engine_train_batch(NULL), 0);
    CHECK_INT(zero_engine_seed(NULL), 0);
    CHECK_DOUBLE(zero_engine_clipping(NULL), 0, 0);
    CHECK_DOUBLE(zero_engine_lr(NULL, 0), -1, 0);
    CHECK_DOUBLE((double)zero_engine_loss_scale(NULL), 0, 0);
    CHECK_INT(zero_engine_dtype(NULL), ZERO_F32);
    CHECK_INT(zero_engine_cuda(NULL, NULL), -1);
    CHECK_INT(zero_unit_trains(NULL), 0);
    CHECK_INT(zero_unit_reads_given(NULL), 0);
    CHECK_INT(zero_engine_shadow(NULL, NULL), ZERO_SHADOW_NONE);
    CHECK_STRING(zero_engine_shadow_text(NULL), "");
    CHECK(!zero_engine_note(NULL, "k") && !zero_engine_shadow_note(NULL, "k") &&
          !zero_engine_setting(NULL, "seed"));
    CHECK_STRING(zero_last_error(),
                 "zero_engine_setting: the engine is NULL: check what zero_engine_init returned, and why");
    zero_engine_destroy(NULL);
}

static void calls_before_there_are_weights(void) {
    char line[256] = "", hash[33];
    float x[1];
    zero_unit *unit;
    zero_engine *e = open_engine("{\"train_batch_size\": 1}", line, &unit);
    refused(zero_engine_get(e, "w", ZERO_PARAM, x, 0, 1), ZERO_E_ORDER, "zero_engine_fill");
    refused(zero_engine_put(e, "w", ZERO_PARAM, x, 0, 1), ZERO_E_ORDER, "zero_engine_fill");
    refused(zero_engine_hash(e, hash), ZERO_E_ORDER, "zero_engine_fill");
    CHECK_INT(zero_engine_fill(e, constant, NULL), ZERO_OK);
    CHECK_INT(zero_engine_get(e, "w", ZERO_PARAM, x, 0, 1), ZERO_OK);
    CHECK_INT(zero_engine_hash(e, hash), ZERO_OK);
    zero_engine_destroy(e);
}

/* Checkpoints are UTF-8: another byte in a name would come back as another name. */
static void names_are_utf8(void) {
    zero_unit *unit;
    zero_engine *e = zero_engine_init("{\"train_batch_size\": 1}");
    zero_param param = {
        .struct_size = sizeof param, .name = "caf\xe9", .dims = 1, .shape = {2}, .slot = &slot};
    refused(zero_engine_add_unit(e, "caf\xe9", &unit), ZERO_E_ARGUMENT, "a unit's name must be UTF-8");
    CHECK_INT(zero_engine_add_unit(e, "caf\xc3\xa9", &unit), ZERO_OK);
    refused(zero_unit_add_param(unit, &param), ZERO_E_ARGUMENT, "a parameter's name must be UTF-8");
    param.name = "caf\xc3\xa9", param.tensor = "\xc3";
    refused(zero_unit_add_param(unit, &param), ZERO_E_ARGUMENT, "a tensor's name must be UTF-8");
    param.tensor = "t\xc3\xa9";
    CHECK_INT(zero_unit_add_param(unit, &param), ZERO_OK);
    zero_engine_destroy(e);
}

static void addresses_are_known_after_commit(void) {
    char line[256] = "";
    zero_slot always = {0};
    zero_unit *unit;
    zero_engine *e = zero_engine_init("{\"train_batch_size\": 1}");
    CHECK_INT(zero_engine_add_unit(e, "u", &unit), ZERO_OK);
    CHECK(!zero_unit_param(unit, 0));
    CHECK_CONTAINS(zero_last_error(), "unit \"u\" has 0 parameters");
    CHECK(!zero_engine_param(e, "w"));
    CHECK_CONTAINS(zero_last_error(), "there is no parameter \"w\"");
    zero_param param = {.struct_size = sizeof param, .name = "w", .dims = 1, .shape = {100}, .slot = &slot};
    CHECK_INT(zero_unit_add_param(unit, &param), ZERO_OK);
    zero_handle *w = zero_unit_param(unit, 0);
    CHECK(w && w == zero_engine_param(e, "w"));
    refused(zero_param_addresses(w, &always), ZERO_E_ORDER, "zero_engine_commit");
    refused(zero_param_give_grad(w, line), ZERO_E_ORDER, "zero_engine_commit");
    zero_engine_destroy(e);
    e = open_engine("{\"train_batch_size\": 1}", line, &unit);
    w = zero_unit_param(unit, 0);
    refused(zero_param_addresses(w, NULL), ZERO_E_ARGUMENT, "out is NULL");
    CHECK_INT(zero_param_addresses(w, &always), ZERO_OK);
    CHECK(always.param && always.grad);
    zero_engine_destroy(e);
}

/* Of 16 floats, a cache line, but for "c"; "e" is frozen. */
static void add_lines(zero_engine *e) {
    static const char *const names[] = {"a", "b", "c", "d", "e"};
    static zero_slot slots[5];
    zero_unit *unit;
    CHECK_INT(zero_engine_add_unit(e, "u", &unit), ZERO_OK);
    for (int i = 0; i < 5; i++) {
        zero_param param = {.struct_size = sizeof param, .name = names[i], .dims = 1, .slot = &slots[i]};
        param.shape[0] = i == 2 ? 5 : 16, param.flags = i == 4 ? ZERO_FROZEN : 0;
        CHECK_INT(zero_unit_add_param(unit, &param), ZERO_OK);
    }
}

/* True for what is one array in each use. */
static int adjoins(const zero_engine *e, const char *name, const char *before) {
    const zero_handle *p = zero_engine_param(e, name), *q = zero_engine_param(e, before);
    zero_slot p_slot, q_slot;
    if (!zero_param_adjoins(p, q)) return 0;
    CHECK_INT(zero_param_addresses(p, &p_slot), ZERO_OK);
    CHECK_INT(zero_param_addresses(q, &q_slot), ZERO_OK);
    CHECK((float *)p_slot.param == (float *)q_slot.param + zero_param_count(q));
    CHECK((float *)p_slot.grad == (float *)q_slot.grad + zero_param_count(q));
    return 1;
}

/* The same at all stages; a small parameter is apart from the others. */
static void what_adjoins(void) {
    char json[256];
    for (int stage = 0; stage <= 3; stage++)
        for (int small = 0; small <= 10; small += 10) {
            snprintf(json, sizeof json,
                     "{\"train_batch_size\": 1, \"zero_optimization\": {\"stage\": %d, "
                     "\"stage3_param_persistence_threshold\": %d}}",
                     stage, small);
            zero_engine *e = zero_engine_init(json);
            add_lines(e);
            CHECK_INT(adjoins(e, "b", "a"), 0); /* before commit */
            CHECK_INT(zero_engine_commit(e, NULL), ZERO_OK);
            CHECK_INT(adjoins(e, "b", "a"), 1);
            CHECK_INT(adjoins(e, "a", "b"), 0);
            CHECK_INT(adjoins(e, "c", "b"), !small);
            CHECK_INT(adjoins(e, "d", "c"), 0);
            CHECK_INT(adjoins(e, "d", "b"), small != 0); /* nothing is between them */
            CHECK_INT(adjoins(e, "e", "d"), 0);
            zero_engine_destroy(e);
        }
    CHECK_INT(zero_param_adjoins(NULL, NULL), 0);
    CHECK_CONTAINS(zero_last_error(), "zero_param_adjoins: the parameter is NULL");
}

/* Two parameters that are tied to others lie where these do: in spans of the host's, wherever they are. */
static void add_tied_lines(zero_engine *e) {
    static float memory[4][64];
    static zero_slot slots[2];
    zero_unit *unit;
    for (int i = 0; i < 4; i++) {
        zero_span span = {memory[i % 2 ? 0 : 2], memory[i % 2 ? 1 : 3], 64};
        zero_param param = {.struct_size = sizeof param, .name = (const char *[]){"a", "b", "c", "d"}[i]};
        param.dims = 1, param.shape[0] = 64;
        if (i < 2) param.spans = &span, param.span_count = 1;
        if (i >= 2) param.slot = &slots[i - 2], param.tied_to = i == 2 ? "a" : "b";
        if (i % 2 == 0) CHECK_INT(zero_engine_add_unit(e, i ? "tied" : "u", &unit), ZERO_OK);
        CHECK_INT(zero_unit_add_param(unit, &param), ZERO_OK);
    }
    CHECK_INT(zero_engine_commit(e, NULL), ZERO_OK);
}

static void tied_to_spans_nothing_adjoins(void) {
    char json[100];
    for (int stage = 0; stage < 3; stage++) {
        snprintf(json, sizeof json, "{\"train_batch_size\": 1, \"zero_optimization\": {\"stage\": %d}}",
                 stage);
        zero_engine *e = zero_engine_init(json);
        add_tied_lines(e);
        CHECK_INT(adjoins(e, "b", "a"), 0);
        CHECK_INT(adjoins(e, "d", "c"), 0);
        CHECK_INT(adjoins(e, "d", "a"), 0);
        zero_engine_destroy(e);
    }
}

/* The step is refused, and nothing is lost: the backward can still come. */
static void a_step_without_a_backward(void) {
    char line[256] = "";
    zero_unit *unit;
    zero_engine *e = open_engine("{\"train_batch_size\": 1}", line, &unit);
    CHECK_INT(zero_engine_fill(e, constant, NULL), ZERO_OK);
    for (int step = 0; step < 2; step++) {
        CHECK_INT(zero_micro_begin(e, ZERO_TRAIN), ZERO_OK);
        CHECK_INT(zero_forward_begin(unit), ZERO_OK);
        CHECK_INT(zero_forward_end(unit), ZERO_OK);
        refused(zero_engine_step(e, NULL), ZERO_E_ORDER, "no backward has run");
        CHECK_INT(zero_backward_begin(unit), ZERO_OK);
        memset(slot.grad, 0, 100 * sizeof(float));
        CHECK_INT(zero_backward_end(unit), ZERO_OK);
        CHECK_INT(zero_engine_step(e, NULL), ZERO_OK);
    }
    CHECK_INT(zero_engine_steps(e), 2);
    /* A pass in which no unit was used, and which is closed: no backward can come, and the step can begin anew. */
    CHECK_INT(zero_micro_begin(e, ZERO_TRAIN), ZERO_OK);
    CHECK_INT(zero_engine_flush(e), ZERO_OK);
    refused(zero_engine_step(e, NULL), ZERO_E_ORDER, "or zero_micro_cancel");
    CHECK_INT(zero_micro_cancel(e), ZERO_OK);
    CHECK_INT(zero_micro_begin(e, ZERO_TRAIN), ZERO_OK);
    zero_engine_destroy(e);
}

static void the_last_failure_has_parts(void) {
    char line[256] = "";
    zero_unit *unit;
    zero_failure failure = {.struct_size = sizeof failure};
    zero_engine *e = open_engine("{\"train_batch_size\": 1}", line, &unit), *other = NULL;
    CHECK_INT(zero_engine_fill(e, constant, NULL), ZERO_OK);
    CHECK_INT(zero_backward_begin(unit), ZERO_E_ORDER);
    CHECK_INT(zero_last_failure(&failure), ZERO_OK);
    CHECK_INT(failure.code, ZERO_E_ORDER);
    CHECK_INT(failure.rank, -1);
    CHECK_STRING(failure.call, "zero_backward_begin");
    CHECK_STRING(failure.unit, "u");
    CHECK_STRING(failure.sentence, zero_last_error());
    zero_param again = {.struct_size = sizeof again, .name = "again"};
    CHECK_INT(zero_unit_add_param(unit, &again), ZERO_E_ORDER);
    CHECK_INT(zero_last_failure(&failure), ZERO_OK);
    CHECK_STRING(failure.call, "zero_unit_add_param");
    CHECK_STRING(failure.unit, "u");
    CHECK_INT(zero_engine_load(e, "/no/such/directory"), ZERO_E_ABSENT);
    CHECK_INT(zero_last_failure(&failure), ZERO_OK);
    CHECK_INT(failure.code, ZERO_E_ABSENT);
    CHECK_STRING(failure.call, "zero_engine_load");
    CHECK(!failure.unit);
    CHECK_INT(zero_engine_open("{\"train_batch_size\": -1}", NULL, &other), ZERO_E_CONFIG);
    CHECK(!other);
    CHECK_INT(zero_last_failure(&failure), ZERO_OK);
    CHECK_STRING(failure.call, "zero_engine_open");
    CHECK(strstr(failure.sentence, "train_batch_size"));
    CHECK_INT(zero_engine_open("{\"train_batch_size\": 1}", NULL, NULL), ZERO_E_ARGUMENT);
    CHECK_INT(zero_engine_open("{\"train_batch_size\": 1}", NULL, &other), ZERO_OK);
    zero_engine_destroy(other);
    failure.struct_size = 0;
    CHECK_INT(zero_last_failure(&failure), ZERO_E_ARGUMENT);
    CHECK_INT(zero_last_failure(NULL), ZERO_E_ARGUMENT);
    zero_engine_destroy(e);
}

static void failed_in(const char *call) {
    zero_failure failure = {.struct_size = sizeof failure};
    CHECK_INT(zero_last_failure(&failure), ZERO_OK);
    CHECK_STRING(failure.call, call);
    CHECK(!failure.unit);
    CHECK_CONTAINS(failure.sentence, call);
}

/* A host reads the keys of a file that people edit, from the text that the engine reads. */
static void texts_of_configurations(void) {
    char text[64] = "";
    static const char edited[] = "# a\n{seed: 1,}", strict[] = " \n{\"seed\": 1}";
    CHECK_INT(zero_config_text(edited, NULL, 0), sizeof strict);
    CHECK_INT(zero_config_text(edited, text, sizeof strict - 1), sizeof strict);
    CHECK_STRING(text, "");
    CHECK_INT(zero_config_text(edited, text, sizeof text), sizeof strict);
    CHECK_STRING(text, strict);
    CHECK_INT(zero_config_text("{seed: 1", text, sizeof text), 0);
    CHECK_STRING(zero_last_error(), "configuration:1:9: a comma or } is expected here");
    CHECK_INT(zero_config_text(NULL, text, sizeof text), 0);
    CHECK_INT(zero_config_text("/nowhere.json", text, sizeof text), 0);
    CHECK_CONTAINS(zero_last_error(), "/nowhere.json: cannot be opened");
}

/* Not of the call before, which had a unit. */
static void a_call_that_only_reads_fails_in_its_own_name(void) {
    char line[256] = "";
    zero_unit *unit;
    zero_memory_row row = {.struct_size = sizeof row};
    zero_memory_owner owner = {.struct_size = sizeof owner};
    zero_engine *e = open_engine("{\"train_batch_size\": 1}", line, &unit);
    CHECK_INT(zero_forward_begin(unit), ZERO_E_ORDER);
    CHECK(!zero_engine_setting(e, "nonsense"));
    failed_in("zero_engine_setting");
    CHECK_INT(zero_forward_begin(unit), ZERO_E_ORDER);
    CHECK_INT(zero_engine_memory(e, 1000, &row), ZERO_E_ARGUMENT);
    failed_in("zero_engine_memory");
    CHECK_INT(zero_forward_begin(unit), ZERO_E_ORDER);
    CHECK_INT(zero_engine_memory_owner(e, 1000, &owner), ZERO_E_ARGUMENT);
    failed_in("zero_engine_memory_owner");
    CHECK_INT(zero_forward_begin(unit), ZERO_E_ORDER);
    CHECK_INT(zero_engine_counters(e, NULL), ZERO_E_ARGUMENT);
    failed_in("zero_engine_counters");
    CHECK_INT(zero_forward_begin(unit), ZERO_E_ORDER);
    CHECK(!zero_local_create(0));
    failed_in("zero_local_create");
    zero_engine_destroy(e);
}

/* A schedule that asks the engine for its counters, and gives a learning rate that no step takes. */
static void asks(void *user, uint64_t step, int group, zero_setting *setting) {
    zero_counters counters = {.struct_size = sizeof counters};
    CHECK_INT(zero_engine_counters(user, &counters), ZERO_OK);
    setting->lr = -1;
}

/* Which call asks the schedule depends on `early`: whether the backward updates. */
static void a_schedule_may_ask(int early) {
    char line[256] = "";
    zero_unit *unit;
    zero_failure failure = {.struct_size = sizeof failure};
    zero_engine *e = open_engine(
        early ? "{\"train_batch_size\": 1, \"gradient_clipping\": 0, \"zero_optimization\": {\"stage\": 3, "
                "\"update_in_backward\": true}}"
              : "{\"train_batch_size\": 1}",
        line, &unit);
    CHECK_INT(zero_engine_fill(e, constant, NULL), ZERO_OK);
    CHECK_INT(zero_engine_set_schedule(e, asks, e), ZERO_OK);
    CHECK_INT(zero_micro_begin(e, ZERO_TRAIN), early ? ZERO_E_ARGUMENT : ZERO_OK);
    if (!early) {
        CHECK_INT(zero_forward_begin(unit), ZERO_OK);
        CHECK_INT(zero_forward_end(unit), ZERO_OK);
        CHECK_INT(zero_backward_begin(unit), ZERO_OK);
        CHECK_INT(zero_backward_end(unit), ZERO_OK);
        CHECK_INT(zero_engine_step(e, NULL), ZERO_E_ARGUMENT);
    }
    CHECK_INT(zero_last_failure(&failure), ZERO_OK);
    CHECK_STRING(failure.call, early ? "zero_micro_begin" : "zero_engine_step");
    zero_engine_destroy(e);
}

/* A name that is too long for what keeps it is cut between two characters. */
static void long_names_stay_utf8(void) {
    enum { CHARACTERS = 100, UNIT_BYTES = 126, RESERVATION_BYTES = 62 };
    char name[2 * CHARACTERS + 1] = "";
    zero_unit *unit;
    zero_failure failure = {.struct_size = sizeof failure};
    zero_memory_row row = {.struct_size = sizeof row};
    zero_param param = {.struct_size = sizeof param, .name = "w", .dims = 1, .shape = {2}, .slot = &slot};
    for (int i = 0; i < CHARACTERS; i++) memcpy(name + 2 * i, "\xc3\xa9", 3);
    zero_engine *e = zero_engine_init("{\"train_batch_size\": 1}");
    CHECK_INT(zero_engine_add_unit(e, name, &unit), ZERO_OK);
    CHECK_INT(zero_unit_add_param(unit, &param), ZERO_OK);
    CHECK_INT(zero_engine_reserve(e, ZERO_CPU, 4096, name), ZERO_OK);
    CHECK_INT(zero_engine_commit(e, NULL), ZERO_OK);
    CHECK_INT(zero_forward_begin(unit), ZERO_E_ORDER);
    CHECK_INT(zero_last_failure(&failure), ZERO_OK);
    CHECK_INT(strlen(failure.unit), UNIT_BYTES);
    uint32_t rows = 0;
    while (!zero_engine_memory(e, rows, &row)) rows++; /* reservations come last */
    CHECK_INT(zero_engine_memory(e, rows - 1, &row), ZERO_OK);
    CHECK_INT(strlen(row.name), RESERVATION_BYTES);
    zero_engine_destroy(e);
}

static void what_the_configuration_came_to(void) {
    char line[256] = "";
    zero_unit *unit;
    zero_engine *e =
        open_engine("{\"train_batch_size\": 12, \"gradient_accumulation_steps\": 3, \"seed\": 5, "
                    "\"gradient_clipping\": 0.5, \"optimizer\": {\"type\": \"Adam\", "
                    "\"params\": {\"betas\": [0.8, 0.9]}}}",
                    line, &unit);
    CHECK_INT(zero_engine_micro_batch(e), 4);
    CHECK_INT(zero_engine_accumulation_steps(e), 3);
    CHECK_INT(zero_engine_train_batch(e), 12);
    CHECK_INT(zero_engine_seed(e), 5);
    CHECK_DOUBLE(zero_engine_clipping(e), 0.5, 0);
    CHECK_STRING(zero_engine_setting(e, "train_micro_batch_size_per_gpu"), "4");
    CHECK_STRING(zero_engine_setting(e, "optimizer.type"), "\"Adam\"");
    CHECK_STRING(zero_engine_setting(e, "optimizer.params.lr"), "0.001");
    CHECK(!zero_engine_setting(e, "optimizer.params.rl"));
    CHECK(strstr(zero_last_error(), "there is no key \"optimizer.params.rl\""));
    CHECK(!zero_engine_setting(e, NULL));
    CHECK_STRING(line, "optimizer AdamW, lr 0.001 (default), gradient_clipping 0.5; a step has 12 samples: 3 "
                       "micro-steps of 4 on each of 1 ranks");
    zero_engine_destroy(e);
}

static void keep_all(void *user, zero_log_level level, const char *line) {
    size_t length = strlen(user);
    snprintf((char *)user + length, 8192 - length, "%s\n", line);
}

/* Opens an engine, writes its first lines to `log`, of 8192 bytes, and closes it. */
static void first_lines(const char *json, char *log) {
    zero_runtime runtime = {.struct_size = sizeof runtime, .log = keep_all, .log_user = log};
    zero_engine *e = zero_engine_init_with(json, &runtime);
    if (!CHECK(e)) fprintf(stderr, "%s\n", zero_last_error());
    zero_engine_destroy(e);
}

/* More keys than a line has room for. */
static void the_log_names_all_accepted_keys(void) {
    static const char *const names[] = {"overlap_comm",
                                        "contiguous_gradients",
                                        "reduce_scatter",
                                        "allgather_partitions",
                                        "use_multi_rank_bucket_allreduce",
                                        "compute_grad_norm",
                                        "round_robin_gradients",
                                        "parameter_alignment",
                                        "load_from_fp32_weights",
                                        "elastic_checkpoint",
                                        "ignore_unused_parameters",
                                        "legacy_stage1",
                                        "pipeline_loading_checkpoint",
                                        "memory_efficient_linear",
                                        "override_module_apply",
                                        "log_trace_cache_warnings",
                                        "enable_sanity_checks",
                                        "save_muon_momentum_buffer_in_memory",
                                        "stage3_gather_16bit_weights_on_model_save",
                                        "stage3_use_all_reduce_for_fetch_params",
                                        "stage3_allgather_sequential",
                                        "mics_hierarchical_params_gather"};
    char json[2048] = "{\"train_batch_size\": 1, \"zero_optimization\": {", log[8192] = "", key[128];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        sprintf(json + strlen(json), "%s\"%s\": true", i ? ", " : "", names[i]);
    first_lines(strcat(json, "}}"), log);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        sprintf(key, " zero_optimization.%s", names[i]);
        CHECK_CONTAINS(log, key);
    }
    CHECK(!strstr(log, "..."));
}

/* Only the host can obey them. */
static void the_log_names_keys_that_are_left_to_the_host(void) {
    static const char json[] =
        "{\"train_batch_size\": 1, \"steps_per_print\": 5, \"tensorboard\": {\"enabled\": true, "
        "\"job_name\": \"x\"}, "
        "\"csv_monitor\": {\"enabled\": true}, \"activation_checkpointing\": {\"number_checkpoints\": 4, "
        "\"cpu_checkpointing\": true}, \"model\": {\"gradient_checkpointing\": true}, \"data\": {\"path\": "
        "\"x\"}, "
        "\"device\": {\"graphs\": true}}";
    static const char line[] =
        "steps_per_print, tensorboard.enabled, tensorboard.job_name, csv_monitor.enabled, "
        "activation_checkpointing.number_checkpoints, activation_checkpointing.cpu_checkpointing, "
        "device.graphs, data.path, "
        "model.gradient_checkpointing: no effect unless this program obeys them itself, as `zero train` "
        "does\n";
    char log[8192] = "";
    first_lines(json, log);
    CHECK_CONTAINS(log, line);
}

/* Slots of 2 bytes, and a host that has not asked. */
static void types_are_asked_for(void) {
    static const char wide[] = "{\"train_batch_size\": 1, \"bf16\": {\"enabled\": true}, \"param_groups\": "
                               "[{\"match\": \"*\", \"dtype\": \"fp32\"}]}";
    static const char *const names[] = {"bf16", "fp16"};
    zero_unit *unit;
    char json[200], line[200];
    for (int i = 0; i < 2; i++)
        for (int by_param = 0; by_param < 2; by_param++) {
            snprintf(json, sizeof json, "{\"train_batch_size\": 1, \"%s\": {\"enabled\": true}}", names[i]);
            zero_engine *e = open_engine(json, line, &unit);
            CHECK_INT(zero_engine_fill(e, constant, NULL), ZERO_OK);
            refused(zero_micro_begin(e, ZERO_EVAL), ZERO_E_ORDER, names[i]);
            refused(zero_micro_begin(e, ZERO_TRAIN), ZERO_E_ORDER, "call zero_engine_dtype");
            if (by_param)
                CHECK_INT(zero_param_dtype(zero_unit_param(unit, 0)), ZERO_BF16 + i);
            else
                CHECK_INT(zero_engine_dtype(e), ZERO_BF16 + i);
            CHECK_INT(zero_micro_begin(e, ZERO_TRAIN), ZERO_OK);
            zero_engine_destroy(e);
        }
    zero_engine *e = open_engine(wide, line, &unit); /* floats all the same */
    CHECK_INT(zero_engine_fill(e, constant, NULL), ZERO_OK);
    CHECK_INT(zero_micro_begin(e, ZERO_TRAIN), ZERO_OK);
    zero_engine_destroy(e);
}

int main(void) {
    types_are_asked_for();
    a_null_engine_is_refused();
    a_null_engine_has_no_values();
    calls_before_there_are_weights();
    names_are_utf8();
    addresses_are_known_after_commit();
    what_adjoins();
    tied_to_spans_nothing_adjoins();
    a_step_without_a_backward();
    the_last_failure_has_parts();
    a_call_that_only_reads_fails_in_its_own_name();
    texts_of_configurations();
    for (int early = 0; early < 2; early++) a_schedule_may_ask(early);
    long_names_stay_utf8();
    what_the_configuration_came_to();
    the_log_names_all_accepted_keys();
    the_log_names_keys_that_are_left_to_the_host();
    return check_end();
}
