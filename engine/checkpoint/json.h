/* Reads JSON documents, and writes strings. Only json.c includes json-c. The caller bounds the size of a document.
 * Nothing in a document is trusted: every accessor takes NULL and values of any type, and reports a value of the
 * wrong type. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "engine/base/error.h"

struct json; /* a value; it lives as long as its document */

/* `text` has `bytes` bytes, followed by a zero byte. `name` is for messages. */
zero_status json_parse(const char *text, size_t bytes, const char *name, struct json **out,
                       struct zero_error *error);
void json_free(struct json *document);

const struct json *json_get(const struct json *object, const char *key); /* NULL: none */
/* elements of a list, members of an object; else 0 */
uint64_t json_count(const struct json *value);
const struct json *json_at(const struct json *list, uint64_t index);
bool json_is_object(const struct json *value);
bool json_is_list(const struct json *value);

bool json_integer(const struct json *value, uint64_t *out); /* an integer from 0 to 2^63 - 2 */
bool json_real(const struct json *value, double *out);      /* finite */
bool json_flag(const struct json *value, bool *out);
const char *json_string(const struct json *value); /* NULL: not a string, or a string with a zero byte */
/* the value as JSON text; valid until the next call on the value */
const char *json_text(const struct json *value);

/* Calls `fn` for each member, in the order of the text; ends at the first failure. */
typedef zero_status (*json_member_fn)(void *user, const char *key, const struct json *value,
                                      struct zero_error *error);
zero_status json_each(const struct json *object, json_member_fn fn, void *user, struct zero_error *error);

/* Writes `text` quoted and escaped. A byte that is not UTF-8 becomes U+FFFD, so that any text can be read again. */
void json_write_string(FILE *file, const char *text);

/* ---- members without a document: a header may have a million of them ---- */

/* `value` is the text of a value, which was not checked; a zero byte ends it during the call. `key` lasts as long as the text. */
typedef zero_status (*members_fn)(void *user, const char *key, char *value, size_t bytes,
                                  struct zero_error *error);

/* Calls `fn` for each member of the object at `text`, in their order; ends at the first failure. Spaces may follow the object.
 * `text` has `bytes` bytes, followed by a zero byte; the keys are decoded in it. `name` is for messages. */
zero_status members_each(char *text, size_t bytes, const char *name, members_fn fn, void *user,
                         struct zero_error *error);

/* Decodes the JSON string of `bytes` bytes at `text`, which a zero byte follows, in its place. ZERO_E_IO: it is none, or has a zero
 * byte. */
zero_status members_decode(char *text, size_t bytes, const char *name, struct zero_error *error);
