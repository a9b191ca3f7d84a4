/* Writes a checkpoint in Hugging Face's layout. The place of every tensor is known before the first byte is written, so
 * pieces may come in any order. The directory gets its name only when it is complete. Until then it is OUT.partial, and has a file
 * that says so (MARK), which is locked as long as the export lives: the next export takes over what a killed one left. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/numbers/convert.h"
#include "engine/base/numbers/dtype.h"
#include "engine/checkpoint/checkpoint.h"
#include "tools/weights/weights.h"

enum { FILES_MAX = 512, NARROWED = 64 * 1024 };
#define MARK ".zero-export"

struct export {
    struct storage *storage;
    struct checkpoint checkpoint;
    /* the directory, and its name while it is written */
    char out[STORAGE_PATH_BYTES], partial[STORAGE_PATH_BYTES];
    int mark;              /* MARK, open and locked */
    int (*stop)(void);     /* of the options */
    struct tensor *tensor; /* index: the manifest's parameter */
    char **name;           /* alike */
    uint32_t *file_of;     /* index: the manifest's parameter; ascending */
    struct storage_file *file;
    uint32_t files;
    float *block;
    uint16_t *narrow;                /* NARROWED elements */
    enum dtype dtype;                /* of the files */
    uint32_t kind;                   /* of trained parameters: manifest_kind */
    const struct gpt_family *family; /* NULL: the checkpoint's model is no GPT */
    bool configured;                 /* the checkpoint's configuration describes its model */
};

struct entries { /* of a directory */
    uint32_t others;
    bool marked;
};

/* ---- the model ---- */

static bool has_param(const struct manifest *m, const struct gpt_param *p) {
    for (uint32_t i = 0; i < m->params; i++) {
        const struct manifest_param *own = &m->param[i];
        if (strcmp(own->name, p->name) != 0) continue;
        return own->dims == p->dims && memcmp(own->shape, p->shape, p->dims * sizeof *p->shape) == 0;
    }
    return false;
}

/* True if the parameters, in any order, are those of the configuration's model. A host program that saves a model of its own has a model
 * block of defaults. */
static bool is_configured(const struct manifest *m, struct gpt_config *out_model) {
    struct config config;
    struct gpt_param p;
    struct zero_error ignored = ERROR_NONE;
    uint32_t params = 0;
    if (!manifest_config(m, "model.vocab_size")) return false;
    bool good = !weights_block_config(m, "{\"train_micro_batch_size_per_gpu\": 1", &config, &ignored);
    *out_model = weights_model(&config.model);
    config_free(&config);
    good = good && !gpt_config_problem(out_model);
    while (good && gpt_param_at(out_model, params, &p)) params++, good = has_param(m, &p);
    return good && params == m->params;
}

static const struct gpt_family *family_of(const struct manifest *m, bool *out_configured) {
    struct gpt_config model;
    *out_configured = is_configured(m, &model);
    if (*out_configured) return gpt_family(&model);
    return m->params ? gpt_family_with(m->param[0].name) : NULL;
}

/* ---- the layout ---- */

static void file_name(const struct export *x, uint32_t file, char out[64]) {
    if (x->files == 1)
        snprintf(out, 64, "model.safetensors");
    else
        snprintf(out, 64, "model-%05" PRIu32 "-of-%05" PRIu32 ".safetensors", file + 1, x->files);
}

static bool starts(const char *text, const char *with) { return strncmp(text, with, strlen(with)) == 0; }

static bool name_tensor(struct export *x, uint32_t i) {
    const struct manifest_param *p = &x->checkpoint.manifest.param[i];
    bool prefix = x->family && !starts(p->name, "lm_head.");
    if (asprintf(&x->name[i], "%s%s", prefix ? x->family->prefix : "", p->name) < 0)
        return x->name[i] = NULL, false;
    x->tensor[i] = (struct tensor){.name = x->name[i], .dtype = x->dtype, .dims = p->dims, .count = p->count};
    memcpy(x->tensor[i].shape, p->shape, sizeof p->shape);
    return true;
}

static zero_status lay_out(struct export *x, uint64_t file_bytes, struct zero_error *error) {
    const struct manifest *m = &x->checkpoint.manifest;
    if (!m->params)
        return error_set(error, ZERO_E_ARGUMENT, "%s has no parameters: there is nothing to export",
                         x->checkpoint.path);
    x->tensor = calloc(m->params, sizeof *x->tensor);
    x->name = calloc(m->params, sizeof *x->name);
    x->file_of = calloc(m->params, sizeof *x->file_of);
    x->block = malloc(BLOCK_BYTES);
    x->narrow = malloc(NARROWED * sizeof *x->narrow);
    bool good = x->tensor && x->name && x->file_of && x->block && x->narrow;
    for (uint32_t i = 0; i < m->params && good; i++) good = name_tensor(x, i);
    if (!good)
        return error_set(error, ZERO_E_MEMORY, "no memory to export %" PRIu32 " parameters", m->params);
    uint64_t filled = 0;
    for (uint32_t i = 0; i < m->params; i++) {
        uint64_t bytes = m->param[i].count * dtype_bytes(x->dtype);
        if (filled && filled + bytes > file_bytes) x->files++, filled = 0;
        x->file_of[i] = x->files;
        filled += bytes;
    }
    x->files++;
    if (x->files <= FILES_MAX) return ZERO_OK;
    return error_set(error, ZERO_E_ARGUMENT,
                     "that would be %" PRIu32 " files, more than %d; allow larger files", x->files,
                     FILES_MAX);
}

