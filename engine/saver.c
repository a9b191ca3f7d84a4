#include "engine/saver.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/thread.h"
#include "engine/save.h"

enum state { NOTHING, WRITING, WRITTEN, FAILED }; /* of this rank's file */

struct saver {
    struct save save;
    struct storage_staging staging;
    pthread_t thread;
    bool running;     /* there is a thread to join */
    bool publishing;  /* all files are durable: the rest is rank 0's */
    atomic_int state; /* enum state */
    atomic_bool cancelled;
    atomic_uchar *go;        /* per region: read, or nothing to read */
    struct said *said;       /* of all ranks, for the manifest */
    struct zero_error error; /* the thread's; of the host's once that is joined */
};

uint64_t saver_bytes(const zero_engine *e) {
    return e->config.checkpoint_async
               ? BLOCK_BYTES + e->config.checkpoint_async_bytes / BLOCK_BYTES * BLOCK_BYTES
               : 0;
}

static _Thread_local const zero_engine *mine; /* of a saver's thread: its engine */

bool saver_is_me(const zero_engine *e) { return mine == e; }

/* ---- the thread ---- */

static void let_go(struct saver *s, uint32_t region) {
    atomic_store_explicit(&s->go[region], 1, memory_order_release);
}

/* What the slot holds is about to be updated. */
static void forget_chunk(zero_engine *e) {
    turn_take(&e->lock);
    executor_chunk_forget(e->executor);
    turn_give(&e->lock);
}

static bool ends_region(const struct save *s, const struct piece *piece, uint64_t end) {
    if (end < piece->first + piece->count) return false;
    return piece + 1 == s->piece + s->pieces || save_region(s, piece + 1) != save_region(s, piece);
}

static zero_status copied(void *user, const struct piece *piece, uint64_t end, struct zero_error *error) {
    struct saver *s = user;
    if (ends_region(&s->save, piece, end)) {
        forget_chunk(s->save.e);
        let_go(s, save_region(&s->save, piece));
    }
    if (!atomic_load(&s->cancelled)) return ZERO_OK;
    return error_set(error, ZERO_E_IO, "%s: the engine was destroyed before the checkpoint was complete",
                     s->save.root);
}

static void *write_file(void *argument) {
    struct saver *s = argument;
    zero_engine *e = s->save.e;
    mine = e;
    zero_status status = save_write(&s->save, &s->error);
    forget_chunk(e);
    for (uint32_t i = 0; i < e->policy.regions; i++) let_go(s, i);
    atomic_store(&s->state, status ? FAILED : WRITTEN);
    mine = NULL;
    return NULL;
}

static void *publish(void *argument) {
    struct saver *s = argument;
    save_publish(&s->save, &s->error);
    return NULL;
}

/* Without a thread the host does it now. */
static void start(struct saver *s, void *(*work)(void *)) {
    s->running = thread_start(&s->thread, work, s) == 0;
    if (!s->running) work(s);
}

static void join(struct saver *s) {
    if (s->running) pthread_join(s->thread, NULL);
    s->running = false;
}

/* ---- life ---- */

static uint8_t *memory(const zero_engine *e) {
    struct tier *tier = e->tier[TIER_CPU];
    return (uint8_t *)tier->ops->address(tier) + e->plan.row_offset[MEMORY_CHECKPOINT];
}

static void hold(zero_engine *e, const atomic_uchar *go) {
    turn_take(&e->lock);
    executor_hold(e->executor, go);
    turn_give(&e->lock);
}

static void release(zero_engine *e) {
    struct saver *s = e->saver;
    hold(e, NULL);
    e->saver = NULL;
    save_free(&s->save);
    free(s->go);
    free(s->said);
    free(s);
}

