/* weights_test DIR: a model that transformers made, with its logits. It comes in with those logits, goes out as the
 * same numbers, in one file or several, and a GPT-2 comes in from llm.c's format as the same. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/numbers/convert.h"
#include "tests/check.h"
#include "tests/tools/weights/logits.h"
#include "tools/weights/weights.h"

enum { COUNT_MAX = 4096 };

static const char *fixture;
static struct logits expected;

static char *place(const char *name) {
    static char paths[8][4096];
    static int at;
    char *path = paths[at++ % 8];
    snprintf(path, sizeof *paths, "%s/%s", getenv("TEST_TMPDIR"), name);
    return path;
}

static struct weights *open_weights(const char *path) {
    struct weights *weights = NULL;
    struct zero_error error;
    error_clear(&error);
    if (!CHECK_INT(weights_open(path, &weights, &error), ZERO_OK)) fprintf(stderr, "%s\n", error.message);
    return weights;
}

static void import(const char *path, const char *out) {
    struct weights *weights = open_weights(path);
    struct zero_error error;
    error_clear(&error);
    if (weights && !CHECK_INT(weights_import(weights, out, NULL, NULL, &error), ZERO_OK))
        fprintf(stderr, "%s\n", error.message);
    weights_close(weights);
}

static zero_status export(const char *checkpoint, const char *out, uint64_t file_bytes,
                          struct zero_error *error) {
    struct weights_export options = {.file_bytes = file_bytes, .dtype = DTYPES};
    return weights_export(checkpoint, out, &options, NULL, error);
}

/* Every parameter read in pieces of `step` elements; `round`: of what bf16 keeps of the first. */
static void same_weights(const char *a_path, const char *b_path, uint64_t step, int round) {
    static float a[COUNT_MAX], b[COUNT_MAX];
    struct weights *x = open_weights(a_path), *y = open_weights(b_path);
    struct zero_error error;
    struct gpt_param p;
    error_clear(&error);
    for (uint32_t i = 0; x && y && gpt_param_at(&x->model, i, &p); i++) {
        CHECK_INT(x->format->read(x, &p, 0, p.count, a, &error), ZERO_OK);
        for (uint64_t at = 0; at < p.count; at += step) {
            uint64_t count = p.count - at < step ? p.count - at : step;
            CHECK_INT(y->format->read(y, &p, at, count, b + at, &error), ZERO_OK);
        }
        for (uint64_t k = 0; k < p.count && round; k++) a[k] = f32_from_bf16(bf16_from_f32(a[k]));
        if (!CHECK_BYTES(b, a, p.count * sizeof *a)) fprintf(stderr, "in %s\n", p.name);
    }
    CHECK_STRING(error.message, "");
    weights_close(x);
    weights_close(y);
}

static void comes_in_with_its_logits(void) {
    struct weights *weights = open_weights(fixture);
    char path[4096];
    if (!weights) return;
    snprintf(path, sizeof path, "%s/logits.txt", fixture);
    CHECK(logits_read(path, weights->model.vocab, &expected));
    CHECK_INT(expected.tokens, 8);
    import(fixture, place("in"));
    for (uint32_t ranks = 1; ranks <= 2; ranks++)
        CHECK_DOUBLE(logits_compare(place("in"), &weights->model, ranks, &expected), 0, 1e-5);
    expected.value[3][5] += 1; /* the comparison can fail */
    CHECK_DOUBLE(logits_compare(place("in"), &weights->model, 1, &expected), 1, 1e-4);
    weights_close(weights);
}

static void goes_out_as_it_came(void) {
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(export(place("in"), place("out"), UINT64_MAX, &error), ZERO_OK);
    same_weights(fixture, place("out"), 7, 0);
    CHECK_INT(export(place("in"), place("out_split"), 1500, &error), ZERO_OK);
    CHECK_INT(access(place("out_split/model.safetensors.index.json"), R_OK), 0);
    CHECK_INT(access(place("out_split/model.safetensors"), R_OK), -1);
    same_weights(fixture, place("out_split"), COUNT_MAX, 0);
    CHECK_STRING(error.message, "");
    CHECK_INT(export(place("in"), place("out"), UINT64_MAX, &error), ZERO_E_IO); /* it is there */
    CHECK_INT(access(place("out.partial"), F_OK), -1);
}

/* ---- llm.c ---- */

