/* Reads the text of a configuration from an argument, a file or the command line. */
#include "engine/config/value.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/base/system/regular_file.h"
#include "engine/config/key.h"
#include "engine/config/text/scan.h"

/* Reads up to one byte more than the scanner allows, so that the scanner reports a file that is too large. */
static zero_status read_stream(FILE *file, const char *path, char **out_text, size_t *out_length,
                               struct zero_error *error) {
    size_t capacity = 1 << 16, length = 0;
    char *text = NULL;
    for (;;) {
        char *grown = realloc(text, capacity + 1);
        if (!grown) {
            free(text);
            return error_set(error, ZERO_E_MEMORY, "%s: no memory to read it", path);
        }
        text = grown;
        length += fread(text + length, 1, capacity - length, file);
        if (length < capacity || length > SCAN_BYTES_MAX) break;
        capacity *= 2;
    }
    if (ferror(file)) {
        free(text);
        return error_set(error, ZERO_E_IO, "%s: cannot be read: %s", path, strerror(errno));
    }
    text[length] = 0;
    *out_text = text, *out_length = length;
    return ZERO_OK;
}

/* The file that the user names may be a pipe; one that a directory holds may not. */
static zero_status read_file(const char *path, bool held, char **out_text, size_t *out_length,
                             struct zero_error *error) {
    FILE *file = held ? regular_file_open(path) : fopen(path, "re");
    if (!file)
        return error_set(error, ZERO_E_IO,
                         "%s: cannot be opened: %s; give a file, or JSON that starts with {", path,
                         regular_file_why());
    zero_status status = read_stream(file, path, out_text, out_length, error);
    fclose(file);
    return status;
}

static zero_status set_default(struct config *config, const struct config_key *key,
                               struct zero_error *error) {
    if (key->use == KEY_USED && key->fallback)
        return config_store_text(config, key, key->fallback, CONFIG_DEFAULT, error);
    if (key->use == KEY_USED && (key->type == KEY_INT || key->type == KEY_LIMIT))
        *(uint64_t *)((char *)config + key->offset) = 0;
    return config_entry_set(config, key, CONFIG_DEFAULT, key->fallback, error);
}

static zero_status set_defaults(struct config *config, struct zero_error *error) {
    for (uint32_t i = 0; i < config_key_count(); i++) TRY(set_default(config, config_key_at(i), error));
    return ZERO_OK;
}

static bool of_model(const char *path_or_line) { return strncmp(path_or_line, "model.", 6) == 0; }

/* Removes the values and the log lines of the model block. */
static zero_status forget_model(struct config *config, struct zero_error *error) {
    uint64_t kept = 0;
    for (uint64_t i = 0; i < config->line_count; i++) {
        if (of_model(config->lines[i]))
            free(config->lines[i]);
        else
            config->lines[kept++] = config->lines[i];
    }
    config->line_count = kept;
    config->model.given = false;
    for (uint32_t i = 0; i < config_key_count(); i++) {
        if (!of_model(config_key_at(i)->path)) continue;
        config->entries[i].null = false;
        TRY(set_default(config, config_key_at(i), error));
    }
    return ZERO_OK;
}

static zero_status begin(struct config *out, const char *name, struct zero_error *error) {
    *out = (struct config){0};
    out->entries = calloc(config_key_count(), sizeof *out->entries);
    out->name = strdup(name);
    if (!out->entries || !out->name) {
        config_free(out);
        return error_set(error, ZERO_E_MEMORY, "no memory for the configuration");
    }
    return set_defaults(out, error);
}

zero_status config_read_text(const char *text, size_t length, const char *name, struct config *out,
                             struct zero_error *error) {
    zero_status status = begin(out, name, error);
    char *strict = NULL;
    if (status == ZERO_OK) status = config_scan_edited(text, length, name, &strict, error);
    if (status == ZERO_OK) status = config_parse(out, strict, strlen(strict), name, "", CONFIG_FILE, error);
    free(strict);
    return status;
}

/* Adds the file's name to an error message; the scanner's messages already have it. */
static zero_status name_file(zero_status status, const char *path, struct zero_error *error) {
    char message[sizeof error->message];
    if (status == ZERO_OK || strncmp(error->message, path, strlen(path)) == 0) return status;
    memcpy(message, error->message, sizeof message);
    error->code = ZERO_OK;
    return error_set(error, status, "%s: %s", path, message);
}

static const char unnamed[] = "configuration", encoded[] = "configuration in base64";

zero_status config_text_read(const char *json_or_path, struct config_text *out, struct zero_error *error) {
    bool is_text = config_scan_is_text(json_or_path), no_path = is_text || access(json_or_path, F_OK);
    *out = (struct config_text){.name = is_text ? unnamed : json_or_path};
    char *decoded = no_path && !is_text ? config_base64_text(json_or_path) : NULL, *read = NULL;
    if (no_path && !is_text && !decoded && config_base64_like(json_or_path))
        return error_set(error, ZERO_E_CONFIG,
                         "the configuration is no file, and no base64 of one: give a path, JSON that starts "
                         "with {, or all of its base64");
    const char *text = decoded ? decoded : json_or_path;
    size_t length = strlen(text);
    if (decoded) out->name = encoded;
    zero_status status = is_text || decoded ? ZERO_OK : read_file(json_or_path, false, &read, &length, error);
    if (!status) status = config_scan_edited(read ? read : text, length, out->name, &out->text, error);
    if (!status) out->length = strlen(out->text);
    free(decoded);
    free(read);
    return status;
}

