/* Saving: every rank writes its shard to one file, through the plan's piece of memory; rank 0 makes the directory
 * before, and publishes it afterwards. The ranks agree between the phases, so that no rank goes on after a failure of
 * another rank, and the manifest appears only when all files are durable. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/base/clock.h"
#include "engine/checkpoint/checksum.h"
#include "engine/checkpoint/steps.h"
#include "engine/config/key.h"
#include "engine/model/tensor.h"
#include "engine/state/notes.h"
#include "engine/state/save.h"
#include "engine/state/saved.h"
#include "engine/state/step_settings.h"

_Static_assert((int)BLOCK_BYTES == (int)PIECE_BYTES, "a checkpoint's block passes through the plan's piece");

#define TOKEN_NAME "token"

/* ---- what there is to save ---- */

static zero_status no_memory(struct zero_error *error) {
    return error_set(error, ZERO_E_MEMORY, "no memory for the checkpoint's lists");
}

/* Rank 0's manifest also has what only other model ranks declared. */
static bool list_peers(struct save *s) {
    const struct state *state = s->state;
    bool good = true;
    for (uint32_t i = 0; i < state->peers->pieces && !state->ranks->rank && good; i++) {
        const char *tensor = state->peers->piece[i].tensor;
        const struct declared_param *p = state->peers->piece[i].param;
        if (peers_find(state->peers, tensor) != &state->peers->piece[i] || tensor_find(state->model, tensor))
            continue;
        struct manifest_param param = {.name = (char *)(uintptr_t)tensor,
                                       .dims = p->dims,
                                       .count = p->tensor_count,
                                       .frozen = p->flags & ZERO_FROZEN,
                                       .group = state->training->groups.count > 1 ? 1 + p->group : 0};
        memcpy(param.shape, p->shape, sizeof param.shape);
        good = manifest_add_param(&s->manifest, &param);
    }
    return good;
}

static zero_status list_params(struct save *s, struct zero_error *error) {
    const struct model *m = s->state->model;
    s->model_param = calloc(m->params + 1, sizeof *s->model_param);
    s->manifest_param = calloc(m->params + 1, sizeof *s->manifest_param);
    bool good = s->model_param && s->manifest_param;
    for (uint32_t i = 0; i < m->params && good; i++) {
        const struct model_param *p = &m->param[i];
        if (p->owner != i) continue;
        if (p->tensor_head != i) {
            s->manifest_param[i] = s->manifest_param[p->tensor_head];
            continue;
        }
        struct manifest_param param = {.name = (char *)(uintptr_t)p->tensor,
                                       .dims = p->dims,
                                       .frozen = p->flags & ZERO_FROZEN,
                                       .group =
                                           s->state->training->groups.count > 1 ? 1 + p->scalars / 2 : 0};
        param.count = tensor_extent(m, p, param.shape);
        s->model_param[s->manifest.params] = i;
        s->manifest_param[i] = s->manifest.params;
        good = manifest_add_param(&s->manifest, &param);
    }
    return good && list_peers(s) ? ZERO_OK : no_memory(error);
}

static zero_status list_config(struct save *s, struct zero_error *error) {
    bool good = manifest_copy_entries(&s->state->notes, &s->manifest.notes);
    for (uint32_t i = 0; i < config_key_count() && good; i++) {
        const struct config_key *key = config_key_at(i);
        const char *text = s->state->blueprint->o.config->entries[i].text;
        if (key->use == KEY_USED && text) good = manifest_add_entry(&s->manifest.config, key->path, text);
    }
    return good ? ZERO_OK : no_memory(error);
}

