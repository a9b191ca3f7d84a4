#include "tools/command/products.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/base/hash.h"
#include "tools/command/agreement.h"
#include "tools/command/identity.h"
#include "tools/command/kept.h"
#include "tools/command/progress.h"
#include "tools/command/share.h"

/* The choice in a run's directory belongs to the run on any machine. */
static struct kept of_run(const struct products *p, const char *directory) {
    return (struct kept){"products", directory, p->question.shapes};
}

static bool take_kept(struct products *p, struct kept kept, struct gpt *gpt) {
    return kept_find(&kept, p->choice, sizeof p->choice) && gpt_products_use(gpt, p->choice) == ZERO_OK;
}

static const char *attention_of(const char *choice) { return strstr(choice, "\nattention "); }

static uint32_t shapes_of(const char *choice) {
    uint32_t lines = 0;
    for (const char *at = choice; *at; at++) lines += *at == '\n';
    return lines - 1 - (attention_of(choice) != NULL); /* the first is the place's */
}

static void what_was_timed(const struct products *p, const struct gpt_config *model, const struct gpt *gpt,
                           char out[64]) {
    struct gpt_attention_times times;
    bool attention = gpt_attention_times(gpt, &times);
    if (!model->times_products)
        snprintf(out, 64,
                 attention ? "attention  was timed" : "attention  has one kind of kernels on this GPU");
    else
        snprintf(out, 64, "products  %" PRIu32 " shapes%s were timed", shapes_of(p->choice),
                 attention ? ", and attention," : "");
}

/* ms: NULL: it was not timed here. */
static void tell_pass(const char *pass, const char *word, const float *ms) {
    const char *kernels = strcmp(word, "warpgroups") == 0 ? word : "mma.sync";
    if (ms)
        progress_line("attention  the %s is by %s: %.3f ms by mma.sync, %.3f ms by warpgroups", pass, kernels,
                      (double)ms[0], (double)ms[1]);
    else
        progress_line("attention  the %s is by %s", pass, kernels);
}

/* Rank 0's. */
static void tell_attention(const struct products *p, struct gpt *gpt) {
    const char *line = attention_of(p->choice);
    char word[2][16] = {"", ""};
    struct gpt_attention_times times;
    if (!line) return;
    bool timed = gpt_attention_times(gpt, &times);
    sscanf(line, "\nattention %15s %15s", word[0], word[1]);
    tell_pass("forward", word[0], timed ? times.forward_ms : NULL);
    tell_pass("backward", word[1], timed ? times.backward_ms : NULL);
}

static zero_status make(struct products *p, const struct job *job, struct kept kept, struct gpt *gpt,
                        struct zero_error *error) {
    struct zero_error why;
    char path[KEPT_PATH_BYTES], timed[64];
    zero_status status = gpt_products_time(gpt, p->choice);
    if (status) return agreement_engine_failed(status, error);
    error_clear(&why);
    what_was_timed(p, &job->model, gpt, timed);
    if (kept_store(&kept, p->choice, &why) == ZERO_OK && kept_path(&kept, path)) {
        if (!job->quiet) progress_line("%s; the choice is kept in %s: remove it to choose anew", timed, path);
    } else
        progress_line("%s; the choice is not kept, so that the next run may have other bits: %s", timed,
                      why.message);
    return ZERO_OK;
}

zero_status products_find(struct products *p, const struct job *job, zero_engine *engine, struct gpt *gpt,
                          struct zero_error *error) {
    char question[sizeof p->question];
    struct kept kept = {"products", NULL, question};
    p->chosen = gpt_products_timed(&job->model) && zero_engine_cuda(engine, NULL) >= 0;
    p->quiet = job->quiet;
    if (!p->chosen) return ZERO_OK;
    zero_status status = gpt_products_question(gpt, &p->question);
    if (status) return agreement_engine_failed(status, error);
    if (zero_engine_rank(engine) != 0) return ZERO_OK;
    snprintf(question, sizeof question, "%s: %s", p->question.place, p->question.shapes);
    if ((job->resume || job->recover || job->again) && take_kept(p, of_run(p, job->run), gpt)) return ZERO_OK;
    return take_kept(p, kept, gpt) ? ZERO_OK : make(p, job, kept, gpt, error);
}

zero_status products_share(struct products *p, zero_engine *engine, struct gpt *gpt,
                           struct zero_error *error) {
    if (!p->chosen) return ZERO_OK;
    zero_status status = share_text(engine, p->choice, sizeof p->choice);
    if (status) return agreement_engine_failed(status, error);
    snprintf(p->setting, sizeof p->setting, PRODUCTS_TIMED "%016" PRIx64 "-%016" PRIx64,
             hash_string(HASH_START, p->question.shapes), hash_string(HASH_START, p->choice));
    status = gpt_products_use(gpt, p->choice);
    if (status) agreement_engine_failed(status, error);
    if (!status && zero_engine_rank(engine) == 0 && !p->quiet) tell_attention(p, gpt);
    return ZERO_OK;
}

zero_status products_keep(const struct products *p, const char *directory, struct zero_error *error) {
    struct kept kept = of_run(p, directory);
    return p->chosen ? kept_store(&kept, p->choice, error) : ZERO_OK;
}