zero_status config_text_parse(const struct config_text *text, struct config *out, struct zero_error *error) {
    zero_status status = config_read_text(text->text, text->length, text->name, out, error);
    return text->name == unnamed || text->name == encoded ? status : name_file(status, text->name, error);
}

zero_status config_read(const char *json_or_path, struct config *out, struct zero_error *error) {
    struct config_text text;
    *out = (struct config){0};
    zero_status status = config_text_read(json_or_path, &text, error);
    if (!status) status = config_text_parse(&text, out, error);
    free(text.text);
    return status;
}

zero_status config_read_model(struct config *config, const char *path, struct zero_error *error) {
    struct stat info;
    bool there = stat(path, &info) == 0, directory = there && S_ISDIR(info.st_mode);
    const char *ending = strrchr(path, '.');
    if (!there)
        return error_set(error, ZERO_E_IO,
                         "%s: there is no such directory of a model: a name of the Hugging Face Hub has to "
                         "be downloaded first (hf download NAME --local-dir DIR)",
                         path);
    if (!directory && ending && strcmp(ending, ".safetensors") == 0)
        return error_set(error, ZERO_E_IO,
                         "%s holds weights: give the directory, which has its config.json, too", path);
    char *file, *text;
    size_t length;
    if (asprintf(&file, "%s%s", path, directory ? "/config.json" : "") < 0)
        return error_set(error, ZERO_E_MEMORY, "no memory for a path");
    zero_status status = read_file(file, directory, &text, &length, error);
    if (status == ZERO_OK) {
        status = forget_model(config, error);
        if (status == ZERO_OK)
            status = config_parse(config, text, length, file, "model", CONFIG_MODEL_FILE, error);
        free(text);
        name_file(status, file, error);
    }
    free(file);
    return status;
}

static zero_status find_key(const char *path, const struct config_key **out, struct zero_error *error) {
    *out = config_key_find(path);
    return *out ? ZERO_OK
                : error_set(error, ZERO_E_ARGUMENT, "%s: unknown key: zero config --help lists all keys",
                            path);
}

zero_status config_set(struct config *config, const char *path, const char *json, struct zero_error *error) {
    const struct config_key *key;
    zero_status status = find_key(path, &key, error);
    if (status == ZERO_OK) status = config_scan_value(json, strlen(json), path, error);
    if (status == ZERO_OK) status = config_store_text(config, key, json, CONFIG_COMMAND, error);
    if (status == ZERO_OK && of_model(path)) config->model.given = true;
    return status;
}

/* The paths as text for people. This text is never parsed again, because the bytes of a path need not be UTF-8. */
static char *join(const char *const *paths, uint64_t count) {
    char *text = NULL;
    size_t length;
    FILE *out = open_memstream(&text, &length);
    if (!out) return NULL;
    for (uint64_t i = 0; i < count; i++) fprintf(out, "%s\"%s\"", i ? ", " : "[", paths[i]);
    fputs(count ? "]" : "[]", out);
    return fclose(out) == 0 ? text : (free(text), NULL);
}

zero_status config_set_paths(struct config *config, const char *path, const char *const *paths,
                             uint64_t count, struct zero_error *error) {
    const struct config_key *key;
    zero_status status = find_key(path, &key, error);
    if (status) return status;
    struct config_value *items = calloc(count ? count : 1, sizeof *items);
    char *text = join(paths, count);
    if (items && text) {
        for (uint64_t i = 0; i < count; i++)
            items[i] = (struct config_value){.kind = VALUE_STRING, .string = paths[i], .text = paths[i]};
        struct config_value list = {.kind = VALUE_LIST, .text = text, .items = items, .count = count};
        status = config_store(config, key, &list, CONFIG_COMMAND, error);
    } else {
        status = error_set(error, ZERO_E_MEMORY, "%s: no memory for the paths", path);
    }
    free(items);
    free(text);
    return status;
}

static void free_paths(struct config_paths *paths) {
    for (uint64_t i = 0; i < paths->count; i++) free(paths->items[i]);
    free(paths->items);
}

void config_free(struct config *config) {
    for (uint32_t i = 0; config->entries && i < config_key_count(); i++) free(config->entries[i].text);
    for (uint64_t i = 0; i < config->line_count; i++) free(config->lines[i]);
    config_groups_free(&config->groups);
    free_paths(&config->optimizer_paths);
    free_paths(&config->param_paths);
    free_paths(&config->recompute.paths);
    free_paths(&config->data.paths);
    free_paths(&config->data.eval.paths);
    for (uint32_t i = 0; i < config_key_count(); i++)
        if (config_key_at(i)->type == KEY_STRING && config_key_at(i)->use == KEY_USED)
            free(*(char **)(void *)((char *)config + config_key_at(i)->offset));
    free(config->entries);
    free(config->lines);
    free(config->name);
    *config = (struct config){0};
}