static void fill_counters(struct save *s) {
    const struct state *state = s->state;
    struct manifest *m = &s->manifest;
    m->step = state->training->steps;
    m->skipped = state->training->skipped;
    m->loss_scale = state->training->loss_scale.value;
    m->loss_scale_allowed = state->training->loss_scale.allowed;
    m->loss_scale_stable = state->training->loss_scale.stable;
    m->schedule_steps = (uint64_t)(settings_iteration(state->training) + 1);
    m->groups = state->training->groups.count;
    for (uint32_t g = 0; g < state->training->groups.count; g++)
        m->lr[g] = state->training->groups.params[g].lr;
    m->ranks = state->ranks->size;
    m->stage = (uint32_t)state->blueprint->o.config->stage;
    uint32_t own = state->training->state_count;
    m->states = own + state->blueprint->terms.precision.average;
    char name[OPTIMIZER_NAMES_BYTES];
    snprintf(m->optimizer, sizeof m->optimizer, "%s", training_optimizer_name(state->training, name));
    for (uint32_t k = 0; k < m->states; k++)
        snprintf(m->state[k], sizeof m->state[k], "%s",
                 k < own ? training_state_name(state->training, k) : MANIFEST_AVERAGE);
}

/* The part of a region that this rank saves: its shard, also if it stores more. Of equal shards only one rank saves
 * its own. */
static struct stored_range saved_part(const struct state *state, uint32_t region) {
    uint8_t replicate = state->blueprint->regions[region].state.axis[AXIS_REPLICATE];
    struct stored_range part = range_of_rank(state->blueprint, state->ranks->data_rank, region,
                                             (struct placement){{SHARD, replicate}});
    if (replicate != SHARD && state->ranks->data_rank >= state->blueprint->policy.mesh[AXIS_SHARD])
        part.count = 0;
    return part;
}

static void add_piece(struct save *s, const struct stored_range *part, uint32_t index, uint32_t kind) {
    const struct model_param *p = &s->state->model->param[index];
    const struct manifest_param *param = &s->manifest.param[s->manifest_param[index]];
    uint64_t begin = max64(p->offset, part->first),
             end = min64(p->offset + p->count, part->first + part->count);
    if (begin < end && kind < manifest_kinds(&s->manifest, param))
        s->piece[s->pieces++] =
            (struct piece){param, kind, p->tensor_first + begin - p->offset, end - begin, p->tensor_part};
}

static void add_region(struct save *s, uint32_t index) {
    const struct manifest *m = &s->manifest;
    const struct model_region *region = &s->state->model->region[index];
    struct stored_range part = saved_part(s->state, index);
    for (uint32_t kind = 0; kind <= m->states && !region_elsewhere(region); kind++)
        for (uint32_t i = 0; i < region->params; i++) add_piece(s, &part, region->param[i], kind);
}

/* Region by region: in the order of the updates, then the frozen regions. Within a region kind by kind, as the state lies on its
 * tier. */
static zero_status list_pieces(struct save *s, struct zero_error *error) {
    const struct policy *p = &s->state->blueprint->policy;
    s->piece = calloc((size_t)s->state->model->params * (1 + s->manifest.states) + 1, sizeof *s->piece);
    s->order = calloc(p->regions, sizeof *s->order);
    if (!s->piece || !s->order) return no_memory(error);
    for (uint32_t i = 0; i < p->refreshes; i++) s->order[s->orders++] = p->refresh[i];
    for (uint32_t region = 0; region < p->regions; region++)
        if (p->region[region].frozen) s->order[s->orders++] = (uint16_t)region;
    for (uint32_t i = 0; i < s->orders; i++) add_region(s, s->order[i]);
    return ZERO_OK;
}

/* ---- the phases ---- */

static zero_status print_token(struct save *s, uint64_t nonce, struct zero_error *error) {
    char path[STORAGE_PATH_BYTES], text[CHECKSUM_DIGITS + 1];
    checksum_print(nonce, text);
    zero_status status = storage_join(s->written, TOKEN_NAME, path, error);
    return status ? status : storage_write_text(s->storage, path, text, CHECKSUM_DIGITS, error);
}

