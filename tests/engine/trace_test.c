/* The timeline that an engine keeps on request: every operation of the traced steps, in the order of the streams, and
 * nothing else changes. */
#include <json-c/json.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tests/check.h"
#include "tests/engine/plain.h"
#include "tests/engine/ranks.h"
#include "tests/engine/toy_model.h"

enum { RANKS = 2, STEPS = 5, THREADS_MAX = 16 * 64, NAMES_MAX = 64 };

static const struct plain_param model[] = {
    {"a", "a.w", 3001, 0, NULL}, {"b", "b.w", 2600, 0, NULL}, {"c \"quoted\"", "c.w", 900, 0, NULL}};
enum { UNITS = sizeof model / sizeof *model };

/* Each has one chunk on each rank, and all chunks have as many bytes. */
static const struct plain_param even[] = {
    {"a", "a.w", 2600, 0, NULL}, {"b", "b.w", 2600, 0, NULL}, {"c", "c.w", 2600, 0, NULL}};

struct run {
    const char *path; /* of the trace; NULL: none is asked for */
    uint64_t first, steps;
    bool even; /* the other model */
    zero_status wrote[RANKS];
    char error[RANKS][400], hash[33];
    uint64_t gathers[RANKS], reductions[RANKS], sent[RANKS]; /* of the traced steps, by the counters */
    zero_plan plan;
    bool has_row;
};

static bool finds_row(zero_engine *engine) {
    zero_memory_row row = {.struct_size = sizeof row};
    bool found = false;
    for (uint32_t i = 0; zero_engine_memory(engine, i, &row) == ZERO_OK; i++)
        found |= strcmp(row.name, "trace") == 0 && row.tier == ZERO_CPU && row.planned == row.measured &&
                 row.planned >= 1 << 20;
    return found;
}

static void count(zero_engine *engine, int sign, struct run *run, uint32_t rank) {
    zero_counters now = {.struct_size = sizeof now};
    zero_engine_counters(engine, &now);
    run->gathers[rank] += (uint64_t)sign * now.gather_calls;
    run->reductions[rank] += (uint64_t)sign * now.reduce_calls;
    run->sent[rank] += (uint64_t)sign * now.wire_bytes;
}

static void body(zero_engine *engine, uint32_t rank, void *user) {
    struct run *run = user;
    struct plain p;
    char hash[33];
    if (run->steps) CHECK_INT(zero_engine_trace(engine, run->first, run->steps), ZERO_OK);
    zero_plan plan = {.struct_size = sizeof plan};
    CHECK_INT(plain_open(&p, engine, run->even ? even : model, UNITS, &plan), ZERO_OK);
    if (rank == 0) run->plan = plan;
    for (uint64_t step = 1; step <= STEPS; step++) {
        if (step == run->first) count(engine, -1, run, rank);
        CHECK_INT(plain_step(&p, 1, NULL), ZERO_OK);
        if (step == run->first + run->steps - 1) count(engine, 1, run, rank);
        if (step != STEPS - 1 || !run->path) continue;
        run->wrote[rank] = zero_engine_write_trace(engine, run->path); /* and goes on */
        snprintf(run->error[rank], sizeof run->error[rank], "%s", zero_last_error());
    }
    if (rank == 0) run->has_row = finds_row(engine);
    CHECK_INT(zero_engine_hash(engine, hash), ZERO_OK);
    if (rank == 0) memcpy(run->hash, hash, sizeof hash);
}

static void train_with(struct run *run, const char *zero, const char *more) {
    char json[2000];
    snprintf(json, sizeof json,
             "{\"train_micro_batch_size_per_gpu\": 1, \"threads\": 1, \"zero_optimization\": {\"stage\": 3, "
             "\"stage3_param_persistence_threshold\": 0%s}%s}",
             zero, more);
    ranks_run(RANKS, json, body, run);
}

static void train(struct run *run, const char *more) { train_with(run, "", more); }

/* ---- what a file holds ---- */

