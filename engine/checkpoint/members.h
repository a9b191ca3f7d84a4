/* The members of a JSON object, one after another: a header of a million entries has no document in memory. */
#ifndef ZERO_ENGINE_CHECKPOINT_MEMBERS_H
#define ZERO_ENGINE_CHECKPOINT_MEMBERS_H

#include <stddef.h>

#include "engine/base/error.h"

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

#endif