static zero_status write_program(struct save *s, const struct program *program, const char *name,
                                 struct zero_error *error) {
    char path[STORAGE_PATH_BYTES];
    if (!program->data) return ZERO_OK;
    zero_status status = storage_join(s->written, name, path, error);
    return status ? status : storage_write_text(s->storage, path, program->data, program->bytes, error);
}

/* Warns once: a left-over that stays is there at every save. */
static void warn_of_left(struct save *s) {
    if (s->left.code && !s->state->warned_of_left_over)
        log_line(&s->state->ranks->log, ZERO_LOG_WARN, "%s", s->left.message);
    s->state->warned_of_left_over |= s->left.code != ZERO_OK;
}

/* A save in the background outlives the call, and so the host program's current directory. If that directory has no usable
 * path, because this user may not search a directory above it, the path stays relative. */
static zero_status make_absolute(struct save *s, struct zero_error *error) {
    char current[STORAGE_PATH_BYTES], relative[STORAGE_PATH_BYTES];
    if (*s->root == '/' || !s->state->blueprint->o.config->checkpoint_async) return ZERO_OK;
    if (!getcwd(current, sizeof current) || access(current, X_OK) != 0) return ZERO_OK;
    memcpy(relative, s->root, sizeof relative);
    return storage_join(current, relative, s->root, error);
}

/* Reports: rank 0 the number that it wrote to the directory; every rank the number of bytes that it will write. */
static zero_status save_prepare(struct save *s, struct zero_error *error) {
    struct state *state = s->state;
    fill_counters(s);
    zero_status status = list_params(s, error);
    if (!status) status = list_config(s, error);
    if (!status) status = list_pieces(s, error);
    if (!status) status = shard_bytes(&s->manifest, s->piece, s->pieces, &s->word[1], error);
    if (!status) status = make_absolute(s, error);
    if (!status) status = steps_written(s->root, state->training->steps, s->written, error);
    if (status || state->ranks->rank) return status;
    s->word[0] = clock_now_ns() ^ (uint64_t)getpid() << 40;
    error_clear(&s->left);
    status = steps_begin(s->storage, s->root, state->training->steps, s->written, &s->left, error);
    warn_of_left(s);
    if (!status) status = print_token(s, s->word[0], error);
    return status ? status : write_program(s, &state->program[0], "program.bin", error);
}

static zero_status find_token(struct save *s, uint64_t nonce, struct zero_error *error) {
    char path[STORAGE_PATH_BYTES], *text = NULL;
    size_t bytes = 0;
    uint64_t found = 0;
    struct zero_error ignored = ERROR_NONE;
    TRY(storage_join(s->written, TOKEN_NAME, path, error));
    bool same = !storage_read_text(s->storage, path, CHECKSUM_DIGITS, &text, &bytes, &ignored) &&
                bytes == CHECKSUM_DIGITS && checksum_parse(text, &found) && found == nonce;
    free(text);
    if (same) return ZERO_OK;
    return error_set(
        error, ZERO_E_IO,
        "%s is not the directory that rank 0 made there: save to a file system that all ranks share",
        s->written);
}

static zero_status check_space(struct save *s, struct zero_error *error) {
    uint64_t needed = 0;
    for (uint32_t r = 0; r < s->state->ranks->size; r++) needed += s->all[r].word[1];
    int64_t left = s->storage->ops->free_bytes(s->storage, s->written);
    zero_status status = storage_check(left, "ask for the free space of", s->written, error);
    if (status || (uint64_t)left >= needed) return status;
    return error_set(error, ZERO_E_IO,
                     "%s: a checkpoint needs %" PRIu64 " bytes, %" PRId64
                     " are free; make room, keep fewer, or save elsewhere",
                     s->root, needed, left);
}

