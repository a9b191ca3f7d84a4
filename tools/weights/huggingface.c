/* Reads Hugging Face's layout: config.json, and model.safetensors or the files that model.safetensors.index.json names.
 * Tensors have the names of tools/gpt, with or without the prefix of their class. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/hash.h"
#include "engine/base/numbers/dtype.h"
#include "engine/checkpoint/safetensors.h"
#include "tools/weights/weights.h"

enum { FILES_MAX = 1024, INDEX_BYTES_MAX = 64 << 20, SAMPLE_BYTES = 4096 };

struct part { /* one file */
    char name[128];
    struct storage_file file;
    struct tensor_table table;
    bool *used; /* by tensor: true if the tensor is a parameter */
};

struct huggingface {
    struct weights head;
    struct part *part;
    uint32_t parts;
    char path[STORAGE_PATH_BYTES];
};

static bool recognises(const char *path) {
    char config[STORAGE_PATH_BYTES];
    struct stat found;
    snprintf(config, sizeof config, "%s/config.json", path);
    return stat(config, &found) == 0 && S_ISREG(found.st_mode);
}

static void close_weights(struct weights *weights) {
    struct huggingface *h = (struct huggingface *)weights;
    for (uint32_t i = 0; i < h->parts; i++) {
        storage_close(&h->part[i].file);
        safetensors_free(&h->part[i].table);
        free(h->part[i].used);
    }
    config_free(&h->head.config);
    free(h->part);
    free(h);
}

/* ---- opening ---- */

static zero_status open_config(struct huggingface *h, struct zero_error *error) {
    static const char any_batch[] = "{\"train_micro_batch_size_per_gpu\": 1}";
    struct config *config = &h->head.config;
    TRY(config_read_text(any_batch, sizeof any_batch - 1, h->path, config, error));
    TRY(config_read_model(config, h->path, error));
    TRY(config_resolve(config, 1, error));
    h->head.model = weights_model(&config->model);
    const char *problem = gpt_config_problem(&h->head.model);
    return problem ? error_set(error, ZERO_E_CONFIG, "%s/config.json: %s", h->path, problem) : ZERO_OK;
}

/* Opens each file once. A name must be a file of this directory. */
static zero_status open_part(struct huggingface *h, const char *name, struct zero_error *error) {
    char path[STORAGE_PATH_BYTES];
    for (uint32_t i = 0; i < h->parts; i++)
        if (strcmp(h->part[i].name, name) == 0) return ZERO_OK;
    if (!*name || strchr(name, '/') || strlen(name) >= sizeof h->part->name || h->parts == FILES_MAX)
        return error_set(error, ZERO_E_IO,
                         "%s/" WEIGHTS_INDEX " names \"%s\", which is no file of that directory", h->path,
                         name);
    struct part *list = realloc(h->part, (h->parts + 1) * sizeof *list);
    if (!list) return error_set(error, ZERO_E_MEMORY, "no memory for the files of %s", h->path);
    h->part = list;
    struct part *part = &list[h->parts];
    memset(part, 0, sizeof *part);
    strcpy(part->name, name);
    TRY(storage_join(h->path, name, path, error));
    TRY(storage_open(storage_posix(), path, &part->file, error));
    h->parts++;
    return safetensors_read(&part->file, &part->table, error);
}

static zero_status add_part(void *user, const char *tensor, const struct json *file,
                            struct zero_error *error) {
    const char *name = json_string(file);
    return open_part(user, name ? name : "", error);
}

static zero_status open_index(struct huggingface *h, const char *path, struct zero_error *error) {
    char *text;
    size_t bytes;
    struct json *index;
    TRY(storage_read_text(storage_posix(), path, INDEX_BYTES_MAX, &text, &bytes, error));
    zero_status status = json_parse(text, bytes, path, &index, error);
    free(text);
    if (status) return status;
    const struct json *map = json_get(index, "weight_map");
    status = json_is_object(map) ? json_each(map, add_part, h, error)
                                 : error_set(error, ZERO_E_IO, "%s has no weight_map", path);
    json_free(index);
    return status;
}

