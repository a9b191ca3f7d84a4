/* Loading: every rank reads the manifest and all headers, takes its elements from the pieces that overlap them, and
 * writes them to the place of the state. Everything that can be checked without the data is checked before anything
 * is changed. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint/checkpoint.h"
#include "engine/model/tensor.h"
#include "engine/state/notes.h"
#include "engine/state/saved.h"
#include "engine/state/shadow.h"
#include "engine/state/step_settings.h"

struct load {
    struct state *state;
    struct checkpoint checkpoint;
    /* By the manifest's parameter: its first part. NULL: other model ranks have it. */
    const struct model_param **model_param;
    /* For the current file: 1 + the index of the first piece of a tensor, by the tensor's first part and the kind;
     * and of the piece after each piece. 0: none. */
    uint32_t (*there)[1 + MANIFEST_STATES_MAX], *after;
    enum load_what what;
};

static bool takes_all(const struct load *l) { return l->what == LOAD_ALL; }

/* ---- is it this model's ---- */

static bool same_states(const struct state *state, const struct manifest *m) {
    char name[OPTIMIZER_NAMES_BYTES];
    uint32_t states = m->states - (manifest_average(m) != 0);
    bool same = states == state->training->state_count &&
                strcmp(m->optimizer, training_optimizer_name(state->training, name)) == 0;
    for (uint32_t k = 0; k < states && same; k++)
        same = strcmp(m->state[k], training_state_name(state->training, k)) == 0;
    return same;
}

static zero_status check_optimizer(struct load *l, struct zero_error *error) {
    const struct manifest *m = &l->checkpoint.manifest;
    char name[OPTIMIZER_NAMES_BYTES];
    if (l->what == LOAD_AVERAGE && !manifest_average(m))
        return error_set(error, ZERO_E_ARGUMENT,
                         "%s has no averaged weights: load its weights, or train with ema.decay",
                         l->checkpoint.path);
    if (takes_all(l) && !*m->optimizer) l->what = LOAD_WEIGHTS;
    if (!takes_all(l) || same_states(l->state, m)) return ZERO_OK;
    return error_set(error, ZERO_E_ARGUMENT,
                     "%s was saved with optimizer %s of %" PRIu32 " states, and this run has %s of %" PRIu32
                     "; use the same optimizer, or load only the weights",
                     l->checkpoint.path, m->optimizer, m->states - (manifest_average(m) != 0),
                     training_optimizer_name(l->state->training, name), l->state->training->state_count);
}

static zero_status check_param(struct load *l, uint32_t index, struct zero_error *error) {
    const struct manifest_param *saved = &l->checkpoint.manifest.param[index];
    const struct model_param *own = tensor_find(l->state->model, saved->name);
    /* the model rank that has it checks it */
    if (!own && peers_find(l->state->peers, saved->name)) return ZERO_OK;
    if (!own || own->owner != own - l->state->model->param)
        return error_set(error, ZERO_E_ARGUMENT, "%s has a parameter \"%s\", which this model does not have",
                         l->checkpoint.path, saved->name);
    uint64_t shape[ZERO_DIMS_MAX], count = tensor_extent(l->state->model, own, shape);
    bool same = saved->dims == own->dims && saved->count == count &&
                memcmp(saved->shape, shape, saved->dims * sizeof *saved->shape) == 0;
    if (!same)
        return error_set(error, ZERO_E_ARGUMENT,
                         "%s: \"%s\" has %" PRIu64 " elements in %" PRIu32
                         " dimensions, this model's has %" PRIu64 " in %" PRIu32 ", or the dimensions differ",
                         l->checkpoint.path, saved->name, saved->count, saved->dims, count, own->dims);
    if (takes_all(l) && saved->frozen != !!(own->flags & ZERO_FROZEN))
        return error_set(error, ZERO_E_ARGUMENT,
                         "%s: \"%s\" is %s, and this model %s it; load only the weights", l->checkpoint.path,
                         saved->name, saved->frozen ? "frozen" : "trained",
                         saved->frozen ? "trains" : "freezes");
    l->model_param[index] = own;
    return ZERO_OK;
}

/* The names of a manifest differ: what it has beside this model's parameters was refused before. */
static zero_status check_whole(const struct load *l, struct zero_error *error) {
    const struct model *model = l->state->model;
    uint32_t left = l->checkpoint.manifest.params;
    bool *there = calloc(model->params + 1, sizeof *there);
    if (!there)
        return error_set(error, ZERO_E_MEMORY, "no memory to load %" PRIu32 " parameters", model->params);
    while (left-- > 0)
        if (l->model_param[left]) there[l->model_param[left] - model->param] = true;
    uint32_t missing = 0;
    while (missing < model->params &&
           (there[model->param[missing].tensor_head] || model->param[missing].owner != missing))
        missing++;
    free(there);
    if (missing == model->params) return ZERO_OK;
    return error_set(error, ZERO_E_ARGUMENT, "%s lacks the parameter \"%s\" of this model",
                     l->checkpoint.path, model->param[missing].tensor);
}