static zero_status save_look(struct save *s, struct zero_error *error) {
    zero_status status = s->state->ranks->rank ? find_token(s, s->all[0].word[0], error) : ZERO_OK;
    char name[40];
    snprintf(name, sizeof name, "program-%05" PRIu32 ".bin", s->state->ranks->rank);
    if (!status) status = check_space(s, error);
    return status ? status : write_program(s, &s->state->program[1], name, error);
}

static const struct model_param *param_of(const struct save *s, const struct piece *piece) {
    const struct model *m = s->state->model;
    return tensor_part(m, &m->param[s->model_param[piece->param - s->manifest.param]], piece->first);
}

static zero_status read_state(void *user, const struct piece *piece, uint64_t first, uint64_t count,
                              float *out, struct zero_error *error) {
    struct save *s = user;
    const struct model_param *p = param_of(s, piece);
    zero_status status = stored_read(s->view, p->region, saved_kind(&s->manifest, piece->kind),
                                     p->offset + first - p->tensor_first, count, out, error);
    if (status && s->view == &s->state->host) ranks_fail(s->state->ranks, error);
    if (status) return status;
    return s->copied ? s->copied(s->user, piece, first + count, error) : ZERO_OK;
}

uint32_t save_region(const struct save *s, const struct piece *piece) { return param_of(s, piece)->region; }

/* Elements [from, to) of the shard, in all pieces from `first` to `end`. */
static zero_status write_window(struct save *s, struct shard_writer *w, uint32_t first, uint32_t end,
                                uint64_t from, uint64_t to, struct zero_error *error) {
    struct shard_source source = {read_state, s, s->block};
    for (uint32_t i = first; i < end; i++) {
        const struct piece *piece = &s->piece[i];
        const struct model_param *p = param_of(s, piece);
        uint64_t base = saved_part(s->state, p->region).first,
                 at = p->offset + piece->first - p->tensor_first;
        uint64_t begin = max64(base + from, at), stop = min64(base + to, at + piece->count);
        if (begin < stop)
            TRY(shard_write_run(w, i, piece->first + (begin - at), stop - begin, &source, error));
    }
    return ZERO_OK;
}

/* The pieces of each region, chunk by chunk: each chunk is read once. If all is in memory, there is one window. */
static zero_status write_regions(struct save *s, struct shard_writer *w, struct zero_error *error) {
    for (uint32_t first = 0, end; first < s->pieces; first = end) {
        uint32_t region = save_region(s, &s->piece[first]);
        for (end = first; end < s->pieces && save_region(s, &s->piece[end]) == region;) end++;
        uint64_t count = saved_part(s->state, region).count;
        for (uint64_t at = 0, to; at < count; at = to) {
            to = min64(count, stored_chunk_end(s->state->blueprint, region, at));
            TRY(write_window(s, w, first, end, at, to, error));
        }
    }
    return ZERO_OK;
}

/* A save in the background reads chunks one by one: the slots of the ring are the training's. */
static void begin_sweep(const struct save *s) {
    if (s->view == &s->state->host) stored_sweep(s->view, s->order, s->orders, CHUNK_ALL);
}

/* Also after a failure: the training goes on without this checkpoint. */
static zero_status end_sweep(const struct save *s, zero_status status, struct zero_error *error) {
    struct zero_error own = ERROR_NONE;
    if (s->view != &s->state->host || !stored_end_sweep(s->view, ZERO_OK, &own)) return status;
    if (!status) error_pass(error, &own);
    return ranks_fail(s->state->ranks, &own);
}

/* Reports the size of this rank's file, and the checksum of its header. */
zero_status save_write(struct save *s, struct zero_error *error) {
    struct manifest_file file = {0};
    struct shard_writer *w = NULL;
    zero_status status = shard_create(s->storage, s->written, s->state->ranks->rank, &s->manifest, s->piece,
                                      s->pieces, s->staging, &w, error);
    begin_sweep(s);
    if (!status) status = write_regions(s, w, error);
    status = end_sweep(s, status, error);
    if (!status) status = shard_complete(w, &file, error);
    shard_drop(w);
    s->word[0] = file.bytes;
    s->word[1] = file.header_checksum;
    return status;
}

