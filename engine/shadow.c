#include "engine/shadow.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/hash.h"
#include "engine/held.h"
#include "engine/note.h"
#include "engine/settings.h"

/* The page that commits an epoch. */
struct commit {
    uint64_t magic, layout, epoch, steps, skipped;
    struct loss_scale scale;
    double lr[GROUP_MAX];
    int64_t schedule_iteration;
    char notes[NOTES_KEPT_BYTES];
    uint64_t checksum; /* of all before */
};

static const uint64_t commit_magic = 0x3274696d6d6f637aULL; /* "zcommit2" */

_Static_assert(sizeof(struct commit) <= CHUNK_ALIGN_BYTES, "a page holds it");

static uint64_t checksum_of(const struct commit *c) {
    return hash_bytes(HASH_START, c, offsetof(struct commit, checksum));
}

/* What must be alike for the chunks to mean the same. */
static uint64_t layout_of(const zero_engine *e) {
    const struct swap *swap = &e->plan.swap;
    uint64_t parts[] = {model_layout_hash(&e->model),
                        e->size,
                        e->rank,
                        e->policy.mesh[AXIS_SHARD],
                        e->config.stage,
                        swap->arrays,
                        swap->element_bytes,
                        (uint64_t)swap->param_dtype,
                        swap->chunks,
                        swap->chunk_elements,
                        swap->record_row_bytes,
                        e->groups};
    uint64_t hash = hash_bytes(HASH_START, parts, sizeof parts);
    return hash_string(hash, e->optimizer->name);
}

static bool stored(const struct executor *executor, struct point point) { return executor_stored(executor); }

zero_status shadow_sync(zero_engine *e) {
    if (!e->config.nvme_shadow || !e->uncommitted) return ZERO_OK;
    zero_status status = engine_drive(e, stored, (struct point){0});
    if (status) return status;
    struct zero_error error;
    error_clear(&error);
    turn_take(&e->lock);
    status = e->tier[TIER_NVME]->ops->sync(e->tier[TIER_NVME], &error);
    turn_give(&e->lock);
    return status ? engine_fail(e, &error) : ZERO_OK;
}

zero_status shadow_commit(zero_engine *e) {
    if (!e->config.nvme_shadow || !e->uncommitted) return ZERO_OK;
    uint8_t page[CHUNK_ALIGN_BYTES] = {0};
    struct commit c;
    memset(&c, 0, sizeof c);
    c.magic = commit_magic, c.layout = layout_of(e), c.epoch = executor_epoch(e->executor);
    c.steps = e->steps, c.skipped = e->skipped, c.scale = e->loss_scale;
    for (uint32_t g = 0; g < e->groups; g++) c.lr[g] = e->params[g].lr;
    c.schedule_iteration = settings_iteration(e);
    notes_pack(&e->notes, c.notes);
    c.checksum = checksum_of(&c);
    memcpy(page, &c, sizeof c);
    e->uncommitted = false;
    return ENGINE_EVENT(e, executor_commit(e->executor, page));
}

zero_status shadow_forget(zero_engine *e) {
    if (!e->config.nvme_shadow) return ZERO_OK;
    e->uncommitted = false;
    return ENGINE_EVENT(e, executor_forget_commits(e->executor));
}

/* ---- recovery ---- */

/* This rank's last commit; epoch 0: none that fits. `other`: the last one of another layout; NULL: nobody asks. */
static zero_status read_last(zero_engine *e, struct commit *out, struct commit *other) {
    uint8_t page[CHUNK_ALIGN_BYTES];
    memset(out, 0, sizeof *out);
    if (other) memset(other, 0, sizeof *other);
    for (uint32_t which = 0; which < 2 && e->tier[TIER_NVME]->found; which++) {
        struct commit c;
        zero_status status = ENGINE_EVENT(e, executor_read_commit(e->executor, which, page));
        if (status) return status;
        memcpy(&c, page, sizeof c);
        if (c.magic != commit_magic || c.checksum != checksum_of(&c)) continue;
        struct commit *last = c.layout == layout_of(e) ? out : other;
        if (last && c.epoch > last->epoch) *last = c;
    }
    return ZERO_OK;
}

struct finding {
    struct commit last;
    uint64_t there; /* the rank's files were */
};

