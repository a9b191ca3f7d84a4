/* Reads llm.c's model file: 256 int32 (magic 20240326; version 3: fp32, 5: bf16; context, vocabulary, layers, heads,
 * width, padded vocabulary), then sixteen arrays, each with all layers. llm.c's matrices are [outputs][inputs], ours
 * are [inputs][outputs]; the code transposes one matrix at a time in memory. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/numbers/dtype.h"
#include "engine/base/system/regular_file.h"
#include "tools/weights/weights.h"

enum { MAGIC = 20240326, HEADER_INTS = 256 };
enum header { AT_MAGIC, AT_VERSION, AT_CONTEXT, AT_VOCAB, AT_LAYERS, AT_HEADS, AT_WIDTH, AT_PADDED_VOCAB };

static const struct array {
    const char *name; /* after "h.N.", if each layer has one */
    bool layered, transposed;
} arrays[] = {
    {"wte.weight", false, false},       {"wpe.weight", false, false},       {"ln_1.weight", true, false},
    {"ln_1.bias", true, false},         {"attn.c_attn.weight", true, true}, {"attn.c_attn.bias", true, false},
    {"attn.c_proj.weight", true, true}, {"attn.c_proj.bias", true, false},  {"ln_2.weight", true, false},
    {"ln_2.bias", true, false},         {"mlp.c_fc.weight", true, true},    {"mlp.c_fc.bias", true, false},
    {"mlp.c_proj.weight", true, true},  {"mlp.c_proj.bias", true, false},   {"ln_f.weight", false, false},
    {"ln_f.bias", false, false},
};
enum { ARRAYS = sizeof arrays / sizeof *arrays };

struct llmc {
    struct weights head;
    struct storage_file file;
    enum dtype dtype;
    uint64_t padded_vocab;
    char held[64]; /* the name of the matrix in memory */
    float *matrix;
};

static bool read_header(const char *path, int32_t header[HEADER_INTS]) {
    FILE *file = regular_file_open(path);
    bool whole = file && fread(header, sizeof *header, HEADER_INTS, file) == HEADER_INTS;
    if (file) fclose(file);
    return whole;
}

static bool recognises(const char *path) {
    int32_t header[HEADER_INTS];
    return read_header(path, header) && header[AT_MAGIC] == MAGIC;
}

/* ---- the place of a parameter ---- */

static uint64_t count_of(const struct llmc *l, uint32_t array) {
    char name[64];
    struct gpt_param p;
    snprintf(name, sizeof name, "%s%s", arrays[array].layered ? "h.0." : "", arrays[array].name);
    for (uint32_t i = 0; gpt_param_at(&l->head.model, i, &p); i++)
        if (strcmp(p.name, name) == 0) break;
    return array == 0 ? l->padded_vocab * l->head.model.width : p.count;
}

static uint64_t array_elements(const struct llmc *l, uint32_t array) {
    return count_of(l, array) * (arrays[array].layered ? l->head.model.layers : 1);
}

static uint32_t array_of(const char *name, uint32_t *out_layer) {
    int length = 0;
    *out_layer = 0;
    if (sscanf(name, "h.%" SCNu32 ".%n", out_layer, &length) != 1) length = 0;
    uint32_t array = 0;
    while (strcmp(arrays[array].name, name + length) != 0) array++;
    return array;
}

/* The offset in bytes in the file. */
static uint64_t offset_of(const struct llmc *l, uint32_t array, uint32_t layer) {
    uint64_t elements = layer * count_of(l, array);
    for (uint32_t i = 0; i < array; i++) elements += array_elements(l, i);
    return HEADER_INTS * sizeof(int32_t) + elements * dtype_bytes(l->dtype);
}

/* ---- reading ---- */

static zero_status read_plain(struct llmc *l, uint64_t offset, uint64_t count, float *out,
                              struct zero_error *error) {
    enum { SOME = 4096 };
    uint8_t bytes[SOME * sizeof(float)];
    uint64_t size = dtype_bytes(l->dtype);
    zero_status status = ZERO_OK;
    for (uint64_t at = 0; at < count && !status; at += SOME) {
        uint64_t some = count - at < SOME ? count - at : SOME;
        status = storage_read(&l->file, bytes, some * size, offset + at * size, error);
        weights_widen(bytes, (int)l->dtype, some, out + at);
    }
    return status;
}

