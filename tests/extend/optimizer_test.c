/* An optimizer that is one file and one row: the configuration takes its name, its keys and their defaults from the
 * row, and it trains to the same weights at every stage and tier. */
#include <stdlib.h>

#include "kernels/optimizer.h"
#include "tests/check.h"
#include "tests/engine/toy_trainer.h"

static void stages_and_tiers_agree(void) {
    char drive[700];
    const char *tiers[] = {"\"offload_optimizer\": {\"device\": \"cpu\"}", drive};
    struct toy_setup s = toy_setup_default();
    static struct toy_result got, first;
    s.optimizer = "{\"type\": \"Signum\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1}}";
    s.steps = 5;
    snprintf(drive, sizeof drive, "\"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}",
             getenv("TEST_TMPDIR"));
    toy_train(&s, &first);
    CHECK_STRING(first.error, "");
    for (s.stage = 0; s.stage <= 3; s.stage++)
        for (int t = 0; t < 2; t++) {
            s.tiers = tiers[t];
            toy_train(&s, &got);
            CHECK_STRING(got.error, "");
            if (!CHECK_STRING(got.hash, first.hash)) fprintf(stderr, "at stage %u, %s\n", s.stage, s.tiers);
        }
    s.stage = 1;
    s.optimizer =
        "{\"type\": \"signum\", \"params\": {\"lr\": 0.01, \"weight_decay\": 0.1, \"momentum\": 0.9}}";
    toy_train(&s, &got);
    CHECK_STRING(got.hash, first.hash); /* the default */
    s.optimizer = NULL;
    toy_train(&s, &got);
    CHECK_STRING(got.error, "");
    CHECK(strcmp(got.hash, first.hash) != 0);
}

static void messages_name_it(void) {
    struct toy_setup s = toy_setup_default();
    static struct toy_result got;
    s.optimizer = "{\"type\": \"Signum\", \"params\": {\"eps\": 1e-8}}";
    toy_train(&s, &got);
    CHECK_STRING(got.error, "optimizer.params.eps: Signum has no such parameter: remove it; it has lr, "
                            "weight_decay, momentum");
    s.optimizer = "{\"type\": \"OneBitLamb\"}";
    toy_train(&s, &got);
    CHECK_STRING(
        got.error,
        "optimizer.type: \"OneBitLamb\" is not supported here: only AdamW, Adam, SGD, Lion, Adagrad, "
        "Muon, Lamb and Signum are here: choose one of them");
    s.optimizer = "{\"type\": \"Signumm\"}";
    toy_train(&s, &got);
    CHECK_CONTAINS(got.error, "did you mean \"Signum\"?");
}

/* m = 0.1 g, and the sign moves the weight by lr. */
static void updates_by_the_formula(void) {
    const struct optimizer *signum = optimizer_find("Signum");
    struct optimizer_scalars scalars;
    struct optimizer_params params = signum->defaults;
    params.lr = 0.25, params.weight_decay = 0.5;
    optimizer_prepare(signum, &params, 1, &scalars);
    float weight[3] = {1, 1, 1}, m[3] = {0}, gradient[3] = {1e-30f, -3, 0};
    optimizer_update(signum, &(struct optimizer_args){.count = 3,
                                                      .master = weight,
                                                      .state = {m},
                                                      .gradient = gradient,
                                                      .gradient_scale = 1,
                                                      .scalars = &scalars,
                                                      .threads = 1});
    CHECK_DOUBLE(weight[0], 0.625, 0);
    CHECK_DOUBLE(weight[1], 1.125, 0);
    CHECK_DOUBLE(weight[2], 0.875, 0);
    CHECK_DOUBLE(m[1], -0.3, 1e-7);
}

int main(void) {
    stages_and_tiers_agree();
    messages_name_it();
    updates_by_the_formula();
    return check_end();
}