struct timeline {
    uint64_t gathers, reductions, updates, agreements, fetches, stores;
    char passes[NAMES_MAX][64]; /* of compute, in order */
    uint32_t pass_count;
    double ended[THREADS_MAX];
    struct counter {
        double at, per_s, bytes; /* the last value, and what all make: bytes per second times their seconds */
    } sent, read, written;
};

static const char *text(struct json_object *object, const char *key) {
    return json_object_get_string(json_object_object_get(object, key));
}

static double number(struct json_object *object, const char *key) {
    return json_object_get_double(json_object_object_get(object, key));
}

static bool starts(const char *name, const char *word) { return strncmp(name, word, strlen(word)) == 0; }

static void take(struct json_object *event, struct timeline *t) {
    const char *name = text(event, "name");
    int thread = json_object_get_int(json_object_object_get(event, "tid"));
    if (!CHECK(thread >= 0 && thread < THREADS_MAX)) return;
    CHECK(number(event, "ts") >= t->ended[thread] - 1e-6 &&
          number(event, "dur") >= 0); /* slices of a thread do not overlap */
    t->ended[thread] = number(event, "ts") + number(event, "dur");
    t->gathers += starts(name, "GATHER ");
    t->reductions += starts(name, "REDUCE ");
    t->updates += starts(name, "UPDATE ");
    t->agreements += starts(name, "AGREE ");
    t->fetches += starts(name, "FETCH ");
    t->stores += starts(name, "STORE ");
    bool pass = starts(name, "forward ") || starts(name, "backward ");
    if (pass && CHECK(t->pass_count < NAMES_MAX)) strncpy(t->passes[t->pass_count++], name, 63);
}

static void add_up(struct counter *c, struct json_object *event, const char *key) {
    double at = number(event, "ts") * 1e-6;
    struct json_object *args = json_object_object_get(event, "args");
    CHECK(at >= c->at);
    c->bytes += c->per_s * (at - c->at);
    c->at = at, c->per_s = number(args, key);
    CHECK(c->per_s >= 0);
}

static void take_counter(struct json_object *event, struct timeline *t) {
    const char *name = text(event, "name");
    if (strcmp(name, "wire bytes/s") == 0) add_up(&t->sent, event, "sent");
    if (strcmp(name, "drive bytes/s") != 0) return;
    add_up(&t->read, event, "read");
    add_up(&t->written, event, "written");
}

static bool read_timelines(const char *path, struct timeline out[RANKS]) {
    memset(out, 0, RANKS * sizeof *out);
    struct json_object *root = json_object_from_file(path);
    struct json_object *events = json_object_object_get(root, "traceEvents");
    if (!CHECK(json_object_is_type(events, json_type_array))) return false;
    for (size_t i = 0; i < json_object_array_length(events); i++) {
        struct json_object *event = json_object_array_get_idx(events, i);
        int rank = json_object_get_int(json_object_object_get(event, "pid"));
        if (!CHECK(rank >= 0 && rank < RANKS)) continue;
        if (strcmp(text(event, "ph"), "X") == 0) take(event, &out[rank]);
        if (strcmp(text(event, "ph"), "C") == 0) take_counter(event, &out[rank]);
    }
    json_object_put(root);
    return true;
}

/* Each step: forward of all units, then backward of all. */
static void check_passes(const struct timeline *t, uint64_t steps) {
    CHECK_INT(t->pass_count, steps * 2 * UNITS);
    for (uint32_t i = 0; i < t->pass_count; i++) {
        uint32_t at = i % (2 * UNITS), unit = at < UNITS ? at : 2 * UNITS - 1 - at;
        char expected[64];
        snprintf(expected, sizeof expected, "%s %s", at < UNITS ? "forward" : "backward", model[unit].unit);
        CHECK_STRING(t->passes[i], expected);
    }
}

/* Bytes per second add up to bytes, and nothing moves in the end. */
static void check_counter(const struct counter *c, uint64_t bytes) {
    CHECK(bytes > 0);
    CHECK_DOUBLE(c->bytes, (double)bytes, 1e-4);
    CHECK_INT((int64_t)c->per_s, 0);
}

