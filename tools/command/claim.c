#include "tools/command/claim.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "tools/command/earlier.h"
#include "tools/command/progress.h"
#include "tools/command/run_file.h"
#include "tools/command/share.h"

enum { ID_SHOWN = 12 };

static zero_status engine_failed(zero_status status, struct zero_error *error) {
    return status == ZERO_OK ? ZERO_OK : error_set(error, status, "%s", zero_last_error());
}

struct found {
    struct claim *claim;
    struct identity of;
    uint64_t step;
    char path[300];  /* where the shadow is */
    char title[500]; /* "run 0123456789ab (begun ..., in ...)" */
};

static void describe(struct found *f) {
    const struct config_paths *paths = config_drive_paths(&f->claim->job->config);
    const char *path = paths->count ? paths->items[0] : "nvme_path";
    snprintf(f->path, sizeof f->path, "%.*s%s", utf8_fit(path, 250), path, paths->count > 1 ? ", ..." : "");
    if (!*f->of.id)
        snprintf(f->title, sizeof f->title, "a run that left no id");
    else
        snprintf(f->title, sizeof f->title, "run %.*s (begun %s%s%s)", ID_SHOWN, f->of.id, f->of.begun,
                 *f->of.directory ? ", in " : "", f->of.directory);
}

static bool is_of(const struct identity *a, const struct identity *b) {
    return *a->id && strcmp(a->id, b->id) == 0;
}

/* True if the shadow belongs to the run of this directory. A copy of a run's directory has the same id; then only the
 * directory that the shadow names owns the shadow. */
static bool is_own(const struct found *f) {
    struct identity there;
    char *own = NULL;
    if (!is_of(&f->of, &f->claim->previous)) return false;
    identity_read(f->of.directory, &there);
    bool copied = *f->of.directory && is_of(&f->of, &there) && (own = realpath(f->claim->job->run, NULL)) &&
                  strcmp(own, f->of.directory) != 0;
    free(own);
    return !copied;
}

/* ---- continuing the earlier run ---- */

static zero_status check_name(const struct found *f, const char *name, struct zero_error *error) {
    if (strcmp(name, "any") == 0 || (*f->of.id && strncmp(f->of.id, name, strlen(name)) == 0)) return ZERO_OK;
    return error_set(error, ZERO_E_ARGUMENT,
                     "the shadow under %s belongs to %s, not to run %s: name that one to go on "
                     "with it, or another nvme_path",
                     f->path, f->title, name);
}

static zero_status check_recovery(const struct found *f, struct zero_error *error) {
    const struct claim *c = f->claim;
    char differences[400];
    if (c->job->recover_id) return check_name(f, c->job->recover_id, error);
    if (!*f->of.id)
        return error_set(error, ZERO_E_ARGUMENT,
                         "the shadow under %s does not say which run it belongs to: if it is this one, "
                         "recover it with --recover any",
                         f->path);
    bool differs = identity_differs(&f->of, &c->own, &c->job->config, differences, sizeof differences);
    bool same = is_own(f);
    if (same && !differs) return ZERO_OK;
    if (same)
        return error_set(error, ZERO_E_ARGUMENT,
                         "the shadow under %s was made with other settings than this configuration: %s; use "
                         "the settings it had, or go on anyway with --recover %.*s",
                         f->path, differences, ID_SHOWN, f->of.id);
    return error_set(
        error, ZERO_E_ARGUMENT,
        "the shadow under %s belongs to another run (id %.*s, begun %s%s%s)%s%s: give that run's --run "
        "DIR, or name it with --recover %.*s",
        f->path, ID_SHOWN, f->of.id, f->of.begun, *f->of.directory ? ", in " : "", f->of.directory,
        differs ? ": " : "", differences, ID_SHOWN, f->of.id);
}

/* A run that goes on by --continue must keep its settings. */
static zero_status check_same(const struct claim *c, const struct identity *earlier,
                              struct zero_error *error) {
    char differences[400];
    if (!c->job->again || !*earlier->id ||
        !identity_differs(earlier, &c->own, &c->job->config, differences, sizeof differences))
        return ZERO_OK;
    return error_set(
        error, ZERO_E_ARGUMENT,
        "%s was trained with other settings than this configuration: %s; use the settings it had (a batch of "
        "the same size on any number of ranks: give train_batch_size), or change them with --resume",
        c->job->run, differences);
}

/* ---- overwriting the shadow ---- */

/* Prefers the run's directory, if it still exists, to the shadow: the directory also says whether the last checkpoint
 * was saved. */
static bool has_ended(const struct found *f) {
    struct identity there;
    identity_read(f->of.directory, &there);
    return *f->of.directory && is_of(&f->of, &there) ? there.ended : f->of.ended;
}

