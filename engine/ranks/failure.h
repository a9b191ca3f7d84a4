/* This thread's last failure: what zero_last_error and zero_last_failure return. */
#pragma once

#include "engine/base/error.h"
#include "engine/base/limits.h"
#include "engine/zero.h"

struct failure {
    struct zero_error error;
    const char *call;          /* the function of the interface; NULL: unknown */
    char unit[NAME_BYTES_MAX]; /* "": the call has no unit; a longer name is cut */
};

const struct failure *failure_last(void);

/* The call of the interface that this thread makes; its error is unused. */
const struct failure *failure_present(void);

/* A function of the interface begins: the next failures of this thread are its own. `name` lives for ever; `unit` may be NULL. */
void failure_call(const char *name, const char *unit);

/* Keeps the sentence. Returns `status`. */
zero_status last_error_set(zero_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The caller made a mistake: the call returns, and nothing changes. */
#define refuse last_error_set

zero_status refuse_error(const struct zero_error *error);
