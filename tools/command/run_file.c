#include "tools/command/run_file.h"

#include <errno.h>
#include <inttypes.h>
#include <json-c/json.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/dtype.h"
#include "engine/base/utf8.h"
#include "engine/config/scan.h"
#include "offload/tier.h"
#include "tools/command/format.h"
#include "tools/command/new_file.h"
#include "tools/command/own_file.h"
#include "tools/command/record.h"
#include "tools/plan/edit.h"

static void add_text(struct json_object *list, const char *format, ...) {
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    json_object_array_add(list, json_object_new_string(text));
}

static struct json_object *settings_of(const struct job *job, const zero_engine *engine) {
    const struct config *c = &job->config;
    struct json_object *list = json_object_new_array();
    add_text(list, "ZeRO stage %" PRIu64, c->stage);
    if (c->optimizer_tier)
        add_text(list, "optimizer state on %s%s", c->device_share > 0 ? "device and " : "",
                 tier_table[c->optimizer_tier]->name);
    if (c->param_tier) add_text(list, "parameters on %s", tier_table[c->param_tier]->name);
    uint32_t ranks = zero_engine_size(engine), threads = zero_engine_threads(engine);
    add_text(list, "%" PRIu32 " rank%s, %" PRIu32 " CPU thread%s each", ranks, ranks == 1 ? "" : "s", threads,
             threads == 1 ? "" : "s");
    add_text(list, "%s, %s", dtype_name((enum dtype)c->compute_dtype), c->optimizer.name);
    add_text(list, "%" PRIu64 " samples of %" PRIu32 " tokens per step", c->train_batch, job->model.context);
    return list;
}

static void add_count(struct json_object *object, const char *key, uint64_t count) {
    json_object_object_add(object, key, json_object_new_uint64(count));
}

static struct json_object *memory_of(const zero_engine *engine) {
    struct json_object *list = json_object_new_array();
    zero_memory_row row = {.struct_size = sizeof row};
    for (uint32_t i = 0; zero_engine_memory(engine, i, &row) == ZERO_OK; i++) {
        struct json_object *line = json_object_new_object();
        json_object_object_add(line, "tier", json_object_new_string(tier_table[row.tier]->name));
        json_object_object_add(line, "name", json_object_new_string(row.name));
        add_count(line, "planned", row.planned);
        add_count(line, "measured", row.measured);
        json_object_array_add(list, line);
    }
    return list;
}

zero_status run_file_write(const struct job *job, const zero_engine *engine, const zero_plan *plan,
                           uint64_t steps, const char *directory, struct zero_error *error) {
    char path[4096 + 32], title[256];
    snprintf(path, sizeof path, "%s/run.json", directory);
    snprintf(title, sizeof title, "%s, %s parameters: %u layers, %u wide", gpt_title(&job->model),
             format_count((double)gpt_parameters(&job->model)).chars, job->model.layers, job->model.width);
    struct json_object *root = json_object_new_object();
    json_object_object_add(root, "version", json_object_new_string(zero_version()));
    json_object_object_add(root, "model", json_object_new_string(title));
    json_object_object_add(root, "config",
                           json_object_new_string(access(job->config_path, F_OK)
                                                      ? "configuration" /* a text */
                                                  : utf8_is(job->config_path) ? job->config_path
                                                                              : "a path that is not UTF-8"));
    json_object_object_add(root, "settings", settings_of(job, engine));
    add_count(root, "steps", steps);
    add_count(root, "drive_read_bytes", plan->drive_read_bytes * job->ranks);
    add_count(root, "drive_write_bytes", plan->drive_write_bytes * job->ranks);
    json_object_object_add(root, "memory", memory_of(engine));
    zero_status status =
        new_file_write(path, json_object_to_json_string_ext(root, JSON_C_TO_STRING_PRETTY), error);
    json_object_put(root);
    return status;
}

/* NULL, or the problem of the file that is in its place. */
static const char *find_config(const char *directory, char out_path[RUN_FILE_PATH_BYTES]) {
    snprintf(out_path, RUN_FILE_PATH_BYTES, "%s/config.json", directory);
    return own_file_problem(out_path, EDIT_BEGINNING, SCAN_BYTES_MAX);
}

zero_status run_file_drop_config(const struct job *job, const char *directory, struct zero_error *error) {
    char path[RUN_FILE_PATH_BYTES];
    struct stat earlier, given;
    if (find_config(directory, path) || stat(path, &earlier) != 0) return ZERO_OK;
    if (stat(job->config_path, &given) == 0 && given.st_dev == earlier.st_dev &&
        given.st_ino == earlier.st_ino)
        return ZERO_OK;
    if (unlink(path) == 0) return ZERO_OK;
    return error_set(error, ZERO_E_IO, "cannot remove the earlier run's %s: %s", path, strerror(errno));
}

zero_status run_file_check_config(const char *directory, struct zero_error *error) {
    char path[RUN_FILE_PATH_BYTES];
    const char *problem = find_config(directory, path);
    return problem ? error_set(error, ZERO_E_ARGUMENT, "%s %s", path, problem) : ZERO_OK;
}

zero_status run_file_write_config(const struct job *job, const char *directory, struct zero_error *error) {
    char path[RUN_FILE_PATH_BYTES], *text = NULL;
    const char *problem = find_config(directory, path);
    if (problem) return error_set(error, ZERO_E_ARGUMENT, "%s %s", path, problem);
    if (asprintf(&text, "%s\n", job->config_json) < 0)
        return error_set(error, ZERO_E_MEMORY, "no memory for %s", path);
    zero_status status = new_file_write(path, text, error);
    free(text);
    return status;
}

#define MODEL_BEGINNING "{\"_comment_model\": \"of --model\""

static bool is_own_model(const char *path) {
    struct stat found;
    return stat(path, &found) == 0 && !own_file_problem(path, MODEL_BEGINNING, SCAN_BYTES_MAX);
}

bool run_file_model(const char *directory, char out_path[RUN_FILE_PATH_BYTES]) {
    snprintf(out_path, RUN_FILE_PATH_BYTES, "%s/model.json", directory);
    return is_own_model(out_path);
}

zero_status run_file_write_model(const struct job *job, const char *directory, struct zero_error *error) {
    char path[RUN_FILE_PATH_BYTES], from[RUN_FILE_PATH_BYTES], *text = NULL;
    struct config_text model;
    struct stat found;
    if (!job->model_path || (!run_file_model(directory, path) && lstat(path, &found) == 0)) return ZERO_OK;
    bool inside = stat(job->model_path, &found) == 0 && S_ISDIR(found.st_mode);
    snprintf(from, sizeof from, "%s%s", job->model_path, inside ? "/config.json" : "");
    zero_status status = config_text_read(from, &model, error);
    if (status) return status;
    bool kept = strncmp(model.text, MODEL_BEGINNING, sizeof MODEL_BEGINNING - 1) == 0; /* by a run */
    const char *first =
        kept ? model.text : model.text + strcspn(model.text, "{") + 1; /* it was read before */
    const char *comma = kept || first[strspn(first, " \t\r\n")] == '}' ? "" : ",";
    if (asprintf(&text, "%s%s%s", kept ? "" : MODEL_BEGINNING, comma, first) < 0)
        status = error_set(error, ZERO_E_MEMORY, "no memory for %s", path);
    if (!status) status = new_file_write(path, text, error);
    free(model.text);
    free(text);
    return status;
}
