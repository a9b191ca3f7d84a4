/* The only file of config/ that includes json-c. The scanner checks the text of a file before json-c parses it. */
#include "engine/config/tree.h"

#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/config/scan.h"

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

/* The value borrows from `json`. The caller adds the items. */
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

/* Adds the items of all levels. The scanner limits the depth of a document, and so the recursion. */
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

zero_status config_tree_value(json_object *json, config_visit_fn fn, void *user, struct zero_error *error) {
    struct config_value value = value_of(json);
    zero_status status = add_items(json, &value)
                             ? fn(user, &value)
                             : error_set(error, ZERO_E_MEMORY, "no memory for a list of the configuration");
    free_items(&value);
    return status;
}

zero_status config_tree_parse(const char *text, size_t length, zero_status refusal, json_object **out,
                              struct zero_error *error) {
    json_tokener *tokener = json_tokener_new_ex(SCAN_DEPTH_MAX + 2);
    if (!tokener) return error_set(error, ZERO_E_MEMORY, "no memory to parse the configuration");
    *out = json_tokener_parse_ex(tokener, text, (int)length);
    enum json_tokener_error code = json_tokener_get_error(tokener);
    size_t end = json_tokener_get_parse_end(tokener);
    if (code == json_tokener_continue) { /* of a number, only what follows is its end */
        *out = json_tokener_parse_ex(tokener, "", 1);
        code = json_tokener_get_error(tokener);
    }
    json_tokener_free(tokener);
    if (code == json_tokener_success && end == length) return ZERO_OK;
    json_object_put(*out);
    *out = NULL;
    return error_set(error, refusal, "the JSON parser refuses %.*s: %s", utf8_fit(text, 60), text,
                     code ? json_tokener_error_desc(code) : "text follows the value");
}

void config_tree_free(json_object *tree) { json_object_put(tree); }

bool config_tree_is_object(const json_object *json) { return json_object_is_type(json, json_type_object); }

const char *config_tree_text(json_object *json) { return json_object_to_json_string(json); }

zero_status config_tree_members(json_object *object, config_member_fn fn, void *user) {
    json_object_object_foreach(object, name, member) {
        zero_status status = fn(user, name, member);
        if (status) return status;
    }
    return ZERO_OK;
}

zero_status config_value_parse(const char *json, config_visit_fn fn, void *user, struct zero_error *error) {
    json_object *object = NULL;
    zero_status status = config_tree_parse(json, strlen(json), ZERO_E_CONFIG, &object, error);
    if (status == ZERO_OK) status = config_tree_value(object, fn, user, error);
    config_tree_free(object);
    return status;
}
