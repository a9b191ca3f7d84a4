/* The only file of checkpoint/ that includes json-c. */
#include "engine/checkpoint/json.h"

#include <json-c/json.h>
#include <limits.h>
#include <math.h>
#include <string.h>

#include "engine/base/utf8.h"

enum { DEPTH_MAX = 32 };

/* A manifest of the largest size takes less. */
static const uint64_t DOCUMENT_BYTES_MAX = 1ull << 31;

static json_object *object_of(const struct json *value) { return (json_object *)(uintptr_t)value; }
static const struct json *value_of(const json_object *object) { return (const struct json *)object; }

/* Reads no value; refuses what json-c takes beyond JSON: comments, single quotes, NaN, Infinity, words in capitals, a comma before a
 * bracket, and control characters in a string. (json-c's own strict mode refuses fewer of them, and 0.18 also refuses every letter
 * beyond ASCII.) *out_memory: what json-c takes for the values, about: a number 64 bytes, a list 128, an object 800. An empty object
 * has three bytes of text, so the memory is counted before json-c reads. */
static bool is_json(const char *text, size_t bytes, uint64_t *out_memory) {
    bool quoted = false;
    char before = 0; /* the last character that is no space */
    *out_memory = 0;
    for (size_t i = 0; i < bytes; i++) {
        char c = text[i];
        if (quoted) {
            if ((uint8_t)c < 0x20) return false;
            if (c == '\\' && (uint8_t)text[++i] < 0x20) return false;
            quoted = c != '"';
            continue;
        }
        if (!strchr(" \t\r\n{}[]:,\"+-.0123456789Eaeflnrstu", c)) return false;
        if (before == ',' && (c == ']' || c == '}')) return false;
        if (!strchr(" \t\r\n", c)) before = c;
        quoted = c == '"';
        *out_memory += c == ',' ? 64 : c == '[' ? 128 : c == '{' ? 800 : 0;
    }
    return true;
}

zero_status json_parse(const char *text, size_t bytes, const char *name, struct json **out,
                       struct zero_error *error) {
    if (bytes >= INT_MAX || memchr(text, 0, bytes))
        return error_set(error, ZERO_E_IO, "%s is not JSON: it is too long, or has a zero byte", name);
    uint64_t memory;
    if (!is_json(text, bytes, &memory))
        return error_set(error, ZERO_E_IO, "%s is not JSON: it has a character where JSON allows none", name);
    if (memory > DOCUMENT_BYTES_MAX)
        return error_set(error, ZERO_E_IO, "%s has more values than any file that is read here", name);
    /* json-c's own check lets overlong forms through */
    if (utf8_prefix(text, bytes) < bytes)
        return error_set(error, ZERO_E_IO, "%s is not JSON: it is not UTF-8", name);
    json_tokener *tokener = json_tokener_new_ex(DEPTH_MAX);
    if (!tokener) return error_set(error, ZERO_E_MEMORY, "no memory to parse %s", name);
    /* includes the zero byte, which ends a number */
    json_object *object = json_tokener_parse_ex(tokener, text, (int)bytes + 1);
    enum json_tokener_error code = json_tokener_get_error(tokener);
    if (code == json_tokener_success && json_tokener_get_parse_end(tokener) < bytes)
        code = json_tokener_error_parse_unexpected; /* text behind the value */
    json_tokener_free(tokener);
    if (code == json_tokener_success && object) {
        *out = (struct json *)object;
        return ZERO_OK;
    }
    json_object_put(object);
    return error_set(error, ZERO_E_IO, "%s is not JSON: %s", name,
                     code == json_tokener_success ? "it is null" : json_tokener_error_desc(code));
}

void json_free(struct json *document) { json_object_put((json_object *)document); }

bool json_is_object(const struct json *value) {
    return json_object_is_type(object_of(value), json_type_object);
}
bool json_is_list(const struct json *value) { return json_object_is_type(object_of(value), json_type_array); }

