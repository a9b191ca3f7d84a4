/* The only file of config/ that includes json-c. The scanner checks the text of a file before json-c parses it. */
#include "engine/config/text/tree.h"

#include <json-c/json.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"
#include "engine/config/text/scan.h"

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

static bool is_number(enum value_kind kind) {
    return kind == VALUE_BOOL || kind == VALUE_INT || kind == VALUE_REAL;
}

/* The value borrows from `json`. The caller adds the items. */
static struct config_value value_of(json_object *json) {
    struct config_value value = {.kind = kind_of(json)};
    json_object *enabled;
    value.text =
        json_object_to_json_string_ext(json, JSON_C_TO_STRING_SPACED | JSON_C_TO_STRING_NOSLASHESCAPE);
    switch (value.kind) {
    case VALUE_BOOL:
        value.boolean = json_object_get_boolean(json);
        value.real = value.boolean;
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
        value.boolean = json_object_object_get_ex(json, "enabled", &enabled) && is_number(kind_of(enabled)) &&
                        !json_object_get_boolean(enabled);
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

/* Adds the items of all levels. False: there was no memory for an item, or for a text. The scanner limits the depth of a document, and so the recursion. */
static bool add_items(json_object *json, struct config_value *value) {
    if (!value->text) return false;
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

/* As the scanner counts a value. */
static uint64_t content_of(json_object *json) {
    uint64_t content = json ? 2 : 1;
    if (json_object_is_type(json, json_type_string))
        return content + (uint64_t)json_object_get_string_len(json) + 1;
    if (json_object_is_type(json, json_type_array))
        for (size_t i = 0; i < json_object_array_length(json); i++)
            content += content_of(json_object_array_get_idx(json, i));
    if (json_object_is_type(json, json_type_object)) {
        json_object_object_foreach(json, name, member) content += strlen(name) + 1 + content_of(member);
    }
    return content;
}

/* Where memory ends, json-c leaves out members and parts of strings, of a tree and of a text, and says nothing. */
static zero_status check_whole(json_object *json, const char *text, size_t length, struct zero_error *error) {
    uint64_t content;
    zero_status status = config_scan_content(text, length, &content, error);
    if (status || content == content_of(json)) return status;
    return error_set(error, ZERO_E_MEMORY, "no memory for a value of the configuration");
}

zero_status config_tree_value(json_object *json, config_visit_fn fn, void *user, struct zero_error *error) {
    struct config_value value = value_of(json);
    zero_status status = ZERO_OK;
    if (!add_items(json, &value))
        status = error_set(error, ZERO_E_MEMORY, "no memory for a value of the configuration");
    if (!status) status = check_whole(json, value.text, strlen(value.text), error);
    if (!status) status = fn(user, &value);
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
    bool taken = code == json_tokener_success && end == length;
    struct zero_error scanned = ERROR_NONE;
    zero_status status = check_whole(*out, text, length, &scanned);
    if (taken && !status) return ZERO_OK;
    json_object_put(*out);
    *out = NULL;
    if (!status || status == ZERO_E_MEMORY)
        return error_set(error, ZERO_E_MEMORY, "no memory to parse the configuration");
    return error_set(error, refusal, "the JSON parser refuses %.*s: %s", utf8_fit(text, 60), text,
                     code ? json_tokener_error_desc(code) : "text follows the value");
}

char *config_tree_print(json_object *json, int style) {
    struct zero_error ignored = ERROR_NONE;
    const char *text = json_object_to_json_string_ext(json, style);
    return text && !check_whole(json, text, strlen(text), &ignored) ? strdup(text) : NULL;
}

void config_tree_free(json_object *tree) { json_object_put(tree); }

bool config_tree_is_object(const json_object *json) { return json_object_is_type(json, json_type_object); }

const char *config_tree_text(json_object *json) { return json_object_to_json_string(json); }

zero_status config_tree_members(json_object *object, config_member_fn fn, void *user) {
    json_object_object_foreach(object, name, member) { TRY(fn(user, name, member)); }
    return ZERO_OK;
}

zero_status config_value_parse(const char *json, config_visit_fn fn, void *user, struct zero_error *error) {
    json_object *object = NULL;
    zero_status status = config_tree_parse(json, strlen(json), ZERO_E_CONFIG, &object, error);
    if (status == ZERO_OK) status = config_tree_value(object, fn, user, error);
    config_tree_free(object);
    return status;
}
