#include "engine/checkpoint/manifest.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/base/numbers/decimal.h"
#include "engine/checkpoint/checksum.h"
#include "engine/checkpoint/json.h"
#include "kernels/checksum.h"

static const char format_name[] = "zero checkpoint";
static const char checksum_key[] = "\"checksum\": \"";

/* ---- building ---- */

static void *grow(void *list, uint32_t count, size_t item) { /* doubles the capacity at powers of two */
    if (count & (count - 1)) return list;
    return realloc(list, (count ? 2 * (size_t)count : 1) * item);
}

bool manifest_add_param(struct manifest *m, const struct manifest_param *param) {
    struct manifest_param *list = grow(m->param, m->params, sizeof *list);
    if (!list) return false;
    m->param = list;
    list[m->params] = *param;
    list[m->params].name = strdup(param->name);
    return list[m->params++].name != NULL;
}

bool manifest_add_entry(struct manifest_entries *entries, const char *key, const char *value) {
    struct manifest_entry added = {.key = strdup(key), .value = strdup(value)};
    struct manifest_entry *list = grow(entries->entry, entries->count, sizeof *list);
    if (list) entries->entry = list;
    bool good = list && added.key && added.value;
    if (good)
        list[entries->count++] = added;
    else
        free(added.key), free(added.value);
    return good;
}

bool manifest_copy_entries(const struct manifest_entries *from, struct manifest_entries *to) {
    bool good = true;
    for (uint32_t i = 0; i < from->count && good; i++)
        good = manifest_add_entry(to, from->entry[i].key, from->entry[i].value);
    return good;
}

void manifest_free_entries(struct manifest_entries *entries) {
    for (uint32_t i = 0; i < entries->count; i++) free(entries->entry[i].key), free(entries->entry[i].value);
    free(entries->entry);
    *entries = (struct manifest_entries){0};
}

void manifest_free(struct manifest *m) {
    for (uint32_t i = 0; i < m->params; i++) free(m->param[i].name);
    free(m->param);
    free(m->file);
    manifest_free_entries(&m->notes);
    manifest_free_entries(&m->config);
    *m = (struct manifest){0};
}

static const char *find(const struct manifest_entries *entries, const char *key) {
    for (uint32_t i = 0; i < entries->count; i++)
        if (strcmp(entries->entry[i].key, key) == 0) return entries->entry[i].value;
    return NULL;
}

const char *manifest_note(const struct manifest *m, const char *key) { return find(&m->notes, key); }
const char *manifest_config(const struct manifest *m, const char *key) { return find(&m->config, key); }

const char *manifest_kind(const struct manifest *m, uint32_t kind) {
    return kind ? m->state[kind - 1] : "param";
}

uint32_t manifest_average(const struct manifest *m) {
    return m->states && strcmp(m->state[m->states - 1], MANIFEST_AVERAGE) == 0 ? m->states : 0;
}

void manifest_file_name(uint32_t rank, char out[32]) {
    snprintf(out, 32, "rank_%05" PRIu32 ".safetensors", rank);
}

/* ---- writing ---- */

static void print_entries(FILE *f, const char *name, const struct manifest_entries *entries, bool quote) {
    fprintf(f, " \"%s\": {", name);
    for (uint32_t i = 0; i < entries->count; i++) {
        fputs(i ? ",\n  " : "\n  ", f);
        json_write_string(f, entries->entry[i].key);
        fputs(": ", f);
        if (quote)
            json_write_string(f, entries->entry[i].value);
        else
            fputs(entries->entry[i].value, f);
    }
    fputs("},\n", f);
}

/* Prints all digits, with a decimal point in every locale. */
/* Prints 0 for a negative zero: a reader would take "-0" for an integer, which has no sign. */
static void print_real(FILE *f, double value) {
    char text[40];
    snprintf(text, sizeof text, "%.17g", value == 0 ? 0 : value);
    decimal_point(text);
    fputs(text, f);
}