/* ---- files ---- */

static zero_status write_header(struct export *x, uint32_t file, uint32_t first, uint32_t end,
                                struct zero_error *error) {
    char name[64], path[STORAGE_PATH_BYTES], *header;
    uint64_t bytes;
    file_name(x, file, name);
    TRY(storage_join(x->partial, name, path, error));
    TRY(safetensors_print(x->tensor + first, end - first, "pt", &header, &bytes, error));
    const struct tensor *last = &x->tensor[end - 1];
    zero_status status =
        storage_create(x->storage, path, last->offset + last->bytes, NULL, &x->file[file], error);
    if (!status) status = storage_write(&x->file[file], header, bytes, 0, error);
    free(header);
    return status;
}

static zero_status write_headers(struct export *x, struct zero_error *error) {
    const struct manifest *m = &x->checkpoint.manifest;
    x->file = calloc(x->files, sizeof *x->file);
    if (!x->file) return error_set(error, ZERO_E_MEMORY, "no memory for %" PRIu32 " files", x->files);
    for (uint32_t file = 0, first = 0, end = 0; file < x->files; file++, first = end) {
        while (end < m->params && x->file_of[end] == file) end++;
        TRY(write_header(x, file, first, end, error));
    }
    return ZERO_OK;
}

static void narrow(enum dtype dtype, const float *in, uint64_t count, uint16_t *out) {
    for (uint64_t i = 0; i < count; i++)
        out[i] = dtype == DTYPE_BF16 ? bf16_from_f32(in[i]) : f16_from_f32(in[i]);
}

static zero_status check_stop(const struct export *x, struct zero_error *error) {
    if (!x->stop || !x->stop()) return ZERO_OK;
    return error_set(error, ZERO_E_INTERRUPTED, "interrupted: nothing of %s is left", x->out);
}

static zero_status write_some(void *user, const struct piece *piece, uint64_t first, uint64_t count,
                              const float *in, struct zero_error *error) {
    struct export *x = user;
    if (check_stop(x, error)) return ZERO_E_INTERRUPTED;
    uint64_t i = (uint64_t)(piece->param - x->checkpoint.manifest.param), size = dtype_bytes(x->dtype);
    uint64_t offset = x->tensor[i].offset + first * size;
    struct storage_file *file = &x->file[x->file_of[i]];
    if (x->dtype == DTYPE_F32) return storage_write(file, in, count * size, offset, error);
    for (uint64_t at = 0; at < count; at += NARROWED) {
        uint64_t some = count - at < NARROWED ? count - at : NARROWED;
        narrow(x->dtype, in + at, some, x->narrow);
        TRY(storage_write(file, x->narrow, some * size, offset + at * size, error));
    }
    return ZERO_OK;
}

static zero_status write_piece(void *user, struct shard *shard, uint32_t index, struct zero_error *error) {
    struct export *x = user;
    const struct piece *p = &shard->piece[index];
    if (p->kind != (p->param->frozen ? 0 : x->kind)) return ZERO_OK;
    return shard_read(shard, index, p->first, p->count, x->block, write_some, x, error);
}

static zero_status write_text(struct export *x, const char *name, char *text, size_t bytes,
                              struct zero_error *error) {
    char path[STORAGE_PATH_BYTES];
    zero_status status = storage_join(x->partial, name, path, error);
    if (!status) status = storage_write_text(x->storage, path, text, bytes, error);
    free(text);
    return status;
}

static zero_status write_index(struct export *x, struct zero_error *error) {
    const struct manifest *m = &x->checkpoint.manifest;
    char *text = NULL, name[64];
    size_t length;
    uint64_t bytes = 0;
    FILE *f = x->files > 1 ? open_memstream(&text, &length) : NULL;
    if (!f) return ZERO_OK;
    for (uint32_t i = 0; i < m->params; i++) bytes += m->param[i].count * dtype_bytes(x->dtype);
    fprintf(f, "{\n  \"metadata\": {\"total_size\": %" PRIu64 "},\n  \"weight_map\": {", bytes);
    for (uint32_t i = 0; i < m->params; i++) {
        file_name(x, x->file_of[i], name);
        fputs(i ? ",\n    " : "\n    ", f);
        json_write_string(f, x->name[i]);
        fprintf(f, ": \"%s\"", name);
    }
    fputs("\n  }\n}\n", f);
    fclose(f);
    return write_text(x, WEIGHTS_INDEX, text, length, error);
}

