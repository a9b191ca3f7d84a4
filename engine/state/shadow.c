#include "engine/state/shadow.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/ranks/local_ranks.h"
#include "engine/state/get_put.h"
#include "engine/state/notes.h"
#include "engine/training/step_settings.h"

/* The page that commits an epoch. */
struct commit {
    uint64_t magic, layout, epoch, steps, skipped;
    struct loss_scale scale;
    double lr[GROUP_MAX];
    int64_t schedule_iteration;
    char notes[NOTES_PACKED_BYTES];
    uint64_t checksum; /* of all before */
};

static const uint64_t commit_magic = 0x3274696d6d6f637aULL; /* "zcommit2" */

_Static_assert(sizeof(struct commit) <= CHUNK_ALIGN_BYTES, "a page holds it");

static uint64_t checksum_of(const struct commit *c) {
    return hash_bytes(HASH_START, c, offsetof(struct commit, checksum));
}

/* What must be alike for the chunks to mean the same. */
static uint64_t layout_of(const struct state *state) {
    const struct chunk_layout *layout = &state->blueprint->plan.layout;
    uint64_t parts[] = {model_layout_hash(state->model),
                        state->ranks->size,
                        state->ranks->rank,
                        state->blueprint->policy.mesh[AXIS_SHARD],
                        state->blueprint->o.config->stage,
                        layout->arrays,
                        layout->element_bytes,
                        (uint64_t)layout->param_dtype,
                        layout->chunks,
                        layout->chunk_elements,
                        layout->record_row_bytes,
                        state->training->groups.count};
    uint64_t hash = hash_bytes(HASH_START, parts, sizeof parts);
    return hash_string(hash, state->training->optimizer->name);
}

bool shadow_commits(const struct state *state) {
    return state->blueprint->o.config->nvme_shadow && state->shadow.uncommitted;
}

static bool stored(const void *executor) { return executor_stored(executor); }

zero_status shadow_sync(struct state *state) {
    if (!shadow_commits(state)) return ZERO_OK;
    zero_status status = run_wait(state->run, stored, state->run->executor);
    if (status) return status;
    struct zero_error error;
    error_clear(&error);
    turn_take(&state->ranks->lock);
    status = state->run->tier[TIER_NVME]->ops->sync(state->run->tier[TIER_NVME], &error);
    turn_give(&state->ranks->lock);
    return status ? ranks_fail(state->ranks, &error) : ZERO_OK;
}

zero_status shadow_commit(struct state *state) {
    if (!shadow_commits(state)) return ZERO_OK;
    uint8_t page[CHUNK_ALIGN_BYTES] = {0};
    struct commit c;
    memset(&c, 0, sizeof c);
    c.magic = commit_magic, c.layout = layout_of(state), c.epoch = executor_epoch(state->run->executor);
    c.steps = state->training->steps, c.skipped = state->training->skipped,
    c.scale = state->training->loss_scale;
    for (uint32_t g = 0; g < state->training->groups.count; g++)
        c.lr[g] = state->training->groups.params[g].lr;
    c.schedule_iteration = settings_iteration(state->training);
    notes_pack(&state->notes, c.notes);
    c.checksum = checksum_of(&c);
    memcpy(page, &c, sizeof c);
    state->shadow.uncommitted = false;
    return RUN_EVENT(state->run, executor_commit(state->run->executor, page));
}

zero_status shadow_forget(struct state *state) {
    if (!state->blueprint->o.config->nvme_shadow) return ZERO_OK;
    state->shadow.uncommitted = false;
    return RUN_EVENT(state->run, executor_forget_commits(state->run->executor));
}

/* ---- recovery ---- */

/* This rank's last commit; epoch 0: there is none of this layout. `other`, or NULL: the last commit of another layout. */
static zero_status read_last(struct state *state, struct commit *out, struct commit *other) {
    uint8_t page[CHUNK_ALIGN_BYTES];
    memset(out, 0, sizeof *out);
    if (other) memset(other, 0, sizeof *other);
    for (uint32_t which = 0; which < 2 && state->run->tier[TIER_NVME]->found; which++) {
        struct commit c;
        zero_status status = RUN_EVENT(state->run, executor_read_commit(state->run->executor, which, page));
        if (status) return status;
        memcpy(&c, page, sizeof c);
        if (c.magic != commit_magic || c.checksum != checksum_of(&c)) continue;
        struct commit *last = c.layout == layout_of(state) ? out : other;
        if (last && c.epoch > last->epoch) *last = c;
    }
    return ZERO_OK;
}

