/* Turns foreign weights into a checkpoint, block by block. */
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/checkpoint/shard.h"
#include "engine/checkpoint/steps.h"
#include "engine/config/key.h"
#include "tools/weights/weights.h"

static zero_status no_memory(struct zero_error *error) {
    return error_set(error, ZERO_E_MEMORY, "no memory for the list of parameters");
}

static zero_status add_note(void *user, const char *key, const char *value) {
    struct manifest *m = user;
    return !utf8_is(value) || manifest_add_entry(&m->notes, key, value) ? ZERO_OK : ZERO_E_MEMORY;
}

static zero_status describe(const struct weights *w, struct manifest *m, struct zero_error *left,
                            struct zero_error *error) {
    struct gpt_param p;
    bool good = true;
    m->loss_scale = 1;
    m->ranks = 1;
    for (uint32_t i = 0; good && gpt_param_at(&w->model, i, &p); i++) {
        struct manifest_param param = {.name = p.name, .dims = p.dims, .count = p.count};
        memcpy(param.shape, p.shape, sizeof p.shape);
        good = manifest_add_param(m, &param);
    }
    for (uint32_t i = 0; good && i < config_key_count(); i++) {
        const struct config_key *key = config_key_at(i);
        const char *text = w->config.entries[i].text;
        if (key->use == KEY_USED && text && strncmp(key->path, "model.", 6) == 0)
            good = manifest_add_entry(&m->config, key->path, text);
    }
    if (good) good = weights_note_source(w, add_note, m) == ZERO_OK;
    if (!utf8_is(w->source))
        error_set(left, ZERO_E_ARGUMENT,
                  "the path %s is not UTF-8, and so the checkpoint does not note it: the tokenizer's files "
                  "will not be exported",
                  w->source);
    return good ? ZERO_OK : no_memory(error);
}

struct import {
    struct weights *weights;
    int (*stop)(void);
};

static zero_status check_stop(int (*stop)(void), struct zero_error *error) {
    if (!stop || !stop()) return ZERO_OK;
    return error_set(error, ZERO_E_INTERRUPTED, "interrupted: nothing is imported");
}

static zero_status read_piece(void *user, const struct piece *piece, uint64_t first, uint64_t count,
                              float *out, struct zero_error *error) {
    struct import *import = user;
    struct weights *w = import->weights;
    if (check_stop(import->stop, error)) return ZERO_E_INTERRUPTED;
    struct gpt_param p = {.dims = piece->param->dims, .count = piece->param->count};
    strcpy(p.name, piece->param->name);
    memcpy(p.shape, piece->param->shape, sizeof p.shape);
    return w->format->read(w, &p, first, count, out, error);
}

static zero_status write_shard(struct import *import, const char *directory, struct manifest *m,
                               struct zero_error *error) {
    struct piece *pieces = calloc(m->params + 1, sizeof *pieces);
    float *block = malloc(BLOCK_BYTES);
    m->file = calloc(1, sizeof *m->file);
    zero_status status = pieces && block && m->file ? ZERO_OK : no_memory(error);
    for (uint32_t i = 0; i < m->params && !status; i++)
        pieces[i] = (struct piece){.param = &m->param[i], .count = m->param[i].count};
    if (!status)
        status = shard_write(storage_posix(), directory, 0, m, pieces, m->params,
                             &(struct shard_source){read_piece, import, block}, m->file, error);
    m->files = status ? 0 : 1;
    free(pieces);
    free(block);
    return status;
}

zero_status weights_import(struct weights *w, const char *out, int (*stop)(void), struct zero_error *left,
                           struct zero_error *error) {
    struct storage *storage = storage_posix();
    char written[STORAGE_PATH_BYTES] = "";
    struct manifest m = {0};
    zero_status status = describe(w, &m, left, error);
    if (!status) status = storage_make_parents(storage, out, error);
    if (!status) status = steps_check_none(storage, out, error);
    if (!status) status = steps_begin(storage, out, 0, written, left, error);
    if (!status) status = write_shard(&(struct import){w, stop}, written, &m, error);
    if (!status) status = manifest_write(storage, written, &m, error);
    if (!status) status = check_stop(stop, error);
    if (!status) status = steps_publish(storage, out, 0, written, left, error);
    if (status && *written) steps_abandon(storage, written);
    manifest_free(&m);
    return status;
}
