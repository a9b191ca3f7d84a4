#include "tools/report/record.h"

#include <errno.h>
#include <inttypes.h>
#include <json-c/json.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/system/regular_file.h"
#include "engine/run/events.h"

enum { RUN_BYTES_MAX = 16 << 20, TRACE_BYTES_MAX = 256 << 20 };

/* The names in metrics.jsonl, by enum quantity. */
static const char *const quantity_names[QUANTITIES] = {
    "loss",      "eval_loss", "grad_norm", "lr",         "seconds",          "tokens_per_s",      "mfu",
    "compute_s", "wait_s",    "update_s",  "wire_bytes", "drive_read_bytes", "drive_write_bytes", "skipped",
    "repeated"};

static const char *text_of(struct json_object *object, const char *key) {
    struct json_object *value = json_object_object_get(object, key);
    return json_object_is_type(value, json_type_string) ? json_object_get_string(value) : "";
}

static double number_of(struct json_object *object, const char *key) {
    struct json_object *value = json_object_object_get(object, key);
    bool is_number =
        json_object_is_type(value, json_type_int) || json_object_is_type(value, json_type_double);
    return is_number ? json_object_get_double(value) : NAN;
}

static uint64_t count_of(struct json_object *object, const char *key) {
    double number = number_of(object, key);
    return number >= 0 && number < 1e18 ? (uint64_t)number : 0;
}

static struct json_object *list_of(struct json_object *object, const char *key, size_t *out_count) {
    struct json_object *list = json_object_object_get(object, key);
    if (!json_object_is_type(list, json_type_array)) list = NULL;
    *out_count = list ? json_object_array_length(list) : 0;
    return list;
}

static void copy_text(char *out, size_t capacity, const char *text) { snprintf(out, capacity, "%s", text); }

static zero_status no_memory(struct zero_error *error) {
    return error_set(error, ZERO_E_MEMORY, "no memory for the run's record");
}

/* ---- run.json ---- */

static zero_status take_run(struct json_object *root, struct run_record *r, struct zero_error *error) {
    size_t settings, lines;
    struct json_object *list = list_of(root, "settings", &settings);
    const size_t most = sizeof r->settings / sizeof *r->settings;
    copy_text(r->title, sizeof r->title, text_of(root, "model"));
    for (size_t i = 0; i < settings && i < most; i++, r->setting_count++) {
        struct json_object *item = json_object_array_get_idx(list, i);
        copy_text(r->settings[i], sizeof r->settings[i],
                  json_object_is_type(item, json_type_string) ? json_object_get_string(item) : "");
    }
    r->steps_asked = count_of(root, "steps");
    copy_text(r->peak, sizeof r->peak, text_of(root, "peak"));
    r->wire_planned = count_of(root, "wire_bytes");
    r->drive_read_planned = count_of(root, "drive_read_bytes");
    r->drive_write_planned = count_of(root, "drive_write_bytes");
    list = list_of(root, "memory", &lines);
    r->memory = calloc(lines + 1, sizeof *r->memory);
    if (!r->memory) return no_memory(error);
    for (size_t i = 0; i < lines; i++, r->memory_count++) {
        struct json_object *row = json_object_array_get_idx(list, i);
        struct memory_line *line = &r->memory[i];
        copy_text(line->tier, sizeof line->tier, text_of(row, "tier"));
        copy_text(line->name, sizeof line->name, text_of(row, "name"));
        line->planned = count_of(row, "planned"), line->measured = count_of(row, "measured");
    }
    return ZERO_OK;
}

/* *out is NULL if there is no such file. The memory of a document is up to forty times the file's bytes. */
static zero_status parse_file(const char *path, long bytes_max, struct json_object **out,
                              struct zero_error *error) {
    *out = NULL;
    FILE *file = regular_file_open(path);
    if (!file && errno == ENOENT) return ZERO_OK;
    if (!file) return error_set(error, ZERO_E_IO, "cannot read %s: %s", path, regular_file_why());
    struct stat found;
    bool fits = fstat(fileno(file), &found) == 0 && found.st_size <= bytes_max;
    if (fits) *out = json_object_from_fd(fileno(file));
    fclose(file);
    if (!fits)
        return error_set(error, ZERO_E_CONFIG, "%s has more than %ld bytes: zero train writes less", path,
                         bytes_max);
    if (json_object_is_type(*out, json_type_object)) return ZERO_OK;
    json_object_put(*out);
    *out = NULL;
    return error_set(error, ZERO_E_CONFIG, "%s is not a JSON object, which zero train writes there", path);
}

static zero_status read_run(const char *directory, struct run_record *r, struct zero_error *error) {
    char path[4096 + 32];
    struct json_object *root;
    snprintf(path, sizeof path, "%s/run.json", directory);
    zero_status status = parse_file(path, RUN_BYTES_MAX, &root, error);
    if (!status && !root)
        status = error_set(
            error, ZERO_E_IO,
            "%s holds no run: it has no run.json; name the directory that zero train printed behind \"run\"",
            directory);
    if (!status) status = take_run(root, r, error);
    json_object_put(root);
    return status;
}

