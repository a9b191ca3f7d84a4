#include "tools/run_directory/run_directory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/system/durable.h"
#include "engine/base/utf8.h"
#include "engine/config/text/scan.h"
#include "tools/plan/edit.h"
#include "tools/run_directory/file.h"
#include "tools/weights/weights.h"

static zero_status no_memory(const char *path, struct zero_error *error) {
    return error_set(error, ZERO_E_MEMORY, "no memory for %s", path);
}

static bool same_file(const char *a, const char *b) {
    struct stat one, other;
    return stat(a, &one) == 0 && stat(b, &other) == 0 && one.st_dev == other.st_dev &&
           one.st_ino == other.st_ino;
}

/* ---- the directory ---- */

/* NULL, or the problem of the file in the place of RUN/config.json. */
static const char *find_config(const char *directory, char out_path[RUN_PATH_BYTES]) {
    snprintf(out_path, RUN_PATH_BYTES, "%s/config.json", directory);
    return own_file_problem(out_path, EDIT_BEGINNING, SCAN_BYTES_MAX);
}

/* `is_new`: the directory was not there before; then --continue, too, finds no earlier run. */
static zero_status lock_and_check(const struct run_request *r, const char *directory, bool is_new,
                                  struct zero_error *error) {
    char path[RUN_PATH_BYTES];
    zero_status status = run_lock_take(r->lock, directory, error);
    if (!status) status = identity_check(directory, error);
    const char *problem = r->chosen && !status ? find_config(directory, path) : NULL;
    if (problem) status = error_set(error, ZERO_E_ARGUMENT, "%s %s", path, problem);
    if (status || r->resume || r->recover || r->overwrite || (r->again && !is_new)) return status;
    return earlier_check(directory, r->config->nvme_shadow, error);
}

zero_status run_directory_lock(const struct run_request *request, struct zero_error *error) {
    return lock_and_check(request, request->path, false, error);
}

zero_status run_directory_create(const char *name, bool is_new, char out_path[RUN_NAME_BYTES],
                                 struct zero_error *error) {
    if (strlen(name) + sizeof "-2147483647" > RUN_NAME_BYTES || !*name)
        return error_set(error, ZERO_E_ARGUMENT, "the run's directory has an empty or too long name");
    strcpy(out_path, name);
    int failed = durable_parents(out_path, 0777);
    if (!failed) failed = durable_directory(out_path, 0777);
    for (int number = 2; failed == EEXIST && is_new; number++) {
        sprintf(out_path, "%s-%d", name, number);
        failed = durable_directory(out_path, 0777);
    }
    if (!failed || failed == EEXIST) return ZERO_OK;
    return error_set(error, ZERO_E_IO, "cannot make the run's directory %s: %s", out_path, strerror(failed));
}

/* Another run may have begun and ended in a new directory before it is locked. */
zero_status run_directory_make(struct run_directory *run, struct zero_error *error) {
    struct identity noted;
    identity_noted(run->engine, zero_engine_note, &noted);
    zero_status status = run->way == RUN_RESUME ? run_directory_same(run, &noted, error) : ZERO_OK;
    if (!status) status = run_directory_create(run->request->path, run->request->is_new, run->path, error);
    if (status || run->request->lock->held) return status;
    return lock_and_check(run->request, run->path, true, error);
}

/* ---- its files ---- */

static zero_status write_identity(struct run_directory *run, struct zero_error *error) {
    struct identity noted, *own = &run->own;
    identity_noted(run->engine, zero_engine_note, &noted);
    bool goes_on = run->way != RUN_ANEW || run->same_run;
    bool kept = goes_on && run->way != RUN_RECOVER && *run->previous.id &&
                !*noted.id; /* an imported checkpoint has no run */
    const struct identity *from = kept ? &run->previous : &noted;
    identity_begin(own);
    if (goes_on && *from->id) strcpy(own->id, from->id), strcpy(own->begun, from->begun);
    char *path = realpath(run->path, NULL);
    if (path && strlen(path) < sizeof own->directory && utf8_is(path)) strcpy(own->directory, path);
    free(path);
    return identity_write(run->path, own, error);
}

