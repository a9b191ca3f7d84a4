#include "tools/command/command.h"

#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/config/key.h"
#include "engine/config/text/scan.h"
#include "engine/config/text/tree.h"

enum { KEY_BYTES = 256 };

/* A text that is no JSON is a string: --set data.path=text.txt. False: no memory. */
static bool parse_value(const char *text, struct json_object **out) {
    struct zero_error ignored = ERROR_NONE;
    zero_status scanned = config_scan_value(text, strlen(text), "", &ignored);
    if (!scanned) return config_tree_parse(text, strlen(text), ZERO_E_CONFIG, out, &ignored) == ZERO_OK;
    *out = scanned == ZERO_E_MEMORY ? NULL : json_object_new_string(text);
    return *out;
}

/* Takes over the value. */
static bool add(struct json_object *to, const char *name, struct json_object *value) {
    bool added = to && json_object_object_add(to, name, value) == 0;
    if (!added) json_object_put(value);
    return added;
}

/* The block `name` in `parent`, made if it is not there. NULL: no memory. */
static struct json_object *block_in(struct json_object *parent, const char *name) {
    struct json_object *block = NULL;
    if (json_object_object_get_ex(parent, name, &block) && json_object_is_type(block, json_type_object))
        return block;
    block = json_object_new_object();
    return block && add(parent, name, block) ? block : NULL;
}

static zero_status no_memory(struct zero_error *error) {
    return error_set(error, ZERO_E_MEMORY, "no memory for the configuration");
}

static zero_status apply_one(struct json_object *root, const char *setting, bool other_model,
                             struct zero_error *error) {
    const char *equals = strchr(setting, '=');
    size_t length = equals ? (size_t)(equals - setting) : 0;
    char key[KEY_BYTES], *at = key;
    if (!length || length >= sizeof key)
        return error_set(error, ZERO_E_ARGUMENT,
                         "--set %.*s: write KEY=VALUE, as in --set optimizer.params.lr=1e-4",
                         utf8_fit(setting, 100), setting);
    memcpy(key, setting, length);
    key[length] = 0;
    if (other_model && strncmp(key, "model.", 6) == 0)
        return error_set(error, ZERO_E_ARGUMENT,
                         "--set %s: --model takes the place of the model block: change the key in its "
                         "config.json, or leave --model out",
                         key);
    struct json_object *block = root;
    for (char *point; (point = strchr(at, '.')); at = point + 1) {
        *point = 0;
        block = block_in(block, at);
    }
    struct json_object *value;
    return parse_value(equals + 1, &value) && add(block, at, value) ? ZERO_OK : no_memory(error);
}

/* Checks only that the text is JSON: the settings may correct errors of the configuration. */
static zero_status read_root(const char *path, struct json_object **out, struct zero_error *error) {
    struct config_text t;
    zero_status status = config_text_read(path, &t, error);
    if (!status) status = config_scan(t.text, t.length, t.name, error);
    if (!status) status = config_tree_parse(t.text, t.length, ZERO_E_CONFIG, out, error);
    free(t.text);
    return status;
}

static zero_status print_with(const char *config_path, const struct option_each *set, bool other_model,
                              char **out, struct zero_error *error) {
    struct json_object *root = NULL;
    *out = NULL;
    zero_status status = read_root(config_path, &root, error);
    for (uint64_t i = 0; i < set->count && !status; i++)
        status = apply_one(root, set->items[i], other_model, error);
    if (!status) *out = config_tree_print(root, JSON_C_TO_STRING_PLAIN);
    json_object_put(root);
    return status || *out ? status : no_memory(error);
}

zero_status settings_text(const char *config_path, char **out, struct zero_error *error) {
    return print_with(config_path, &(struct option_each){.count = 0}, false, out, error);
}

zero_status settings_apply(const char *config_path, const struct option_each *set, bool other_model,
                           char **out, struct zero_error *error) {
    *out = NULL;
    return set->count ? print_with(config_path, set, other_model, out, error) : ZERO_OK;
}

void settings_mark(struct config *config, const struct option_each *set) {
    for (uint64_t i = 0; i < set->count; i++) {
        char path[KEY_BYTES];
        snprintf(path, sizeof path, "%.*s", (int)strcspn(set->items[i], "="), set->items[i]);
        const struct config_key *key = config_key_find(path);
        struct config_entry *entry = key ? &config->entries[config_key_index(key)] : NULL;
        if (entry && entry->source == CONFIG_FILE) entry->source = CONFIG_COMMAND;
    }
}
