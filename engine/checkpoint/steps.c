#include "engine/checkpoint/steps.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint/checksum.h"
#include "engine/checkpoint/manifest.h"
#include "kernels/checksum.h"

#define LATEST "latest"
#define LATEST_NEW ".latest.new"
#define REPLACED "replaced"

/* ---- names ---- */

enum { STEP_NAME_BYTES = 32 };

/* "step_00000100" */
static void name_step(uint64_t step, char out[STEP_NAME_BYTES]) {
    snprintf(out, STEP_NAME_BYTES, "step_%08" PRIu64, step);
}

bool steps_parse(const char *name, uint64_t *out_step) {
    char *end, again[STEP_NAME_BYTES];
    if (strncmp(name, "step_", 5) != 0) return false;
    uint64_t step = strtoull(name + 5, &end, 10);
    name_step(step, again);
    if (*end || strcmp(again, name) != 0) return false; /* a sign, a blank, or too large */
    *out_step = step;
    return true;
}

static zero_status hidden_path(const char *root, uint64_t step, const char *state,
                               char out[STORAGE_PATH_BYTES], struct zero_error *error) {
    char name[STEP_NAME_BYTES], hidden[STEP_NAME_BYTES + 16];
    name_step(step, name);
    snprintf(hidden, sizeof hidden, ".%s.%s", name, state);
    return storage_join(root, hidden, out, error);
}

static zero_status step_path(const char *root, uint64_t step, char out[STORAGE_PATH_BYTES],
                             struct zero_error *error) {
    char name[STEP_NAME_BYTES];
    name_step(step, name);
    return storage_join(root, name, out, error);
}

/* ---- lists ---- */

struct names {
    char (*name)[256];
    uint32_t count;
    bool failed;
};

static void add_name(void *user, const char *name) {
    struct names *n = user;
    char(*list)[256] = realloc(n->name, (n->count + 1) * sizeof *list);
    if (list) n->name = list;
    if (list && strlen(name) < sizeof *list)
        strcpy(list[n->count++], name);
    else
        n->failed = true;
}

static zero_status listed(const struct names *names, const char *path, struct zero_error *error) {
    return names->failed ? error_set(error, ZERO_E_MEMORY, "no memory to list %s", path) : ZERO_OK;
}

static zero_status list(struct storage *s, const char *path, struct names *out, struct zero_error *error) {
    *out = (struct names){0};
    zero_status status = storage_check(s->ops->list(s, path, add_name, out), "list", path, error);
    return status ? status : listed(out, path, error);
}

/* ---- deleting: only files that saves made ---- */

static zero_status check_owned(int result, const char *what, const char *path, struct zero_error *error) {
    const char *why = NULL;
    switch (result) {
    case -ELOOP:
        why = "it is a symbolic link, and saves make none; its target was not touched: remove the link";
        break;
    case -EPERM:
        why = "it belongs to another user, or is protected; nothing in it was touched: move it away, or save "
              "elsewhere";
        break;
    case -EISDIR:
        why = "it is a directory, and saves make none here: move it away";
        break;
    case -EINVAL:
        why = "it is not a regular file, and saves make only regular files: move it away";
        break;
    case -EBUSY:
        why = "a process has it open";
        break;
    default:
        return storage_check(result, what, path, error);
    }
    return error_set(error, ZERO_E_IO, "cannot %s %s: %s", what, path, why);
}

static zero_status list_owned(struct storage *s, const char *path, struct names *out,
                              struct zero_error *error) {
    *out = (struct names){0};
    zero_status status = check_owned(s->ops->list_owned(s, path, add_name, out), "remove", path, error);
    return status ? status : listed(out, path, error);
}

/* Calls `fn` for each of the directory's files, until it fails. */
static zero_status each_owned(struct storage *s, const char *path, const struct names *names,
                              int (*fn)(struct storage *s, const char *directory, const char *name),
                              struct zero_error *error) {
    char file[STORAGE_PATH_BYTES];
    for (uint32_t i = 0; i < names->count; i++) {
        TRY(storage_join(path, names->name[i], file, error));
        TRY(check_owned(fn(s, path, names->name[i]), "remove", file, error));
    }
    return ZERO_OK;
}

/* Lists the entries of a directory, and checks that all of them can be deleted. The caller frees the list, also after
 * a failure. */
static zero_status list_deletable(struct storage *s, const char *path, struct names *out,
                                  struct zero_error *error) {
    zero_status status = list_owned(s, path, out, error);
    return status ? status : each_owned(s, path, out, s->ops->check_owned, error);
}

