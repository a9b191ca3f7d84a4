#include "engine/ranks/failure.h"

#include <stdarg.h>

#include "engine/base/utf8.h"

static _Thread_local struct failure last, present; /* present: the call in progress; its error is unused */

const char *zero_last_error(void) { return last.error.message; }

const struct failure *failure_last(void) { return &last; }

const struct failure *failure_present(void) { return &present; }

void failure_call(const char *name, const char *unit) {
    present.call = name;
    utf8_copy(present.unit, sizeof present.unit, unit ? unit : "");
}

zero_status last_error_set(zero_status status, const char *format, ...) {
    struct zero_error error; /* an argument may be the last sentence itself */
    va_list args;
    error_clear(&error);
    va_start(args, format);
    error_set_v(&error, status, format, args);
    va_end(args);
    return refuse_error(&error);
}

zero_status refuse_error(const struct zero_error *error) {
    last = present;
    last.error = *error;
    return error->code;
}