/* What the drive does for a step goes on under the next one, so its operations are counted in the file. A step has one of each kind
 * per chunk. */
static void check_drive(const struct run *run) {
    struct timeline t[RANKS];
    if (!read_timelines(run->path, t)) return;
    for (int r = 0; r < RANKS; r++) {
        check_counter(&t[r].read, t[r].fetches * run->plan.drive_read_bytes / UNITS);
        check_counter(&t[r].written, t[r].stores * run->plan.drive_write_bytes / UNITS);
    }
}

static void check_file(const struct run *run, uint64_t steps) {
    struct timeline t[RANKS];
    if (!read_timelines(run->path, t)) return;
    for (int r = 0; r < RANKS; r++) {
        CHECK_INT(t[r].gathers, run->gathers[r]);
        CHECK_INT(t[r].reductions, run->reductions[r]);
        CHECK_INT(t[r].updates, steps * UNITS);
        CHECK_INT(t[r].agreements, steps);
        check_counter(&t[r].sent, run->sent[r]);
        check_passes(&t[r], steps);
    }
}

enum { PATH_BYTES = 1000 };

static const char *file(const char *name, char path[PATH_BYTES]) {
    snprintf(path, PATH_BYTES, "%s/%s", getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp", name);
    return path;
}

/* The trace is one reservation more: without room for it the commit says so, and does not go on. */
static void full(zero_engine *engine, uint32_t rank, void *user) {
    struct plain p;
    zero_status status = zero_engine_trace(engine, 1, 1);
    while (!status) status = zero_engine_reserve(engine, ZERO_CPU, 1, "the host's");
    CHECK_INT(plain_open(&p, engine, model, UNITS, NULL), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(zero_last_error(), "reservations");
}

int main(void) {
    char paths[3][PATH_BYTES];
    struct run without = {0}, traced = {.path = file("trace.json", paths[0]), .first = 2, .steps = 2};
    train(&without, "");
    CHECK(!without.has_row);
    train(&traced, "");
    CHECK_STRING(traced.error[0], "");
    CHECK(traced.has_row);
    CHECK_STRING(traced.hash, without.hash);
    check_file(&traced, 2);

    /* Until the file is written, with a drive and gradients in memory. */
    char drive[PATH_BYTES + 200];
    snprintf(drive, sizeof drive,
             ", \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}, \"offload_gradients\": "
             "{\"device\": \"none\"}",
             file("swap", paths[1]));
    struct run stored = {.path = paths[0], .first = 2, .steps = STEPS, .even = true};
    train_with(&stored, drive, "");
    check_drive(&stored);

    /* The configuration goes before the host, which asks for step 4 alone; the file has what there is so far. */
    struct run configured = {.path = file("configured.json", paths[1]), .first = 4, .steps = 1};
    train(&configured, ", \"trace\": {\"first_step\": 4, \"steps\": 100}");
    CHECK_STRING(configured.error[1], "");
    check_file(&configured, 1);

    /* A file that cannot be written is every rank's failure, and costs the training nothing. */
    struct run nowhere = {.path = "/nowhere/at/all/trace.json", .first = 1, .steps = 1};
    train(&nowhere, "");
    for (int r = 0; r < RANKS; r++) {
        CHECK_INT(nowhere.wrote[r], ZERO_E_IO);
        CHECK_CONTAINS(nowhere.error[r], "/nowhere/at/all/trace.json");
    }
    CHECK_STRING(nowhere.hash, without.hash);

    struct run unasked = {.path = file("unasked.json", paths[2])};
    train(&unasked, "");
    CHECK_INT(unasked.wrote[0], ZERO_E_ARGUMENT);
    CHECK_CONTAINS(unasked.error[0], "nothing is traced");
    ranks_run(1, "{\"train_micro_batch_size_per_gpu\": 1}", full, NULL);
    return check_end();
}