static zero_status write_config(const struct run_directory *run, struct zero_error *error) {
    const struct run_request *r = run->request;
    char path[RUN_PATH_BYTES], *text = NULL;
    const char *problem = find_config(run->path, path);
    if (!r->chosen) {
        bool drops = run->way == RUN_ANEW && !problem && !same_file(path, r->config_path);
        if (!drops || unlink(path) == 0 || errno == ENOENT) return ZERO_OK;
        return error_set(error, ZERO_E_IO, "cannot remove the earlier run's %s: %s", path, strerror(errno));
    }
    if (problem) return error_set(error, ZERO_E_ARGUMENT, "%s %s", path, problem);
    if (asprintf(&text, "%s\n", r->config_json) < 0) return no_memory(path, error);
    zero_status status = new_file_write(path, text, error);
    free(text);
    return status;
}

#define MODEL_BEGINNING "{\"_comment_model\": \"of --model\""

bool run_directory_model(const char *directory, char out_path[RUN_PATH_BYTES]) {
    snprintf(out_path, RUN_PATH_BYTES, "%s/model.json", directory);
    return access(out_path, F_OK) == 0 && !own_file_problem(out_path, MODEL_BEGINNING, SCAN_BYTES_MAX);
}

static zero_status write_model(const struct run_directory *run, struct zero_error *error) {
    const char *given = run->request->model_path;
    char path[RUN_PATH_BYTES], from[RUN_PATH_BYTES], *text = NULL;
    struct config_text model;
    struct stat found;
    if (!given || (!run_directory_model(run->path, path) && lstat(path, &found) == 0)) return ZERO_OK;
    bool inside = stat(given, &found) == 0 && S_ISDIR(found.st_mode);
    snprintf(from, sizeof from, "%s%s", given, inside ? "/config.json" : "");
    TRY(config_text_read(from, &model, error));
    bool kept = strncmp(model.text, MODEL_BEGINNING, sizeof MODEL_BEGINNING - 1) == 0; /* by a run */
    const char *first =
        kept ? model.text : model.text + strcspn(model.text, "{") + 1; /* it was read before */
    const char *comma = kept || first[strspn(first, " \t\r\n")] == '}' ? "" : ",";
    zero_status status = asprintf(&text, "%s%s%s", kept ? "" : MODEL_BEGINNING, comma, first) < 0
                             ? no_memory(path, error)
                             : new_file_write(path, text, error);
    free(model.text);
    free(text);
    return status;
}

#define TOKENIZER_BEGINNING "of the model with which the run"

static zero_status keep_tokenizer(const struct run_directory *run, struct zero_error *error) {
    const char *source = run->request->tokenizer;
    char from[RUN_PATH_BYTES], to[RUN_PATH_BYTES], mark[RUN_PATH_BYTES + 32];
    struct stat found;
    if (!source || run->way != RUN_ANEW) return ZERO_OK;
    snprintf(from, sizeof from, "%s/tokenizer.json", source);
    snprintf(to, sizeof to, "%s/" WEIGHTS_COMPANIONS, run->path);
    snprintf(mark, sizeof mark, "%s/of_run", to);
    if (access(from, F_OK) != 0) return ZERO_OK;
    bool own = mkdir(to, 0777) == 0 ||
               (lstat(mark, &found) == 0 && !own_file_problem(mark, TOKENIZER_BEGINNING, 100));
    if (!own) return ZERO_OK;
    zero_status status = new_file_write(mark, TOKENIZER_BEGINNING " began\n", error);
    return status ? status : weights_copy_companions(source, to, error);
}

static zero_status write_run_json(const struct run_directory *run, const struct run_facts *facts,
                                  struct zero_error *error) {
    char path[RUN_PATH_BYTES], *text = run_json(run, facts);
    snprintf(path, sizeof path, "%s/run.json", run->path);
    zero_status status = text ? new_file_write(path, text, error) : no_memory(path, error);
    free(text);
    return status;
}

zero_status run_directory_write(struct run_directory *run, const struct run_facts *facts,
                                struct zero_error *error) {
    zero_status status = write_identity(run, error);
    if (!status) status = write_config(run, error);
    if (!status) status = write_model(run, error);
    if (!status) status = keep_tokenizer(run, error);
    return status ? status : write_run_json(run, facts, error);
}

/* ---- the ranks ---- */

zero_status run_directory_share(struct run_directory *run, struct zero_error *error) {
    zero_status status = share_text(run->engine, run->path, sizeof run->path);
    if (!status) status = identity_share(run->engine, &run->own);
    if (!status) status = identity_note(run->engine, &run->own);
    return status ? error_set(error, status, "%s", zero_last_error()) : ZERO_OK;
}

void run_directory_end(struct run_directory *run) {
    struct zero_error ignored = ERROR_NONE;
    run->own.ended = true;
    if (run->prints) identity_write(run->path, &run->own, &ignored);
}
