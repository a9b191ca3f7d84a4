/* The context of a failure. The first function that knows what went wrong writes the message; its callers only pass
 * the status on. A message is one sentence: what failed, where, why, and what to do instead.
 * Threads: an error belongs to one owner; callers serialize. */
#pragma once

#include <stdarg.h>
#include <stdint.h>

#include "engine/base/status.h"

struct zero_error {
    zero_status code; /* ZERO_OK: nothing failed */
    int32_t rank;     /* the rank at fault where one is known, else -1 */
    uint64_t step;
    char message[1024];
};

#define ERROR_NONE                                                                                           \
    { .rank = -1 } /* as an initializer: nothing failed */
void error_clear(struct zero_error *error);
int error_code_known(uint32_t code); /* a code of the list in status.h, ZERO_OK included */

/* Records a failure and returns `code`. The first failure is kept: later calls return their code and change
 * nothing. `error` may be NULL. */
zero_status error_set(struct zero_error *error, zero_status code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
zero_status error_set_v(struct zero_error *error, zero_status code, const char *format, va_list args);

/* Returns the status of `call`, a failure, from the function that it stands in. Only where nothing is held that must be given back. */
#define TRY(call)                                                                                            \
    do {                                                                                                     \
        zero_status tried = (call);                                                                          \
        if (tried) return tried;                                                                             \
    } while (0)

/* Copies the first failure of `from` into `to`, if `to` has none; returns from->code. `to` may be NULL. */
zero_status error_pass(struct zero_error *to, const struct zero_error *from);
