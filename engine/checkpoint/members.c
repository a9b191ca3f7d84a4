#include "engine/checkpoint/members.h"

#include <string.h>

#include "engine/checkpoint/json.h"

static char *past_space(char *at) { return at + strspn(at, " \t\r\n"); }

/* The end of the string that begins at `at`; or the final zero byte. */
static char *past_string(char *at) {
    for (at++; *at && *at != '"'; at++)
        if (*at == '\\' && at[1]) at++;
    return at + (*at == '"');
}

/* The end of the value that begins at `at`: a comma or a closing bracket outside of it, or the final zero byte. */
static char *past_value(char *at) {
    for (size_t depth = 0; *at;) {
        if (*at == '"') {
            at = past_string(at);
            continue;
        }
        if (!depth && (*at == ',' || *at == '}' || *at == ']')) break;
        depth += *at == '{' || *at == '[';
        depth -= *at == '}' || *at == ']';
        at++;
    }
    return at;
}

zero_status members_decode(char *text, size_t bytes, const char *name, struct zero_error *error) {
    struct json *string;
    zero_status status = json_parse(text, bytes, name, &string, error);
    if (status) return status;
    const char *decoded = json_string(string);
    if (decoded)
        strcpy(text, decoded); /* never longer than with its quotes */
    else
        status = error_set(error, ZERO_E_IO, "%s is not JSON: a name is no string, or has a zero byte", name);
    json_free(string);
    return status;
}

static zero_status no_object(const char *name, struct zero_error *error) {
    return error_set(error, ZERO_E_IO,
                     "%s is not JSON: its object has no end, or a member is no \"name\": value", name);
}

/* Reads the member at *at, and leaves *at at the comma or bracket behind it. */
static zero_status read_member(char **at, const char *name, members_fn fn, void *user,
                               struct zero_error *error) {
    char *key = *at;
    if (*key != '"') return no_object(name, error);
    char *key_end = past_string(key), *colon = past_space(key_end);
    if (*colon != ':') return no_object(name, error);
    char *value = past_space(colon + 1), *end = past_value(value), behind = *end;
    if (behind != ',' && behind != '}') return no_object(name, error);
    *key_end = 0, *end = 0; /* the caller has seen the colon */
    zero_status status = members_decode(key, (size_t)(key_end - key), name, error);
    if (!status) status = fn(user, key, value, (size_t)(end - value), error);
    *end = behind, *at = end;
    return status;
}

zero_status members_each(char *text, size_t bytes, const char *name, members_fn fn, void *user,
                         struct zero_error *error) {
    char *at = past_space(text);
    if (strlen(text) != bytes) return error_set(error, ZERO_E_IO, "%s is not JSON: it has a zero byte", name);
    if (*at != '{') return no_object(name, error);
    at = past_space(at + 1);
    if (*at == '}') return *past_space(at + 1) ? no_object(name, error) : ZERO_OK;
    for (;;) {
        zero_status status = read_member(&at, name, fn, user, error);
        if (status) return status;
        if (*at == '}') return *past_space(at + 1) ? no_object(name, error) : ZERO_OK;
        at = past_space(at + 1);
    }
}
