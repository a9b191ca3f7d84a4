/* How a run begins: what the directory, its checkpoints and the drive hold, and what the request allows. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "tools/run_directory/run_directory.h"
#include "tools/text/output.h"

enum { ID_SHOWN = 12, DIFFERENCES_BYTES = 400 };

/* The shadow on the drive. */
struct shadow {
    const struct run_directory *run;
    zero_shadow kind;
    uint64_t step;
    struct identity of;
    bool own;        /* it belongs to the run of this directory */
    char path[300];  /* where it is */
    char title[500]; /* "run 0123456789ab (begun ..., in ...)" */
};

static zero_status engine_failed(zero_status status, struct zero_error *error) {
    return status == ZERO_OK ? ZERO_OK : error_set(error, status, "%s", zero_last_error());
}

static bool is_of(const struct identity *a, const struct identity *b) {
    return *a->id && strcmp(a->id, b->id) == 0;
}

/* A copy of a run's directory has the same id; then only the directory that the shadow names owns the shadow. */
static bool is_own(const struct shadow *s) {
    struct identity there;
    char *own = NULL;
    if (!is_of(&s->of, &s->run->previous)) return false;
    identity_read(s->of.directory, &there);
    bool copied = *s->of.directory && is_of(&s->of, &there) &&
                  (own = realpath(s->run->request->path, NULL)) && strcmp(own, s->of.directory) != 0;
    free(own);
    return !copied;
}

static struct shadow shadow_of(const struct run_directory *run) {
    struct shadow s = {.run = run};
    const struct config_paths *paths = config_drive_paths(run->request->config);
    const char *path = paths->count ? paths->items[0] : "nvme_path";
    s.kind = zero_engine_shadow(run->engine, &s.step);
    identity_noted(run->engine, zero_engine_shadow_note, &s.of);
    s.own = is_own(&s);
    snprintf(s.path, sizeof s.path, "%.*s%s", utf8_fit(path, 250), path, paths->count > 1 ? ", ..." : "");
    if (!*s.of.id)
        snprintf(s.title, sizeof s.title, "a run that left no id");
    else
        snprintf(s.title, sizeof s.title, "run %.*s (begun %s%s%s)", ID_SHOWN, s.of.id, s.of.begun,
                 *s.of.directory ? ", in " : "", s.of.directory);
    return s;
}

static bool differs(const struct run_directory *run, const struct identity *earlier,
                    char out[DIFFERENCES_BYTES]) {
    return identity_differs(earlier, &run->own, run->request->config, out, DIFFERENCES_BYTES);
}

zero_status run_directory_same(const struct run_directory *run, const struct identity *earlier,
                               struct zero_error *error) {
    char differences[DIFFERENCES_BYTES];
    if (!run->request->again || !*earlier->id || !differs(run, earlier, differences)) return ZERO_OK;
    return error_set(
        error, ZERO_E_ARGUMENT,
        "%s was trained with other settings than this configuration: %s; use the settings it had (a batch of "
        "the same size on any number of ranks: give train_batch_size), or change them with --resume",
        run->request->path, differences);
}

/* ---- continuing from the shadow ---- */

static zero_status check_recovery(const struct shadow *s, struct zero_error *error) {
    const char *name = s->run->request->recover_id, *id = s->of.id;
    char differences[DIFFERENCES_BYTES];
    if (name && (strcmp(name, "any") == 0 || (*id && strncmp(id, name, strlen(name)) == 0))) return ZERO_OK;
    if (name)
        return error_set(error, ZERO_E_ARGUMENT,
                         "the shadow under %s belongs to %s, not to run %s: name that one to go on with it, "
                         "or another nvme_path",
                         s->path, s->title, name);
    if (!*id)
        return error_set(error, ZERO_E_ARGUMENT,
                         "the shadow under %s does not say which run it belongs to: if it is this one, "
                         "recover it with --recover any",
                         s->path);
    bool other = differs(s->run, &s->of, differences);
    if (s->own && !other) return ZERO_OK;
    if (s->own)
        return error_set(error, ZERO_E_ARGUMENT,
                         "the shadow under %s was made with other settings than this configuration: %s; use "
                         "the settings it had, or go on anyway with --recover %.*s",
                         s->path, differences, ID_SHOWN, id);
    return error_set(error, ZERO_E_ARGUMENT,
                     "the shadow under %s belongs to another run (id %.*s, begun %s%s%s)%s%s: give that "
                     "run's --run DIR, or name it with --recover %.*s",
                     s->path, ID_SHOWN, id, s->of.begun, *s->of.directory ? ", in " : "", s->of.directory,
                     other ? ": " : "", differences, ID_SHOWN, id);
}

/* ---- overwriting the shadow ---- */

/* Prefers the run's directory, if it still exists, to the shadow: the directory also says whether the last checkpoint
 * was saved. */
static bool has_ended(const struct shadow *s) {
    struct identity there;
    identity_read(s->of.directory, &there);
    return *s->of.directory && is_of(&s->of, &there) ? there.ended : s->of.ended;
}