static zero_status check_model(struct load *l, struct zero_error *error) {
    const struct manifest *m = &l->checkpoint.manifest;
    l->model_param = calloc(m->params + 1, sizeof *l->model_param);
    if (!l->model_param)
        return error_set(error, ZERO_E_MEMORY, "no memory to load %" PRIu32 " parameters", m->params);
    for (uint32_t i = 0; i < m->params; i++) TRY(check_param(l, i, error));
    return check_whole(l, error);
}

static zero_status check(struct load *l, struct storage *storage, const char *dir, struct zero_error *error) {
    zero_status status = checkpoint_open(storage, dir, &l->checkpoint, error);
    if (!status) status = check_optimizer(l, error);
    if (!status) status = check_model(l, error);
    return status ? status : checkpoint_walk(&l->checkpoint, NULL, NULL, error);
}

/* Different ranks may have found different checkpoints under one path. */
static zero_status check_alike(const struct load *l, const struct rank_report *all, const char *dir) {
    for (uint32_t r = 1; r < l->state->ranks->size; r++)
        if (all[r].word[0] != all[0].word[0])
            return refuse(
                ZERO_E_DIVERGED,
                "zero_engine_load: rank %" PRIu32
                " finds another checkpoint at %s than rank 0; load from a file system that all share",
                r, dir);
    return ZERO_OK;
}

/* ---- reading ---- */

static const struct model_param *first_part(const struct load *l, const struct piece *piece) {
    return l->model_param[piece->param - l->checkpoint.manifest.param];
}

/* The kind of state that a kind of the checkpoint becomes. False: this load does not take it. */
static bool becomes(const struct load *l, const struct piece *piece, zero_kind *out) {
    const struct manifest *m = &l->checkpoint.manifest;
    *out = saved_kind(m, piece->kind);
    if (l->what == LOAD_AVERAGE) *out = ZERO_PARAM;
    if (l->what == LOAD_AVERAGE) return piece->kind == (piece->param->frozen ? 0 : manifest_average(m));
    if (l->what == LOAD_WEIGHTS) return !piece->kind;
    return *out != ZERO_EMA || l->state->blueprint->terms.precision.average;
}

/* Averaged weights that the checkpoint lacks, or that are not taken, begin as the weights. */
static bool begins_average(const struct load *l, zero_kind kind) {
    return kind == ZERO_PARAM && (!takes_all(l) || !manifest_average(&l->checkpoint.manifest));
}

static zero_status write_state(void *user, const struct piece *piece, uint64_t first, uint64_t count,
                               const float *in, struct zero_error *error) {
    struct load *l = user;
    const struct model_param *p = tensor_part(l->state->model, first_part(l, piece), first);
    uint64_t at = p->offset + first - p->tensor_first;
    zero_kind kind;
    becomes(l, piece, &kind); /* list_file has left out the others */
    zero_status status = state_write(l->state, p->region, kind, at, count, in);
    if (!status && begins_average(l, kind)) status = state_begin_average(l->state, p->region, at, count);
    return status ? error_set(error, status, "%s", zero_last_error()) : ZERO_OK;
}

/* The part of one parameter that a piece has: the piece's tensor or a range of it. */
static zero_status take_piece(struct load *l, struct shard *shard, uint32_t index,
                              const struct model_param *p, const struct stored_range *window,
                              struct zero_error *error) {
    const struct piece *piece = &shard->piece[index];
    uint64_t begin = max64(piece->first, p->tensor_first),
             end = min64(piece->first + piece->count, p->tensor_first + p->count);
    if (begin >= end) return ZERO_OK;
    uint64_t to_region = p->offset - p->tensor_first; /* from the tensor's elements, modulo 2^64 */
    begin = max64(begin + to_region, window->first);
    end = min64(end + to_region, window->first + window->count);
    if (begin >= end) return ZERO_OK;
    return shard_read(shard, index, begin - to_region, end - begin, (float *)(void *)l->state->piece,
                      write_state, l, error);
}

/* Elements of a region, in all kinds. */
static zero_status take_window(struct load *l, struct shard *shard, uint32_t region,
                               const struct stored_range *window, struct zero_error *error) {
    const struct model *m = l->state->model;
    const struct model_region *r = &m->region[region];
    zero_status status = ZERO_OK;
    for (uint32_t kind = 0; kind <= l->checkpoint.manifest.states; kind++)
        for (uint32_t i = 0; i < r->params; i++) {
            const struct model_param *p = &m->param[r->param[i]];
            for (uint32_t at = l->there[p->tensor_head][kind]; at && !status; at = l->after[at - 1])
                status = take_piece(l, shard, at - 1, p, window, error);
        }
    return status;
}