/* Where both are there, an index may be left of older files: transformers, too, reads model.safetensors. */
static zero_status open_parts(struct huggingface *h, struct zero_error *error) {
    char path[STORAGE_PATH_BYTES];
    const char *name;
    TRY(weights_in_directory(h->path, &name, error));
    if (!name) TRY(error_set(error, ZERO_E_IO, "%s has no model.safetensors, and no other weights", h->path));
    TRY(storage_join(h->path, name, path, error));
    return strcmp(name, WEIGHTS_INDEX) == 0 ? open_index(h, path, error) : open_part(h, name, error);
}

/* ---- tensors ---- */

/* Finds a parameter under any of its names: GPT2LMHeadModel puts "transformer." before all names except the head's, and
 * LlamaModel leaves out "model.", which LlamaForCausalLM has. */
static const struct tensor *find_in(const struct tensor_table *table, const char *name) {
    static const char own[] = "model.";
    char prefixed[128];
    const struct tensor *t = safetensors_find(table, name);
    snprintf(prefixed, sizeof prefixed, "transformer.%s", name);
    if (!t) t = safetensors_find(table, prefixed);
    if (!t && strncmp(name, own, sizeof own - 1) == 0) t = safetensors_find(table, name + sizeof own - 1);
    return t;
}

static const struct tensor *find(struct huggingface *h, const char *name, struct part **out_part) {
    const struct tensor *t = NULL;
    for (uint32_t i = 0; i < h->parts && !t; i++) {
        *out_part = &h->part[i];
        t = find_in(&h->part[i].table, name);
    }
    return t;
}

static zero_status check_tensor(struct huggingface *h, const struct gpt_param *p, struct zero_error *error) {
    struct part *part;
    const struct tensor *t = find(h, p->name, &part);
    if (!t) return error_set(error, ZERO_E_IO, "%s has no tensor \"%s\"", h->path, p->name);
    if (t->dtype != DTYPE_F32 && t->dtype != DTYPE_BF16 && t->dtype != DTYPE_F16)
        return error_set(error, ZERO_E_UNSUPPORTED, "%s: \"%s\" is neither fp32, bf16 nor fp16", h->path,
                         p->name);
    if (t->dims != p->dims || memcmp(t->shape, p->shape, p->dims * sizeof *p->shape) != 0)
        return error_set(error, ZERO_E_IO,
                         "%s: \"%s\" has %" PRIu64 " elements in %" PRIu32 " dimensions, not %" PRIu64
                         " in %" PRIu32 " as config.json says, or other dimensions",
                         h->path, p->name, t->count, t->dims, p->count, p->dims);
    part->used[t - part->table.tensor] = true;
    return ZERO_OK;
}