static zero_status check_deletable(struct storage *s, const char *path, struct zero_error *error) {
    struct names names;
    zero_status status = list_deletable(s, path, &names, error);
    free(names.name);
    return status;
}

/* Removes a directory of files. Removes nothing if one of the files cannot be deleted. */
static zero_status remove_tree(struct storage *s, const char *path, struct zero_error *error) {
    struct names names;
    zero_status status = list_deletable(s, path, &names, error);
    if (!status) status = each_owned(s, path, &names, s->ops->remove_owned, error);
    free(names.name);
    if (!status) status = storage_check(s->ops->remove_directory(s, path), "remove", path, error);
    return status;
}

static zero_status is_there(struct storage *s, const char *directory, const char *name, bool *out,
                            struct zero_error *error) {
    char path[STORAGE_PATH_BYTES];
    TRY(storage_join(directory, name, path, error));
    storage_handle handle = s->ops->open(s, path);
    if (handle >= 0) s->ops->close(s, handle);
    *out = handle >= 0;
    return handle < 0 && handle != -ENOENT ? storage_check(handle, "open", path, error) : ZERO_OK;
}

/* Whether the name is that of a checkpoint that was replaced; *out_step: of which step. */
static bool is_replaced(const char *name, uint64_t *out_step) {
    char step[STEP_NAME_BYTES];
    size_t length = strcspn(name + (*name != 0), ".") + 1;
    if (*name != '.' || length > sizeof step || strcmp(name + length, "." REPLACED) != 0) return false;
    snprintf(step, sizeof step, "%.*s", (int)length - 1, name + 1);
    return steps_parse(step, out_step);
}

/* Between the two renames of a replacement the step has only its hidden name: *out is then true. */
static zero_status is_only_replaced(struct storage *s, const char *root, uint64_t step, const char *replaced,
                                    bool *out, struct zero_error *error) {
    char path[STORAGE_PATH_BYTES];
    bool there = false, hidden = false;
    zero_status status = step_path(root, step, path, error);
    if (!status) status = is_there(s, path, MANIFEST_NAME, &there, error);
    if (!status && !there) status = is_there(s, replaced, MANIFEST_NAME, &hidden, error);
    *out = hidden;
    return status;
}

static zero_status remove_leftover(struct storage *s, const char *root, const char *name,
                                   struct zero_error *error) {
    char path[STORAGE_PATH_BYTES], own[STORAGE_PATH_BYTES];
    uint64_t step;
    bool only = false;
    if (strncmp(name, ".step_", 6) != 0 && strcmp(name, LATEST_NEW) != 0) return ZERO_OK;
    TRY(storage_join(root, name, path, error));
    if (is_replaced(name, &step)) {
        TRY(is_only_replaced(s, root, step, path, &only, error));
        if (only) TRY(step_path(root, step, own, error));
        if (only) return storage_check(s->ops->rename(s, path, own), "rename to", own, error);
    }
    if (*name == '.' && name[1] == 's') return remove_tree(s, path, error);
    return storage_check(s->ops->remove(s, path), "remove", path, error);
}

static void note_left(struct zero_error *left, const struct zero_error *failed) {
    error_set(left, failed->code,
              "a file or directory of an earlier save stays: %s; saves go on: remove it by hand",
              failed->message);
}

/* Removes leftovers. A leftover that cannot be removed fails the save only if the save needs the leftover's name. */
static zero_status remove_leftovers(struct storage *s, const char *root, const char *saving,
                                    struct zero_error *left, struct zero_error *error) {
    struct names names;
    zero_status status = list(s, root, &names, error);
    for (uint32_t i = 0; i < names.count && !status; i++) {
        struct zero_error failed;
        error_clear(&failed);
        if (remove_leftover(s, root, names.name[i], &failed) == ZERO_OK) continue;
        bool needed = strcmp(names.name[i], saving) == 0 || strcmp(names.name[i], LATEST_NEW) == 0;
        if (needed)
            status = error_pass(error, &failed);
        else
            note_left(left, &failed);
    }
    free(names.name);
    return status;
}