static zero_status list_file(struct load *l, const struct shard *shard, struct zero_error *error) {
    const struct model *m = l->state->model;
    uint32_t *after = realloc(l->after, (shard->count + 1) * sizeof *after);
    if (!after) return error_set(error, ZERO_E_MEMORY, "no memory to load a checkpoint");
    l->after = after;
    memset(l->there, 0, m->params * sizeof *l->there);
    for (uint32_t i = shard->count; i-- > 0;) {
        const struct piece *piece = &shard->piece[i];
        zero_kind kind;
        if (!first_part(l, piece) || !becomes(l, piece, &kind)) continue;
        uint32_t *first = &l->there[first_part(l, piece) - m->param][piece->kind];
        after[i] = *first;
        *first = i + 1;
    }
    return ZERO_OK;
}

/* Writes chunk by chunk: each chunk is written once, except those at the ends of the file's shards. If all is in
 * memory, there is one window. */
static zero_status take_file(void *user, struct shard *shard, struct zero_error *error) {
    struct load *l = user;
    const struct state *state = l->state;
    zero_status status = list_file(l, shard, error);
    for (uint32_t region = 0; region < state->model->regions && !status; region++) {
        struct stored_range part =
            stored_range(state->blueprint, state->ranks->data_rank, region, ZERO_PARAM);
        for (uint64_t at = 0, to; at < part.count && !status; at = to) {
            to = min64(part.count, stored_chunk_end(state->blueprint, region, at));
            status = take_window(l, shard, region,
                                 &(struct stored_range){.first = part.first + at, .count = to - at}, error);
        }
    }
    return status;
}

static zero_status read_files(struct load *l, struct zero_error *error) {
    l->there = calloc(l->state->model->params + 1, sizeof *l->there);
    if (!l->there) return error_set(error, ZERO_E_MEMORY, "no memory to load a checkpoint");
    stored_sweep(&l->state->host, NULL, 0, 0);
    return stored_end_sweep(&l->state->host, checkpoint_walk_files(&l->checkpoint, take_file, l, error),
                            error);
}

static zero_status read_all(struct load *l, struct zero_error *error) {
    struct state *state = l->state;
    zero_status status = !takes_all(l) ? stored_clear(&state->host, error) : ZERO_OK;
    if (status) return ranks_fail(state->ranks, error);
    /* As the ranks do that write state. All of it is written, so nothing is read first. */
    status = RUN_EVENT(state->run, executor_clear_chunks(state->run->executor));
    if (!status) status = read_files(l, error);
    if (error->code) return error->code;
    if (!status) status = shadow_forget(state); /* the committed step belongs to another training */
    return status ? error_set(error, status, "%s", zero_last_error()) : ZERO_OK;
}

static zero_status take_notes(struct load *l, struct zero_error *error) {
    struct state *state = l->state;
    manifest_free_entries(&state->notes);
    if (!manifest_copy_entries(&l->checkpoint.manifest.notes, &state->notes))
        return error_set(error, ZERO_E_MEMORY, "no memory for the checkpoint's notes");
    if (state->blueprint->o.config->nvme_shadow && notes_bytes(&state->notes) > NOTES_PACKED_BYTES)
        log_line(&state->ranks->log, ZERO_LOG_WARN,
                 "the checkpoint's notes take %llu bytes, and a shadow keeps %d: a recovery from the shadow "
                 "restores none",
                 (unsigned long long)notes_bytes(&state->notes), NOTES_PACKED_BYTES);
    return ZERO_OK;
}

/* The group of a parameter in this run, on any model rank. False: there is no such parameter. */
static bool group_of(const struct load *l, const char *name, uint32_t *out) {
    const struct model_param *own = tensor_find(l->state->model, name);
    const struct peer_piece *peer = own ? NULL : peers_find(l->state->peers, name);
    if (own) *out = own->scalars / 2;
    if (peer) *out = peer->param->group;
    return own || peer;
}

/* The checkpoint's lr of the parameters that are in `group` here. Groups have no names and may be in another order, so they
 * are matched by the names of their parameters. False: these parameters had several learning rates, or none. */