static void print_counters(FILE *f, const struct manifest *m) {
    fprintf(f, "{\n \"format\": \"%s\",\n \"version\": %d,\n \"step\": %" PRIu64 ",\n \"skipped\": %" PRIu64,
            format_name, MANIFEST_VERSION, m->step, m->skipped);
    fputs(",\n \"loss_scale\": ", f);
    print_real(f, m->loss_scale);
    fprintf(f, ",\n \"loss_scale_allowed\": %" PRIu64 ",\n \"loss_scale_stable\": %" PRIu64,
            m->loss_scale_allowed, m->loss_scale_stable);
    fprintf(f, ",\n \"schedule_steps\": %" PRIu64, m->schedule_steps);
    fputs(",\n \"lr\": [", f);
    for (uint32_t i = 0; i < m->groups; i++) fputs(i ? ", " : "", f), print_real(f, m->lr[i]);
    fprintf(f, "],\n \"ranks\": %" PRIu32 ",\n \"stage\": %" PRIu32 ",\n \"optimizer\": ", m->ranks,
            m->stage);
    json_write_string(f, m->optimizer);
    fputs(",\n \"states\": [", f);
    for (uint32_t i = 0; i < m->states; i++) fputs(i ? ", " : "", f), json_write_string(f, m->state[i]);
    fputs("],\n", f);
}

static void print_params(FILE *f, const struct manifest *m) {
    fputs(" \"params\": [", f);
    for (uint32_t i = 0; i < m->params; i++) {
        const struct manifest_param *p = &m->param[i];
        fputs(i ? ",\n  {\"name\": " : "\n  {\"name\": ", f);
        json_write_string(f, p->name);
        fputs(", \"shape\": [", f);
        for (uint32_t d = 0; d < p->dims; d++) fprintf(f, "%s%" PRIu64, d ? ", " : "", p->shape[d]);
        fprintf(f, "], \"frozen\": %s", p->frozen ? "true" : "false");
        if (p->group) fprintf(f, ", \"group\": %" PRIu32, p->group - 1);
        fputs("}", f);
    }
    fputs("],\n", f);
}

static void print_files(FILE *f, const struct manifest *m) {
    fputs(" \"files\": [", f);
    for (uint32_t i = 0; i < m->files; i++) {
        char name[32], sum[CHECKSUM_DIGITS + 1];
        manifest_file_name(i, name);
        checksum_print(m->file[i].header_checksum, sum);
        fprintf(f, "%s{\"name\": \"%s\", \"bytes\": %" PRIu64 ", \"header\": \"%s\"}", i ? ",\n  " : "\n  ",
                name, m->file[i].bytes, sum);
    }
    fputs("],\n ", f);
}

char *manifest_print(const struct manifest *m, size_t *out_bytes) {
    char *text = NULL, sum[CHECKSUM_DIGITS + 1];
    FILE *f = open_memstream(&text, out_bytes);
    if (!f) return NULL;
    print_counters(f, m);
    print_entries(f, "notes", &m->notes, true);
    print_entries(f, "config", &m->config, false);
    print_params(f, m);
    print_files(f, m);
    fflush(f);
    checksum_print(checksum(text, *out_bytes), sum);
    fprintf(f, "%s%s\"}\n", checksum_key, sum);
    bool failed = ferror(f);
    if (fclose(f) == 0 && !failed) return text;
    free(text);
    return NULL;
}

zero_status manifest_write(struct storage *storage, const char *directory, const struct manifest *m,
                           struct zero_error *error) {
    char path[STORAGE_PATH_BYTES];
    size_t bytes;
    zero_status status = storage_join(directory, MANIFEST_NAME, path, error);
    if (status) return status;
    char *text = manifest_print(m, &bytes);
    if (!text) return error_set(error, ZERO_E_MEMORY, "no memory for the text of %s", path);
    status =
        bytes > MANIFEST_BYTES_MAX
            ? error_set(error, ZERO_E_UNSUPPORTED,
                        "%s would have %zu bytes, and may have %d: use fewer parameters, or shorter names",
                        path, bytes, MANIFEST_BYTES_MAX)
            : storage_write_text(storage, path, text, bytes, error);
    free(text);
    return status;
}

/* ---- reading ---- */