static void write_array(FILE *file, struct weights *w, const char *name, int transposed, int version,
                        uint32_t rows) {
    static float value[COUNT_MAX];
    struct gpt_param p;
    struct zero_error error;
    error_clear(&error);
    for (uint32_t i = 0; gpt_param_at(&w->model, i, &p); i++)
        if (!strcmp(p.name, name)) break;
    CHECK_INT(w->format->read(w, &p, 0, p.count, value, &error), ZERO_OK);
    uint64_t total = rows ? rows * p.shape[1] : p.count;
    for (uint64_t i = 0; i < total; i++) {
        uint64_t at = transposed ? i % p.shape[0] * p.shape[1] + i / p.shape[0] : i;
        float x = at < p.count ? value[at] : -77; /* the padded vocabulary */
        uint16_t half = bf16_from_f32(x);
        fwrite(version == 3 ? (void *)&x : (void *)&half, version == 3 ? 4 : 2, 1, file);
    }
}

static void write_llmc(const char *path, int version) {
    static const char *const layered[] = {"ln_1.weight",      "ln_1.bias",          "attn.c_attn.weight",
                                          "attn.c_attn.bias", "attn.c_proj.weight", "attn.c_proj.bias",
                                          "ln_2.weight",      "ln_2.bias",          "mlp.c_fc.weight",
                                          "mlp.c_fc.bias",    "mlp.c_proj.weight",  "mlp.c_proj.bias"};
    struct weights *w = open_weights(fixture);
    const struct gpt_config *m = &w->model;
    int32_t header[256] = {20240326,       version,       (int)m->context, (int)m->vocab,
                           (int)m->layers, (int)m->heads, (int)m->width,   (int)m->vocab + 8};
    FILE *file = fopen(path, "wb");
    fwrite(header, sizeof header, 1, file);
    write_array(file, w, "wte.weight", 0, version, m->vocab + 8);
    write_array(file, w, "wpe.weight", 0, version, 0);
    for (size_t i = 0; i < sizeof layered / sizeof *layered; i++)
        for (uint32_t layer = 0; layer < m->layers; layer++) {
            char name[64];
            snprintf(name, sizeof name, "h.%u.%s", layer, layered[i]);
            int matrix = strstr(layered[i], "weight") && strncmp(layered[i], "ln_", 3) != 0;
            write_array(file, w, name, matrix, version, 0);
        }
    write_array(file, w, "ln_f.weight", 0, version, 0);
    write_array(file, w, "ln_f.bias", 0, version, 0);
    fclose(file);
    weights_close(w);
}

static void refused(const char *path, zero_status status, const char *says) {
    struct weights *weights = NULL;
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(weights_open(path, &weights, &error), status);
    CHECK_CONTAINS(error.message, says);
    weights_close(weights);
}

static void comes_from_llmc(void) {
    write_llmc(place("3.bin"), 3);
    write_llmc(place("5.bin"), 5);
    same_weights(fixture, place("3.bin"), 13, 0);
    same_weights(fixture, place("5.bin"), 4000, 1);
    import(place("3.bin"), place("from_llmc"));
    struct zero_error error;
    error_clear(&error);
    CHECK_INT(export(place("from_llmc"), place("out_llmc"), UINT64_MAX, &error), ZERO_OK);
    same_weights(fixture, place("out_llmc"), 100, 0);
    write_llmc(place("4.bin"), 4);
    refused(place("4.bin"), ZERO_E_UNSUPPORTED, "has version 4 of llm.c's format");
    CHECK_INT(truncate(place("3.bin"), 5000), 0);
    refused(place("3.bin"), ZERO_E_IO, "3.bin has 5000 bytes");
}

/* ---- what is refused ---- */

static void write_file(const char *path, const char *text) {
    FILE *file = fopen(path, "w");
    fputs(text, file);
    fclose(file);
}

/* An index of an earlier save beside the single file of a later one. */
static void a_stale_index_is_left_out(void) {
    char command[8192];
    snprintf(command, sizeof command, "cp -r %s %s", fixture, place("stale"));
    CHECK_INT(system(command), 0);
    write_file(place("stale/model.safetensors.index.json"), "{\"weight_map\": {\"wte.weight\": \"gone\"}}");
    same_weights(fixture, place("stale"), COUNT_MAX, 0);
}

