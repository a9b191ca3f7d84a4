/* Which values of a configuration belong to a run's identity: those that change its result, in any spelling. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/config/key.h"
#include "tests/check.h"
#include "tools/run_directory/run_directory.h"

enum { RANKS = 2, DATA = 7 };

static void describe(const char *keys, struct config *config, struct identity *out) {
    char json[2000];
    struct zero_error error;
    error_clear(&error);
    memset(out, 0, sizeof *out);
    snprintf(json, sizeof json, "{%s%s}", keys,
             strstr(keys, "batch_size") ? ""
             : *keys                    ? ", \"train_batch_size\": 4"
                                        : "\"train_batch_size\": 4");
    zero_status status = config_read(json, config, &error);
    if (!status) status = config_resolve(config, RANKS, &error);
    if (!CHECK_INT(status, ZERO_OK)) fprintf(stderr, "%s: %s\n", json, error.message);
    identity_describe(out, config, DATA);
}

/* Both ways: what was given then and is not now, and the other way round. */
static bool differs(const char *then, const char *now, char *out, size_t size) {
    struct config a, b;
    struct identity earlier, own;
    char back[400];
    describe(then, &a, &earlier);
    describe(now, &b, &own);
    bool differs = identity_differs(&earlier, &own, &b, out, size);
    CHECK_INT(identity_differs(&own, &earlier, &a, back, sizeof back), differs);
    config_free(&a);
    config_free(&b);
    return differs;
}

static void what_changes_the_result(void) {
    static const struct {
        const char *then, *now, *said; /* NULL: the same run */
    } rows[] = {
        {"", "", NULL},
        {"\"seed\": 1", "\"seed\": 2", "its seed is 1, this configuration has 2"},
        {"\"train_batch_size\": 4", "\"train_batch_size\": 8",
         "its train_batch_size is 4, this configuration has 8"},
        {"\"train_batch_size\": 4", "\"train_batch_size\": 4, \"train_micro_batch_size_per_gpu\": 1", NULL},
        {"\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-2}}",
         "\"optimizer\": {\"type\": \"adamw\", \"params\": {\"lr\": 0.01}}", NULL},
        {"\"optimizer\": {\"params\": {\"betas\": [0.9, 0.95]}}",
         "\"optimizer\": {\"params\": {\"betas\": [0.9,0.95]}}", NULL},
        {"\"optimizer\": {\"params\": {\"betas\": [0.9, 0.95]}}", "",
         "its optimizer.params.betas is [0.9,0.95], this configuration has [0.9,0.999]"},
        {"\"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": 0.1}}",
         "\"optimizer\": {\"type\": \"Lion\", \"params\": {\"lr\": 0.1}}",
         "its optimizer.type is \"sgd\", this configuration has \"lion\""},
        {"\"gradient_clipping\": 1", "", NULL}, /* the default, written */
        {"\"gradient_clipping\": 0", "", "its gradient_clipping is 0, this configuration has 1"},
        {"\"bf16\": {\"enabled\": true}", "", "its bf16.enabled is true, this configuration has false"},
        {"\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": 7}}",
         "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": 8}}",
         "its scheduler.params.warmup_num_steps is 7, this configuration has 8"},
        {"\"data\": {\"order\": \"shuffled\"}", "",
         "its data.order is \"shuffled\", this configuration has \"sequential\""},
        {"\"data\": {\"eval\": 0.1}", "", "its data.eval is 0.1"}, /* which takes samples away */
        {"\"data\": {\"path\": [\"a\"], \"eval\": \"b\"}", "\"data\": {\"path\": \"c\"}", NULL},
        {"\"param_groups\": [{\"match\": [\"*.bias\", \"*ln_*\", \"*norm*\", \"and some more text\"], "
         "\"weight_decay\": 0}]",
         "", "its param_groups is #"},
        {"\"zero_optimization\": {\"zero_quantized_weights\": true, \"stage\": 3}",
         "\"zero_optimization\": {\"stage\": 3}", "its zero_optimization.zero_quantized_weights is true"},
        {"\"zero_optimization\": {\"zero_quantized_weights\": true, \"stage\": 3}",
         "\"zero_optimization\": {\"zero_quantized_weights\": \"int8\", \"stage\": 3}", NULL},
        {"\"zero_optimization\": {\"zero_quantized_weights\": \"fp8_e4m3\", \"stage\": 3}",
         "\"zero_optimization\": {\"zero_quantized_weights\": \"int8\", \"stage\": 3}",
         "its zero_optimization.zero_quantized_weights is \"fp8_e4m3\", this configuration has true"},
        {"\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": "
         "\"/n\"}}",
         "\"zero_optimization\": {\"stage\": 1}", NULL},
        {"\"device\": {\"keep_outputs\": false}", "\"device\": {\"keep_outputs\": \"auto\"}", NULL},
        {"\"device\": {\"keep_outputs\": false}", "", NULL},
        {"\"device\": {\"keep_outputs\": true}", "", NULL},
        {"\"device\": {\"attention\": \"auto\"}", "", NULL},
        {"", "\"device\": {\"attention\": \"auto\"}", NULL},
        {"\"device\": {\"attention\": \"mma\"}", "",
         "its device.attention is \"mma\", this configuration has \"auto\""},
        {"", "\"device\": {\"attention\": \"mma\"}",
         "its device.attention is \"auto\", this configuration has \"mma\""},
        {"\"gradient_accumulation_steps\": 2, \"threads\": 1, \"comm\": {\"prefetch_depth\": 3}",
         "\"aio\": {\"block_size\": 8192}", NULL},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char said[400];
        bool other = differs(rows[i].then, rows[i].now, said, sizeof said);
        if (!CHECK_INT(other, rows[i].said != NULL))
            fprintf(stderr, "between {%s} and {%s}: %s\n", rows[i].then, rows[i].now, said);
        if (rows[i].said) CHECK_CONTAINS(said, rows[i].said);
    }
}