static zero_status damaged(const char *path, const char *what, struct zero_error *error) {
    return error_set(error, ZERO_E_IO, "%s is damaged: %s", path, what);
}

/* The last line is the checksum of all bytes before it. */
static zero_status check_sum(const char *text, size_t bytes, const char *path, uint64_t *out_sum,
                             struct zero_error *error) {
    size_t tail = sizeof checksum_key - 1 + CHECKSUM_DIGITS + 3;
    if (bytes < tail || memcmp(text + bytes - tail, checksum_key, sizeof checksum_key - 1) != 0 ||
        memcmp(text + bytes - 3, "\"}\n", 3) != 0 ||
        !checksum_parse(text + bytes - 3 - CHECKSUM_DIGITS, out_sum))
        return damaged(path, "it does not end with its checksum", error);
    if (checksum(text, bytes - tail) != *out_sum)
        return damaged(path, "its checksum does not match its text", error);
    return ZERO_OK;
}

static bool copy_string(const struct json *value, char *out, size_t capacity) {
    const char *text = json_string(value);
    if (!text || strlen(text) >= capacity) return false;
    strcpy(out, text);
    return true;
}

static bool read_small(const struct json *value, uint64_t max, uint32_t *out) {
    uint64_t integer;
    if (!json_integer(value, &integer) || integer > max) return false;
    *out = (uint32_t)integer;
    return true;
}

static bool read_optional(const struct json *value, uint64_t *out) {
    *out = 0;
    return !value || json_integer(value, out);
}

static bool read_counters(const struct json *j, struct manifest *m) {
    const struct json *lr = json_get(j, "lr"), *states = json_get(j, "states");
    m->groups = (uint32_t)json_count(lr);
    m->states = (uint32_t)json_count(states);
    bool good = json_count(lr) <= MANIFEST_GROUPS_MAX && json_count(states) <= MANIFEST_STATES_MAX &&
                json_integer(json_get(j, "step"), &m->step) &&
                json_integer(json_get(j, "skipped"), &m->skipped) &&
                json_real(json_get(j, "loss_scale"), &m->loss_scale) &&
                read_optional(json_get(j, "loss_scale_allowed"), &m->loss_scale_allowed) &&
                read_optional(json_get(j, "loss_scale_stable"), &m->loss_scale_stable) &&
                read_optional(json_get(j, "schedule_steps"), &m->schedule_steps) &&
                read_small(json_get(j, "ranks"), MANIFEST_RANKS_MAX, &m->ranks) &&
                read_small(json_get(j, "stage"), UINT8_MAX, &m->stage) &&
                copy_string(json_get(j, "optimizer"), m->optimizer, sizeof m->optimizer);
    for (uint32_t i = 0; good && i < m->groups; i++) good = json_real(json_at(lr, i), &m->lr[i]);
    for (uint32_t i = 0; good && i < m->states; i++)
        good = copy_string(json_at(states, i), m->state[i], sizeof m->state[i]) && *m->state[i];
    return good;
}

static bool read_param(const struct json *j, struct manifest *m) {
    const struct json *shape = json_get(j, "shape");
    struct manifest_param p = {.dims = (uint32_t)json_count(shape), .count = 1};
    const char *name = json_string(json_get(j, "name"));
    if (!name || !*name) return false;
    if (!json_flag(json_get(j, "frozen"), &p.frozen)) return false;
    const struct json *group = json_get(j, "group");
    if (group && (!m->groups || !read_small(group, m->groups - 1, &p.group))) return false;
    p.group += group != NULL;
    if (!json_is_list(shape) || json_count(shape) > MANIFEST_DIMS_MAX) return false;
    for (uint32_t d = 0; d < p.dims; d++)
        if (!json_integer(json_at(shape, d), &p.shape[d]) ||
            __builtin_mul_overflow(p.count, p.shape[d], &p.count) || p.count >> 56)
            return false;
    p.name = (char *)(uintptr_t)name; /* copied */
    return manifest_add_param(m, &p);
}

