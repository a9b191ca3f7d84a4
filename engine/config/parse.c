/* From text to values: the only file that knows json-c. The scanner has checked the text before json-c sees
 * it. */
#include <json-c/json.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/read.h"
#include "engine/config/scan.h"
#include "engine/config/suggest.h"
#include "engine/config/value.h"

enum { PATH_MAX_BYTES = 256 };

static enum value_kind kind_of(json_object *json) {
    switch (json_object_get_type(json)) {
    case json_type_boolean:
        return VALUE_BOOL;
    case json_type_double:
        return VALUE_REAL;
    case json_type_int:
        return VALUE_INT;
    case json_type_object:
        return VALUE_OBJECT;
    case json_type_array:
        return VALUE_LIST;
    case json_type_string:
        return VALUE_STRING;
    case json_type_null:
        break;
    }
    return VALUE_NULL;
}

/* Borrows from `json`; items are the caller's to add. */
static struct config_value value_of(json_object *json) {
    struct config_value value = {.kind = kind_of(json)};
    json_object *enabled;
    value.text =
        json_object_to_json_string_ext(json, JSON_C_TO_STRING_SPACED | JSON_C_TO_STRING_NOSLASHESCAPE);
    if (!value.text) value.text = "";
    switch (value.kind) {
    case VALUE_BOOL:
        value.boolean = json_object_get_boolean(json);
        break;
    case VALUE_STRING:
        value.string = json_object_get_string(json);
        break;
    case VALUE_LIST:
        value.count = json_object_array_length(json);
        break;
    case VALUE_INT:
        value.integer = json_object_get_int64(json);
        value.real = (double)value.integer;
        break;
    case VALUE_REAL:
        value.real = json_object_get_double(json);
        break;
    case VALUE_OBJECT:
        value.count = (uint64_t)json_object_object_length(json);
        value.boolean = json_object_object_get_ex(json, "enabled", &enabled) &&
                        json_object_is_type(enabled, json_type_boolean) && !json_object_get_boolean(enabled);
        break;
    case VALUE_NULL:
        break;
    }
    return value;
}

static void free_items(struct config_value *value) {
    for (uint64_t i = 0; value->items && i < value->count; i++) free_items(&value->items[i]);
    free(value->items);
}

/* As deep as the scanner lets a document be. */
static bool add_items(json_object *json, struct config_value *value) {
    if ((value->kind != VALUE_LIST && value->kind != VALUE_OBJECT) || !value->count) return true;
    value->items = calloc(value->count, sizeof *value->items);
    if (!value->items) return false;
    bool good = true;
    if (value->kind == VALUE_LIST) {
        for (uint64_t i = 0; i < value->count && good; i++) {
            json_object *item = json_object_array_get_idx(json, i);
            value->items[i] = value_of(item);
            good = add_items(item, &value->items[i]);
        }
        return good;
    }
    struct config_value *next = value->items;
    json_object_object_foreach(json, name, member) {
        if (!good) break;
        *next = value_of(member);
        next->name = name;
        good = add_items(member, next++);
    }
    return good;
}

static zero_status visit(json_object *json, config_visit_fn fn, void *user, struct zero_error *error) {
    struct config_value value = value_of(json);
    zero_status status = add_items(json, &value)
                             ? fn(user, &value)
                             : error_set(error, ZERO_E_MEMORY, "no memory for a list of the configuration");
    free_items(&value);
    return status;
}

/* `refusal`: what a syntax error means. After the scanner has passed the text it is a bug of ours. */
static zero_status tree(const char *text, size_t length, zero_status refusal, json_object **out,
                        struct zero_error *error) {
    json_tokener *tokener = json_tokener_new_ex(SCAN_DEPTH_MAX + 2);
    if (!tokener) return error_set(error, ZERO_E_MEMORY, "no memory to parse the configuration");
    json_tokener_set_flags(tokener, JSON_TOKENER_STRICT);
    *out = json_tokener_parse_ex(tokener, text, (int)length + 1); /* the final zero ends a number */
    enum json_tokener_error code = json_tokener_get_error(tokener);
    json_tokener_free(tokener);
    if (code == json_tokener_success) return ZERO_OK;
    return error_set(error, refusal, "the JSON parser refuses %.60s: %s", text,
                     json_tokener_error_desc(code));
}