struct finding {
    struct commit last;
    uint64_t there; /* the rank's files were */
};

/* The latest of all ranks': a rank commits only what every rank had synced. *out_missing: a rank without its files. */
static zero_status agree_last(struct state *state, struct commit *commit, int *out_missing) {
    struct finding *all = outliving_message(state->ranks->outliving, (state->ranks->size + 1) * sizeof *all);
    struct zero_error error;
    error_clear(&error);
    if (!all) {
        error_set(&error, ZERO_E_MEMORY, "no memory for the commits of %" PRIu32 " ranks",
                  state->ranks->size);
        return ranks_fail(state->ranks, &error);
    }
    all[0] = (struct finding){*commit, state->run->tier[TIER_NVME]->found};
    struct comm_call call = comm_rows(all, sizeof *all, "the last step that is whole");
    zero_status status = ranks_call(state->ranks, &call);
    for (uint32_t r = 1; r <= state->ranks->size && !status; r++)
        if (all[r].last.epoch > commit->epoch) *commit = all[r].last;
    for (uint32_t r = 1; r <= state->ranks->size && !status && commit->epoch; r++)
        if (!all[r].there && *out_missing < 0) *out_missing = (int)r - 1;
    return status;
}

static zero_status take_notes(struct state *state, const struct commit *c, struct manifest_entries *out) {
    if (notes_unpack(c->notes, out)) return ZERO_OK;
    struct zero_error error;
    error_clear(&error);
    error_set(&error, ZERO_E_MEMORY, "no memory for the notes");
    return ranks_fail(state->ranks, &error);
}

/* The host decides whether to go on from it. */
static zero_status remember(struct state *state, const struct commit *c) {
    state->shadow.found = c->epoch > 0;
    state->shadow.steps = c->steps;
    return c->epoch ? take_notes(state, c, &state->shadow.notes) : ZERO_OK;
}

zero_status shadow_open(struct state *state) {
    struct commit last, other;
    int missing = -1;
    if (!state->blueprint->o.config->nvme_shadow) return ZERO_OK;
    zero_status status = read_last(state, &last, &other);
    if (!status) status = agree_last(state, &last, &missing);
    if (!status) executor_begin_epoch(state->run->executor, last.epoch + 1);
    return status ? status : remember(state, last.epoch ? &last : &other);
}

static zero_status restore(struct state *state, const struct commit *c) {
    struct zero_error error;
    error_clear(&error);
    zero_status status = RUN_EVENT(state->run, executor_resume(state->run->executor, c->epoch));
    state->training->steps = c->steps, state->training->skipped = c->skipped;
    loss_scale_resume(&state->training->loss_scale, c->scale.value, c->scale.allowed, c->scale.stable);
    for (uint32_t g = 0; g < state->training->groups.count; g++)
        state->training->groups.params[g].lr = c->lr[g];
    settings_resume(state->training, c->schedule_iteration);
    if (!status) status = take_notes(state, c, &state->notes);
    for (uint32_t k = 0; k < state->blueprint->policy.refreshes && !status; k++)
        status = stored_restore(&state->host, state->blueprint->policy.refresh[k], &error);
    return error.code ? ranks_fail(state->ranks, &error) : status;
}

zero_status shadow_recover(struct state *state, zero_fill_fn fill, void *user) {
    struct commit last;
    int missing = -1;
    zero_status status = read_last(state, &last, NULL);
    if (!status) status = agree_last(state, &last, &missing);
    if (status) return status;
    if (missing >= 0)
        return refuse(ZERO_E_IO,
                      "zero_engine_recover: the files of rank %d are missing from nvme_path, and those of "
                      "other ranks are there; load a checkpoint",
                      missing);
    if (!last.epoch)
        return refuse(ZERO_E_IO,
                      "zero_engine_recover: nvme_path has no whole step of this model, optimizer, stage and "
                      "number of ranks; begin anew (zero_engine_fill), or load a checkpoint");
    status = fill_frozen(state, fill, user);
    return status ? status : restore(state, &last);
}