/* True for keys that belong to the model: each under its first name only, and a scaling only if there is one. */
static bool exported(const struct manifest *m, const char *key) {
    const char *rope = manifest_config(m, "model.rope_scaling.rope_type");
    if (!strcmp(key, "model.n_ctx") || !strcmp(key, "model.gradient_checkpointing")) return false;
    if (starts(key, "model.rope_parameters.") || !strcmp(key, "model.rope_scaling.type")) return false;
    return !starts(key, "model.rope_scaling.") || (rope && strcmp(rope, "\"default\"") != 0);
}

static void print_token_ids(const struct export *x, FILE *f) {
    const struct manifest *m = &x->checkpoint.manifest;
    bool own = strcmp(manifest_config(m, "model.vocab_size"), x->family->vocabulary) == 0, noted = false;
    for (size_t i = 0; source_token_ids[i]; i++) {
        const char *id = source_token_id(m, source_token_ids[i]);
        if (id) fprintf(f, ",\n  \"%s\": %s", source_token_ids[i], id);
        noted |= id != NULL;
    }
    if (!own && !noted) fputs(",\n  \"bos_token_id\": null,\n  \"eos_token_id\": null", f);
}

static zero_status write_config(struct export *x, struct zero_error *left, struct zero_error *error) {
    const struct manifest *m = &x->checkpoint.manifest;
    char *text = NULL;
    size_t length;
    if (x->family && !x->configured)
        error_set(left, ZERO_E_CONFIG,
                  "no config.json is written, because the checkpoint's model block does not describe these "
                  "weights: copy the model's own config.json to %s",
                  x->out);
    FILE *f = x->configured ? open_memstream(&text, &length) : NULL;
    if (!f) return ZERO_OK;
    fprintf(f, "{\n  \"architectures\": [\"%s\"],\n  \"dtype\": \"%s\"%s", x->family->model_class,
            dtype_rows[x->dtype].torch, x->family->more);
    print_token_ids(x, f);
    weights_print_model(f, m, false, "\n  ", exported);
    fputs("\n}\n", f);
    fclose(f);
    return write_text(x, "config.json", text, length, error);
}

static zero_status write_all(struct export *x, struct zero_error *left, struct zero_error *error) {
    TRY(write_headers(x, error));
    TRY(checkpoint_walk(&x->checkpoint, write_piece, x, error));
    for (uint32_t i = 0; i < x->files; i++) TRY(storage_sync(&x->file[i], error));
    TRY(write_index(x, error));
    TRY(write_config(x, left, error));
    return source_copy(&x->checkpoint, x->partial, left, error);
}

/* ---- interface ---- */

static void note_entry(void *user, const char *name) {
    struct entries *found = user;
    if (strcmp(name, MARK) == 0)
        found->marked = true;
    else
        found->others++;
}

static zero_status look(struct export *x, struct entries *out, struct zero_error *error) {
    *out = (struct entries){0};
    return storage_check(x->storage->ops->list_owned(x->storage, x->partial, note_entry, out), "list",
                         x->partial, error);
}

static void remove_entry(void *user, const char *name) {
    struct export *x = user;
    if (strcmp(name, MARK) != 0) x->storage->ops->remove_owned(x->storage, x->partial, name);
}

static void remove_partial(struct export *x) {
    x->storage->ops->list_owned(x->storage, x->partial, remove_entry, x);
    x->storage->ops->remove_owned(x->storage, x->partial, MARK);
    x->storage->ops->remove_directory(x->storage, x->partial);
}

/* Locks MARK, which it makes in a new directory, or finds in one that a killed export left. */
static zero_status take_partial(struct export *x, struct zero_error *error) {
    char path[STORAGE_PATH_BYTES];
    struct entries found;
    int made = x->storage->ops->make_directory(x->storage, x->partial);
    TRY(made == -EEXIST ? ZERO_OK : storage_check(made, "make the directory", x->partial, error));
    TRY(look(x, &found, error));
    TRY(storage_join(x->partial, MARK, path, error));
    if (found.others && !found.marked)
        return error_set(error, ZERO_E_IO, "%s already exists, and is not what an export left: move it away",
                         x->partial);
    x->mark = open(path, O_RDWR | O_NOFOLLOW | O_CLOEXEC | (found.marked ? 0 : O_CREAT | O_EXCL), 0666);
    if (x->mark < 0) return storage_check(-errno, "create", path, error);
    if (flock(x->mark, LOCK_EX | LOCK_NB) != 0 &&
        (found.marked || errno == EWOULDBLOCK)) /* or there are no locks */
        return error_set(error, ZERO_E_IO,
                         "%s is another export's: wait for it, give another name, or remove the directory if "
                         "no export is at work",
                         x->partial);
    x->storage->ops->list_owned(x->storage, x->partial, remove_entry, x);
    zero_status status = look(x, &found, error);
    if (status || !found.others) return status;
    return error_set(error, ZERO_E_IO, "%s holds what no export writes: move it away", x->partial);
}

