#include "tools/command/options.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/suggest.h"

static const struct option *find(const struct option *options, const char *name) {
    for (const struct option *o = options; o && o->name; o++)
        if (strcmp(o->name, name) == 0) return o;
    return NULL;
}

static bool is_option(const char *argument) { return strncmp(argument, "--", 2) == 0 && argument[2]; }

static zero_status parse_count(const struct option *option, const char *text, uint64_t *out,
                               struct zero_error *error) {
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (!isdigit((unsigned char)*text) || *end || errno || value == 0)
        return error_set(error, ZERO_E_ARGUMENT, "%s needs a whole number of at least 1, not \"%s\"",
                         option->name, text);
    *out = value;
    return ZERO_OK;
}

static zero_status parse_real(const struct option *option, const char *text, double *out,
                              struct zero_error *error) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value >= 0) || isinf(value))
        return error_set(error, ZERO_E_ARGUMENT, "%s needs a number of at least 0, not \"%s\"", option->name,
                         text);
    *out = value;
    return ZERO_OK;
}

static bool is_name(const char *text) {
    enum { DIGITS_MIN = 8 };
    return strcmp(text, "any") == 0 ||
           (strlen(text) >= DIGITS_MIN && text[strspn(text, "0123456789abcdef")] == 0);
}

/* Reads the option at argv[at]; *out_next is the first argument after it. */
static zero_status parse_option(const struct option *option, int argc, char **argv, int at, void *field,
                                int *out_next, struct zero_error *error) {
    int next = at + 1;
    bool has_value = next < argc && (!is_option(argv[next]) || option->kind == OPTION_TEXT);
    bool needs_value =
        option->kind != OPTION_FLAG && option->kind != OPTION_MAYBE && option->kind != OPTION_NAME;
    if (needs_value && !has_value)
        return error_set(error, ZERO_E_ARGUMENT, "%s needs a value: %s %s", option->name, option->name,
                         option->value);
    zero_status status = ZERO_OK;
    switch (option->kind) {
    case OPTION_FLAG:
        *(bool *)field = true;
        break;
    case OPTION_COUNT:
        status = parse_count(option, argv[next++], field, error);
        break;
    case OPTION_REAL:
        status = parse_real(option, argv[next++], field, error);
        break;
    case OPTION_MAYBE: /* an argument that is not a number is the command's operand */
        ((struct option_maybe *)field)->given = true;
        if (has_value && argv[next][strspn(argv[next], "0123456789")] == 0)
            status = parse_count(option, argv[next++], &((struct option_maybe *)field)->count, error);
        break;
    case OPTION_NAME:
        ((struct option_name *)field)->given = true;
        if (has_value && is_name(argv[next])) ((struct option_name *)field)->text = argv[next++];
        break;
    case OPTION_TEXT:
        *(const char **)field = argv[next++];
        break;
    case OPTION_EACH: {
        struct option_each *each = field;
        if (each->count == OPTION_EACH_MAX)
            return error_set(error, ZERO_E_ARGUMENT, "%s is given more than %d times", option->name,
                             OPTION_EACH_MAX);
        each->items[each->count++] = argv[next++];
        break;
    }
    case OPTION_LIST: {
        struct option_list *list = field;
        if (list->count)
            return error_set(error, ZERO_E_ARGUMENT, "%s is given twice: write all values after one %s",
                             option->name, option->name);
        list->items = (const char *const *)argv + next;
        while (next < argc && !is_option(argv[next])) next++;
        list->count = (uint64_t)(next - at - 1);
        break;
    }
    }
    *out_next = next;
    return status;
}

/* The option whose spelling is nearest; NULL: none is near. */
static const char *nearest(const struct option *options, const char *argument) {
    enum { FAR = 3 };
    const char *best = NULL;
    size_t least = FAR;
    for (const struct option *o = options; o && o->name; o++) {
        size_t distance = suggest_distance(argument, o->name, FAR);
        if (distance < least) least = distance, best = o->name;
    }
    return best;
}

/* Other programs write "--steps=5"; the message names the form that works here. */
static zero_status unknown(const struct option *options, const char *argument, struct zero_error *error) {
    size_t length = strcspn(argument, "=");
    for (const struct option *o = options; argument[length] && o && o->name; o++)
        if (strlen(o->name) == length && strncmp(o->name, argument, length) == 0)
            return error_set(error, ZERO_E_ARGUMENT, "write %s %s in place of %s", o->name,
                             argument + length + 1, argument);
    const char *near = nearest(options, argument);
    return error_set(error, ZERO_E_ARGUMENT, "unknown option %s%s%s%s", argument,
                     near ? ": did you mean " : "", near ? near : "", near ? "?" : "");
}

zero_status options_parse(const struct option *options, int argc, char **argv, void *values,
                          const char **out_operand, struct zero_error *error) {
    const char *operand = NULL;
    zero_status status = ZERO_OK;
    for (int at = 1; at < argc && status == ZERO_OK;) {
        const struct option *option = find(options, argv[at]);
        if (option)
            status = parse_option(option, argc, argv, at, (char *)values + option->offset, &at, error);
        else if (argv[at][0] == '-' && argv[at][1])
            status = unknown(options, argv[at], error);
        else if (operand)
            status = error_set(error, ZERO_E_ARGUMENT, "unexpected argument \"%s\" after \"%s\"", argv[at],
                               operand);
        else
            operand = argv[at++];
    }
    *out_operand = operand;
    return status;
}

void options_fill(const struct option *options, const void *earlier, void *values) {
    static const size_t bytes[] = {[OPTION_FLAG] = sizeof(bool),
                                   [OPTION_COUNT] = sizeof(uint64_t),
                                   [OPTION_REAL] = sizeof(double),
                                   [OPTION_TEXT] = sizeof(char *),
                                   [OPTION_MAYBE] = sizeof(struct option_maybe),
                                   [OPTION_NAME] = sizeof(struct option_name),
                                   [OPTION_EACH] = sizeof(struct option_each),
                                   [OPTION_LIST] = sizeof(struct option_list)};
    static const char nothing[sizeof(struct option_each)];
    for (const struct option *o = options; o && o->name; o++) {
        char *field = (char *)values + o->offset;
        if (memcmp(field, nothing, bytes[o->kind]) == 0)
            memcpy(field, (const char *)earlier + o->offset, bytes[o->kind]);
    }
}

void options_help(const struct option *options, FILE *out) {
    for (const struct option *o = options; o && o->name; o++) {
        char left[64];
        snprintf(left, sizeof left, "%s%s%s", o->name, o->value ? " " : "", o->value ? o->value : "");
        fprintf(out, "  %-18s  %s\n", left, o->help);
    }
}
