#include "tools/weights/weights.h"

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/config/key.h"

#define NOTE "source"
#define MODEL "model."

enum { FILE_BYTES_MAX = 256 << 20 };

const char *const source_token_ids[] = {"bos_token_id", "eos_token_id", "pad_token_id", NULL};

static const char *const files[] = {"tokenizer.json",
                                    "tokenizer_config.json",
                                    "special_tokens_map.json",
                                    "added_tokens.json",
                                    "vocab.json",
                                    "merges.txt",
                                    "tokenizer.model",
                                    "chat_template.jinja",
                                    "generation_config.json",
                                    NULL};

zero_status weights_note_source(const struct weights *weights, weights_note_fn set, void *user) {
    const struct config *config = &weights->config;
    zero_status status = *weights->source ? set(user, NOTE, weights->source) : ZERO_OK;
    for (size_t i = 0; *weights->source && source_token_ids[i] && !status; i++) {
        char path[64];
        snprintf(path, sizeof path, MODEL "%s", source_token_ids[i]);
        const struct config_entry *entry = &config->entries[config_key_index(config_key_find(path))];
        if (entry->source == CONFIG_MODEL_FILE && entry->text)
            status = set(user, source_token_ids[i], entry->text);
    }
    return status;
}

const char *source_token_id(const struct manifest *manifest, const char *key) {
    return manifest_note(manifest, key);
}

/* The target is a new file: a link in its place is not followed. */
static zero_status copy_file(struct storage *storage, const char *from, const char *to, const char *name,
                             struct zero_error *error) {
    char source[STORAGE_PATH_BYTES], target[STORAGE_PATH_BYTES], *text;
    struct stat found;
    size_t bytes;
    zero_status status = storage_join(from, name, source, error);
    if (!status) status = storage_join(to, name, target, error);
    if (!status) unlink(target);
    if (status || stat(source, &found) != 0) return status;
    TRY(storage_read_text(storage, source, FILE_BYTES_MAX, &text, &bytes, error));
    status = storage_write_text(storage, target, text, bytes, error);
    free(text);
    return status;
}

zero_status weights_copy_companions(const char *from, const char *to, struct zero_error *error) {
    for (size_t i = 0; files[i]; i++) TRY(copy_file(storage_posix(), from, to, files[i], error));
    return ZERO_OK;
}

static bool is_directory(const char *path) {
    struct stat found;
    return stat(path, &found) == 0 && S_ISDIR(found.st_mode);
}

zero_status source_copy(const struct checkpoint *checkpoint, const char *directory, struct zero_error *left,
                        struct zero_error *error) {
    const char *source = manifest_note(&checkpoint->manifest, NOTE);
    char kept[STORAGE_PATH_BYTES + 32];
    if (!source) return ZERO_OK;
    snprintf(kept, sizeof kept, "%s/../../" WEIGHTS_COMPANIONS, checkpoint->path);
    if (!is_directory(source) && is_directory(kept)) source = kept;
    if (!is_directory(source)) {
        error_set(left, ZERO_E_IO,
                  "the tokenizer's files are not exported: %s, from which the model came, is not there: copy "
                  "them from where it is now",
                  source);
        return ZERO_OK;
    }
    return weights_copy_companions(source, directory, error);
}
