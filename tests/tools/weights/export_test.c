/* Exports of checkpoints that a host program saved: config.json is written only where it is true. What OUT may be is known
 * before the first byte is written. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/numbers/dtype.h"
#include "engine/zero.h"
#include "tests/check.h"
#include "tests/engine/ranks.h"
#include "tools/weights/weights.h"

enum { PARAMS_MAX = 32 };

static char *place(const char *name) {
    static char paths[8][4096];
    static int at;
    char *path = paths[at++ % 8];
    snprintf(path, sizeof *paths, "%s/%s", getenv("TEST_TMPDIR"), name);
    return path;
}

static zero_status export(const char *checkpoint, const char *out, struct zero_error *left,
                          struct zero_error *error) {
    struct weights_export options = {.file_bytes = UINT64_MAX, .dtype = DTYPES};
    error_clear(left);
    error_clear(error);
    return weights_export(checkpoint, out, &options, left, error);
}

/* ---- host programs ---- */

#define GPT2(layers, vocab)                                                                                  \
    ", \"model\": {\"n_layer\": " #layers                                                                    \
    ", \"n_embd\": 8, \"n_head\": 2, \"n_positions\": 8, \"vocab_size\": " #vocab "}"
#define LLAMA(type)                                                                                          \
    ", \"model\": {\"model_type\": \"" type                                                                  \
    "\", \"num_hidden_layers\": 1, \"hidden_size\": 8, \"num_attention_heads\": 2, "                         \
    "\"num_key_value_heads\": 1, \"head_dim\": 4, \"intermediate_size\": 12, \"max_position_embeddings\": "  \
    "8, \"vocab_size\": 24}"

static const struct gpt_config gpt2 = {.architecture = GPT_GPT2,
                                       .layers = 1,
                                       .width = 8,
                                       .heads = 2,
                                       .context = 8,
                                       .vocab = 24,
                                       .tied = true},
                               llama = {.architecture = GPT_LLAMA,
                                        .layers = 1,
                                        .width = 8,
                                        .heads = 2,
                                        .kv_heads = 1,
                                        .head_width = 4,
                                        .inner = 12,
                                        .context = 8,
                                        .vocab = 24};

static const struct host {
    const char *name, *block;        /* of its configuration */
    const struct gpt_config *params; /* its parameters are those of this model */
    bool configured;                 /* the export has a config.json */
} hosts[] = {
    {"gpt2", GPT2(1, 24), &gpt2, true},
    {"llama", LLAMA("llama"), &llama, true},
    {"mistral", LLAMA("mistral"), &llama, true},
    {"no_block", "", &gpt2, false},
    {"llama_no_block", "", &llama, false},
    {"other_layers", GPT2(2, 24), &gpt2, false},
    {"other_vocabulary", GPT2(1, 25), &gpt2, false},
    {"other_type", GPT2(1, 24), &llama, false},
    {"no_biases", LLAMA("qwen2"), &llama, false},
};

static void fill(void *user, const char *param, uint64_t first, uint64_t count, float *out) {
    for (uint64_t i = 0; i < count; i++) out[i] = (float)(first + i);
}

/* The first parameter of the model is the first; the others have the reverse order. */
static void save(zero_engine *engine, uint32_t rank, void *user) {
    const struct host *host = user;
    zero_slot slot[PARAMS_MAX];
    struct gpt_param p;
    zero_unit *unit;
    uint32_t params = 0;
    while (gpt_param_at(host->params, params, &p)) params++;
    if (!CHECK(engine != NULL && params < PARAMS_MAX)) return;
    CHECK_INT(zero_engine_add_unit(engine, "all", &unit), ZERO_OK);
    for (uint32_t i = 0; i < params; i++) {
        gpt_param_at(host->params, i ? params - i : 0, &p);
        zero_param param = {.struct_size = sizeof param,
                            .name = p.name,
                            .dims = p.dims,
                            .slot = &slot[i],
                            .shape = {p.shape[0], p.shape[1]}};
        CHECK_INT(zero_unit_add_param(unit, &param), ZERO_OK);
    }
    CHECK_INT(zero_engine_commit(engine, NULL), ZERO_OK);
    CHECK_INT(zero_engine_fill(engine, fill, NULL), ZERO_OK);
    CHECK_INT(zero_engine_save(engine, place(host->name)), ZERO_OK);
}

static void exports(const struct host *host) {
    char json[1024], out[64], config[80];
    struct zero_error left, error;
    snprintf(json, sizeof json, "{\"train_micro_batch_size_per_gpu\": 1%s}", host->block);
    ranks_run(1, json, save, (void *)(uintptr_t)host);
    snprintf(out, sizeof out, "%s.out", host->name);
    CHECK_INT(export(place(host->name), place(out), &left, &error), ZERO_OK);
    CHECK_STRING(error.message, "");
    snprintf(config, sizeof config, "%s/config.json", out);
    CHECK_INT(access(place(config), F_OK), host->configured ? 0 : -1);
    if (host->configured)
        CHECK_STRING(left.message, "");
    else
        CHECK_CONTAINS(left.message, "no config.json is written");
    struct weights *weights = NULL;
    error_clear(&error);
    CHECK_INT(weights_open(place(out), &weights, &error), host->configured ? ZERO_OK : ZERO_E_UNSUPPORTED);
    if (weights) weights_close(weights);
}

/* ---- the directory's name ---- */

static void goes(const char *out, const char *refused) {
    struct zero_error left, error;
    CHECK_INT(export(place("gpt2"), out, &left, &error), refused ? ZERO_E_IO : ZERO_OK);
    if (refused)
        CHECK_CONTAINS(error.message, refused);
    else
        CHECK_STRING(error.message, "");
}

static void directories(void) {
    goes(place("new/"), NULL);
    CHECK_INT(access(place("new/model.safetensors"), F_OK), 0);
    CHECK_INT(mkdir(place("empty"), 0700), 0);
    goes(place("empty//"), NULL);
    CHECK_INT(access(place("empty/model.safetensors"), F_OK), 0);
    goes(place("new"), "new already exists: ");
    goes(place("new/"), "new already exists: ");
    goes(place("new/model.safetensors"), "model.safetensors already exists: ");
    CHECK_INT(symlink("nowhere", place("link")), 0);
    goes(place("link"), "link already exists: ");
    CHECK_INT(mkdir(place("work"), 0700) || chdir(place("work")), 0);
    goes(".", ". already exists: ");
    goes("../work/./", ". already exists: ");
    goes("/", "/ already exists: ");
}

static void no_parameters(void) {
    struct manifest_file file = {0};
    struct manifest empty = {.loss_scale = 1, .ranks = 1, .file = &file, .files = 1};
    struct zero_error left, error;
    error_clear(&error);
    CHECK_INT(mkdir(place("none"), 0700), 0);
    CHECK_INT(manifest_write(storage_posix(), place("none"), &empty, &error), ZERO_OK);
    CHECK_INT(export(place("none"), place("none.out"), &left, &error), ZERO_E_ARGUMENT);
    CHECK_CONTAINS(error.message, "none has no parameters");
}

int main(void) {
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        fprintf(stderr, "host %s\n", hosts[i].name);
        exports(&hosts[i]);
    }
    directories();
    no_parameters();
    return check_end();
}
