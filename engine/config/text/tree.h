/* JSON values, without json-c's header. A value borrows from the tree, for one call. */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "engine/base/error.h"

struct json_object; /* json-c's; NULL is JSON's null */

enum value_kind { VALUE_NULL, VALUE_BOOL, VALUE_INT, VALUE_REAL, VALUE_STRING, VALUE_LIST, VALUE_OBJECT };

struct config_value {
    enum value_kind kind;
    bool boolean; /* OBJECT: whether it holds "enabled": false */
    double real;  /* INT and REAL; BOOL: 1 or 0 */
    int64_t integer;
    const char *string;
    const char *text;           /* as JSON */
    const char *name;           /* of an object's member */
    struct config_value *items; /* LIST, OBJECT: the elements or members, down to the last level */
    uint64_t count;
};

/* `refusal`: the status for a syntax error. ZERO_E_MEMORY: the scanner accepts the text, and json-c does not. */
zero_status config_tree_parse(const char *text, size_t length, zero_status refusal, struct json_object **out,
                              struct zero_error *error);
void config_tree_free(struct json_object *tree); /* NULL is allowed */

/* The tree as text, in a style of json-c; the caller frees it. NULL: no memory for all of it. */
char *config_tree_print(struct json_object *json, int style);

bool config_tree_is_object(const struct json_object *json);
const char *config_tree_text(struct json_object *json); /* borrowed from the tree */

/* Calls `fn` for each member, in the order of the text, until a call fails. */
typedef zero_status (*config_member_fn)(void *user, const char *name, struct json_object *member);
zero_status config_tree_members(struct json_object *object, config_member_fn fn, void *user);

/* Calls `visit` with the value; the value is valid only during this call. */
typedef zero_status (*config_visit_fn)(void *user, const struct config_value *value);
zero_status config_tree_value(struct json_object *json, config_visit_fn visit, void *user,
                              struct zero_error *error);

/* The same for JSON text. */
zero_status config_value_parse(const char *json, config_visit_fn visit, void *user, struct zero_error *error);
