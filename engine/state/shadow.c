#include "engine/state/shadow.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/ranks/local_ranks.h"
#include "engine/state/commit_page.h"
#include "engine/state/get_put.h"
#include "engine/state/notes.h"
#include "engine/state/step_settings.h"

/* A hash of the settings that give chunks their meaning. Runs with equal hashes can read each other's chunks. */
static uint64_t layout_of(const struct state *state) {
    const struct chunk_layout *layout = &state->blueprint->plan.layout;
    const struct chunk_format *run =
        &layout->format[false]; /* the model says which parameters are kept in fp32 */
    uint64_t parts[] = {model_layout_hash(state->model),
                        state->ranks->size,
                        state->ranks->rank,
                        state->blueprint->policy.mesh[AXIS_SHARD],
                        state->blueprint->o.config->stage,
                        run->arrays,
                        chunk_format_bytes(run),
                        (uint64_t)run->param_dtype,
                        layout->chunks,
                        layout->chunk_elements,
                        layout->record_row_bytes,
                        state->training->groups.count};
    uint64_t hash = hash_bytes(HASH_START, parts, sizeof parts);
    for (uint32_t i = 0; i < state->model->params; i++) {
        const struct model_param *p = &state->model->param[i];
        uint64_t place[] = {p->region, p->offset, p->other};
        hash = hash_bytes(hash, place, sizeof place);
    }
    char name[OPTIMIZER_NAMES_BYTES];
    if (state->blueprint->terms.precision.average) hash = hash_string(hash, "average");
    return hash_string(hash, training_optimizer_name(state->training, name));
}

void shadow_written(struct state *state) {
    if (state->blueprint->plan.terms->shadow && state->blueprint->policy.update_in_backward)
        executor_set_commits(state->run->executor, true);
}

zero_status shadow_sync(struct state *state) {
    if (!executor_commits(state->run->executor)) return ZERO_OK;
    TRY(run_wait(state->run, executor_stored));
    TRY(RUN_EVENT(state->run, executor_complete_epoch(state->run->executor)));
    struct zero_error error = ERROR_NONE;
    fair_lock_take(&state->ranks->lock);
    zero_status status = state->run->tier[TIER_NVME]->ops->sync(state->run->tier[TIER_NVME], &error);
    fair_lock_give(&state->ranks->lock);
    return status ? ranks_fail(state->ranks, &error) : ZERO_OK;
}

zero_status shadow_commit(struct state *state) {
    if (!executor_commits(state->run->executor)) return ZERO_OK;
    uint8_t page[CHUNK_ALIGN_BYTES];
    struct commit c;
    memset(&c, 0, sizeof c);
    c.layout = layout_of(state), c.epoch = executor_epoch(state->run->executor);
    c.steps = state->training->steps, c.skipped = state->training->skipped,
    c.scale = state->training->loss_scale;
    for (uint32_t g = 0; g < state->training->groups.count; g++)
        c.lr[g] = state->training->groups.params[g].lr;
    c.schedule_iteration = settings_iteration(state->training);
    c.model = model_layout_hash(state->model);
    c.stage = (uint32_t)state->blueprint->o.config->stage, c.ranks = state->ranks->size;
    char name[OPTIMIZER_NAMES_BYTES];
    snprintf(c.optimizer, sizeof c.optimizer, "%s", training_optimizer_name(state->training, name));
    notes_pack(&state->notes, c.notes);
    commit_write(&c, page);
    return RUN_EVENT(state->run, executor_commit(state->run->executor, page));
}

zero_status shadow_commit_now(struct state *state) {
    zero_status status = shadow_sync(state);
    if (!status)
        status = ranks_call(state->ranks,
                            &(struct comm_call){.kind = COMM_BARRIER, .what = "the commit of a step"});
    return status ? status : shadow_commit(state);
}

zero_status shadow_forget(struct state *state) {
    if (!state->blueprint->o.config->nvme_shadow) return ZERO_OK;
    state->shadow.guarded = false;
    return RUN_EVENT(state->run, executor_forget_commits(state->run->executor));
}

/* ---- what an earlier run left ---- */

static zero_status take_notes(struct state *state, const struct commit *c, struct manifest_entries *out) {
    if (notes_unpack(c->notes, out)) return ZERO_OK;
    struct zero_error error = ERROR_NONE;
    error_set(&error, ZERO_E_MEMORY, "no memory for the notes");
    return ranks_fail(state->ranks, &error);
}

/* The commits on this rank's drive. Epoch 0: no such commit. */
struct finding {
    struct commit usable; /* of this layout */
    struct commit other;  /* of another layout: in the files that this run writes to, */
    bool beside;          /* or, if `beside`, in those of another number of ranks */
    bool damaged;         /* a page is neither a commit nor empty */
    bool there;           /* the rank's files were there */
};