/* Tensors that are not parameters: masks and angles in old files, and a tied head's copy of the embedding. */
static bool is_no_parameter(const struct huggingface *h, const char *name) {
    static const char *const ends[] = {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"};
    size_t length = strlen(name);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (length > strlen(ends[i]) && strcmp(name + length - strlen(ends[i]), ends[i]) == 0) return true;
    return h->head.model.tied && strcmp(name, "lm_head.weight") == 0;
}

static zero_status check_unused(const struct huggingface *h, const struct part *part,
                                struct zero_error *error) {
    for (uint32_t i = 0; i < part->table.count; i++) {
        const char *name = part->table.tensor[i].name;
        if (part->used[i] || is_no_parameter(h, name)) continue;
        return error_set(
            error, ZERO_E_IO,
            "%s/%s has a tensor \"%s\" that config.json's model does not have: is it from another model?",
            h->path, part->name, name);
    }
    return ZERO_OK;
}

static zero_status check_tensors(struct huggingface *h, struct zero_error *error) {
    struct gpt_param p;
    for (uint32_t i = 0; i < h->parts; i++) {
        h->part[i].used = calloc(h->part[i].table.count + 1, sizeof *h->part[i].used);
        if (!h->part[i].used)
            return error_set(error, ZERO_E_MEMORY, "no memory for the tensors of %s", h->path);
    }
    for (uint32_t i = 0; gpt_param_at(&h->head.model, i, &p); i++) TRY(check_tensor(h, &p, error));
    for (uint32_t i = 0; i < h->parts; i++) TRY(check_unused(h, &h->part[i], error));
    return ZERO_OK;
}

static zero_status read_weights(struct weights *weights, const struct gpt_param *p, uint64_t first,
                                uint64_t count, float *out, struct zero_error *error) {
    struct huggingface *h = (struct huggingface *)weights;
    struct part *part;
    const struct tensor *t = find(h, p->name, &part);
    uint64_t bytes = count * dtype_bytes(t->dtype);
    char *in = (char *)out + (count * sizeof *out - bytes); /* half-width elements wait at the end of `out` */
    zero_status status =
        storage_read(&part->file, in, bytes, t->offset + first * dtype_bytes(t->dtype), error);
    if (!status) weights_widen(in, t->dtype, count, out);
    return status;
}

/* ---- the format ---- */

static void describe(struct huggingface *h) {
    const struct tensor *first = h->parts && h->part[0].table.count ? h->part[0].table.tensor : NULL;
    bool alike = first != NULL;
    for (uint32_t i = 0; i < h->parts; i++)
        for (uint32_t k = 0; k < h->part[i].table.count; k++)
            alike = alike && h->part[i].table.tensor[k].dtype == first->dtype;
    snprintf(h->head.title, sizeof h->head.title, "%" PRIu32 " safetensors file%s, %s", h->parts,
             h->parts == 1 ? "" : "s", alike ? dtype_name(first->dtype) : "of several types");
}

/* Hashes the tensors' names, types and places, and the first bytes of each. */
static zero_status identify(struct weights *weights, uint64_t *out, struct zero_error *error) {
    struct huggingface *h = (struct huggingface *)weights;
    unsigned char sample[SAMPLE_BYTES];
    zero_status status = ZERO_OK;
    *out = HASH_START;
    for (uint32_t i = 0; i < h->parts; i++)
        for (uint32_t k = 0; k < h->part[i].table.count && !status; k++) {
            const struct tensor *t = &h->part[i].table.tensor[k];
            size_t bytes = t->bytes < sizeof sample ? t->bytes : sizeof sample;
            status = storage_read(&h->part[i].file, sample, bytes, t->offset, error);
            *out = hash_string(*out, t->name);
            *out = hash_bytes(*out, &t->dtype, sizeof t->dtype);
            *out = hash_bytes(*out, &t->bytes, sizeof t->bytes);
            if (!status) *out = hash_bytes(*out, sample, bytes);
        }
    return status;
}

static zero_status open_weights(const char *path, struct weights **out, struct zero_error *error) {
    struct huggingface *h = calloc(1, sizeof *h);
    if (!h) return error_set(error, ZERO_E_MEMORY, "no memory to open %s", path);
    h->head.format = &weights_huggingface;
    snprintf(h->path, sizeof h->path, "%s", path);
    zero_status status = open_config(h, error);
    if (!status) status = open_parts(h, error);
    if (!status) status = check_tensors(h, error);
    if (status) return close_weights(&h->head), status;
    describe(h);
    char *real = realpath(path, NULL);
    snprintf(h->head.source, sizeof h->head.source, "%s", real ? real : path);
    free(real);
    *out = &h->head;
    return ZERO_OK;
}

const struct weights_format weights_huggingface = {
    .name = "Hugging Face",
    .recognises = recognises,
    .open = open_weights,
    .read = read_weights,
    .identify = identify,
    .close = close_weights,
};