zero_status save_publish(struct save *s, struct zero_error *error) {
    struct manifest *m = &s->manifest;
    char token[STORAGE_PATH_BYTES];
    if (s->state->ranks->rank) return ZERO_OK;
    m->file = calloc(s->state->ranks->size, sizeof *m->file);
    if (!m->file) return no_memory(error);
    for (; m->files < s->state->ranks->size; m->files++)
        m->file[m->files] = (struct manifest_file){s->all[m->files].word[0], s->all[m->files].word[1]};
    zero_status status = storage_join(s->written, TOKEN_NAME, token, error);
    if (!status)
        status = storage_check(s->storage->ops->remove_owned(s->storage, s->written, TOKEN_NAME), "remove",
                               token, error);
    if (!status) status = manifest_write(s->storage, s->written, m, error);
    if (!status) status = steps_publish(s->storage, s->root, m->step, s->written, &s->left, error);
    warn_of_left(s);
    return status;
}

/* ---- the call ---- */

/* All ranks perform the phase, and agree on its status and reports. */
typedef zero_status (*save_phase)(struct save *save, struct zero_error *error);

static zero_status together(struct save *s, save_phase phase) {
    struct zero_error error = ERROR_NONE;
    if (phase) phase(s, &error);
    return ranks_agree_patiently(s->state->ranks, &error, s->word, "a checkpoint", &s->all);
}

void save_abandon(struct save *s) {
    if (!s->state->ranks->rank && *s->written) steps_abandon(s->storage, s->written);
}

void save_free(struct save *s) {
    manifest_free(&s->manifest);
    free(s->model_param);
    free(s->manifest_param);
    free(s->piece);
    free(s->order);
}

zero_status save_begin(struct save *s, struct state *state, struct storage *storage, const char *dir) {
    error_clear(&state->saved);
    *s = (struct save){
        .state = state, .view = &state->host, .storage = storage, .block = (float *)(void *)state->piece};
    snprintf(s->root, sizeof s->root, "%s", dir);
    zero_status status = ranks_meet(state->ranks, "a checkpoint");
    if (!status) status = together(s, save_prepare);
    if (!status) status = together(s, save_look);
    memset(state->program, 0, sizeof state->program);
    return status;
}

void save_end(struct save *s, zero_status status) {
    if (status) save_abandon(s), error_set(&s->state->saved, status, "%s", zero_last_error());
    save_free(s);
}

/* checkpoint.writers_per_node: so many ranks of each node write, then as many others. */
static zero_status write_in_turn(struct save *s) {
    const struct ranks *ranks = s->state->ranks;
    uint64_t writers = s->state->blueprint->o.config->checkpoint_writers;
    if (!writers) writers = ranks->node_most;
    for (uint64_t first = 0; first < ranks->node_most; first += writers) {
        bool mine = ranks->node_index >= first && ranks->node_index < first + writers;
        TRY(together(s, mine ? save_write : NULL));
    }
    return ZERO_OK;
}

zero_status state_save(struct state *state, struct storage *storage, const char *dir) {
    struct save save;
    zero_status status = save_begin(&save, state, storage, dir);
    if (!status) status = write_in_turn(&save);
    if (!status) status = together(&save, save_publish);
    save_end(&save, status);
    return status;
}

zero_status state_prune(struct state *state, struct storage *storage, const char *dir, uint64_t keep) {
    struct zero_error error = ERROR_NONE;
    const struct rank_report *all;
    TRY(ranks_meet(state->ranks, "deleting checkpoints"));
    if (!state->ranks->rank) steps_prune(storage, dir, notes_find(&state->notes, "run"), keep, &error);
    return ranks_agree_patiently(state->ranks, &error, (uint64_t[2]){0}, "deleting checkpoints", &all);
}
