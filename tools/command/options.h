/* Command line options from one table per command; the same table writes the help. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "engine/base/error.h"

enum option_kind {
    OPTION_FLAG,  /* bool */
    OPTION_COUNT, /* uint64_t, at least 1 */
    OPTION_REAL,  /* double, at least 0 */
    OPTION_TEXT,  /* const char * */
    OPTION_MAYBE, /* struct option_maybe: may have a whole number after it */
    OPTION_NAME, /* struct option_name: may have a run's name after it, "any" or 8 or more hexadecimal digits */
    OPTION_EACH, /* struct option_each: one argument, and the option may be repeated */
    OPTION_LIST  /* struct option_list: every argument up to the next option */
};

struct option_list {
    const char *const *items; /* in argv */
    uint64_t count;
};

enum { OPTION_EACH_MAX = 64 };

struct option_each {
    const char *items[OPTION_EACH_MAX]; /* in argv */
    uint64_t count;
};

struct option_maybe {
    bool given;
    uint64_t count; /* 0: not given */
};

struct option_name {
    bool given;
    const char *text; /* NULL: not given */
};

struct option {
    const char *name, *value, *help; /* "--steps", "N", "..." */
    enum option_kind kind;
    size_t offset; /* of the field in `values` */
};

/* The kind of an option, and the field of the command's `struct arguments`, which has the type of that kind. */
#define OPTION_FIELD(type, name)                                                                             \
    offsetof(struct arguments, name) + 0 * sizeof((type *)0 == &((struct arguments *)0)->name)
#define FLAG(name) OPTION_FLAG, OPTION_FIELD(bool, name)
#define COUNT(name) OPTION_COUNT, OPTION_FIELD(uint64_t, name)
#define REAL(name) OPTION_REAL, OPTION_FIELD(double, name)
#define TEXT(name) OPTION_TEXT, OPTION_FIELD(const char *, name)
#define MAYBE(name) OPTION_MAYBE, OPTION_FIELD(struct option_maybe, name)
#define NAME(name) OPTION_NAME, OPTION_FIELD(struct option_name, name)
#define EACH(name) OPTION_EACH, OPTION_FIELD(struct option_each, name)
#define LIST(name) OPTION_LIST, OPTION_FIELD(struct option_list, name)

/* Fills `values` from argv[1..]. The field of an option that is not given keeps its value. `out_operand` gets the one
 * argument that belongs to no option. Errors name the wrong argument. */
zero_status options_parse(const struct option *options, int argc, char **argv, void *values,
                          const char **out_operand, struct zero_error *error);

/* Takes from `earlier` the fields that `values` lacks. */
void options_fill(const struct option *options, const void *earlier, void *values);

void options_help(const struct option *options, FILE *out);
