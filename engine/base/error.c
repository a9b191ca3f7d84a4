#include "engine/base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/utf8.h"

int error_code_known(uint32_t code) {
    switch ((zero_status)code) {
#define ERROR_CASE(name, number, meaning) case name:
        ZERO_STATUS_LIST(ERROR_CASE)
#undef ERROR_CASE
        return 1;
    }
    return 0;
}

void error_clear(struct zero_error *error) { *error = (struct zero_error)ERROR_NONE; }

/* A message is one line. A sentence that is too long loses its middle, which is a name: it keeps what failed, and the advice. */
static void print(char *out, size_t capacity, const char *format, va_list args) {
    static const char gap[] = " ... ";
    char *whole = NULL;
    int length = vasprintf(&whole, format, args);
    size_t half = (capacity - sizeof gap) / 2;
    if (length < 0)
        snprintf(out, capacity, "%s", format);
    else if ((size_t)length < capacity)
        strcpy(out, whole);
    else
        snprintf(out, capacity, "%.*s%s%s", (int)utf8_cut(whole, half), whole, gap,
                 whole + utf8_cut(whole, (size_t)length - half + 3));
    utf8_tame(out);
    if (length >= 0) free(whole);
}

zero_status error_set_v(struct zero_error *error, zero_status code, const char *format, va_list args) {
    if (error && error->code == ZERO_OK) {
        error->code = code;
        print(error->message, sizeof error->message, format, args);
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
    if (to && to->code == ZERO_OK) *to = *from;
    return from->code;
}
