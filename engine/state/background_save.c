#include "engine/state/background_save.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "engine/base/system/thread.h"
#include "engine/state/save.h"

enum file_state { NOTHING, WRITING, WRITTEN, FAILED }; /* of this rank's file */

struct background_save {
    struct save save;
    struct storage_staging staging;
    pthread_t thread;
    bool running;     /* there is a thread to join */
    bool publishing;  /* all files are durable: only rank 0 has work left */
    atomic_int state; /* enum file_state */
    atomic_bool cancelled;
    atomic_uchar *go;         /* per region: 1 once it is read, or has nothing to read */
    struct rank_report *said; /* the reports of all ranks, for the manifest */
    struct zero_error error;  /* owned by the thread; by the host once the thread is joined */
};

/* ---- the thread ---- */

static void let_go(struct background_save *s, uint32_t region) {
    atomic_store_explicit(&s->go[region], 1, memory_order_release);
}

/* The chunk in the slot is about to be updated. */
static void forget_chunk(struct state *state) {
    fair_lock_take(&state->ranks->lock);
    executor_chunk_forget(state->run->executor);
    fair_lock_give(&state->ranks->lock);
}

static bool ends_region(const struct save *s, const struct piece *piece, uint64_t end) {
    if (end < piece->first + piece->count) return false;
    return piece + 1 == s->piece + s->pieces || save_region(s, piece + 1) != save_region(s, piece);
}

static zero_status copied(void *user, const struct piece *piece, uint64_t end, struct zero_error *error) {
    struct background_save *s = user;
    if (ends_region(&s->save, piece, end)) {
        forget_chunk(s->save.state);
        let_go(s, save_region(&s->save, piece));
    }
    if (!atomic_load(&s->cancelled)) return ZERO_OK;
    return error_set(error, ZERO_E_IO, "%s: the engine was destroyed before the checkpoint was complete",
                     s->save.root);
}

static void *write_file(void *argument) {
    struct background_save *s = argument;
    struct state *state = s->save.state;
    zero_status status = save_write(&s->save, &s->error);
    forget_chunk(state);
    for (uint32_t i = 0; i < state->blueprint->policy.regions; i++) let_go(s, i);
    atomic_store(&s->state, status ? FAILED : WRITTEN);
    return NULL;
}

static void *publish(void *argument) {
    struct background_save *s = argument;
    save_publish(&s->save, &s->error);
    return NULL;
}

/* Where no thread starts, the host does the work now. */
static void start(struct background_save *s, void *(*work)(void *)) {
    s->running = thread_start(&s->thread, work, s) == 0;
    if (!s->running) work(s);
}

static void join(struct background_save *s) {
    if (s->running) pthread_join(s->thread, NULL);
    s->running = false;
}

/* ---- life ---- */

static uint8_t *memory(const struct state *state) {
    struct tier *tier = state->run->tier[TIER_CPU];
    return (uint8_t *)tier->ops->address(tier) + state->blueprint->plan.row_offset[MEMORY_CHECKPOINT];
}

static void hold(struct state *state, const atomic_uchar *go) {
    fair_lock_take(&state->ranks->lock);
    executor_hold(state->run->executor, go);
    fair_lock_give(&state->ranks->lock);
}

static void release(struct state *state) {
    struct background_save *s = state->saving;
    hold(state, NULL);
    state->saving = NULL;
    save_free(&s->save);
    free(s->go);
    free(s->said);
    free(s);
}

/* Staging first: it is a page's multiple, as the drive wants it. */
static bool open_save(struct state *state, const struct save *save, struct background_save *s) {
    *s = (struct background_save){.save = *save};
    s->staging = (struct storage_staging){.memory = memory(state),
                                          .bytes = state->blueprint->terms.checkpoint_bytes - BLOCK_BYTES};
    s->save.view = &state->background;
    s->save.block = (float *)(void *)(memory(state) + s->staging.bytes);
    s->save.staging = &s->staging;
    s->save.copied = copied;
    s->save.user = s;
    s->go = calloc(state->blueprint->policy.regions, sizeof *s->go);
    s->said = calloc(state->ranks->size, sizeof *s->said);
    error_clear(&s->error);
    atomic_init(&s->state, WRITING);
    atomic_init(&s->cancelled, false);
    return s->go && s->said;
}

