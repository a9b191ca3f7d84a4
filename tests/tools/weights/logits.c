#include "tests/tools/weights/logits.h"

#include <math.h>
#include <stdio.h>

#include "tests/engine/ranks.h"

int logits_read(const char *path, uint32_t vocab, struct logits *out) {
    FILE *file = fopen(path, "r");
    char end = 0;
    int good = file && vocab <= LOGITS_VOCAB_MAX;
    out->vocab = vocab;
    for (out->tokens = 0; good && end != '\n' && out->tokens < LOGITS_TOKENS_MAX; out->tokens++)
        good = fscanf(file, "%d%c", &out->token[out->tokens], &end) == 2;
    for (uint32_t t = 0; good && t < out->tokens; t++)
        for (uint32_t v = 0; good && v < vocab; v++) good = fscanf(file, "%f", &out->value[t][v]) == 1;
    if (file) fclose(file);
    return good;
}

struct comparison {
    const char *checkpoint;
    const struct gpt_config *model;
    const struct logits *expected;
    double largest;
};

static void compare(zero_engine *engine, uint32_t rank, void *user) {
    struct comparison *c = user;
    struct gpt *gpt;
    float got[LOGITS_VOCAB_MAX];
    double largest = 0;
    zero_status status = gpt_create(engine, c->model, 1, &gpt);
    if (!status) status = zero_engine_commit(engine, NULL);
    if (!status) status = zero_engine_load(engine, c->checkpoint);
    for (uint32_t t = 0; t < c->expected->tokens && !status; t++) {
        status = gpt_next_logits(gpt, c->expected->token, t + 1, 0, got);
        for (uint32_t v = 0; v < c->expected->vocab; v++) {
            double off = fabs((double)got[v] - c->expected->value[t][v]);
            if (off > largest || isnan(off)) largest = off; /* and NaN it stays */
        }
    }
    if (status) fprintf(stderr, "rank %u: %s\n", rank, zero_last_error());
    if (rank == 0) c->largest = status ? -1 : largest;
    gpt_destroy(gpt);
}

double logits_compare(const char *checkpoint, const struct gpt_config *model, uint32_t ranks,
                      const struct logits *expected) {
    struct comparison c = {checkpoint, model, expected, -1};
    ranks_run(ranks, "{\"train_micro_batch_size_per_gpu\": 1, \"zero_optimization\": {\"stage\": 3}}",
              compare, &c);
    return c.largest;
}