static bool saved_lr(const struct load *l, uint32_t group, double *out) {
    const struct manifest *m = &l->checkpoint.manifest;
    bool grouped = false, found = false;
    for (uint32_t i = 0; i < m->params; i++) {
        uint32_t saved = m->param[i].group, own;
        grouped |= saved > 0;
        if (!saved || !group_of(l, m->param[i].name, &own) || own != group) continue;
        if (found && *out != m->lr[saved - 1]) return false;
        *out = m->lr[saved - 1], found = true;
    }
    if (grouped || group >= m->groups) return found;
    *out = m->lr[group]; /* one group, or a file that does not say which parameter is in which group */
    return true;
}

static void take_lr(struct load *l, uint32_t group) {
    struct state *state = l->state;
    double saved, own = state->training->groups.params[group].lr;
    bool found = saved_lr(l, group, &saved);
    if (found) state->training->groups.params[group].lr = saved;
    if (state->ranks->rank) return;
    if (!found)
        log_line(&state->ranks->log, ZERO_LOG_WARN,
                 "the learning rate of group %" PRIu32
                 " is %g, as configured: in the checkpoint its parameters are in several groups, or in none",
                 group, own);
    else if (saved != own)
        log_line(&state->ranks->log, ZERO_LOG_INFO,
                 "the learning rate of group %" PRIu32
                 " goes on at the checkpoint's %g, not at %g, unless the program sets it",
                 group, saved, own);
}

/* Sums over ranks are made node by node. */
static void tell_nodes(const struct load *l) {
    const char *text = manifest_config(&l->checkpoint.manifest, "comm.node_ranks");
    const struct state *state = l->state;
    uint64_t saved = text ? strtoull(text, NULL, 10) : 0, own = state->blueprint->o.config->node_group;
    for (uint64_t rest = l->checkpoint.manifest.ranks;
         rest && saved;) { /* the nodes divide the ranks evenly */
        uint64_t next = saved % rest;
        saved = rest, rest = next;
    }
    if (state->ranks->rank || !saved || saved == own || !takes_all(l)) return;
    log_line(
        &state->ranks->log, ZERO_LOG_INFO,
        "the checkpoint was saved on nodes of %" PRIu64 " ranks, and these have %" PRIu64
        ": gradients are added in another order, so weights may differ in their last bits from those that "
        "the same nodes would reach",
        saved, own);
}

static void take_counters(struct load *l) {
    const struct manifest *m = &l->checkpoint.manifest;
    struct state *state = l->state;
    state->filled = true;
    if (!takes_all(l))
        training_restart_loss_scale(state->training);
    else
        loss_scale_resume(&state->training->loss_scale, m->loss_scale, m->loss_scale_allowed,
                          m->loss_scale_stable);
    state->training->steps = takes_all(l) ? m->step : 0;
    state->training->skipped = takes_all(l) ? m->skipped : 0;
    state->training->skipped_in_a_row = 0;
    if (!takes_all(l))
        settings_restart(state->training);
    else if (m->schedule_steps)
        settings_resume(state->training, (int64_t)m->schedule_steps - 1);
    for (uint32_t g = 0; g < state->training->groups.count && takes_all(l); g++) take_lr(l, g);
    tell_nodes(l);
}

/* ---- the call ---- */

/* A part of the state may be new by now, so the engine cannot be used any more: the failure is sticky. */
static zero_status fail_for_good(struct state *state, zero_status status) {
    struct zero_error error = ERROR_NONE;
    error_set(&error, status, "%s", zero_last_error());
    struct comm_call call = {.kind = COMM_BARRIER, .what = "a checkpoint"};
    fair_lock_take(&state->ranks->lock);
    comm_run(state->ranks->world, &call); /* all ranks know the failure before one of them stops */
    fair_lock_give(&state->ranks->lock);
    return ranks_fail(state->ranks, &error);
}

static zero_status run(struct load *l, struct storage *storage, const char *dir) {
    const struct rank_report *all;
    struct zero_error error = ERROR_NONE;
    TRY(ranks_meet(l->state->ranks, "a checkpoint"));
    check(l, storage, dir, &error);
    uint64_t word[2] = {l->checkpoint.manifest.checksum};
    TRY(ranks_agree_patiently(l->state->ranks, &error, word, "a checkpoint", &all));
    TRY(check_alike(l, all, dir));
    if (!read_all(l, &error)) take_notes(l, &error);
    zero_status status = ranks_agree_patiently(l->state->ranks, &error, word, "a checkpoint", &all);
    if (status) return fail_for_good(l->state, status);
    take_counters(l);
    return run_weights_written(l->state->run);
}

zero_status state_load(struct state *state, struct storage *storage, const char *dir, enum load_what what) {
    struct load load = {.state = state, .what = what};
    zero_status status = run(&load, storage, dir);
    checkpoint_close(&load.checkpoint);
    free(load.model_param);
    free(load.there);
    free(load.after);
    return status;
}