static void tell(const struct found *f, const char *why) {
    if (!f->claim->speaks || f->claim->job->quiet) return;
    progress_line("shadow    step %" PRIu64 " of %s is written over under %s: %s", f->step, f->title, f->path,
                  why);
}

static zero_status check_overwriting(const struct found *f, struct zero_error *error) {
    const struct claim *c = f->claim;
    const char *why = c->job->discard_shadow      ? "--discard-shadow"
                      : is_own(f)                 ? "this directory's own run begins anew"
                      : *f->of.id && has_ended(f) ? "that run has ended"
                                                  : NULL;
    bool goes_on = c->way == CLAIM_RESUME && is_own(f);
    zero_status status = goes_on ? check_same(c, &f->of, error) : ZERO_OK;
    if (status) return status;
    if (why && goes_on) why = "this run goes on from a checkpoint";
    if (why) return tell(f, why), engine_failed(zero_engine_discard_shadow(c->engine), error);
    if (!f->step) /* its commit cannot be read */
        return error_set(
            error, ZERO_E_ARGUMENT,
            "%s; keep it and give this run another nvme_path, or discard it with --discard-shadow",
            zero_engine_shadow_text(c->engine));
    return error_set(error, ZERO_E_ARGUMENT,
                     "the shadow under %s holds step %" PRIu64
                     " of %s, which has not ended: go on with that run (--run DIR --recover), keep it and "
                     "give this run another nvme_path, or discard it with --discard-shadow",
                     f->path, f->step, f->title);
}

/* ---- interface ---- */

/* Copies from rank 0 to all ranks the fields that only rank 0 knows. identity_describe sets the others on each rank. */
static zero_status share(zero_engine *engine, struct identity *identity, struct zero_error *error) {
    zero_status status = share_text(engine, identity->id, sizeof identity->id);
    if (status == ZERO_OK) status = share_text(engine, identity->begun, sizeof identity->begun);
    if (status == ZERO_OK) status = share_text(engine, identity->directory, sizeof identity->directory);
    return engine_failed(status, error);
}

/* The engine's own sentence says why nothing can be recovered. */
static zero_status check_found(const struct found *f, zero_shadow kind, struct zero_error *error) {
    bool readable = kind != ZERO_SHADOW_NONE && kind != ZERO_SHADOW_DAMAGED;
    bool kept = kind == ZERO_SHADOW_NONE || kind == ZERO_SHADOW_OTHER_RANKS; /* in files of its own */
    if (f->claim->way == CLAIM_RECOVER) return readable ? check_recovery(f, error) : ZERO_OK;
    return kept ? ZERO_OK : check_overwriting(f, error);
}

static void tell_left(const struct found *f, const struct earlier *last, bool goes_on) {
    char from[80] = "begins anew, because it has no checkpoint";
    if (f->claim->job->quiet) return;
    if (goes_on) snprintf(from, sizeof from, "goes on from the checkpoint of step %" PRIu64, last->step);
    progress_line("shadow    step %" PRIu64
                  " of this run stays under %s, because another number of ranks made "
                  "it: the run %s",
                  f->step, f->path, from);
}

/* Refuses, and overwrites nothing: the drive may only be missing, or a setting may differ. */
static zero_status refuse_loss(const struct found *f, struct zero_error *error) {
    return error_set(
        error, ZERO_E_ARGUMENT,
        "--continue: the shadow under %s holds step %" PRIu64
        " of this run, later than its latest checkpoint, and the run cannot go on from it: %s; mend that, "
        "or give the shadow up with --discard-shadow",
        f->path, f->step, zero_engine_shadow_text(f->claim->engine));
}

/* The result that rank 0 sends to all ranks, if the job asks for the latest checkpoint. */
enum { FAILS, RESUMES, RECOVERS, LOSES, FINDINGS };

/* Handles a run that began anew over another run, and saved nothing before it was killed. */
static zero_status refuse_other(const struct claim *c, const struct earlier *last, struct zero_error *error) {
    return error_set(
        error, ZERO_E_ARGUMENT,
        "the latest checkpoint in %s, of step %" PRIu64
        ", is of run %.*s, over which run %.*s began anew, which has saved nothing yet: go on with the "
        "former by --resume %" PRIu64 ", or begin the latter again by --overwrite",
        c->job->run, last->step, ID_SHOWN, last->run, ID_SHOWN, c->previous.id, last->step);
}

static void tell_other(const struct claim *c, const struct earlier *last) {
    fprintf(stderr,
            "zero train: the checkpoint of step %" PRIu64
            " is of run %.*s, over which this one began anew: this one has none yet, and begins again\n",
            last->step, ID_SHOWN, last->run);
}