static zero_status publish(struct export *x, struct zero_error *error) {
    const struct storage_ops *ops = x->storage->ops;
    zero_status status =
        storage_check(ops->sync_directory(x->storage, x->partial), "make durable", x->partial, error);
    if (!status) status = check_stop(x, error);
    if (!status)
        status = storage_check(ops->rename(x->storage, x->partial, x->out), "rename to", x->out, error);
    if (!status) ops->remove_owned(x->storage, x->out, MARK);
    return status ? status : storage_sync_name(x->storage, x->out, error);
}

/* The type in which the checkpoint's run computed. */
static enum dtype compute_dtype(const struct manifest *m) {
    for (int i = 0; i < CONFIG_TYPE_KEYS; i++) {
        const char *enabled = manifest_config(m, config_type_keys[i].path);
        if (enabled && strcmp(enabled, "true") == 0) return config_type_keys[i].dtype;
    }
    return DTYPE_F32;
}

static zero_status set_out(struct export *x, const char *out, struct zero_error *error) {
    size_t length = strlen(out);
    while (length > 1 && out[length - 1] == '/') length--;
    snprintf(x->out, sizeof x->out, "%.*s", (int)length, out);
    if (snprintf(x->partial, sizeof x->partial, "%.*s.partial", (int)length, out) < (int)sizeof x->partial)
        return ZERO_OK;
    return error_set(error, ZERO_E_ARGUMENT, "the path %s is too long", out);
}

/* The last step is a rename, which can replace an empty directory, but not the current one. */
static zero_status check_out(struct export *x, struct zero_error *error) {
    const char *slash = strrchr(x->out, '/'), *name = slash ? slash + 1 : x->out;
    struct stat found;
    struct entries entries = {0};
    if (lstat(x->out, &found) != 0) return ZERO_OK;
    bool replaceable = strcmp(name, ".") != 0 && strcmp(name, "..") != 0 && S_ISDIR(found.st_mode) &&
                       x->storage->ops->list(x->storage, x->out, note_entry, &entries) == 0 &&
                       !entries.marked && !entries.others;
    if (replaceable) return ZERO_OK;
    return error_set(error, ZERO_E_IO,
                     "%s already exists: give the name of a new directory, or of an empty one", x->out);
}

static zero_status run(struct export *x, uint64_t file_bytes, struct zero_error *left,
                       struct zero_error *error) {
    TRY(lay_out(x, file_bytes, error));
    TRY(check_out(x, error));
    TRY(storage_make_parents(x->storage, x->out, error));
    TRY(take_partial(x, error));
    zero_status status = write_all(x, left, error);
    for (uint32_t i = 0; x->file && i < x->files; i++) storage_close(&x->file[i]);
    if (!status) status = publish(x, error);
    if (status) remove_partial(x);
    return status;
}

static zero_status choose_kind(struct export *x, bool average, struct zero_error *error) {
    x->kind = average ? manifest_average(&x->checkpoint.manifest) : 0;
    if (!average || x->kind) return ZERO_OK;
    return error_set(error, ZERO_E_ARGUMENT,
                     "%s has no averaged weights: export its weights, or train with ema.decay",
                     x->checkpoint.path);
}

zero_status weights_export(const char *checkpoint, const char *out, const struct weights_export *options,
                           struct zero_error *left, struct zero_error *error) {
    struct export x = {.storage = storage_posix(), .mark = -1, .stop = options->stop};
    zero_status status = set_out(&x, out, error);
    if (!status) status = checkpoint_open(x.storage, checkpoint, &x.checkpoint, error);
    if (!status) status = choose_kind(&x, options->average, error);
    if (!status) {
        x.family = family_of(&x.checkpoint.manifest, &x.configured);
        x.dtype =
            options->dtype == DTYPES ? compute_dtype(&x.checkpoint.manifest) : (enum dtype)options->dtype;
        status = run(&x, options->file_bytes, left, error);
    }
    for (uint32_t i = 0; x.name && i < x.checkpoint.manifest.params; i++) free(x.name[i]);
    checkpoint_close(&x.checkpoint);
    if (x.mark >= 0) close(x.mark);
    free(x.tensor);
    free(x.name);
    free(x.file_of);
    free(x.file);
    free(x.block);
    free(x.narrow);
    return status;
}
