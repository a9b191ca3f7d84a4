/* Prints and reads the model block of a checkpoint's configuration in the form that it had in the file: the manifest has
 * "model.rope_scaling.factor", the file has nested blocks. */
#include <stdlib.h>
#include <string.h>

#include "tools/weights/weights.h"

static const char model[] = "model.";
enum { MODEL_BYTES = sizeof model - 1 };

struct printing {
    FILE *out;
    const struct manifest *manifest;
    const char *indent;
    bool (*keeps)(const struct manifest *manifest, const char *key);
};

/* The key below "model"; NULL: the key is not in this block, or `keeps` rejects it. */
static const char *leaf_of(const struct printing *p, uint32_t i) {
    const char *key = p->manifest->config.entry[i].key;
    if (strncmp(key, model, MODEL_BYTES) != 0 || (p->keeps && !p->keeps(p->manifest, key))) return NULL;
    return key + MODEL_BYTES;
}

static bool in_block(const char *leaf, const char *block, size_t bytes) {
    return leaf && strncmp(leaf, block, bytes) == 0 && leaf[bytes] == '.';
}

/* Called for the first entry of a block; prints the whole block. */
static void print_block(const struct printing *p, uint32_t first, size_t bytes) {
    const char *block = leaf_of(p, first), *comma = "";
    fprintf(p->out, "\"%.*s\": {", (int)bytes, block);
    for (uint32_t i = first; i < p->manifest->config.count; i++) {
        const char *leaf = leaf_of(p, i);
        if (!in_block(leaf, block, bytes)) continue;
        fprintf(p->out, "%s\"%s\": %s", comma, leaf + bytes + 1, p->manifest->config.entry[i].value);
        comma = ", ";
    }
    fputs("}", p->out);
}

static bool was_printed(const struct printing *p, uint32_t index, size_t bytes) {
    for (uint32_t i = 0; i < index; i++)
        if (in_block(leaf_of(p, i), leaf_of(p, index), bytes)) return true;
    return false;
}

void weights_print_model(FILE *out, const struct manifest *manifest, bool first, const char *indent,
                         bool (*keeps)(const struct manifest *manifest, const char *key)) {
    struct printing p = {out, manifest, indent, keeps};
    for (uint32_t i = 0; i < manifest->config.count; i++) {
        const char *leaf = leaf_of(&p, i), *point = leaf ? strchr(leaf, '.') : NULL;
        if (!leaf || (point && was_printed(&p, i, (size_t)(point - leaf)))) continue;
        fprintf(out, "%s%s", first ? "" : ",", indent);
        first = false;
        if (point)
            print_block(&p, i, (size_t)(point - leaf));
        else
            fprintf(out, "\"%s\": %s", leaf, manifest->config.entry[i].value);
    }
}

zero_status weights_block_config(const struct manifest *manifest, const char *begin, struct config *out,
                                 struct zero_error *error) {
    char *text = NULL;
    size_t length;
    *out = (struct config){0};
    FILE *f = open_memstream(&text, &length);
    if (!f) return error_set(error, ZERO_E_MEMORY, "no memory for the model's configuration");
    fprintf(f, "%s, \"model\": {", begin);
    weights_print_model(f, manifest, true, " ", NULL);
    fputs("}}", f);
    fclose(f);
    zero_status status = config_read(text, out, error);
    if (!status) status = config_resolve(out, 1, error);
    free(text);
    return status;
}