static void strangers(void) {
    static const char config[] =
        "{\"n_layer\": 1, \"n_embd\": 8, \"n_head\": 2, \"n_positions\": 8, \"vocab_size\": 24}";
    write_file(place("model.pt"), "PK");
    refused(place("model.pt"), ZERO_E_UNSUPPORTED, "zero_to_fp32");
    refused(place("nothing"), ZERO_E_UNSUPPORTED, "is neither a directory");
    mkdir(place("odd"), 0700);
    write_file(place("odd/config.json"), config);
    refused(place("odd"), ZERO_E_IO, "odd has no model.safetensors");
    write_file(place("odd/model.safetensors.index.json"),
               "{\"weight_map\": {\"wte.weight\": \"../in/secret\"}}");
    refused(place("odd"), ZERO_E_IO, "\"../in/secret\", which is no file of that directory");
    write_file(place("odd/model.safetensors.index.json"), "{\"weight_map\": {\"wte.weight\": \"x\"}}");
    write_file(place("odd/x"), "1234567");
    refused(place("odd"), ZERO_E_IO, "odd/x is not a safetensors file");
    char command[8192];
    snprintf(command, sizeof command, "cp %s/* %s", fixture,
             place("odd")); /* an index of older files is left */
    CHECK_INT(system(command), 0);
    same_weights(fixture, place("odd"), COUNT_MAX, 0);
    CHECK_INT(unlink(place("odd/model.safetensors")), 0);
    write_file(place("odd/config.json"), config); /* a model of other sizes than its configuration says */
    snprintf(command, sizeof command, "cp %s/model.safetensors %s", fixture, place("odd/x"));
    CHECK_INT(system(command), 0);
    /* one layer of two: what it needs is there, and more */
    refused(place("odd"), ZERO_E_IO,
            "odd/x has a tensor \"transformer.h.1.attn.c_attn.bias\" that config.json's model");
    write_file(place("odd/config.json"),
               "{\"n_layer\": 3, \"n_embd\": 8, \"n_head\": 2, \"n_positions\": 8, \"vocab_size\": 24}");
    refused(place("odd"), ZERO_E_IO, "has no tensor \"h.2.ln_1.weight\"");
    write_file(place("odd/config.json"),
               "{\"n_layer\": 1, \"n_embd\": 8, \"n_head\": 2, \"n_positions\": 8, \"vocab_size\": 25}");
    refused(place("odd"), ZERO_E_IO, "\"wte.weight\" has 192 elements in 2 dimensions, not 200");
}

static void write_llama(const char *members) {
    char text[1024];
    snprintf(text, sizeof text,
             "{\"model_type\": \"llama\", \"hidden_size\": 8, \"num_attention_heads\": 4, "
             "\"num_key_value_heads\": 2, "
             "\"head_dim\": 6, \"max_position_embeddings\": 8, \"vocab_size\": 24, %s}",
             members);
    write_file(place("odd/config.json"), text);
}

static void strange_llamas(void) {
    char command[8192];
    mkdir(place("odd"), 0700);
    snprintf(command, sizeof command, "cp %s/model.safetensors %s", fixture, place("odd"));
    CHECK_INT(system(command), 0);
    write_llama("\"num_hidden_layers\": 2, \"intermediate_size\": 12");
    struct weights *weights = open_weights(place("odd"));
    CHECK(weights != NULL);
    weights_close(weights);
    write_llama("\"num_hidden_layers\": 3, \"intermediate_size\": 12");
    refused(place("odd"), ZERO_E_IO, "has no tensor \"model.layers.2.input_layernorm.weight\"");
    write_llama("\"num_hidden_layers\": 1, \"intermediate_size\": 12");
    refused(place("odd"), ZERO_E_IO, "model.safetensors has a tensor \"model.layers.1.");
    write_llama("\"num_hidden_layers\": 2, \"intermediate_size\": 13");
    refused(place("odd"), ZERO_E_IO,
            "\"model.layers.0.mlp.gate_proj.weight\" has 96 elements in 2 dimensions, not 104");
    write_llama("\"num_hidden_layers\": 2, \"intermediate_size\": 12, \"tie_word_embeddings\": true");
    weights = open_weights(place("odd")); /* the head is in the file, but the embedding is meant */
    CHECK(weights != NULL);
    weights_close(weights);
}

static bool is(enum gpt_architecture architecture) {
    struct weights *weights = open_weights(fixture);
    bool same = weights && weights->model.architecture == architecture;
    weights_close(weights);
    return same;
}

int main(int argc, char **argv) {
    if (!CHECK_INT(argc, 2)) return check_end();
    fixture = argv[1];
    comes_in_with_its_logits();
    goes_out_as_it_came();
    a_stale_index_is_left_out();
    if (is(GPT_LLAMA)) strange_llamas();
    if (is(GPT_GPT2)) {
        comes_from_llmc();
        strangers();
    }
    return check_end();
}