static zero_status look(struct state *state, struct finding *out) {
    const struct config *config = state->blueprint->o.config;
    uint8_t page[CHUNK_ALIGN_BYTES];
    memset(out, 0, sizeof *out);
    out->there = state->run->tier[TIER_NVME]->found;
    for (uint32_t which = 0; which < 2 && out->there; which++) {
        struct commit c;
        TRY(RUN_EVENT(state->run, executor_read_commit(state->run->executor, which, page)));
        enum commit_state found = commit_read(page, &c);
        out->damaged |= found == COMMIT_DAMAGED;
        if (found != COMMIT_WHOLE) continue;
        struct commit *last = c.layout == layout_of(state) ? &out->usable : &out->other;
        if (c.epoch > last->epoch) *last = c;
    }
    if (out->usable.epoch || out->other.epoch || out->damaged) return ZERO_OK;
    commit_search(config_drive_paths(config), state->ranks->size, false, &out->other);
    out->beside = out->other.epoch > 0;
    return ZERO_OK;
}

/* The commit that all ranks have. A rank commits only what every rank had synced, so the latest commit counts. */
struct judgement {
    zero_shadow kind;
    struct commit commit; /* epoch 0: none can be read */
    struct commit own;    /* of another layout, on this rank's drive; epoch 0: none */
    bool elsewhere;       /* this rank's is of this layout, and another rank's is not */
    int missing;          /* a rank whose files are not there, while those of others are; -1: none */
};

static void judge(const struct finding *all, uint32_t ranks, struct judgement *out) {
    bool damaged = false, differs = false;
    const struct commit *usable = NULL, *other = NULL, *beside = NULL;
    *out = (struct judgement){.kind = ZERO_SHADOW_NONE, .missing = -1};
    for (uint32_t r = 0; r < ranks; r++) {
        const struct finding *f = &all[r];
        const struct commit **last = f->beside ? &beside : &other;
        if (f->usable.epoch && (!usable || f->usable.epoch > usable->epoch)) usable = &f->usable;
        if (f->other.epoch && !*last) *last = &f->other;
        if (!f->there && out->missing < 0) out->missing = (int)r;
        differs |= !f->usable.epoch && f->other.epoch && !f->beside;
        damaged |= f->damaged;
    }
    /* Where the host cuts its model, another piece may have changed, and this one not. */
    if (differs) usable = NULL;
    const struct commit *found = usable ? usable : other ? other : damaged ? NULL : beside;
    if (!usable) out->missing = -1;
    out->kind = usable    ? out->missing < 0 ? ZERO_SHADOW_USABLE : ZERO_SHADOW_DAMAGED
                : other   ? ZERO_SHADOW_OTHER
                : damaged ? ZERO_SHADOW_DAMAGED
                : beside  ? ZERO_SHADOW_OTHER_RANKS
                          : ZERO_SHADOW_NONE;
    if (found) out->commit = *found;
}

static zero_status find(struct state *state, struct judgement *out) {
    struct zero_error error = ERROR_NONE;
    struct finding *all = outliving_message(state->ranks->outliving, (state->ranks->size + 1) * sizeof *all);
    if (!all) {
        error_set(&error, ZERO_E_MEMORY, "no memory for the commits of %" PRIu32 " ranks",
                  state->ranks->size);
        return ranks_fail(state->ranks, &error);
    }
    zero_status status = look(state, all);
    struct comm_call call = comm_rows(all, sizeof *all, "the last step that is whole");
    if (!status) status = ranks_call(state->ranks, &call);
    if (!status) judge(all + 1, state->ranks->size, out);
    const struct finding *own = &all[1 + state->ranks->rank];
    if (!status) out->own = own->other; /* another model rank's model is another */
    if (!status) out->elsewhere = out->kind == ZERO_SHADOW_OTHER && own->usable.epoch;
    return status;
}

/* "its stage is 1, and here it is 2" */
static void say_difference(const struct state *state, const struct commit *c, char *out, size_t size) {
    const struct config *config = state->blueprint->o.config;
    char name[OPTIMIZER_NAMES_BYTES];
    if (c->stage != (uint32_t)config->stage)
        snprintf(out, size, "its stage is %" PRIu32 ", and here it is %d", c->stage, (int)config->stage);
    else if (c->model != model_layout_hash(state->model))
        snprintf(out, size, "its model has other units or parameters, or other shapes or flags of them");
    else if (strcmp(c->optimizer, training_optimizer_name(state->training, name)) != 0)
        snprintf(out, size, "its optimizer is %.*s, and here it is %s", (int)sizeof c->optimizer - 1,
                 c->optimizer, training_optimizer_name(state->training, name));
    else
        snprintf(out, size, "its types, mesh, chunks or parameter groups are others, or its averages (ema)");
}