static zero_status check_overwriting(const struct shadow *s, struct zero_error *error) {
    const struct run_directory *run = s->run;
    bool goes_on = run->way == RUN_RESUME && s->own;
    const char *why = run->request->discard_shadow ? "--discard-shadow"
                      : s->own                     ? "this directory's own run begins anew"
                      : *s->of.id && has_ended(s)  ? "that run has ended"
                                                   : NULL;
    TRY(goes_on ? run_directory_same(run, &s->of, error) : ZERO_OK);
    if (why && run->prints && !run->request->quiet)
        line_print("shadow    step %" PRIu64 " of %s is written over under %s: %s", s->step, s->title,
                   s->path, goes_on ? "this run goes on from a checkpoint" : why);
    if (why) return engine_failed(zero_engine_discard_shadow(run->engine), error);
    if (!s->step) /* its commit cannot be read */
        return error_set(
            error, ZERO_E_ARGUMENT,
            "%s; keep it and give this run another nvme_path, or discard it with --discard-shadow",
            zero_engine_shadow_text(run->engine));
    return error_set(error, ZERO_E_ARGUMENT,
                     "the shadow under %s holds step %" PRIu64
                     " of %s, which has not ended: go on with that run (--run DIR --recover), keep it and "
                     "give this run another nvme_path, or discard it with --discard-shadow",
                     s->path, s->step, s->title);
}

/* ---- the latest checkpoint, or the shadow ---- */

/* What rank 0 finds, if the request asks for the latest checkpoint: a way, or one of these. */
enum { FAILS = RUN_RECOVER + 1, LOSES };

/* The shadow stays, because another number of ranks made it. */
static void tell_left(const struct shadow *s, uint64_t step, bool goes_on) {
    char from[80] = "begins anew, because it has no checkpoint";
    if (s->run->request->quiet) return;
    if (goes_on) snprintf(from, sizeof from, "goes on from the checkpoint of step %" PRIu64, step);
    line_print("shadow    step %" PRIu64
               " of this run stays under %s, because another number of ranks made it: the run %s",
               s->step, s->path, from);
}

/* The latest checkpoint may be of another run, over which this one began anew, and saved nothing before it was killed. */
static int look(struct run_directory *run, const struct shadow *s, struct zero_error *error) {
    const struct run_request *r = run->request;
    const char *own = run->previous.id;
    char differences[DIFFERENCES_BYTES];
    struct earlier last;
    if (earlier_find(r->path, &last, error)) return FAILS;
    bool other = *last.run && *own && strcmp(last.run, own) != 0, resumes = last.saved && !other;
    if (other && !r->again)
        return error_set(error, ZERO_E_ARGUMENT,
                         "the latest checkpoint in %s, of step %" PRIu64
                         ", is of run %.*s, over which run %.*s began anew, which has saved nothing yet: go "
                         "on with the former by --resume %" PRIu64
                         ", or begin the latter again by --overwrite",
                         r->path, last.step, ID_SHOWN, last.run, ID_SHOWN, own, last.step),
               FAILS;
    bool later = r->again && !r->discard_shadow && s->own && (other || s->step > last.step);
    if (later && s->kind == ZERO_SHADOW_USABLE) return RUN_RECOVER;
    if (later && (s->kind == ZERO_SHADOW_OTHER || s->kind == ZERO_SHADOW_DAMAGED)) return LOSES;
    if (later && s->kind == ZERO_SHADOW_OTHER_RANKS) {
        tell_left(s, last.step, resumes);
        run->same_run = !differs(run, &s->of, differences);
    }
    if (other)
        fprintf(stderr,
                "zero train: the checkpoint of step %" PRIu64
                " is of run %.*s, over which this one began anew: this one has none yet, and begins again\n",
                last.step, ID_SHOWN, last.run);
    return resumes ? RUN_RESUME : RUN_ANEW;
}

/* By --continue: the shadow of this run, if its step is later than that of the latest checkpoint. A shadow that is lost is refused, and
 * not overwritten: the drive may only be missing, or a setting may differ. */
static zero_status choose_way(struct run_directory *run, const struct shadow *s, struct zero_error *error) {
    const struct run_request *r = run->request;
    run->way = r->recover ? RUN_RECOVER : r->resume ? RUN_RESUME : RUN_ANEW;
    if (!r->again && (!r->resume || r->resume_step)) return ZERO_OK;
    double found = run->prints ? look(run, s, error) : 0; /* of rank 0 alone */
    zero_status status = zero_engine_sum(run->engine, &found, 1);
    if (status) return engine_failed(status, error);
    if (found == FAILS) return error_set(error, ZERO_E_PEER, "%s", ""); /* rank 0 has the reason */
    if (found == LOSES)
        return error_set(error, ZERO_E_ARGUMENT,
                         "--continue: the shadow under %s holds step %" PRIu64
                         " of this run, later than its latest checkpoint, and the run cannot go on from it: "
                         "%s; mend that, or give the shadow up with --discard-shadow",
                         s->path, s->step, zero_engine_shadow_text(run->engine));
    if (r->again) run->way = (enum run_way)found;
    return ZERO_OK;
}

/* Where there is nothing to recover, the engine's own sentence says why. A shadow of another number of ranks stays in files of its own. */
zero_status run_directory_find(struct run_directory *run, struct zero_error *error) {
    const struct run_request *r = run->request;
    identity_describe(&run->own, r->config, r->data_contents);
    if (run->prints && !r->is_new) identity_read(r->path, &run->previous);
    TRY(engine_failed(identity_share(run->engine, &run->previous), error));
    const struct shadow s = shadow_of(run);
    TRY(choose_way(run, &s, error));
    if (run->way == RUN_RECOVER)
        return s.kind == ZERO_SHADOW_NONE || s.kind == ZERO_SHADOW_DAMAGED ? ZERO_OK
                                                                           : check_recovery(&s, error);
    bool stays = s.kind == ZERO_SHADOW_NONE || s.kind == ZERO_SHADOW_OTHER_RANKS;
    return stays ? ZERO_OK : check_overwriting(&s, error);
}