static int ascending(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

zero_status steps_list(struct storage *s, const char *root, uint64_t **out_steps, uint32_t *out_count,
                       struct zero_error *error) {
    struct names names;
    uint64_t *steps = NULL;
    uint32_t count = 0;
    zero_status status = list(s, root, &names, error);
    if (!status && names.count && !(steps = calloc(names.count, sizeof *steps)))
        status = error_set(error, ZERO_E_MEMORY, "no memory to list %s", root);
    for (uint32_t i = 0; i < names.count && !status; i++) count += steps_parse(names.name[i], &steps[count]);
    free(names.name);
    if (count) qsort(steps, count, sizeof *steps, ascending);
    if (!status) *out_steps = steps, *out_count = count;
    return status;
}

/* ---- latest ---- */

static zero_status read_latest(struct storage *s, const char *root, uint64_t *out_step,
                               struct zero_error *error) {
    char path[STORAGE_PATH_BYTES], *text;
    size_t bytes;
    uint64_t sum;
    zero_status status = storage_join(root, LATEST, path, error);
    if (!status) status = storage_read_text(s, path, 256, &text, &bytes, error);
    if (status) return status;
    char *blank = strchr(text, ' ');
    bool good = blank && bytes == (size_t)(blank - text) + 1 + CHECKSUM_DIGITS + 1 &&
                text[bytes - 1] == '\n' && checksum_parse(blank + 1, &sum) &&
                sum == checksum(text, (size_t)(blank - text));
    if (good) *blank = 0;
    if (!good || !steps_parse(text, out_step))
        status = error_set(error, ZERO_E_IO, "%s is damaged; name the step's directory instead", path);
    free(text);
    return status;
}

static zero_status write_latest(struct storage *s, const char *root, uint64_t step,
                                struct zero_error *error) {
    char path[STORAGE_PATH_BYTES], fresh[STORAGE_PATH_BYTES], name[STEP_NAME_BYTES], sum[CHECKSUM_DIGITS + 1];
    char text[STEP_NAME_BYTES + CHECKSUM_DIGITS + 4];
    name_step(step, name);
    checksum_print(checksum(name, strlen(name)), sum);
    int bytes = snprintf(text, sizeof text, "%s %s\n", name, sum);
    zero_status status = storage_join(root, LATEST, path, error);
    if (!status) status = storage_join(root, LATEST_NEW, fresh, error);
    if (!status) status = storage_write_text(s, fresh, text, (size_t)bytes, error);
    if (!status) status = storage_check(s->ops->rename(s, fresh, path), "rename", fresh, error);
    return status ? status
                  : storage_check(s->ops->sync_directory(s, root), "make durable (fsync)", root, error);
}

/* ---- finding ---- */

static void no_name(void *user, const char *name) {}

/* Without `latest`: a root with one checkpoint is what a crash leaves in the first save, before `latest` is written. */
static zero_status find_only(struct storage *s, const char *path, uint64_t *out_step,
                             struct zero_error *error) {
    uint64_t *steps = NULL;
    uint32_t count = 0;
    char name[STEP_NAME_BYTES];
    if (s->ops->list(s, path, no_name, NULL) == -ENOENT)
        return error_set(error, ZERO_E_ABSENT, "%s holds no checkpoint: it does not exist", path);
    zero_status status = steps_list(s, path, &steps, &count, error);
    if (count) *out_step = steps[count - 1];
    free(steps);
    if (status || count == 1) return status;
    name_step(*out_step, name);
    if (count)
        return error_set(error, ZERO_E_IO, "%s has no " LATEST "; name a step's directory in it, such as %s",
                         path, name);
    return error_set(error, ZERO_E_ABSENT,
                     "%s holds no checkpoint: it has neither " MANIFEST_NAME " nor " LATEST, path);
}

zero_status steps_find(struct storage *s, const char *path, char out[STORAGE_PATH_BYTES],
                       struct zero_error *error) {
    bool is_step = false, is_root = false;
    uint64_t step = 0;
    TRY(is_there(s, path, MANIFEST_NAME, &is_step, error));
    TRY(is_there(s, path, LATEST, &is_root, error));
    if (!is_step) TRY(is_root ? read_latest(s, path, &step, error) : find_only(s, path, &step, error));
    if (is_step) return snprintf(out, STORAGE_PATH_BYTES, "%s", path), ZERO_OK;
    bool only = false;
    zero_status status = hidden_path(path, step, REPLACED, out, error);
    if (!status) status = is_only_replaced(s, path, step, out, &only, error);
    return status || only ? status : step_path(path, step, out, error);
}

/* ---- saving ---- */

static zero_status make_root(struct storage *s, const char *root, struct zero_error *error) {
    int made = s->ops->make_directory(s, root);
    if (made == -EEXIST) return ZERO_OK;
    zero_status status = storage_check(made, "make the directory", root, error);
    return status ? status : storage_sync_name(s, root, error);
}

zero_status steps_check_none(struct storage *s, const char *root, struct zero_error *error) {
    uint64_t *steps = NULL;
    uint32_t count = 0;
    bool latest = false;
    char name[STEP_NAME_BYTES] = LATEST;
    zero_status status = make_root(s, root, error);
    if (!status) status = steps_list(s, root, &steps, &count, error);
    if (!status) status = is_there(s, root, LATEST, &latest, error);
    if (count) name_step(steps[count - 1], name);
    free(steps);
    if (status || (!count && !latest)) return status;
    return error_set(error, ZERO_E_ARGUMENT,
                     "%s holds %s already: name a directory without checkpoints, or remove them", root, name);
}

zero_status steps_written(const char *root, uint64_t step, char out[STORAGE_PATH_BYTES],
                          struct zero_error *error) {
    return hidden_path(root, step, "saving", out, error);
}

zero_status steps_begin(struct storage *s, const char *root, uint64_t step, char out[STORAGE_PATH_BYTES],
                        struct zero_error *left, struct zero_error *error) {
    TRY(make_root(s, root, error));
    TRY(steps_written(root, step, out, error));
    TRY(remove_leftovers(s, root, strrchr(out, '/') + 1, left, error));
    return storage_check(s->ops->make_directory(s, out), "make the directory", out, error);
}

static bool has_no_such_call(int result) {
    return result == -EINVAL || result == -ENOSYS || result == -EOPNOTSUPP || result == -EPERM;
}

/* Where the file system cannot exchange two directories: at each moment one of them has a name that readers know. The
 * older one is `replaced` at the end. */
static zero_status move_twice(struct storage *s, const char *root, const char *written, const char *path,
                              const char *replaced, struct zero_error *error) {
    TRY(storage_check(s->ops->rename(s, path, replaced), "rename to", replaced, error));
    zero_status status = storage_check(s->ops->sync_directory(s, root), "make durable (fsync)", root, error);
    if (!status) status = storage_check(s->ops->rename(s, written, path), "rename to", path, error);
    if (status) s->ops->rename(s, replaced, path);
    return status;
}

/* `replaced`: the name that the checkpoint then has which had the step's name before; empty: there was none. */
static zero_status move(struct storage *s, const char *root, uint64_t step, const char *written,
                        const char *path, char replaced[STORAGE_PATH_BYTES], struct zero_error *error) {
    int result = s->ops->rename(s, written, path);
    bool exists = result == -EEXIST || result == -ENOTEMPTY; /* this step was saved before */
    *replaced = 0;
    if (result == -ENOTDIR)
        return error_set(error, ZERO_E_IO,
                         "%s already exists, and is a symbolic link or a file: remove it, or save elsewhere",
                         path);
    if (!exists) return storage_check(result, "rename to", path, error);
    result = s->ops->exchange(s, written, path);
    if (!has_no_such_call(result)) {
        snprintf(replaced, STORAGE_PATH_BYTES, "%s", written);
        return storage_check(result, "rename to", path, error);
    }
    zero_status status = hidden_path(root, step, REPLACED, replaced, error);
    return status ? status : move_twice(s, root, written, path, replaced, error);
}

static void remove_replaced(struct storage *s, const char *replaced, struct zero_error *left) {
    struct zero_error failed;
    error_clear(&failed);
    if (remove_tree(s, replaced, &failed)) note_left(left, &failed);
}

zero_status steps_publish(struct storage *s, const char *root, uint64_t step, const char *written,
                          struct zero_error *left, struct zero_error *error) {
    char path[STORAGE_PATH_BYTES], replaced[STORAGE_PATH_BYTES] = "";
    zero_status status = step_path(root, step, path, error);
    if (!status)
        status = storage_check(s->ops->sync_directory(s, written), "make durable (fsync)", written, error);
    if (!status) status = move(s, root, step, written, path, replaced, error);
    if (!status) status = storage_check(s->ops->sync_directory(s, root), "make durable (fsync)", root, error);
    if (!status) status = write_latest(s, root, step, error);
    if (!status && *replaced) remove_replaced(s, replaced, left);
    return status;
}

void steps_abandon(struct storage *s, const char *written) {
    struct zero_error ignored;
    error_clear(&ignored);
    remove_tree(s, written, &ignored);
}

/* ---- a trial ---- */

#define TRIAL ".step_trial" /* a leftover of a trial is removed as that of a save is */

/* What a save does with names: a directory with a file is renamed, and a file replaced. */
static zero_status try_names(struct storage *s, const char *root, struct zero_error *error) {
    static const char *const names[] = {TRIAL ".saving", TRIAL ".saving/" LATEST, TRIAL, TRIAL "/" LATEST_NEW,
                                        TRIAL "/" LATEST};
    char path[5][STORAGE_PATH_BYTES];
    zero_status status = ZERO_OK;
    for (int i = 0; i < 5 && !status; i++) status = storage_join(root, names[i], path[i], error);
    if (!status)
        status = storage_check(s->ops->make_directory(s, path[0]), "make the directory", path[0], error);
    if (!status) status = storage_write_text(s, path[1], "old", 3, error);
    if (!status)
        status = storage_check(s->ops->sync_directory(s, path[0]), "make durable (fsync)", path[0], error);
    if (!status) status = storage_check(s->ops->rename(s, path[0], path[2]), "rename to", path[2], error);
    if (!status) status = storage_write_text(s, path[3], "new", 3, error);
    if (!status) status = storage_check(s->ops->rename(s, path[3], path[4]), "rename to", path[4], error);
    return status ? status
                  : storage_check(s->ops->sync_directory(s, root), "make durable (fsync)", root, error);
}

static void remove_trial(struct storage *s, const char *root) {
    static const char *const names[] = {TRIAL ".saving", TRIAL};
    char path[STORAGE_PATH_BYTES];
    struct zero_error ignored;
    for (int i = 0; i < 2; i++) {
        error_clear(&ignored);
        if (storage_join(root, names[i], path, &ignored) == ZERO_OK) remove_tree(s, path, &ignored);
    }
}

zero_status steps_try(struct storage *s, const char *root, struct zero_error *error) {
    struct zero_error why;
    error_clear(&why);
    int made = s->ops->make_directory(s, root);
    if (made && made != -EEXIST) storage_check(made, "make the directory", root, &why);
    remove_trial(s, root);
    if (!why.code) try_names(s, root, &why);
    remove_trial(s, root);
    if (!made) s->ops->remove_directory(s, root);
    if (!why.code) return ZERO_OK;
    return error_set(error, why.code, "no checkpoint can be saved: %s: name another directory", why.message);
}

/* ---- deleting ---- */

/* Renames the checkpoint before it removes the first file, so that no reader sees half a checkpoint. */
static zero_status remove_step(struct storage *s, const char *root, uint64_t step, struct zero_error *error) {
    char path[STORAGE_PATH_BYTES], hidden[STORAGE_PATH_BYTES];
    zero_status status = step_path(root, step, path, error);
    if (!status) status = check_deletable(s, path, error);
    if (!status) status = hidden_path(root, step, "removed", hidden, error);
    if (!status) status = storage_check(s->ops->rename(s, path, hidden), "rename to", hidden, error);
    if (!status) status = storage_check(s->ops->sync_directory(s, root), "make durable (fsync)", root, error);
    return status ? status : remove_tree(s, hidden, error);
}

/* A checkpoint that cannot be read counts as another run's. The error says why it cannot be deleted, or else why it cannot be read. */
static zero_status is_others(struct storage *s, const char *root, uint64_t step, const char *run, bool *out,
                             struct zero_error *error) {
    char path[STORAGE_PATH_BYTES], file[STORAGE_PATH_BYTES];
    struct zero_error why;
    struct manifest m = {0};
    error_clear(&why);
    zero_status status = step_path(root, step, path, error);
    if (!status) status = storage_join(path, MANIFEST_NAME, file, error);
    if (!status) status = manifest_read(s, file, &m, &why);
    if (why.code && check_deletable(s, path, error) == ZERO_OK) error_pass(error, &why);
    const char *by = manifest_note(&m, "run");
    *out = status || (by && strcmp(by, run) != 0);
    manifest_free(&m);
    return status;
}

/* Leaves in the list the steps that may be deleted. */
static zero_status drop_others(struct storage *s, const char *root, const char *run, uint64_t *steps,
                               uint32_t *count, struct zero_error *error) {
    zero_status status = ZERO_OK;
    uint32_t own = 0;
    for (uint32_t i = 0; i < *count; i++) {
        bool others = false;
        zero_status looked = is_others(s, root, steps[i], run, &others, error);
        if (!status) status = looked;
        if (!others) steps[own++] = steps[i];
    }
    *count = own;
    return status;
}

zero_status steps_prune(struct storage *s, const char *root, const char *run, uint64_t keep,
                        struct zero_error *error) {
    uint64_t *steps = NULL, latest = 0;
    uint32_t count = 0;
    zero_status status = read_latest(s, root, &latest, error);
    if (!status) status = steps_list(s, root, &steps, &count, error);
    while (count && steps[count - 1] > latest) count--;
    if (run && count) status = drop_others(s, root, run, steps, &count, error);
    for (uint32_t i = 0; i + (keep ? keep : 1) < count; i++) {
        zero_status removed = remove_step(s, root, steps[i], error);
        if (!status) status = removed;
    }
    free(steps);
    return status;
}