const struct json *json_get(const struct json *object, const char *key) {
    json_object *found = NULL;
    if (!json_is_object(object)) return NULL;
    json_object_object_get_ex(object_of(object), key, &found);
    return value_of(found);
}

uint64_t json_count(const struct json *value) {
    if (json_is_object(value)) return (uint64_t)json_object_object_length(object_of(value));
    return json_is_list(value) ? (uint64_t)json_object_array_length(object_of(value)) : 0;
}

const struct json *json_at(const struct json *list, uint64_t index) {
    return index < json_count(list) && json_is_list(list)
               ? value_of(json_object_array_get_idx(object_of(list), (size_t)index))
               : NULL;
}

bool json_integer(const struct json *value, uint64_t *out) {
    if (!json_object_is_type(object_of(value), json_type_int)) return false;
    int64_t integer = json_object_get_int64(object_of(value));
    if (integer < 0 || integer == INT64_MAX) return false; /* json-c returns INT64_MAX for larger numbers */
    *out = (uint64_t)integer;
    return true;
}

bool json_real(const struct json *value, double *out) {
    json_object *object = object_of(value);
    if (!json_object_is_type(object, json_type_double) && !json_object_is_type(object, json_type_int))
        return false;
    *out = json_object_get_double(object);
    return isfinite(*out);
}

bool json_flag(const struct json *value, bool *out) {
    if (!json_object_is_type(object_of(value), json_type_boolean)) return false;
    *out = json_object_get_boolean(object_of(value));
    return true;
}

const char *json_string(const struct json *value) {
    if (!json_object_is_type(object_of(value), json_type_string)) return NULL;
    const char *text = json_object_get_string(object_of(value));
    return strlen(text) == (size_t)json_object_get_string_len(object_of(value)) ? text : NULL;
}

const char *json_text(const struct json *value) {
    return json_object_to_json_string_ext(object_of(value),
                                          JSON_C_TO_STRING_PLAIN | JSON_C_TO_STRING_NOSLASHESCAPE);
}

zero_status json_each(const struct json *object, json_member_fn fn, void *user, struct zero_error *error) {
    if (!json_is_object(object)) return ZERO_OK;
    struct json_object_iterator at = json_object_iter_begin(object_of(object)),
                                end = json_object_iter_end(object_of(object));
    zero_status status = ZERO_OK;
    for (; !status && !json_object_iter_equal(&at, &end); json_object_iter_next(&at))
        status = fn(user, json_object_iter_peek_name(&at), value_of(json_object_iter_peek_value(&at)), error);
    return status;
}

static bool is_plain(char c) { return (unsigned char)c >= 0x20 && c != '"' && c != '\\'; }

/* The number of bytes from `at` that stand unchanged in a JSON string. */
static size_t plain_length(const char *at, const char *end) {
    const char *from = at;
    size_t bytes;
    while (at < end && is_plain(*at) && (bytes = utf8_length(at, end))) at += bytes;
    return (size_t)(at - from);
}

void json_write_string(FILE *file, const char *text) {
    fputc('"', file);
    for (const char *c = text, *end = text + strlen(text); c < end;) {
        size_t bytes = plain_length(c, end);
        if (bytes)
            fwrite(c, 1, bytes, file);
        else if (is_plain(*c)) /* not UTF-8 */
            fputs("\\ufffd", file);
        else if ((unsigned char)*c < 0x20)
            fprintf(file, "\\u%04x", (unsigned)*c);
        else
            fprintf(file, "\\%c", *c);
        c += bytes ? bytes : 1;
    }
    fputc('"', file);
}

/* ---- members without a document ---- */

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
        TRY(read_member(&at, name, fn, user, error));
        if (*at == '}') return *past_space(at + 1) ? no_object(name, error) : ZERO_OK;
        at = past_space(at + 1);
    }
}