/* The latest of all ranks': a rank commits only what every rank had synced. *out_missing: a rank without its files. */
static zero_status agree_last(zero_engine *e, struct commit *commit, int *out_missing) {
    struct finding *all = kept_message(e->kept, (e->size + 1) * sizeof *all);
    struct zero_error error;
    error_clear(&error);
    if (!all) {
        error_set(&error, ZERO_E_MEMORY, "no memory for the commits of %" PRIu32 " ranks", e->size);
        return engine_fail(e, &error);
    }
    all[0] = (struct finding){*commit, e->tier[TIER_NVME]->found};
    struct comm_call call = comm_rows(all, sizeof *all, "the last step that is whole");
    zero_status status = engine_call(e, &call);
    for (uint32_t r = 1; r <= e->size && !status; r++)
        if (all[r].last.epoch > commit->epoch) *commit = all[r].last;
    for (uint32_t r = 1; r <= e->size && !status && commit->epoch; r++)
        if (!all[r].there && *out_missing < 0) *out_missing = (int)r - 1;
    return status;
}

static zero_status take_notes(zero_engine *e, const struct commit *c, struct manifest_entries *out) {
    if (notes_unpack(c->notes, out)) return ZERO_OK;
    struct zero_error error;
    error_clear(&error);
    error_set(&error, ZERO_E_MEMORY, "no memory for the notes");
    return engine_fail(e, &error);
}

/* For the host, who decides what becomes of it. */
static zero_status remember(zero_engine *e, const struct commit *c) {
    e->shadow_found = c->epoch > 0;
    e->shadow_steps = c->steps;
    return c->epoch ? take_notes(e, c, &e->shadow_notes) : ZERO_OK;
}

zero_status shadow_open(zero_engine *e) {
    struct commit last, other;
    int missing = -1;
    if (!e->config.nvme_shadow) return ZERO_OK;
    zero_status status = read_last(e, &last, &other);
    if (!status) status = agree_last(e, &last, &missing);
    if (!status) executor_begin_epoch(e->executor, last.epoch + 1);
    return status ? status : remember(e, last.epoch ? &last : &other);
}

int zero_engine_shadow(const zero_engine *e, uint64_t *out_step) {
    if (out_step) *out_step = e->shadow_steps;
    return e->shadow_found;
}

const char *zero_engine_shadow_note(const zero_engine *e, const char *key) {
    for (uint32_t i = 0; key && i < e->shadow_notes.count; i++)
        if (strcmp(e->shadow_notes.entry[i].key, key) == 0) return e->shadow_notes.entry[i].value;
    return NULL;
}

static zero_status restore(zero_engine *e, const struct commit *c) {
    zero_status status = ENGINE_EVENT(e, executor_resume(e->executor, c->epoch));
    e->steps = c->steps, e->skipped = c->skipped;
    loss_scale_resume(&e->loss_scale, c->scale.value, c->scale.allowed, c->scale.stable);
    for (uint32_t g = 0; g < e->groups; g++) e->params[g].lr = c->lr[g];
    settings_resume(e, c->schedule_iteration);
    if (!status) status = take_notes(e, c, &e->notes);
    for (uint32_t k = 0; k < e->policy.refreshes && !status; k++)
        status = held_restore(e, e->policy.refresh[k]);
    return status;
}

zero_status zero_engine_recover(zero_engine *e, zero_fill_fn fill, void *user, uint64_t *out_step) {
    zero_status status = engine_check_between(e, "zero_engine_recover");
    if (status) return status;
    if (!e->config.nvme_shadow)
        return refuse(ZERO_E_ARGUMENT,
                      "zero_engine_recover: only \"nvme\": {\"shadow\": true} keeps what it needs");
    if (e->filled || !fill)
        return refuse(e->filled ? ZERO_E_ORDER : ZERO_E_ARGUMENT,
                      "zero_engine_recover: call it in place of zero_engine_fill, with its function");
    struct commit last;
    int missing = -1;
    status = read_last(e, &last, NULL);
    if (!status) status = agree_last(e, &last, &missing);
    if (status) return status;
    if (missing >= 0)
        return refuse(ZERO_E_IO,
                      "zero_engine_recover: the files of rank %d are gone from nvme_path, those of others "
                      "are there; load a "
                      "checkpoint",
                      missing);
    if (!last.epoch)
        return refuse(
            ZERO_E_IO,
            "zero_engine_recover: no whole step of this model, optimizer, stage and number of ranks "
            "is in nvme_path; begin anew (zero_engine_fill), or load a checkpoint");
    status = access_fill_frozen(e, fill, user);
    if (!status) status = restore(e, &last);
    if (status) return status;
    if (out_step) *out_step = e->steps;
    return access_filled(e);
}
