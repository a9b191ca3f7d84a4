#include "engine/ranks/failure.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char last_error[sizeof((struct zero_error *)0)->message];

const char *zero_last_error(void) { return last_error; }

zero_status last_error_set(zero_status status, const char *format, ...) {
    char line[sizeof last_error]; /* an argument may be the last sentence itself */
    va_list args;
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    strcpy(last_error, line);
    return status;
}

zero_status refuse_error(const struct zero_error *error) { return refuse(error->code, "%s", error->message); }