/* Regions of which this rank saves nothing are free at once. */
static void hold_regions(struct background_save *s) {
    struct state *state = s->save.state;
    for (uint32_t i = 0; i < state->blueprint->policy.regions; i++) atomic_init(&s->go[i], 1);
    for (uint32_t i = 0; i < s->save.pieces; i++)
        atomic_init(&s->go[save_region(&s->save, &s->save.piece[i])], 0);
    hold(state, s->go);
}

static zero_status take_over(struct state *state, struct save *save) {
    struct zero_error error = ERROR_NONE;
    struct background_save *s = malloc(sizeof *s);
    if (!s || !open_save(state, save, s))
        error_set(&error, ZERO_E_MEMORY, "no memory for a save in the background");
    zero_status status = ranks_agree(state->ranks, &error, save->word, "a checkpoint", &save->all);
    if (status) {
        if (s) free(s->go), free(s->said);
        free(s);
        return status;
    }
    state->saving = s;
    hold_regions(s);
    start(s, write_file);
    return ZERO_OK;
}

zero_status background_save_begin(struct state *state, struct storage *storage, const char *dir) {
    struct save save;
    zero_status status = save_begin(&save, state, storage, dir);
    if (!status) status = take_over(state, &save);
    if (status) save_end(&save, status);
    return status;
}

/* The thread's last error is the failure on all ranks. */
static zero_status conclude(struct state *state, zero_status status) {
    error_clear(&state->saved);
    if (status) {
        error_set(&state->saved, status, "%s", zero_last_error());
        log_line(&state->ranks->log, ZERO_LOG_WARN, "the checkpoint of step %" PRIu64 " was not saved: %s",
                 state->saving->save.manifest.step, state->saved.message);
        save_abandon(&state->saving->save);
    }
    release(state);
    return ranks_check(state->ranks);
}

zero_status background_save_finish(struct state *state) {
    struct background_save *s = state->saving;
    const struct rank_report *all;
    if (!s) return ZERO_OK;
    zero_status status = ranks_meet(state->ranks, "a checkpoint");
    join(s);
    if (!status && !s->publishing) {
        status = ranks_agree_patiently(state->ranks, &s->error, s->save.word, "a checkpoint", &s->save.all);
        if (!status) save_publish(&s->save, &s->error);
    }
    if (!status) status = ranks_agree_patiently(state->ranks, &s->error, s->save.word, "a checkpoint", &all);
    return conclude(state, status);
}

void background_save_drop(struct state *state) {
    if (!state->saving) return;
    atomic_store(&state->saving->cancelled, true);
    join(state->saving);
    release(state);
}

/* ---- in a step ---- */

void background_save_report(const struct state *state, struct save_report *out) {
    const struct background_save *s = state->saving;
    *out = (struct save_report){.state = s ? (uint64_t)atomic_load(&s->state) : NOTHING};
    if (out->state == WRITTEN) out->bytes = s->save.word[0], out->checksum = s->save.word[1];
}

zero_status background_save_hear(struct state *state, const struct agreement *all) {
    struct background_save *s = state->saving;
    bool failed = false;
    if (!s || s->publishing) return ZERO_OK;
    for (uint32_t r = 0; r < state->ranks->size; r++) {
        if (all[r].save.state == WRITING) return ZERO_OK;
        failed |= all[r].save.state == FAILED;
        s->said[r] = (struct rank_report){.word = {all[r].save.bytes, all[r].save.checksum}};
    }
    join(s);
    if (failed)
        return conclude(state,
                        ranks_agree(state->ranks, &s->error, s->save.word, "a checkpoint", &s->save.all));
    s->save.all = s->said;
    s->publishing = true;
    if (!state->ranks->rank) start(s, publish);
    return ZERO_OK;
}
