/* JSON documents for reading, and strings for writing. json-c stays behind json.c. A document is bounded by
 * its caller before it gets here; nothing in it is trusted: every accessor takes NULL and any type, and says
 * when a value is not what was asked for. */
#ifndef ZERO_ENGINE_CHECKPOINT_JSON_H
#define ZERO_ENGINE_CHECKPOINT_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "engine/base/error.h"

struct json; /* a value; values of a document live as long as it */

/* `text`: `bytes` of it, a zero behind them. `name`: for messages. */
zero_status json_parse(const char *text, size_t bytes, const char *name, struct json **out,
                       struct zero_error *error);
void json_free(struct json *document);

const struct json *json_get(const struct json *object, const char *key); /* NULL: none */
uint64_t json_count(const struct json *value);                           /* of a list or object; else 0 */
const struct json *json_at(const struct json *list, uint64_t index);
bool json_is_object(const struct json *value);
bool json_is_list(const struct json *value);

bool json_integer(const struct json *value, uint64_t *out); /* whole, 0 to 2^63 - 1 */
bool json_real(const struct json *value, double *out);      /* finite */
bool json_flag(const struct json *value, bool *out);
const char *json_string(const struct json *value); /* NULL: no string, or it holds a zero byte */
const char *json_text(const struct json *value);   /* as JSON; valid until the next call on the value */

/* In the order of the text; ends at the first failure. */
typedef zero_status (*json_member_fn)(void *user, const char *key, const struct json *value,
                                      struct zero_error *error);
zero_status json_each(const struct json *object, json_member_fn fn, void *user, struct zero_error *error);

void json_write_string(
    FILE *file,
    const char *
        text); /* quoted and escaped; a byte that is no UTF-8 becomes U+FFFD, so that any text can be read again */

#endif