static void data_differ(void) {
    struct config config;
    struct identity earlier, own;
    char said[400];
    describe("", &config, &earlier);
    own = earlier;
    identity_describe(&own, &config, DATA + 1);
    CHECK(identity_differs(&earlier, &own, &config, said, sizeof said));
    CHECK_STRING(said, "the contents of its data differ");
    config_free(&config);
}

/* More values than a note holds: those that find no room are compared together. */
static void long_descriptions(void) {
    struct config a, b;
    struct identity earlier, own;
    char said[400], keys[2][1900];
    for (int which = 0; which < 2; which++)
        snprintf(
            keys[which], sizeof keys[which],
            "\"model\": {\"n_layer\": 3, \"n_embd\": 32, \"n_head\": 2, \"n_positions\": 32, \"vocab_size\": "
            "300, "
            "\"n_inner\": 100, \"layer_norm_epsilon\": 0.001, \"initializer_range\": 0.03%d, "
            "\"tie_word_embeddings\": false}, \"seed\": 123456789, \"gradient_clipping\": 0.123456789012, "
            "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.00123456789, \"betas\": "
            "[0.912345678, "
            "0.912345678], \"eps\": 1.2345678e-9, \"weight_decay\": 0.123456789}}, \"scheduler\": {\"type\": "
            "\"OneCycle\", \"params\": {\"cycle_min_lr\": [0.000123456789], \"cycle_max_lr\": "
            "[0.0123456789123], "
            "\"decay_lr_rate\": 0.00123456789, \"cycle_first_step_size\": 1234567, "
            "\"cycle_second_step_size\": "
            "1234567, \"cycle_first_stair_count\": 123456, \"cycle_second_stair_count\": 123456, "
            "\"decay_step_size\": 1234567, \"cycle_min_mom\": 0.812345678, \"cycle_max_mom\": 0.912345678, "
            "\"decay_mom_rate\": 0.00012345678}}, \"fp16\": {\"enabled\": true, \"loss_scale\": 0, "
            "\"initial_scale_power\": 12, \"loss_scale_window\": 1234, \"hysteresis\": 3, "
            "\"min_loss_scale\": 2}, "
            "\"data\": {\"order\": \"shuffled\", \"eval\": 0.1}",
            which + 1);
    describe(keys[0], &a, &earlier);
    describe(keys[1], &b, &own);
    CHECK(strlen(earlier.settings) < sizeof earlier.settings);
    CHECK_CONTAINS(earlier.settings, " others=#");
    CHECK(identity_differs(&earlier, &own, &b, said, sizeof said));
    CHECK_CONTAINS(said, "other settings differ");
    CHECK(!identity_differs(&earlier, &earlier, &a, said, sizeof said));
    config_free(&a);
    config_free(&b);
}

static void files(void) {
    char run[512];
    struct identity written = {.id = ""}, found;
    struct zero_error error;
    error_clear(&error);
    snprintf(run, sizeof run, "%s/run-XXXXXX", getenv("TEST_TMPDIR") ? getenv("TEST_TMPDIR") : "/tmp");
    CHECK(mkdtemp(run) != NULL);
    identity_read(run, &found);
    CHECK_STRING(found.id, "");
    identity_begin(&written);
    CHECK_INT(strlen(written.id), IDENTITY_DIGITS);
    for (int ended = 0; ended < 2; ended++) {
        written.ended = ended;
        CHECK_INT(identity_write(run, &written, &error), ZERO_OK);
        identity_read(run, &found);
        CHECK_STRING(found.id, written.id);
        CHECK_STRING(found.begun, written.begun);
        CHECK_INT(found.ended, ended);
    }
    identity_begin(&found);
    CHECK(strcmp(found.id, written.id) != 0);
    char path[600];
    snprintf(path, sizeof path, "%s/identity", run);
    CHECK_INT(unlink(path), 0);
    CHECK_INT(mkfifo(path, 0666), 0);
    identity_read(run, &found); /* does not wait for a writer */
    CHECK_STRING(found.id, "");
    CHECK_INT(unlink(path), 0);
    CHECK_INT(symlink("/dev/zero", path), 0);
    identity_read(run, &found); /* has no end */
    CHECK_STRING(found.id, "");
}

int main(void) {
    what_changes_the_result();
    data_differ();
    long_descriptions();
    files();
    return check_end();
}
