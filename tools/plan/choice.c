#include "tools/plan/choice.h"

#include <stdio.h>
#include <stdlib.h>

#include "engine/base/system/regular_file.h"

static char *read_all(FILE *file) {
    char *text = NULL;
    size_t room = 0;
    ssize_t length = file ? getdelim(&text, &room, 0, file) : -1;
    if (file) fclose(file);
    if (length >= 0) return text;
    free(text);
    return NULL;
}

char *choice_text(const char *path) {
    struct config_text text;
    struct zero_error unused = ERROR_NONE;
    config_text_read(path, &text, &unused);
    return text.text;
}

char *choice_text_in(const char *directory) {
    char path[4096];
    int length = snprintf(path, sizeof path, "%s/config.json", directory);
    return length < (int)sizeof path ? read_all(regular_file_open(path)) : NULL;
}

char *choice_block(const char *model) {
    char *text = choice_text_in(model);
    return text ? text : read_all(fopen(model, "rb"));
}

/* The same rule as in config_resolve, for the model that the user chose. */
uint32_t choice_recompute(const struct config *c, uint64_t layers) {
    const struct config_recompute *r = &c->recompute;
    if (r->checkpoints) return (uint32_t)((layers + r->checkpoints - 1) / r->checkpoints);
    return r->blocks ? (uint32_t)r->blocks : r->on_cpu || r->on_drive || r->every;
}

zero_tier choice_checkpoints(const struct config *c) {
    return c->recompute.on_drive ? ZERO_NVME : c->recompute.on_cpu ? ZERO_CPU : ZERO_DEVICE;
}

zero_status choice_model(const char *model, uint64_t sequence, struct config *config, struct shapes *out,
                         struct zero_error *error) {
    const struct shapes *named = model ? shapes_find(model) : NULL;
    struct zero_error why = ERROR_NONE;
    if (!named && model && config_read_model(config, model, &why))
        return error_set(
            error, ZERO_E_CONFIG,
            "--model: no model has the name \"%s\" (zero plan --models lists them), and as a file: %s", model,
            why.message);
    if (!named && !config->model.given)
        return error_set(
            error, ZERO_E_CONFIG,
            "no model: give --model NAME, or a configuration with a model block; zero plan --models "
            "lists names");
    TRY(named ? ZERO_OK : config_resolve_model(config, error));
    *out = named ? *named : shapes_of(&config->model);
    if (named) out->vocab_block = (uint32_t)config->model.vocab_block;
    if (sequence) out->context = sequence;
    return ZERO_OK;
}