static zero_status hold_matrix(struct llmc *l, const struct gpt_param *p, uint64_t offset,
                               struct zero_error *error) {
    if (strcmp(l->held, p->name) == 0) return ZERO_OK;
    free(l->matrix);
    l->held[0] = 0;
    l->matrix = malloc(p->count * sizeof *l->matrix);
    if (!l->matrix) return error_set(error, ZERO_E_MEMORY, "no memory for the matrix %s", p->name);
    zero_status status = read_plain(l, offset, p->count, l->matrix, error);
    if (!status) strcpy(l->held, p->name);
    return status;
}

static zero_status read_weights(struct weights *weights, const struct gpt_param *p, uint64_t first,
                                uint64_t count, float *out, struct zero_error *error) {
    struct llmc *l = (struct llmc *)weights;
    uint32_t layer, array = array_of(p->name, &layer);
    uint64_t offset = offset_of(l, array, layer);
    if (!arrays[array].transposed)
        return read_plain(l, offset + first * dtype_bytes(l->dtype), count, out, error);
    zero_status status = hold_matrix(l, p, offset, error);
    for (uint64_t i = 0; i < count && !status; i++) {
        uint64_t row = (first + i) / p->shape[1], column = (first + i) % p->shape[1];
        out[i] = l->matrix[column * p->shape[0] + row];
    }
    return status;
}

/* ---- opening ---- */

static zero_status open_config(struct llmc *l, const char *path, const int32_t *h, struct zero_error *error) {
    char text[512];
    snprintf(text, sizeof text,
             "{\"train_micro_batch_size_per_gpu\": 1, \"model\": {\"n_positions\": %d, \"vocab_size\": %d, "
             "\"n_layer\": %d, \"n_head\": %d, \"n_embd\": %d, \"tie_word_embeddings\": true}}",
             h[AT_CONTEXT], h[AT_VOCAB], h[AT_LAYERS], h[AT_HEADS], h[AT_WIDTH]);
    TRY(config_read_text(text, strlen(text), path, &l->head.config, error));
    TRY(config_resolve(&l->head.config, 1, error));
    l->head.model = weights_model(&l->head.config.model);
    const char *problem = gpt_config_problem(&l->head.model);
    if (problem) return error_set(error, ZERO_E_CONFIG, "%s: %s", path, problem);
    if (h[AT_PADDED_VOCAB] < h[AT_VOCAB])
        return error_set(error, ZERO_E_IO,
                         "%s is damaged: its padded vocabulary is smaller than its vocabulary", path);
    l->padded_vocab = (uint64_t)h[AT_PADDED_VOCAB];
    return ZERO_OK;
}

static zero_status check_size(struct llmc *l, const char *path, struct zero_error *error) {
    uint64_t bytes;
    zero_status status = storage_size(&l->file, &bytes, error);
    uint64_t expected = offset_of(l, ARRAYS - 1, 0) + count_of(l, ARRAYS - 1) * dtype_bytes(l->dtype);
    if (status || bytes == expected) return status;
    return error_set(error, ZERO_E_IO,
                     "%s has %" PRIu64 " bytes, by its header %" PRIu64 "; the file is damaged", path, bytes,
                     expected);
}

static zero_status open_file(struct llmc *l, const char *path, struct zero_error *error) {
    int32_t header[HEADER_INTS];
    if (!read_header(path, header)) return error_set(error, ZERO_E_IO, "%s cannot be read", path);
    int32_t version = header[AT_VERSION];
    if (version != 3 && version != 5)
        return error_set(error, ZERO_E_UNSUPPORTED,
                         "%s has version %d of llm.c's format; 3 (fp32) and 5 (bf16) are read: write it "
                         "again with llm.c's train_gpt2.py",
                         path, (int)version);
    l->dtype = version == 3 ? DTYPE_F32 : DTYPE_BF16;
    zero_status status = open_config(l, path, header, error);
    if (!status) status = storage_open(storage_posix(), path, &l->file, error);
    return status ? status : check_size(l, path, error);
}

static void close_weights(struct weights *weights) {
    struct llmc *l = (struct llmc *)weights;
    storage_close(&l->file);
    config_free(&l->head.config);
    free(l->matrix);
    free(l);
}

static zero_status open_weights(const char *path, struct weights **out, struct zero_error *error) {
    struct llmc *l = calloc(1, sizeof *l);
    if (!l) return error_set(error, ZERO_E_MEMORY, "no memory to open %s", path);
    l->head.format = &weights_llmc;
    zero_status status = open_file(l, path, error);
    if (status)
        close_weights(&l->head);
    else
        *out = &l->head;
    return status;
}

const struct weights_format weights_llmc = {
    .name = "llm.c",
    .recognises = recognises,
    .open = open_weights,
    .read = read_weights,
    .close = close_weights,
};