/* ---- metrics.jsonl ---- */

static bool grow(double **array, uint32_t count) {
    if (count & (count - 1)) return true; /* the size doubles at powers of two */
    double *grown = realloc(*array, (count ? 2 * (size_t)count : 1) * sizeof **array);
    if (grown) *array = grown;
    return grown;
}

static zero_status take_step(struct json_object *line, struct run_record *r, struct zero_error *error) {
    bool whole = grow(&r->step, r->steps);
    for (int q = 0; q < QUANTITIES; q++) whole &= grow(&r->value[q], r->steps);
    if (!whole) return no_memory(error);
    r->step[r->steps] = number_of(line, "step");
    for (int q = 0; q < QUANTITIES; q++) r->value[q][r->steps] = number_of(line, quantity_names[q]);
    r->steps++;
    return ZERO_OK;
}

static zero_status read_metrics(const char *directory, struct run_record *r, struct zero_error *error) {
    char path[4096 + 32], *text = NULL;
    size_t capacity = 0;
    ssize_t length;
    zero_status status = ZERO_OK;
    snprintf(path, sizeof path, "%s/metrics.jsonl", directory);
    FILE *file = regular_file_open(path);
    if (!file) return error_set(error, ZERO_E_IO, "cannot read %s: %s", path, regular_file_why());
    for (uint64_t number = 1; !status && (length = getline(&text, &capacity, file)) > 0; number++) {
        if (text[length - 1] != '\n') break; /* the run is still writing, or was killed */
        struct json_object *line = json_tokener_parse(text);
        bool good = json_object_is_type(line, json_type_object) && isfinite(number_of(line, "step"));
        status = good ? take_step(line, r, error)
                      : error_set(error, ZERO_E_CONFIG,
                                  "%s, line %" PRIu64 ": not a step that zero train wrote", path, number);
        json_object_put(line);
    }
    free(text);
    fclose(file);
    return status;
}

/* ---- trace.json ---- */

static void name_stream(struct json_object *event, struct run_record *r) {
    uint64_t stream = count_of(event, "tid") / TRACE_LANES;
    const size_t most = sizeof r->stream / sizeof *r->stream;
    if (stream >= most || strcmp(text_of(event, "name"), "thread_name") != 0) return;
    struct json_object *arguments = json_object_object_get(event, "args");
    copy_text(r->stream[stream], sizeof r->stream[stream], text_of(arguments, "name"));
    if (stream >= r->streams) r->streams = (uint32_t)stream + 1;
}

static void take_span(struct json_object *event, struct run_record *r) {
    struct span *span = &r->span[r->span_count];
    *span = (struct span){.rank = (uint32_t)count_of(event, "pid"),
                          .stream = (uint32_t)count_of(event, "tid") / TRACE_LANES,
                          .began_us = number_of(event, "ts"),
                          .took_us = number_of(event, "dur")};
    copy_text(span->name, sizeof span->name, text_of(event, "name"));
    bool whole = isfinite(span->began_us + span->took_us) && span->took_us >= 0 && span->stream < r->streams;
    if (!whole) return;
    if (span->rank >= r->ranks) r->ranks = span->rank + 1;
    r->span_count++;
}

static zero_status read_trace(const char *directory, struct run_record *r, struct zero_error *error) {
    char path[4096 + 32];
    struct json_object *root;
    size_t count;
    snprintf(path, sizeof path, "%s/trace.json", directory);
    zero_status status = parse_file(path, TRACE_BYTES_MAX, &root, error);
    if (status || !root) return status;
    struct json_object *events = list_of(root, "traceEvents", &count);
    r->span = calloc(count + 1, sizeof *r->span);
    if (!r->span) status = no_memory(error);
    for (size_t i = 0; i < count && !status; i++) {
        struct json_object *event = json_object_array_get_idx(events, i);
        const char *phase = text_of(event, "ph");
        if (strcmp(phase, "M") == 0) name_stream(event, r);
        if (strcmp(phase, "X") == 0) take_span(event, r);
    }
    r->has_trace = r->span_count > 0;
    json_object_put(root);
    return status;
}

zero_status run_record_read(const char *directory, struct run_record *out, struct zero_error *error) {
    memset(out, 0, sizeof *out);
    TRY(read_run(directory, out, error));
    TRY(read_metrics(directory, out, error));
    return read_trace(directory, out, error);
}

void run_record_free(struct run_record *r) {
    free(r->memory);
    free(r->step);
    for (int q = 0; q < QUANTITIES; q++) free(r->value[q]);
    free(r->span);
    memset(r, 0, sizeof *r);
}