static int by_name(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static bool names_differ(const struct manifest *m) {
    char **names = malloc((m->params + 1) * sizeof *names);
    bool differ = names != NULL;
    for (uint32_t i = 0; differ && i < m->params; i++) names[i] = m->param[i].name;
    if (differ) qsort(names, m->params, sizeof *names, by_name);
    for (uint32_t i = 1; differ && i < m->params; i++) differ = strcmp(names[i - 1], names[i]) != 0;
    free(names);
    return differ;
}

static bool read_params(const struct json *list, struct manifest *m) {
    bool good = json_is_list(list) && json_count(list) < UINT32_MAX;
    for (uint64_t i = 0; good && i < json_count(list); i++) good = read_param(json_at(list, i), m);
    return good && names_differ(m);
}

/* Files are listed by rank, and the name of a file must be that of its rank. */
static bool read_files(const struct json *list, struct manifest *m) {
    if (!json_is_list(list) || json_count(list) != m->ranks || !m->ranks) return false;
    m->file = calloc(m->ranks, sizeof *m->file);
    for (; m->file && m->files < m->ranks; m->files++) {
        const struct json *j = json_at(list, m->files);
        const char *name = json_string(json_get(j, "name")), *sum = json_string(json_get(j, "header"));
        char expected[32];
        manifest_file_name(m->files, expected);
        if (!name || strcmp(name, expected) != 0 || !sum || strlen(sum) != CHECKSUM_DIGITS ||
            !checksum_parse(sum, &m->file[m->files].header_checksum) ||
            !json_integer(json_get(j, "bytes"), &m->file[m->files].bytes))
            return false;
    }
    return m->files == m->ranks;
}

static zero_status add_note(void *user, const char *key, const struct json *value, struct zero_error *error) {
    const char *text = json_string(value);
    return text && manifest_add_entry(user, key, text) ? ZERO_OK : ZERO_E_IO;
}

static zero_status add_config(void *user, const char *key, const struct json *value,
                              struct zero_error *error) {
    const char *text = json_text(value);
    return text && manifest_add_entry(user, key, text) ? ZERO_OK : ZERO_E_IO;
}

static zero_status read_all(const struct json *j, const char *path, struct manifest *m,
                            struct zero_error *error) {
    const char *format = json_string(json_get(j, "format"));
    uint64_t version;
    if (!format || strcmp(format, format_name) != 0)
        return error_set(error, ZERO_E_IO, "%s is not the manifest of a checkpoint of zero", path);
    if (!json_integer(json_get(j, "version"), &version)) return damaged(path, "it has no version", error);
    if (version != MANIFEST_VERSION)
        return error_set(error, ZERO_E_UNSUPPORTED,
                         "%s has version %" PRIu64
                         " of the format; this program reads version %d: use the one "
                         "that wrote it, or a newer one",
                         path, version, MANIFEST_VERSION);
    if (!read_counters(j, m)) return damaged(path, "its counters or states are wrong", error);
    if (!read_params(json_get(j, "params"), m))
        return damaged(path, "its list of parameters is wrong", error);
    if (!read_files(json_get(j, "files"), m)) return damaged(path, "its list of files is wrong", error);
    if (json_each(json_get(j, "notes"), add_note, &m->notes, error) ||
        json_each(json_get(j, "config"), add_config, &m->config, error))
        return damaged(path, "its notes or configuration are wrong", error);
    return ZERO_OK;
}

zero_status manifest_parse(const char *text, size_t bytes, const char *path, struct manifest *out,
                           struct zero_error *error) {
    struct json *document = NULL;
    struct manifest m = {0};
    zero_status status = check_sum(text, bytes, path, &m.checksum, error);
    if (!status) status = json_parse(text, bytes, path, &document, error);
    if (!status) status = read_all(document, path, &m, error);
    json_free(document);
    if (status)
        manifest_free(&m);
    else
        *out = m;
    return status;
}

zero_status manifest_read(struct storage *storage, const char *path, struct manifest *out,
                          struct zero_error *error) {
    char *text;
    size_t bytes;
    TRY(storage_read_text(storage, path, MANIFEST_BYTES_MAX, &text, &bytes, error));
    zero_status status = manifest_parse(text, bytes, path, out, error);
    free(text);
    return status;
}