static void say(const struct state *state, const struct judgement *v, char *out, size_t size) {
    char difference[160];
    if (v->elsewhere)
        snprintf(difference, sizeof difference, "it differs on another model rank");
    else
        say_difference(state, v->own.epoch ? &v->own : &v->commit, difference, sizeof difference);
    if (v->kind == ZERO_SHADOW_NONE)
        snprintf(out, size,
                 "nvme_path keeps no whole step of an earlier run: begin anew (zero_engine_fill), or load a "
                 "checkpoint");
    else if (v->kind == ZERO_SHADOW_USABLE)
        snprintf(out, size,
                 "nvme_path keeps step %" PRIu64 " of an earlier run with this configuration: go on from it "
                 "(zero_engine_recover)",
                 v->commit.steps);
    else if (v->kind == ZERO_SHADOW_OTHER)
        snprintf(out, size,
                 "nvme_path keeps step %" PRIu64
                 " of another run: %s: go on from it with that run's configuration",
                 v->commit.steps, difference);
    else if (v->kind == ZERO_SHADOW_OTHER_RANKS)
        snprintf(out, size,
                 "nvme_path keeps step %" PRIu64 " of a run on %" PRIu32 " ranks, and here are %" PRIu32
                 ": go on from it with that many ranks, or begin anew (zero_engine_fill), which leaves it as "
                 "it is",
                 v->commit.steps, v->commit.ranks, state->ranks->size);
    else if (v->missing >= 0)
        snprintf(out, size,
                 "nvme_path keeps step %" PRIu64
                 ", and the files of rank %d are missing: name the directories that the earlier run used, or "
                 "load a checkpoint",
                 v->commit.steps, v->missing);
    else
        snprintf(out, size,
                 "nvme_path has a shadow that is damaged, or of another version of the engine: its commit "
                 "cannot be read: load a checkpoint");
}

zero_status shadow_open(struct state *state) {
    struct judgement v;
    struct shadow *shadow = &state->shadow;
    if (!state->blueprint->o.config->nvme_shadow) return ZERO_OK;
    TRY(find(state, &v));
    bool own = v.kind == ZERO_SHADOW_USABLE || v.missing >= 0;
    executor_begin_epoch(state->run->executor, own ? v.commit.epoch + 1 : 1);
    shadow->kind = v.kind;
    shadow->steps = v.commit.steps;
    shadow->guarded |= v.kind != ZERO_SHADOW_NONE && v.kind != ZERO_SHADOW_OTHER_RANKS;
    say(state, &v, shadow->text, sizeof shadow->text);
    return v.commit.epoch ? take_notes(state, &v.commit, &shadow->notes) : ZERO_OK;
}

zero_status shadow_check_overwriting(const struct state *state, const char *what) {
    const struct shadow *shadow = &state->shadow;
    if (!shadow->guarded || shadow->discarded) return ZERO_OK;
    return refuse(
        ZERO_E_ORDER,
        "%s: %s; or let this run write over it (zero_engine_discard_shadow), or name another nvme_path", what,
        shadow->text);
}

/* ---- recovery ---- */

static zero_status restore(struct state *state, const struct commit *c) {
    struct zero_error error = ERROR_NONE;
    zero_status status = RUN_EVENT(state->run, executor_resume(state->run->executor, c->epoch));
    state->training->steps = c->steps, state->training->skipped = c->skipped;
    loss_scale_resume(&state->training->loss_scale, c->scale.value, c->scale.allowed, c->scale.stable);
    for (uint32_t g = 0; g < state->training->groups.count; g++)
        state->training->groups.params[g].lr = c->lr[g];
    settings_resume(state->training, c->schedule_iteration);
    if (!status) status = take_notes(state, c, &state->notes);
    if (!status) status = stored_restore(&state->host, &error);
    return error.code ? ranks_fail(state->ranks, &error) : status;
}

zero_status shadow_recover(struct state *state, zero_fill_fn fill, void *user) {
    struct judgement v;
    if (state->shadow.kind != ZERO_SHADOW_USABLE)
        return refuse(ZERO_E_IO, "zero_engine_recover: %s", state->shadow.text);
    zero_status status = find(state, &v);
    if (!status) status = fill_frozen(state, fill, user);
    if (!status) status = restore(state, &v.commit);
    state->shadow.guarded = false;
    return status;
}
