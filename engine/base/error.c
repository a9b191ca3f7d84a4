#include "engine/base/error.h"

#include <stdio.h>

int error_code_known(uint32_t code) {
    switch ((zero_status)code) {
#define ERROR_CASE(name, number, meaning) case name:
        ZERO_STATUS_LIST(ERROR_CASE)
#undef ERROR_CASE
        return 1;
    }
    return 0;
}

void error_clear(struct zero_error *error) { *error = (struct zero_error){.rank = -1}; }

zero_status error_set_v(struct zero_error *error, zero_status code, const char *format, va_list args) {
    if (error && error->code == ZERO_OK) {
        error->code = code;
        vsnprintf(error->message, sizeof error->message, format, args);
    }
    return code;
}

zero_status error_set(struct zero_error *error, zero_status code, const char *format, ...) {
    va_list args;
    va_start(args, format);
    error_set_v(error, code, format, args);
    va_end(args);
    return code;
}

zero_status error_pass(struct zero_error *to, const struct zero_error *from) {
    if (to->code == ZERO_OK) *to = *from;
    return from->code;
}
