#include "tools/command/command.h"

#include <inttypes.h>
#include <json-c/json.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/base/system/regular_file.h"
#include "engine/base/utf8.h"
#include "tools/command/version.h"

enum { PATH_BYTES = 4096 + 32, FILE_BYTES_MAX = 16 << 20, TEXT_BYTES = 32 };

/* ---- keeping ---- */

static bool add(struct json_object *list, const char *text) {
    struct json_object *item = text && utf8_is(text) ? json_object_new_string(text) : NULL;
    return item && json_object_array_add(list, item) == 0;
}

/* A path in the list is absolute, because the run may go on from another directory. */
static bool add_path(struct json_object *list, const char *text) {
    char *path = realpath(text, NULL);
    bool added = add(list, path ? path : text);
    free(path);
    return added;
}

static bool add_option(struct json_object *list, const struct option *o, const void *field) {
    char number[TEXT_BYTES];
    const struct option_list *paths = field;
    bool is_path = strcmp(o->name, "--model") == 0 || strcmp(o->name, "--hardware") == 0, whole = true;
    switch (o->kind) {
    case OPTION_FLAG:
        return !*(const bool *)field || add(list, o->name);
    case OPTION_COUNT:
        snprintf(number, sizeof number, "%" PRIu64, *(const uint64_t *)field);
        return !*(const uint64_t *)field || (add(list, o->name) && add(list, number));
    case OPTION_TEXT:
        return !*(const char *const *)field ||
               (add(list, o->name) && (is_path ? add_path : add)(list, *(const char *const *)field));
    case OPTION_LIST:
        if (paths->count) whole = add(list, o->name);
        for (uint64_t i = 0; i < paths->count && whole; i++) whole = add_path(list, paths->items[i]);
        return whole;
    default: /* no such option is kept */
        return true;
    }
}

static bool is_among(const char *name, const char *const *names) {
    while (*names && strcmp(name, *names) != 0) names++;
    return *names;
}

/* The lines of `zero --version`, for a reader. */
static struct json_object *versions(void) {
    char *text = NULL, *rest;
    size_t length;
    struct json_object *list = json_object_new_array();
    FILE *file = open_memstream(&text, &length);
    if (file) version_print(file), fclose(file);
    for (char *line = text ? strtok_r(text, "\n", &rest) : NULL; line; line = strtok_r(NULL, "\n", &rest))
        add(list, line);
    free(text);
    return list;
}

struct json_object *recall_keep(const struct option *options, const void *values, const char *const *passing,
                                const char *text) {
    struct json_object *kept = json_object_new_object(), *list = json_object_new_array();
    bool whole = kept && list;
    for (const struct option *o = options; o->name && whole; o++)
        if (!is_among(o->name, passing)) whole = add_option(list, o, (const char *)values + o->offset);
    json_object_object_add(kept, "options", list);
    json_object_object_add(kept, "configuration", json_object_new_string(text));
    json_object_object_add(kept, "versions", versions());
    if (whole) return kept;
    json_object_put(kept);
    return NULL;
}

/* ---- recalling ---- */

static const char *text_of(struct json_object *object, const char *key) {
    struct json_object *value = json_object_object_get(object, key);
    return json_object_is_type(value, json_type_string) ? json_object_get_string(value) : NULL;
}

static struct json_object *read_file(const char *run) {
    char path[PATH_BYTES];
    struct stat found;
    struct json_object *root = NULL;
    snprintf(path, sizeof path, "%s/run.json", run);
    FILE *file = regular_file_open(path);
    if (!file) return NULL;
    if (fstat(fileno(file), &found) == 0 && found.st_size <= FILE_BYTES_MAX)
        root = json_object_from_fd(fileno(file));
    fclose(file);
    return root;
}

static char **arguments_of(struct json_object *list, int *out_count) {
    size_t count = json_object_is_type(list, json_type_array) ? json_object_array_length(list) : 0;
    char **argv = calloc(count + 2, sizeof *argv);
    for (size_t i = 0; argv && i < count; i++) {
        struct json_object *item = json_object_array_get_idx(list, i);
        if (!json_object_is_type(item, json_type_string)) break;
        argv[i + 1] = (char *)json_object_get_string(item);
        *out_count = (int)i + 2;
    }
    if (argv) argv[0] = "train";
    return argv;
}

static const char *other_version(struct json_object *kept) {
    struct json_object *own = versions(), *list = json_object_object_get(kept, "versions");
    size_t count = json_object_is_type(list, json_type_array) ? json_object_array_length(list) : 0;
    const char *found = NULL;
    for (size_t i = 0; i < count && !found; i++) {
        const char *line = json_object_get_string(json_object_array_get_idx(list, i));
        const char *mine = json_object_get_string(json_object_array_get_idx(own, i));
        bool same = line && (strncmp(line, "commit", 6) == 0 || (mine && strcmp(line, mine) == 0));
        if (line && !same) found = line;
    }
    json_object_put(own);
    return found;
}

void recall_read(const char *run, struct recalled *out) {
    *out = (struct recalled){.root = read_file(run), .argc = 1};
    struct json_object *kept =
        json_object_is_type(out->root, json_type_object) ? json_object_object_get(out->root, "kept") : NULL;
    if (!json_object_is_type(kept, json_type_object)) return;
    out->text = text_of(kept, "configuration");
    out->argv = arguments_of(json_object_object_get(kept, "options"), &out->argc);
    out->version = other_version(kept);
    if (out->text && out->argv) out->config = text_of(out->root, "config");
}

void recall_free(struct recalled *r) {
    json_object_put(r->root);
    free(r->argv);
    *r = (struct recalled){0};
}