/* Staging first: it is a page's multiple, as the drive wants it. */
static bool open_saver(zero_engine *e, const struct save *save, struct saver *s) {
    *s = (struct saver){.save = *save};
    s->staging = (struct storage_staging){.memory = memory(e), .bytes = saver_bytes(e) - BLOCK_BYTES};
    s->save.block = (float *)(void *)(memory(e) + s->staging.bytes);
    s->save.staging = &s->staging;
    s->save.copied = copied;
    s->save.user = s;
    s->go = calloc(e->policy.regions, sizeof *s->go);
    s->said = calloc(e->size, sizeof *s->said);
    error_clear(&s->error);
    atomic_init(&s->state, WRITING);
    atomic_init(&s->cancelled, false);
    return s->go && s->said;
}

/* Regions of which this rank saves nothing are free at once. */
static void hold_regions(struct saver *s) {
    zero_engine *e = s->save.e;
    for (uint32_t i = 0; i < e->policy.regions; i++) atomic_init(&s->go[i], 1);
    for (uint32_t i = 0; i < s->save.pieces; i++)
        atomic_init(&s->go[save_region(&s->save, &s->save.piece[i])], 0);
    hold(e, s->go);
}

zero_status saver_begin(zero_engine *e, struct save *save) {
    struct zero_error error;
    struct saver *s = malloc(sizeof *s);
    error_clear(&error);
    if (!s || !open_saver(e, save, s))
        error_set(&error, ZERO_E_MEMORY, "no memory for a save in the background");
    zero_status status = engine_agree_said(e, &error, save->word, "a checkpoint", &save->all);
    if (status) {
        if (s) free(s->go), free(s->said);
        free(s);
        return status;
    }
    e->saver = s;
    hold_regions(s);
    start(s, write_file);
    return ZERO_OK;
}

/* What went wrong is in the thread's last error, on all ranks. */
static zero_status conclude(zero_engine *e, zero_status status) {
    error_clear(&e->saved);
    if (status) {
        error_set(&e->saved, status, "%s", zero_last_error());
        log_line(&e->log, ZERO_LOG_WARN, "the checkpoint of step %" PRIu64 " was not saved: %s",
                 e->saver->save.manifest.step, e->saved.message);
        save_abandon(&e->saver->save);
    }
    release(e);
    return engine_check(e);
}

zero_status saver_finish(zero_engine *e) {
    struct saver *s = e->saver;
    const struct said *all;
    zero_status status = ZERO_OK;
    if (!s) return ZERO_OK;
    join(s);
    if (!s->publishing) {
        status = engine_agree_said(e, &s->error, s->save.word, "a checkpoint", &s->save.all);
        if (!status) save_publish(&s->save, &s->error);
    }
    if (!status) status = engine_agree_said(e, &s->error, s->save.word, "a checkpoint", &all);
    return conclude(e, status);
}

void saver_drop(zero_engine *e) {
    if (!e->saver) return;
    atomic_store(&e->saver->cancelled, true);
    join(e->saver);
    release(e);
}

/* ---- in a step ---- */

void saver_say(const zero_engine *e, struct save_report *out) {
    const struct saver *s = e->saver;
    *out = (struct save_report){.state = s ? (uint64_t)atomic_load(&s->state) : NOTHING};
    if (out->state == WRITTEN) out->bytes = s->save.word[0], out->checksum = s->save.word[1];
}

zero_status saver_hear(zero_engine *e, const struct agreement *all) {
    struct saver *s = e->saver;
    bool failed = false;
    if (!s || s->publishing) return ZERO_OK;
    for (uint32_t r = 0; r < e->size; r++) {
        if (all[r].save.state == WRITING) return ZERO_OK;
        failed |= all[r].save.state == FAILED;
        s->said[r] = (struct said){.word = {all[r].save.bytes, all[r].save.checksum}};
    }
    join(s);
    if (failed)
        return conclude(e, engine_agree_said(e, &s->error, s->save.word, "a checkpoint", &s->save.all));
    s->save.all = s->said;
    s->publishing = true;
    if (!e->rank) start(s, publish);
    return ZERO_OK;
}

zero_status zero_engine_save_wait(zero_engine *e) {
    zero_status status = engine_check_outside(e, "zero_engine_save_wait");
    if (!status) status = saver_finish(e);
    if (status || !e->saved.code) return status;
    return refuse(e->saved.code, "%s", e->saved.message);
}