static void look(const struct found *f, zero_shadow kind, double told[FINDINGS], struct zero_error *error) {
    const struct job *job = f->claim->job;
    const char *own = f->claim->previous.id;
    char differences[400];
    struct earlier last;
    zero_status status = earlier_find(job->run, &last, error);
    bool other = *last.run && *own && strcmp(last.run, own) != 0;
    if (other && !job->again) status = refuse_other(f->claim, &last, error);
    bool later = !status && job->again && !job->discard_shadow && is_own(f) && (other || f->step > last.step);
    told[FAILS] = status != ZERO_OK;
    told[RESUMES] = last.saved && !other;
    told[RECOVERS] = later && kind == ZERO_SHADOW_USABLE;
    told[LOSES] = later && (kind == ZERO_SHADOW_OTHER || kind == ZERO_SHADOW_DAMAGED);
    if (later && kind == ZERO_SHADOW_OTHER_RANKS) {
        tell_left(f, &last, told[RESUMES] > 0);
        f->claim->same_run =
            !identity_differs(&f->of, &f->claim->own, &job->config, differences, sizeof differences);
    }
    if (other && !status && !told[RECOVERS] && !told[LOSES]) tell_other(f->claim, &last);
}

/* By --continue: the shadow of this run, if its step is later than that of the latest checkpoint. */
static zero_status choose_way(struct found *f, zero_shadow kind, struct zero_error *error) {
    struct claim *c = f->claim;
    const struct job *job = c->job;
    double told[FINDINGS] = {0};
    c->way = job->recover ? CLAIM_RECOVER : job->resume ? CLAIM_RESUME : CLAIM_ANEW;
    if (!job->again && (!job->resume || job->resume_step)) return ZERO_OK;
    if (c->speaks) look(f, kind, told, error);
    zero_status status = zero_engine_sum(c->engine, told, FINDINGS);
    if (status) return engine_failed(status, error);
    if (told[FAILS] > 0) return error_set(error, ZERO_E_PEER, "%s", ""); /* rank 0 has the reason */
    if (told[LOSES] > 0) return refuse_loss(f, error);
    if (job->again)
        c->way = told[RECOVERS] > 0 ? CLAIM_RECOVER : told[RESUMES] > 0 ? CLAIM_RESUME : CLAIM_ANEW;
    return ZERO_OK;
}

zero_status claim_directory(const struct job *job, const char *directory, bool is_new,
                            struct zero_error *error) {
    zero_status status = identity_check(directory, error);
    if (!status && job->chosen) status = run_file_check_config(directory, error);
    if (status || job->resume || job->recover || job->overwrite || (job->again && !is_new)) return status;
    return earlier_check(directory, job->config.nvme_shadow, error);
}

zero_status claim_check(struct claim *claim, struct zero_error *error) {
    const struct job *job = claim->job;
    struct found f = {.claim = claim};
    identity_describe(&claim->own, &job->config, job->data_contents, claim->products);
    if (claim->speaks && !job->run_is_new) identity_read(job->run, &claim->previous);
    zero_status status = share(claim->engine, &claim->previous, error);
    if (status != ZERO_OK) return status;
    zero_shadow kind = zero_engine_shadow(claim->engine, &f.step);
    identity_noted(claim->engine, zero_engine_shadow_note, &f.of);
    describe(&f);
    status = choose_way(&f, kind, error);
    return status ? status : check_found(&f, kind, error);
}

zero_status claim_same(const struct claim *claim, struct zero_error *error) {
    struct identity noted;
    identity_noted(claim->engine, zero_engine_note, &noted);
    return claim->way == CLAIM_RESUME ? check_same(claim, &noted, error) : ZERO_OK;
}

zero_status claim_begin(struct claim *claim, const char *directory, struct zero_error *error) {
    struct identity noted, *own = &claim->own;
    identity_noted(claim->engine, zero_engine_note, &noted);
    bool goes_on = claim->way != CLAIM_ANEW || claim->same_run;
    bool kept = goes_on && claim->way != CLAIM_RECOVER && *claim->previous.id &&
                !*noted.id; /* an imported checkpoint has no run */
    const struct identity *from = kept ? &claim->previous : &noted;
    identity_begin(own);
    if (goes_on && *from->id) strcpy(own->id, from->id), strcpy(own->begun, from->begun);
    char *path = realpath(directory, NULL);
    if (path && strlen(path) < sizeof own->directory && utf8_is(path)) strcpy(own->directory, path);
    free(path);
    return identity_write(directory, own, error);
}

zero_status claim_note(struct claim *claim, struct zero_error *error) {
    zero_status status = share(claim->engine, &claim->own, error);
    return status == ZERO_OK ? engine_failed(identity_note(claim->engine, &claim->own), error) : status;
}

void claim_end(struct claim *claim, const char *directory) {
    struct zero_error ignored;
    error_clear(&ignored);
    claim->own.ended = true;
    if (claim->speaks) identity_write(directory, &claim->own, &ignored);
}