zero_status config_value_parse(const char *json, config_visit_fn fn, void *user, struct zero_error *error) {
    json_object *object = NULL;
    zero_status status = tree(json, strlen(json), ZERO_E_CONFIG, &object, error);
    if (status == ZERO_OK) status = visit(object, fn, user, error);
    json_object_put(object);
    return status;
}

/* ---- walking the document ---- */

struct walk {
    struct config *config;
    enum config_source source;
    struct zero_error *error;
};

struct member {
    struct walk *walk;
    const struct config_key *key;
};

static zero_status store_member(void *user, const struct config_value *value) {
    struct member *m = user;
    return config_store(m->walk->config, m->key, value, m->walk->source, m->walk->error);
}

static zero_status walk_object(struct walk *walk, json_object *object, const char *parent);

static zero_status unknown_key(struct walk *walk, const char *parent, const char *leaf) {
    char hint[400], shown[64];
    size_t length = strlen(leaf), most = length;
    if (strchr(leaf, '.'))
        snprintf(hint, sizeof hint, "a point in a key means nothing: write nested objects");
    else
        suggest_key(parent, leaf, hint, sizeof hint);
    if (most > 60) most = 60;
    while (most > 0 && most < length && ((unsigned char)leaf[most] & 0xC0) == 0x80) most--;
    snprintf(shown, sizeof shown, "%.*s", (int)most, leaf);
    for (char *c = shown; *c; c++) {
        if ((unsigned char)*c < 0x20) *c = '?';
    }
    return error_set(walk->error, ZERO_E_CONFIG, "%s%s%s: unknown key: %s", parent, *parent ? "." : "", shown,
                     hint);
}

static zero_status walk_member(struct walk *walk, const char *parent, const char *leaf, json_object *json) {
    char path[PATH_MAX_BYTES];
    int length = snprintf(path, sizeof path, "%s%s%s", parent, *parent ? "." : "", leaf);
    if (length >= PATH_MAX_BYTES || strchr(leaf, '.')) return unknown_key(walk, parent, leaf);
    const struct config_key *key = config_key_find(path);
    struct member member = {walk, key};
    if (key) return visit(json, store_member, &member, walk->error);
    if (!config_key_is_object(path)) return unknown_key(walk, parent, leaf);
    if (!json) return ZERO_OK; /* null: the block is not given */
    if (json_object_is_type(json, json_type_object)) return walk_object(walk, json, path);
    return error_set(walk->error, ZERO_E_CONFIG,
                     "%s: %.60s stands where an object is expected: see zero config --help", path,
                     json_object_to_json_string(json));
}

/* The member that selects what the others mean comes first, so that an unsupported choice is named, not its
 * consequences. */
static bool selects(const char *leaf) {
    static const char *const names[] = {"type", "model_type", "rope_type", "enabled"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(leaf, names[i]) == 0) return true;
    return false;
}

static zero_status walk_object(struct walk *walk, json_object *object, const char *parent) {
    if (strcmp(parent, "model") == 0) walk->config->model.given = true;
    for (int pass = 0; pass < 2; pass++) {
        json_object_object_foreach(object, leaf, json) {
            if (selects(leaf) != (pass == 0)) continue;
            zero_status status = walk_member(walk, parent, leaf, json);
            if (status) return status;
        }
    }
    return ZERO_OK;
}

zero_status config_parse(struct config *config, const char *text, size_t length, const char *name,
                         const char *parent, enum config_source source, struct zero_error *error) {
    json_object *object = NULL;
    struct walk walk = {config, source, error};
    zero_status status = config_scan(text, length, name, error);
    if (status == ZERO_OK) status = tree(text, length, ZERO_E_INTERNAL, &object, error);
    if (status == ZERO_OK) status = walk_object(&walk, object, parent);
    json_object_put(object);
    return status;
}
